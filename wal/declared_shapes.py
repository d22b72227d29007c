"""Which shapes of rows a segment has declared so far."""

from __future__ import annotations

import pyarrow as pa

from penstock.wal.record import SHAPES


class DeclaredShapes:
    """Ids of shapes by table and schema; for the segment that is being written."""

    def __init__(self) -> None:
        self._ids: dict[tuple[int, pa.Schema], int] = {}
        # Of each table the schema that it was asked for last: looking for the same object costs next to nothing.
        self._newest: dict[int, tuple[pa.Schema, int]] = {}
        self._next = 0

    def find(self, table_uid: int, schema: pa.Schema) -> int | None:
        """Returns the id of a shape that is declared."""
        newest = self._newest.get(table_uid)
        if newest is not None and newest[0] is schema:
            return newest[1]
        known = self._ids.get((table_uid, schema))
        if known is not None:
            self._newest[table_uid] = schema, known
        return known

    @property
    def next_id(self) -> int:
        """The id of the shape that is declared next. Ids may come again: what is declared later counts."""
        return self._next

    def declare(self, table_uid: int, schema: pa.Schema) -> None:
        """Takes note that a shape was declared, by the next id."""
        self._ids[table_uid, schema] = self._next
        self._next = (self._next + 1) % SHAPES

    def forget(self) -> None:
        """Begins a segment, or goes on where nobody knows what is declared."""
        self._ids, self._newest = {}, {}
