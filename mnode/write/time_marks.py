"""NOTE TIME: a writer states that it has sent all rows up to a time."""

from __future__ import annotations

from penstock.mnode.access.session import Result
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.name_lookup import require_database
from penstock.mnode.dnode.vnode_storage import Storage
from penstock.planner.bind.instants import instant
from penstock.sql.schema import Session
from penstock.sql.tree.statements import NoteTime


class TimeMarks:
    """Executes NOTE TIME."""

    def __init__(self, catalog: Catalog, storage: Storage) -> None:
        self._catalog = catalog
        self._storage = storage

    def note(self, statement: NoteTime, session: Session) -> Result:
        """Puts a writer's promise into the logs of a database, behind all rows that it has written."""
        database = require_database(statement.database, self._catalog)
        ts_ms = instant(statement.instant, "ms", session)
        for vgroup_id in database.vgroup_ids:
            self._storage.vnode(vgroup_id).writer.write_time_mark(statement.writer or session.user, ts_ms)
        return Result()
