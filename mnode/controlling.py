"""What the rest of the mnode asks of whoever runs streams: on Spark (`controller`) or in one thread (`local`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.mnode.monitor import TaskReport
from penstock.mnode.stream_status import WorkerInfo
from penstock.tasks.messages import Recalculate, Replay, TaskStatus

if TYPE_CHECKING:
    from penstock.mnode.controller import RunningStream, StreamEvent, StreamReport
    from penstock.mnode.records import CommitRecord


class Controller(Protocol):
    """Runs streams; see `StreamController` for what each method promises."""

    def start(self, stream: RunningStream) -> None: ...

    def stop(self, stream_id: int, timeout_s: float = ...) -> None: ...

    def pause(self, stream_id: int) -> None: ...

    def resume(self, stream_id: int, skip_to_end: bool = False) -> None: ...

    def recalculate(self, stream_id: int, order: Recalculate | Replay) -> None: ...

    def checkpoint_now(self, stream_id: int, wait: bool = False, timeout_s: float = ...) -> CommitRecord | None: ...

    def statuses(self) -> list[TaskStatus]: ...

    def task_reports(self) -> list[TaskReport]: ...

    def stream_states(self) -> dict[int, StreamReport]: ...

    def events(self) -> list[StreamEvent]: ...

    def workers(self) -> list[WorkerInfo]: ...

    def close(self) -> None: ...
