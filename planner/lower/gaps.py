"""FILL in streams: the SQL of rows in gaps, of which results are taken from the windows around a gap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot import exp

from penstock.common.errors import InvalidStreamError
from penstock.planner.duckdb_sql.duckdb_tree import (
    Tree,
    cast,
    column,
    fragment,
    named,
    null,
    render,
    replaced_columns,
    select,
)
from penstock.planner.duckdb_sql.fill import can_interpolate, straight_line
from penstock.planner.duckdb_sql.folding import evaluate
from penstock.planner.duckdb_sql.interval_windows import interval_end
from penstock.planner.duckdb_sql.pieces import star
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.operators import FillColumn
from penstock.planner.logical.stream import Target
from penstock.planner.logical.window_kinds import ByInterval
from penstock.planner.lower.targets import converted, problem_of
from penstock.planner.task_plans.column_names import OPERATION
from penstock.planner.task_plans.stream_plan import Field, FillPlan
from penstock.sql.schema import Column
from penstock.sql.tree.statements import FillMode

_PLAIN: dict[FillMode, FillMode] = {"null_f": "null", "value_f": "value"}


def fill_plan(
    mode: FillMode, interval: ByInterval, results: Sequence[FillColumn | SqlExpr], target: Target,
    keys: Sequence[Field], of_blocks: Mapping[str, Tree],
) -> FillPlan:
    """Returns the plan of filled rows. A filled row copies the nearest values that are not NULL.

    `results`, for the target's columns: what FILL gives, or a value over `of_blocks`, the columns of gaps by their
    names in the plan.
    Raises InvalidStreamError for a constant that doesn't fit its column.
    """
    mode = plain_mode(mode)
    shown: list[Tree] = []
    before: list[int] = []
    after: list[int] = []
    for place, (result, taking) in enumerate(zip(results, target.result_columns, strict=True)):
        if isinstance(result, SqlExpr):
            shown.append(replaced_columns(converted(result, taking.type), of_blocks))
        elif mode == "value":
            assert result.constant is not None
            problem = problem_of([result.constant], [taking])
            misfit = None if problem is None else evaluate(problem)
            if misfit is not None:
                raise InvalidStreamError(f"FILL: {misfit}")
            shown.append(converted(result.constant, taking.type))
        elif mode == "prev":
            before.append(place)
            shown.append(column(f"b{place}"))
        elif mode == "next":
            after.append(place)
            shown.append(column(f"a{place}"))
        elif mode == "linear" and can_interpolate(taking.type):
            before.append(place)
            after.append(place)
            shown.append(_between(place, taking))
        else:
            shown.append(cast(exp.null(), taking.type.duckdb()))
    if target.checks_results:
        shown.append(null("VARCHAR"))  # what is copied fits, or is NULL
    end = interval_end(column("_wstart"), interval.window, interval.precision, interval.zone)
    shown = [column(OPERATION), column("_gid"), *(column(key.name) for key in keys),
             *(named(value, f"r{place}") for place, value in enumerate(shown))]
    sql = select(shown, select([star(), named(end, "_wend")], "gaps"))
    return FillPlan(mode, tuple(before), tuple(after), render(sql))


def with_constants(
    mode: FillMode, results: Sequence[FillColumn | SqlExpr], columns: Sequence[Column], values: Sequence[Tree]
) -> list[Tree]:
    """Returns the results of windows with rows: there VALUE stands in for NULL, otherwise they are as they were."""
    if plain_mode(mode) != "value":
        return list(values)
    filled = [fragment("coalesce(:value, :constant)", value=value, constant=converted(result.constant, target.type))
              if isinstance(result, FillColumn) and result.constant is not None else value
              for result, target, value in zip(results, columns, values[:len(columns)], strict=True)]
    return [*filled, *values[len(columns):]]


def plain_mode(mode: FillMode) -> FillMode:
    """Returns the mode without what only queries know: gaps lie between windows with rows."""
    return _PLAIN.get(mode, mode)


def _between(place: int, target: Column) -> Tree:
    """The value on the straight line between those of the windows around the gap."""
    before, after = (fragment("{'t': :at, 'v': :value::DOUBLE}", at=column(at), value=column(value))
                     for at, value in (("_t0", f"b{place}"), ("_t1", f"a{place}")))
    return straight_line(before, after, column("_wstart"), target.type)
