"""Functions that give rows, in FROM: range, generate_series and unnest."""

from __future__ import annotations

from typing import Literal, cast

from sqlglot import exp

from penstock.common.suggestions import did_you_mean
from penstock.planner.bind.binder import Builder, Relation, RelColumn, numbered
from penstock.planner.bind.expressions import compile_expression
from penstock.planner.bind.scopes import RowScope
from penstock.planner.duckdb_sql.duckdb_tree import call
from penstock.planner.duckdb_sql.duckdb_tree import column as column_tree
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.expr import Computed
from penstock.planner.logical.operators import VALUE, Generated, OneRow
from penstock.planner.scalar.duckdb_values import from_duckdb, operand_tree, type_name_of
from penstock.sql.tree.statements import FunctionSource
from penstock.sql.tree.walking import found_in
from penstock.sql.types import Kind, other_type

NAMES = ("range", "generate_series", "unnest")


def one_row(builder: Builder) -> Relation:
    """Returns what SELECT without FROM reads: one row without columns. Its times are those of the database in use."""
    name = builder.session.database
    database = builder.catalog.database(name) if name is not None else None
    return Relation(columns=(), star=(), time=None, precision="ms" if database is None else database.precision,
                    plan=OneRow)


def is_about_rows(source: FunctionSource) -> bool:
    """Whether an argument names a column, which must be one of what stands before the call."""
    return bool(found_in(source.call, exp.Column))


def bind_function(source: FunctionSource, builder: Builder) -> Relation:
    """Returns the rows of a function. Raises InvalidStatementError for other functions and for wrong arguments."""
    node = source.call
    name = str(node.this)
    if name not in NAMES:
        raise builder.error(f"{name}() gives no rows: {', '.join(NAMES)} do", node, hint=did_you_mean(name, NAMES))
    scope = RowScope(one_row(builder), builder, "FROM")
    arguments = [compile_expression(argument, scope) for argument in node.expressions]
    zone = "UTC" if name == "unnest" else builder.session.time_zone  # in which times in lists are
    type_name = type_name_of(lambda *trees: call(name, *trees), arguments)
    if type_name is None or (name != "unnest" and not type_name.endswith("[]")):
        raise builder.error(f"there is no {name}({', '.join(each.type.sql() for each in arguments)}) in FROM", node,
                            hint="write range(start, end, step), or unnest(list)")
    value = from_duckdb(column_tree(VALUE), type_name if name == "unnest" else type_name.removesuffix("[]"),
                        scope.precision, zone)
    given = tuple(SqlExpr(operand_tree(each, zone), other_type("")) for each in arguments)
    called = source.columns[0] if source.columns else name
    if len(source.columns) > 1:
        raise builder.error(f"{name}() has 1 column, and {len(source.columns)} names for it", node)
    alias = source.alias or name
    column = RelColumn(called, value.type, "v", alias, folded=None if source.columns else alias)
    function = cast(Literal["range", "generate_series", "unnest"], name)
    return numbered(Relation(
        columns=(column,), star=(column,), time=column if value.type.kind is Kind.TIMESTAMP else None,
        precision=scope.precision,
        plan=lambda: Generated(function, given, Computed("v", value)), qualifiers=(alias,)))
