"""What the cluster needs of a node's disk, as protocols: logs byte for byte, their epochs, and a few numbers.

Rules that keep acknowledged rows, whoever dies when:

- Readers of a log (streams, queries, views) never pass what is *acknowledged by the cluster*, and no table is flushed,
  and no checkpoint made, beyond it. So a log can be cut behind it, and nothing but the memtable has to be read again.
- A record is given to `read` once it is written; one that was taken back (disk full) never was.
- `note_epoch` is durable before it returns, and comes before the first record of that epoch.
- A chunk fits if it follows the log's last version, and its first record's `previous_crc` is the checksum of what it
  follows.
- What a cut takes away is set aside in a file of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from penstock.mnode.cluster.cluster_messages import LogChunk
from penstock.mnode.cluster.log_epochs import Epochs, EpochStart


@dataclass(frozen=True, slots=True)
class LogBounds:
    """Where a log begins and ends.

    `begin`: its first readable version; `floor`: tables hold what is up to here, so that a cut below it needs a copy;
    `written`, `synced`: its last version, and the last that a power cut leaves.
    """

    begin: int
    floor: int
    written: int
    synced: int


class StoredLog(Protocol):
    """One log of a node. Methods raise StorageError; CorruptionError where bytes are damaged."""

    def bounds(self) -> LogBounds: ...

    def epochs(self) -> Epochs: ...

    def note_epoch(self, start: EpochStart) -> None:
        """Makes durable that what is written from now on is of this epoch."""
        ...

    def read(self, after: int, size_max: int) -> LogChunk | None:
        """Returns records behind version `after`, at least one, of one epoch and one segment; None if there are none.

        Raises NotFoundError if the log begins later.
        """
        ...

    def append(self, chunk: LogChunk) -> None:
        """Writes the active's records as they are, unsynced. Raises InvalidValueError if they don't fit."""
        ...

    def sync(self) -> None:
        """Makes durable what is written."""
        ...

    def cut(self, version: int) -> int:
        """Takes away what is behind `version`, sets it aside, returns how many records that were. Not below `floor`.

        Epochs that begin behind `version` are forgotten, even if the log ends there already. Durable on return.
        """
        ...

    def parted(self, version: int) -> None:
        """What this log has behind `version` isn't, and never was, the cluster's: no checkpoint that has some of it is
        used any more. Durable on return.
        """
        ...

    def acknowledge(self, version: int) -> None:
        """Lets readers and tables go up to `version`: all of the cluster's synchronous set has it."""
        ...


class StoredNode(Protocol):
    """What a node keeps besides logs, durable on return, in its data directory."""

    def life(self) -> int:
        """Returns the number of the directory's `Life`."""
        ...

    def epoch(self) -> int:
        """Returns the largest epoch seen."""
        ...

    def keep_epoch(self, epoch: int) -> None: ...

    def logs(self) -> Mapping[int, StoredLog]:
        """Returns the logs by number; the catalog's has CATALOG_LOG. Others come and go as the catalog says."""
        ...
