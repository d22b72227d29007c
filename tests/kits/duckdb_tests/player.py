"""Plays DuckDB's test files: each query is asked of an engine and of DuckDB, over the same rows, and both compared."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import duckdb
import pyarrow as pa
from kits.duckdb_tests.judging import Row, decided, difference
from kits.duckdb_tests.mirror import Mirror, NoTableError, shape_of_type
from kits.duckdb_tests.script import NotPlayedError, Recorded, recorded
from kits.duckdb_tests.spelling import words

from penstock.common.errors import InternalError, PenstockError
from penstock.mnode.access.session import SessionState
from penstock.mnode.engine import Engine
from penstock.shell.api.arrow_values import column_values

#: passed; another answer than DuckDB's; an error that nobody may see; another error where DuckDB answers; an answer
#: where DuckDB refuses; decided to be otherwise; not compared: DuckDB doesn't answer itself, or not always the same.
Outcome = Literal["passed", "wrong", "broken", "failed", "accepted", "decided", "skipped"]
Decision = Callable[[str, Set[str], "Played"], bool]

_ORACLE_S, _OURS_S = 5, 10
_MOST_ROWS = 100_000
#: What has DuckDB's answers mean something else than ours: such statements are not played on DuckDB either.
_MEANINGS = {"timezone", "calendar", "default_null_order", "null_order", "default_order", "default_collation",
             "integer_division", "ieee_floating_point_ops", "old_implicit_casting", "threads", "worker_threads",
             "memory_limit", "scalar_subquery_error_on_multiple_rows", "enable_progress_bar",
             "regex_match_operator_semantics"}
_FILES = {"read_csv", "read_csv_auto", "read_parquet", "parquet_scan", "read_json", "read_json_auto", "read_text",
          "read_json_objects", "read_json_objects_auto", "read_ndjson", "read_ndjson_objects", "read_ndjson_auto",
          "read_blob", "sniff_csv", "parquet_metadata", "parquet_schema"}
_SYSTEM = {"information_schema", "sqlite_master", "current_setting", "getvariable", "txid_current", "current_schema",
           "current_schemas", "current_query", "getenv"}
_CHANGES = {"insert", "update", "delete", "merge"}
#: Why a query that fails, or gives another answer, isn't to be mended: the first that holds. docs/testing.md has them.
DECISIONS: Sequence[tuple[str, Decision]] = (
    ("files", lambda sql, named, played: bool(_FILES & named) or re.search(r"from\s+'", sql, re.I) is not None),
    ("DuckDB's catalog and settings", lambda sql, named, played: bool(_SYSTEM & named) or any(
        name.startswith(("duckdb_", "pragma_", "pg_", "test_all_", "test_vector_", "sql_auto_")) for name in named)),
    ("what CREATE MACRO, TYPE, SEQUENCE or SCHEMA has made", lambda sql, named, played: bool(
        (played.made | {"nextval", "currval"}) & named)),
    ("states of aggregates as values", lambda sql, named, played: bool(
        {"export_state", "finalize", "to_aggregate_state", "combine"} & named)),
    ("what DuckDB knows of its storage", lambda sql, named, played: re.search(
        r"\bstats\s*\(|\bbitstring_agg\s*\([^,()]*\)", sql, re.I) is not None),
    ("GEOMETRY is TDengine's", lambda sql, named, played: any(name.startswith(("st_", "vertex_")) for name in named)),
    ("the first of rows in no order", lambda sql, named, played: _FIRST.search(sql) is not None),
    ("parameters", lambda sql, named, played: re.search(r"\$\d|\$[a-z]|(?<![?@])\?(?![?@])", sql) is not None),
    ("rowid", lambda sql, named, played: "rowid" in named),
    ("rows by their place: POSITIONAL, #1", lambda sql, named, played: "positional" in named
     or re.search(r"#\d", sql) is not None),
    ("DESCRIBE and SHOW in FROM", lambda sql, named, played: bool({"describe", "summarize"} & named)
     or re.search(r"\(\s*show\s", sql, re.I) is not None),
    ("changes of tables within a query", lambda sql, named, played: bool(_CHANGES & named)),
    ("types behind a schema", lambda sql, named, played: re.search(r"::\s*main\.", sql, re.I) is not None),
    ("times have no infinity", lambda sql, named, played: "infinity" in sql.lower()),
)
#: The same for another answer alone.
MEANINGS: Sequence[tuple[str, Decision]] = (
    ("columns with COLLATE", lambda sql, named, played: played.collated),
    ("times have no infinity", lambda sql, named, played: played.infinite),
    ("numbers beyond 64 bits are DOUBLE", lambda sql, named, played: re.search(r"(?<![\w.'])\d{20,}", sql) is not None),
    ("TIMESTAMP is an instant", lambda sql, named, played: re.search(r"at\s+time\s+zone", sql, re.I) is not None),
    ("names of types", lambda sql, named, played: "typeof" in named),
    ("CAST is TDengine's", lambda sql, named, played: "::" in sql or "cast" in named),
    ("arithmetic is TDengine's", lambda sql, named, played: "try" in named),
    ("functions that TDengine defines", lambda sql, named, played: bool(named & {
        "ascii", "concat", "concat_ws", "from_base64", "greatest", "least", "length", "log", "mode", "regexp_extract",
        "stddev", "substr", "substring", "variance", "week", "weekday"})),
)
#: Why a query is answered that DuckDB refuses with such an error.
REFUSALS = {"ConversionException": "what CAST cannot convert is NULL",
            "OutOfRangeException": "what is beyond its range is NULL"}
#: A call over rows without an order.
_FIRST = re.compile(r"\b(?:first|last)\s*\((?:(?!order\s+by)[^()])*\)(?!\s*over\b)", re.IGNORECASE)
_MADE = re.compile(r"create\s+(?:or\s+replace\s+)?(?:temp\w*\s+)?(?:macro|function|type|sequence|schema)\s+"
                   r"(?:if\s+not\s+exists\s+)?(?:\w+\.)?\"?(\w+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a statement. `reason`: equal for those that want the same cure; `detail`: of this one."""

    line: int
    sql: str
    outcome: Outcome
    reason: str = ""
    detail: str = ""


@dataclass
class Played:
    """A file on its way.

    `made`: names of what DuckDB has made that has no like in the engine. `collated`: columns have collations;
    `infinite`: there are infinite times or numbers.
    """

    mirror: Mirror
    main: duckdb.DuckDBPyConnection
    made: set[str] = field(default_factory=set)
    collated: bool = False
    infinite: bool = False
    _others: dict[str, duckdb.DuckDBPyConnection] = field(default_factory=dict)

    def connection(self, name: str) -> duckdb.DuckDBPyConnection:
        if not name:
            return self.main
        if name not in self._others:
            self._others[name] = self.main.cursor()
        return self._others[name]


class Player:
    """Plays files on one engine, each in a database of its own. Not thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._castable: dict[str, bool] = {}
        self._files = 0

    def play(self, text: str) -> Iterator[Verdict]:
        """Yields a verdict on each statement of a file; one of `skipped` in the end if the rest can't be played."""
        self._files += 1
        database = f"f{self._files}"
        state = SessionState("UTC")
        for statement in (f"CREATE DATABASE {database} VGROUPS 1 PRECISION 'us' KEEP 365000d", f"USE {database}",
                          f"SET queryTimeout '{_OURS_S}s'"):
            self._engine.execute(statement, state)
        with duckdb.connect(config={"enable_external_access": "false", "threads": "1", "memory_limit": "2GB"}) as main:
            main.execute("SET TimeZone = 'UTC'; SET default_null_order = 'nulls_first_on_asc_last_on_desc'")
            played = Played(Mirror(self._engine, state, self._castable), main)
            try:
                for each in recorded(text):
                    yield from self._statements(each, played)
            except NotPlayedError as error:
                yield Verdict(0, "", "skipped", str(error))
        self._engine.execute(f"DROP DATABASE {database}", state)

    def _statements(self, each: Recorded, played: Played) -> Iterator[Verdict]:
        """Yields a verdict on a statement, or on each of several."""
        connection = played.connection(each.connection)
        try:
            parts = connection.extract_statements(each.sql)
        except duckdb.Error:
            if each.expected == "error" and _begins_query(each.sql):
                yield self._refusal(each, each.sql, played, connection, "its parser")
            return
        for part in parts:
            sql = part.query.strip().rstrip(";").rstrip()
            if part.type == duckdb.StatementType.SELECT and words(sql)[:1] not in (["pragma"], ["show"], ["describe"]):
                yield self._queried(each, sql, played, connection)
            else:
                yield self._done(each, sql, part.type.name, played, connection)

    def _done(self, each: Recorded, sql: str, kind: str, played: Played,
              connection: duckdb.DuckDBPyConnection) -> Verdict:
        """Has DuckDB execute what isn't a query; its tables are mirrored afterwards."""
        named = words(sql)
        if named[:1] in (["set"], ["pragma"], ["reset"]) and _MEANINGS & set(named):
            return Verdict(each.line, sql, "decided", "settings of DuckDB's")
        played.made.update(name.lower() for name in _MADE.findall(sql))
        played.collated |= "collate" in named
        played.infinite |= "infinity" in sql.lower()
        try:
            with _limited(connection):
                connection.execute(sql)
        except duckdb.Error as error:
            return Verdict(each.line, sql, "decided", _statement_name(kind, named), f"DuckDB: {_first_line(error)}")
        played.mirror.changed(sql)
        return Verdict(each.line, sql, "decided", _statement_name(kind, named))

    def _queried(self, each: Recorded, sql: str, played: Played, connection: duckdb.DuckDBPyConnection) -> Verdict:
        try:
            theirs = _asked(connection, sql)
        except duckdb.Error as error:
            if each.expected == "error":
                return self._refusal(each, sql, played, connection, type(error).__name__)
            return Verdict(each.line, sql, "skipped", f"DuckDB: {type(error).__name__}", _first_line(error))
        except (OverflowError, ValueError) as error:
            return Verdict(each.line, sql, "skipped", "values that Python doesn't have", _first_line(error))
        if _CHANGES & set(words(sql)) and "returning" in words(sql):
            played.mirror.changed(sql)
            return Verdict(each.line, sql, "decided", "changes of tables within a query")
        if len(theirs) > _MOST_ROWS:
            return Verdict(each.line, sql, "skipped", f"more than {_MOST_ROWS} rows")
        try:
            ours = self._ours(sql, played, connection)
        except NoTableError as error:
            return Verdict(each.line, sql, "decided", str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the verdict
            return self._failed(each, sql, error, played)
        ordered = each.ordered and "order" in words(sql)
        found = difference(ours, theirs, ordered=ordered)
        if found is None or difference(ours, _texts(connection, sql), ordered=ordered) is None:
            return Verdict(each.line, sql, "passed")
        if not ours and len(theirs) == 1:
            return Verdict(each.line, sql, "decided", "aggregates over no rows have no row")
        if (decision := decided(ours, theirs)) is not None:
            return Verdict(each.line, sql, "decided", decision)
        try:
            again = _asked(connection, sql)
        except duckdb.Error:
            again = []
        if difference(again, theirs, ordered=True) is not None:
            return Verdict(each.line, sql, "skipped", "another answer each time")
        named = set(words(sql))
        for reason, holds in (*DECISIONS, *MEANINGS):
            if holds(sql, named, played):
                return Verdict(each.line, sql, "decided", reason, found)
        return Verdict(each.line, sql, "wrong", re.sub(r"\d+", "N", found) if "rows" in found else "values", found)

    def _ours(self, sql: str, played: Played, connection: duckdb.DuckDBPyConnection) -> list[Row]:
        table = self._engine.execute(played.mirror.query(sql, connection), played.mirror.state).table
        return [] if table is None else _rows(table)

    def _refusal(self, each: Recorded, sql: str, played: Played, connection: duckdb.DuckDBPyConnection,
                 why: str) -> Verdict:
        """Returns the verdict on a query that DuckDB refuses, as the file wants it."""
        try:
            self._ours(sql, played, connection)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the verdict
            if _is_broken(error):
                return self._failed(each, sql, error, played)
            return Verdict(each.line, sql, "passed")
        if (decision := REFUSALS.get(why)) is not None:
            return Verdict(each.line, sql, "decided", decision)
        return Verdict(each.line, sql, "accepted", f"DuckDB refuses: {why}")

    def _failed(self, each: Recorded, sql: str, error: Exception, played: Played) -> Verdict:
        named = set(words(sql))
        for reason, holds in DECISIONS:
            if holds(sql, named, played):
                return Verdict(each.line, sql, "decided", reason)
        return Verdict(each.line, sql, "broken" if _is_broken(error) else "failed", _kind_of_error(error), str(error))


def _asked(connection: duckdb.DuckDBPyConnection, sql: str) -> list[Row]:
    with _limited(connection):
        table = connection.execute(sql).to_arrow_table()
    return _rows(table)


def _rows(table: pa.Table) -> list[Row]:
    """Returns the rows of an answer; one that is too long as many too many."""
    return list(zip(*(column_values(column, "UTC") for column in table.slice(0, _MOST_ROWS + 1).columns), strict=True))


def _texts(connection: duckdb.DuckDBPyConnection, sql: str) -> list[Row]:
    """Returns DuckDB's answer as texts, for types that Arrow doesn't have; none where it can't be."""
    try:
        return _asked(connection, f"SELECT CAST(COLUMNS(*) AS VARCHAR) FROM ({sql})")
    except duckdb.Error:
        return []


@contextmanager
def _limited(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    timer = threading.Timer(_ORACLE_S, connection.interrupt)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _begins_query(sql: str) -> bool:
    return words(sql)[:1] in (["select"], ["with"], ["values"], ["from"])


def _statement_name(kind: str, named: Sequence[str]) -> str:
    if kind in ("CREATE", "DROP", "ALTER"):
        objects = ("table", "view", "macro", "function", "type", "index", "sequence", "schema", "secret", "trigger")
        return f"{kind} {next((name.upper() for name in named if name in objects), '')}".rstrip()
    return kind


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else ""


def _is_broken(error: Exception) -> bool:
    return isinstance(error, InternalError) or not isinstance(error, PenstockError | NoTableError)


def _kind_of_error(error: Exception) -> str:
    """Returns what is said, without the names and values of this statement, but with the word that isn't understood."""
    if not isinstance(error, PenstockError):
        return f"{type(error).__name__}: {_first_line(error)}"
    text = error.message
    if error.position is not None and text.startswith("syntax error"):
        token = (error.position.text.split() or ["the end"])[0]
        text = f"{text}: {token.upper() if token.isidentifier() else token}"
    if (result := re.search(r" is (.*): no column of a result", text, re.DOTALL)) is not None:
        text = f"a result is {shape_of_type(result[1])}"
    return re.sub(r"\s+", " ", re.sub(r"\b\d+(\.\d+)?\b", "N", text))[:160]


def opened(path: Any) -> Engine:
    """Opens an engine in a new folder to play files on."""
    from penstock.common.config import load_config

    return Engine(path, load_config({"disableStream": True, "timezone": "UTC", "queryTimeout": f"{_OURS_S}s"},
                                    environment={}))
