"""Changes of a result table with a KEY: rows that come or change, and keys that go."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.one_array import one_array
from penstock.mnode.dnode.vnode_storage import Storage
from penstock.mnode.write.inserts import record_batches
from penstock.sql.schema import KEY_TEXT, Table
from penstock.vnode.store.sorted_keys import TS_MAX, TS_MIN
from penstock.vnode.write.vnode_writer import Change, DeletedRows, WrittenRows
from penstock.wal.record import TUID_COLUMN

_SPANS_MAX = 16
"""So many places are looked up one by one; of more the range is read that they lie in."""

Places = npt.NDArray[np.int64]


def keyed_changes(
    storage: Storage, target: Table, wanted: pa.RecordBatch, gone: pa.RecordBatch
) -> list[Change]:
    """Returns the changes that write rows, and delete those with other keys.

    `wanted`: rows as they are stored. `gone`: what keys are stored as, none of which a row of `wanted` has.
    """
    changes: list[Change] = []
    if gone.num_rows:
        known = stored_rows(storage, target, np.unique(times_of(target, gone)))
        leaves = pc.is_in(known.column(KEY_TEXT.physical), value_set=gone.column(KEY_TEXT.physical))
        times = np.unique(times_of(target, known)[leaves.to_numpy(zero_copy_only=False)])
        # A delete takes along what else lies at its place.
        stays = known.filter(pc.invert(leaves))
        stays = stays.filter(pa.array(np.isin(times_of(target, stays), times)))
        stays = stays.filter(pc.invert(pc.is_in(stays.column(KEY_TEXT.physical),
                                                value_set=wanted.column(KEY_TEXT.physical))))
        if stays.num_rows:
            wanted = pa.concat_batches([wanted, stays.select(wanted.schema.names)])
        if len(times):
            changes.append(DeletedRows(target.uid, np.full(len(times), target.uid, np.uint64), times))
    if wanted.num_rows:
        uids = pa.array(np.full(wanted.num_rows, target.uid, np.uint64))
        rows = pa.RecordBatch.from_arrays([uids, *wanted.columns], names=[TUID_COLUMN, *wanted.schema.names])
        changes += [WrittenRows(target.uid, part) for part in record_batches(rows)]
    return changes


def stored_rows(storage: Storage, target: Table, times: Places | None) -> pa.RecordBatch:
    """Returns the rows of a result table, as they are stored: all, or those of some times, or places."""
    assert target.vgroup_id is not None
    snapshot = storage.snapshot(target.vgroup_id, target.uid)
    columns = [column.physical for column in target.stored_columns]
    spans = [(TS_MIN, TS_MAX)]
    if times is not None:
        spans = [(time, time) for time in times.tolist()]
        if len(spans) > _SPANS_MAX:
            spans = [(spans[0][0], spans[-1][1])]
    found = pa.concat_tables([snapshot.to_arrow(columns, None, *span) for span in spans])
    if times is not None:
        found = found.filter(pc.is_in(found.column(columns[0]).cast(pa.int64()), value_set=pa.array(times)))
    return pa.RecordBatch.from_arrays(
        [one_array(column) for column in found.select(columns).columns], names=columns)


def times_of(target: Table, batch: pa.RecordBatch) -> Places:
    """Returns the times, or places, of rows as they are stored."""
    return np.asarray(batch.column(target.time_column.physical).cast(pa.int64()), np.int64)
