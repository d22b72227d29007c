"""What the tasks of streams knew at a checkpoint, read from their states while none of them runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.common.paths import DataPaths
from penstock.tasks.dropped.time_ledger import TimeLedger
from penstock.tasks.protocol.messages import DroppedRow, TaskId
from penstock.tasks.recalculation.reading_back import is_reading_back
from penstock.tasks.state.state_check import Unreadable, read_states
from penstock.tasks.state.state_store import StateStore
from penstock.tasks.window.expiring_groups import LET_GO


@dataclass(frozen=True, slots=True)
class SavedTask:
    """What a task knew. `mark` of an agg task: its watermark, of a source task: the greatest event time that it sent.

    `reads_back`: whether it still had history, or a range, to read. `dropped`: the last rows that it left out.
    `forgotten_groups`: how many groups STATE_TTL had let go there.
    """

    mark: int | None
    reads_back: bool = False
    dropped: tuple[DroppedRow, ...] = ()
    forgotten_groups: int = 0


def saved_tasks(paths: DataPaths, wanted: Mapping[TaskId, int]) -> dict[TaskId, SavedTask | Unreadable]:
    """Returns what source and agg tasks of streams by event time knew at a checkpoint each, or why nobody can tell."""
    places = [(paths.state(task.stream_id, str(task)), checkpoint_id) for task, checkpoint_id in wanted.items()]
    return dict(zip(wanted, read_states(places, _saved), strict=True))


def _saved(store: StateStore, checkpoint_id: int) -> SavedTask:
    meta = store.meta(checkpoint_id)
    if "watermarks" in meta:
        return SavedTask(meta["watermarks"]["current"], forgotten_groups=meta.get(LET_GO, 0))
    ledger = TimeLedger()
    ledger.restore(meta["ledger"], store)
    return SavedTask(meta.get("max_ts"), is_reading_back(meta), ledger.sample)
