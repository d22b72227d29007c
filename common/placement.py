"""Where a table lives: a stable hash of its full name, the same for ever and on every machine."""

from __future__ import annotations

import google_crc32c


def place(full_name: str, places: int) -> int:
    """Returns the index of the vgroup, of `places` many, that the table `database.table` belongs to."""
    digest: int = google_crc32c.value(full_name.encode())
    return digest % places
