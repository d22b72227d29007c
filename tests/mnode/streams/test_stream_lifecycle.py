"""CHECKPOINT, STOP, START and ALTER STREAM, and savepoints: whatever is done when, the answer is that of the batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.engines.sandboxes import T0, TestBed

from penstock.common.errors import (
    AlreadyExistsError,
    InvalidStatementError,
    InvalidStreamError,
    NotFoundError,
    UnavailableError,
)
from penstock.mnode.streams.stream_lifecycle import MAX_SAVEPOINTS_PER_STREAM
from penstock.tasks.state.state_store import StateStore

OPTIONS = "TRIGGER AT_ONCE IGNORE EXPIRED 0 IGNORE UPDATE 0"
WINDOWS = ["INTERVAL(10s)", "SESSION(ts, 5s)"]


def make(options: str = OPTIONS, window: str = "INTERVAL(10s)", root: Path | None = None, **config: Any) -> TestBed:
    bed = TestBed(directory=root, config={"maxFuture": "1d", **config})
    bed.all("CREATE DATABASE d VGROUPS 2", "USE d", "CREATE STABLE meters (ts timestamp, v int) TAGS (g int)",
            *(f"CREATE TABLE d{n} USING meters TAGS ({n})" for n in range(3)),
            f"CREATE STREAM s {options} INTO o AS SELECT _wstart ts, count(*) n, sum(v) total FROM meters {window}")
    return bed


def insert(bed: TestBed, *rows: tuple[int, int, int]) -> None:
    """Inserts (table, second, value)."""
    for table, second, value in rows:
        bed.execute(f"INSERT INTO d.d{table} VALUES ({T0 + second * 1000}, {value})")


def results(bed: TestBed) -> list[tuple[Any, ...]]:
    return sorted(bed.rows("SELECT ts, n, total FROM d.o"))


def batch(bed: TestBed, window: str = "INTERVAL(10s)") -> list[tuple[Any, ...]]:
    return sorted(bed.rows(f"SELECT _wstart, count(*), sum(v) FROM d.meters {window}"))


def checkpoints(bed: TestBed, state: str = "COMMITTED") -> list[int]:
    return [row[1] for row in bed.rows("SHOW CHECKPOINTS FOR s") if row[2] == state]


def state(bed: TestBed) -> str:
    return str(bed.rows("SELECT state FROM information_schema.ins_streams")[0][0])


def test_stop_survives_a_restart_of_the_engine_and_start_goes_on(tmp_path: Path) -> None:
    """A stopped stream reads nothing, stays stopped when the engine starts, and misses nothing once it is started."""
    with make(root=tmp_path) as bed:
        insert(bed, (0, 1, 1), (1, 2, 2))
        bed.execute("STOP STREAM s")
        assert state(bed) == "STOPPED"
        before = results(bed)
        insert(bed, (2, 3, 3), (0, 25, 4))
        assert results(bed) == before
    with TestBed(directory=tmp_path) as bed:
        assert state(bed) == "STOPPED"
        assert results(bed) == before
        for verb in ("PAUSE", "RESUME", "CHECKPOINT"):
            with pytest.raises(InvalidStatementError, match=r"is stopped and can't be .*START STREAM it"):
                bed.execute(f"{verb} STREAM s")
        with pytest.raises(InvalidStatementError, match="is stopped already"):
            bed.execute("STOP STREAM s")
        bed.execute("START STREAM s")
        assert state(bed) == "RUNNING"
        assert results(bed) == batch(bed)
        with pytest.raises(InvalidStatementError, match="isn't stopped"):
            bed.execute("START STREAM s")


def test_nothing_is_read_behind_the_checkpoint_that_a_stream_is_stopped_at() -> None:
    """What STOP STREAM leaves is exactly its last checkpoint: START has no row to read again."""
    with make() as bed:
        insert(bed, (0, 1, 1), (1, 2, 2), (2, 3, 3))
        bed.execute("STOP STREAM s")
        bed.execute("START STREAM s")
        rows = bed.rows("SELECT rows_to_replay FROM information_schema.ins_stream_checkpoints")
        assert rows == [(0,)]
        assert sum(row[0] for row in bed.rows("SELECT rows_in FROM information_schema.ins_streams")) == 0


def test_a_savepoint_is_gone_back_to_after_many_checkpoints() -> None:
    """Savepoints stay when newer checkpoints push others out; from one on everything is computed as it was."""
    with make() as bed:
        insert(bed, (0, 1, 1))
        bed.execute("STOP STREAM s WITH SAVEPOINT 'before the change'")
        bed.execute("START STREAM s")
        for second in range(2, 60, 5):
            insert(bed, (second % 3, second, second))
            bed.execute("CHECKPOINT STREAM s")
        (savepoint,) = bed.rows("SHOW SAVEPOINTS FOR s")
        assert savepoint[:3] == ("s", "before the change", 1)
        assert savepoint[4] == "READY"
        assert checkpoints(bed) == [1, 11, 12, 13]
        replay = dict(bed.rows("SELECT checkpoint_id, rows_to_replay FROM information_schema.ins_stream_checkpoints"))
        assert replay == {1: 12, 11: 2, 12: 1, 13: 0}
        bed.execute("STOP STREAM s")
        bed.execute("START STREAM s FROM SAVEPOINT 'before the change'")
        assert sum(row[0] for row in bed.rows("SELECT rows_in FROM information_schema.ins_streams")) == 12
        assert results(bed) == batch(bed)
        bed.execute("CHECKPOINT STREAM s")
        assert checkpoints(bed) == [1, 15]  # an id is never used twice
        bed.execute("DROP SAVEPOINT 'before the change' FOR s")
        assert bed.rows("SHOW SAVEPOINTS") == []


def test_savepoints_that_cannot_be_are_refused() -> None:
    """Names are unique within a stream and limited in number; going back doesn't lose a newer one silently."""
    with make() as bed:
        for name in ("a", "b"):
            bed.execute(f"STOP STREAM s WITH SAVEPOINT '{name}'")
            bed.execute("START STREAM s")
        with pytest.raises(AlreadyExistsError, match="has a savepoint 'a' already"):
            bed.execute("STOP STREAM s WITH SAVEPOINT 'a'")
        assert state(bed) == "RUNNING"
        bed.execute("STOP STREAM s")
        with pytest.raises(NotFoundError, match="no savepoint 'c'"):
            bed.execute("START STREAM s FROM SAVEPOINT 'c'")
        with pytest.raises(InvalidStatementError, match="'b' of stream s is newer"):
            bed.execute("START STREAM s FROM SAVEPOINT 'a'")
        assert state(bed) == "STOPPED"
        with pytest.raises(NotFoundError):
            bed.execute("DROP SAVEPOINT 'c' FOR s")
        bed.execute("DROP SAVEPOINT IF EXISTS 'c' FOR s")
        bed.execute("DROP SAVEPOINT 'b' FOR s")
        bed.execute("START STREAM s FROM SAVEPOINT 'a'")
        for number in range(1, MAX_SAVEPOINTS_PER_STREAM):
            bed.execute(f"STOP STREAM s WITH SAVEPOINT '{number}'")
            bed.execute("START STREAM s")
        with pytest.raises(InvalidStatementError, match="savepoints, the maximum"):
            bed.execute("STOP STREAM s WITH SAVEPOINT 'one more'")


def test_a_savepoint_whose_log_is_gone_is_lost(tmp_path: Path) -> None:
    """The log behind a savepoint is held only up to walPinMax; then SHOW SAVEPOINTS and START say that it is lost."""
    with make(root=tmp_path, walSegmentSize="64KiB") as bed:
        insert(bed, (0, 1, 1))
        bed.execute("STOP STREAM s WITH SAVEPOINT 'old'")
        rows = ", ".join(f"({T0 + n * 7}, 1)" for n in range(4000))
        for _ in range(4):
            bed.execute(f"INSERT INTO d.d0 VALUES {rows} d.d1 VALUES {rows} d.d2 VALUES {rows}")
        for vgroup_id in bed.engine.catalog.databases()[0].vgroup_ids:
            segments = sorted(path for path in bed.engine.paths.wal(vgroup_id).iterdir() if path.name != "END")
            for segment in segments[:-1]:
                segment.unlink()
        (savepoint,) = bed.rows("SHOW SAVEPOINTS")
        assert savepoint[4] == "LOST"
        with pytest.raises(UnavailableError, match="needs the log of vnode"):
            bed.execute("START STREAM s FROM SAVEPOINT 'old'")
        assert state(bed) == "STOPPED"


STEPS = st.lists(st.one_of(
    st.tuples(st.just("insert"), st.integers(0, 2), st.integers(0, 60)),
    st.tuples(st.sampled_from(["checkpoint", "kill", "stop", "start", "savepoint", "back", "drop"]),
              st.integers(0, 3), st.just(0)),
), max_size=16)


@settings(max_examples=times(2, 100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS, window=st.sampled_from(WINDOWS), kept=st.integers(1, 3))
def test_whatever_is_done_when_the_result_is_that_of_the_batch(steps: list[Any], window: str, kept: int) -> None:
    """Rows, checkpoints, kills, stops, starts and returns to savepoints in any order end in the batch answer."""
    with make(window=window, checkpointsKept=kept) as bed:
        stopped, names, number = False, [], 0
        for action, first, second in steps:
            match action:
                case "insert":
                    insert(bed, (first, second, second))
                case "checkpoint" if not stopped:
                    bed.execute("CHECKPOINT STREAM s")
                case "kill" if not stopped:
                    bed.kill()
                case "stop" | "savepoint" if not stopped:
                    number += 1
                    names += [str(number)] if action == "savepoint" else []
                    bed.execute("STOP STREAM s" + (f" WITH SAVEPOINT '{number}'" if action == "savepoint" else ""))
                    stopped = True
                case "start" if stopped:
                    bed.execute("START STREAM s")
                    stopped = False
                case "back" if stopped and names:
                    back = names[-1 - first % len(names)]
                    while names[-1] != back:
                        bed.execute(f"DROP SAVEPOINT '{names.pop()}' FOR s")
                    bed.execute(f"START STREAM s FROM SAVEPOINT '{back}'")
                    stopped = False
                case "drop" if names:
                    bed.execute(f"DROP SAVEPOINT '{names.pop(first % len(names))}' FOR s")
        if stopped:
            bed.execute("START STREAM s")
        assert results(bed) == batch(bed, window)


@pytest.mark.parametrize("damaged", ["the record", "the state"])
def test_a_damaged_newest_checkpoint_costs_nothing_but_time(tmp_path: Path, damaged: str) -> None:
    """With a damaged commit record, or a damaged state behind it, the one before is used, and an event says so."""
    with make(root=tmp_path) as bed:
        for second in range(5):
            insert(bed, (second % 3, second, second))
            bed.execute("CHECKPOINT STREAM s")
        bed.streams.kill()  # closing the engine takes no further checkpoint in a sandbox
        assert checkpoints(bed) == [3, 4, 5]
    (stream,) = (tmp_path / "streams").iterdir()
    if damaged == "the record":
        (stream / "checkpoints" / "5.json").write_bytes(b"damaged")
    else:
        store = StateStore(next(stream.glob("state/*-agg-0")), 1 << 28)
        handle = store._database.delta(store._deltas[-1].sequence, create=False)
        with store._database.writing() as transaction:
            key, value = next(iter(transaction.cursor(db=handle)))
            transaction.put(key, bytes(value)[:-1] + b"!", db=handle)
        store.close()
    with TestBed(directory=tmp_path) as bed:
        bed.run()
        assert (checkpoints(bed, "DAMAGED"), checkpoints(bed)) == ([5], [3, 4])
        assert results(bed) == batch(bed)
        events = [row[2] for row in bed.rows("SELECT * FROM information_schema.ins_stream_events")]
        assert [event.startswith("checkpoint 5 is damaged and skipped: ") for event in events].count(True) == 1
        bed.execute("CHECKPOINT STREAM s")
        insert(bed, (0, 30, 1))
        bed.kill()
        assert checkpoints(bed) == [4, 6]
        assert results(bed) == batch(bed)


def test_options_that_say_how_a_stream_works_are_changed_without_losing_state() -> None:
    """ALTER STREAM goes on from a checkpoint under the new options; SHOW CREATE STREAM has them."""
    with make() as bed:
        insert(bed, (0, 1, 1), (1, 2, 2))
        bed.execute("ALTER STREAM s SET CHECKPOINT_INTERVAL 30s SINK_RATE 1.5 GUARANTEE AT_LEAST_ONCE DELETE_MARK 2d "
                    "LATENCY 50a")
        insert(bed, (0, 3, 3))
        assert sum(row[0] for row in bed.rows("SELECT rows_in FROM information_schema.ins_streams")) == 1
        assert results(bed) == batch(bed)
        text = bed.rows("SHOW CREATE STREAM s")[0][1]
        assert text.startswith(f"CREATE STREAM s {OPTIONS} DELETE_MARK 2d CHECKPOINT_INTERVAL 30s SINK_RATE 1.5 "
                               "GUARANTEE AT_LEAST_ONCE LATENCY 50a INTO o AS SELECT")
        bed.execute("ALTER STREAM s SET SINK_RATE 0")
        assert "SINK_RATE 0 " in bed.rows("SHOW CREATE STREAM s")[0][1]
        bed.kill()
        insert(bed, (0, 4, 4))
        assert results(bed) == batch(bed)


def test_a_stopped_or_paused_stream_stays_so_when_it_is_altered() -> None:
    """ALTER changes options, not whether a stream runs."""
    with make() as bed:
        bed.execute("PAUSE STREAM s")
        bed.execute("ALTER STREAM s SET SINK_RATE 1")
        insert(bed, (0, 1, 1))
        assert (state(bed), results(bed)) == ("PAUSED", [])
        bed.execute("STOP STREAM s")
        bed.execute("ALTER STREAM s SET SINK_RATE 2")
        assert (state(bed), results(bed)) == ("STOPPED", [])
        bed.execute("START STREAM s")
        assert results(bed) == batch(bed)


@pytest.mark.parametrize("option", ["WATERMARK 5s", "IGNORE EXPIRED 1", "IGNORE UPDATE 1", "FILL_HISTORY 1",
                                    "TRIGGER WINDOW_CLOSE", "TRIGGER MAX_DELAY 5s"])
def test_options_that_say_what_results_are_cannot_be_changed(option: str) -> None:
    """The error names the option, and the stream runs on as it was."""
    with make() as bed:
        with pytest.raises(InvalidStreamError, match="can't be changed: its results so far were made by the old one"):
            bed.execute(f"ALTER STREAM s SET {option}")
        insert(bed, (0, 1, 1))
        assert results(bed) == batch(bed)


def test_the_time_of_a_trigger_can_be_changed() -> None:
    """MAX_DELAY stays MAX_DELAY, sooner; what the planner would refuse is refused before anything is stopped."""
    with make("TRIGGER MAX_DELAY 20s") as bed:
        insert(bed, (0, 1, 1))
        with pytest.raises(InvalidStreamError, match="too short"):
            bed.execute("ALTER STREAM s SET TRIGGER MAX_DELAY 1s")
        bed.execute("ALTER STREAM s SET TRIGGER MAX_DELAY 6s")
        bed.advance(7)
        assert results(bed) == batch(bed)
        assert "TRIGGER MAX_DELAY 6s INTO" in bed.rows("SHOW CREATE STREAM s")[0][1]
