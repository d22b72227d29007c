"""Ingests from real brokers, in a whole engine without Spark: Mosquitto, Kafka's brokers, folders of files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from kits.basics.external_servers import Kafka, Mosquitto
from kits.basics.waiting import wait_until
from kits.streams.ingest_kit import connections, logged, rows, state
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from penstock.mnode.admin.sandbox import Sandbox

NOW = 1_700_000_000_000
MAPPING = "INTO meters TAGS (site = $.site) TBNAME ($.device)"


def message(number: int) -> bytes:
    return json.dumps({"device": f"d{number % 7}", "ts": NOW + number, "v": number, "site": "s"}).encode()


@pytest.fixture
def box() -> Iterator[Sandbox]:
    with Sandbox() as box:
        box.execute("CREATE DATABASE p VGROUPS 2")
        box.execute("USE p")
        box.execute("CREATE STABLE meters (ts TIMESTAMP, v INT, note VARCHAR(16)) TAGS (site VARCHAR(8))")
        yield box


def await_rows(box: Sandbox, count: int) -> None:
    """Lets time pass until there are so many rows, and no more."""

    def there() -> bool:
        box.advance(0.5)
        return rows(box, "SELECT count(*) FROM meters") == [(count,)]

    wait_until(there, 60.0, f"{rows(box, 'SELECT count(*) FROM meters')}, {state(box)}")


def await_state(box: Sandbox, wanted: str, reason: str) -> None:
    """Lets time pass until the ingest is in this state for this reason, and its connection accordingly."""

    def there() -> bool:
        box.advance(0.5)
        found, ((health, why),) = state(box), connections(box)
        return (found[0], health) == (wanted, "OK" if wanted == "RUNNING" else "FAILED") and all(
            reason in (text or "") for text in (found[1], why))

    wait_until(there, 60.0, f"{state(box)}, {connections(box)}")


def produce(kafka: Kafka, topic: str, messages: list[bytes], first: int = 0) -> None:
    producer = Producer({"bootstrap.servers": kafka.servers})
    for number, value in enumerate(messages, first):
        producer.produce(topic, value, key=str(number % 7))
    assert producer.flush(30) == 0


def test_kafka_over_partitions_kills_and_a_broker_that_is_down(kafka: Kafka, box: Sandbox) -> None:
    """What is read again after a kill leaves no trace; new messages come on, also when a broker was away."""
    kafka.create_topic("meters", 5)
    box.execute(f"CREATE CONNECTION k TYPE kafka WITH (servers='{kafka.servers}')")
    box.execute(f"CREATE INGEST i FROM CONNECTION k (TOPIC 'meters') {MAPPING}")
    produce(kafka, "meters", [message(number) for number in range(500)])
    await_rows(box, 500)
    box.checkpoint()
    produce(kafka, "meters", [message(number) for number in range(500, 800)], 500)
    await_rows(box, 800)
    before = [box.engine.storage.wal_version(vgroup) for vgroup in box.engine.catalog.databases()[0].vgroup_ids]
    box.kill()
    kafka.down(1)
    kafka.up(1)
    produce(kafka, "meters", [message(number) for number in range(800, 900)], 800)
    await_rows(box, 900)
    after = [box.engine.storage.wal_version(vgroup) for vgroup in box.engine.catalog.databases()[0].vgroup_ids]
    assert rows(box, "SELECT sum(v) FROM meters") == [(sum(range(900)),)]
    assert all(b is not None and a is not None and b < a for b, a in zip(before, after, strict=True))


def test_tombstones_of_kafka_delete(kafka: Kafka, box: Sandbox) -> None:
    """A message without content comes with its key; a message with content that is nothing but a key doesn't count."""
    kafka.create_topic("prices", 2)
    box.execute("CREATE TABLE prices (sku VARCHAR(8), v INT, PRIMARY KEY (sku))")
    box.execute(f"CREATE CONNECTION k TYPE kafka WITH (servers='{kafka.servers}')")
    box.execute("CREATE INGEST i FROM CONNECTION k (TOPIC 'prices', FORMAT UPSERT) INTO prices")
    producer = Producer({"bootstrap.servers": kafka.servers})
    for number in range(10):
        producer.produce("prices", b'{"v": %d}' % number, key=f"k{number}")
    for number in range(0, 10, 2):
        producer.produce("prices", None, key=f"k{number}")
    producer.produce("prices", b'{"v": 40}', key="k4")
    assert producer.flush(30) == 0
    wanted = [("k1", 1), ("k3", 3), ("k4", 40), ("k5", 5), ("k7", 7), ("k9", 9)]

    def there() -> bool:
        box.advance(0.5)
        return rows(box, "SELECT * FROM prices ORDER BY sku") == wanted

    wait_until(there, 60.0, "the last message of each key counts")
    box.checkpoint()
    box.kill()
    producer.produce("prices", None, key="k1")
    assert producer.flush(30) == 0
    wanted = wanted[1:]
    wait_until(there, 60.0, "and goes on behind a tombstone")


def test_kafka_that_is_not_there_and_a_topic_that_comes_later(kafka: Kafka, box: Sandbox) -> None:
    """The reason is shown while it lasts; ALTER CONNECTION and the topic's creation end it, no restart."""
    box.execute("CREATE CONNECTION k TYPE kafka WITH (servers='127.0.0.1:1')")
    box.execute(f"CREATE INGEST i FROM CONNECTION k (TOPIC 'later') {MAPPING}")
    await_state(box, "RETRYING", "unreachable")
    box.execute(f"ALTER CONNECTION k SET (servers='{kafka.servers}')")
    produce(kafka, "later", [message(number) for number in range(10)])
    await_rows(box, 10)
    await_state(box, "RUNNING", "")


def test_brokers_that_go_and_a_topic_that_is_dropped(box: Sandbox) -> None:
    """Both are told of the ingest and of its connection, which was fine before, and are over by themselves."""
    kafka = Kafka(1)
    try:
        kafka.create_topic("meters", 2)
        box.execute(f"CREATE CONNECTION k TYPE kafka WITH (servers='{kafka.servers}')")
        assert connections(box) == [("UNTESTED", None)]
        box.execute(f"CREATE INGEST i FROM CONNECTION k (TOPIC 'meters') {MAPPING}")
        await_state(box, "RUNNING", "")
        kafka.down(1)
        await_state(box, "RETRYING", "unreachable")
        kafka.up(1)
        await_state(box, "RUNNING", "")
        produce(kafka, "meters", [message(number) for number in range(5)])
        await_rows(box, 5)
        kafka.drop_topic("meters")
        await_state(box, "RETRYING", "unknown topic meters")
        kafka.restore_topic("meters")
        produce(kafka, "meters", [message(number) for number in range(5, 10)], 5)
        await_rows(box, 10)
        await_state(box, "RUNNING", "")
        assert logged(box).total() == 10  # it is the same topic
        assert state(box, "last_error") == (None,)
    finally:
        kafka.close()


@pytest.mark.parametrize("fresh", [150, 59, 3])
def test_a_topic_that_is_made_anew(kafka: Kafka, box: Sandbox, fresh: int) -> None:
    """Another topic of the same name, with more messages than were read, as many or fewer: all of it is read.

    The ingest says so, and reads no message of it before a checkpoint has noted that, nor any twice after kills.
    Brokers that librdkafka simulates delete nothing, so the other topic is that of another cluster.
    """
    other = Kafka(1)
    try:
        for cluster in (kafka, other):
            cluster.create_topic(f"anew{fresh}", 1)
        box.execute(f"CREATE CONNECTION k TYPE kafka WITH (servers='{kafka.servers}')")
        box.execute(f"CREATE INGEST i FROM CONNECTION k (TOPIC 'anew{fresh}') {MAPPING}")
        produce(kafka, f"anew{fresh}", [message(number) for number in range(40)])
        await_rows(box, 40)
        box.checkpoint()
        box.kill()  # reads on where it was: the last message is the one that it knows
        produce(kafka, f"anew{fresh}", [message(number) for number in range(40, 60)])
        await_rows(box, 60)
        box.checkpoint()
        produce(other, f"anew{fresh}", [message(number) for number in range(1000, 1000 + fresh)])
        box.execute(f"ALTER CONNECTION k SET (servers='{other.servers}')")
        if fresh == 59:  # just as far: nothing is wrong until another message comes
            await_state(box, "RUNNING", "")
            produce(other, f"anew{fresh}", [message(1059)])
        await_state(box, "RETRYING", f"partition anew{fresh}/0")
        assert "was made anew (it is read from its beginning" in state(box)[1]
        assert rows(box, "SELECT count(*) FROM meters") == [(60,)]
        box.kill()
        await_state(box, "RETRYING", "was made anew")
        box.checkpoint()
        count = 60 + fresh + (fresh == 59)
        await_rows(box, count)
        await_state(box, "RUNNING", "")
        told = (f"partition anew{fresh}/0 was made anew, and is read from its beginning: what came in the one before "
                "from offset 60 on was not read")
        assert state(box, "last_error, lag") == (told, 0)
        box.kill()
        produce(other, f"anew{fresh}", [message(2000)])
        await_rows(box, count + 1)
        assert logged(box).total() == count + 1
    finally:
        other.close()


def publish(mosquitto: Mosquitto, topic: str, messages: list[bytes], qos: int = 1) -> None:
    client = Client(CallbackAPIVersion.VERSION2)
    client.username_pw_set(mosquitto.username, mosquitto.password)
    client.connect("127.0.0.1", mosquitto.port)
    client.loop_start()
    for sent in [client.publish(topic, one, qos) for one in messages]:
        sent.wait_for_publish(30)
    client.disconnect()
    client.loop_stop()


def connect(box: Sandbox, mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    monkeypatch.setenv("INGEST_PASSWORD", mosquitto.password)
    more = "".join(f", {name}='{value}'" for name, value in options.items())
    box.execute(f"CREATE CONNECTION m TYPE mqtt WITH (url='{mosquitto.url}', username='{mosquitto.username}', "
                f"password='env:INGEST_PASSWORD'{more})")


@pytest.mark.parametrize(("version", "qos"), [("5", 1), ("5", 2), ("3.1.1", 1)])
def test_mqtt_sends_what_was_not_acknowledged_again(
    mosquitto: Mosquitto, box: Sandbox, monkeypatch: pytest.MonkeyPatch, version: str, qos: int
) -> None:
    """What is published while the ingest is away comes when it is back, with either version and QoS."""
    topic = f"meters/{version}/{qos}"
    connect(box, mosquitto, monkeypatch, version=version, client_id=f"ingest-{version}-{qos}")
    box.execute(f"CREATE INGEST i FROM CONNECTION m (TOPIC '{topic}/+', QOS {qos}) INTO meters (note = _topic(4)) "
                "TAGS (site = $.site) TBNAME ($.device)")
    await_state(box, "RUNNING", "")
    box.advance(1)
    publish(mosquitto, f"{topic}/a", [message(number) for number in range(100)], qos)
    await_rows(box, 100)
    assert rows(box, "SELECT DISTINCT note FROM meters") == [("a",)]
    (stream,) = box.streams.local_streams().values()
    stream.close()  # the session stays, and keeps what comes meanwhile
    publish(mosquitto, f"{topic}/b", [message(number) for number in range(100, 200)], qos)
    box.kill()
    await_rows(box, 200)


def test_mqtt_with_a_wrong_password(mosquitto: Mosquitto, box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused login is the reason that is shown, until the connection has another password."""
    connect(box, mosquitto, monkeypatch, client_id="wrong")
    monkeypatch.setenv("INGEST_WRONG", "wrong")
    box.execute("ALTER CONNECTION m SET (password='env:INGEST_WRONG')")
    box.execute(f"CREATE INGEST i FROM CONNECTION m (TOPIC 'wrong') {MAPPING}")
    await_state(box, "RETRYING", "login refused")
    box.execute("ALTER CONNECTION m SET (password='env:INGEST_PASSWORD')")
    await_state(box, "RUNNING", "")
    box.advance(1)
    publish(mosquitto, "wrong", [message(1)])
    await_rows(box, 1)


def test_files_are_followed_by_name(box: Sandbox, tmp_path: Path) -> None:
    """Lines come as they are complete, files in the order of their names, and nothing twice after kills."""
    box.execute(f"CREATE CONNECTION f TYPE files WITH (url='file://{tmp_path}')")
    (tmp_path / "a.csv").write_bytes(f"{NOW},1,d1\r\n{NOW + 1},2,d1\n{NOW + 2},3".encode())
    (tmp_path / "other.txt").write_text("nothing\n")
    box.execute("CREATE INGEST i FROM CONNECTION f (FORMAT csv, SCHEMA 'ts,v,device', PATH '*.csv') INTO meters "
                "TBNAME ($.device)")
    await_rows(box, 2)
    with (tmp_path / "a.csv").open("ab") as file:
        file.write(b",d1\n")
    await_rows(box, 3)
    box.kill()  # without a checkpoint: all of it is read again
    (tmp_path / "b.csv").write_text(f"{NOW + 3},4,d2\n{NOW + 4},5,d2")
    await_rows(box, 4)
    box.checkpoint()
    box.kill()
    (tmp_path / "c.csv").write_text("")
    await_rows(box, 5)
    assert rows(box, "SELECT sum(v) FROM meters") == [(15,)]
