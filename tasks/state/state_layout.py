"""What decides how a stream's saved state is read, as a fingerprint: saved bytes are told apart by their place alone.

Options that only say when results are written, how fast, or what may be forgotten aren't part of it, nor is text that
may differ between versions where it means the same; names and lengths of columns aren't either.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

from penstock.planner.task_plans.stream_plan import (
    Accumulator,
    Computation,
    FillPlan,
    ForcePlan,
    JoinPlan,
    PeriodPlan,
    RefreshPlan,
    RowsPlan,
    RowWindow,
    StreamPlan,
    TimeWindows,
    WindowsPlan,
)
from penstock.sql.schema import Column
from penstock.tasks.protocol.block_schema import block_type, field_type

_VERSION = 2
"""Raise it when bytes in stores mean something else though plans are the same."""


def layout_of(plan: StreamPlan) -> str:
    """Returns the fingerprint of a plan's state: 32 hexadecimal digits. State is for plans with an equal one only."""
    parts = {
        "version": _VERSION,
        "keys": [str(field_type(key)) for key in plan.grouping.keys],
        "colocated": plan.grouping.colocated,
        "precision": plan.source.precision,
        "time zone": plan.time_zone,
        "groups are tables": plan.source.group_is_table,
        **dict.fromkeys(("row window", "agg", "join", "fill", "force")), **_computation(plan.computation),
        "results": [_types(plan.sink.columns), _types(plan.sink.tags), plan.sink.external is not None],
    }
    if plan.policies.state_ttl is not None:
        parts["times of groups"] = True
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _computation(computation: Computation) -> dict[str, Any]:
    """Returns what the computation has of the fingerprint's parts."""
    match computation:
        case RowsPlan() | RefreshPlan():
            return {}
        case WindowsPlan(windows=RowWindow() as window):
            return {"row window": asdict(window), "agg": _agg(computation, None)}
        case WindowsPlan(windows=TimeWindows() as windows):
            return {"agg": _agg(computation, windows), "fill": _fill(computation.fill)}
        case JoinPlan():
            return {"join": _join(computation)}
        case PeriodPlan():
            return {"period": [computation.schedule.period_ms, computation.schedule.offset_ms]}
        case ForcePlan():
            force = [_windows(computation.windows), computation.keep_sql is not None, computation.instants]
            return {"force": force, "fill": _fill(computation.fill)}
    raise AssertionError(computation)


def _agg(agg: WindowsPlan, windows: TimeWindows | None) -> list[Any]:
    return [_windows(windows), list(map(_accumulator, agg.accumulators)), list(agg.meanings)]


def _windows(windows: TimeWindows | None) -> list[str] | None:
    if windows is None:
        return None
    interval = windows.interval
    return [] if interval is None else list(map(str, (interval.interval, interval.offset, interval.sliding)))


def _fill(fill: FillPlan | None) -> list[Any] | None:
    return None if fill is None else [fill.mode, fill.before, fill.after]


def _accumulator(accumulator: Accumulator) -> list[Any]:
    function = accumulator.function
    return [accumulator.kind, [str(field_type(field)) for field in accumulator.fields], accumulator.order,
            None if function is None else function.name]


def _join(join: JoinPlan) -> list[Any]:
    sides = [[_types(side.columns), [column.physical for column in side.source.columns], side.newest_sql is not None]
             for side in join.sides]
    return [sides, join.driver, join.start, join.end, join.both, _windows(join.windows),
            join.width, join.distribution, bool(join.single)]


def _types(columns: tuple[Column, ...]) -> list[str]:
    return [str(block_type(column.type)) for column in columns]
