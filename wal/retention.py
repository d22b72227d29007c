"""Which segments of a log may be deleted. Pure: decides from what it is told, deletes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.common.fs import Fs
from penstock.wal.record import DamagedRecordError
from penstock.wal.segment import SEGMENT_HEADER_SIZE, damaged, decode_segment_header, list_segments, segment_name


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A finished or the current segment. `closed_ms` is when the next one began, None for the current one."""

    first_version: int
    last_version: int
    size: int
    closed_ms: int | None


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """WAL_RETENTION_PERIOD in seconds and WAL_RETENTION_SIZE in kB (tdengine.md 5.1): -1 keeps for ever, size 0 sets
    no bound. `pin_max_bytes` (None: no bound) is how much log the slowest stream may hold back."""

    period_s: int
    size_kb: int
    pin_max_bytes: int | None


def segment_infos(fs: Fs, directory: Path, last_version: int) -> list[SegmentInfo]:
    """Lists the segments of a log, ascending; may run while others are deleted. Raises CorruptionError."""
    found: list[tuple[int, int, int]] = []
    for first in list_segments(fs, directory):
        path = directory / segment_name(first)
        try:
            file = fs.open_read(path)
        except FileNotFoundError:
            continue  # retention has just deleted it
        try:
            created_ms = decode_segment_header(file.read(0, SEGMENT_HEADER_SIZE), path)[0].created_ms
            found.append((first, created_ms, file.size()))
        except DamagedRecordError as error:
            raise damaged(path, 0, error) from error
        finally:
            file.close()
    followers: list[tuple[int, int | None]] = [(first - 1, created) for first, created, _ in found[1:]]
    followers.append((last_version, None))
    return [SegmentInfo(first, last, size, closed_ms)
            for (first, _, size), (last, closed_ms) in zip(found, followers, strict=False)]


def deletable(segments: Sequence[SegmentInfo], policy: RetentionPolicy, *, now_ms: int, persisted_version: int,
              pin_version: int | None) -> list[SegmentInfo]:
    """Returns the oldest segments that nothing needs any more.

    A segment goes only when the table store has all its rows, and when it is older than the period or the log is
    larger than the size. `pin_version` is the oldest version that a stream still wants to read; it holds segments
    back until more than `pin_max_bytes` are held.
    """
    total = sum(segment.size for segment in segments)
    result = []
    for segment in segments[:-1]:
        if segment.last_version > persisted_version or segment.closed_ms is None:
            break
        too_old = policy.period_s >= 0 and now_ms - segment.closed_ms >= policy.period_s * 1000
        too_much = policy.size_kb > 0 and total > policy.size_kb * 1024
        if not (too_old or too_much):
            break
        pinned = pin_version is not None and segment.last_version >= pin_version
        if pinned and (policy.pin_max_bytes is None or total <= policy.pin_max_bytes):
            break
        result.append(segment)
        total -= segment.size
    return result
