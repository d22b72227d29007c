"""What is shown of a stream's checkpoints: its commit records, and what the controller tells of those without one."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.mnode.checkpoints.commit_records import CommitRecord, StoredRecord
from penstock.mnode.coordinator.stream_status import CheckpointInfo, StreamStatus


def checkpoint_infos(
    stored: Sequence[StoredRecord], status: StreamStatus | None, rows_total: int | None
) -> list[CheckpointInfo]:
    """Returns a stream's checkpoints, oldest first. `rows_total`: rows that it has read by now, None if not known."""
    damaged = {} if status is None else status.damaged
    infos = {one.checkpoint_id: _info(one, damaged.get(one.checkpoint_id, ""), rows_total) for one in stored}
    for info in () if status is None else status.checkpoints:
        # The record of a checkpoint whose attempt ended meanwhile may have been written all the same.
        infos.setdefault(info.checkpoint_id, info)
    return [info for _, info in sorted(infos.items())]


def _info(stored: StoredRecord, damage: str, rows_total: int | None) -> CheckpointInfo:
    record = stored.record
    if record is None:
        return CheckpointInfo(stored.checkpoint_id, "DAMAGED", reason=stored.damage)
    slowest = record.slowest
    return CheckpointInfo(
        record.checkpoint_id, "DAMAGED" if damage else "COMMITTED", record.started_ms,
        record.started_ms + round(record.duration_ms), record.bytes_written, record.versions, damage,
        slowest_task="" if slowest is None else slowest.task,
        slowest_ms=None if slowest is None else slowest.after_ms,
        rows_to_replay=None if damage else _rows_since(record, rows_total),
        task_bytes={task.task: task.bytes_written for task in record.tasks})


def _rows_since(record: CommitRecord, rows_total: int | None) -> int | None:
    """Returns how many rows a restart from the record would read again."""
    if record.rows is None or rows_total is None:
        return None
    return max(0, rows_total - record.rows)
