"""A PostgreSQL table as a stream needs it: its columns, the statements that write to it, what is wrong with one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from penstock.planner.task_plans.external_rows import external_columns, key_names
from penstock.planner.task_plans.stream_plan import SinkPlan
from penstock.sql.types import DataType, Kind

_TYPES: dict[Kind, str] = {
    Kind.BOOL: "boolean", Kind.TINYINT: "smallint", Kind.SMALLINT: "smallint", Kind.INT: "integer",
    Kind.BIGINT: "bigint", Kind.UTINYINT: "smallint", Kind.USMALLINT: "integer", Kind.UINT: "bigint",
    Kind.UBIGINT: "numeric", Kind.FLOAT: "real", Kind.DOUBLE: "double precision", Kind.VARCHAR: "text",
    Kind.NCHAR: "text", Kind.VARBINARY: "bytea", Kind.GEOMETRY: "bytea", Kind.JSON: "jsonb", Kind.DECIMAL: "numeric",
    Kind.NULL: "text",
}
_ALSO: dict[str, tuple[str, ...]] = {
    "smallint": ("integer", "bigint", "numeric", "real", "double precision"),
    "integer": ("bigint", "numeric", "double precision"),
    "bigint": ("numeric",),
    "numeric": (),
    "real": ("double precision", "numeric"),
    "double precision": ("numeric",),
    "text": ("character varying", "character", "citext", "name"),
    "timestamp with time zone": ("timestamp without time zone",),
    "jsonb": ("json", "text", "character varying"),
}
"""Types of columns that exist already which take every value of ours as it is."""
_ARRAY = "\x00"
"""Where a statement takes an array."""


def postgres_type(kind: DataType) -> str:
    """Returns the type of a column. Times in nanoseconds are numbers, since PostgreSQL's times have microseconds."""
    if kind.kind is Kind.TIMESTAMP:
        return "bigint" if kind.precision == "ns" else "timestamp with time zone"
    return _TYPES[kind.kind]


def quoted(*names: str) -> str:
    """Returns names as a PostgreSQL identifier."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


@dataclass(frozen=True, slots=True)
class FoundColumn:
    """A column that a table has. `required`: it takes no NULL and has no default."""

    name: str
    type: str
    required: bool


class PostgresTable:
    """The table that one stream writes to.

    `upsert` and `delete` take arrays, one per column, or per column of the key.
    """

    def __init__(self, sink: SinkPlan) -> None:
        self.path = tuple(sink.table.split("."))
        self.columns = tuple((column.name, postgres_type(column.type)) for column in external_columns(sink))
        self.key = key_names(sink)
        # Without a KEY a delete is of all second keys at a time.
        self.deleted_by = self.key if sink.by_key else self.key[:len(sink.tags) + 1]
        self._takes_null = bool(sink.tags) or sink.by_key

    @property
    def name(self) -> str:
        return quoted(*self.path)

    @property
    def create(self) -> str:
        """The statement that makes the table; NULL is a group, or a KEY, like others."""
        columns = ", ".join(f"{quoted(name)} {kind}" for name, kind in self.columns)
        unique = "UNIQUE NULLS NOT DISTINCT" if self._takes_null else "PRIMARY KEY"
        return f"CREATE TABLE IF NOT EXISTS {self.name} ({columns}, {unique} ({_listed(self.key)}))"

    @cached_property
    def upsert(self) -> str:
        """The statement that writes rows, whose keys are all different."""
        arrays = ", ".join(f"{_ARRAY}::{kind}[]" for _, kind in self.columns)
        rest = [quoted(name) for name, _ in self.columns if name not in self.key]
        update = "DO UPDATE SET " + ", ".join(f"{name} = EXCLUDED.{name}" for name in rest)
        return _with_parameters(
            f"INSERT INTO {self.name} ({_listed(name for name, _ in self.columns)}) SELECT * FROM unnest({arrays}) "
            f"ON CONFLICT ({_listed(self.key)}) {update if rest else 'DO NOTHING'}")

    def delete(self, nulls: Sequence[bool]) -> str:
        """The statement that deletes keys. `nulls`: which parts of the key are NULL in all of them; these parts have
        arrays, too, so that an index serves the others."""
        kinds = dict(self.columns)
        arrays = ", ".join(f"{_ARRAY}::{kinds[name]}[]" for name in self.deleted_by)
        same = " AND ".join(f"t.{quoted(name)} IS NULL" if null else f"t.{quoted(name)} = gone.{quoted(name)}"
                            for name, null in zip(self.deleted_by, nulls, strict=True))
        return _with_parameters(f"DELETE FROM {self.name} AS t USING unnest({arrays}) AS gone "
                                f"({_listed(self.deleted_by)}) WHERE {same}")

    def problems(self, found: Sequence[FoundColumn], unique: Iterable[Sequence[str]]) -> list[str]:
        """Returns what keeps a table that exists from being written to. `unique`: the columns of its unique indexes."""
        by_name = {column.name: column for column in found}
        problems = []
        for name, kind in self.columns:
            column = by_name.pop(name, None)
            if column is None:
                problems.append(f"column {name} {kind} is missing")
            elif column.type != kind and column.type not in _ALSO.get(kind, ()):
                problems.append(f"column {name} is {column.type}, the results are {kind}")
        problems += [f"column {column.name} takes no NULL, has no default and is not among the results"
                     for column in by_name.values() if column.required]
        if not any(sorted(columns) == sorted(self.key) for columns in unique):
            problems.append(f"it has no primary key or unique index on ({', '.join(self.key)})")
        return problems


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(quoted, names))


def _with_parameters(statement: str) -> str:
    """Returns a statement as psycopg takes it with parameters: a % of a name is doubled."""
    return statement.replace("%", "%%").replace(_ARRAY, "%b")
