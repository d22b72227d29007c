"""How a sink task reaches what it writes to, be that the dnode or an external system."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from penstock.tasks.protocol.messages import ResultWrite


class ResultWriter(Protocol):
    """How a sink task reaches what it writes to. Writes are performed one after the other, in their order.

    Writing the same rows again must change nothing, unless the writer is a `TransactionalWriter`.
    """

    def submit(self, write: ResultWrite) -> None:
        """Hands a write over and returns at once, also while others are under way."""
        ...

    def acknowledged(self) -> int:
        """Returns how many of all submitted writes are acknowledged; raises what one failed with.

        Those behind a write that failed are not performed.
        """
        ...


@runtime_checkable
class QuietWriter(ResultWriter, Protocol):
    """A writer that lets its task rest while that has no use for acknowledgements."""

    def wake_at(self, count: float) -> bool:
        """Wakes the task once so many writes are acknowledged, and not before unless one fails; returns whether they
        are already. Each acknowledgement wakes a task that has never called this."""
        ...


@runtime_checkable
class TransactionalWriter(ResultWriter, Protocol):
    """A writer for what would count rows that are written again. Writes count from their transaction's commit on.

    Under EXACTLY_ONCE a transaction goes from checkpoint to checkpoint: prepared when the checkpoint is taken,
    committed when that is valid. Under AT_LEAST_ONCE it is one write, which a restart may repeat.
    """

    def recover(self, checkpoint_id: int | None) -> None:
        """Commits what was prepared for this checkpoint and earlier ones, and discards everything else."""
        ...

    def prepare(self, checkpoint_id: int) -> None:
        """Makes the writes since the last `prepare` durable, so that `commit` can't fail for their sake."""
        ...

    def commit(self, checkpoint_id: int) -> None:
        """Makes everything count that was prepared for this checkpoint and earlier ones; once more is no error."""
        ...

    def commit_writes(self) -> None:
        """Makes all writes count that were acknowledged."""
        ...
