"""FILL_HISTORY 1: what was there before the stream and what comes later give the batch answer, whatever happens."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.engines.sandboxes import T0, TestBed
from kits.streams.interval_streams import AGGREGATES, INTO, PARTITIONS, STEP, batch, stream
from kits.streams.stream_kit import StreamKit, assert_same, millis, play, unhurried

from penstock.tasks.protocol.messages import Pause, Resume
from penstock.tasks.recalculation.store_range_reader import PieceReader
from penstock.vnode.read.snapshot import TimeSpan

WRITES = st.lists(STEP.filter(lambda step: step[0] in ("insert", "partial", "delete")), max_size=8)


def sql_of(partition: str, options: str = "", where: str = "") -> str:
    clause, key, _ = PARTITIONS[partition]
    name = f", {key}" if key else ""
    return (f"create stream s {options} fill_history 1 ignore expired 0 ignore update 0 into {INTO[partition]} as "
            f"select _wstart, {AGGREGATES}{name} from meters {where} {clause} interval(10s)")


@pytest.mark.parametrize("partition", PARTITIONS)
@settings(max_examples=times(3, 80), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(before=WRITES, steps=st.lists(STEP, max_size=10), vnodes=st.integers(1, 4), piece=st.integers(1, 4),
       first=st.integers(0, 6))
def test_history_live_and_kills_equal_batch(
    tmp_path_factory: pytest.TempPathFactory, partition: str, before: list[Any], steps: list[Any], vnodes: int,
    piece: int, first: int,
) -> None:
    """AT_ONCE: rows from before and after the stream's creation, kills and checkpoints in between: nothing is lost,
    nothing counts twice."""
    kit = StreamKit(tmp_path_factory.mktemp("stream"), sql_of(partition, "trigger at_once"), vnodes=vnodes,
                    settings=unhurried(block_rows_max=piece), before=lambda kit: play(kit, before))
    try:
        kit.run_steps(first)
        if steps and steps[0][0] != "run":
            kit.checkpoint_amid()
            kit.kill()
        play(kit, steps)
        kit.run()
        assert_same(stream(kit, PARTITIONS[partition][1]), batch(kit, PARTITIONS[partition][2]))
    finally:
        kit.close()


@settings(max_examples=times(3, 80), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(before=WRITES, steps=st.lists(STEP, max_size=8), vnodes=st.integers(1, 3), piece=st.integers(1, 4))
def test_scalar_streams_fill_history(
    tmp_path_factory: pytest.TempPathFactory, before: list[Any], steps: list[Any], vnodes: int, piece: int
) -> None:
    """Without a window, the result is the source's rows, old and new."""
    kit = StreamKit(
        tmp_path_factory.mktemp("stream"),
        "create stream s trigger at_once fill_history 1 into o subtable(tbname) as "
        "select ts, voltage, note from meters partition by tbname",
        vnodes=vnodes, settings=unhurried(block_rows_max=piece), before=lambda kit: play(kit, before))
    try:
        play(kit, steps)
        kit.run()
        got = [(row["_child"].split("_")[0], millis(row["ts"]), row["voltage"], row["note"]) for row in kit.rows()]
        source = kit.source()
        want = sorted(zip(*(source.column(name).to_pylist() for name in ("tbname", "ts", "voltage", "note")),
                          strict=True), key=repr)
        assert sorted(got, key=repr) == want
    finally:
        kit.close()


def test_old_rows_are_never_late(kits: Any) -> None:
    """History is read in order of event time, so nothing of it expires, however it was written."""

    def before(kit: StreamKit) -> None:
        kit.insert([(0, 50_000, 1, 1.0, "x")])
        kit.insert([(0, 1_000, 2, 1.0, "x")])
        kit.insert([(0, 11_000, 3, 1.0, "x")])

    kit = kits("create stream s trigger window_close fill_history 1 ignore expired 1 into o as "
               "select _wstart, sum(voltage) s from meters interval(10s)", before=before)
    kit.run()
    assert [row["s"] for row in kit.rows()] == [2, 3]
    assert all(task.status().late.late_rows == 0 for task in kit.tasks)


def test_where_bounds_what_is_read(kits: Any) -> None:
    """A condition on the primary timestamp keeps other rows from being read at all."""

    def before(kit: StreamKit) -> None:
        for second in range(60):
            kit.insert([(0, second * 1000, 1, 1.0, "x")])

    where = "where ts >= 20000 and ts < 40000 and voltage > 0"
    kit = kits(sql_of("none", "trigger at_once", where), before=before, settings=unhurried(block_rows_max=3))
    kit.run()
    progress = next(task for task in kit.tasks if task.id.operator == "source").status().history
    assert (progress.rows, progress.first_ts, progress.done) == (20, 20_000, True)
    assert 39_000 <= progress.last_ts < 40_000  # as is known without a look at rows
    assert_same(stream(kit, None), batch(kit, "", "where ts >= 20000 and ts < 40000 and voltage > 0"))


def test_progress_tells_share_and_time_left(kits: Any) -> None:
    """While history is read, the source task says how far it is and how long it will take."""

    def before(kit: StreamKit) -> None:
        kit.insert([(0, second * 1000, 1, 1.0, "x") for second in range(100)])

    kit = kits(sql_of("none", "trigger at_once"), before=before, settings=unhurried(block_rows_max=10))
    source = next(task for task in kit.tasks if task.id.operator == "source")
    source.step()
    kit.clock.advance(2)
    seen = source.status().history
    assert not seen.done
    assert 0.05 < seen.share < 0.2
    assert 15_000 < seen.remaining_ms < 30_000
    assert seen.rows == 10
    assert 9_000 <= seen.reached_ts < 10_000
    kit.run()
    done = source.status().history
    assert (done.done, done.share, done.rows, done.remaining_ms) == (True, 1.0, 100, None)


def test_pause_stops_history_and_untreated_rows_may_be_skipped(kits: Any) -> None:
    """PAUSE holds history too; RESUME IGNORE UNTREATED skips what came meanwhile but not history, also after a kill."""

    def before(kit: StreamKit) -> None:
        kit.insert([(0, second * 1000, 1, 1.0, "x") for second in range(20)])

    kit = kits(sql_of("none", "trigger at_once"), before=before, settings=unhurried(block_rows_max=2))
    kit.run_steps(2)
    kit.post(Pause(), "source")
    kit.run()
    assert next(task for task in kit.tasks if task.id.operator == "source").status().state == "PAUSED"
    kit.insert([(1, 70_000, 5, 1.0, "x")])
    kit.post(Resume(skip_to_end=True), "source")
    kit.run_steps(1)
    kit.checkpoint_amid()
    source = next(task for task in kit.tasks if task.id.operator == "source")
    assert not source.status().history.done
    kept = [ack.version for ack in kit.acknowledged if ack.task.operator == "source"]
    assert kept == list(kit.start_versions), "the store must stay readable as of the start cut"
    kit.kill()
    kit.run()
    assert sorted(row["c"] for row in kit.rows()) == [10, 10]


def test_pieces_step_over_gaps_and_stay_small() -> None:
    """Each piece of a range has about as many rows as wanted, and a gap of years costs a few steps only."""
    times = [*range(1000), *range(10**12, 10**12 + 5000)]

    def spans(first: int, last: int, as_of: int) -> TimeSpan | None:
        pieces = [part for part in (times[:1000], times[1000:]) if part[0] <= last and part[-1] >= first]
        found = [(max(part[0], first), min(part[-1], last), part) for part in pieces]
        if not found:
            return None
        rows = sum(-(-len(part) * (high - low + 1) // (part[-1] - part[0] + 1)) for low, high, part in found)
        return TimeSpan(min(piece[0] for piece in found), max(piece[1] for piece in found), rows)

    reader, sizes, at = PieceReader(lambda: 100, spans), [], 0
    while (piece := reader.next(at, 2**62, 1)) is not None:
        first, last = piece
        sizes.append(sum(first <= ts <= last for ts in times))
        reader.observe(sizes[-1])
        at = last + 1
    assert sum(sizes) == len(times)
    assert max(sizes) <= 3200
    assert len(sizes) < 200


ROW_WINDOWS = {
    "session": ("", "session(ts, 2s)"),
    "session by table": ("partition by tbname", "session(ts, 2s)"),
    "state": ("partition by tbname", "state_window(v)"),
    "event": ("partition by tbname", "event_window start with v > 0 end with v < 0"),
    "count": ("partition by tbname", "count_window(3)"),
}


@pytest.mark.parametrize("kind", ROW_WINDOWS)
@settings(max_examples=times(2, 40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(before=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(-2, 2)), max_size=12),
       after=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(-2, 2)), max_size=8),
       piece=st.integers(1, 5))
def test_row_windows_fill_history(kind: str, before: list[Any], after: list[Any], piece: int) -> None:
    """Windows that rows open begin in history and go on in the live flow."""
    partition, window = ROW_WINDOWS[kind]
    ignore = "watermark 1000s ignore expired 1" if kind == "count" else "ignore expired 0"
    with TestBed(config={"blockRowsMax": piece}) as bed:
        bed.all("create database d vgroups 2", "use d", "create stable meters (ts timestamp, v int) tags (g int)",
                *(f"create table d{n} using meters tags ({n})" for n in range(3)))
        for table, second, value in before:
            bed.execute(f"insert into d{table} values ({T0 + second * 1000}, {value})")
        bed.execute(f"create stream s trigger at_once {ignore} ignore update 0 fill_history 1 into o as "
                    f"select _wstart ts, count(*) n, sum(v) total from meters {partition} {window}")
        for table, second, value in after:
            bed.execute(f"insert into d{table} values ({T0 + second * 1000}, {value})")
        got = sorted(bed.rows("select ts, n, total from o"))
        assert got == sorted(bed.rows(f"select _wstart, count(*), sum(v) from meters {partition} {window}"))


def test_history_of_a_table_that_one_of_two_vnodes_has() -> None:
    """A normal table, or a child table, is on one vnode only: the others are asked for nothing."""
    with TestBed() as bed:
        bed.all("CREATE DATABASE d VGROUPS 2 KEEP 36500", "USE d", "CREATE TABLE n (ts TIMESTAMP, v INT)",
                f"INSERT INTO n VALUES ({T0}, 1) ({T0 + 10_000}, 2) ({T0 + 20_000}, 3)",
                "CREATE STREAM s FILL_HISTORY 1 INTO o AS SELECT _wstart, sum(v) v FROM n INTERVAL(10s)")
        assert [row[0] for row in bed.rows("SELECT v FROM o ORDER BY 1")] == [1, 2]
