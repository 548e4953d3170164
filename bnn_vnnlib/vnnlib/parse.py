"""Property files to syntax trees.

1. A file to its text, plain or compressed.
2. The options in comment lines, which other tools ignore: `; bnn-vnnlib: query=probabilistic tau_safe=0.98`.
3. The words in which a user is told of a syntax error.
4. An LALR parser that builds the tree as it reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bnn_vnnlib import readers
from bnn_vnnlib.errors import InputError, PropertyError, UnsupportedError, VnnlibSyntaxError
from bnn_vnnlib.readers import kinds
from bnn_vnnlib.vnnlib import tree

if TYPE_CHECKING:
    from lark import Lark, Token
    from lark.exceptions import UnexpectedInput


# 1. Files

_MAX_PROPERTY_BYTES = 128 * 2**20
_MARABOU = re.compile(r"\s*(?:[+-]?[\d.]*\s*(?:[xy]|ws_\d++_)\d++\s*)++(?:<=|>=|=)\s*[-+.\deE]+\s*(?:[\r\n]|\Z)")


def read_property_text(path: str | Path, limit: int = _MAX_PROPERTY_BYTES) -> tuple[str, Path]:
    """The text of a property file and the path that was opened.

    A file is decompressed if it is a gzip file, whatever its name; if `path` is missing, `path`.gz is tried.

    Raises
    ------
    InputError : missing, unreadable, broken or larger than `limit` bytes (decompressed)
    VnnlibSyntaxError : not UTF-8 text
    """
    found = readers.located(path)
    kinds.expect(found, kinds.PROPERTY, VnnlibSyntaxError)
    return readers.read_text(found, limit, "VNN-LIB", VnnlibSyntaxError), found


def looks_like_vnnlib(path: str | Path) -> bool:
    """Whether a file (or `path`.gz) starts like VNN-LIB, by content: "(" or ";" after blanks. False if unreadable.

    A file of nothing but blanks is judged by its name. Marabou's text counts as well: it is the property, if not one
    that is read.
    """
    try:
        found = readers.located(path)
        start = readers.read_start(found, 4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    except InputError:
        return False
    if _looks_like_marabou(start.decode("utf-8", "replace")):
        return True
    return start[:1] in (b"(", b";") if start else ".vnnlib" in found.name.lower()


def _looks_like_marabou(text: str) -> bool:
    """Whether a text starts with a line such as `x0 >= 0.5` or `+y0 -y1 <= 0`: the verifier Marabou's own format."""
    return _MARABOU.match(text[:1000]) is not None


# 2. Options

_COMMENT = re.compile(r"^[^;\r\n]*;[; \t]*bnn-vnnlib(?![\w.\-/])(?P<rest>[^\r\n]*)", re.MULTILINE)
_ITEM = re.compile(r"(?P<key>[a-z][a-z0-9_]*)=(?P<value>[^\s=]+)")


def read_options(source: tree.SourceText) -> dict[str, str]:
    """The options of a text; a malformed or contradictory one is a PropertyError with its line."""
    options: dict[str, str] = {}
    if "bnn-vnnlib" not in source.text:
        return options
    for comment in _COMMENT.finditer(source.text):
        at = comment.start("rest")
        if not comment["rest"].startswith(":"):
            if _ITEM.search(comment["rest"]):
                raise source.error(PropertyError, "expected ':' after bnn-vnnlib", at)
            continue
        for word in comment["rest"][1:].split():
            item = _ITEM.fullmatch(word)
            if item is None:
                message = f"found '{word}', expected options such as query=probabilistic tau_safe=0.98"
                raise source.error(PropertyError, message, source.text.find(word, at))
            if options.setdefault(item["key"], item["value"]) != item["value"]:
                message = f"option {item['key']} is given twice: {options[item['key']]} and {item['value']}"
                raise source.error(PropertyError, message, source.text.find(word, at))
    return options


# 3. Syntax errors

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


def _syntax_error(source: tree.SourceText, unexpected: UnexpectedInput, major: int) -> InputError:
    """The error to raise for what the parser met: where, what was found, what was expected, what to do."""
    terminals, at = _expected(unexpected, source)
    if _looks_like_marabou(source.text):
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


def _expected(unexpected: UnexpectedInput, source: tree.SourceText) -> tuple[set[str], int]:
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
    """What a reader probably did wrong before this word, in words; None where nothing is known."""
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


# 4. The parser

_GAP = r"(?:[ \t\r\n]+|;[^\r\n]*)*+"
_VERSION = re.compile(
    rf"{_GAP}\({_GAP}vnnlib-version{_GAP}"
    r"(?P<version><[ \t]*(?P<major>[0-9]{1,9})\.(?P<minor>[0-9]{1,9})[ \t]*>)?"
)


_OPEN = re.compile(r"\(")
_ESCAPED = re.compile(r"\\(.)")


def _unescaped(escape: re.Match[str]) -> str:
    return {"n": "\n", "t": "\t"}.get(escape[1], escape[1])


def _run(kind: str) -> Callable[[Any, Token], tree.SimpleRun]:
    """What a merged terminal becomes: things of this kind in a row."""
    return lambda _, token: tree.SimpleRun(kind, token.value, token.start_pos or 0)


class _Builder:
    """What the grammars' rules and merged terminals become; a rule gets the list of its parts. Holds no state."""

    ASSERTIONS, COMPARISONS, CLAUSES = map(_run, ("assertions", "comparisons", "clauses"))

    def FLAT(self, token: Token) -> tree.Apply:  # noqa: N802
        operator, *operands = token[1:-1].split()
        return tree.Apply(operator, tuple(operands), (token.start_pos or 0) + token.index(operator))

    def INDEXED(self, token: Token) -> str:  # noqa: N802
        return "".join(token.split())

    def assertion(self, parts: list[Any]) -> tree.Compare | tree.Junction:
        if isinstance(parts[0], tree.Compare | tree.Junction):
            return parts[0]
        opening, connective = parts[0], parts[0].rpartition("(")[2].strip()
        return tree.Junction(connective, tuple(parts[1:]), opening.start_pos + len(opening) - len(connective))

    def comparison(self, parts: list[Any]) -> tree.Compare:
        relation, left, right = parts
        return tree.Compare(str(relation), left, right, relation.start_pos)

    def junction(self, parts: list[Any]) -> tree.Junction:
        return tree.Junction(str(parts[0]), tuple(parts[1:]), parts[0].start_pos)

    def application(self, parts: list[Any]) -> tree.Apply:
        return tree.Apply(str(parts[0]), tuple(parts[1:]), parts[0].start_pos)


class _Builder1(_Builder):
    """Rules of v1.lark."""

    def DECLARATIONS(self, token: Token) -> tuple[tree.Symbol, ...]:  # noqa: N802
        places = [(token.start_pos or 0) + place.start() for place in _OPEN.finditer(token)]
        words = tree.SimpleRun("declarations", token.value, 0).words()
        return tuple(map(tree.Symbol, words[1::3], words[2::3], places))

    def declaration(self, parts: list[Any]) -> tuple[tree.Symbol, ...]:
        return (tree.Symbol(str(parts[0]), str(parts[1]), parts[0].start_pos),)

    def start(self, parts: list[Any]) -> tree.SyntaxTree:
        symbols: list[tree.Symbol] = []
        for part in parts:
            if isinstance(part, tuple):
                symbols.extend(part)
        assertions = tuple(part for part in parts if not isinstance(part, tuple))
        return tree.SyntaxTree((1, 0), tuple(symbols), (), assertions)


class _Builder2(_Builder):
    """Rules of v2.lark."""

    def HEADER(self, token: Token) -> tuple[int, int]:  # noqa: N802
        return self.version([token[token.index("<") : token.index(">")]])

    def INPUT(self, token: Token) -> tree.DeclaredTensor:  # noqa: N802
        return self._whole_tensor("input", token)

    def OUTPUT(self, token: Token) -> tree.DeclaredTensor:  # noqa: N802
        return self._whole_tensor("output", token)

    def start(self, parts: list[Any]) -> tree.SyntaxTree:
        networks = tuple(part for part in parts if isinstance(part, tree.DeclaredNetwork))
        return tree.SyntaxTree(parts[0], (), networks, tuple(parts[1 + len(networks) :]))

    def version(self, parts: list[Any]) -> tuple[int, int]:
        major, minor = parts[0].strip("<> \t").split(".")
        return int(major), int(minor)

    def network(self, parts: list[Any]) -> tree.DeclaredNetwork:
        relation = parts[1] if isinstance(parts[1], tree.DeclaredRelation) else None
        tensors = tuple(part for part in parts[1:] if isinstance(part, tree.DeclaredTensor))
        return tree.DeclaredNetwork(str(parts[0]), relation, tensors, parts[0].start_pos)

    def relation(self, parts: list[Any]) -> tree.DeclaredRelation:
        return tree.DeclaredRelation(str(parts[0]), str(parts[1]), parts[0].start_pos)

    def shape(self, parts: list[Any]) -> tuple[str, ...]:
        return tuple(str(part) for part in parts)

    def input(self, parts: list[Any]) -> tree.DeclaredTensor:
        return self._tensor("input", parts, initialized=len(parts) > 3)

    def hidden(self, parts: list[Any]) -> tree.DeclaredTensor:
        return replace(self._tensor("hidden", parts), node=_ESCAPED.sub(_unescaped, parts[3][1:-1]))

    def output(self, parts: list[Any]) -> tree.DeclaredTensor:
        return self._tensor("output", parts)

    def _tensor(self, kind: str, parts: list[Any], initialized: bool = False) -> tree.DeclaredTensor:
        name, element_type, shape = parts[:3]
        return tree.DeclaredTensor(kind, str(name), str(element_type), _dimensions(shape), initialized, name.start_pos)

    def _whole_tensor(self, kind: str, token: Token) -> tree.DeclaredTensor:
        """(declare-input name type [dimensions]) and its like, read at once."""
        words, _, rest = token.partition("[")
        keyword, name, element_type = words.split()[-3:]
        at = token.index(name, token.index(keyword) + len(keyword))
        dimensions = "".join(rest.partition("]")[0].split())
        shape = dimensions.split(",") if dimensions else []
        return tree.DeclaredTensor(kind, name, element_type, _dimensions(shape), False, (token.start_pos or 0) + at)


def _dimensions(shape: Iterable[str]) -> tuple[int, ...]:
    # A dimension too long to be meant is cut here, so that int() stays cheap; the check of sizes refuses it.
    return tuple(int(dimension[:19]) for dimension in shape)


@cache
def _parser(major: int) -> Lark:
    from lark import Lark

    grammar = files(__package__).joinpath(f"v{major}.lark").read_text(encoding="utf-8")
    builder = _Builder1() if major == 1 else _Builder2()
    return Lark(grammar, parser="lalr", transformer=builder)


def parse(source: tree.SourceText) -> tree.SyntaxTree:
    """Read a VNN-LIB text of either version.

    Raises
    ------
    VnnlibSyntaxError : the text is not VNN-LIB
    UnsupportedError : it uses a construct of SMT-LIB that VNN-LIB does not have, such as `not`
    PropertyError : its version is unknown
    """
    from lark.exceptions import UnexpectedInput

    major = _major(source)
    try:
        query: tree.SyntaxTree = _parser(major).parse(source.text)  # type: ignore[assignment]
    except UnexpectedInput as unexpected:
        raise _syntax_error(source, unexpected, major) from None
    return query


def _major(source: tree.SourceText) -> int:
    """The major version, which selects the grammar: a file without a version is 1.0."""
    header = _VERSION.match(source.text)
    if header is None:
        return 1
    if header["version"] is None:
        raise source.error(VnnlibSyntaxError, "expected a version such as <2.0> after vnnlib-version", header.end())
    if header["major"] != "2":
        message = f"VNN-LIB version {header['major']}.{header['minor']}: only 1.0 (no version line) and 2.x are read"
        raise source.error(PropertyError, message, header.start("version"))
    return 2
