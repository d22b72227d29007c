"""The groups an agg task has seen: dense numbers for their ids, and their keys by column."""

from __future__ import annotations

import pickle
import struct
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.planner.stream import Field
from penstock.tasks.accumulators import Slots
from penstock.tasks.compute import GROUP, fields_schema
from penstock.tasks.numbering import Ids, Numbering

GROUP_PREFIX = b"g"
_GROUP_KEY = struct.Struct(">Q")
_BYTES_PER_GROUP = 96
"""Its id, its number, and the tuple of its keys, about."""


class GroupIndex:
    """Numbers groups in the order in which they come: 0, 1, ... Numbers survive restarts."""

    def __init__(self, keys: Sequence[Field]) -> None:
        self.key_fields = fields_schema(keys)
        self._numbering = Numbering()
        self._keys: list[tuple[Any, ...]] = []
        self._columns: list[pa.Array] | None = None
        self._unsaved = 0  # groups from this number on
        self._key_bytes = 0

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def memory_bytes(self) -> int:
        """About what the groups take, which are all in memory for as long as the task runs."""
        return len(self._keys) * (_BYTES_PER_GROUP + 8 * len(self.key_fields)) + self._key_bytes

    def number(self, gid: int) -> int:
        """Returns the number of a known group."""
        return self._numbering.number(gid)

    def numbers(self, gids: Sequence[int] | Ids) -> Slots:
        """Returns the numbers of groups, -1 for unknown ones."""
        return self._numbering.find(np.asarray(gids, np.uint64))

    def id(self, number: int) -> int:
        """Returns the id of a group."""
        return int(self._numbering.ids[number])

    def ids(self, numbers: Slots) -> Ids:
        """Returns the ids of groups."""
        return self._numbering.ids[numbers]

    def learn(self, block: pa.RecordBatch) -> Slots:
        """Returns the numbers of the groups of a block that begins with `_gid` and the keys; new ones get theirs."""
        gids: Ids = block.column(GROUP.name).to_numpy()
        numbers, rows = self._numbering.find_or_first(gids)
        if not len(rows):
            return numbers
        place, chosen = block.schema.get_field_index(GROUP.name) + 1, pa.array(rows)
        keys = [block.column(place + n).take(chosen).to_pylist() for n in range(len(self.key_fields))]
        self._add(gids[rows], list(zip(*keys, strict=True)) if keys else [()] * len(rows))
        return self._numbering.find(gids)

    def adopt(self, others: GroupIndex, numbers: Slots) -> None:
        """Takes over those groups of another index that aren't known here."""
        gids = others.ids(numbers)
        unknown = self._numbering.find(gids) < 0
        self._add(gids[unknown], [others.key(number) for number in numbers[unknown].tolist()])

    def key(self, number: int) -> tuple[Any, ...]:
        """Returns the keys of a group."""
        return self._keys[number]

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
        first, self._unsaved = self._unsaved, len(self._keys)
        for number in range(first, self._unsaved):
            value = pickle.dumps((number, self._keys[number]), protocol=5)
            yield GROUP_PREFIX + _GROUP_KEY.pack(self.id(number)), value

    def restore(self, stored: Sequence[tuple[bytes, bytes]]) -> None:
        """Takes over all groups from a store."""
        found = [(*pickle.loads(value), _GROUP_KEY.unpack(key[1:])[0]) for key, value in stored]
        found.sort(key=lambda group: group[0])
        self._add(np.array([gid for _, _, gid in found], np.uint64), [keys for _, keys, _ in found])
        self._unsaved = len(self._keys)

    def _add(self, gids: Ids, keys: Sequence[tuple[Any, ...]]) -> None:
        self._numbering.add(gids)
        self._keys += keys
        self._key_bytes += sum(map(sys.getsizeof, chain.from_iterable(keys)))
        self._columns = None
