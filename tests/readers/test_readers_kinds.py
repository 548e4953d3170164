"""Files that are something else than what a command wants: said by name, with what to do, and never opened further."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from test_cli import OLD

from bnn_vnnlib import InputError, read_model, read_property
from bnn_vnnlib.files.vnncomp import read_result
from bnn_vnnlib.model import read_posterior_npz
from bnn_vnnlib.readers.kinds import kind_of, start_of
from bnn_vnnlib.sweeps import read_table
from support.command import call


class Trap:
    """Unpickling this is seen."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was opened",))


def zipped(name: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(name, pickle.dumps(Trap()))
    return out.getvalue()


def arrays() -> bytes:
    out = io.BytesIO()
    np.savez(out, W_std=np.ones((2, 2)))
    return out.getvalue()


STRANGE = {
    "torch": (zipped("net/data.pkl"), "a PyTorch file"),
    "old torch": (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.", "a PyTorch file"),
    "pickle": (pickle.dumps(Trap()), "a Python pickle"),
    "keras": (zipped("metadata.json"), "a Keras file"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(50), "an HDF5 file"),
    "tflite": (b"\x1c\x00\x00\x00TFL3" + bytes(50), "a TensorFlow Lite model"),
    "zip": (zipped("net.onnx"), "a zip archive"),
    "tar": (bytes(257) + b"ustar" + bytes(300), "a tar archive"),
    "npy": (b"\x93NUMPY\x01\x00" + bytes(80), "a single NumPy array"),
    "web": (b"<!DOCTYPE html><title>net.onnx</title>", "a web page"),
    "record": (json.dumps({"verdict": "sat"}).encode(), "JSON text"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "a Git-LFS pointer"),
}
READERS = {
    "model": (read_model, "expected an ONNX model"),
    "property": (read_property, "expected a VNN-LIB property"),
    "posterior": (lambda path: read_posterior_npz(path, path.with_name("id.onnx")), "expected a NumPy archive"),
    "table": (read_table, "expected a table"),
    "result": (read_result, "expected a results file"),
}


@pytest.fixture
def files(tmp_path, identity_model):
    """One proper file of each kind, by kind."""
    made = {name: tmp_path / name for name in ("p.vnnlib", "p.npz", "id.onnx", "r.txt", "t.npz")}
    made["p.vnnlib"].write_text(OLD)
    made["p.npz"].write_bytes(arrays())
    made["id.onnx"].write_bytes(identity_model.read_bytes())
    made["r.txt"].write_text("sat\n((X_0 1.0)\n(X_1 0.0)\n(Y_0 1.0)\n(Y_1 0.0))\n")
    np.savez(made["t.npz"], lower=np.zeros((1, 2)), upper=np.ones((1, 2)), label=np.zeros(1, int))
    return made


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", STRANGE)
def test_what_a_file_is_instead(name, reader, packed, files, tmp_path):
    content, what = STRANGE[name]
    read, wanted = READERS[reader]
    path = tmp_path / "strange"
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(InputError, match=f"{wanted}.*: it (is|holds) {what}.*; ") as caught:
        read(path)
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            ["verify", "id.onnx", "--network", "p.vnnlib"],
            "expected a VNN-LIB property: it seems to be an ONNX model; were",
        ),
        (
            ["verify", "p.npz", "id.onnx"],
            "neither file is VNN-LIB text (p.npz: it is a NumPy archive (.npz); id.onnx",
        ),
        (
            ["verify", "p.vnnlib", "p.npz"],
            "expected an ONNX model: it is a NumPy archive (.npz); a posterior gets into a",
        ),
        (["attach", "p.npz", "id.onnx", "new.onnx"], "expected a"),
        (["inspect", "p.vnnlib"], "expected an ONNX model: it is VNN-LIB text"),
        (["inspect", "p.npz"], "bnn-vnnlib attach MODEL POSTERIOR TARGET"),
        (["check-witness", "p.vnnlib", "id.onnx", "r.txt"], "were two files exchanged?"),
        (["check-witness", "id.onnx", "r.txt", "p.vnnlib"], "expected"),
        (["check-witness", "id.onnx", "p.vnnlib", "p.npz"], "expected a results file: it is a NumPy archive"),
        (["sweep", "t.npz", "id.onnx", "--out", "out"], "expected a table (.npz or .parquet): it seems to be an ONNX"),
        (["radius", "t.npz", "id.onnx", "--out", "out"], "expected a table (.npz or .parquet): it seems to be an ONNX"),
        (
            ["run", "id.onnx", "--out", "out"],
            "expected a benchmark folder or its instances.csv: it seems to be an ONNX",
        ),
        (["simplify", "p.vnnlib", "new.onnx"], "expected an ONNX model: it is VNN-LIB text"),
    ],
)
def test_files_in_another_order(command, message, files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = " ".join(call(*command, code=2).stderr.split())
    assert message in told
    assert "codec" not in told


def test_proper_files_are_known(files):
    known = {name: kind_of(start_of(path)) for name, path in files.items()}
    assert {name: kind.what for name, kind in known.items()} == {
        "p.vnnlib": "it is VNN-LIB text",
        "p.npz": "it is a NumPy archive (.npz)",
        "t.npz": "it is a NumPy archive (.npz)",
        "id.onnx": "it seems to be an ONNX model",
        "r.txt": "it is a results file",
    }
    assert start_of(Path("nowhere")) is None
