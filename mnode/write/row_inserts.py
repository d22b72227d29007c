"""INSERTs of a few plain rows per table, from the text to the log in a few steps: what devices and their gateways send.

Whatever isn't such an INSERT is left to `Inserts`, which is the definition of what a statement does: nothing that it
would refuse, or do otherwise, is done here. Nothing is written before all rows are read and known to fit.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from penstock.common.clock import Clock
from penstock.common.errors import AlreadyExistsError, PenstockError
from penstock.common.responsiveness import LONG_TEXT, one_at_a_time
from penstock.mnode.access.session import Result, SessionState
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.ddl.child_creation import BegunChildren, ChildCreator
from penstock.mnode.dnode.shared_lock import SharedLock
from penstock.mnode.dnode.vnode_storage import Storage
from penstock.mnode.write.inserts import TBNAME, record_batches
from penstock.mnode.write.row_placement import write_changes
from penstock.sql.rows.child_pattern import END, PLAIN_NAME, plain_name
from penstock.sql.rows.constants import PLAIN_TEXT, Constants
from penstock.sql.rows.row_pattern import PlainValue, RowPattern, row_pattern
from penstock.sql.schema import Column, Database, Table, can_name_child
from penstock.sql.time_bounds import LATEST, oldest_allowed
from penstock.sql.types import UNITS_PER_SECOND
from penstock.vnode.store.table_state import Row
from penstock.vnode.write.vnode_writer import BegunWrite, Change, FewRows, WrittenRows
from penstock.wal.record import TUID_COLUMN

_NAME = f"({PLAIN_NAME})"
_NAMES = r"\(([A-Za-z0-9_,\s]*+)\)\s*+"
_TAG = rf"\s*+(?:-?[0-9]{{1,18}}+(?:\.[0-9]{{1,18}}+)?+|{PLAIN_TEXT}|NULL|null|true|false|TRUE|FALSE)\s*+"
_USING = rf"USING\s++(?:{_NAME}\.)?{_NAME}\s*+(?:{_NAMES})?TAGS\s*+\(({_TAG}(?:,{_TAG})*+)\)\s*+(?:{_NAMES})?"
_INSERT = re.compile(r"\s*+INSERT\s++INTO(?=\s)", re.ASCII | re.IGNORECASE)
_TARGET = re.compile(
    rf"\s*+(?:{_NAME}\.)?{_NAME}\s*+(?:{_NAMES})?(?:{_USING})?VALUES\s*+(?=\()", re.ASCII | re.IGNORECASE)
_TAGS = re.compile(_TAG, re.ASCII)
_TEXT_MAX = 1 << 20  # characters: some hundred milliseconds
_ROWS_MAX = 50  # of a table that a statement names; from there on columns are cheaper
_FEW_MAX = 256  # rows of a vnode; the same
_PATTERNS_MAX = 4096
_HEADS_MAX, _HEAD_TEXT_MAX = 32_768, 512
_ONE_ROW = Result(affected=1)


@dataclass(frozen=True, slots=True)
class _TablePattern:
    """How statements give the rows of a table as it was; `given`: its columns that they give values for."""

    table: Table
    given: tuple[Column, ...]
    pattern: RowPattern | None

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of all columns as they are stored."""
        return tuple([column.physical for column in self.table.columns])

    @property
    def is_partial(self) -> bool:
        """Whether rows don't give all columns."""
        return len(self.given) < len(self.table.columns)


@dataclass(slots=True)
class _VnodeRows:
    """Rows of one storage table in one vnode."""

    of: _TablePattern
    rows: list[Row] = field(default_factory=list)


_Groups = dict[tuple[int, int], _VnodeRows]
"""By vgroup and storage table."""


@dataclass(slots=True)
class _NewTables:
    """Child tables of one super table that come with a statement, with their tag values, and rows of each."""

    of: _TablePattern
    tags: dict[str, tuple[PlainValue, ...]] = field(default_factory=dict)
    rows: list[tuple[str, list[list[PlainValue]]]] = field(default_factory=list)


@dataclass(slots=True)
class _Read:
    """What a statement gives. `single`: where its only row goes, in which database, and where the row begins."""

    groups: _Groups = field(default_factory=dict)
    coming: dict[int, _NewTables] = field(default_factory=dict)
    count: int = 0
    wal_level: int = 0
    single: tuple[_TableTarget, Database, int] | None = None

    def place(self, of: _TablePattern, vgroup_id: int, rows: list[Row]) -> bool:
        """Puts rows to those of their vnode; returns False if other columns were given for the same table before.

        Which of two writes comes first counts then.
        """
        group = self.groups.setdefault((vgroup_id, of.table.uid), _VnodeRows(of))
        if group.of is not of:
            return False
        group.rows += rows
        return True


_Given = Callable[[Table, str | None], _TablePattern]
"""How values are given, by the names that are listed."""


class _Target(Protocol):
    """Where rows of a statement go."""

    of: _TablePattern

    def take(self, rows: list[list[PlainValue]], read: _Read) -> bool:
        """Puts rows to what is read; returns False if that isn't possible."""


@dataclass(slots=True)
class _TableTarget:
    """One table that exists."""

    of: _TablePattern
    uid: int
    vgroup_id: int

    def take(self, rows: list[list[PlainValue]], read: _Read) -> bool:
        return read.place(self.of, self.vgroup_id, [(self.uid, *row) for row in rows])


@dataclass(slots=True)
class _ChildrenTarget:
    """Child tables that exist: each row has the name of its own behind the columns."""

    of: _TablePattern
    children: ChildCreator

    def take(self, rows: list[list[PlainValue]], read: _Read) -> bool:
        table = self.of.table
        width = len(table.columns)
        names = [name for row in rows if isinstance(name := row[width], str)]
        try:
            children = self.children.known(table, names) if len(names) == len(rows) else None
        except AlreadyExistsError:
            return False
        if children is None:
            return False
        placed: dict[int, list[Row]] = {}
        for name, row in zip(names, rows, strict=True):
            child = children[name]
            placed.setdefault(child.vgroup_id, []).append((child.uid, *row[:width]))
        return all(read.place(self.of, vgroup_id, complete) for vgroup_id, complete in placed.items())


@dataclass(slots=True)
class _NewTarget:
    """A child table that comes with the statement."""

    of: _TablePattern
    name: str
    new: _NewTables

    def take(self, rows: list[list[PlainValue]], read: _Read) -> bool:
        self.new.rows.append((self.name, rows))
        return True


@dataclass(frozen=True, slots=True)
class _Head:
    """Where the only row of a statement goes that begins with a text that was read before.

    So it is while the catalog's number of changes stays. Times of rows are from `keep_ms` before now to `latest`.
    `partial`: the row doesn't give all `columns`.
    """

    changes: int
    target: _TableTarget
    columns: tuple[str, ...]
    partial: bool
    keep_ms: int
    units_per_ms: int
    latest: int


class RowInserts:
    """Thread-safe."""

    def __init__(
        self, catalog: Catalog, storage: Storage, children: ChildCreator, clock: Clock, writing: SharedLock,
        pool: Executor,
    ) -> None:
        """`writing` is held while rows are written, so that tables don't change their vnodes meanwhile.

        `pool` writes to different vnodes at the same time.
        """
        self._pool = pool
        self._catalog = catalog
        self._writing = writing
        self._storage = storage
        self._children = children
        self._clock = clock
        self._patterns: dict[tuple[int, str | None, _Given], _TablePattern] = {}
        #: by the text before a statement's last parenthesis, and the session's database
        self._heads: dict[tuple[str, str | None], _Head] = {}

    def insert(self, text: str, state: SessionState) -> Result | None:
        """Writes the rows of a statement that is a small INSERT of plain rows; None, and nothing, if it isn't.

        Raises what writing raises.
        """
        if len(text) > _TEXT_MAX:
            return None
        row = text.rfind("(")
        head = self._heads.get((text[:row], state.database))
        start = _INSERT.match(text) if head is None else None
        if head is None and start is None:
            return None
        with self._writing.shared():  # only now: what writes no rows waits for nobody who moves them
            if head is not None and self._written(head, text, row):
                return _ONE_ROW
            start = start or _INSERT.match(text)
            return None if start is None else self._insert(text, start.end(), state)

    def begin(self, text: str, state: SessionState) -> BegunWrite | None:
        """Begins to write the only row of a statement that begins as one before did; None, and nothing, if it isn't
        that simple, or would be waited for long. The caller shares `writing`.
        """
        row = text.rfind("(")
        head = self._heads.get((text[:row], state.database))
        found = None if head is None else self._row(head, text, row)
        if head is None or found is None:
            return None
        target = head.target
        return self._storage.begin_few(
            target.vgroup_id, target.of.table.uid, head.columns, (found,), partial=head.partial)

    def _written(self, head: _Head, text: str, start: int) -> bool:
        """Writes the row from `start` on, if the head is still good and the row as plain as a row can be.

        Returns whether it did; if not, `_insert` knows what to do.
        """
        found = self._row(head, text, start)
        if found is None:
            return False
        target = head.target
        try:
            return self._storage.write_few(
                target.vgroup_id, target.of.table.uid, head.columns, (found,), partial=head.partial)
        except struct.error:  # an integer is out of its column's range
            return False

    def _row(self, head: _Head, text: str, start: int) -> Row | None:
        """Returns the row from `start` on, if the head is still good and the row as plain as a row can be."""
        if head.changes != self._catalog.changes:
            return None
        pattern = head.target.of.pattern
        values = None if pattern is None else pattern.read_last(text, start)
        if values is None:
            return None
        time: Any = values[0]
        if not (self._clock.now_ms() - head.keep_ms) * head.units_per_ms <= time <= head.latest:
            return None
        return head.target.uid, *values

    def _insert(self, text: str, start: int, state: SessionState) -> Result | None:
        changes = self._catalog.changes
        with one_at_a_time(unless=len(text) < LONG_TEXT):
            read = self._read(text, start, state)
        if read is None:
            return None
        if read.coming:
            self._write_behind_tables(read)
        else:
            self._write(read)
        if read.count == 1 and read.single is not None:
            target, database, row = read.single
            if row <= _HEAD_TEXT_MAX:
                self._keep_head((text[:row], state.database), changes, target, database)
        return Result(affected=read.count)

    def _read(self, text: str, start: int, state: SessionState) -> _Read | None:
        """Returns what a statement gives if all of it is plain and fits; nothing is changed yet."""
        read, now_ms = _Read(), self._clock.now_ms()
        while not read.count or not END.fullmatch(text, start):
            head = _TARGET.match(text, start)
            database = None if head is None else self._catalog.user_database(_database(head[1], state))
            if head is None or database is None:
                return None
            constants = Constants(database.precision, state.time_zone, now_ms)
            target = self._target(database, head, state) or self._new_target(database, head, state, constants, read)
            if target is None or target.of.pattern is None:
                return None
            rows = target.of.pattern.read(text, head.end(), _ROWS_MAX, constants)
            if rows is None or not _keys_fit(rows[0], target.of.table, database, now_ms) or not target.take(
                    rows[0], read):
                return None
            if isinstance(target, _TableTarget):
                read.single = (target, database, head.end())
            read.count, start = read.count + len(rows[0]), rows[1]
            read.wal_level = max(read.wal_level, database.options.wal_level)
        agree = all(group.of is read.coming[uid].of for (_, uid), group in read.groups.items() if uid in read.coming)
        return read if agree else None

    def _new_target(self, database: Database, head: re.Match[str], state: SessionState, constants: Constants,
                    read: _Read) -> _NewTarget | None:
        """Takes note of the child table that USING creates; None if there is none to create, or it isn't said plainly.

        All rows of a super table's new children give the same columns: which of two writes comes first counts else.
        """
        _, word, before, prefix, super_name, tag_names, tags, after = head.groups()
        name = plain_name(word)
        if tags is None or name is None or not can_name_child(name) or (before is not None and after is not None):
            return None
        parent = self._catalog.table(_database(prefix, state), plain_name(super_name) or "")
        if parent is None or parent.kind != "super" or parent.database != database.name or self._is_made(parent):
            return None
        if self._catalog.table(database.name, name) is not None:
            return None
        pattern = self._pattern(parent, tag_names, _tag_pattern).pattern
        values = None if pattern is None else pattern.read(head.string, head.start(7) - 1, 1, constants)
        if values is None:
            return None
        of = self._pattern(parent, after if before is None else before, _table_pattern)
        new = read.coming.setdefault(parent.uid, _NewTables(of))
        new.tags.setdefault(name, tuple(values[0][0]))
        return _NewTarget(of, name, new) if new.of is of else None

    def _write_behind_tables(self, read: _Read) -> None:
        """Writes rows together with the records of the child tables that come with them."""
        begun: BegunChildren | None = None
        try:
            for new in read.coming.values():
                if begun is not None:  # who waits for others' child tables must not let them wait for its own
                    before, begun = begun, None
                    before.wait()
                begun = self._create(new, read)
            self._write(read)
        except BaseException:
            if begun is not None:
                with suppress(PenstockError):  # what went wrong first is told
                    begun.wait()
            raise
        if begun is not None:
            begun.wait()

    def _create(self, new: _NewTables, read: _Read) -> BegunChildren | None:
        """Begins to create child tables, and puts their rows to those of their vnodes."""
        table = new.of.table
        created, begun = self._children.begin_in_order(table, list(new.tags), list(new.tags.values()))
        children = dict(zip(new.tags, created, strict=True))
        for name, rows in new.rows:
            child = children[name]
            read.place(new.of, child.vgroup_id, [(child.uid, *row) for row in rows])
        return begun

    def _keep_head(self, key: tuple[str, str | None], changes: int, target: _TableTarget, database: Database) -> None:
        """Keeps in mind how the text before a row was understood; `changes`: the catalog's before it was."""
        known = self._heads.get(key)
        if known is not None and known.changes == changes:
            return
        if len(self._heads) >= _HEADS_MAX:
            self._heads.clear()
        columns = tuple([column.physical for column in target.of.table.columns])
        self._heads[key] = _Head(
            changes, target, columns, target.of.is_partial, database.options.keep_minutes * 60_000,
            UNITS_PER_SECOND[database.precision] // 1000, LATEST[database.precision])

    def _target(self, database: Database, head: re.Match[str], state: SessionState) -> _Target | None:
        """Returns where the rows behind a head go, None if that isn't a table that exists, or isn't said plainly."""
        _, word, before, *using, after = head.groups()
        if before is not None and after is not None:
            return None
        listed = after if before is None else before
        name = plain_name(word) or ""
        found = self._catalog.rows_of(database.name, name)
        if found is not None:
            table, uid, vgroup_id = found
            if self._is_made(table) or not self._children.is_announced(name):
                return None
            target = _TableTarget(self._pattern(table, listed, _table_pattern), uid, vgroup_id)
            return target if using[1] is None or _is_child(target, *using, state=state) else None
        if listed is None or using[1] is not None or TBNAME.name not in listed.lower():
            return None
        storage = self._catalog.table(database.name, name)
        return None if storage is None or storage.kind != "super" or self._is_made(storage) else _ChildrenTarget(
            self._pattern(storage, listed, _named_pattern), self._children)

    def _is_made(self, table: Table) -> bool:
        """Whether a stream has made the table for what it alone writes; which the whole way refuses."""
        return self._catalog.streams.maker_of(table) is not None

    def _pattern(self, table: Table, listed: str | None, given: _Given) -> _TablePattern:
        key = (table.uid, listed, given)
        known = self._patterns.get(key)
        if known is None or known.table is not table:
            if len(self._patterns) >= _PATTERNS_MAX:
                self._patterns.clear()
            known = self._patterns[key] = given(table, listed)
        return known

    def _write(self, read: _Read) -> None:
        by_vgroup: dict[int, list[_VnodeRows]] = {}
        for (vgroup_id, _), group in read.groups.items():
            by_vgroup.setdefault(vgroup_id, []).append(group)
        changes = {vgroup_id: partial(_changes, groups) for vgroup_id, groups in by_vgroup.items()}
        write_changes(self._storage, self._pool, changes, rows=read.count, wal_level=read.wal_level)


def _changes(groups: Sequence[_VnodeRows]) -> list[Change]:
    changes: list[Change] = []
    for group in groups:
        table = group.of.table
        if len(group.rows) <= _FEW_MAX:
            changes.append(FewRows(
                table.uid, group.of.columns, group.rows, group.of.is_partial, partial(_columnar, group)))
        else:
            changes += [WrittenRows(table.uid, batch) for batch in record_batches(_columnar(group))]
    return changes


def _columnar(group: _VnodeRows) -> pa.RecordBatch:
    """Returns the rows with the columns that they give, as `Vnode.write` takes them."""
    by_column = list(zip(*group.rows, strict=True))
    of = group.of
    arrays = [pa.array(by_column[0], pa.uint64())]
    for column in of.given:
        arrays.append(pa.array(by_column[of.table.columns.index(column) + 1], column.type.arrow()))
    return pa.RecordBatch.from_arrays(arrays, names=[TUID_COLUMN, *(column.physical for column in of.given)])


def _named_pattern(table: Table, listed: str | None) -> _TablePattern:
    return _table_pattern(table, listed, by_name=True)


def _table_pattern(table: Table, listed: str | None, *, by_name: bool = False) -> _TablePattern:
    of = [*table.columns, TBNAME] if by_name else list(table.columns)
    columns = list(of)
    if listed is not None:
        by_word = {column.name: column for column in (*of, *(table.tags if by_name else ()))}
        names = [plain_name(name.strip()) for name in listed.split(",")]
        columns = [by_word[name] for name in names if name in by_word]
        if len(columns) < len(names) or not {*table.key_columns} <= {*columns}:
            return _TablePattern(table, (), None)
        # Those of a child table that is there stay as they are, whatever a row says.
        of += [tag for tag in table.tags if by_name and tag in columns]
    pattern = None if table.keyed else row_pattern(columns, of)
    return _TablePattern(table, tuple(column for column in table.columns if column in columns), pattern)


def _tag_pattern(parent: Table, listed: str | None) -> _TablePattern:
    """Returns the pattern of tag values, for all tags or those that are listed; none if one of them isn't there."""
    by_name = {tag.name: tag for tag in parent.tags}
    names = list(by_name) if listed is None else [plain_name(name.strip()) for name in listed.split(",")]
    tags = [by_name[name] for name in names if name in by_name]
    return _TablePattern(parent, (), row_pattern(tags, parent.tags) if len(tags) == len(names) else None)


def _database(prefix: str | None, state: SessionState) -> str:
    return (state.database if prefix is None else plain_name(prefix)) or ""


def _is_child(target: _TableTarget, prefix: str | None, name: str, tag_names: str | None, tags: str, *,
              state: SessionState) -> bool:
    """Returns whether USING names the super table of a table that is there, and as many tags as it gives values."""
    table = target.of.table
    if table.kind != "super" or plain_name(name) != table.name:
        return False
    if _database(prefix, state) != table.database:
        return False
    if tag_names is None:
        return True
    names = [plain_name(tag.strip()) for tag in tag_names.split(",")]
    return len(names) == len(_TAGS.findall(tags)) and {tag.name for tag in table.tags}.issuperset(names)


def _keys_fit(rows: list[list[PlainValue]], table: Table, database: Database, now_ms: int) -> bool:
    oldest, latest = oldest_allowed(database, now_ms), LATEST[database.precision]
    if table.key_column is not None and any(row[1] is None for row in rows):
        return False
    return all(isinstance(row[0], int) and oldest <= row[0] <= latest for row in rows)
