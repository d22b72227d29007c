"""Parses INSERT. Rows after VALUES stay text; `penstock.sql.rows.values` reads them."""

from __future__ import annotations

from sqlglot.tokens import TokenType

from penstock.sql.dialect.parse_ddl import parse_using
from penstock.sql.dialect.parse_query import QueryParser
from penstock.sql.tree.statements import Insert, InsertTarget, Statement


def parse_insert(parser: QueryParser) -> Statement:
    """Parses what follows INSERT."""
    parser.expect("INTO")
    targets = [_parse_target(parser)]
    while targets[-1].query is None and not parser.at_end:
        targets.append(_parse_target(parser))
    if len(targets) > 1 and targets[-1].query is not None:
        raise parser.fail("INSERT ... SELECT takes one table")
    return Insert(tuple(targets))


def _parse_target(parser: QueryParser) -> InsertTarget:
    target = InsertTarget(parser.object_name("a table name"))
    if parser.at("(") and not parser.at_query():
        target.change(columns=parser.column_names())
    if parser.at("USING"):
        using, tag_names, tag_values = parse_using(parser)
        target.change(using=using, tag_names=tag_names, tag_values=tag_values)
        if target.columns is None and parser.at("("):
            target.change(columns=parser.column_names())
    if parser.take("VALUES"):
        if not parser.at_type(TokenType.ROWS):
            raise parser.fail("a row in parentheses is expected, closed and with closed quotes")
        rows = parser.advance()
        return target.change(rows=rows.text, rows_offset=rows.start)
    if parser.take("FILE"):
        return target.change(file=parser.string("a file name"))
    if parser.at_query() and target.using is None:
        return target.change(query=parser.parse_rows())
    raise parser.fail("VALUES, FILE or SELECT is expected")
