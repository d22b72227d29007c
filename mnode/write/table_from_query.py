"""CREATE TABLE AS: the query runs first, then the table is made of its columns, with its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from threading import RLock

import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.arrow_data import one_array
from penstock.common.errors import InvalidStatementError, PenstockError
from penstock.mnode.access.session import Result
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.name_lookup import database_of, require_table
from penstock.mnode.ddl.column_rules import MAX_LENGTH, VARIABLE
from penstock.mnode.ddl.table_statements import TableStatements
from penstock.mnode.write.arrow_schema import room_for
from penstock.mnode.write.inserts import Inserts, QueryRunner
from penstock.planner.task_plans.plan_tree import ResultColumn
from penstock.sql.dialect.generator import print_sql
from penstock.sql.dialect.parse_ddl import with_key
from penstock.sql.rows.keyed_rows import key_texts
from penstock.sql.schema import Session
from penstock.sql.tree.statements import ColumnDefinition, CreateTable, CreateTableAs
from penstock.sql.types import DataType, Kind, Precision, check_stored


class TablesFromQueries:
    """Executes CREATE TABLE AS."""

    def __init__(self, catalog: Catalog, tables: TableStatements, inserts: Inserts, ddl_lock: RLock) -> None:
        self._catalog = catalog
        self._tables = tables
        self._inserts = inserts
        self._ddl_lock = ddl_lock

    def create(self, statement: CreateTableAs, session: Session, run_query: QueryRunner) -> Result:
        """Makes the table with all rows of the query, or raises and leaves none."""
        if self._tables.is_there(statement, session):
            return Result()
        found = run_query(statement.query, session)
        assert found.table is not None
        columns = tuple(ColumnDefinition(column.name, _type(column, values))
                        for column, values in zip(found.columns, found.table.columns, strict=True))
        if statement.primary_key:
            columns = with_key(columns, statement.primary_key, InvalidStatementError)
        if statement.primary_key or columns[0].type.kind is Kind.TIMESTAMP:
            _check_keys(found.table, columns, database_of(statement.name, session, self._catalog).precision)
        with self._ddl_lock:
            self._tables.create(CreateTable(statement.name, columns), session)
            table = require_table(statement.name, session, self._catalog)
            try:
                # Timestamps of results are in UTC.
                return self._inserts.insert_arrow(
                    print_sql(statement.name), found.table, replace(session, time_zone="UTC"))
            except PenstockError:
                self._tables.discard_table(table.uid)
                raise


def _type(column: ResultColumn, values: pa.ChunkedArray) -> DataType:
    """Returns the type of the column that a result's becomes; texts without a length get room for what is there."""
    kind = column.type
    check_stored(kind)
    if kind.kind in (Kind.NULL, Kind.JSON):
        raise InvalidStatementError(f"column {column.name} is {kind.sql()}, which no column of a table can be",
                                    hint="write CAST(... AS a type) AS a name")
    if kind.kind in VARIABLE and kind.length is None:
        wide = kind.kind is Kind.NCHAR  # whose length counts characters
        return replace(kind, length=room_for(
            values, pc.utf8_length if wide else pc.binary_length, MAX_LENGTH["column"] // (4 if wide else 1)))
    return kind


def _check_keys(rows: pa.Table, columns: Sequence[ColumnDefinition], precision: Precision) -> None:
    """Raises InvalidStatementError if rows would replace each other: a table has one for each key, or time."""
    keys: list[tuple[ColumnDefinition, pa.Array]] = []
    for place, (column, values) in enumerate(zip(columns, rows.columns, strict=True)):
        if place == 0 or column.primary_key:
            is_time = column.type.kind is Kind.TIMESTAMP
            found = values.cast(pa.timestamp(precision), safe=False) if is_time else values
            keys.append((column, one_array(found)))
    texts = key_texts([values for _, values in keys], [column.type.kind for column, _ in keys])
    if pc.count_distinct(texts).as_py() == rows.num_rows or any(values.null_count for _, values in keys):
        return
    names, first = ", ".join(column.name for column, _ in keys), keys[0][0]
    if first.type.kind is Kind.TIMESTAMP and len(keys) == 1:
        raise InvalidStatementError(
            f"several rows have the same time in {names}, in {precision}: a table has one row of each",
            hint=f"GROUP BY it, or name a second column: CREATE TABLE ... PRIMARY KEY ({names}, ...) AS ...")
    raise InvalidStatementError(
        f"several rows have the same {names}: a table has one row for each key",
        hint=f"GROUP BY it, or name further columns: CREATE TABLE ... PRIMARY KEY ({names}, ...) AS ...")
