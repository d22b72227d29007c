"""A few lines of line protocol into tables that exist, from the text to the log one by one: what single devices send.

Whatever isn't plain, needs a table to be made or changed, or is a part of a row that is there, is left to `Schemaless`,
which is the definition of what lines do.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.common.clock import Clock
from penstock.common.errors import AlreadyExistsError, InvalidStatementError, InvalidValueError
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.ddl.child_creation import ChildCreator, check_child_name
from penstock.mnode.ddl.column_rules import VARIABLE
from penstock.mnode.dnode.vnode_storage import Storage
from penstock.mnode.write.line_times import LineTimes
from penstock.sql.rows.line_scanner import Series, scan_line
from penstock.sql.rows.row_pattern import PlainValue
from penstock.sql.schema import Database, Table
from penstock.sql.types import Kind
from penstock.vnode.store.table_state import Row
from penstock.vnode.write.vnode_writer import BegunWrite

_TEXT_MAX, _LINES_MAX = 16_384, 64  # from there on columns are cheaper
_SHAPES_MAX, _SERIES_MAX = 4096, 65_536

NameChild = Callable[[Series], tuple[str, dict[str, str]]]
"""Returns the name of a series' child table, and the tags that are stored."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """How lines with the same fields give the rows of a table as it was.

    `places`: where in a row the value of each field goes; `lengths`: how long it may be at most, None for what has no
    length. `partial`: they don't give all columns.
    """

    table: Table
    places: tuple[int, ...]
    lengths: tuple[int | None, ...]
    partial: bool


@dataclass(slots=True)
class _Group:
    """Lines, by their places, whose rows can be one record."""

    table: Table
    lines: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    partial: bool = False


class LineRows:
    """Thread-safe."""

    def __init__(
        self, catalog: Catalog, storage: Storage, children: ChildCreator, clock: Clock, name_child: NameChild
    ) -> None:
        self._catalog = catalog
        self._storage = storage
        self._children = children
        self._clock = clock
        self._name_child = name_child
        self._shapes: dict[tuple[int, tuple[str, ...], tuple[Kind, ...]], _Shape] = {}
        #: what each series has its rows in, and the super table of which its tags were checked
        self._series: dict[tuple[int, Series], tuple[Table, str]] = {}

    def append(self, data: bytes, database: Database, precision: str) -> tuple[int, bytes]:
        """Appends the rows of plain lines; returns how many, and the lines that are left, which were not written.

        They stand where they stood, so that their numbers are the same.
        """
        groups = self._read(data, database, precision)
        if groups is None:
            return 0, data
        count = 0
        left: set[int] = set()
        for (vgroup_id, _), group in groups.items():
            if self._written(vgroup_id, group):
                count += len(group.rows)
            else:
                left.update(group.lines)
        return count, b"\n".join(
            line if place in left else b"" for place, line in enumerate(data.split(b"\n"))) if left else b""

    def begin(self, data: bytes, database: Database, precision: str) -> BegunWrite | None:
        """Begins to append the rows of plain lines if they are one record; None, and nothing, if there is more to it,
        or it would be waited for long.
        """
        groups = self._read(data, database, precision)
        if groups is None or len(groups) != 1:
            return None
        [((vgroup_id, _), group)] = groups.items()
        return self._storage.begin_few(
            vgroup_id, group.table.uid, _columns(group.table), group.rows, partial=group.partial)

    def _read(self, data: bytes, database: Database, precision: str) -> dict[tuple[int, int], _Group] | None:
        """Returns the rows by vgroup and storage table; None if they are many, or a line isn't plain."""
        if len(data) > _TEXT_MAX or data.count(b"\n") > _LINES_MAX:
            return None
        try:
            return self._groups(data.decode(), database, LineTimes(database, precision, self._clock.now_ms()))
        except (UnicodeDecodeError, InvalidValueError):
            return None

    def _groups(self, text: str, database: Database, times: LineTimes) -> dict[tuple[int, int], _Group] | None:
        """Returns the rows by vgroup and storage table; None if a line isn't plain. Raises InvalidValueError."""
        groups: dict[tuple[int, int], _Group] = {}
        for place, line in enumerate(text.split("\n")):
            stripped = line.strip(" \t\r\0")
            if not stripped or stripped.startswith("#"):
                continue
            series, fields, time = scan_line(stripped)
            table = self._catalog.table(database.name, series.measurement.replace(".", "_"))
            shape = None if table is None else self._shape(table, fields)
            if table is None or shape is None or self._catalog.streams.maker_of(table) is not None:
                return None
            child = self._child(table, series)
            at = times.scaled(time)
            if child is None or at is None:
                return None
            row = _row(shape, child[0], at, fields)
            if row is None:
                return None
            group = groups.get((child[1], table.uid))
            if group is None:
                group = groups[child[1], table.uid] = _Group(table)
            group.partial |= shape.partial
            group.lines.append(place)
            group.rows.append(row)
        return groups

    def _shape(self, table: Table, fields: list[tuple[str, Kind, PlainValue]]) -> _Shape | None:
        """Returns where these fields go; None if the table doesn't have them so."""
        key = (table.uid, tuple([one[0] for one in fields]), tuple([one[1] for one in fields]))
        known = self._shapes.get(key)
        if known is None or known.table is not table:
            made = _made_shape(table, fields)
            if made is None:
                return None
            if len(self._shapes) >= _SHAPES_MAX:
                self._shapes.clear()
            known = self._shapes[key] = made
        return known

    def _child(self, table: Table, series: Series) -> tuple[int, int] | None:
        """Returns uid and vgroup of the child table that a series has its rows in, None if it isn't there as it is."""
        known = self._series.get((table.uid, series))
        if known is None or known[0] is not table:
            name = self._checked_name(table, series)
            if name is None:
                return None
            if len(self._series) >= _SERIES_MAX:
                self._series.clear()
            known = self._series[table.uid, series] = table, name
        try:
            children = self._children.known_in_order(table, (known[1],))
        except AlreadyExistsError:
            return None
        return None if children is None else (children[0].uid, children[0].vgroup_id)

    def _checked_name(self, table: Table, series: Series) -> str | None:
        """Returns the name of a series' child table; None if the super table doesn't have its tags so."""
        name, stored = self._name_child(series)
        try:
            check_child_name(name)
        except InvalidStatementError:
            return None
        tags = {tag.name: tag.type for tag in table.tags}
        for key, value in stored.items():
            kind = tags.get(key)
            if kind is None or kind.kind not in (Kind.NCHAR, Kind.VARCHAR):
                return None
            if (len(value) if kind.kind is Kind.NCHAR else len(value.encode())) > (kind.length or 0):
                return None
        return name

    def _written(self, vgroup_id: int, group: _Group) -> bool:
        try:
            return self._storage.write_few(
                vgroup_id, group.table.uid, _columns(group.table), group.rows, partial=group.partial)
        except (struct.error, OverflowError):
            return False


def _columns(table: Table) -> tuple[str, ...]:
    return tuple([column.physical for column in table.columns])


def _made_shape(table: Table, fields: list[tuple[str, Kind, PlainValue]]) -> _Shape | None:
    if table.kind != "super" or table.key_column is not None:
        return None
    columns = {column.name: (place, column.type) for place, column in enumerate(table.columns) if place}
    places, lengths = [], []
    for name, kind, _ in fields:
        place, column_type = columns.get(name, (0, None))
        if column_type is None or column_type.kind is not kind:
            return None
        places.append(place + 1)  # behind the uid of the child table
        lengths.append((column_type.length or 0) if kind in VARIABLE else None)
    return _Shape(table, tuple(places), tuple(lengths), len({*places}) + 1 < len(table.columns))


def _row(shape: _Shape, uid: int, time: int, fields: list[tuple[str, Kind, PlainValue]]) -> Row | None:
    """Returns a line's row; None if a value is too long."""
    row: list[PlainValue] = [None] * (len(shape.table.columns) + 1)
    row[0], row[1] = uid, time
    for place, length, (_, kind, value) in zip(shape.places, shape.lengths, fields, strict=True):
        if length is not None and isinstance(value, str | bytes):
            size = len(value.encode()) if kind is Kind.VARCHAR and isinstance(value, str) else len(value)
            if size > length:
                return None
        row[place] = value
    return tuple(row)
