"""Damaged and hostile files: one message each, no traceback, bounded time and memory."""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from bnn_vnnlib_check import container
from bnn_vnnlib_check.cli import check
from bnn_vnnlib_check.errors import RejectedError, UnreadableError
from bnn_vnnlib_check.model import read_model
from bnn_vnnlib_check.vnnlib import read_property
from by_hand import Instance, convolution, items, model, one_leaf, prop, tails

MUTATIONS = 400

LAYERS = [([[1.0], [-1.0]], [0.0, 0.0]), ([[1.0, -1.0]], [0.0])]
NOISE = [([[0.04], [0.04]], [0.0, 0.0]), ([[0.04, 0.04]], [0.0])]


def instance(folder: Path) -> tuple[Instance, dict[str, Any]]:
    one = Instance(folder, model(LAYERS, NOISE), prop([(1, 1.5)], 1, "(<= Y_0 -2)"))
    arrays = one_leaf([1], [1.5]) | {"l": np.array([[0.0, -3.0]]), "u": np.array([[3.0, 0.0]])}
    return one, one.claim(items(tails(["l"], ["u"])), arrays, bound="0.9")


def ending(work: Callable[[], str]) -> str:
    """How a check ends; any other error is a fault of the checker."""
    try:
        said = work()
    except RejectedError as error:
        return "rejected" if str(error) else "without a word"
    except UnreadableError as error:
        return "unreadable" if str(error) else "without a word"
    return "accepted" if said else "without a word"


@pytest.mark.parametrize("seed", range(4))
def test_mutated_files(tmp_path: Path, seed: int) -> None:
    """Bytes of all three files changed, cut and repeated: the certificate stays refused or rejected, or it holds."""
    draw = random.Random(seed)
    one, manifest = instance(tmp_path)
    paths = one.write(manifest)
    original = [path.read_bytes() for path in paths]
    ended = dict.fromkeys(("accepted", "rejected", "unreadable"), 0)
    for _ in range(MUTATIONS // 4):
        which = draw.choice([0, 1, 2, 2, 2])
        data = bytearray(original[which])
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(len(data))
            kind = draw.random()
            if kind < 0.7:
                data[at] = draw.randrange(256)
            elif kind < 0.85:
                del data[at : at + draw.randint(1, 20)]
            else:
                data[at:at] = data[at : at + draw.randint(1, 20)]
        paths[which].write_bytes(bytes(data))
        ended[ending(lambda: check(*paths))] += 1
        paths[which].write_bytes(original[which])
    assert ended["unreadable"] > 0
    assert ended["rejected"] > 0
    assert ended["accepted"] <= MUTATIONS // 40  # the time of day in the archive, and the like


@pytest.mark.parametrize(("part", "seed"), [("model", 0), ("property", 1)])
def test_mutated_inputs_that_the_certificate_is_about(tmp_path: Path, part: str, seed: int) -> None:
    """The certificate names the mutated file, so that its reader sees it, and not its hash alone."""
    draw = random.Random(seed)
    made, text = model(LAYERS, NOISE), prop([(1, 1.5)], 1, "(<= Y_0 -2)")
    for _ in range(MUTATIONS // 4):
        data = bytearray(made if part == "model" else text)
        for _ in range(draw.randint(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        one = Instance(tmp_path, *((bytes(data), text) if part == "model" else (made, bytes(data))))
        arrays = one_leaf([1], [1.5]) | {"l": np.array([[0.0, -3.0]]), "u": np.array([[3.0, 0.0]])}
        manifest = one.claim(items(tails(["l"], ["u"])), arrays, bound="0.9")
        ending(lambda one=one, manifest=manifest: one.said(manifest))


MANIFESTS: dict[str, str] = {
    "no JSON": "{",
    "a key twice": '{"format": 1, "format": 1}',
    "NaN": '{"format": NaN}',
    "infinite": '{"format": 1, "info": -Infinity}',
    "a long number": '{"format": ' + "1" * 2000 + "}",
    "a long float": '{"format": 1.' + "1" * 2000 + "}",
    "nested": '{"format": ' + "[" * 5000 + "]" * 5000 + "}",
    "no object": "[1]",
    "another format": '{"format": 2}',
    "a format that is true": '{"format": true}',
    "nothing": "{}",
}


@pytest.mark.parametrize("what", MANIFESTS)
def test_manifests(tmp_path: Path, what: str) -> None:
    one, _ = instance(tmp_path)
    one.arrays = {}
    with pytest.raises(UnreadableError):
        one.said(MANIFESTS[what])


def test_keys_rules_and_entries_that_are_unknown(tmp_path: Path) -> None:
    one, manifest = instance(tmp_path)
    for change, why in (
        (lambda m: m.update(more=1), "unknown key 'more'"),
        (lambda m: m["proof"].update(more=1), "unknown key 'more'"),
        (lambda m: m["proof"]["items"][0]["tree"]["leaf"].update(more=1), "unknown key 'more'"),
        (lambda m: m["proof"].update(rule="items/2"), "rule 'items/2' is not known"),
        (lambda m: m["proof"]["items"][0].update(box="nowhere"), "no entry 'nowhere'"),
        (lambda m: m["proof"]["items"][0].update(box=["box"]), "name of an array is wanted"),
        (lambda m: m["claim"].update(verdict="safe"), "verdict 'safe' is not understood"),
        (lambda m: m["claim"].update(bound="nan"), "'nan' is no number"),
        (lambda m: m.update(tau_safe="1e999999"), "is no number"),
    ):
        changed = json.loads(json.dumps(manifest))
        change(changed)
        with pytest.raises(UnreadableError, match=why):
            one.said(changed)
    one.arrays["more"] = np.zeros(1)
    with pytest.raises(UnreadableError, match="nothing refers to entry 'more'"):
        one.said(manifest)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (np.array([[1, np.nan]]), "not finite"),
        (np.array([[1, 1.5 + 1j]]), "is of type"),
        (np.array([["a", "b"]]), "is of type"),
        (np.array([[1, 2]], ">f8"), "is of type"),
        (np.array([[1, 2]], np.float16), "is of type"),
        (np.zeros((3, 2)), "shape"),
    ],
)
def test_arrays(tmp_path: Path, values: Any, why: str) -> None:
    one, manifest = instance(tmp_path)
    one.arrays["l"] = values
    with pytest.raises(UnreadableError, match=why):
        one.said(manifest)


def test_sizes_are_looked_at_before_memory_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "ALL_BYTES", 2**20)
    one, manifest = instance(tmp_path)
    paths = one.write(manifest)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (2**60,)})
    with zipfile.ZipFile(paths[2]) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    for name, data in (("l", header.getvalue()), ("l", b""), ("l", b"\x93NUMPY\x01\x00\xff\xff"), ("bomb", None)):
        with zipfile.ZipFile(paths[2], "w", zipfile.ZIP_DEFLATED) as archive:
            for entry, content in entries.items():
                archive.writestr(entry, (data if data is not None else content) if entry == name else content)
            if data is None:
                archive.writestr(name, b"\0" * (2**20 + 1))
        with pytest.raises(UnreadableError):
            check(*paths)


def test_an_entry_twice(tmp_path: Path) -> None:
    one, manifest = instance(tmp_path)
    paths = one.write(manifest)
    with zipfile.ZipFile(paths[2], "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("l", b"")
    with pytest.raises(UnreadableError, match="or one twice"):
        check(*paths)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("(assert (<= Y_0 0))", "does not declare"),
        ("(declare-const X_0 Real)(declare-const Y_0 Real)(assert (<= X_0 0))", "no lower or no upper bound"),
        ("(declare-const X_0 Real)(declare-const Y_0 Real)(assert (<= (* Y_0 X_0) 0))", "products of variables"),
        ("(declare-const X_0 Real)(declare-const X_0 Real)", "declared twice"),
        ("(declare-const X_1 Real)(declare-const Y_0 Real)", "not numbered from 0"),
        ("(" * 3000, "nests too deeply"),
        ("(assert", "ends inside a parenthesis"),
        (")", "never opened"),
        ("(declare-const X_0 Real)(declare-const Y_0 Real)(assert (=> (<= Y_0 0) (<= Y_0 1)))", "not known"),
        ("(declare-const X_0 Real)(assert (<= X_0 1e99999))", "not"),
        (
            "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (>= X_0 1))(assert (<= X_0 2))"
            "(assert (<= (* 1e900 Y_0) 0))",
            "larger than any float64",
        ),
    ],
)
def test_properties(tmp_path: Path, text: str, why: str) -> None:
    one = Instance(tmp_path, model(LAYERS), text.encode())
    with pytest.raises(UnreadableError, match=why):
        one.said(one.claim(items(), one_leaf([1], [2])))


@pytest.mark.parametrize(("weights", "probabilities"), [((0,), []), ((2,), [0, 0]), ((2,), [2, -1]), ((3,), [1, 1])])
def test_samples_that_are_no_posterior(tmp_path: Path, weights: tuple[int], probabilities: list[int]) -> None:
    """No samples at all would leave nothing that could violate."""
    samples = [(np.ones((*weights, 1, 1)), np.zeros((*weights, 1)))]
    made = model([([[1.0]], [0.0])], samples=samples, probabilities=probabilities)
    one = Instance(tmp_path, made, prop([(1, 2)], 1, "(<= Y_0 -9)"))
    with pytest.raises(UnreadableError, match=r"are no probabilities|differ in number"):
        one.said(one.claim({"rule": "samples/1", "samples": []}, {}, "bound", "0"))


@pytest.mark.parametrize(
    "attributes",
    [
        {"pads": [2**40, 0, 0, 0], "strides": [2**40, 1]}, {"pads": [-1, 0, 0, 0]}, {"strides": [0, 1]}, {"group": 2},
        {"dilations": [9, 9]}, {"auto_pad": "SAME_UPPER"}, {"pads": [1, 1]}, {"kernel_shape": [3, 3]}, {"group": [1]},
    ],
)  # fmt: skip
def test_convolutions(tmp_path: Path, attributes: Any) -> None:
    made = convolution(
        np.ones((1, 1, 2, 2)), np.zeros(1), (1, 1, 2, 2), np.ones((1, 1, 2, 2)), np.ones(1), **attributes
    )
    one = Instance(tmp_path, made, prop([(0, 1)] * 4, 1, "(<= Y_0 -9)"))
    with pytest.raises(UnreadableError, match="Conv: "):
        one.said(one.claim(items(tails()), one_leaf([0] * 4, [1] * 4), "bound", "0"))


END = ("\n", "\r", "\r\n")


@pytest.mark.parametrize("sign", [*END, "\x0b", "\x0c", "\x1c", "\x85", "\u2028"])
def test_where_a_comment_ends(sign: str) -> None:
    """At the end of its line, as other readers have it: no other sign makes an assertion of its words."""
    text = prop([(0, 1)], 1, "(<= Y_0 0)").decode()
    (case,) = read_property(f"{text}\n; a note{sign}(assert (<= Y_0 -100))\n".encode()).cases
    assert len(case.rows) == 1 + (sign in END)
    assert dict(read_property(f"{text}\n; a note{sign}; bnn-vnnlib: tau_safe=0.5\n".encode()).comment) == (
        {"tau_safe": "0.5"} if sign in END else {}
    )


@pytest.mark.parametrize(
    "line", ["(assert (<= X_0 1)) ; bnn-vnnlib: {}", "  ;; bnn-vnnlib: {}", "\t;;\t;bnn-vnnlib:{}"]
)
def test_settings_stand_in_any_comment(tmp_path: Path, line: str) -> None:
    """Whoever asks for more than the default behind an assertion is not answered for less."""
    one, manifest = instance(tmp_path)
    one.prop += ("\n" + line.format("tau_safe=0.999999999")).encode()
    with pytest.raises(RejectedError, match=r"about tau_safe 0.95, asked is 1"):
        one.said(one.claim(manifest["proof"], one.arrays, bound="0.9"))


@pytest.mark.parametrize("setting", ["tau_sure=0.99", "rule=median", "outputs=probabilities"])
def test_settings_without_a_rule(tmp_path: Path, setting: str) -> None:
    one, manifest = instance(tmp_path)
    one.prop += f"\n; bnn-vnnlib: {setting}".encode()
    manifest = one.claim(manifest["proof"], one.arrays, bound="0.9")
    with pytest.raises(UnreadableError, match="no rule for the setting"):
        one.said(manifest)
    if "tau" not in setting:  # of decisions alone, and something else is asked
        assert one.said(manifest, query="probabilistic").startswith("accepted")


def test_a_quotation_mark_alone_is_not_passed_over() -> None:
    with pytest.raises(UnreadableError):
        read_property(prop([(0, 1)], 1, '(<= Y_0 0")'))


@pytest.mark.parametrize(("axis", "read"), [(-2, True), (0, True), (2, True), (3, False), (-3, False)])
def test_the_axis_of_a_flatten(axis: int, read: bool) -> None:
    """Of a shape (1, 3), as onnx has it: -2 .. 2."""
    node = helper.make_node("Flatten", ["x"], ["y"], axis=axis)
    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3]) for name in "xy"]
    data = helper.make_model(helper.make_graph([node], "g", sides[:1], sides[1:])).SerializeToString()
    if read:
        assert read_model(data).outputs == 3
    else:
        with pytest.raises(UnreadableError, match="no axis"):
            read_model(data)
