"""FILL in streams: which result columns it gives in windows without rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from penstock.common.errors import InvalidStreamError
from penstock.planner.bind.binder import Builder, is_pseudo
from penstock.planner.bind.scopes import WINDOW_NAMES, RowScope, columns_of, vector_calls
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.operators import FillColumn
from penstock.planner.query.query_groups import fill_values
from penstock.sql.tree.statements import Fill
from penstock.sql.types import Precision

Keys = Callable[[str], bool]
"""Whether a name is that of a value which all rows of a group share."""


def fill_columns(
    fill: Fill, values: Sequence[SqlExpr], builder: Builder, precision: Precision
) -> tuple[FillColumn, ...]:
    """Returns the columns that FILL gives in windows without rows, one for each of these values.

    Raises InvalidStreamError for modes that streams don't have, InvalidStatementError for a wrong list of values.
    """
    if fill.mode == "near":
        raise InvalidStreamError("FILL(NEAR) is for INTERP only")
    scope = RowScope(None, builder, "FILL")
    scope.precision = precision
    constants = fill_values(fill, [value.type for value in values], scope)
    return tuple(FillColumn(f"#f{n}", value.type, constants[n] if constants else None)
                 for n, value in enumerate(values))


def is_filled(node: exp.Expression, is_key: Keys) -> bool:
    """Tells whether a result column has its value from rows; keys, constants and bounds are known without them."""
    if next(vector_calls(node), None) is not None:
        return True
    return any(not is_key(column.name) and not is_pseudo(column, *WINDOW_NAMES) for column in columns_of(node))
