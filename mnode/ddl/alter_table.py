"""ALTER TABLE: all rules of the statement, then the change.

A statement is checked as a whole before anything changes. The catalog changes first, then the vnodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from penstock.common.errors import AlreadyExistsError, InvalidStatementError, NotSupportedError, PenstockError
from penstock.mnode.access.session import Result
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.name_lookup import require_column, require_database, require_table
from penstock.mnode.catalog.schema_repository import physical_name
from penstock.mnode.ddl import meta_records as meta
from penstock.mnode.ddl.column_rules import check_columns, longer
from penstock.mnode.ddl.name_rules import check_name
from penstock.mnode.ddl.tables_in_use import (
    refuse_if_column_streamed,
    refuse_if_made_by_stream,
    refuse_if_streamed,
    refuse_if_target,
)
from penstock.mnode.ddl.tag_values import read_tags
from penstock.mnode.dnode.vnode_storage import Storage, vgroups_of
from penstock.sql.schema import ChildTable, Column, Session, Table, TagValue
from penstock.sql.tree.statements import AlterTable
from penstock.sql.types import DataType, Kind

_DUPLICATE = 0x263C


class TableAlterations:
    """Changes the columns, tags and options of tables; one at a time per engine."""

    def __init__(
        self,
        catalog: Catalog,
        storage: Storage,
        *,
        schema_changed: Callable[[], None],
        children_changed: Callable[[int], None],
    ) -> None:
        self._catalog = catalog
        self._storage = storage
        self._schema_changed = schema_changed
        self._children_changed = children_changed

    def alter(self, statement: AlterTable, session: Session) -> Result:
        """Executes ALTER TABLE and ALTER STABLE."""
        table = require_table(statement.name, session, self._catalog)
        if table.kind == "system":
            raise InvalidStatementError(f"{statement.name} is a system table")
        if statement.must_be_super and table.kind != "super":
            raise InvalidStatementError(f"{statement.name} is not a super table", hint="use ALTER TABLE")
        if statement.action == "set_tag":
            return self._set_tags(table, statement, session)
        if table.kind == "child":
            raise InvalidStatementError(
                f"{statement.name} is a child table: only its tags can be set",
                hint=f"ALTER STABLE {table.super_name}, or SET TAG")
        if statement.action == "set_option":
            return self._set_option(table, statement)
        if statement.action.endswith("_tag"):
            return self._alter_tags(table, statement)
        return self._alter_columns(table, statement)

    def _alter_columns(self, table: Table, statement: AlterTable) -> Result:
        columns, name = list(table.columns), statement.column or ""
        if statement.action == "add_column":
            assert statement.type is not None
            check_name(name, "column")
            self._refuse_taken(table, name)
            refuse_if_target(table, self._catalog)
            columns.append(self._new_column(table, name, statement.type))
        else:
            column = require_column(name, columns, table)
            at = columns.index(column)
            if statement.action == "rename_column":
                if table.kind == "super":
                    raise InvalidStatementError("columns of a super table cannot be renamed")
                new_name = statement.new_name or ""
                check_name(new_name, "column")
                self._refuse_taken(table, new_name)
                refuse_if_column_streamed(table, column, self._catalog)
                columns[at] = replace(column, name=new_name)
            elif statement.action == "drop_column":
                if at == 0 or column.primary_key:
                    raise InvalidStatementError(f"{name} belongs to the primary key and cannot be dropped")
                if len(columns) == 2 and not table.keyed:
                    raise InvalidStatementError(f"{name} is the last column besides the timestamp")
                refuse_if_column_streamed(table, column, self._catalog)
                del columns[at]
            else:
                assert statement.type is not None
                refuse_if_column_streamed(table, column, self._catalog)
                columns[at] = replace(column, type=longer(column, statement.type))
        check_columns(columns, table.tags)
        self._store(replace(table, columns=tuple(columns)))
        return Result()

    def _alter_tags(self, table: Table, statement: AlterTable) -> Result:
        if table.kind != "super":
            raise InvalidStatementError(f"{statement.name} has no tags")
        tags, name = list(table.tags), statement.column or ""
        children: dict[int, tuple[TagValue, ...]] = {}
        if statement.action == "add_tag":
            assert statement.type is not None
            check_name(name, "tag")
            self._refuse_taken(table, name)
            refuse_if_target(table, self._catalog)
            tags.append(self._new_column(table, name, statement.type))
            children = {child.uid: (*child.tag_values, None) for child in self._catalog.children(table.uid)}
        else:
            tag = require_column(name, tags, table, "tag")
            at = tags.index(tag)
            # Tasks of running streams know tags by their place; only what keeps the places is allowed then.
            refuse_if_streamed(table, self._catalog)
            if statement.action == "rename_tag":
                new_name = statement.new_name or ""
                check_name(new_name, "tag")
                self._refuse_taken(table, new_name)
                tags[at] = replace(tag, name=new_name)
            elif statement.action == "drop_tag":
                if len(tags) == 1:
                    raise InvalidStatementError(f"{name} is the last tag of {table.name}")
                del tags[at]
                children = {child.uid: (*child.tag_values[:at], *child.tag_values[at + 1:])
                            for child in self._catalog.children(table.uid)}
            else:
                assert statement.type is not None
                tags[at] = replace(tag, type=longer(tag, statement.type))
        check_columns(table.columns, tags)
        self._store(replace(table, tags=tuple(tags)), children)
        return Result()

    def extended(self, table: Table, columns: Sequence[Column], tags: Sequence[Column]) -> Table:
        """Returns what `extend_table` would make of the super table, and raises what it would raise."""
        new_columns, new_tags = list(table.columns), list(table.tags)
        for given, known, what in ((columns, new_columns, "column"), (tags, new_tags, "tag")):
            for column in given:
                at = next((place for place, one in enumerate(known) if one.name == column.name), None)
                if at is not None:
                    if what == "column":
                        refuse_if_column_streamed(table, known[at], self._catalog)
                    else:
                        refuse_if_streamed(table, self._catalog)
                    known[at] = replace(known[at], type=longer(known[at], column.type))
                    continue
                check_name(column.name, what)
                self._refuse_taken(table, column.name)
                refuse_if_target(table, self._catalog)
                used = (*self._catalog.used_physical_names(table.uid),
                        *(one.physical for one in (*new_columns, *new_tags)))
                known.append(replace(column, physical=physical_name(column.name, used)))
        check_columns(new_columns, new_tags)
        return replace(table, columns=tuple(new_columns), tags=tuple(new_tags))

    def extend_table(self, table: Table, columns: Sequence[Column], tags: Sequence[Column]) -> Table:
        """Returns the super table with further columns and tags, and with longer types for those it has.

        What is given replaces what has the same name; nothing is taken away. Existing children have NULL in new
        tags. Raises InvalidStatementError and InUseError as ALTER STABLE does; then nothing changes.
        """
        wanted = self.extended(table, columns, tags)
        added = (None,) * (len(wanted.tags) - len(table.tags))
        children = {child.uid: (*child.tag_values, *added) for child in self._catalog.children(table.uid)}
        self._store(wanted, children if added else None)
        changed = self._catalog.table_by_uid(table.uid)
        assert changed is not None
        return changed

    def _set_tags(self, table: Table, statement: AlterTable, session: Session) -> Result:
        if table.kind != "child":
            raise InvalidStatementError(f"{statement.name} is not a child table: tags belong to child tables")
        assert table.super_uid is not None
        assert table.vgroup_id is not None
        refuse_if_made_by_stream(table, self._catalog)
        names = tuple(assigned.tag for assigned in statement.assignments)
        database = require_database(table.database, self._catalog)
        for name in names:
            require_column(name, table.tags, table, "tag")
        given = read_tags(table, names, tuple(assigned.value for assigned in statement.assignments),
                          database.precision, session)
        values = tuple(new if tag.name in names else old
                       for tag, new, old in zip(table.tags, given, table.tag_values, strict=True))
        before = self._catalog.child_by_uid(table.super_uid, table.uid)
        assert before is not None
        self._put_tags(table.super_uid, before, before._replace(tag_values=values))
        self._children_changed(table.super_uid)
        return Result()

    def _put_tags(self, super_uid: int, before: ChildTable, after: ChildTable) -> None:
        """Tells streams first: what the catalog has, and no record tells of, they would never learn."""
        self._storage.write_meta(after.vgroup_id, meta.set_tags(super_uid, before, after), sync=True)
        try:
            self._catalog.schema.set_tags(super_uid, after.uid, after.tag_values)
        except PenstockError:
            there = self._catalog.child_by_uid(super_uid, after.uid)
            if there is not None and there.tag_values != after.tag_values:
                self._storage.write_meta(after.vgroup_id, meta.set_tags(super_uid, after, before))
            raise

    def confirm_tags(self) -> None:
        """Tells streams of tags that the catalog doesn't have as the logs say: a crash came between the two."""
        if not self._catalog.streams.all():
            return
        for vgroup_id in (one for database in self._catalog.databases() for one in database.vgroup_ids):
            told = {(record.body["table_uid"], record.body["child"][0]): record.body["child"][2]
                    for record in self._storage.told(vgroup_id, "set_tags")}
            for (super_uid, uid), tags in told.items():
                child = self._catalog.child_by_uid(super_uid, uid)
                if child is not None and child.vgroup_id == vgroup_id and tags != meta.told_tags(child):
                    before = child._replace(tag_values=tuple(tags))
                    self._storage.write_meta(vgroup_id, meta.set_tags(super_uid, before, child))

    def _set_option(self, table: Table, statement: AlterTable) -> Result:
        assert statement.option is not None
        option, value = statement.option
        if option == "COMMENT":
            self._store(replace(table, comment=str(value)))
        elif option == "TTL" and value:
            raise NotSupportedError("tables with a TTL are not supported")
        return Result()

    def _store(self, table: Table, children: dict[int, tuple[TagValue, ...]] | None = None) -> None:
        """Stores a changed table; if the vnodes refuse, everything is as before."""
        database = require_database(table.database, self._catalog)
        before = self._catalog.table_by_uid(table.uid)
        assert before is not None
        tags_before = {child.uid: child.tag_values for child in self._catalog.children(table.uid)} if children else None
        with self._storage.defining:
            changed = self._catalog.schema.replace_table(table, children)
            try:
                self._storage.define_table(database, changed)
                for vgroup_id in vgroups_of(database, changed):
                    self._storage.write_meta(vgroup_id, meta.alter_table(changed))
            except PenstockError:
                self._catalog.schema.replace_table(before, tags_before)
                raise
            finally:
                self._schema_changed()
                if changed.tags != before.tags:
                    self._children_changed(table.uid)

    def _new_column(self, table: Table, name: str, kind: DataType) -> Column:
        physical = physical_name(name, self._catalog.used_physical_names(table.uid))
        precision = require_database(table.database, self._catalog).precision
        return Column(name, replace(kind, precision=precision) if kind.kind is Kind.TIMESTAMP else kind, physical)

    def _refuse_taken(self, table: Table, name: str) -> None:
        if table.column(name) is not None:
            raise AlreadyExistsError(f"{table.name} has a column or tag {name} already", code=_DUPLICATE)
