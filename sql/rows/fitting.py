"""Values on their way into a column, whatever they come as: the bulk of `penstock.sql.rows.constants`, which defines
what each value is. Columns that Arrow converts by these very rules are converted at once, others value by value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.errors import InvalidValueError
from penstock.sql.dialect.literals import units_of_local
from penstock.sql.rows.arrow_encodings import plain
from penstock.sql.rows.constants import Constant, Constants, Instant, Number, shorten
from penstock.sql.schema import Column
from penstock.sql.types import FLOATS, INTEGERS, STRINGS, DataType, Kind

_BYTES_OF = ((pa.string(), pa.binary()), (pa.large_string(), pa.large_binary()), (pa.string_view(), pa.binary_view()))
_PER_SECOND: dict[str, int] = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
# Arrow's zones know no summer time after 2037, which Python's extrapolate, nor what was before there was one;
# seconds since the epoch.
_ARROW_ZONES_END = 2_114_380_800
_DATE, _DATE_AND_HOUR, _SHORTEST_IN_UTC = len("YYYY-MM-DD"), len("YYYY-MM-DD HH"), len("YYYY-MM-DDTHH:MMZ")
_SHORTEST_WITH_OFFSET = len("YYYY-MM-DDTHH:MM+HH:MM")
_OFFSET = re.compile(r"[+-](?:0[0-9]|1[0-3]):[0-5][0-9]\Z", re.ASCII)
_WITH_OFFSET = (r"^[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?"
                r"(Z|[+-](0[0-9]|1[0-3])(:?[0-5][0-9])?)$")
_EXACT = float(1 << 53)
_UTC = ("UTC", "Etc/UTC")
_IN_UTC = {b"penstock.time": b"UTC"}

Where = Callable[[int], str]
"""Says where the n-th row (from 0) is, for errors."""


def row_number(row: int, first: int = 0) -> str:
    """Returns what errors call the n-th row (from 0) behind the row with the number `first` (from 0)."""
    return f"row {first + row + 1}"


def fitted(
    column: Column, values: pa.ChunkedArray | pa.Array, constants: Constants, where: Where = row_number, *,
    checks_text: bool = True, note: str | None = None,
) -> pa.Array:
    """Returns the values as the column stores them; names of child tables stay dictionary-encoded if they come so.

    Timestamps without a zone are local times of `constants.time_zone`. Raises InvalidValueError that names the first
    row that doesn't fit, or isn't what Arrow's type says; `note` is put to its hint. Without `checks_text` the caller
    sees to it that texts are UTF-8.
    """
    as_bytes = not checks_text and pa.types.is_string(values.type)
    check_arrow(column.name, values.cast(pa.binary()) if as_bytes else values, where)
    array = plain(values)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # more than 2 GB of strings stay in chunks
        raise InvalidValueError(f"column {column.name}: too many values at once", hint="insert fewer rows per call")
    if pa.types.is_dictionary(array.type):
        if column.name == "tbname" and _is_text(array.type.value_type):
            array = array.cast(pa.dictionary(array.type.index_type, pa.string()))
            if _has_room(column.type, array.dictionary):
                return array
        array = array.dictionary_decode()
    return converted(column, array, constants, where, note)


def converted(
    column: Column, array: pa.Array, constants: Constants, where: Where = row_number, note: str | None = None
) -> pa.Array:
    """Does what `fitted` does for an array that is known to be valid, and isn't encoded in any way."""
    made = _at_once(column.type, array, constants)
    return _by_value(column, array, constants, where, note) if made is None else made


def marked_as_utc(table: pa.Table) -> pa.Table:
    """Returns a result whose timestamps, which have no zone, are known to be in UTC when they come back."""
    fields = [field.with_metadata({**(field.metadata or {}), **_IN_UTC})
              if pa.types.is_timestamp(field.type) and field.type.tz is None else field for field in table.schema]
    return pa.Table.from_arrays(table.columns, schema=pa.schema(fields, table.schema.metadata))


def is_marked_as_utc(field: pa.Field) -> bool:
    """Whether a column comes from a result."""
    return field.metadata is not None and _IN_UTC.items() <= field.metadata.items()


def check_arrow(name: str, values: pa.ChunkedArray | pa.Array, where: Where = row_number) -> None:
    """Raises InvalidValueError with the row unless texts are UTF-8, offsets and indices in range, and so on.

    Whoever made an Arrow array may have put anything into it, and what reads it trusts it.
    """
    if _is_valid(values):
        return
    first = 0
    for array in values.chunks if isinstance(values, pa.ChunkedArray) else [values]:
        if not _is_valid(array):
            row, problem = _first_problem(array)
            raise InvalidValueError(f"{where(first + row)}, column {name}: {problem}")
        first += len(array)


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
        return low, f"{shorten(str(as_bytes[low].as_py()))} is not valid UTF-8"
    return low, f"Arrow data of type {array.type} is malformed"


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


# --- at once -------------------------------------------------------------------------------------------------------


def _at_once(kind: DataType, array: pa.Array, constants: Constants) -> pa.Array | None:
    """Returns the column; None if that takes a look at each value, be it to say which is wrong."""
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), kind.arrow())
    try:
        if kind.kind is Kind.TIMESTAMP:
            return _times(kind, array, constants)
        if kind.kind in INTEGERS:
            return _integers(kind, array)
        if kind.kind in FLOATS:
            return _floats(kind, array)
        made = _others(kind, array)
    except pa.ArrowInvalid:
        return None
    return made if made is not None and _has_room(kind, made) else None


def _integers(kind: DataType, array: pa.Array) -> pa.Array | None:
    source = array.type
    if source == kind.arrow():
        return array
    if pa.types.is_floating(source):
        wide = array.cast(pa.float64())
        if (pc.max(pc.abs(wide)).as_py() or 0) > _EXACT:  # their digits tell more than Arrow would
            return None
        return pc.round(wide, round_mode="half_towards_infinity").cast(kind.arrow())
    if _is_text(source) and _has_hex(array):
        return None  # Arrow reads 0xFFFFFFFF as the INT -1
    known = pa.types.is_integer(source) or pa.types.is_decimal(source) or _is_text(source)
    return array.cast(kind.arrow()) if known else None


def _floats(kind: DataType, array: pa.Array) -> pa.Array | None:
    source = array.type
    if not (pa.types.is_integer(source) or pa.types.is_floating(source) or _is_text(source)):
        return None
    return narrowed(kind, array if source == pa.float64() else array.cast(pa.float64(), safe=False))


def narrowed(kind: DataType, numbers: pa.Array) -> pa.Array | None:
    """Returns numbers, of float64, as a column of FLOAT or DOUBLE has them; None unless all of them are finite."""
    made = numbers if kind.kind is Kind.DOUBLE else numbers.cast(kind.arrow(), safe=False)
    if made.null_count:
        return None if pc.all(pc.is_finite(made)).as_py() is False else made
    return made if np.isfinite(made.to_numpy()).all() else None


def _others(kind: DataType, array: pa.Array) -> pa.Array | None:
    source, target = array.type, kind.arrow()
    if kind.kind in STRINGS:
        known = _is_text(source) or pa.types.is_integer(source) or pa.types.is_boolean(source)
        return array if source == target else array.cast(target) if known else None
    if kind.kind is Kind.BOOL:
        if pa.types.is_boolean(source):
            return array
        return pc.not_equal(array, pa.scalar(0, source)) if pa.types.is_integer(source) else None
    if kind.kind is Kind.VARBINARY:
        if _is_text(source) and pc.any(pc.starts_with(array, "\\x", ignore_case=True)).as_py():
            return None
        return array.cast(target) if _is_text(source) or _is_bytes(source) else None
    if kind.kind is Kind.DECIMAL and (pa.types.is_integer(source) or pa.types.is_decimal(source)):
        return array.cast(target)
    return None


def _has_room(kind: DataType, array: pa.Array) -> bool:
    if kind.length is None or not len(array):
        return True
    lengths = pc.utf8_length(array) if kind.kind is Kind.NCHAR else pc.binary_length(array)
    return (pc.max(lengths).as_py() or 0) <= kind.length


def _has_hex(texts: pa.Array) -> bool:
    data = texts.buffers()[2]
    whole = b"" if data is None else data.to_pybytes()
    return b"x" in whole or b"X" in whole


# --- times ---------------------------------------------------------------------------------------------------------


def _times(kind: DataType, array: pa.Array, constants: Constants) -> pa.Array | None:
    if _is_text(array.type):
        return times_of_texts(kind, array.cast(pa.string()), constants.time_zone)
    if pa.types.is_integer(array.type):
        return array.cast(pa.int64()).cast(kind.arrow())
    if not pa.types.is_timestamp(array.type):
        return None
    if array.type.tz is None:
        return _in_zone(kind, array, constants.time_zone)
    return _rescaled(kind, array.cast(pa.int64()), array.type.unit)


def times_of_texts(kind: DataType, texts: pa.StringArray, time_zone: str) -> pa.Array | None:
    """Returns what texts are as times, those without zone in `time_zone`; None if a text needs a closer look."""
    known = texts.drop_null()
    if not len(known):
        return pa.nulls(len(texts), kind.arrow())
    first = known[0].as_py()
    try:
        if first.lstrip("-").isdigit():
            return None if _has_hex(texts) else texts.cast(pa.int64()).cast(kind.arrow())
        lengths = pc.min_max(pc.binary_length(known)).as_py()
        if lengths["min"] < _DATE or pc.any(pc.starts_with(known, "0000")).as_py():
            return None
        if first.endswith("Z"):
            plain_zone = lengths["min"] >= _SHORTEST_IN_UTC and pc.all(pc.ends_with(known, "Z")).as_py()
        elif first[-3] not in "+-" and first[-5:-4] not in ("+", "-") and first[-6:-5] not in ("+", "-"):
            some_hours = pc.any(pc.equal(pc.binary_length(known), _DATE_AND_HOUR)).as_py()
            return None if some_hours else _in_zone(kind, _parsed(kind, texts, None), time_zone)
        else:
            plain_zone = _OFFSET.search(first) is not None and lengths["min"] >= _SHORTEST_WITH_OFFSET and pc.all(
                pc.ends_with(known, first[-6:])).as_py()
        if not plain_zone and not pc.all(pc.match_substring_regex(known, _WITH_OFFSET)).as_py():
            return None
        instants = _parsed(kind, texts, "UTC")
        return _rescaled(kind, instants.cast(pa.int64()), instants.type.unit)
    except pa.ArrowInvalid:
        return None


def _parsed(kind: DataType, texts: pa.StringArray, zone: str | None) -> pa.Array:
    """Returns what Arrow reads, in the unit of the column, or finer where texts are."""
    try:
        return texts.cast(pa.timestamp(kind.precision, zone))
    except pa.ArrowInvalid:
        if kind.precision == "ns":
            raise
        return texts.cast(pa.timestamp("ns", zone))


def _in_zone(kind: DataType, local: pa.Array, time_zone: str) -> pa.Array | None:
    """Returns local times, as the instants that they are in a zone."""
    units = local.view(pa.int64())
    if time_zone in _UTC or local.null_count == len(local):
        return _rescaled(kind, units, local.type.unit)
    bounds = pc.min_max(units).as_py()
    if not 0 <= bounds["min"] <= bounds["max"] < _ARROW_ZONES_END * _PER_SECOND[local.type.unit]:
        return None
    zoned = pc.assume_timezone(local, time_zone, ambiguous="earliest", nonexistent="raise")
    return _rescaled(kind, zoned.cast(pa.int64()), local.type.unit)


def _rescaled(kind: DataType, units: pa.Array, unit: str) -> pa.Array:
    """Returns instants in the column's precision: what is finer is cut off, as digits are. Raises pa.ArrowInvalid."""
    given, wanted = _PER_SECOND[unit], _PER_SECOND[kind.precision]
    if wanted > given:
        units = pc.multiply_checked(units, pa.scalar(wanted // given, pa.int64()))
    elif wanted < given:
        whole = units.fill_null(0).to_numpy() // (given // wanted)
        units = pa.array(whole, pa.int64(), mask=units.is_null().to_numpy(zero_copy_only=False))
    return units.view(kind.arrow())


# --- by value ------------------------------------------------------------------------------------------------------


def _by_value(
    column: Column, array: pa.Array, constants: Constants, where: Where, note: str | None
) -> pa.Array:
    try:
        encoded = array.dictionary_encode()
        found = _constants(column.type, encoded.dictionary, constants)
    except (pa.ArrowNotImplementedError, NotImplementedError) as error:
        raise InvalidValueError(f"column {column.name} takes {column.type.sql()}, not Arrow's {array.type}") from error
    stored: list[Any] = []
    for place in range(len(encoded.dictionary)):
        try:
            constant, raw = next(found)
            stored.append(constants.store(constant, column.type, raw))
        except InvalidValueError as error:
            row = pc.index(encoded.indices, pa.scalar(place, encoded.indices.type)).as_py()
            hint = "; ".join(filter(None, [error.hint, note])) or None
            raise InvalidValueError(f"{where(row)}, column {column.name}: {error.message}", hint=hint) from error
    return stored_array(column.type, stored).take(encoded.indices)


def stored_array(kind: DataType, values: list[Any]) -> pa.Array:
    """Returns values that `Constants.store` has made as an array."""
    if kind.kind is Kind.TIMESTAMP:
        return pa.array(values, pa.int64()).cast(kind.arrow())
    return pa.array(values, kind.arrow())


def _constants(kind: DataType, values: pa.Array, constants: Constants) -> Iterator[tuple[Constant, str]]:
    """Returns the constants that values stand for, with what errors show of them. Raises NotImplementedError."""
    source = values.type
    one: Callable[[Any], Constant]
    if pa.types.is_timestamp(source):
        one = partial(_instant, kind, source, constants)
        values = values.cast(pa.int64())
    elif pa.types.is_floating(source):
        short = pa.types.is_float32(source) and kind.kind in STRINGS
        one = partial(_number, short=short)
    elif pa.types.is_integer(source):
        one = _number
    elif pa.types.is_decimal(source):
        one = _decimal
    elif pa.types.is_date(source):
        one = _midnight
    elif _is_bytes(source):
        one = _decoded
    elif _is_text(source) or pa.types.is_boolean(source):
        one = _same
    else:
        raise NotImplementedError
    return _each(one, values)


def _each(one: Callable[[Any], Constant], values: pa.Array) -> Iterator[tuple[Constant, str]]:
    return map(partial(_with_text, one), values.to_pylist())


def _with_text(one: Callable[[Any], Constant], value: Any) -> tuple[Constant, str]:
    constant = one(value)
    text = constant.text if isinstance(constant, Number) else str(value)
    return constant, (text.lower() if isinstance(value, bool) else text) or "''"


def _same(value: Any) -> Constant:
    return value  # type: ignore[no-any-return]


def _number(value: float, *, short: bool = False) -> Constant:
    if isinstance(value, int):
        return Number(str(value))
    value = float(value)
    return Number(str(np.float32(value)) if short and math.isfinite(value) else repr(value))


def _decimal(value: Any) -> Constant:
    return Number(format(value, "f"))


def _midnight(value: date) -> Constant:
    return f"{value.isoformat()} 00:00:00"


def _decoded(value: bytes) -> Constant:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidValueError(f"{shorten(str(value))} is not valid UTF-8") from None


def _instant(kind: DataType, source: pa.TimestampType, constants: Constants, units: int) -> Constant:
    given = _PER_SECOND[source.unit]
    if source.tz is None:
        units = units_of_local(units, given, constants.time_zone)
    return Instant(units * _PER_SECOND[kind.precision] // given)
