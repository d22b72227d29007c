"""The system tables: what describes databases, users, streams and the engine itself, as Arrow tables.

Columns are defined in `system_schema`; rows come from the sources, by the names of their columns. Asking for a table
never waits for data or for a worker: everything shown was known already.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from penstock.common.errors import NotFoundError
from penstock.mnode.access.session import make_array
from penstock.mnode.access.visibility import sight
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.name_lookup import TABLE_MISSING
from penstock.mnode.catalog.system_schema import SCHEMAS
from penstock.mnode.show.row_source import Maker, RowSource
from penstock.sql.schema import Session


class SystemTables:
    """Makes system tables on demand."""

    def __init__(self, catalog: Catalog, sources: Iterable[RowSource]) -> None:
        """`sources` make the rows of all tables of `SCHEMAS`."""
        self._catalog = catalog
        self._makers: dict[str, Maker] = {}
        for source in sources:
            self._makers.update(source.makers())

    def read(
        self, database: str, name: str, columns: Sequence[str] | None = None, reader: Session | None = None
    ) -> pa.Table:
        """Returns the rows as they are now; TIMESTAMP columns are Arrow timestamps in ms.

        `columns`: only these, in this order. `reader`: who may see what; None sees everything. `NotFoundError` if
        there is no such table.
        """
        schema = dict(SCHEMAS.get(database, {}).get(name, ()))
        if not schema:
            raise NotFoundError(f"table {database}.{name} does not exist", code=TABLE_MISSING)
        rows = list(self._makers[name]())
        if reader is not None and not reader.rights.is_admin:
            seen = sight(name, reader, self._catalog)
            rows = [row for row in rows if seen(row)]
        return pa.table({
            column: make_array([row.get(column) for row in rows], schema[column])
            for column in (schema if columns is None else columns)})
