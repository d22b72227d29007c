"""What clients of PostgreSQL write, cut into statements, with texts as the dialect has them. It doesn't parse SQL.

Tools for PostgreSQL take a backslash in '...' for itself, and one in E'...' escapes, as in the dialect; so texts are
translated, and nothing else. That names are in double quotes the session knows (`ansi_quotes`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_PIECES = re.compile(
    r"""(?P<escaped>\b[eE]'(?:[^'\\]|\\.|'')*') | (?P<text>'(?:[^']|'')*') | "(?:[^"]|"")*" | `[^`]*`
      | (?P<comment>--[^\n]*|/\*.*?\*/) | (?P<end>;) | [A-Za-z_0-9]+ | \s+ | .""", re.VERBOSE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class StatementText:
    """One statement with texts as the dialect has them; `offset`: where it begins in what the client sent.

    `words`: it begins with, in capitals; `sent`: it as the client wrote it.
    """

    text: str
    offset: int
    words: tuple[str, ...]
    sent: str

    @property
    def original(self) -> str:
        """It as the client wrote it, without what is blank around it."""
        return self.sent.strip()

    def sent_offset(self, offset: int) -> int:
        """Returns where in what the client sent the token is that begins at an offset of `text`."""
        length = 0
        for match in _PIECES.finditer(self.sent):
            if length >= offset:
                return self.offset + match.start() - (length - offset)
            length += len(_translated(match))
        return self.offset + len(self.sent) - (length - offset)


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


def _add(found: list[StatementText], pieces: list[str], sent: str, offset: int) -> None:
    if not is_blank(sent):
        found.append(StatementText("".join(pieces).rstrip(), offset, first_words(sent), sent))


def _translated(match: re.Match[str]) -> str:
    piece = match[0]
    match match.lastgroup:
        case "escaped":
            return f" {piece[1:]}"
        case "text":
            return piece.replace("\\", "\\\\")
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
