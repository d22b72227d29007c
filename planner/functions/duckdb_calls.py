"""DuckDB's own functions, by their names there: with its types and rules, for what the dialect has no function of.

Which there are, `duckdb_list` says; what a call gives, `scalar.duckdb_values`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial

from penstock.common.errors import InvalidStatementError
from penstock.planner.duckdb_sql.duckdb_tree import VOLATILE, call, number
from penstock.planner.duckdb_sql.folding import forms_of
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.functions.grouped_call import GroupedCall
from penstock.planner.functions.spec import (
    EVERY,
    WRONG_ARGUMENT_TYPE,
    WRONG_ARGUMENT_VALUE,
    Argument,
    FunctionSpec,
    always,
)
from penstock.planner.scalar.duckdb_values import duckdb_value
from penstock.planner.scalar.scalar_call import ScalarCall
from penstock.sql.types import NULL, Kind, Precision

OF_DUCKDB = "duckdb."
"""Stands before the name of a function in plans where the dialect has one of the same name."""
# As many as a statement has room for: lists are written as calls.
_ARGUMENTS = (Argument("value", EVERY, optional=True, repeats=1_000_000),)


@dataclass(frozen=True, slots=True)
class Listed:
    """A function as `duckdb_list` has it. `calendar`: it reads times off the calendar of the session's time zone."""

    name: str
    group: str
    calendar: bool

    @property
    def volatile(self) -> bool:
        return self.name in VOLATILE


@cache
def listed() -> dict[str, Listed]:
    """Returns all of them by their names."""
    from penstock.planner.functions.duckdb_list import CALENDAR, GROUPS  # long, and most statements call none

    calendar = frozenset(CALENDAR.split())
    return {name: Listed(name, group, name in calendar) for group, names in GROUPS.items() for name in names.split()}


def duckdb_function(name: str) -> FunctionSpec | None:
    """Returns the function of this name, in small letters, perhaps behind `OF_DUCKDB`; None if none may be called."""
    found = listed().get(name.removeprefix(OF_DUCKDB))
    return None if found is None else _spec(found)


def of_form(spec: FunctionSpec, count: int, *, ordered: bool) -> FunctionSpec:
    """Returns DuckDB's function of the same name for a call that the dialect's can't be: one of so many arguments, or
    with an order of its own where the dialect's goes along the time line.
    """
    by_order = ordered and (spec.needs_time or spec.selects_equal)
    own = duckdb_function(spec.name) if by_order or count in spec.counts_of_duckdb else None
    return own or spec


def meant(spec: FunctionSpec, arguments: Sequence[SqlExpr]) -> FunctionSpec:
    """Returns DuckDB's function of the same name where the dialect's takes no values of types that only DuckDB has.

    What it refuses of its own types is refused: so does TDengine.
    """
    def refused(place: int, argument: SqlExpr) -> bool:
        return argument.type.kind is Kind.OTHER and (
            place >= spec.maximum or Kind.OTHER not in spec.argument(place).accepts)

    own = duckdb_function(spec.name) if any(refused(*each) for each in enumerate(arguments)) else None
    return own or spec


@cache
def _spec(found: Listed) -> FunctionSpec:
    if found.group == "aggregates":
        return FunctionSpec(found.name, "aggregate", _ARGUMENTS, always(NULL), "", in_stream=False,
                            aggregate=lambda given: _of_group(found, given).node,
                            typed=lambda given: _of_group(found, given).type)
    return FunctionSpec(found.name, "scalar", _ARGUMENTS, always(NULL), "", in_stream=not found.volatile,
                        volatile=found.volatile, scalar=lambda given: _of_row(found, given))


def _of_row(found: Listed, given: ScalarCall) -> SqlExpr:
    return _value(found, given.arguments, given.precision, given.session.time_zone if found.calendar else "UTC")


def _of_group(found: Listed, given: GroupedCall) -> SqlExpr:
    return _value(found, given.arguments, given.row.ts.type.precision, "UTC")


def _value(found: Listed, arguments: Sequence[SqlExpr], precision: Precision, time_zone: str) -> SqlExpr:
    """Returns what a call gives; a time is of the `precision`. Raises InvalidStatementError."""
    function = partial(call, found.name)
    try:
        value = duckdb_value(function, arguments, precision, time_zone)
        if value is None:  # an argument of FLOAT takes 0.5, but no DOUBLE
            value = duckdb_value(function, list(map(_bare, arguments)), precision, time_zone)
    except InvalidStatementError as error:
        raise InvalidStatementError(f"{found.name}(): {error.message}", code=WRONG_ARGUMENT_VALUE) from error
    if value is None:
        raise InvalidStatementError(
            f"there is no {found.name}({', '.join(argument.type.sql() for argument in arguments)})",
            code=WRONG_ARGUMENT_TYPE, hint=f"write {' or '.join(forms_of(found.name))}")
    return value


def _bare(argument: SqlExpr) -> SqlExpr:
    """Returns a number that is known as one without a type, and all else as it is."""
    constant = argument.constant
    if argument.type.kind is not Kind.DOUBLE or not isinstance(constant, int | float):
        return argument
    return SqlExpr(number(constant), argument.type, constant)
