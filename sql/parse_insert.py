"""Parses INSERT and DELETE. Rows after VALUES stay text; `penstock.sql.values` reads them."""

from __future__ import annotations

from dataclasses import replace

from penstock.sql.cursor import Cursor
from penstock.sql.parse_ddl import parse_parenthesised, parse_using
from penstock.sql.parse_expression import parse_expression
from penstock.sql.parse_query import at_query, parse_query
from penstock.sql.statements import Delete, Insert, InsertTarget, Statement


def parse_insert(cursor: Cursor) -> Statement:
    """Parses what follows INSERT."""
    cursor.expect("INTO")
    targets = [_parse_target(cursor)]
    while targets[-1].query is None and not cursor.at_end:
        targets.append(_parse_target(cursor))
    if len(targets) > 1 and targets[-1].query is not None:
        raise cursor.fail("INSERT ... SELECT takes one table")
    return Insert(tuple(targets))


def _parse_target(cursor: Cursor) -> InsertTarget:
    target = InsertTarget(cursor.object_name("a table name"))
    if cursor.at_operator("(") and not at_query(cursor):
        target = replace(target, columns=_parse_columns(cursor))
    if cursor.at("USING"):
        using, tag_names, tag_values = parse_using(cursor)
        target = replace(target, using=using, tag_names=tag_names, tag_values=tag_values)
        if target.columns is None and cursor.at_operator("("):
            target = replace(target, columns=_parse_columns(cursor))
    if cursor.take("VALUES"):
        rows, offset = cursor.skip_rows()
        return replace(target, rows=rows, rows_offset=offset)
    if cursor.take("FILE"):
        return replace(target, file=cursor.string("a file name"))
    if at_query(cursor) and target.using is None:
        return replace(target, query=parse_query(cursor))
    raise cursor.fail("VALUES, FILE or SELECT is expected")


def _parse_columns(cursor: Cursor) -> tuple[str, ...]:
    token = cursor.token
    columns = parse_parenthesised(cursor, lambda c: c.name("a column name"))
    if len(set(columns)) < len(columns):
        repeated = next(name for index, name in enumerate(columns) if name in columns[:index])
        raise cursor.fail(f"column {repeated} is given twice", token)
    return columns


def parse_delete(cursor: Cursor) -> Statement:
    """Parses what follows DELETE."""
    cursor.expect("FROM")
    name = cursor.object_name("a table name")
    return Delete(name, parse_expression(cursor) if cursor.take("WHERE") else None)
