"""Cuts what a user types or a file holds into statements, dot commands and the few words the shell itself knows.

It knows quotes and comments, not the grammar: whether a statement is right, the engine says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SqlText:
    """One statement without its terminator; `vertical` if that was `\\G`."""

    text: str
    vertical: bool = False


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A dot command such as `.mode csv`, or what users of taos and psql type for one: `source FILE`, `quit`, `\\q`."""

    name: str
    arguments: tuple[str, ...] = ()


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


def split(text: str) -> tuple[list[Piece], str]:
    """Returns the complete pieces at the beginning of `text`, and the rest, which waits for more input."""
    pieces: list[Piece] = []
    position = 0
    while True:
        position = _end_of_match(_BLANK, text, position)
        if position == len(text):
            return pieces, ""
        command = _DOT_COMMAND.match(text, position) or _WORD_COMMAND.match(text, position)
        if command is not None:
            pieces.append(_command(command))
            position = command.end()
            continue
        psql = _PSQL_COMMAND.match(text, position)
        if psql is not None:
            pieces.append(_psql_command(psql))
            position = psql.end()
            continue
        end = _statement_end(text, position)
        if end is None:
            return pieces, text[position:]
        pieces.append(SqlText(text[position : end.start()].rstrip(), vertical=end["end"] in ("\\G", "\\g")))
        position = end.end()


def split_all(text: str) -> list[Piece]:
    """Returns all pieces of `text`; the last statement needs no terminator."""
    pieces, rest = split(text)
    return [*pieces, SqlText(rest.rstrip())] if rest.strip() else pieces


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


def _command(match: re.Match[str]) -> ShellCommand:
    if match.re is _DOT_COMMAND:
        arguments = match[2].strip().rstrip(";").split()
        name = match[1].lower()
        return ShellCommand(_WORDS.get(name, name), tuple(arguments))
    if match["file"] is not None:
        return ShellCommand("read", (match["file"].strip().strip("'\""),))
    if match["width"] is not None:
        return ShellCommand("width", (match["width"].strip(),))
    name = match["word"].lower()
    return ShellCommand(_WORDS.get(name, name))


def _psql_command(match: re.Match[str]) -> Piece:
    name, arguments = match["name"], match["rest"].strip().rstrip(";").split()
    if arguments and name in _PSQL_STATEMENTS:
        return SqlText(" ".join([_PSQL_STATEMENTS[name], *arguments]))
    return ShellCommand(_PSQL_WORDS.get(name, name), tuple(arguments))
