"""RECALCULATE STREAM and DELETE_MARK: ranges computed again in place, and state that is let go."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sandboxes import T0, TestBed

from penstock.common.errors import InvalidStatementError, NotFoundError

BASE = T0 // 60_000 * 60_000 - T0 + 60_000


def at(second: float) -> int:
    """An instant on a grid of minutes, in ms since the epoch."""
    return T0 + BASE + round(second * 1000)


def make(options: str, window: str = "INTERVAL(10s)", partition: str = "", vgroups: int = 2, **config: Any) -> TestBed:
    bed = TestBed(config=config)
    bed.all(f"CREATE DATABASE d VGROUPS {vgroups}", "USE d", "CREATE STABLE meters (ts timestamp, v int) TAGS (g int)",
            *(f"CREATE TABLE d{n} USING meters TAGS ({n})" for n in range(3)),
            f"CREATE STREAM s {options} INTO o AS SELECT _wstart ts, count(*) n, sum(v) total FROM meters {partition} "
            f"{window}")
    return bed


def results(bed: TestBed) -> list[tuple[Any, ...]]:
    return sorted(bed.rows("SELECT ts, n, total FROM o"))


def batch(bed: TestBed, window: str = "INTERVAL(10s)", partition: str = "") -> list[tuple[Any, ...]]:
    return sorted(bed.rows(f"SELECT _wstart, count(*), sum(v) FROM meters {partition} {window}"))


def step_and_kill(bed: TestBed) -> None:
    """Lets the stream begin with what it was ordered to do, and ends it after the next checkpoint."""
    for _ in range(3):
        bed.streams.local_streams()[next(iter(bed.streams.local_streams()))].step()
    bed.checkpoint()
    bed.kill()


WINDOWS = ["INTERVAL(10s)", "INTERVAL(20s) SLIDING(5s)", "INTERVAL(1m, 7s)"]


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 120), st.integers(-9, 9)), min_size=1, max_size=20),
    skipped=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 120), st.integers(-9, 9)), max_size=6),
    deleted=st.tuples(st.integers(0, 2), st.integers(0, 120), st.integers(0, 40)),
    window=st.sampled_from(WINDOWS), partition=st.sampled_from(["", "PARTITION BY tbname", "PARTITION BY g"]),
    piece=st.integers(1, 5), kill=st.booleans(),
)
def test_a_recalculated_range_is_the_batch_answer(
    rows: list[Any], skipped: list[Any], deleted: Any, window: str, partition: str, piece: int, kill: bool
) -> None:
    """What a stream missed (rows and deletes that RESUME IGNORE UNTREATED skipped) is put right, also across a kill."""
    options = "TRIGGER AT_ONCE IGNORE EXPIRED 0 IGNORE UPDATE 0"
    with make(options, window, partition, blockRowsMax=piece) as bed:
        for table, second, value in rows:
            bed.execute(f"INSERT INTO d{table} VALUES ({at(second)}, {value})")
        bed.execute("PAUSE STREAM s")
        for table, second, value in skipped:
            bed.execute(f"INSERT INTO d{table} VALUES ({at(second)}, {value})")
        table, first, length = deleted
        bed.execute(f"DELETE FROM d{table} WHERE ts >= {at(first)} AND ts <= {at(first + length)}")
        bed.execute("RESUME STREAM IGNORE UNTREATED s")
        bed.engine.execute(f"RECALCULATE STREAM s FROM {at(-60)}", bed.session)
        if kill:
            step_and_kill(bed)
        bed.run()
        assert results(bed) == batch(bed, window, partition)


def test_only_the_range_is_touched() -> None:
    """Windows outside of the range stay as they were, and the live flow goes on."""
    with make("TRIGGER AT_ONCE IGNORE EXPIRED 0 IGNORE UPDATE 1", vgroups=1) as bed:
        for _ in range(2):  # counted twice: IGNORE UPDATE 1
            bed.execute(f"INSERT INTO d0 VALUES ({at(1)}, 1) ({at(11)}, 1) ({at(21)}, 1)")
        assert [row[1] for row in results(bed)] == [2, 2, 2]
        bed.execute(f"RECALCULATE STREAM s FROM {at(12)} TO {at(19)}")
        assert [row[1] for row in results(bed)] == [2, 1, 2]
        bed.execute(f"INSERT INTO d0 VALUES ({at(12)}, 1)")
        assert [row[1] for row in results(bed)] == [2, 2, 2]


def test_closed_windows_are_shown_again_and_open_ones_are_not() -> None:
    """Under WINDOW_CLOSE a recalculated window appears only if event time has closed it."""
    with make("TRIGGER WINDOW_CLOSE IGNORE EXPIRED 1", vgroups=1) as bed:
        bed.execute(f"INSERT INTO d0 VALUES ({at(1)}, 1) ({at(11)}, 1) ({at(21)}, 1)")
        bed.execute(f"INSERT INTO d0 VALUES ({at(2)}, 5)")  # late, dropped
        assert [row[1:] for row in results(bed)] == [(1, 1), (1, 1)]
        bed.execute(f"RECALCULATE STREAM s FROM {at(0)}")
        assert [row[1:] for row in results(bed)] == [(2, 6), (1, 1)]


ROW_WINDOWS = ["SESSION(ts, 5s)", "STATE_WINDOW(v)", "EVENT_WINDOW START WITH v > 0 END WITH v < 0", "COUNT_WINDOW(3)",
               "COUNT_WINDOW(4, 2)"]


@pytest.mark.parametrize("window", ROW_WINDOWS)
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(-2, 2)), min_size=1, max_size=16),
    late=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(-2, 2)), max_size=6),
    piece=st.integers(1, 5), kill=st.booleans(),
)
@example(rows=[(0, 18, 2), (0, 19, 0), (0, 21, -1), (0, 40, 2)], late=[(0, 25, 0)], piece=1, kill=True)
def test_windows_of_rows_are_cut_anew(window: str, rows: list[Any], late: list[Any], piece: int, kill: bool) -> None:
    """Rows that came too late count once their range is recalculated: the result is the batch answer."""
    with make("TRIGGER AT_ONCE WATERMARK 1s IGNORE EXPIRED 1 IGNORE UPDATE 0", window, "PARTITION BY tbname", vgroups=2,
              blockRowsMax=piece) as bed:
        for table, second, value in [*sorted(rows, key=lambda row: row[1]), *late]:
            bed.execute(f"INSERT INTO d{table} VALUES ({at(second)}, {value})")
        bed.engine.execute(f"RECALCULATE STREAM s FROM {at(0)}", bed.session)
        if kill:
            step_and_kill(bed)
        bed.run()
        assert results(bed) == batch(bed, window, "PARTITION BY tbname")


def test_a_recalculated_window_does_not_wait_for_its_period() -> None:
    """CONTINUOUS_WINDOW_CLOSE writes late changes from time to time; what RECALCULATE STREAM orders comes at once."""
    with make("TRIGGER CONTINUOUS_WINDOW_CLOSE RECALCULATE 10m", partition="PARTITION BY tbname", vgroups=1) as bed:
        bed.execute(f"INSERT INTO d0 VALUES ({at(1)}, 1) ({at(11)}, 1) ({at(31)}, 1)")
        bed.execute("PAUSE STREAM s")
        bed.execute(f"INSERT INTO d0 VALUES ({at(2)}, 5)")
        bed.execute("RESUME STREAM IGNORE UNTREATED s")
        assert [row[1:] for row in results(bed)] == [(1, 1), (1, 1)]
        bed.execute(f"RECALCULATE STREAM s FROM {at(0)}")
        assert [row[1:] for row in results(bed)] == [(2, 6), (1, 1)]


def test_streams_without_windows_write_the_rows_again() -> None:
    """A stream without a window writes what it should have written."""
    with TestBed() as bed:
        bed.all("CREATE DATABASE d", "USE d", "CREATE TABLE t (ts timestamp, v int)",
                "CREATE STREAM s TRIGGER AT_ONCE INTO o AS SELECT ts, v FROM t WHERE v > 0", "PAUSE STREAM s",
                f"INSERT INTO t VALUES ({at(0)}, 1) ({at(1)}, 2) ({at(2)}, 3)", "RESUME STREAM IGNORE UNTREATED s")
        assert bed.rows("SELECT v FROM o") == []
        bed.execute(f"RECALCULATE STREAM s FROM {at(1)} TO {at(1)}")
        assert bed.rows("SELECT v FROM o") == [(2,)]
        bed.execute("RECALCULATE STREAM s FROM '2020-01-01'")
        assert bed.rows("SELECT v FROM o ORDER BY v") == [(1,), (2,), (3,)]


def test_what_recalculate_refuses() -> None:
    """Unknown streams, ranges that end before they begin, and instants that aren't."""
    with make("TRIGGER AT_ONCE") as bed:
        with pytest.raises(NotFoundError) as missing:
            bed.execute("RECALCULATE STREAM nobody FROM now")
        assert missing.value.code == 0x03F1
        bed.execute("RECALCULATE STREAM IF EXISTS nobody FROM now")
        for range_text in (f"{at(2)} TO {at(1)}", "v", "'yesterday'"):
            with pytest.raises(InvalidStatementError):
                bed.execute(f"RECALCULATE STREAM s FROM {range_text}")


@pytest.mark.parametrize("vgroups", [1, 2])
def test_delete_mark_lets_old_windows_go(vgroups: int) -> None:
    """State older than the mark is dropped with the next checkpoint; results stay, and rows for it are late."""
    with make("TRIGGER AT_ONCE IGNORE EXPIRED 0 IGNORE UPDATE 0 DELETE_MARK 1m", vgroups=vgroups) as bed:
        for n in range(12):
            bed.execute("INSERT INTO " + " ".join(f"d{table} VALUES ({at(n * 10)}, 1)" for table in range(3)))
        bed.checkpoint()
        kept = sum(status.windows_open or 0 for status in bed.streams.statuses() if status.task.level == "agg")
        assert kept < 12 * vgroups
        before = results(bed)
        assert len(before) == 12
        bed.execute(f"INSERT INTO d0 VALUES ({at(1)}, 7)")
        assert results(bed) == before
        assert sum(status.late_rows for status in bed.streams.statuses() if status.task.level == "source") == 1
        bed.execute(f"INSERT INTO d0 VALUES ({at(101)}, 7)")
        assert [row[1] for row in results(bed)] == [3] * 10 + [4, 3]
        bed.execute(f"RECALCULATE STREAM s FROM {at(0)}")
        assert results(bed) == batch(bed)


NEW = f"({at(3)}, 7)"


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("change", [NEW, f"({at(2)}, 7)"], ids=["new", "rewritten"])
def test_an_idle_vnode_cannot_spoil_what_was_let_go(change: str, killed: bool) -> None:
    """Time went on without an idle vnode: its late row for a forgotten window is left out and counted, or leaves the
    result as it is, also after a kill; RECALCULATE STREAM brings it in."""
    with make("TRIGGER AT_ONCE IGNORE EXPIRED 0 IGNORE UPDATE 0 DELETE_MARK 1m IDLE_TIMEOUT 1s") as bed:
        homes = dict(bed.rows("SELECT table_name, vgroup_id FROM information_schema.ins_tables WHERE db_name = 'd' "
                              "AND table_name LIKE 'd_'"))
        idle, busy = min((one, two) for one in homes for two in homes if homes[one] != homes[two])
        bed.execute(f"INSERT INTO {idle} VALUES ({at(2)}, 1) {busy} VALUES ({at(1)}, 1)")
        bed.advance(2)
        bed.all(*(f"INSERT INTO {busy} VALUES ({at(n * 10)}, 1)" for n in range(1, 30)))
        bed.checkpoint()
        before = results(bed)
        assert before == batch(bed)
        if killed:
            bed.kill()
        bed.execute(f"INSERT INTO {idle} VALUES {change}")
        assert results(bed) == before != batch(bed)
        late = {homes[idle]: int(change == NEW), homes[busy]: 0}
        assert dict(bed.rows("SELECT node_id, late_rows FROM information_schema.ins_watermarks")) == late
        assert bed.rows("SELECT late_rows FROM information_schema.ins_streams") == [(sum(late.values()),)]
        bed.execute(f"RECALCULATE STREAM s FROM {at(0)}")
        assert results(bed) == batch(bed)


def test_time_by_the_clock_spoils_nothing_either() -> None:
    """CLOSE_WHEN_IDLE lets time go on beyond every row: what it let go is late for the vnode's own rows as well."""
    with make("TRIGGER AT_ONCE IGNORE EXPIRED 0 DELETE_MARK 1m IDLE_TIMEOUT 1s CLOSE_WHEN_IDLE 1", vgroups=1) as bed:
        bed.execute(f"INSERT INTO d0 VALUES ({at(1)}, 1)")
        bed.advance(2)
        bed.execute(f"INSERT INTO d0 VALUES ({at(50)}, 1)")
        bed.advance(300)
        bed.checkpoint()
        before = results(bed)
        bed.execute(f"INSERT INTO d0 VALUES ({at(2)}, 7)")
        assert results(bed) == before


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize(("steps", "piece"), [(1, 5), (3, 2)])
def test_what_comes_back_is_kept_until_all_vnodes_have_it(steps: int, piece: int, killed: bool) -> None:
    """A checkpoint between what two vnodes compute again of a forgotten window lets nothing go; nor does a kill."""
    options = "TRIGGER AT_ONCE IGNORE EXPIRED 0 IGNORE UPDATE 0 DELETE_MARK 1m"
    with make(options, vgroups=2, blockRowsMax=piece) as bed:
        for n in range(12):
            bed.execute("INSERT INTO " + " ".join(f"d{table} VALUES ({at(n * 10)}, 1)" for table in range(3)))
        bed.checkpoint()
        bed.execute(f"INSERT INTO d0 VALUES ({at(1)}, 7)")
        bed.engine.execute(f"RECALCULATE STREAM s FROM {at(0)}", bed.session)
        (running,) = bed.streams.local_streams().values()
        for _ in range(steps):
            running.step()
        bed.checkpoint()
        if killed:
            bed.kill()
        bed.run()
        assert results(bed) == batch(bed)
        bed.checkpoint()
        kept = sum(status.windows_open or 0 for status in bed.streams.statuses() if status.task.level == "agg")
        assert kept < 12 * 2
