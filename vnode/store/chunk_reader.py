"""Reads keys and rows out of sorted chunks (memtable runs and row groups of parts) without a query engine."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.arrow_data import one_array
from penstock.vnode.store.key_search import KeySearch
from penstock.vnode.store.memtable import VERSION_COLUMN, TimeRange
from penstock.vnode.store.sorted_keys import (
    I64,
    TS_MAX,
    TS_MIN,
    U64,
    Bools,
    Index,
    ascending,
    expand,
    find_ranges,
    in_key_order,
    kept_versions,
    key_codes,
    key_order,
    times_of,
    tuids_of,
)
from penstock.vnode.store.tombstones import Tombstones
from penstock.wal.record import TUID_COLUMN

_ROWS_PER_SLICE = 2_000  # cutting a chunk takes as long as copying so many rows
_FEW = 8  # values that are compared one by one
_SAMPLES = 32  # per piece
_GOLDEN = 0.6180339887498949


class Chunk(Protocol):
    """Rows sorted by (_tuid, ts); a Run or a RowGroup."""

    @property
    def tuid(self) -> U64: ...
    @property
    def ts(self) -> I64: ...
    @property
    def version(self) -> U64: ...
    @property
    def updates(self) -> TimeRange | None: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def max_version(self) -> int: ...
    def column(self, name: str) -> pa.Array | None: ...
    def order(self, name: str) -> Index: ...
    def keys(self) -> KeySearch: ...


@dataclass(frozen=True, slots=True)
class Found:
    """Where the newest stored version of wanted keys is. `exists[i]` tells it for key i; `chunk` and `row` of
    a key that doesn't exist are meaningless."""

    exists: Bools
    chunk: Index
    row: Index


def find_newest(chunks: Sequence[Chunk], tombstones: Tombstones, tuid: U64, ts: I64,
                key_name: str | None, key_values: pa.Array | None) -> Found:
    """Looks up keys (sorted by tuid, ts); with a composite key `key_values` holds the second part.

    Quickest where newer chunks stand behind older ones.
    """
    count = len(tuid)
    exists = np.zeros(count, np.bool_)
    chunk_of, row_of = np.zeros(count, np.intp), np.zeros(count, np.intp)
    newest = np.zeros(count, np.uint64)
    surpassed = -1  # all keys were found in this version or newer ones
    for number in range(len(chunks) - 1, -1, -1):
        chunk = chunks[number]
        if chunk.max_version <= surpassed:
            continue
        owner, row = _rows_at(chunk, tuid, ts, key_name, key_values)
        if not len(row):
            continue
        version = chunk.version[row]
        # Several versions of a key: they come in ascending order within a chunk, and the last assignment wins.
        better = version >= newest[owner]
        owner, row, version = owner[better], row[better], version[better]
        if not len(row):
            continue
        best = np.zeros(count, np.uint64)
        np.maximum.at(best, owner, version)
        top = version == best[owner]
        owner, row, version = owner[top], row[top], version[top]
        exists[owner] = True
        newest[owner] = version
        chunk_of[owner], row_of[owner] = number, row
        if exists.all():
            surpassed = int(newest.min())
    if tombstones and exists.any():
        exists &= ~tombstones.hidden(tuid, ts, newest)
    return Found(exists, chunk_of, row_of)


def find_existing(chunks: Sequence[Chunk], tombstones: Tombstones, tuid: U64, ts: I64,
                  key_name: str | None, key_values: pa.Array | None) -> Bools:
    """Tells which keys exist, as `find_newest` does. Each of them is looked up only until a row of it was found."""
    missing: Index = np.arange(len(tuid))
    exists = np.zeros(len(tuid), np.bool_)
    # The longest ones have most of the keys. Whether it is the newest version that was found doesn't matter: what hides
    # that hides older ones, too.
    for chunk in sorted(chunks, key=lambda chunk: chunk.num_rows, reverse=True):
        if key_values is None and not tombstones:
            owner = chunk.keys().present(tuid, ts)
        else:
            owner, row = _rows_at(chunk, tuid, ts, key_name, key_values)
            if tombstones and len(owner):
                owner = owner[~tombstones.hidden(tuid[owner], ts[owner], chunk.version[row])]
        if not len(owner):
            continue
        exists[missing[owner]] = True
        others = (~exists[missing]).nonzero()[0]
        if not len(others):
            break
        missing, tuid, ts = missing[others], tuid[others], ts[others]
        key_values = None if key_values is None else key_values.take(pa.array(others))
    return exists


def has_row(chunk: Chunk, tombstones: Tombstones, tuid: int, ts: int, key_name: str | None, key: Any) -> bool:
    """Tells whether a chunk has a row with one key, or one whose time is this where there is no `key_name`, that
    isn't deleted."""
    start, stop = chunk.keys().rows_of(tuid, ts)
    row = stop - 1  # of several versions the newest comes last
    if key_name is not None and start < stop:
        stored = chunk.column(key_name)
        if stored is None:
            return False
        if stop - start <= _FEW:
            while row >= start and stored[row].as_py() != key:
                row -= 1
        else:
            same = pc.equal(stored.slice(start, stop - start), pa.scalar(key, stored.type))
            matching = same.to_numpy(zero_copy_only=False).nonzero()[0]
            row = start + int(matching[-1]) if len(matching) else start - 1
    return row >= start and not (tombstones and tombstones.hide(tuid, ts, int(chunk.version[row])))


def _rows_at(chunk: Chunk, tuid: U64, ts: I64, key_name: str | None, key_values: pa.Array | None
             ) -> tuple[Index, Index]:
    """Returns (number of the key, position) of all rows of a chunk that have one of the keys, in the order of both."""
    owner, row = chunk.keys().rows_at(tuid, ts)
    if not len(row) or key_name is None or key_values is None:
        return owner, row
    stored = chunk.column(key_name)
    if stored is None:
        return owner[:0], row[:0]
    same = pc.equal(stored.take(pa.array(row)), key_values.take(pa.array(owner)))
    matching = same.to_numpy(zero_copy_only=False)
    return owner[matching], row[matching]


def stored_values(chunks: Sequence[Chunk], found: Found, name: str, type_: pa.DataType) -> pa.Array:
    """Returns the stored values of a column for the keys of `found`; NULL for those that don't exist."""
    wanted = np.flatnonzero(found.exists)
    pieces: list[pa.Array] = []
    place = np.zeros(len(found.exists), np.int64)
    done = 0
    for number in np.unique(found.chunk[wanted]).tolist():
        keys = wanted[found.chunk[wanted] == number]
        column = chunks[number].column(name)
        rows = pa.array(found.row[keys])
        pieces.append(pa.nulls(len(keys), type_) if column is None else column.take(rows))
        place[keys] = np.arange(done, done + len(keys))
        done += len(keys)
    if not pieces:
        return pa.nulls(len(found.exists), type_)
    return pa.concat_arrays(pieces).take(pa.array(place, mask=~found.exists))


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """Which rows: of these child tables (sorted, None: all), with first_ts <= ts <= last_ts."""

    tuids: U64 | None = None
    first_ts: int = TS_MIN
    last_ts: int = TS_MAX

    def rows_of(self, chunk: Chunk) -> slice | Index:
        """Returns the positions of the selected rows of a chunk, ascending."""
        if self.tuids is None:
            if self.first_ts == TS_MIN and self.last_ts == TS_MAX:
                return slice(0, chunk.num_rows)
            if chunk.tuid[0] != chunk.tuid[-1]:
                return np.flatnonzero((chunk.ts >= self.first_ts) & (chunk.ts <= self.last_ts))
            low, high = 0, chunk.num_rows
        elif len(self.tuids) == 1:
            low, high = (int(np.searchsorted(chunk.tuid, self.tuids[0], side)) for side in ("left", "right"))
        else:
            begin = int(np.searchsorted(self.tuids, chunk.tuid[0], "left"))
            near = self.tuids[begin : int(np.searchsorted(self.tuids, chunk.tuid[-1], "right"))]
            first, last = (np.full(len(near), ts, np.int64) for ts in (self.first_ts, self.last_ts))
            return expand(*find_ranges(chunk.tuid, chunk.ts, near, first, last))[1]
        times = chunk.ts[low:high]
        start = int(np.searchsorted(times, self.first_ts, "left"))
        stop = int(np.searchsorted(times, self.last_ts, "right"))
        return slice(low + start, low + max(start, stop))


@dataclass(frozen=True, slots=True)
class Between:
    """Which rows: of the child tables with first <= tuid < end (None: of all from or up to there)."""

    first: np.uint64 | None
    end: np.uint64 | None

    def rows_of(self, chunk: Chunk) -> slice:
        """Returns where the selected rows of a chunk are."""
        start = 0 if self.first is None else int(chunk.tuid.searchsorted(self.first))
        stop = chunk.num_rows if self.end is None else int(chunk.tuid.searchsorted(self.end))
        return slice(start, stop)


def cut(chunks: Sequence[Chunk], rows: int) -> list[Between]:
    """Returns ranges of child tables, in order, that together are all and have about `rows` rows each.

    A child table is in one of them, whatever number of rows it has; with many chunks ranges have more rows.
    """
    sizes = np.array([chunk.num_rows for chunk in chunks])
    ends = np.cumsum(sizes)
    total = int(ends[-1])
    count = total // max(rows, len(chunks) * _ROWS_PER_SLICE)
    if count < 2:
        return [Between(None, None)]
    # Samples at multiples of the golden ratio lie evenly in every chunk, and have no period that a chunk may have too.
    places = np.sort((np.arange(count * _SAMPLES) * _GOLDEN % 1 * total).astype(np.int64))
    owners = np.searchsorted(ends, places, "right")
    samples = np.sort([chunks[owner].tuid[place - ends[owner]] for owner, place in
                       zip(owners.tolist(), places.tolist(), strict=True)])
    bounds = [None, *np.unique(samples[_SAMPLES::_SAMPLES]), None]
    return [Between(first, end) for first, end in itertools.pairwise(bounds)]


class ChosenRows(Protocol):
    """Which rows of chunks."""

    def rows_of(self, chunk: Chunk, /) -> slice | Index:
        """Returns where the selected rows of a chunk are, ascending."""
        ...


def gather(chunks: Sequence[Chunk], selection: ChosenRows, fields: Sequence[pa.Field]) -> pa.Table:
    """Returns the selected rows of all chunks, all versions, with `_tuid`, `fields` and `_ver`, not sorted.

    Rows that lie together are not copied.
    """
    wanted = [pa.field(TUID_COLUMN, pa.uint64()), *fields, pa.field(VERSION_COLUMN, pa.uint64())]
    columns: list[list[pa.Array]] = [[] for _ in wanted]
    for chunk in chunks:
        rows = selection.rows_of(chunk)
        if isinstance(rows, slice):
            start, count, index = rows.start, rows.stop - rows.start, None
        else:
            start, count, index = 0, len(rows), pa.array(rows)
        if not count:
            continue
        for pieces, field in zip(columns, wanted, strict=True):
            column = chunk.column(field.name)
            if column is None:
                pieces.append(pa.nulls(count, field.type))
            elif index is not None:
                pieces.append(column.take(index))
            else:
                pieces.append(column.slice(start, count))
    schema = pa.schema(wanted)
    arrays = [pa.chunked_array(pieces, field.type) for pieces, field in zip(columns, wanted, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def resolve(rows: pa.Table, key_name: str | None, tombstones: Tombstones, *, as_of: int, pin: int | None,
            unique: bool) -> pa.Table:
    """Sorts rows by key, takes out what tombstones hide and what is newer than `as_of`, and keeps the newest version
    of each key (with a `pin` also older ones that a reader as of the pin or later needs).

    `rows` has `_tuid`, ts as its second column, `_ver` last. `unique`: no key can occur twice.
    """
    if not rows.num_rows:
        return rows
    tuid, ts = tuids_of(one_array(rows.column(0))), times_of(one_array(rows.column(1)))
    version: U64 = one_array(rows.column(rows.num_columns - 1)).to_numpy()
    order: Index | None = None
    codes: I64 | None = None
    if not (unique and ascending(tuid, ts)):
        codes = key_codes(one_array(rows.column(key_name))) if key_name is not None else None
        if not in_key_order(tuid, ts, codes, version):
            order = key_order(tuid, ts, codes, version)
            tuid, ts, version = tuid[order], ts[order], version[order]
            codes = None if codes is None else codes[order]
    keep = version <= np.uint64(as_of)
    if tombstones:
        keep &= ~tombstones.hidden(tuid, ts, version)
    if not keep.all():
        kept = np.flatnonzero(keep)
        order = kept if order is None else order[kept]
        tuid, ts, version = tuid[kept], ts[kept], version[kept]
        codes = None if codes is None else codes[kept]
    if not unique:
        keep = kept_versions(tuid, ts, codes, version, pin)
        if not keep.all():
            order = np.flatnonzero(keep) if order is None else order[keep]
    return rows if order is None else rows.take(pa.array(order))
