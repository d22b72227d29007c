"""The results of a stream as one query over the rows of its table: what its result table is to hold.

No partials, no kernels: groups are aggregated as queries are, and named as the stream's sink tasks name them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from sqlglot import exp

from penstock.common.errors import InternalError, NotSupportedError
from penstock.planner.duckdb_sql.duckdb_tree import (
    Tree,
    call,
    called,
    cast,
    column,
    fragment,
    named,
    render,
    replaced_columns,
    select,
)
from penstock.planner.duckdb_sql.group_ids import group_value
from penstock.planner.duckdb_sql.interval_windows import Grid, grid_of, latest_end
from penstock.planner.duckdb_sql.pieces import from_here, ignoring_nulls, nested, ordered, over, row_number, star
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.expr import Computed
from penstock.planner.logical.operators import Aggregate, FillColumn, FillGaps, Operator, Project, Scan, Window
from penstock.planner.logical.stream import LogicalStream
from penstock.planner.logical.window_kinds import END, START, BySession
from penstock.planner.lower.column_certainty import CERTAIN, ColumnCertainty, column_certainty
from penstock.planner.lower.duckdb.aggregate_sql import users_aggregates
from penstock.planner.lower.duckdb.query_sql import lower, lower_in_steps
from penstock.planner.lower.inner_names import with_inner_names
from penstock.planner.lower.stages import SourceRows, aggregate_of, computed_below, fill_of_results, rows_of
from penstock.planner.lower.targets import (
    converted,
    converted_results,
    group_text,
    key_fields,
    sink_plan,
    tolerant,
)
from penstock.planner.lower.tolerant_plan import tolerant_plan
from penstock.planner.task_plans.column_names import CHILD, PROBLEM
from penstock.planner.task_plans.user_calls import UserCall
from penstock.sql.tree.walking import found_in
from penstock.sql.types import BIGINT, UBIGINT, VARCHAR

GROUP_ID, ENDS = "_gid", "_ends_at"
_RESULTS, _GROUPS, _CHILDREN = "results", "groups", "children"
_PROBLEM = "#problem"
FOR_EVER = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class BatchResults:
    """`steps`, (name, SQL), over the relations of `scans`, and `body` over these: a row per result row.

    Its columns are CHILD (what `group_text` says where results leave Penstock), ENDS (from when on no row in order
    changes the result, FOR_EVER if one always may, NULL if it is known with its row), and `r0`, `r1`, ... of the types
    of the target's columns, TIMESTAMP as BIGINT. `functions` are the users' functions that the SQL calls. `grid`: of
    the windows whose starts are `r0`. `of_rows`: `r0` is the time of the row that the result is made of. `times` is SQL
    of all `r0`, some several times, that is quicker than that of the results; None if only these tell. `delayed`: what
    is stored of a window that is open may be behind its rows. `far`: a row may change results of any times. `early`:
    what is stored before a result's ENDS isn't the last. Of a join, the first of the scans is of the driving side, and
    rows of the other one may be older than these by `back`, newer by `forth`. `gap`: results are of sessions of rows
    that aren't farther apart. `certainty`: how surely the columns are known.
    """

    steps: tuple[tuple[str, str], ...]
    body: str
    scans: tuple[Scan, ...]
    functions: tuple[UserCall, ...]
    grid: Grid | None
    of_rows: bool
    times: str | None
    delayed: bool
    far: bool
    early: bool = False
    back: int = 0
    forth: int = 0
    gap: int | None = None
    certainty: ColumnCertainty = CERTAIN

    def bounds(self, first: int, last: int) -> tuple[int, int | None] | None:
        """Returns the times of the first and the last row that results from `first` to `last` may come of.

        The end is None if there is none; all is None if they may come of any rows.
        """
        if self.far or not (self.of_rows or self.grid):
            return None
        if self.grid is not None and last < FOR_EVER:
            last = latest_end(last, self.grid) - 1
        return max(first - self.back, -FOR_EVER), last + self.forth if last < FOR_EVER else None

    def sources(self, moment: int, ends: int | None) -> tuple[int, int] | None:
        """Returns the times of the first and the last row that may change a result of a time, which has these ENDS.

        None: any row may.
        """
        if self.gap is not None:
            return moment - self.gap, FOR_EVER if ends is None else ends
        if self.far:
            return None
        if ends is None:  # of a window whose rows aren't known only its start is
            ends = self.forth + (moment + 1 if self.grid is None else latest_end(moment, self.grid))
        return moment - self.back, ends - 1

    def around(self, moment: int) -> tuple[int, int] | None:
        """Returns a range with the times of all results that a row may be part of; None if that may be any."""
        if self.far or not (self.of_rows or self.grid):
            return None
        length = 0 if self.grid is None else self.grid.longest + self.grid.turn
        return moment - self.forth - length, moment + self.back


def batch_results(stream: LogicalStream, functions: tuple[UserCall, ...]) -> BatchResults:
    """Returns the query for a stream over one table. Raises NotSupportedError where rows alone don't tell the results.

    `functions`: the users' functions that the plan calls row by row.
    """
    project = with_inner_names(stream.plan)
    assert isinstance(project, Project)
    below, time = project.input, project.columns[0].value
    fill = below if isinstance(below, FillGaps) else None
    if isinstance(below, FillGaps | Aggregate):
        rows, below, ends = _grouped(stream, aggregate_of(below))
    else:
        rows, ends = rows_of(below, stream.keys, stream.time_zone), fragment("NULL::BIGINT")
        below = _with_group(below, rows)
    if rows.lookup is not None:
        raise NotSupportedError("streams with lookups can't be verified: the other table may have changed")
    values = [SqlExpr(replaced_columns(item.value.node, {END: ends}), item.value.type) for item in project.columns]
    computed = values if fill is None else computed_below(fill, values)
    if stream.policies.leaves_out_errors:
        values, computed, below = list(map(tolerant, values)), list(map(tolerant, computed)), tolerant_plan(below)
    results = converted_results(computed, stream.target.columns)
    grid, times, of_rows = None, None, False
    if fill is not None:
        assert isinstance(below, Aggregate)
        below, ends, results = _filled(stream, fill, below, values, results)
    elif not isinstance(below, Aggregate):
        of_rows = time.node == column(rows.table.columns[0].name)
        times = _times(below, time) if of_rows else None
    elif below.interval is not None and time.node == column(START):
        grid = grid_of(below.interval.window, below.interval.precision, below.interval.zone)
        times = _times(below.input, time)
    steps, body = results_sql(stream, below, ends, results, group_is_table=rows.group_is_table)
    far = fill is not None or (isinstance(below, Aggregate) and below.interval is None)
    shape = below.input.shape if isinstance(below, Aggregate) and isinstance(below.input, Window) else None
    gap = shape.gap if fill is None and isinstance(shape, BySession) else None
    return BatchResults(steps, body, (rows.scan,), tuple(dict.fromkeys((*functions, *users_aggregates(stream.plan)))),
                        grid, of_rows, times, stream.trigger == "max_delay", far, early=fill is not None, gap=gap,
                        certainty=column_certainty(stream, project))


def results_sql(
    stream: LogicalStream, below: Operator, ends: Tree, results: Sequence[Tree], *, greatest: bool = False,
    group_is_table: bool = False,
) -> tuple[tuple[tuple[str, str], ...], str]:
    """Returns `steps` and `body` of the results, which are computed of what is below, where groups have GROUP_ID.

    `greatest`: of results of one place the greatest counts. Raises NotSupportedError for what is never the same again.
    """
    shown = [named(column(GROUP_ID), GROUP_ID), named(ends, ENDS), *_keys(stream), *(
        named(result, f"r{n}") for n, result in enumerate(results))]
    columns = stream.target.columns
    steps, found = lower_in_steps(below)
    steps.append(("grouped", found))
    if any(called(node) == "random" for tree in [*map(itemgetter(1), steps), *results]
           for node in found_in(tree, exp.Anonymous)):
        raise NotSupportedError("streams with rand() can't be verified")
    # A result that doesn't fit its column is refused, as is one without a time.
    counts = [fragment(":time IS NOT NULL", time=column("r0"))]
    if len(results) > len(columns):
        counts.append(fragment(":problem IS NULL", problem=column(f"r{len(columns)}")))
    sink = sink_plan(stream.target, stream.keys, leaves_out_errors=stream.policies.leaves_out_errors,
                     group_is_table=group_is_table)
    keys = ", ".join([GROUP_ID, *(field.name for field in key_fields(stream.keys))])
    named_steps = [(name, render(step)) for name, step in steps]
    named_steps += [
        (_RESULTS, render(_one_per_place(select(shown, "grouped"), stream, len(results)) if greatest
                          else select(shown, "grouped"))),
        (_GROUPS, f"SELECT DISTINCT {keys} FROM {_RESULTS}"),
        (_CHILDREN, sink.children_sql)]
    place = CHILD if stream.target.external is None else (
        f"{group_text([f't{n}' for n in range(len(stream.target.tags))])} AS {CHILD}")
    wanted = ", ".join([place, ENDS, *(f"r{n}" for n in range(len(columns)))])
    fits = f" AND {PROBLEM} IS NULL" if sink.checks_tags else ""
    body = (f"SELECT {wanted} FROM {_RESULTS} JOIN {_CHILDREN} USING ({GROUP_ID}) "
            f"WHERE {' AND '.join(render(each) for each in counts)}{fits}")
    return tuple(named_steps), body


def _one_per_place(results: exp.Select, stream: LogicalStream, count: int) -> exp.Select:
    """The greatest of the results of a place, by its values from left to right."""
    place = [column(GROUP_ID), column("r0"), *([column("r1")] if stream.target.composite else [])]
    first = row_number(place, [ordered(column(f"r{n}"), descending=True) for n in range(count)])
    return select([star()], nested(results), qualify=fragment(":first = 1", first=first))


def _times(rows: Operator, time: SqlExpr) -> str:
    return render(lower(Project(rows, (Computed("r0", time),))))


def _grouped(stream: LogicalStream, aggregate: Aggregate) -> tuple[SourceRows, Aggregate, Tree]:
    """Returns the rows, the groups with GROUP_ID, and when their windows are over, as streams have it."""
    window = aggregate.input
    if not isinstance(window, Window):
        raise InternalError(f"a stream can't aggregate {type(window).__name__}")
    rows = rows_of(window.input, stream.keys, stream.time_zone)
    ends: Tree = column(END)
    if isinstance(window.shape, BySession):
        ends = fragment("(:last + :gap)", last=ends, gap=window.shape.gap)
    grouped = replace(aggregate, input=replace(window, input=_with_group(window.input, rows)),
                      keys=(*aggregate.keys, GROUP_ID))
    return rows, grouped, ends


def _with_group(below: Operator, rows: SourceRows) -> Operator:
    return Project(below, (Computed(GROUP_ID, SqlExpr(rows.gid, UBIGINT)),), extends=True)


def _keys(stream: LogicalStream) -> list[Tree]:
    """Returns the keys of groups by their names in blocks."""
    return [named(cast(group_value(column(key.name), key.type), field.duckdb()), field.name)
            for key, field in zip(stream.keys, key_fields(stream.keys), strict=True)]


# --- FILL -------------------------------------------------------------------------------------------------------


def _filled(
    stream: LogicalStream, fill: FillGaps, groups: Aggregate, values: Sequence[SqlExpr], results: Sequence[Tree]
) -> tuple[FillGaps, Tree, list[Tree]]:
    """Returns the windows of groups with those in gaps, when they are over, and their results.

    `values` are over what `fill` gives, `results` over `groups`. As in streams, gaps are filled with what results are
    in the types of their columns.
    """
    filled = fill_of_results(fill, values)
    columns = stream.target.columns
    given = [(place, each) for place, each in enumerate(filled) if isinstance(each, FillColumn)]
    types = {each.name: columns[place].type for place, each in given}
    kept = [Computed(each.name, SqlExpr(column(each.name), each.type)) for each in groups.output if each.name != END]
    kept += [Computed(each.name, SqlExpr(results[place], types[each.name])) for place, each in given]
    kept += [Computed(_PROBLEM, SqlExpr(problem, VARCHAR)) for problem in results[len(columns):]]
    # A window takes values from the next one that has some, the gap before a window is there once that is.
    lasting = [SqlExpr(fragment("CASE WHEN :value IS NOT NULL THEN :end END", value=results[place], end=column(END)),
                       BIGINT) for place, _ in given] if fill.mode == "next" else [SqlExpr(column(END), BIGINT)]
    kept += [Computed(f"#ends{place}", each) for place, each in enumerate(lasting)]
    constants = {each.name: SqlExpr(converted(each.constant, types[each.name]), types[each.name])
                 for _, each in given if each.constant is not None}
    keys = tuple(key for key in groups.keys if key != START)
    below = FillGaps(Project(groups, tuple(kept)), keys, fill.interval, None, fill.mode, tuple(
        FillColumn(each.name, types[each.name], constants.get(each.name)) for _, each in given))
    following = [fragment("coalesce(:next, :never)", never=FOR_EVER, next=over(
        ignoring_nulls("first_value", column(f"#ends{place}")), [column(GROUP_ID)], [column(START)], from_here()))
        for place in range(len(lasting))]
    return below, call("greatest", *following), [
        *(column(each.name) if isinstance(each, FillColumn) else converted(each, target.type)
          for each, target in zip(filled, columns, strict=True)),
        *(column(_PROBLEM) for _ in results[len(columns):])]
