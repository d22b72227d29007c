"""CREATE, ALTER, DROP, USE, FLUSH and TRIM of databases: all rules of these statements, then the change.

The catalog changes first, then the vnodes: what a crash in between leaves behind is put right when the engine starts
(`Storage.open_all`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.common.clock import Clock
from penstock.common.errors import AlreadyExistsError, InUseError, PenstockError
from penstock.mnode.access.session import Result, SessionState
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.materialized_views import drop_of
from penstock.mnode.catalog.name_lookup import require_database, require_user_database
from penstock.mnode.ddl.database_options import change_options, resolve_options
from penstock.mnode.ddl.dropped_users import DroppedUsers
from penstock.mnode.ddl.name_rules import check_name
from penstock.mnode.ddl.tables_in_use import OR_CASCADE
from penstock.mnode.dnode.vnode_storage import Storage
from penstock.sql.time_bounds import oldest_allowed
from penstock.sql.tree.statements import (
    AlterDatabase,
    CreateDatabase,
    DropDatabase,
    FlushDatabase,
    TrimDatabase,
    UseDatabase,
)


class DatabaseStatements:
    """Executes the statements that change databases; one at a time per engine."""

    def __init__(
        self,
        catalog: Catalog,
        storage: Storage,
        clock: Clock,
        nodes: int,
        *,
        users: DroppedUsers,
        tell: Callable[[int, str], None],
        schema_changed: Callable[[], None],
    ) -> None:
        """`nodes`: how many there are to have replicas. `users`: who goes with the tables of a database. `tell`: notes
        what has happened to a stream.
        """
        self._catalog = catalog
        self._nodes = nodes
        self._storage = storage
        self._clock = clock
        self._users = users
        self._tell = tell
        self._schema_changed = schema_changed

    def create(self, statement: CreateDatabase) -> Result:
        """Executes CREATE DATABASE; one whose vnodes can't be made isn't there afterwards."""
        check_name(statement.name, "database")
        options = resolve_options(statement.options, self._nodes)
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

    def alter(self, statement: AlterDatabase) -> Result:
        """Executes ALTER DATABASE."""
        database = require_user_database(statement.name, self._catalog)
        self._storage.alter_database(
            self._catalog.schema.alter_database(
                database.name, change_options(database.options, statement.options, self._nodes)))
        return Result()

    def drop(self, statement: DropDatabase, session: SessionState) -> Result:
        """Executes DROP DATABASE: streams that have all of their tables in it go with it, as TDengine has it.

        Others that need a table of it, and ingests, refuse it, or go as well with CASCADE.
        """
        if statement.if_exists and self._catalog.database(statement.name) is None:
            return Result()
        database = require_user_database(statement.name, self._catalog)
        if not statement.cascade:
            self._refuse_if_used(database.name)
        before = self._catalog.streams.all()
        self._users.drop(self._catalog.all_tables(database.name),
                         [(view.database, view.name) for view in self._catalog.views(database.name)])
        for stream in before:
            if self._catalog.streams.by_id(stream.id) is None:
                self._tell(stream.id, f"stream {stream.name} was dropped with database {database.name}")
        self._catalog.schema.drop_database(database.name)
        self._storage.drop_database(database)
        self._schema_changed()
        if session.database == database.name:
            session.database = None
        return Result()

    def _refuse_if_used(self, database: str) -> None:
        """Raises InUseError if a stream uses the database and another one, or an ingest writes into it."""
        for stream in self._catalog.streams.all():
            queried = (read.uid for read in stream.uses.queried)
            read = {home for home, _ in stream.uses.views} | self._homes((*stream.source_uids, *queried))
            needed = read | self._homes(stream.written_uids)
            elsewhere = "target" if database in read else "source"
            if database not in needed and stream.uses.dlq is not None and stream.uses.dlq[0] == database:
                needed, elsewhere = needed | {database}, "source"
            if database in needed and len(needed) > 1:
                raise InUseError(
                    f"database {database} is used by stream {stream.name}, whose {elsewhere} is in another database",
                    hint=f"{drop_of(stream)} first{OR_CASCADE}")
        for ingest in self._catalog.ingests.all():
            if database in self._homes((ingest.target_uid,)) or (ingest.dlq or ("",))[0] == database:
                raise InUseError(f"database {database} is used by ingest {ingest.name}",
                                 hint=f"DROP INGEST {ingest.name} first{OR_CASCADE}")

    def _homes(self, uids: Iterable[int]) -> set[str]:
        """Returns the databases of tables."""
        return {table.database for uid in uids if (table := self._catalog.table_by_uid(uid)) is not None}

    def use(self, statement: UseDatabase, session: SessionState) -> Result:
        session.database = require_database(statement.name, self._catalog).name
        return Result()

    def flush(self, statement: FlushDatabase) -> Result:
        self._storage.flush(require_user_database(statement.name, self._catalog))
        return Result()

    def trim(self, statement: TrimDatabase) -> Result:
        """Deletes the rows that are older than KEEP."""
        database = require_user_database(statement.name, self._catalog)
        oldest = oldest_allowed(database, self._clock.now_ms())
        for table in (*self._catalog.tables(database.name, "super"), *self._catalog.tables(database.name, "normal")):
            self._storage.delete(database, table, None, -(2**63), oldest - 1)
        return Result()
