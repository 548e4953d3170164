"""Property files, mangled: by characters, by words, by numbers, by nesting, by splicing."""

from __future__ import annotations

import gzip
import re
from random import Random

from hostile.mutate_bytes import few_bytes_changed

_WORDS = (
    "( ) (( )) [ ] [0] [-1] , ; ;x and or not assert (assert declare-const declare-fun () Real Int real float32 "
    "<2.0> <3.7> (vnnlib-version declare-network declare-input declare-output declare-hidden equal-to isomorphic-to "
    'initialized <= < >= > = == != + - * / ite let X_0 X_1 Y_0 Y_1 X_01 X_99999999999 X[0] X[0,0] Y[0] X Y Z "h" " '
    "bnn-vnnlib: query=probabilistic tau_safe=2 \x00 \ufeff \u00e9 \x1b[31m"
)
_NUMBERS = (
    "0 -0 -0.0 1 0.1 1e5 1E-5 1e308 1.8e308 -1e309 1e-400 1e-99999999999 1e99999999999999999999 0e999999999 nan inf .5 "
    "5. +1 1.5.2 1e 0x10 1_000 123456789012345678901234567890 0.12345678901234567891234567 9007199254740993"
)
WORDS = _WORDS.split(" ")
NUMBERS = [*_NUMBERS.split(" "), "9" * 1001, "0." + "0" * 400 + "1", "1" * 19]
_TOKEN = re.compile(r"[()\[\],]|[^\s()\[\],]+|\s+")
_NUMBER = re.compile(r"[-+]?[0-9][0-9.eE+-]*")


def mangled_text(rng: Random, seeds: list[str]) -> bytes:
    """A property file that is more or less broken."""
    text = rng.choice(seeds)
    for _ in range(1 + int(rng.expovariate(1))):
        text = rng.choice(_CHANGES)(rng, text, seeds)[:600_000]
    data = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.05:
        data = few_bytes_changed(rng, data)
    if rng.random() < 0.05:
        data = gzip.compress(data, 1, mtime=0)
        data = few_bytes_changed(rng, data) if rng.random() < 0.5 else data
    return data


def _span(rng: Random, length: int) -> tuple[int, int]:
    start = rng.randrange(length + 1)
    return start, min(length, start + int(rng.expovariate(0.05)))


def _cut(rng: Random, text: str, _seeds: list[str]) -> str:
    start, stop = _span(rng, len(text))
    return text[:start] + text[stop:]


def _end(rng: Random, text: str, _seeds: list[str]) -> str:
    return text[: rng.randrange(len(text) + 1)]


def _word(rng: Random, text: str, _seeds: list[str]) -> str:
    """One word deleted, repeated, replaced or put in."""
    start = rng.randrange(len(text) + 1)
    token = _TOKEN.search(text, start)
    a, b = (token.start(), token.end()) if token else (start, start)
    new = rng.choice([*WORDS, *NUMBERS])
    here = text[a:b]
    put = rng.choice(["", here + here, new, f" {new} ", f"{here} {new} ", f"({here})"])
    return text[:a] + put + text[b:]


def _number(rng: Random, text: str, _seeds: list[str]) -> str:
    start = rng.randrange(len(text) + 1)
    found = _NUMBER.search(text, start)
    return text if found is None else text[: found.start()] + rng.choice(NUMBERS) + text[found.end() :]


def _line(rng: Random, text: str, _seeds: list[str]) -> str:
    """Lines moved, repeated or dropped."""
    lines = text.split("\n")
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(3):
        case 0:
            lines[i], lines[j] = lines[j], lines[i]
        case 1:
            lines[j:j] = [lines[i]] * rng.choice([1, 2, 50])
        case _:
            del lines[i]
    return "\n".join(lines)


def _spliced(rng: Random, text: str, seeds: list[str]) -> str:
    other = rng.choice(seeds)
    a, b = rng.randrange(len(text) + 1), rng.randrange(len(other) + 1)
    return text[:a] + other[b : b + rng.choice([50, 1000, 10**6])]


def _nested(rng: Random, text: str, _seeds: list[str]) -> str:
    """Something deep put in: formulas, terms, brackets."""
    depth = rng.choice([3, 150, 250, 5000])
    inner, opening, closing = rng.choice([
        ("(<= Y_0 1)", "(and ", ")"), ("(<= Y_0 1)", "(or (<= Y_0 0) ", ")"), ("X_0", "(- ", ")"),
        ("X_0", "(* 2 ", ")"),
        ("Y_0", "(+ 1 X_0 ", ")"), ("", "(", ")"), ("1", "[", "]"), ("(>= X_0 0)", "(assert ", ")"),
        ("(<= Y_0 1)", "(and (or (<= Y_0 1) (<= Y_0 2)) ", ")"),
    ])  # fmt: skip
    place = rng.randrange(len(text) + 1)
    wrapped = opening * depth + inner + closing * (depth - rng.choice([0, 0, 1]))
    whole = f"(assert (<= {wrapped} 1))" if inner in ("X_0", "Y_0") else f"(assert {wrapped})"
    return text[:place] + rng.choice([wrapped, whole]) + text[place:]


def _product(rng: Random, text: str, _seeds: list[str]) -> str:
    """Many disjunctions, which multiply out; sums that grow."""
    choices = "".join(f"(<= Y_0 {i})" for i in range(rng.choice([2, 30, 2000])))
    parts = [f"(assert (or {choices}))" * rng.choice([1, 2, 12]), f"(assert (and {choices}))" * 3,
             f"(assert (<= (* {'1e-300 ' * rng.choice([2, 60, 3000])} Y_0) 1))",
             f"(assert (<= (+ {'(* 0.1 X_0) ' * rng.choice([2, 3000])}) Y_0))",
             "(assert (!= X_0 Y_0))" * rng.choice([1, 15, 25]), "(assert (= X_0 Y_0))"]  # fmt: skip
    return text + rng.choice(parts)


_CHANGES = (_cut, _end, _word, _word, _word, _number, _number, _line, _spliced, _nested, _product)
