"""CREATE and DROP of tables and child tables: all rules of these statements, then the change.

Every statement is checked as a whole before anything changes. The catalog changes first, then the vnodes: what a
crash in between leaves behind is put right when the engine starts (`Storage.open_all`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from penstock.common.clock import Clock
from penstock.common.errors import AlreadyExistsError, InvalidStatementError, NotSupportedError, PenstockError
from penstock.mnode.access.session import Result
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.name_lookup import (
    TABLE_MISSING,
    database_of,
    find_table,
    require_database,
    require_table,
    require_user_database,
    table_missing,
)
from penstock.mnode.ddl import meta_records as meta
from penstock.mnode.ddl.child_creation import ChildCreator
from penstock.mnode.ddl.column_rules import check_columns
from penstock.mnode.ddl.dropped_users import DroppedUsers
from penstock.mnode.ddl.name_rules import check_name
from penstock.mnode.ddl.plain_children import plain_children
from penstock.mnode.ddl.tables_in_use import OR_CASCADE, refuse_if_made_by_stream, refuse_if_streamed
from penstock.mnode.ddl.tag_values import read_tags
from penstock.mnode.dnode.vnode_storage import Storage
from penstock.sql.dialect.parser import parse_one
from penstock.sql.schema import ChildTable, Column, Database, Session, Table, TagValue
from penstock.sql.tree.statements import (
    ColumnDefinition,
    CreateChildTable,
    CreateChildTables,
    CreateTable,
    CreateTableAs,
    DropTable,
    Name,
)
from penstock.sql.types import Kind

_TABLE_EXISTS = 0x0603
_BAD_COLUMNS = 0x263F


class TableStatements:
    """Makes and drops tables; one at a time per engine."""

    def __init__(
        self,
        catalog: Catalog,
        storage: Storage,
        children: ChildCreator,
        clock: Clock,
        *,
        schema_changed: Callable[[], None],
        children_changed: Callable[[int], None],
        users: DroppedUsers,
    ) -> None:
        """`users`: who goes with tables by CASCADE."""
        self._users = users
        self._catalog = catalog
        self._storage = storage
        self._children = children
        self._clock = clock
        self.schema_changed = schema_changed
        self._children_changed = children_changed

    def create(self, statement: CreateTable, session: Session) -> Result:
        """Executes CREATE TABLE and CREATE STABLE."""
        database = self._writable_database(statement.name, session)
        if self.is_there(statement, session):
            return Result()
        check_name(statement.name.name, "table")
        columns = [_column(definition, database) for definition in statement.columns]
        tags = [_column(definition, database) for definition in statement.tags]
        is_super = bool(tags) or statement.must_be_super
        if is_super and not tags:
            raise InvalidStatementError("a super table needs TAGS", code=_BAD_COLUMNS)
        check_columns(columns, tags)
        if statement.ttl_days:
            raise NotSupportedError("tables with a TTL are not supported", hint="leave TTL out")
        self.create_table_of(
            database, statement.name.name, columns, tags, super_table=is_super, comment=statement.comment)
        return Result()

    def is_there(self, statement: CreateTable | CreateTableAs, session: Session) -> bool:
        """Tells whether the table is there that a statement makes; raises AlreadyExistsError if it must not be."""
        database = self._writable_database(statement.name, session)
        if self._catalog.table(database.name, statement.name.name) is None:
            return False
        if statement.if_not_exists:
            return True
        raise AlreadyExistsError(f"table {database.name}.{statement.name.name} already exists", code=_TABLE_EXISTS)

    def create_table_of(
        self,
        database: Database,
        name: str,
        columns: Sequence[Column],
        tags: Sequence[Column],
        *,
        super_table: bool,
        comment: str | None = None,
        replaces: int | None = None,
    ) -> Table:
        """Returns a new super or normal table with its place in the vnodes; what the names allow is not checked.

        `replaces`: as `Catalog.create_table` has it.
        """
        with self._storage.defining:
            table = self._catalog.schema.create_table(
                database.name, name, columns, tags, super_table=super_table, now_ms=self._clock.now_ms(),
                comment=comment, replaces=replaces)
            try:
                self._storage.define_table(database, table)
            except PenstockError:
                self._catalog.schema.drop_table(table.uid)
                raise
        self.schema_changed()
        return table

    def discard_table(self, uid: int) -> None:
        """Drops a table that was made for something which then failed."""
        table = self._catalog.table_by_uid(uid)
        if table is not None:
            self._drop_table(table)

    def create_children(self, statement: CreateChildTables, session: Session) -> Result:
        """Executes CREATE TABLE ... USING; all child tables are checked before the first is made."""
        if statement.plain is not None:
            found = plain_children(statement.plain, session, self._catalog)
            if found is not None:
                self._children.create(found[0].uid, found[1])
                return Result()
            read = parse_one(statement.plain.text)
            assert isinstance(read, CreateChildTables)
            statement = read
        wanted: dict[int, list[tuple[str, tuple[TagValue, ...]]]] = {}
        seen: set[tuple[str, str]] = set()
        for child in statement.tables:
            database = self._writable_database(child.name, session)
            key = (database.name, child.name.name)
            checked = self._check_child(child, database, session)
            if checked is None or key in seen:
                if key in seen and not child.if_not_exists:
                    raise AlreadyExistsError(f"table {child.name} is created twice", code=_TABLE_EXISTS)
                continue
            seen.add(key)
            parent, tag_values = checked
            wanted.setdefault(parent.uid, []).append((child.name.name, tag_values))
        for super_uid, children in wanted.items():
            self._children.create(super_uid, children)
        return Result()

    def _check_child(
        self, child: CreateChildTable, database: Database, session: Session
    ) -> tuple[Table, tuple[TagValue, ...]] | None:
        """Returns (super table, tag values), or None if the table exists and that is allowed."""
        parent = require_table(child.using, session, self._catalog)
        require_super(parent, child.using)
        refuse_if_made_by_stream(parent, self._catalog)
        if parent.database != database.name:
            raise InvalidStatementError(f"{child.name} must be in the database of {parent.database}.{parent.name}")
        tag_values = read_tags(parent, child.tag_names, child.tag_values, database.precision, session)
        if self._catalog.table(database.name, child.name.name) is not None:
            if child.if_not_exists:
                return None
            raise AlreadyExistsError(f"table {database.name}.{child.name.name} already exists", code=_TABLE_EXISTS)
        check_name(child.name.name, "table")
        if child.ttl_days or child.comment is not None:
            raise NotSupportedError("child tables have no TTL and no comment", hint="comment on the super table")
        return parent, tag_values

    def drop(self, statement: DropTable, session: Session) -> Result:
        """Executes DROP TABLE and DROP STABLE; all names are checked before the first table goes.

        With CASCADE who reads or writes a table goes first.
        """
        doomed: dict[int, Table] = {}
        for name in statement.names:
            table = find_table(name, session, self._catalog)
            if table is None:
                if statement.if_exists:
                    continue
                raise table_missing(name, session, self._catalog)
            if statement.must_be_super and table.kind != "super":
                raise InvalidStatementError(f"{name} is not a super table", hint="use DROP TABLE")
            if table.kind == "system":
                raise InvalidStatementError(f"{name} is a system table")
            if table.kind == "child":
                refuse_if_made_by_stream(table, self._catalog)
            if not statement.cascade:
                refuse_if_streamed(table, self._catalog, OR_CASCADE)
            doomed[table.uid] = table
        if statement.cascade:
            self._users.drop(list(doomed.values()))
            doomed = {uid: table for uid, table in doomed.items()
                      if self._catalog.table(table.database, table.name) is not None}
        children: dict[int, list[Table]] = {}
        for table in doomed.values():
            if table.kind == "child":
                assert table.super_uid is not None
                children.setdefault(table.super_uid, []).append(table)
            else:
                self._drop_table(table)
        for super_uid, members in children.items():
            if super_uid not in doomed:
                self._drop_children(super_uid, members)
        return Result()

    def _drop_table(self, table: Table) -> None:
        database = require_database(table.database, self._catalog)
        self._catalog.schema.drop_table(table.uid)
        self._storage.drop_table(database, table)
        self.schema_changed()

    def _drop_children(self, super_uid: int, members: Sequence[Table]) -> None:
        parent = self._catalog.table_by_uid(super_uid)
        assert parent is not None
        # A start would make a child table anew whose creation is behind its end in the log.
        self._children.await_announced([member.name for member in members])
        by_vgroup: dict[int, list[ChildTable]] = {}
        for child in self._catalog.children_of(super_uid, [member.uid for member in members]):
            by_vgroup.setdefault(child.vgroup_id, []).append(child)
        # Rows go first: a child that has lost its name must not leave rows that no name leads to.
        for vgroup_id, dropped in by_vgroup.items():
            uids = tuple(child.uid for child in dropped)
            self._storage.vnode(vgroup_id).delete(parent.uid, uids, -(2**63), 2**63 - 1)
            self._storage.write_meta(vgroup_id, meta.drop_children(super_uid, dropped), sync=True)
        self._catalog.schema.drop_children(super_uid, [member.uid for member in members])
        self._children_changed(super_uid)

    def _writable_database(self, name: Name, session: Session) -> Database:
        database = database_of(name, session, self._catalog)
        return require_user_database(database.name, self._catalog)


def require_super(table: Table, name: Name) -> None:
    """Raises `InvalidStatementError` if the table isn't a super table."""
    if table.kind != "super":
        raise InvalidStatementError(f"{name} is not a super table", code=TABLE_MISSING)


def _column(definition: ColumnDefinition, database: Database) -> Column:
    kind = definition.type
    if kind.kind is Kind.TIMESTAMP:
        kind = replace(kind, precision=database.precision)
    return Column(definition.name, kind, definition.name, definition.primary_key, definition.comment)
