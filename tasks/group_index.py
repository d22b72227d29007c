"""The groups an agg task has seen: dense numbers for their ids, and their keys by column."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.planner.stream import Field
from penstock.tasks.accumulators import Slots
from penstock.tasks.compute import GROUP, fields_schema

GROUP_PREFIX = b"g"
_GROUP_KEY = struct.Struct(">Q")


class GroupIndex:
    """Numbers groups in the order in which they come: 0, 1, ... Numbers survive restarts."""

    def __init__(self, keys: Sequence[Field]) -> None:
        self.key_fields = fields_schema(keys)
        self._numbers: dict[int, int] = {}
        self._ids: npt.NDArray[np.uint64] = np.zeros(64, np.uint64)
        self._keys: list[tuple[Any, ...]] = []
        self._columns: list[pa.Array] | None = None
        self._unsaved: list[int] = []

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, gid: int) -> bool:
        return gid in self._numbers

    def number(self, gid: int) -> int:
        """Returns the number of a known group."""
        return self._numbers[gid]

    def numbers(self, gids: Sequence[int]) -> Slots:
        """Returns the numbers of known groups."""
        return np.array([self._numbers[gid] for gid in gids], np.int64)

    def id(self, number: int) -> int:
        """Returns the id of a group."""
        return int(self._ids[number])

    def ids(self, numbers: Slots) -> npt.NDArray[np.uint64]:
        """Returns the ids of groups."""
        return self._ids[numbers]

    def learn(self, block: pa.RecordBatch) -> Slots:
        """Returns the numbers of the groups of a block that begins with `_gid` and the keys; new ones get theirs."""
        gids = block.column(GROUP.name).to_numpy()
        if not len(gids):
            return np.zeros(0, np.int64)
        # Blocks come sorted by group mostly: one look per run.
        heads = np.flatnonzero(np.concatenate([[True], gids[1:] != gids[:-1]]))
        known = self._numbers
        found = [known.get(gid, -1) for gid in gids[heads].tolist()]
        if -1 in found:
            place = block.schema.get_field_index(GROUP.name) + 1
            keys = [block.column(place + n) for n in range(len(self.key_fields))]
            for run, number in enumerate(found):
                if number == -1:
                    row = int(heads[run])
                    gid = int(gids[row])
                    known_now = known.get(gid)
                    found[run] = self._add(gid, tuple(key[row].as_py() for key in keys)) if (
                        known_now is None) else known_now
        lengths = np.diff(np.append(heads, len(gids)))
        return np.repeat(np.array(found, np.int64), lengths)

    def key_columns(self, numbers: Slots) -> list[pa.Array]:
        """Returns the keys of groups, column by column."""
        if self._columns is None:
            self._columns = [pa.array([keys[n] for keys in self._keys], field.type)
                             for n, field in enumerate(self.key_fields)]
        if len(numbers) == len(self._keys) and (numbers == np.arange(len(numbers))).all():
            return self._columns
        chosen = pa.array(numbers)
        return [column.take(chosen) for column in self._columns]

    def unsaved(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields what a store must hold besides what it was given before."""
        for number in self._unsaved:
            value = pickle.dumps((number, self._keys[number]), protocol=5)
            yield GROUP_PREFIX + _GROUP_KEY.pack(int(self._ids[number])), value
        self._unsaved = []

    def restore(self, stored: Sequence[tuple[bytes, bytes]]) -> None:
        """Takes over all groups from a store."""
        found = [(*pickle.loads(value), _GROUP_KEY.unpack(key[1:])[0]) for key, value in stored]
        for _, keys, gid in sorted(found, key=lambda group: group[0]):
            self._add(gid, keys)
        self._unsaved = []

    def _add(self, gid: int, keys: tuple[Any, ...]) -> int:
        number = len(self._keys)
        if number == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros(number, np.uint64)])
        self._ids[number] = gid
        self._numbers[gid] = number
        self._keys.append(keys)
        self._columns = None
        self._unsaved.append(number)
        return number
