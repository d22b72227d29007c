"""Streams with a trigger of their own, by examples: what fires, what their queries see, and what stays of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from conftest import in_turn
from kits.engines.heard import Heard, hearing
from kits.engines.sandboxes import T0, TestBed

from penstock.common.errors import InUseError, InvalidStreamError, NotFoundError, NotSupportedError, PenstockError
from penstock.mnode.streams.calculated_results import ComputedWindows
from penstock.mnode.streams.window_queries import WindowQueries

Row = tuple[Any, ...]
#: Windows of 10 s that have rows, without those between.
TENS = "INTERVAL(10s) SLIDING(10s)"
NO_GAPS = "IGNORE_NODATA_TRIGGER"
COUNTS = "SELECT _twstart ts, _twend e, _twrownum n, count(*) c, sum(v) s FROM %%trows"


class Bed(TestBed):
    """A database `d` with two vgroups; `m` has the tables a and b of site 1, and c of site 2; `o` is another table."""

    def set_up(self) -> None:
        self.all("CREATE DATABASE d VGROUPS 2", "USE d",
                 "CREATE STABLE m (ts TIMESTAMP, v INT, x INT) TAGS (site INT)", "CREATE TABLE a USING m TAGS (1)",
                 "CREATE TABLE b USING m TAGS (1)", "CREATE TABLE c USING m TAGS (2)",
                 "CREATE TABLE o (ts TIMESTAMP, w INT)")

    def stream(self, trigger: str, query: str = COUNTS, *, options: str = "", into: str = "", name: str = "s") -> None:
        """Creates a stream into the table `r` of its name."""
        given = f"STREAM_OPTIONS({options})" if options else ""
        self.execute(f"CREATE STREAM {name} {trigger} {given} INTO r{name} {into} AS {query}")

    def put(self, table: str, *rows: tuple[float, int | None, int | None] | tuple[float, int | None]) -> None:
        """Writes rows (seconds after T0, v, x) or (seconds, w) as one record."""
        self.execute(f"INSERT INTO {table} VALUES " + " ".join(
            "(" + ", ".join(map(_literal, (T0 + round(row[0] * 1000), *row[1:]))) + ")" for row in rows))

    def results(self, what: str = "*", name: str = "s") -> list[Row]:
        return sorted(self.rows(f"SELECT {what} FROM r{name}"), key=repr)

    def executions(self, what: str = "ts, window_end, window_rows", name: str = "s") -> list[Row]:
        return sorted(self.rows(f"SELECT {what} FROM {name}_executions"), key=repr)


def _literal(value: object) -> str:
    return "NULL" if value is None else str(value)


@pytest.fixture
def bed() -> Iterator[Bed]:
    with Bed(now_ms=T0, config={"timezone": "UTC"}) as opened:
        assert isinstance(opened, Bed)
        opened.set_up()
        yield opened


@contextmanager
def ways() -> Iterator[list[str]]:
    """Notes how windows are computed: one, or how many together, or handed over with their results."""
    found: list[str] = []
    one, many, handed = WindowQueries._of_one, WindowQueries._of_many, ComputedWindows.add_handed

    def of_one(self: WindowQueries, *given: Any) -> Any:
        found.append("one")
        return one(self, *given)

    def of_many(self: WindowQueries, job: Any, query: Any, windows: Any) -> Any:
        rows = many(self, job, query, windows)
        found.append(f"{len(windows)} together")
        return rows

    def add_handed(self: ComputedWindows, places: Any, names: Any) -> None:
        found.append(f"{len(places)} handed over")
        handed(self, places, names)

    with patch.object(WindowQueries, "_of_one", of_one), patch.object(WindowQueries, "_of_many", of_many), \
            patch.object(ComputedWindows, "add_handed", add_handed):
        yield found


# --- triggers -------------------------------------------------------------------------------------------------------


def test_an_interval_fires_with_its_windows(bed: Bed) -> None:
    """Once time has passed their end; those without rows between two others fire, too, with the next that has some. A
    row at the end is of the next window."""
    bed.stream("INTERVAL(5s) SLIDING(5s) FROM a")
    bed.put("a", (0, 1, 0), (4, 2, 0), (5, 3, 0))
    assert bed.results() == [(0, 5000, 2, 2, 3)]
    bed.put("a", (21, 4, 0))
    assert bed.results() == [(0, 5000, 2, 2, 3), (5000, 10000, 1, 1, 3)]
    bed.put("a", (25, 5, 0))
    assert bed.results() == [
        (0, 5000, 2, 2, 3), (10000, 15000, 0, 0, None), (15000, 20000, 0, 0, None), (20000, 25000, 1, 1, 4),
        (5000, 10000, 1, 1, 3)]


def test_windows_overlap_where_they_slide(bed: Bed) -> None:
    """Each row is in as many as there are steps in a width."""
    bed.stream("INTERVAL(10s) SLIDING(5s) FROM a")
    bed.put("a", (0, 1, 0), (6, 2, 0), (30, 0, 0))
    assert [row for row in bed.results() if row[3]] == [
        (-5000, 5000, 1, 1, 1), (0, 10000, 2, 2, 3), (5000, 15000, 1, 1, 2)]


def test_sliding_alone_is_a_stretch_up_to_now(bed: Bed) -> None:
    """It gives the time before, this one, and the next one."""
    bed.stream("SLIDING(5s) FROM a", "SELECT _tprev_ts ts, _tcurrent_ts c, _tnext_ts n, count(*) k FROM %%trows")
    bed.put("a", (1, 1, 0), (2, 1, 0), (5, 1, 0), (11, 1, 0))
    assert bed.results() == [(0, 5000, 10000, 2), (5000, 10000, 15000, 1)]


def test_a_session_fires_when_no_row_can_join_it(bed: Bed) -> None:
    """A row at the end of the gap is still of it."""
    bed.stream("SESSION(ts, 5s) FROM a")
    bed.put("a", (0, 1, 0), (5, 2, 0), (10, 3, 0))
    assert bed.results() == []
    bed.put("a", (16, 4, 0))
    assert bed.results() == [(0, 10000, 3, 3, 6)]


def test_a_state_fires_when_the_next_one_begins(bed: Bed) -> None:
    """Not when time passes; each table has its own, and a state that is no value ends none."""
    bed.stream("STATE_WINDOW(x) FROM m PARTITION BY tbname")
    bed.put("a", (0, 1, 7), (1, 2, 7))
    bed.put("b", (30, 1, 7))
    bed.put("a", (40, 3, None), (50, 4, 7))
    assert bed.results() == []
    bed.put("a", (51, 5, 8))
    assert bed.results() == [(0, 50000, 3, 4, 10, "a")]


def test_states_and_events_may_have_to_last(bed: Bed) -> None:
    """TRUE_FOR leaves out those that are shorter."""
    bed.stream("STATE_WINDOW(x) TRUE_FOR(2s) FROM a", name="s")
    bed.stream("EVENT_WINDOW(START WITH x = 1 END WITH x = 2) TRUE_FOR(2s) FROM a", name="e")
    bed.put("a", (0, 1, 1), (1, 2, 1), (2, 3, 2), (4, 4, 2), (5, 5, 1), (8, 6, 2), (9, 7, 0))
    assert bed.results() == [(2000, 4000, 2, 2, 7)]
    assert bed.results(name="e") == [(0, 2000, 3, 3, 6), (5000, 8000, 2, 2, 11)]


def test_an_event_fires_with_its_last_row(bed: Bed) -> None:
    """One row may begin and end it."""
    bed.stream("EVENT_WINDOW(START WITH x > 0 END WITH x > 1) FROM a")
    bed.put("a", (0, 1, 0), (1, 2, 1), (2, 3, None))
    assert bed.results() == []
    bed.put("a", (3, 4, 2))
    bed.put("a", (4, 5, 3))
    assert bed.results() == [(1000, 3000, 3, 3, 9), (4000, 4000, 1, 1, 5)]


def test_a_count_fires_when_it_is_full(bed: Bed) -> None:
    """Windows may overlap; those of each table are its own."""
    bed.stream("COUNT_WINDOW(3, 2) FROM m PARTITION BY tbname")
    bed.put("a", (0, 1, 0), (1, 2, 0))
    bed.put("b", (1, 9, 0), (2, 9, 0))
    assert bed.results() == []
    bed.put("a", (2, 3, 0), (3, 4, 0), (4, 5, 0))
    assert bed.results() == [(0, 2000, 3, 3, 6, "a"), (2000, 4000, 3, 3, 12, "a")]


def test_a_count_may_be_of_values(bed: Bed) -> None:
    """Rows in which none of the columns has one aren't counted, and are not among the trigger's."""
    bed.stream("COUNT_WINDOW(2, 2, v, x) FROM a")
    bed.put("a", (0, 1, None), (1, None, None), (2, None, 3))
    assert bed.results() == [(0, 2000, 2, 2, 1)]


# --- options --------------------------------------------------------------------------------------------------------


def test_pre_filter_is_of_the_trigger(bed: Bed) -> None:
    """%%trows are the rows that meet it, %%tbname has all."""
    bed.stream(f"{TENS} FROM a", "SELECT _twstart ts, _twrownum n, count(*) c, (SELECT count(*) FROM %%tbname WHERE "
               "ts >= _twstart AND ts < _twend) k FROM %%trows", options=f"PRE_FILTER(v > 1 OR x = 1) | {NO_GAPS}")
    bed.put("a", (0, 1, 0), (1, 2, 0), (2, 0, 1), (10, 1, 0), (20, 2, 0), (30, 2, 0))
    assert bed.results() == [(0, 2, 2, 3), (20000, 1, 1, 1)]


def test_force_output_gives_each_window_a_row(bed: Bed) -> None:
    """Constants stay, the rest is NULL; whether windows are computed together or one by one."""
    bed.stream("INTERVAL(5s) SLIDING(5s) FROM a",
               "SELECT _twstart ts, _twend e, 7 k, %%tbname t, max(v) m FROM %%trows", options="FORCE_OUTPUT")
    with ways() as found:
        bed.put("a", (0, 1, 0), (11, 2, 0), (16, 3, 0))
        bed.put("a", (50, 3, 0), (55, 0, 0))
    assert len({*found}) > 1
    assert bed.results() == sorted(
        [(n * 5000, n * 5000 + 5000, 7, "a", {0: 1, 2: 2, 3: 3, 10: 3}.get(n)) for n in range(11)], key=repr)


def test_force_output_wants_columns_with_names(bed: Bed) -> None:
    """Of `*` nobody could say what the row is."""
    with pytest.raises(InvalidStreamError, match="FORCE_OUTPUT needs a query that names its columns"):
        bed.stream(f"{TENS} FROM a", "SELECT * FROM %%trows", options="FORCE_OUTPUT")


def test_windows_without_results_have_no_row(bed: Bed) -> None:
    """An aggregate of no rows has none unless it counts, as in queries; together as one by one."""
    bed.stream("INTERVAL(5s) SLIDING(5s) FROM a", "SELECT _twstart ts, max(v) m FROM %%trows")
    bed.stream("INTERVAL(5s) SLIDING(5s) FROM a", "SELECT _twstart ts, max(v) m FROM (SELECT v FROM %%trows)", name="i")
    bed.stream("INTERVAL(5s) SLIDING(5s) FROM a", "WITH r AS (SELECT v FROM %%trows) SELECT _twstart ts, max(v) m "
               "FROM r", name="w")
    with ways() as found:
        bed.put("a", (0, 1, 0), (11, 2, 0), (16, 3, 0))
        bed.put("a", (50, 3, 0), (55, 0, 0))
    assert len({*found}) > 1
    for name in "siw":
        assert bed.results(name=name) == [(0, 1), (10000, 2), (15000, 3), (50000, 3)]


def test_what_is_late_runs_windows_again(bed: Bed) -> None:
    """Also what is rewritten and deleted. What is late or rewritten may be ignored, windows of long ago left alone."""
    for name, option in (("s", ""), ("i", "IGNORE_DISORDER | "), ("e", "EXPIRED_TIME(10s) | ")):
        option += NO_GAPS
        bed.stream(f"{TENS} FROM a", options=option, name=name)
    bed.put("a", (0, 1, 0), (10, 2, 0), (20, 3, 0), (30, 4, 0), (40, 5, 0))
    before = bed.results()
    assert before == [(0, 10000, 1, 1, 1), (10000, 20000, 1, 1, 2), (20000, 30000, 1, 1, 3), (30000, 40000, 1, 1, 4)]
    bed.put("a", (1, 9, 0))
    bed.put("a", (20, 8, 0))
    bed.execute(f"DELETE FROM a WHERE ts = {T0 + 10_000}")
    assert bed.results() == [(0, 10000, 2, 2, 10), (20000, 30000, 1, 1, 8), (30000, 40000, 1, 1, 4)]
    assert bed.results(name="i") == [before[0], *before[2:]]
    assert bed.results(name="e") == [before[0], *bed.results()[1:]]


def test_history_is_read_if_it_is_to_be(bed: Bed) -> None:
    """All of it, or from a time on; rows that come later fire all of them."""
    bed.put("a", (-30, 1, 0), (-20, 2, 0))
    for name, option in (("s", ""), ("h", "FILL_HISTORY | "), ("f", "FILL_HISTORY_FIRST | "),
                         ("t", f"FILL_HISTORY({T0 - 25_000}) | ")):
        bed.stream(f"{TENS} FROM a", "SELECT _twstart ts, count(*) c FROM %%trows", options=option + NO_GAPS, name=name)
    bed.put("a", (0, 3, 0), (10, 4, 0))
    assert bed.results() == [(0, 1)]
    assert bed.results(name="h") == bed.results(name="f") == [(-20000, 1), (-30000, 1), (0, 1)]
    assert bed.results(name="t") == [(-20000, 1), (0, 1)]


def test_max_delay_fires_open_windows(bed: Bed) -> None:
    """With the rows that there are, and again when they close."""
    bed.stream(f"{TENS} FROM a", options=f"MAX_DELAY(3s) | {NO_GAPS}")
    bed.put("a", (0, 1, 0))
    assert bed.results() == []
    bed.advance(4)
    assert bed.results() == [(0, 10000, 1, 1, 1)]
    bed.put("a", (1, 2, 0), (10, 3, 0))
    assert bed.results() == [(0, 10000, 2, 2, 3)]


def test_watermark_lets_windows_wait(bed: Bed) -> None:
    """Events and counts, too, which else fire with their last row."""
    bed.stream(f"{TENS} FROM a", options=f"WATERMARK(5s) | {NO_GAPS}")
    bed.stream("EVENT_WINDOW(START WITH x = 1 END WITH x = 2) FROM a", options="WATERMARK(5s)", name="e")
    bed.stream("COUNT_WINDOW(2) FROM a", options="WATERMARK(5s)", name="n")
    bed.put("a", (0, 1, 1), (9, 2, 2), (14, 3, 0))
    assert [bed.results(name=name) for name in "sen"] == [[], [], []]
    bed.put("a", (9.5, 5, 0), (15, 4, 0))
    assert bed.results() == [(0, 10000, 3, 3, 8)]
    assert bed.results(name="e") == bed.results(name="n") == [(0, 9000, 2, 2, 3)]


def test_windows_may_fire_when_they_open(bed: Bed) -> None:
    """Alone, or also when they close: then they run again."""
    query = "SELECT _twstart ts, _twend e, _twrownum n"
    for name, events in (("s", "WINDOW_OPEN"), ("b", "WINDOW_OPEN|WINDOW_CLOSE")):
        bed.stream("SESSION(ts, 2s) FROM a", query, options=f"EVENT_TYPE({events})", name=name)
    bed.put("a", (0, 1, 0))
    assert [row[0] for row in bed.results()] == [0]
    bed.put("a", (1, 2, 0), (10, 3, 0))
    assert [row[0] for row in bed.results()] == [0, 10000]
    assert bed.results()[0][2] == 1
    assert bed.results(name="b")[0] == (0, 1000, 2)


# --- who is told ----------------------------------------------------------------------------------------------------


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    """What streams in sandboxes tell."""
    return hearing(monkeypatch)


def _told(heard: Heard) -> list[Row]:
    return sorted(((event["eventType"].removeprefix("WINDOW_"), event["windowStart"] - T0, event.get("result"))
                   for event in heard.events), key=repr)


def test_results_may_be_told_and_not_kept(bed: Bed, heard: Heard) -> None:
    """Without INTO there is no table but that of the executions; WHERE says of which results is told."""
    bed.execute(f"CREATE STREAM s {TENS} FROM a STREAM_OPTIONS(CALC_NOTIFY_ONLY | {NO_GAPS}) NOTIFY('ws://a') "
                "ON (WINDOW_CLOSE) WHERE c > 1 AS SELECT _twrownum n, count(*) c FROM %%trows")
    bed.put("a", (0, 1, 0), (1, 2, 0), (10, 3, 0), (20, 4, 0))
    assert _told(heard) == [("CLOSE", 0, {"n": 2, "c": 2})]
    assert bed.executions() == [(0, 10000, 2), (10000, 20000, 1)]
    assert {row[0] for row in bed.rows("SHOW TABLES")} == {"a", "b", "c", "o", "s_executions"}


def test_windows_may_be_told_alone(bed: Bed, heard: Heard) -> None:
    """Without a query, of those that open and close."""
    bed.execute("CREATE STREAM s SESSION(ts, 2s) FROM a NOTIFY('ws://a') ON (WINDOW_OPEN | WINDOW_CLOSE)")
    bed.put("a", (0, 1, 0), (10, 3, 0))
    assert _told(heard) == [("CLOSE", 0, None), ("OPEN", 0, None), ("OPEN", 10000, None)]


# --- where results go -----------------------------------------------------------------------------------------------


def test_groups_have_tables_with_tags(bed: Bed) -> None:
    """What PARTITION BY has, by its names, unless the stream says otherwise."""
    trigger, query = f"{TENS} FROM m PARTITION BY tbname, site", "SELECT _twstart ts, count(*) c FROM %%trows"
    bed.stream(trigger, query, options=NO_GAPS)
    bed.stream(trigger, query, options=NO_GAPS,
               into="OUTPUT_SUBTABLE(concat('of_', %%tbname)) (t, n) TAGS (name VARCHAR(8) AS upper(%%1), twice INT AS "
                    "%%2 * 2)", name="n")
    for table in "abc":
        bed.put(table, (0, 1, 0), (10, 1, 0))
    assert bed.results("ts, c, tag_tbname, site") == [(0, 1, "a", 1), (0, 1, "b", 1), (0, 1, "c", 2)]
    assert bed.results("t, n, name, twice", "n") == [(0, 1, "A", 2), (0, 1, "B", 2), (0, 1, "C", 4)]
    names = [row[0] for row in bed.rows("SELECT DISTINCT tbname FROM rn ORDER BY tbname")]
    assert names == ["of_a", "of_b", "of_c"]

def test_groups_may_share_a_child_table(bed: Bed) -> None:
    """OUTPUT_SUBTABLE's name is what the table is called; a second key tells rows of groups apart, and none goes that
    another group gave."""
    bed.stream(f"{TENS} FROM m PARTITION BY tbname, site", "SELECT _twstart ts, %%tbname k, count(*) c FROM %%trows",
               options=NO_GAPS,
               into="OUTPUT_SUBTABLE(concat('site_', CAST(%%2 AS VARCHAR(9)))) (t, k COMPOSITE KEY, n)")
    for table in "abc":
        bed.put(table, (0, 1, 0), (10, 1, 0), (20, 1, 0))
    bed.execute(f"DELETE FROM a WHERE ts = {T0}")
    bed.put("b", (0.5, 2, 0))
    assert bed.rows("SELECT tbname, t, k, n FROM rs ORDER BY tbname, t, k") == [
        ("site_1", 0, "a", 1), ("site_1", 0, "b", 2), ("site_1", 10000, "a", 1), ("site_1", 10000, "b", 1),
        ("site_2", 0, "c", 1), ("site_2", 10000, "c", 1)]


def test_results_of_one_time_need_a_key(bed: Bed) -> None:
    """The second column may be it; else the last row stays. Rows whose key is gone go, too."""
    query = "SELECT _twstart ts, x k, count(*) c FROM %%trows GROUP BY x"
    bed.stream(f"{TENS} FROM a", query, options=NO_GAPS, into="(ts, k COMPOSITE KEY, c)")
    bed.put("a", (0, 1, 1), (1, 1, 2), (2, 1, 2), (10, 1, 1))
    assert bed.results() == [(0, 1, 1), (0, 2, 2)]
    bed.put("a", (0, 1, 3))
    assert bed.results() == [(0, 2, 2), (0, 3, 1)]


def test_results_that_move_leave_nothing_behind(bed: Bed) -> None:
    """Rows of the source that are deleted, and windows that are none any more, disappear from the results."""
    bed.stream("SESSION(ts, 5s) FROM m PARTITION BY tbname", "SELECT _c0, v FROM %%trows")
    bed.put("a", (0, 1, 0), (3, 2, 0), (20, 3, 0), (24, 4, 0), (60, 0, 0))
    assert bed.results() == [(0, 1, "a"), (20000, 3, "a"), (24000, 4, "a"), (3000, 2, "a")]
    bed.execute(f"DELETE FROM a WHERE ts = {T0 + 3000}")
    assert bed.results() == [(0, 1, "a"), (20000, 3, "a"), (24000, 4, "a")]
    bed.put("a", *((time, 5, 0) for time in (4, 8, 12, 16)))
    assert [row[0] for row in bed.results()] == [0, 12000, 16000, 20000, 24000, 4000, 8000]
    bed.execute(f"DELETE FROM a WHERE ts < {T0 + 21_000}")
    assert bed.results() == [(24000, 4, "a")]


# --- what queries see -----------------------------------------------------------------------------------------------


def test_each_window_knows_itself(bed: Bed) -> None:
    """All that stands for what a trigger of windows gives."""
    bed.stream("SESSION(ts, 2s) FROM m PARTITION BY tbname, x",
               "SELECT _twstart ts, _twend e, _twduration d, _twrownum n, _tgrpid g, _tlocaltime l, %%1 one, %%2 two, "
               "%%tbname t FROM o LIMIT 1")
    bed.put("o", (0, 1))
    bed.put("a", (0, 1, 5), (1, 1, 5), (1, 1, None), (10, 1, 5))
    (first, second) = bed.results("ts, e, d, n, one, two, t")
    assert first == (0, 0, 0, 1, "a", 5, "a")
    assert second == (1000, 1000, 0, 1, "a", None, "a")
    assert bed.results("ts, g") == bed.executions("ts, group_id")
    assert {row[0] for row in bed.results("l")} == {T0 * 1_000_000}


@pytest.mark.parametrize("precision", ["ms", "us", "ns"])
@pytest.mark.parametrize("together", [False, True])
def test_times_are_exact(precision: str, together: bool) -> None:
    """In any precision, to its unit, also before 1970."""
    with Bed(now_ms=T0, config={"timezone": "UTC"}) as bed, patch(
            "penstock.mnode.streams.window_queries._ONE_BY_ONE", 0 if together else 9):
        assert isinstance(bed, Bed)
        bed.all(f"CREATE DATABASE d PRECISION '{precision}' KEEP 36500", "USE d",
                "CREATE TABLE a (ts TIMESTAMP, v INT)")
        bed.stream("COUNT_WINDOW(2) FROM a", "SELECT _twstart ts, cast(_twend AS BIGINT) e, _twduration d, count(*) n "
                   "FROM %%trows")
        second = {"ms": 10**3, "us": 10**6, "ns": 10**9}[precision]
        times = [-7 * second - 3, -second, 1_700_000_000 * second + 1, 1_700_000_000 * second + 8]
        bed.execute("INSERT INTO a VALUES " + " ".join(f"({time}, 1)" for time in times))
        assert bed.rows("SELECT cast(ts AS BIGINT), e, d, n FROM rs") == [
            (begin, end, end - begin, 2) for begin, end in (times[:2], times[2:])]
        assert isinstance(bed.rows("SELECT d FROM rs")[0][0], int)


def test_the_time_of_firing_stays(bed: Bed) -> None:
    """A window that runs again later was fired when it was first."""
    bed.stream(f"{TENS} FROM a", "SELECT _twstart ts, _tlocaltime l, count(*) c FROM %%trows", options=NO_GAPS)
    bed.put("a", (0, 1, 0), (10, 1, 0))
    bed.advance(60)
    bed.put("a", (1, 1, 0), (20, 1, 0))
    assert bed.results() == [(0, T0 * 1_000_000, 2), (10000, (T0 + 60_000) * 1_000_000, 1)]
    assert bed.executions("ts, triggered, executed") == [
        (0, T0 * 1_000_000, 60_000), (10000, (T0 + 60_000) * 1_000_000, 60_000)]


#: Queries of a window, and what they give.
SEEN: list[tuple[str, list[Row]]] = [
    ("SELECT _twstart ts, count(*) c, max(v) m FROM %%tbname WHERE ts <= _twend", [(0, 3, 3), (10000, 4, 4)]),
    ("SELECT _twstart ts, count(*) c, max(v) m FROM %%tbname WHERE _twend > ts", [(0, 2, 2), (10000, 3, 3)]),
    ("SELECT _twstart ts, count(*) c, sum(o.w) w FROM %%tbname JOIN o ON tbname.ts = o.ts WHERE o.ts < _twend",
     [(0, 1, 10), (10000, 2, 30)]),
    ("SELECT _twstart ts, count(*) c, sum(p.w) w FROM %%tbname AS r JOIN o AS p ON r.ts = p.ts WHERE p.ts < _twend",
     [(0, 1, 10), (10000, 2, 30)]),
    ("SELECT _twstart ts, count(*) c, sum(p.w) w FROM %%trows AS r LEFT JOIN o AS p ON r.ts = p.ts",
     [(0, 2, 10), (10000, 1, 20)]),
    ("SELECT _twstart ts, (SELECT sum(w) FROM o WHERE ts < _twend) c, count(*) m FROM %%trows",
     [(0, 10, 2), (10000, 30, 1)]),
    ("WITH r AS (SELECT ts, v FROM %%trows), p AS (SELECT max(v) v FROM r) SELECT _twstart ts, p.v, count(*) n "
     "FROM r, p GROUP BY p.v", [(0, 2, 2), (10000, 3, 1)]),
    ("SELECT _twstart ts, count(*) n, 1 k FROM o WHERE w IN (SELECT v * 10 FROM %%trows)", [(0, 2, 1), (10000, 0, 1)]),
    ("SELECT ts, v, row_number() OVER (ORDER BY ts DESC) k FROM %%trows", [(0, 1, 2), (1000, 2, 1), (10000, 3, 1)]),
    ("SELECT ts, v, x FROM %%trows ORDER BY v DESC LIMIT 1", [(1000, 2, 0), (10000, 3, 0)]),
    ("SELECT _twstart ts, 1 k, sum(v) s FROM %%trows UNION ALL SELECT _twstart + 1a, 2, count(*) FROM o",
     [(0, 1, 3), (1, 2, 2), (10000, 1, 3), (10001, 2, 2)]),
    ("SELECT _wstart ts, count(*) c, _twrownum n FROM %%trows INTERVAL(1s)",
     [(0, 1, 2), (1000, 1, 2), (10000, 1, 1)]),
    ("SELECT _twstart ts, count(*) c, max(tbname) m FROM m WHERE site = 1 AND ts < _twend",
     [(0, 2, "a"), (10000, 3, "a")]),
]


@pytest.mark.parametrize(("together", "seen"), in_turn([False, True], SEEN))
def test_queries_see_what_the_window_gives(bed: Bed, together: bool, seen: tuple[str, list[Row]]) -> None:
    """One by one, with constants, and together, beside the rows of their windows, they give the same."""
    query, expected = seen
    bed.put("o", (0, 10), (10, 20))
    bed.stream(f"{TENS} FROM m PARTITION BY tbname", query, options=NO_GAPS)
    with ways() as found, patch("penstock.mnode.streams.window_queries._ONE_BY_ONE", 0 if together else 9):
        bed.put("a", (0, 1, 0), (1, 2, 0), (10, 3, 0), (20, 4, 0))
    assert found == (["2 together"] if together else ["one"] * 2)
    assert [row[:-1] for row in bed.results() if row[-1] == "a"] == sorted(expected, key=repr)


def test_windows_bring_results_that_are_aggregates(bed: Bed) -> None:
    """Their tasks have the rows; but of those from before the stream, and of windows without any, the query is run."""
    bed.put("a", (1, 5, 0), (12, 7, 0))
    aggregates = "_twstart ts, _twend e, count(*) c, sum(v) s, first(v) f"
    bed.stream(f"{TENS} FROM a", f"SELECT {aggregates} FROM %%trows", name="r")
    bed.stream(f"{TENS} FROM a", f"SELECT {aggregates} FROM a WHERE ts >= _twstart AND _twend > ts", name="t")
    bed.stream(f"{TENS} FROM m PARTITION BY tbname", f"SELECT {aggregates}, %%1 t FROM %%tbname "
               "WHERE ts >= _twstart AND ts < _twend", name="b")
    bed.stream(f"{TENS} FROM a", "SELECT _twstart ts, _twend e, count(*) c, sum(v) s, now() f FROM %%trows",
               name="q")
    expected: list[Row] = [(10_000, 20_000, 2, 15, 7), (20_000, 30_000, 1, 9, 9), (30_000, 40_000, 0, None, None),
                           (40_000, 50_000, 1, 3, 3)]
    with ways() as found:
        bed.put("a", (13, 8, 0), (20, 9, 0), (40, 3, 0), (50, 1, 0))
    assert "2 handed over" in found
    assert [bed.results("ts, e, c, s, f", name) for name in "rtb"] == [expected] * 3
    assert bed.results("t", "b") == [("a",)] * 4
    with ways() as found:
        bed.put("a", (21, 2, 0), (41, 2, 0))
    assert "2 handed over" in found
    assert [bed.results("c, s", name)[-3:] for name in "rtb"] == [bed.results("c, s", "q")[-3:]] * 3
    bed.execute("DELETE FROM a WHERE ts >= " + str(T0 + 20_000) + " AND ts < " + str(T0 + 30_000))
    for name in "rtb":
        assert bed.results("ts, c, s", name) == [(10_000, 2, 15), (20_000, 0, None), (30_000, 0, None), (40_000, 2, 5)]
    assert bed.executions("ts, result_rows", "r") == [(10_000, 1), (20_000, 1), (30_000, 1), (40_000, 1)]


def test_groups_come_together_from_all_vgroups(bed: Bed) -> None:
    """A group of a tag, and one of all rows, over tables of both vnodes."""
    bed.stream(f"{TENS} FROM m PARTITION BY site", "SELECT _twstart ts, count(*) c, %%1 g FROM %%trows",
               options=NO_GAPS)
    bed.stream(f"{TENS} FROM m", "SELECT _twstart ts, count(*) c, count(DISTINCT tbname) t FROM %%trows",
               options=NO_GAPS, name="g")
    for table in "abc":
        bed.put(table, (0, 1, 0), (1, 1, 0), (10, 1, 0))
    bed.advance(10)
    assert len({row[4] for row in bed.rows("SHOW TABLES") if row[3] == "m"}) == 2
    assert bed.results("ts, c, g") == [(0, 2, 2), (0, 4, 1)]
    assert bed.results(name="g") == [(0, 6, 3)]


def test_groups_may_be_no_value(bed: Bed) -> None:
    """NULL is a group of its own."""
    bed.stream(f"{TENS} FROM m PARTITION BY x", "SELECT _twstart ts, count(*) c, %%1 g FROM %%trows", options=NO_GAPS)
    bed.put("a", (0, 1, None), (1, 1, 3), (2, 1, None), (30, 1, None))
    bed.advance(10)
    assert bed.results("ts, c, g") == [(0, 1, 3), (0, 2, None)]


# --- failures, and what lasts ---------------------------------------------------------------------------------------

_TOO_LONG = "SELECT _twstart ts, repeat('x', CASE WHEN max(v) = 3 THEN 2000 ELSE 2 END) t FROM %%trows"


@pytest.mark.parametrize("windows", [3, 6])
def test_a_window_that_fails_leaves_others_alone(bed: Bed, windows: int) -> None:
    """Its execution says why, until it runs again; one by one and together."""
    bed.stream(f"{TENS} FROM a", _TOO_LONG, options=NO_GAPS)
    bed.put("a", *((10 * n, 3 if n == 1 else 1, 0) for n in range(windows + 1)))
    assert [row[0] for row in bed.results()] == sorted((10000 * n for n in range(windows) if n != 1), key=repr)
    problems = dict(bed.executions("ts, problem"))
    assert problems.pop(10000).endswith("has 2000 bytes; VARCHAR(1024) takes 1024")
    assert {*problems.values()} == {None}
    assert dict(bed.executions("ts, result_rows"))[10000] == 0
    bed.put("a", (10, 2, 0), (20, 3, 0))
    assert [row[0] for row in bed.results()] == sorted((10000 * n for n in range(windows) if n != 2), key=repr)
    assert {ts for ts, problem in bed.executions("ts, problem") if problem is not None} == {20000}


def test_a_query_that_fails_for_one_window_fails_for_that_alone(bed: Bed) -> None:
    """Also where it was computed for many at once."""
    bed.stream(f"{TENS} FROM a", "SELECT _twstart ts, (SELECT v FROM %%trows) v", options=NO_GAPS)
    bed.put("a", *((10 * n, n, 0) for n in range(8)), (31, 0, 0))
    assert dict(bed.results()) == {10000 * n: n for n in (0, 1, 2, 4, 5, 6)}
    (problem,) = (problem for _, problem in bed.executions("ts, problem") if problem is not None)
    assert "more than one row" in problem.lower()


def test_a_stream_can_be_computed_again(bed: Bed) -> None:
    """RECALCULATE STREAM runs the windows of a time again, with the rows that other tables have by then."""
    bed.stream(f"{TENS} FROM a", "SELECT _twstart ts, count(*) c FROM o WHERE ts < _twend", options=NO_GAPS)
    bed.put("a", *((10 * n, 1, 0) for n in range(4)))
    assert bed.results() == [(0, 0), (10000, 0), (20000, 0)]
    bed.put("o", (0, 1))
    assert bed.results() == [(0, 0), (10000, 0), (20000, 0)]
    bed.execute(f"RECALCULATE STREAM s FROM {T0 + 10_000} TO {T0 + 15_000}")
    assert bed.results() == [(0, 0), (10000, 1), (20000, 0)]
    bed.execute("RECALCULATE STREAM s FROM 0")
    assert bed.results() == [(0, 1), (10000, 1), (20000, 1)]


def test_nobody_holds_results_against_windows(bed: Bed) -> None:
    """What a query has seen when a window fired, it may not see later: VERIFY refuses, and the audit looks away."""
    bed.stream(f"{TENS} FROM a", "SELECT _twstart ts, count(*) c FROM %%trows")
    bed.put("a", (0, 1, 0), (10, 1, 0))
    with pytest.raises(NotSupportedError, match="its queries saw what was there when windows fired"):
        bed.execute("VERIFY STREAM s")
    for _ in range(3):
        bed.engine.parts.audit.step()
    assert bed.rows("SHOW INCIDENTS") == []


def test_a_pause_loses_nothing(bed: Bed) -> None:
    """What comes meanwhile is computed afterwards."""
    bed.stream(f"{TENS} FROM a", "SELECT _twstart ts, count(*) c FROM %%trows", options=NO_GAPS)
    bed.put("a", (0, 1, 0), (10, 1, 0))
    bed.execute("PAUSE STREAM s")
    bed.put("a", (1, 1, 0), (20, 1, 0))
    assert bed.results() == [(0, 1)]
    bed.execute("RESUME STREAM s")
    assert bed.results() == [(0, 2), (10000, 1)]


def test_dropping_a_stream_takes_its_executions(bed: Bed) -> None:
    """The results stay, and a stream of that name may come again; before, neither table may be dropped."""
    bed.stream(f"{TENS} FROM a", options=NO_GAPS)
    bed.put("a", (0, 1, 0), (10, 1, 0))
    for table in ("s_executions", "rs"):
        with pytest.raises(PenstockError, match="stream s writes it"):
            bed.execute(f"DROP TABLE {table}")
    bed.execute("DROP STREAM s")
    with pytest.raises(NotFoundError):
        bed.rows("SELECT * FROM s_executions")
    assert bed.results() == [(0, 10000, 1, 1, 1)]
    bed.stream(f"{TENS} FROM a", options=f"FILL_HISTORY | {NO_GAPS}")
    bed.put("a", (20, 1, 0))
    assert [row[0] for row in bed.results()] == [0, 10000]


@pytest.mark.parametrize("how", ["kill", "checkpoint and kill", "reopen"])
def test_a_restart_loses_no_window(tmp_path: Path, how: str) -> None:
    """Windows that were open are, those that have run aren't run twice with other times; late rows still find them."""
    bed = Bed(now_ms=T0, config={"timezone": "UTC"}, directory=tmp_path)
    bed.set_up()
    bed.stream("SESSION(ts, 5s) FROM m PARTITION BY tbname", "SELECT _c0, v, _tlocaltime l FROM %%trows")
    bed.put("a", (0, 1, 0), (1, 2, 0), (20, 3, 0))
    bed.advance(60)
    if how == "reopen":
        bed.close()
        bed = Bed(now_ms=T0 + 90_000, config={"timezone": "UTC"}, directory=tmp_path)
        bed.session.database = "d"
    else:
        if how == "checkpoint and kill":
            bed.checkpoint()
        bed.kill()
    with bed:
        bed.put("a", (2, 4, 0), (21, 5, 0), (40, 6, 0))
        bed.execute(f"DELETE FROM a WHERE ts = {T0 + 1000}")
        assert bed.results("_c0, v") == [(0, 1), (2000, 4), (20000, 3), (21000, 5)]
        first = dict(bed.results("_c0, l"))
        assert first[0] == first[2000] == T0 * 1_000_000
        assert first[20000] == first[21000] > T0 * 1_000_000


def test_a_state_stays_open_over_a_restart(bed: Bed) -> None:
    """Though time has passed its last row: it is over when the table's next state begins."""
    bed.stream("STATE_WINDOW(x) FROM m PARTITION BY tbname", "SELECT _twstart ts, _twend e, count(*) c FROM %%trows")
    bed.put("b", (74, 0, 0))
    bed.put("a", (52, 0, 3), (58, 3, 0))
    bed.put("b", (90, 0, 0))
    assert bed.results("ts, e, c") == [(52000, 52000, 1)]
    bed.checkpoint()
    bed.kill()
    bed.put("a", (100, 9, 1))
    bed.put("b", (101, 9, 1))
    assert bed.results("ts, e, c") == [(52000, 52000, 1), (58000, 58000, 1), (74000, 90000, 2)]


def test_an_engine_finds_what_others_computed(tmp_path: Path) -> None:
    """A window that is none any more takes its results with it, also if it is newer than all that this engine has
    computed; one that is too old is left alone."""
    bed = Bed(now_ms=T0, config={"timezone": "UTC"}, directory=tmp_path)
    bed.set_up()
    bed.stream("SESSION(ts, 2s) FROM a", "SELECT _twstart ts, count(*) c FROM %%trows")
    bed.stream("SESSION(ts, 2s) FROM a", "SELECT _twstart ts, count(*) c FROM %%trows", options="EXPIRED_TIME(15s)",
               name="e")
    bed.put("a", *((10 * n, 1, 0) for n in range(5)))
    bed.close()
    with Bed(now_ms=T0, config={"timezone": "UTC"}, directory=tmp_path) as again:
        assert isinstance(again, Bed)
        again.session.database = "d"
        again.put("a", (1, 1, 0))
        again.execute(f"DELETE FROM a WHERE ts = {T0 + 20_000}")
        assert again.results() == [(0, 2), (10000, 1), (30000, 1)]
        assert again.results(name="e") == [(0, 1), (10000, 1), (30000, 1)]


# --- what is refused ------------------------------------------------------------------------------------------------


def test_what_only_the_query_reads_stays(bed: Bed) -> None:
    """Tables, columns, tags, views, functions and databases; what the stream doesn't read can go."""
    bed.all("CREATE DATABASE other VGROUPS 1", "CREATE TABLE other.p (ts TIMESTAMP, w INT, unused INT)",
            "CREATE VIEW seen AS SELECT ts, w FROM o", "ALTER TABLE o ADD COLUMN unused INT")
    bed.stream(f"{TENS} FROM a", "SELECT _twstart ts, (SELECT max(w) FROM seen) w, (SELECT count(w) FROM other.p) n, "
                                 "(SELECT max(x) FROM m WHERE site = 2) x")
    for statement in ("DROP TABLE o", "ALTER TABLE o DROP COLUMN w", "DROP TABLE other.p", "DROP DATABASE other",
                      "ALTER TABLE other.p DROP COLUMN w", "ALTER STABLE m DROP COLUMN x",
                      "ALTER STABLE m DROP TAG site", "DROP VIEW seen"):
        with pytest.raises(InUseError, match="stream s"):
            bed.execute(statement)
    bed.all("ALTER TABLE other.p DROP COLUMN unused", "DROP STREAM s", "DROP TABLE other.p", "DROP VIEW seen",
            "DROP TABLE o")


@pytest.mark.parametrize("windows", [1, 5])
def test_a_star_means_the_columns_of_the_creation(bed: Bed, windows: int) -> None:
    """A column that is added later moves no value into another column: the window has a problem instead."""
    bed.stream(f"{TENS} FROM a", "SELECT * FROM %%trows", options=NO_GAPS)
    bed.put("a", (0, 1, 2), (10, 3, 4))
    assert bed.results() == [(0, 1, 2)]
    bed.execute("ALTER TABLE m ADD COLUMN z INT")
    bed.execute("INSERT INTO a (ts, v) VALUES " + " ".join(f"({T0 + 10_000 * n}, 7)" for n in range(2, windows + 3)))
    assert bed.results() == [(0, 1, 2)]
    problems = {problem for _, problem in bed.executions("ts, problem")}
    assert problems == {None, "the query of stream s gives 4 columns now, its table has 3 "
                              "(DROP STREAM, and create it with names in place of *)"}


def test_a_query_has_the_bounds_of_queries() -> None:
    """Rows and time; the window whose query exceeds them fails, and others don't."""
    with Bed(now_ms=T0, config={"timezone": "UTC", "resultRowsMax": 100}) as bed:
        assert isinstance(bed, Bed)
        bed.set_up()
        rows = "SELECT unnest(range(v)) n FROM %%trows"
        bed.stream(f"{TENS} FROM a", f"SELECT CAST(_twstart + n AS TIMESTAMP) ts, 1 c FROM ({rows})", options=NO_GAPS)
        bed.put("a", *((10 * n, 1000 if n == 2 else 1, 0) for n in range(6)))
        assert [row[0] for row in bed.results()] == [0, 10000, 30000, 40000]
        (problem,) = (problem for _, problem in bed.executions("ts, problem") if problem is not None)
        assert "more than 100 rows" in problem


@pytest.mark.parametrize(("trigger", "query", "message"), [
    ("SESSION(ts, 1s) FROM m PARTITION BY tbname, x", "SELECT _twstart, %%5 FROM m",
     "%%5 is not there: PARTITION BY has 2 items"),
    ("SESSION(ts, 1s) FROM a", "SELECT _tprev_ts, 1 FROM m", "_tprev_ts is not what a trigger of windows gives"),
    ("SLIDING(1s) FROM a", "SELECT _twstart, 1 FROM m",
     "_twstart is not what a trigger of SLIDING without INTERVAL gives"),
    ("SESSION(ts, 1s) FROM a", "SELECT _twstart, _tnext_localtime FROM m", "_tnext_localtime is not what"),
    ("SESSION(ts, 1s) FROM m PARTITION BY x", "SELECT _twstart, count(*) FROM %%tbname",
     "%%tbname needs PARTITION BY tbname"),
    ("SESSION(ts, 1s) FROM m PARTITION BY x", "SELECT _twstart, %%tbname FROM m", "%%tbname needs PARTITION BY tbname"),
    ("SESSION(ts, 1s) FROM a", "SELECT _twstart FROM m", "a time and at least one more column"),
    ("SESSION(ts, 1s) FROM a", "SELECT 1, 2 FROM m", "the first column of the query is BIGINT"),
    ("SESSION(ts, 1s) FROM a", "SELECT _twstart, 2 n, 3 n FROM m", "two columns of the result have the same name"),
    ("SESSION(ts, 1s) FROM a", "SELECT _twstart, nonsense FROM %%trows", "column nonsense does not exist"),
    ("SESSION(ts, 1s) FROM a", "SELECT _twstart, 1 FROM nowhere", "table d.nowhere does not exist"),
    ("SESSION(ts, 1s) FROM nowhere", "SELECT _twstart, 1 FROM m", "table d.nowhere does not exist"),
    ("STATE_WINDOW(x) FROM m", "SELECT _twstart, 1 FROM m", "needs tbname in PARTITION BY"),
])
def test_what_cannot_be_is_refused(bed: Bed, trigger: str, query: str, message: str) -> None:
    """When the stream is created, and nothing is left of it."""
    with pytest.raises(PenstockError) as refused:
        bed.stream(trigger, query)
    assert message in str(refused.value)
    assert {row[0] for row in bed.rows("SHOW TABLES")} == {"a", "b", "c", "o"}
    assert bed.rows("SHOW STREAMS") == []


def test_columns_of_results_are_as_many_as_the_query_has(bed: Bed) -> None:
    """And tables of results fit what is grouped."""
    with pytest.raises(PenstockError, match="3 columns are named, but the query has 2"):
        bed.stream("SESSION(ts, 1s) FROM a", "SELECT _twstart, 1 FROM m", into="(a, b, c)")
    with pytest.raises(InvalidStreamError, match="o is no super table"):
        bed.execute("CREATE STREAM s SESSION(ts, 1s) FROM m PARTITION BY tbname INTO o AS SELECT _twstart, 1 FROM m")
