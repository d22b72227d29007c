"""Child tables that come while a stream runs: what is known of those before stays, and results are those of all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.streams.stream_kit import SUPER_UID, Catalog

from penstock.mnode.ddl.meta_records import create_children
from penstock.planner.streams.stream_planner import plan_stream
from penstock.planner.task_plans.stream_plan import StreamPlan
from penstock.sql.dialect.parser import parse_one
from penstock.sql.schema import Session
from penstock.sql.tree.statements import CreateStream
from penstock.tasks.compute import duckdb_computer
from penstock.tasks.compute.child_tables import ChildTables
from penstock.tasks.compute.duckdb_computer import Computer
from penstock.tasks.compute.first_stage import FirstStage
from penstock.tasks.protocol.block_schema import block_schema


def planned(query: str) -> StreamPlan:
    statement = parse_one(f"create stream s into o as {query}")
    assert isinstance(statement, CreateStream)
    return plan_stream(statement, Catalog(1, 4), Session("p", "UTC", 0))


def deployed(tables: list[int]) -> bytes:
    """Returns what a deployment says of child tables: those of some numbers."""
    table = pa.table({"uid": pa.array([uid(n) for n in tables], pa.uint64()),
                      "name": pa.array([f"d{n}" for n in tables], pa.string()),
                      "site": pa.array([site(n) for n in tables], pa.string())})
    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, table.schema) as writer:
        writer.write_table(table)
    return bytes(buffer.getvalue().to_pybytes())


def uid(number: int) -> int:
    return SUPER_UID + 1 + number * 7


def site(number: int) -> str | None:
    return None if number % 5 == 4 else f"s{number % 3}"


def told(tables: list[int]) -> dict[str, Any]:
    """Returns the record of new child tables."""
    return create_children(SUPER_UID, np.array([uid(n) for n in tables], np.uint64), [f"d{n}" for n in tables],
                           [[site(n) for n in tables]])


def rows(tables: list[int], plan: StreamPlan) -> pa.Table:
    columns: dict[str, pa.Array] = {
        "_tuid": pa.array([uid(n) for n in tables], pa.uint64()),
        "ts": pa.array([100 * place for place in range(len(tables))], pa.int64())}
    for column in plan.source.columns:
        if column.name not in columns:
            columns[column.name] = pa.array([1] * len(tables)).cast(column.type.arrow())
    return pa.table(columns)


def sums(batch: pa.RecordBatch) -> dict[Any, int]:
    """Returns the number of rows by group and window."""
    names = batch.schema.names
    keys = [name for name in names if name.startswith(("_gid", "_wstart")) or name[0] == "k"]
    counted = batch.column(names.index("_rows")).to_pylist()
    return dict(zip(zip(*(batch.column(name).to_pylist() for name in keys), strict=True), counted, strict=True))


@settings(deadline=None, max_examples=15)
@given(pieces=st.lists(st.integers(0, 6), max_size=5), again=st.booleans(), ask=st.booleans())
@pytest.mark.parametrize("query", [
    "select _wstart, count(*) c from meters partition by site interval(1s)",
    "select _wstart, count(*) c from meters partition by tbname, site interval(1s)",
    "select _wstart, count(*) c from meters partition by site, voltage interval(1s)",
    "select _wstart, count(*) c from meters where site = 's1' partition by tbname interval(1s)",
    "select _wstart, count(*) c from meters partition by site session(ts, 1s)",
])
def test_results_are_those_of_all_tables(query: str, pieces: list[int], again: bool, ask: bool) -> None:
    """`again`: a table is told of that is there; `ask`: rows come between the tables."""
    plan = planned(query)
    known = [0, 1]
    tables = ChildTables(plan.source, deployed(known))
    stage = FirstStage(plan, block_schema(plan), Computer(), tables)
    computed = computed_by(plan, stage)
    computed(rows(known, plan))
    for piece in pieces:
        added = list(range(len(known), len(known) + piece))
        tables.apply(told([*added, known[0]] if again else added))
        known += added
        if ask:
            computed(rows(added[::-1], plan))
    whole = FirstStage(plan, block_schema(plan), Computer(), ChildTables(plan.source, deployed(known)))
    every = [*known, *known[::-1]]
    assert sums(computed(rows(every, plan))) == sums(computed_by(plan, whole)(rows(every, plan)))
    assert sorted(tables.table().to_pylist(), key=str) == sorted(
        ChildTables(plan.source, deployed(known)).table().to_pylist(), key=str)


def computed_by(plan: StreamPlan, stage: FirstStage) -> Any:
    if plan.row_window is None:
        return stage.compute
    return lambda block: stage.segments_by_row(stage.in_windows(block))


def test_only_new_tables_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked of DuckDB grows by what is new, not by what is there."""
    plan = planned("select _wstart, count(*) c from meters partition by site interval(1s)")
    asked: list[int] = []
    run = duckdb_computer.Computer.run

    def counting(self: Computer, sql: str, schema: pa.Schema, **relations: pa.Table) -> pa.RecordBatch:
        asked.append(relations["children"].num_rows)
        return run(self, sql, schema, **relations)

    monkeypatch.setattr(duckdb_computer.Computer, "run", counting)
    tables = ChildTables(plan.source, deployed(list(range(100))))
    stage = FirstStage(plan, block_schema(plan), Computer(), tables)
    stage.compute(rows([0], plan))
    for number in range(100, 300):
        tables.apply(told([number]))
        stage.compute(rows([number, 5], plan))
    assert asked == [100, *[1] * 200]
    assert tables.table().num_rows == 300


def test_a_table_that_is_gone_is_forgotten() -> None:
    """Those that come behind it are added to what is left."""
    plan = planned("select _wstart, count(*) c from meters partition by site interval(1s)")
    tables = ChildTables(plan.source, deployed([0, 1]))
    assert tables.table().num_rows == 2
    tables.apply(told([2]))
    tables.apply({"op": "drop_children", "table_uid": SUPER_UID, "children": [uid(1), uid(2)]})
    tables.apply(told([3]))
    assert tables.table().column("tbname").to_pylist() == ["d0", "d3"]
    tables.apply(told([4]))
    tables.apply(told([5, 6]))
    assert tables.table().column("tbname").to_pylist() == ["d0", "d3", "d4", "d5", "d6"]
