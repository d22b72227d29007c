"""The durable state of one task: an LMDB environment holding a base and one delta per checkpoint.

Writes go to the open delta, which is held in memory and spills beyond a bound. A checkpoint closes it with one synced
transaction, so that its cost follows what changed, not what there is. A checkpoint counts only when the mnode has
committed it: restoring drops every delta after the committed one. Deltas of checkpoints that nobody may go back to any
more are folded into the base or, behind an older one that is kept, into one another; that costs what the folded delta
holds. Every LMDB transaction is synced: unsynced ones may overwrite pages of the last synced state, and a power cut
would then damage it. LMDB has no checksums: each value carries its own, and each delta has one over keys and values,
which restoring checks. This module knows nothing of what keys and values mean.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Generator, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import reduce
from itertools import chain, starmap, takewhile
from operator import concat, xor
from pathlib import Path
from typing import Any

import google_crc32c

from penstock.common.errors import (
    CheckpointDamagedError,
    InternalError,
    StaleAttemptError,
    StorageError,
)
from penstock.tasks.state.state_cache import StateCache
from penstock.tasks.state.state_database import StateDatabase, with_checksum

FORMAT_VERSION = 4
_PENDING_SEARCHED = 1024
_DELETED = b""
_JOINED = 256
_NEVER = 0
"""The sequence that no delta has."""
_RESERVED = b"reserved"
_ATTEMPT = b"attempt"


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """What `StateStore.checkpoint` wrote: bytes of keys and values, and a checksum over them."""

    bytes_written: int
    digest: str


@dataclass(frozen=True, slots=True)
class _Delta:
    """What changed up to a checkpoint since the delta before. `digest` "": unknown."""

    checkpoint_id: int
    sequence: int
    meta: str
    digest: str = ""


class StateStore:
    """Key-value state with checkpoints. One writer, one process; opened after the worker was forked."""

    def __init__(
        self, directory: Path, map_bytes: int, cache: StateCache | None = None, *, readonly: bool = False
    ) -> None:
        """`cache` bounds what several stores keep in memory; None: there are no others. `readonly`: nobody writes."""
        self._directory = directory
        self._cache = cache or StateCache()
        self._database = StateDatabase(directory, map_bytes, readonly=readonly)
        self._deltas: list[_Delta] = []
        self._base_sum = 0
        self._load_directory()
        self._open_sequence = self._next_sequence()
        self._pending: dict[bytes, bytes] = {}
        self._pending_bytes = 0
        self._written_bytes = 0
        self._digest = 0
        self._spills = 0
        self._counted = (-1, 0)  # after how many writes, and how many bytes there were

    # -- reading ---------------------------------------------------------------------------------------------

    def get_many(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """Returns the newest value of each key, or None; raises CorruptionError for one that fails its checksum."""
        layers = self._layers()  # before the transaction: it would not see handles opened later
        with self._database.reading() as transaction:
            return [self._find(transaction, layers, key) for key in keys]

    def items(self, first: bytes = b"") -> list[tuple[bytes, bytes]]:
        """Returns (key, value) for all keys from `first` on, in key order, newest values only."""
        return list(self.scan(first))

    def between(self, first: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        """Returns (key, value) for all keys from `first` on and before `end`, in key order, newest values only."""
        self._spill_if_many()
        found: dict[bytes, bytes] = {}
        for key, value in self._scan(first):
            if key >= end:
                break
            found[key] = value
        for key, stored in self._pending.items():
            if first <= key < end:
                found.pop(key, None)
                if stored != _DELETED:
                    found[key] = self._database.checked(key, stored)
        return sorted(found.items())

    def keys(self, first: bytes, end: bytes) -> list[bytes]:
        """Returns the keys from `first` on and before `end` that have values, in order. Values aren't looked at."""
        self._spill_if_many()
        found = {key for key, _ in takewhile(lambda item: item[0] < end, self._newest(first))}
        pending = {key for key in self._pending if first <= key < end}
        found = found - pending | {key for key in pending if self._pending[key] != _DELETED}
        return sorted(found)

    def scan(self, first: bytes) -> Generator[tuple[bytes, bytes]]:
        """Yields what `items` returns, without holding all of it; close it before anything is written."""
        self.flush()
        return self._scan(first)

    def changes(self, checkpoint_id: int) -> Iterator[tuple[bytes, bytes | None]]:
        """Yields (key, value) for all keys that changed up to a checkpoint since the one before; None: deleted."""
        handle = self._database.delta(self._up_to(checkpoint_id)[-1].sequence, create=False)
        with self._database.reading() as transaction:
            for key, stored in transaction.cursor(db=handle):
                yield bytes(key), None if stored == _DELETED else self._database.checked(bytes(key), bytes(stored))

    def last_before(self, end: bytes, prefix: bytes) -> tuple[bytes, bytes] | None:
        """Returns the greatest key below `end` that starts with `prefix`, with its newest value, or None."""
        self._spill_if_many()
        layers = self._layers()
        with self._database.reading() as transaction:
            cursors = [transaction.cursor(db=layer) for layer in layers]
            while True:
                keys = [key for cursor in cursors if (key := _key_before(cursor, end)) is not None]
                keys += [key for key in self._pending if key < end]
                end = max(keys, default=b"")
                if not end or not end.startswith(prefix):
                    return None
                value = self._find(transaction, layers, end)
                if value is not None:
                    return end, value

    def _spill_if_many(self) -> None:
        """Keeps searches in pending keys, which are not sorted, short."""
        if len(self._pending) > _PENDING_SEARCHED:
            self._spill()

    def _scan(self, first: bytes) -> Generator[tuple[bytes, bytes]]:
        for key, stored in self._newest(first):
            yield key, self._database.checked(key, bytes(stored))

    def _newest(self, first: bytes) -> Generator[tuple[bytes, memoryview]]:
        """Yields keys and what is stored of each from `first` on, but for what is in memory."""
        layers = self._layers()
        with self._database.reading(buffers=True) as transaction:
            cursors = [transaction.cursor(db=layer) for layer in layers]
            cursors = [cursor for cursor in cursors if cursor.set_range(first)]
            while cursors:
                keys = [bytes(cursor.key()) for cursor in cursors]
                key = min(keys)
                value = cursors[keys.index(key)].value()
                if len(value):
                    yield key, value
                cursors = [cursor for cursor, its in zip(cursors, keys, strict=True) if its != key or cursor.next()]

    def neighbour(self, key: bytes, prefix: bytes, *, forward: bool) -> bytes | None:
        """Returns the nearest key after (or before) `key` among those that begin with `prefix`, or None.

        `key` itself need not exist. Keys that `put_many` took since the last `flush` or checkpoint are not seen.
        """
        layers = self._layers()
        with self._database.reading() as transaction:
            cursors = [transaction.cursor(db=layer) for layer in layers]
            step: type[_Forward] | type[_Backward] = _Forward if forward else _Backward
            cursors = [cursor for cursor in cursors if step.start(cursor, key)]
            while cursors:
                nearest = step.nearest(bytes(cursor.key()) for cursor in cursors)
                if not nearest.startswith(prefix):
                    return None
                value = next(bytes(cursor.value()) for cursor in cursors if bytes(cursor.key()) == nearest)
                if value != _DELETED:
                    return nearest
                cursors = [cursor for cursor in cursors if bytes(cursor.key()) != nearest or step.go(cursor)]
        return None

    # -- writing ---------------------------------------------------------------------------------------------

    def put_many(self, items: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Takes values (None deletes) into the open delta; durable with the next checkpoint."""
        stored = {key: _DELETED if value is None else with_checksum(value)
                  for key, value in items}
        size = sum(map(len, stored)) + sum(map(len, stored.values()))
        kept = self._cache.take(self._pending_bytes, size)
        if not kept:
            self.flush()
            kept = self._cache.take(0, size)
        self._pending.update(stored)
        if kept:
            self._pending_bytes += size
        else:
            self._spill()

    def flush(self) -> None:
        """Moves what `put_many` took out of memory; it becomes durable with the next checkpoint only."""
        if self._pending:
            self._spill()

    def checkpoint(self, checkpoint_id: int, meta: dict[str, Any]) -> StoredCheckpoint:
        """Makes everything written so far durable as `checkpoint_id`, with `meta` (JSON) beside it."""
        if self._deltas and self._deltas[-1].checkpoint_id >= checkpoint_id:
            raise InternalError(f"checkpoint {checkpoint_id} follows {self._deltas[-1].checkpoint_id}")
        handle = self._database.delta(self._open_sequence, create=True)
        with self._database.writing() as transaction:
            self._put_pending(transaction, handle)
            if self._spills > 1:  # keys may have been written more than once, in no order
                self._digest = _digest_of(transaction, handle)
            delta = _Delta(checkpoint_id, self._open_sequence, json.dumps(meta), f"{self._digest:08x}")
            self._put_directory(transaction, [*self._deltas, delta], self._base_sum)
        self._deltas.append(delta)
        result = StoredCheckpoint(self._written_bytes, delta.digest)
        self._open_sequence += 1
        self._written_bytes = self._digest = self._spills = 0
        return result

    def committed(self, checkpoint_id: int, kept: Collection[int] = ()) -> None:
        """Folds away what only serves checkpoints before `checkpoint_id` that aren't among `kept`."""
        wanted = {checkpoint_id, *kept}
        before: _Delta | None = None
        for delta in list(self._deltas):
            if delta.checkpoint_id >= checkpoint_id:
                return
            if delta.checkpoint_id in wanted:
                before = delta
            elif before is None:
                self._fold(delta, None)
            elif before.checkpoint_id in wanted:
                before = delta  # the first one behind a kept checkpoint collects those that follow it
            else:
                before = self._fold(delta, before)

    # -- restoring -------------------------------------------------------------------------------------------

    def restore(self, checkpoint_id: int | None) -> dict[str, Any] | None:
        """Goes back to a committed checkpoint, dropping what came after; returns its meta.

        None goes back to the empty state. Raises CheckpointDamagedError if the checkpoint is not in the store, or if
        what it consists of besides the base isn't as it was written.
        """
        if checkpoint_id is None:
            self._drop_all()
            return None
        kept = self._up_to(checkpoint_id)
        self._verify(kept)
        later = [delta.sequence for delta in self._deltas[len(kept):]]
        handles = [self._database.delta(sequence, create=False) for sequence in (*later, self._open_sequence)]
        if later or any(handle is not None for handle in handles):
            with self._database.writing() as transaction:
                for sequence in (*later, self._open_sequence):
                    self._database.drop(transaction, sequence)
                self._put_directory(transaction, kept, self._base_sum)
            # LMDB trusts its pages: damage in one that nothing was read from may spread when it writes.
            self._verify(kept)
        self._deltas = kept
        self._forget_pending()
        self._open_sequence = self._next_sequence()
        return self.meta(checkpoint_id)

    def meta(self, checkpoint_id: int) -> dict[str, Any]:
        """Returns what was put beside a checkpoint. Raises CheckpointDamagedError if it isn't in the store."""
        meta: dict[str, Any] = json.loads(self._up_to(checkpoint_id)[-1].meta)
        return meta

    def read_as_of(self, checkpoint_id: int) -> None:
        """Has a readonly store be as it was at a checkpoint. Raises CheckpointDamagedError if that is not in it."""
        self._deltas, self._open_sequence = self._up_to(checkpoint_id), _NEVER

    def verify(self, checkpoint_id: int) -> None:
        """Reads everything that a checkpoint consists of; changes nothing.

        Raises CorruptionError, or CheckpointDamagedError if `restore` would find it missing or damaged.
        """
        self._verify(self._up_to(checkpoint_id))

    def enter(self, attempt: int) -> None:
        """Notes durably which attempt of the stream works here. Raises StaleAttemptError if a later one has been here.

        A worker that was stopped for long before it opened its state must not undo what came after it.
        """
        known = self._database.number(_ATTEMPT) or 0
        if known > attempt:
            raise StaleAttemptError(f"attempt {attempt} comes too late: attempt {known} has used the state in "
                                    f"{self._directory}")
        if known < attempt:
            self._database.put_number(_ATTEMPT, attempt)

    def reserve(self, number: int) -> int:
        """Notes durably, for whoever opens this store next, that the task may get as far as `number`; returns it."""
        self._database.put_number(_RESERVED, number)
        return number

    @property
    def reserved(self) -> int | None:
        """The number noted last, in any attempt and whatever was restored, or None."""
        return self._database.number(_RESERVED)

    def close(self) -> None:
        self._clear_pending()
        self._database.close()

    @property
    def used_bytes(self) -> int:
        """Bytes that are kept: pages that hold something, and what is in memory.

        Pages that were freed don't count: LMDB uses them again before the file grows.
        """
        counted_at, nbytes = self._counted
        if counted_at != self._database.writes:
            layers = self._layers()
            with self._database.reading() as transaction:
                stats = [transaction.stat(layer) for layer in (self._database.meta, *layers)]
            pages = sum(stat[kind] for stat in stats for kind in ("branch_pages", "leaf_pages", "overflow_pages"))
            nbytes = int(pages * self._database.page_bytes)
            self._counted = (self._database.writes, nbytes)
        return nbytes + self._pending_bytes

    @property
    def memory_bytes(self) -> int:
        """Bytes of the open delta that are in memory."""
        return self._pending_bytes

    # -- inside ----------------------------------------------------------------------------------------------

    def _layers(self) -> list[Any]:
        """Newest first: the open delta, closed deltas, the base."""
        sequences = [self._open_sequence, *(delta.sequence for delta in reversed(self._deltas))]
        handles = [self._database.delta(sequence, create=False) for sequence in sequences]
        return [handle for handle in handles if handle is not None] + [self._database.base]

    def _find(self, transaction: Any, layers: list[Any], key: bytes) -> bytes | None:
        pending = self._pending.get(key)
        if pending is not None:
            return None if pending == _DELETED else self._database.checked(key, pending)
        for layer in layers:
            value = transaction.get(key, db=layer)
            if value is not None:
                return None if value == _DELETED else self._database.checked(key, bytes(value))
        return None

    def _spill(self) -> None:
        handle = self._database.delta(self._open_sequence, create=True)
        with self._database.writing() as transaction:
            self._put_pending(transaction, handle)

    def _put_pending(self, transaction: Any, handle: Any) -> None:
        items = sorted(self._pending.items())
        transaction.cursor(db=handle).putmulti(items)
        for first in range(0, len(items), _JOINED):  # all in one would be as much memory again
            content = b"".join(chain.from_iterable(items[first : first + _JOINED]))
            self._digest = google_crc32c.extend(self._digest, content)
            self._written_bytes += len(content)
        if self._pending:
            self._spills += 1
        self._clear_pending()

    def _forget_pending(self) -> None:
        self._clear_pending()
        self._written_bytes = self._digest = self._spills = 0

    def _clear_pending(self) -> None:
        self._cache.give_back(self._pending_bytes)
        self._pending = {}
        self._pending_bytes = 0

    def _up_to(self, checkpoint_id: int) -> list[_Delta]:
        """Returns what a checkpoint consists of besides the base. Raises CheckpointDamagedError if it isn't there."""
        ids = [delta.checkpoint_id for delta in self._deltas]
        if checkpoint_id not in ids:
            known = ", ".join(map(str, ids)) or "none"
            raise CheckpointDamagedError(f"checkpoint {checkpoint_id} is missing in {self._directory} (there: {known})")
        return self._deltas[:ids.index(checkpoint_id) + 1]

    def _verify(self, deltas: Iterable[_Delta]) -> None:
        """Raises CheckpointDamagedError if a delta doesn't hold what was written; costs reading them."""
        known = [(delta, self._database.delta(delta.sequence, create=False)) for delta in deltas if delta.digest]
        with self._database.reading() as transaction:
            if self._base_sum != _sum_of(transaction, self._database.base):
                raise CheckpointDamagedError(f"the task state in {self._directory} is damaged: its base was changed")
            for delta, handle in known:
                found = 0 if handle is None else _digest_of(transaction, handle)
                if f"{found:08x}" != delta.digest:
                    raise CheckpointDamagedError(
                        f"checkpoint {delta.checkpoint_id} in {self._directory} is damaged: its checksum differs")

    def _drop_all(self) -> None:
        sequences = [*(delta.sequence for delta in self._deltas), self._open_sequence]
        for sequence in sequences:
            self._database.delta(sequence, create=False)
        with self._database.writing() as transaction:
            for sequence in sequences:
                self._database.drop(transaction, sequence)
            transaction.drop(self._database.base, delete=False)
            self._put_directory(transaction, [], 0)
        self._deltas, self._base_sum = [], 0
        # As after opening: what is spilled from now on must be found, and dropped, by whoever opens this next.
        self._open_sequence = self._next_sequence()
        self._forget_pending()

    def _fold(self, delta: _Delta, into: _Delta | None) -> _Delta:
        """Puts a delta on top of the one before it, or of the base; returns what now stands for both."""
        handle = self._database.delta(delta.sequence, create=False)
        below = self._database.base if into is None else self._database.delta(into.sequence, create=True)
        both = replace(delta, sequence=delta.sequence if into is None else into.sequence, digest="")
        remaining = [both if other is into else other for other in self._deltas if other is not delta]
        base_sum = self._base_sum
        with self._database.writing() as transaction:
            if handle is not None:
                for key, value in transaction.cursor(db=handle):
                    if into is None:
                        base_sum ^= _sum_of_item(key, transaction.get(key, db=below)) ^ _sum_of_item(key, value)
                    if value == _DELETED and into is None:
                        transaction.delete(key, db=below)
                    else:
                        transaction.put(key, value, db=below)
            self._database.drop(transaction, delta.sequence)
            self._put_directory(transaction, remaining, base_sum)
        self._deltas, self._base_sum = remaining, base_sum
        return both

    def _next_sequence(self) -> int:
        return max((delta.sequence for delta in self._deltas), default=0) + 1

    def _load_directory(self) -> None:
        with self._database.reading() as transaction:
            stored = transaction.get(b"checkpoints", db=self._database.meta)
        if stored is None:
            return
        content = json.loads(self._database.checked(b"checkpoints", bytes(stored)))
        if content["format"] != FORMAT_VERSION:
            raise StorageError(f"the task state in {self._directory} has format {content['format']}; this version of "
                               f"Penstock knows format {FORMAT_VERSION}", hint="use the version that wrote it")
        self._deltas = [_Delta(**delta) for delta in content["deltas"]]
        self._base_sum = content["base_sum"]

    def _put_directory(self, transaction: Any, deltas: list[_Delta], base_sum: int) -> None:
        content = json.dumps({
            "format": FORMAT_VERSION,
            "base_sum": base_sum,
            "deltas": [asdict(delta) for delta in deltas],
        }).encode()
        transaction.put(b"checkpoints", with_checksum(content), db=self._database.meta)


def _digest_of(transaction: Any, handle: Any) -> int:
    """Returns the checksum over the keys and values of one delta, in key order."""
    return reduce(google_crc32c.extend, starmap(concat, transaction.cursor(db=handle)), 0)


def _sum_of_item(key: bytes, stored: bytes | None) -> int:
    """Returns a checksum over a key and its value; 0 if there is none."""
    return 0 if not stored else int(google_crc32c.value(key + stored))


def _sum_of(transaction: Any, handle: Any) -> int:
    """Returns a checksum over all keys and values that can be kept up while single ones change."""
    # All of it in C: a loop of ours over millions of keys would cost several times what reading them does.
    return reduce(xor, map(google_crc32c.value, starmap(concat, transaction.cursor(db=handle))), 0)


def _key_before(cursor: Any, end: bytes) -> bytes | None:
    """Moves the cursor to the greatest key below `end` and returns it, or None."""
    found = cursor.prev() if cursor.set_range(end) else cursor.last()
    return bytes(cursor.key()) if found else None


class _Forward:
    """How `neighbour` moves to greater keys."""

    @staticmethod
    def start(cursor: Any, key: bytes) -> bool:
        if not cursor.set_range(key):
            return False
        return bool(cursor.next()) if bytes(cursor.key()) == key else True

    @staticmethod
    def go(cursor: Any) -> bool:
        return bool(cursor.next())

    @staticmethod
    def nearest(keys: Iterable[bytes]) -> bytes:
        return min(keys)


class _Backward:
    """How `neighbour` moves to lesser keys."""

    @staticmethod
    def start(cursor: Any, key: bytes) -> bool:
        return bool(cursor.prev()) if cursor.set_range(key) else bool(cursor.last())

    @staticmethod
    def go(cursor: Any) -> bool:
        return bool(cursor.prev())

    @staticmethod
    def nearest(keys: Iterable[bytes]) -> bytes:
        return max(keys)
