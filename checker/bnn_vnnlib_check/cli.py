"""`bnn-vnnlib-check MODEL PROPERTY CERTIFICATE`: accepted or rejected, and why.

Exit code: 0 accepted; 1 rejected, with the place and the reason; 2 a file that cannot be read, or a rule that this
version does not know.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import sys
import time
import zlib
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import NoReturn

from flint import arb

from bnn_vnnlib_check import FORMAT, __version__
from bnn_vnnlib_check.balls import above as above_
from bnn_vnnlib_check.balls import at_most_one, ball, below, surely_at_least, surely_less
from bnn_vnnlib_check.container import Certificate, Node
from bnn_vnnlib_check.errors import RejectedError, UnreadableError
from bnn_vnnlib_check.model import Model, read_model
from bnn_vnnlib_check.proof import Tick, proved
from bnn_vnnlib_check.vnnlib import Property, number, read_property

MOST_BYTES = 2**30
TAU = "0.95"
QUERIES = ("probabilistic", "deterministic")

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
    if (network.inputs, network.outputs) != (question.inputs, question.outputs):
        raise RejectedError(
            f"the property is over {question.inputs} inputs and {question.outputs} outputs, the model has "
            f"{network.inputs} and {network.outputs}"
        )
    query, taus = _question(top, network, question, asked or {})
    claim = top.node("claim")
    verdict, claimed = claim.text("verdict"), number(claim.text("bound")) if claim.has("bound") else None
    claim.done()
    if verdict not in ("unsat", "sat", "bound") or (query == "deterministic") != (claimed is None):
        raise UnreadableError(f"the claim of verdict {verdict[:20]!r} is not understood")
    if verdict == "bound" and query == "deterministic":
        raise UnreadableError("a deterministic query has no bound")
    proof = top.node("proof")
    top.done()
    show = _progress() if tick else lambda done, of: None
    if verdict != "sat" and not question.cases:
        q = arb(0)
        if proof.text("rule") != "empty/1":
            raise RejectedError("the property has no cases: rule empty/1 is wanted")
        proof.done()
    else:
        q = proved(proof, file, network, query, question, verdict != "sat", show)
    file.close()
    return _accepted(verdict, query, taus, claimed, q, network, question)


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


def _accepted(
    verdict: str, query: str, taus: Mapping[str, Fraction], claimed: Fraction | None, q: arb, model: Model,
    prop: Property,
) -> str:  # fmt: skip
    if query == "deterministic":
        whose = "the network" if model.family == "deterministic" else "the posterior mean"
        if not surely_less(q, arb(1)):
            raise RejectedError(
                "some leaf does not exclude a violation" if verdict == "unsat" else "the point violates no case"
            )
        said = "no input violates the property" if verdict == "unsat" else "an input violates the property"
        empty = "" if prop.cases else " (an empty property: no case has inputs)"
        return f"accepted: deterministic, {verdict}: {said}, for {whose}{empty}"
    wanted = ball(claimed if claimed is not None else 0)
    if verdict == "sat":
        bound = above_(at_most_one(q))
        if not surely_less(arb(bound), ball(taus["tau_unsafe"])) or not surely_at_least(wanted, arb(bound)):
            end = f"claimed is {float(wanted):.12g} < {_tau(taus, 'tau_unsafe')}"
            raise RejectedError(f"proved is P_safe <= {bound:.12g}; {end}")
        return f"accepted: probabilistic, sat: P_safe <= {_up(bound)} < {_tau(taus, 'tau_unsafe')}"
    bound = max(0.0, below(1 - q))
    if not surely_at_least(arb(bound), wanted):
        raise RejectedError(f"proved is P_safe >= {bound:.12g}; claimed is {float(wanted):.12g}")
    if verdict == "unsat" and not surely_at_least(arb(bound), ball(taus["tau_safe"])):
        raise RejectedError(f"proved is P_safe >= {bound:.9g}, which is less than {_tau(taus, 'tau_safe')}")
    end = f" >= {_tau(taus, 'tau_safe')}" if verdict == "unsat" else f", no verdict at {_tau(taus, 'tau_safe')}"
    return f"accepted: probabilistic, {verdict}: P_safe >= {_down(bound)}{end}"


def _tau(taus: Mapping[str, Fraction], name: str) -> str:
    return f"{name} {float(taus[name]):g}"


def _down(bound: float) -> str:
    """Nine digits that are not larger."""
    return f"{float(Fraction(int(Fraction(bound) * 10**9), 10**9)):.9f}"


def _up(bound: float) -> str:
    return f"{float(Fraction(-int(-Fraction(bound) * 10**9 // 1), 10**9)):.9f}"


def _progress() -> Tick:
    last = [0.0]

    def show(done: int, of: int) -> None:
        now = time.monotonic()
        if of > 1 and (now - last[0] > 0.2 or done == of):
            last[0] = now
            sys.stderr.write(f"\rleaf {done} of {of}" + ("\n" if done == of else ""))
            sys.stderr.flush()

    return show


def main() -> NoReturn:
    """The command."""
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
    given = parser.parse_args()
    asked = {name: value for name in ("query", "tau_safe", "tau_unsafe") if (value := getattr(given, name)) is not None}
    try:
        said = check(given.model, given.property, given.certificate, asked, sys.stderr.isatty())
    except RejectedError as error:
        sys.stdout.write(f"rejected: {error}\n")
        sys.exit(1)
    except UnreadableError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    except Exception as error:  # whatever it is, nothing was accepted
        sys.stderr.write(f"error: the files could not be checked ({type(error).__name__}: {str(error)[:200]})\n")
        sys.exit(2)
    sys.stdout.write(f"{said}\n")
    sys.exit(0)
