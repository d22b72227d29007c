"""Parses CREATE VIEW and DROP VIEW."""

from __future__ import annotations

from penstock.sql.dialect.parse_query import QueryParser
from penstock.sql.tree.statements import CreateView, Statement


def parse_create_view(parser: QueryParser, *, or_replace: bool) -> Statement:
    """Parses what follows CREATE [OR REPLACE] VIEW."""
    if_not_exists = not or_replace and parser.take_if_not_exists()
    name = parser.object_name("a view name")
    columns = parser.column_names() if parser.at("(") else ()
    invoker = False
    if parser.take("SQL"):
        parser.expect("SECURITY")
        invoker = parser.one_of("DEFINER", "INVOKER") == "invoker"
    parser.expect("AS")
    return CreateView(name, parser.parse_rows(), columns, invoker, or_replace, if_not_exists)
