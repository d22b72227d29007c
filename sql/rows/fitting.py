"""Arrow columns on their way into a table: cast to the column's type, with the row and the value that don't fit."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.errors import InvalidValueError
from penstock.sql.rows.arrow_encodings import plain
from penstock.sql.rows.constants import shorten
from penstock.sql.schema import Column
from penstock.sql.types import FLOATS, INTEGERS, Kind

_BYTES_OF = ((pa.string(), pa.binary()), (pa.large_string(), pa.large_binary()), (pa.string_view(), pa.binary_view()))
_UNITS = ("s", "ms", "us", "ns")


def fitted(
    column: Column, values: pa.ChunkedArray | pa.Array, first_row: int = 0, *, checks_text: bool = True
) -> pa.Array:
    """Returns the values in the column's Arrow type; strings may stay dictionary-encoded if they come so.

    Times and floating-point numbers lose what is finer than the column, towards zero. Raises InvalidValueError that
    names the first row (from 1, counted from `first_row`) that doesn't fit, or isn't what Arrow's type says. Without
    `checks_text` the caller sees to it that texts are UTF-8, where there are few of them.
    """
    as_bytes = not checks_text and pa.types.is_string(values.type)
    check_arrow(column.name, values.cast(pa.binary()) if as_bytes else values, first_row)
    array = plain(values)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # more than 2 GB of strings stay in chunks
        raise InvalidValueError(f"column {column.name}: too many values at once", hint="insert fewer rows per call")
    try:
        cast = _cast(column, array)
    except pa.ArrowNotImplementedError as error:
        raise InvalidValueError(f"column {column.name} takes {column.type.sql()}, not Arrow's {array.type}") from error
    except pa.ArrowInvalid as error:
        row = _first_misfit(column, array)
        raise InvalidValueError(
            f"row {first_row + row + 1}, column {column.name}: {_shown(array[row])} does not fit "
            f"{column.type.sql()}") from error
    _check_lengths(column, cast, first_row)
    return cast


def check_arrow(name: str, values: pa.ChunkedArray | pa.Array, first_row: int = 0) -> None:
    """Raises InvalidValueError with the row unless texts are UTF-8, offsets and indices in range, and so on.

    Whoever made an Arrow array may have put anything into it, and what reads it trusts it.
    """
    if _is_valid(values):
        return
    for array in values.chunks if isinstance(values, pa.ChunkedArray) else [values]:
        if not _is_valid(array):
            row, problem = _first_problem(array)
            raise InvalidValueError(f"row {first_row + row + 1}, column {name}: {problem}")
        first_row += len(array)


def _is_valid(values: pa.ChunkedArray | pa.Array) -> bool:
    try:
        values.validate(full=True)
    except (pa.ArrowException, IndexError):
        return False
    return True


def _first_problem(array: pa.Array) -> tuple[int, str]:
    """Returns the first row that is not valid, and what is wrong with it."""
    if pa.types.is_dictionary(array.type) and _is_valid(array.indices) and not _is_valid(array.dictionary):
        place, problem = _first_problem(array.dictionary)
        return max(pc.index(array.indices, place).as_py(), 0), problem
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        if _is_valid(array.slice(low, middle - low)):
            low = middle
        else:
            high = middle
    as_bytes = next((array.cast(bytes_) for text, bytes_ in _BYTES_OF if array.type == text), None)
    if as_bytes is not None and _is_valid(as_bytes):
        return low, f"{shorten(str(as_bytes[low].as_py()))} is no UTF-8 text"
    return low, f"Arrow data of type {array.type} is malformed"


def _cast(column: Column, array: pa.Array) -> pa.Array:
    target, kind = column.type.arrow(), column.type.kind
    if array.type == target:
        return array
    if pa.types.is_timestamp(array.type) and pa.types.is_timestamp(target):
        coarser = _UNITS.index(target.unit) < _UNITS.index(array.type.unit)
        return array.cast(pa.timestamp(array.type.unit)).cast(target, safe=not coarser)
    if pa.types.is_floating(array.type):
        if kind in INTEGERS:
            return pc.trunc(array).cast(target)
        if kind in FLOATS:
            return _float(array, target)
        if kind is Kind.TIMESTAMP:
            return array.cast(pa.int64()).cast(target)
    if column.name == "tbname" and pa.types.is_dictionary(array.type) and _is_text(array.type.value_type):
        return array.cast(pa.dictionary(array.type.index_type, target)) if array.type.value_type != target else array
    return array.cast(target)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _float(array: pa.Array, target: pa.DataType) -> pa.Array:
    cast = array.cast(target, safe=False)
    if target != pa.float32() or not pc.any(pc.is_inf(cast)).as_py():
        return cast
    if pc.any(pc.xor(pc.is_inf(cast), pc.is_inf(array))).as_py():
        raise pa.ArrowInvalid("a finite number became infinite")
    return cast


def _shown(value: pa.Scalar) -> str:
    # Times beyond the year 9999 have no Python value.
    return shorten(str(value.value if pa.types.is_timestamp(value.type) else value))


def _first_misfit(column: Column, array: pa.Array) -> int:
    """Returns the first row that cannot be cast: halving, since Arrow doesn't tell."""
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _cast(column, array.slice(low, middle - low))
        except pa.ArrowInvalid:
            high = middle
        else:
            low = middle
    return low


def _check_lengths(column: Column, array: pa.Array, first_row: int) -> None:
    limit = column.type.length
    if limit is None or not len(array):
        return
    values = array.dictionary if pa.types.is_dictionary(array.type) else array
    lengths = pc.utf8_length(values) if column.type.kind is Kind.NCHAR else pc.binary_length(values)
    longest = pc.max(lengths).as_py()
    if longest is not None and longest > limit:
        place = pc.index(pc.greater(lengths, limit), True).as_py()
        row = pc.index(array.indices, place).as_py() if pa.types.is_dictionary(array.type) else place
        raise InvalidValueError(
            f"row {first_row + row + 1}, column {column.name}: the value has a length of {lengths[place].as_py()}, "
            f"{column.type.sql()} takes {limit}")
