"""CREATE STREAM over a join: the tables, as read, and the query over both, which the planner of queries compiles.

So a stream and the same SELECT give the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from penstock.common.errors import InternalError, InvalidStreamError
from penstock.planner.bind.join_conditions import sides_of
from penstock.planner.bind.query_parts import Item
from penstock.planner.bind.scopes import (
    vector_calls,
    vector_spec,
)
from penstock.planner.duckdb_sql.duckdb_tree import column as duckdb_column
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.query.batch_plan import BatchPlan
from penstock.planner.query.select import plan_query
from penstock.planner.streams.stream_context import StreamContext
from penstock.planner.streams.stream_joins import JoinedTables
from penstock.planner.streams.stream_projections import Projections, short_names, with_time
from penstock.sql.tree.statements import IntervalWindow, JoinSource, SelectItem
from penstock.sql.types import (
    Kind,
    timestamp,
)


@dataclass(frozen=True, slots=True)
class JoinQuery:
    """The query of a join: `sql` of the batch planner gives keys, `hidden` columns and the projections.

    `alone` gives the same of driving rows that have no partner.
    """

    batch: BatchPlan
    alone: BatchPlan
    hidden: int
    items: Sequence[Item]


def plan_join_query(stream: StreamContext, query: JoinedTables, *, leaves_out_errors: bool) -> JoinQuery:
    """Returns the batch plan, in which nothing fails if the stream leaves errors out.

    Raises what `plan_query` raises, and InvalidStreamError for what no stream can do.
    """
    select = stream.query
    window = select.window
    if window is not None and not isinstance(window, IntervalWindow):
        raise InvalidStreamError("windows over a join in a stream are INTERVAL windows")
    if select.fill is not None:
        raise InvalidStreamError("FILL is not for joins in streams", hint="fill when you query the result table")
    _check_functions(stream, query, window)
    hidden = _hidden(query, window)
    keys = [SelectItem(key.item.expression, key.column, key.item.text) for key in stream.keys if key.item is not None]
    _check_places(stream, query, window)
    asked = select.with_changes(
        items=(*keys, *hidden, *select.items), source_text=stream.statement.source_text,
        source_start=stream.statement.source_start,
        partition_by=select.partition_by if window is not None else ())
    batch = plan_query(asked, stream.catalog, stream.session, ordered=False, of_stream=True,
                       tolerant=leaves_out_errors)
    alone = batch
    if query.reading.source.kind == "inner" or query.reading.source.variant in ("semi", "anti"):
        alone = plan_query(asked.with_changes(source=_outer(query), where=None), stream.catalog, stream.session,
                           ordered=False, of_stream=True, tolerant=leaves_out_errors)
    if len(batch.scans) != 2 or batch.tables:
        raise InternalError("the query of a join reads something else than its two tables")
    names = [column.name for column in batch.columns[len(keys) + len(hidden):]]
    items = [Item(exp.Star(), name, name) for name in names]  # what `*` stands for
    if len(names) == len(select.items):
        items = [Item(item.expression, name, _alias(item)) for item, name in zip(select.items, names, strict=True)]
    return JoinQuery(batch, alone, len(hidden), short_names(items))


def _alias(item: SelectItem) -> str | None:
    plain = item.expression.name if isinstance(item.expression, exp.Column) else None
    return item.alias if item.alias is not None else plain


def _outer(query: JoinedTables) -> JoinSource:
    """Returns a join that keeps all rows of the driving side, whatever their partners."""
    join = query.reading
    times = []
    for relation in (join.sides.left, join.sides.right):
        assert relation.time is not None
        times.append(exp.column(exp.to_identifier(relation.time.name, quoted=True),
                                exp.to_identifier(relation.qualifiers[0], quoted=True)))
    return join.source.with_changes(kind="left" if join.driver == "l" else "right", variant="", jlimit=None,
                                    on=exp.EQ(this=times[0], expression=times[1]))


def _check_places(stream: StreamContext, query: JoinedTables, window: IntervalWindow | None) -> None:
    """Checks that each driving row tells the group and the time of its results, whatever its partners.

    So they are known to be withdrawn, also if it was before a failure that they were written.
    """
    nodes = [item.expression for item in stream.query.partition_by]
    if window is None and not query.both:
        nodes.append(stream.query.items[0].expression)
    for node in nodes:
        sides = sides_of(node, query.reading.sides, query.reading.scope)
        if query.both and len(sides) == 1:
            raise InvalidStreamError(
                "PARTITION BY over a FULL join must be made of both sides", position=stream.position(node),
                hint="CASE WHEN a.k IS NULL THEN b.k ELSE a.k END, since rows of either side may stand alone")
        if not query.both and sides - {query.reading.driver}:
            name = query.driver.qualifiers[0]
            raise InvalidStreamError(
                f"PARTITION BY and the first column must be made of columns of {name}, whose rows drive the join",
                position=stream.position(node), hint=f"write the equal column of {name}, or swap the tables")


def _hidden(query: JoinedTables, window: IntervalWindow | None) -> list[SelectItem]:
    """Returns what the query gives beside keys and projections: where its rows are in time."""
    if window is not None:
        return [SelectItem(exp.column(name), f"#{name}", name) for name in ("_wstart", "_wend")]
    if not query.both:
        return []
    return [SelectItem(exp.column(exp.to_identifier(relation.time.name, quoted=True), exp.to_identifier(
                relation.qualifiers[0], quoted=True)), f"#{n}", relation.time.name)
            for n, relation in enumerate((query.reading.sides.left, query.reading.sides.right))
            if relation.time is not None]


def _check_functions(stream: StreamContext, query: JoinedTables, window: IntervalWindow | None) -> None:
    per_row = query.reading.source.variant == "window"
    called = False
    for item in stream.query.items:
        for call in vector_calls(item.expression):
            called = True
            spec = vector_spec(call)
            if spec is None or not spec.in_stream or spec.only_force_window_close or spec.category == "timeseries":
                raise InvalidStreamError(f"{call.this} is not allowed in a stream over a join", code=0x265A,
                                         position=stream.position(call))
            if window is None and not per_row:
                raise InvalidStreamError(f"{call.this} needs a window in a stream", position=stream.position(call),
                                         hint="add INTERVAL(...)")
    if window is not None and not called:
        raise InvalidStreamError("a window needs at least one aggregate function",
                                 hint="for example count(*) or avg(column)")
    if window is not None and (per_row or query.both):
        what = "a WINDOW JOIN groups rows itself" if per_row else "the rows of a FULL join have no time line in common"
        raise InvalidStreamError(f"{what}: no INTERVAL beside it")


def projections_of(stream: StreamContext, query: JoinedTables, asked: JoinQuery) -> tuple[
        Projections, bool]:
    """Returns the projections, the primary timestamp first, and whether that was put before them.

    Raises InvalidStreamError if there is none.
    """
    width = len(stream.keys)
    columns = asked.batch.columns
    values = [SqlExpr(duckdb_column(f"o{n}"), columns[n].type) for n in range(width + asked.hidden, len(columns))]
    projections = list(zip(asked.items, values, strict=True))
    first = stream.query.items[0].expression
    if stream.query.window is None:
        if values[0].type.kind is not Kind.TIMESTAMP:
            time = query.driver.time
            raise InvalidStreamError(
                "the first column of a stream must be a timestamp", position=stream.position(first),
                hint=f"start the list with {query.driver.qualifiers[0]}.{time.name}" if time is not None else None)
        return projections, False
    shown = with_time(projections, "_wstart", SqlExpr(duckdb_column(f"o{width}"), timestamp(stream.precision)))
    return shown, len(shown) > len(projections)
