"""The statements that make what is there: databases, tables, views, grants. `generator.print_sql` gives their text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from sqlglot import exp

from penstock.sql.dialect.parse_ddl import STRING_OPTIONS
from penstock.sql.dialect.parser import parse_query
from penstock.sql.rights import Right
from penstock.sql.schema import Column, Table, TagValue, View
from penstock.sql.tree.expression_nodes import TypeName
from penstock.sql.tree.statements import (
    ColumnDefinition,
    CreateChildTable,
    CreateChildTables,
    CreateDatabase,
    CreateTable,
    CreateView,
    Grant,
    Name,
    Statement,
)
from penstock.sql.types import DataType, Kind


def database_statement(name: str, options: Mapping[str, str]) -> CreateDatabase:
    """Returns CREATE DATABASE with every option that has a value; values are the texts that the catalog has."""
    return CreateDatabase(name, tuple((option, _option(option, value)) for option, value in options.items() if value))


def _option(option: str, value: str) -> str | int:
    """Returns a value as the parser has it."""
    whole = option not in STRING_OPTIONS and value.removeprefix("-").isdigit()
    return int(value) if whole else value


def table_statement(table: Table) -> Statement:
    """Returns the statement that makes the table, with comments, without options that change nothing."""
    if table.kind == "child":
        return CreateChildTables((CreateChildTable(
            Name(table.name), Name(table.super_name or ""), tuple(tag.name for tag in table.tags),
            tuple(map(tag_literal, table.tag_values))),))
    return CreateTable(
        Name(table.name), tuple(_definition(column) for column in table.columns),
        tuple(_definition(tag) for tag in table.tags), must_be_super=table.kind == "super",
        comment=table.comment or None)


def view_statement(view: View) -> CreateView:
    """Returns the statement that makes a view; `print_view` gives its text."""
    return CreateView(Name(view.name), parse_query(view.text), view.columns, view.invoker)


def grant_statement(user: str, right: Right) -> Grant:
    """Returns the statement that gives a user what was granted."""
    return Grant((right.privilege,), right.on, user)


def _definition(column: Column) -> ColumnDefinition:
    # Times have the precision of the database: statements don't say it.
    type_ = replace(column.type, precision=DataType(Kind.TIMESTAMP).precision)
    return ColumnDefinition(column.name, type_, column.primary_key, column.comment or None)


def tag_literal(value: TagValue) -> exp.Expression:
    """Returns the expression that is the value of a tag."""
    if value is None:
        return exp.Null()
    if isinstance(value, bool):
        return exp.Boolean(this=value)
    if isinstance(value, bytes):
        return exp.Literal.string("\\x" + value.hex().upper())
    if isinstance(value, str) or (isinstance(value, float) and not math.isfinite(value)):
        return exp.Literal.string(str(value))
    written = str(value)
    number = exp.Literal.number(written.removeprefix("-"))
    return exp.Neg(this=number) if written.startswith("-") else number


def group_constant(value: TagValue, kind: DataType) -> exp.Expression:
    """Returns a value of PARTITION BY as a constant of its type, such that a query for one window means what that for
    many does."""
    if isinstance(value, bytes):
        return exp.Anonymous(this="unhex", expressions=[exp.Literal.string(value.hex())])
    literal = tag_literal(value)
    if value is None or kind.kind in (Kind.TIMESTAMP, Kind.NCHAR, Kind.FLOAT):
        return exp.Cast(this=literal, to=TypeName(this=kind))
    return literal
