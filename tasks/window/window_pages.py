"""What the store has of windows, by page: what one input contributed to neighbouring groups of a window.

A page has parts, which add up. A window that goes out of memory leaves its pages behind; what is added to it later
makes a further part, so that nothing has to be read for it. Parts are read once somebody asks what the window holds.
Pages with many parts are written again as one. What is in memory, the table of windows knows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import pairwise, repeat

import numpy as np
import numpy.typing as npt

from penstock.tasks.compiled.compiled_loops import row_loops
from penstock.tasks.compute.accumulators import Slots
from penstock.tasks.compute.group_index import GroupIndex
from penstock.tasks.state.state_store import StateStore
from penstock.tasks.state.stored_values import damaged
from penstock.tasks.window.slot_codec import SlotCodec, StoredSlots
from penstock.tasks.window.slot_parts import SlotParts
from penstock.vnode.store.sorted_keys import run_starts

PAGE_GROUPS = 4_096
WHAT = "windows of a task"
_PREFIX = b"w"
_KEY = struct.Struct(">cQHI")
_KEYS = np.dtype([("prefix", "S1"), ("start", ">u8"), ("input", ">u2"), ("chunk", ">u4")])
_PART = struct.Struct(">H")
_SIGN = 1 << 63
_BEHIND_ALL = b"\xff" * 9  # behind the input, the chunk and the part of any key
_PARTS_MAX = 8
_WRITTEN_CELLS = 1 << 20
_PAGES_PER_PAIR = 4  # up to so many, counting them all is faster than sorting

Times = npt.NDArray[np.int64]
Page = tuple[int, int]
"""The input, and the number of the chunk of groups."""
Members = Callable[[int, Times], tuple[Slots, Slots, Slots]]
"""Of an input and windows: the window's place, the group, and the slot of all that is in memory, in this order."""


class WindowPages:
    """Pages of one agg task. Of windows that are in memory it knows what the store has, and what has changed since.

    `newest`: no stored window starts later. `cold`: pages of windows in memory whose stored parts aren't in memory.
    """

    def __init__(self, store: StateStore, groups: GroupIndex, codec: SlotCodec, parts: SlotParts) -> None:
        self._store = store
        self._groups = groups
        self._codec = codec
        self._joined = parts
        self._dirty: set[tuple[int, int, int]] = set()
        #: how many parts the store has, by windows in memory
        self._parts: dict[int, dict[Page, int]] = {}
        self.cold: dict[int, set[Page]] = {}
        self.newest: int | None = None

    # -- what changes ------------------------------------------------------------------------------------------

    def note(self, starts: Times, which: Slots, groups: Slots, input: int) -> None:
        """Groups of windows have changed: `groups[i]` of the window that starts at `starts[which[i]]`."""
        if len(self._groups) <= PAGE_GROUPS:
            self._dirty.update(zip(starts.tolist(), repeat(input), repeat(0)))
            return
        per_window = len(self._groups) // PAGE_GROUPS + 1
        pages = len(starts) * per_window
        if pages <= _PAGES_PER_PAIR * len(groups):
            marks = np.zeros(pages, bool)
            row_loops().mark(*map(np.ascontiguousarray, (which, groups)), per_window, PAGE_GROUPS, marks)
            changed = marks.nonzero()[0]
        else:
            changed = np.unique(which * per_window + groups // PAGE_GROUPS)
        places = changed // per_window
        chunks = changed - places * per_window
        self._dirty.update(zip(starts[places].tolist(), repeat(input), chunks.tolist()))

    def note_groups(self, start: int, input: int, groups: Slots) -> None:
        """Groups of a window have changed, or are gone."""
        self._dirty.update((start, input, chunk) for chunk in chunks_of(groups))

    # -- windows that come and go ------------------------------------------------------------------------------

    def enter(self, start: int) -> None:
        """A window that isn't in memory is to be: finds out what is stored of it, all of which is cold."""
        if self.newest is None or start > self.newest:
            return
        parts: dict[Page, int] = {}
        for key in self._keys(start, start):
            _, _, input, chunk = _KEY.unpack_from(key)
            parts[input, chunk] = _part_of(key) + 1
        if not parts:
            return
        self._parts[start] = parts
        # What is dirty without being in memory has ceased to exist since it was stored.
        cold = {page for page in parts if (start, *page) not in self._dirty}
        if cold:
            self.cold[start] = cold

    def leave(self, start: int) -> None:
        """A window isn't in memory any more; what is dirty of it has been written, or is gone."""
        self._parts.pop(start, None)
        self.cold.pop(start, None)

    def read(self, start: int, page: Page) -> list[StoredSlots]:
        """Returns the parts of a cold page, in the order in which they came; it isn't cold any more."""
        cold, parts = self.cold[start], self._parts[start]
        cold.remove(page)
        if not cold:
            del self.cold[start]
        stored = self._stored_parts(start, page)
        # What was added in memory since it is cold may have been written, too.
        found = [self._checked(value) for key, value in stored if _part_of(key) < parts[page]]
        parts[page] = _part_of(stored[-1][0]) + 1 if stored else 0
        return found

    # -- writing -----------------------------------------------------------------------------------------------

    def write(self, members: Members) -> None:
        """Hands all that has changed to the store; pages without groups cease to exist."""
        self._write(self._dirty.copy(), members)

    def write_windows(self, starts: Collection[int], members: Members) -> None:
        """Hands what has changed in some windows to the store, and makes many parts of a page one."""
        leaving = frozenset(starts)
        self._write([page for page in self._dirty if page[0] in leaving], members)
        for start in starts:
            parts = self._parts.get(start, {})
            for page in self.cold.get(start, ()):
                if parts[page] >= _PARTS_MAX:
                    self._unite(start, page)

    def forget(self, until: int, goes: Callable[[int], bool]) -> None:
        """Windows cease to exist: those that start before `until` and for which `goes` is true."""
        leaving = {start for start in {start for start, _, _ in self._dirty} if goes(start)}
        if leaving:
            self._dirty = {page for page in self._dirty if page[0] not in leaving}
        self._parts = {start: parts for start, parts in self._parts.items() if not goes(start)}
        self.cold = {start: pages for start, pages in self.cold.items() if not goes(start)}
        gone = [key for key in self._keys(-_SIGN, until) if goes(_start_of(key))]
        self._store.put_many((key, None) for key in gone)

    def begin_anew(self, start: int) -> None:
        """Nothing that is stored of a window in memory is what it will be: its groups get other numbers."""
        self._dirty = {page for page in self._dirty if page[0] != start}
        self.leave(start)
        self._store.put_many([(key, None) for key in self._keys(start, start)])

    def _unite(self, start: int, page: Page) -> None:
        stored = self._stored_parts(start, page)
        (first, _), *rest = stored
        value = self._joined.packed([self._checked(value) for _, value in stored])
        self._store.put_many([(first, value), *((key, None) for key, _ in rest)])

    def _write(self, pages: Collection[tuple[int, int, int]], members: Members) -> None:
        starts, inputs, chunks = np.array([*pages], np.int64).reshape(len(pages), 3).T
        order = np.lexsort((chunks, starts, inputs))
        self._dirty.difference_update(pages)
        at_once = max(1, _WRITTEN_CELLS // max(len(self._groups), 1))
        for input in np.unique(inputs).tolist():
            mine = order[inputs[order] == input]
            windows = run_starts(starts[mine])[::at_once].tolist()
            for first, end in pairwise([*windows, len(mine)]):
                self._write_some(input, starts[mine[first:end]], chunks[mine[first:end]], members)

    def _write_some(self, input: int, starts: Times, chunks: Slots, members: Members) -> None:
        """Hands pages of one input to the store; all values are gathered at once.

        `starts`, ascending, and `chunks`, ascending within a window: which they are.
        """
        windows = run_starts(starts)
        per_window = len(self._groups) // PAGE_GROUPS + 1
        places, groups, slots = members(input, starts[windows])
        numbers = places * per_window + groups // PAGE_GROUPS
        wanted = np.repeat(np.arange(len(windows)), np.diff(windows, append=len(starts))) * per_window + chunks
        if 2 * len(wanted) < per_window * len(windows):
            chosen = np.isin(numbers, wanted)
            numbers, groups, slots = numbers[chosen], groups[chosen], slots[chosen]
        firsts, ends = np.searchsorted(numbers, wanted), np.searchsorted(numbers, wanted, "right")
        values = self._codec.encoded(slots, firsts.tolist(), ends.tolist(), groups)
        keys = _keys_of(starts, input, chunks)
        items = zip(keys, values, strict=True)
        self._store.put_many(self._in_parts(starts, input, chunks, items) if self._parts else items)
        held = np.flatnonzero(ends > firsts)
        if len(held):
            newest = int(starts[held[-1]])
            self.newest = newest if self.newest is None else max(newest, self.newest)

    def _in_parts(
        self, starts: Times, input: int, chunks: Slots, items: Iterable[tuple[bytes, bytes | None]]
    ) -> Iterator[tuple[bytes, bytes | None]]:
        """Yields what the store is to hold: of a cold page one part more, of others nothing but what is in memory."""
        for start, chunk, (key, value) in zip(starts.tolist(), chunks.tolist(), items, strict=True):
            parts, page = self._parts.get(start, {}), (input, chunk)
            count = parts.get(page, 0)
            if page in self.cold.get(start, ()):
                yield key + _PART.pack(count), value
                continue
            yield key, value
            for number in range(1, count):
                yield key + _PART.pack(number), None
            if count:
                parts[page] = 1

    # -- what is stored ----------------------------------------------------------------------------------------

    def starts(self, first: int, last: int) -> list[int]:
        """Returns the starts of the stored windows that start in [first, last], ascending."""
        return sorted({_start_of(key) for key in self._keys(first, last)})

    def all_starts(self) -> Iterator[int]:
        """Yields the starts of all windows, ascending; everything must have been written."""
        self._store.flush()
        key = _PREFIX
        while (found := self._store.neighbour(key, _PREFIX, forward=True)) is not None:
            start = _start_of(found)
            yield start
            key = _KEY.pack(_PREFIX, start + _SIGN, 0, 0)[:-6] + _BEHIND_ALL

    def _keys(self, first: int, last: int) -> list[bytes]:
        """Returns the keys of windows that start in [first, last]."""
        if self.newest is None or first > self.newest:
            return []
        return self._store.keys(_bound(first), _bound(last + 1))

    def _stored_parts(self, start: int, page: Page) -> list[tuple[bytes, bytes]]:
        key = _KEY.pack(_PREFIX, start + _SIGN, *page)
        return self._store.between(key, key + _BEHIND_ALL)

    def _checked(self, value: bytes) -> StoredSlots:
        stored = self._codec.decoded(value)
        groups = stored.groups
        # They are written ascending, each once.
        if len(groups) and not (groups[0] >= 0 and (np.diff(groups) > 0).all() and groups[-1] < len(self._groups)):
            raise damaged(WHAT, "it has groups that the task doesn't know")
        return stored


def chunks_of(groups: Slots) -> list[int]:
    """Returns the numbers of the chunks that groups are in."""
    found: list[int] = np.unique(groups // PAGE_GROUPS).tolist()
    return found


def groups_of(chunk: int, count: int) -> Slots:
    """Returns the numbers of the groups of a chunk, of `count` groups that there are."""
    return np.arange(chunk * PAGE_GROUPS, min((chunk + 1) * PAGE_GROUPS, count))


def _bound(start: int) -> bytes:
    """Returns what the keys of all windows that start at or after a time are not less than."""
    return _PREFIX + struct.pack(">Q", min(max(start + _SIGN, 0), 2**64 - 1))


def _keys_of(starts: Times, input: int, chunks: Slots) -> list[bytes]:
    """Returns the store's keys of the first parts of pages of one input."""
    keys = np.empty(len(starts), _KEYS)
    keys["prefix"], keys["input"], keys["chunk"] = _PREFIX, input, chunks
    keys["start"] = starts.view(np.uint64) + np.uint64(_SIGN)
    content, size = keys.tobytes(), _KEYS.itemsize
    return [content[place : place + size] for place in range(0, len(content), size)]


def _start_of(key: bytes) -> int:
    return int(_KEY.unpack_from(key)[1]) - _SIGN


def _part_of(key: bytes) -> int:
    return int(_PART.unpack_from(key, _KEY.size)[0]) if len(key) > _KEY.size else 0
