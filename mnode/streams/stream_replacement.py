"""CREATE OR REPLACE STREAM: the new version works beside the old one until it has caught up, then takes its place.

The new version is a stream of its own with a result table that no name leads to. It starts from history, so it needs
nothing of the old one, which runs on. One transaction of the catalog gives the stream and its table the old names:
who reads sees the old table or the new one, whole, and a crash leaves one of both. The old rows stay for a while for
queries that have begun to read them.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass

from penstock.common.errors import PenstockError, UnavailableError
from penstock.common.logging import about, logger
from penstock.mnode.catalog.catalog_records import StreamRecord
from penstock.mnode.catalog.name_lookup import require_database
from penstock.mnode.dnode.view_keeper import ViewKeeper
from penstock.mnode.streams.stream_services import StreamServices
from penstock.mnode.streams.stream_statements import Streams
from penstock.sql.schema import Table

_POLL_S = 0.5
_CHECKPOINT_TIMEOUT_S = 30.0

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class _Retired:
    """A table that was replaced; its rows go at `until` (monotonic seconds)."""

    table: Table
    until: float


class Replacements:
    """Watches streams that replace others, and puts them in their place. `poll` does one round."""

    def __init__(
        self,
        services: StreamServices,
        streams: Streams,
        views: ViewKeeper,
        lock: AbstractContextManager[object],
        grace_s: float,
    ) -> None:
        """`lock`: changes of the catalog take turns by it. `grace_s`: how long replaced rows stay readable."""
        self._services = services
        self._streams = streams
        self._views = views
        self._lock = lock
        self._grace_s = grace_s
        #: per new stream what it must have read to take the old one's place, set when its history is read
        self._marks: dict[int, dict[int, int]] = {}
        self._retired: list[_Retired] = []
        self._thread_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def clean(self) -> None:
        """Removes result tables of streams that a crash kept from being created."""
        wanted = {stream.target_uid for stream in self._services.catalog.streams.all()}
        for database in self._services.catalog.databases():
            for table in self._services.catalog.staged_tables(database.name):
                if table.uid not in wanted:
                    self._services.catalog.schema.drop_table(table.uid)
                    try:
                        self._services.storage.drop_table(database, table)
                    except PenstockError as error:  # a vnode that can't be used forgets the table when it can
                        _log.warning("table %s is not removed everywhere: %s", table.name, error)

    def watch(self) -> None:
        """Polls in the background as long as there is anything to wait for."""
        with self._thread_lock:
            if self._thread is None and self._pending():
                self._thread = threading.Thread(target=self._run, name="penstock-replace", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Ends the thread; what is pending goes on when the engine starts again."""
        self._closing.set()
        thread = self._thread
        if thread is not None:
            thread.join()

    def poll(self) -> None:
        """Puts those streams in place that have caught up, and removes replaced rows whose time is over."""
        for stream in self._services.catalog.streams.all():
            if stream.replaces is None:
                continue
            try:
                if self._has_caught_up(stream):
                    self._replace(stream)
            except PenstockError as error:
                _log.warning("stream %s cannot take its place yet: %s", stream.name, error,
                             extra=about(stream=stream.name))
        now = self._services.clock.monotonic()
        for retired in [one for one in self._retired if one.until <= now]:
            self._retired.remove(retired)
            self._remove(retired.table)

    # --- inside ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.poll()
            except Exception:  # noqa: BLE001
                # A defect that one stream shows must not keep the others from their places.
                _log.exception("new versions of streams could not be put in place")
            with self._thread_lock:
                if not self._pending():
                    self._thread = None
                    return
            self._services.clock.wait(self._closing, _POLL_S)

    def _pending(self) -> bool:
        return bool(self._retired) or any(
            stream.replaces is not None for stream in self._services.catalog.streams.all())

    def _has_caught_up(self, stream: StreamRecord) -> bool:
        """Whether all that the old stream had to read is in the new one's result table, by a valid checkpoint."""
        reached = self._streams.checkpoints.progress(stream)
        if reached is None:
            return False
        mark = self._marks.get(stream.id)
        if mark is None:
            mark = self._marks[stream.id] = dict(self._services.storage.acknowledged(reached.keys()))
        if any(reached[vgroup_id] < version for vgroup_id, version in mark.items()):
            return False
        try:
            # What is before its barriers is written, unless sinks were too slow for it.
            return not self._streams.checkpoints.checkpoint(stream, _CHECKPOINT_TIMEOUT_S).unwritten
        except UnavailableError as error:
            _log.info("stream %s has caught up and waits for a checkpoint: %s", stream.name, error,
                      extra=about(stream=stream.name))
            return False

    def _replace(self, stream: StreamRecord) -> None:
        old = None if stream.replaces is None else self._services.catalog.streams.by_id(stream.replaces)
        fresh = self._services.catalog.table_by_uid(stream.target_uid)
        if old is None or fresh is None:
            return
        # Other DuckDBs read Parquet parts: what is in memory must be there before the views lead to the new table.
        self._services.storage.flush(require_database(fresh.database, self._services.catalog))
        with self._lock:
            if self._services.catalog.streams.by_id(stream.id) is None:
                return  # dropped meanwhile
            self._services.stores.results.forget(old.id)
            old, stale = self._services.catalog.streams.replace(stream.id)
            self._marks.pop(stream.id, None)
            self._retired.append(_Retired(stale, self._services.clock.monotonic() + self._grace_s))
            self._views.children_changed(stream.target_uid)
            self._views.schema_changed()
            self._streams.removal.end_for_good(old)
        self._streams.known.tell(stream.id, f"replaces its old version 0x{old.id:x}")

    def _remove(self, table: Table) -> None:
        try:
            self._services.storage.drop_table(require_database(table.database, self._services.catalog), table)
        except PenstockError as error:
            _log.warning("rows of the replaced table %s stay until the next start: %s", table.name, error)
        self._services.catalog.forget_table(table.uid)
