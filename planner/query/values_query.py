"""VALUES: rows that a statement has."""

from __future__ import annotations

from penstock.planner.bind.binder import Builder
from penstock.planner.bind.expressions import compile_expression
from penstock.planner.bind.limits import Output, output_name
from penstock.planner.bind.query_parts import Planned
from penstock.planner.bind.row_functions import one_row
from penstock.planner.bind.scopes import RowScope
from penstock.planner.duckdb_sql.duckdb_tree import column
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.expr import ColumnExpr
from penstock.planner.logical.operators import ConstantRows
from penstock.planner.query.set_operation import ended
from penstock.planner.scalar.common_type import brought_to, common_type
from penstock.sql.tree.statements import ValuesQuery

_COLUMN_COUNT = 0x2634


def plan_values(query: ValuesQuery, builder: Builder) -> Planned:
    """Returns the plan of VALUES. Raises InvalidStatementError for rows of unequal length."""
    scope = RowScope(one_row(builder), builder, "VALUES")
    width = len(query.rows[0].expressions)
    if not width:
        raise builder.error("a row of VALUES has a value at least", query.rows[0], code=_COLUMN_COUNT)
    for row in query.rows:
        if len(row.expressions) != width:
            raise builder.error(f"rows of VALUES have {width} and {len(row.expressions)} values", row,
                                code=_COLUMN_COUNT)
    rows = [[compile_expression(cell, scope) for cell in row.expressions] for row in query.rows]
    types = [common_type([row[place].type for row in rows]) for place in range(width)]
    zone = builder.session.time_zone
    cells = tuple(tuple(SqlExpr(brought_to(cell, type_, scope.precision, zone), type_)
                        for cell, type_ in zip(row, types, strict=True)) for row in rows)
    columns = tuple(ColumnExpr(output_name(place), type_) for place, type_ in enumerate(types))
    outputs = [Output(f"col{place}", SqlExpr(column(each.name), each.type), alias=f"col{place}")
               for place, each in enumerate(columns)]
    return ended(query, outputs, scope.precision, builder, lambda: ConstantRows(cells, columns))
