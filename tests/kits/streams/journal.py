"""An append-only target in memory, which survives the tasks: whatever is written to it twice is there twice."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from penstock.tasks.protocol.messages import ResultWrite


@dataclass
class Journal:
    """What readers of an append-only target see, and what is prepared for them; survives the tasks."""

    seen: list[dict[str, Any]] = field(default_factory=list)
    prepared: dict[int, list[dict[str, Any]]] = field(default_factory=dict)


class JournalWriter:
    """Appends every row that is written to a journal: a row that is written twice is there twice."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.open: list[dict[str, Any]] = []
        self.submitted = 0

    def submit(self, write: ResultWrite) -> None:
        self.submitted += 1
        self.open += write.rows.drop_columns(["_child", "_op"]).to_pylist()

    def acknowledged(self) -> int:
        return self.submitted

    def recover(self, checkpoint_id: int | None) -> None:
        self.commit(checkpoint_id or 0)
        self.journal.prepared.clear()

    def prepare(self, checkpoint_id: int) -> None:
        self.journal.prepared[checkpoint_id], self.open = self.open, []

    def commit(self, checkpoint_id: int) -> None:
        for number in sorted(self.journal.prepared):
            if number <= checkpoint_id:
                self.journal.seen += self.journal.prepared.pop(number)

    def commit_writes(self) -> None:
        self.journal.seen += self.open
        self.open = []
