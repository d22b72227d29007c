"""Plans that don't depend on the time at which the query is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.planner.query.batch_plan import BatchPlan
from penstock.sql.schema import Session

_LATER_MS = 400 * 86_400_000
"""Far enough for another year, and another offset of the time zone."""


def timeless_plan(make: Callable[[Session], BatchPlan], session: Session) -> BatchPlan | None:
    """Returns the plan that `make` makes for a session; None if at another time it makes another one."""
    plan, later = make(session), make(replace(session, now_ms=session.now_ms + _LATER_MS))
    return plan if _computed(plan) == _computed(later) else None


def _computed(plan: BatchPlan) -> tuple[object, ...]:
    """Returns all that may have the time in it: bounds that the SQL leaves out are those of scans, or given ones."""
    return plan.steps, plan.body, plan.scans, plan.given
