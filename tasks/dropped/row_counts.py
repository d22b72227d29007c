"""Counts what becomes of the rows that one source task takes, so that none is lost unnoticed."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.tasks.protocol.task_status import RowAccount


@dataclass(slots=True)
class RowCounts:
    """Rows of this attempt by what was decided on them, each counted where that is. `history` came from the store.

    Rows that are read back to be computed again are none of them.
    """

    history: int = 0
    skipped: int = 0
    handed_on: int = 0
    late: int = 0
    dropped: int = 0
    filtered: int = 0

    def computed(self, rows: int, handed_on: int) -> None:
        """Counts rows that were computed: some were handed on, the others were filtered."""
        self.handed_on += handed_on
        self.filtered += rows - handed_on

    def account(self, read: int, waiting: int) -> RowAccount:
        """Returns the counts. `read`: rows from the log, some of which are `waiting` to be processed."""
        return RowAccount(read + self.history, waiting, self.skipped, self.handed_on, self.late, self.dropped,
                          self.filtered)
