"""Cuts SQL text into tokens, one at a time and on demand; it knows no grammar and no keywords.

Tokens are made lazily, since the rows of a big INSERT are skipped (`skip_rows`), not tokenised.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import NamedTuple


class TokenKind(IntEnum):
    """What a token is. BAD is a character or a piece of text that no token starts with."""

    WORD = 1
    QUOTED = 2
    STRING = 3
    HEX_STRING = 4
    NUMBER = 5
    DURATION = 6
    OPERATOR = 7
    BAD = 8
    END = 9


class Token(NamedTuple):
    """A piece of the text: `raw` is text[start:end], `word` the upper-case text of a WORD, else the raw text."""

    kind: TokenKind
    raw: str
    word: str
    start: int
    end: int


_SINGLE = r"'(?:[^'\\]++|\\.|'')*+'"
_DOUBLE = r'"(?:[^"\\]++|\\.|"")*+"'
_COMMENT = r"--[^\n]*+|/\*(?:[^*]++|\*(?!/))*+\*/"

_SKIP = re.compile(rf"(?:\s++|{_COMMENT})*+")

_TOKEN = re.compile(
    r"(?P<HEX_STRING>[xX]'[^'\n]*+')"
    r"|(?P<WORD>[A-Za-z_][A-Za-z0-9_]*+)"
    r"|(?P<NUMBER>(?:0[xX][0-9a-fA-F]++|0[bB][01]++|(?:[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++)(?:[eE][-+]?+[0-9]++)?+)"
    r"(?![A-Za-z0-9_]))"
    r"|(?P<DURATION>[0-9]++[buasmhdwnyBUASMHDWNY](?![A-Za-z0-9_]))"
    rf"|(?P<STRING>{_SINGLE}|{_DOUBLE})"
    r"|(?P<QUOTED>`(?:[^`]++|``)*+`)"
    r"|(?P<OPERATOR>->|>=|<=|<>|!=|>>|/(?!\*)|[-+*%&|=<>(),.;])"
    r"|(?P<BAD>/\*|[0-9]++[.A-Za-z0-9_]*+|.)",
    re.DOTALL,
)

_KINDS = {kind.name: kind for kind in TokenKind}

# One group of parentheses: anything but quotes, brackets and comments, or those, one level deep. The plain form
# comes first since it is what nearly all rows are, and the regex engine then copies no more than one set of bytes.
_INNER = rf"[^()'\"/\\-]++|-(?!-)|/(?!\*)|{_SINGLE}|{_DOUBLE}|{_COMMENT}"
_ROWS = re.compile(
    rf"(?:(?:\s++|,|{_COMMENT})*+\((?:{_INNER}|\((?:{_INNER}|\((?:{_INNER})*+\))*+\))*+\))*+", re.DOTALL
)


def next_token(text: str, position: int) -> Token:
    """Returns the first token at or after `position`; white space, comments and hints are skipped."""
    skipped = _SKIP.match(text, position)
    assert skipped is not None
    match = _TOKEN.match(text, skipped.end())
    if match is None:
        return Token(TokenKind.END, "", "", len(text), len(text))
    kind = _KINDS[match.lastgroup or "BAD"]
    raw = match.group()
    return Token(kind, raw, raw.upper() if kind is TokenKind.WORD else raw, match.start(), match.end())


def skip_rows(text: str, position: int) -> int:
    """Returns the end of the longest sequence `(...)[,](...)...` that starts at `position`, which it may equal.

    Quotes, comments and up to three levels of brackets are understood; a row that is never closed ends the sequence.
    """
    match = _ROWS.match(text, position)
    assert match is not None
    return match.end()
