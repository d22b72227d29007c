"""CREATE, ALTER, DROP, USE, FLUSH and TRIM of databases and tables: all rules of these statements, then the change.

Every statement is checked as a whole before anything changes. The catalog changes first, then the vnodes: what a
crash in between leaves behind is put right when the engine starts (`Storage.open_all`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from penstock.common.clock import Clock
from penstock.common.errors import (
    AlreadyExistsError,
    InUseError,
    InvalidStatementError,
    NotFoundError,
    NotSupportedError,
    PenstockError,
)
from penstock.mnode.access.session import Result, SessionState
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.catalog_records import StreamRecord
from penstock.mnode.catalog.name_lookup import (
    TABLE_MISSING,
    database_of,
    find_table,
    require_column,
    require_database,
    require_table,
    require_user_database,
    table_missing,
)
from penstock.mnode.catalog.schema_repository import physical_name
from penstock.mnode.ddl import meta_records as meta
from penstock.mnode.ddl.child_creation import Children
from penstock.mnode.ddl.database_options import change_options, resolve_options
from penstock.mnode.ddl.tag_values import read_tags
from penstock.mnode.dnode.vnode_storage import Storage, vgroups_of
from penstock.sql.schema import Column, Database, Session, Table, TagValue
from penstock.sql.time_bounds import oldest_allowed
from penstock.sql.tree.statements import (
    AlterDatabase,
    AlterTable,
    ColumnDefinition,
    CreateChildTable,
    CreateChildTables,
    CreateDatabase,
    CreateSnode,
    CreateTable,
    DropDatabase,
    DropSnode,
    DropTable,
    FlushDatabase,
    Name,
    TrimDatabase,
    UseDatabase,
)
from penstock.sql.types import INTEGERS, DataType, Kind

NAME_BYTES = {"database": 64, "table": 192, "column": 64, "tag": 64, "stream": 192, "function": 64, "user": 23,
              "connection": 64, "ingest": 192}
MAX_COLUMNS = 4096
MAX_TAGS = 128
MAX_TAG_BYTES = 16 * 1024
MAX_ROW_BYTES = 64 * 1024
MAX_LENGTH = {"column": 65_517, "tag": 16_382}
VARIABLE = (Kind.VARCHAR, Kind.NCHAR, Kind.VARBINARY, Kind.GEOMETRY)

_TABLE_EXISTS = 0x0603
_BAD_COLUMNS = 0x263F
_DUPLICATE = 0x263C
_BAD_TIME_COLUMN = 0x2641


def check_name(name: str, what: str) -> None:
    """Raises `InvalidStatementError` for a name that is empty, too long or has characters that names can't have."""
    if not name or name.isspace():
        raise InvalidStatementError(f"a {what} name must not be empty")
    size = len(name.encode())
    if size > NAME_BYTES[what]:
        raise InvalidStatementError(f"the {what} name {name[:20]}... has {size} bytes, at most {NAME_BYTES[what]} fit")
    if what != "column" and "." in name:
        raise InvalidStatementError(f"the {what} name {name!r} has a dot")
    if "/" in name and what == "database":
        raise InvalidStatementError(f"the database name {name!r} has a slash")
    if not name.isprintable():
        raise InvalidStatementError(f"the {what} name {name!r} has characters that cannot be printed")


class Ddl:
    """Executes the statements that change databases and tables; one at a time per engine."""

    def __init__(
        self,
        catalog: Catalog,
        storage: Storage,
        children: Children,
        clock: Clock,
        *,
        drop_stream: Callable[[StreamRecord], None],
        schema_changed: Callable[[], None],
        children_changed: Callable[[int], None],
    ) -> None:
        self._catalog = catalog
        self._storage = storage
        self._children = children
        self._clock = clock
        self._drop_stream = drop_stream
        self.schema_changed = schema_changed
        self._children_changed = children_changed

    # --- databases ---------------------------------------------------------------------------------------------

    def create_database(self, statement: CreateDatabase) -> Result:
        check_name(statement.name, "database")
        options = resolve_options(statement.options)
        if self._catalog.database(statement.name) is not None:
            if statement.if_not_exists:
                return Result()
            raise AlreadyExistsError(f"database {statement.name} already exists", code=0x0381)
        database = self._catalog.schema.create_database(statement.name, options, self._clock.now_ms())
        try:
            self._storage.add_database(database)
        except PenstockError:
            self._catalog.schema.drop_database(database.name)
            self._storage.drop_database(database)
            raise
        return Result()

    def alter_database(self, statement: AlterDatabase) -> Result:
        database = require_user_database(statement.name, self._catalog)
        self._storage.alter_database(
            self._catalog.schema.alter_database(database.name, change_options(database.options, statement.options)))
        return Result()

    def drop_database(self, statement: DropDatabase, session: SessionState) -> Result:
        if statement.if_exists and self._catalog.database(statement.name) is None:
            return Result()
        database = require_user_database(statement.name, self._catalog)
        inside = []
        for stream in self._catalog.streams.all():
            *sources, _ = tables = self._stream_tables(stream)
            touched = {table.database for table in tables if table is not None}
            if database.name in touched:
                if len(touched) > 1:
                    is_source = any(table is not None and table.database == database.name for table in sources)
                    raise InUseError(
                        f"database {database.name} is used by stream {stream.name}, whose "
                        f"{'target' if is_source else 'source'} is in another database",
                        hint=f"DROP STREAM {stream.name} first")
                inside.append(stream)
        for ingest in self._catalog.ingests.all():
            target = self._catalog.table_by_uid(ingest.target_uid)
            if (target is not None and target.database == database.name) or (ingest.dlq or ("",))[0] == database.name:
                raise InUseError(f"database {database.name} is used by ingest {ingest.name}",
                                 hint=f"DROP INGEST {ingest.name} first")
        for stream in inside:
            self._drop_stream(stream)
        self._catalog.schema.drop_database(database.name)
        self._storage.drop_database(database)
        self.schema_changed()
        if session.database == database.name:
            session.database = None
        return Result()

    def use_database(self, statement: UseDatabase, session: SessionState) -> Result:
        session.database = require_database(statement.name, self._catalog).name
        return Result()

    def flush_database(self, statement: FlushDatabase) -> Result:
        self._storage.flush(require_user_database(statement.name, self._catalog))
        return Result()

    def trim_database(self, statement: TrimDatabase) -> Result:
        """Deletes the rows that are older than KEEP."""
        database = require_user_database(statement.name, self._catalog)
        oldest = oldest_allowed(database, self._clock.now_ms())
        for table in (*self._catalog.tables(database.name, "super"), *self._catalog.tables(database.name, "normal")):
            self._storage.delete(database, table, None, -(2**63), oldest - 1)
        return Result()

    # --- CREATE TABLE ------------------------------------------------------------------------------------------

    def create_table(self, statement: CreateTable, session: Session) -> Result:
        database = self._writable_database(statement.name, session)
        existing = self._catalog.table(database.name, statement.name.name)
        if existing is not None:
            if statement.if_not_exists:
                return Result()
            raise AlreadyExistsError(f"table {database.name}.{statement.name.name} already exists", code=_TABLE_EXISTS)
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
        table = self._catalog.schema.create_table(
            database.name, name, columns, tags, super_table=super_table, now_ms=self._clock.now_ms(), comment=comment,
            replaces=replaces)
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
        created = 0
        for super_uid, children in wanted.items():
            created += len(self._children.create(super_uid, children))
        return Result()

    def _check_child(
        self, child: CreateChildTable, database: Database, session: Session
    ) -> tuple[Table, tuple[TagValue, ...]] | None:
        """Returns (super table, tag values), or None if the table exists and that is allowed."""
        parent = require_table(child.using, session, self._catalog)
        require_super(parent, child.using)
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

    # --- DROP TABLE --------------------------------------------------------------------------------------------

    def drop_tables(self, statement: DropTable, session: Session) -> Result:
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
            self._refuse_if_streamed(table)
            doomed[table.uid] = table
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
        by_vgroup: dict[int, list[int]] = {}
        for member in members:
            assert member.vgroup_id is not None
            by_vgroup.setdefault(member.vgroup_id, []).append(member.uid)
        # Rows go first: a child that has lost its name must not leave rows that no name leads to.
        for vgroup_id, uids in by_vgroup.items():
            self._storage.delete_in(vgroup_id, parent, tuple(uids), -(2**63), 2**63 - 1)
            self._storage.write_meta(vgroup_id, meta.drop_children(super_uid, uids))
            self._storage.drop_children(vgroup_id, super_uid, uids)
        self._catalog.schema.drop_children(super_uid, [member.uid for member in members])
        self._children_changed(super_uid)

    # --- ALTER TABLE -------------------------------------------------------------------------------------------

    def alter_table(self, statement: AlterTable, session: Session) -> Result:
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
            self._refuse_if_target(table)
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
                self._refuse_if_column_streamed(table, column)
                columns[at] = replace(column, name=new_name)
            elif statement.action == "drop_column":
                if at == 0 or column.primary_key:
                    raise InvalidStatementError(f"{name} belongs to the primary key and cannot be dropped")
                if len(columns) == 2:
                    raise InvalidStatementError(f"{name} is the last column besides the timestamp")
                self._refuse_if_column_streamed(table, column)
                del columns[at]
            else:
                assert statement.type is not None
                self._refuse_if_column_streamed(table, column)
                columns[at] = replace(column, type=_longer(column, statement.type))
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
            self._refuse_if_target(table)
            tags.append(self._new_column(table, name, statement.type))
            children = {child.uid: (*child.tag_values, None) for child in self._catalog.children(table.uid)}
        else:
            tag = require_column(name, tags, table, "tag")
            at = tags.index(tag)
            # Tasks of running streams know tags by their place; only what keeps the places is allowed then.
            self._refuse_if_streamed(table)
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
                tags[at] = replace(tag, type=_longer(tag, statement.type))
        check_columns(table.columns, tags)
        self._store(replace(table, tags=tuple(tags)), children)
        self._children_changed(table.uid)
        return Result()

    def extended(self, table: Table, columns: Sequence[Column], tags: Sequence[Column]) -> Table:
        """Returns what `extend_table` would make of the super table, and raises what it would raise."""
        new_columns, new_tags = list(table.columns), list(table.tags)
        for given, known, what in ((columns, new_columns, "column"), (tags, new_tags, "tag")):
            for column in given:
                at = next((place for place, one in enumerate(known) if one.name == column.name), None)
                if at is not None:
                    if what == "column":
                        self._refuse_if_column_streamed(table, known[at])
                    else:
                        self._refuse_if_streamed(table)
                    known[at] = replace(known[at], type=_longer(known[at], column.type))
                    continue
                check_name(column.name, what)
                self._refuse_taken(table, column.name)
                self._refuse_if_target(table)
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
        if tags:
            self._children_changed(table.uid)
        changed = self._catalog.table_by_uid(table.uid)
        assert changed is not None
        return changed

    def _set_tags(self, table: Table, statement: AlterTable, session: Session) -> Result:
        if table.kind != "child":
            raise InvalidStatementError(f"{statement.name} is not a child table: tags belong to child tables")
        assert table.super_uid is not None
        assert table.vgroup_id is not None
        names = tuple(assigned.tag for assigned in statement.assignments)
        database = require_database(table.database, self._catalog)
        for name in names:
            require_column(name, table.tags, table, "tag")
        given = read_tags(table, names, tuple(assigned.value for assigned in statement.assignments),
                          database.precision, session)
        values = tuple(new if tag.name in names else old
                       for tag, new, old in zip(table.tags, given, table.tag_values, strict=True))
        child = self._catalog.schema.set_tags(table.super_uid, table.uid, values)
        self._storage.write_meta(table.vgroup_id, meta.set_tags(table.super_uid, child))
        self._children_changed(table.super_uid)
        return Result()

    def _set_option(self, table: Table, statement: AlterTable) -> Result:
        assert statement.option is not None
        option, value = statement.option
        if option == "COMMENT":
            self._store(replace(table, comment=str(value)))
        elif option == "TTL" and value:
            raise NotSupportedError("tables with a TTL are not supported")
        return Result()

    # --- snodes ------------------------------------------------------------------------------------------------

    def create_snode(self, statement: CreateSnode) -> Result:
        """Registers the snode; streams that start from now on place agg tasks on it (`tasks.build.nodes_of`)."""
        self._check_dnode(statement.dnode_id)
        self._catalog.snodes.create(statement.dnode_id, self._clock.now_ms())
        return Result()

    def drop_snode(self, statement: DropSnode) -> Result:
        self._check_dnode(statement.dnode_id)
        self._catalog.snodes.drop(statement.dnode_id)
        return Result()

    def _check_dnode(self, dnode_id: int) -> None:
        if dnode_id != 1:
            raise NotFoundError(f"dnode {dnode_id} does not exist", hint="an engine has dnode 1 only")

    # --- inside ------------------------------------------------------------------------------------------------

    def _store(self, table: Table, children: dict[int, tuple[TagValue, ...]] | None = None) -> None:
        """Stores a changed table; if the vnodes refuse, everything is as before."""
        database = require_database(table.database, self._catalog)
        before = self._catalog.table_by_uid(table.uid)
        assert before is not None
        tags_before = {child.uid: child.tag_values for child in self._catalog.children(table.uid)} if children else None
        changed = self._catalog.schema.replace_table(table, children)
        try:
            self._storage.define_table(database, changed)
            for vgroup_id in vgroups_of(database, changed):
                self._storage.write_meta(vgroup_id, meta.alter_table(changed))
        except PenstockError:
            self._catalog.schema.replace_table(before, tags_before)
            raise
        finally:
            self.schema_changed()

    def _new_column(self, table: Table, name: str, kind: DataType) -> Column:
        physical = physical_name(name, self._catalog.used_physical_names(table.uid))
        precision = require_database(table.database, self._catalog).precision
        return Column(name, replace(kind, precision=precision) if kind.kind is Kind.TIMESTAMP else kind, physical)

    def _refuse_taken(self, table: Table, name: str) -> None:
        if table.column(name) is not None:
            raise AlreadyExistsError(f"{table.name} has a column or tag {name} already", code=_DUPLICATE)

    def _stream_tables(self, stream: StreamRecord) -> tuple[Table | None, ...]:
        return tuple(self._catalog.table_by_uid(uid) for uid in (*stream.source_uids, stream.target_uid))

    def _refuse_if_streamed(self, table: Table) -> None:
        for stream in self._catalog.streams.all():
            if stream.reads(table):
                raise _in_use(table, stream, "reads")
            if stream.target_uid == table.storage_uid and table.kind != "child":
                raise _in_use(table, stream, "writes")
            if stream.uses.dlq == (table.database, table.name):
                raise _in_use(table, stream, "writes")

        for ingest in self._catalog.ingests.all():
            if (ingest.target_uid == table.storage_uid and table.kind != "child") or (
                    ingest.dlq == (table.database, table.name)):
                raise InUseError(f"table {table.name} is in use: ingest {ingest.name} writes it",
                                 hint=f"DROP INGEST {ingest.name} first")

    def _refuse_if_target(self, table: Table) -> None:
        for stream in self._catalog.streams.all():
            if stream.target_uid == table.uid or stream.uses.dlq == (table.database, table.name):
                raise _in_use(table, stream, "writes")

    def _refuse_if_column_streamed(self, table: Table, column: Column) -> None:
        self._refuse_if_target(table)
        for stream in self._catalog.streams.all():
            if stream.reads_column(table, column.physical):
                raise InUseError(f"column {column.name} of {table.name} is read by stream {stream.name}",
                                 hint=f"DROP STREAM {stream.name} first")

    def _writable_database(self, name: Name, session: Session) -> Database:
        database = database_of(name, session, self._catalog)
        return require_user_database(database.name, self._catalog)


def require_super(table: Table, name: Name) -> None:
    """Raises `InvalidStatementError` if the table isn't a super table."""
    if table.kind != "super":
        raise InvalidStatementError(f"{name} is not a super table", code=TABLE_MISSING)


def check_columns(columns: Sequence[Column], tags: Sequence[Column]) -> None:
    """Raises `InvalidStatementError` unless these can be the columns and tags of one table."""
    if columns[0].type.kind is not Kind.TIMESTAMP:
        raise InvalidStatementError(
            f"the first column must be a TIMESTAMP, {columns[0].name} is {columns[0].type.sql()}",
            code=_BAD_TIME_COLUMN)
    if len(columns) < 2:
        raise InvalidStatementError("a table needs a column besides its timestamp", code=_BAD_COLUMNS)
    if len(columns) + len(tags) > MAX_COLUMNS:
        raise InvalidStatementError(f"a table can have {MAX_COLUMNS} columns with tags, not {len(columns) + len(tags)}",
                                    code=_BAD_COLUMNS)
    if len(tags) > MAX_TAGS:
        raise InvalidStatementError(f"a table can have {MAX_TAGS} tags, not {len(tags)}", code=_BAD_COLUMNS)
    _check_names((*columns, *tags))
    for place, column in enumerate(columns):
        _check_length(column, "column")
        if column.type.kind is Kind.JSON:
            raise InvalidStatementError(f"column {column.name}: JSON is for tags only")
        if column.primary_key and (place != 1 or column.type.kind not in (*INTEGERS, Kind.VARCHAR)):
            raise InvalidStatementError(
                f"column {column.name} cannot be a part of the primary key",
                hint="only the second column can, if it is an integer or VARCHAR")
    for tag in tags:
        _check_length(tag, "tag")
        if tag.type.kind is Kind.DECIMAL:
            raise InvalidStatementError(f"tag {tag.name}: a tag cannot be a DECIMAL")
        if tag.type.kind is Kind.JSON and len(tags) > 1:
            raise InvalidStatementError(f"tag {tag.name}: a JSON tag must be the only one")
        if tag.primary_key:
            raise InvalidStatementError(f"tag {tag.name}: a tag cannot be a part of the primary key")
    _check_size(columns, MAX_ROW_BYTES, "row")
    _check_size(tags, MAX_TAG_BYTES, "set of tags")


def _check_names(columns: Iterable[Column]) -> None:
    seen: set[str] = set()
    for column in columns:
        check_name(column.name, "column")
        if column.name == "tbname":
            raise InvalidStatementError("tbname is the name of the child table and cannot be a column")
        if column.name in seen:
            raise InvalidStatementError(f"there are two columns or tags named {column.name}", code=_DUPLICATE)
        seen.add(column.name)


def _check_length(column: Column, what: str) -> None:
    kind, length = column.type.kind, column.type.length
    if kind not in VARIABLE:
        return
    limit = MAX_LENGTH[what] // (4 if kind is Kind.NCHAR else 1)
    if length is not None and not 1 <= length <= limit:
        raise InvalidStatementError(f"{what} {column.name}: {kind} can have a length of 1 to {limit}, not {length}")


def _check_size(columns: Sequence[Column], limit: int, what: str) -> None:
    size = sum(_stored_bytes(column.type) for column in columns)
    if size > limit:
        raise InvalidStatementError(f"a {what} of the table can have {size} bytes, at most {limit} are allowed")


def _stored_bytes(kind: DataType) -> int:
    if kind.kind is Kind.NCHAR:
        return 4 * (kind.length or 0) + 2
    return kind.width() + 2 if kind.kind in VARIABLE else kind.width()


def _column(definition: ColumnDefinition, database: Database) -> Column:
    kind = definition.type
    if kind.kind is Kind.TIMESTAMP:
        kind = replace(kind, precision=database.precision)
    return Column(definition.name, kind, definition.name, definition.primary_key, definition.comment)


def _longer(column: Column, kind: DataType) -> DataType:
    old = column.type
    if old.kind not in VARIABLE or kind.kind is not old.kind:
        raise InvalidStatementError(
            f"{column.name} is {old.sql()} and cannot become {kind.sql()}",
            hint="only the length of strings can grow")
    if (kind.length or 0) <= (old.length or 0):
        raise InvalidStatementError(f"{column.name} is {old.sql()}: its length can only grow, not become {kind.length}")
    return kind


def _in_use(table: Table, stream: StreamRecord, verb: str) -> InUseError:
    return InUseError(f"table {table.name} is in use: stream {stream.name} {verb} it",
                      hint=f"DROP STREAM {stream.name} first")
