"""When a stream has more than it may have: what is held against which bound, and what people are told. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.common.quantities import mebibytes
from penstock.sql.tree.expression_nodes import quote_identifier
from penstock.tasks.protocol.task_status import TaskStatus


def state_bytes(statuses: Iterable[TaskStatus]) -> int:
    """Returns the state of some tasks, in memory and on disk."""
    return sum(status.size.bytes or 0 for status in statuses)


def over_state_limit(stream: str, held: int, limit: int) -> str | None:
    """Returns why a stream with `held` bytes of state is paused, or None; `limit` 0: there is none."""
    if not limit or held <= limit:
        return None
    name = quote_identifier(stream)
    return (f"its state of {mebibytes(held)} exceeds its STATE_LIMIT of {mebibytes(limit)}; "
            f"to go on: ALTER STREAM {name} SET STATE_LIMIT '...', then RESUME STREAM {name}")
