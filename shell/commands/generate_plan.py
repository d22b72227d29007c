"""What `penstock generate` is to make: databases, super tables, their child tables and rows; from options or JSON.

Names and defaults are those of TDengine's taosBenchmark.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.common.errors import InvalidStatementError, NotFoundError
from penstock.common.suggestions import did_you_mean
from penstock.sql.dialect.parser import parse_one
from penstock.sql.tree.expression_nodes import quote_identifier, quote_string
from penstock.sql.tree.statements import CreateTable
from penstock.sql.types import DataType, Kind

DEFAULT_START = "1500000000000"
CITIES = ("San Francisco", "Los Angeles", "San Diego", "San Jose", "Palo Alto", "Campbell", "Mountain View",
          "Sunnyvale", "Santa Clara", "Cupertino")
LOCATIONS = tuple(f"California.{city.replace(' ', '')}" for city in CITIES)
_DATABASE_OPTIONS = {"KEEP": "36500"}
_QUOTED_OPTIONS = ("PRECISION", "CACHEMODEL", "STRICT", "ENCRYPT_ALGORITHM")

_IGNORED = frozenset({
    "cfgdir", "host", "port", "user", "password", "connection_pool_size", "create_table_thread_count", "result_file",
    "confirm_parameter_prompt", "pre_load_tb_meta", "thread_bind_vgroup", "keep_trying", "trying_interval",
    "continue_if_fail", "child_table_exists", "auto_create_table", "batch_create_tbl_num", "insert_mode",
    "line_protocol", "tcp_transfer", "escape_character", "multi_thread_write_one_tbl", "childtable_offset",
    "childtable_limit", "sample_format", "sample_file", "use_sample_ts", "tags_file", "max_sql_len",
})
"""Keys of JSON files that say how taosBenchmark works, not what it makes."""

_REFUSED = {"filetype": "insert", "data_source": "rand", "non_stop_mode": "no"}
"""Keys of JSON files that may have one value only."""

_TOP = ("filetype", "thread_count", "num_of_records_per_req", "prepare_rand", "prepared_rand", "interlace_rows",
        "insert_interval", "databases")
_TABLE = ("name", "childtable_count", "childtable_prefix", "insert_rows", "interlace_rows", "insert_interval",
          "disorder_ratio", "disorder_range", "timestamp_step", "start_timestamp", "data_source", "non_stop_mode",
          "columns", "tags")
_COLUMN = ("type", "name", "count", "len", "min", "max", "values")
_SHORT_TYPES = {"uint": "INT UNSIGNED", "ubigint": "BIGINT UNSIGNED", "usmallint": "SMALLINT UNSIGNED",
                "utinyint": "TINYINT UNSIGNED"}


@dataclass(frozen=True, slots=True)
class ValuePlan:
    """A column or a tag and its values: low <= value < high, or one of `values`; None is a bound that fits the type."""

    name: str
    type: DataType
    low: float | None = None
    high: float | None = None
    values: tuple[str, ...] = ()

    @property
    def sql(self) -> str:
        return f"{quote_identifier(self.name)} {self.type.sql()}"


@dataclass(frozen=True, slots=True)
class TablePlan:
    """A super table with `tables` child tables of `rows` rows each. `start` is text as for a TIMESTAMP, or `now`.

    `step` and `disorder_range` are in units of the database's precision, `disorder` in percent. `interlace` rows of a
    child table come one after the other before the next one's do, 0: all of them. `interval_ms` lies between rounds.
    """

    name: str
    columns: tuple[ValuePlan, ...]
    tags: tuple[ValuePlan, ...]
    tables: int = 10_000
    prefix: str = "d"
    rows: int = 10_000
    start: str = DEFAULT_START
    step: int = 1
    disorder: int = 0
    disorder_range: int = 1000
    interlace: int = 0
    interval_ms: int = 0

    @property
    def total(self) -> int:
        return self.tables * self.rows


@dataclass(frozen=True, slots=True)
class DatabasePlan:
    """A database; with `drop` it is made anew if it is there."""

    name: str
    tables: tuple[TablePlan, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    drop: bool = True

    @property
    def create(self) -> str:
        options = {**_DATABASE_OPTIONS, **self.options}
        words = (f"{name} {quote_string(value) if name in _QUOTED_OPTIONS else value}"
                 for name, value in options.items())
        return f"CREATE DATABASE IF NOT EXISTS {quote_identifier(self.name)} {' '.join(words)}"


@dataclass(frozen=True, slots=True)
class GeneratePlan:
    """All that is made. `request_rows` are written with one call, a column has `unique` different values."""

    databases: tuple[DatabasePlan, ...]
    threads: int = 8
    request_rows: int = 30_000
    unique: int = 10_000

    @property
    def total(self) -> int:
        return sum(table.total for database in self.databases for table in database.tables)


def default_columns() -> tuple[ValuePlan, ...]:
    return (ValuePlan("current", DataType(Kind.FLOAT), 8, 12), ValuePlan("voltage", DataType(Kind.INT), 210, 231),
            ValuePlan("phase", DataType(Kind.FLOAT), 0, 1))


def default_tags() -> tuple[ValuePlan, ...]:
    return (ValuePlan("groupid", DataType(Kind.INT), 1, 11),
            ValuePlan("location", DataType(Kind.VARCHAR, 24), values=LOCATIONS))


def plan_of(options: argparse.Namespace) -> GeneratePlan:
    """Returns what the command line asks for. Raises PenstockErrors."""
    if options.file is not None:
        return read_plan(Path(options.file).expanduser())
    columns, tags = default_columns(), default_tags()
    if options.data_type is not None or options.columns is not None:
        texts = [] if options.data_type is None else _split(options.data_type)
        texts += ["INT"] * ((options.columns or 0) - len(texts))
        columns = _named([_type(text, options.binwidth) for text in texts], "c")
    if options.tag_type is not None:
        tags = _named([_type(text, options.binwidth) for text in _split(options.tag_type)], "t")
    table = TablePlan(
        "meters", columns, tags, options.tables, options.table_prefix, options.records, options.start_timestamp,
        options.timestampstep, options.disorder, options.disorder_range, options.interlace_rows,
        options.insert_interval)
    vgroups = {} if options.vgroups is None else {"VGROUPS": str(options.vgroups)}
    return _checked(GeneratePlan((DatabasePlan(options.database, (table,), vgroups),), options.thread,
                                 options.rec_per_req, options.prepare_rand))


def read_plan(path: Path) -> GeneratePlan:
    """Returns what a JSON file of taosBenchmark asks for. Raises NotFoundError, InvalidStatementError."""
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise NotFoundError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise InvalidStatementError(f"{path} is not JSON: {error}") from error
    try:
        return _checked(_plan(document))
    except InvalidStatementError as error:
        raise InvalidStatementError(f"{path}: {error.message}", hint=error.hint) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidStatementError(
            f"{path} is not a file of taosBenchmark: {type(error).__name__}: {error}") from error


def _plan(document: Mapping[str, Any]) -> GeneratePlan:
    _check_keys(document, _TOP, "")
    common = {name: int(document.get(name, 0)) for name in ("interlace_rows", "insert_interval")}
    databases = []
    for database in document["databases"]:
        info = {name.upper(): value for name, value in database["dbinfo"].items()}
        drop = str(info.pop("DROP", "yes")) != "no"
        databases.append(DatabasePlan(
            str(info.pop("NAME")), tuple(_table({**common, **table}) for table in database["super_tables"]),
            {name: str(value) for name, value in info.items()}, drop))
    return GeneratePlan(
        tuple(databases), int(document.get("thread_count", 8)), int(document.get("num_of_records_per_req", 30_000)),
        int(document.get("prepare_rand", document.get("prepared_rand", 10_000))))


def _table(table: Mapping[str, Any]) -> TablePlan:
    _check_keys(table, _TABLE, f"super table {table['name']}: ")
    return TablePlan(
        table["name"], _values(table.get("columns"), default_columns()), _values(table.get("tags"), default_tags()),
        int(table.get("childtable_count", 10)), table["childtable_prefix"], int(table.get("insert_rows", 0)),
        str(table.get("start_timestamp", "now")), int(table.get("timestamp_step", 1)),
        int(table.get("disorder_ratio", 0)), int(table.get("disorder_range", 1000)),
        int(table.get("interlace_rows", 0)), int(table.get("insert_interval", 0)))


def _values(listed: Sequence[Mapping[str, Any]] | None, default: tuple[ValuePlan, ...]) -> tuple[ValuePlan, ...]:
    if not listed:
        return default
    found: list[ValuePlan] = []
    for entry in listed:
        _check_keys(entry, _COLUMN, "column: ")
        kind = _type(entry["type"], int(entry.get("len", 64)))
        name = entry.get("name")
        for number in range(1, int(entry.get("count", 1)) + 1):
            plain = name or f"c{len(found)}"
            found.append(ValuePlan(
                plain if number == 1 or name is None else f"{plain}_{number}", kind, entry.get("min"),
                entry.get("max"), tuple(map(str, entry.get("values", ())))))
    return tuple(found)


def _check_keys(given: Mapping[str, Any], known: Collection[str], where: str) -> None:
    for name, value in given.items():
        if name not in known and name not in _IGNORED:
            raise InvalidStatementError(f"{where}{name} is not supported", hint=did_you_mean(name, known))
        if name in _REFUSED and value != _REFUSED[name]:
            raise InvalidStatementError(f"{where}{name} can only be {_REFUSED[name]}, not {value}")


def _type(text: str, length: int) -> DataType:
    """Returns a type from its name, with or without a length. Raises InvalidStatementError."""
    name = _SHORT_TYPES.get(text.strip().lower(), text.strip())
    if re.match(r"(?i)(geometry|varbinary)\b", name):
        raise InvalidStatementError(f"values of type {text} cannot be generated")
    if re.fullmatch(r"(?i)binary|varchar|nchar", name):
        name = f"{name}({length})"
    statement = parse_one(f"CREATE TABLE t (ts TIMESTAMP, c {name})")
    assert isinstance(statement, CreateTable)
    return statement.columns[1].type


def _split(types: str) -> list[str]:
    return re.split(r",(?![^(]*\))", types)


def _named(types: Sequence[DataType], letter: str) -> tuple[ValuePlan, ...]:
    return tuple(ValuePlan(f"{letter}{place}", kind) for place, kind in enumerate(types))


def _checked(plan: GeneratePlan) -> GeneratePlan:
    """Returns the plan. Raises InvalidStatementError for numbers that make no sense."""
    positive = {"threads": plan.threads, "rows of a request": plan.request_rows, "different values": plan.unique}
    for name, number in positive.items():
        if number < 1:
            raise InvalidStatementError(f"the number of {name} must be positive, not {number}")
    for database in plan.databases:
        for table in database.tables:
            if table.tables < 1 or min(table.rows, table.interlace, table.interval_ms, table.disorder_range) < 0:
                raise InvalidStatementError(f"super table {table.name}: numbers must not be negative, and there must "
                                            "be a child table")
            if not 0 <= table.disorder <= 50:
                raise InvalidStatementError(f"disorder is a share of 0 to 50 percent, not {table.disorder}")
    return plan
