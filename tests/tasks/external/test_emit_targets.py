"""Targets that take messages, against real servers: what arrives, and what becomes of what they refuse."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from kits.basics.external_servers import Kafka, Mosquitto
from kits.basics.waiting import wait_until
from kits.streams.emit_kit import opened
from kits.streams.ingest_kit import FakeBroker, sandbox
from kits.streams.ingest_kit import rows as ingested
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from penstock.common.connection import OpenedConnection
from penstock.common.errors import ConnectionFailedError, ContentRefusedError, LoginRefusedError, RowRefusedError
from penstock.planner.streams.external_sink import avro_schema
from penstock.planner.task_plans.stream_plan import ExternalSinkPlan, SinkPlan
from penstock.sql.schema import Column
from penstock.sql.types import BIGINT, VARCHAR, DataType, Kind, timestamp
from penstock.tasks.external.connectors.avro import reader
from penstock.tasks.external.connectors.files import Folder
from penstock.tasks.external.connectors.kafka import Sender
from penstock.tasks.external.connectors.mqtt import Publisher
from penstock.tasks.external.connectors.webhook import Poster
from penstock.tasks.external.emit.async_sink_writer import Delivery
from penstock.tasks.external.emit.files_target import FilesTarget
from penstock.tasks.external.emit.kafka_target import KafkaTarget, KafkaTransactionTarget
from penstock.tasks.external.emit.mqtt_target import MqttTarget
from penstock.tasks.external.emit.result_events import ExternalRows
from penstock.tasks.external.emit.result_messages import Encoder
from penstock.tasks.external.emit.webhook_target import WebhookTarget

SINK = SinkPlan("c", "t", (Column("ts", timestamp(), "ts"), Column("n", BIGINT, "n"), Column("text", VARCHAR, "text")),
                (Column("device", VARCHAR, "device"),), "", 0, create=False)
ROWS = ExternalRows(SINK, "s")
NOW = 1_700_000_000_000


def delivery(*rows: tuple[int, str | None, int, int | None, str | None], number: int = 1) -> Delivery:
    """Returns a delivery of (operation, device, time, n, text)."""
    columns = list(zip(*rows, strict=True))
    return Delivery(number, pa.RecordBatch.from_arrays(
        [pa.array(list(column), field.type) for column, field in zip(columns, ROWS.schema, strict=True)],
        schema=ROWS.schema))


THREE = delivery((0, "d1", 1_000, 1, "a"), (0, None, 1_000, 2, 'b,"c"'), (1, "d1", 0, None, None))
EVENTS = [
    {"_op": "upsert", "device": "d1", "ts": "1970-01-01T00:00:01.000Z", "n": 1, "text": "a"},
    {"_op": "upsert", "device": None, "ts": "1970-01-01T00:00:01.000Z", "n": 2, "text": 'b,"c"'},
    {"_op": "delete", "device": "d1", "ts": "1970-01-01T00:00:00.000Z"},
]


def without_ids(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert len({event.pop("_id") for event in events}) == len(events)
    return events


# --- Kafka -------------------------------------------------------------------------------


def kafka_connection(kafka: Kafka) -> OpenedConnection:
    return opened("kafka", servers=kafka.servers, security="plaintext")


def read(kafka: Kafka, topic: str, count: int) -> list[tuple[bytes | None, bytes]]:
    """Returns so many messages of a topic, by partition and offset."""
    consumer = Consumer({"bootstrap.servers": kafka.servers, "group.id": f"reader-{topic}",
                         "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[Any] = []

    def more() -> bool:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.append(message)
        return len(found) >= count

    try:
        wait_until(more, 60, f"{len(found)} of {count} messages came")
    finally:
        consumer.close()
    found.sort(key=lambda message: (message.partition(), message.offset()))
    return [(message.key(), message.value()) for message in found]


@pytest.mark.parametrize("transactions", [False, True])
def test_kafka_gets_json_by_the_groups_key(kafka: Kafka, transactions: bool) -> None:
    """All readers get each event once, also those of transactions that come again."""
    topic = f"emit-{transactions}"
    kafka.create_topic(topic, 2)
    plan = ExternalSinkPlan("kafka", "kafka", topic, "json")
    names = {"transactional_id": "t-1", "group": "t-1"} if transactions else {}
    kind = KafkaTransactionTarget if transactions else KafkaTarget
    target = kind(Sender(kafka_connection(kafka), topic, **names), plan, ROWS)
    target.deliver(THREE)
    if transactions:
        target.deliver(THREE)  # it has its mark
    target.close()
    found = read(kafka, topic, 3)
    assert sorted(json.dumps(event) for event in without_ids([json.loads(value) for _, value in found])) == sorted(
        json.dumps(event) for event in EVENTS)
    assert {key for key, _ in found} == {b'["d1"]', b"[null]"}


def test_kafka_refuses_single_messages(kafka: Kafka) -> None:
    """One that is too large is named by its place, and keeps no later ones from being sent."""
    kafka.create_topic("emit-large", 1)
    sender = Sender(kafka_connection(kafka), "emit-large")
    target = KafkaTarget(sender, ExternalSinkPlan("kafka", "kafka", "emit-large", "csv"), ROWS)
    with pytest.raises(RowRefusedError, match="too large") as refused:
        target.deliver(delivery((0, "d1", 0, 1, "a"), (0, "d1", 1, 1, "a" * 3_000_000)))
    assert refused.value.row == 1
    target.deliver(THREE)
    target.close()
    lines = [value.decode().split(",", 2) for _, value in read(kafka, "emit-large", 4)]
    assert [line[2] for line in lines[1:]] == [
        "d1,1970-01-01T00:00:01.000Z,1,a", ',1970-01-01T00:00:01.000Z,2,"b,""c"""', "d1,1970-01-01T00:00:00.000Z,,"]


def test_kafka_that_is_away_is_named() -> None:
    """Whether messages are sent one by one or in transactions."""
    connection = opened("kafka", servers="127.0.0.1:9", security="plaintext", timeout="1s")
    target = KafkaTarget(Sender(connection, "emit"), ExternalSinkPlan("kafka", "kafka", "emit", "json"), ROWS)
    with pytest.raises(ConnectionFailedError, match="unreachable"):
        target.deliver(THREE)
    target.close()
    with pytest.raises(ConnectionFailedError, match="unreachable"):
        Sender(connection, "emit", transactional_id="t", group="t")


# --- MQTT -------------------------------------------------------------------------------


def mqtt_connection(mosquitto: Mosquitto, password: str | None = None) -> OpenedConnection:
    return opened("mqtt", url=mosquitto.url, version="5", username=mosquitto.username,
                  password=password or mosquitto.password)


def test_mqtt_gets_a_message_per_result(mosquitto: Mosquitto) -> None:
    """Its topic is made of the keys."""
    heard: list[tuple[str, dict[str, Any]]] = []
    subscribed = threading.Event()
    reader = Client(CallbackAPIVersion.VERSION2)
    reader.username_pw_set(mosquitto.username, mosquitto.password)
    reader.on_subscribe = lambda *_: subscribed.set()
    reader.on_message = lambda _client, _data, message: heard.append((message.topic, json.loads(message.payload)))
    reader.connect("127.0.0.1", mosquitto.port)
    reader.subscribe("emit/#", 1)
    reader.loop_start()
    try:
        assert subscribed.wait(30)
        plan = ExternalSinkPlan("mqtt", "mqtt", "emit/${device}", "json", 1)
        target = MqttTarget(Publisher(mqtt_connection(mosquitto), "emit-test"), plan, ROWS)
        target.deliver(THREE)
        target.close()
        wait_until(lambda: len(heard) == 3, 30, "not all messages came")
    finally:
        reader.disconnect()
        reader.loop_stop()
    assert [topic for topic, _ in heard] == ["emit/d1", "emit/null", "emit/d1"]
    assert without_ids([event for _, event in heard]) == EVENTS


def test_mqtt_that_is_away_or_refuses_is_named(tmp_path: Path, mosquitto: Mosquitto) -> None:
    """And once it is back, it takes what comes."""
    with pytest.raises(LoginRefusedError, match="login refused"):
        Publisher(mqtt_connection(mosquitto, "wrong"), "emit-test")
    own, plan = Mosquitto(tmp_path), ExternalSinkPlan("mqtt", "mqtt", "x", "json")
    own.start()
    target = MqttTarget(Publisher(mqtt_connection(own), "emit-test"), plan, ROWS)
    own.kill()
    with pytest.raises(ConnectionFailedError, match="unreachable"):
        target.deliver(THREE)
    target.close()
    own.start()
    target = MqttTarget(Publisher(mqtt_connection(own), "emit-test"), plan, ROWS)
    target.deliver(THREE)
    target.close()
    own.stop()


# --- webhooks -------------------------------------------------------------------------------


class Web:
    """A web server that takes what is posted, but for rows whose text it doesn't like, and what `status` says."""

    def __init__(self) -> None:
        self.status = 200
        self.posted: list[tuple[str, str, dict[str, Any]]] = []
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                bad = any(row.get("text") == "bad" for row in body["rows"])
                if web.status == 200 and not bad:
                    web.posted.append((self.path, self.headers["Idempotency-Key"], body))
                self.send_response(422 if bad and web.status == 200 else web.status)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/base"


@pytest.fixture
def web() -> Iterator[Web]:
    web = Web()
    yield web
    web.server.shutdown()
    web.server.server_close()


def test_webhooks_get_rows_and_a_key_that_stays_the_same(web: Web) -> None:
    """So whoever gets them twice can tell."""
    target = WebhookTarget(Poster(opened("webhook", url=web.url), "in"), ROWS, "s")
    target.deliver(THREE)
    target.deliver(THREE)
    target.close()
    (path, key, body), (_, again, _) = web.posted
    assert (path, body["stream"]) == ("/base/in", "s")
    assert without_ids(body["rows"]) == EVENTS
    assert key == again


def test_webhooks_that_refuse_a_row_are_asked_which(web: Web) -> None:
    """Answers about the whole request say what is wrong with the target."""
    target = WebhookTarget(Poster(opened("webhook", url=web.url), ""), ROWS, "s")
    rows = [(0, "d", n, n, "bad" if n == 5 else "good") for n in range(8)]
    with pytest.raises(RowRefusedError, match="422") as refused:
        target.deliver(delivery(*rows))
    assert refused.value.row == 5
    web.status = 503
    with pytest.raises(ConnectionFailedError, match="503"):
        target.deliver(THREE)
    web.status = 401
    with pytest.raises(LoginRefusedError, match="401"):
        target.deliver(THREE)
    target.close()


# --- files -------------------------------------------------------------------------------


@pytest.mark.parametrize("format_", ["json", "csv"])
def test_text_files_have_a_line_per_result(tmp_path: Path, format_: Any) -> None:
    """A delivery that comes again replaces its file."""
    connection = opened("files", url=tmp_path.as_uri())
    target = FilesTarget(Folder(connection, "out"), ExternalSinkPlan("files", "files", "out", format_), ROWS, "s", 0)
    number = 3 << 20 | 1
    target.deliver(Delivery(number, THREE.rows))
    target.deliver(Delivery(number, THREE.rows))
    (path,) = (tmp_path / "out").iterdir()
    assert path.name == {"json": "s-0-00000003-0001.jsonl", "csv": "s-0-00000003-0001.csv"}[format_]
    lines = path.read_text().splitlines()
    if format_ == "json":
        assert without_ids([json.loads(line) for line in lines]) == EVENTS
    else:
        assert lines[0] == '"_op","_id","device","ts","n","text"'
        assert [line.split(",", 2)[2] for line in lines[1:]] == [
            '"d1","1970-01-01T00:00:01.000Z",1,"a"', ',"1970-01-01T00:00:01.000Z",2,"b,""c"""',
            '"d1","1970-01-01T00:00:00.000Z",,']


def test_records_of_avro_keep_types(tmp_path: Path) -> None:
    """In a file that has the schema, and in messages that an ingest with the schema of EXPLAIN reads; deletes have what
    names the result."""
    connection = opened("files", url=tmp_path.as_uri())
    FilesTarget(Folder(connection, "out"), ExternalSinkPlan("files", "files", "out", "avro"), ROWS, "s", 0).deliver(
        Delivery(1, THREE.rows))
    with (tmp_path / "out" / "s-0-00000000-0001.avro").open("rb") as file:
        found: list[Any] = list(fastavro.reader(file))
    read = reader(json.dumps(avro_schema(SINK)))
    assert [read(value) for _, value in Encoder("avro", ROWS)(THREE.rows)] == found
    assert without_ids(found) == [
        {"n": None, "text": None, **event, "ts": datetime.fromisoformat(event["ts"])} for event in EVENTS]


def test_an_ingest_reads_what_a_stream_emits_as_avro() -> None:
    """With the schema that EXPLAIN shows."""
    broker = FakeBroker()
    for _, value in Encoder("avro", ROWS)(delivery((0, "d1", NOW, 1, "a"), (0, "d2", NOW + 1, 2, None)).rows):
        broker.send(value)
    with sandbox(broker) as box:
        box.execute("CREATE STABLE p.x (ts TIMESTAMP, n BIGINT, text VARCHAR(9)) TAGS (g VARCHAR(3))")
        box.execute("CREATE INGEST i FROM CONNECTION k (TOPIC 't', FORMAT avro, "
                    f"SCHEMA '{json.dumps(avro_schema(SINK))}') INTO p.x TBNAME ($.device)")
        assert ingested(box, "SELECT tbname, cast(ts AS BIGINT), n, text FROM p.x ORDER BY ts") == [
            ("d1", NOW, 1, "a"), ("d2", NOW + 1, 2, None)]


@pytest.mark.parametrize(("kind", "value", "there"), [
    (DataType(Kind.UBIGINT), 2**64 - 1, Decimal(2**64 - 1)), (DataType(Kind.UINT), 2**32 - 1, 2**32 - 1),
    (DataType(Kind.TINYINT), -1, -1), (DataType(Kind.BOOL), True, True), (DataType(Kind.FLOAT), 0.5, 0.5),
    (DataType(Kind.DOUBLE), math.inf, math.inf), (DataType(Kind.VARBINARY), b"\x00\xff", b"\x00\xff"),
    (DataType(Kind.DECIMAL, digits=5, scale=2), Decimal("-1.25"), Decimal("-1.25")),
    (timestamp("ns"), 1_700_000_000_123_456_789, 1_700_000_000_123_456_789), (VARCHAR, "a\0ä", "a\0ä"),
])
def test_avro_has_every_type(kind: DataType, value: Any, there: Any) -> None:
    """And NULL of each; nanoseconds are a number, and so are integers of 64 bits without sign, as decimals."""
    rows = ExternalRows(replace(SINK, columns=(SINK.columns[0], Column("x", kind, "x"))), "s")
    batch = pa.RecordBatch.from_arrays(
        [pa.array([0, 0], pa.uint8()), pa.array(["d", "d"]), pa.array([0, 1], pa.timestamp("ms")),
         pa.array([value, None], kind.arrow())], schema=rows.schema)
    read = reader(json.dumps(rows.avro_schema))
    assert [read(payload)["x"] for _, payload in Encoder("avro", rows)(batch)] == [there, None]


def test_folders_anywhere_take_whole_files() -> None:
    """Object stores have no names for what is pending."""
    connection = opened("files", url="memory://emit-test")
    folder = Folder(connection, "out")
    folder.put("a", b"1")
    folder.put("a", b"2")
    assert folder._filesystem.cat(f"{folder._folder}/a") == b"2"


@pytest.mark.parametrize("format_", ["json", "csv", "parquet", "avro"])
def test_other_results_never_replace_a_file(tmp_path: Path, format_: Any) -> None:
    """Whatever is there under the name of a delivery stays; the same results are no offence."""
    plan = ExternalSinkPlan("files", "files", "out", format_)
    target = FilesTarget(Folder(opened("files", url=tmp_path.as_uri()), "out"), plan, ROWS, "s", 0)
    target.deliver(Delivery(7, THREE.rows))
    (path,) = (tmp_path / "out").iterdir()
    before = path.read_bytes()
    target.deliver(Delivery(7, THREE.rows))
    for other in (THREE.rows.slice(0, 2), delivery((0, "d1", NOW, 1, "a")).rows):
        with pytest.raises(ContentRefusedError, match=f"{path.name} is there, with other results"):
            target.deliver(Delivery(7, other))
    assert path.read_bytes() == before
    path.write_bytes(b"\xff of somebody else")
    with pytest.raises(ContentRefusedError, match="other results"):
        target.deliver(Delivery(7, THREE.rows))
    path.unlink()
    target.deliver(Delivery(7, THREE.rows))
    assert path.exists()
