"""The results of a stream over a join as one query over the rows of both tables: what its result table is to hold."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.planner.duckdb_sql.duckdb_tree import Tree, call, column, fragment, named, render, select
from penstock.planner.duckdb_sql.group_ids import group_id
from penstock.planner.duckdb_sql.interval_windows import expanded_windows
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.expr import Computed
from penstock.planner.logical.operators import Project, Scan
from penstock.planner.logical.stream import LogicalStream
from penstock.planner.lower.batch_results import FOR_EVER, GROUP_ID, BatchResults, results_sql
from penstock.planner.lower.targets import converted_results, key_fields
from penstock.planner.task_plans.stream_plan import JoinPlan
from penstock.planner.task_plans.user_calls import UserCall
from penstock.sql.types import UBIGINT


def joined_results(
    stream: LogicalStream, join: JoinPlan, scans: Sequence[Scan], functions: Sequence[UserCall], *, own_time: bool
) -> BatchResults:
    """Returns the query for a stream over a join: its keys are the first columns of what its plan projects.

    `scans`: of the left and the right table. `own_time`: the time of a result is the start of its window, or that of
    its driving row. Raises NotSupportedError where rows alone don't tell the results.
    """
    project = stream.plan
    assert isinstance(project, Project)
    keys = [Computed(key.name, SqlExpr(column(f"o{n}"), key.type)) for n, key in enumerate(stream.keys)]
    gid = group_id((key.value.node, field.type) for key, field in zip(keys, key_fields(stream.keys), strict=True))
    below = Project(project.input, (*keys, Computed(GROUP_ID, SqlExpr(
        gid if keys else fragment("0::UBIGINT"), UBIGINT))), extends=True)
    values = [item.value for item in project.columns]
    steps, body = results_sql(
        stream, below, _ends(join, len(keys), values[0].node if own_time else None),
        converted_results(values, stream.target.columns), greatest=join.windows is None)
    driver, other = scans if join.driver == "left" else (scans[1], scans[0])
    near = join.start is not None and own_time
    return BatchResults(
        steps, body, (driver, other), tuple(dict.fromkeys(functions)), delayed=False, far=not near,
        grid=join.windows.grid if near and join.windows is not None else None, of_rows=near and join.windows is None,
        times=_times(join, driver) if near else None, forth=join.waits,
        back=join.waits if join.both else max(-(join.start or 0), 0))


def _ends(join: JoinPlan, hidden: int, time: Tree | None) -> Tree:
    """When the results of rows are final, as join tasks have it. `hidden`: the first column behind the keys."""
    if join.windows is not None:
        at: Tree = column(f"o{hidden + 1}")
    elif join.both:
        at = fragment("coalesce(:left, :right) + 1", left=column(f"o{hidden}"), right=column(f"o{hidden + 1}"))
    elif time is not None:
        at = fragment(":time + 1", time=time)
    else:
        return fragment(":never::BIGINT", never=FOR_EVER)
    return fragment(":at + :waits", at=at, waits=join.waits)


def _times(join: JoinPlan, driver: Scan) -> str:
    time: Tree = column(driver.table.time_column.name)
    if join.windows is not None:
        windows = join.windows
        assert windows.interval is not None
        time = call("unnest", expanded_windows(time, windows.interval, windows.precision, windows.time_zone))
    return render(select([named(time, "r0")], driver.name))
