"""Brings a batch to be written into stored form: checked, cast, sorted by key, one row per key. No state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.common.errors import InternalError, InvalidStatementError, InvalidValueError
from penstock.vnode.store.sorted_keys import (
    I64,
    U64,
    Index,
    kept_versions,
    key_codes,
    key_order,
    run_starts,
    strictly_ascending,
    times_of,
    tuids_of,
)
from penstock.wal.record import TUID_COLUMN


@dataclass(frozen=True, slots=True)
class PreparedRows:
    """Rows to be written, sorted by key. `columns` follows the table's schema; None: not in the batch.

    `starts`: the positions at which the rows of a child table begin.
    """

    tuid: U64
    ts: I64
    starts: Index
    tuid_column: pa.Array
    columns: tuple[pa.Array | None, ...]

    @property
    def num_rows(self) -> int:
        return len(self.tuid)

    def second_key(self, positions: Index) -> pa.Array:
        """Returns the values of a composite key's second column at these positions."""
        column = self.columns[1]
        if column is None:
            raise InternalError("a prepared batch lacks its key column")
        return column.take(pa.array(positions))


def prepare(batch: pa.RecordBatch, columns: Mapping[str, pa.DataType], key_columns: int) -> PreparedRows:
    """Checks and sorts a batch; of rows with the same key the last one wins.

    Raises InvalidStatementError for unknown or missing columns, InvalidValueError for NULL keys and values that
    don't fit the column. `columns`: those of the table, in order, with their types.
    """
    keys = [*columns][:key_columns]
    known = dict(zip(batch.schema.names, batch.columns, strict=True))
    unknown = [name for name in known if name != TUID_COLUMN and name not in columns]
    lacking = [name for name in [TUID_COLUMN, *keys] if name not in known]
    if unknown or lacking:
        raise InvalidStatementError(f"the batch lacks the columns {lacking}" if lacking else
                                    f"the table has no columns {unknown}")
    tuid_column = _fitting(known[TUID_COLUMN], pa.uint64(), TUID_COLUMN)
    values = [_fitting(known[name], wanted, name) if name in known else None for name, wanted in columns.items()]
    for name, column in [(TUID_COLUMN, tuid_column), *zip(keys, values, strict=False)]:
        if column.null_count:
            raise InvalidValueError(f"the key column {name} holds NULL")
    tuid, ts = tuids_of(tuid_column), times_of(values[0])
    if not strictly_ascending(tuid, ts):
        codes = key_codes(values[1]) if key_columns == 2 else None
        # Positions serve as versions: of the same key the last row wins.
        position = np.arange(len(tuid), dtype=np.uint64)
        rows = key_order(tuid, ts, codes, position)
        if not strictly_ascending(tuid[rows], ts[rows]):
            rows = rows[kept_versions(
                tuid[rows], ts[rows], None if codes is None else codes[rows], position[rows], None)]
        # All columns are taken at once: most of what it takes for a few rows is the call.
        taken = iter(pa.RecordBatch.from_arrays(
            [tuid_column, *(column for column in values if column is not None)],
            names=[TUID_COLUMN, *(name for name in columns if name in known)]).take(pa.array(rows)).columns)
        tuid_column = next(taken)
        values = [None if column is None else next(taken) for column in values]
        tuid, ts = tuid[rows], ts[rows]
    return PreparedRows(tuid, ts, run_starts(tuid), tuid_column, tuple(values))


def _fitting(column: pa.Array, wanted: pa.DataType, name: str) -> pa.Array:
    if column.type == wanted:
        return column
    try:
        return column.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidValueError(f"column {name} takes {wanted}, not {column.type}: {error}") from error
