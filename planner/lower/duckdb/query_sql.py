"""A logical plan as one query: each operator over those below it."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from penstock.common.errors import InternalError
from penstock.planner.duckdb_sql.duckdb_tree import (
    Tree,
    call,
    column,
    fragment,
    identifier,
    made,
    named,
    number,
    select,
    so_far,
    with_recursion,
    with_steps,
)
from penstock.planner.duckdb_sql.pieces import (
    columns,
    joined,
    nested,
    ordered,
    over,
    relation,
    row_number,
    star,
)
from penstock.planner.logical.expr import Computed
from penstock.planner.logical.operators import (
    ONE,
    VALUE,
    Aggregate,
    Combined,
    ConstantRows,
    Distinct,
    FillGaps,
    Filter,
    Generated,
    Interpolate,
    Iterated,
    Join,
    Lateral,
    LimitRows,
    NameTables,
    OneRow,
    Operator,
    Over,
    PartitionLimit,
    Pick,
    Project,
    Recursive,
    SeriesValues,
    Shared,
    Sort,
    SortKey,
    Viewed,
    Window,
)
from penstock.planner.lower.duckdb.group_sql import aggregated, filled, tables_named
from penstock.planner.lower.duckdb.interpolation_sql import interpolated
from penstock.planner.lower.duckdb.join_sql import joined_rows
from penstock.planner.lower.duckdb.series_sql import picked, ran
from penstock.planner.lower.duckdb.steps import Steps
from penstock.planner.lower.duckdb.steps import nested as nested_steps
from penstock.planner.lower.duckdb.window_sql import windowed


def lower(plan: Operator, shared: Sequence[Operator] = (), depth: int = 0) -> exp.Query:
    """Returns the query of a plan, over the relations of its scans. Raises what `lower_in_steps` raises."""
    steps, query = lower_in_steps(plan, shared, depth)
    # DuckDB repeats rows where a query about others has a WITH: in LATERAL within another, and in ON of outer joins.
    return nested_steps(steps, query) if depth else with_steps(steps, query)


def lower_in_steps(
    plan: Operator, shared: Sequence[Operator] = (), depth: int = 0
) -> tuple[list[tuple[str, Tree]], exp.Query]:
    """Returns what the query of a plan names by WITH, and the query over that.

    `shared`: what queries in its expressions read as well, in the order in which one reads the other; `depth`: in so
    many queries it stands itself.

    Raises InvalidStatementError for plans of more steps than DuckDB can bind in each other.
    """
    steps = Steps(_query, depth)
    for operator in shared:
        steps.rows(operator)
    query = _query(plan, steps)
    steps.check()
    return steps.named, query


def _query(operator: Operator, steps: Steps) -> exp.Query:
    match operator:
        case OneRow():
            return select([named(number(1), ONE)])
        case ConstantRows():
            return _constant_rows(operator)
        case Generated():
            return _generated(operator)
        case Iterated():
            return select([star()], so_far(operator.key) if operator.so_far else operator.key)
        case Recursive():
            return _iterated(operator, steps)
        case Lateral():
            return _beside(operator, steps)
        case Window():
            return windowed(operator, steps)
        case Aggregate():
            return aggregated(operator, steps)
        case NameTables():
            return tables_named(operator, steps)
        case FillGaps():
            return filled(operator, steps)
        case SeriesValues():
            return ran(operator, steps)
        case Pick():
            return picked(operator, steps)
        case Interpolate():
            return interpolated(operator, steps)
        case Join():
            return joined_rows(operator, steps)
        case Over():
            values = [named(each.value.node, each.name) for each in operator.columns]
            rows = steps.rows(operator.input)
            return select([star(), *values], rows if operator.called is None else relation(rows, operator.called))
        case Combined():
            return _united(operator, steps)
        case Viewed():
            return _query(operator.input, steps)
        case Shared():
            return select([star()], steps.rows(operator))
        case PartitionLimit():
            partition = over(call("dense_rank"), order=columns(operator.keys))
            return _between(operator, partition, "#partition", steps)
        case LimitRows() if operator.keys:
            number_of_row = row_number(columns(operator.keys), [_sorted(key) for key in operator.order])
            return _between(operator, number_of_row, "#number", steps)
        case Filter() | Project() | Distinct() | Sort() | LimitRows():
            return _selected(operator, steps)
    raise InternalError(f"{type(operator).__name__} is no operator of queries")


def _selected(operator: Operator, steps: Steps) -> exp.Select:
    """One SELECT for operators in the order in which its clauses are computed, backwards."""
    shown: list[Tree] = [star()]
    distinct, where, order, limit, called = False, None, [], None, None
    if isinstance(operator, Distinct):
        distinct, operator = True, operator.input
    sorted_before = not distinct
    if isinstance(operator, Project):
        own: list[Tree] = [named(item.value.node, item.name) for item in operator.columns]
        shown = [star(), *own] if operator.extends else own
        # A column is the same before rows are sorted and left out; what is computed over other rows may not be.
        sorted_before = sorted_before and not operator.extends and all(
            isinstance(item.value.node, exp.Column) for item in operator.columns)
        called, operator = operator.called, operator.input
    if sorted_before:
        if isinstance(operator, LimitRows) and not operator.keys:
            limit, operator = operator, operator.input
        if isinstance(operator, Sort):
            order, operator = [_sorted(key) for key in operator.keys], operator.input
    if isinstance(operator, Filter):
        where, called, operator = operator.condition.node, called or operator.called, operator.input
    rows = steps.rows(operator)
    return select(shown or [number(1)], rows if called is None else relation(rows, called), where=where,
                  order_by=order, limit=limit and _row_count(limit.count),
                  offset=limit and _row_count(limit.offset or None), percent=limit is not None and limit.percent,
                  distinct=distinct)


def _row_count(count: int | Computed | None) -> Tree | None:
    if isinstance(count, Computed):
        return count.value.node
    return None if count is None else number(count)


def _side(part: Operator, steps: Steps) -> exp.Select:
    """One side of a set operation: no step of its own where it is a plain SELECT, so that there may be many sides."""
    if isinstance(part, Project) and isinstance(part.input, Project) and not part.extends and part.called is None:
        shown: list[Tree] = [named(item.value.node, item.name) for item in part.columns]
        return select(shown, _query(part.input, steps))
    query = _query(part, steps)
    plain = isinstance(query, exp.Select) and not any(query.args.get(key) for key in ("order", "limit", "offset"))
    return query if plain else select([star()], nested(query))


def _constant_rows(values: ConstantRows) -> exp.Select:
    rows = [made(exp.Tuple, expressions=[cell.node for cell in row]) for row in values.rows]
    names = [identifier(each.name) for each in values.columns]
    alias = made(exp.TableAlias, this=identifier("values"), columns=names)
    return select([star()], made(exp.Values, expressions=rows, alias=alias))


def _generated(generated: Generated) -> exp.Select:
    value = named(generated.value.value.node, generated.value.name)
    arguments = [argument.node for argument in generated.arguments]
    if generated.function == "unnest":
        return select([value], nested(select([named(call("unnest", *arguments), VALUE)])))
    alias = made(exp.TableAlias, this=identifier("series"), columns=[identifier(VALUE)])
    return select([value], made(exp.Table, this=call(generated.function, *arguments), alias=alias))


def _iterated(recursive: Recursive, steps: Steps) -> exp.Select:
    base, step = (select([star()], nested(lower(part, depth=steps.depth)))
                  for part in (recursive.base, recursive.step))
    rows = made(exp.Union, this=base, expression=step, distinct=not recursive.all)
    return with_recursion(recursive.key, rows, select([star()], recursive.key), columns(recursive.by))


def _beside(lateral: Lateral, steps: Steps) -> exp.Select:
    """Each row with those of a query that is about it."""
    added = [named(column(f"o{place}", "#lateral"), each.name) for place, each in enumerate(lateral.columns)]
    query = made(exp.Lateral, this=nested(lateral.query), alias=made(exp.TableAlias, this=identifier("#lateral")))
    join = joined(query, exp.true(), side="LEFT" if lateral.outer else "")
    return select([star(of=lateral.called), *added], relation(steps.rows(lateral.input), lateral.called), joins=[join])


def _sorted(key: SortKey) -> Tree:
    return ordered(column(key.name), descending=key.descending, nulls_first=key.nulls_first)


def _between(operator: LimitRows | PartitionLimit, rank: Tree, name: str, steps: Steps) -> exp.Select:
    """The rows whose rank is among the wanted ones."""
    count, offset = operator.count, operator.offset
    assert not isinstance(count, Computed), "limits of partitions are numbers"
    assert not isinstance(offset, Computed), "limits of partitions are numbers"
    ranked = steps.add("ranked", select([star(), named(rank, name)], steps.rows(operator.input)))
    kept = fragment(":rank > :offset", rank=column(name), offset=offset)
    if count is not None:
        kept = fragment(":kept AND :rank <= :last", kept=kept, rank=column(name), last=offset + count)
    return select([star(without=[name])], ranked, where=kept)


_SET_OPERATIONS = {"union": exp.Union, "intersect": exp.Intersect, "except": exp.Except}


def _united(operation: Combined, steps: Steps) -> exp.Query:
    found: exp.Query | None = None
    for part in operation.inputs:
        side = _side(part, steps)
        found = side if found is None else made(
            _SET_OPERATIONS[operation.kind], this=found, expression=side, distinct=not operation.all)
    assert found is not None
    return found
