"""Runs the tasks of a stream in one thread, with real vnodes and real state, no Spark and no waiting."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from kits.basics.faulty_fs import FaultyFs
from kits.streams.shared_computers import share_computers

from penstock.common.clock import ManualClock
from penstock.common.connection import ExternalConnection, OpenedConnection
from penstock.common.placement import place
from penstock.mnode.coordinator.task_graph_builder import task_graph
from penstock.mnode.ddl import meta_records as meta
from penstock.mnode.streams.stored_stream_keeper import children_ipc
from penstock.planner.streams.stream_planner import StreamDefaults, plan_stream
from penstock.planner.streams.stream_time import TimeDefaults
from penstock.planner.task_plans.stream_plan import SinkPlan, StreamPlan
from penstock.sql.dialect.parser import parse_one
from penstock.sql.schema import (
    ChildTable,
    Column,
    Database,
    DatabaseOptions,
    Session,
    Table,
    TagValue,
    UserFunction,
    View,
)
from penstock.sql.tree.statements import CreateStream
from penstock.sql.types import DOUBLE, INT, DataType, Kind, Precision, timestamp
from penstock.tasks.external.emit.async_sink_writer import ExternalTarget
from penstock.tasks.external.emit.external_writers import ExternalWriter
from penstock.tasks.external.notify.notify_target import open_sender
from penstock.tasks.external.notify.window_notifier import Notifier, OpenSender, notifier_of
from penstock.tasks.operators.stream_task import StreamTask
from penstock.tasks.protocol.deployment import StreamDeployment, TaskSettings
from penstock.tasks.protocol.messages import (
    CLEAR,
    REPLACE,
    CheckpointCommitted,
    ReadBack,
    Recalculate,
    ResultWrite,
    StartCheckpoint,
    TaskCheckpoint,
    TaskEvent,
    TaskId,
)
from penstock.tasks.protocol.result_writers import ResultWriter
from penstock.tasks.protocol.store_requests import RowsRequest, SpanRequest, StoreRequest
from penstock.tasks.protocol.task_status import TaskStatus
from penstock.tasks.sink.external_writer_builder import OpenTarget, external_writer, open_target
from penstock.tasks.state.state_cache import DEFAULT_BYTES, StateCache
from penstock.tasks.state.state_store import StateStore
from penstock.tasks.worker.local_environment import LocalStream
from penstock.vnode.read.row_places import RowPlaces
from penstock.vnode.store.sorted_keys import TS_MAX, TS_MIN
from penstock.vnode.store.vnode_options import VnodeOptions
from penstock.vnode.vnode import Vnode
from penstock.vnode.write.vnode_writer import DeletedRows
from penstock.wal.log import LogFiles
from penstock.wal.shared_reading import RecentReads, SharedWalReader

share_computers()

Step = tuple[str, Any]
Answer = tuple[Any, ...]

SUPER_UID = 100
COLUMNS = (
    Column("ts", timestamp(), "ts"),
    Column("voltage", INT, "voltage"),
    Column("current", DOUBLE, "current"),
    Column("note", DataType(Kind.VARCHAR, 16), "note"),
)
TAGS = (Column("site", DataType(Kind.VARCHAR, 16), "site"),)


class Catalog:
    """A database `p` with the super table `meters` and child tables d0, d1, ..., two per site."""

    def __init__(self, vnodes: int, tables: int, functions: Sequence[UserFunction] = (), *,
                 columns: Sequence[Column] = COLUMNS, tags: Sequence[Column] = TAGS,
                 tag_values: Sequence[tuple[TagValue, ...]] | None = None, precision: Precision = "ms") -> None:
        """`tag_values`: one tuple per child table, for other `tags` than the site."""
        self.functions = functions
        self.connections: tuple[ExternalConnection, ...] = ()
        options = DatabaseOptions(vgroups=vnodes, precision=precision)
        self.db = Database("p", options, tuple(range(1, vnodes + 1)), 0)
        self.meters = Table(SUPER_UID, "p", "meters", "super", tuple(columns), tuple(tags))
        values = [(f"s{n // 2}",) for n in range(tables)] if tag_values is None else tag_values
        self.child_list = [
            ChildTable(SUPER_UID + 1 + n, f"d{n}", 1 + place(f"p.d{n}", vnodes), values[n]) for n in range(tables)
        ]

    def database(self, name: str) -> Database | None:
        return self.db if name == "p" else None

    def database_names(self) -> Iterable[str]:
        return ["p"]

    def table(self, database: str, name: str) -> Table | None:
        if name == "meters":
            return self.meters
        for child in self.child_list:
            if child.name == name:
                return Table(child.uid, "p", name, "child", self.meters.columns, self.meters.tags, SUPER_UID, "meters",
                             child.tag_values, child.vgroup_id)
        return None

    def view(self, database: str, name: str) -> View | None:
        return None

    def table_names(self, database: str) -> Iterable[str]:
        return ["meters", *(child.name for child in self.child_list)]

    def children(self, super_uid: int) -> Iterable[ChildTable]:
        return self.child_list

    def function(self, name: str) -> UserFunction | None:
        return next((function for function in self.functions if function.name == name), None)

    def external_connection(self, name: str) -> ExternalConnection | None:
        return next((one for one in self.connections if one.name == name), None)

    def external_connection_names(self) -> Iterable[str]:
        return [one.name for one in self.connections]


OF_ANY_TIME = StreamDefaults(time=TimeDefaults(max_future_s=36_500 * 86_400.0))
"""Rows of kits may be of any time, whatever their clock shows."""


class Store:
    """Vnodes with the rows of the super table. `insert` and `delete` write; any number of streams follow the logs."""

    def __init__(self, root: Path, catalog: Catalog) -> None:
        self.root = root
        self.catalog = catalog
        self.clock = ManualClock()
        self.fs = FaultyFs()  # one that never really syncs
        self._by_points = False  # the last delete
        self.recent_reads = RecentReads()  # the streams of a store are those of one worker
        columns = catalog.meters.columns
        self.names = [column.name for column in columns]
        self.fields = {column.name: pa.field(column.physical, column.type.arrow()) for column in columns}
        schema = pa.schema(list(self.fields.values()))
        self.vnodes = {
            vgroup: Vnode.open(root / "vnode" / str(vgroup), VnodeOptions(vgroup), fs=self.fs, clock=self.clock)
            for vgroup in catalog.db.vgroup_ids
        }
        for vnode in self.vnodes.values():
            vnode.tables.define(SUPER_UID, schema, 2 if catalog.meters.key_column is not None else 1)
            vnode.set_pin("test", 0)

    def wal(self, vgroup: int) -> Path:
        return self.root / "vnode" / str(vgroup) / "wal"

    def insert(self, rows: Sequence[tuple[Any, ...]], columns: Sequence[str] | None = None) -> None:
        """Inserts rows (table number, ts, values of `columns`, by default all), one record per vnode."""
        columns = self.names[1:] if columns is None else columns
        for vgroup, vnode in self.vnodes.items():
            mine = [row for row in rows if self.catalog.child_list[row[0]].vgroup_id == vgroup]
            if not mine:
                continue
            arrays = {
                "_tuid": pa.array([self.catalog.child_list[row[0]].uid for row in mine], pa.uint64()),
            }
            for n, name in enumerate([self.names[0], *columns], 1):
                field = self.fields[name]
                arrays[field.name] = pa.array([row[n] for row in mine], field.type)
            vnode.write(SUPER_UID, pa.RecordBatch.from_pydict(arrays))

    def delete(self, tables: Sequence[int] | None, first_ts: int, last_ts: int) -> None:
        """Deletes rows; of named tables in turn each at its time, as results are deleted, and all between two times."""
        self._by_points = not self._by_points
        for vgroup, vnode in self.vnodes.items():
            tuids = None if tables is None else [
                self.catalog.child_list[n].uid for n in tables if self.catalog.child_list[n].vgroup_id == vgroup]
            if tuids and self._by_points:
                _delete_each(vnode, tuids, first_ts, last_ts)
            elif tuids is None or tuids:
                vnode.delete(SUPER_UID, tuids, first_ts, last_ts)

    def retag(self, table: int, tags: tuple[TagValue, ...]) -> None:
        """Gives a child table other tags, as ALTER TABLE does."""
        before = self.catalog.child_list[table]
        after = self.catalog.child_list[table] = before._replace(tag_values=tags)
        self.vnodes[before.vgroup_id].write_meta(meta.set_tags(SUPER_UID, before, after))

    def renew(self, table: int, tags: tuple[TagValue, ...]) -> None:
        """Drops a child table, and makes another one of that name."""
        gone = self.catalog.child_list[table]
        self.delete([table], TS_MIN, TS_MAX)
        uid = 1 + max(child.uid for child in self.catalog.child_list)
        self.catalog.child_list[table] = gone._replace(uid=uid, tag_values=tags)
        vnode = self.vnodes[gone.vgroup_id]
        vnode.write_meta(meta.drop_children(SUPER_UID, [gone]))
        vnode.write_meta(meta.create_children(
            SUPER_UID, np.array([uid], np.uint64), [gone.name], [[tag] for tag in tags]))

    def rows(self) -> pa.Table:
        """Returns all rows as the batch sees them: tbname, tags, `_tuid`, columns; timestamps are int64."""
        children = {child.uid: child for child in self.catalog.child_list}
        tables = []
        for vnode in self.vnodes.values():
            stored = vnode.reader.snapshot(SUPER_UID).to_arrow()
            tuids = stored.column("_tuid").to_pylist()
            table = stored.select(["_tuid"])
            for name, field in self.fields.items():
                column = stored.column(field.name)
                table = table.append_column(
                    name, column.cast(pa.int64()) if pa.types.is_timestamp(field.type) else column)
            table = table.append_column("tbname", pa.array([children[uid].name for uid in tuids], pa.string()))
            for n, tag in enumerate(self.catalog.meters.tags):
                table = table.append_column(
                    tag.name, pa.array([children[uid].tag_values[n] for uid in tuids], tag.type.arrow()))
            tables.append(table)
        return pa.concat_tables(tables)

    def close(self) -> None:
        for vnode in self.vnodes.values():
            vnode.close(flush=False)


@dataclass
class MemoryWriter:
    """Applies a sink's writes to a dictionary: (child, ts, and the key if the target has one) -> row.

    Of a table with a KEY: (child, each of the KEY's columns) -> row.
    """

    results: dict[tuple[Any, ...], dict[str, Any]]
    writes: list[ResultWrite]
    sink: SinkPlan
    submitted: int = 0

    def submit(self, write: ResultWrite) -> None:
        self.submitted += 1
        self.writes.append(write)
        for row in write.rows.to_pylist():
            child = write.children[row.pop("_child")].name
            operation = row.pop("_op")
            values = list(row.values())
            if self.sink.single:
                assert operation in (REPLACE, CLEAR)
                self.results.clear()
                if operation == REPLACE:
                    self.results[child, *row.values()] = row
                continue
            if self.sink.keyed:
                key = (child, *(row[column.name] for column in self.sink.columns if column.primary_key))
                self.results.pop(key, None)
                if operation != 1:
                    self.results[key] = row
                continue
            composite = self.sink.key_column is not None
            if operation and not composite:
                self.results.pop((child, values[0]), None)
            elif operation:
                for key in [key for key in self.results if key[:2] == (child, values[0])]:
                    del self.results[key]
            if operation != 1:
                self.results[child, *values[:2 if composite else 1]] = row

    def acknowledged(self) -> int:
        return self.submitted


class MemoryEnvironment:
    """What tasks may ask of the world, answered in memory."""

    turn: int | None = None

    def __init__(self, kit: StreamKit) -> None:
        self.kit = kit
        self.clock = kit.clock
        self.spill = kit.root / "spill"
        # Where tasks may keep nothing in memory, their stores mayn't either.
        self._cache = StateCache(DEFAULT_BYTES if kit.settings.state_memory_bytes else 0)

    def open_wal(self, vgroup_id: int, after_version: int, table_uid: int) -> SharedWalReader:
        log = LogFiles(self.kit.store.wal(vgroup_id), self.kit.store.fs)
        return self.kit.store.recent_reads.reader(vgroup_id, log, after_version + 1, table_uid)

    def ask(self, request: StoreRequest) -> pa.Table:
        assert isinstance(request, RowsRequest | SpanRequest)
        snapshot = self.kit.vnodes[request.vgroup_id].reader.snapshot(request.table_uid, as_of=request.as_of)
        if isinstance(request, SpanRequest):
            span = snapshot.span(request.first_ts, request.last_ts)
            return pa.Table.from_pylist([] if span is None else [asdict(span)])
        if request.tuids is None or request.times is None:
            return snapshot.to_arrow(None, request.tuids, request.first_ts, request.last_ts)
        return snapshot.rows_at(None, RowPlaces.at(request.tuids, request.times))

    def result_writer(self, task: TaskId) -> ResultWriter:
        if self.kit.writer is not None:
            return self.kit.writer(task)
        return MemoryWriter(self.kit.results, self.kit.writes, self.kit.plan.sink)

    def external_writer(self, task: TaskId, deployment: StreamDeployment, store: StateStore) -> ExternalWriter:
        def open_with(connection: OpenedConnection, known: bool) -> ExternalTarget:
            if self.kit.open_target is not None:
                return self.kit.open_target(connection, known)
            return self.kit.around(open_target(task, deployment, connection, known))

        return external_writer(task, deployment, store, self.clock, self.wake, lambda: self.result_writer(task),
                              open_with)[0]

    def notifier(self, task: TaskId, deployment: StreamDeployment) -> Notifier:
        return notifier_of(deployment, self.clock, self.wake, self.kit.open_url)

    def open_state(self, task: TaskId, map_bytes: int) -> StateStore:
        return StateStore(self.kit.root / "state" / str(task), map_bytes, self._cache)

    def acknowledge(self, checkpoint: TaskCheckpoint) -> None:
        self.kit.acknowledged.append(checkpoint)

    def read_back(self, order: ReadBack) -> None:
        for first, last in order.ranges:
            self.kit.stream.post(Recalculate(first, last))

    def wake(self) -> None:
        return


class StreamKit:
    """One stream over some vnodes. `insert`, `delete` write; `run` drives the tasks until all rest."""

    def __init__(self, root: Path, sql: str, *, vnodes: int = 1, tables: int = 4,
                 settings: TaskSettings | None = None, before: Callable[[StreamKit], None] | None = None,
                 now_ms: int = 0, functions: Sequence[UserFunction] = (), store: Store | None = None,
                 time_zone: str = "UTC", writer: Callable[[TaskId], ResultWriter] | None = None,
                 restarted: bool = False, committed: int | None = None,
                 connection: OpenedConnection | None = None, open_target: OpenTarget | None = None,
                 around: Callable[[ExternalTarget], ExternalTarget] = lambda target: target,
                 open_url: OpenSender = open_sender) -> None:
        """`before` writes what is there when the stream is created, at `now_ms`; the clock keeps its own start.

        `restarted`: another process ran the stream in this directory, from the beginning of the logs; `committed`: the
        last checkpoint that it made valid.

        `store` may be shared by several kits, as may its clock; who made it closes it. `writer` makes what a sink task
        writes to, instead of `results`. `connection`: the one of INTO CONNECTION; `open_target` opens the target
        instead of the product's, `around` is what the product's is wrapped into. `open_url` opens the addresses
        of NOTIFY.
        """
        self.root = root
        self.writer = writer
        self.connection = connection
        self.open_target = open_target
        self.around = around
        self.open_url = open_url
        self.owns_store = store is None
        self.store = store or Store(root, Catalog(vnodes, tables, functions))
        self.clock = self.store.clock
        self.catalog = self.store.catalog
        self.vnodes = self.store.vnodes
        if connection is not None:
            self.catalog.connections = (ExternalConnection(connection.name, connection.kind, ()),)
        statement = parse_one(sql)
        assert isinstance(statement, CreateStream)
        self.plan: StreamPlan = plan_stream(statement, self.catalog, Session("p", time_zone, now_ms), OF_ANY_TIME)
        self.settings = settings or unhurried()
        self.results: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.writes: list[ResultWrite] = []
        self.acknowledged: list[TaskCheckpoint] = []
        self.committed = committed
        self.checkpoints = committed or 0
        self.attempt = int(restarted)
        self.tasks: list[StreamTask] = []
        if before is not None:
            before(self)
        self.start_versions = tuple(0 if restarted else vnode.acknowledged_version for vnode in self.vnodes.values())
        self.start()

    def start(self) -> None:
        """Builds the tasks from the last committed checkpoint."""
        self.attempt += 1
        children = [children_ipc(self.catalog.meters, [
            child for child in self.catalog.child_list if child.vgroup_id == vgroup]) for vgroup in self.vnodes]
        sides = len(self.plan.sources)
        deployment = StreamDeployment(
            1, "s", self.attempt, self.plan, task_graph(self.plan, tuple(self.vnodes)), self.start_versions * sides,
            self.committed, tuple(children) * sides, self.settings, connection=self.connection)
        self.stream = LocalStream.built(deployment, MemoryEnvironment(self))
        self.tasks = self.stream.tasks

    def kill(self) -> None:
        """Ends the tasks as a crash would: nothing is flushed, then starts them again."""
        for task in self.tasks:
            task.close()
        self.start()

    def run(self) -> None:
        """Drives the tasks until nothing progresses; no time passes."""
        while self.stream.step():
            for task in self.tasks:
                task.input.validate()
        for task in self.tasks:
            assert_balanced(task.status())

    def run_steps(self, rounds: int) -> None:
        """Gives each task a few steps."""
        for _ in range(rounds):
            self.stream.step()

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.run()

    def post(self, event: TaskEvent, level: str | None = None) -> None:
        for task in self.tasks:
            if level is None or task.id.operator == level:
                task.post(event)

    def checkpoint(self, *, commit: bool = True) -> None:
        """Takes a checkpoint; commits it if all tasks acknowledged and `commit` is set."""
        self.checkpoints += 1
        number = self.checkpoints
        self.stream.post(StartCheckpoint(number))
        self.run()
        acknowledged = {ack.task for ack in self.acknowledged if ack.checkpoint_id == number}
        assert acknowledged == {task.id for task in self.tasks}
        if commit:
            self.commit(number)
            self.run()

    def checkpoint_amid(self) -> None:
        """Takes and commits a checkpoint while the tasks are in the middle of their work: no more than it takes."""
        self.commit(self.barrier_amid())

    def barrier_amid(self) -> int:
        """Takes a checkpoint in the middle of the tasks' work, which isn't valid yet; returns its number."""
        self.checkpoints += 1
        number = self.checkpoints
        self.stream.post(StartCheckpoint(number))
        wanted = {task.id for task in self.tasks}
        while {ack.task for ack in self.acknowledged if ack.checkpoint_id == number} != wanted:
            assert self.stream.step()
        return number

    def commit(self, number: int) -> None:
        """Makes a checkpoint valid, and tells the tasks."""
        self.committed = number
        self.post(CheckpointCommitted(number))

    def insert(self, rows: Sequence[tuple[Any, ...]], columns: Sequence[str] | None = None) -> None:
        """Inserts rows (table number, ts, values of `columns`, by default all), one record per vnode."""
        self.store.insert(rows, columns)

    def delete(self, tables: Sequence[int] | None, first_ts: int, last_ts: int) -> None:
        self.store.delete(tables, first_ts, last_ts)

    def rows(self) -> list[dict[str, Any]]:
        """Returns the result rows, sorted by child and time."""
        found = sorted(self.results.items(), key=lambda item: null_last(item[0]))
        return [dict(row, _child=key[0]) for key, row in found]

    def source(self) -> pa.Table:
        """Returns all rows of the source as the batch sees them."""
        return self.store.rows()

    def close(self) -> None:
        for task in self.tasks:
            task.close()
        if self.owns_store:
            self.store.close()


def unhurried(**changes: Any) -> TaskSettings:
    """Returns settings without limits of rate, small enough for tests; `changes` are other fields."""
    return replace(TaskSettings(sink_bytes_per_second=0, sink_calls_per_second=0, sink_tables_share=1.0,
                                state_map_bytes=1 << 26), **changes)


def assert_balanced(status: TaskStatus) -> None:
    """No row is lost between the log and what a source task sends on, in any test."""
    assert not status.account.missing, (status.task, status.account)


def _delete_each(vnode: Vnode, tuids: Sequence[int], first_ts: int, last_ts: int) -> None:
    found = vnode.reader.snapshot(SUPER_UID).to_arrow(None, pa.array(tuids, pa.uint64()), first_ts, last_ts)
    points = found.select([0, 1]).group_by(found.column_names[:2]).aggregate([])
    begun = vnode.writer.begin_together([DeletedRows(
        SUPER_UID, points.column(0).to_numpy(), points.column(1).cast(pa.int64()).to_numpy())])
    if begun is not None:
        begun.wait()


# -- random steps ---------------------------------------------------------------------------------------------------


def play(kit: StreamKit, steps: Sequence[Step]) -> None:
    """Carries out random steps."""
    for kind, what in steps:
        match kind:
            case "insert":
                kit.insert(what)
            case "each":
                for row in what:
                    kit.insert([row])
            case "partial":
                kit.insert([row[:3] for row in what], ("voltage",))
            case "delete":
                tables, first, length = what
                kit.delete(tables, first, first + length)
            case "run":
                kit.run()
            case "wait":
                kit.pass_time(what)
            case "checkpoint":
                kit.run()
                kit.checkpoint(commit=what)
            case "kill":
                kit.kill()


def newest_per_vnode(kit: StreamKit, steps: Sequence[Step]) -> dict[int, int]:
    """The newest time ever inserted into each vnode that has any."""
    newest: dict[int, int] = {}
    for kind, what in steps:
        if kind in ("insert", "partial", "each"):
            for row in what:
                vgroup = kit.catalog.child_list[row[0]].vgroup_id
                newest[vgroup] = max(row[1], newest.get(vgroup, row[1]))
    return newest


def table_vnode(kit: StreamKit, name: str) -> int:
    return next(child.vgroup_id for child in kit.catalog.child_list if child.name == name)


# -- comparing answers ----------------------------------------------------------------------------------------------


def millis(moment: datetime) -> int:
    """Milliseconds since the epoch; a time without zone is UTC."""
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def null_last(answer: Answer) -> list[tuple[bool, Any]]:
    """Sorts rows that may have NULLs."""
    return [(value is None, value) for value in answer]


def assert_same(got: Sequence[Answer], want: Sequence[Answer]) -> None:
    """Compares rows in order; floating point numbers may differ by rounding."""
    assert len(got) == len(want), (got, want)
    for left, right in zip(got, want, strict=True):
        for a, b in zip(left, right, strict=True):
            if isinstance(a, float) and isinstance(b, float):
                assert math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-6), (left, right)
            else:
                assert a == b, (left, right)
