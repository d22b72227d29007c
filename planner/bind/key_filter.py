"""Which values of a table's KEY a WHERE clause leaves; constants only, nothing is executed."""

from __future__ import annotations

import numpy as np
from sqlglot import exp

from penstock.common.errors import InvalidStatementError
from penstock.planner.bind.scopes import RowScope, equalled, has_given
from penstock.sql.schema import Column, Table
from penstock.sql.tree.walking import conjuncts, unwrapped
from penstock.sql.types import INTEGERS, Kind

_TEXTS = (Kind.VARCHAR, Kind.NCHAR)


def key_values(where: exp.Expression | None, table: Table, scope: RowScope) -> tuple[int | str, ...] | None:
    """Returns the values of the only column of a table's KEY that `where` may be true for, by `=` or IN with whole
    numbers or texts as they are written; None if it says nothing about them."""
    if not table.keyed or len(table.key_columns) != 1:
        return None
    found = [values for values in (_values(node, table, scope) for node in conjuncts(where)) if values is not None]
    return tuple(sorted(set(found[0]).intersection(*found[1:]))) if found else None


def _values(node: exp.Expression, table: Table, scope: RowScope) -> set[int | str] | None:
    compared = equalled(node)
    if compared is None:
        return None
    subject, values = compared
    column, (key,) = scope.find(subject), table.key_columns
    if column is None or column.root.role != "column" or column.root.name != key.name:
        return None
    if any(map(has_given, values)):
        raise InvalidStatementError("values of a KEY are to be known when the query is planned")
    found = [_constant(unwrapped(value), key.type.kind) for value in values]
    return None if None in found else {value for value in found if value is not None and _fits(value, key)}


def _fits(value: int | str, column: Column) -> bool:
    if isinstance(value, str):
        return True
    bounds = np.iinfo(column.type.arrow().to_pandas_dtype())
    return int(bounds.min) <= value <= int(bounds.max)


def _constant(node: exp.Expression, kind: Kind) -> int | str | None:
    if kind in _TEXTS:
        return node.this if isinstance(node, exp.Literal) and node.is_string else None
    negative = isinstance(node, exp.Neg)
    number = node.this if negative else node
    if kind not in INTEGERS or not isinstance(number, exp.Literal) or number.is_string or not number.this.isdecimal():
        return None
    return -int(number.this) if negative else int(number.this)
