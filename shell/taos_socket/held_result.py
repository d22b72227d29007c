"""The rows of one result, which a client takes block by block."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack

import pyarrow as pa

from penstock.common.errors import PenstockError
from penstock.common.quantities import MIB
from penstock.mnode.query.json_rows import small_parts
from penstock.planner.task_plans.plan_tree import ResultColumn

HELD_BYTES = 64 * MIB


class HeldResult:
    """Rows that are there, and those that a query still computes.

    Some are computed ahead, so that the query of a small result ends, and keeps none from running, however slowly the
    client takes its rows.
    """

    def __init__(self, columns: tuple[ResultColumn, ...], batches: Iterator[pa.RecordBatch], query: ExitStack) -> None:
        """`query` is closed at the end of `batches`. Raises what the first batches raise."""
        self.columns = columns
        self._batches = batches
        self._query: ExitStack | None = query
        self._held: deque[pa.RecordBatch] = deque()
        self._error: PenstockError | None = None
        try:
            self._fill(HELD_BYTES)
        except BaseException:
            self.close()
            raise

    @property
    def is_computed(self) -> bool:
        """Whether nothing of it runs any more."""
        return self._query is None

    def finish(self) -> None:
        """Computes what is left; an error comes when the rows before it have been taken."""
        try:
            self._fill(None)
        except PenstockError as error:
            self._error = error
            self.close()

    def next(self) -> pa.RecordBatch | None:
        """Returns the next rows, None at the end. Raises PenstockErrors."""
        if not self._held:
            self._fill(1)
        if self._held:
            return self._held.popleft()
        if self._error is not None:
            raise self._error
        return None

    def close(self) -> None:
        """Ends the query."""
        query, self._query = self._query, None
        if query is not None:
            query.close()

    def _fill(self, nbytes: int | None) -> None:
        held = 0
        while self._query is not None and (nbytes is None or held < nbytes):
            batch = next(self._batches, None)
            if batch is None:
                self.close()
            elif batch.num_rows:
                self._held += small_parts(batch)
                held += batch.nbytes
