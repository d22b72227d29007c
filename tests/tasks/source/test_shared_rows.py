"""Streams of a worker that read the same columns of a table share what they find in its records, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.mnode.admin.sandbox import Sandbox
from penstock.tasks.compute import lateness
from penstock.wal.record import RowsRecord

NOW_MS = 1_700_000_000_000
STREAMS = {
    "by_tag": "TRIGGER AT_ONCE {into} AS SELECT _wstart, count(*) c, sum(a) s, max(b) b FROM m "
              "PARTITION BY g INTERVAL(1s)",
    "closed": "TRIGGER WINDOW_CLOSE WATERMARK 2s {into} AS SELECT _wstart, count(*) c, sum(a) s, max(b) b FROM m "
              "PARTITION BY tbname INTERVAL(3s)",
    "expired": "TRIGGER WINDOW_CLOSE WATERMARK 1s IGNORE EXPIRED 1 IGNORE UPDATE 1 {into} AS SELECT _wstart, "
               "count(*) c, sum(a) s FROM m PARTITION BY tbname INTERVAL(2s)",
    "bounded": "TRIGGER AT_ONCE MAX_FUTURE 5s {into} AS SELECT _wstart, count(*) c, sum(a) s FROM m INTERVAL(4s)",
    "one": "TRIGGER AT_ONCE {into} AS SELECT _wstart, count(*) c, sum(a) s FROM d1 INTERVAL(2s)",
    "rows": "{into} AS SELECT ts, a, b FROM m WHERE a > 2 PARTITION BY tbname"}
ROWS = st.tuples(st.integers(0, 2), st.integers(-8_000, 8_000), st.integers(0, 5))
STEPS = st.lists(st.lists(ROWS, min_size=1, max_size=4), min_size=1, max_size=12)


def results(streams: Sequence[str], steps: Sequence[Sequence[tuple[int, int, int]]]) -> dict[str, pa.Table]:
    """Returns what these streams have made, side by side, of rows (child table, milliseconds from now, a)."""
    with Sandbox(now_ms=NOW_MS) as sandbox:
        for text in ("CREATE DATABASE t VGROUPS 1", "USE t",
                     "CREATE TABLE m (ts TIMESTAMP, a INT, b DOUBLE) TAGS (g INT)",
                     *(f"CREATE TABLE d{number} USING m TAGS ({number % 2})" for number in range(3))):
            sandbox.execute(text)
        for name in streams:
            sandbox.execute(f"CREATE STREAM {name} " + STREAMS[name].format(into=f"INTO o_{name}"))
        for rows in steps:
            sandbox.execute("INSERT INTO " + " ".join(
                f"d{child} VALUES ({NOW_MS + ms}, {a}, {a}.5)" for child, ms, a in rows))
            sandbox.advance(1.0)
            sandbox.run()
        found = {}
        for name in streams:
            table = sandbox.execute(f"SELECT tbname, * FROM o_{name}").table
            found[name] = sorted(map(repr, table.drop_columns(["tbname"]).to_pylist()))
        return found


@settings(max_examples=times(3, 500), deadline=None)
@given(steps=STEPS)
def test_streams_side_by_side_find_what_each_finds_alone(steps: list[list[tuple[int, int, int]]]) -> None:
    """Whatever they are: late rows, rows that were written again, rows from the future."""
    together = results(list(STREAMS), steps)
    for name in STREAMS:
        assert together[name] == results([name], steps)[name], name


def test_rows_are_read_once_for_streams_that_read_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one table with the same columns; what only one reads is read for it."""
    read: list[Sequence[RowsRecord]] = []
    make = lateness._read

    def counted(records: Sequence[RowsRecord], *rest: object) -> object:
        read.append(records)
        return make(records, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(lateness, "_read", counted)
    results(["by_tag", "closed"], [[(0, 0, 1)], [(1, 0, 2), (2, 5, 3)]])
    assert len(read) == 2
    read.clear()
    results(["by_tag", "closed", "one"], [[(1, 0, 1)]])
    assert len(read) == 2
