"""Property files that must be refused: name -> content, and words of the one message."""

from __future__ import annotations

import gzip

HEAD = (
    "(declare-const X_0 Real) (declare-const X_1 Real) (declare-const Y_0 Real) (declare-const Y_1 Real)\n"
    "(assert (and (>= X_0 0) (<= X_0 1) (>= X_1 0) (<= X_1 1)))\n"
)
NEW = "(vnnlib-version <2.0>)\n(declare-network f (declare-input X real [1,2]) (declare-output Y real [1,2]))\n"
CHOICE = "".join(f"(<= Y_0 {i})" for i in range(2000))


def network(inputs: str = "(declare-input X real [1,2])", outputs: str = "(declare-output Y real [1,2])") -> str:
    return f"(vnnlib-version <2.0>)\n(declare-network f {inputs} {outputs})\n(assert (<= Y[0,0] 1.0))"


def many_boxes() -> str:
    """Ten thousand cases with a box each, over two thousand inputs."""
    declared = "".join(f"(declare-const X_{i} Real)" for i in range(2000))
    bounds = "".join(f"(assert (>= X_{i} 0))(assert (<= X_{i} 1))" for i in range(2000))
    cases = "".join(f"(and (>= X_0 0.{i:04}) (<= Y_0 0))" for i in range(10_000))
    return f"{declared}(declare-const Y_0 Real){bounds}(assert (or {cases}))"


TEXTS = {
    "empty": ("", "the file is empty"),
    "blanks": (" \n\t\r\n", "the file is empty"),
    "comment": ("; nothing else", "the file is empty"),
    "zero_bytes": ("\x00" * 100, "found the character"),
    "escape_codes": (HEAD + "(assert (<= \x1b[31mY_0 1))", "the character '\\x1b'"),
    "a_page": ("<!DOCTYPE html><html></html>", "a web page"),
    "parentheses": (HEAD + "(" * 1_000_000, "expected"),
    "closing": (HEAD + ")" * 100_000, "found ')'"),
    "words": (HEAD + "assert " * 100_000, "found 'assert'"),
    "a_long_word": (HEAD + "(assert (<= Y_0 " + "z" * 1_000_000 + "))", "is not declared"),
    "cut_off": (HEAD + "(assert (or (and (<= Y_0 1)", "closing parenthesis is missing"),
    "include": (HEAD + '(include "/etc/passwd")', "found"),
    "shell": (HEAD + "(assert (<= Y_0 $(touch gone)))", "found"),
    "deep_or": (HEAD + "(assert " + "(or (<= Y_0 0) " * 300 + "(<= Y_0 1)" + ")" * 301, "200 deep"),
    "deep_term": (HEAD + "(assert (<= " + "(- " * 20_000 + "Y_0" + ")" * 20_000 + " 1))", "200 deep"),
    "many_cases": (HEAD + f"(assert (or {CHOICE}))" * 2, "4,000,000 cases"),
    "doubling_cases": (HEAD + "(assert (or (<= Y_0 1) (<= Y_1 1)))" * 100, "1,000,000 cases"),
    "many_boxes": (many_boxes(), "too many"),
    "long_number": (HEAD + f"(assert (<= Y_0 {'7' * 5000}))", "too long"),
    "giant_exponent": (HEAD + "(assert (<= Y_0 1e999999999999))", "beyond the range"),
    "tiny_exponent": (HEAD + "(assert (<= Y_0 1e-999999999999))", "too close to 0"),
    "long_product": (HEAD + f"(assert (<= (* {'1e-300 ' * 3000} Y_0) 1))", "too long"),
    "nan": (HEAD + "(assert (<= Y_0 nan))", "nan is not declared"),
    "infinity": (HEAD + "(assert (<= Y_0 inf))", "inf is not declared"),
    "giant_index": (HEAD + f"(declare-const X_{'9' * 30} Real)(assert (<= Y_0 1))", "neither an input"),
    "gap": (HEAD + "(declare-const X_100000000 Real)(assert (<= Y_0 1))", "X_2 is not"),
    "twice": (HEAD + "(declare-const X_0 Real)(assert (<= Y_0 1))", "declared twice"),
    "undeclared": (HEAD + "(assert (<= Y_0 Y_9))", "Y_9 is not declared"),
    "a_set": (HEAD + "(declare-const X_2 Int)(assert (<= Y_0 1))", "expected Real"),
    "unbounded": (HEAD + "(declare-const X_2 Real)(assert (<= Y_0 X_2))", "unbounded"),
    "polynomial": (HEAD + "(assert (<= (* X_0 X_1) Y_0))", "product of variables"),
    "divided": (HEAD + "(assert (<= (/ X_0 2) Y_0))", "not supported"),
    "negated": (HEAD + "(assert (not (<= X_0 Y_0)))", "not supported"),
    "options": (HEAD + "; bnn-vnnlib: tau_safe=.9 tau_safe=.8\n(assert (<= Y_0 1))", "given twice"),
    "version_3": (NEW.replace("2.0", "3.0"), "version 3.0"),
    "version_giant": (NEW.replace("2.0", "9" * 400 + ".0"), "version"),
    "no_network": ("(vnnlib-version <2.0>)(assert (<= 1 2))", "declare-network"),
    "two_networks": (NEW + NEW.split("\n")[1].replace("f (", "g (").replace("X", "A").replace("Y", "B")
                     + "(assert (<= Y[0,0] 1.0))", "give each with --network NAME=MODEL"),
    "equal_to": (network("(equal-to g) (declare-input X real [1,2])"), "equal-to"),
    "isomorphic_to": (network("(isomorphic-to g) (declare-input X real [1,2])"), "isomorphic-to"),
    "giant_shape": (network("(declare-input X real [999999999999,999999999999])"), "elements"),
    "many_dimensions": (network(f"(declare-input X real [{','.join('2' * 200)}])"), "elements"),
    "no_size": (network("(declare-input X real [0])"), "at least 1"),
    "negative_size": (network("(declare-input X real [-1])"), "expected"),
    "integers": (network("(declare-input X int8 [1,2])"), "int8"),
    "initialized": (network("(declare-input X real [1,2] initialized)"), "initialized"),
    "hidden": (network("(declare-input X real [1,2]) (declare-hidden H real [1] \"../../h\")")
               + "(assert (<= H[0] 1.0))", "hidden node"),
    "open_string": (network("(declare-input X real [1,2]) (declare-hidden H real [1] \"h"), "found"),
    "out_of_range": (NEW + "(assert (<= Y[0,99999999999999999999] 1.0))", "IndexOutOfBounds"),
    "too_few_indices": (NEW + "(assert (<= Y[0] 1.0))", "NotEnoughIndices"),
    "no_variable": (NEW + "(assert (<= 1.0 2.0))", "ill-typed"),
}  # fmt: skip
FILES = {
    "latin_1": ("; caf\xe9\n".encode("latin-1") + HEAD.encode(), "not a text file"),
    "utf_16": (HEAD.encode("utf-16"), "not a text file"),
    "a_picture": (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "not a text file"),
    "gzip_twice": (gzip.compress(gzip.compress(HEAD.encode())), "not a text file"),
    "gzip_cut_off": (gzip.compress(HEAD.encode() * 50)[:-30], "damaged gzip"),
    "gzip_changed": (b"\x1f\x8b\x08\x00" + b"\xff" * 40, "damaged gzip"),
    "gzip_bomb": (gzip.compress(b" " * (2**27 + 1)), "more than 134,217,728 bytes"),
    **{name: (text.encode(), words) for name, (text, words) in TEXTS.items()},
}
