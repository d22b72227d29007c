"""What was planned for streams, kept for as long as it is what planning anew would give."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Generic, TypeVar

T = TypeVar("T")


class KeptPlans(Generic[T]):
    """What was planned by stream and purpose. It is forgotten with the first change of the catalog: `Catalog.changes`
    counts them. Safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[int, tuple[int, dict[str, T]]] = {}

    def get(
        self, stream_id: int, catalog_changes: int, purpose: str, make: Callable[[], T],
        lasts: Callable[[T], bool] = lambda _: True,
    ) -> T:
        """Returns what was planned while the catalog had changed so often, or plans it; it is kept if it `lasts`.

        Raises what `make` raises.
        """
        with self._lock:
            changes, kept = self._kept.get(stream_id, (-1, {}))
            if changes == catalog_changes and purpose in kept:
                return kept[purpose]
        made = make()
        if lasts(made):
            with self._lock:
                changes, kept = self._kept.get(stream_id, (-1, {}))
                if changes < catalog_changes:
                    self._kept[stream_id] = catalog_changes, {purpose: made}
                elif changes == catalog_changes:
                    kept[purpose] = made
        return made

    def forget_all_but(self, stream_ids: Collection[int]) -> None:
        """Forgets what was planned for other streams."""
        with self._lock:
            for stream_id in self._kept.keys() - stream_ids:
                del self._kept[stream_id]
