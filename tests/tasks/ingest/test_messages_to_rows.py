"""Messages of all formats to rows: batches as single messages, and whatever one of them is, it harms no other."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

import fastavro
import pytest
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.streams.stream_kit import Catalog

from penstock.common.errors import InvalidStatementError
from penstock.planner.streams.ingest_plan import IngestPlan, plan_ingest
from penstock.sql.dialect.parser import parse_one
from penstock.sql.schema import Column, Session
from penstock.sql.tree.statements import CreateIngest
from penstock.sql.types import BIGINT, BOOL, DOUBLE, INT, DataType, Kind, timestamp
from penstock.tasks.external.connectors.consumers import avro_reader
from penstock.tasks.external.connectors.incoming_messages import MessageBatch
from penstock.tasks.ingest import message_decoding
from penstock.tasks.ingest.message_mapping import Converted, MessageMapper

NOW = 1_700_000_000_000
COLUMNS = (
    Column("ts", timestamp(), "ts"), Column("i", INT, "i"), Column("b", BIGINT, "b"), Column("f", DOUBLE, "f"),
    Column("ok", BOOL, "ok"), Column("s", DataType(Kind.VARCHAR, 24), "s"), Column("at", timestamp(), "at"),
)
CATALOG = Catalog(2, 0, columns=COLUMNS)


def plan(rest: str, kind: str = "kafka", zone: str = "UTC") -> IngestPlan:
    statement = parse_one(f"CREATE INGEST i FROM CONNECTION k {rest}")
    assert isinstance(statement, CreateIngest)
    return plan_ingest(statement, kind, None, CATALOG, Session("p", zone, 0))


def convert(plan: IngestPlan, messages: list[bytes], **more: Any) -> tuple[list[dict[str, Any]], Converted]:
    """Returns the rows, with the name and the tags of their child tables in place of its number."""
    mapper = MessageMapper(plan, lambda: NOW, avro_reader(plan.schema) if plan.format == "avro" else None)
    batch = MessageBatch("t/0", "", [10 * n for n in range(len(messages))], messages, [NOW] * len(messages),
                         more.pop("topics", "t"), **more)
    converted = mapper.convert(batch)
    place = converted.rows.schema.get_field_index("at")
    rows = converted.rows.set_column(place, "at", converted.rows.column(place).cast("int64")).to_pylist()
    for row in rows:
        child = mapper.children[row.pop("_child")]
        row |= {"name": child.name, "site": child.tag_values[0]}
    return rows, converted


JSON = plan("(TOPIC 't') INTO meters (i = $.inner.i, s = $.inner.text) TBNAME ($.d)")

odd = st.one_of(st.none(), st.booleans(), st.integers(-2**62, 2**62), st.floats(), st.text(max_size=30),
                st.sampled_from(["2024-01-01 00:00:00", "2024-01-01T00:00:00Z", "12", "1.5", "true"]))
objects = st.fixed_dictionaries(
    {"ts": st.integers(NOW - 10_000, NOW), "d": st.sampled_from(["d0", "d1", "Größe"])},
    optional={"b": odd, "f": odd, "ok": odd, "at": odd, "new": odd,
              "inner": st.one_of(st.none(), st.fixed_dictionaries({}, optional={"i": odd, "text": odd, "new": odd}))})
contents = st.one_of(
    objects.map(json.dumps), st.lists(objects, max_size=3).map(json.dumps),
    objects.map(lambda content: json.dumps(content, indent=1)),
    st.sampled_from(["", "{", "[]", "3", "{}", '{"ts": 1', '"a"}', '{"a": 1}{"b": 2}', '{"ts":1,"ts":2}']),
).map(str.encode)


@settings(max_examples=times(32, 800), deadline=None)
@given(st.lists(st.one_of(contents, objects.map(json.dumps).map(str.encode), st.binary(max_size=8)), max_size=40))
def test_a_batch_gives_what_its_messages_give_one_by_one(messages: list[bytes]) -> None:
    """Reading batches at once changes no value and no verdict, whatever stands beside a message."""
    with patch.object(message_decoding, "_FEW", 0):
        rows, converted = convert(JSON, messages)
    refused = {one.place for one in converted.refused}
    expected = []
    for place, message in enumerate(messages):
        alone, single = convert(JSON, [message])
        assert bool(single.refused) == (place in refused)
        expected += [{**row, "_offset": 10 * place} for row in alone]
    # Its tags a child table has from its first row alone.
    for row in (*rows, *expected):
        del row["site"]
    assert json.dumps(rows, default=str) == json.dumps(expected, default=str)


@pytest.mark.parametrize("values", [("0.0", "false"), ("true", "2.0"), ("1", "false")])
def test_truth_values_stay_apart_from_numbers_of_other_messages(values: tuple[str, str]) -> None:
    """A TIMESTAMP takes numbers, but neither true nor false, whatever comes with it."""
    messages = [f'{{"ts": {NOW}, "d": "x", "at": {value}}}'.encode() for value in values]
    _, converted = convert(JSON, messages)
    assert [messages[one.place][-2:] for one in converted.refused] == [b"e}"]


def test_json_takes_values_as_insert_does() -> None:
    """Fractions are rounded, texts keep their form, unknown fields are counted."""
    rows, converted = convert(JSON, [json.dumps({
        "ts": NOW, "d": "x", "b": 2**53, "f": 1, "ok": True, "at": "2023-11-14T22:13:20Z", "site": "s1",
        "inner": {"i": 7.9, "text": "2024-01-01T00:00:00", "new": 1}}).encode()] * 20)
    assert not converted.refused
    assert converted.unknown == 20
    assert rows[0] == {"_op": 0, "_offset": 0, "ts": NOW, "i": 8, "b": 2**53, "f": 1.0, "ok": True,
                       "s": "2024-01-01T00:00:00", "at": NOW, "name": "x", "site": "s1"}


@pytest.mark.parametrize(("unit", "value", "expected"), [
    ("S", 1_699_999_999, 1_699_999_999_000), ("S", 1_699_999_999.25, 1_699_999_999_250),
    ("US", 1_699_999_999_123_456, 1_699_999_999_123), ("NS", 1_699_999_999_123_456_789, 1_699_999_999_123),
    ("MS", "2023-11-14 22:13:19.5", 1_699_999_999_500 - 3_600_000),
    ("MS", "2023-11-14T22:13:19.5+02:00", 1_699_999_999_500 - 7_200_000),
])
def test_times_in_all_forms(unit: str, value: object, expected: int) -> None:
    """Numbers go by TIME_UNIT, texts by their own zone or else the session's."""
    chosen = plan(f"(TOPIC 't', TIME_UNIT {unit}) INTO meters TBNAME (_topic) TS FROM $.when", zone="Europe/Berlin")
    for count in (1, 30):
        rows, converted = convert(chosen, [json.dumps({"when": value}).encode()] * count)
        assert not converted.refused
        assert {row["ts"] for row in rows} == {expected}


def test_parts_of_what_comes_with_a_message() -> None:
    """Levels of the topic, the key and the time of arrival serve as values and names."""
    chosen = plan("(TOPIC 't') INTO meters (s = _topic(2)) TAGS (site = _topic(1)) TBNAME (_key) TS ON ARRIVAL")
    rows, _ = convert(chosen, [b"{}", b"{}"], topics=["a/b", "c"], keys=[b"k1", b"k2"])
    assert [(row["ts"], row["s"], row["site"], row["name"]) for row in rows] == [
        (NOW, "b", "a", "k1"), (NOW, None, "c", "k2")]


@pytest.mark.parametrize(("content", "reason"), [
    ('{"ts": null, "d": "x"}', "no time in $.ts"), ('{"ts": 1, "d": "x"}', "KEEP allows"),
    (f'{{"ts": {NOW}}}', "no name of a child table in $.d"), (f'{{"ts": {NOW}, "d": "a.b"}}', "cannot be the name"),
    (f'{{"ts": {NOW}, "d": "x", "b": 1e30}}', "out of the range of BIGINT"),
    (f'{{"ts": {NOW}, "d": "x", "s": {{}}}}', ""),
    (f'{{"ts": {NOW}, "d": "x", "b": ' + '{"a": [' * 17 + "1" + "]}" * 17 + "}", "more than 32 deep"),
    ('{"ts": "yesterday", "d": "x"}', "is not a timestamp"), ("[1]", "no JSON object"), ("nonsense", "no JSON"),
    (f'{{"ts": {NOW}, "d": "x", "inner": {{"text": "{"x" * 25}"}}}}', "takes 24"),
])
def test_reasons(content: str, reason: str) -> None:
    """The reason names what is wrong with a message."""
    _, converted = convert(JSON, [content.encode()])
    assert not reason or reason in converted.refused[0].reason


def test_csv() -> None:
    """Quoted values, empty ones, several lines in a message; wrong lines are refused alone."""
    chosen = plan("(TOPIC 't', FORMAT csv, SCHEMA 'ts, d, i, s') INTO meters TBNAME ($.d)")
    lines = [f'{NOW + n},d{n % 2},{n},"a, ""b"""'.encode() for n in range(20)]
    lines[3] = f"{NOW + 3},d1,,".encode()
    lines[5] = b"1,2"
    lines[7] = f"{NOW + 7},d1,x,y".encode()
    lines[9] = lines[9] + b"\r\n" + f"{NOW + 100},d1,100,z\r\n".encode()
    rows, converted = convert(chosen, lines)
    assert [one.place for one in converted.refused] == [5, 7]
    assert [row["i"] for row in rows] == [0, 1, 2, None, 4, 6, 8, 9, 100, *range(10, 20)]
    assert (rows[0]["s"], rows[3]["s"]) == ('a, "b"', None)


def test_avro() -> None:
    """Records with times and inner records; bytes that are none are refused alone, a wrong schema at once."""
    schema = {"type": "record", "name": "m", "fields": [
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}}, {"name": "d", "type": "string"},
        {"name": "inner", "type": {"type": "record", "name": "n", "fields": [{"name": "i", "type": ["null", "int"]}]}}]}
    chosen = plan(f"(TOPIC 't', FORMAT avro, SCHEMA '{json.dumps(schema)}') INTO meters (i = $.inner.i) TBNAME ($.d)")
    messages = []
    for number in range(20):
        stream = io.BytesIO()
        at = datetime.fromtimestamp((NOW - number) / 1000, UTC)
        fastavro.schemaless_writer(stream, schema, {"ts": at, "d": "x", "inner": {"i": number or None}})
        messages.append(stream.getvalue())
    messages[4] = b"\x01"
    messages[6] += b"more"
    rows, converted = convert(chosen, messages)
    assert [one.place for one in converted.refused] == [4, 6]
    assert [(row["ts"], row["i"]) for row in rows] == [
        (NOW - n, n or None) for n in range(20) if n not in (4, 6)]
    with pytest.raises(InvalidStatementError, match="no schema of Avro"):
        avro_reader('{"type": "recordd"}')


def test_lines() -> None:
    """Lines of one measurement are rows, those of others nothing; a line without a time has that of arrival."""
    chosen = plan("(TOPIC 't', FORMAT line, MEASUREMENT 'cpu') INTO meters (f = $.usage, s = _measurement) "
                  "TBNAME ($.host)")
    messages = [
        f"cpu,host=a,site=n usage=1.5,i=3i {NOW}000000\nmem,host=a free=1 {NOW}000000\ncpu,host=b usage=2 {NOW}500000",
        "cpu,host=a usage=", "# nothing", f"cpu,host=a,new=1 usage=4 {NOW - 1}000000", "cpu,host=c usage=5"]
    rows, converted = convert(chosen, [message.encode() for message in messages])
    assert [one.place for one in converted.refused] == [1]
    assert converted.unknown == 1
    assert [(row["_offset"], row["ts"], row["f"], row["i"], row["s"], row["name"], row["site"]) for row in rows] == [
        (0, NOW, 1.5, 3, "cpu", "a", "n"), (0, NOW, 2.0, None, "cpu", "b", None),
        (30, NOW - 1, 4.0, None, "cpu", "a", "n"), (40, NOW, 5.0, None, "cpu", "c", None)]


@settings(max_examples=times(24, 600), deadline=None)
@given(st.sampled_from(["ts", "d", "b", "f", "ok", "at", "site", "text", "new"]), st.sampled_from([
    '"\\ud83c"', "1e999", "NaN", "-Infinity", "9" * 40, "9" * 400, '"\\u0000"', '"' + "x" * 300 + '"',
    "[" * 400 + "]" * 400, '{"a":' * 900 + "1" + "}" * 900, "1.5", "true", "[1, 2]", "{}", "-0.0", '""',
    '"\\udc00\\ud83c"', "9007199254740993"]), st.integers(0, 30))
def test_no_message_harms_others(field: str, value: str, beside: int) -> None:
    """Whatever a field has, the messages around it become rows, and it becomes one, or is refused with a reason."""
    good = f'{{"ts": {NOW}, "d": "good", "b": 7}}'.encode()
    given_fields = {"ts": str(NOW), "d": '"odd"', field: value}
    inner = given_fields.pop("text", None)
    odd = ", ".join([*(f'"{name}": {one}' for name, one in given_fields.items()),
                     *([] if inner is None else [f'"inner": {{"text": {inner}}}'])])
    rows, converted = convert(JSON, [good] * beside + [f"{{{odd}}}".encode()] + [good] * beside)
    assert sum(row["name"] == "good" for row in rows) == 2 * beside
    assert len(rows) + len(converted.refused) == 2 * beside + 1
    for refused in converted.refused:
        assert refused.place == beside
        assert refused.reason.encode()


ARRAY = plan("(TOPIC 't') INTO meters (ts = $.values[*].t, f = $.values[*].v) TAGS (site = $.site) TBNAME ($.d)")


@settings(max_examples=times(24, 600), deadline=None)
@given(st.lists(st.lists(st.sampled_from([1.5, None, "x", "2", True, [1], {}]) | st.integers(-5, 5), max_size=5),
                max_size=25))
def test_each_element_of_an_array_is_a_row(messages: list[list[Any]]) -> None:
    """Against the rows one by one; an element that can't be used is refused alone, with a message of its own."""
    given_messages = [json.dumps({"d": f"d{n}", "site": f"s{n}", "values": [
        {"t": NOW + m, "v": value} for m, value in enumerate(values)]}).encode() for n, values in enumerate(messages)]
    rows, converted = convert(ARRAY, given_messages)
    usable = [(n, m, None if value is None else float(value)) for n, values in enumerate(messages)
              for m, value in enumerate(values) if value is None or value == "2" or type(value) in (int, float)]
    assert [(row["name"], row["site"], row["ts"], row["f"], row["_offset"]) for row in rows] == [
        (f"d{n}", f"s{n}", NOW + m, value, 10 * n) for n, m, value in usable]
    assert len(rows) + len(converted.refused) == sum(map(len, messages))
    for refused in converted.refused:
        alone, again = convert(ARRAY, [refused.content or given_messages[refused.place]])
        assert not alone
        assert len(again.refused) == 1


@pytest.mark.parametrize(("content", "reason"), [
    ('{"d": "x"}', "no array in $.values"), ('{"d": "x", "values": 1}', "no array in $.values"),
    ('{"d": "x", "values": [' + ", ".join(["1"] * 10_001) + "]}", "10001 elements"),
])
def test_messages_without_a_usable_array(content: str, reason: str) -> None:
    """The whole message is refused; one with an empty array has no rows."""
    rows, converted = convert(ARRAY, [content.encode(), b'{"d": "y", "values": []}'])
    assert not rows
    assert [reason in one.reason for one in converted.refused] == [True]


@pytest.mark.parametrize(("rest", "words"), [
    ("(TOPIC 't', FORMAT csv, SCHEMA 'a') INTO meters (ts = $.a[*]) TBNAME ($.d)", "for FORMAT json"),
    ("(TOPIC 't') INTO meters (ts = $.a[*].t, i = $.b[*].v) TBNAME ($.d)", "$.a[*] and $.b[*]"),
])
def test_one_array_of_json(rest: str, words: str) -> None:
    """Whatever else is refused with the statement, which prints fields as they were given."""
    with pytest.raises(InvalidStatementError) as caught:
        plan(rest)
    assert words in caught.value.message
    assert str(ARRAY.columns[0].field) == "$.values[*].t"
