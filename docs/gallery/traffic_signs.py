"""Traffic signs: how far may the brightness of every pixel change before the network's answer is no longer certified?

    python docs/gallery/traffic_signs.py [FOLDER]

The convolutional network and the signs are those of benchmarks/traffic_signs; a sign is the middle of a property's box.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from bnn_vnnlib import certify, read_model, read_property
from bnn_vnnlib.sweeps.inputs import mean_output

OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "traffic_signs"
model = read_model(next((BENCHMARK / "onnx").glob("*.onnx*")))
images: list[np.ndarray] = []
for path in sorted((BENCHMARK / "vnnlib").rglob("*.vnnlib*")):
    boxes = read_property(path).boxes
    image = (boxes.lower[0] + boxes.upper[0]) / 2
    if len(boxes) == 1 and all(np.abs(image - other).max() > 0.2 for other in images):
        images.append(image)
    if len(images) == 6:
        break
x = np.array(images)
labels = mean_output(model, x).argmax(1)
radii = [0.0, 0.01, 0.02, 0.03, 0.035, 0.04, 0.05, 0.06]
bounds = []
for radius in radii:
    result = certify(model, x, labels, radius, timeout=15)
    bounds.append((result.lower, result.upper))
    print(f"radius {radius}\n{result.summary()}\n")

shape = [side for side in model.network.signature.inputs[0].shape if side > 1]
figure, axes = plt.subplots(2, len(x), figsize=(2.6 * len(x), 4.4), layout="constrained", sharey="row")
for k, (image, (top, below)) in enumerate(zip(x, axes.T, strict=True)):
    pixels = image.reshape(shape) if len(shape) == 3 else image.reshape(1, *shape)
    shown = (pixels - pixels.min()) / np.ptp(pixels)
    top.imshow(shown.transpose(1, 2, 0) if len(shown) == 3 else shown[0], cmap="gray")
    top.set_axis_off()
    top.set_title(f"class {labels[k]}")
    # P_safe falls with the radius: a lower bound holds at all smaller radii, an upper bound at all larger ones.
    below.step(radii, [low[k] for low, _ in bounds], where="pre", color="#1b7837", label="lower bound")
    below.step(radii, [high[k] for _, high in bounds], where="post", color="#b2182b", label="upper bound")
    below.set(ylim=(-0.02, 1.02), xlabel="change")
axes[1, 0].set_ylabel("bounds on P_safe")
axes[1, 0].legend(loc="lower left", frameon=False)
figure.savefig(OUT / "traffic_signs.svg", dpi=150)
