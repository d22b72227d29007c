"""Whether streams and ingests stand in the way of a change of a table or a view."""

from __future__ import annotations

from penstock.common.errors import InUseError
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.catalog_records import IngestRecord, StreamRecord
from penstock.mnode.catalog.materialized_views import drop_of, is_materialized_view
from penstock.sql.schema import Column, Table, View

OR_CASCADE = ", or DROP ... CASCADE, which drops it, too"
"""What else may be done about whom a DROP stands in the way of."""


def refuse_if_streamed(table: Table, catalog: Catalog, otherwise: str = "") -> None:
    """Raises InUseError if a stream or an ingest reads or writes the table.

    `otherwise`: what else may be done than to drop who does.
    """
    refuse_if_read(table, catalog, otherwise)
    refuse_if_target(table, catalog, otherwise)
    for ingest in catalog.ingests.all():
        if writes_into(ingest, table):
            raise InUseError(f"table {table.name} is in use: ingest {ingest.name} writes it",
                             hint=f"DROP INGEST {ingest.name} first{otherwise}")


def writes_into(ingest: IngestRecord, table: Table) -> bool:
    """Whether an ingest writes into this table, or into child tables of it."""
    return ingest.target_uid == table.uid or ingest.dlq == (table.database, table.name)


def refuse_if_read(table: Table, catalog: Catalog, otherwise: str = "") -> None:
    """Raises InUseError if a stream reads the table."""
    for stream in catalog.streams.all():
        if stream.reads(table):
            raise _in_use(table, stream, "reads", otherwise)


def refuse_if_target(table: Table, catalog: Catalog, otherwise: str = "") -> None:
    """Raises InUseError if a stream writes the table."""
    for stream in catalog.streams.all():
        if stream.writes(table):
            raise _in_use(table, stream, "writes", otherwise)


def refuse_if_made_by_stream(table: Table, catalog: Catalog) -> None:
    """Raises InUseError if a stream has made the table, or the super table of a child, for what it alone writes."""
    stream = catalog.streams.maker_of(table)
    if stream is None:
        return
    is_executions = table.storage_uid == stream.executions_uid
    goes_along = is_executions or is_materialized_view(stream)
    raise InUseError(
        f"table {table.super_name or table.name} has the {'executions' if is_executions else 'results'} of stream "
        f"{stream.name}, which alone writes it",
        hint=f"write into a table of your own; {drop_of(stream)} "
             f"{'drops this one, too' if goes_along else 'leaves this one to you'}")


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


def _in_use(table: Table, stream: StreamRecord, verb: str, otherwise: str = "") -> InUseError:
    return InUseError(f"table {table.name} is in use: stream {stream.name} {verb} it",
                      hint=f"{drop_of(stream)} first{otherwise}")
