"""What is shown of a running stream: plain data between the controller and the system tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.mnode.monitor import TaskReport


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """One stream in one line. `watermark` is in units of the source's precision; `trigger` as in CREATE STREAM."""

    state: str
    reason: str = ""
    since_ms: int | None = None
    restarts: int = 0
    watermark: int = 0
    trigger: str = "window_close"


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """One checkpoint of a stream, committed, running or failed. `versions`: (vgroup id, WAL version) pairs.

    `task_bytes`: what each task wrote, by its id as text.
    """

    checkpoint_id: int
    state: str
    start_ms: int | None = None
    end_ms: int | None = None
    bytes_written: int = 0
    versions: tuple[tuple[int, int], ...] = ()
    reason: str = ""
    task_bytes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamsSnapshot:
    """How all streams are, at one moment, by stream id."""

    infos: Mapping[int, StreamInfo] = field(default_factory=dict)
    tasks: Mapping[int, Sequence[TaskReport]] = field(default_factory=dict)
    checkpoints: Mapping[int, Sequence[CheckpointInfo]] = field(default_factory=dict)
