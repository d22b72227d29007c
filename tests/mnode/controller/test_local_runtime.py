"""Worker groups in the calling thread: the controller is the real one, and nothing happens unless it is driven."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kits.engines.sandboxes import T0, TestBed

from penstock.common.errors import PenstockError, StorageError, UnavailableError
from penstock.tasks.operators.stream_task import StreamTask
from penstock.tasks.sink.sink_task import SinkTask
from penstock.tasks.source.source_task import SourceTask

STATE = "SELECT state, attempt, reason FROM information_schema.ins_streams"


@pytest.fixture
def bed() -> Iterator[TestBed]:
    with TestBed() as bed:
        bed.all("CREATE DATABASE d VGROUPS 2", "USE d", "CREATE TABLE t (ts TIMESTAMP, v BIGINT)",
                "CREATE STREAM s INTO o AS SELECT ts, v + 1 AS w FROM t")
        yield bed


def insert(bed: TestBed, second: int) -> None:
    bed.engine.execute(f"INSERT INTO t VALUES ({T0 + second * 1000}, {second})", bed.session)


def failing(monkeypatch: pytest.MonkeyPatch, kind: type[StreamTask], error: Exception) -> None:
    def fail(self: StreamTask) -> bool:
        raise error

    monkeypatch.setattr(kind, "step", fail)


@pytest.mark.parametrize("error", [StorageError("the disk is full"), ZeroDivisionError("a defect")])
def test_what_a_task_fails_with_is_raised_once_and_its_stream_rests_until_a_kill(
    bed: TestBed, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """However much time passes: a test that goes on after a failure doesn't meet it again."""
    insert(bed, 1)
    with monkeypatch.context() as patch:
        failing(patch, SinkTask, error)
        with pytest.raises(type(error), match=str(error)):
            bed.run()
        bed.advance(100_000)
        ((state, attempt, reason),) = bed.rows(STATE)
        assert (state, attempt) == ("RESTARTING", 1)
        assert str(error) in reason
        with pytest.raises(type(error), match=str(error)):
            bed.kill()
    bed.advance(100_000)
    assert bed.rows(STATE)[0][:2] == ("RESTARTING", 2)
    bed.kill()
    assert bed.rows(STATE) == [("RUNNING", 3, None)]
    assert bed.rows("SELECT ts, w FROM o") == [(1000, 2)]


def test_time_alone_neither_takes_checkpoints_nor_loses_workers(bed: TestBed) -> None:
    """Days of virtual time pass between two statements, and nobody sends heartbeats meanwhile."""
    bed.advance(10 * 86_400)
    assert bed.rows(STATE) == [("RUNNING", 1, None)]
    assert bed.rows("SELECT * FROM information_schema.ins_stream_checkpoints") == []
    assert bed.rows("SELECT count(*) FROM information_schema.ins_stream_workers WHERE state = 'RUNNING'") == [(2,)]


def test_a_checkpoint_that_comes_to_no_end_is_an_error(bed: TestBed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for what cannot happen any more; once the tasks work again the checkpoint is taken."""
    with monkeypatch.context() as patch:
        patch.setattr(SourceTask, "step", lambda self: False)
        with pytest.raises(UnavailableError, match="is not done within"):
            bed.checkpoint()
    bed.checkpoint()
    insert(bed, 1)
    bed.kill()
    assert bed.rows("SELECT ts, w FROM o") == [(1000, 2)]


def test_a_stream_works_only_when_it_is_driven(bed: TestBed) -> None:
    """A statement alone doesn't drive it; single steps and a checkpoint in their midst lose nothing."""
    for second in range(5):
        insert(bed, second)
        table = bed.engine.execute("SELECT count(*) FROM o", bed.session).table
        assert table is not None
        assert table.column(0).to_pylist() == [0]
    bed.streams.step()
    bed.checkpoint()
    bed.kill()
    assert bed.rows("SELECT count(*) FROM o") == [(5,)]


def test_a_closed_sandbox_has_no_streams_to_ask() -> None:
    """Their tasks are gone with it: another may open the directory."""
    with TestBed() as bed:
        bed.all("CREATE DATABASE d", "USE d", "CREATE TABLE t (ts TIMESTAMP, v BIGINT)",
                "CREATE STREAM s INTO o AS SELECT ts, v FROM t")
        assert [*bed.streams.local_streams()]
    assert [*bed.streams.local_streams()] == []
    with pytest.raises(PenstockError, match="closed"):
        bed.execute("SHOW STREAMS")


def test_as_many_child_tables_come_at_once_as_there_are_groups(bed: TestBed) -> None:
    """How many may come per second is a bound on real time, and this time stands still."""
    bed.engine.execute("CREATE STREAM g INTO per_value AS SELECT _wstart, count(*) FROM t PARTITION BY v INTERVAL(1s)",
                       bed.session)
    rows = ", ".join(f"({T0 + number}, {number})" for number in range(1_200))
    bed.engine.execute(f"INSERT INTO t VALUES {rows} ({T0 + 10_000}, 0)", bed.session)
    bed.run()
    assert bed.rows("SELECT count(*) FROM per_value")[0][0] >= 1_000
