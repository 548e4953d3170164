"""`bnn-vnnlib-check MODEL PROPERTY CERTIFICATE`: accepted or rejected, and why.

Exit code: 0 accepted; 1 rejected, with the place and the reason; 2 a file that cannot be read, or a rule that this
version does not know.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import sys
import time
import zlib
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import NoReturn

from flint import arb

from bnn_vnnlib_check import FORMAT, __version__
from bnn_vnnlib_check.balls import above, at_most_one, below, surely_less
from bnn_vnnlib_check.container import Certificate, Node
from bnn_vnnlib_check.errors import RejectedError, UnreadableError
from bnn_vnnlib_check.model import Model, read_model
from bnn_vnnlib_check.proof import Proof, Tick
from bnn_vnnlib_check.vnnlib import Property, number, read_property

MOST_BYTES = 2**30
TAU = "0.95"
QUERIES = ("probabilistic", "deterministic")
SETTINGS, OF_DECISIONS = ("query", "tau_safe", "tau_unsafe"), ("rule", "outputs")

TRUSTED = """What an acceptance rests on, beside this program: CPython, FLINT's balls and rationals (python-flint),
numpy's arrays, the protobuf classes of onnx; the rules and their proofs in docs/certificates.md; for rule tails/1 the
Gaussian isoperimetric inequality (Borell; Sudakov and Tsirelson), Kwapien's comparison of median and mean, the union
bound, and, where variations are claimed, the theorem of Dambis, Dubins and Schwarz and the reflection principle.
The network is real arithmetic on the stored numbers, not a run in float32."""


def check(
    model: Path, prop: Path, certificate: Path, asked: Mapping[str, str] | None = None, tick: bool = False
) -> str:  # fmt: skip
    """What is accepted, in words.

    Parameters
    ----------
    asked : query, tau_safe, tau_unsafe, where they are not those of the property's comment
    tick : show progress on standard error

    Raises
    ------
    UnreadableError, RejectedError
    """
    file = Certificate(certificate)
    top = file.manifest
    if top.whole("format") != FORMAT:
        raise UnreadableError(f"format {top.whole('format')} is not known, this version reads {FORMAT}")
    top.text("producer")
    if top.has("info"):
        top.get("info")
    data = {name: _bound_to(path, top.node(name), name) for name, path in (("model", model), ("property", prop))}
    network, question = read_model(data["model"]), read_property(data["property"])
    sizes = [f"{one.inputs} inputs and {one.outputs} outputs" for one in (question, network)]
    if sizes[0] != sizes[1]:
        raise RejectedError(f"the property is over {sizes[0]}, the model has {sizes[1]}")
    query, taus = _question(top, network, question, asked or {})
    claim, proof = top.node("claim"), top.node("proof")
    verdict, claimed = claim.text("verdict"), number(claim.text("bound")) if claim.has("bound") else None
    claim.done()
    top.done()
    verdicts = ("unsat", "sat") if query == "deterministic" else ("unsat", "sat", "bound")
    if verdict not in verdicts or (query == "deterministic") != (claimed is None):
        raise UnreadableError(f"the claim of verdict {verdict[:20]!r} is not understood")
    if verdict != "sat" and not question.cases:
        proof.rule("empty/1")
        proof.done()
        q = arb(0)
    else:
        show = _progress() if tick else lambda done, of: None
        q = Proof(file, question, show).q(proof, network, query, verdict != "sat")
    file.close()
    if query == "deterministic":
        return _of_network(verdict, q, network, question)
    return _of_posterior(verdict, taus, claimed or Fraction(0), q)


def _bound_to(path: Path, node: Node, role: str) -> bytes:
    """The bytes of a file that the certificate is about, or of its only `path`.gz; unpacked if they are packed."""
    size, digest = node.whole("size"), node.text("sha256")
    node.done()
    packed = path.with_name(f"{path.name}.gz")
    path = packed if packed.is_file() and not path.exists() else path
    try:
        with path.open("rb") as stream:
            data = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise UnreadableError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > MOST_BYTES:
        raise UnreadableError(f"{path} is larger than {MOST_BYTES} bytes")
    if len(data) != size or hashlib.sha256(data).hexdigest() != digest:
        raise RejectedError(
            f"the certificate is about another {role}: size or SHA-256 of {path} is not the recorded one"
        )
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        unpacked = gzip.GzipFile(fileobj=io.BytesIO(data)).read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UnreadableError(f"{path} is damaged: {error}") from error
    if len(unpacked) > MOST_BYTES:
        raise UnreadableError(f"{path} unpacks to more than {MOST_BYTES} bytes")
    return unpacked


def _question(top: Node, model: Model, prop: Property, asked: Mapping[str, str]) -> tuple[str, dict[str, Fraction]]:
    """Query and thresholds: asked, else of the property's comment, else the defaults; the certificate's must agree."""
    strange = sorted(set(prop.comment) - {*SETTINGS, *(OF_DECISIONS if "query" in asked else ())})
    if strange:
        raise UnreadableError(f"no rule for the setting {strange[0][:20]!r} of the property's comment")
    settings = {**prop.comment, **asked}
    query = settings.get("query", "deterministic" if model.family == "deterministic" else "probabilistic")
    if query not in QUERIES:
        raise UnreadableError(f"no rule for query {query[:20]!r}")
    if query == "probabilistic" and model.family == "deterministic":
        raise UnreadableError("query probabilistic needs a posterior, and the model carries none")
    said = top.text("query")
    if said != query:
        raise RejectedError(f"the certificate is about query {said[:20]!r}, asked is {query}")
    if query == "deterministic":
        return query, {}
    safe, unsafe = settings.get("tau_safe"), settings.get("tau_unsafe")
    taus = {"tau_safe": number(safe or unsafe or TAU), "tau_unsafe": number(unsafe or safe or TAU)}
    for name, tau in taus.items():
        if not 0 <= tau <= 1:
            raise UnreadableError(f"{name} is no probability")
        if number(top.text(name)) != tau:
            raise RejectedError(f"the certificate is about {name} {top.text(name)[:20]}, asked is {float(tau):g}")
    return query, taus


def _of_network(verdict: str, q: arb, model: Model, prop: Property) -> str:
    if not surely_less(q, arb(1)):
        unsat = "some leaf does not exclude a violation"
        raise RejectedError(unsat if verdict == "unsat" else "the point violates no case")
    said = "no input violates the property" if verdict == "unsat" else "an input violates the property"
    whose = "the network" if model.family == "deterministic" else "the posterior mean"
    empty = "" if prop.cases else " (an empty property: no case has inputs)"
    return f"accepted: deterministic, {verdict}: {said}, for {whose}{empty}"


def _of_posterior(verdict: str, taus: Mapping[str, Fraction], claimed: Fraction, q: arb) -> str:
    """The bound is a float on the safe side of what is proved, and is shown with nine digits on the same side."""
    sat = verdict == "sat"
    sign, name = ("<=", "tau_unsafe") if sat else (">=", "tau_safe")
    bound = above(at_most_one(q)) if sat else max(0.0, below(1 - q))
    tau, exact = f"{name} {float(taus[name]):g}", Fraction(bound)
    if exact > claimed if sat else exact < claimed:
        raise RejectedError(f"proved is P_safe {sign} {bound:.12g}; claimed is {float(claimed):.12g}")
    if sat and exact >= taus[name]:
        raise RejectedError(f"proved is P_safe <= {bound:.12g}, which is not below {tau}")
    if verdict == "unsat" and exact < taus[name]:
        raise RejectedError(f"proved is P_safe >= {bound:.9g}, which is less than {tau}")
    units = -((-exact * 10**9) // 1) if sat else exact * 10**9 // 1
    end = f", no verdict at {tau}" if verdict == "bound" else f" {'<' if sat else '>='} {tau}"
    return f"accepted: probabilistic, {verdict}: P_safe {sign} {int(units) / 10**9:.9f}{end}"


def _progress() -> Tick:
    last = [0.0]

    def show(done: int, of: int) -> None:
        if of > 1 and (done == of or time.monotonic() - last[0] > 0.2):
            last[0] = time.monotonic()
            print(f"\rleaf {done} of {of}", end="\n" if done == of else "", file=sys.stderr, flush=True)  # noqa: T201

    return show


def main() -> NoReturn:
    """The command bnn-vnnlib-check."""
    parser = argparse.ArgumentParser(
        prog="bnn-vnnlib-check",
        description="Check a certificate of bnn-vnnlib, trusting neither its prover nor its file.",
        epilog=TRUSTED, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("model", type=Path, help="the ONNX model")
    parser.add_argument("property", type=Path, help="the VNN-LIB property")
    parser.add_argument("certificate", type=Path)
    parser.add_argument("--query", choices=QUERIES, help="what was asked, if it is not the default")
    parser.add_argument("--tau-safe", help="threshold of unsat, if it is neither the property's nor the default")
    parser.add_argument("--tau-unsafe", help="threshold of sat")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}, format {FORMAT}")
    parser.add_argument("--record", type=Path, help="JSON file to write: the outcome, and hashes of the three files")
    given = parser.parse_args()
    asked = {name: value for name in SETTINGS if (value := getattr(given, name)) is not None}
    files = {name: getattr(given, name) for name in ("model", "property", "certificate")}
    try:
        said, code = check(given.model, given.property, given.certificate, asked, sys.stderr.isatty()), 0
    except RejectedError as error:
        said, code = f"rejected: {error}", 1
    except UnreadableError as error:
        said, code = f"error: {error}", 2
    except Exception as error:  # whatever it is, nothing was accepted
        said, code = f"error: the files could not be checked ({type(error).__name__}: {str(error)[:200]})", 2
    (sys.stderr if code == 2 else sys.stdout).write(f"{said}\n")
    if given.record is not None:
        hashes = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items() if path.is_file()}
        outcome = {"outcome": said.partition(":")[0], "said": said, "checker": __version__, "sha256": hashes}
        given.record.write_text(json.dumps(outcome, indent=1) + "\n")
    sys.exit(code)
