"""The child tables of one sink task's results: found or created once, then addressed by their place."""

from __future__ import annotations

from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.common.masks import any_set
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.ddl.child_creation import ChildCreator
from penstock.mnode.write.row_placement import ranks_of
from penstock.planner.task_plans.column_names import OFFSET
from penstock.sql.schema import Table, TagValue
from penstock.tasks.protocol.numbered_children import NumberedChildren
from penstock.wal.record import TUID_COLUMN

_TAG_TYPES: set[type] = {str, int, float, bool, bytes, type(None)}
_Value = TypeVar("_Value")
Places = npt.NDArray[np.int64]


class StoredColumns:
    """How the columns of results become those that a vnode stores; the same for all writes of a sink task."""

    def __init__(self, target: Table, schema: pa.Schema, *, delivered: bool) -> None:
        """`schema`: that of `ResultWrite.rows`. Of its columns those of the table count, and of what was `delivered`
        where it comes from."""
        self.target = target
        self.schema = schema
        self.delivered = delivered
        known = {column.name: column for column in target.columns}
        self._columns: list[tuple[int, pa.DataType | None]] = []  # to be cast to; None: it has the type
        fields = [pa.field(TUID_COLUMN, pa.uint64())]
        for place, field in enumerate(schema):
            column = known.get(field.name)
            if column is not None:
                kind = column.type.arrow()
                self._columns.append((place, None if field.type == kind else kind))
                fields.append(pa.field(column.physical, kind))
            elif field.name == OFFSET and delivered:
                self._columns.append((place, None))
                fields.append(field)
        self._stored_schema = pa.schema(fields)

    def of(self, rows: pa.RecordBatch, uids: npt.NDArray[np.uint64]) -> pa.RecordBatch:
        """Returns rows as they are stored, of the child tables with these uids."""
        values = rows.columns
        arrays = [values[place] if kind is None else _cast(values[place], kind) for place, kind in self._columns]
        return pa.RecordBatch.from_arrays([pa.array(uids), *arrays], schema=self._stored_schema)


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Returns values in the type that the vnode stores; timestamps travel as integers."""
    if pa.types.is_timestamp(kind) and not pa.types.is_timestamp(values.type):
        return values.cast(pa.int64()).cast(kind)
    return values.cast(kind, safe=False)


class ResultChildren:
    """What is known of the children that `ResultWrite` numbers. One thread at a time.

    By place: `uids`, `vgroups`, and `ranks`, which order rows by vgroup and uid; those of one child are equal. They
    hold for places that were `learn`ed since a child table was last dropped or moved. `only`: the rows that a table has
    of which each write replaces all, as they were stored; None: nobody has looked.
    """

    def __init__(self, target: Table, wanted: NumberedChildren, catalog: Catalog, children: ChildCreator) -> None:
        """`wanted` grows; places in it stay."""
        self.target_uid = target.uid
        self.wanted = wanted
        self._catalog = catalog
        self._children = children
        self._moves = -1
        self._known = np.zeros(0, np.bool_)
        self.uids = np.zeros(0, np.uint64)
        self.vgroups = np.zeros(0, np.int64)
        self.ranks = np.zeros(0, np.int64)
        self.only: pa.RecordBatch | None = None
        self._columns: StoredColumns | None = None

    def stored_columns(self, target: Table, schema: pa.Schema, *, delivered: bool) -> StoredColumns:
        """Returns what rows of this schema are stored as; `target` as it is now. `delivered`: see `ResultWrite`."""
        known = self._columns
        if known is None or known.target is not target or known.delivered is not delivered or (
                not known.schema.equals(schema)):
            known = self._columns = StoredColumns(target, schema, delivered=delivered)
        return known

    def learn(self, target: Table, places: Places) -> None:
        """Finds the child tables at these places, creating those that don't exist; each is looked up once.

        `AlreadyExistsError` if a name belongs to a table that is no child of `target`.
        """
        moves = self._catalog.moves
        if moves != self._moves:
            self._known[:] = False
            self._moves = moves
        if len(self.wanted) > len(self._known):
            self._grow(len(self.wanted))
        unknown = ~self._known[places]
        if any_set(unknown):
            wanted = np.zeros(len(self._known), np.bool_)
            wanted[places[unknown]] = True
            self._find(target, np.flatnonzero(wanted))

    def _grow(self, count: int) -> None:
        more = count - len(self._known)
        self._known = np.concatenate((self._known, np.zeros(more, np.bool_)))
        self.uids = np.concatenate((self.uids, np.zeros(more, np.uint64)))
        self.vgroups = np.concatenate((self.vgroups, np.zeros(more, np.int64)))

    def _find(self, target: Table, places: Places) -> None:
        names = self._at(places, self.wanted.names)
        columns = [_tags(self._at(places, values)) for values in self.wanted.tags]
        self.uids[places], self.vgroups[places] = self._children.ensure_placed(target, names, columns)
        self._known[places] = True
        self.ranks = ranks_of(self.uids, self.vgroups)

    @staticmethod
    def _at(places: Places, values: list[_Value]) -> list[_Value]:
        """Returns the values at these places, which ascend: new ones are mostly in one piece."""
        first, last = int(places[0]), int(places[-1])
        return values[first:last + 1] if last - first + 1 == len(places) else [values[at] for at in places.tolist()]


def _tags(values: list[object]) -> list[TagValue]:
    if set(map(type, values)) <= _TAG_TYPES:
        return cast(list[TagValue], values)
    return [value if value is None or isinstance(value, str | int | float | bool | bytes) else str(value)
            for value in values]
