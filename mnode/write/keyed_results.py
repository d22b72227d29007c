"""Changes of a result table with a KEY: rows that come or change, and keys that go."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.arrow_data import one_array
from penstock.mnode.dnode.value_lookup import rows_having
from penstock.mnode.dnode.vnode_storage import Storage
from penstock.mnode.write.inserts import record_batches
from penstock.sql.rows.keyed_rows import may_have_neighbours
from penstock.sql.schema import KEY_TEXT, PLACE, Table
from penstock.vnode.read.row_places import RowPlaces, Values
from penstock.vnode.write.vnode_writer import Change, DeletedRows, WrittenRows
from penstock.wal.record import TUID_COLUMN

Times = npt.NDArray[np.int64]


def keyed_changes(
    storage: Storage, target: Table, wanted: pa.RecordBatch, gone: pa.RecordBatch
) -> list[Change]:
    """Returns the changes that write rows, and delete others.

    `wanted`: rows as they are stored. `gone`: what keys, or times, are stored as; of a table with a KEY no row of
    `wanted` has one of these.
    """
    return [*deletes(storage, target, gone, numbered=True), *_written(target, wanted)]


def deletes(storage: Storage, target: Table, gone: pa.RecordBatch, *, numbered: bool = False) -> list[Change]:
    """Returns how rows go, whose keys, or times, are stored so. `numbered`: there may be several of one key.

    A delete takes along what else lies at its place, which is written again: rows of the same key, and others if
    somebody has looked for such keys.
    """
    if not gone.num_rows:
        return []
    times = np.unique(times_of(target, gone))
    changes: list[Change] = [DeletedRows(target.uid, np.full(len(times), target.uid, np.uint64), times)]
    shared = times if numbered else times[may_have_neighbours(times)]
    if target.keyed and len(shared):
        there = stored_rows(target, shared, storage, (PLACE.physical, KEY_TEXT.physical))
        stays = there.filter(pc.invert(pc.is_in(there.column(1), value_set=gone.column(KEY_TEXT.physical))))
        if stays.num_rows:
            whole = stored_rows(target, np.unique(times_of(target, stays)), storage)
            changes += _written(target, whole.filter(
                pc.is_in(whole.column(KEY_TEXT.physical), value_set=stays.column(1))))
    return changes


def _written(target: Table, rows: pa.RecordBatch) -> list[Change]:
    return [WrittenRows(target.uid, part) for part in record_batches(of_table(target, rows))]


def stored_rows(
    target: Table, times: Times | None, storage: Storage, names: Sequence[str] | None = None
) -> pa.RecordBatch:
    """Returns the rows of a result table, as they are stored: all, or those of some times, or places.

    `names`: which columns of theirs, the time or place first; None: all.
    """
    assert target.vgroup_id is not None
    snapshot = storage.snapshot(target.vgroup_id, target.uid)
    columns = list(names or (column.physical for column in target.stored_columns))
    if times is None:
        return _batch(snapshot.to_arrow(columns), columns)
    uids = np.full(len(times), target.uid, np.uint64)
    return _batch(snapshot.rows_at(columns, RowPlaces.of(uids, times, times)), columns)


def stored_rows_with(target: Table, values: Values, storage: Storage) -> pa.RecordBatch:
    """Returns the rows of a result table, as they are stored, that have some values in columns."""
    assert target.vgroup_id is not None
    columns = [column.physical for column in target.stored_columns]
    return _batch(rows_having(storage.snapshot(target.vgroup_id, target.uid), target, columns, values), columns)


def _batch(rows: pa.Table, columns: Sequence[str]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [one_array(column) for column in rows.select(columns).columns], names=columns)


def of_table(target: Table, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns rows as a table without child tables writes them: with its own uid."""
    uids = pa.repeat(pa.scalar(target.uid, pa.uint64()), batch.num_rows)
    return pa.RecordBatch.from_arrays([uids, *batch.columns], names=[TUID_COLUMN, *batch.schema.names])


def times_of(target: Table, batch: pa.RecordBatch) -> Times:
    """Returns the times, or places, of rows as they are stored."""
    return np.asarray(batch.column(target.time_column.physical).cast(pa.int64()), np.int64)
