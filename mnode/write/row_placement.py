"""Brings rows into the order in which vnodes store them, and divides them among the vnodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import cached_property, partial
from itertools import pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.common.masks import any_set
from penstock.mnode.dnode.vnode_storage import Storage
from penstock.sql.schema import ChildTable
from penstock.vnode.store.sorted_keys import I64, U64, stable_order
from penstock.vnode.write.vnode_writer import BegunWrite, Change

T = TypeVar("T")

FEW_ROWS = 4096
"""Fewer rows of a statement, or of results, are seen at once, in whichever vnodes they are."""

_SHORT_RANKS = 1 << 16
_UID_BITS = 44


class Owners:
    """Some child tables, in an order that rows refer to: where they are, and in which order vnodes store their rows."""

    def __init__(self, children: Sequence[ChildTable]) -> None:
        self.uids: U64 = np.array([child.uid for child in children], np.uint64)
        self.vgroups: I64 = np.array([child.vgroup_id for child in children], np.int64)

    @cached_property
    def ranks(self) -> I64:
        return ranks_of(self.uids, self.vgroups)


def ranks_of(uids: U64, vgroups: I64) -> I64:
    """Returns for each of some child tables its rank by vgroup and uid; those that are the same one have the same.

    Of so many that ranks have more than 16 bits anyway, it is both numbers together: that needs no sorting.
    """
    if len(uids) > _SHORT_RANKS and int(uids.max()) < 1 << _UID_BITS and int(vgroups.max()) < 1 << (63 - _UID_BITS):
        return (vgroups << _UID_BITS) | uids.astype(np.int64)
    order = np.lexsort((uids, vgroups))
    ranks = np.zeros(len(order), np.int64)
    ordered = uids[order]
    ranks[order[1:]] = (ordered[1:] != ordered[:-1]).cumsum()
    return ranks


def order_of(ranks: I64) -> npt.NDArray[np.intp] | None:
    """Returns the order of rows by the ranks of their tables, None if they have it; rows of one table stay in theirs.

    Vnodes store rows so, and would have to sort them otherwise.
    """
    return stable_order(ranks) if any_set(ranks[1:] < ranks[:-1]) else None


def by_vgroup(batch: pa.RecordBatch, vgroups: I64) -> list[tuple[int, pa.RecordBatch]]:
    """Cuts rows that are ordered by vgroup: (vgroup, its rows). `vgroups`: of each row."""
    if not len(vgroups):
        return []
    if vgroups[0] == vgroups[-1]:
        return [(int(vgroups[0]), batch)]
    starts = [0, *((vgroups[1:] != vgroups[:-1]).nonzero()[0] + 1).tolist(), len(vgroups)]
    return [(int(vgroups[start]), batch.slice(start, stop - start)) for start, stop in pairwise(starts)]


def write_changes(
    storage: Storage, pool: Executor, changes: Mapping[int, Callable[[], Sequence[Change]]], *, rows: int,
    wal_level: int,
) -> None:
    """Writes the rows of a statement, by vgroup: few of them so that readers see all at once.

    Of many, vnodes get one change after the other, each of them what goes into one record of a log, and all vnodes at
    the same time.
    """
    if rows < FEW_ROWS:
        storage.whole_writes.write(
            [(vgroup_id, partial(_begin, storage, vgroup_id, of_vnode)) for vgroup_id, of_vnode in changes.items()],
            pool if wal_level == 2 and len(changes) > 1 else None)
    elif len(changes) > 1:
        write_at_once(pool, partial(_write, storage), changes.items())
    else:
        for vgroup_id, of_vnode in changes.items():
            _write(storage, vgroup_id, of_vnode)


def _begin(storage: Storage, vgroup_id: int, changes: Callable[[], Sequence[Change]]) -> BegunWrite | None:
    return storage.begin_changes(vgroup_id, changes())


def _write(storage: Storage, vgroup_id: int, changes: Callable[[], Sequence[Change]]) -> None:
    for change in changes():
        begun = storage.begin_changes(vgroup_id, [change])
        if begun is not None:
            begun.wait()


def write_at_once(pool: Executor, write: Callable[[int, T], object], parts: Iterable[tuple[int, T]]) -> None:
    """Writes parts, each with its vgroup, at the same time. Raises the first error, when all of them have ended."""
    running = [pool.submit(write, vgroup_id, part) for vgroup_id, part in parts]
    errors = [error for future in running if (error := future.exception()) is not None]
    if errors:
        raise errors[0]


def pays_threads(rows: int, wal_level: int) -> bool:
    """Tells whether vnodes shall be written to at the same time: few rows are written before a thread has woken.

    With WAL_LEVEL 2 each vnode waits for its disk, which they can do at the same time.
    """
    return rows >= FEW_ROWS or wal_level == 2
