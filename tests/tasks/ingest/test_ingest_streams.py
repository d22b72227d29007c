"""Ingests over a broker in memory, in a whole engine without Spark: what is written, and what kills leave."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.streams.ingest_kit import FakeBroker, connections, gone_through, logged, rows, sandbox, state

from penstock.common.clock import ManualClock
from penstock.common.errors import (
    ConnectionFailedError,
    InUseError,
    InvalidStatementError,
    NotFoundError,
    SqlSyntaxError,
)
from penstock.common.fs import OsFs
from penstock.common.paths import DataPaths
from penstock.mnode.admin.sandbox import Sandbox
from penstock.mnode.coordinator.task_graph_builder import task_graph
from penstock.planner.streams.ingest_plan import plan_ingest
from penstock.sql.dialect.parser import parse_one
from penstock.sql.schema import Session
from penstock.sql.tree.statements import CreateIngest
from penstock.tasks.external.connectors.incoming_messages import MessagePosition
from penstock.tasks.ingest.ingest_task import IngestTask
from penstock.tasks.protocol.deployment import IngestDeployment, TaskSettings
from penstock.tasks.protocol.messages import ResultWrite, TaskId
from penstock.tasks.worker.local_environment import LocalEnvironment

NOW = 1_700_000_000_000
CREATE = "CREATE INGEST i FROM CONNECTION k (TOPIC 't') INTO p.meters TAGS (site = $.where.site) TBNAME ($.device)"


def message(device: int, at: int, value: int) -> bytes:
    return json.dumps({"device": f"d{device}", "ts": NOW + at, "v": value, "where": {"site": f"s{device}"}}).encode()


def test_messages_become_rows_of_child_tables() -> None:
    """Child tables are made with their tags, and SHOW INGESTS counts what came."""
    broker = FakeBroker()
    with sandbox(broker) as box:
        for number in range(5):
            broker.send(message(number % 2, number, number))
        box.execute(CREATE)
        assert rows(box, "SELECT tbname, site, v FROM meters ORDER BY v") == [
            ("d0", "s0", 0), ("d1", "s1", 1), ("d0", "s0", 2), ("d1", "s1", 3), ("d0", "s0", 4)]
        broker.send(message(7, 9, 9))
        box.run()
        assert rows(box, "SELECT count(*) FROM meters") == [(6,)]
        assert state(box, "state, rows, errors, lag, guarantee, connection, source, target_table") == (
            "RUNNING", 6, 0, 0, "exactly once: the offsets are in the log beside the rows", "k", "t", "meters")


@pytest.mark.parametrize("on_error", ["SKIP", "DLQ p.dead"])
def test_names_of_other_tables_stop_nobody(on_error: str) -> None:
    """A message for a table that is no child of the ingest's is left out alone."""
    broker = FakeBroker()
    with sandbox(broker) as box:
        box.execute("CREATE TABLE p.normal (ts TIMESTAMP, v INT)")
        box.execute("CREATE STABLE p.others (ts TIMESTAMP, v INT) TAGS (g INT)")
        box.execute("CREATE TABLE p.other USING p.others TAGS (1)")
        for number, name in enumerate(["d0", "normal", "d1", "other", "others", "meters", "d0"]):
            broker.send(json.dumps({"device": name, "ts": NOW + number, "v": number}).encode())
        box.execute(f"{CREATE} ON_ERROR {on_error}")
        assert rows(box, "SELECT tbname, v FROM meters ORDER BY v") == [("d0", 0), ("d1", 2), ("d0", 6)]
        assert state(box, "state, rows, errors") == ("RUNNING", 3, 4)


Step = tuple[str, Any]


@settings(max_examples=times(6, 150), deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 4), st.integers(1, 5),
    st.lists(st.one_of(
        st.tuples(st.just("send"), st.tuples(st.integers(0, 3), st.integers(0, 20))),
        st.tuples(st.just("bad"), st.integers(0, 3)),
        st.tuples(st.sampled_from(["run", "checkpoint", "kill", "step", "crash", "flush"]), st.none())), max_size=40))
def test_kills_at_any_point_neither_lose_nor_double_a_row(
    vgroups: int, partitions: int, piece: int, steps: list[Step]
) -> None:
    """Whatever is killed when: the table is what the messages say, and the logs have no row twice."""
    broker = FakeBroker(partitions=partitions, piece=piece)
    directory = TemporaryDirectory()
    box = sandbox(broker, vgroups, directory=Path(directory.name))
    box.execute(f"{CREATE} ON_ERROR SKIP")
    wanted: dict[tuple[str, int], int] = {}
    sent = 0
    try:
        for action, what in steps:
            match action:
                case "send":
                    device, at = what
                    # One device sends into one partition, as keys see to it: else nobody knows what comes last.
                    broker.send(message(device, at, sent), device % partitions)
                    wanted[f"d{device}", NOW + at] = sent
                    sent += 1
                case "bad":
                    broker.send(b'{"device": 3', what % partitions)
                case _:
                    box = gone_through(box, action, Path(directory.name), broker)
        box.kill()
        found = {(name, ts): v for name, ts, v in rows(box, "SELECT tbname, CAST(ts AS BIGINT), v FROM meters")}
        assert found == wanted
        # Of rows of one key in one write only the last gets into the log.
        in_log = logged(box)
        assert set(in_log.values()) <= {1}
        assert set(wanted.values()) <= set(in_log) <= set(range(sent))
    finally:
        box.close()
        directory.cleanup()


# --- what can't be used ------------------------------------------------------------------------------------------

GOOD, BAD = message(0, 1, 1), b'{"device": "d0", "ts": 1700000000002, "v": "many"}'


def test_fail_stops_at_the_message_and_says_where_it_is() -> None:
    """What is before the message is written, nothing behind it, and no restart changes that."""
    broker = FakeBroker(piece=10)
    with sandbox(broker) as box:
        for value in (GOOD, BAD, message(0, 3, 3)):
            broker.send(value)
        box.execute(CREATE)
        assert rows(box, "SELECT v FROM meters") == [(1,)]
        found, reason = state(box)
        assert found == "FAILED"
        assert reason.startswith("partition t/0, offset 1: the message, column v: many is not a value of type INT")
        box.checkpoint()
        box.kill()
        assert state(box)[0] == "FAILED"
        assert {"t/0": MessagePosition("", 1)} in broker.opened
        broker.log[0][1] = message(0, 2, 2)
        box.kill()
        assert rows(box, "SELECT v FROM meters ORDER BY v") == [(1,), (2,), (3,)]


def test_resume_tries_the_message_again() -> None:
    """RESUME INGEST doesn't leave the message out; once the column is longer it goes through."""
    broker = FakeBroker(piece=10)
    with sandbox(broker) as box:
        broker.send(b'{"device": "d0", "ts": 1700000000002, "v": 1, "note": "longer than sixteen"}')
        box.execute(CREATE)
        assert "takes 16" in state(box)[1]
        box.execute("PAUSE INGEST i")
        assert state(box)[0] == "PAUSED"
        box.execute("RESUME INGEST i")
        assert state(box)[0] == "FAILED"
        box.execute("ALTER STABLE meters MODIFY COLUMN note VARCHAR(32)")
        assert rows(box, "SELECT note FROM meters") == [("longer than sixteen",)]


def test_on_error_can_be_altered() -> None:
    """What stopped the ingest is left out, or goes to a DLQ table; nothing else is lost or doubled."""
    broker = FakeBroker(piece=10)
    with sandbox(broker) as box:
        for value in (GOOD, BAD, message(0, 3, 3)):
            broker.send(value)
        box.execute(CREATE)
        assert "ALTER INGEST" in state(box)[1]
        box.execute("ALTER INGEST i ON_ERROR DLQ bad")
        assert state(box)[0] == "RUNNING"
        assert rows(box, "SELECT v FROM meters ORDER BY v") == [(1,), (3,)]
        assert rows(box, "SELECT content FROM bad") == [(BAD.decode(),)]
        with pytest.raises(InUseError, match="ingest i writes it"):
            box.execute("DROP TABLE bad")
        box.checkpoint()
        box.execute("ALTER INGEST IF EXISTS i ON_ERROR SKIP")
        broker.send(b"{")
        broker.send(message(0, 5, 5))
        box.run()
        assert rows(box, "SELECT v FROM meters ORDER BY v") == [(1,), (3,), (5,)]
        assert state(box, "state, errors") == ("RUNNING", 2)
        box.execute("DROP TABLE bad")
        box.kill()
        assert rows(box, "SELECT v FROM meters ORDER BY v") == [(1,), (3,), (5,)]
        box.checkpoint()
        box.execute("ALTER INGEST i ON_ERROR FAIL")
        broker.send(b"{")
        box.run()
        assert state(box)[0] == "FAILED"
        box.execute("ALTER INGEST IF EXISTS nobody ON_ERROR SKIP")
        with pytest.raises(NotFoundError, match="ingest nobody does not exist"):
            box.execute("ALTER INGEST nobody ON_ERROR SKIP")
        with pytest.raises(SqlSyntaxError, match="FAIL, SKIP or DLQ is expected"):
            box.execute("ALTER INGEST i ON_ERROR MAYBE")


def test_skip_counts_and_shows_what_it_leaves_out() -> None:
    """The number of messages left out survives a restart, and the last of them is shown as it was."""
    broker = FakeBroker(piece=10)
    with sandbox(broker) as box:
        for value in (BAD, GOOD, b"\xff\xfe", message(0, 3, 3)):
            broker.send(value)
        box.execute(f"{CREATE} ON_ERROR SKIP")
        assert rows(box, "SELECT v FROM meters ORDER BY v") == [(1,), (3,)]
        errors, last = state(box, "errors, last_error")
        assert errors == 2
        assert last.startswith("partition t/0, offset 2: no JSON")
        assert last.endswith(r"\xff\xfe")
        box.checkpoint()
        box.kill()
        assert state(box, "errors, rows") == (2, 2)


def test_a_dlq_has_each_message_once() -> None:
    """Kills don't double the lines of a DLQ; they have the raw message, its place and the reason."""
    broker = FakeBroker(piece=10)
    with sandbox(broker) as box:
        for value in (BAD, GOOD, b"{", message(0, 3, 3), b"x" * 300):
            broker.send(value)
        box.execute(CREATE.replace("(TOPIC 't')", "(TOPIC 't', MAX_MESSAGE 200)") + " ON_ERROR DLQ bad")
        box.kill()
        box.kill()
        found = rows(box, "SELECT content, message, version, stream_name FROM bad ORDER BY version")
        assert [(content, version, name) for content, _, version, name in found] == [
            (BAD.decode(), 0, "i"), ("{", 2, "i"), ("x" * 300, 4, "i")]
        assert found[2][1] == "partition t/0, offset 4: the message has 300 bytes, MAX_MESSAGE is 200"
        assert rows(box, "SELECT v FROM meters ORDER BY v") == [(1,), (3,)]
        with pytest.raises(InUseError, match="ingest i writes it"):
            box.execute("DROP TABLE bad")


def test_fields_that_no_column_takes() -> None:
    """They are counted, or stop the ingest if UNKNOWN REFUSE says so."""
    broker = FakeBroker(piece=10)
    with sandbox(broker) as box:
        broker.send(b'{"device": "d0", "ts": 1700000000002, "v": 1, "new": {"field": 1}}')
        broker.send(message(0, 1, 2))
        box.execute(CREATE)
        assert state(box, "state, rows, unknown_fields") == ("RUNNING", 2, 1)
        box.execute("DROP INGEST i")
        box.execute(CREATE.replace("'t')", "'t', UNKNOWN REFUSE)"))
        assert state(box) == ("FAILED", "partition t/0, offset 0: the message has fields that no column takes; "
                              "ALTER INGEST ... ON_ERROR SKIP or DLQ leaves such messages out")


def test_an_ingest_goes_along_with_its_table() -> None:
    """New columns are filled at once; a mapped column that is dropped is a reason to fail, until it is back."""
    broker = FakeBroker(piece=10)
    with sandbox(broker) as box:
        broker.send(GOOD)
        box.execute(CREATE.replace(" TAGS", " (note = $.text) TAGS"))
        box.execute("ALTER STABLE meters ADD COLUMN w DOUBLE")
        broker.send(b'{"device": "d0", "ts": 1700000000002, "v": 2, "w": 2.5}')
        box.run()
        assert rows(box, "SELECT v, w FROM meters ORDER BY v") == [(1, None), (2, 2.5)]
        box.execute("ALTER STABLE meters DROP COLUMN note")
        found, reason = state(box)
        assert found == "FAILED"
        assert "column note does not exist" in reason
        box.execute("ALTER STABLE meters ADD COLUMN note VARCHAR(16)")
        broker.send(b'{"device": "d0", "ts": 1700000000003, "v": 3, "text": "yes"}')
        box.run()
        assert rows(box, "SELECT v, note FROM meters ORDER BY v") == [(1, None), (2, None), (3, "yes")]


def test_an_ingest_goes_on_over_more_vnodes() -> None:
    """After ALTER DATABASE ... VGROUPS it reads on from where it was; nothing is written twice."""
    broker = FakeBroker(partitions=3, piece=10)
    with sandbox(broker, vgroups=1) as box:
        for number in range(12):
            broker.send(message(number, number, number), number % 3)
        box.execute(CREATE)
        box.execute("ALTER DATABASE p VGROUPS 3")
        for number in range(12, 24):
            broker.send(message(number - 12, number, number), number % 3)
        box.kill()
        assert rows(box, "SELECT count(*), sum(v) FROM meters") == [(24, sum(range(24)))]
        assert set(logged(box).values()) == {1}
        assert state(box, "state, tasks") == ("RUNNING", 1)


# --- states ------------------------------------------------------------------------------------------------------


def test_trouble_is_told_and_goes_by_itself() -> None:
    """RETRYING has the reason, whether the consumer can't be opened or tells of problem later."""
    broker = FakeBroker(refusal=ConnectionFailedError("unreachable: 127.0.0.1:1"))
    with sandbox(broker) as box:
        broker.send(GOOD)
        box.execute(CREATE)
        assert state(box) == ("RETRYING", "unreachable: 127.0.0.1:1")
        broker.refusal = None
        box.advance(1)
        assert rows(box, "SELECT v FROM meters") == [(1,)]
        assert state(box)[0] == "RUNNING"
        broker.problem = ConnectionFailedError("unreachable: all brokers are down")
        broker.send(message(0, 2, 2))
        box.run()
        assert state(box) == ("RETRYING", "unreachable: all brokers are down")
        broker.problem = None
        box.run()
        assert rows(box, "SELECT v FROM meters") == [(1,), (2,)]


def test_a_connection_is_as_those_who_use_it_say() -> None:
    """One ingest that can't read makes it FAILED until it can or is dropped, however well another one fares."""
    broker = FakeBroker()
    with sandbox(broker) as box:
        assert connections(box) == [("UNTESTED", None)]
        box.execute(CREATE)
        assert connections(box) == [("OK", None)]
        broker.refusal = ConnectionFailedError("unreachable: 127.0.0.1:1", hint="plug it in")
        box.execute(CREATE.replace("INGEST i", "INGEST j"))
        assert connections(box) == [("FAILED", "unreachable: 127.0.0.1:1 (plug it in)")]
        box.advance(1)
        assert connections(box)[0][0] == "FAILED"
        broker.refusal = None
        box.advance(1)
        assert connections(box) == [("OK", None)]
        broker.problem = ConnectionFailedError("unreachable: all brokers are down")
        box.run()
        assert connections(box) == [("FAILED", "unreachable: all brokers are down")]
        box.execute("PAUSE INGEST i")
        box.execute("DROP INGEST j")
        assert connections(box)[0][0] == "FAILED"
        broker.problem = None
        box.execute("RESUME INGEST i")
        assert connections(box) == [("OK", None)]
        box.execute("ALTER CONNECTION k SET (security='sasl_plaintext', mechanism='PLAIN', username='u', "
                    "password='env:NOWHERE_TO_BE_FOUND')")
        ((found, reason),) = connections(box)
        assert found == "FAILED"
        assert "NOWHERE_TO_BE_FOUND is not set" in reason
        box.execute("ALTER CONNECTION k SET (security='plaintext', mechanism=NULL, username=NULL, password=NULL)")
        assert connections(box) == [("OK", None)]


def test_a_pause_outlasts_a_restart() -> None:
    """A paused ingest reads nothing after the engine's restart either, until RESUME INGEST."""
    broker = FakeBroker()
    with TemporaryDirectory() as name:
        with sandbox(broker, directory=Path(name)) as box:
            box.execute(CREATE)
            box.execute("PAUSE INGEST i")
            broker.send(GOOD)
        with Sandbox(directory=Path(name), consumers=broker.consumer) as box:
            box.execute("USE p")
            box.run()
            assert state(box)[0] == "PAUSED"
            assert rows(box, "SELECT v FROM meters") == []
            box.execute("RESUME INGEST i")
            assert rows(box, "SELECT v FROM meters") == [(1,)]


def test_latest_is_settled_before_anything_is_read() -> None:
    """START LATEST means the end as of the first start, also if that is killed before it wrote anything."""
    broker = FakeBroker()
    with sandbox(broker) as box:
        broker.send(GOOD)
        box.execute(CREATE.replace("'t')", "'t', START LATEST)"))
        broker.send(message(0, 2, 2))
        box.run()
        assert state(box) == ("STARTING", "waits for the checkpoint that notes where it begins")
        box.checkpoint()
        box.kill()
        broker.send(message(0, 3, 3))
        box.run()
        assert rows(box, "SELECT v FROM meters ORDER BY v") == [(2,), (3,)]


def test_an_ingest_runs_once_its_source_has_answered() -> None:
    """What is sent before a broker has taken the subscription, it keeps for nobody."""
    broker = FakeBroker(answers=False)
    with sandbox(broker) as box:
        box.execute(CREATE)
        box.run()
        assert state(box)[0] == "STARTING"
        assert state(box)[1].startswith("waits for ")
        broker.answers = True
        box.run()
        assert state(box)[0] == "RUNNING"


def test_what_cannot_be_replayed_is_acknowledged_when_it_is_written() -> None:
    """A broker that forgets what is acknowledged is told of each message once it is in the log."""
    broker = FakeBroker(replays=False, piece=2)
    with sandbox(broker) as box:
        for number in range(5):
            broker.send(message(0, number, number))
        box.execute(CREATE)
        assert broker.acknowledged == {0, 1, 2, 3, 4}
        box.kill()
        assert rows(box, "SELECT v FROM meters ORDER BY v") == [(number,) for number in range(5)]


def test_an_altered_connection_is_opened_again() -> None:
    """ALTER CONNECTION has the ingest read on by the new options, from where it was."""
    broker = FakeBroker()
    with sandbox(broker, vgroups=1) as box:
        broker.send(GOOD)
        box.execute(CREATE)
        box.execute("ALTER CONNECTION k SET (servers='127.0.0.1:2')")
        broker.send(message(0, 2, 2))
        box.run()
        assert broker.opened == [{}, {"t/0": MessagePosition("", 1)}]
        assert logged(box) == Counter([1, 2])
        with pytest.raises(InUseError, match="ingest i"):
            box.execute("DROP CONNECTION k")


def test_a_dropped_ingest_leaves_its_rows_and_a_new_one_starts_afresh() -> None:
    """Its state and its places in the vnodes go; while it is there, its tables can't be dropped."""
    broker = FakeBroker()
    with sandbox(broker) as box:
        broker.send(GOOD)
        box.execute(CREATE)
        box.execute("DROP INGEST i")
        assert rows(box, "SELECT v FROM meters") == [(1,)]
        assert not list(box.engine.paths.root.glob("streams/*"))
        box.execute(CREATE)
        assert logged(box) == Counter({1: 2})
        with pytest.raises(InUseError, match="ingest i writes it"):
            box.execute("DROP TABLE meters")
        with pytest.raises(InUseError, match="ingest i"):
            box.execute("DROP DATABASE p")
        box.execute("DROP INGEST IF EXISTS j")
        with pytest.raises(NotFoundError, match="ingest j does not exist"):
            box.execute("DROP INGEST j")


@pytest.mark.parametrize(("statement", "problem"), [
    ("FROM CONNECTION x (TOPIC 't') INTO meters", "connection x does not exist"),
    ("FROM CONNECTION k INTO meters", "TOPIC is missing"),
    ("FROM CONNECTION k (TOPIC 't', FORMAT csv, QOS 1) INTO meters", "QOS is not for kafka; SCHEMA is missing"),
    ("FROM CONNECTION k (TOPIC 't', FORMAT avro) INTO meters", "SCHEMA is missing"),
    ("FROM CONNECTION k (TOPIC 't', PATH 'x') INTO meters", "PATH is not for kafka"),
    ("FROM CONNECTION k (TOPIC 't') INTO metres", "did you mean meters"),
    ("FROM CONNECTION k (TOPIC 't') INTO meters (w = $.v)", "column w does not exist"),
    ("FROM CONNECTION k (TOPIC 't') INTO meters (v = $.v, v = $.w)", "column v is given twice"),
    ("FROM CONNECTION k (TOPIC 't') INTO meters (v = _time)", "for FORMAT line"),
    ("FROM CONNECTION k (TOPIC 't') INTO meters (ts = $.a) TS FROM $.b", "given twice"),
    ("FROM CONNECTION k (TOPIC 't') INTO d0", "d0 is a child table, not a super table"),
    ("FROM CONNECTION w (TOPIC 't') INTO meters", "from which nothing can be read"),
])
def test_what_cannot_be_is_refused(statement: str, problem: str) -> None:
    """Each wrong CREATE INGEST says what is wrong with it."""
    with sandbox(FakeBroker()) as box:
        box.execute("CREATE TABLE d0 USING meters TAGS ('s')")
        box.execute("CREATE CONNECTION w TYPE webhook WITH (url='http://127.0.0.1:1/')")
        with pytest.raises((InvalidStatementError, NotFoundError)) as caught:
            box.execute(f"CREATE INGEST i {statement}")
        assert problem in str(caught.value)


# --- backpressure ------------------------------------------------------------------------------------------------


class _SlowWriter:
    """A writer whose writes are acknowledged when the test says so."""

    def __init__(self) -> None:
        self.submitted = self.done = 0

    def submit(self, write: ResultWrite) -> None:
        self.submitted += 1

    def acknowledged(self) -> int:
        return self.done


@dataclass
class _SlowEnvironment(LocalEnvironment):
    writer: _SlowWriter = field(default_factory=_SlowWriter)

    def result_writer(self, task: TaskId) -> Any:
        return self.writer


def test_a_dnode_that_does_not_answer_stops_the_reading(tmp_path: Path) -> None:
    """Two writes are under way, the queue is full, the source shall send nothing: nothing grows. Then all goes on."""
    broker = FakeBroker(piece=10)
    for number in range(1_000):
        broker.send(message(0, number, number))
    with sandbox(broker, vgroups=1) as box:
        statement = parse_one(CREATE)
        assert isinstance(statement, CreateIngest)
        plan = plan_ingest(statement, "kafka", None, box.engine.catalog, Session("p", "UTC", 0))
        connection = box.engine.parts.connections.open("k")
    clock = ManualClock()
    environment = _SlowEnvironment(
        clock, OsFs(), DataPaths(tmp_path), lambda _: pa.table({"name": []}), lambda _: None, lambda _: None,
        broker.consumer)
    bound = 20_000
    task = IngestTask(IngestDeployment(7, "i", 1, plan, connection, task_graph(plan, (1,)), None,
                                       TaskSettings(queue_bytes=bound, state_map_bytes=1 << 24)), 0, environment)
    try:
        for _ in range(200):
            task.step()
        clock.advance(2)
        task.step()
        assert environment.writer.submitted == 2
        assert task.input.used_bytes <= bound
        assert broker.held == [True]
        assert task.status().state == "WRITING"
        while environment.writer.submitted < 100:
            environment.writer.done = environment.writer.submitted
            assert task.step()
        environment.writer.done = 100
        task.step()
        assert broker.held == [True, False]
        assert task.status().progress.rows_out == 1_000
    finally:
        task.close()
