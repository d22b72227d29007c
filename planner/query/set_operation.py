"""UNION, INTERSECT and EXCEPT of planned queries: common types, and an order that names result columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from penstock.common.errors import InvalidStatementError
from penstock.planner.bind.binder import Builder
from penstock.planner.bind.limits import OrderTerm, Output, output_name
from penstock.planner.bind.query_parts import Planned, ordinal
from penstock.planner.duckdb_sql.duckdb_tree import column as column_tree
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.expr import Computed
from penstock.planner.logical.operators import Combined, LimitRows, Operator, Project, Sort
from penstock.planner.logical.written import text_of
from penstock.planner.scalar.common_type import common_type
from penstock.planner.scalar.scalar_cast import cast, null_of
from penstock.sql.tree.statements import OrderItem, SetOperation
from penstock.sql.types import DataType, Kind, Precision

COLUMN_COUNT = 0x2634


def plan_set_operation(query: SetOperation, sides: Sequence[Planned], builder: Builder) -> Planned:
    """Returns the plan of a set operation over planned queries. Raises InvalidStatementError if they don't fit."""
    first = sides[0]
    types = [column.value.type for column in first.columns]
    for side in sides[1:]:
        if len(side.columns) != len(types):
            raise InvalidStatementError(
                f"the queries of {_named(query)} have {len(types)} and {len(side.columns)} columns", code=COLUMN_COUNT,
                hint="let all return the same number of columns")
        types = [_common_type(type, column.value.type, first.precision)
                 for type, column in zip(types, side.columns, strict=True)]
    converted = [_converted(side, types, builder) for side in sides]
    outputs = [replace(column, value=SqlExpr(column_tree(output_name(index)), types[index]))
               for index, column in enumerate(first.columns)]
    terms = [OrderTerm(_position(item, query, outputs, builder), None, item.descending, item.nulls_first,
                       item.expression) for item in query.order_by]
    keys = tuple(term.key(index) for index, term in enumerate(terms))

    def plan() -> Operator:
        found: Operator = Combined(tuple(
            Project(side.plan(), columns) if columns else side.plan()
            for side, columns in zip(sides, converted, strict=True)), query.kind, query.all)
        if keys:
            found = Sort(found, keys)
        return found if query.limit is None else LimitRows(found, query.limit.count, query.limit.offset)

    return Planned(plan, tuple(outputs), first.precision)


def _position(item: OrderItem, query: SetOperation, outputs: Sequence[Output], builder: Builder) -> int:
    """Returns which result column an item of ORDER BY names."""
    position = ordinal(item.expression, len(outputs), builder)
    if position is not None:
        return position
    names = [output.name for output in outputs]
    spelled = [text_of(item.expression)]
    if isinstance(item.expression, exp.Column):
        spelled.insert(0, item.expression.name)
    folded = [name.lower() for name in names]
    for known, asked in ((names, spelled), (folded, [name.lower() for name in spelled])):
        for name in asked:
            if name in known:
                return known.index(name)
    raise builder.error(f"ORDER BY of {_named(query)} must name a column of its result", item.expression, code=0x2602,
                        hint="columns are named by the first query")


def _named(query: SetOperation) -> str:
    return f"{'a' if query.kind == 'union' else 'an'} {query.kind.upper()}"


def _common_type(left: DataType, right: DataType, precision: Precision) -> DataType:
    if left == right:
        return left
    result = common_type([left, right])
    return replace(result, precision=precision) if result.kind is Kind.TIMESTAMP else result


def _converted(side: Planned, types: Sequence[DataType], builder: Builder) -> tuple[Computed, ...]:
    """Returns the columns of a side in the types of the result, none if it has all of them as they are."""
    columns = []
    if all(_is_of(column.value.type, target) for column, target in zip(side.columns, types, strict=True)):
        return ()
    for index, (column, target) in enumerate(zip(side.columns, types, strict=True)):
        value = SqlExpr(column_tree(output_name(index)), column.value.type)
        if value.type.kind is Kind.NULL:
            value = SqlExpr(null_of(target), target)
        elif not _is_of(value.type, target):
            value = cast(value, target, side.precision, builder.session.time_zone)
        columns.append(Computed(output_name(index), value))
    return tuple(columns)


def _is_of(kind: DataType, target: DataType) -> bool:
    """Whether values can stay as they are."""
    return kind == target if target.kind is Kind.OTHER else kind.kind is target.kind
