"""First-stage aggregates over dense codes: rows in, one partial per code out, without sorting.

A code numbers the (group, window) that a row belongs to. What cannot be computed exactly as DuckDB does raises
NotInKernelError.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.planner.task_plans.kernel_spec import FieldKernel, PickKernel
from penstock.tasks.compiled.compiled_loops import row_loops
from penstock.tasks.compute.kernel_vectors import Bools, Columns, NotInKernelError, Vector, evaluate

_SIGN = np.uint64(1 << 63)

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Coded:
    """The rows of a block by code: row i is of `codes[i]`, below `count`. `present`: the codes that have rows."""

    codes: Ints
    count: int
    rows: Ints
    present: Ints

    @classmethod
    def of(cls, codes: Ints, count: int) -> Coded:
        rows = np.bincount(codes, minlength=count)
        return cls(codes, count, rows, rows.nonzero()[0])


class DenseAggregation:
    """Computes the fields of partials, each value expression once."""

    def __init__(self, coded: Coded, columns: Columns) -> None:
        self._coded = coded
        self._columns = columns
        self._values: dict[Any, tuple[Vector, Ints]] = {}
        self._counts: dict[Any, Ints] = {}

    def field(self, kernel: FieldKernel) -> Vector:
        """Returns one field of all codes that have rows."""
        present = self._coded.present
        if kernel.value is None:
            return Vector(self._coded.rows[present])
        counts = self._count(kernel.value)
        if kernel.function == "count":
            return Vector(counts[present])
        found, codes = self._value(kernel.value)
        values = found.values
        valid = None if counts is self._coded.rows else (counts > 0)[present]
        match kernel.function:
            case "zero":
                return Vector(np.zeros(len(present), np.int64), valid)
            case "sum":
                computed = self._sum(values, codes)
            case "min" | "max":
                computed = self._extreme(kernel.function, values, codes)
            case "mean":
                computed = self._mean(values, codes, counts)
            case _:
                computed = self._deviations(values, codes, counts)
        return Vector(computed[present], valid)

    def pick(self, kernel: PickKernel) -> list[Vector]:
        """Returns the fields of each code's chosen row."""
        coded = self._coded
        fields = [evaluate(field, self._columns) for field in kernel.fields]
        chosen = self._chosen(kernel, fields)[coded.present]
        missing = chosen < 0
        if not missing.any():
            return [field.take(chosen) for field in fields]
        if not len(coded.codes):
            return fields
        return [_nulled(field.take(np.maximum(chosen, 0)), missing) for field in fields]

    # -- inside ------------------------------------------------------------------------------------------------

    def _chosen(self, kernel: PickKernel, fields: Sequence[Vector]) -> Ints:
        """Returns the row that is chosen for each code, -1 where there is none."""
        coded = self._coded
        shown: Bools = np.ones(len(coded.codes), bool)
        if kernel.present is not None:
            present = evaluate(kernel.present, self._columns)
            if present.is_arrow or present.valid is not None:
                shown = ~present.nulls(len(coded.codes))
        order = [fields[place] for place, _ in kernel.order]
        if any(field.valid is not None and not field.valid[shown].all() for field in order):
            raise NotInKernelError
        chosen = np.full(coded.count, -1)
        orders = [*kernel.order]
        while len(order) > 2:  # those that are not among the first by the first order don't count
            (first, *order), ((_, ascends), *orders) = order, orders
            best = self._extreme("min" if ascends else "max", first.values[shown], coded.codes[shown])
            shown &= first.values == best[coded.codes]
        (first, last), (_, ascends), (_, equals_ascend) = (order[0], order[-1]), orders[0], orders[-1]
        row_loops().pick(
            coded.codes, shown, _signed(first.values), ascends, _wide(last.values), equals_ascend, chosen)
        return chosen

    def _value(self, expression: Any) -> tuple[Vector, Ints]:
        """Returns the values that are not NULL, and their codes."""
        known = self._values.get(expression)
        if known is None:
            codes = self._coded.codes
            found = evaluate(expression, self._columns)
            if not found.is_arrow and not isinstance(found.values, np.ndarray):
                found = Vector(np.full(len(codes), found.values))
            if found.is_arrow or found.valid is not None:
                shown = ~found.nulls(len(codes))
                if not shown.all():
                    found, codes = found.take(shown), codes[shown]
                if not found.is_arrow:
                    found = Vector(found.values)
            known = self._values[expression] = found, codes
        return known

    def _count(self, expression: Any) -> Ints:
        known = self._counts.get(expression)
        if known is None:
            codes = self._value(expression)[1]
            whole = len(codes) == len(self._coded.codes)
            known = self._coded.rows if whole else np.bincount(codes, minlength=self._coded.count)
            self._counts[expression] = known
        return known

    def _sum(self, values: npt.NDArray[Any], codes: Ints) -> npt.NDArray[Any]:
        if values.dtype.kind == "f":
            return self._sum_of_floats(values, codes)
        total = np.zeros(self._coded.count, np.int64)
        if values.dtype == np.uint64:
            if (values >= _SIGN).any():
                raise NotInKernelError
            values = values.view(np.int64)
        if not row_loops().add(codes, _wide(values), total):
            raise NotInKernelError
        return total

    def _extreme(self, function: str, values: npt.NDArray[Any], codes: Ints) -> npt.NDArray[Any]:
        """For DuckDB, NaN is the greatest number."""
        dtype = values.dtype
        if dtype.kind == "f":
            first: Any = np.nan if function == "min" else -np.inf
        else:
            first = np.iinfo(dtype).max if function == "min" else np.iinfo(dtype).min
        wide, loops = _wide(values), row_loops()
        found = np.full(self._coded.count, first, wide.dtype)
        (loops.least if function == "min" else loops.greatest)(codes, wide, found)
        return found if wide.dtype == dtype else found.astype(dtype)

    def _sum_of_floats(self, values: npt.NDArray[Any], codes: Ints) -> npt.NDArray[Any]:
        sums = np.zeros(self._coded.count)
        row_loops().add_floats(codes, _wide(values), sums)
        return sums

    def _mean(self, values: npt.NDArray[Any], codes: Ints, counts: Ints) -> npt.NDArray[Any]:
        return self._sum_of_floats(values, codes) / np.maximum(counts, 1)

    def _deviations(self, values: npt.NDArray[Any], codes: Ints, counts: Ints) -> npt.NDArray[Any]:
        squares: npt.NDArray[Any] = np.zeros(self._coded.count)
        row_loops().deviate(codes, _wide(values), self._mean(values, codes, counts), squares)
        # What isn't finite, or has a mean that isn't, has no finite deviation.
        if not np.isfinite(squares).all():
            raise NotInKernelError
        return squares


def _wide(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns numbers as they are compiled for: of 8 bytes, in one piece."""
    if values.dtype.itemsize < 8:
        values = values.astype(np.float64 if values.dtype.kind == "f" else np.int64)
    return np.ascontiguousarray(values)


def _signed(values: npt.NDArray[Any]) -> Ints:
    """Returns whole numbers of 8 bytes, in one piece, that ascend as others do."""
    return (values ^ _SIGN).view(np.int64) if values.dtype.kind == "u" else _wide(values)


def _nulled(value: Vector, missing: Bools) -> Vector:
    if value.is_arrow:
        import pyarrow.compute as pc

        return Vector(pc.if_else(~missing, value.values, None))
    return Vector(value.values, ~missing if value.valid is None else value.valid & ~missing)
