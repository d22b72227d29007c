"""Ingests into tables with a KEY: what Debezium and topics of keys and values say, in any order and after kills."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from conftest import times
from hypothesis import example, given, settings
from hypothesis import strategies as st
from kits.streams.ingest_kit import FakeBroker, gone_through, rows, sandbox, state

from penstock.common.errors import InvalidStatementError
from penstock.mnode.admin.sandbox import Sandbox

Row = dict[str, Any]


def envelope(operation: str, before: Row | None = None, after: Row | None = None) -> bytes:
    return json.dumps({"before": before, "after": after, "source": {"lsn": 1}, "op": operation, "ts_ms": 1}).encode()


def key(**values: Any) -> bytes:
    return json.dumps(values).encode()


def wrapped(payload: Any, schema: Any) -> bytes:
    return json.dumps({"schema": schema, "payload": payload}).encode()


def people(broker: FakeBroker, **more: Any) -> Sandbox:
    box = sandbox(broker, **more)
    box.execute("CREATE TABLE p.people (id INT, name VARCHAR(40), score DOUBLE, PRIMARY KEY (id))")
    return box


DEBEZIUM = "CREATE INGEST i FROM CONNECTION k (TOPIC 't', FORMAT DEBEZIUM) INTO p.people"
UPSERT = "CREATE INGEST i FROM CONNECTION k (TOPIC 't', FORMAT UPSERT) INTO p.people"
ALL = "SELECT * FROM people ORDER BY id"


def test_rows_of_another_database_come_change_and_go() -> None:
    """Each kind of envelope, as PostgreSQL sends it with REPLICA IDENTITY DEFAULT and FULL, and MySQL."""
    broker = FakeBroker()
    with people(broker) as box:
        box.execute(DEBEZIUM)
        for value, message_key in (
            (envelope("r", None, {"id": 1, "name": "a", "score": 1.5}), key(id=1)),
            (envelope("c", None, {"id": 2, "name": "b", "score": 2}), key(id=2)),
            (envelope("c", None, {"id": 3, "name": "c", "score": 3}), key(id=3)),
            (envelope("u", None, {"id": 1, "name": "aa", "score": None}), key(id=1)),
            (envelope("u", {"id": 2, "name": "b", "score": 2.0}, {"id": 2, "name": "bb", "score": 4}), key(id=2)),
            (envelope("d", {"id": 3, "name": None, "score": None}), key(id=3)), (b"", key(id=3)),
        ):
            broker.send(value, key=message_key)
        box.run()
        assert rows(box, ALL) == [(1, "aa", None), (2, "bb", 4.0)]
        broker.send(envelope("u", {"id": 2, "name": "bb"}, {"id": 9, "name": "moved", "score": 5}), key=key(id=9))
        broker.send(envelope("d"), key=key(id=1))
        box.run()
        assert rows(box, ALL) == [(9, "moved", 5.0)]
        broker.send(envelope("d", {"id": 9}))
        broker.send(b"")
        broker.send(b"", key=b"Struct{id=9}")
        broker.send(b"", key=key(other=9))
        broker.send(envelope("c", None, {"id": 9, "name": "again", "score": 6}), key=key(id=9))
        box.run()
        assert rows(box, ALL) == [(9, "again", 6.0)]
        broker.send(b"", key=key(id=9))  # all that a compacted topic may have left of a delete
        box.run()
        assert rows(box, ALL) == []
        assert state(box, "state, errors, messages") == ("RUNNING", 0, 15)


def test_large_values_that_did_not_change_stay() -> None:
    """PostgreSQL doesn't send them with an update; before has them where the table says REPLICA IDENTITY FULL."""
    broker, away = FakeBroker(), "__debezium_unavailable_value"
    with people(broker) as box:
        box.execute(DEBEZIUM)
        for number in (1, 2, 3):
            broker.send(envelope("c", None, {"id": number, "name": f"long {number}", "score": 0}))
        broker.send(envelope("u", None, {"id": 1, "name": away, "score": 1}))
        broker.send(envelope("u", None, {"id": 2, "name": away, "score": away}))
        broker.send(envelope("u", {"id": 3, "name": "long 3", "score": 0}, {"id": 4, "name": away, "score": 3}))
        broker.send(envelope("u", None, {"id": 1, "name": away, "score": 2}))
        box.run()
        assert rows(box, ALL) == [(1, "long 1", 2.0), (2, "long 2", 0.0), (4, "long 3", 3.0)]
        assert state(box, "errors") == (0,)


INSTANT = 1_700_000_000_123


@pytest.mark.parametrize(("field", "value", "column", "expected"), [
    ({"type": "int32", "name": "io.debezium.time.Date"}, 19_675, "TIMESTAMP", "2023-11-14 00:00:00"),
    ({"type": "int32", "name": "org.apache.kafka.connect.data.Date"}, -1, "VARCHAR(20)", "1969-12-31"),
    ({"type": "int64", "name": "io.debezium.time.Timestamp"}, INSTANT, "TIMESTAMP", "2023-11-14 22:13:20.123"),
    ({"type": "int64", "name": "io.debezium.time.MicroTimestamp"}, INSTANT * 1000 + 9, "TIMESTAMP",
     "2023-11-14 22:13:20.123"),
    ({"type": "int64", "name": "io.debezium.time.NanoTimestamp"}, INSTANT * 10**6, "VARCHAR(40)",
     "2023-11-14T22:13:20.123000000Z"),
    ({"type": "int64", "name": "org.apache.kafka.connect.data.Timestamp"}, INSTANT, "BIGINT", INSTANT),
    ({"type": "string", "name": "io.debezium.time.ZonedTimestamp"}, "2023-11-14T22:13:20.123+00:00", "TIMESTAMP",
     "2023-11-14 22:13:20.123"),
    ({"type": "int64", "name": "io.debezium.time.MicroTime"}, 3_723_000_001, "VARCHAR(20)", "01:02:03.000001"),
    ({"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}},
     base64.b64encode((-1234).to_bytes(2, "big", signed=True)).decode(), "DECIMAL(10,2)", "-12.34"),
    ({"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "0"}},
     "AQ==", "INT", 1),
    ({"type": "struct", "name": "io.debezium.data.VariableScaleDecimal"},
     {"scale": 1, "value": "ZA=="}, "DOUBLE", 10.0),
    ({"type": "string"}, "12.50", "DECIMAL(10,2)", "12.50"),
    ({"type": "double"}, 12.5, "DECIMAL(10,2)", "12.50"),
    ({"type": "bytes"}, "AAH/", "VARBINARY(8)", b"\x00\x01\xff"),
    ({"type": "bytes", "name": "io.debezium.data.Bits"}, "BQE=", "INT", 261),
    ({"type": "string", "name": "io.debezium.data.Json"}, '{"a": 1}', "VARCHAR(20)", '{"a": 1}'),
    ({"type": "boolean"}, True, "BOOL", True),
    (None, INSTANT * 1000, "TIMESTAMP", "2023-11-14 22:13:20.123"),
    (None, "AAH/", "VARBINARY(8)", b"\x00\x01\xff"),
    (None, "12.50", "DECIMAL(10,2)", "12.50"),
    (None, {"scale": 1, "value": "ZA=="}, "DECIMAL(10,2)", "10.00"),
])
def test_values_of_all_types(field: Row | None, value: Any, column: str, expected: Any) -> None:
    """With the schema beside the values a number is what the schema says; without it what TIME_UNIT and columns say."""
    broker = FakeBroker()
    with sandbox(broker) as box:
        box.execute(f"CREATE TABLE p.t (id INT, v {column}, PRIMARY KEY (id))")
        row, ids = {"id": 1, "v": value}, {"type": "int32", "field": "id"}
        if field is None:
            broker.send(envelope("c", None, row))
        else:
            sides = [{"type": "struct", "field": side, "fields": [ids, {**field, "field": "v"}]}
                     for side in ("before", "after")]
            broker.send(wrapped(json.loads(envelope("c", None, row)), {"type": "struct", "fields": sides}),
                        key=wrapped({"id": 1}, {"type": "struct", "fields": [ids]}))
        box.execute("CREATE INGEST i FROM CONNECTION k (TOPIC 't', FORMAT DEBEZIUM, TIME_UNIT US) INTO p.t")
        assert state(box) == ("RUNNING", None)
        (found,), = rows(box, "SELECT v FROM t")
        assert (str(found).removesuffix("000") if column == "TIMESTAMP" and "." in str(found) else
                str(found) if isinstance(expected, str) else found) == expected


BAD = {
    "no op": b'{"after": {"id": 1}}', "op of another type": b'{"op": 1, "after": {"id": 1}}',
    "unknown op": envelope("x", None, {"id": 1}), "truncate": envelope("t"), "no after": envelope("u", {"id": 1}),
    "after is a list": b'{"op": "c", "after": [1]}', "no key": envelope("c", None, {"name": "a"}),
    "key is NULL": envelope("c", None, {"id": None}), "key is a text": envelope("c", None, {"id": "a"}),
    "huge key": envelope("c", None, {"id": 10**4000}), "delete of nobody": envelope("d", {"name": "a"}),
    "deep": b'{"op": "c", "after": {"id": 1, "name": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
    "deep schema": b'{"payload": {}, "schema": ' + b'{"fields": [' * 5_000 + b"]}" * 5_000 + b"}",
    "no JSON": b"\xff\x00", "a number": b"3", "a list": b'[{"op": "c"}]', "too large": b" " * (10 << 20),
    "half a surrogate": b'{"op": "c", "after": {"id": 1, "name": "\\ud800"}}',
    "a schema that isn't one": wrapped({"op": "c", "after": {"id": "x"}}, {"fields": [{"field": ["after"]}, 3, None]}),
    "a decimal of a billion places": wrapped({"op": "c", "after": {"id": 1, "score": "AQ=="}}, {"fields": [
        {"field": "after", "fields": [{"field": "score", "name": "org.apache.kafka.connect.data.Decimal",
                                       "type": "bytes", "parameters": {"scale": "1000000000"}}]}]}),
    "a decimal that is a number": wrapped({"op": "c", "after": {"id": 1, "score": 3}}, {"fields": [
        {"field": "after", "fields": [{"field": "score", "name": "org.apache.kafka.connect.data.Decimal",
                                       "type": "bytes", "parameters": {"scale": "0"}}]}]}),
}


def test_what_is_no_envelope_stops_nobody() -> None:
    """Each such message is a dead letter, wherever it stands, and the others are written."""
    broker = FakeBroker(piece=50)
    with people(broker) as box:
        for number, bad in enumerate(BAD.values(), 100):
            broker.send(bad)
            broker.send(envelope("c", None, {"id": number, "name": "good"}))
        box.execute(f"{DEBEZIUM} ON_ERROR DLQ p.dead")
        box.run()
        assert [row[0] for row in rows(box, ALL)] == list(range(100, 100 + len(BAD)))
        assert state(box, "state, errors") == ("RUNNING", len(BAD))
        assert len(rows(box, "SELECT message FROM dead")) == len(BAD)


def test_a_bad_message_stops_where_it_is_and_what_is_before_counts() -> None:
    """ON_ERROR FAIL: what is behind a message waits, and goes on in its order when the message is left out."""
    broker = FakeBroker(piece=50)
    with people(broker) as box:
        broker.send(envelope("c", None, {"id": 1}))
        broker.send(envelope("t"))
        broker.send(envelope("d", {"id": 1}))
        box.execute(DEBEZIUM)
        assert [row[0] for row in rows(box, ALL)] == [1]
        assert state(box, "state")[0] == "FAILED"
        assert "offset 1: the table was truncated" in state(box)[1]
        box.execute("ALTER INGEST i ON_ERROR SKIP")
        box.run()
        assert rows(box, ALL) == []


def test_keys_and_values() -> None:
    """FORMAT UPSERT: the KEY comes from the message's key, as JSON or plain text; a tombstone is a delete."""
    broker = FakeBroker()
    with people(broker) as box:
        box.execute(f"{UPSERT} ON_ERROR SKIP")
        broker.send(b'{"name": "a", "score": 1}', key=key(id=1))
        broker.send(b'{"name": "b", "id": 7}', key=b"2")
        broker.send(b'{"name": "c", "id": 3}')
        broker.send(b'{"name": "d"}', key=wrapped(4, {"type": "int32"}))
        broker.send(wrapped({"name": "e"}, {"fields": []}), key=wrapped({"id": 5}, None))
        box.run()
        assert [row[:2] for row in rows(box, ALL)] == [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e")]
        for gone in (key(id=1), b"2", wrapped(4, None)):
            broker.send(b"", key=gone)
        broker.send(b"")
        broker.send(b"", key=b"x")
        broker.send(b"", key=b"\xff")
        broker.send(b'{"name": "f"}')
        box.run()
        assert [row[0] for row in rows(box, ALL)] == [3, 5]
        assert state(box, "state, errors") == ("RUNNING", 4)


def test_keys_of_several_columns_and_texts() -> None:
    """Texts of digits stay texts; a key of two columns is an object; _key is the whole key as text."""
    broker = FakeBroker(topic="t")
    with sandbox(broker) as box:
        box.execute("CREATE TABLE p.two (a VARCHAR(9), b INT, v INT, PRIMARY KEY (a, b))")
        box.execute("CREATE INGEST i FROM CONNECTION k (TOPIC 't', FORMAT UPSERT) INTO p.two")
        broker.send(b'{"v": 1}', key=key(a="1.10", b=1))
        broker.send(b'{"v": 2}', key=key(a="1.1", b=1))
        broker.send(b'{"v": 3}', key=key(a="1.1", b=2))
        box.run()
        assert rows(box, "SELECT * FROM two ORDER BY v") == [("1.10", 1, 1), ("1.1", 1, 2), ("1.1", 2, 3)]
        box.execute("CREATE TABLE p.one (a VARCHAR(40), v INT, PRIMARY KEY (a))")
        box.execute("CREATE INGEST j FROM CONNECTION k (TOPIC 't', FORMAT UPSERT) INTO p.one (a = _key)")
        box.run()
        assert rows(box, "SELECT * FROM one ORDER BY v") == [
            ('{"a": "1.10", "b": 1}', 1), ('{"a": "1.1", "b": 1}', 2), ('{"a": "1.1", "b": 2}', 3)]
        broker.send(b"", key=key(a="1.1", b=1))
        box.run()
        assert rows(box, "SELECT v FROM one ORDER BY v") == [(1,), (3,)]


def test_other_formats_replace_by_key() -> None:
    """JSON into a table with a KEY: what comes replaces what has its key; without a key it can't be used."""
    broker = FakeBroker()
    with people(broker) as box:
        box.execute("CREATE INGEST i FROM CONNECTION k (TOPIC 't') INTO p.people ON_ERROR SKIP")
        for content in ('{"id": 1, "name": "a"}', '[{"id": 2}, {"id": 1, "score": 3}]', '{"name": "x"}'):
            broker.send(content.encode())
        box.run()
        assert rows(box, ALL) == [(1, None, 3.0), (2, None, None)]
        assert "no value in $.id for id, a part of the KEY" in state(box, "last_error")[0]


@pytest.mark.parametrize(("statement", "problem"), [
    ("(TOPIC 't', FORMAT DEBEZIUM) INTO meters", "for tables with a KEY"),
    ("(TOPIC 't', FORMAT UPSERT) INTO meters", "for tables with a KEY"),
    ("(TOPIC 't', FORMAT DEBEZIUM) INTO people TBNAME ($.a)", "TBNAME is not for a table with a KEY"),
    ("(TOPIC 't', FORMAT DEBEZIUM) INTO people TS ON ARRIVAL", "TS is not for a table with a KEY"),
    ("(TOPIC 't', FORMAT DEBEZIUM, SCHEMA 'x') INTO people", "SCHEMA is not for debezium"),
    ("(TOPIC 't', FORMAT DEBEZIUM) INTO people (id = $.a.b)", "the KEY is not within other fields"),
    ("(TOPIC 't', FORMAT DEBEZIUM) INTO people (name = $.a[*])", "[*] is for FORMAT json"),
])
def test_what_cannot_be_is_refused(statement: str, problem: str) -> None:
    """Each wrong CREATE INGEST says what is wrong with it."""
    with people(FakeBroker()) as box:
        with pytest.raises(InvalidStatementError) as caught:
            box.execute(f"CREATE INGEST i FROM CONNECTION k {statement}")
        assert problem in str(caught.value)


Step = tuple[str, Any]


@settings(max_examples=times(6, 150), deadline=None)
@given(
    st.integers(1, 2), st.integers(1, 3), st.integers(1, 5), st.sampled_from(["INT", "VARCHAR(8)"]),
    st.lists(st.one_of(
        st.tuples(st.sampled_from(["put", "put", "delete", "move", "keep"]), st.integers(0, 4)),
        st.tuples(st.sampled_from(["bad", "run", "checkpoint", "kill", "step", "crash", "flush"]), st.just(0))),
        max_size=40))
@example(1, 1, 1, "INT", [("put", 0), ("run", 0), ("delete", 0), ("run", 0), ("put", 0), ("run", 0), ("crash", 0)])
def test_kills_leave_what_the_messages_say(
    vgroups: int, partitions: int, piece: int, kind: str, steps: list[Step]
) -> None:
    """Whatever is killed when: the table is what the last message of each key says, though deletes come again."""
    broker = FakeBroker(partitions=partitions, piece=piece)
    directory = TemporaryDirectory()
    box = sandbox(broker, vgroups, directory=Path(directory.name))
    box.execute(f"CREATE TABLE p.t (id {kind}, v INT, w INT, PRIMARY KEY (id))")
    box.execute("CREATE INGEST i FROM CONNECTION k (TOPIC 't', FORMAT DEBEZIUM) INTO p.t ON_ERROR SKIP")
    wanted: dict[Any, tuple[int, int | None]] = {}

    def name(number: int) -> Any:
        return number if kind == "INT" else f"k{number}"

    try:
        for count, (action, number) in enumerate(steps):
            one, at = name(number), number % partitions  # a key stays in one partition
            match action:
                case "put":
                    broker.send(envelope("u", None, {"id": one, "v": count, "w": count}), at)
                    wanted[one] = count, count
                case "delete":
                    broker.send(envelope("d", {"id": one}), at)
                    broker.send(b"", at, key(id=one))
                    wanted.pop(one, None)
                case "move":
                    other = name(number + partitions)
                    broker.send(envelope("u", {"id": one}, {"id": other, "v": count, "w": 0}), at)
                    wanted.pop(one, None)
                    wanted[other] = count, 0
                case "keep":
                    broker.send(envelope("u", None, {"id": one, "v": count, "w": "__debezium_unavailable_value"}), at)
                    wanted[one] = count, wanted.get(one, (0, None))[1]
                case "bad":
                    broker.send(envelope("t"), at)
                case _:
                    box = gone_through(box, action, Path(directory.name), broker)
        box.kill()
        assert rows(box, "SELECT * FROM t ORDER BY id") == [(one, *wanted[one]) for one in sorted(wanted)]
        assert state(box, "state")[0] == "RUNNING"
    finally:
        box.close()
        directory.cleanup()
