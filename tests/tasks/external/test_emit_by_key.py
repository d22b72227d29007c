"""Streams of any query whose results leave Penstock: upserts and deletes by KEY, whatever fails and is killed."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from conftest import times
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kits.basics.external_servers import Kafka, Postgres
from kits.basics.waiting import wait_until
from kits.engines.threaded import Threaded
from kits.streams.emit_kit import Faults, Faulty, MemorySender, Topic
from kits.streams.ingest_kit import FakeBroker, gone_through, rows, sandbox
from kits.streams.ingest_kit import rows as asked

from penstock.common.connection import OpenedConnection
from penstock.common.errors import InvalidStreamError, NotFoundError, NotSupportedError
from penstock.mnode.admin.sandbox import Sandbox
from penstock.tasks.external.emit.async_sink_writer import ExternalTarget
from penstock.tasks.external.emit.kafka_target import KafkaTransactionTarget
from penstock.tasks.external.emit.result_events import ExternalRows
from penstock.tasks.protocol.deployment import StreamDeployment
from penstock.tasks.protocol.messages import TaskId
from penstock.tasks.sink import external_writer_builder

QUERY = "SELECT name, count(*) n, sum(v) total FROM t WHERE v >= 0 GROUP BY name"
TABLE = "CREATE TABLE p.t (id INT, name VARCHAR(20), v INT, PRIMARY KEY (id))"
LONG_ENOUGH_S = 120.0


def into_topic(
    topic: Topic, faults: Faults, task: TaskId, deployment: StreamDeployment, connection: OpenedConnection, known: bool
) -> ExternalTarget:
    external = deployment.plan.sink.external
    assert external is not None
    sender: Any = MemorySender(topic, f"{deployment.name}-{task.index}")
    return Faulty(KafkaTransactionTarget(sender, external, ExternalRows(deployment.plan.sink, deployment.name)), faults)


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    """A topic that all streams into Kafka write to."""
    made = Topic()
    monkeypatch.setattr(external_writer_builder, "open_target", partial(into_topic, made, Faults()))
    return made


def compacted(topic: Topic) -> dict[bytes, dict[str, Any]]:
    """Returns what a compacted topic has: the last value of each key that is no tombstone."""
    last = {key: value for key, value, _ in topic.committed if key is not None}
    return {key: json.loads(value) for key, value in last.items() if value is not None}


def settle(box: Sandbox) -> None:
    box.advance(LONG_ENOUGH_S)
    box.checkpoint()
    box.advance(LONG_ENOUGH_S)


def test_a_query_is_a_compacted_topic(topic: Topic) -> None:
    """The key of a message is the KEY as an object; a row that is gone is a tombstone; nothing else is sent."""
    with sandbox(FakeBroker()) as box:
        box.execute(TABLE)
        box.execute("INSERT INTO t VALUES (1, 'a', 1) (2, 'b', 2) (3, NULL, 3)")
        box.execute(f"CREATE STREAM s INTO CONNECTION k (TOPIC 'x') AS {QUERY}")
        box.run()
        assert not topic.committed  # no checkpoint knows of it
        settle(box)
        assert compacted(topic).keys() == {b'{"name":"a"}', b'{"name":"b"}', b'{"name":null}'}
        box.execute("DELETE FROM t WHERE id = 2")
        box.execute("INSERT INTO t VALUES (4, 'a', 5)")
        settle(box)
        assert len(topic.committed) == 5
        (gone, nothing, headers), (changed, value, _) = topic.committed[3:]
        assert (gone, nothing, dict(headers)["penstock-op"]) == (b'{"name":"b"}', None, "delete")
        assert changed == b'{"name":"a"}'
        assert json.loads(value or b"") == {"_op": "upsert", "name": "a", "n": 2, "total": 6} | {
            "_id": dict(topic.committed[4][2])["penstock-id"]}
        box.execute("INSERT INTO t VALUES (1, 'a', 4) (4, 'a', 2)")  # other rows of the same answer
        settle(box)
        assert len(topic.committed) == 5
        with pytest.raises(NotSupportedError, match="by a KEY can't be verified yet"):
            box.execute("VERIFY STREAM s")


Step = tuple[str, Any]


@settings(max_examples=times(6, 150), deadline=None)
@given(st.lists(st.one_of(
    st.tuples(st.just("put"), st.lists(st.tuples(st.integers(0, 5), st.sampled_from("abc"), st.integers(-1, 2)),
                                       min_size=1, max_size=3)),
    st.tuples(st.just("delete"), st.integers(0, 5)),
    st.tuples(st.sampled_from(["run", "step", "checkpoint", "kill", "crash", "wait"]), st.none()),
    st.tuples(st.just("faults"), st.lists(st.sampled_from(["before", "after"]), min_size=1, max_size=3))), max_size=25))
@example([("put", [(0, "a", 1)]), ("checkpoint", None), ("kill", None), ("delete", 0), ("crash", None)])
@example([("put", [(0, "a", 1)]), ("run", None), ("kill", None), ("delete", 0), ("checkpoint", None)])
def test_kills_and_faults_leave_the_answer(steps: list[Step]) -> None:
    """Whatever fails when: who compacts the topic has the answer, and no message comes twice."""
    topic, faults = Topic(), Faults()
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as directory:
        patch.setattr(external_writer_builder, "open_target", partial(into_topic, topic, faults))
        box = sandbox(FakeBroker(), directory=Path(directory))
        box.execute(TABLE)
        box.execute(f"CREATE STREAM s INTO CONNECTION k (TOPIC 'x') AS {QUERY}")
        try:
            for action, what in steps:
                match action:
                    case "put":
                        values = " ".join(f"({number}, '{name}', {v})" for number, name, v in what)
                        box.engine.execute(f"INSERT INTO t VALUES {values}", box.session)
                    case "delete":
                        box.engine.execute(f"DELETE FROM t WHERE id = {what}", box.session)
                    case "wait":
                        box.advance(1.0)
                    case "faults":
                        faults.coming.extend(what)
                    case _:
                        box = gone_through(box, action, Path(directory))
            faults.coming.clear()
            box.advance(LONG_ENOUGH_S)
            settle(box)
            wanted = {name: (n, total) for name, n, total in rows(box, QUERY)}
            assert {row["name"]: (row["n"], row["total"]) for row in compacted(topic).values()} == wanted
            last: dict[bytes | None, bytes | None] = {}
            for key, value, _ in topic.committed:
                assert value != last.get(key), "it says nothing new"
                last[key] = value
        finally:
            box.close()


def test_an_ingest_reads_what_a_stream_emits(topic: Topic) -> None:
    """A query of one engine is a table with a KEY in another one: FORMAT UPSERT reads keys, values and tombstones."""
    broker = FakeBroker()
    with sandbox(FakeBroker()) as box, sandbox(broker) as other:
        box.execute(TABLE)
        box.execute("CREATE STREAM s INTO CONNECTION k (TOPIC 'x') AS SELECT * FROM t WHERE v > 0")
        other.execute(TABLE)
        other.execute("CREATE INGEST i FROM CONNECTION k (TOPIC 't', FORMAT UPSERT) INTO t")
        sent = 0
        for statement in ("INSERT INTO t VALUES (1, 'a', 1) (2, 'b', 2) (3, 'c', 0)", "DELETE FROM t WHERE id = 1",
                          "INSERT INTO t VALUES (2, 'b', 0) (3, 'c', 7)", "INSERT INTO t VALUES (1, NULL, 1)"):
            box.execute(statement)
            settle(box)
            for key, value, _ in topic.committed[sent:]:
                broker.send(value or b"", key=key)
            sent = len(topic.committed)
            other.run()
            assert rows(other, "SELECT * FROM t ORDER BY id") == rows(box, "SELECT * FROM t WHERE v > 0 ORDER BY id")
        assert asked(other, "SELECT errors FROM information_schema.ins_ingests") == [(0,)]


def postgres_of(box: Sandbox, postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PG_PASSWORD", postgres.password)
    box.execute(f"CREATE CONNECTION pg TYPE postgres WITH (host='127.0.0.1', port='{postgres.port}', "
                f"sslmode='disable', database='{postgres.database}', username='{postgres.username}', "
                "password='env:PG_PASSWORD')")


def test_postgres_has_the_answer(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are upserted and deleted by KEY, NULL among them; after kills, too."""
    with sandbox(FakeBroker()) as box, postgres.connect() as server:
        postgres_of(box, postgres, monkeypatch)
        box.execute(TABLE)
        box.execute(f"CREATE STREAM s INTO CONNECTION pg (TABLE 'by_name') AS {QUERY}")
        for number, statement in enumerate((
                "INSERT INTO t VALUES (1, 'a', 1) (2, 'b', 2) (3, NULL, 3)", "DELETE FROM t WHERE name IS NULL",
                "INSERT INTO t VALUES (4, 'a', 5) (2, 'c', 1)", "DELETE FROM t WHERE id < 9",
                "INSERT INTO t VALUES (3, NULL, 3)")):
            box.execute(statement)
            if number % 2:
                box.kill()
            settle(box)
            found = server.execute("SELECT name, n, total FROM by_name ORDER BY name").fetchall()
            assert sorted(map(repr, found)) == sorted(map(repr, rows(box, QUERY)))
        assert rows(box, "SELECT state FROM information_schema.ins_streams") == [("RUNNING",)]


def test_a_table_of_another_database_comes_through(
    tmp_path: Path, kafka: Kafka, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debezium's messages in Kafka are a table, whose groups are one of PostgreSQL: with real tasks and sockets."""
    monkeypatch.setenv("PG_PASSWORD", postgres.password)
    kafka.create_topic("shop.sales", 2)
    producer = Producer({"bootstrap.servers": kafka.servers})

    def send(number: int, operation: str, **row: Any) -> None:
        envelope = {"op": operation, "before": {"id": number} if operation == "d" else None, "after": row or None}
        producer.produce("shop.sales", json.dumps(envelope).encode(), key=json.dumps({"id": number}))
        if operation == "d":
            producer.produce("shop.sales", None, key=json.dumps({"id": number}))

    engine = Threaded(tmp_path, ingestCheckpointInterval="200ms")
    try:
        engine.run(
            "CREATE DATABASE p VGROUPS 2", "USE p",
            f"CREATE CONNECTION bus TYPE kafka WITH (servers='{kafka.servers}')",
            f"CREATE CONNECTION pg TYPE postgres WITH (host='127.0.0.1', port='{postgres.port}', sslmode='disable', "
            f"database='{postgres.database}', username='{postgres.username}', password='env:PG_PASSWORD')",
            TABLE, "CREATE INGEST i FROM CONNECTION bus (TOPIC 'shop.sales', FORMAT DEBEZIUM) INTO t",
            f"CREATE STREAM s CHECKPOINT_INTERVAL 1s INTO CONNECTION pg (TABLE 'through') AS {QUERY}")
        for number in range(300):
            send(number, "c", id=number, name=f"n{number % 7}", v=number)
        assert producer.flush(30) == 0
        wait_until(lambda: engine.run("SELECT count(*) FROM t") == [(300,)], 60, str(engine.run("SHOW INGESTS")))
        for number in range(0, 300, 2):
            send(number, "d")
        for number in range(1, 300, 6):
            send(number, "u", id=number, name=None if number % 5 == 0 else "n1", v=-number)
        assert producer.flush(30) == 0
        with postgres.connect() as server:
            def there() -> bool:
                if engine.run("SELECT count(*), sum(v) FROM t WHERE v >= 0") != [(100, 15100)]:
                    return False
                if not server.execute("SELECT to_regclass('through') IS NOT NULL").fetchall()[0][0]:
                    return False  # it is made with the first results
                found = server.execute("SELECT name, n, total FROM through").fetchall()
                return sorted((str(name), n, int(total)) for name, n, total in found) == sorted(
                    (str(name), n, total) for name, n, total in engine.run(QUERY))

            wait_until(there, 60, str(engine.run("SHOW STREAM TASKS")))
        assert engine.run("SELECT state, errors FROM information_schema.ins_ingests") == [("RUNNING", 0)]
    finally:
        engine.engine.close()


def test_what_a_target_refuses_is_in_the_dlq(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row that breaks a rule of the table goes there alone, and again when it is another one."""
    with sandbox(FakeBroker()) as box, postgres.connect() as server:
        server.execute("CREATE TABLE few (name text PRIMARY KEY, n bigint CHECK (n < 2), total bigint)")
        postgres_of(box, postgres, monkeypatch)
        box.execute(TABLE)
        box.execute(f"CREATE STREAM s ON_FAILURE DLQ dead INTO CONNECTION pg (TABLE 'few') AS {QUERY}")
        box.execute("INSERT INTO t VALUES (1, 'a', 1) (2, 'a', 2) (3, 'b', 3)")
        settle(box)
        assert server.execute("SELECT name FROM few").fetchall() == [("b",)]
        (content,), = rows(box, "SELECT content FROM dead")
        assert json.loads(content)["name"] == "a"
        box.execute("DELETE FROM t WHERE id = 1")
        settle(box)
        assert server.execute("SELECT name, total FROM few ORDER BY name").fetchall() == [("a", 2), ("b", 3)]


def test_kafka_gets_tombstones(kafka: Kafka) -> None:
    """Brokers of Kafka take them, in the transactions of checkpoints."""
    with sandbox(FakeBroker()) as box:
        box.execute(f"CREATE CONNECTION real TYPE kafka WITH (servers='{kafka.servers}')")
        kafka.create_topic("by_key", 1)
        box.execute(TABLE)
        box.execute("INSERT INTO t VALUES (1, 'a', 1) (2, 'b', 2)")
        box.execute("CREATE STREAM s INTO CONNECTION real (TOPIC 'by_key') AS SELECT * FROM t")
        settle(box)
        box.execute("DELETE FROM t WHERE id = 1")
        consumer = Consumer({"bootstrap.servers": kafka.servers, "group.id": "g", "auto.offset.reset": "earliest",
                             "isolation.level": "read_committed"})
        consumer.subscribe(["by_key"])
        found: list[tuple[Any, Any]] = []

        def there() -> bool:
            settle(box)
            found.extend((one.key(), one.value()) for one in consumer.consume(10, 0.1) if one.error() is None)
            return len(found) == 3

        wait_until(there, 60.0, "two rows and a tombstone")
        consumer.close()
        assert found[2] == (b'{"id":1}', None)
        assert {key for key, _ in found} == {b'{"id":1}', b'{"id":2}'}


@pytest.mark.parametrize("form", ["json", "csv", "parquet", "avro"])
def test_files_are_a_changelog(tmp_path: Path, form: str) -> None:
    """A delete has the KEY alone, which comes first whatever its place in the query is."""
    with sandbox(FakeBroker()) as box:
        box.execute(f"CREATE CONNECTION f TYPE files WITH (url='file://{tmp_path}')")
        box.execute(TABLE)
        box.execute("INSERT INTO t VALUES (1, 'a', 1)")
        box.execute(f"CREATE STREAM s INTO CONNECTION f (PATH 'x', FORMAT {form}) "
                    "AS SELECT count(*) n, name FROM t GROUP BY name")
        settle(box)
        box.execute("DELETE FROM t")
        settle(box)
        first, second = sorted((tmp_path / "x").iterdir())
        if form == "json":
            assert [list(json.loads(line)) for line in first.read_text().splitlines()] == [["_op", "_id", "name", "n"]]
            assert [list(json.loads(line)) for line in second.read_text().splitlines()] == [["_op", "_id", "name"]]
        assert first.stat().st_size > 0
        assert second.stat().st_size > 0


def refused(statement: str, prepare: Callable[[Sandbox], None] | None = None) -> str:
    with sandbox(FakeBroker()) as box:
        box.execute(TABLE)
        if prepare is not None:
            prepare(box)
        with pytest.raises((InvalidStreamError, NotFoundError)) as caught:
            box.execute(f"CREATE STREAM s {statement}")
        return str(caught.value)


@pytest.mark.parametrize(("statement", "problem"), [
    ("INTO CONNECTION k (TOPIC 'x') AS SELECT name, v FROM t", "it can't be told which columns"),
    ("INTO CONNECTION k (TOPIC 'x', KEY (nam)) AS SELECT name, v FROM t", "no column nam (did you mean name?)"),
    ("INTO CONNECTION k (TOPIC 'x') AS SELECT id AS `_op`, v FROM t GROUP BY ALL", "_op is what each result has"),
    ("INTO CONNECTION x (TOPIC 'x') AS SELECT * FROM t", "connection x does not exist"),
    ("INTO CONNECTION k (TABLE 'x') AS SELECT * FROM t", "results go to a topic of a kafka connection"),
    ("WATERMARK 5s INTO CONNECTION k (TOPIC 'x') AS SELECT * FROM t", "WATERMARK is not for a stream"),
    ("ON_FAILURE PAUSE INTO t2 AS SELECT * FROM t", "ON_FAILURE is not for a stream"),
    ("INTO CONNECTION k (TOPIC 'x', KEY (ts)) AS SELECT _wstart ts, count(*) n FROM meters INTERVAL(1m)",
     "KEY is for streams that are computed again"),
])
def test_what_cannot_be_is_refused(statement: str, problem: str) -> None:
    """Each wrong statement says what is wrong with it."""
    assert problem in refused(statement)


def test_rows_with_the_same_key_stop_the_stream_until_they_are_gone(topic: Topic) -> None:
    """What was named as KEY must tell rows apart; the reason says it, and the target keeps what it has."""
    with sandbox(FakeBroker()) as box:
        box.execute(TABLE)
        box.execute("INSERT INTO t VALUES (1, 'a', 1)")
        box.execute("CREATE STREAM s INTO CONNECTION k (TOPIC 'x', KEY (name)) AS SELECT name, v FROM t")
        settle(box)
        box.execute("INSERT INTO t VALUES (2, 'a', 2)")
        settle(box)
        assert "several rows of the result have the same name" in rows(
            box, "SELECT reason FROM information_schema.ins_stream_tasks WHERE level = 'sink'")[0][0]
        box.execute("DELETE FROM t WHERE id = 1")
        settle(box)
        assert [row["v"] for row in compacted(topic).values()] == [2]
