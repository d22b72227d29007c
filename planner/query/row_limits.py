"""LIMIT and OFFSET: how many rows, which expressions may say that are computed once for the query."""

from __future__ import annotations

from sqlglot import exp

from penstock.common.errors import InvalidStatementError
from penstock.planner.bind.binder import Builder
from penstock.planner.bind.expressions import compile_expression
from penstock.planner.bind.limits import RowLimit
from penstock.planner.bind.row_functions import one_row
from penstock.planner.bind.scopes import RowScope
from penstock.planner.logical.expr import Computed
from penstock.planner.logical.written import text_of
from penstock.sql.tree.statements import Limit
from penstock.sql.types import Kind

NEGATIVE_LIMIT = 0x2637


def bound_limit(limit: Limit | None, builder: Builder) -> RowLimit | None:
    """Returns the limit, with what is computed bound. Raises InvalidStatementError for what isn't a number."""
    if limit is None:
        return None
    return RowLimit(None if limit.count is None else _bound(limit.count, builder), _bound(limit.offset, builder),
                    limit.percent)


def _bound(count: int | exp.Expression, builder: Builder) -> int | Computed:
    if isinstance(count, int):
        if count < 0:
            raise InvalidStatementError("LIMIT and its offset must not be negative", code=NEGATIVE_LIMIT)
        return count
    value = compile_expression(count, RowScope(one_row(builder), builder, "LIMIT"))
    if not (value.type.is_numeric or value.type.kind is Kind.NULL):
        raise builder.error(f"LIMIT and OFFSET are numbers, not {value.type.sql()}", count)
    return Computed("", value, text_of(count))
