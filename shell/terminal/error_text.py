"""Turns an error into what the user reads: the text, the offending line with a caret under it, and the hint."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from penstock.common.errors import PenstockError, Position

RED, BOLD, RESET = "\x1b[31m", "\x1b[1m", "\x1b[0m"
_LINE_WIDTH_MAX = 100


@dataclass(frozen=True, slots=True)
class ScriptPlace:
    """Where a statement begins: the file, and the line in it, counted from 1."""

    file: str
    line: int


def error_text(
    error: BaseException, statement: str = "", *, at: ScriptPlace | None = None, colour: bool = False
) -> str:
    """Returns lines without a trailing newline. What isn't a `PenstockError` is called a defect, which it is.

    `at`: where the statement stands, if in a script; lines are those of the script then.
    """
    if not isinstance(error, PenstockError):
        kind = type(error).__name__
        lines = [f"{_prefix(at, 1)}ERROR: {kind}: {error}",
                 "This is a defect of Penstock; --debug shows where it happened."]
        return _painted(lines[0], colour) + "\n" + lines[1]
    code = f" 0x{error.code:04X}" if error.code is not None else ""
    prefix = _prefix(at, error.position.line if error.position is not None else 1)
    lines = [_painted(f"{prefix}ERROR{code}: {error.message}", colour)]
    if error.position is not None:
        lines += _marked_line(error.position, statement, at.line if at is not None else 1, colour)
    if error.hint is not None:
        lines.append(f"Hint: {error.hint}")
    return "\n".join(lines)


def trace_text(error: BaseException) -> str:
    """Returns where in the code an error comes from, without a trailing newline, also behind its translation."""
    origin = error.__context__ if error.__suppress_context__ and error.__context__ is not None else error
    return "".join(traceback.format_exception(origin)).rstrip()


def _prefix(at: ScriptPlace | None, line: int) -> str:
    """Returns the place of a statement's line as compilers write it."""
    return "" if at is None else f"{at.file}:{at.line + line - 1}: "


def _marked_line(position: Position, statement: str, first_line: int, colour: bool) -> list[str]:
    source_lines = statement.splitlines()
    if not 1 <= position.line <= len(source_lines):
        return [f"at line {first_line + position.line - 1}, column {position.column}"]
    line = source_lines[position.line - 1].replace("\t", " ")
    start = position.column - 1
    length = max(1, len(position.text.split("\n")[0]))
    cut = max(0, start + min(length, 20) - _LINE_WIDTH_MAX + 10)
    shown = ("…" if cut else "") + line[cut : cut + _LINE_WIDTH_MAX]
    indent = start - cut + (1 if cut else 0)
    carets = "^" * max(1, min(length, len(shown) - indent))
    number = f"line {first_line + position.line - 1}: " if len(source_lines) > 1 else ""
    return [f"  {number}{shown}", " " * (2 + len(number) + indent) + _painted(carets, colour)]


def _painted(text: str, colour: bool) -> str:
    return f"{BOLD}{RED}{text}{RESET}" if colour else text
