"""Cuts what a user types or a file holds into statements, dot commands and the few words the shell itself knows.

It knows quotes and comments, not the grammar: whether a statement is right, the engine says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SqlText:
    """One statement without its terminator; `vertical` if that was `\\G`. `line`: where it begins."""

    text: str
    vertical: bool = False
    line: int = field(default=1, compare=False)


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A dot command such as `.mode csv`, or what users of taos and psql type for one: `source FILE`, `quit`, `\\q`."""

    name: str
    arguments: tuple[str, ...] = ()
    line: int = field(default=1, compare=False)


Piece = SqlText | ShellCommand

_BLANK = re.compile(r"(?:\s|;|--[^\n]*(?:\n|$)|/\*.*?\*/)*", re.DOTALL)
_DOT_COMMAND = re.compile(r"\.([A-Za-z]*)[ \t]*([^\n]*)(?:\n|$)")
_WORD_COMMAND = re.compile(
    r"(?:(?P<word>q|quit|exit|help|clear|\?)|source[ \t]+(?P<file>[^\n;]+)"
    r"|set[ \t]+max_binary_display_width[ \t]+(?P<width>[^\n;]+))[ \t]*;?[ \t]*(?:\n|$)",
    re.IGNORECASE,
)
_PSQL_COMMAND = re.compile(r"(?P<name>\\(?![gG](?![A-Za-z]))[A-Za-z?]+)[+]?[ \t]*(?P<rest>[^\n]*)(?:\n|$)")
_SQL_PART = re.compile(
    r"'(?:[^'\\]|\\.|'')*'"
    r'|"(?:[^"\\]|\\.|"")*"'
    r"|`[^`]*`"
    r"|--[^\n]*"
    r"|/\*.*?\*/"
    r"|(?P<end>;|\\[gG])"
    r"|(?P<open>['\"`]|/\*)"
    r"|[^'\"`\-/;\\]+|.",
    re.DOTALL,
)
_WORDS = {"q": "quit", "exit": "quit", "?": "help"}
_PSQL_WORDS = {"\\q": "quit", "\\?": "help", "\\h": "help", "\\d": "tables", "\\dt": "tables", "\\l": "databases",
               "\\i": "read", "\\o": "output"}
_PSQL_STATEMENTS = {"\\d": "DESCRIBE", "\\c": "USE"}


def split(text: str, line: int = 1) -> tuple[list[Piece], str]:
    """Returns the complete pieces at the beginning of `text`, and the rest, which waits for more input.

    `line`: the number of the text's first line.
    """
    pieces: list[Piece] = []
    position = counted = 0
    while True:
        position = _end_of_match(_BLANK, text, position)
        if position == len(text):
            return pieces, ""
        line += text.count("\n", counted, position)
        counted = position
        piece, position = _first_piece(text, position, line)
        if piece is None:
            return pieces, text[position:]
        pieces.append(piece)


def split_all(text: str, line: int = 1) -> list[Piece]:
    """Returns all pieces of `text`; the last statement needs no terminator. `line`: the number of its first line."""
    pieces, rest = split(text, line)
    if not rest.strip():
        return pieces
    return [*pieces, SqlText(rest.rstrip(), line=line + text.count("\n", 0, len(text) - len(rest)))]


def is_complete(text: str) -> bool:
    """Whether Enter should run what has been typed, rather than begin a new line."""
    return split(text)[1] == ""


def left_open(text: str) -> str | None:
    """Returns what keeps the last statement from ending: the mark of a quote, `/*`, or `(`; None if nothing does."""
    depth = 0
    for part in _SQL_PART.finditer(split(text)[1]):
        if part["open"] is not None:
            return part["open"]
        if part[0][0] not in "'\"`-/":
            depth = max(0, depth + part[0].count("(") - part[0].count(")"))
    return "(" if depth else None


def may_complete(line: str) -> bool:
    """Whether a statement or command may end in this line; cheap, for reading long files line by line."""
    return ";" in line or "\\" in line or line.startswith(".") or _WORD_COMMAND.match(line) is not None


def _end_of_match(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return match.end() if match is not None else position


def _statement_end(text: str, position: int) -> re.Match[str] | None:
    for part in _SQL_PART.finditer(text, position):
        if part["end"] is not None:
            return part
        if part["open"] is not None:
            return None
    return None


def _first_piece(text: str, position: int, line: int) -> tuple[Piece | None, int]:
    """Returns the piece that begins at `position`, which is `line`, and where it ends; None if it isn't complete."""
    command = _DOT_COMMAND.match(text, position) or _WORD_COMMAND.match(text, position)
    if command is not None:
        return _command(command, line), command.end()
    psql = _PSQL_COMMAND.match(text, position)
    if psql is not None:
        return _psql_command(psql, line), psql.end()
    end = _statement_end(text, position)
    if end is None:
        return None, position
    return SqlText(text[position : end.start()].rstrip(), end["end"] in ("\\G", "\\g"), line), end.end()


def _command(match: re.Match[str], line: int) -> ShellCommand:
    if match.re is _DOT_COMMAND:
        arguments = match[2].strip().rstrip(";").split()
        name = match[1].lower()
        return ShellCommand(_WORDS.get(name, name), tuple(arguments), line)
    if match["file"] is not None:
        return ShellCommand("read", (match["file"].strip().strip("'\""),), line)
    if match["width"] is not None:
        return ShellCommand("width", (match["width"].strip(),), line)
    name = match["word"].lower()
    return ShellCommand(_WORDS.get(name, name), line=line)


def _psql_command(match: re.Match[str], line: int) -> Piece:
    name, arguments = match["name"], match["rest"].strip().rstrip(";").split()
    if arguments and name in _PSQL_STATEMENTS:
        return SqlText(" ".join([_PSQL_STATEMENTS[name], *arguments]), line=line)
    return ShellCommand(_PSQL_WORDS.get(name, name), tuple(arguments), line)
