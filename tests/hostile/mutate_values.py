"""Tables, JSON records and results files, mangled."""

from __future__ import annotations

import gzip
import json
from random import Random
from typing import Any

from hostile.mutate_bytes import few_bytes_changed
from hostile.mutate_text import NUMBERS

INSTANCES = (
    "onnx/net.onnx,vnnlib/p_0.vnnlib,300\nonnx/net.onnx.gz,vnnlib/p_1.vnnlib.gz,1.5\n",
    "\"[('f', 'onnx/a.onnx'), ('g', 'onnx/b.onnx')]\",vnnlib/p.vnnlib,60\n./onnx/net.onnx, ./vnnlib/q.vnnlib, 116\n",
)
RESULTS = (
    "unsat\n", "timed-out\n", "sat\n((X_0 0.5)\n(X_1 -1e-3)\n(Y_0 0.25))\n", "sat ((X_0 0.5) (Y_0 1))\n",
    "sat\n((X_0 1)\n(X_1 2))\n",
    "sat\nX float32 [1,2]\n0.5\n0.25\nY float32 [1,1]\n0.75\n", "sat\nX Real []\n1\nY Real [2,1]\n1\n2\n",
)  # fmt: skip
CELLS = ("", "a", "\x1b[31mred\x1b[0m", "\x9b31m", "\x1b]8;;http://x\x07", "\u202e", "\0", '"', '""', "\"a\nb\"",
         "a" * 300, "a" * 200_000, "..", "/",
         "../../etc/passwd", "[", "[" * 3000, "[('a', 'b')]", "[('a', 'b'" + ", 'c'" * 50 + ")]", "[1]",
         "['\\d', 2]", "[(1, 2)]", "\"[('f', 'x'), ]\"",
         "-" * 3000 + "1", "\ufeff", "nan", "inf", "-1", "1e400", "0", "1_0", "\u0661", "9" * 5000, "[b'a']",
         "[('a\\x1b', 'b')]", "con",
         "=cmd|'/C calc'!A0", "\r", "\x85", "\u2028")  # fmt: skip
VALUES: tuple[Any, ...] = (None, True, -1, 0, 1e308, 2**63, 2**64, 10**400, "", "x", "\x1b[31m", "Infinity",
                           "-Infinity", "NaN", "\ud800", [], {}, [[]], [1, "a"],
                           {"lower": 1, "upper": 0}, {"lower": None}, "sat", "unsat", "timeout", [None],
                           "a" * 10_000)  # fmt: skip
TOKENS = ("NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "-" + "9" * 400, "[" * 100_000, '{"a":' * 5000,
          "[" * 500 + "]" * 500, '"\\ud800"', "'x'",
          "tru", "01", "1.", "/* */", "\x1b", "\0", '"\\x"', ",", "}", '"verdict": "sat", "verdict": "unsat",',
          '{"a": 1, "a": 2}')  # fmt: skip


def mangled_table(rng: Random, seeds: list[str]) -> bytes:
    """An instances.csv that is more or less broken; some are gzip, and some of these bombs."""
    lines = [line.split(",") for line in rng.choice(seeds).splitlines()[:30]]
    for _ in range(1 + int(rng.expovariate(1))):
        line = rng.choice(lines)
        match rng.randrange(6):
            case 0 | 1 | 2 if line:
                line[rng.randrange(len(line))] = rng.choice([*CELLS, *NUMBERS])
            case 3:
                line.insert(rng.randrange(len(line) + 1), rng.choice(CELLS))
            case 4 if line:
                place = rng.randrange(len(line))
                cut = rng.randrange(len(line[place]) + 1)
                line[place] = line[place][:cut] + rng.choice(CELLS) + line[place][cut:]
            case _:
                del line[rng.randrange(len(line) + 1) :]
    text = rng.choice(["\n", "\n", "\r\n", "\r", "\n\n"]).join(",".join(line) for line in lines)
    data = text.encode(rng.choice(["utf-8"] * 6 + ["utf-16", "utf-8-sig"]), "surrogatepass")
    return _packed(rng, data)


def mangled_json(rng: Random, seeds: list[str]) -> bytes:
    """A JSON file that is more or less broken: its values, its text or its bytes."""
    text = rng.choice(seeds)
    if rng.random() < 0.7:
        content = json.loads(text)
        for _ in range(1 + int(rng.expovariate(1))):
            place = content
            while place:
                keys: list[Any] = sorted(place) if isinstance(place, dict) else list(range(len(place)))
                key = rng.choice(keys)
                if not isinstance(place[key], dict | list) or not place[key] or rng.random() < 0.4:
                    match rng.randrange(4):
                        case 0:
                            del place[key]
                        case 1 if isinstance(place, dict):
                            place[rng.choice(["\x1b[31m", "", "more", "verdict"])] = place[key]
                        case _:
                            place[key] = rng.choice(VALUES)
                    break
                place = place[key]
        text = json.dumps(content)
    if rng.random() < 0.5:
        for _ in range(rng.choice([1, 1, 3])):
            start = rng.randrange(len(text) + 1)
            text = text[:start] + rng.choice([*TOKENS, ""]) + text[start + int(rng.expovariate(0.2)) :]
    return _packed(rng, text.encode("utf-8", "surrogatepass"), gzipped=0.0)


def mangled_results(rng: Random, seeds: list[str]) -> bytes:
    """A results file that is more or less broken."""
    text = rng.choice(seeds)
    for _ in range(1 + int(rng.expovariate(1))):
        start = rng.randrange(len(text) + 1)
        new = rng.choice([*NUMBERS, "sat", "(", ")", "X_" + "9" * 5000, "(X_0 1)", "[99999999999999999999,2]",
                         "[" + "9" * 5000 + "]", "X float32 [0]\n" * 3000,
                          "\x1b[31m", "\u0663", "[-1]", "[2 2]", "[,]", "\n", "Y float32 [1,1]\n1\n", "(Y_0 nan)",
                          "((X_0 1)" * 2000, "[0,4611686018427387904]"])  # fmt: skip
        text = text[:start] + new + text[start + int(rng.expovariate(0.2)) :]
    return _packed(rng, text.encode())


def _packed(rng: Random, data: bytes, gzipped: float = 0.15) -> bytes:
    """The bytes changed now and then, and packed now and then."""
    if rng.random() < 0.1:
        data = few_bytes_changed(rng, data)
    if rng.random() < gzipped:
        if rng.random() < 0.2:
            data += rng.choice([b"\n", b",", b"a", b" "]) * 100_000_000
        data = gzip.compress(data, 1, mtime=0)
        match rng.randrange(4):
            case 0:
                data = few_bytes_changed(rng, data)
            case 1:
                data += rng.choice([b"junk", bytes(10), data[:1000]])
    return data
