"""`penstock generate`: the rows that were asked for, the same for the same seed, by options, by JSON, near and far."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.engines.served_here import ServedHere

import penstock
from penstock.common.clock import ManualClock
from penstock.common.errors import CancelledError, InvalidStatementError
from penstock.shell.commands import generate_command
from penstock.shell.commands.generate_command import RowGenerator
from penstock.shell.commands.generate_plan import (
    LOCATIONS,
    DatabasePlan,
    GeneratePlan,
    TablePlan,
    default_columns,
    default_tags,
    read_plan,
)
from penstock.shell.commands.generated_rows import GeneratedRows, requests
from penstock.shell.main import main

START = 1_700_000_000_000
MS = pa.timestamp("ms")


def small(**changes: Any) -> TablePlan:
    return TablePlan("meters", default_columns(), default_tags(), **{"tables": 7, "rows": 20, "step": 10, **changes})


def all_rows(plan: TablePlan, seed: int, sizes: tuple[int, int], bounds: tuple[int, ...] = (0, 7)) -> pa.Table:
    """Returns what is written with requests of sizes[0] rows, interlaced by sizes[1], by a thread per bound."""
    made = GeneratedRows(plan, START, MS, seed, 97)
    parts = [made.table(request) for first, last in pairwise(bounds)
             for request in requests(first, last, plan.rows, sizes[1], sizes[0])]
    whole = pa.concat_tables([part.set_column(0, "tbname", part.column("tbname").cast(pa.string())) for part in parts])
    return whole.sort_by([("tbname", "ascending"), ("ts", "ascending"), ("current", "ascending")])


@given(st.integers(0, 40), st.integers(1, 50), st.integers(0, 25), st.integers(0, 30), st.integers(0, 3))
def test_rows_are_the_same_however_they_are_cut(rows: int, size: int, interlace: int, disorder: int, seed: int) -> None:
    """Neither the size of requests, nor rounds, nor threads change what there is in the end; a seed does."""
    plan = small(rows=rows, disorder=disorder)
    whole = all_rows(plan, seed, (1000, 0)) if rows else None
    if whole is None:
        assert not list(requests(0, 7, 0, interlace, size))
        return
    assert all_rows(plan, seed, (size, interlace), (0, 2, 3, 7)).equals(whole)
    assert whole.num_rows == 7 * rows
    assert set(Counter(whole.column("tbname").to_pylist()).values()) == {rows}
    assert not whole.equals(all_rows(plan, seed + 1, (1000, 0)))
    if not disorder:
        assert whole.column("ts").cast(pa.int64()).to_pylist() == [START + 10 * row for row in range(rows)] * 7


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 45))
def test_requests_come_in_rounds(rows: int, size: int, interlace: int) -> None:
    """No request is longer than it may be, each row comes once, in order, and no round begins before the last ended."""
    seen = list(requests(2, 5, rows, interlace, size))
    assert all(0 < len(request.rows) <= size for request in seen)
    pairs = [(child, row) for request in seen
             for child, row in zip(request.children.tolist(), request.rows.tolist(), strict=True)]
    depth = interlace or rows
    assert pairs == sorted(((child, row) for child in range(2, 5) for row in range(rows)),
                           key=lambda pair: (pair[1] // depth, pair))
    assert sum(request.ends_round for request in seen) == -(-rows // depth)


def test_disorder_is_a_share_of_rows_and_bounded() -> None:
    """About so many rows are older than they should be, by one unit at least and at most by the range."""
    plan = small(tables=50, rows=400, step=1000, disorder=20, disorder_range=300)
    made = GeneratedRows(plan, START, MS, 3, 97)
    (request,) = requests(0, 50, 400, 0, 1 << 20)
    late = START + request.rows * 1000 - made.table(request).column("ts").cast(pa.int64()).to_numpy()
    share = np.count_nonzero(late) / len(late)
    assert 0.15 < share < 0.25
    assert late.min() == 0
    assert late[late > 0].min() > 0
    assert late.max() <= 300


# --- the command ---------------------------------------------------------------------------------------------------


def generate(data: Path, *arguments: object) -> int:
    return main(["generate", "--data", str(data), "--set", "timezone=UTC", *map(str, arguments)])


def test_defaults_are_those_of_taosbenchmark(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Database, tables, columns, tags and values are named as there; the report has rows, rate and delays."""
    assert generate(data_dir, "-t", 30, "-n", 40, "-r", 100, "-T", 3, "-B", 5, "--progress") == 0
    said = capsys.readouterr().out
    assert "seconds to insert rows: 1200 with 3 thread(s) into test " in said
    assert "insert delay, min: " in said
    with penstock.connect(str(data_dir), {"timezone": "UTC"}) as connection:
        query: Callable[[str], list[tuple[Any, ...]]] = lambda text: connection.execute(text).fetchall()  # noqa: E731
        assert query("SELECT count(*), count(current), count(voltage), count(phase) FROM test.meters") == [(1200,) * 4]
        assert query("SELECT min(ts), max(ts) FROM test.meters")[0][0].isoformat() == "2017-07-14T02:40:00"
        names = query("SELECT DISTINCT tbname FROM test.meters")
        assert sorted(names) == sorted((f"d{number}",) for number in range(30))
        tags = query("SELECT DISTINCT tbname, groupid, location FROM test.meters")
        assert {location for _, _, location in tags} <= set(LOCATIONS)
        assert {group for _, group, _ in tags} <= set(range(1, 11))
        voltage = query("SELECT min(voltage), max(voltage) FROM test.meters")[0]
        assert voltage[0] >= 210
        assert voltage[1] <= 230


def test_types_by_options(data_dir: Path) -> None:
    """-b, -l, -A, -w and -m; columns beyond the types are INT, names are numbered."""
    assert generate(data_dir, "-d", "x", "-t", 2, "-n", 3, "-l", 4, "-b", "double,binary(5),BOOL", "-A",
                    "nchar,utinyint,timestamp", "-w", 7, "-m", "dev", "-s", "2024-05-01", "-S", 60_000, "-v", 3) == 0
    with penstock.connect(str(data_dir), {"timezone": "UTC"}) as connection:
        (_, text), = connection.execute("SHOW CREATE TABLE x.meters").fetchall()
        assert text == ("CREATE STABLE meters (ts TIMESTAMP, c0 DOUBLE, c1 VARCHAR(5), c2 BOOL, c3 INT) "
                        "TAGS (t0 NCHAR(7), t1 TINYINT UNSIGNED, t2 TIMESTAMP)")
        rows = connection.execute("SELECT ts, c1, t0 FROM x.dev1 ORDER BY ts").fetchall()
        assert [row[0].isoformat() for row in rows] == [f"2024-05-01T00:0{minute}:00" for minute in range(3)]
        assert all(len(row[1]) == 5 and len(row[2]) == 7 for row in rows)


def test_rows_go_to_a_server_as_well(data_dir: Path, tmp_path: Path) -> None:
    """With --host the same rows come there; an option before the command's name counts, too."""
    assert generate(data_dir, "-t", 3, "-n", 5) == 0
    query = "SELECT tbname, * FROM test.meters ORDER BY tbname, ts"
    with penstock.connect(str(data_dir), {"timezone": "UTC"}) as connection:
        wanted = connection.execute(query).fetchall()
    with ServedHere(tmp_path / "served") as server:
        assert main(["--host", "127.0.0.1", "generate", "--port", str(server.port), "-t", "3", "-n", "5"]) == 0
        with server.own() as connection:
            assert connection.execute(query).fetchall() == wanted


JSON = {
    "filetype": "insert", "host": "127.0.0.1", "thread_count": 2, "num_of_records_per_req": 50, "interlace_rows": 10,
    "databases": [{
        "dbinfo": {"name": "j", "drop": "yes", "vgroups": 2, "precision": "us", "keep": 36500},
        "super_tables": [
            {"name": "a", "childtable_count": 3, "childtable_prefix": "a_", "insert_rows": 25, "timestamp_step": 5,
             "start_timestamp": "2024-01-01 00:00:00.000", "data_source": "rand",
             "columns": [{"type": "INT", "name": "v", "count": 2, "min": 5, "max": 7},
                         {"type": "nchar", "len": 4, "name": "w", "values": ["on", "off"]},
                         {"type": "decimal(6,2)", "name": "money", "max": 10}],
             "tags": [{"type": "json", "name": "j"}]},
            {"name": "b", "childtable_count": 2, "childtable_prefix": "b_", "insert_rows": 4, "start_timestamp": "now"},
        ],
    }],
}


def test_json_files(data_dir: Path, tmp_path: Path) -> None:
    """A file as taosBenchmark reads it: several super tables, columns with counts, bounds and values."""
    path = tmp_path / "insert.json"
    path.write_text(json.dumps(JSON))
    assert generate(data_dir, "-f", path) == 0
    with penstock.connect(str(data_dir), {"timezone": "UTC"}) as connection:
        found = connection.execute("SELECT v, v_2, w, money, tbname FROM j.a").fetch_arrow()
        assert found.num_rows == 75
        assert set(found.column("v").to_pylist()) | set(found.column("v_2").to_pylist()) == {5, 6}
        assert set(found.column("w").to_pylist()) == {"on", "off"}
        assert 0 <= pc.min(found.column("money")).as_py() <= pc.max(found.column("money")).as_py() <= 10
        assert connection.execute("SELECT count(*) FROM j.b").fetchall() == [(8,)]
        times = connection.execute("SELECT ts FROM j.a_0 ORDER BY ts").fetch_arrow()
        assert times.column("ts").cast(pa.int64()).to_pylist()[:2] == [1_704_067_200_000_000, 1_704_067_200_000_005]


@pytest.mark.parametrize(("change", "words"), [
    ({"filetype": "query"}, "filetype can only be insert, not query"),
    ({"thread_cuont": 2}, "thread_cuont is not supported"),
    ({"databases": [{"dbinfo": {"name": "x"}}]}, "is not a file of taosBenchmark: KeyError: 'super_tables'"),
    ({"databases": [{"dbinfo": {"name": "x"}, "super_tables": [{"name": "a", "data_source": "sample"}]}]},
     "super table a: data_source can only be rand, not sample"),
    ({"databases": [{"dbinfo": {"name": "x"}, "super_tables": [
        {"name": "a", "childtable_prefix": "a", "columns": [{"type": "geometry", "len": 9}]}]}]},
     "values of type geometry cannot be generated"),
    ({"databases": [{"dbinfo": {"name": "x"}, "super_tables": [
        {"name": "a", "childtable_prefix": "a", "disorder_ratio": 51}]}]}, "disorder is a share of 0 to 50 percent"),
    ({"thread_count": 0}, "the number of threads must be positive"),
])
def test_wrong_files_say_what_is_wrong(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    """Keys that mean something else here, or nothing, and values that make no sense are refused by name."""
    path = tmp_path / "insert.json"
    path.write_text(json.dumps({**JSON, **change}))
    with pytest.raises(InvalidStatementError) as caught:
        read_plan(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value) or "must" in words or "disorder" in words


def test_what_is_there_is_not_dropped_unasked(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal it takes -y; with one the answer counts; `drop: no` adds to what is there."""
    assert generate(data_dir, "-t", 1, "-n", 5) == 0
    assert generate(data_dir, "-t", 1, "-n", 3) == 1
    plan = GeneratePlan((DatabasePlan("test", (small(tables=1, rows=3),)),))
    with penstock.connect(str(data_dir), {"timezone": "UTC"}) as connection:
        def run(plan: GeneratePlan, *, answer: bool) -> None:
            RowGenerator(
                connection, plan, 0, ManualClock(START), lambda what, more: None, lambda question: answer).run()

        count = "SELECT count(*) FROM test.meters"
        with pytest.raises(CancelledError):
            run(plan, answer=False)
        assert connection.execute(count).fetchall() == [(5,)]
        run(plan, answer=True)
        assert connection.execute(count).fetchall() == [(3,)]
        run(GeneratePlan((DatabasePlan("test", (small(tables=1, rows=2, start="now"),), drop=False),)), answer=False)
        assert connection.execute(count).fetchall() == [(5,)]
    assert generate(data_dir, "-t", 1, "-n", 2, "-y") == 0


def test_a_thread_that_fails_ends_the_others(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is the command's, and nobody goes on writing."""
    class Failing(GeneratedRows):
        def table(self, request: Any) -> pa.Table:
            if 3 in request.children:
                raise InvalidStatementError("no such row")
            return super().table(request)

    monkeypatch.setattr(generate_command, "GeneratedRows", Failing)
    plan = GeneratePlan((DatabasePlan("test", (small(tables=4, rows=20, interlace=1, interval_ms=3_600_000),)),), 4)
    with (penstock.connect(str(data_dir), {"timezone": "UTC"}) as connection,
          pytest.raises(InvalidStatementError, match="no such row")):
        RowGenerator(connection, plan, 0, ManualClock(START), lambda what, more: None, lambda question: True).run()
