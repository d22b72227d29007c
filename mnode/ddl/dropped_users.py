"""DROP ... CASCADE: streams and ingests that can't do without a table go before it does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.catalog_records import IngestRecord, StreamRecord
from penstock.mnode.catalog.materialized_views import is_materialized_view
from penstock.mnode.ddl.tables_in_use import writes_into
from penstock.sql.schema import Table


class StreamDropping(Protocol):
    """Ends a stream and forgets it, `with_target` its result table, too."""

    def __call__(self, stream: StreamRecord, *, with_target: bool = False) -> None: ...


class DroppedUsers:
    """Drops who uses tables that are to be dropped."""

    def __init__(
        self, catalog: Catalog, drop_stream: StreamDropping, drop_ingest: Callable[[IngestRecord], None]
    ) -> None:
        self._catalog = catalog
        self._drop_stream = drop_stream
        self._drop_ingest = drop_ingest

    def drop(self, tables: Sequence[Table], views: Sequence[tuple[str, str]] = ()) -> None:
        """Drops the streams and ingests that read or write one of these tables, or read one of these views.

        A materialized view goes with its table, a trigger's table of executions with its stream, and so does who reads
        these.
        """
        doomed: dict[int, StreamRecord] = {}
        waiting = list(tables)
        gone = frozenset(views)
        for stream in self._catalog.streams.all():
            if not gone.isdisjoint(stream.uses.views):
                waiting += self._doom(stream, doomed)
        while waiting:
            table = waiting.pop()
            for stream in self._catalog.streams.all():
                if stream.id not in doomed and (stream.reads(table) or stream.writes(table)):
                    waiting += self._doom(stream, doomed)
        for ingest in self._catalog.ingests.all():
            if any(writes_into(ingest, table) for table in tables):
                self._drop_ingest(ingest)
        # Who reads results was created behind who writes them.
        for stream in sorted(doomed.values(), key=lambda one: one.id, reverse=True):
            self._drop_stream(stream, with_target=is_materialized_view(stream))

    def _doom(self, stream: StreamRecord, doomed: dict[int, StreamRecord]) -> list[Table]:
        """Has a stream go; returns the tables that go with it."""
        doomed[stream.id] = stream
        uids = stream.executions_uid, stream.target_uid if is_materialized_view(stream) else 0
        return [table for uid in uids if (table := self._catalog.table_by_uid(uid)) is not None]
