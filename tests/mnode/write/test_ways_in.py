"""Every way in takes the same values, or refuses them, whatever the type: columns and tags alike."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from conftest import times
from hypothesis import example, given, settings
from hypothesis import strategies as st

import penstock
from penstock.common.errors import PenstockError
from penstock.mnode.write.csv_rows import cells_by_row
from penstock.planner.streams.ingest_plan import plan_ingest
from penstock.shell.postgres.copy_rows import CopyReader, read_copy
from penstock.shell.postgres.parameter_values import ParameterText
from penstock.sql.dialect.parser import parse_one
from penstock.sql.schema import Session
from penstock.sql.tree.statements import CreateIngest
from penstock.tasks.external.connectors.consumers import avro_reader
from penstock.tasks.external.connectors.incoming_messages import MessageBatch
from penstock.tasks.ingest import message_decoding
from penstock.tasks.ingest.message_mapping import MessageMapper

T = TypeVar("T")

ZONE = "Europe/Berlin"
T0 = 1_700_000_000_000
KINDS = ("TINYINT", "INT", "BIGINT", "SMALLINT UNSIGNED", "BIGINT UNSIGNED", "FLOAT", "DOUBLE", "BOOL", "VARCHAR(24)",
         "NCHAR(24)", "VARBINARY(24)", "TIMESTAMP", "DECIMAL(10, 2)")
PRECISIONS = {"ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
REFUSED = "refused"

Put = Callable[["Bed", str, Any], None]
"""Writes a value as `v`, and as the tag `g` if there is one, of the child table that it is given the name of."""


class Bed:
    """A super table for each type, and one for each precision, by their names."""

    def __init__(self, connection: penstock.Connection, folder: Path) -> None:
        self.connection = connection
        self.engine: Any = connection.lease.engine
        self.folder = folder
        self.names = itertools.count()
        self.table = ""
        self.has_tag = True
        self.ingested: Any = None

    def choose(self, kind: str, precision: str = "ms") -> None:
        self.connection.execute(f"USE w_{precision}")
        self.table = "t_" + "".join(one for one in kind.lower() if one.isalpha())
        self.has_tag = not kind.startswith("DECIMAL")
        self.connection.execute(f"CREATE STABLE IF NOT EXISTS {self.table} (ts TIMESTAMP, v {kind}) "
                                f"TAGS ({f'g {kind}' if self.has_tag else 'g INT'})")
        self.time = T0 * (PRECISIONS[precision] // 1_000)

    @property
    def columns(self) -> str:
        return "tbname, ts, v, g" if self.has_tag else "tbname, ts, v"

    @property
    def count(self) -> int:
        return 2 if self.has_tag else 1

    def outcome(self, put: Put, value: Any) -> Any:
        """Returns what is stored, or that it was refused."""
        return self.outcomes({"": put}, value)[""]

    def outcomes(self, ways: dict[str, Put], value: Any) -> dict[str, Any]:
        """Does what `outcome` does, by way."""
        found: dict[str, Any] = {}
        children: dict[str, str] = {}
        for way, put in ways.items():
            name, self.ingested = f"c{next(self.names)}", None
            try:
                put(self, name, value)
            except (PenstockError, penstock.DatabaseError):
                found[way] = REFUSED
            else:
                found[way] = self.ingested
                if self.ingested is None:
                    children[name] = way
        if children:
            names = ", ".join(f"'{name}'" for name in children)
            rows = self.connection.execute(
                f"SELECT tbname, v, g FROM {self.table} WHERE tbname IN ({names})").fetch_arrow()
            for name, *stored in zip(rows.column(0).to_pylist(), *rows.columns[1:], strict=True):
                found[children[name]] = tuple(map(plain, stored[:self.count]))
        return found


def plain(value: Any) -> Any:
    """A stored value, such that those that differ are unequal: -0.0 and 0.0, too."""
    if isinstance(value, pa.Scalar):
        value = value.value if isinstance(value, pa.TimestampScalar) else value.as_py()
    return repr(value) if isinstance(value, float) else value


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("ways")
    with penstock.connect(str(folder / "data"), {"timezone": ZONE}) as connection:
        for precision in PRECISIONS:
            connection.execute(f"CREATE DATABASE w_{precision} VGROUPS 1 KEEP 36500 PRECISION '{precision}'")
        yield Bed(connection, folder)


# --- the ways -----------------------------------------------------------------------------------------------------


def by_sql(spelled: Callable[[Any], str]) -> Put:
    def put(bed: Bed, name: str, value: Any) -> None:
        text = spelled(value)
        row = ", ".join([f"'{name}'", str(bed.time), *[text] * bed.count])
        bed.connection.execute(f"INSERT INTO {bed.table} ({bed.columns}) VALUES ({row})")
    return put


def by_using(spelled: Callable[[Any], str]) -> Put:
    """The short way of single rows, and tags by themselves."""
    def put(bed: Bed, name: str, value: Any) -> None:
        text = spelled(value)
        bed.connection.execute(f"INSERT INTO {name} USING {bed.table} TAGS ({text if bed.has_tag else 1}) "
                               f"VALUES ({bed.time}, {text})")
    return put


def by_parameters(bed: Bed, name: str, value: Any) -> None:
    marks = ", ".join("?" * (2 + bed.count))
    bed.connection.execute(f"INSERT INTO {bed.table} ({bed.columns}) VALUES ({marks})",
                           (name, bed.time, *[value] * bed.count))


def by_many(bed: Bed, name: str, value: Any) -> None:
    marks = ", ".join("?" * (2 + bed.count))
    bed.connection.cursor().executemany(f"INSERT INTO {bed.table} ({bed.columns}) VALUES ({marks})",
                                        [(name, bed.time, *[value] * bed.count)])


def by_postgres(bed: Bed, name: str, value: Any) -> None:
    marks = ", ".join(f"${place + 3}" for place in range(bed.count))
    text = ParameterText(f"INSERT INTO {bed.table} ({bed.columns}) VALUES ($1, $2, {marks})")
    bed.connection.execute(text.filled([name, bed.time, *[value] * bed.count]))


def table_of(bed: Bed, name: str, values: pa.Array) -> pa.Table:
    return pa.table({"tbname": [name], "ts": [bed.time], "v": values, **({"g": values} if bed.has_tag else {})})


def by_arrow(kind: pa.DataType | None = None, encoded: Callable[[pa.Array], pa.Array] = lambda values: values) -> Put:
    def put(bed: Bed, name: str, value: Any) -> None:
        bed.connection.cursor().insert_arrow(bed.table, table_of(bed, name, encoded(pa.array([value], kind))))
    return put


def by_parquet(bed: Bed, name: str, value: Any) -> None:
    path = bed.folder / "rows.parquet"
    pq.write_table(table_of(bed, name, pa.array([value])), path)
    bed.connection.execute(f"INSERT INTO {bed.table} FILE '{path}'")


def by_csv(bed: Bed, name: str, value: Any) -> None:
    path = bed.folder / "rows.csv"
    text = value if isinstance(value, str) else repr(value)
    pa_csv.write_csv(table_of(bed, name, pa.array([text])), path)
    bed.connection.execute(f"INSERT INTO {bed.table} FILE '{path}'")


def by_copy(bed: Bed, name: str, value: Any) -> None:
    text = value if isinstance(value, str) else repr(value)
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
    reader = CopyReader(read_copy(f"COPY {bed.table} FROM STDIN").form)
    rows = reader.rows("\t".join([name, str(bed.time), *[escaped] * bed.count]).encode() + b"\n", is_last=True)
    cells = cells_by_row(bed.columns.split(", "), rows, lambda row: f"line {row + 1}")
    bed.engine.insert_cells(bed.table, cells, bed.connection.session)


def by_message(form: str, made: Callable[[dict[str, Any]], bytes], count: int = 1, schema: str = "") -> Put:
    """An ingest's mapping: many messages at once are read in another way than one."""
    def put(bed: Bed, name: str, value: Any) -> None:
        session = bed.connection.session
        fields = f", SCHEMA '{schema}{',g' if bed.has_tag else ''}'" if schema else ""
        statement = parse_one(f"CREATE INGEST i FROM CONNECTION k (TOPIC 't', FORMAT {form}{fields}) "
                              f"INTO {bed.table} TBNAME ($.name)")
        assert isinstance(statement, CreateIngest)
        plan = plan_ingest(statement, "kafka", None, bed.engine.catalog, Session(session.database, ZONE, T0))
        mapper = MessageMapper(plan, bed.engine.clock.now_ms, avro_reader(plan.schema) if form == "avro" else None)
        content = {"name": name, "ts": bed.time, "v": value, **({"g": value} if bed.has_tag else {})}
        messages = MessageBatch("p", "", list(range(count)), [made(content)] * count, [T0] * count, "t")
        with patch.object(message_decoding, "_FEW", 1):
            converted = mapper.convert(messages)
        if converted.refused:
            raise penstock.DataError(converted.refused[0].reason)
        places = [converted.rows.column("v")[place] for place in range(count)]
        stored = {plain(one) for one in places}
        assert len(stored) == 1
        [child] = [mapper.children[number] for number in range(len(mapper.children))]
        bed.ingested = (*stored, *((plain(child.tag_values[0]),) if bed.has_tag else ()))
    return put


def as_json(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode()


def as_csv(content: dict[str, Any]) -> bytes:
    cells = (str(value).replace('"', '""') for value in content.values())
    return ",".join(f'"{cell}"' for cell in cells).encode()


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"


TEXT_WAYS: dict[str, Put] = {
    "sql": by_sql(quoted), "using": by_using(quoted), "parameters": by_parameters, "many": by_many,
    "postgres": by_postgres, "copy": by_copy, "csv": by_csv, "parquet": by_parquet, "string": by_arrow(pa.string()),
    "large_string": by_arrow(pa.large_string()), "string_view": by_arrow(pa.string_view()),
    "dictionary": by_arrow(pa.string(), lambda values: values.dictionary_encode()),
    "json": by_message("json", as_json), "many json": by_message("json", as_json, 2),
    "csv messages": by_message("csv", as_csv, 1, "name,ts,v"),
    "many csv messages": by_message("csv", as_csv, 2, "name,ts,v"),
}
NUMBER_WAYS: dict[str, Put] = {
    "sql": by_sql(repr), "using": by_using(repr), "parameters": by_parameters, "many": by_many,
    "postgres": by_postgres, "arrow": by_arrow(), "parquet": by_parquet,
    "json": by_message("json", as_json), "many json": by_message("json", as_json, 2),
}


def agree(bed: Bed, ways: dict[str, Put], value: Any) -> Any:
    """Asserts that all ways come to the same, and returns it."""
    if isinstance(value, int) and not -2**63 <= value < 2**63:  # what Arrow makes no array of
        ways = {way: put for way, put in ways.items() if way not in ("arrow", "parquet")}
    found = bed.outcomes(ways, value)
    first = found["sql"]
    assert {way: one for way, one in found.items() if one != first} == {}, (bed.table, value, first)
    return first


# --- the values ---------------------------------------------------------------------------------------------------

TEXTS = ("", " ", "5", "+5", "-5", " 5 ", "5.", ".5", "1.5", "-1.5", "2.5", "0.49999999999999994", "1e2", "1E+2",
         "1e-3", "0x10", "0b11", "1_000", "1,5", "--5", "5-", "1e", "٣", "true", "TRUE", "false", "t", "yes",
         "NULL", "null", "NaN", "inf", "-Infinity", "1e999", "-1e999", "1e-999", "3.4028235e38",
         "3.4028236e38", "abc", "\\x4142",
         "\\x4", "é", "x" * 24, "x" * 25, "é" * 13, "now", "it's", 'a "b"', "a\\b", "2147483647.5", "-2147483648.5")
NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 255, 256, -128, -129, 1.5, 2.5, -0.5, -0.0, 0.1, 1e300, -1e39, 3.4028235e38, 5e-324, 2**53 + 1, 1.0, 1e20,
    10**18, 2.0**63, -2.0**63, 12_345_678.125, *(bound for bits in (8, 16, 32, 64)
        for bound in (2**bits - 1, 2**bits, 2**(bits - 1) - 1, 2**(bits - 1), -2**(bits - 1), -2**(bits - 1) - 1)))
TIMES = (
    "2025-10-26 02:30:00", "2025-10-26T02:30:00", "2025-10-26 02:30:00+02:00", "2025-10-26 01:30:00Z",
    "2025-03-30 02:30:00", "2025-03-30 02:30:00.123456789", "2025-03-30T00:30:00.5Z", "2025-07-01", "2025-7-1 1:02",
    "2025-07-01 12", "2025-07-01 12:30", "2025-07-01T12:30Z", "2025-07-01T12:30:00+0530", "2025-07-01T12:30:00-08",
    "2025-07-01T12:30:00+15:00", "2025-06-30T23:59:60Z", "2025-07-01T24:00:00Z", "2025-02-29",
    "1969-12-31T23:59:59.9999Z",
    "1969-12-31 23:59:59.999999999", "1965-05-05 05:05:05", "2500-01-01 00:00:00", "0000-01-01 00:00:00", "9999-12-31",
    "2045-07-01 00:00:00", "10000-01-01 00:00:00", "1751360400000", "-1", "1.7e12", "1751360400000.5", "yesterday",
    "2025-07-01T12:30:00z", "  2025-07-01  ", "2025-07-01 12:30:00,5", "20250701", "2025-07-01T12:30:00 Europe/Berlin")


def some_of(values: Sequence[T], place: int) -> Sequence[T]:
    """Returns every third value, other ones for the next place; all under `make nightly`."""
    apart = times(3, 1)
    return values[place % apart::apart]


@pytest.mark.parametrize("kind", KINDS)
def test_texts(bed: Bed, kind: str) -> None:
    """Texts with numbers, truth values and other things in them."""
    bed.choose(kind)
    texts = {text for text in some_of(TEXTS, KINDS.index(kind))
             if text != "now" or kind != "TIMESTAMP"}  # which is another one each time
    ways = TEXT_WAYS if kind in ("INT", "DOUBLE", "VARCHAR(24)", "TIMESTAMP") else {
        way: TEXT_WAYS[way] for way in ("sql", "using", "copy", "string", "json", "many csv messages")}
    taken = {text for text in texts if agree(bed, ways, text) != REFUSED}
    assert {"5", "+5", "1e2"} & texts <= taken
    assert "NaN" not in taken or kind.startswith(("VAR", "NCHAR"))


@pytest.mark.parametrize("kind", KINDS)
def test_numbers(bed: Bed, kind: str) -> None:
    """Both ends of each type and what is beyond, fractions, and truth values."""
    bed.choose(kind)
    outcomes = [agree(bed, NUMBER_WAYS, number) for number in some_of(NUMBERS, KINDS.index(kind))]
    assert set(outcomes) - {REFUSED} or kind.startswith("VARBINARY")
    spelled = {**NUMBER_WAYS, "sql": by_sql(lambda value: str(value).lower()),
               "using": by_using(lambda value: str(value).lower())}
    for value in (True, False):
        agree(bed, spelled, value)
    for value in (math.nan, math.inf, -math.inf):
        assert agree(bed, NUMBER_WAYS, value) == REFUSED


def test_fractions_are_rounded_away_from_zero(bed: Bed) -> None:
    """As TDengine does, and PostgreSQL its decimals."""
    bed.choose("INT")
    for number, stored in ((1.5, 2), (2.5, 3), (-1.5, -2), (1.4, 1)):
        assert agree(bed, NUMBER_WAYS, number) == (stored, stored)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_texts_as_times(bed: Bed, precision: str) -> None:
    """All forms, zones and precisions; hours that summer time skips and doubles; leap seconds; before 1970."""
    bed.choose("TIMESTAMP", precision)
    for text in some_of(TIMES, [*PRECISIONS].index(precision)):
        agree(bed, TEXT_WAYS, text)
    [skipped, doubled] = [agree(bed, TEXT_WAYS, text)[0] // PRECISIONS[precision]
                          for text in ("2025-03-30 02:30:00", "2025-10-26 02:30:00")]
    assert (skipped, doubled) == (1_743_298_200, 1_761_438_600)


MOMENTS = st.datetimes(dt.datetime(1930, 1, 1), dt.datetime(2100, 1, 1))
NEAR = st.builds(lambda day, minutes: day + dt.timedelta(minutes=minutes),
                 st.sampled_from([dt.datetime(2025, 3, 30), dt.datetime(2025, 10, 26), dt.datetime(2040, 10, 28)]),
                 st.integers(60, 240))


@settings(max_examples=times(12, 300), deadline=None)
@given(MOMENTS | NEAR, st.sampled_from(["ms", "us", "ns"]), st.sampled_from([None, "UTC", "America/New_York"]))
@example(dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), "ms", "UTC")
def test_moments(bed: Bed, moment: dt.datetime, precision: str, zone: str | None) -> None:
    """Python's, NumPy's and Arrow's of all units, with and without a zone, are what their texts are."""
    bed.choose("TIMESTAMP", precision)
    value = moment.replace(tzinfo=None if zone is None else ZoneInfo(zone))
    ways: dict[str, Put] = {"sql": by_sql(lambda one: f"'{one.isoformat()}'"), "parameters": by_parameters,
                            "many": by_many, "parquet": by_parquet,
                            "us": by_arrow(pa.timestamp("us", zone)), "ns": by_arrow(pa.timestamp("ns", zone)),
                            "json": by_message("json", lambda row: json.dumps(row, default=str).encode())}
    if zone is None:
        ways["numpy"] = lambda bed, name, one: by_parameters(bed, name, np.datetime64(one))
    stored = agree(bed, ways, value)
    cut = value.replace(microsecond=0)
    ways = {"sql": by_sql(lambda one: f"'{one.isoformat()}'"), "s": by_arrow(pa.timestamp("s", zone)),
            "ms": by_arrow(pa.timestamp("ms", zone))}
    assert agree(bed, ways, cut)[0] == stored[0] // PRECISIONS[precision] * PRECISIONS[precision]


@pytest.mark.parametrize("day", [dt.date(2025, 7, 1), dt.date(1950, 1, 1)])
def test_dates(bed: Bed, day: dt.date) -> None:
    """A date is the local midnight that begins it."""
    bed.choose("TIMESTAMP")
    ways = {"sql": by_sql(lambda one: f"'{one}'"), "parameters": by_parameters, "date32": by_arrow(pa.date32()),
            "date64": by_arrow(pa.date64()), "parquet": by_parquet}
    agree(bed, ways, day)


def test_the_second_of_two_equal_times(bed: Bed) -> None:
    """Python tells them apart by `fold`, with and without a zone."""
    bed.choose("TIMESTAMP")
    second = dt.datetime(2025, 10, 26, 2, 30, fold=1)
    for value in (second, second.replace(tzinfo=ZoneInfo(ZONE))):
        for put in (by_parameters, by_many):
            assert bed.outcome(put, value)[0] == 1_761_442_200_000


@pytest.mark.parametrize("kind", ["INT", "BIGINT", "DOUBLE", "FLOAT", "DECIMAL(10, 2)", "VARCHAR(24)", "BOOL"])
@pytest.mark.parametrize("value", ["0", "1.005", "-2.5", "12345678.91", "99999999.995", "1E+3"])
def test_decimals(bed: Bed, kind: str, value: str) -> None:
    """Decimals are exact until they are rounded."""
    bed.choose(kind)
    ways = {"sql": by_sql(lambda one: format(one, "f")), "arrow": by_arrow(), "parquet": by_parquet}
    stored = agree(bed, ways, Decimal(value))
    if not kind.startswith("VARCHAR"):
        assert bed.outcome(by_parameters, Decimal(value)) == stored


@settings(max_examples=times(16, 400), deadline=None)
@given(st.sampled_from(KINDS), st.one_of(
    st.floats(), st.integers(-2**65, 2**65), st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=26),
    st.from_regex(r"[-+ ]?[0-9]{1,20}(\.[0-9]{0,20})?([eE][-+]?[0-9]{1,3})?", fullmatch=True).map(str.rstrip)))
def test_any_value(bed: Bed, kind: str, value: Any) -> None:
    """Whatever is given, of whatever type."""
    bed.choose(kind)
    ways = TEXT_WAYS if isinstance(value, str) else NUMBER_WAYS
    agree(bed, ways, value)


def test_results_come_back_as_they_were(bed: Bed) -> None:
    """Times of results are in UTC without a zone, and known again."""
    bed.choose("TIMESTAMP")
    name = f"c{next(bed.names)}"
    by_sql(quoted)(bed, name, "2025-07-01 12:00:00")
    query = f"SELECT tbname, ts, v, g FROM {bed.table} WHERE tbname = '{name}'"
    result = bed.connection.execute(query).fetch_arrow()
    bed.connection.execute(f"DELETE FROM {name}")
    bed.connection.cursor().insert_arrow(bed.table, result)
    assert bed.connection.execute(query).fetch_arrow().equals(result)
