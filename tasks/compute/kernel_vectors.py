"""Evaluates kernel expressions over columns with NumPy. They mean what the DuckDB SQL means that they come from."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.arrow_data import one_array
from penstock.common.masks import all_set
from penstock.planner.task_plans.kernel_spec import Expr
from penstock.sql.types import DataType, Kind

Bools = npt.NDArray[np.bool_]
_SAFE = 1 << 62
_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": np.true_divide, "=": operator.eq, "<>": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}
_OPPOSITES = {">": operator.le, ">=": operator.lt}


class NotInKernelError(Exception):
    """These rows need DuckDB: an unknown table, or a number that might overflow. Never leaves the task."""


@dataclass(slots=True)
class Vector:
    """One column. `values`: numbers in NumPy, anything else as an Arrow array; a constant is a single value.

    `valid`: None if nothing is NULL. Values of NULLs are arbitrary. Nobody changes a vector: it isn't frozen since a
    block of a few rows makes dozens, and frozen ones take three times as long to make.
    """

    values: Any
    valid: Bools | None = None

    @property
    def is_arrow(self) -> bool:
        return isinstance(self.values, pa.Array)

    def take(self, rows: npt.NDArray[np.int64] | Bools) -> Vector:
        """Returns the elements at some places, or where a mask is set."""
        if not self.is_arrow:
            if not isinstance(self.values, np.ndarray):
                return self
            return Vector(self.values[rows], None if self.valid is None else self.valid[rows])
        if rows.dtype == np.bool_:
            return Vector(self.values.filter(pa.array(rows)))
        return Vector(self.values.take(pa.array(rows)))

    def nulls(self, count: int) -> Bools:
        """Returns which of the `count` elements are NULL."""
        if self.is_arrow:
            return np.asarray(self.values.is_null().to_numpy(zero_copy_only=False), bool)
        return np.zeros(count, bool) if self.valid is None else ~self.valid

    def arrow(self, type_: pa.DataType, count: int) -> pa.Array:
        """Returns the column as an Arrow array."""
        if self.is_arrow:
            return self.values if self.values.type == type_ else self.values.cast(type_)
        if not isinstance(self.values, np.ndarray):
            return pa.repeat(pa.scalar(self.values, type_), count)
        mask = None if self.valid is None or self.valid.all() else ~self.valid
        if self.values.dtype == np.bool_ and not pa.types.is_boolean(type_):
            return pa.array(self.values, mask=mask).cast(type_)
        return pa.array(self.values, type_, mask=mask)


def vector_of(column: pa.Array | pa.ChunkedArray) -> Vector:
    """Returns an Arrow column as a vector; numbers without NULLs in one piece are not copied."""
    numeric = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    if isinstance(column, pa.ChunkedArray):
        if numeric and column.null_count == 0:
            return Vector(column.to_numpy())
        column = one_array(column)
    if not numeric and not pa.types.is_boolean(column.type):
        return Vector(column)
    if column.null_count == 0:
        return Vector(column.to_numpy(zero_copy_only=False))
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    return Vector(column.fill_null(0 if numeric else False).to_numpy(zero_copy_only=False), valid)


Columns = Callable[[str], Vector]
"""Gives the column of a name."""


def evaluate(expression: Expr, columns: Columns) -> Vector:
    """Returns the value of an expression; raises NotInKernelError where an integer might overflow."""
    return _EVALUATIONS.get(expression.op, _comparison)(expression, columns)


def mask_of(expression: Expr, columns: Columns, count: int) -> Bools:
    """Returns where a condition holds; NULL doesn't."""
    found = evaluate(expression, columns)
    values = found.values
    if found.is_arrow:
        values = np.asarray(values.fill_null(False).to_numpy(zero_copy_only=False), bool)
    elif not isinstance(values, np.ndarray):
        values = np.full(count, bool(values))
    mask: Bools = values if found.valid is None else values & found.valid
    return mask


def _both(left: Bools | None, right: Bools | None) -> Bools | None:
    if left is None:
        return right
    return left if right is None else left & right


def _column(expression: Expr, columns: Columns) -> Vector:
    return columns(str(expression.value))


def _constant(expression: Expr, columns: Columns) -> Vector:
    return Vector(expression.value)


def _negated(expression: Expr, columns: Columns) -> Vector:
    value = evaluate(expression.args[0], columns)
    return Vector(-value.values, value.valid)


def _sqrt(expression: Expr, columns: Columns) -> Vector:
    value = evaluate(expression.args[0], columns)
    with np.errstate(invalid="ignore"):
        return Vector(np.sqrt(value.values), value.valid)


def _not(expression: Expr, columns: Columns) -> Vector:
    value = evaluate(expression.args[0], columns)
    return Vector(~value.values if isinstance(value.values, np.ndarray) else not value.values, value.valid)


def _cast(expression: Expr, columns: Columns) -> Vector:
    value, dtype = evaluate(expression.args[0], columns), _dtype_of(expression.type)
    if isinstance(value.values, np.ndarray):
        return Vector(value.values.astype(dtype), value.valid)
    return Vector(dtype(value.values), value.valid)


@cache
def _dtype_of(kind: Kind) -> Any:
    return DataType(kind).arrow().to_pandas_dtype()


def _arithmetic(expression: Expr, columns: Columns) -> Vector:
    left, right = _pair(expression, columns)
    a, b = left.values, right.values
    if expression.type is Kind.BIGINT and not (_small(a) and _small(b)):
        raise NotInKernelError
    if expression.type is Kind.BIGINT and expression.op != "/":
        values = _OPERATORS[expression.op](a, b)  # nothing to warn of, as was just made sure
    else:
        with np.errstate(all="ignore"):
            values = _OPERATORS[expression.op](a, b)
    return Vector(values, _both(left.valid, right.valid))


def _small(values: Any) -> bool:
    if not isinstance(values, np.ndarray):
        return -_SAFE < int(values) < _SAFE
    return not len(values) or (int(values.min()) > -_SAFE and int(values.max()) < _SAFE)


def _greatest(expression: Expr, columns: Columns) -> Vector:
    """DuckDB's: NULLs don't count."""
    left, right = _pair(expression, columns)
    values = np.maximum(left.values, right.values)
    if left.valid is None and right.valid is None:
        return Vector(values)
    a, b = (True if side.valid is None else side.valid for side in (left, right))
    values = np.where(a, np.where(b, values, left.values), right.values)
    return Vector(values, None if left.valid is None or right.valid is None else left.valid | right.valid)


def _nullif(expression: Expr, columns: Columns) -> Vector:
    value, constant = _pair(expression, columns)
    other = constant.values
    if not isinstance(value.values, np.ndarray):
        raise NotInKernelError
    equal = np.isnan(value.values) if other != other else value.values == other
    return Vector(value.values, _both(value.valid, ~equal) if equal.any() else value.valid)


def _coalesce(expression: Expr, columns: Columns) -> Vector:
    value, other = _pair(expression, columns)
    if value.valid is None:
        return value
    return Vector(np.where(value.valid, value.values, other.values),
                  None if other.valid is None else value.valid | other.valid)


def _is_null(expression: Expr, columns: Columns) -> Vector:
    value = evaluate(expression.args[0], columns)
    if value.is_arrow:
        return Vector(value.nulls(0))
    if not isinstance(value.values, np.ndarray):
        return Vector(False)
    return Vector(np.zeros(len(value.values), bool) if value.valid is None else ~value.valid)


def _left(expression: Expr, columns: Columns) -> Vector:
    value, length = evaluate(expression.args[0], columns), expression.value
    assert isinstance(length, int)
    if not value.is_arrow:
        raise NotInKernelError
    texts = value.values
    # Bytes are at least as many as characters: mostly nothing is too long.
    longest = pc.max(pc.binary_length(texts)).as_py()
    if longest is None or longest <= length:
        return value
    return Vector(pc.utf8_slice_codeunits(texts, 0, length))


def _comparison(expression: Expr, columns: Columns) -> Vector:
    left, right = _pair(expression, columns)
    a, b = left.values, right.values
    if left.is_arrow or right.is_arrow:
        compare = pc.equal if expression.op == "=" else pc.not_equal
        return vector_of(compare(a, b))
    if expression.args[0].type in (Kind.FLOAT, Kind.DOUBLE):
        values = _floats(expression.op, a, b)
    else:
        values = _OPERATORS[expression.op](a, b)
    return Vector(values, _both(left.valid, right.valid))


def _floats(comparison: str, a: Any, b: Any) -> Any:
    """For DuckDB, NaN equals itself and is greater than every number."""
    if not (b != b if isinstance(b, float) else np.isnan(b).any()):
        # Where only the left side can be NaN, the negated opposite has it right.
        opposite = _OPPOSITES.get(comparison)
        return _OPERATORS[comparison](a, b) if opposite is None else ~opposite(np.asarray(a), b)
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    equal = (a == b) | (nan_a & nan_b)
    less = (a < b) | (~nan_a & nan_b)
    return {"=": equal, "<>": ~equal, "<": less, "<=": less | equal, ">": ~(less | equal), ">=": ~less}[comparison]


def _logic(expression: Expr, columns: Columns) -> Vector:
    """Three-valued AND and OR."""
    result = evaluate(expression.args[0], columns)
    for arg in expression.args[1:]:
        other = evaluate(arg, columns)
        is_or = expression.op == "or"
        values = result.values | other.values if is_or else result.values & other.values
        valid = _both(result.valid, other.valid)
        if valid is not None:
            # A value that decides alone is the result, whatever stands on the other side.
            decided = _known(result, is_or) | _known(other, is_or)
            valid, values = valid | decided, np.where(decided, is_or, values)
        result = Vector(values, valid)
    return result


def _known(value: Vector, wanted: bool) -> Any:
    hit = value.values == wanted
    return hit if value.valid is None else hit & value.valid


def _case(expression: Expr, columns: Columns) -> Vector:
    args = expression.args
    if len(args) == 2:
        condition = evaluate(args[0], columns)
        if condition.valid is None and isinstance(condition.values, np.ndarray) and all_set(condition.values):
            return evaluate(args[1], columns)  # as mostly: an average of some rows
    otherwise = args[-1] if len(args) % 2 else None
    branches = []
    for test, value in zip(args[0::2], args[1::2], strict=False):
        condition = evaluate(test, columns)
        if not isinstance(condition.values, np.ndarray):  # a constant: this branch is never taken, or all that is left
            if condition.values:
                otherwise = value
                break
            continue
        mask = condition.values if condition.valid is None else condition.values & condition.valid
        branches.append((mask, evaluate(value, columns)))
    if not branches:
        if otherwise is None:
            raise NotInKernelError
        return evaluate(otherwise, columns)
    last = None if otherwise is None else evaluate(otherwise, columns)
    values: Any = branches[0][1].values if last is None else last.values
    valid: Any = False if last is None else True if last.valid is None else last.valid
    for mask, found in reversed(branches):
        values = np.where(mask, found.values, values)
        valid = np.where(mask, True if found.valid is None else found.valid, valid)
    return Vector(values, None if np.all(valid) else valid)


def _pair(expression: Expr, columns: Columns) -> tuple[Vector, Vector]:
    left, right = expression.args
    return evaluate(left, columns), evaluate(right, columns)


_EVALUATIONS: Mapping[str, Callable[[Expr, Columns], Vector]] = {
    "column": _column, "constant": _constant, "and": _logic, "or": _logic, "case": _case, "cast": _cast,
    "neg": _negated, "sqrt": _sqrt, **dict.fromkeys("+-*/", _arithmetic), "greatest": _greatest, "nullif": _nullif,
    "coalesce": _coalesce, "not": _not, "null": _is_null, "left": _left,
}
