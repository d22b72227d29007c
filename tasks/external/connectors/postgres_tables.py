"""Tables of a PostgreSQL server that are read: what columns they have, and their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.common.connection import OpenedConnection
from penstock.common.errors import NotSupportedError, TargetMissingError
from penstock.sql.schema import Column
from penstock.sql.types import BIGINT, BOOL, DOUBLE, INT, UNITS_PER_SECOND, DataType, Kind, timestamp
from penstock.tasks.external.connectors.postgres import connect, translating
from penstock.tasks.external.emit.postgres_target_table import quoted
from penstock.tasks.protocol.block_schema import block_type

ROWS_MAX = 1_000_000
"""Of more rows nobody keeps a copy."""
_ROWS_AT_ONCE = 50_000
_TEXT_LENGTH = 1024
"""Characters of texts that PostgreSQL doesn't bound."""
_TYPES: dict[str, DataType] = {
    "bool": BOOL, "int2": DataType(Kind.SMALLINT), "int4": INT, "int8": BIGINT, "float4": DataType(Kind.FLOAT),
    "float8": DOUBLE, "numeric": DOUBLE, "date": timestamp(), "timestamp": timestamp(), "timestamptz": timestamp(),
    "uuid": DataType(Kind.VARCHAR, 36),
}
_COLUMNS = """
    SELECT a.attname, t.typname, CASE WHEN t.typname IN ('varchar', 'bpchar') THEN a.atttypmod - 4 END
    FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""


def describe(connection: OpenedConnection, name: str) -> tuple[Column, ...]:
    """Returns the columns of a table or view; what has no type of ours is text.

    Raises TargetMissingError if there is none, ExternalSystemErrors.
    """
    with connect(connection, autocommit=True) as server, translating(connection):
        found = server.execute(_COLUMNS, (quoted(*name.split(".")),)).fetchall()
    if not found:
        raise TargetMissingError(f"table {name} does not exist there", hint="write 'table' or 'schema.table'")
    return tuple(Column(column, _type(kind, length), column) for column, kind, length in found)


def read(connection: OpenedConnection, name: str, columns: Sequence[tuple[str, DataType]]) -> pa.Table:
    """Returns all rows of a table, timestamps as integers in the units of their type.

    Raises TargetMissingError if the table, or a column, is gone, NotSupportedError for more than ROWS_MAX rows,
    ExternalSystemErrors.
    """
    values = ", ".join(_value(column, kind) for column, kind in columns)
    query = f"SELECT {values} FROM {quoted(*name.split('.'))} LIMIT {ROWS_MAX + 1}"
    schema = pa.schema([(column, block_type(kind)) for column, kind in columns])
    pieces: list[pa.RecordBatch] = []
    with connect(connection) as server, translating(connection), server.cursor("rows") as cursor:
        server.execute(f"SET LOCAL statement_timeout = {round(connection.timeout_s * 1000)}".encode())
        cursor.execute(query.encode())
        while rows := cursor.fetchmany(_ROWS_AT_ONCE):
            pieces.append(_batch(rows, schema))
            if sum(piece.num_rows for piece in pieces) > ROWS_MAX:
                raise NotSupportedError(f"table {name} has more than {ROWS_MAX} rows: no copy is kept of so many",
                                        hint="look up in a view of those that are needed")
    return pa.Table.from_batches(pieces, schema)


def _batch(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.record_batch([pa.array([row[n] for row in rows], field.type) for n, field in enumerate(schema)],
                           schema=schema)


def _type(kind: str, length: int | None) -> DataType:
    return _TYPES.get(kind) or DataType(Kind.VARCHAR, _TEXT_LENGTH if length is None or length <= 0 else length)


def _value(column: str, kind: DataType) -> str:
    """Returns SQL of a column as its type has it; one that has become of another type is cast, or fails."""
    name = quoted(column)
    match kind.kind:
        case Kind.TIMESTAMP:
            assert kind.precision is not None
            units = UNITS_PER_SECOND[kind.precision]
            return f"CASE WHEN isfinite({name}) THEN (extract(epoch FROM {name}) * {units})::bigint END"
        case Kind.BOOL:
            return f"{name}::boolean"
        case Kind.SMALLINT | Kind.INT | Kind.BIGINT:
            return f"{name}::bigint"
        case Kind.FLOAT | Kind.DOUBLE:
            return f"{name}::double precision"
        case _:
            return f"{name}::text"
