"""What a result table of a stream of any query holds and what it is to hold: how that differs, and what to write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.arrow_data import one_array
from penstock.common.errors import InvalidValueError
from penstock.common.masks import all_set
from penstock.mnode.dnode.vnode_storage import Storage
from penstock.mnode.write.inserts import record_batches
from penstock.mnode.write.keyed_results import keyed_changes, of_table, stored_rows, stored_rows_with, times_of
from penstock.planner.query.compared_results import RELATIVE
from penstock.sql.rows.constants import Constants
from penstock.sql.rows.fitting import fitted, row_number
from penstock.sql.rows.keyed_rows import equal_values, key_texts, keyed, numbered
from penstock.sql.schema import KEY_TEXT, PLACE, Column, Table
from penstock.sql.types import FLOATS
from penstock.vnode.read.row_places import Values, having, not_having
from penstock.vnode.write.vnode_writer import Change, DeletedRows, WrittenRows

Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class Differing:
    """How the rows that a table has (`found`) and those that it is to have (`wanted`) differ. `lost`: see `equal_rows`.

    `gone`: the places of those that it is not to have. `changed`: of each that it is to have, whether that is missing
    or has other values; `places`: where its key is found, NULL if it isn't.
    """

    table: Table
    found: pa.RecordBatch
    wanted: pa.RecordBatch
    lost: float | None
    gone: npt.NDArray[np.int64]
    changed: Flags
    places: pa.Int32Array

    @property
    def before(self) -> pa.RecordBatch:
        """The rows that go or change, as they are stored."""
        changed = self.places.filter(pa.array(self.changed)).drop_null()
        return self.found.take(pa.concat_arrays([pa.array(self.gone, pa.int64()), changed.cast(pa.int64())]))

    @property
    def after(self) -> pa.RecordBatch:
        """The rows that come or change, as they are to be stored."""
        return _where(self.changed, self.wanted)


@dataclass(frozen=True, slots=True)
class Correction:
    """`changes` make the table hold what it is to; they write and delete so many `rows`, those that are `differing`."""

    changes: Sequence[Change]
    rows: int
    differing: Differing


@dataclass(frozen=True, slots=True)
class Contents:
    """What a table holds behind a change of which nothing is stored yet: `wanted`, of all rows, of some keys as they
    are stored, or of those rows that have some values in columns; and what else is stored."""

    target: Table
    wanted: pa.RecordBatch
    keys: pa.RecordBatch | None
    values: Values | None
    storage: Storage

    def rows(self, values: Values | None) -> pa.RecordBatch:
        """Returns all rows, as they are stored, or those that have some values in columns."""
        rows = self.wanted
        if self.keys is not None or self.values is not None:
            known = stored_rows(self.target, None, self.storage) if values is None else (
                stored_rows_with(self.target, values, self.storage))
            stays = _without(known, self.keys) if self.keys is not None else (
                known if self.values is None else not_having(known, self.values))
            rows = pa.concat_batches([rows, stays.select(rows.schema.names)])
        return rows if values is None else having(rows, values)


def as_stored(target: Table, rows: pa.Table, constants: Constants, *, repeats: bool) -> pa.RecordBatch:
    """Returns the rows of an answer, which may be equal if it `repeats` some, as the table stores them.

    Raises InvalidValueError where it can't hold them.
    """
    arrays = [_stored(column, one_array(values), constants)
              for column, values in zip(target.columns, rows.columns, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, names=[column.physical for column in target.columns])
    if not target.keyed and batch.column(0).null_count:
        raise InvalidValueError(f"the time {target.columns[0].name} of a row of the answer is NULL")
    if target.keyed:
        batch = keyed(target, batch)
    if repeats:
        return numbered(batch)
    keys = _keys(target, batch)
    if pc.count_distinct(keys).as_py() < len(keys):
        names = ", ".join(column.name for column in target.key_columns)
        raise InvalidValueError(f"several rows of the result have the same {names}, which must be unique",
                                hint=f"name further columns of the KEY: {target.name} (a PRIMARY KEY, b PRIMARY KEY, "
                                     "...)")
    return batch


def difference(
    target: Table, wanted: pa.RecordBatch, found: pa.RecordBatch, lost: float | None = None
) -> Differing:
    """Returns how what the table has differs from what it is to have, both as they are stored."""
    if lost is not None and wanted.num_rows == found.num_rows == 1 and equal_rows(
            target.columns, wanted, found, lost).all():  # also where its numbers are its KEY
        nothing = np.zeros(0, np.int64), np.zeros(1, bool)
        return Differing(target, found, wanted, lost, *nothing, pa.array([0], pa.int32()))
    want, have = _keys(target, wanted), _keys(target, found)
    gone = np.flatnonzero(pc.invert(pc.is_in(have, value_set=want)).to_numpy(zero_copy_only=False))
    places = pc.index_in(want, value_set=have)
    equal = equal_rows(target.columns, wanted, found.take(places), lost)
    changed = ~(places.is_valid().to_numpy(zero_copy_only=False) & equal)
    return Differing(target, found, wanted, lost, gone, changed, places)


def correction(target: Table, wanted: pa.RecordBatch, keys: pa.RecordBatch | None, storage: Storage) -> Correction:
    """Returns how to write the rows that are new or others, and to delete those that are no more.

    `keys`: of all rows that are looked at, as they are stored; None: all rows are.
    """
    known = stored_rows(target, None if keys is None else np.unique(times_of(target, keys)), storage)
    if keys is not None:
        # What else lies at these places stays as it is.
        wanted = pa.concat_batches([wanted, _without(known, keys).select(wanted.schema.names)])
    differing = difference(target, wanted, known)
    gone, changed = differing.gone, differing.changed.copy()
    changes: list[Change] = []
    if len(gone):
        times = np.unique(times_of(target, known)[gone])
        # A delete takes along what else lies at its time.
        changed |= np.isin(times_of(target, wanted), times)
        changes.append(DeletedRows(target.uid, np.full(len(times), target.uid, np.uint64), times))
    if changed.any():
        rows = _where(changed, wanted)
        changes += [WrittenRows(target.uid, part) for part in record_batches(of_table(target, rows))]
    return Correction(changes, int(changed.sum()) + len(gone), differing)


def correction_of_part(
    target: Table, wanted: pa.RecordBatch, values: Values, storage: Storage, *, claimed: bool
) -> Correction | None:
    """Returns how to write and delete rows of a table with a KEY so that those of its rows become what is wanted that
    have some values. `claimed`: others may have the same KEY; None if one has.
    """
    differing = difference(target, wanted, stored_rows_with(target, values, storage))
    fresh = wanted.filter(pc.is_null(differing.places))
    if claimed and fresh.num_rows:
        there = stored_rows(target, np.unique(times_of(target, fresh)), storage, (PLACE.physical, KEY_TEXT.physical))
        if pc.any(pc.is_in(there.column(1), value_set=_keys(target, fresh))).as_py():
            return None
    gone, changed = differing.found.take(pa.array(differing.gone)), differing.after
    return Correction(keyed_changes(storage, target, changed, gone), changed.num_rows + gone.num_rows, differing)


def equal_rows(
    columns: Sequence[Column], left: pa.RecordBatch, right: pa.RecordBatch, lost: float | None = None
) -> Flags:
    """Returns which rows have the same values on both sides, NULL and NaN being equal to themselves.

    `lost`: numbers with a fraction that differ by no more, or by no more than RELATIVE of them, are equal, too.
    """
    equal = np.ones(left.num_rows, bool)
    for column in columns:
        one, other = left.column(column.physical), right.column(column.physical).cast(column.type.arrow())
        equal_ones = equal_values(one, other)
        if lost is not None and column.type.kind in FLOATS:
            a, b = (np.asarray(side.cast(pa.float64()).fill_null(np.nan), np.float64) for side in (one, other))
            with np.errstate(invalid="ignore"):
                near = np.abs(a - b) <= lost + RELATIVE * np.maximum(np.abs(a), np.abs(b))
            equal_ones = equal_ones | (near & np.isfinite(a) & np.isfinite(b))
        equal &= equal_ones
    return equal


def _stored(column: Column, values: pa.Array, constants: Constants) -> pa.Array:
    """Returns what was computed for a column as it stores that: also an infinite number, which nobody can insert."""
    if column.type.kind in FLOATS and values.type == column.type.arrow():
        return values
    return fitted(column, values, constants, row_number, checks_text=True)


def _keys(target: Table, batch: pa.RecordBatch) -> pa.StringArray:
    """Returns a text for each stored row that no other one has."""
    if target.keyed:
        return batch.column(KEY_TEXT.physical)
    columns = target.key_columns
    return key_texts([batch.column(column.physical) for column in columns], [column.type.kind for column in columns])


def _where(mask: Flags, rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows if all_set(mask) else rows.filter(pa.array(mask))


def _without(rows: pa.RecordBatch, keys: pa.RecordBatch) -> pa.RecordBatch:
    looked_at = pc.is_in(rows.column(KEY_TEXT.physical), value_set=keys.column(KEY_TEXT.physical))
    return rows.filter(pc.invert(looked_at))
