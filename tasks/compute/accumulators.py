"""Columnar accumulators: NumPy arrays over slots, and the ways in which partials are combined into them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.common.masks import any_set
from penstock.planner.task_plans.stream_plan import Accumulator, Field
from penstock.tasks.compute.function_runtime import Merge, UserFunctions
from penstock.tasks.compute.growing_arrays import grown
from penstock.tasks.protocol.block_schema import field_type

Slots = npt.NDArray[np.int64]

_OBJECT = np.dtype(object)
_ARRAY_BYTES = sys.getsizeof(np.zeros(0))


class Values:
    """One nullable column over slots. Values of invalid slots are zero (None for objects).

    Those of a list type are arrays, which are never changed in place. `held`: bytes of values whose size has no bound.
    """

    def __init__(self, type_: pa.DataType, data: npt.NDArray[Any], valid: npt.NDArray[np.bool_]) -> None:
        self.type = type_
        self.dtype = data.dtype
        self.data = data
        self.valid = valid
        self.held = 0
        self._unbounded = self.dtype == _OBJECT and (pa.types.is_list(type_) or pa.types.is_binary(type_))

    @classmethod
    def empty(cls, type_: pa.DataType, capacity: int) -> Values:
        """Returns a column of `capacity` slots without values."""
        return cls(type_, _empty(numpy_type(type_), capacity), np.zeros(capacity, bool))

    @classmethod
    def of(cls, array: pa.Array) -> Values:
        """Returns the column of an Arrow array: slot i is element i."""
        type_ = array.type
        dtype = numpy_type(type_)
        if array.null_count == 0:
            valid = np.ones(len(array), bool)
        else:
            valid = np.asarray(array.is_valid())
            if dtype != _OBJECT:
                array = array.fill_null(False if pa.types.is_boolean(type_) else 0)
        data = array.to_numpy(zero_copy_only=False)
        if pa.types.is_list(type_):
            # Parts of one buffer, all of which each of them would keep.
            for place in np.flatnonzero(valid).tolist():
                data[place] = data[place].copy()
        return cls(type_, data if data.dtype == dtype else data.astype(dtype), valid)

    def grow(self, capacity: int) -> None:
        data, valid = [self.data], [self.valid]
        del self.data, self.valid
        self.data, self.valid = grown(data, capacity), grown(valid, capacity)

    def keep(self, slots: Slots, capacity: int) -> None:
        """Has these slots become 0, 1, ... of `capacity`; all others hold nothing."""
        data, valid = _empty(self.dtype, capacity), np.zeros(capacity, bool)
        data[: len(slots)] = self.data[slots]
        valid[: len(slots)] = self.valid[slots]
        self.data, self.valid = data, valid

    def clear(self, slots: Slots) -> None:
        if self._unbounded:
            self.held -= _size(self.data[slots])
        self.data[slots] = _zero(self.dtype)
        self.valid[slots] = False

    def set(self, slots: Slots, source: Values, rows: Slots | slice) -> None:
        self.fill(slots, source.data[rows], source.valid[rows])

    def fill(self, slots: Slots, data: npt.NDArray[Any], valid: npt.NDArray[np.bool_]) -> None:
        """Puts values into slots, which must be distinct."""
        if self._unbounded:
            self.held += _size(data) - _size(self.data[slots])
        self.data[slots] = data
        self.valid[slots] = valid

    def take(self, slots: Slots) -> Values:
        return Values(self.type, self.data[slots], self.valid[slots])

    def arrow(self) -> pa.Array:
        """Returns the column as an Arrow array of its block type."""
        return pa.array(self.data, self.type, mask=None if self.valid.all() else ~self.valid)


def numpy_type(type_: pa.DataType) -> np.dtype[Any]:
    """Returns the dtype that holds values of an Arrow type; everything that isn't a number is an object."""
    if pa.types.is_integer(type_) or pa.types.is_floating(type_):
        dtype: np.dtype[Any] = np.dtype(type_.to_pandas_dtype())
        return dtype
    return np.dtype(np.bool_) if pa.types.is_boolean(type_) else _OBJECT


def columns_for(fields: Sequence[Field], capacity: int) -> list[Values]:
    """Returns an empty column per field."""
    return [Values.empty(field_type(field), capacity) for field in fields]


def merges_of(accumulators: Sequence[Accumulator], functions: UserFunctions | None) -> list[Merge | None]:
    """Returns per accumulator what unites states of its function, or None if it has none."""
    return [None if functions is None or accumulator.function is None else functions.merge(accumulator.function)
            for accumulator in accumulators]


def combine(
    accumulator: Accumulator, target: Sequence[Values], slots: Slots, source: Sequence[Values], rows: Slots | slice,
    merge: Merge | None = None,
) -> None:
    """Combines `source[rows]` into `target[slots]`, both holding the accumulator's fields. Slots must be distinct.

    `merge` unites states of the accumulator's function, if it has one.
    """
    match accumulator.kind:
        case "add":
            _add(target[0], slots, source[0], rows)
        case "wide_add":
            _add_wide(target, slots, source, rows)
        case "pick":
            _pick(accumulator.order, target, slots, source, rows)
        case "moments":
            _moments(target, slots, source, rows)
        case "values":
            _merge(_all_values, target[0], slots, source[0], rows)
        case "distinct":
            _merge(np.union1d, target[0], slots, source[0], rows)
        case "udaf":
            assert merge is not None
            _merge(merge, target[0], slots, source[0], rows)


def _add(target: Values, slots: Slots, source: Values, rows: Slots | slice) -> None:
    valid = source.valid[rows]
    if target.dtype == _OBJECT:
        for slot, value in zip(slots[valid].tolist(), source.data[rows][valid].tolist(), strict=True):
            target.data[slot] = value if not target.valid[slot] else target.data[slot] + value
    elif target.dtype.kind == "f":
        with np.errstate(over="ignore"):
            target.data[slots] += source.data[rows]
    else:
        target.data[slots] += source.data[rows]
    target.valid[slots] |= valid


def _add_wide(target: Sequence[Values], slots: Slots, source: Sequence[Values], rows: Slots | slice) -> None:
    """Adds 64 bits, which wrap around, and counts where they did: up or down."""
    held, more = target[0].data[slots], source[0].data[rows]
    total = held + more
    beyond = source[1].data[rows]
    left = total < held if total.dtype.kind == "u" else ((held ^ total) & (more ^ total)) < 0
    if any_set(left):
        beyond = beyond + np.where(left, np.where(more < 0, -1, 1), 0)
    target[0].data[slots] = total
    target[1].data[slots] += beyond
    for column, other in zip(target, source, strict=True):
        column.valid[slots] |= other.valid[rows]


def _pick(
    order: tuple[tuple[int, bool], ...],
    target: Sequence[Values],
    slots: Slots,
    source: Sequence[Values],
    rows: Slots | slice,
) -> None:
    first = order[0][0]
    empty = ~target[first].valid[slots]
    better = empty.copy()
    tied = ~empty
    for position, ascending in order:
        new, old = source[position].data[rows], target[position].data[slots]
        if new.dtype == _OBJECT:
            less, more = _compare_objects(new, old, tied)
        else:
            less, more = _compare_numbers(new, old)
        wins, loses = (less, more) if ascending else (more, less)
        better |= tied & wins
        tied &= ~wins & ~loses
    better &= source[first].valid[rows]
    chosen = better.nonzero()[0]
    if not len(chosen):
        return
    taken = chosen if isinstance(rows, slice) else rows[chosen]
    for column, candidate in zip(target, source, strict=True):
        column.set(slots[chosen], candidate, taken)


def _compare_numbers(
    new: npt.NDArray[Any], old: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """For DuckDB, NaN is the greatest number."""
    less, more = new < old, new > old
    if np.issubdtype(new.dtype, np.floating):
        nan_new, nan_old = np.isnan(new), np.isnan(old)
        less |= nan_old & ~nan_new
        more |= nan_new & ~nan_old
    return less, more


def _compare_objects(
    new: npt.NDArray[Any], old: npt.NDArray[Any], where: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    less, more = np.zeros(len(new), bool), np.zeros(len(new), bool)
    for n in np.flatnonzero(where).tolist():
        if new[n] is not None and old[n] is not None:
            less[n], more[n] = new[n] < old[n], new[n] > old[n]
    return less, more


def _moments(target: Sequence[Values], slots: Slots, source: Sequence[Values], rows: Slots | slice) -> None:
    """Chan, Golub and LeVeque's update of count, mean and squared deviations."""
    count, mean, squares = (column.data[slots] for column in target)
    more, other_mean, other_squares = (column.data[rows] for column in source)
    total = count + more
    safe = np.maximum(total, 1)
    with np.errstate(over="ignore", invalid="ignore"):  # what leaves the range is NULL in the end
        delta = np.where(more > 0, other_mean - mean, 0.0)
        moved = mean + delta * more / safe
        apart = np.where(count == 0, 0.0, delta * delta * count * more / safe)
    target[0].data[slots] = total
    target[1].data[slots] = np.where(count == 0, np.where(more > 0, other_mean, 0.0), moved)
    target[2].data[slots] = squares + other_squares + apart
    target[0].valid[slots] = True
    for column in target[1:]:
        column.valid[slots] = total > 0


def _merge(
    merge: Callable[[Any, Any], Any], target: Values, slots: Slots, source: Values, rows: Slots | slice
) -> None:
    valid = source.valid[rows]
    slots, states = slots[valid], source.data[rows][valid]
    known = target.valid[slots]
    for n in np.flatnonzero(known).tolist():
        states[n] = merge(target.data[slots[n]], states[n])
    target.fill(slots, states, np.ones(len(slots), bool))


def _all_values(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.concatenate((left, right))


def _size(values: npt.NDArray[Any]) -> int:
    """Returns about how many bytes lists or states take."""
    return sum(_value_size(value) for value in values if value is not None)


def _value_size(value: npt.NDArray[Any] | bytes) -> int:
    if isinstance(value, bytes):
        return sys.getsizeof(value)
    content = sum(map(sys.getsizeof, value)) if value.dtype == _OBJECT else 0
    return _ARRAY_BYTES + value.nbytes + content


def _zero(dtype: np.dtype[Any]) -> Any:
    return None if dtype == _OBJECT else dtype.type(0)


def _empty(dtype: np.dtype[Any], capacity: int) -> npt.NDArray[Any]:
    return np.full(capacity, None, object) if dtype == _OBJECT else np.zeros(capacity, dtype)
