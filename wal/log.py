"""Where a reader finds a log: its end, and the bytes of its segments. Here by files; knows nothing of records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

import pyarrow as pa

from penstock.common.fs import Fs, ReadFile
from penstock.wal.segment import END_NAME, END_SIZE, NO_END, EndFile, LogEnd, list_segments, segment_name

Access = Literal["files", "network"]

_SMALL = 64 << 10  # a tail up to this size is copied by one read; a new map costs more


class Segment(Protocol):
    """A segment that is open for reading."""

    def size(self) -> int:
        """Returns the bytes of a segment that is finished."""
        ...

    def view(self, offset: int, length: int, limit: int) -> tuple[int, pa.Buffer]:
        """Returns where a buffer begins in the segment, and the buffer: `length` bytes from `offset` on are in it.

        It has fewer only if the segment has, and is worth having more, up to `limit`. FileNotFoundError if the segment
        is gone.
        """
        ...

    def close(self) -> None: ...


class Log(Protocol):
    """One vnode's log. `path` names it in errors; `access`: how it is reached."""

    path: Path
    access: Access

    def end(self) -> LogEnd:
        """Returns how far readers may go, NO_END while there is no log. Cheap."""
        ...

    def wait(self, version: int, timeout_s: float) -> bool:
        """Waits until the end isn't at `version`, at most `timeout_s`, perhaps shorter.

        Returns False if there is nothing to wait on: there is no log yet, or the system has no such wait.
        """
        ...

    def segments(self) -> list[int]:
        """Returns the first versions of all segments, ascending."""
        ...

    def open(self, first: int) -> Segment:
        """Opens the segment that starts with version `first`; FileNotFoundError if there is none."""
        ...

    def close(self) -> None:
        """Forgets what is known of the end; the next question asks anew."""
        ...


class LogFiles:
    """A log in a directory of this machine: segments are mapped, the end is one look into shared memory."""

    access: Access = "files"

    def __init__(self, path: Path, fs: Fs) -> None:
        self.path = path
        self._fs = fs
        self._end_file: EndFile | None = None

    def end(self) -> LogEnd:
        if self._end_file is None:
            path = self.path / END_NAME
            if END_NAME not in self._fs.list(self.path) or self._fs.size(path) < END_SIZE:
                return NO_END
            file = self._fs.open_read(path)
            try:
                self._end_file = EndFile(file.map())
            finally:
                file.close()
        return self._end_file.read()

    def wait(self, version: int, timeout_s: float) -> bool:
        self.end()
        return self._end_file is not None and self._end_file.wait(version, timeout_s)

    def segments(self) -> list[int]:
        return list_segments(self._fs, self.path)

    def open(self, first: int) -> SegmentFile:
        return SegmentFile(self._fs.open_read(self.path / segment_name(first)))

    def close(self) -> None:
        if self._end_file is not None:
            self._end_file.close()
            self._end_file = None


class WrittenLogFiles(LogFiles):
    """A log as its writer knows it: to the end of what is written, whether it is acknowledged or not."""

    def __init__(self, path: Path, fs: Fs, written: Callable[[], LogEnd]) -> None:
        super().__init__(path, fs)
        self._written = written

    def end(self) -> LogEnd:
        return self._written()


class SegmentFile:
    """A segment's file; stays readable after its removal."""

    def __init__(self, file: ReadFile) -> None:
        self._file = file

    def size(self) -> int:
        return self._file.size()

    def view(self, offset: int, length: int, limit: int) -> tuple[int, pa.Buffer]:
        if limit - offset <= _SMALL:
            return offset, pa.py_buffer(self._file.read(offset, limit - offset))
        return 0, pa.py_buffer(self._file.map())

    def close(self) -> None:
        self._file.close()
