"""VERIFY STREAM where results leave Penstock: what was sent last is what the query says, or is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.engines.sandboxes import T0, TestBed
from kits.streams.emit_kit import MemorySender, Topic
from kits.streams.verified_streams import (
    BATCH,
    FAULTS,
    STEPS,
    STREAMS,
    Plant,
    insert,
    made,
    meet_fault,
    once,
    play,
    verified,
)

from penstock.common.connection import OpenedConnection
from penstock.common.errors import CheckpointDamagedError, ConnectionFailedError, RowRefusedError, UnavailableError
from penstock.tasks.external.connectors.kafka import Sender
from penstock.tasks.external.emit.async_sink_writer import AsyncSinkWriter, Delivery, ExternalTarget
from penstock.tasks.external.emit.external_writers import StagedWriter
from penstock.tasks.external.emit.kafka_target import KafkaTransactionTarget
from penstock.tasks.external.emit.result_events import ExternalRows
from penstock.tasks.external.emit.sent_record import SentRecord
from penstock.tasks.protocol.deployment import StreamDeployment
from penstock.tasks.protocol.messages import ResultWrite, TaskId
from penstock.tasks.sink import external_writer_builder

PLACES = {"files": "files (PATH 's{}')", "kafka": "kafka (TOPIC 't')", "postgres": "postgres (TABLE 't')",
          "webhook": "webhook"}
COUNTS = "SELECT _wstart, count(*) n FROM m PARTITION BY tbname INTERVAL(10s)"


class Target:
    """One that is away, or refuses a row, when it is told to; what it takes, `inner` gets."""

    def __init__(self) -> None:
        self.is_away = False
        self.refuses: Callable[[pa.RecordBatch], int | None] = lambda rows: None
        self.inner: ExternalTarget | None = None

    def deliver(self, delivery: Delivery) -> None:
        if self.is_away:
            raise ConnectionFailedError("unreachable: it is away")
        row = self.refuses(delivery.rows)
        if row is not None:
            raise RowRefusedError("not this one", row=row)
        if self.inner is not None:
            self.inner.deliver(delivery)

    def close(self) -> None:
        """Nothing is open."""


@contextmanager
def sending(kind: str, root: Path, *streams: tuple[str, str]) -> Iterator[tuple[TestBed, list[Target]]]:
    """Makes streams into targets of a kind: a folder's are real, the others' are in memory."""
    targets: list[Target] = []
    topic = Topic()
    opens = external_writer_builder.open_target

    def open_target(
        task: TaskId, deployment: StreamDeployment, connection: OpenedConnection, known: bool
    ) -> ExternalTarget:
        sink = deployment.plan.sink
        assert sink.external is not None
        target = Target()
        target.is_away = any(one.is_away for one in targets)
        if kind == "files":
            target.inner = opens(task, deployment, connection, known)
        elif kind == "kafka":
            sender = cast(Sender, MemorySender(topic, str(task)))
            target.inner = KafkaTransactionTarget(sender, sink.external, ExternalRows(sink, deployment.name))
        targets.append(target)
        return target

    options = {"files": f"url='file://{root}'", "kafka": "servers='k'", "webhook": "url='http://w'",
               "postgres": "host='p', database='d', username='u'"}[kind]
    with pytest.MonkeyPatch.context() as patch, made() as bed:
        patch.setattr(external_writer_builder, "open_target", open_target)
        bed.execute(f"CREATE CONNECTION {kind} TYPE {kind} WITH ({options})")
        for n, (stream_options, query) in enumerate(streams):
            bed.execute(f"CREATE STREAM s{n} {stream_options} INTO CONNECTION {PLACES[kind].format(n)} AS {query}")
        yield bed, targets


@pytest.mark.parametrize("kind", PLACES)
@settings(max_examples=times(2, 100), deadline=None,
          suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(streams=st.lists(st.sampled_from(STREAMS), min_size=2, max_size=2, unique=True), steps=STEPS)
def test_right_streams_are_equal(
    tmp_path_factory: pytest.TempPathFactory, kind: str, streams: list[tuple[str, str]], steps: list[Any]
) -> None:
    """Late and rewritten rows, deletes, new tags, kills: no result of any stream is told."""
    with sending(kind, tmp_path_factory.mktemp("sent"), *streams) as (bed, _):
        for what, with_ in steps:
            play(bed, what, with_)
        for n in range(len(streams)):
            assert verified(bed, f"s{n}") == []


def test_groups_are_told_by_their_values(tmp_path: Path) -> None:
    """Of all types, NULL among them; a stream without groups has one of none."""
    keys = "tbname, g, f, v, v > 1, timetruncate(ts, 1s), concat(tbname, ', ')"
    with sending("webhook", tmp_path, (BATCH, f"SELECT ts, v w FROM m PARTITION BY {keys}"),
                 (BATCH, "SELECT _wstart, count(*) n FROM m INTERVAL(10s)")) as (bed, _):
        insert(bed, 0, 1, 5, 0.25)
        insert(bed, 1, 2, None, None)
        assert verified(bed) == verified(bed, "s1") == []
        with pytest.MonkeyPatch.context() as patch:
            a_delivery_is_lost(patch)
            insert(bed, 2, 13, 1, 1e300)
        insert(bed, 2, 23)
        told = bed.rows("VERIFY STREAM s0")
        assert [line[:2] for line in told[:-1]] == [
            ("missing", f"[t2, 0, 1e+300, 1, false, {T0 + 13_000}, 't2, ']")]
        assert bed.rows("VERIFY STREAM s1")[-1][3].startswith("3 results are equal")


def test_results_of_one_time_with_keys_of_their_own_are_told_apart(tmp_path: Path) -> None:
    """A delete is of all of them; what is left is sent again."""
    with sending("files", tmp_path) as (bed, _):
        bed.all("CREATE STABLE k (ts TIMESTAMP, k INT PRIMARY KEY, v INT) TAGS (g INT)",
                "CREATE TABLE k0 USING k TAGS (0)",
                f"CREATE STREAM s0 {BATCH} INTO CONNECTION files (PATH 'p') AS SELECT ts, k, v FROM k WHERE v < 100 "
                "PARTITION BY tbname")
        bed.execute(f"INSERT INTO k0 VALUES {', '.join(f'({T0 + n // 3 * 1000}, {n % 3}, {n})' for n in range(6))}")
        assert bed.rows("VERIFY STREAM s0")[-1][3] == "6 results are equal, 0 aren't"
        bed.all(f"INSERT INTO k0 VALUES ({T0}, 0, 200)", f"INSERT INTO k0 VALUES ({T0}, 1, 7)",
                f"DELETE FROM k0 WHERE ts = {T0 + 1_000}")
        assert bed.rows("VERIFY STREAM s0")[-1][3] == "2 results are equal, 0 aren't"


def test_single_windows_are_drawn(tmp_path: Path) -> None:
    """Of those that have rows; each is compared by itself."""
    with sending("webhook", tmp_path, (BATCH, COUNTS)) as (bed, _):
        for second in range(0, 100, 10):
            insert(bed, 0, second)
        assert bed.rows("VERIFY STREAM s0 SAMPLE 4")[-1][3:] == (
            "4 results are equal, 0 aren't", None, bed.rows("VERIFY STREAM s0")[-1][5] + "; 4 windows were drawn")


# --- what is wrong ------------------------------------------------------------------------------------------------


def a_delivery_is_lost(patch: pytest.MonkeyPatch) -> None:
    """It never gets to the target, and is taken for done."""
    once(patch, AsyncSinkWriter, "_deliver", lambda *given: None)


def another_column_is_sent(patch: pytest.MonkeyPatch) -> None:
    of = ExternalRows.of

    def swapped(self: ExternalRows, write: ResultWrite) -> pa.RecordBatch:
        rows = of(self, write)
        return rows.set_column(rows.schema.get_field_index("n"), "n", pa.array([7] * len(rows), pa.int64()))

    patch.setattr(ExternalRows, "of", swapped)


@pytest.mark.parametrize("plant", [*FAULTS, a_delivery_is_lost, another_column_is_sent],
                         ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_told(plant: Plant, tmp_path: Path) -> None:
    """A fault of any task, and those between the sink and its target."""
    with sending("postgres", tmp_path, STREAMS[1]) as (bed, _):
        meet_fault(bed, plant)
        assert [line[:2] for line in verified(bed)] == [("differs", 0)]


def test_a_part_that_a_restart_forgets_is_told(tmp_path: Path) -> None:
    """What is valid and hasn't left yet counts as sent, until it is lost."""
    with sending("files", tmp_path, (BATCH, COUNTS)) as (bed, targets):
        insert(bed, 0, 1)
        bed.checkpoint()
        insert(bed, 0, 11)
        for target in targets:
            target.is_away = True
        bed.checkpoint()
        assert verified(bed) == []
        restore = StagedWriter.restore
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(StagedWriter, "restore", lambda self, saved: restore(self, {**saved, "parts": []}))
            bed.kill()
        for target in targets:
            target.is_away = False
        assert [line[:2] for line in verified(bed)] == [("missing", 10_000)]


@pytest.mark.parametrize("kind", PLACES)
def test_what_comes_again_after_a_kill_counts_as_it_was_sent_last(kind: str, tmp_path: Path) -> None:
    """Results behind the checkpoint are sent once more, perhaps by other ones."""
    with sending(kind, tmp_path, (BATCH, COUNTS)) as (bed, _):
        insert(bed, 0, 1)
        bed.checkpoint()
        insert(bed, 0, 2)
        bed.execute(f"DELETE FROM t0 WHERE ts = {T0 + 1_000}")
        bed.kill()
        insert(bed, 0, 11)
        bed.kill()
        assert verified(bed) == []
        bed.execute(f"DELETE FROM t0 WHERE ts < {T0 + 10_000}")
        assert verified(bed) == []
        assert bed.rows("VERIFY STREAM s0")[-1][3] == "1 results are equal, 0 aren't"


# --- what isn't judged --------------------------------------------------------------------------------------------


def small(patch: pytest.MonkeyPatch, bytes_max: int) -> None:
    """Has records be as small as this."""
    patch.setattr(external_writer_builder, "SentRecord",
                  lambda store, rows, _, tasks: SentRecord(store, rows, bytes_max, tasks))


def test_what_is_no_longer_in_the_record_is_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be missing there. What is in it is judged, however old it is."""
    small(monkeypatch, 3_000)
    with sending("webhook", tmp_path, (BATCH, COUNTS)) as (bed, _):
        for second in range(0, 1_000, 10):
            insert(bed, 0, second)
            if second % 50 == 0:
                bed.checkpoint()
        assert verified(bed) == []
        counts = bed.rows("VERIFY STREAM s0")[-1][3]
        equal, unjudged = int(counts.split()[0]), int(counts.rpartition(" ")[2])
        assert counts == (f"{equal} results are equal, 0 aren't; not in the record of what was sent, and not judged: "
                          f"{unjudged}")
        assert (equal + unjudged, equal > 5, unjudged > 5) == (100, True, True)
        another_column_is_sent(monkeypatch)
        insert(bed, 0, 1)
        assert verified(bed) == [("differs", 0, "n = 7", "n = 2", None)]


def test_what_went_to_the_dlq_is_not_judged(tmp_path: Path) -> None:
    """Until it is sent after all."""
    with sending("webhook", tmp_path, (f"{BATCH} ON_FAILURE DLQ dead", COUNTS)) as (bed, targets):
        insert(bed, 0, 1)
        insert(bed, 0, 11)
        for target in targets:
            target.refuses = lambda rows: 0
        insert(bed, 0, 2)
        assert bed.rows("SELECT count(*) FROM dead") == [(1,)]
        assert bed.rows("VERIFY STREAM s0")[-1][3] == (
            "1 results are equal, 0 aren't; not in the record of what was sent, and not judged: 1")
        for target in targets:
            target.refuses = lambda rows: None
        insert(bed, 0, 3)
        assert bed.rows("VERIFY STREAM s0")[-1][3] == "2 results are equal, 0 aren't"


def test_without_a_record_nothing_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once there is one it begins anew: only what it has is judged."""
    small(monkeypatch, 0)
    with sending("webhook", tmp_path, (BATCH, COUNTS)) as (bed, _):
        insert(bed, 0, 1)
        with pytest.raises(UnavailableError, match="s0 can't be verified: nothing is recorded of what it sent"):
            bed.rows("VERIFY STREAM s0")
        small(monkeypatch, 100_000)
        bed.kill()
        insert(bed, 0, 11)
        assert bed.rows("VERIFY STREAM s0")[-1][3] == (
            "1 results are equal, 0 aren't; not in the record of what was sent, and not judged: 1")


def test_records_begin_anew_when_the_database_is_split(tmp_path: Path) -> None:
    """A group may be another task's from then on, and nobody knows which of two has sent its last result."""
    with sending("webhook", tmp_path, (f"{BATCH} FILL_HISTORY 1", COUNTS)) as (bed, _):
        for second in range(0, 60, 5):
            insert(bed, second // 5 % 4, second)
        bed.execute("ALTER DATABASE d VGROUPS 3")
        assert bed.rows("VERIFY STREAM s0")[-1][3] == (
            "0 results are equal, 0 aren't; not in the record of what was sent, and not judged: 12")
        for second in range(3, 60, 5):
            insert(bed, second // 5 % 4, second)
        assert bed.rows("VERIFY STREAM s0")[-1][3] == "12 results are equal, 0 aren't"


def test_a_damaged_record_is_an_error(tmp_path: Path) -> None:
    """As any damaged state is: its checkpoint says so."""
    with sending("webhook", tmp_path, (BATCH, COUNTS)) as (bed, _):
        for second in range(0, 2_000, 10):
            insert(bed, 0, second)
        bed.checkpoint()
        for path in bed.engine.paths.streams.rglob("*-sink-*/data.mdb"):
            path.write_bytes(path.read_bytes().replace(b"t0t0t0t0", b"t0t1t0t0"))
        with pytest.raises(CheckpointDamagedError, match="is damaged"):
            bed.rows("VERIFY STREAM s0")


def test_the_record_is_no_state_that_a_stream_is_paused_for(tmp_path: Path) -> None:
    """It has a bound of its own."""
    with sending("webhook", tmp_path, (BATCH, "SELECT ts, v FROM m PARTITION BY tbname")) as (bed, _):
        states = "SELECT sum(state_bytes) FROM information_schema.ins_stream_tasks WHERE task_id LIKE '%sink%'"
        insert(bed, 0, 0)
        bed.checkpoint()
        bed.run()
        ((before,),) = bed.rows(states)
        rows = ", ".join(f"({T0 + n}, {n}, 0.5)" for n in range(20_000))
        bed.execute(f"INSERT INTO t0 (ts, v, f) VALUES {rows}")
        bed.checkpoint()
        bed.run()
        sizes = [path.stat().st_size for path in bed.engine.paths.streams.rglob("*-sink-*/data.mdb")]
        assert max(sizes) > 400_000
        ((after,),) = bed.rows(states)
        assert after - before < 100_000


def test_the_audit_leaves_these_streams_out(tmp_path: Path) -> None:
    """And says so."""
    with sending("webhook", tmp_path, (BATCH, COUNTS)) as (bed, _):
        insert(bed, 0, 1)
        bed.engine.parts.audit.step()
        assert bed.rows("SELECT audit_note FROM information_schema.ins_streams") == [
            ("what it has sent is compared by VERIFY STREAM only",)]
