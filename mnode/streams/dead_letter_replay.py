"""REPLAY DLQ: tries dropped rows once more, by computing their windows again."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.common.errors import InvalidStatementError, NotSupportedError
from penstock.mnode.access.session import Result
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.name_lookup import require_table
from penstock.mnode.dnode.vnode_storage import Storage
from penstock.mnode.query.query_statements import Queries
from penstock.mnode.streams.stream_control import StreamControl
from penstock.planner.streams.dead_letters import dlq_columns, dlq_tags, replay_query
from penstock.sql.schema import Session, Table
from penstock.sql.tree.statements import ReplayDlq
from penstock.sql.types import UNITS_PER_SECOND, Precision
from penstock.tasks.protocol.messages import DeadRow, DroppedRow


class Replays:
    """Executes REPLAY DLQ statements."""

    def __init__(self, catalog: Catalog, storage: Storage, queries: Queries, streams: StreamControl) -> None:
        self._catalog = catalog
        self._storage = storage
        self._queries = queries
        self._streams = streams

    def replay(self, statement: ReplayDlq, session: Session) -> Result:
        """Orders the chosen rows to be tried again, and marks them; returns how many they are.

        Without WHERE these are all whose `state` is dead. One that fails again is dead again, with one attempt more.
        Raises NotFoundError for streams that are gone, and what RECALCULATE STREAM raises.
        """
        table = require_table(statement.name, session, self._catalog)
        database = self._catalog.database(table.database)
        assert database is not None
        names = [column.name for column in (*dlq_columns(database.precision), *dlq_tags())]
        if table.kind != "super" or [column.name for column in (*table.columns, *table.tags)] != names:
            raise InvalidStatementError(f"{statement.name} is not a DLQ table")
        rows = self._queries.run(replay_query(statement, names), session).table
        if rows is None or not rows.num_rows:
            return Result()
        if "refused" in rows.column("reason").to_pylist():
            raise NotSupportedError("REPLAY DLQ can't retry results that a connection refused",
                                    hint="use RECALCULATE STREAM for their time, and exclude reason 'refused'")
        by_stream: dict[str, list[tuple[int, DeadRow]]] = {}
        for row in _with_integers(rows).to_pylist():
            by_stream.setdefault(row["stream_name"], []).append(self._dead_row(row, database.precision))
        for name in by_stream:
            self._streams.check_replay(name)
        self._mark(table, rows)
        for name, letters in by_stream.items():
            self._streams.replay(name, letters)
        return Result(affected=rows.num_rows)

    def _dead_row(self, row: dict[str, Any], precision: Precision) -> tuple[int, DeadRow]:
        """Returns the vnode that has the row's table now, and the row."""
        source = self._catalog.streams.named(row["stream_name"])
        uid = 0 if source is None else source.source_uid
        origin = self._catalog.table_by_uid(uid)
        child = None if origin is None else self._catalog.child(origin.database, row["table_name"])
        per_ms = UNITS_PER_SECOND[precision] // 1_000
        key_column = None if origin is None else origin.key_column
        key = None if key_column is None else json.loads(row["content"])[key_column.name]
        left_out = DroppedRow(uid if child is None else child.uid, row["event_time"], 0,
                              row["reason"], row["version"], row["ts"] // per_ms, key)
        vgroup_id = child.vgroup_id if child is not None else None if origin is None else origin.vgroup_id
        dead = DeadRow(left_out, row["id"], row["table_name"], row["message"], row["content"], row["attempts"])
        return row["node_id"] if vgroup_id is None else vgroup_id, dead

    def _mark(self, table: Table, rows: pa.Table) -> None:
        """Writes the rows once more, as replayed."""
        place = rows.column_names.index("state")
        marked = rows.set_column(place, "state", pa.array(["replayed"] * rows.num_rows))
        children = [self._catalog.child(table.database, name) for name in rows.column("tbname").to_pylist()]
        vgroups = np.array([-1 if child is None else child.vgroup_id for child in children])
        uids = pa.array([0 if child is None else child.uid for child in children], pa.uint64())
        arrays = [marked.column(column.name).combine_chunks().cast(column.type.arrow()) for column in table.columns]
        batch = pa.RecordBatch.from_arrays([uids, *arrays], names=["_tuid", *(c.physical for c in table.columns)])
        for vgroup_id in np.unique(vgroups).tolist():
            self._storage.write(vgroup_id, table.uid, batch.filter(pa.array(vgroups == vgroup_id)))


def _with_integers(rows: pa.Table) -> pa.Table:
    """Returns the rows with timestamps as units of their precision."""
    for place, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type):
            rows = rows.set_column(place, field.name, rows.column(place).cast(pa.int64()))
    return rows
