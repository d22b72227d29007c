"""Says how far FILL_HISTORY is, in one line."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.common.moments import moment_text
from penstock.sql.types import UNITS_PER_SECOND, Precision
from penstock.tasks.protocol.task_status import HistoryProgress


def history_text(progress: Sequence[HistoryProgress], precision: Precision) -> str | None:
    """Returns e.g. `42.0%, 1200 rows, reached 2024-05-01 10:00:00.000, 14 s left`; None without any history.

    Several source tasks: the mean share, all rows, the time that all have reached, the longest time left.
    """
    if not progress:
        return None
    rows = sum(one.rows for one in progress)
    if all(one.done for one in progress):
        return f"done, {rows} rows"
    share = sum(one.share for one in progress) / len(progress)
    parts = [f"{100 * share:.1f}%", f"{rows} rows"]
    reached = [one.reached_ts for one in progress if not one.done]
    known = [ts for ts in reached if ts is not None]
    if known and len(known) == len(reached):
        parts.append(f"reached {moment_text(min(known) * 1000 // UNITS_PER_SECOND[precision])}")
    left = [one.remaining_ms for one in progress if one.remaining_ms is not None]
    if left:
        parts.append(f"{-(-max(left) // 1000)} s left")
    return ", ".join(parts)
