"""The rows of the system tables: the catalog, the vnodes and the running streams as Arrow tables.

Columns are defined in `system_schema`. TIMESTAMP columns are milliseconds since the epoch. Asking for a table never
waits for data or for a worker: everything shown was known already.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, get_args

import pyarrow as pa

from penstock.common.admission import REASONS
from penstock.common.clock import Clock
from penstock.common.config import SPARK_PREFIX, Config, keys
from penstock.common.errors import NotFoundError
from penstock.mnode.access.audit_log import Audit
from penstock.mnode.access.roles import OWNER
from penstock.mnode.access.session import make_array
from penstock.mnode.access.visibility import sight
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.catalog_records import StreamRecord
from penstock.mnode.catalog.name_lookup import TABLE_MISSING
from penstock.mnode.catalog.system_schema import DATABASES, SCHEMAS
from penstock.mnode.coordinator.stream_bounds import state_bytes
from penstock.mnode.coordinator.stream_status import CheckpointInfo, SavepointInfo, StreamsSnapshot
from penstock.mnode.coordinator.task_monitor import TaskReport
from penstock.mnode.coordinator.task_settings import BYTES_PER_MEGABYTE, task_settings
from penstock.mnode.ddl.connections import ConnectionInfo
from penstock.mnode.ddl.database_options import effective_options
from penstock.mnode.query.activity import Activity
from penstock.mnode.show.history_text import history_text
from penstock.mnode.show.lateness_text import histogram_text, suggestion
from penstock.mnode.streams.explain_stream import placement
from penstock.mnode.streams.ingest_statements import IngestInfo
from penstock.mnode.streams.stream_verdict import stalled_reason
from penstock.planner.streams.stream_outside import delivery
from penstock.sql.rights import Privilege, Rights
from penstock.sql.schema import ChildTable, Database, Session, Table, TagValue
from penstock.sql.tree.expression_nodes import quote_string
from penstock.sql.types import UNITS_PER_SECOND, DataType, Kind, Precision
from penstock.tasks.protocol.messages import TaskId, TaskStatus
from penstock.tasks.protocol.task_graph import TaskGraph
from penstock.tasks.protocol.worker_nodes import Nodes
from penstock.wal.writer import Recovery

Row = tuple[Any, ...]

_ENDPOINT = "localhost"
_SECRET = re.compile(r"secret|password|token|access\.?key", re.IGNORECASE)  # what Spark's own pages hide
_MIB = 1024 * 1024


class StreamsView(Protocol):
    """What running streams tell about themselves."""

    def snapshot(self) -> StreamsSnapshot: ...


class SavepointsView(Protocol):
    """The savepoints of all streams."""

    def savepoints(self) -> list[SavepointInfo]: ...


class ConnectionsView(Protocol):
    """The connections to servers outside, with who uses them and whether they work."""

    def infos(self) -> list[ConnectionInfo]: ...


class IngestsView(Protocol):
    """How all ingests are."""

    def infos(self) -> list[IngestInfo]: ...


class VnodesView(Protocol):
    """What vnodes tell about themselves."""

    def wal_version(self, vgroup_id: int) -> int | None: ...

    def problem(self, vgroup_id: int) -> str | None: ...

    def recovery(self, vgroup_id: int) -> Recovery | None: ...

    @property
    def orphans(self) -> Sequence[Path]: ...


class SystemTables:
    """Makes system tables on demand."""

    def __init__(
        self,
        catalog: Catalog,
        vnodes: VnodesView,
        streams: StreamsView,
        savepoints: SavepointsView,
        connections: ConnectionsView,
        ingests: IngestsView,
        activity: Activity,
        audit: Audit,
        config: Config,
        clock: Clock,
        version: str,
        started_ms: int,
    ) -> None:
        self._catalog = catalog
        self._vnodes = vnodes
        self._streams = streams
        self._savepoints = savepoints
        self._outside = connections
        self._ingests = ingests
        self._activity = activity
        self._audit = audit
        self._config = config
        self._clock = clock
        self._version = version
        self._started_ms = started_ms
        self._makers: dict[str, Callable[[], Iterable[Row]]] = {
            "ins_databases": self._databases,
            "ins_stables": self._stables,
            "ins_tables": self._tables,
            "ins_columns": self._columns,
            "ins_tags": self._tags,
            "ins_vgroups": self._vgroups,
            "ins_vnodes": self._vnodes_rows,
            "ins_dnodes": self._dnodes,
            "ins_mnodes": self._mnodes,
            "ins_snodes": self._snodes,
            "ins_orphans": self._orphans,
            "ins_cluster": self._cluster,
            "ins_users": self._users,
            "ins_audit": self._audit_rows,
            "ins_user_privileges": self._privileges,
            "ins_functions": self._functions,
            "ins_connections": self._outside_rows,
            "ins_ingests": self._ingest_rows,
            "ins_indexes": list,
            "ins_configs": self._configs,
            "ins_streams": self._stream_rows,
            "ins_stream_tasks": self._task_rows,
            "ins_stream_checkpoints": self._checkpoint_rows,
            "ins_stream_savepoints": self._savepoint_rows,
            "ins_stream_workers": self._worker_rows,
            "ins_stream_memory": self._memory_rows,
            "ins_ports": self._port_rows,
            "ins_watermarks": self._watermark_rows,
            "ins_late_rows": self._late_row_rows,
            "ins_stream_events": self._event_rows,
            "perf_connections": self._connections,
            "perf_queries": self._queries,
        }

    def read(
        self, database: str, name: str, columns: Sequence[str] | None = None, reader: Session | None = None
    ) -> pa.Table:
        """Returns the rows as they are now; TIMESTAMP columns are Arrow timestamps in ms.

        `columns`: only these, in this order. `reader`: who may see what; None sees everything. `NotFoundError` if
        there is no such table.
        """
        schema = SCHEMAS.get(database, {}).get(name)
        if schema is None:
            raise NotFoundError(f"table {database}.{name} does not exist", code=TABLE_MISSING)
        rows = list(self._makers[name]())
        if reader is not None and not reader.rights.is_admin:
            seen = sight(name, reader, self._catalog)
            names = [column for column, _ in schema]
            rows = [row for row in rows if seen(dict(zip(names, row, strict=True)))]
        arrays = {}
        for place, (column, kind) in enumerate(schema):
            if columns is None or column in columns:
                arrays[column] = make_array([row[place] for row in rows], kind)
        wanted = [column for column, _ in schema] if columns is None else list(columns)
        return pa.table({column: arrays[column] for column in wanted})

    # --- databases and tables ----------------------------------------------------------------------------------

    def _databases(self) -> Iterator[Row]:
        for name in DATABASES:
            yield (name, None, None, len(SCHEMAS[name]), *([None] * 11), "ready", *([None] * 12))
        for database in self._catalog.databases():
            options = effective_options(database.options)

            def number(option: str, options: dict[str, str] = options) -> int:
                return int(options[option])

            yield (
                database.name, database.create_time_ms, len(database.vgroup_ids), self._table_count(database),
                number("REPLICA"), options["STRICT"], options["DURATION"], options["KEEP"], number("BUFFER"),
                number("PAGESIZE"), number("PAGES"), number("MINROWS"), number("MAXROWS"), number("COMP"),
                options["PRECISION"], "ready", options["RETENTIONS"] or None, options["SINGLE_STABLE"] == "1",
                options["CACHEMODEL"], number("CACHESIZE"), number("WAL_LEVEL"), number("WAL_FSYNC_PERIOD"),
                number("WAL_RETENTION_PERIOD"), number("WAL_RETENTION_SIZE"), number("STT_TRIGGER"),
                number("TABLE_PREFIX"), number("TABLE_SUFFIX"), number("TSDB_PAGESIZE"),
            )

    def _table_count(self, database: Database) -> int:
        normal = len(self._catalog.tables(database.name, "normal"))
        supers = self._catalog.tables(database.name, "super")
        return normal + sum(self._catalog.child_count(table.uid) for table in supers)

    def _super_tables(self) -> Iterator[tuple[Database, Table]]:
        for database in self._catalog.databases():
            for table in self._catalog.tables(database.name, "super"):
                yield database, table

    def _stables(self) -> Iterator[Row]:
        for database, table in self._super_tables():
            yield (
                table.name, database.name, table.create_time_ms, len(table.columns), len(table.tags),
                table.create_time_ms, table.comment, None, None, None, table.uid,
                self._catalog.child_count(table.uid),
            )

    def _tables(self) -> Iterator[Row]:
        for database, table in self._super_tables():
            for child in self._catalog.children(table.uid):
                yield (
                    child.name, database.name, child.create_time_ms, len(table.columns), table.name, child.uid,
                    child.vgroup_id, 0, None, "CHILD_TABLE",
                )
        for database in self._catalog.databases():
            for table in self._catalog.tables(database.name, "normal"):
                yield (
                    table.name, database.name, table.create_time_ms, len(table.columns), None, table.uid,
                    table.vgroup_id, table.ttl_days, table.comment, "NORMAL_TABLE",
                )
        for name, tables in SCHEMAS.items():
            for table_name, columns in tables.items():
                yield (table_name, name, None, len(columns), None, None, None, None, None, "SYSTEM_TABLE")

    def _columns(self) -> Iterator[Row]:
        for database in self._catalog.databases():
            for table in self._catalog.tables(database.name, "super"):
                yield from _column_rows(table.name, table, "SUPER_TABLE")
                for child in self._catalog.children(table.uid):
                    yield from _column_rows(child.name, table, "CHILD_TABLE")
            for table in self._catalog.tables(database.name, "normal"):
                yield from _column_rows(table.name, table, "NORMAL_TABLE")

    def _tags(self) -> Iterator[Row]:
        for database, table in self._super_tables():
            for child in self._catalog.children(table.uid):
                yield from tag_rows(database, table, child)

    # --- the engine --------------------------------------------------------------------------------------------

    def _vgroups(self) -> Iterator[Row]:
        for database in self._catalog.databases():
            counts = self._tables_per_vgroup(database)
            for vgroup_id in database.vgroup_ids:
                yield (vgroup_id, database.name, counts.get(vgroup_id, 0), 1, self._status(vgroup_id),
                       self._vnodes.wal_version(vgroup_id))

    def _tables_per_vgroup(self, database: Database) -> dict[int, int]:
        counts: dict[int, int] = {}
        for table in (*self._catalog.tables(database.name, "super"), *self._catalog.tables(database.name, "normal")):
            for child in self._catalog.children(table.uid):
                counts[child.vgroup_id] = counts.get(child.vgroup_id, 0) + 1
        return counts

    def _vnodes_rows(self) -> Iterator[Row]:
        for database in self._catalog.databases():
            for vgroup_id in database.vgroup_ids:
                yield (1, vgroup_id, database.name, self._status(vgroup_id), self._vnodes.wal_version(vgroup_id),
                       self._vnodes.problem(vgroup_id), *self._recovered(vgroup_id))

    def _status(self, vgroup_id: int) -> str:
        if self._vnodes.wal_version(vgroup_id) is None:
            return "offline"
        return "leader" if self._vnodes.problem(vgroup_id) is None else "error"

    def _dnodes(self) -> Iterator[Row]:
        vnodes = sum(len(database.vgroup_ids) for database in self._catalog.databases())
        yield (1, _ENDPOINT, vnodes, 1024, "ready", self._started_ms, "")

    def _mnodes(self) -> Iterator[Row]:
        yield (1, _ENDPOINT, "leader", "ready", self._started_ms)

    def _recovered(self, vgroup_id: int) -> tuple[int | None, int | None]:
        found = self._vnodes.recovery(vgroup_id)
        return (None, None) if found is None else (found.lost_versions, found.cut_bytes)

    def _orphans(self) -> Iterator[Row]:
        for path in self._vnodes.orphans:
            yield (str(path), "belongs to nothing in the catalog; kept, and read by nobody")

    def _snodes(self) -> Iterator[Row]:
        for snode in self._catalog.snodes.all():
            yield (snode.id, _ENDPOINT, snode.created_ms)

    def _cluster(self) -> Iterator[Row]:
        uptime = max(0, self._clock.now_ms() - self._started_ms) // 1000
        yield (1, "penstock", uptime, self._started_ms, self._version)

    def _users(self) -> Iterator[Row]:
        """Yields the users, or, while there are none, who everybody is."""
        for user in self._catalog.users.all():
            yield (user.name, int(user.role == "admin"), 1, user.created_ms, user.role)
        if not self._catalog.users.all():
            yield (OWNER.name, 1, 1, self._started_ms, OWNER.role)

    def _audit_rows(self) -> Iterator[Row]:
        for entry in self._audit.entries():
            yield (entry.time_ms, entry.user or None, entry.door, entry.address or None, entry.what, entry.on or None,
                   entry.outcome)

    def _privileges(self) -> Iterator[Row]:
        """Yields what users may do by role, then what was granted to them."""
        for user in self._catalog.users.all():
            notes = f"role {user.role}"
            if user.role == "admin":
                yield (user.name, "all", "*", "*", None, notes, "*")
            for privilege in get_args(Privilege):
                if user.role != "admin" and Rights(user.role).by_role(privilege):
                    yield (user.name, privilege, "*", "*", None, notes, None)
            for right in user.granted:
                on = right.on
                if on.kind == "connection":
                    yield (user.name, right.privilege, None, None, None, None, on.name or "*")
                else:
                    yield (user.name, right.privilege, on.database or "*", on.name or "*", None, None, None)

    def _functions(self) -> Iterator[Row]:
        for function in self._catalog.functions.all():
            arguments = function.arguments
            yield (
                function.name, function.comment, int(function.aggregate), function.result.sql(),
                function.create_time_ms, None, None, "Python", function.source,
                None if arguments is None else ", ".join(kind.sql() for kind in arguments),
            )

    def _outside_rows(self) -> Iterator[Row]:
        for info in self._outside.infos():
            connection = info.connection
            options = ", ".join(f"{name}={quote_string(value)}" for name, value in connection.options)
            yield (connection.name, connection.kind, options, info.created_ms, ", ".join(info.used_by) or None,
                   info.health.state, info.health.reason or None, info.health.since_ms)

    def _configs(self) -> Iterator[Row]:
        units = {key.name: {"duration": "duration", "size": "size"}.get(key.kind) for key in keys().values()}
        for name, value in self._config.items():
            secret = name.startswith(SPARK_PREFIX) and _SECRET.search(name) is not None
            yield (name, "***" if secret else value, units.get(name), None)

    def _ingest_rows(self) -> Iterator[Row]:
        for info in self._ingests.infos():
            record, plan = info.record, info.plan
            target = self._catalog.table_by_uid(record.target_uid)
            source = None if plan is None else ", ".join(plan.topics) or plan.path or "*"
            yield (record.name, info.state, info.reason or None, info.since_ms, record.connection, source,
                   None if target is None else target.database, None if target is None else target.name, info.rows,
                   info.messages, info.nbytes, info.errors, info.unknown, info.lag, info.last_refused or None,
                   None if plan is None else plan.guarantee, None if plan is None else plan.on_error,
                   record.tasks, record.attempt, info.restarts, record.created_ms, record.text)

    def _port_rows(self) -> Iterator[Row]:
        for info in self._activity.ports():
            refused = info.counts.refused
            yield (info.port, info.purpose, info.counts.connections, info.counts.strangers,
                   *(refused[reason] for reason in REASONS))

    def _connections(self) -> Iterator[Row]:
        for connection in self._activity.connections():
            yield (connection.id, connection.user, "penstock", connection.login_ms, connection.last_access_ms)

    def _queries(self) -> Iterator[Row]:
        for statement, microseconds in self._activity.running():
            yield (f"{statement.id:x}", statement.connection_id, statement.started_ms, microseconds,
                   statement.text[:1024], statement.progress, statement.user)

    # --- streams -----------------------------------------------------------------------------------------------

    def _stream_rows(self) -> Iterator[Row]:
        now = self._streams.snapshot()
        for stream in self._catalog.streams.all():
            source = self._catalog.table_by_uid(stream.source_uid)
            target = self._catalog.table_by_uid(stream.target_uid)
            info = now.infos.get(stream.id)
            if info is None:  # created since
                continue
            reports = now.tasks.get(stream.id, ())
            precision = self._precision(source)
            sources = [report.status for report in reports if report.status.task.operator == "source"]
            sinks = [report.status for report in reports if report.status.task.operator == "sink"]
            lags = [report.lag for report in reports if report.lag is not None]
            blocked = next((r.status.blocked_by for r in reports if r.status.blocked_by), None)
            marks = [status.watermark for status in sources if status.watermark is not None and not status.idle]
            all_marks = marks or [status.watermark for status in sources if status.watermark is not None]
            history = [status.history for status in sources if status.history is not None]
            filling = any(not progress.done for progress in history)
            plan = None if info.stored is None else info.stored.plan
            outside = plan.sink.text if plan is not None and plan.sink.outside is not None else None
            interval = None if info.stored is None else info.stored.options.checkpoint_interval
            interval_s = self._config.checkpoint_interval if interval is None else interval.in_units("ms") / 1000
            rates = info.rates or task_settings(self._config).rates
            checkpoint = next((c for c in reversed(now.checkpoints.get(stream.id, ())) if c.state == "COMMITTED"), None)
            yield (
                stream.name, stream.asked.created_ms, f"0x{stream.id:x}", f"0x{stream.id:x}" if filling else None,
                stream.asked.text[:1024],
                _tdengine_status(info.status.state), source.database if source else None,
                target.database if target else None,
                target.name if target else outside, plan.policies.watermark if plan else 0,
                (plan.trigger if plan else "window_close").replace("_", " "),
                _rate(rates.sink_bytes_per_second / BYTES_PER_MEGABYTE, "MB/s"),
                f"{interval_s:g} sec", info.backup, "100a", info.status.reason or None, info.status.state,
                info.status.reason or None, info.status.since_ms, stream.attempt, info.status.restarts,
                sum(status.rows_in for status in sources), sum(status.rows_out for status in sinks),
                sum(report.status.late_rows for report in reports), sum(lags) if lags else None,
                _to_ms(min(all_marks), precision) if all_marks else None,
                checkpoint.checkpoint_id if checkpoint else None, checkpoint.end_ms if checkpoint else None, blocked,
                history_text(history, precision),
                (plan.policies.guarantee if plan else "exactly_once").replace("_", " "),
                None if plan is None else (delivery(plan) or "exactly once (upserts)").partition(":")[0],
                info.verdict or None, _rate(rates.source_rows_per_second, "rows/s"),
                _rate(rates.history_rows_per_second, "rows/s"), _rate(rates.sink_calls_per_second, "calls/s"),
                state_bytes(report.status for report in reports), info.state_limit or None,
                sum(status.notify_sent for status in sinks), sum(status.notify_failed for status in sinks),
                sum(status.notify_waiting for status in sinks),
                next((status.notify_error for status in sinks if status.notify_error), None),
            )

    def _task_rows(self) -> Iterator[Row]:
        now = self._streams.snapshot()
        for stream in self._catalog.streams.all():
            precision = self._precision(self._catalog.table_by_uid(stream.source_uid))
            starts = dict(stream.start_cut)
            info = now.infos.get(stream.id)
            stored = None if info is None else info.stored
            graph = TaskGraph(Nodes(()), ()) if stored is None else stored.graph
            apart = None if stored is None else placement(stored.plan, graph.nodes.snode_ids)
            downstream = {edges.task: edges.downstream for edges in graph.edges(stream.id)}
            checkpoint = next((c for c in reversed(now.checkpoints.get(stream.id, ())) if c.state == "COMMITTED"), None)
            for report in now.tasks.get(stream.id, ()):
                yield (*_task_row(stream, report, graph.nodes, starts, precision, checkpoint,
                                  downstream.get(report.status.task, ())),
                       (info.status.group or None) if info else None, apart, *_notified(report.status))

    def _checkpoint_rows(self) -> Iterator[Row]:
        now = self._streams.snapshot()
        for stream in self._catalog.streams.all():
            for info in now.checkpoints.get(stream.id, ()):
                duration = None if info.end_ms is None or info.start_ms is None else float(info.end_ms - info.start_ms)
                yield (stream.name, info.checkpoint_id, info.state, info.start_ms, info.end_ms, duration,
                       info.bytes_written, info.phase or None, info.slowest_task or None, info.slowest_ms,
                       info.rows_to_replay, _versions(info.versions), info.reason or None)

    def _savepoint_rows(self) -> Iterator[Row]:
        for savepoint in self._savepoints.savepoints():
            yield (savepoint.stream, savepoint.name, savepoint.checkpoint_id, savepoint.created_ms, savepoint.state,
                   savepoint.bytes_written, _versions(savepoint.versions), savepoint.reason or None)

    def _worker_rows(self) -> Iterator[Row]:
        for worker in self._streams.snapshot().workers:
            yield (worker.group, worker.index, worker.node_id, worker.state, worker.reason or None, worker.pid,
                   worker.address, worker.heard_ms, None if worker.group is None else len(worker.streams),
                   worker.failures, ", ".join(worker.streams) or None, worker.executor, worker.host, worker.slots,
                   worker.nice, worker.memory_bytes)

    def _memory_rows(self) -> Iterator[Row]:
        for info in self._streams.snapshot().memory:
            yield (info.process, info.pid, info.memory_bytes, info.limit_bytes)

    def _sources(self) -> Iterator[tuple[StreamRecord, int, TaskReport, Sequence[TaskReport], Precision]]:
        """Yields each source task with its stream, its vnode and the reports of all tasks of the stream."""
        now = self._streams.snapshot()
        for stream in self._catalog.streams.all():
            source = self._catalog.table_by_uid(stream.source_uid)
            database = self._catalog.database(source.database) if source else None
            vgroups = database.vgroup_ids if database else ()
            reports = now.tasks.get(stream.id, ())
            for report in reports:
                if report.status.task.operator == "source" and report.status.task.index < len(vgroups):
                    yield (stream, vgroups[report.status.task.index], report, reports, self._precision(source))

    def _watermark_rows(self) -> Iterator[Row]:
        for stream, vgroup, report, reports, precision in self._sources():
            yield watermark_row(stream.name, vgroup, report, reports, precision)

    def _late_row_rows(self) -> Iterator[Row]:
        for stream, vgroup, report, _, precision in self._sources():
            for row in report.status.dropped or ():
                child = self._catalog.child_by_uid(stream.source_uid, row.tuid)
                table = self._catalog.table_by_uid(row.tuid) if child is None else None
                name = child.name if child is not None else table.name if table is not None else None
                yield (stream.name, vgroup, name, _to_ms(row.ts, precision), row.reason,
                       _to_ms(row.lateness, precision), row.ingest_time_ms or None, row.version)

    def _event_rows(self) -> Iterator[Row]:
        names = {stream.id: stream.name for stream in self._catalog.streams.all()}
        for event in self._streams.snapshot().events:
            yield (event.at_ms, names.get(event.stream_id, f"0x{event.stream_id:x} (dropped)"), event.text)

    def _precision(self, table: Table | None) -> Precision:
        database = self._catalog.database(table.database) if table is not None else None
        return database.precision if database is not None else "ms"


def tag_text(value: TagValue, kind: DataType) -> str | None:
    """Returns a tag's value as ins_tags and SHOW TAGS print it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return "\\x" + value.hex().upper()
    if kind.kind is Kind.FLOAT and isinstance(value, float):
        return f"{value:.5f}"
    return str(value)


def tag_rows(database: Database, table: Table, child: ChildTable) -> Iterator[Row]:
    """Yields the rows of ins_tags for one child table."""
    for tag, value in zip(table.tags, child.tag_values, strict=True):
        yield (child.name, database.name, table.name, tag.name, tag.type.sql(), tag_text(value, tag.type))


def _column_rows(name: str, table: Table, table_type: str) -> Iterator[Row]:
    for column in table.columns:
        kind = column.type
        yield (name, table.database, table_type, column.name, kind.sql(), kind.width(), kind.digits, kind.scale,
               0 if column is table.columns[0] or column.primary_key else 1)


def _rate(per_second: float, unit: str) -> str:
    return f"{per_second:.12g} {unit}" if per_second else "unlimited"


def _task_row(
    stream: StreamRecord, report: TaskReport, nodes: Nodes, starts: dict[int, int], precision: Precision,
    checkpoint: CheckpointInfo | None, downstream: Sequence[TaskId],
) -> Row:
    status = report.status
    level, worker = status.task.operator, nodes.worker_of(status.task)
    node = nodes.node_of(worker) if worker < nodes.workers else None
    vgroup = node.id if node is not None and node.type == "vnode" else None
    start = starts.get(vgroup) if vgroup is not None and level == "source" else None
    info = None
    if level == "source" and status.processed_version is not None:
        info = f"{status.processed_version} [{(start or 0) + 1}, {status.wal_version}]"
    elif level == "sink":
        info = f"{status.bytes_out / _MIB:.2f} MiB"
    history = status.history
    filling = history is not None and not history.done
    paused = status.state == "PAUSED"
    state: str = status.state
    reason = status.reason
    if report.stalled_s is not None:
        state, reason = "STALLED", stalled_reason(report)
    used = 100.0 * status.input_bytes / status.input_capacity if status.input_capacity else 0.0
    is_sink = level == "sink"
    return (
        stream.name, str(status.task), None if node is None else node.type, None if node is None else node.id, level,
        "scan-history" if filling and not paused else _task_status(status.state), stream.attempt,
        f"{status.input_bytes / _MIB:.2f} MiB ({used:.2f}%)", f"{status.bytes_in / _MIB:.2f} MiB",
        f"{report.bytes_in_rate / 1024:.2f} KiB/s", None if is_sink else f"{status.bytes_out / _MIB:.2f} MiB",
        None if is_sink else f"{report.bytes_out_rate / 1024:.2f} KiB/s", info, status.since_ms or None,
        stream.attempt, start, status.checkpoint_time_ms, status.checkpoint_id,
        dict(checkpoint.versions).get(vgroup) if checkpoint is not None and vgroup is not None else None,
        checkpoint.task_bytes.get(str(status.task)) if checkpoint is not None else None, "none", None,
        f"{status.task}-history" if filling else None,
        None if not filling else "paused" if paused else "scan-history",
        state, "; ".join(filter(None, (reason, status.udf_report))) or None, status.since_ms or None,
        status.blocked_by, stream.attempt,
        status.input_bytes, status.input_capacity, status.input_peak, status.output_bytes, status.output_capacity,
        status.output_peak, status.rows_in, status.rows_out, status.bytes_in, status.bytes_out,
        status.processed_version, status.wal_version, report.lag, _to_ms(status.watermark, precision),
        _to_ms(status.max_event_time, precision), status.idle, status.late_rows, status.windows_open,
        status.state_bytes, history_text([history], precision) if history is not None else None, status.udf_errors,
        _percent(report.starved), _percent(report.busy), _percent(report.blocked), status.blocked_now_s,
        _percent(report.udf), status.state_capacity, status.busy_s, status.blocked_s, status.udf_s,
        ", ".join(map(str, downstream)) or None, status.in_flight_bytes, status.wal_access,
    )


def _notified(status: TaskStatus) -> Row:
    """Returns how the notifications of a sink task go; the others send none."""
    if status.task.operator != "sink":
        return (None, None, None, None)
    return (status.notify_sent, status.notify_failed, status.notify_waiting, status.notify_error or None)


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100.0 * share, 1)


def _versions(versions: Sequence[tuple[int, int]]) -> str | None:
    return ", ".join(f"{vgroup}:{version}" for vgroup, version in versions) or None


def _to_ms(units: int | None, precision: Precision) -> int | None:
    return None if units is None else units * 1000 // UNITS_PER_SECOND[precision]


def watermark_row(
    stream: str, vgroup: int, report: TaskReport, reports: Sequence[TaskReport], precision: Precision
) -> Row:
    """Returns a line of ins_watermarks: what time it is for one vnode of a stream."""
    status = report.status
    aggs = [other.status for other in reports if other.status.task.operator == "agg"]
    index = status.task.index
    mine = [agg for agg in aggs if agg.task.index == index] or aggs
    marks = [agg.watermark for agg in mine if agg.watermark is not None]
    holds = any(index in agg.held_back_by for agg in aggs)
    per_second = UNITS_PER_SECOND[precision]
    return (
        stream, vgroup, _to_ms(status.watermark, precision), _to_ms(status.max_event_time, precision),
        _to_ms(status.upper_bound, precision), status.idle, report.lag,
        status.late_rows + sum(dict(agg.late_forgotten).get(index, 0) for agg in aggs),
        sum(dict(each.late_kept).get(index, 0) for each in (status, *aggs)),
        status.future_rows, status.error_rows, status.idle_since_ms, holds, status.processed_version,
        _to_ms(min(marks), precision) if marks else None, suggestion(status.lateness, per_second),
        histogram_text(status.lateness, per_second),
    )


def _tdengine_status(state: str) -> str:
    """Returns TDengine's word for a stream's state."""
    return {"RUNNING": "ready", "STARTING": "init", "RESTARTING": "recover", "PAUSED": "paused",
            "WAITING": "init", "FAILED": "failed", "STOPPED": "stop"}.get(state, "ready")


def _task_status(state: str) -> str:
    """Returns TDengine's word for a task's state."""
    return {"STARTING": "uninit", "PAUSED": "paused", "STOPPED": "stop", "FAILED": "dropped",
            "ALIGNING": "checkpoint"}.get(state, "ready")
