"""DROP STREAM: the tasks end and their state is removed; the result table stays."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable

from penstock.common.errors import NotFoundError, PenstockError
from penstock.common.logging import about, logger
from penstock.mnode.access.session import Result
from penstock.mnode.catalog.catalog_records import IngestRecord, StreamRecord, Unfinished
from penstock.mnode.catalog.materialized_views import is_materialized_view
from penstock.mnode.catalog.name_lookup import require_database
from penstock.mnode.ddl.tables_in_use import refuse_if_read
from penstock.mnode.streams.known_streams import KnownStreams
from penstock.mnode.streams.stream_pins import pin_of
from penstock.mnode.streams.stream_services import StreamServices
from penstock.sql.tree.statements import DropStream

_STOP_TIMEOUT_S = 1.5
_STOP_LATER_S = 60.0

_log = logger(__name__)


class StreamRemoval:
    """Executes DROP STREAM, and ends streams that others drop."""

    def __init__(self, services: StreamServices, known: KnownStreams) -> None:
        self._services = services
        self._known = known
        #: drops the table of executions of a stream with a trigger of its own
        self.drop_table: Callable[[int], None]

    def drop(self, stream: StreamRecord, statement: DropStream) -> Result:
        """Ends a stream and forgets it; the result table stays, unless that is to go. Nobody may read what goes."""
        goes = statement.with_table
        if goes and not is_materialized_view(stream):
            raise NotFoundError(f"{stream.name} is no materialized view but a stream", hint="DROP STREAM ends it")
        for uid in (stream.executions_uid, stream.target_uid if goes else 0):
            table = self._services.catalog.table_by_uid(uid)
            if table is not None:
                refuse_if_read(table, self._services.catalog)
        self.drop_record(stream, with_target=goes)
        return Result()

    def drop_record(self, stream: StreamRecord, *, with_target: bool = False) -> None:
        """Ends a stream and forgets it, and with it a stream that was to replace it.

        The result table goes too if no name leads to it yet, or `with_target`.
        """
        if self._services.catalog.streams.by_id(stream.id) is None:
            return  # went with the stream that it was to replace
        for pending in self.replacements_of(stream):
            self.drop_record(pending)
        self._services.stores.results.forget(stream.id)
        goes = with_target or stream.replaces is not None
        target = self._services.catalog.table_by_uid(stream.target_uid) if goes else None
        executions = self._services.catalog.table_by_uid(stream.executions_uid)
        self._services.catalog.streams.drop(stream.id, None if target is None else target.uid)
        self.end_for_good(stream)
        if target is not None:
            self._services.storage.drop_table(require_database(target.database, self._services.catalog), target)
        if executions is not None:
            self.drop_table(executions.uid)

    def replacements_of(self, stream: StreamRecord) -> list[StreamRecord]:
        """Returns the streams that are to replace this one."""
        return [other for other in self._services.catalog.streams.all() if other.replaces == stream.id]

    def end_for_good(self, stream: StreamRecord) -> None:
        """Ends the tasks of a stream that isn't in the catalog any more, and removes what was kept for it."""
        self._known.forget(stream.id)
        stores = self._services.stores
        stores.records.forget(stream.id)
        stores.states.forget(stream.id)
        stores.backups.forget(stream.id)
        end_tasks(self._services, stream, lambda: remove_state(self._services, stream.id))
        for vgroup_id, _ in stream.start_cut:
            try:
                self._services.storage.vnode(vgroup_id).release_pin(pin_of(stream.id))
            except PenstockError as error:
                _log.warning("the WAL pin of stream %s stays in vnode %d: %s", stream.name, vgroup_id, error,
                             extra=about(stream=stream.name))

    def remove_left_states(self) -> None:
        """Removes the state of those that were dropped shortly before a crash."""
        for entry in self._services.catalog.unfinished.of_kind("remove_stream"):
            remove_state(self._services, entry.id)


def end_tasks(services: StreamServices, run: StreamRecord | IngestRecord, then: Callable[[], None]) -> None:
    """Ends the tasks of a stream, or an ingest, that was dropped; calls `then` when none is left.

    Whoever drops a stream doesn't wait for a worker that hangs: the rest is done when it has ended.
    """
    if services.controller.end_tasks(run, _STOP_TIMEOUT_S):
        then()
        return

    def later() -> None:
        if services.controller.end_tasks(run, _STOP_LATER_S):
            then()

    threading.Thread(target=later, name="penstock-drop", daemon=True).start()


def remove_state(services: StreamServices, run_id: int) -> None:
    """Removes the state of a stream, or an ingest, that was dropped; what can't be goes at the next start."""
    directory = services.paths.stream(run_id)
    shutil.rmtree(directory, ignore_errors=True)
    if directory.exists():
        _log.warning("the state of the dropped stream %x stays until the next start: %s", run_id, directory)
        return
    try:
        services.catalog.unfinished.finish([Unfinished("remove_stream", run_id)])
    except PenstockError as error:
        _log.warning("that stream %x is dropped completely can't be noted: %s", run_id, error)
