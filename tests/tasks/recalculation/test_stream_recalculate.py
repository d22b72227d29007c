"""RECALCULATE STREAM and DELETE_MARK: ranges computed again in place, and state that is let go."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import combined, in_turn, times
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from kits.engines.sandboxes import T0, TestBed

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
        bed.streams.step()
    bed.checkpoint()
    bed.kill()


WINDOWS = ["INTERVAL(10s)", "INTERVAL(20s) SLIDING(5s)", "INTERVAL(1m, 7s)"]


@settings(max_examples=times(2, 40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
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
@settings(max_examples=times(2, 40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
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


def fill_and_forget(bed: TestBed, windows: int = 12) -> None:
    """Every table gets a row in each window; the state of the old ones goes."""
    for n in range(windows):
        bed.execute("INSERT INTO " + " ".join(f"d{table} VALUES ({at(n * 10)}, 1)" for table in range(3)))
    bed.advance(2)
    bed.checkpoint()
    assert kept(bed) < 3 * windows


def kept(bed: TestBed) -> int:
    """Returns how much the agg task with the most keeps: what each vnode contributed to each group and window."""
    return max(status.size.windows_open or 0 for status in bed.streams.statuses() if status.task.operator == "agg")


def late_rows(bed: TestBed) -> int:
    return int(bed.rows("SELECT late_rows FROM information_schema.ins_streams")[0][0])


@pytest.mark.parametrize(("vgroups", "partition"), in_turn([1, 2, 3], ["", "PARTITION BY g"]))
def test_delete_mark_bounds_memory_and_not_truth(vgroups: int, partition: str) -> None:
    """State older than the mark is dropped with the next checkpoint; what changes in its windows is right all the same:
    new rows, rewritten ones, deletes of some rows and of all."""
    options = "TRIGGER AT_ONCE IGNORE EXPIRED 0 IGNORE UPDATE 0 DELETE_MARK 1m IDLE_TIMEOUT 1s"
    with make(options, partition=partition, vgroups=vgroups) as bed:
        fill_and_forget(bed, windows=40)
        for change in (
            f"INSERT INTO d0 VALUES ({at(1)}, 7)", f"INSERT INTO d1 VALUES ({at(1)}, 8)",
            f"INSERT INTO d0 VALUES ({at(10)}, 5) d2 VALUES ({at(22)}, 3) ({at(57)}, 3)",
            f"DELETE FROM d0 WHERE ts = {at(30)}", f"DELETE FROM meters WHERE ts >= {at(40)} AND ts < {at(50)}",
            f"INSERT INTO d1 VALUES ({at(-300)}, 2)",
        ):
            bed.execute(change)
            assert results(bed) == batch(bed, partition=partition), change
            bed.execute(change.replace(", 7)", ", 9)"))
            assert results(bed) == batch(bed, partition=partition), change
        assert late_rows(bed) == 0
        bed.checkpoint()
        assert kept(bed) < 3 * 40
        bed.kill()
        bed.execute(f"INSERT INTO d2 VALUES ({at(41)}, 7)")
        assert results(bed) == batch(bed, partition=partition)


@pytest.mark.parametrize("vgroups", [1, 2])
def test_late_rows_that_are_ignored_find_no_forgotten_window(vgroups: int) -> None:
    """With IGNORE EXPIRED 1 the results of forgotten windows stay; RECALCULATE STREAM computes them again."""
    with make("TRIGGER AT_ONCE IGNORE EXPIRED 1 IGNORE UPDATE 0 DELETE_MARK 1m", vgroups=vgroups) as bed:
        fill_and_forget(bed)
        before = results(bed)
        bed.execute(f"INSERT INTO d0 VALUES ({at(1)}, 7)")
        assert results(bed) == before
        assert late_rows(bed) == 1
        bed.execute(f"RECALCULATE STREAM s FROM {at(0)}")
        assert results(bed) == batch(bed)


@pytest.mark.parametrize("killed", [False, True])
def test_a_window_that_comes_back_is_never_shown_in_part(killed: bool) -> None:
    """Until all vnodes have sent what they have of a forgotten window, its result stays as it was; a kill in between
    loses nothing."""
    options = "TRIGGER WINDOW_CLOSE IGNORE EXPIRED 0 IGNORE UPDATE 0 DELETE_MARK 1m"
    with make(options, vgroups=2, blockRowsMax=2) as bed:
        fill_and_forget(bed)
        before = rows_without_running(bed)
        bed.engine.execute(f"INSERT INTO d0 VALUES ({at(1)}, 7)", bed.session)
        seen = []
        for step in range(60):
            bed.streams.step()
            seen.append(rows_without_running(bed))
            if killed and step % 7 == 3:
                bed.checkpoint()
                bed.kill()
        bed.run()
        after = rows_without_running(bed)
        assert after[0][1:] == (4, 10) != before[0][1:]
        assert after[1:] == before[1:]
        assert [each for each in seen if each not in (before, after)] == []


def rows_without_running(bed: TestBed) -> list[tuple[Any, ...]]:
    table = bed.engine.execute("SELECT ts, n, total FROM o", bed.session).table
    assert table is not None
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


NEW = f"({at(3)}, 7)"


@pytest.mark.parametrize(("change", "expired", "killed"), combined([NEW, f"({at(2)}, 7)"], [0, 1], [False, True]))
def test_an_idle_vnode_cannot_spoil_what_was_let_go(change: str, expired: int, killed: bool) -> None:
    """Time went on without an idle vnode: its late row for a forgotten window counts with those of the other vnode;
    with IGNORE EXPIRED 1 it is left out and counted, or leaves the result as it is. The same after a kill."""
    options = f"TRIGGER AT_ONCE IGNORE EXPIRED {expired} IGNORE UPDATE 0 DELETE_MARK 1m IDLE_TIMEOUT 1s"
    with make(options) as bed:
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
        assert results(bed) == (before if expired else batch(bed)) != (batch(bed) if expired else before)
        late = {homes[idle]: int(change == NEW and expired == 1), homes[busy]: 0}
        assert dict(bed.rows("SELECT node_id, late_rows FROM information_schema.ins_watermarks")) == late
        assert late_rows(bed) == sum(late.values())
        bed.execute(f"RECALCULATE STREAM s FROM {at(0)}")
        assert results(bed) == batch(bed)


@pytest.mark.parametrize("expired", [0, 1])
def test_time_by_the_clock_spoils_nothing_either(expired: int) -> None:
    """CLOSE_WHEN_IDLE lets time go on beyond every row: what it let go comes back for the vnode's own rows as well, or,
    with IGNORE EXPIRED 1, is late for them."""
    options = f"IGNORE EXPIRED {expired} DELETE_MARK 1m IDLE_TIMEOUT 1s CLOSE_WHEN_IDLE 1"
    with make(f"TRIGGER AT_ONCE {options}", vgroups=1) as bed:
        bed.execute(f"INSERT INTO d0 VALUES ({at(1)}, 1)")
        bed.advance(2)
        bed.execute(f"INSERT INTO d0 VALUES ({at(50)}, 1)")
        bed.advance(300)
        bed.checkpoint()
        before = results(bed)
        bed.execute(f"INSERT INTO d0 VALUES ({at(2)}, 7)")
        assert results(bed) == (before if expired else batch(bed))


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
        for _ in range(steps):
            bed.streams.step()
        bed.checkpoint()
        if killed:
            bed.kill()
        bed.run()
        assert results(bed) == batch(bed)
        bed.checkpoint()
        kept = sum(status.size.windows_open or 0 for status in bed.streams.statuses() if status.task.operator == "agg")
        assert kept < 12 * 2
