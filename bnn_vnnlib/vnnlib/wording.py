"""Syntax errors in words that a user understands."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from bnn_vnnlib.errors import InputError, UnsupportedError, VnnlibSyntaxError
from bnn_vnnlib.vnnlib.read import looks_like_marabou
from bnn_vnnlib.vnnlib.tree import Source

if TYPE_CHECKING:
    from lark.exceptions import UnexpectedInput

# Words for the terminals of both grammars, in the order in which they are named.
_WORDS = {
    "LPAR": "'('",
    "RPAR": "')'",
    "_ASSERT": "'assert'",
    "_DECLARE_CONST": "'declare-const'",
    "_DECLARE_FUN": "'declare-fun'",
    "_VNNLIB_VERSION": "'vnnlib-version'",
    "_DECLARE_NETWORK": "'declare-network'",
    "_DECLARE_INPUT": "'declare-input'",
    "_DECLARE_HIDDEN": "'declare-hidden'",
    "_DECLARE_OUTPUT": "'declare-output'",
    "RELATIVE": "equal-to or isomorphic-to",
    "VERSION": "a version such as <2.0>",
    "CONNECTIVE": "'and', 'or'",
    "RELATION": "one of <= < >= > {equal}",
    "OPERATOR": "one of + - *",
    "NUMBER": "a number such as -0.5",
    "SYMBOL": "a variable",
    "NAME": "a name",
    "INDEXED": "a variable such as X[0]",
    "SORT": "Real",
    "LSQB": "'['",
    "RSQB": "']'",
    "COMMA": "','",
    "NATURAL": "a whole number",
    "INITIALIZED": "'initialized'",
    "STRING": "the quoted name of a node",
    "$END": "the end of the file",
}
_NOT_SUPPORTED = {
    "not": "negate the comparisons instead, e.g. write (> a b) for (not (<= a b))",
    "=>": "write (or (not-a) b) with the comparisons of a negated",
    "ite": "write it with and/or",
    "xor": "write it with and/or",
    "distinct": "write it with (or (< a b) (> a b))",
    "let": "write the term out",
    "forall": "every variable is existentially quantified already",
    "exists": "every variable is existentially quantified already",
    "/": "multiply both sides by the divisor",
    "max": "write it with and/or",
    "min": "write it with and/or",
    "abs": "write it with and/or",
    "^": "only linear terms are supported",
}
_HINTS_1 = {
    "vnnlib-version": "the version line comes first in a VNN-LIB 2.x file",
    "declare-network": "a VNN-LIB 2.x file starts with (vnnlib-version <2.0>)",
    "==": "VNN-LIB 1.0 writes = for equality",
    "!=": "VNN-LIB 1.0 has no !=; write (or (< a b) (> a b))",
    "set-logic": "a VNN-LIB file holds only declarations and assertions; remove this line",
    "set-info": "a VNN-LIB file holds only declarations and assertions; remove this line",
    "check-sat": "a VNN-LIB file holds only declarations and assertions; remove this line",
    "get-model": "a VNN-LIB file holds only declarations and assertions; remove this line",
    "exit": "a VNN-LIB file holds only declarations and assertions; remove this line",
}
_HINTS_2 = {
    "declare-fun": "left over from VNN-LIB 1.0; 2.x declares tensors inside declare-network, remove it",
    "declare-const": "left over from VNN-LIB 1.0; 2.x declares tensors inside declare-network, remove it",
    "declare-network": "networks come before the first assertion",
    "declare-input": "the order is inputs, hidden nodes, outputs",
    "declare-hidden": "the order is inputs, hidden nodes, outputs",
    "=": "VNN-LIB 2.x writes == for equality",
    "[": "indices are whole numbers between brackets, separated by commas: X[0,1]",
}
_FOUND = re.compile(r"[()\[\],]|[^\s()\[\],;]+|.", re.DOTALL)


def syntax_error(source: Source, unexpected: UnexpectedInput, major: int) -> InputError:
    """The error to raise for what the parser met: where, what was found, what was expected, what to do."""
    terminals, at = _expected(unexpected, source)
    if looks_like_marabou(source.text):
        message = (
            "this is Marabou's text format, not VNN-LIB: declare the variables and write (assert (>= X_0 0.5)) for"
        )
        return source.error(VnnlibSyntaxError, f"{message} x0 >= 0.5", at)
    found = _FOUND.match(source.text, at)
    word = found.group() if found else ""
    if word in _NOT_SUPPORTED:
        message = f"'{word}' is not supported: {_NOT_SUPPORTED[word]}"
        return source.error(UnsupportedError, message, at)
    equal = "=" if major == 1 else "== !="
    wanted = list(dict.fromkeys(text.format(equal=equal) for name, text in _WORDS.items() if name in terminals))
    message = f"found {_quoted(word)}, expected {_listed(wanted)}"
    hint = _hint(word, terminals, major)
    return source.error(VnnlibSyntaxError, f"{message} ({hint})" if hint else message, at)


def _expected(unexpected: UnexpectedInput, source: Source) -> tuple[set[str], int]:
    from lark.exceptions import UnexpectedCharacters, UnexpectedToken

    if isinstance(unexpected, UnexpectedCharacters):
        return set(unexpected.allowed or ()), unexpected.pos_in_stream or 0
    if isinstance(unexpected, UnexpectedToken):
        at = len(source.text) if unexpected.token.type == "$END" else unexpected.token.start_pos or 0
        return set(unexpected.accepts or unexpected.expected), at
    return set(), len(source.text)


def _listed(words: list[str]) -> str:
    if len(words) > 1:
        return f"{', '.join(words[:-1])} or {words[-1]}"
    return words[0] if words else "nothing more"


def _quoted(word: str) -> str:
    if not word:
        return "the end of the file"
    shown = word if len(word) <= 40 else word[:37] + "..."
    return f"'{shown}'" if shown.isprintable() else f"the character {word[0]!r}"


def _hint(word: str, terminals: set[str], major: int) -> str | None:
    hint = (_HINTS_1 if major == 1 else _HINTS_2).get(word)
    if hint is not None:
        return hint
    if "RELATION" in terminals and word == "(":
        return "one pair of parentheses too many"
    if "RELATION" in terminals and re.match(r"[A-Za-z0-9]", word):
        return "a comparison puts the sign first: (< a b)"
    if "RPAR" not in terminals and word == ")":
        return "one closing parenthesis too many, or something is missing before it"
    if not word and "RPAR" in terminals:
        return "a closing parenthesis is missing"
    return None
