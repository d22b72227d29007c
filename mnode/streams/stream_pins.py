"""The names by which streams hold on to the log of vnodes."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.mnode.catalog.catalog_records import StreamRecord

PIN_PREFIX, HOLD_PREFIX = "stream-", "creating-"


def pin_of(stream_id: int) -> str:
    """Returns the name of a stream's pin."""
    return f"{PIN_PREFIX}{stream_id:x}"


def hold_of(name: str) -> str:
    """Returns the name of the pin of a stream that is being created."""
    return f"{HOLD_PREFIX}{name}"


def beginnings(streams: Iterable[StreamRecord]) -> dict[tuple[int, str], int]:
    """Returns, by vgroup and pin, from which version on streams read that have no checkpoint."""
    return {(vgroup_id, pin_of(stream.id)): version for stream in streams for vgroup_id, version in stream.start_cut}
