"""The groups an agg task has seen: dense numbers for their ids, and their keys by column."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from penstock.common.masks import all_set
from penstock.planner.task_plans.stream_plan import Field
from penstock.tasks.compute.accumulators import Slots
from penstock.tasks.compute.id_table import Ids, IdTable
from penstock.tasks.protocol.block_schema import GROUP, fields_schema
from penstock.tasks.state.stored_values import damaged, pack_batch, unpack_batch

GROUP_PREFIX = b"g"
_BATCH_KEY = struct.Struct(">QB")
_GROUPS_PER_BATCH = 4_096
_WHAT = "the groups of a task"


class GroupIndex:
    """Numbers groups in the order in which they come: 0, 1, ... Numbers survive restarts."""

    def __init__(self, keys: Sequence[Field]) -> None:
        self.key_fields = fields_schema(keys)
        self._numbering = IdTable()
        self._columns = [pa.array([], field.type) for field in self.key_fields]
        self._fresh: list[Sequence[pa.Array]] = []  # what is to be put at the end of the columns
        self._unsaved = 0  # groups from this number on
        self._outdated: list[bytes] = []  # keys of the store whose values are to be written anew
        self._key_bytes = 0

    def __len__(self) -> int:
        return len(self._numbering)

    @property
    def memory_bytes(self) -> int:
        """What the groups take, which are all in memory for as long as the task runs."""
        return self._numbering.memory_bytes + self._key_bytes

    def number(self, gid: int) -> int:
        """Returns the number of a known group."""
        return int(self.numbers([gid])[0])

    def numbers(self, gids: Sequence[int] | Ids) -> Slots:
        """Returns the numbers of groups, -1 for unknown ones."""
        return self._numbering.find(np.asarray(gids, np.uint64))

    def id(self, number: int) -> int:
        """Returns the id of a group."""
        return int(self._numbering.ids[number])

    def ids(self, numbers: Slots) -> Ids:
        """Returns the ids of groups."""
        return self._numbering.ids[numbers]

    def intern(self, block: pa.RecordBatch) -> Slots:
        """Returns the numbers of the groups of a block that begins with `_gid` and the keys; new ones get theirs."""
        place = block.schema.get_field_index(GROUP.name) + 1

        def keys_of(rows: Slots) -> list[pa.Array]:
            chosen = pa.array(rows)
            return [block.column(place + n).take(chosen) for n in range(len(self.key_fields))]

        return self.intern_ids(block.column(GROUP.name).to_numpy(), keys_of)

    def intern_ids(self, gids: Ids, keys_of: Callable[[Slots], Sequence[pa.Array]]) -> Slots:
        """Returns the numbers of groups; new ones get theirs. `keys_of` returns the keys of some, by their places."""
        numbers, rows = self._numbering.intern(gids)
        if len(rows):
            self._take_keys(keys_of(rows))
        return numbers

    def adopt(self, others: GroupIndex, numbers: Slots) -> None:
        """Takes over those groups of another index that aren't known here."""
        gids = others.ids(numbers)
        unknown = self._numbering.find(gids) < 0
        self._add(gids[unknown], others.key_columns(numbers[unknown]))

    def keep(self, numbers: Slots, stored: Sequence[bytes]) -> None:
        """Forgets all groups but some, which get the numbers 0, 1, ...; `stored`: all keys that a store has of groups.
        """
        ids, keys = self.ids(numbers), self.key_columns(numbers)
        self._numbering = IdTable()
        self._columns = [column.slice(0, 0) for column in self._columns]
        self._key_bytes = self._unsaved = 0
        self._outdated = list(stored)
        self._add(ids, keys)

    def key_columns(self, numbers: Slots) -> list[pa.Array]:
        """Returns the keys of groups, column by column."""
        columns = self._all_columns()
        if len(numbers) == len(self) and all_set(numbers == np.arange(len(numbers))):
            return columns
        chosen = pa.array(numbers)
        return [column.take(chosen) for column in columns]

    def unsaved(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Yields what a store must hold besides what it was given before; None: no more."""
        first, self._unsaved = self._unsaved, len(self)
        for key in self._outdated:
            yield key, None
        self._outdated = []
        columns = self._all_columns()
        for begin in range(first, self._unsaved, _GROUPS_PER_BATCH):
            count = min(_GROUPS_PER_BATCH, self._unsaved - begin)
            arrays = [pa.array(self._numbering.ids[begin:begin + count]),
                      *(column.slice(begin, count) for column in columns)]
            batch = pa.RecordBatch.from_arrays(arrays, schema=self._stored_schema)
            yield GROUP_PREFIX + _BATCH_KEY.pack(begin, 0), pack_batch(batch)

    def restore(self, stored: Sequence[tuple[bytes, bytes]]) -> None:
        """Takes over all groups from a store. Raises CorruptionError."""
        for key, value in stored:  # in the order of their numbers
            batch = unpack_batch(value, self._stored_schema, _WHAT)
            first, _ = _BATCH_KEY.unpack(key[1:])
            if first != len(self):
                raise damaged(_WHAT, f"number {len(self)} is missing")
            self._add(batch.column(0).to_numpy(), batch.columns[1:])
        self._unsaved = len(self)

    @property
    def _stored_schema(self) -> pa.Schema:
        return pa.schema([GROUP, *self.key_fields])

    def _add(self, gids: Ids, keys: Sequence[pa.Array]) -> None:
        self._numbering.add(gids)
        self._take_keys(keys)

    def _take_keys(self, keys: Sequence[pa.Array]) -> None:
        self._fresh.append(keys)
        self._key_bytes += sum(column.nbytes for column in keys)

    def _all_columns(self) -> list[pa.Array]:
        if self._fresh:
            self._columns = [pa.concat_arrays([column, *fresh])
                             for column, *fresh in zip(self._columns, *self._fresh, strict=True)]
            self._fresh = []
        return self._columns
