"""UNION, INTERSECT and EXCEPT of planned queries: common types, and an order that names result columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from penstock.common.errors import InvalidStatementError
from penstock.planner.bind.binder import Builder, Plan, Relation, RelColumn
from penstock.planner.bind.expressions import compile_expression
from penstock.planner.bind.limits import Ending, OrderTerm, Output, output_name
from penstock.planner.bind.query_parts import Planned, ordinal
from penstock.planner.bind.scopes import RowScope
from penstock.planner.duckdb_sql.duckdb_tree import column as column_tree
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.expr import Computed
from penstock.planner.logical.operators import Combined, OneRow, Operator, Project, Sort
from penstock.planner.logical.written import text_of
from penstock.planner.query.row_limits import bound_limit
from penstock.planner.scalar.common_type import united_type
from penstock.planner.scalar.scalar_cast import cast, null_of
from penstock.sql.tree.statements import OrderItem, SetOperation, ValuesQuery
from penstock.sql.types import NULL, DataType, Kind, Precision

COLUMN_COUNT = 0x2634


def plan_set_operation(query: SetOperation, sides: Sequence[Planned], builder: Builder) -> Planned:
    """Returns the plan of a set operation over planned queries. Raises InvalidStatementError if they don't fit."""
    if query.by_name:
        sides = _by_name(sides, builder)
    first = sides[0]
    types = [column.value.type for column in first.columns]
    for side in sides[1:]:
        if len(side.columns) != len(types):
            raise InvalidStatementError(
                f"the queries of {_named(query)} have {len(types)} and {len(side.columns)} columns", code=COLUMN_COUNT,
                hint="let all return the same number of columns")
        types = [united_type(type, column.value.type) for type, column in zip(types, side.columns, strict=True)]
    parts = [converted(side, types, builder) for side in sides]
    outputs = [replace(column, value=SqlExpr(column_tree(output_name(index)), types[index]))
               for index, column in enumerate(first.columns)]
    return ended(query, outputs, first.precision, builder, lambda: Combined(
        tuple(part() for part in parts), query.kind, query.all), [side.columns for side in sides[1:]])


def ended(
    query: SetOperation | ValuesQuery, outputs: Sequence[Output], precision: Precision, builder: Builder, rows: Plan,
    others: Sequence[Sequence[Output]] = (),
) -> Planned:
    """Returns a query whose rows are those, in the order and up to the limit that it says.

    `others`: what ORDER BY may call its columns as well, in the order of these.
    """
    builder.called = None
    terms = [term for item in query.order_by for term in _terms(item, query, (outputs, *others), precision, builder)]
    called, limit = builder.called, bound_limit(query.limit, builder)
    ending = Ending(terms, limit=limit, called=called)

    def plan() -> Operator:
        around, builder.keeps_order = builder.keeps_order, builder.keeps_order and not terms
        found = rows()
        builder.keeps_order = around
        if any(term.hidden is not None for term in terms):
            return ending.over(found, outputs)
        if terms:
            found = Sort(found, tuple(term.key(index) for index, term in enumerate(terms)))
        return found if limit is None else limit.over(found)

    return Planned(plan, tuple(outputs), precision)


def _by_name(sides: Sequence[Planned], builder: Builder) -> list[Planned]:
    """Returns the queries with the columns of all, in one order; NULL is what one hasn't."""
    known = {_bare(column): column for side in reversed(sides) for column in reversed(side.columns)}
    names = list(dict.fromkeys(_bare(column) for side in sides for column in side.columns))

    def of(side: Planned) -> Planned:
        places = {_bare(column): place for place, column in enumerate(side.columns)}
        columns = tuple(replace(known[name], value=SqlExpr(column_tree(output_name(place)), side.columns[at].value.type)
                                if (at := places.get(name)) is not None else SqlExpr(exp.null(), NULL))
                        for place, name in enumerate(names))
        shown = tuple(Computed(output_name(place), SqlExpr(column_tree(output_name(places[name])), column.value.type)
                               if name in places else column.value)
                      for place, (name, column) in enumerate(zip(names, columns, strict=True)))
        return Planned(lambda: Project(_rows(side, builder), shown), columns, side.precision)

    return [of(side) for side in sides]


def _bare(column: Output) -> str:
    return column.alias or column.name


def _terms(
    item: OrderItem, query: SetOperation | ValuesQuery, sides: Sequence[Sequence[Output]], precision: Precision,
    builder: Builder,
) -> list[OrderTerm]:
    """Returns what an item of ORDER BY sorts by: result columns, or an expression of them."""
    written = item.expression
    places = range(len(sides[0])) if isinstance(written, exp.Var) else (_position(written, sides, builder),)
    hidden = None
    if None in places:
        if isinstance(written, exp.Column):
            raise builder.error(f"ORDER BY of {_named(query)} must name a column of its result", written, code=0x2602,
                                hint="write its name, or its place")
        hidden = compile_expression(written, RowScope(_results(sides, precision), builder, "ORDER BY"))
    return [OrderTerm(place, hidden, item.descending, item.nulls_first, written) for place in places]


def _position(written: exp.Expression, sides: Sequence[Sequence[Output]], builder: Builder) -> int | None:
    """Returns which result column an item of ORDER BY names, as one of the queries does, the first one first."""
    position = ordinal(written, len(sides[0]), builder)
    if position is not None:
        return position
    spelled = [text_of(written)]
    if isinstance(written, exp.Column):
        spelled.insert(0, written.name)
    for side in sides:
        names = [output.name for output in side]
        folded, bare = [name.lower() for name in names], list(map(_bare, side))
        for known, asked in ((names, spelled), (bare, spelled), (folded, [name.lower() for name in spelled])):
            for name in asked:
                if name in known:
                    return known.index(name)
    return None


def _results(sides: Sequence[Sequence[Output]], precision: Precision) -> Relation:
    """Returns the result with each column under the names that the queries have for it; the first one's count."""
    places = {_bare(column): place for side in reversed(sides) for place, column in reversed(list(enumerate(side)))}
    columns = tuple(RelColumn(name, sides[0][place].value.type, output_name(place)) for name, place in places.items())
    return Relation(columns=columns, star=columns, time=None, precision=precision, plan=OneRow)


def _named(query: SetOperation | ValuesQuery) -> str:
    if isinstance(query, ValuesQuery):
        return "VALUES"
    return f"{'a' if query.kind == 'union' else 'an'} {query.kind.upper()}"


def converted(side: Planned, types: Sequence[DataType], builder: Builder) -> Plan:
    """Returns the rows of a query with its columns in these types."""
    if all(_is_of(column.value.type, target) for column, target in zip(side.columns, types, strict=True)):
        return lambda: _rows(side, builder)
    columns = []
    for index, (column, target) in enumerate(zip(side.columns, types, strict=True)):
        value = SqlExpr(column_tree(output_name(index)), column.value.type)
        if value.type.kind is Kind.NULL:
            value = SqlExpr(null_of(target), target)
        elif not _is_of(value.type, target):
            value = cast(value, target, side.precision, builder.session.time_zone)
        columns.append(Computed(output_name(index), value))
    return lambda: Project(_rows(side, builder), tuple(columns))


def _rows(side: Planned, builder: Builder) -> Operator:
    return side.plan() if builder.keeps_order else side.in_any_order()


def _is_of(kind: DataType, target: DataType) -> bool:
    """Whether values can stay as they are."""
    return kind == target if target.kind is Kind.OTHER else kind.kind is target.kind
