"""The kinds of windows that rows are put into, as numbers and bound expressions."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.planner.logical.expr import Expr
from penstock.sql.tree.statements import IntervalWindow
from penstock.sql.types import Precision

#: Columns of rows in windows, and of windows: first and last instant, and what numbers windows of the same keys.
START, END, NUMBER = "#ws", "#we", "#wid"
#: The state of the rows of a state window.
STATE = "#state"


@dataclass(frozen=True, slots=True)
class ByInterval:
    """Windows of INTERVAL and SLIDING on a grid. `window` has a definite offset; days begin in the zone `zone`."""

    window: IntervalWindow
    precision: Precision
    zone: str


@dataclass(frozen=True, slots=True)
class BySession:
    """A row more than `gap` units after the one before it opens a window."""

    gap: int


@dataclass(frozen=True, slots=True)
class ByState:
    """A row whose state isn't that of the one before it opens a window; rows without state are in none."""

    value: Expr


@dataclass(frozen=True, slots=True)
class ByEvent:
    """From a row that fulfils `start` to the next that fulfils `end`, which may be the same one."""

    start: Expr
    end: Expr


@dataclass(frozen=True, slots=True)
class ByCount:
    """`count` rows each, a new window at every `sliding`-th. With `values`, only rows with one of them count."""

    count: int
    sliding: int
    values: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class ByClock:
    """Windows on a grid by when rows came, whatever time is in them. For streams only."""

    interval: ByInterval


Shape = ByInterval | BySession | ByState | ByEvent | ByCount | ByClock
"""A kind of window."""
