"""Instants as text for people."""

from __future__ import annotations

from datetime import UTC, datetime


def moment_text(ms: int) -> str:
    """Returns an instant in UTC, such as `2024-05-01 10:00:00.000`; beyond the year 9999 as it was given."""
    try:
        moment = datetime.fromtimestamp(ms // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(ms)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{ms % 1000:03}"
