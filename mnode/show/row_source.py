"""What makes the rows of system tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

Row = Mapping[str, Any]
"""A row by the names of `system_schema`; what isn't there is NULL. Times are milliseconds since the epoch."""
Rows = Iterator[Row]
Maker = Callable[[], Iterable[Row]]


class RowSource(Protocol):
    """Makes the rows of some system tables, from what is known already: nothing waits for data or for a worker."""

    def makers(self) -> Mapping[str, Maker]:
        """Returns what makes the rows of a table as they are now, by the table's name."""
        ...
