"""Finds the segments of one agg task, in memory and in its store.

Of each (input, group) the newest segments are in memory, from a floor on (no floor: all), and maybe others; what is in
memory counts more than what is stored.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from penstock.common.errors import InternalError
from penstock.tasks.compute.accumulators import Slots
from penstock.tasks.compute.group_index import GROUP_PREFIX, GroupIndex
from penstock.tasks.state.state_store import StateStore
from penstock.tasks.window.segment_slots import SegmentSlots
from penstock.tasks.window.slot_codec import SlotCodec

_PREFIX = b"w"
_KEY = struct.Struct(">HQQ")
_SIGN = 1 << 63
TIME_MIN, TIME_MAX = -(2**63), 2**63 - 1
_WHAT = "a window of a task"


class SegmentIndex:
    """Segments by (input, group, start). `inputs`: how many there are, whose segments may make up one window."""

    def __init__(self, slots: SegmentSlots, groups: GroupIndex, inputs: int, store: StateStore) -> None:
        self._slots = slots
        self._codec = SlotCodec(slots, _WHAT, grouped=False)
        self._groups = groups
        self._store = store
        self._by_key: list[dict[tuple[int, int], int]] = [{} for _ in range(inputs)]
        self._order: list[dict[int, list[int]]] = [{} for _ in range(inputs)]
        self._floors: list[dict[int, int]] = [{} for _ in range(inputs)]
        #: in memory, but not found by key or in order yet: (groups, starts, slots), of the first input
        self._unindexed: list[tuple[Slots, Slots, Slots]] = []
        self._newest_stored: int | None = None
        #: by group the slot of its newest segment of the first input, -1 where it isn't in memory; see `find_tails`
        self.tails: Slots = np.full(64, -1)

    @property
    def inputs(self) -> range:
        return range(len(self._by_key))

    # -- in memory -----------------------------------------------------------------------------------------------

    def slot(self, input: int, group: int, start: int) -> int | None:
        return self._by_key[input].get((group, start))

    def slots_at(self, group: int, start: int) -> list[int]:
        """Returns the slots of all inputs' segments in memory that start there."""
        found = (lookup.get((group, start)) for lookup in self._by_key)
        return [slot for slot in found if slot is not None]

    def starting_in(self, input: int, group: int, first: int, last: int) -> list[int]:
        """Returns the slots of segments in memory that start in [first, last], in order."""
        starts = self._order[input].get(group, [])
        slots = self._by_key[input]
        return [slots[group, start] for start in starts[bisect_left(starts, first) : bisect_right(starts, last)]]

    def find_tails(self, groups: Iterable[int] | None) -> None:
        """Looks up `tails` of some groups, or of all (None)."""
        self.make_room()
        for group in range(len(self._groups)) if groups is None else groups:
            starts, floor = self._order[0].get(group), self._floors[0].get(group)
            in_memory = starts and (floor is None or starts[-1] >= floor)
            self.tails[group] = self._by_key[0][group, starts[-1]] if starts and in_memory else -1

    def make_room(self) -> None:
        """Sees to it that `tails` has a place for each group."""
        if len(self._groups) > len(self.tails):
            more = max(len(self._groups), len(self.tails))
            self.tails = np.concatenate([self.tails, np.full(more, -1)])

    def are_stored(self, groups: Slots) -> npt.NDArray[np.bool_] | None:
        """Returns of which groups segments of the first input are in the store only; None: of none."""
        floors = self._floors[0]
        return np.array([group in floors for group in groups.tolist()], bool) if floors else None

    def append(self, groups: Slots, starts: Slots) -> Slots:
        """Returns slots for new segments of the first input, which are found once `index_all` was called."""
        slots = self._slots.take_for(groups, starts, 0)
        self._unindexed.append((groups, starts, slots))
        return slots

    def index_all(self) -> None:
        """Enters what was appended, as late rows and spilling need it."""
        for groups, starts, slots in self._unindexed:
            keys = list(zip(groups.tolist(), starts.tolist(), strict=True))
            self._by_key[0].update(zip(keys, slots.tolist(), strict=True))
            for group, start in keys:
                insort(self._order[0].setdefault(group, []), start)
        self._unindexed = []

    def add(self, group: int, start: int, input: int) -> int:
        """Returns the slot of a new segment."""
        slot = int(self._slots.take_for(np.array([group]), np.array([start]), input)[0])
        self._list(slot)
        return slot

    def remove(self, slot: int) -> None:
        """Forgets a segment, in the store as well."""
        self._store.put_many([(self._slot_key(slot), None)])
        self._leave(slot)

    def move(self, slot: int, start: int) -> None:
        """Lets a segment start earlier."""
        self._store.put_many([(self._slot_key(slot), None)])
        self._unlist(slot)
        self._slots.start_of[slot] = start
        self._list(slot)
        self._slots.dirty[slot] = True

    def _list(self, slot: int) -> None:
        input, group, start = self._key_of(slot)
        self._by_key[input][group, start] = slot
        insort(self._order[input].setdefault(group, []), start)

    def _unlist(self, slot: int) -> None:
        input, group, start = self._key_of(slot)
        del self._by_key[input][group, start]
        starts = self._order[input][group]
        del starts[bisect_left(starts, start)]

    def _leave(self, slot: int) -> None:
        group = int(self._slots.group_of[slot])
        if group < len(self.tails) and self.tails[group] == slot:
            self.tails[group] = -1
        self._unlist(slot)
        self._slots.release(np.array([slot]))

    def _key_of(self, slot: int) -> tuple[int, int, int]:
        slots = self._slots
        return int(slots.input_of[slot]), int(slots.group_of[slot]), int(slots.start_of[slot])

    # -- memory and store ----------------------------------------------------------------------------------------

    def find(self, groups: Slots, starts: npt.NDArray[np.int64], input: int) -> Slots:
        """Returns the slot of each (group, start) of an input, making or loading those that aren't in memory."""
        lookup = self._by_key[input]
        keys = list(zip(groups.tolist(), starts.tolist(), strict=True))
        slots = [lookup.get(key, -1) for key in keys]
        missing = [n for n, slot in enumerate(slots) if slot == -1]
        if missing:
            stored = [n for n in missing if self._newest_stored is not None and keys[n][1] <= self._newest_stored]
            values = self._store.get_many(self._key(input, keys[n][0], keys[n][1]) for n in stored)
            known = {n: value for n, value in zip(stored, values, strict=True) if value is not None}
            for n in missing:
                slot = slots[n] = self.add(*keys[n], input)
                if n in known:
                    self._decode(slot, known[n])
        return np.array(slots, np.int64)

    def load_between(self, input: int, group: int, first: int, last: int) -> None:
        """Brings what is stored of the segments that start in a stretch into memory."""
        floor = self._floors[input].get(group)
        if floor is None or first >= floor:
            return
        end = self._key(input, group, min(last, floor - 1)) + b"\0"
        for key, value in self._store.between(self._key(input, group, first), end):
            self.adopted(key, value)
        if last >= floor - 1:
            self._floors[input][group] = first

    def previous(self, input: int, group: int, before: int) -> int | None:
        """Returns the slot of the newest segment that starts before a time, loading it if need be."""
        starts = self._order[input].get(group, [])
        place = bisect_left(starts, before)
        floor = self._floors[input].get(group)
        if floor is None or (place and starts[place - 1] >= floor):
            return self._by_key[input][group, starts[place - 1]] if place else None
        prefix = _PREFIX + struct.pack(">HQ", input, self._groups.id(group))
        stored = self._store.last_before(self._key(input, group, min(before, floor)), prefix)
        if stored is None:
            if before >= floor:
                del self._floors[input][group]
            return self._by_key[input][group, starts[place - 1]] if place else None
        start = _unpack(stored[0])[2]
        if before >= floor:
            self._floors[input][group] = start
        if place and starts[place - 1] >= start:
            return self._by_key[input][group, starts[place - 1]]
        return self.adopted(*stored)

    def adopted(self, key: bytes, value: bytes) -> int:
        """Returns the slot of a stored segment; if it is in memory already that counts."""
        input, gid, start = _unpack(key)
        group = self._groups.number(gid)
        slot = self._by_key[input].get((group, start))
        if slot is None:
            slot = self.add(group, start, input)
            self._decode(slot, value)
        return slot

    def evict(self, slot: int) -> None:
        """Leaves a segment that is written to the store."""
        input, group, start = self._key_of(slot)
        floors = self._floors[input]
        floors[group] = max(floors.get(group, TIME_MIN), start + 1)
        self._leave(slot)

    def stored(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields the segments in the store, by input, group id and start."""
        for key, value in self._store.items(_PREFIX):
            if not key.startswith(_PREFIX):
                return
            yield key, value

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def save(self) -> int | None:
        """Hands everything that changed since the last call to the store; returns what `restore` needs besides."""
        slots = self._slots
        self.write(np.flatnonzero(slots.dirty & slots.used_slots))
        self._store.put_many(self._groups.unsaved())
        return self._newest_stored

    def restore(self, newest_stored: int | None) -> None:
        """Loads the groups."""
        self._newest_stored = newest_stored
        self._groups.restore([(key, value) for key, value in self._store.items(GROUP_PREFIX)
                              if key.startswith(GROUP_PREFIX)])

    def write(self, slots: Slots) -> None:
        """Hands those of some segments that changed to the store."""
        slots = slots[self._slots.dirty[slots]]
        if not len(slots):
            return
        count = len(slots)
        values = self._codec.encoded(slots, range(count), range(1, count + 1))
        self._store.put_many(zip(map(self._slot_key, slots.tolist()), values, strict=True))
        self._slots.dirty[slots] = False
        newest = int(self._slots.start_of[slots].max())
        self._newest_stored = newest if self._newest_stored is None else max(newest, self._newest_stored)

    def validate(self) -> None:
        """Raises InternalError if the index and the slots disagree."""
        indexed = sum(len(slots) for slots in self._by_key)
        if indexed != self._slots.used or indexed != int(self._slots.used_slots.sum()):
            raise InternalError(f"{indexed} slots are indexed, {self._slots.used} are used")
        for lookup, lines in zip(self._by_key, self._order, strict=True):
            for group, starts in lines.items():
                if starts != sorted(start for known, start in lookup if known == group):
                    raise InternalError(f"the segments of group {group} are not in order")

    def _decode(self, slot: int, value: bytes) -> None:
        self._slots.announced[slot] = True  # before it was stored
        self._codec.load(np.array([slot]), self._codec.decoded(value))

    def _slot_key(self, slot: int) -> bytes:
        return self._key(*self._key_of(slot))

    def _key(self, input: int, group: int, start: int) -> bytes:
        return _PREFIX + _KEY.pack(input, self._groups.id(group), start + _SIGN)


def segments_in(store: StateStore) -> Iterator[tuple[bytes, int, bytes]]:
    """Yields the stored segments of one task: their keys, which are the same in any task, group ids, and values."""
    for key, value in store.items(_PREFIX):
        if not key.startswith(_PREFIX):
            return
        yield key, _unpack(key)[1], value


def _unpack(key: bytes) -> tuple[int, int, int]:
    """Returns input, group id and start."""
    input, gid, start = _KEY.unpack(key[1:])
    return input, gid, start - _SIGN
