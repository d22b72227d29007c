"""Whether streams and ingests stand in the way of a change of a table or a view."""

from __future__ import annotations

from penstock.common.errors import InUseError
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.catalog_records import StreamRecord
from penstock.mnode.catalog.materialized_views import drop_of
from penstock.sql.schema import Column, Table, View


def refuse_if_streamed(table: Table, catalog: Catalog) -> None:
    """Raises InUseError if a stream or an ingest reads or writes the table."""
    for stream in catalog.streams.all():
        if stream.reads(table):
            raise _in_use(table, stream, "reads")
        if stream.target_uid == table.storage_uid and table.kind != "child":
            raise _in_use(table, stream, "writes")
        if stream.uses.dlq == (table.database, table.name):
            raise _in_use(table, stream, "writes")

    for ingest in catalog.ingests.all():
        if (ingest.target_uid == table.storage_uid and table.kind != "child") or (
                ingest.dlq == (table.database, table.name)):
            raise InUseError(f"table {table.name} is in use: ingest {ingest.name} writes it",
                             hint=f"DROP INGEST {ingest.name} first")


def refuse_if_target(table: Table, catalog: Catalog) -> None:
    """Raises InUseError if a stream writes the table."""
    for stream in catalog.streams.all():
        if stream.target_uid == table.uid or stream.uses.dlq == (table.database, table.name):
            raise _in_use(table, stream, "writes")


def refuse_if_column_streamed(table: Table, column: Column, catalog: Catalog) -> None:
    """Raises InUseError if a stream writes the table, or reads this column of it."""
    refuse_if_target(table, catalog)
    for stream in catalog.streams.all():
        if stream.reads_column(table, column.physical):
            raise InUseError(f"column {column.name} of {table.name} is read by stream {stream.name}",
                             hint=f"{drop_of(stream)} first")


def refuse_if_view_streamed(view: View, catalog: Catalog) -> None:
    """Raises InUseError if a stream reads the view, itself or by way of others."""
    for stream in catalog.streams.all():
        if (view.database, view.name) in stream.uses.views:
            raise InUseError(f"view {view} is in use: stream {stream.name} reads it",
                             hint=f"{drop_of(stream)} first, or make a view of another name")


def _in_use(table: Table, stream: StreamRecord, verb: str) -> InUseError:
    return InUseError(f"table {table.name} is in use: stream {stream.name} {verb} it",
                      hint=f"{drop_of(stream)} first")
