"""Rows of a table that have some values in columns, found by what is known of where they lie."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.sql.rows.keyed_rows import keyed
from penstock.sql.schema import Table
from penstock.vnode.read.row_places import RowPlaces, Values, having
from penstock.vnode.read.snapshot import Snapshot
from penstock.wal.record import TUID_COLUMN


def rows_having(snapshot: Snapshot, table: Table, columns: Sequence[str], values: Values) -> pa.Table:
    """Returns the rows that have one of the values in each column: `_tuid` and the columns asked for."""
    if not is_key(table, values):
        return snapshot.rows_with(columns, values).select([TUID_COLUMN, *columns])
    # Each value is a key, which tells the place.
    key = [*values]
    keys = keyed(table, pa.RecordBatch.from_arrays([*values.values()], names=key))
    places = keys.column(table.time_column.physical).cast(pa.int64()).to_numpy()
    rows = snapshot.rows_at(list(dict.fromkeys([*columns, *key])), RowPlaces.of(
        np.full(len(places), table.uid, np.uint64), places, places))
    return having(rows, values).select([TUID_COLUMN, *columns])


def is_key(table: Table, values: Values) -> bool:
    """Whether each of the values is a whole key, which tells where its row lies."""
    return table.keyed and len(values) == 1 and [column.physical for column in table.key_columns] == [*values]
