"""STATE_TTL: how long tasks keep groups that nothing changes, and which streams have no such groups."""

from __future__ import annotations

from typing import assert_never

from penstock.common.errors import InvalidStreamError, Position
from penstock.planner.task_plans.stream_plan import (
    Computation,
    ForcePlan,
    JoinPlan,
    PeriodPlan,
    RefreshPlan,
    RowsPlan,
    WindowsPlan,
)
from penstock.sql.dialect.literals import position
from penstock.sql.tree.statements import CreateStream
from penstock.sql.types import Precision

READS_AGAIN = "to answer this query a stream keeps nothing of rows, but reads its tables again"
_OPTION = "STATE_TTL"


def state_ttl(statement: CreateStream, precision: Precision) -> int | None:
    """Returns STATE_TTL in units of the precision; None without one.

    Raises InvalidStreamError for one that isn't longer than 0.
    """
    given = statement.options.state_ttl
    if given is None:
        return None
    units = given.in_units(precision)
    if units <= 0:
        raise InvalidStreamError(f"{_OPTION} must be longer than 0", position=_position(statement),
                                 hint=f"times are of {precision}")
    return units


def check_no_ttl(statement: CreateStream, why: str) -> None:
    """Raises InvalidStreamError if a stream has STATE_TTL whose tasks keep no groups; `why`: what they do instead."""
    if statement.options.state_ttl is not None:
        raise InvalidStreamError(f"{_OPTION} is for groups without a window that tasks keep",
                                 position=_position(statement), hint=why)


def why_no_groups(computation: Computation) -> str:
    """Returns why a stream that computes this keeps no groups without end."""
    match computation:
        case RowsPlan():
            return "a stream of rows keeps nothing of them"
        case WindowsPlan():
            return "windows end with the watermark, and DELETE_MARK says for how long they are kept then"
        case JoinPlan():
            return "rows of a join are kept until the watermark has passed the times of their partners"
        case ForcePlan() | PeriodPlan():
            return "windows that the clock ends keep nothing of rows"
        case RefreshPlan():
            return READS_AGAIN
    assert_never(computation)


def _position(statement: CreateStream) -> Position | None:
    """Returns where the option stands in the text of the statement, if that was parsed."""
    start = (statement.option_offsets or {}).get("state_ttl")
    return None if start is None else position(
        statement.source_text, start - statement.source_start, len(_OPTION))
