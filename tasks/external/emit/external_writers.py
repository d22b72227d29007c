"""The sink task's way out: writers that hand results to an asynchronous one, at once or with their checkpoint."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from penstock.common.arrow_data import from_ipc, to_ipc
from penstock.common.connection import OpenedConnection
from penstock.common.errors import InternalError
from penstock.tasks.external.emit.async_sink_writer import AsyncSinkWriter, Delivery, Outage
from penstock.tasks.external.emit.result_events import ExternalRows
from penstock.tasks.external.emit.sent_record import SentRecord, recorded
from penstock.tasks.protocol.messages import ResultWrite
from penstock.tasks.state.state_store import StateStore

_PREFIX = b"staged/"
_PART_BITS = 20
_PART_BYTES = 16 * 1024 * 1024
_DIGEST_BYTES = 8


def checkpoint_of(number: int) -> int:
    """Returns which checkpoint a delivery with this number belongs to."""
    return number >> _PART_BITS


def part_of(number: int) -> int:
    """Returns which part of its checkpoint a delivery with this number is."""
    return number & (1 << _PART_BITS) - 1


class ExternalWriter(ABC):
    """A `ResultWriter` whose target is external, and may be away for a while.

    It delivers through an asynchronous sink writer, and has a record of that.
    """

    def __init__(self, rows: ExternalRows, sink_writer: AsyncSinkWriter, record: SentRecord) -> None:
        self._rows = rows
        self._sink_writer = sink_writer
        self._record = record
        self._submitted = 0

    @abstractmethod
    def submit(self, write: ResultWrite) -> None:
        """Takes a write over, see `ResultWriter`."""

    @abstractmethod
    def acknowledged(self) -> int:
        """Returns how many writes are done, see `ResultWriter`."""

    @property
    def outage(self) -> Outage | None:
        """Why nothing is delivered now, or None."""
        return self._sink_writer.outage

    @property
    def next_try(self) -> float | None:
        """When `acknowledged` should be called even if nothing changed, in monotonic time."""
        return self._sink_writer.next_try

    @property
    def undelivered(self) -> bool:
        """Whether the task's state holds results that are still to be delivered."""
        return False  # what isn't delivered isn't acknowledged, and no checkpoint has it

    @property
    def recorded_bytes(self) -> int:
        """How much the task's state holds of what was sent, in bytes."""
        return self._record.nbytes

    def use(self, connection: OpenedConnection) -> None:
        """Goes on by another version of the connection."""
        self._sink_writer.use(connection)

    def try_now(self) -> None:
        """Tries again at once."""
        self._sink_writer.try_now()

    def save(self) -> dict[str, Any]:
        """Returns what `restore` needs besides the store, as JSON can hold it."""
        return {"known": self._sink_writer.known, "sent": self._record.save()}

    def restore(self, saved: Any) -> None:
        """Takes over what `save` returned at the checkpoint that the store is at; None: there was no writer then."""
        if saved is not None:
            self._sink_writer.known = saved["known"]
        self._record.restore(None if saved is None else saved["sent"])

    def close(self) -> None:
        self._sink_writer.close()

    def _check(self) -> int:
        """Returns how many deliveries are done; what was sent by them is in the record."""
        delivered = self._sink_writer.check()
        self._record.settle()
        return delivered


class DirectWriter(ExternalWriter):
    """Delivers each write by itself."""

    def submit(self, write: ResultWrite) -> None:
        self._submitted += 1
        self._sink_writer.put(Delivery(self._submitted, self._rows.of(write)))

    def acknowledged(self) -> int:
        return self._check()


class StagedWriter(ExternalWriter):
    """A `TransactionalWriter`: results are in the task's state until their checkpoint is valid, then they leave.

    What a checkpoint has is cut into parts, which are numbered by the checkpoint and their place in it. A part leaves
    once its checkpoint is valid, and again after a restart unless a later checkpoint knows that it was taken: it is
    for the target to tell by the number that it has it already. Numbers grow also over a restart that goes back to an
    older checkpoint, since no id of a checkpoint is used twice.
    """

    def __init__(
        self, rows: ExternalRows, sink_writer: AsyncSinkWriter, record: SentRecord, store: StateStore,
        backlog_bytes: int,
    ) -> None:
        """While more than `backlog_bytes` of valid checkpoints wait to leave, no further write is acknowledged."""
        super().__init__(rows, sink_writer, record)
        self._store = store
        self._backlog_bytes = backlog_bytes
        self._open: list[pa.RecordBatch] = []  # of the part that is being filled
        self._open_bytes = 0
        self._fresh: list[tuple[int, int]] = []  # key in the store and bytes of parts of the next checkpoint
        self._parts: list[tuple[int, int, int, int]] = []  # key, bytes, checkpoint, number of prepared ones, in order
        self._next_key = 0
        self._valid = -1  # the newest valid checkpoint
        self._sent = 0  # how many of the first `_parts` the sink writer has
        self._seen = 0  # how many deliveries it had done when they were forgotten here
        self._acknowledged = 0

    # -- as a ResultWriter -------------------------------------------------------------------------------------------

    def submit(self, write: ResultWrite) -> None:
        rows = self._rows.of(write)
        self._open.append(rows)
        self._open_bytes += rows.nbytes
        self._submitted += 1
        if self._open_bytes >= _PART_BYTES:
            self._close_part()

    def acknowledged(self) -> int:
        self._settle(self._check())
        if self._backlog <= self._backlog_bytes:
            self._acknowledged = self._submitted
        return self._acknowledged

    # -- as a TransactionalWriter ------------------------------------------------------------------------------------

    def recover(self, checkpoint_id: int | None) -> None:
        self._valid = -1 if checkpoint_id is None else checkpoint_id
        self._send()

    def prepare(self, checkpoint_id: int) -> None:
        self._close_part()
        for part, (key, size) in enumerate(self._fresh):
            self._parts.append((key, size, checkpoint_id, checkpoint_id << _PART_BITS | part))
        self._fresh.clear()

    def commit(self, checkpoint_id: int) -> None:
        self._valid = max(self._valid, checkpoint_id)
        self._send()

    def commit_writes(self) -> None:
        raise InternalError("results that leave with checkpoints don't leave before")

    # -- as an ExternalWriter -----------------------------------------------------------------------------------------

    @property
    def undelivered(self) -> bool:
        return bool(self._parts)

    def save(self) -> dict[str, Any]:
        return {**super().save(), "next": self._next_key, "parts": [list(part) for part in self._parts]}

    def restore(self, saved: Any) -> None:
        super().restore(saved)
        if saved is not None:
            self._next_key = saved["next"]
            self._parts = [(key, size, checkpoint, number) for key, size, checkpoint, number in saved["parts"]]

    # -- inside ------------------------------------------------------------------------------------------------------

    @property
    def _backlog(self) -> int:
        return sum(size for _, size, checkpoint, _ in self._parts if checkpoint <= self._valid)

    def _close_part(self) -> None:
        """Puts what was written into the store."""
        if not self._open:
            return
        batch = self._open[0] if len(self._open) == 1 else pa.concat_batches(self._open)
        self._open, self._open_bytes = [], 0
        stored = to_ipc(batch).to_pybytes()
        self._store.put_many([(_key(self._next_key), stored)])
        self._fresh.append((self._next_key, len(stored)))
        self._next_key += 1

    def _settle(self, delivered: int) -> None:
        """Forgets what was delivered, and sends more."""
        done = delivered - self._seen
        if not done:
            return
        self._store.put_many([(_key(key), None) for key, *_ in self._parts[:done]])
        del self._parts[:done]
        self._sent -= done
        self._seen = delivered
        self._send()

    def _send(self) -> None:
        """Hands over the next part of a valid checkpoint; one at a time is under way, the others cost no memory."""
        if self._sent or not self._parts or self._parts[0][2] > self._valid:
            return
        key, _, _, number = self._parts[0]
        stored = _stored_part(self._store, key)
        digest = hashlib.blake2b(stored, digest_size=_DIGEST_BYTES).hexdigest()
        self._sink_writer.put(Delivery(number, from_ipc(stored), digest))
        self._sent = 1


def sent_rows(store: StateStore, saved: Mapping[str, Any], rows: ExternalRows) -> list[pa.RecordBatch]:
    """Returns what the record of a writer holds and what is to leave since its checkpoint is valid, oldest first.

    `saved` is what its `save` returned, the record among it. Raises CorruptionError.
    """
    staged = [from_ipc(_stored_part(store, key)) for key, *_ in saved.get("parts", ())]
    return [*recorded(store, saved["sent"], rows.schema), *staged]


def _stored_part(store: StateStore, key: int) -> bytes:
    (stored,) = store.get_many([_key(key)])
    if stored is None:
        raise InternalError(f"part {key} of the results to be delivered is missing")
    return stored


def _key(number: int) -> bytes:
    return _PREFIX + number.to_bytes(8, "big")
