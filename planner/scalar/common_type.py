"""The type that values of several types are brought to, where one of them is chosen: CASE, GREATEST, UNION."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.common.errors import InvalidStatementError
from penstock.planner.duckdb_sql.duckdb_tree import Tree, call, column, fragment, number
from penstock.planner.duckdb_sql.folding import type_over
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.scalar.duckdb_values import duckdb_type
from penstock.planner.scalar.scalar_cast import cast, null_of, to_text
from penstock.sql.types import BIGINT, DOUBLE, INTEGERS, NULL, VARCHAR, DataType, Kind, Precision

_NUMBER_ORDER = (Kind.BOOL, Kind.TINYINT, Kind.UTINYINT, Kind.SMALLINT, Kind.USMALLINT, Kind.INT, Kind.UINT,
                 Kind.BIGINT, Kind.UBIGINT, Kind.FLOAT, Kind.DOUBLE)

_DIGITS = 38
_WITH_PARAMETERS = (Kind.DECIMAL, Kind.OTHER)
"""Kinds of types that differ in what DuckDB computes with."""


def united_type(left: DataType, right: DataType) -> DataType:
    """Returns the type of a column of two queries that a set operation unites: values of DuckDB's types become what
    DuckDB makes them there, such as structs with the fields of both, and others what `common_type` says.

    Raises InvalidStatementError for types that can't be united.
    """
    if left == right or Kind.OTHER not in (left.kind, right.kind) or Kind.NULL in (left.kind, right.kind):
        return common_type([left, right])
    return _as_duckdb_has_it([left, right], lambda one, other: fragment("(SELECT :one UNION SELECT :other)",
                                                                        one=one, other=other))


def common_type(types: Sequence[DataType]) -> DataType:
    """Returns the type that all are brought to: texts win over numbers, wide over narrow.

    Raises InvalidStatementError for times of different precisions.
    """
    known = [data_type for data_type in types if data_type.kind is not Kind.NULL]
    if not known:
        return NULL
    kinds = {data_type.kind for data_type in known}
    precisions = sorted({data_type.precision for data_type in known if data_type.kind is Kind.TIMESTAMP})
    if len(precisions) > 1:
        raise InvalidStatementError(f"times in {' and '.join(precisions)} have no type in common",
                                    code=0x2603, hint="CAST them AS BIGINT")
    if Kind.OTHER in kinds:
        return known[0] if len(set(known)) == 1 else _as_duckdb_has_it(
            known, lambda *items: call("list_extract", call("list_value", *items), number(1)))
    if kinds == {Kind.DECIMAL}:
        return _widest_decimal(known)
    if len(kinds) == 1:
        lengths = [data_type.length for data_type in known]
        longest = None if None in lengths else max(length or 0 for length in lengths)
        first = known[0]
        return DataType(first.kind, longest, first.digits, first.scale, first.precision)
    if kinds & {Kind.VARCHAR, Kind.NCHAR}:
        return DataType(Kind.NCHAR if Kind.NCHAR in kinds else Kind.VARCHAR)
    if kinds <= {Kind.TIMESTAMP, *INTEGERS}:
        return next(data_type for data_type in known if data_type.kind is Kind.TIMESTAMP) \
            if Kind.TIMESTAMP in kinds else _widest(kinds)
    return _widest(kinds)


def _as_duckdb_has_it(types: Sequence[DataType], chosen: Callable[..., Tree]) -> DataType:
    """Returns the type that DuckDB gives what is `chosen` among values of such types; text if it chooses among none."""
    columns = {f"a{place}": data_type.duckdb_name() for place, data_type in enumerate(types)}
    name = type_over(chosen(*map(column, columns)), columns)
    times = [data_type for data_type in types if data_type.kind is Kind.TIMESTAMP]
    return VARCHAR if name is None else duckdb_type(name, (times or types)[0].precision)


def _widest_decimal(types: Sequence[DataType]) -> DataType:
    """Returns the DECIMAL that has all digits before the point, and those behind it as far as 38 allow."""
    scale = max(data_type.scale or 0 for data_type in types)
    whole = max((data_type.digits or _DIGITS) - (data_type.scale or 0) for data_type in types)
    digits = min(whole + scale, _DIGITS)
    return DataType(Kind.DECIMAL, digits=digits, scale=digits - whole)


def _widest(kinds: set[Kind]) -> DataType:
    if not kinds <= set(_NUMBER_ORDER):
        return DOUBLE if kinds <= {*_NUMBER_ORDER, Kind.DECIMAL, Kind.TIMESTAMP} else VARCHAR
    widest = max(kinds, key=_NUMBER_ORDER.index)
    integers = kinds & set(INTEGERS)
    if widest is Kind.FLOAT and integers:
        return DOUBLE
    signed = any(kind in (Kind.TINYINT, Kind.SMALLINT, Kind.INT, Kind.BIGINT) for kind in integers)
    if widest in (Kind.UTINYINT, Kind.USMALLINT, Kind.UINT) and signed:
        return BIGINT
    return DataType(widest)


def brought_to(value: SqlExpr, target: DataType, precision: Precision, time_zone: str) -> Tree:
    """Returns a tree of the type `target`, which is the common type of this value and others."""
    if value.type.kind is Kind.NULL:
        return null_of(target)
    if value.type.kind is target.kind and (target.kind not in _WITH_PARAMETERS or value.type == target):
        return value.node
    if target.is_string:
        return to_text(value)
    return cast(value, target, precision, time_zone).node
