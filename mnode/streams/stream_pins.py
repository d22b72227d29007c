"""The names by which streams hold on to the log of vnodes."""

from __future__ import annotations

PIN_PREFIX, HOLD_PREFIX = "stream-", "creating-"


def pin_of(stream_id: int) -> str:
    """Returns the name of a stream's pin."""
    return f"{PIN_PREFIX}{stream_id:x}"


def hold_of(name: str) -> str:
    """Returns the name of the pin of a stream that is being created."""
    return f"{HOLD_PREFIX}{name}"
