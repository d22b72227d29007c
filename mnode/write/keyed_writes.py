"""Writes of ingests into tables with a KEY: rows that are to be there, and keys whose rows are to go."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.mnode.dnode.vnode_storage import Storage
from penstock.mnode.write.keyed_results import deletes, of_table
from penstock.planner.task_plans.column_names import KEPT, OFFSET, OPERATION
from penstock.sql.rows.keyed_rows import keyed
from penstock.sql.schema import KEY_TEXT, Table
from penstock.tasks.protocol.messages import ResultWrite
from penstock.vnode.store.delivery import IngestDelivery
from penstock.vnode.write.vnode_writer import Change, WrittenRows

_Index = npt.NDArray[np.int64]


class KeyedResults:
    """Performs such writes; safe for many threads."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._locks: dict[int, threading.Lock] = {}

    def lock_of(self, table_uid: int) -> threading.Lock:
        """Returns what is held by who looks at rows of a table and then deletes by that, or by what came before."""
        with self._lock:
            return self._locks.setdefault(table_uid, threading.Lock())

    def write(self, target: Table, write: ResultWrite, check_attempt: Callable[[], None]) -> None:
        """Performs a write; returns when it is acknowledged by the vnode. Raises StorageError, InvalidValueError, and
        what `check_attempt` raises when it is this write's turn.

        Of the rows of one key the last counts, and of what was delivered before nothing does: a row that went may have
        come again since.
        """
        assert target.vgroup_id is not None
        with self.lock_of(target.uid):
            check_attempt()
            vnode = self._storage.vnode(target.vgroup_id)
            rows, delivery = write.rows, None
            if write.delivered is not None:
                delivery = IngestDelivery(write.stream_id, write.delivered.partition, write.delivered.segment,
                                          np.asarray(rows.column(OFFSET).to_numpy(), np.int64))
                rows, delivery = delivery.cut(rows, vnode.places(target.uid))
            # One after the other: what is deleted together with other changes must have been there before all of them.
            begun = [vnode.writer.begin_together(self._changes(
                target, rows.slice(first, stop - first), _part(delivery, first, stop)))
                for first, stop in _runs(rows.column(KEPT))]
            for one in begun:
                if one is not None:
                    one.wait()

    def _changes(self, target: Table, rows: pa.RecordBatch, delivery: IngestDelivery | None) -> list[Change]:
        """Returns what is to be done for rows that keep the same columns; deletes are before the others."""
        kept = {int(place) for place in (rows.column(KEPT)[0].as_py() or "").split(",") if place}
        given = {name: rows.column(place) for place, name in enumerate(rows.schema.names) if place not in kept}
        columns = [column for column in target.columns if column.name in given]
        batch = keyed(target, pa.RecordBatch.from_arrays(
            [given[column.name].cast(column.type.arrow()) for column in columns],
            names=[column.physical for column in columns]))
        last = _last_of_each(batch.column(KEY_TEXT.physical))
        gone = np.asarray(rows.column(OPERATION).to_numpy(), np.int64)[last] != 0
        changes: list[Change] = []
        if gone.any():
            changes += deletes(self._storage, target, batch.take(pa.array(last[gone])))
        there = last[~gone]
        if len(there):
            changes.append(WrittenRows(
                target.uid, of_table(target, batch.take(pa.array(there))),
                None if delivery is None else replace(delivery, offsets=delivery.offsets[there])))
        return changes


def _last_of_each(keys: pa.StringArray) -> _Index:
    """Returns the last row of each key, in the order of rows."""
    codes = keys.dictionary_encode().indices.to_numpy()
    last = np.zeros(int(codes.max()) + 1, np.int64)
    last[codes] = np.arange(len(codes))
    return np.sort(last)


def _runs(values: pa.Array) -> list[tuple[int, int]]:
    """Returns the ranges of rows with the same value."""
    if not len(values):
        return []
    if values.null_count == len(values):
        return [(0, len(values))]
    codes = values.dictionary_encode(null_encoding="encode").indices.to_numpy()
    bounds = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
    return list(pairwise(bounds))


def _part(delivery: IngestDelivery | None, first: int, stop: int) -> IngestDelivery | None:
    return None if delivery is None else replace(delivery, offsets=delivery.offsets[first:stop])
