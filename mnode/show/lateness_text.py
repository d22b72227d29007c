"""How late rows were, as text: a histogram of few words, and the WATERMARK that would have made almost none late."""

from __future__ import annotations

from penstock.common.durations import duration_text
from penstock.tasks.protocol.task_status import Lateness

SHARE = 0.999


def suggestion(lateness: Lateness, units_per_second: int) -> str | None:
    """Returns how late at most nearly all rows were, such as `99.9% of rows were at most 7.5s late`; None: no rows."""
    if not lateness.rows:
        return None
    return f"{SHARE:.1%} of rows were at most {duration_text(lateness.quantile(SHARE), units_per_second)} late"


def histogram_text(lateness: Lateness, units_per_second: int) -> str | None:
    """Returns `in time: rows, <= duration: rows, ...`, one part per doubling; None: no rows."""
    if not lateness.rows:
        return None
    octaves: dict[int, int] = {}
    for edge, count in lateness.late:
        octave = 1 << (edge - 1).bit_length()
        octaves[octave] = octaves.get(octave, 0) + count
    parts = [f"in time: {lateness.rows - sum(octaves.values())}"]
    parts += [f"<= {duration_text(edge, units_per_second)}: {count}" for edge, count in sorted(octaves.items())]
    return ", ".join(parts)
