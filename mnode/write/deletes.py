"""DELETE: takes its condition apart into one range of time and conditions on tags, refuses everything else."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import pyarrow as pa
from sqlglot import exp

from penstock.common.arrow_data import one_array
from penstock.common.errors import InvalidStatementError, InvalidValueError
from penstock.mnode.access.session import Result
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.name_lookup import require_database, require_table
from penstock.mnode.ddl.tables_in_use import refuse_if_made_by_stream
from penstock.mnode.dnode.shared_lock import SharedLock
from penstock.mnode.dnode.vnode_storage import Storage, vgroups_of
from penstock.mnode.write.keyed_results import deletes
from penstock.planner.bind.time_range import time_bounds
from penstock.planner.query.batch_plan import BatchPlan
from penstock.sql.dialect.literals import parse_timestamp
from penstock.sql.rows.keyed_rows import keyed
from penstock.sql.schema import Session, Table
from penstock.sql.tree.statements import Delete, Name, Query, Select, SelectItem, TableSource
from penstock.sql.tree.walking import conjuncts, unwrapped
from penstock.sql.types import Precision

NO_TIME_RANGE = 0x2655
_COMPARISONS = (exp.GT, exp.GTE, exp.LT, exp.LTE, exp.EQ)
_FIRST, _LAST = -(2**63), 2**63 - 1
_DIGITS = 18  # of numbers that surely have 64 bits

Planner = Callable[[Query, Session], BatchPlan]
QueryRunner = Callable[[Query, Session], Result]


class Deletes:
    """Executes DELETE."""

    def __init__(
        self, catalog: Catalog, storage: Storage, plan: Planner, run_query: QueryRunner, writing: SharedLock,
        lock: AbstractContextManager[object], lock_of: Callable[[int], AbstractContextManager[object]],
    ) -> None:
        """`writing`: shared by statements that write. `lock`: changes of the catalog take turns by it. `lock_of`: a
        table with a KEY is written by ingests under its own.
        """
        self._lock_of = lock_of
        self._writing = writing
        self._lock = lock
        self._catalog = catalog
        self._storage = storage
        self._plan = plan
        self._run_query = run_query

    def delete(self, statement: Delete, text: str, session: Session) -> Result:
        """Deletes the rows in a range of time of a table, or of those child tables whose tags fit.

        `InvalidStatementError` (0x2655) for every other condition. A reversed range deletes nothing. Of a table with a
        KEY it deletes the rows that any condition says.
        """
        table = require_table(statement.name, session, self._catalog, text)
        if table.kind == "system":
            raise InvalidStatementError(f"{statement.name} is a system table")
        refuse_if_made_by_stream(table, self._catalog)
        if table.keyed:
            # What comes between the look at the rows and their end would go, too.
            with self._writing.exclusive(), self._lock, self._lock_of(table.uid):
                return self._delete_keys(table, statement, session)
        with self._writing.shared(), self._lock:
            return self._delete_range(table, statement, session)

    def _delete_range(self, table: Table, statement: Delete, session: Session) -> Result:
        first, last = _FIRST, _LAST
        tag_conditions: list[exp.Expression] = []
        for condition in conjuncts(statement.where):
            if self._is_tag_condition(condition, table):
                tag_conditions.append(condition)
                continue
            low, high = self._range(condition, statement.name, table, session)
            first, last = max(first, low), min(last, high)
        if first > last:
            return Result()
        places = self._places(table, statement.name, tag_conditions, session)
        self._storage.whole_writes.write([
            (vgroup_id, partial(self._storage.vnode(vgroup_id).writer.begin_delete, table.storage_uid, uids, first,
                                last))
            for vgroup_id, uids in places.items()])
        return Result()

    def _delete_keys(self, table: Table, statement: Delete, session: Session) -> Result:
        """Deletes the rows of a table with a KEY for which the condition is true."""
        assert table.vgroup_id is not None
        if statement.where is None:
            self._storage.vnode(table.vgroup_id).delete(table.uid, [table.uid], _FIRST, _LAST)
            return Result()
        items = tuple(SelectItem(exp.column(exp.to_identifier(key.name, quoted=True)), None, "")
                      for key in table.key_columns)
        found = self._run_query(Select(items, TableSource(statement.name), where=statement.where), session).table
        assert found is not None
        if not found.num_rows:
            return Result()
        gone = keyed(table, pa.RecordBatch.from_arrays(
            [one_array(column) for column in found.columns], names=[key.physical for key in table.key_columns]))
        write = self._storage.begin_changes(table.vgroup_id, deletes(self._storage, table, gone))
        if write is not None:
            write.wait()
        return Result(affected=gone.num_rows)

    def _is_tag_condition(self, condition: exp.Expression, table: Table) -> bool:
        names = {column.name for column in condition.find_all(exp.Column)}
        known = {tag.name for tag in table.tags} | {"tbname"}
        return bool(names) and names <= known

    def _range(
        self, condition: exp.Expression, name: Name, table: Table, session: Session
    ) -> tuple[int, int]:
        """Returns the inclusive range of time that a comparison means."""
        refused = InvalidStatementError(
            f"DELETE takes one range of {table.time_column.name}, and conditions on tags, joined by AND",
            code=NO_TIME_RANGE)
        if isinstance(condition, exp.Between):
            sides: list[exp.Expression] = [condition.this]
            others = [condition.args["low"], condition.args["high"]]
        elif isinstance(condition, _COMPARISONS):
            sides, others = [condition.this, condition.expression], []
        else:
            raise refused
        columns = list(condition.find_all(exp.Column))
        times = (table.time_column.name, "_rowts", "_c0")
        if len(columns) != 1 or columns[0].name not in times or columns[0] not in map(unwrapped, sides):
            raise refused
        if any(other.find(exp.Column) is not None for other in others):
            raise refused
        precision = require_database(table.database, self._catalog).precision
        constants = [side for side in (*sides, *others) if unwrapped(side) is not columns[0]]
        if all(_point(side, precision, session) is not None for side in constants):  # nothing is to be planned
            low, high = time_bounds(
                condition, lambda node: node is columns[0], lambda node: _point(node, precision, session))
            return (_FIRST if low is None else low), (_LAST if high is None else high)
        item = SelectItem(exp.column(exp.to_identifier(table.time_column.name, quoted=True)), None, "")
        scan = self._plan(Select((item,), TableSource(name), where=condition), session).scans[0]
        if scan.first_ts is None and scan.last_ts is None:
            raise refused
        return (_FIRST if scan.first_ts is None else scan.first_ts), (_LAST if scan.last_ts is None else scan.last_ts)

    def _places(
        self, table: Table, name: Name, conditions: list[exp.Expression], session: Session
    ) -> dict[int, list[int] | None]:
        """Returns what to delete by vgroup: child tables, or None for all of them."""
        database = require_database(table.database, self._catalog)
        if table.kind != "super":
            assert table.vgroup_id is not None
            if conditions and not self._matching(Name(table.super_name or "", table.database), [
                *conditions, _named(table.name)], session):
                return {}
            return {table.vgroup_id: [table.uid]}
        if not conditions:
            return dict.fromkeys(vgroups_of(database, table))
        places: dict[int, list[int] | None] = {}
        for child_name in self._matching(name, conditions, session):
            found = self._catalog.child(database.name, child_name)
            if found is not None:
                uids = places.setdefault(found.vgroup_id, [])
                assert uids is not None
                uids.append(found.uid)
        return places

    def _matching(self, name: Name, conditions: list[exp.Expression], session: Session) -> list[str]:
        """Returns the names of the child tables whose tags meet the conditions."""
        where = conditions[0]
        for condition in conditions[1:]:
            where = exp.And(this=where, expression=condition)
        item = SelectItem(exp.column("tbname"), None, "tbname")
        query = Select((item,), TableSource(name), tags_only=True, where=where)
        table = self._run_query(query, session).table
        assert table is not None
        names: list[str] = table.column(0).to_pylist()
        return names


def _point(node: exp.Expression, precision: Precision, session: Session) -> int | None:
    """Returns the instant that a literal means, None where it takes planning to say so, or what is wrong with it."""
    if not isinstance(node, exp.Literal):
        return None
    text: str = node.this
    if not node.is_string:
        return int(text) if text.isdecimal() and len(text) <= _DIGITS else None
    try:
        return parse_timestamp(text, precision, session.time_zone)
    except InvalidValueError:
        return None


def _named(name: str) -> exp.Expression:
    return exp.EQ(this=exp.column("tbname"), expression=exp.Literal.string(name))
