"""Reading files, telling them apart, options in comments, matching a model."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from bnn_vnnlib.errors import InputError, PropertyError, VnnlibSyntaxError
from bnn_vnnlib.signature import Signature, Variable
from bnn_vnnlib.vnnlib import looks_like_vnnlib, match, parse_property, read_property
from bnn_vnnlib.vnnlib.parse import read_property_text

TEXT = "; café\n(declare-const X_0 Real)(declare-const Y_0 Real)\n(assert (and (>= X_0 0) (<= X_0 1) (>= Y_0 0.5)))"


def tensors(inputs: str, outputs: str = "(declare-output Y real [1])") -> str:
    return f"(vnnlib-version <2.0>)(declare-network f {inputs} {outputs})\n"


def model(
    *inputs: tuple[int, ...], outputs: tuple[tuple[int, ...], ...] = ((1, 1),), kind: str = "float32"
) -> Signature:
    return Signature(
        tuple(Variable(f"in{i}", kind, shape) for i, shape in enumerate(inputs)),
        tuple(Variable(f"out{i}", kind, shape) for i, shape in enumerate(outputs)),
    )


@pytest.mark.parametrize(("name", "asked"), [("p.vnnlib", "p.vnnlib"), ("p.vnnlib.gz", "p.vnnlib.gz"),
                                             ("p.vnnlib.gz", "p.vnnlib"), ("q.vnnlib", "q.vnnlib")])  # fmt: skip
def test_reads_plain_and_gzip(tmp_path: Path, name: str, asked: str) -> None:
    """q.vnnlib is a gzip file without the name of one."""
    data = TEXT.encode() if name == "p.vnnlib" else gzip.compress(TEXT.encode(), mtime=0)
    (tmp_path / name).write_bytes(data)
    assert read_property(tmp_path / asked).num_cases == 1
    assert looks_like_vnnlib(tmp_path / asked)


def test_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "p.vnnlib"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    assert looks_like_vnnlib(path)
    assert read_property(path).num_cases == 1


@pytest.mark.parametrize(
    ("data", "kind", "words"),
    [
        (None, InputError, "no such file"),
        (b"\x1f\x8b garbage", InputError, "damaged gzip file"),
        (gzip.compress(TEXT.encode(), mtime=0)[:-12], InputError, "damaged gzip file"),
        (b"\xff\xfe(\x00", VnnlibSyntaxError, "not a text file"),
        (b"", PropertyError, "empty"),
    ],
)
def test_broken_files(tmp_path: Path, data: bytes | None, kind: type[InputError], words: str) -> None:
    path = tmp_path / "p.vnnlib"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(InputError, match=words) as caught:
        read_property(path)
    assert type(caught.value) is kind
    assert caught.value.path == path


def test_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        read_property(tmp_path)
    assert not looks_like_vnnlib(tmp_path)


def test_size_limit_holds_after_decompression(tmp_path: Path) -> None:
    path = tmp_path / "bomb.vnnlib.gz"
    path.write_bytes(gzip.compress(b" " * 1_000_001))
    with pytest.raises(InputError, match="more than 1,000,000 bytes"):
        read_property_text(path, limit=1_000_000)
    assert len(read_property_text(path, limit=1_000_001)[0]) == 1_000_001


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b" \n\t(x", True),
        (b"; c", True),
        (b"\x08\x08\x12", False),
        (gzip.compress(b"\x08\x01", mtime=0), False),
        (b"version", False),
    ],
)
def test_looks_like_vnnlib_by_content(tmp_path: Path, data: bytes, expected: bool) -> None:
    path = tmp_path / "file.onnx"
    path.write_bytes(data)
    assert looks_like_vnnlib(path) is expected


def test_looks_like_vnnlib_without_content(tmp_path: Path) -> None:
    (tmp_path / "a.vnnlib").write_text("")
    (tmp_path / "a.onnx").write_text("")
    assert looks_like_vnnlib(tmp_path / "a.vnnlib")
    assert not looks_like_vnnlib(tmp_path / "a.onnx")
    assert not looks_like_vnnlib(tmp_path / "missing.vnnlib")


def test_options() -> None:
    comments = "  ;; bnn-vnnlib: query=probabilistic tau_safe=0.98\n; see bnn-vnnlib-notes.md, bnn-vnnlib: x=1\n"
    prop = parse_property(comments + TEXT + " ; bnn-vnnlib: tau_unsafe=0.05\n;bnn-vnnlib: query=probabilistic")
    assert dict(prop.options) == {"query": "probabilistic", "tau_safe": "0.98", "tau_unsafe": "0.05"}


def test_match_keeps_what_fits() -> None:
    prop = parse_property(TEXT)
    assert match(prop, model((1, 1))) is prop
    assert parse_property(TEXT, signature=model((1, 1), kind="float64")).notes == ()


@pytest.mark.parametrize(
    ("signature", "words"),
    [
        (model((1, 2)), "declares 1 input X_0 to X_0, the model's input in0 [1, 2] has 2 elements"),
        (model((1, 1), outputs=((2,),)), "declares 1 output Y_0"),
        (model((1,), (1,)), "a model with one input, this one has 2 (in0, in1)"),
        (model((1,), outputs=((1,), (1,))), "a model with one output, this one has 2"),
        (model((1,), kind="int64"), "expected float32 or float64"),
    ],
)
def test_1_0_does_not_fit(signature: Signature, words: str) -> None:
    with pytest.raises(PropertyError) as caught:
        parse_property(TEXT, "p.vnnlib", signature)
    assert words in caught.value.message
    assert str(caught.value).startswith("p.vnnlib: ")
    with pytest.raises(PropertyError):
        match(parse_property(TEXT), signature)


BOUNDS = "(assert (and (>= X[0,0] 0.0) (<= X[0,0] 1.0) (>= X[0,1] 0.0) (<= X[0,1] 1.0)))"
FLAT = BOUNDS.replace("0,", "")


@pytest.mark.parametrize(
    ("text", "signature", "notes"),
    [
        (tensors("(declare-input X real [1,2])", "(declare-output Y real [1,1])") + BOUNDS, model((1, 2)), 0),
        (tensors("(declare-input X float32 [1,2])", "(declare-output Y float32 [1,1])") + BOUNDS, model((1, 2)), 0),
        (tensors("(declare-input X real [2])") + FLAT, model((1, 2)), 2),
        (tensors("(declare-input X real [2])") + FLAT, model((1, 2, 1), outputs=((),)), 2),
    ],
)
def test_2_x_fits(text: str, signature: Signature, notes: int) -> None:
    assert len(parse_property(text, signature=signature).notes) == notes


@pytest.mark.parametrize(
    ("text", "signature", "words"),
    [
        (tensors("(declare-input X real [3])") + FLAT, model((1, 2)), "declared [3], the model's in0 is [1, 2]"),
        (tensors("(declare-input X real [1,2,2])") + FLAT, model((1, 4)), "the shapes must agree"),
        (
            tensors("(declare-input X real [2])") + FLAT,
            model((2,), (1,)),
            "declares 1 input (X), the model has 2 inputs",
        ),
        (
            tensors("(declare-input X float64 [2])", "(declare-output Y float64 [1])") + FLAT,
            model((2,)),
            "is declared float64",
        ),
    ],
)
def test_2_x_does_not_fit(text: str, signature: Signature, words: str) -> None:
    with pytest.raises(PropertyError) as caught:
        parse_property(text, signature=signature)
    assert words in caught.value.message


def test_import_is_light() -> None:
    """A message about a property must not wait for the numerical packages, nor an import for the parser."""
    code = (
        "import sys, bnn_vnnlib.vnnlib as v\n"
        "assert 'lark' not in sys.modules\n"
        "v.parse_property(sys.argv[1])\n"
        "assert not {'torch', 'onnx', 'onnxruntime', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, TEXT], check=True)


MARABOU = ["x0 >= 0\nx1 <= 1\n+y0 -y1 >= 0.5\n", "\n+y0 -y1 <= 0", "-1.5x0 +2 x1 >= -3e-2\r\n", "ws_1_3 <= 0.5\n"]


@pytest.mark.parametrize("text", MARABOU)
def test_the_text_format_of_marabou_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.txt"
    path.write_text(text)
    assert looks_like_vnnlib(path)  # so that a command takes it for the property, and refuses it by name
    with pytest.raises(VnnlibSyntaxError, match="Marabou's text format") as caught:
        read_property(path)
    assert caught.value.line is not None


@pytest.mark.parametrize("text", ["x0 is large\n", "x0 >= y\n", "0 >= 0.5\n", "x" + "1" * 900 + "\n", "x1 " * 300])
def test_other_text_is_not_taken_for_marabous(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.vnnlib").write_text(text)
    assert not looks_like_vnnlib(tmp_path / "p.vnnlib")
    with pytest.raises(VnnlibSyntaxError, match="expected"):
        read_property(tmp_path / "p.vnnlib")
