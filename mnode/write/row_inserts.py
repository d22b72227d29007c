"""Small INSERTs of plain rows into tables that exist, from the text to the log in a few steps: what devices send.

Whatever isn't such an INSERT, or can't be appended to the newest rows of its table, is left to `Inserts`, which is the
definition of what a statement does: nothing that it would refuse, or do otherwise, is done here.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from penstock.common.clock import Clock
from penstock.common.errors import AlreadyExistsError
from penstock.mnode.access.session import Result, SessionState
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.ddl.child_creation import ChildCreator
from penstock.mnode.dnode.shared_lock import SharedLock
from penstock.mnode.dnode.vnode_storage import Storage
from penstock.mnode.write.inserts import TBNAME
from penstock.sql.dialect.tokenizer import KEYWORDS
from penstock.sql.rows.constants import Constants
from penstock.sql.rows.row_pattern import PLAIN_TEXT, PlainValue, RowPattern, row_pattern
from penstock.sql.schema import Database, Table
from penstock.sql.time_bounds import LATEST, oldest_allowed
from penstock.vnode.store.table_state import Row

_NAME = r"([A-Za-z_][A-Za-z0-9_]*+|`[^`]++`)"
_NAMES = r"\(([A-Za-z0-9_,\s]*+)\)\s*+"
_TAG = rf"\s*+(?:-?[0-9]{{1,18}}+(?:\.[0-9]{{1,18}}+)?+|{PLAIN_TEXT}|NULL|null|true|false|TRUE|FALSE)\s*+"
_USING = rf"USING\s++(?:{_NAME}\.)?{_NAME}\s*+(?:{_NAMES})?TAGS\s*+\(({_TAG}(?:,{_TAG})*+)\)\s*+(?:{_NAMES})?"
_HEAD = re.compile(
    rf"\s*+INSERT\s++INTO\s++(?:{_NAME}\.)?{_NAME}\s*+(?:{_NAMES})?(?:{_USING})?VALUES\s*+(?=\()",
    re.ASCII | re.IGNORECASE)
_TAGS = re.compile(_TAG, re.ASCII)
_TEXT_MAX, _ROWS_MAX = 4096, 32  # from there on columns are cheaper
_PATTERNS_MAX = 4096


@dataclass(frozen=True, slots=True)
class _TablePattern:
    """How statements give the rows of a table as it was; `columns` are the names that its values are stored under."""

    table: Table
    columns: tuple[str, ...]
    pattern: RowPattern | None


@dataclass(frozen=True, slots=True)
class _Target:
    """Where the rows of a statement go. Without `uid` each row ends with the name of its child table."""

    rows: _TablePattern
    uid: int | None = None
    vgroup_id: int = 0


class RowInserts:
    """Thread-safe."""

    def __init__(
        self, catalog: Catalog, storage: Storage, children: ChildCreator, clock: Clock, writing: SharedLock
    ) -> None:
        """`writing` is held while rows are written, so that tables don't change their vnodes meanwhile."""
        self._catalog = catalog
        self._writing = writing
        self._storage = storage
        self._children = children
        self._clock = clock
        self._patterns: dict[tuple[int, str | None, bool], _TablePattern] = {}

    def insert(self, text: str, state: SessionState) -> Result | None:
        """Writes the rows of a statement that is a small INSERT of plain, new rows; None, and nothing, if it isn't.

        Raises what writing raises.
        """
        if len(text) > _TEXT_MAX:
            return None
        head = _HEAD.match(text)
        if head is None:
            return None
        with self._writing.shared():  # only now: what writes no rows waits for nobody who moves them
            return self._insert(text, head, state)

    def _insert(self, text: str, head: re.Match[str], state: SessionState) -> Result | None:
        prefix, name, before, *using, after = head.groups()
        database = self._catalog.user_database(_database(prefix, state))
        if database is None or (before is not None and after is not None):
            return None
        listed = after if before is None else before
        target = self._target(database, _name(name) or "", listed)
        if target is None or not (using[1] is None or _is_child(target, *using, state=state)):
            return None
        now_ms = self._clock.now_ms()
        constants = Constants(database.precision, state.time_zone, now_ms)
        pattern = target.rows.pattern
        rows = None if pattern is None else pattern.read(text, head.end(), _ROWS_MAX, constants)
        if rows is None or not _in_range(rows, database, now_ms):
            return None
        return Result(affected=len(rows)) if self._append(target, rows) else None

    def _target(self, database: Database, name: str, listed: str | None) -> _Target | None:
        found = self._catalog.rows_of(database.name, name)
        if found is not None:
            table, uid, vgroup_id = found
            return _Target(self._pattern(table, listed, by_name=False), uid, vgroup_id)
        if listed is None or TBNAME.name not in listed.lower():
            return None
        storage = self._catalog.table(database.name, name)
        return None if storage is None or storage.kind != "super" else _Target(
            self._pattern(storage, listed, by_name=True))

    def _pattern(self, table: Table, listed: str | None, *, by_name: bool) -> _TablePattern:
        key = (table.uid, listed, by_name)
        known = self._patterns.get(key)
        if known is None or known.table is not table:
            if len(self._patterns) >= _PATTERNS_MAX:
                self._patterns.clear()
            known = self._patterns[key] = _table_pattern(table, listed, by_name=by_name)
        return known

    def _append(self, target: _Target, rows: list[list[PlainValue]]) -> bool:
        """Appends rows, and returns whether that would do; else nothing is written."""
        placed = self._placed(target, rows)
        if placed is None:
            return False
        vgroup_id, complete = placed
        try:
            return self._storage.append(vgroup_id, target.rows.table.uid, target.rows.columns, complete)
        except (struct.error, OverflowError):  # a value that doesn't fit: who reads it as columns says which
            return False

    def _placed(self, target: _Target, rows: list[list[PlainValue]]) -> tuple[int, list[Row]] | None:
        """Returns the rows as they are stored, and their vgroup; None if it isn't one, or a child table isn't there."""
        if target.uid is not None:
            return target.vgroup_id, [(target.uid, *row) for row in rows]
        try:
            children = self._children.known(target.rows.table, [row[-1] for row in rows if isinstance(row[-1], str)])
        except AlreadyExistsError:
            return None
        if children is None or any(row[-1] is None for row in rows):
            return None
        vgroup_ids = {child.vgroup_id for child in children.values()}
        if len(vgroup_ids) > 1:
            return None
        return vgroup_ids.pop(), [(children[str(row[-1])].uid, *row[:-1]) for row in rows]


def _table_pattern(table: Table, listed: str | None, *, by_name: bool) -> _TablePattern:
    of = (*table.columns, TBNAME) if by_name else table.columns
    columns = list(of)
    if listed is not None:
        by_word = {column.name: column for column in of}
        names = [_name(name.strip()) for name in listed.split(",")]
        columns = [by_word[name] for name in names if name in by_word]
        if len(columns) < len(names) or table.time_column not in columns:
            return _TablePattern(table, (), None)
    pattern = row_pattern(columns, of) if table.key_column is None else None
    return _TablePattern(table, tuple(column.physical for column in table.columns), pattern)


def _database(prefix: str | None, state: SessionState) -> str:
    return (state.database if prefix is None else _name(prefix)) or ""


def _name(text: str) -> str | None:
    """Returns the name that a word is, None for keywords."""
    if text.startswith("`"):
        return text[1:-1]
    return None if text.upper() in KEYWORDS else text.lower()


def _is_child(target: _Target, prefix: str | None, name: str, tag_names: str | None, tags: str, *,
              state: SessionState) -> bool:
    """Returns whether USING names the super table of a table that is there, and as many tags as it gives values."""
    table = target.rows.table
    if table.kind != "super" or target.uid is None or _name(name) != table.name:
        return False
    if _database(prefix, state) != table.database:
        return False
    if tag_names is None:
        return True
    names = [_name(tag.strip()) for tag in tag_names.split(",")]
    return len(names) == len(_TAGS.findall(tags)) and {tag.name for tag in table.tags}.issuperset(names)


def _in_range(rows: list[list[PlainValue]], database: Database, now_ms: int) -> bool:
    oldest, latest = oldest_allowed(database, now_ms), LATEST[database.precision]
    return all(isinstance(row[0], int) and oldest <= row[0] <= latest for row in rows)
