"""Lines of which some are wrong: the others are written all the same, as InfluxDB does and its clients expect.

A client such as Telegraf sends what many devices said in one request, and throws all of it away when it hears that
something is wrong. One value of another type must not cost the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from penstock.common.errors import InvalidStatementError, InvalidValueError

REFUSALS_MAX = 1000
"""So many pieces are found out singly; where more are wrong, whole pieces are dropped that hold one."""

_QUOTES = re.compile(rb'(?<!\\)(?:\\\\)*"')

Write = Callable[[bytes, int], object]
"""Writes lines, all or none of them, given the number of the first. Raises InvalidValueError, InvalidStatementError."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """How many lines were not written, and why the first was not."""

    lines: int
    error: InvalidValueError | InvalidStatementError


@dataclass(frozen=True, slots=True)
class _Piece:
    """A line with its number, or several that a quoted text may hold together."""

    number: int
    text: bytes

    @property
    def is_blank(self) -> bool:
        return not self.text.strip()


def write_what_can_be(data: bytes, write: Write) -> Dropped | None:
    """Writes lines; returns None if all are written. Raises the first refusal if none is."""
    if _refusal(write, data, 1) is None:
        return None
    pieces = _pieces(data)
    middle = len(pieces) // 2
    errors: list[InvalidValueError | InvalidStatementError] = []
    dropped = 0
    pending = [pieces[middle:], pieces[:middle]]
    while pending:
        some = pending.pop()
        error = _refusal(write, b"\n".join(piece.text for piece in some), some[0].number) if some else None
        if error is None:
            continue
        if len(some) == 1 or len(errors) >= REFUSALS_MAX:
            errors.append(error)
            dropped += sum(not piece.is_blank for piece in some)
        else:
            middle = len(some) // 2
            pending += [some[middle:], some[:middle]]
    if errors and dropped == sum(not piece.is_blank for piece in pieces):
        raise errors[0]
    return Dropped(dropped, errors[0]) if errors else None


def _refusal(write: Write, data: bytes, first_line: int) -> InvalidValueError | InvalidStatementError | None:
    try:
        write(data, first_line)
    except (InvalidValueError, InvalidStatementError) as error:
        return error
    return None


def _pieces(data: bytes) -> list[_Piece]:
    """Cuts lines apart, but not where a text is open: what follows must not pass for lines of its own."""
    found: list[_Piece] = []
    held: list[bytes] = []
    quotes = 0
    for number, line in enumerate(data.split(b"\n"), 1):
        held.append(line)
        quotes += len(_QUOTES.findall(line))
        if quotes % 2 == 0:
            found.append(_Piece(number - len(held) + 1, b"\n".join(held)))
            held, quotes = [], 0
    if held:
        found.append(_Piece(data.count(b"\n") + 2 - len(held), b"\n".join(held)))
    return found
