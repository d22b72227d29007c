"""What queries of streams with a trigger of their own are given, and what they give: values and conditions."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from kits.engines.sandboxes import T0, TestBed

from penstock.common.errors import InvalidStreamError, NotFoundError, PenstockError


@pytest.fixture
def bed() -> Iterator[TestBed]:
    with TestBed() as bed:
        bed.all("create database d vgroups 1", "use d")
        yield bed


def test_what_partition_by_gives_is_of_its_type(bed: TestBed) -> None:
    """Alike in the query of a window that is computed alone, and in that of many."""
    bed.all(
        "create stable m (ts timestamp, v int) tags (t timestamp, x varbinary(9), n nchar(9), f float, no timestamp)",
        "create stream s interval(1s) sliding(1s) from m partition by t, x, n, f, no into o as select _twstart, "
        "%%1 + 1s later, length(%%2) x_long, length(%%3) n_long, cast(%%4 * 1000 as int) thousandfold, "
        "%%5 nothing, count(*) n_rows from %%trows",
        f"insert into c using m tags ({T0 + 7}, '\\x00ff', '\U0001f600', 1.1, null) values ({T0}, 1)",
        f"insert into c values ({T0 + 1000}, 1)",
        "insert into c values " + " ".join(f"({T0 + 1000 * place}, 1)" for place in range(2, 7)))
    found = bed.rows("select _twstart, later, x_long, n_long, thousandfold, nothing, n_rows, t from o")
    assert [row[0] for row in found] == [0, 1000, 2000, 3000, 4000, 5000]
    assert {row[1:] for row in found} == {(1007, 2, 4, 1100, None, 1, 7)}


@pytest.mark.parametrize("aggregate", ["sum(v)", "stddev(v)"])
def test_what_compares_with_null_finds_nothing(bed: TestBed, aggregate: str) -> None:
    """Also where results come with the windows, without a query."""
    bed.all("create stable m (ts timestamp, v int) tags (t int)", "create table a using m tags (null)",
            "create table b using m tags (1)")
    for condition in ("t = %%1", "t is not distinct from %%1"):
        name = "equal" if "=" in condition else "same"
        bed.execute(f"create stream {name} interval(1s) sliding(1s) from m partition by t into of_{name} as "
                    f"select _twstart ts, count(*) c, {aggregate} x from m where {condition} and ts >= _twstart "
                    "and ts < _twend")
    for second in range(3):
        bed.execute(f"insert into a values ({T0 + 1000 * second}, 1) b values ({T0 + 1000 * second}, 1)")
    assert bed.rows("select c, count(*) from of_equal group by c order by c") == [(0, 2), (1, 2)]
    assert bed.rows("select c, count(*) from of_same group by c") == [(1, 4)]


def test_period_finds_new_rows_of_groups_by_time(bed: TestBed) -> None:
    """Which groups have got rows is told by tags of any type."""
    bed.all("create stable m (ts timestamp, v int) tags (t timestamp)",
            "create stream s period(1m) from m partition by t stream_options(ignore_nodata_trigger) into o "
            "as select cast(_tlocaltime / 1000000 as timestamp) at, count(*) n from %%trows",
            f"insert into a using m tags ({T0}) values ({T0}, 1)", f"create table b using m tags ({T0 + 1})")
    bed.advance(60)
    bed.run()
    assert bed.rows("select n, t from o") == [(1, 0)]


OF_MINUTES = "create stream s interval(1m) sliding(1m) from m partition by tbname"
TOLD = f"{OF_MINUTES} notify('http://127.0.0.1:1/x') on (window_close) where"


@pytest.mark.parametrize(("statement", "why"), [
    pytest.param(f"{TOLD} w > 1 into o as select _twstart, 1 a", "column w does not exist at line 1, column 124: 'w'",
                 id="a column that the result hasn't"),
    pytest.param(f"{TOLD} a > 1 into o (ts, b) as select _twstart, 1 a", "column a does not exist",
                 id="a name that INTO takes away"),
    pytest.param(f"{TOLD} max(a) > 1 into o as select _twstart, 1 a", "max() is not allowed in WHERE",
                 id="many results"),
    pytest.param(f"{OF_MINUTES} stream_options(force_output) into o as select * from %%trows",
                 "FORCE_OUTPUT needs a query that names its columns", id="a forced row of columns without names"),
    pytest.param(f"{TOLD} a > 1", "NOTIFY's condition is about what it gives", id="a condition of nothing"),
    pytest.param(f"{OF_MINUTES} stream_options(calc_notify_only) into o as select _twstart, 1 a",
                 "NOTIFY is expected", id="results that nobody has"),
    pytest.param(f"{OF_MINUTES} into o (ts, b, c composite key) as select _twstart, 1, 2 from %%trows",
                 "only the second column can be a part of the primary key", id="a key far behind"),
    pytest.param("create stream s period(1m) from m stream_options(pre_filter(w > 1)) into o as select now, 1 a",
                 "column w does not exist in m at line 1, column 61: 'w'", id="a filter of what isn't there"),
    pytest.param("create stream s period(1m) stream_options(ignore_nodata_trigger) into o as select now, 1 a",
                 "are about rows of the trigger's table", id="no rows of no table"),
    pytest.param(f"{OF_MINUTES} into o as\nselect _twstart,\n w from %%trows",
                 "column w does not exist in m at line 3, column 2: 'w'", id="a place in the statement"),
])
def test_what_could_never_be_computed_is_refused(bed: TestBed, statement: str, why: str) -> None:
    """When the stream is created, and not by each of its executions."""
    bed.execute("create stable m (ts timestamp, v int) tags (g int)")
    with pytest.raises(PenstockError) as refused:
        bed.execute(statement)
    assert why in str(refused.value)
    assert bed.rows("show streams") == []


@pytest.mark.parametrize("trigger", [
    "interval(1s) sliding(1s) from m partition by tbname stream_options(pre_filter(ts > now() - 1h))",
    "event_window(start with ts > now end with v > 1) from m partition by tbname",
    "session(ts, 1s) from m partition by tbname stream_options(pre_filter(ts > today()))",
])
def test_a_trigger_does_not_go_by_the_time_of_now(bed: TestBed, trigger: str) -> None:
    """Its tasks would know that of the creation."""
    bed.execute("create stable m (ts timestamp, v int) tags (t int)")
    with pytest.raises(InvalidStreamError, match="would be the time at which the stream was created"):
        bed.execute(f"create stream s {trigger} into o as select _twstart, count(*) from %%trows")


def test_history_and_periods_may_go_by_the_time_of_now(bed: TestBed) -> None:
    """That is when history begins, and when the clock fires."""
    bed.all("create stable m (ts timestamp, v int) tags (t int)",
            "create stream s session(ts, 1s) from m partition by tbname stream_options(fill_history(now() - 1d)) "
            "into o as select _twstart, count(*) from %%trows",
            "create stream p period(1m) from m stream_options(pre_filter(ts > now() - 1h)) into op "
            "as select now, count(*) from %%trows")


@pytest.mark.parametrize("config", [
    {"streamTime": "processing"}, {"streamTime": "ingestion"}, {"closeWhenIdle": True}, {"allowedLateness": "1m"},
])
def test_no_option_that_is_only_configured_keeps_a_stream_from_being_made(config: dict[str, Any]) -> None:
    """Windows of a trigger go by the times of rows."""
    with TestBed(config=config) as bed:
        bed.all("create database d vgroups 1", "use d", "create stable m (ts timestamp, v int) tags (t int)")
        for number, trigger in enumerate(("interval(1s) sliding(1s) from m partition by tbname", "period(1m)",
                                          "session(ts, 1s) from m partition by tbname", "sliding(1s) from m")):
            start = {1: "now ts", 3: "_tcurrent_ts ts"}.get(number, "_twstart ts")
            bed.execute(f"create stream s{number} {trigger} into o{number} as select {start}, 1 a")
        bed.execute(f"insert into c using m tags (1) values ({T0}, 1) ({T0 + 100_000}, 1)")
        assert bed.rows("select * from o3")


def test_a_forced_row_beside_a_condition_of_notify(bed: TestBed) -> None:
    """Which is about the names that INTO gives."""
    bed.all("create stable m (ts timestamp, v int) tags (g int)",
            f"{OF_MINUTES} stream_options(force_output) notify('http://127.0.0.1:1/x') on (window_close) where b > 1 "
            "into o (ts, b, c) as select _twstart, v, %%1 from %%trows",
            f"insert into t using m tags (1) values ({T0}, 3)",
            f"insert into t values ({T0 + 120_000}, 4) ({T0 + 180_000}, 5)")
    assert bed.rows("select * from o") == [(-20_000, 3, "t", "t"), (40_000, None, "t", "t"), (100_000, 4, "t", "t")]


def test_names_lead_to_the_database_of_the_stream(bed: TestBed) -> None:
    """The result table's as well, which has one stream."""
    bed.all("create database e vgroups 1", "create stable e.m (ts timestamp, v int) tags (g int)",
            "create stream e.one interval(1m) sliding(1m) from m into o as select _twstart, max(v) from %%trows")
    with pytest.raises(InvalidStreamError, match=r"stream one writes into e\.o already"):
        bed.execute("create stream e.two sliding(1m) from m into o as select _tcurrent_ts, 1 n from %%trows")


def test_what_is_only_told_is_not_kept(bed: TestBed) -> None:
    """Whether a table is named or not."""
    bed.all("create stable m (ts timestamp, v int) tags (g int)",
            f"{OF_MINUTES} stream_options(calc_notify_only) notify('http://127.0.0.1:1/x') on (window_close) "
            "where b > 1 into o (ts, b) as select _twstart, v from %%trows",
            f"insert into t using m tags (1) values ({T0}, 3) ({T0 + 60_000}, 4)")
    assert bed.rows("select result_rows, problem from s_executions") == [(0, None)]
    with pytest.raises(NotFoundError, match=r"table d\.o does not exist"):
        bed.execute("select * from o")


@pytest.mark.parametrize("trigger", ["period(1m) from m", "sliding(1m) from m"])
def test_what_has_no_windows_fires_whatever_is_said_of_these(bed: TestBed, trigger: str) -> None:
    """EVENT_TYPE is about when windows open and close."""
    bed.all("create table m (ts timestamp, v int)",
            f"create stream s {trigger} stream_options(event_type(window_open)) into o "
            "as select cast(0 as timestamp) ts, count(*) n from m",
            f"insert into m values ({T0}, 1) ({T0 + 60_000}, 2)")
    bed.advance(60)
    bed.run()
    assert bed.rows("select n from o") == [(2,)]


@pytest.mark.parametrize("forged", ["abc", "123456789", "\\\\x789c0300", "\\\\x"])
def test_damaged_times_of_results_hold_no_stream_up(bed: TestBed, forged: str) -> None:
    """Whatever damaged them in the table of executions: the window is computed again, and an event says so."""
    bed.all("create stable m (ts timestamp, v int) tags (g int)", f"{OF_MINUTES} into o as select _twstart, sum(v) n "
            "from %%trows", f"insert into t using m tags (1) values ({T0}, 3) ({T0 + 60_000}, 4)")
    bed.forge(
        f"insert into s_executions (ts, group_id, result_times) select ts, group_id, '{forged}' from s_executions")
    bed.execute(f"insert into t values ({T0 + 1}, 10)")
    assert bed.rows("select _twstart, n from o") == [(-20_000, 13)]
    told = bed.rows("select count(*) from information_schema.ins_stream_events where event like '%are damaged%'")
    assert told == [(int(forged != "\\\\x"),)]


def test_results_that_can_not_be_found_again_are_told_of(bed: TestBed) -> None:
    """Thousands of times without any order fit into no execution."""
    times = random.Random(1).sample(range(300_000_000_000), 4_000)
    bed.all("create table m (ts timestamp, v int)", "create table other (ts timestamp, v int)",
            "insert into other values " + " ".join(f"({T0 - time}, 1)" for time in times),
            "create stream s interval(1s) sliding(1s) from m into o as select ts, v from other",
            f"insert into m values ({T0}, 1) ({T0 + 1000}, 2)")
    ((rows, problem),) = bed.rows("select result_rows, problem from s_executions")
    assert rows == len(times)
    assert problem.startswith("its results have too many times to be found again")


@pytest.mark.parametrize(("columns", "expected"), [
    ("last(x) a, first(x) b", [(10_000, 2, 2)]), ("last(x) a, max(x) b", [(0, None, None), (10_000, 2, 2)]),
])
def test_windows_without_values_have_the_results_of_the_query(
    bed: TestBed, columns: str, expected: list[tuple[object, ...]]
) -> None:
    """Of rows whose values are NULL, first() and last() alone give none, also where tasks would compute them."""
    bed.all("create table m (ts timestamp, x int)",
            f"create stream s session(ts, 1s) from m into o as select _twstart, {columns} from %%trows",
            f"insert into m values ({T0}, null)", f"insert into m values ({T0 + 10_000}, 2)",
            f"insert into m values ({T0 + 20_000}, 3)")
    assert bed.rows("select * from o") == expected


@pytest.mark.parametrize("query", [
    pytest.param("select _wstart, count(*) n from other where ts >= _twstart and ts < _twend interval(250a) "
                 "fill(value, -1)",
                 id="filled between its own bounds"),
    pytest.param("select _twstart, sum(v) n from other where ts >= _twstart + 2s and ts < _twend + 2s",
                 id="no row of no rows"),
    pytest.param("select _twstart, (select sum(v) from other where ts > _twend) n", id="a sub-query of no rows"),
])
def test_many_windows_give_what_each_gives(bed: TestBed, query: str) -> None:
    """Whether they are computed one by one or by one query."""
    rows = [f"({T0 + 500 * place}, {place})" for place in range(17)]
    bed.all("create table other (ts timestamp, v int)", "insert into other values " + " ".join(rows),
            *(f"create table {name} (ts timestamp, v int)" for name in ("few", "many")),
            *(f"create stream of_{name} interval(1s) sliding(1s) from {name} into o_{name} as {query}"
              for name in ("few", "many")),
            *(f"insert into few values {row}" for row in rows), "insert into many values " + " ".join(rows))
    found = bed.rows("select * from o_few")
    assert found == bed.rows("select * from o_many")
    assert len(found) >= 6
