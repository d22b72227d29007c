"""Small INSERTs of plain rows into one table, from the text to the log in a few steps: what devices send all day.

Whatever isn't such an INSERT, or can't be appended to the newest rows of its table, is left to `Inserts`, which is the
definition of what a statement does: nothing that it would refuse, or do otherwise, is done here.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from penstock.common.clock import Clock
from penstock.mnode.access.session import Result, SessionState
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.dnode.vnode_storage import Storage
from penstock.sql.dialect.tokenizer import KEYWORDS
from penstock.sql.rows.constants import Constants
from penstock.sql.rows.row_pattern import PlainValue, RowPattern, row_pattern
from penstock.sql.schema import Database, Table
from penstock.sql.time_bounds import LATEST, oldest_allowed

_NAME = r"([A-Za-z_][A-Za-z0-9_]*+|`[^`]++`)"
_HEAD = re.compile(
    rf"\s*+INSERT\s++INTO\s++(?:{_NAME}\.)?{_NAME}\s*+(?:\(([A-Za-z0-9_,\s]*+)\)\s*+)?VALUES\s*+(?=\()",
    re.ASCII | re.IGNORECASE)
_TEXT_MAX, _ROWS_MAX = 4096, 32  # from there on columns are cheaper
_PATTERNS_MAX = 4096


@dataclass(frozen=True, slots=True)
class _TablePattern:
    """How statements give the rows of a table as it was; `columns` are the names that its values are stored under."""

    table: Table
    columns: tuple[str, ...]
    pattern: RowPattern | None


class RowInserts:
    """Thread-safe."""

    def __init__(self, catalog: Catalog, storage: Storage, clock: Clock) -> None:
        self._catalog = catalog
        self._storage = storage
        self._clock = clock
        self._patterns: dict[tuple[int, str | None], _TablePattern] = {}

    def insert(self, text: str, state: SessionState) -> Result | None:
        """Writes the rows of a statement that is a small INSERT of plain, new rows; None, and nothing, if it isn't.

        Raises what writing raises.
        """
        if len(text) > _TEXT_MAX:
            return None
        head = _HEAD.match(text)
        if head is None:
            return None
        prefix, name, listed = head.groups()
        database = self._catalog.user_database(state.database or "" if prefix is None else _name(prefix) or "")
        found = None if database is None else self._catalog.rows_of(database.name, _name(name) or "")
        if database is None or found is None:
            return None
        table, uid, vgroup_id = found
        known = self._pattern(table, listed)
        now_ms = self._clock.now_ms()
        constants = Constants(database.precision, state.time_zone, now_ms)
        rows = None if known.pattern is None else known.pattern.read(text, head.end(), _ROWS_MAX, constants)
        if rows is None or not _in_range(rows, database, now_ms):
            return None
        try:
            appended = self._storage.append(vgroup_id, table.uid, known.columns, [(uid, *row) for row in rows])
        except (struct.error, OverflowError):  # a value that doesn't fit: who reads it as columns says which
            return None
        return Result(affected=len(rows)) if appended else None

    def _pattern(self, table: Table, listed: str | None) -> _TablePattern:
        known = self._patterns.get((table.uid, listed))
        if known is None or known.table is not table:
            if len(self._patterns) >= _PATTERNS_MAX:
                self._patterns.clear()
            known = self._patterns[table.uid, listed] = _table_pattern(table, listed)
        return known


def _table_pattern(table: Table, listed: str | None) -> _TablePattern:
    columns = list(table.columns)
    if listed is not None:
        by_name = {column.name: column for column in columns}
        names = [_name(name.strip()) for name in listed.split(",")]
        columns = [by_name[name] for name in names if name in by_name]
        if len(columns) < len(names) or table.time_column not in columns:
            return _TablePattern(table, (), None)
    pattern = row_pattern(columns, table.columns) if table.key_column is None else None
    return _TablePattern(table, tuple(column.physical for column in table.columns), pattern)


def _name(text: str) -> str | None:
    """Returns the name that a word is, None for keywords."""
    if text.startswith("`"):
        return text[1:-1]
    return None if text.upper() in KEYWORDS else text.lower()


def _in_range(rows: list[list[PlainValue]], database: Database, now_ms: int) -> bool:
    oldest, latest = oldest_allowed(database, now_ms), LATEST[database.precision]
    return all(isinstance(row[0], int) and oldest <= row[0] <= latest for row in rows)
