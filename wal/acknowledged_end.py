"""How far readers of a log may go: as far as is written; in a cluster, as far as that has acknowledged."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path

from penstock.common.fs import Fs
from penstock.wal.places import place_behind
from penstock.wal.record_plan import PlannedRecord
from penstock.wal.segment import NO_END, EndFile, LogEnd, Tail


class AcknowledgedEnd:
    """The acknowledged end of one log, which its END file tells. The writer's lock guards it."""

    def __init__(self, file: EndFile, tail: Tail, *, bounded: bool) -> None:
        """`bounded`: records wait to be acknowledged by the cluster."""
        #: where the last acknowledged record ends
        self.tail = tail
        self._file = file
        self._waiting: deque[Tail] | None = deque() if bounded else None

    @property
    def bounded(self) -> bool:
        return self._waiting is not None

    def written(self, records: Sequence[tuple[object, PlannedRecord]], last: Tail, synced: int) -> None:
        """Records were written, the last of which ends at `last`."""
        if self._waiting is None:
            self.tail = last
        else:
            self._waiting.extend(record.tail for _, record in records if not record.continues)
        self.publish(synced)

    def wait_for(self, tail: Tail) -> None:
        """The log has records up to `tail` that aren't acknowledged."""
        assert self._waiting is not None
        self._waiting.append(tail)

    def acknowledge(self, version: int, synced: int) -> None:
        """The cluster has acknowledged all up to a version.

        Readers go to the last record up to it whose end is known: of copied records, and of those that were there when
        the log was opened, it is that of the last one.
        """
        waiting = self._waiting
        if not waiting or waiting[0].version > version:
            return
        while waiting and waiting[0].version <= version:
            self.tail = waiting.popleft()
        self.publish(synced)

    def cut(self, tail: Tail) -> None:
        """The log ends with `tail` now; that is durable for the END file."""
        if self._waiting is not None:
            waiting = [one for one in self._waiting if one.version <= tail.version]
            if (waiting[-1] if waiting else self.tail).version < tail.version:
                waiting.append(tail)
            self._waiting = deque(waiting)
        if self.tail.version >= tail.version:
            self.tail = tail
        self.publish(tail.version)
        self._file.sync()

    def publish(self, synced: int) -> None:
        """Tells readers, and who opens the log, that all up to `synced` is on disk for good."""
        self._file.write(LogEnd(self.tail.version, self.tail.segment, self.tail.offset, synced))

    def close(self) -> None:
        self._file.close()


def open_end(file: EndFile, before: LogEnd, tail: Tail, fs: Fs, directory: Path, acknowledged: int | None
             ) -> AcknowledgedEnd:
    """Goes on with what was acknowledged when the log was open last: `before`.

    `acknowledged`: at least this version was; None: all that there is. `tail`: where the log ends.
    Raises CorruptionError.
    """
    known = tail.version if acknowledged is None else min(max(before.version, acknowledged), tail.version)
    if known == tail.version:
        place = tail
    elif before is not NO_END and known == before.version:
        place = Tail(before.version, before.segment, before.offset, 0)
    else:
        place = place_behind(fs, directory, known) or Tail(0, 0, 0, 0)
    end = AcknowledgedEnd(file, place, bounded=acknowledged is not None)
    if tail.version > known:
        end.wait_for(tail)
    end.publish(tail.version)
    return end
