"""Flight SQL's questions about the catalog: which schemas of rows answer them, and the rows.

A database is a "db schema" there; catalogs there are none. Child tables, of which there may be millions, are only
listed for who asks for their type or gives a pattern of names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock import __version__
from penstock.mnode.catalog import system_schema
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.query.view_tables import view_tables
from penstock.shell.flight_sql.frames import schema_bytes
from penstock.shell.flight_sql.result_fields import arrow_schema
from penstock.shell.terminal.lexer import KEYWORDS
from penstock.sql.rights import GrantObject, Rights
from penstock.sql.schema import Table

_TYPES = {"super": "SUPER TABLE", "normal": "TABLE", "child": "CHILD TABLE", "system": "SYSTEM TABLE",
          "view": "VIEW"}

_CATALOGS = pa.schema([pa.field("catalog_name", pa.string(), nullable=False)])
_DB_SCHEMAS = pa.schema([
    pa.field("catalog_name", pa.string()), pa.field("db_schema_name", pa.string(), nullable=False)])
_TABLES = pa.schema([
    pa.field("catalog_name", pa.string()), pa.field("db_schema_name", pa.string()),
    pa.field("table_name", pa.string(), nullable=False), pa.field("table_type", pa.string(), nullable=False)])
_TABLES_AND_SCHEMAS = _TABLES.append(pa.field("table_schema", pa.binary(), nullable=False))
_TABLE_TYPES = pa.schema([pa.field("table_type", pa.string(), nullable=False)])
_PRIMARY_KEYS = pa.schema([
    pa.field("catalog_name", pa.string()), pa.field("db_schema_name", pa.string()),
    pa.field("table_name", pa.string(), nullable=False), pa.field("column_name", pa.string(), nullable=False),
    pa.field("key_name", pa.string()), pa.field("key_sequence", pa.int32(), nullable=False)])
_FOREIGN_KEYS = pa.schema([
    pa.field("pk_catalog_name", pa.string()), pa.field("pk_db_schema_name", pa.string()),
    pa.field("pk_table_name", pa.string(), nullable=False), pa.field("pk_column_name", pa.string(), nullable=False),
    pa.field("fk_catalog_name", pa.string()), pa.field("fk_db_schema_name", pa.string()),
    pa.field("fk_table_name", pa.string(), nullable=False), pa.field("fk_column_name", pa.string(), nullable=False),
    pa.field("key_sequence", pa.int32(), nullable=False), pa.field("fk_key_name", pa.string()),
    pa.field("pk_key_name", pa.string()), pa.field("update_rule", pa.uint8(), nullable=False),
    pa.field("delete_rule", pa.uint8(), nullable=False)])

_INFO_VALUES = (
    pa.field("string_value", pa.string()), pa.field("bool_value", pa.bool_()), pa.field("bigint_value", pa.int64()),
    pa.field("int32_bitmask", pa.int32()), pa.field("string_list", pa.list_(pa.field("item", pa.string()))),
    pa.field("int32_to_int32_list_map",
             pa.map_(pa.int32(), pa.field("value", pa.list_(pa.field("item", pa.int32()))))))
_SQL_INFO = pa.schema([
    pa.field("info_name", pa.uint32(), nullable=False),
    pa.field("value", pa.dense_union(_INFO_VALUES), nullable=False)])

_LOWER_CASE = 3
_READ_ONLY, _SQL, _SUBSTRAIT, _TRANSACTION, _CANCEL = 3, 4, 5, 8, 9
#: The answers to CommandGetSqlInfo by the protocol's numbers: first what is about the server, from 500 on SQL.
_INFO: dict[int, str | bool | int | tuple[str, ...]] = {
    0: "Penstock", 1: __version__, 2: pa.__version__, _READ_ONLY: False, _SQL: True, _SUBSTRAIT: False,
    _TRANSACTION: 0, _CANCEL: True,
    500: False,  # CREATE and DROP of catalogs, of schemas, of tables
    501: True,
    502: True,
    503: _LOWER_CASE,  # of identifiers without quotes
    504: "`",
    508: KEYWORDS,
    513: "\\",
    515: True,  # column aliases
    529: "database",
    531: "",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows that answer a question; `rows` makes them when they are fetched."""

    schema: pa.Schema
    rows: Callable[[], Iterator[pa.RecordBatch]]


def answer(command: Any, name: str, catalog: Catalog, rights: Rights) -> Answer | None:
    """Returns the answer to a command by its name, or None if it isn't one about the catalog.

    It tells of what `rights` allow to use, and of nothing else.
    """
    match name:
        case "CommandGetSqlInfo":
            return Answer(_SQL_INFO, lambda: iter([_sql_info(list(command.info))]))
        case "CommandGetCatalogs":
            return Answer(_CATALOGS, lambda: iter(()))
        case "CommandGetDbSchemas":
            return _of_rows(_DB_SCHEMAS, lambda: ((None, each) for each in _databases(command, catalog, rights)))
        case "CommandGetTables" if command.include_schema:
            return _of_rows(_TABLES_AND_SCHEMAS, lambda: (
                (*_described(table), schema_bytes(arrow_schema((*table.columns, *table.tags))))
                for table in _tables(command, catalog, rights)))
        case "CommandGetTables":
            return _of_rows(_TABLES, lambda: map(_described, _tables(command, catalog, rights)))
        case "CommandGetTableTypes":
            return _of_rows(_TABLE_TYPES, lambda: ((each,) for each in sorted(_TYPES.values())))
        case "CommandGetPrimaryKeys":
            return _of_rows(_PRIMARY_KEYS, lambda: _primary_keys(command, catalog, rights))
        case "CommandGetExportedKeys" | "CommandGetImportedKeys" | "CommandGetCrossReference":
            return Answer(_FOREIGN_KEYS, lambda: iter(()))
    return None


_ROWS_MAX = 4096


def _of_rows(schema: pa.Schema, rows: Callable[[], Iterator[tuple[Any, ...]]]) -> Answer:
    def batches() -> Iterator[pa.RecordBatch]:
        remaining = rows()
        while some := [row for _, row in zip(range(_ROWS_MAX), remaining, strict=False)]:
            values = zip(*some, strict=True)
            yield pa.record_batch(
                [pa.array(column, field.type) for column, field in zip(values, schema, strict=True)], schema=schema)

    return Answer(schema, batches)


def _databases(command: Any, catalog: Catalog, rights: Rights) -> list[str]:
    """Returns the databases that a command's catalog and pattern leave."""
    if command.HasField("catalog") and command.catalog:
        return []
    wanted = _pattern(command, "db_schema_filter_pattern")
    return sorted(name for name in catalog.database_names()
                  if wanted(name) and (name in system_schema.DATABASES or rights.touch_database(name)))


def _tables(command: Any, catalog: Catalog, rights: Rights) -> Iterator[Table]:
    wanted = _pattern(command, "table_name_filter_pattern")
    types = set(command.table_types) or set(_TYPES.values())
    with_children = bool(command.table_types) or command.HasField("table_name_filter_pattern")
    for database in _databases(command, catalog, rights):
        names = _names(database, catalog, with_children=with_children and _TYPES["child"] in types)
        for name in sorted(filter(wanted, names)):
            table = catalog.table(database, name)
            # It may have been dropped meanwhile.
            if table is not None and _TYPES[table.kind] in types and _is_seen(table, rights):
                yield table
        if _TYPES["view"] in types:
            yield from (table for table in view_tables(database, catalog)
                        if wanted(table.name) and _is_seen(table, rights))


def _is_seen(table: Table, rights: Rights) -> bool:
    return table.kind == "system" or rights.touch(GrantObject("table", table.super_name or table.name, table.database))


def _names(database: str, catalog: Catalog, *, with_children: bool) -> Iterator[str]:
    if database in system_schema.DATABASES:
        yield from system_schema.table_names(database)
        return
    supers = catalog.tables(database, "super")
    yield from (table.name for table in (*supers, *catalog.tables(database, "normal")))
    if with_children:
        for parent in supers:
            yield from (child.name for child in catalog.children(parent.uid))


def _described(table: Table) -> tuple[None, str, str, str]:
    return None, table.database, table.name, _TYPES[table.kind]


def _primary_keys(command: Any, catalog: Catalog, rights: Rights) -> Iterator[tuple[Any, ...]]:
    if command.HasField("catalog") and command.catalog:
        return
    databases = [command.db_schema] if command.HasField("db_schema") else sorted(catalog.database_names())
    for database in databases:
        table = catalog.table(database, command.table)
        if table is None or table.kind == "system" or not _is_seen(table, rights):
            continue
        for number, column in enumerate(table.key_columns, 1):
            yield None, database, table.name, column.name, None, number


def _pattern(command: Any, field: str) -> Callable[[str], bool]:
    """Returns the test that a pattern of a command is: `%` is any text, `_` any character; without one all fits."""
    if not command.HasField(field):
        return lambda name: True
    parts = re.findall(r"\\.|.", getattr(command, field), flags=re.DOTALL)
    wildcards = {"%": ".*", "_": "."}
    pattern = re.compile(
        "".join(wildcards.get(part, re.escape(part.removeprefix("\\") or part)) for part in parts), re.DOTALL)
    return lambda name: pattern.fullmatch(name) is not None


def _sql_info(wanted: list[int]) -> pa.RecordBatch:
    known = [number for number in (wanted or sorted(_INFO)) if number in _INFO]
    children: list[list[Any]] = [[] for _ in _INFO_VALUES]
    kinds, offsets = [], []
    for number in known:
        value = _INFO[number]
        kind = _kind_of(value)
        kinds.append(kind)
        offsets.append(len(children[kind]))
        children[kind].append(list(value) if isinstance(value, tuple) else value)
    arrays = [pa.array(values, field.type) for values, field in zip(children, _INFO_VALUES, strict=True)]
    union = pa.UnionArray.from_dense(
        pa.array(kinds, pa.int8()), pa.array(offsets, pa.int32()), arrays, [field.name for field in _INFO_VALUES])
    return pa.record_batch([pa.array(known, pa.uint32()), union], schema=_SQL_INFO)


def _kind_of(value: str | bool | int | tuple[str, ...]) -> int:
    """Returns the place of a value's type in the union of values."""
    if isinstance(value, bool):
        return 1
    if isinstance(value, int):
        return 3
    return 4 if isinstance(value, tuple) else 0
