"""The segment that a log is written to: its file. Knows nothing of records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from penstock.common.fs import AppendFile, Fs
from penstock.wal.segment import Tail, list_segments, segment_name

_LARGE = 1 << 20  # bytes from which copying a piece takes longer than a write of its own


class OpenSegment:
    """Not thread-safe. All methods raise StorageError, and FileNotFoundError if the log's directory is gone."""

    def __init__(self, directory: Path, fs: Fs, file: AppendFile | None) -> None:
        """`file`: None while the log has no segment."""
        self._directory = directory
        self._fs = fs
        self._file = file

    def append(self, pieces: Sequence[bytes | pa.Buffer]) -> None:
        """Appends all pieces, small ones together; a large one isn't copied first."""
        if self._file is None:
            return
        if sum(map(len, pieces)) < _LARGE:
            if pieces:
                self._file.append(b"".join(pieces))
            return
        small: list[bytes | pa.Buffer] = []
        for piece in pieces:
            if len(piece) < _LARGE:
                small.append(piece)
                continue
            self._file.append(b"".join(small))
            self._file.append(piece)
            small = []
        if small:
            self._file.append(b"".join(small))

    def begin(self, first_version: int) -> None:
        """Goes on with a new segment; the caller has synced the one before."""
        self.close()
        self._file = self._fs.open_append(self._directory / segment_name(first_version))
        self._fs.fsync_dir(self._directory)

    def cut_back(self, tail: Tail) -> None:
        """Makes the log end at an earlier place."""
        self.close()
        for first in reversed(list_segments(self._fs, self._directory)):
            if first > tail.segment:
                # One after the other for good: whatever a crash leaves is a log without gaps.
                self._fs.remove(self._directory / segment_name(first))
                self._fs.fsync_dir(self._directory)
        if tail.segment:
            self._file = self._fs.open_append(self._directory / segment_name(tail.segment))
            self._file.truncate(tail.offset)

    def sync(self) -> None:
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
