"""First-stage aggregates over dense codes: rows in, one partial per code out, in NumPy and without sorting.

A code numbers the (group, window) that a row belongs to. What cannot be computed exactly as DuckDB does raises
NotInKernelError.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.planner.task_plans.kernel_spec import FieldKernel, PickKernel
from penstock.tasks.compute.kernel_vectors import Bools, Columns, NotInKernelError, Vector, evaluate

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
        candidates = np.arange(len(coded.codes))
        if kernel.present is not None:
            shown = evaluate(kernel.present, self._columns)
            if shown.is_arrow or shown.valid is not None:
                candidates = np.flatnonzero(~shown.nulls(len(coded.codes)))
        for place, ascending in kernel.order:
            field = fields[place]
            if field.valid is not None and not field.valid[candidates].all():
                raise NotInKernelError
            values, codes = field.values[candidates], coded.codes[candidates]
            best = self._extreme("min" if ascending else "max", values, codes)
            candidates = candidates[values == best[codes]]
        chosen = np.full(coded.count, -1)
        # Of equal candidates the first counts: assignment keeps the last.
        chosen[coded.codes[candidates[::-1]]] = candidates[::-1]
        chosen = chosen[coded.present]
        missing = chosen < 0
        if not missing.any():
            return [field.take(chosen) for field in fields]
        if not len(coded.codes):
            return fields
        return [_nulled(field.take(np.maximum(chosen, 0)), missing) for field in fields]

    # -- inside ------------------------------------------------------------------------------------------------

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
        if np.issubdtype(values.dtype, np.floating):
            return np.bincount(codes, values, self._coded.count)
        if not len(values):
            return np.zeros(self._coded.count, np.int64)
        largest = max(int(values.max()), -int(values.min()))
        if largest * len(values) < 1 << 53:
            return np.bincount(codes, values, self._coded.count).astype(np.int64)
        if largest * len(values) >= 1 << 63:
            raise NotInKernelError
        total = np.zeros(self._coded.count, np.int64)
        np.add.at(total, codes, values.astype(np.int64))
        return total

    def _extreme(self, function: str, values: npt.NDArray[Any], codes: Ints) -> npt.NDArray[Any]:
        """For DuckDB, NaN is the greatest number."""
        dtype = values.dtype
        if np.issubdtype(dtype, np.floating):
            if function == "max":
                result = np.full(self._coded.count, -np.inf, dtype)
                np.maximum.at(result, codes, values)
            elif np.isnan(values).any():
                result = np.full(self._coded.count, np.nan, dtype)
                np.fmin.at(result, codes, values)
            else:
                result = np.full(self._coded.count, np.inf, dtype)
                np.minimum.at(result, codes, values)
            return result
        info = np.iinfo(dtype)
        if function == "max":
            result = np.full(self._coded.count, info.min, dtype)
            np.maximum.at(result, codes, values)
        else:
            result = np.full(self._coded.count, info.max, dtype)
            np.minimum.at(result, codes, values)
        return result

    def _mean(self, values: npt.NDArray[Any], codes: Ints, counts: Ints) -> npt.NDArray[Any]:
        return np.bincount(codes, values, self._coded.count) / np.maximum(counts, 1)

    def _deviations(self, values: npt.NDArray[Any], codes: Ints, counts: Ints) -> npt.NDArray[Any]:
        if not np.isfinite(values).all():
            raise NotInKernelError
        with np.errstate(over="ignore"):
            away = values - self._mean(values, codes, counts)[codes]
            squares = np.bincount(codes, away * away, self._coded.count)
        if not np.isfinite(squares).all():
            raise NotInKernelError
        return squares


def _nulled(value: Vector, missing: Bools) -> Vector:
    if value.is_arrow:
        import pyarrow.compute as pc

        return Vector(pc.if_else(~missing, value.values, None))
    return Vector(value.values, ~missing if value.valid is None else value.valid & ~missing)
