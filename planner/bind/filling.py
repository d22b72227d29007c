"""FILL: which result columns have no value in windows without rows, and what they get there."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from penstock.common.errors import InvalidStatementError
from penstock.planner.bind.binder import RelColumn, is_pseudo
from penstock.planner.bind.expressions import compile_expression
from penstock.planner.bind.scopes import (
    WINDOW_NAMES,
    GroupKey,
    RowScope,
    columns_of,
    key_of,
    vector_calls,
    with_placeholders,
)
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.operators import FillColumn
from penstock.planner.scalar.scalar_cast import cast, null_of
from penstock.sql.tree.statements import Fill
from penstock.sql.types import DataType, Kind


def is_filled(
    node: exp.Expression, keys: Sequence[GroupKey], scope: RowScope, constants: Sequence[RelColumn] = ()
) -> bool:
    """Whether a result column has its value from rows; keys, constants and bounds are known without.

    `constants`: columns that follow from the keys, where groups without rows know them too.
    """
    if next(vector_calls(node), None) is not None:
        return True
    return any(not _is_known(column, keys, scope, constants) for column in columns_of(
        with_placeholders(node, keys, scope)))


def _is_known(column: exp.Column, keys: Sequence[GroupKey], scope: RowScope, constants: Sequence[RelColumn]) -> bool:
    if key_of(column, keys) is not None or is_pseudo(column, *WINDOW_NAMES):
        return True
    return bool(constants) and any(scope.find(column) is known for known in constants)


def fill_columns(fill: Fill, types: Sequence[DataType], scope: RowScope) -> tuple[FillColumn, ...]:
    """Returns the columns that FILL gives in windows without rows, one for each of these types.

    Raises InvalidStatementError for modes that windows don't have, and as `fill_values`.
    """
    if fill.mode == "near":
        raise InvalidStatementError("FILL(NEAR) is for INTERP only")
    constants = fill_values(fill, types, scope)
    return tuple(FillColumn(f"#f{number}", type_, constants[number] if constants else None)
                 for number, type_ in enumerate(types))


def fill_values(fill: Fill, types: Sequence[DataType], scope: RowScope) -> list[SqlExpr]:
    """Returns the constants of FILL, cast to the types of the columns they are for; none if it has none.

    Raises InvalidStatementError if there are more or fewer of them than columns.
    """
    if not fill.values:
        return []
    if len(fill.values) != len(types):
        raise InvalidStatementError(
            f"FILL({fill.mode.upper()}) needs {len(types)} value{'' if len(types) == 1 else 's'}, not "
            f"{len(fill.values)}", hint="one for each column with a function")
    constants = RowScope(None, scope.builder, "FILL")
    values = []
    for node, type_ in zip(fill.values, types, strict=True):
        value = compile_expression(node, constants)
        values.append(SqlExpr(null_of(type_), type_) if value.type.kind is Kind.NULL
                      else cast(value, type_, scope.precision, scope.session.time_zone))
    return values
