"""EXPLAIN (SQL): what each kind of task of a stream runs, DuckDB SQL and the kernels that stand in for it."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.planner.kernel_text import final_kernel_lines, source_kernel_lines
from penstock.planner.stream import SourcePlan, StreamPlan


def explain_sql(plan: StreamPlan) -> list[str]:
    """Returns a line for each text of SQL, and indented lines for the steps of its kernel, if it has one."""
    if plan.join is None:
        lines = _source("source", plan.source)
    else:
        left, right = plan.join.sides
        lines = [*_source("source of the left side", left.source), *_source("source of the right side", right.source),
                 f"join: {plan.join.sql}", f"join, places of rows that stay alone: {plan.join.places_sql}"]
    if plan.force is not None and plan.force.keep_sql is not None:
        lines.append(f"source, rows that later windows look back at: {plan.force.keep_sql}")
    if plan.agg is not None:
        lines.append(f"agg: {plan.agg.final_sql}")
        if plan.agg.kernel is not None:
            lines += _kernel(final_kernel_lines(plan.agg.kernel))
    if plan.fill is not None:
        lines.append(f"windows without rows: {plan.fill.sql}")
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


def _kernel(lines: Iterable[str]) -> list[str]:
    return ["  kernel", *(f"    {line}" for line in lines)]
