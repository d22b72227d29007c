"""What clients of PostgreSQL write, cut into statements and put into the quotes of the dialect. It doesn't parse SQL.

Tools for PostgreSQL quote names by `"`, and take a backslash in '...' for itself. The dialect has back-quotes for
names, and backslashes that escape; so quotes are translated, and nothing else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.sql.tree.expression_nodes import plain_name, quote_identifier

_PIECES = re.compile(
    r"""(?P<escaped>\b[eE]'(?:[^'\\]|\\.|'')*') | (?P<text>'(?:[^']|'')*') | (?P<name>"(?:[^"]|"")*") | `[^`]*`
      | (?P<comment>--[^\n]*|/\*.*?\*/) | (?P<end>;) | [A-Za-z_0-9]+ | \s+ | .""", re.VERBOSE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class StatementText:
    """One statement as the dialect quotes; `offset`: where it begins in what the client sent.

    `words`: it begins with, in capitals; `original`: it as the client wrote it.
    """

    text: str
    offset: int
    words: tuple[str, ...]
    original: str


def split_statements(text: str) -> list[StatementText]:
    """Returns the statements of a text, without their semicolons and without empty ones."""
    found: list[StatementText] = []
    pieces: list[str] = []
    start = 0
    for match in _PIECES.finditer(text):
        if match.lastgroup == "end":
            _add(found, pieces, text[start:match.start()], start)
            pieces, start = [], match.end()
        else:
            pieces.append(_translated(match))
    _add(found, pieces, text[start:], start)
    return found


def _add(found: list[StatementText], pieces: list[str], original: str, offset: int) -> None:
    if not is_blank(original):
        found.append(StatementText("".join(pieces).rstrip(), offset, first_words(original), original.strip()))


def _translated(match: re.Match[str]) -> str:
    piece = match[0]
    match match.lastgroup:
        case "escaped":
            return f" {piece[1:]}"
        case "text":
            return piece.replace("\\", "\\\\")
        case "name":
            return quote_identifier(plain_name(piece))
    return piece


_WORD = re.compile(r"(?:\s+|--[^\n]*(?:\n|$)|/\*.*?\*/)*([A-Za-z_]\w*)", re.DOTALL)
_WORDS_MAX = 4


def first_words(text: str) -> tuple[str, ...]:
    """Returns the words that a text begins with, four at most, in capitals, without comments."""
    words: list[str] = []
    at = 0
    while len(words) < _WORDS_MAX and (match := _WORD.match(text, at)) is not None:
        words.append(match[1].upper())
        at = match.end()
    return tuple(words)


def is_blank(text: str) -> bool:
    """Tells whether there is nothing but spaces and comments."""
    return re.fullmatch(r"(?:\s+|--[^\n]*|/\*.*?\*/)*", text, re.DOTALL) is not None
