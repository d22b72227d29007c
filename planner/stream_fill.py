"""FILL in streams: which result columns are taken from the windows around a gap, and the SQL of rows in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from penstock.common.errors import InvalidStreamError
from penstock.planner.binder import Builder, is_pseudo
from penstock.planner.duckdb_tree import Tree, cast, everything, fragment, named, render, select
from penstock.planner.duckdb_tree import column as duckdb_column
from penstock.planner.fill import can_interpolate, straight_line
from penstock.planner.plan import SqlExpr
from penstock.planner.query_groups import fill_values
from penstock.planner.scopes import WINDOW_NAMES, RowScope, columns_of, vector_calls
from penstock.planner.stream import Field, FillPlan
from penstock.planner.windows import interval_end
from penstock.sql.schema import CatalogView, Column, Session
from penstock.sql.statements import Fill, FillMode, IntervalWindow
from penstock.sql.types import DataType, Precision

_PLAIN: dict[FillMode, FillMode] = {"null_f": "null", "value_f": "value"}

Converter = Callable[[SqlExpr, DataType], Tree]
"""Gives a value as the type of a target column."""

Keys = Callable[[str], bool]
"""Whether a name is that of a value which all rows of a group share."""


@dataclass(frozen=True, slots=True)
class Filled:
    """A projection as FILL sees it: its value, and the one for windows without rows (None: FILL gives it)."""

    value: SqlExpr
    plain: SqlExpr | None


@dataclass(frozen=True, slots=True)
class FillContext:
    """What the SQL of filled rows needs to know of the stream."""

    catalog: CatalogView
    session: Session
    text: str
    precision: Precision
    window: IntervalWindow
    keys: tuple[Field, ...]


def plan_fill(
    fill: Fill,
    projections: Sequence[Filled],
    bound: Sequence[SqlExpr],
    casts: Sequence[Tree],
    columns: Sequence[Column],
    context: FillContext,
    converted: Converter,
) -> tuple[FillPlan, list[Tree]]:
    """Returns the plan of filled rows, and `casts` as they are now: VALUE also stands in for NULL where there are rows.

    `bound` has the projection's value for each target column, `casts` that as the column's type. Windows with rows are
    otherwise left as they are, and a filled row copies what its neighbour has, NULL too. Raises InvalidStreamError for
    modes that streams don't have, InvalidStatementError for a wrong list of values.
    """
    mode = _PLAIN.get(fill.mode, fill.mode)
    if mode == "near":
        raise InvalidStreamError("FILL(NEAR) is for INTERP only")
    filling = [projection for projection in projections if projection.plain is None]
    scope = RowScope(None, Builder(context.catalog, context.session, context.text), "FILL")
    scope.precision = context.precision
    constants = dict(zip((id(projection.value) for projection in filling),
                         fill_values(fill, [projection.value.type for projection in filling], scope), strict=False))
    by_value = {id(projection.value): projection for projection in projections}
    changed = list(casts)
    shown: list[Tree] = []
    before: list[int] = []
    after: list[int] = []
    for place, (value, column) in enumerate(zip(bound, columns, strict=True)):
        projection = by_value.get(id(value))
        if projection is None:
            shown.append(casts[place])
        elif projection.plain is not None:
            shown.append(converted(projection.plain, column.type))
        elif mode == "value":
            constant = converted(constants[id(value)], column.type)
            shown.append(constant)
            changed[place] = fragment("coalesce(:value, :constant)", value=casts[place], constant=constant)
        elif mode == "prev":
            before.append(place)
            shown.append(duckdb_column(f"b{place}"))
        elif mode == "next":
            after.append(place)
            shown.append(duckdb_column(f"a{place}"))
        elif mode == "linear" and can_interpolate(column.type):
            before.append(place)
            after.append(place)
            before_it, after_it = (
                fragment("{'t': :at, 'v': :value::DOUBLE}", at=duckdb_column(at), value=duckdb_column(value))
                for at, value in (("_t0", f"b{place}"), ("_t1", f"a{place}")))
            shown.append(straight_line(before_it, after_it, duckdb_column("_wstart"), column.type))
        else:
            shown.append(cast(exp.null(), column.type.duckdb()))
    end = interval_end(duckdb_column("_wstart"), context.window, context.precision, context.session.time_zone)
    results = [duckdb_column("_op"), duckdb_column("_gid"), *(duckdb_column(key.name) for key in context.keys),
               *(named(value, f"r{place}") for place, value in enumerate(shown))]
    sql = select(results, select([everything(), named(end, "_wend")], "gaps"))
    return FillPlan(mode, tuple(before), tuple(after), render(sql)), changed


def is_filled(node: exp.Expression, is_key: Keys) -> bool:
    """Tells whether a result column has its value from rows; keys, constants and bounds are known without them."""
    if next(vector_calls(node), None) is not None:
        return True
    return any(not is_key(column.name) and not is_pseudo(column, *WINDOW_NAMES) for column in columns_of(node))
