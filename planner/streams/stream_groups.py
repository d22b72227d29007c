"""Streams of groups without a window: tasks keep them up to date by what changes, as they do windows.

What a query means is told by its plan, the one that DuckDB would run; here operators of it become those of a stream.
"""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from penstock.planner.duckdb_sql.duckdb_tree import column, fragment, is_column, number
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.functions.table import require
from penstock.planner.logical.expr import Computed
from penstock.planner.logical.group_values import AggregateCall, GroupValue
from penstock.planner.logical.operators import Aggregate, Distinct, Filter, Operator, Project, Scan, Sort
from penstock.planner.logical.stream import LogicalStream, StreamKey, Target
from penstock.planner.lower.partial_aggregates import retractable
from penstock.planner.lower.stages import stream_plan
from penstock.planner.lower.targets import always_fits
from penstock.planner.query.batch_plan import BatchPlan
from penstock.planner.streams.state_ttl import state_ttl
from penstock.planner.task_plans.stream_plan import History, Policies, StreamPlan
from penstock.sql.schema import Column, Table
from penstock.sql.tree.statements import CreateStream
from penstock.sql.types import Kind


def plan_kept_groups(
    statement: CreateStream, batch: BatchPlan, database: str, columns: tuple[Column, ...], time_zone: str
) -> StreamPlan | None:
    """Returns the plan of a stream whose groups tasks keep; None if they can't.

    `batch`: the plan of the query, over scans with all rows. `columns` are those of the result, of which the KEY is
    flagged.
    """
    found = _groups_of(batch.plan)
    if found is None or len(batch.scans) != 1:
        return None
    outputs, below, aggregate = found
    rows = _with_places_of_rows(aggregate.input)
    key = [place for place, each in enumerate(columns) if each.primary_key]
    if rows is None or aggregate.sets is not None or aggregate.interval is not None or not (
            columns[0].primary_key or columns[0].type.kind is not Kind.TIMESTAMP):
        return None
    grouped = {name: next((place for place in key if is_column(outputs[place].node, name)), None)
               for name in aggregate.keys}
    # A group is a row of the table: with other columns as KEY two groups may want the same one.
    if grouped and (sorted(place for place in grouped.values() if place is not None) != key
                    or None in grouped.values()):
        return None
    calls = [_of_all_rows(found) for found in aggregate.calls]
    kept = [found for found in calls if found is not None and _is_kept(found, of_none=not grouped)]
    if len(kept) < len(calls):
        return None
    ttl = state_ttl(statement, batch.scans[0].precision)
    # Each row that comes may take the place of another one: to read all others of its group back isn't quicker.
    if batch.scans[0].table.keyed and (ttl is not None or not all(map(retractable, kept))):
        return None
    of_group = replace(aggregate, input=rows, calls=tuple(kept))
    plan = Project(of_group if below is aggregate else replace(below, input=of_group), tuple(
        Computed(f"r{place}", value, each.name)
        for place, (value, each) in enumerate(zip(outputs, columns, strict=True))))
    types = {each.name: each.type for each in rows.output}
    places = tuple(place for place in grouped.values() if place is not None)
    keys = tuple(StreamKey(name, types[name], columns[place].name, partitions=True)
                 for name, place in zip(grouped, places, strict=True))
    fit = all(always_fits(value, each.type) for value, each in zip(outputs, columns, strict=True))
    target = Target(database, statement.target.name.name, columns, (), None, (), 0, create=True,
                    checks_results=not fit, key_places=places, single=not grouped)
    policies = Policies(ignore_expired=False, guarantee=statement.options.guarantee or "exactly_once", state_ttl=ttl)
    stream = LogicalStream(plan, keys, target, "at_once", policies, batch.scans[0].precision, time_zone,
                           own_zone=statement.options.timezone is not None, history=History(None, None))
    return stream_plan(stream, batch.functions, ())


def _groups_of(plan: Operator) -> tuple[list[SqlExpr], Aggregate | Filter, Aggregate] | None:
    """Returns the results of groups, over what these are filtered by, if by anything, and the groups themselves.

    None if the plan is another one. Results have no order, so what sorts them is left out.
    """
    if isinstance(plan, Distinct):
        return _different(plan)
    if not isinstance(plan, Project) or plan.extends:
        return None
    if isinstance(plan.input, Sort) and isinstance(plan.input.input, Project):
        values = {each.name: each.value for each in plan.input.input.columns}
        sorted_by, plan = plan, plan.input.input
        outputs = [values[each.value.node.name] for each in sorted_by.columns]
    else:
        outputs = [each.value for each in plan.columns]
    below = plan.input
    aggregate = below.input if isinstance(below, Filter) else below
    if plan.extends or not isinstance(aggregate, Aggregate) or not isinstance(below, Filter | Aggregate):
        return None
    return outputs, below, aggregate


def _different(plan: Distinct) -> tuple[list[SqlExpr], Aggregate, Aggregate] | None:
    """Returns the groups that different rows are."""
    rows = plan.input
    if not isinstance(rows, Project) or rows.extends:
        return None
    keys = tuple(Computed(f"#g{place}", each.value) for place, each in enumerate(rows.columns))
    outputs = [SqlExpr(column(each.name), each.value.type) for each in keys]
    aggregate = Aggregate(Project(rows.input, keys, extends=True), tuple(each.name for each in keys), ())
    return outputs, aggregate, aggregate


def _with_places_of_rows(rows: Operator) -> Operator | None:
    """Returns the rows that are grouped, with what source tasks tell rows of a table by; None if these can't read them.
    """
    if isinstance(rows, Project | Filter):
        if isinstance(rows, Project) and not rows.extends:
            return None
        below = _with_places_of_rows(rows.input)
        if below is None or (isinstance(rows, Project) and isinstance(below, Project)) or (
                isinstance(rows, Filter) and not isinstance(below, Scan)):
            return None
        return replace(rows, input=below)
    if not isinstance(rows, Scan) or not _follows(rows.table) or rows.cuts is not None:
        return None
    needed = (rows.table.time_column, *([] if rows.table.key_column is None else [rows.table.key_column]))
    return replace(rows, name="rows", columns=tuple(dict.fromkeys((*(each.name for each in needed), *rows.columns))))


def _follows(table: Table) -> bool:
    return table.kind in ("super", "child", "normal")


def _is_kept(found: AggregateCall, *, of_none: bool) -> bool:
    """Whether agg tasks keep what gives a value of groups; `of_none`: also of one without rows."""
    return not of_none if found.user is not None else require(found.function).split is not None


def _of_all_rows(value: GroupValue) -> AggregateCall | None:
    """Returns the call of all rows that gives what a call gives of those that it takes; None if none is known."""
    if not isinstance(value, AggregateCall) or value.taken is None:
        return value if isinstance(value, AggregateCall) else None
    found, taken = replace(value, taken=None), value.taken
    if taken.order or value.user is not None:
        return None
    spec = require(value.function)
    extreme = spec.selects is not None and spec.selects.by_value  # which a value tells once
    if spec.category != "aggregate" and not extreme:
        return None
    if taken.distinct and not extreme:
        if not spec.different or len(value.arguments) != 1:
            return None
        found = replace(found, function=spec.different)
    if taken.condition is not None:
        # NULL is what these functions leave out.
        first, *others = found.arguments
        given = number(1) if isinstance(first.node, exp.Star) else first.node
        taken_alone = fragment("CASE WHEN :holds THEN :value END", holds=taken.condition.node, value=given)
        found = replace(found, arguments=(SqlExpr(taken_alone, first.type), *others))
    return found

