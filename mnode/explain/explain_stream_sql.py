"""EXPLAIN (SQL): what each kind of task of a stream runs, DuckDB SQL and the kernels that stand in for it."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.planner.task_plans.kernel_text import final_kernel_lines, source_kernel_lines
from penstock.planner.task_plans.stream_plan import (
    FillPlan,
    ForcePlan,
    JoinPlan,
    PeriodPlan,
    RefreshPlan,
    RowsPlan,
    SourcePlan,
    StreamPlan,
    WindowsPlan,
)


def explain_sql(plan: StreamPlan) -> list[str]:
    """Returns a line for each text of SQL, and indented lines for the steps of its kernel, if it has one."""
    match plan.computation:
        case RowsPlan():
            lines = _source("source", plan.source)
        case WindowsPlan(final_sql=sql, kernel=kernel, fill=fill):
            lines = [*_source("source", plan.source), f"agg: {sql}"]
            if kernel is not None:
                lines += _kernel(final_kernel_lines(kernel))
            lines += _fill(fill)
        case JoinPlan(left, right, sql, places_sql):
            lines = [*_source("source of the left side", left.source),
                     *_source("source of the right side", right.source),
                     f"join: {sql}", f"join, places of rows that stay alone: {places_sql}"]
        case ForcePlan(keep_sql=keep_sql, fill=fill):
            lines = _source("source", plan.source)
            if keep_sql is not None:
                lines.append(f"source, rows that later windows look back at: {keep_sql}")
            lines += _fill(fill)
        case PeriodPlan(groups_sql=groups_sql):
            lines = [] if groups_sql is None else [f"source, groups: {groups_sql}"]
        case RefreshPlan():
            return ["engine: the query, as EXPLAIN (SQL) SELECT ... shows it"]
    if not plan.sink.keyed:
        lines.append(f"sink, names and tags of child tables: {plan.sink.children_sql}")
    return lines


def _source(name: str, source: SourcePlan) -> list[str]:
    lines = [f"{name}, rows in order: {source.rows_sql}"] if source.rows_sql else []
    lines.append(f"{name}: {source.sql}")
    if source.kernel is not None:
        lines += _kernel(source_kernel_lines(source.kernel))
    if source.late_sql is not None and source.expired_sql is not None:
        lines += [f"{name}, without late rows: {source.late_sql}", f"{name}, which rows are late: {source.expired_sql}"]
    return lines


def _fill(fill: FillPlan | None) -> list[str]:
    return [] if fill is None else [f"windows without rows: {fill.sql}"]


def _kernel(lines: Iterable[str]) -> list[str]:
    return ["  kernel", *(f"    {line}" for line in lines)]
