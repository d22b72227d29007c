"""What the checkpoint of a source task says of rows that are still to be read back; for who has no use for the task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_reading_back(meta: Mapping[str, Any]) -> bool:
    """Tells of a source task's checkpoint whether history, or a range, is still to be read for it."""
    history = meta.get("history")
    return bool(meta.get("ranges")) or (history is not None and not history["done"])
