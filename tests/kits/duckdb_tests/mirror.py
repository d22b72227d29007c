"""Tables and views of DuckDB as ones of an engine: rows as they are there, whichever statement has put them there.

A table of ours has a time as its first column, which no query of the tests may see: they read the others by their names
in a WITH clause. What no column can be is kept as text, and cast there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from kits.duckdb_tests.spelling import rewritten, words

from penstock.common.errors import PenstockError
from penstock.mnode.access.session import SessionState
from penstock.mnode.engine import Engine

ROWS = 300_000
_PLAIN = {
    "BOOLEAN": "BOOL", "TINYINT": "TINYINT", "SMALLINT": "SMALLINT", "INTEGER": "INT", "BIGINT": "BIGINT",
    "UTINYINT": "TINYINT UNSIGNED", "USMALLINT": "SMALLINT UNSIGNED", "UINTEGER": "INT UNSIGNED",
    "UBIGINT": "BIGINT UNSIGNED", "FLOAT": "FLOAT", "DOUBLE": "DOUBLE", "TIMESTAMP": "TIMESTAMP",
    "TIMESTAMP WITH TIME ZONE": "TIMESTAMP"}
_VIEW = re.compile(r"create\s+(?:or\s+replace\s+)?(?:temp\w*\s+)?view\s+(?:if\s+not\s+exists\s+)?"
                   r"(\"(?:[^\"]|\"\")*\"|\w+)\s*(\([^)]*\))?\s*as\s+(.*)", re.IGNORECASE | re.DOTALL)


class NoTableError(Exception):
    """What DuckDB's table holds can't be in one of ours; the message says what it is."""


@dataclass
class Mirror:
    """What an engine has of a DuckDB's tables.

    `state`: a session that uses the engine's database for this file. `castable`: which types the engine is known to
    cast to, and not to; it is filled.
    """

    engine: Engine
    state: SessionState
    castable: dict[str, bool]
    _read_as: dict[str, str] = field(default_factory=dict)
    _views: dict[str, str] = field(default_factory=dict)
    _made: int = 0

    def changed(self, sql: str) -> None:
        """Takes note of a statement that DuckDB has executed: tables that it names are read anew."""
        if (found := _VIEW.match(sql)) is not None:
            self._views[found[1].strip('"').lower()] = f"{rewritten(found[2] or '')} AS ({rewritten(found[3])})"
        named = set(words(sql))
        if not named & {"create", "insert", "update", "delete", "drop"}:
            self._read_as.clear()
        for name in named & self._read_as.keys():
            del self._read_as[name]

    def query(self, sql: str, connection: duckdb.DuckDBPyConnection) -> str:
        """Returns a query as the engine is to be asked, with the tables made that it reads.

        Raises NoTableError where one of them can't be.
        """
        named = self._with_views(words(sql))
        tables = [name for name in _tables(connection) if name in named]
        parts = [f"`{name}` AS ({self._table(name, connection)})" for name in tables]
        parts += [f"`{name}` {text}" for name, text in self._views.items() if name in named and name not in tables]
        text = rewritten(sql).strip()
        if not parts:
            return text
        within = re.match(r"with\s+(recursive\s+)?", text, re.IGNORECASE)
        if within is None:
            return f"WITH {', '.join(parts)} {text}"
        return f"{within[0]}{', '.join(parts)}, {text[within.end():]}"

    def _with_views(self, named: list[str]) -> set[str]:
        """Returns the names and those that views among them name."""
        found, fresh = set[str](), set(named)
        while fresh:
            found |= fresh
            fresh = {word for name in fresh & self._views.keys() for word in words(self._views[name])} - found
        return found

    def _table(self, name: str, connection: duckdb.DuckDBPyConnection) -> str:
        """Returns the query that reads a table of DuckDB's in the engine."""
        if name not in self._read_as:
            self._read_as[name] = self._make(name, connection)
        return self._read_as[name]

    def _make(self, name: str, connection: duckdb.DuckDBPyConnection) -> str:
        described = connection.execute(f"SELECT * FROM {_quoted(name)} LIMIT 0").description or []
        columns = [(column[0].lower(), str(column[1])) for column in described]
        given = ", ".join(_quoted(column) if _is_plain(type) else f"CAST({_quoted(column)} AS VARCHAR)"
                          for column, type in columns)
        rows = connection.execute(f"SELECT {given} FROM {_quoted(name)} LIMIT {ROWS + 1}").to_arrow_table()
        if rows.num_rows > ROWS:
            raise NoTableError(f"more than {ROWS} rows")
        self._made += 1
        table = f"m{self._made}"
        types = [_column_type(type, rows.column(place)) for place, (_, type) in enumerate(columns)]
        defined = ", ".join(f"c{place} {type}" for place, type in enumerate(types))
        self.engine.execute(f"CREATE TABLE {table} (at TIMESTAMP, {defined})", self.state)
        if rows.num_rows:
            at = pa.array(range(rows.num_rows), pa.timestamp("us"))
            plain = pa.table([at, *rows.columns], names=["at", *(f"c{place}" for place in range(len(types)))])
            try:
                self.engine.insert_arrow(table, plain, self.state)
            except PenstockError as error:
                raise NoTableError(f"values that no column holds: {error.message}") from error
        return f"SELECT {', '.join(self._column(*column, place) for place, column in enumerate(columns))} FROM {table}"

    def _column(self, name: str, type: str, place: int) -> str:
        read = f"c{place}" if _is_plain(type) else f"CAST(c{place} AS {self._cast_type(type)})"
        return f"{read} AS `{name.replace('`', '``')}`"

    def _cast_type(self, type: str) -> str:
        """Returns the type if the engine can cast to it. Raises NoTableError."""
        if type.startswith("UNION"):
            raise NoTableError("type UNION")  # its text doesn't tell which member it is of
        if type not in self.castable:
            try:
                self.engine.execute(f"SELECT count(*) FROM (SELECT CAST(NULL AS {type}) c) x", self.state)
            except PenstockError:
                self.castable[type] = False
            else:
                self.castable[type] = True
        if not self.castable[type]:
            raise NoTableError(f"type {shape_of_type(type)}")
        return type


def _tables(connection: duckdb.DuckDBPyConnection) -> list[str]:
    found = connection.execute("SELECT lower(table_name) FROM duckdb_tables() WHERE schema_name = 'main' "
                               "AND database_name IN ('memory', 'temp')").fetchall()
    return [name for name, in found]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _is_plain(type: str) -> bool:
    return type in _PLAIN or type in ("VARCHAR", "BLOB") or type.startswith("DECIMAL")


def _column_type(type: str, column: pa.ChunkedArray) -> str:
    if type.startswith("DECIMAL") or type in _PLAIN:
        return _PLAIN.get(type, type)
    longest = pc.max(pc.binary_length(column)).as_py() or 0
    if longest > 60_000:
        raise NoTableError("texts longer than a column's")
    return f"{'VARBINARY' if type == 'BLOB' else 'VARCHAR'}({max(longest, 16)})"


def shape_of_type(type: str) -> str:
    """Returns a type's name without what is particular to it: STRUCT for STRUCT(a INTEGER)."""
    if type.endswith("]"):
        return "LIST" if type.endswith("[]") else "ARRAY"
    return type.split("(")[0]
