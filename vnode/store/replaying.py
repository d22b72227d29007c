"""Does again what records of the log say: of many small ones that follow each other, all rows at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np
import pyarrow as pa

from penstock.vnode.store.memtable import Run
from penstock.vnode.store.sorted_keys import ascending, key_order, times_of, tuids_of
from penstock.vnode.store.table_state import TableState, stored_form
from penstock.wal.record import AnyDelete, Record, RowsRecord

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
            rows = [record for record in some if isinstance(record, RowsRecord)]
            run = _run_of(rows)
            table.append_run(run, run.data.nbytes)  # to ask each record would take as long as to read it
            table.note_replayed(rows[-1].version)
            for record in rows:
                if record.origin is not None:
                    table.note_place(record.origin, record.version)


def _together(records: Iterator[RowsRecord | AnyDelete]) -> Iterator[list[RowsRecord | AnyDelete]]:
    """Yields records that can be brought in at once: few rows of one table each, in one shape; or a single one."""
    def kind(record: RowsRecord | AnyDelete) -> object:
        if not isinstance(record, RowsRecord) or record.batch.num_rows > _SMALL:
            return record.version
        return record.table_uid, record.batch.schema

    for _, some in groupby(records, kind):
        yield list(some)


def _run_of(records: Sequence[RowsRecord]) -> Run:
    """Returns the rows of records of one shape; where a key is in several, in the order of the records."""
    arrays, schema, updates = stored_form(pa.concat_batches([record.batch for record in records]))
    versions = np.repeat(np.array([record.version for record in records], np.uint64),
                         [record.batch.num_rows for record in records])
    rows = pa.RecordBatch.from_arrays([*arrays, pa.array(versions)], schema=schema)
    tuid, ts = tuids_of(rows.column(0)), times_of(rows.column(1))
    if not ascending(tuid, ts):
        rows = rows.take(pa.array(key_order(tuid, ts, None, versions)))
    return Run.of(rows, updates)
