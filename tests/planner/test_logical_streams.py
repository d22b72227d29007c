"""The operators of streams: each expression names columns of what is below it, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kits.basics.query_harness import Harness
from sqlglot import exp

from penstock.planner.logical.expr import Expr
from penstock.planner.logical.group_values import AggregateCall, PickedColumn
from penstock.planner.logical.operators import Aggregate, FillGaps, Filter, Lookup, Operator, Project, Window, inputs_of
from penstock.planner.logical.stream import GROUP, LogicalStream
from penstock.planner.logical.window_kinds import ByClock, ByCount, ByEvent, ByInterval, BySession, ByState
from penstock.planner.streams import stream_planner
from penstock.sql.dialect.parser import parse_one
from penstock.sql.schema import Session
from penstock.sql.tree.statements import CreateStream
from penstock.sql.types import DOUBLE, INT, VARCHAR

STREAMS: dict[str, tuple[str, type | None]] = {
    "rows": ("SELECT ts, v * 2 FROM st WHERE x > 1 PARTITION BY tbname", None),
    "interval": ("SELECT _wstart, _wend, avg(v) + 1, g FROM st WHERE v > 1 PARTITION BY tbname, g + 1 b INTERVAL(10s)",
                 ByInterval),
    "companion": ("SELECT last(v), x, s FROM st PARTITION BY g INTERVAL(10s) SLIDING(5s)", ByInterval),
    "filled": ("SELECT _wstart, avg(v), _wduration, tbname FROM st PARTITION BY tbname INTERVAL(10s) FILL(LINEAR)",
               ByInterval),
    "session": ("SELECT _wstart, count(*) FROM st PARTITION BY g SESSION(ts, 10s)", BySession),
    "state": ("SELECT _wstart, first(x) FROM st PARTITION BY tbname STATE_WINDOW(v) TRUE_FOR(3s)", ByState),
    "event": ("SELECT _wstart, sum(x) FROM st PARTITION BY tbname EVENT_WINDOW START WITH v > 1 END WITH v < 0",
              ByEvent),
    "count": ("SELECT _wstart, count(*) FROM st PARTITION BY tbname COUNT_WINDOW(10, 5, x)", ByCount),
    "arrival": ("SELECT _wstart, count(*) FROM st INTERVAL(10s)", ByClock),
    "lookup": ("SELECT _wstart, max(l.most) FROM st a JOIN limits l ON a.s = l.s WHERE a.v < l.most INTERVAL(10s)",
               ByInterval),
}
OPTIONS = {"rows": "TRIGGER AT_ONCE", "count": "WATERMARK 1s", "arrival": "TIME INGESTION"}


@pytest.fixture(scope="module")
def db() -> Harness:
    """A super table, and a table to look up in."""
    harness = Harness()
    harness.create("st", {"v": INT, "x": DOUBLE, "s": VARCHAR}, {"g": INT})
    harness.create("limits", {"s": VARCHAR, "most": DOUBLE})
    return harness


def bound(db: Harness, name: str, patch: pytest.MonkeyPatch) -> LogicalStream:
    """The stream as it is lowered."""
    found: list[LogicalStream] = []
    lowered = stream_planner.stream_plan

    def noted(stream: LogicalStream, *args: Any) -> Any:
        found.append(stream)
        return lowered(stream, *args)

    patch.setattr(stream_planner, "stream_plan", noted)
    statement = parse_one(f"CREATE STREAM s {OPTIONS.get(name, '')} INTO o AS {STREAMS[name][0]}")
    assert isinstance(statement, CreateStream)
    stream_planner.plan_stream(statement, db, Session("db"))
    (stream,) = found
    return stream


def expressions(operator: Operator) -> Iterator[Expr]:
    match operator:
        case Project():
            yield from (computed.value for computed in operator.columns)
        case Filter():
            yield operator.condition
        case Window(shape=ByState(value)):
            yield value
        case Window(shape=ByEvent(start, end)):
            yield from (start, end)
        case Window(shape=ByCount(values=values)):
            yield from values
        case Aggregate():
            for call in operator.calls:
                assert isinstance(call, AggregateCall | PickedColumn)
                yield from call.row.order
                yield from call.arguments if isinstance(call, AggregateCall) else (call.by, call.column)


def all_of(operator: Operator) -> Iterator[Operator]:
    yield operator
    for below in inputs_of(operator):
        yield from all_of(below)


def names(operator: Operator) -> set[str]:
    return {column.name for column in operator.output}


def columns_in(expression: Expr) -> set[str]:
    return {column.name for column in expression.node.find_all(exp.Column)}


@pytest.mark.parametrize("name", STREAMS)
def test_expressions_name_columns_of_what_is_below(db: Harness, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So do the columns that tell windows and groups apart, of each kind of window."""
    stream = bound(db, name, monkeypatch)
    shapes = [type(operator.shape) for operator in all_of(stream.plan) if isinstance(operator, Window)]
    assert shapes == [shape for shape in (STREAMS[name][1],) if shape is not None]
    for operator in all_of(stream.plan):
        known = {column for below in inputs_of(operator) for column in names(below)}
        for expression in expressions(operator):
            assert columns_in(expression) <= known, operator
        match operator:
            case Aggregate() | FillGaps():
                assert set(operator.keys) <= known
            case Window():
                assert {*operator.line.keys, *operator.line.order} <= known
            case Lookup():
                assert operator.on is not None
                assert columns_in(operator.on) <= names(operator)


@pytest.mark.parametrize("name", STREAMS)
def test_results_are_of_the_targets_columns(db: Harness, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One each, in order; values of tags are over keys and the group."""
    stream = bound(db, name, monkeypatch)
    assert isinstance(stream.plan, Project)
    assert [computed.label for computed in stream.plan.columns] == [column.name for column in stream.target.columns]
    keys = {key.name for key in stream.keys}
    for value in stream.target.tag_values:
        assert columns_in(value) <= {*keys, GROUP}
