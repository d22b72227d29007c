"""When groups that an agg task keeps changed last, for STATE_TTL: event times, by the groups' numbers."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.planner.task_plans.stream_plan import Policies
from penstock.tasks.compute.accumulators import Slots
from penstock.tasks.compute.kernel_vectors import Bools
from penstock.tasks.state.state_store import StateStore
from penstock.tasks.state.stored_values import damaged, pack_batch, unpack_batch

Times = npt.NDArray[np.int64]

_PREFIX, _PREFIX_END = b"t", b"u"
_KEY = struct.Struct(">cI")
_SCHEMA = pa.schema([("changed", pa.int64())])
_WHAT = "times of groups"
_CHUNK = 4_096
_GONE, _NO_TIME = -(1 << 63), 1 - (1 << 63)
"""In the place of a time: the group isn't kept, or nobody has told a time yet."""


class GroupTimes:
    """The time of each group's last change, in memory and in the task's store."""

    def __init__(self, policies: Policies, store: StateStore) -> None:
        assert policies.state_ttl is not None
        self._step = policies.ttl_step
        self._steps = -(-policies.state_ttl // self._step)
        self._store = store
        self._times: Times = np.zeros(0, np.int64)
        self._count = 0
        self._changed: set[int] = set()  # the numbers of chunks that aren't stored as they are

    @property
    def memory_bytes(self) -> int:
        return self._times.nbytes

    def note(self, groups: Slots, times: Times | int | None) -> None:
        """Groups have changed at a time, or each at its own; None: at one that nobody knows yet."""
        if not len(groups):
            return
        self._make_room(int(groups.max()) + 1)
        self._times[groups] = np.maximum(self._times[groups], _NO_TIME if times is None else times)
        self._note_changed(groups)

    def of(self, groups: Slots) -> Times:
        """Returns what `note` takes for groups in another place."""
        times: Times = self._times[groups]
        return times

    def due(self, groups: Slots, now: int | None) -> Bools:
        """Returns which of some groups are to go at a time, if it is known: nothing has changed them for STATE_TTL."""
        if now is None:
            return np.zeros(len(groups), bool)
        times = self._times[groups]
        due: Bools = (times > _NO_TIME) & (now // self._step - times // self._step > self._steps)
        return due

    def all_due(self, now: int | None) -> Slots:
        """Returns all groups that are to go, ascending."""
        due: Slots = self.due(np.arange(self._count), now).nonzero()[0]
        return due

    def forget(self, groups: Slots) -> None:
        """Groups aren't kept any more."""
        self._times[groups] = _GONE
        self._note_changed(groups)

    def kept(self) -> Slots:
        """Returns the groups that are kept, ascending."""
        kept: Slots = (self._times[: self._count] != _GONE).nonzero()[0]
        return kept

    def renumber(self, staying: Slots) -> None:
        """Forgets all groups but some, which get the numbers 0, 1, ... in their order."""
        self._changed.update(range(-(-self._count // _CHUNK)))
        self._times, self._count = self._times[staying], len(staying)

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Hands what changed to the store."""
        changed, self._changed = sorted(self._changed), set()
        self._store.put_many((_KEY.pack(_PREFIX, chunk), self._packed(chunk)) for chunk in changed)

    def restore(self, count: int) -> None:
        """Takes over the times of the groups that there are from the store. Raises CorruptionError."""
        stored = self._store.between(_PREFIX, _PREFIX_END)
        parts = [unpack_batch(value, _SCHEMA, _WHAT).column(0) for _, value in stored]
        self._times = np.concatenate([np.zeros(0, np.int64), *(part.to_numpy() for part in parts)])
        self._count = len(self._times)
        if self._count != count or any(len(part) != _CHUNK for part in parts[:-1]):
            raise damaged(_WHAT, f"there are {self._count} for {count} groups")

    # -- inside --------------------------------------------------------------------------------------------------

    def _packed(self, chunk: int) -> bytes | None:
        times = self._times[chunk * _CHUNK : min((chunk + 1) * _CHUNK, self._count)]
        return pack_batch(pa.RecordBatch.from_arrays([pa.array(times)], schema=_SCHEMA)) if len(times) else None

    def _make_room(self, count: int) -> None:
        if count <= self._count:
            return
        if count > len(self._times):
            grown = np.full(max(count, 2 * len(self._times)), _GONE)
            grown[: self._count] = self._times[: self._count]
            self._times = grown
        self._note_changed(np.arange(self._count, count))
        self._count = count

    def _note_changed(self, groups: Slots) -> None:
        self._changed.update(np.unique(groups // _CHUNK).tolist())
