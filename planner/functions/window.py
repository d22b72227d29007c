"""Window functions: what DuckDB computes of the rows around each row, where OVER says which these are."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.common.errors import InvalidStatementError
from penstock.planner.duckdb_sql.duckdb_tree import call, cast
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.functions.spec import NUMBERS, WRONG_ARGUMENT_COUNT, WRONG_ARGUMENT_TYPE, describe_kinds
from penstock.sql.types import BIGINT, DOUBLE, DataType, Kind

_NUMBERS: dict[str, tuple[DataType, int]] = {
    "row_number": (BIGINT, 0), "rank": (BIGINT, 0), "dense_rank": (BIGINT, 0), "percent_rank": (DOUBLE, 0),
    "cume_dist": (DOUBLE, 0), "ntile": (BIGINT, 1),
}
"""Functions that number or rank rows: their types, and how many arguments they take."""
_VALUES = {"lag": (1, 3), "lead": (1, 3), "first_value": (1, 1), "last_value": (1, 1), "first": (1, 1),
           "last": (1, 1), "nth_value": (2, 2), "fill": (1, 1)}
"""Functions that take the first argument of another row, and how many arguments they take."""
WINDOW_FUNCTIONS = (*_NUMBERS, *_VALUES)


def window_function(name: str, arguments: Sequence[SqlExpr]) -> SqlExpr:
    """Returns the call of a function that is one behind OVER only. Raises InvalidStatementError for wrong arguments."""
    least, most = (_NUMBERS[name][1],) * 2 if name in _NUMBERS else _VALUES[name]
    if not least <= len(arguments) <= most:
        count = str(least) if least == most else f"{least} to {most}"
        raise InvalidStatementError(f"{name}() takes {count} arguments, not {len(arguments)}",
                                    code=WRONG_ARGUMENT_COUNT)
    trees = [argument.node for argument in arguments]
    place = 0 if name in _NUMBERS else 1
    for number in arguments[place:place + 1]:
        if number.type.kind not in NUMBERS | {Kind.NULL}:
            raise InvalidStatementError(f"a number of rows of {name}() must be {describe_kinds(NUMBERS)}",
                                        code=WRONG_ARGUMENT_TYPE)
        trees[place] = cast(number.node, "BIGINT")  # sums are DOUBLE here
    type_ = _NUMBERS[name][0] if name in _NUMBERS else arguments[0].type
    return SqlExpr(call(name, *trees), type_)
