"""INSERT in all its forms: the whole statement is read and checked first, then written vnode by vnode.

Nothing is written if anything in the statement is wrong. Fewer than `FEW_ROWS` rows are seen at once. Between vnodes,
and between records of a longer statement, there is no atomicity else, as in TDengine: if a disk fails half-way, some
rows may be there; writing all of them again is harmless, since rows are upserts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.clock import Clock
from penstock.common.errors import InvalidStatementError, InvalidValueError, NotFoundError, PenstockError
from penstock.common.suggestions import did_you_mean
from penstock.mnode.access.session import Result
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.name_lookup import (
    COLUMN_MISSING,
    database_of,
    require_column,
    require_database,
    require_table,
    table_missing,
)
from penstock.mnode.ddl.child_creation import ChildCreator, check_child_name
from penstock.mnode.ddl.tables_in_use import refuse_if_made_by_stream
from penstock.mnode.ddl.tag_values import read_tags
from penstock.mnode.dnode.vnode_storage import Storage
from penstock.mnode.write.arrow_rows import gathered, read_parquet, slices
from penstock.mnode.write.csv_rows import CsvCells, CsvLayout, columns_of, csv_file
from penstock.mnode.write.recent_names import RecentNames
from penstock.mnode.write.row_placement import Owners, by_vgroup, order_of, write_changes
from penstock.sql.dialect.parser import parse_table_name
from penstock.sql.rows.constants import Constants, shorten
from penstock.sql.rows.fitting import fitted, is_marked_as_utc, row_number
from penstock.sql.rows.keyed_rows import keyed
from penstock.sql.rows.values import read_values
from penstock.sql.schema import Column, Database, Session, Table, TagValue
from penstock.sql.time_bounds import LATEST, oldest_allowed
from penstock.sql.tree.statements import Insert, InsertTarget, Name, Query
from penstock.sql.types import DataType, Kind
from penstock.vnode.write.vnode_writer import WrittenRows

TBNAME = Column("tbname", DataType(Kind.VARCHAR, 192), "tbname")

# Rows in one record of the log: readers take a record as a whole, and lock out other writers for so long.
_RECORD_ROWS = 1 << 17
_FEW_NAMES = 64  # are quickly looked at one by one
_OUT_OF_RANGE = 0x060B
_BAD_COLUMNS = 0x263F

_Coming = dict[tuple[str, str], tuple[Table, dict[str, tuple[TagValue, ...]]]]
"""Child tables that an INSERT creates, by database and name: super table, and tag values by the child's name."""

_Codes = np.ndarray[tuple[int], np.dtype[np.int32]]

QueryRunner = Callable[[Query, Session], Result]


@dataclass(frozen=True, slots=True)
class Rows:
    """Checked rows for one storage table. Either all belong to one table, or `names` holds each row's child table.

    `batch` has physical columns. `owners` are the child tables of the dictionary of `names` if all of them were there;
    else `tags` holds the tag values of children that may have to be created.
    """

    database: Database
    storage: Table
    batch: pa.RecordBatch
    uid: int | None = None
    vgroup_id: int | None = None
    names: pa.DictionaryArray | None = None
    tags: dict[str, tuple[TagValue, ...]] = field(default_factory=dict)
    owners: Owners | None = None


class Inserts:
    """Executes INSERT; safe for many threads."""

    def __init__(
        self, catalog: Catalog, storage: Storage, children: ChildCreator, clock: Clock, pool: Executor
    ) -> None:
        """`pool` runs the parts of one statement that go to different vnodes."""
        self._catalog = catalog
        self._storage = storage
        self._children = children
        self._clock = clock
        self._pool = pool
        self._recent = RecentNames()

    def close(self) -> None:
        """Waits for writes under way."""
        self._pool.shutdown(wait=True)

    def insert(self, statement: Insert, text: str, session: Session, run_query: QueryRunner) -> Result:
        """Writes the rows and returns how many were given. `run_query` gives those of a query, all at once."""
        coming: _Coming = {}
        rows = [part for target in statement.targets
                for part in self._read(target, text, session, coming, run_query)]
        return self.write(rows)

    def insert_arrow(self, table: str, rows: pa.Table, session: Session, first_row: int = 0) -> Result:
        """Writes the rows of an Arrow table, columns by name. See `Cursor.insert_arrow`.

        `first_row` is the number, from 0, that errors count rows from.
        """
        target = self._named_table(table, session)
        columns = [self._arrow_column(target, name) for name in rows.column_names]
        return self.write(self._from_arrow(target, columns, rows, session, first_row=first_row))

    def csv_layout(
        self, table: str, names: Sequence[str] | None, session: Session, *, has_header: bool | None = None,
        quote: str | None = None,
    ) -> CsvLayout:
        """Returns what the columns of a CSV file for a table may be; `names` are those that are said to be."""
        target = self._named_table(table, session)
        return _layout(target, target.kind == "super", None if names is None else tuple(names), has_header, quote)

    def insert_cells(self, table: str, cells: CsvCells, session: Session) -> Result:
        """Writes rows whose values are text, as CSV has them."""
        target = self._named_table(table, session)
        columns = [self._arrow_column(target, name) for name in cells.names]
        batch = self._from_cells(target, columns, cells, session)
        return self.write([self._owned(require_database(target.database, self._catalog), target, columns, batch, {})])

    def _named_table(self, name: str, session: Session) -> Table:
        return self._writable_table(parse_table_name(name), session)

    # --- reading -----------------------------------------------------------------------------------------------

    def _read(
        self, target: InsertTarget, text: str, session: Session, coming: _Coming, run_query: QueryRunner
    ) -> list[Rows]:
        table, child_tags = self._target_table(target, text, session, coming)
        database = require_database(table.database, self._catalog)
        if target.query is not None:
            return self._read_query(target, target.query, table, session, run_query)
        if target.rows is not None:
            columns = self._columns(target, table, child_tags)
            batch = read_values(
                target.rows, target.rows_offset, columns, text, precision=database.precision,
                time_zone=session.time_zone, now_ms=session.now_ms)
            return [self._rows(database, table, columns, batch, child_tags)]
        assert target.file is not None
        path = Path(target.file).expanduser()
        try:
            if path.suffix.lower() == ".parquet":
                if target.columns is not None:
                    self._columns(target, table, child_tags)
                found = read_parquet(path, target.columns)
                columns = [self._file_column(name, table, child_tags) for name in found.column_names]
                return self._from_arrow(table, columns, found, session, child_tags)
            names = None if target.columns is None else tuple(
                column.name for column in self._columns(target, table, child_tags))
            with csv_file(path, _layout(table, table.kind == "super" and not child_tags, names)) as reader:
                columns = [self._file_column(name, table, child_tags) for name in reader.names]
                batches = gathered(self._from_cells(table, columns, cells, session) for cells in reader)
                return [self._owned(database, table, columns, batch, child_tags) for batch in batches]
        except PenstockError as error:
            message = error.message if str(path) in error.message else f"{path}, {error.message}"
            raise type(error)(message, code=error.code, hint=error.hint) from error

    def _target_table(
        self, target: InsertTarget, text: str, session: Session, coming: _Coming
    ) -> tuple[Table, dict[str, tuple[TagValue, ...]]]:
        """Returns the table, and for a child that USING creates: its super table, its name and tag values."""
        database = database_of(target.name, session, self._catalog, text)
        if target.using is None:
            created = coming.get((database.name, target.name.name))
            return created or (self._writable_table(target.name, session, text), {})
        existing = self._catalog.table(database.name, target.name.name)
        if existing is not None and existing.kind == "child":
            refuse_if_made_by_stream(existing, self._catalog)
            return existing, {}
        parent = self._writable_table(target.using, session, text)
        if parent.kind != "super":
            raise InvalidStatementError(f"{target.using} is not a super table")
        if existing is not None:
            raise InvalidStatementError(f"{target.name} is not a child table of {target.using}")
        if parent.database != database.name:
            raise InvalidStatementError(f"{target.name} must be in the database of {parent.database}.{parent.name}")
        name = check_child_name(target.name.name)
        tags = read_tags(parent, target.tag_names, target.tag_values, database.precision, session)
        return coming.setdefault((database.name, name), (parent, {name: tags}))

    def _writable_table(self, name: Name, session: Session, text: str = "") -> Table:
        table = require_table(name, session, self._catalog, text)
        if table.kind == "system":
            raise InvalidStatementError(f"{name} is a system table")
        refuse_if_made_by_stream(table, self._catalog)
        return table

    def _columns(
        self, target: InsertTarget, table: Table, child_tags: Mapping[str, tuple[TagValue, ...]]
    ) -> list[Column]:
        """Returns the columns that a row's values are for."""
        super_form = table.kind == "super" and not child_tags
        if target.columns is None:
            if super_form:
                raise InvalidStatementError(
                    f"{target.name} is a super table: name the columns, tbname among them", code=_BAD_COLUMNS,
                    hint=f"INSERT INTO {target.name} (tbname, {table.time_column.name}, ...) VALUES (...)")
            return list(table.columns)
        if not super_form:
            columns = [require_column(name, table.columns, table) for name in target.columns]
        else:
            columns = [self._arrow_column(table, name) for name in target.columns]
        self._check_keys(table, columns)
        return columns

    def _arrow_column(self, table: Table, name: str) -> Column:
        if table.kind != "super":
            return require_column(name, table.columns, table)
        if name == TBNAME.name:
            return TBNAME
        column = table.column(name)
        if column is None:
            known = [TBNAME.name, *(c.name for c in (*table.columns, *table.tags))]
            raise NotFoundError(f"column {name} does not exist in {table.name}", code=COLUMN_MISSING,
                                hint=did_you_mean(name, known))
        return column

    def _file_column(self, name: str, table: Table, child_tags: Mapping[str, tuple[TagValue, ...]]) -> Column:
        """Returns the column that a file's column of this name is for."""
        return require_column(name, table.columns, table) if child_tags else self._arrow_column(table, name)

    def _check_keys(self, table: Table, columns: Sequence[Column]) -> None:
        for key in table.key_columns:
            if key not in columns:
                raise InvalidStatementError(f"the key column {key.name} is missing", code=_BAD_COLUMNS)

    def _read_query(
        self, target: InsertTarget, query: Query, table: Table, session: Session, run_query: QueryRunner
    ) -> list[Rows]:
        columns = self._columns(target, table, {})
        result = run_query(query, session).table
        assert result is not None
        if result.num_columns != len(columns):
            raise InvalidStatementError(
                f"the query gives {result.num_columns} columns, {len(columns)} are to be inserted", code=_BAD_COLUMNS)
        return self._from_arrow(table, columns, result, replace(session, time_zone="UTC"))

    def _from_arrow(
        self,
        table: Table,
        columns: Sequence[Column],
        rows: pa.Table,
        session: Session,
        child_tags: dict[str, tuple[TagValue, ...]] | None = None,
        first_row: int = 0,
    ) -> list[Rows]:
        """Returns rows; timestamps without a zone are local times of the session, unless they come from a result."""
        self._check_keys(table, columns)
        database = require_database(table.database, self._catalog)
        if len({column.name for column in columns}) < len(columns):
            raise InvalidStatementError("a column is given twice", code=_BAD_COLUMNS)
        names = [column.physical for column in columns]
        own, utc = (Constants(database.precision, zone, session.now_ms) for zone in (session.time_zone, "UTC"))
        constants = [utc if is_marked_as_utc(field) else own for field in rows.schema]
        parts = []
        for start, part in slices(rows, first_row):
            where = partial(row_number, first=start)
            # Names of child tables come again and again: as text they are read once each.
            arrays = [fitted(column, part.column(place), constants[place], where, checks_text=column is not TBNAME)
                      for place, column in enumerate(columns)]
            batch = pa.RecordBatch.from_arrays(arrays, names=names)
            parts.append(self._rows(database, table, columns, batch, child_tags or {}, where))
        return parts

    def _from_cells(
        self, table: Table, columns: Sequence[Column], cells: CsvCells, session: Session
    ) -> pa.RecordBatch:
        self._check_keys(table, columns)
        database = require_database(table.database, self._catalog)
        batch = columns_of(cells, columns, Constants(database.precision, session.time_zone, session.now_ms))
        self._check_rows(database, table, batch, cells.where)
        return batch

    def _rows(
        self,
        database: Database,
        table: Table,
        columns: Sequence[Column],
        batch: pa.RecordBatch,
        child_tags: dict[str, tuple[TagValue, ...]],
        where: Callable[[int], str] = row_number,
    ) -> Rows:
        """Returns rows that can be written: keys are there and in range, child tables have possible names.

        `where` says where the n-th row (from 0) is, for errors.
        """
        self._check_rows(database, table, batch, where)
        return self._owned(database, table, columns, batch, child_tags, where)

    def _owned(
        self,
        database: Database,
        table: Table,
        columns: Sequence[Column],
        batch: pa.RecordBatch,
        child_tags: dict[str, tuple[TagValue, ...]],
        where: Callable[[int], str] = row_number,
    ) -> Rows:
        """Returns rows, whose keys were checked, with whom they belong to."""
        if table.kind != "super":
            parent = table
            if table.kind == "child":
                assert table.super_uid is not None
                self._children.await_announced((table.name,))
                found = self._catalog.table_by_uid(table.super_uid)
                if found is None:
                    raise table_missing(Name(table.name, table.database), Session(), self._catalog)
                parent = found
            return Rows(database, parent, keyed(table, batch) if table.keyed else batch, table.uid, table.vgroup_id)
        if child_tags:
            (name,) = child_tags
            names = pa.DictionaryArray.from_arrays(np.zeros(batch.num_rows, np.int32), [name])
            return Rows(database, table, batch, names=names, tags=child_tags)
        if TBNAME not in columns:
            raise InvalidStatementError(
                f"{table.name} is a super table: tbname must be among the columns", code=_BAD_COLUMNS)
        return self._super_rows(database, table, columns, batch, where)

    def _super_rows(
        self, database: Database, table: Table, columns: Sequence[Column], batch: pa.RecordBatch,
        where: Callable[[int], str],
    ) -> Rows:
        names = _plain_codes(batch.column(columns.index(TBNAME)))
        if names.indices.null_count:
            check_child_name(None)
        kept = batch.select([column.physical for column in columns if column in table.columns])
        moves = self._catalog.moves
        owners = self._recent.find(table, names.dictionary, moves)
        if owners is not None:
            return Rows(database, table, kept, names=names, owners=owners)
        texts = _names(names, where)
        children = self._children.known_in_order(table, texts)
        if children is not None:
            owners = Owners(children)
            self._recent.keep(table, names.dictionary, owners, moves)
            return Rows(database, table, kept, names=names, owners=owners)
        first_rows = pa.array(_first_rows(names.indices.to_numpy(), len(texts)))
        values = [_tag_values(batch.column(tag.physical).take(first_rows)) if tag in columns else [None] * len(texts)
                  for tag in table.tags]
        tags: dict[str, tuple[TagValue, ...]] = {}
        for place, text in enumerate(texts):
            name = check_child_name(text)
            there = self._catalog.child(database.name, name) is not None
            tags[name] = () if there else tuple(column[place] for column in values)
        return Rows(database, table, kept, names=names, tags=tags)

    def _check_rows(
        self, database: Database, table: Table, batch: pa.RecordBatch, where: Callable[[int], str]
    ) -> None:
        if table.keyed:
            return  # NULL is a key as others are
        for key in table.key_columns:
            what = "key column" if key.primary_key else "primary timestamp"
            _check_no_null(batch.column(key.physical), f"the {what} {key.name}", where)
        if not batch.num_rows:
            return
        times = batch.column(table.time_column.physical)
        values: np.ndarray[tuple[int], np.dtype[np.int64]] = times.to_numpy().view(np.int64)
        oldest, latest = oldest_allowed(database, self._clock.now_ms()), LATEST[database.precision]
        if int(values.min()) < oldest or int(values.max()) > latest:
            row = int(np.flatnonzero((values < oldest) | (values > latest))[0])
            raise InvalidValueError(
                f"{where(row)}: the timestamp {values[row]} is out of range", code=_OUT_OF_RANGE,
                hint=f"KEEP allows {oldest} to {latest}")

    # --- writing -----------------------------------------------------------------------------------------------

    def write(self, all_rows: Sequence[Rows]) -> Result:
        """Writes rows that are checked already, in this order, creating the child tables that don't exist."""
        self.create_children(all_rows)
        batches: dict[int, dict[int, list[pa.RecordBatch]]] = {}
        total = 0
        for rows in all_rows:
            total += rows.batch.num_rows
            for vgroup_id, batch in self._placed(rows):
                pending = batches.setdefault(vgroup_id, {}).setdefault(rows.storage.uid, [])
                pending.append(batch)
        wal_level = max((rows.database.options.wal_level for rows in all_rows), default=1)
        changes = {vgroup_id: partial(_changes, tables) for vgroup_id, tables in batches.items()}
        write_changes(self._storage, self._pool, changes, rows=total, wal_level=wal_level)
        return Result(affected=total)

    def create_children(self, all_rows: Sequence[Rows]) -> None:
        """Creates the child tables of these rows that don't exist."""
        wanted: dict[int, tuple[Table, dict[str, tuple[TagValue, ...]]]] = {}
        for rows in all_rows:
            if rows.tags:
                _, tags = wanted.setdefault(rows.storage.uid, (rows.storage, {}))
                for name, values in rows.tags.items():
                    tags.setdefault(name, values)
        for parent, tags in wanted.values():
            self._children.ensure(parent, tags)

    def _placed(self, rows: Rows) -> list[tuple[int, pa.RecordBatch]]:
        """Returns (vgroup, batch with `_tuid`) pairs; rows stay in order within a vgroup."""
        batch = rows.batch
        if not batch.num_rows:
            return []
        if rows.uid is not None:
            assert rows.vgroup_id is not None
            return [(rows.vgroup_id, _with_tuid(batch, pa.repeat(pa.scalar(rows.uid, pa.uint64()), batch.num_rows)))]
        assert rows.names is not None
        owners = rows.owners
        if owners is None:
            names = rows.names.dictionary.to_pylist()
            children = self._children.ensure(rows.storage, rows.tags or dict.fromkeys(names, ()))
            owners = Owners([children[name] for name in names])
        return place_by_index(batch, rows.names.indices.to_numpy(), owners)


def _changes(tables: Mapping[int, Sequence[pa.RecordBatch]]) -> list[WrittenRows]:
    return [WrittenRows(table_uid, part) for table_uid, batches in tables.items() for batch in _joined(batches)
            for part in record_batches(batch)]


def _check_no_null(values: pa.Array, what: str, where: Callable[[int], str]) -> None:
    if values.null_count:
        row = pc.index(values.is_null(), True).as_py()
        raise InvalidValueError(f"{where(row)}: {what} must not be NULL")


def _layout(
    table: Table, is_super: bool, names: tuple[str, ...] | None, has_header: bool | None = None,
    quote: str | None = None,
) -> CsvLayout:
    columns = tuple(column.name for column in table.columns)
    known = (TBNAME.name, *columns, *(tag.name for tag in table.tags)) if is_super else columns
    return CsvLayout(names, None if is_super else columns, known, has_header, quote)


def record_batches(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Cuts rows into what goes into one record of a log each."""
    return [batch.slice(start, _RECORD_ROWS) for start in range(0, batch.num_rows, _RECORD_ROWS)]


def place_by_index(batch: pa.RecordBatch, index: _Codes, owners: Owners) -> list[tuple[int, pa.RecordBatch]]:
    """Splits rows over the vgroups of their child tables: (vgroup, batch with `_tuid`).

    `index` tells for each row which of the `owners` it belongs to. Rows of one child table stay in their order.
    """
    order = order_of(owners.ranks[index])
    if order is not None:
        batch, index = batch.take(pa.array(order)), index[order]
    return by_vgroup(_with_tuid(batch, pa.array(owners.uids[index])), owners.vgroups[index])


def _with_tuid(batch: pa.RecordBatch, uids: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([uids, *batch.columns], names=["_tuid", *batch.schema.names])


def _joined(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Joins neighbours that have the same columns, so that a statement costs few writes; the order stays."""
    groups: list[list[pa.RecordBatch]] = []
    for batch in batches:
        if groups and groups[-1][0].schema.equals(batch.schema):
            groups[-1].append(batch)
        else:
            groups.append([batch])
    return [group[0] if len(group) == 1 else pa.concat_batches(group) for group in groups]


def _plain_codes(names: pa.Array) -> pa.DictionaryArray:
    """Returns names as a dictionary with codes of 32 bits, that has each name once and only names that occur."""
    few = _few_codes(names) if len(names) <= _FEW_NAMES else None
    if few is not None:
        return few
    if not pa.types.is_dictionary(names.type):
        return names.dictionary_encode()
    used = names.indices.dictionary_encode()
    dictionary = names.dictionary.take(used.dictionary).dictionary_encode()
    return pa.DictionaryArray.from_arrays(dictionary.indices.take(used.indices), dictionary.dictionary)


def _few_codes(names: pa.Array) -> pa.DictionaryArray | None:
    """Does that for a few names, for which Arrow takes longer; None if one is NULL or no UTF-8."""
    codes: dict[str | None, int] = {}
    try:
        places = [codes.setdefault(name, len(codes)) for name in names.to_pylist()]
    except UnicodeDecodeError:
        return None
    return None if None in codes else pa.DictionaryArray.from_arrays(
        np.array(places, np.int32), pa.array([*codes], pa.string()))


def _names(names: pa.DictionaryArray, where: Callable[[int], str]) -> list[str]:
    try:
        return list(names.dictionary.to_pylist())
    except UnicodeDecodeError as error:
        place = names.dictionary.cast(pa.binary()).to_pylist().index(error.object)
        row = pc.index(names.indices, place).as_py()
        raise InvalidValueError(
            f"{where(row)}, column {TBNAME.name}: {shorten(str(error.object))} is not valid UTF-8") from error


def _first_rows(codes: _Codes, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Returns the first row of each code below `count`, all of which occur."""
    first = np.empty(count, np.int64)
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)  # of rows with the same code the last one written stays
    return first


def _tag_values(column: pa.Array) -> list[TagValue]:
    """Returns values of a column as those of tags; times are integers."""
    values: list[TagValue] = (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
    return values
