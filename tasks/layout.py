"""What decides how a stream's saved state is read, as a fingerprint: saved bytes are told apart by their place alone.

Options that only say when results are written, how fast, or what may be forgotten aren't part of it, nor is text that
may differ between versions where it means the same; names and lengths of columns aren't either.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

from penstock.planner.stream import Accumulator, AggPlan, JoinPlan, StreamPlan
from penstock.sql.schema import Column
from penstock.sql.statements import IntervalWindow
from penstock.tasks.compute import block_type, field_type

_VERSION = 2
"""Raise it when bytes in stores mean something else though plans are the same."""


def layout_of(plan: StreamPlan) -> str:
    """Returns the fingerprint of a plan's state: 32 hexadecimal digits. State is for plans with an equal one only."""
    source, force = plan.source, plan.force
    parts = {
        "version": _VERSION,
        "keys": [str(field_type(key)) for key in plan.keys],
        "colocated": plan.colocated,
        "precision": source.precision,
        "time zone": plan.time_zone,
        "groups are tables": source.group_is_table,
        "row window": None if source.row_window is None else asdict(source.row_window),
        "agg": None if plan.agg is None else _agg(plan.agg),
        "join": None if plan.join is None else _join(plan.join),
        "fill": None if plan.fill is None else [plan.fill.mode, plan.fill.before, plan.fill.after],
        "force": None if force is None else [_window(force.window), force.keep_sql is not None, force.instants],
        "results": [_types(plan.sink.columns), _types(plan.sink.tags), plan.sink.outside is not None],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _agg(agg: AggPlan) -> list[Any]:
    return [_window(agg.window), list(map(_accumulator, agg.accumulators)),
            list(agg.meanings)]


def _window(window: IntervalWindow | None) -> list[str] | None:
    return None if window is None else list(map(str, (window.interval, window.offset, window.sliding)))


def _accumulator(accumulator: Accumulator) -> list[Any]:
    function = accumulator.function
    return [accumulator.kind, [str(field_type(field)) for field in accumulator.fields], accumulator.order,
            None if function is None else function.name]


def _join(join: JoinPlan) -> list[Any]:
    sides = [[_types(side.columns), [column.physical for column in side.source.columns], side.newest_sql is not None]
             for side in join.sides]
    return [sides, join.driver, join.start, join.end, join.both, _window(join.window),
            join.width, join.meeting, bool(join.single)]


def _types(columns: tuple[Column, ...]) -> list[str]:
    return [str(block_type(column.type)) for column in columns]
