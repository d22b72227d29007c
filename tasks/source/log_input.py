"""Reads a vnode's log ahead into a source task's input queue, and hands the records out as its rate limit allows."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from penstock.tasks.flow.queues import ChannelQueue
from penstock.tasks.protocol.deployment import TaskSettings
from penstock.tasks.protocol.messages import Block, TaskId
from penstock.tasks.source.source_rates import SourceRates
from penstock.wal.record import Record, RowsRecord
from penstock.wal.shared_reading import SharedWalReader

#: What a record takes in memory beside its payload: rows that were inserted one by one are mostly that.
_RECORD_BYTES = 1536
_NO_DATA = pa.record_batch([pa.nulls(0, pa.uint8())], names=["_"])


_Part = tuple[tuple[Record, ...], int]  # records, and how many rows of the stream's own source they have


@dataclass(frozen=True, slots=True)
class WalBlock(Block):
    """Consecutive WAL records, as the input queue of a source task holds them; `data` is not used.

    `log_rows`: how many rows of the stream's own source they have.
    """

    records: tuple[Record, ...] = ()
    log_rows: int = 0


class LogInput:
    """The log as one source task takes it: blocks in its queue, and parts of the block that was taken last.

    A part has as many rows as may pass at once, or is one record with more. Rows are those of the stream's own source.
    """

    def __init__(self, queue: ChannelQueue[TaskId], task: TaskId, source_uid: int, settings: TaskSettings,
                 rates: SourceRates) -> None:
        self._queue = queue
        self._task = task
        self._source_uid = source_uid
        self._settings = settings
        self._rates = rates
        self._read: WalBlock | None = None
        self._parts: deque[_Part] = deque()
        self._caught_up_in: int | None = None
        self.bytes_read = 0
        self.rows_read = 0
        self._rows_out = 0

    @property
    def pending(self) -> bool:
        """Whether there are records that were read and not handed out."""
        return bool(self._parts or self._queue.used_bytes)

    @property
    def rows_waiting(self) -> int:
        """Rows that were read and not handed out: none where no record is kept."""
        return self.rows_read - self._rows_out if self.pending or self._read is not None else 0

    def read_ahead(self, wal: SharedWalReader, turn: int | None = None) -> bool:
        """Reads one block of records into the queue, or keeps it until there is room; returns whether it is there.

        `turn`: the stream's turn, if its rows gather. One that has come to the log's end reads no more in it: there is
        always a row more while others write, and a pass for each would leave nothing to gather. Who tells of such rows
        has the stream woken for another turn.
        """
        if self._read is None:
            if turn is not None and turn == self._caught_up_in:
                return False
            if not self._queue.fits(self._task, self._settings.block_bytes_max):
                return False
            before, end = wal.bytes_read, wal.acknowledged_version
            most = min(self._settings.block_rows_max, 1 + self._settings.block_bytes_max // _RECORD_BYTES)
            records = wal.read(most, self._settings.block_bytes_max)
            if not records:
                return False
            size = wal.bytes_read - before
            if records[-1].version >= end:
                self._caught_up_in = turn
            rows = sum(map(self._rows_of, records))
            self._read = WalBlock(_NO_DATA, size + _RECORD_BYTES * len(records), tuple(records), rows)
            self.bytes_read += size
            self.rows_read += rows
        if self._read.nbytes > self._queue.share_bytes:
            # Rows stay where the WAL is mapped: one record that is larger than the queue costs no memory here.
            self._read = replace(self._read, nbytes=self._queue.share_bytes)
        if not self._queue.try_put(self._task, self._read):
            return False
        self._read = None
        return True

    def next_part(self) -> tuple[Record, ...]:
        """Returns the records to process next; none if there are none, or if the rate limit doesn't let them pass."""
        if not self._parts:
            item = self._queue.take(self._task)
            if not isinstance(item, WalBlock):
                return ()
            self._parts = self._parts_of(item.records, item.log_rows)
        records, rows = self._parts[0]
        if not self._rates.live_rows_may_pass(rows):
            return ()
        self._parts.popleft()
        self._rows_out += rows
        return records

    def cut_again(self) -> None:
        """Cuts what is left of the block by the rate limit as it is now."""
        self._parts = self._parts_of([record for records, _ in self._parts for record in records],
                                     sum(rows for _, rows in self._parts))

    def discard(self) -> int:
        """Forgets what was read and not handed out; returns how many rows that were."""
        discarded = sum(rows for _, rows in self._parts)
        self._parts.clear()
        while (item := self._queue.take(self._task) or self._read) is not None:
            assert isinstance(item, WalBlock)
            discarded += item.log_rows
            if item is self._read:
                self._read = None
        self._rows_out += discarded
        return discarded

    def _parts_of(self, records: Sequence[Record], log_rows: int) -> deque[_Part]:
        most = self._rates.live_rows_at_once()
        if most == math.inf:
            return deque([(tuple(records), log_rows)] if records else ())
        parts: deque[_Part] = deque()
        part: list[Record] = []
        rows = 0
        for record in records:
            size = self._rows_of(record)
            if part and rows + size > most:
                parts.append((tuple(part), rows))
                part, rows = [], 0
            part.append(record)
            rows += size
        if part:
            parts.append((tuple(part), rows))
        return parts

    def _rows_of(self, record: Record) -> int:
        if isinstance(record, RowsRecord) and record.table_uid == self._source_uid:
            return int(record.batch.num_rows)
        return 0
