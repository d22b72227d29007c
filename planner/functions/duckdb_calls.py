"""DuckDB's own functions, by their names there: with its types and rules, for what the dialect has no function of.

Which there are, `duckdb_list` says. What a call gives, DuckDB's binder says, of columns of the arguments' types and of
the constants among them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from sqlglot import exp

from penstock.common.errors import InvalidStatementError
from penstock.planner.duckdb_sql.duckdb_tree import Tree, call, fragment, number, try_cast
from penstock.planner.duckdb_sql.folding import type_over
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.duckdb_sql.timezones import local_timestamp
from penstock.planner.functions.grouped_call import GroupedCall
from penstock.planner.functions.spec import (
    EVERY,
    WRONG_ARGUMENT_TYPE,
    WRONG_ARGUMENT_VALUE,
    Argument,
    FunctionSpec,
    always,
)
from penstock.planner.scalar.scalar_call import ScalarCall
from penstock.sql.types import (
    BIGINT,
    BOOL,
    DOUBLE,
    INT,
    NULL,
    UBIGINT,
    VARCHAR,
    DataType,
    Kind,
    Precision,
    other_type,
    timestamp,
)

# As many as GREATEST takes.
_ARGUMENTS = (Argument("value", EVERY, optional=True, repeats=1000),)
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_WIDE = DataType(Kind.DECIMAL, digits=38, scale=0)
_TIMES = ("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS")
_INSTANT = "TIMESTAMP WITH TIME ZONE"
_TYPES = {
    "BOOLEAN": BOOL, "TINYINT": DataType(Kind.TINYINT), "SMALLINT": DataType(Kind.SMALLINT), "INTEGER": INT,
    "BIGINT": BIGINT, "UTINYINT": DataType(Kind.UTINYINT), "USMALLINT": DataType(Kind.USMALLINT),
    "UINTEGER": DataType(Kind.UINT), "UBIGINT": UBIGINT, "FLOAT": DataType(Kind.FLOAT), "DOUBLE": DOUBLE,
    "VARCHAR": VARCHAR, "BLOB": DataType(Kind.VARBINARY), '"NULL"': NULL,
}
"""DuckDB's types that are types of the dialect."""
_BROUGHT = {"HUGEINT": _WIDE, "UHUGEINT": _WIDE, "JSON": VARCHAR, "UUID": VARCHAR}
"""Those that are brought to one: NULL where there is no room for a value."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A function as `duckdb_list` has it. `calendar`: it reads times off the calendar of the session's time zone."""

    name: str
    group: str
    volatile: bool
    calendar: bool
    forms: str


@cache
def listed() -> dict[str, Listed]:
    """Returns all of them by their names."""
    from penstock.planner.functions.duckdb_list import TABLE  # long, and most statements call none

    rows = (line.split("|") for line in TABLE.splitlines())
    return {name: Listed(name, group, "volatile" in flags, "calendar" in flags, forms)
            for name, group, flags, forms in rows}


def duckdb_function(name: str) -> FunctionSpec | None:
    """Returns the function of this name, in small letters; None if there is none that may be called."""
    found = listed().get(name)
    return None if found is None else _spec(found)


@cache
def _spec(found: Listed) -> FunctionSpec:
    if found.group == "aggregates":
        return FunctionSpec(found.name, "aggregate", _ARGUMENTS, always(NULL), found.forms, in_stream=False,
                            aggregate=lambda given: _of_group(found, given).node,
                            typed=lambda given: _of_group(found, given).type)
    return FunctionSpec(found.name, "scalar", _ARGUMENTS, always(NULL), found.forms, in_stream=not found.volatile,
                        scalar=lambda given: _of_row(found, given))


def _of_row(found: Listed, given: ScalarCall) -> SqlExpr:
    return _value(found, given.arguments, given.precision, given.session.time_zone if found.calendar else "UTC")


def _of_group(found: Listed, given: GroupedCall) -> SqlExpr:
    return _value(found, given.arguments, given.row.ts.type.precision, "UTC")


def _value(found: Listed, arguments: Sequence[SqlExpr], precision: Precision, time_zone: str) -> SqlExpr:
    """Returns what a call gives; a time is of the `precision`. Raises InvalidStatementError."""
    given = [_given(argument, time_zone) for argument in arguments]
    tree, name = call(found.name, *given), _type_name(found, arguments, given)
    if name in _TIMES and time_zone != "UTC":
        tree = fragment("timezone(:zone, :local)", zone=time_zone, local=tree)
    if name in (*_TIMES, _INSTANT):
        return SqlExpr(call(f"epoch_{precision}", tree), timestamp(precision))
    if (brought := _BROUGHT.get(name)) is not None:
        return SqlExpr(try_cast(tree, brought.duckdb()), brought)
    if (decimal := _DECIMAL.fullmatch(name)) is not None:
        return SqlExpr(tree, DataType(Kind.DECIMAL, digits=int(decimal[1]), scale=int(decimal[2])))
    return SqlExpr(tree, _TYPES.get(name) or other_type(name))


def _given(argument: SqlExpr, time_zone: str) -> Tree:
    """An argument: times as DuckDB's, integers that are known as bare numbers, which fit into all of its types."""
    if argument.type.kind is Kind.TIMESTAMP:
        return local_timestamp(argument.node, argument.type.precision, time_zone)
    constant = argument.constant
    return number(constant) if argument.type.is_integer and isinstance(constant, int) else argument.node


def _type_name(found: Listed, arguments: Sequence[SqlExpr], given: Sequence[Tree]) -> str:
    """DuckDB's name of the type of the result."""
    columns: dict[str, str] = {}
    trees: list[Tree] = []
    for place, (argument, tree) in enumerate(zip(arguments, given, strict=True)):
        kind = argument.type.kind
        if kind is Kind.NULL or (kind is not Kind.TIMESTAMP and isinstance(argument.constant, str | int | float)):
            trees.append(tree)
            continue
        columns[f"a{place}"] = "TIMESTAMP" if kind is Kind.TIMESTAMP else argument.type.duckdb()
        trees.append(exp.column(f"a{place}"))
    try:
        name = type_over(call(found.name, *trees), columns)
    except InvalidStatementError as error:
        raise InvalidStatementError(f"{found.name}(): {error.message}", code=WRONG_ARGUMENT_VALUE) from error
    if name is None:
        raise InvalidStatementError(
            f"there is no {found.name}({', '.join(argument.type.sql() for argument in arguments)})",
            code=WRONG_ARGUMENT_TYPE, hint=f"write {found.forms.replace('; ', ' or ')}")
    return name
