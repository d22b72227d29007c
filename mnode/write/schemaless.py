"""Writes line protocol into super tables, which are created and extended as the lines need it.

Everything is read and checked first; a call that is refused for its lines has written nothing and changed no table.
Parsing is `line_protocol`'s, the change of schemas `ddl`'s, the writing `inserts`'s.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.clock import Clock
from penstock.common.config import Config
from penstock.common.errors import InvalidStatementError, InvalidValueError, NotSupportedError
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.name_lookup import require_database
from penstock.mnode.catalog.system_schema import DATABASES as SYSTEM_DATABASES
from penstock.mnode.ddl.alter_table import TableAlterations
from penstock.mnode.ddl.child_creation import check_child_name
from penstock.mnode.ddl.column_rules import MAX_LENGTH, VARIABLE, check_columns
from penstock.mnode.ddl.name_rules import check_name
from penstock.mnode.ddl.table_statements import TableStatements
from penstock.mnode.ddl.tables_in_use import refuse_if_made_by_stream
from penstock.mnode.write.inserts import Inserts, Rows
from penstock.mnode.write.line_times import LinePrecision, LineTimes
from penstock.mnode.write.row_lines import LineRows
from penstock.sql.rows.line_protocol import FieldColumn, Ints, Points, parse_lines
from penstock.sql.rows.line_scanner import Series
from penstock.sql.schema import Column, Database, Table, TagValue
from penstock.sql.types import DataType, Kind
from penstock.vnode.write.vnode_writer import BegunWrite

TIME_COLUMN = "_ts"
NO_TAGS = "_tag_null"
SHORTEST = 16  # a new column of text has at least this length: each growth is a change of the table

_OUT_OF_RANGE = 0x060B
_PRECISIONS = get_args(LinePrecision)
_TAG_KINDS = (Kind.NCHAR, Kind.VARCHAR)


@dataclass(frozen=True, slots=True)
class Naming:
    """How child tables get their names: by the value of `name_tag`, by all tag values, or, if both are empty, by MD5.

    The tag values are joined by `delimiter` in the order of the tags' names. Dots become underscores.
    """

    name_tag: str = ""
    delimiter: str = ""

    @classmethod
    def from_config(cls, config: Config) -> Naming:
        return cls(config.sml_child_table_name, config.sml_auto_child_table_name_delimiter)

    def child(self, series: Series) -> tuple[str, dict[str, str]]:
        """Returns the name of the series' child table, and the tags that are stored."""
        tags = dict(series.tags)
        given = tags.pop(self.name_tag, None) if self.name_tag else None
        if given is not None:
            return given.replace(".", "_"), tags
        ordered = sorted(tags.items())
        if self.delimiter and ordered:
            return self.delimiter.join(value for _, value in ordered).replace(".", "_"), tags
        text = ",".join([series.measurement, *(f"{key}={value}" for key, value in ordered)])
        return "t_" + hashlib.md5(text.encode(), usedforsecurity=False).hexdigest(), tags


@dataclass(frozen=True, slots=True)
class _Family:
    """What all lines of one super table have: points, fields with types, tags with the length they need."""

    name: str
    points: tuple[Points, ...]
    fields: dict[str, tuple[DataType, int]]  # and the line that has it first
    tags: dict[str, int]
    children: dict[Series, tuple[str, dict[str, str]]]


class Schemaless:
    """Executes calls of `ingest_lines`; safe for many threads."""

    def __init__(
        self,
        catalog: Catalog,
        tables: TableStatements,
        alterations: TableAlterations,
        ddl_lock: AbstractContextManager[object],
        inserts: Inserts,
        clock: Clock,
        naming: Naming,
        rows: LineRows,
    ) -> None:
        """`ddl_lock` is held while schemas are read and changed, as by every statement that changes them. `rows` takes
        what it can of a few lines.
        """
        self._catalog = catalog
        self._table_statements = tables
        self._alterations = alterations
        self._ddl_lock = ddl_lock
        self._inserts = inserts
        self._clock = clock
        self._naming = naming
        self._line_rows = rows

    def append_few(self, data: bytes, database: str, precision: str) -> tuple[int, bytes]:
        """Appends the rows of lines that need nothing but this, if there are few, and at a fraction of the cost.

        Returns how many, and the lines that are left for `ingest_lines`, with the numbers that they had. `precision` is
        the unit of the lines' timestamps. Raises InvalidStatementError, NotFoundError, StorageError.
        """
        return self._line_rows.append(data, self._target(database, precision), precision)

    def begin_few(self, data: bytes, database: str, precision: str) -> BegunWrite | None:
        """Begins what `append_few` does, for lines that are one record; None, and nothing, if there is more to it."""
        return self._line_rows.begin(data, self._target(database, precision), precision)

    def ingest_lines(self, data: bytes, database: str, precision: str, first_line: int = 1) -> int:
        """Returns how many lines were written. `precision` is the unit of the lines' timestamps.

        Raises InvalidValueError with line number and text, InvalidStatementError, NotFoundError, InUseError.
        """
        target = self._target(database, precision)
        points = parse_lines(data, first_line)
        if not points:
            return 0
        times = [self._times(one, precision, target) for one in points]
        families = self._families([replace(one, times=at) for one, at in zip(points, times, strict=True)])
        if all(self._catalog.child(target.name, name) is not None
               for family in families for name, _ in family.children.values()):
            return self._inserts.write(self._all_rows(target, families)).affected
        # A child must have a value for each tag of its super table: no other call may add one meanwhile.
        with self._ddl_lock:
            rows = self._all_rows(target, families)
            self._inserts.create_children(rows)
        return self._inserts.write(rows).affected

    def _target(self, database: str, precision: str) -> Database:
        if precision not in _PRECISIONS:
            raise InvalidStatementError(f"{precision!r} is not a precision of line protocol",
                                        hint="h, m, s, ms, us and ns are")
        target = require_database(database, self._catalog)
        if target.name in SYSTEM_DATABASES:
            raise InvalidStatementError(f"{target.name} is a system database")
        return target

    def _all_rows(self, database: Database, families: Sequence[_Family]) -> list[Rows]:
        """Returns the rows of all lines, after making and extending the tables that they need."""
        return [part for family, table in zip(families, self._tables(database, families), strict=True)
                for part in self._rows(database, table, family)]

    def _times(self, points: Points, precision: str, database: Database) -> Ints:
        """Returns the timestamps in the database's precision; finer ones are cut off. `InvalidValueError` beyond KEEP.
        """
        scale = LineTimes(database, precision, self._clock.now_ms())
        scaled, outside = scale.all_scaled(points.times, points.timeless)
        if outside.any():
            row = int(np.flatnonzero(outside)[0])
            raise InvalidValueError(
                f"line {points.lines[row]}: the timestamp {points.times[row]} ({precision}) is out of range",
                code=_OUT_OF_RANGE, hint=f"KEEP of {database.name} allows {scale.oldest} to {scale.latest} "
                f"{database.precision}; is the precision right?")
        return scaled

    # --- what the lines need -------------------------------------------------------------------------------------

    def _families(self, points: Sequence[Points]) -> list[_Family]:
        by_name: dict[str, list[Points]] = {}
        for one in points:
            by_name.setdefault(one.measurement.replace(".", "_"), []).append(one)
        return [self._family(name, members) for name, members in by_name.items()]

    def _family(self, name: str, points: Sequence[Points]) -> _Family:
        fields: dict[str, tuple[DataType, int]] = {}
        tags: dict[str, int] = {}
        children: dict[Series, tuple[str, dict[str, str]]] = {}
        for group in points:
            line = int(group.lines[0])
            for field in group.fields:
                needed = _field_type(field)
                known, first = fields.setdefault(field.name, (needed, line))
                if known.kind is not needed.kind:  # measurements whose names differ in dots only
                    raise InvalidValueError(
                        f"line {line}, field {field.name}: the value is {needed.kind} here, but {known.kind} in "
                        f"line {first}")
                if (needed.length or 0) > (known.length or 0):
                    fields[field.name] = needed, first
            for place, series in enumerate(group.series):
                if series in children:
                    continue
                child, stored = self._naming.child(series)
                try:
                    children[series] = check_child_name(child), stored
                except InvalidStatementError as error:
                    row = int(np.flatnonzero(group.index == place)[0])
                    raise InvalidValueError(f"line {group.lines[row]}: {error.message}", hint=error.hint) from error
                for key, value in stored.items():
                    tags[key] = max(tags.get(key, 1), len(value))
        return _Family(name, tuple(points), fields, tags, children)

    # --- tables --------------------------------------------------------------------------------------------------

    def _tables(self, database: Database, families: Sequence[_Family]) -> list[Table]:
        """Returns the super tables, made or extended where lines need it; nothing is changed if one cannot be."""
        tables = [self._catalog.table(database.name, family.name) for family in families]
        for table in tables:
            if table is not None:
                refuse_if_made_by_stream(table, self._catalog)
        if all(table is not None and _needs(table, family) is None
               for table, family in zip(tables, families, strict=True)):
            return [table for table in tables if table is not None]
        with self._ddl_lock:
            changes = [self._change(database, family) for family in families]
            return [self._apply(database, *change) for change in changes]

    def _change(
        self, database: Database, family: _Family
    ) -> tuple[_Family, Table | None, tuple[Column, ...], tuple[Column, ...]]:
        """Returns the table as it is, and its new or longer columns and tags."""
        table = self._catalog.table(database.name, family.name)
        if table is not None:
            columns, tags = _needs(table, family) or ((), ())
            self._alterations.extended(table, columns, tags)
            return family, table, columns, tags
        time = Column(TIME_COLUMN, DataType(Kind.TIMESTAMP, precision=database.precision), TIME_COLUMN)
        columns = (time, *(_new(name, kind, "column") for name, (kind, _) in family.fields.items()))
        tags = tuple(_new(name, DataType(Kind.NCHAR, length), "tag") for name, length in family.tags.items())
        tags = tags or (_new(NO_TAGS, DataType(Kind.NCHAR, 1), "tag"),)
        try:
            check_name(family.name, "table")
            check_columns(columns, tags)
        except InvalidStatementError as error:
            raise InvalidStatementError(f"line {family.points[0].lines[0]}: super table {family.name}: "
                                        f"{error.message}", code=error.code, hint=error.hint) from error
        return family, None, columns, tags

    def _apply(
        self, database: Database, family: _Family, table: Table | None, columns: tuple[Column, ...],
        tags: tuple[Column, ...],
    ) -> Table:
        if table is None:
            return self._table_statements.create_table_of(database, family.name, columns, tags, super_table=True)
        return self._alterations.extend_table(table, columns, tags) if columns or tags else table

    # --- rows ----------------------------------------------------------------------------------------------------

    def _rows(self, database: Database, table: Table, family: _Family) -> list[Rows]:
        tags = {name: tuple[TagValue, ...](stored.get(tag.name) for tag in table.tags)
                for name, stored in family.children.values()}
        codes = {name: code for code, name in enumerate(tags)}
        dictionary = pa.array(list(tags), pa.string())
        batches = [_batch(table, group, codes, family) for group in family.points]
        return [Rows(database, table, batch, names=pa.DictionaryArray.from_arrays(pa.array(index), dictionary),
                     tags=tags)
                for index, batch in _in_order(batches)]


_Batch = tuple[np.ndarray[tuple[int], np.dtype[np.int32]], pa.RecordBatch, Ints]
"""For each row which child it belongs to; the physical columns; line numbers."""


def _batch(table: Table, points: Points, codes: dict[str, int], family: _Family) -> _Batch:
    of_series = np.array([codes[family.children[series][0]] for series in points.series], np.int32)
    time = table.time_column
    arrays = {time.physical: pa.array(points.times).view(time.type.arrow())}
    for field in sorted(points.fields, key=lambda field: field.name):
        column = table.column(field.name)
        assert column is not None
        arrays[column.physical] = field.values
    return of_series[points.index], pa.RecordBatch.from_pydict(arrays), points.lines


def _in_order(batches: Sequence[_Batch]) -> Iterable[tuple[np.ndarray[tuple[int], np.dtype[np.int32]], pa.RecordBatch]]:
    """Returns batches that, written one after the other, leave what the lines would leave one after the other."""
    if len(batches) == 1:
        return [batches[0][:2]]
    shapes: dict[tuple[str, ...], list[_Batch]] = {}
    for batch in batches:
        shapes.setdefault(tuple(batch[1].schema.names), []).append(batch)
    joined = [members[0] if len(members) == 1 else _sorted_by_line(members) for members in shapes.values()]
    if len(joined) == 1:
        return [joined[0][:2]]
    again = _written_again(joined)
    if not again.any():
        return [batch[:2] for batch in joined]
    # A row of one shape may only replace rows of another that stand before it: such rows go in runs of lines.
    ordered: list[tuple[int, int, np.ndarray[tuple[int], np.dtype[np.int32]], pa.RecordBatch]] = []
    start = 0
    for shape, (index, batch, lines) in enumerate(joined):
        mine = again[start:start + len(lines)]
        start += len(lines)
        for rows in (np.flatnonzero(~mine), *_runs(np.flatnonzero(mine), lines, shape, joined, again)):
            if len(rows):
                first = -1 if not mine[rows[0]] else int(lines[rows[0]])
                ordered.append((first, shape, index[rows], batch.take(pa.array(rows))))
    ordered.sort(key=lambda part: part[:2])
    return [part[2:] for part in ordered]


def _sorted_by_line(batches: Sequence[_Batch]) -> _Batch:
    lines = np.concatenate([batch[2] for batch in batches])
    index = np.concatenate([batch[0] for batch in batches])
    rows = pa.concat_batches([batch[1] for batch in batches])
    if (np.diff(lines) > 0).all():
        return index, rows, lines
    order = np.argsort(lines, kind="stable")
    return index[order], rows.take(pa.array(order)), lines[order]


def _written_again(batches: Sequence[_Batch]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Returns which rows, over all batches, have a key that another batch has too."""
    children = np.concatenate([batch[0] for batch in batches])
    times = np.concatenate([batch[1].column(0).view(pa.int64()).to_numpy() for batch in batches])
    shapes = np.repeat(np.arange(len(batches)), [len(batch[0]) for batch in batches])
    again = np.zeros(len(children), np.bool_)
    order = np.lexsort((times, children))
    child, time, shape = children[order], times[order], shapes[order]
    starts = np.flatnonzero(np.concatenate(([True], (child[1:] != child[:-1]) | (time[1:] != time[:-1]))))
    several = np.minimum.reduceat(shape, starts) != np.maximum.reduceat(shape, starts)
    again[order] = np.repeat(several, np.diff(np.append(starts, len(order))))
    return again


def _runs(
    rows: Ints, lines: Ints, shape: int, batches: Sequence[_Batch], again: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> list[Ints]:
    """Cuts rows where a line of another shape that matters stands between two of them."""
    bounds = np.cumsum([0, *(len(batch[2]) for batch in batches)])
    others = np.sort(np.concatenate([
        batch[2][again[bounds[place]:bounds[place + 1]]] for place, batch in enumerate(batches) if place != shape]))
    passed = np.searchsorted(others, lines[rows])
    return np.split(rows, np.flatnonzero(np.diff(passed)) + 1)


# --- types -----------------------------------------------------------------------------------------------------


def _field_type(field: FieldColumn) -> DataType:
    """Returns the type that the values need, with the length that they have."""
    if field.kind not in VARIABLE:
        return DataType(field.kind)
    lengths = pc.utf8_length(field.values) if field.kind is Kind.NCHAR else pc.binary_length(field.values)
    return DataType(field.kind, max(int(pc.max(lengths).as_py()), 1))


def _needs(table: Table, family: _Family) -> tuple[tuple[Column, ...], tuple[Column, ...]] | None:
    """Returns the columns and tags that the table lacks or has too short, or None. Raises if types don't agree."""
    line = int(family.points[0].lines[0])
    if table.kind != "super":
        raise InvalidStatementError(f"line {line}: {table.name} is a {table.kind} table, not a super table")
    if table.key_column is not None:
        raise NotSupportedError(f"line {line}: super table {table.name} has a composite key, which lines cannot have")
    columns = []
    for name, (needed, first) in family.fields.items():
        column = table.column(name)
        if column is None:
            columns.append(_new(name, needed, "column"))
        elif column not in table.columns or column == table.time_column:
            raise InvalidValueError(f"line {first}: {name} is a {'tag' if column in table.tags else 'timestamp'} of "
                                    f"{table.name}, not a field")
        elif column.type.kind is not needed.kind:
            raise InvalidValueError(
                f"line {first}, field {name}: {table.name} has it as {column.type.sql()}, the value is {needed.kind}",
                hint="a suffix tells the type: 1 is DOUBLE, 1i BIGINT, 1u BIGINT UNSIGNED")
        elif (needed.length or 0) > (column.type.length or 0):
            columns.append(_new(name, needed, "column"))
    tags = []
    for name, length in family.tags.items():
        tag = table.column(name)
        if tag is None:
            tags.append(_new(name, DataType(Kind.NCHAR, length), "tag"))
        elif tag not in table.tags or tag.type.kind not in _TAG_KINDS:
            raise InvalidValueError(
                f"line {line}: {name} is a tag here, {table.name} has it as "
                f"{'a tag of type' if tag in table.tags else 'a column of type'} {tag.type.sql()}")
        elif _tag_length(tag, family) > (tag.type.length or 0):
            tags.append(_new(name, DataType(tag.type.kind, _tag_length(tag, family)), "tag"))
    return (tuple(columns), tuple(tags)) if columns or tags else None


def _tag_length(tag: Column, family: _Family) -> int:
    """Returns the length that the tag needs, in its own unit: characters, or bytes for VARCHAR."""
    if tag.type.kind is Kind.NCHAR:
        return family.tags[tag.name]
    return max(len(stored[tag.name].encode()) for _, stored in family.children.values() if tag.name in stored)


def _new(name: str, kind: DataType, what: Literal["column", "tag"]) -> Column:
    """Returns a column with some room: text gets a length that is a power of two."""
    if kind.length is not None:
        limit = MAX_LENGTH[what] // (4 if kind.kind is Kind.NCHAR else 1)
        if kind.length > limit:
            raise InvalidValueError(f"{what} {name}: a value has a length of {kind.length}, at most {limit} fit")
        kind = replace(kind, length=min(max(SHORTEST, 1 << (kind.length - 1).bit_length()), limit))
    return Column(name, kind, name)
