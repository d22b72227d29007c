"""Runs the tasks of a stream in one thread, with real vnodes and real state, no Spark and no waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.common.clock import ManualClock
from penstock.common.fs import OsFs
from penstock.common.placement import place
from penstock.planner.stream import StreamPlan
from penstock.planner.stream_planner import plan_stream
from penstock.sql.parser import parse_one
from penstock.sql.schema import ChildTable, Column, Database, DatabaseOptions, Session, Table, UserFunction
from penstock.sql.statements import CreateStream
from penstock.sql.types import DOUBLE, INT, DataType, Kind, timestamp
from penstock.tasks.local import LocalStream
from penstock.tasks.messages import CheckpointCommitted, ResultWrite, StartCheckpoint, TaskCheckpoint, TaskEvent, TaskId
from penstock.tasks.task import ResultWriter, StreamDeployment, StreamTask, TaskSettings
from penstock.vnode.snapshot import TimeSpan
from penstock.vnode.vnode import Vnode, VnodeOptions
from penstock.wal.reader import WalReader

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

    def __init__(self, vnodes: int, tables: int, functions: Sequence[UserFunction] = ()) -> None:
        self.functions = functions
        self.db = Database("p", DatabaseOptions(vgroups=vnodes), tuple(range(1, vnodes + 1)), 0)
        self.meters = Table(SUPER_UID, "p", "meters", "super", COLUMNS, TAGS)
        self.child_list = [
            ChildTable(SUPER_UID + 1 + n, f"d{n}", 1 + place(f"p.d{n}", vnodes), (f"s{n // 2}",)) for n in range(tables)
        ]

    def database(self, name: str) -> Database | None:
        return self.db if name == "p" else None

    def table(self, database: str, name: str) -> Table | None:
        if name == "meters":
            return self.meters
        for child in self.child_list:
            if child.name == name:
                return Table(child.uid, "p", name, "child", COLUMNS, TAGS, SUPER_UID, "meters", child.tag_values,
                             child.vgroup_id)
        return None

    def table_names(self, database: str) -> Iterable[str]:
        return ["meters", *(child.name for child in self.child_list)]

    def children(self, super_uid: int) -> Iterable[ChildTable]:
        return self.child_list

    def function(self, name: str) -> UserFunction | None:
        return next((function for function in self.functions if function.name == name), None)


@dataclass
class MemoryWriter:
    """Applies a sink's writes to a dictionary: (child, ts) -> row."""

    results: dict[tuple[str, Any], dict[str, Any]]
    writes: list[ResultWrite]

    def submit(self, write: ResultWrite) -> None:
        self.writes.append(write)
        for row in write.rows.to_pylist():
            child = write.children[row.pop("_child")].name
            operation = row.pop("_op")
            key = (child, next(iter(row.values())))
            if operation:
                self.results.pop(key, None)
            else:
                self.results[key] = row

    def poll(self) -> bool:
        return True


class MemoryEnvironment:
    """What tasks may ask of the world, answered in memory."""

    def __init__(self, kit: StreamKit) -> None:
        self.kit = kit
        self.clock = kit.clock

    def open_wal(self, vgroup_id: int, after_version: int) -> WalReader:
        return WalReader(self.kit.root / "vnode" / str(vgroup_id) / "wal", self.kit.fs, after_version + 1)

    def read_rows(self, vgroup_id: int, table_uid: int, tuids: pa.Array | None, first_ts: int, last_ts: int,
                  as_of: int) -> pa.Table:
        snapshot = self.kit.vnodes[vgroup_id].snapshot(table_uid, as_of=as_of)
        return snapshot.to_arrow(None, tuids, first_ts, last_ts)

    def time_span(self, vgroup_id: int, table_uid: int, first_ts: int, last_ts: int, as_of: int) -> TimeSpan | None:
        return self.kit.vnodes[vgroup_id].snapshot(table_uid, as_of=as_of).span(first_ts, last_ts)

    def result_writer(self, task: TaskId) -> ResultWriter:
        if self.kit.writer is not None:
            return self.kit.writer(task)
        return MemoryWriter(self.kit.results, self.kit.writes)

    def state_directory(self, task: TaskId) -> Path:
        return self.kit.root / "state" / str(task)

    def acknowledge(self, checkpoint: TaskCheckpoint) -> None:
        self.kit.acknowledged.append(checkpoint)

    def wake(self) -> None:
        return


class StreamKit:
    """One stream over some vnodes. `insert`, `delete` write; `run` drives the tasks until all rest."""

    def __init__(self, root: Path, sql: str, *, vnodes: int = 1, tables: int = 4,
                 settings: TaskSettings | None = None, before: Callable[[StreamKit], None] | None = None,
                 now_ms: int = 0, functions: Sequence[UserFunction] = (),
                 writer: Callable[[TaskId], ResultWriter] | None = None) -> None:
        """`before` writes what is there when the stream is created, at `now_ms`; the clock keeps its own start.

        `writer` makes what a sink task writes to, instead of `results`.
        """
        self.root = root
        self.writer = writer
        self.fs = OsFs()
        self.clock = ManualClock()
        self.catalog = Catalog(vnodes, tables, functions)
        self.vnodes = {
            vgroup: Vnode.open(root / "vnode" / str(vgroup), VnodeOptions(vgroup), fs=self.fs, clock=self.clock)
            for vgroup in self.catalog.db.vgroup_ids
        }
        schema = pa.schema([(column.physical, column.type.arrow()) for column in COLUMNS])
        for vnode in self.vnodes.values():
            vnode.define_table(SUPER_UID, schema, 1)
            vnode.set_pin("test", 0)
        statement = parse_one(sql)
        assert isinstance(statement, CreateStream)
        self.plan: StreamPlan = plan_stream(statement, self.catalog, Session("p", "UTC", now_ms))
        self.settings = settings or TaskSettings(
            sink_bytes_per_second=0, sink_calls_per_second=0, state_map_bytes=1 << 26)
        self.results: dict[tuple[str, Any], dict[str, Any]] = {}
        self.writes: list[ResultWrite] = []
        self.acknowledged: list[TaskCheckpoint] = []
        self.committed: int | None = None
        self.checkpoints = 0
        self.attempt = 0
        self.tasks: list[StreamTask] = []
        if before is not None:
            before(self)
        self.start_versions = tuple(vnode.acknowledged_version for vnode in self.vnodes.values())
        self.start()

    def start(self) -> None:
        """Builds the tasks from the last committed checkpoint."""
        self.attempt += 1
        sinks = [pa.field("uid", pa.uint64()), pa.field("name", pa.string()), pa.field("site", pa.string())]
        children = []
        for vgroup in self.vnodes:
            table = pa.table([
                pa.array([child.uid for child in self.catalog.child_list if child.vgroup_id == vgroup], pa.uint64()),
                pa.array([child.name for child in self.catalog.child_list if child.vgroup_id == vgroup], pa.string()),
                pa.array([child.tag_values[0] for child in self.catalog.child_list if child.vgroup_id == vgroup],
                         pa.string()),
            ], schema=pa.schema(sinks))
            buffer = pa.BufferOutputStream()
            with pa.ipc.new_stream(buffer, table.schema) as writer:
                writer.write_table(table)
            children.append(buffer.getvalue().to_pybytes())
        deployment = StreamDeployment(
            1, "s", self.attempt, self.plan, tuple(self.vnodes), self.start_versions, self.committed,
            tuple(children), self.settings)
        self.stream = LocalStream(deployment, MemoryEnvironment(self))
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

    def run_steps(self, rounds: int) -> None:
        """Gives each task a few steps."""
        for _ in range(rounds):
            self.stream.step()

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.run()

    def post(self, event: TaskEvent, level: str | None = None) -> None:
        for task in self.tasks:
            if level is None or task.id.level == level:
                task.post(event)

    def checkpoint(self, *, commit: bool = True) -> None:
        """Takes a checkpoint; commits it if all tasks acknowledged and `commit` is set."""
        self.checkpoints += 1
        number = self.checkpoints
        self.post(StartCheckpoint(number), "source")
        self.run()
        acknowledged = {ack.task for ack in self.acknowledged if ack.checkpoint_id == number}
        assert acknowledged == {task.id for task in self.tasks}
        if commit:
            self.committed = number
            self.post(CheckpointCommitted(number))
            self.run()

    def checkpoint_amid(self) -> None:
        """Takes and commits a checkpoint while the tasks are in the middle of their work: no more than it takes."""
        self.checkpoints += 1
        number = self.checkpoints
        self.post(StartCheckpoint(number), "source")
        wanted = {task.id for task in self.tasks}
        while {ack.task for ack in self.acknowledged if ack.checkpoint_id == number} != wanted:
            assert self.stream.step()
        self.committed = number
        self.post(CheckpointCommitted(number))

    def insert(self, rows: Sequence[tuple[Any, ...]], columns: Sequence[str] = ("voltage", "current", "note")) -> None:
        """Inserts rows (table number, ts, values of `columns`), one record per vnode."""
        for vgroup, vnode in self.vnodes.items():
            mine = [row for row in rows if self.catalog.child_list[row[0]].vgroup_id == vgroup]
            if not mine:
                continue
            arrays: dict[str, pa.Array] = {
                "_tuid": pa.array([self.catalog.child_list[row[0]].uid for row in mine], pa.uint64()),
                "ts": pa.array([row[1] for row in mine], pa.timestamp("ms")),
            }
            for n, name in enumerate(columns):
                kind = next(column.type.arrow() for column in COLUMNS if column.name == name)
                arrays[name] = pa.array([row[2 + n] for row in mine], kind)
            vnode.write(SUPER_UID, pa.RecordBatch.from_pydict(arrays))

    def delete(self, tables: Sequence[int] | None, first_ts: int, last_ts: int) -> None:
        for vgroup, vnode in self.vnodes.items():
            tuids = None if tables is None else [
                self.catalog.child_list[n].uid for n in tables if self.catalog.child_list[n].vgroup_id == vgroup]
            if tuids is None or tuids:
                vnode.delete(SUPER_UID, tuids, first_ts, last_ts)

    def rows(self) -> list[dict[str, Any]]:
        """Returns the result rows, sorted by child and time."""
        return [dict(row, _child=key[0]) for key, row in sorted(self.results.items(), key=lambda item: item[0])]

    def source(self) -> pa.Table:
        """Returns all rows of the source as the batch sees them: tbname, site, ts (int64), columns."""
        names = {child.uid: child for child in self.catalog.child_list}
        tables = []
        for vnode in self.vnodes.values():
            stored = vnode.snapshot(SUPER_UID).to_arrow()
            tuids = stored.column("_tuid").to_pylist()
            table = stored.drop_columns(["_ver", "ts"]).append_column("ts", stored.column("ts").cast(pa.int64()))
            table = table.append_column("tbname", pa.array([names[uid].name for uid in tuids], pa.string()))
            tables.append(table.append_column("site", pa.array([names[uid].tag_values[0] for uid in tuids],
                                                               pa.string())))
        return pa.concat_tables(tables)

    def close(self) -> None:
        for task in self.tasks:
            task.close()
        for vnode in self.vnodes.values():
            vnode.close(flush=False)

    def with_settings(self, **changes: Any) -> TaskSettings:
        return replace(self.settings, **changes)
