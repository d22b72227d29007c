"""Does again what records of the log say: of many small ones that follow each other, all rows at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np
import pyarrow as pa

from penstock.vnode.store.memtable import VERSION_COLUMN, Run
from penstock.vnode.store.sorted_keys import ascending, key_order, times_of, tuids_of
from penstock.vnode.store.table_state import TableState
from penstock.wal.record import LAST_COLUMN, AnyDelete, Record, RowsRecord

_SMALL = 512  # rows; more of them are worth a run of their own


def replay(records: Sequence[Record], tables: Mapping[int, TableState]) -> None:
    """Brings the records into the tables. Those of other tables are left out: these were dropped later."""
    concerned = (record for record in records
                 if isinstance(record, RowsRecord | AnyDelete) and record.table_uid in tables)
    for some in _together(concerned):
        table = tables[some[0].table_uid]
        if len(some) == 1:
            table.replay(some[0])
        else:
            appends = [record for record in some if isinstance(record, RowsRecord)]
            table.append_run(_run_of(appends), sum(record.batch.nbytes for record in appends))
            table.note_replayed(appends[-1].version)
            for record in appends:
                if record.origin is not None:
                    table.note_place(record.origin, record.version)


def _together(records: Iterator[RowsRecord | AnyDelete]) -> Iterator[list[RowsRecord | AnyDelete]]:
    """Yields records that can be brought in at once: small appends of one table, in one shape; or a single one."""
    def kind(record: RowsRecord | AnyDelete) -> object:
        if not isinstance(record, RowsRecord) or record.batch.num_rows > _SMALL or (
                LAST_COLUMN in record.batch.schema.names):
            return record.version
        return record.table_uid, record.batch.schema

    for _, some in groupby(records, kind):
        yield list(some)


def _run_of(records: Sequence[RowsRecord]) -> Run:
    """Returns the rows of appends of one shape; each key is in one of them."""
    rows = pa.concat_batches([record.batch for record in records])
    versions = np.repeat(np.array([record.version for record in records], np.uint64),
                         [record.batch.num_rows for record in records])
    tuid, ts = tuids_of(rows.column(0)), times_of(rows.column(1))
    if not ascending(tuid, ts):
        order = key_order(tuid, ts, None, versions)
        rows, versions = rows.take(pa.array(order)), versions[order]
    schema = rows.schema.remove_metadata().append(pa.field(VERSION_COLUMN, pa.uint64()))
    return Run.of(pa.RecordBatch.from_arrays([*rows.columns, pa.array(versions)], schema=schema), None)
