"""One run: a workload and faults drawn from a seed, then peace, then the comparison with the batch answer."""

from __future__ import annotations

import gc
import logging
import shutil
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import lmdb

from penstock.common.config import load_config
from penstock.common.errors import CorruptionError, InternalError, PenstockError, StorageError, UnavailableError
from penstock.mnode.controller.controller_settings import ControllerSettings
from penstock.tasks.protocol.task_status import TaskState
from simulation.cluster import Cluster, EngineProcess, NetworkFaults, SimGroup
from simulation.disk import PowerLost, ProcessDied
from simulation.oracle import EXCHANGED, KEEP, KINDS, WINDOW, Key, Model, StreamKind, Written, batch_answer, shown
from simulation.world import SimulationError, World

T0 = 1_700_000_000_000
TABLES = 5
_EVENTS_MAX = 200_000
_PATIENCE_S = 240.0
_ENDED_WITHIN_S = 1.0  # after Spark's end, whatever state a worker is in
_REST_S = 1.6  # longer than idleTimeout, after which a vnode without rows holds time back no more
_STATES = frozenset(TaskState.__args__)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Profile:
    """Which faults a run has, and how many; drawn from the seed, so that few kinds meet in one run."""

    vgroups: int
    wal_level: int
    streams: tuple[StreamKind, ...]
    operations: int
    late: bool
    partly: bool
    deletes: bool
    block_rows: int
    engine_kills: int
    worker_kills: int
    worker_stops: int
    power_cuts: int
    disk_faults: int
    commit_faults: int
    slow_disk: bool
    clock_jumps: int
    network: NetworkFaults
    zombie_s: float
    spark_kills: int
    history: bool = True
    checkpoint_s: int = 1
    snodes: int = 0
    pauses: int = 0
    queue_kib: int = 64

    def with_snodes(self, snodes: int) -> Profile:
        """Returns the same kind of run with snodes, and something for them to do."""
        others = tuple(stream for stream in self.streams if stream is not EXCHANGED)
        return replace(self, snodes=snodes, vgroups=max(2, self.vgroups), streams=(EXCHANGED, *others))


@dataclass(frozen=True)
class Outcome:
    """How a run went. `problem` is "" if all is well; `digest` is the same for two runs of one seed."""

    seed: int
    problem: str
    digest: str
    events: int
    rows: int
    faults: dict[str, int] = field(default_factory=dict)
    trace: tuple[str, ...] = ()


class _Defects(logging.Handler):
    """Collects what the product logs as a defect of its own."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None and not isinstance(record.exc_info[1], PenstockError):
            self.texts.append("".join(traceback.format_exception(record.exc_info[1]))[-1500:])
        elif record.exc_info and isinstance(record.exc_info[1], InternalError):
            self.texts.append(f"{record.getMessage()}: {record.exc_info[1]}")


def draw_profile(world: World) -> Profile:
    """Draws what kind of run it will be."""
    chance = world.chance

    def some(most: int) -> int:
        return chance.randint(1, most) if chance.random() < 0.4 else 0

    return Profile(
        vgroups=chance.randint(1, 4),
        wal_level=chance.choice([1, 2, 2]),
        streams=tuple(chance.sample(KINDS, chance.randint(1, 2))),
        operations=chance.randint(8, 24) if chance.random() < 0.75 else chance.randint(40, 120),
        late=chance.random() < 0.7,
        partly=chance.random() < 0.5,
        deletes=chance.random() < 0.4,
        block_rows=chance.choice([1, 2, 8, 64]),
        engine_kills=some(2),
        worker_kills=some(3),
        worker_stops=some(2),
        power_cuts=some(2),
        disk_faults=some(4),
        commit_faults=some(3),
        slow_disk=chance.random() < 0.2,
        clock_jumps=some(2),
        network=NetworkFaults(
            lost=0.01 if chance.random() < 0.3 else 0.0, twice=0.02 if chance.random() < 0.3 else 0.0,
            delay_s=chance.choice([0.002, 0.02, 0.3])),
        zombie_s=chance.choice([0.05, 1.0, 4.0]),
        spark_kills=some(2),
        history=chance.random() < 0.5,
        checkpoint_s=chance.choice([1, 1, 4, 600]),
        pauses=some(2),
        queue_kib=chance.choice([64, 64, 16_384]),
    )


class Run:
    """One seed, from an empty directory to the verdict."""

    def __init__(self, seed: int, directory: Path, snodes: int) -> None:
        self.root = directory / "data"
        self.root.mkdir(parents=True)
        self.world = World(seed, self.root)
        self.profile = draw_profile(self.world)
        if snodes:
            self.profile = self.profile.with_snodes(snodes)
        config = load_config({
            "timezone": "UTC", "stateMapSize": "64MiB", "streamBufferSize": "1MiB",
            "blockRowsMax": self.profile.block_rows, "checkpointInterval": f"{self.profile.checkpoint_s}s",
            "checkpointTimeout": "3s", "heartbeatInterval": "400ms", "heartbeatTimeout": "2s",
            "workerStartTimeout": "5s", "restartDelayMin": "20ms", "restartDelayMax": "500ms",
            "idleTimeout": "400ms", "walSegmentSize": "64KiB", "partGrace": "1s", "viewRefreshInterval": "1500ms",
            "compactMinParts": 3, "sinkCallsPerSecond": 1000, "sinkTablesShare": 1, "streamSinkDataRate": 0,
            "streamQueueSize": f"{self.profile.queue_kib}KiB", "blockBytesMax": f"{self.profile.queue_kib // 8}KiB",
            "logLevel": "error",
        }, environment={})
        settings = ControllerSettings.from_config(config, 1 << 30, processors=2)
        settings = replace(settings, groups=replace(settings.groups, deploy_timeout_s=20.0, stop_timeout_s=3.0))
        self.cluster = Cluster(self.world, self.root, config, settings)
        self.model = Model()
        self.created: list[StreamKind] = []
        self.newest = T0
        self.peaceful = False
        self.done_operations = 0
        self.counts: dict[str, int] = {}
        self.defects = _Defects()
        self._commit_faults: dict[int, str] = {}
        self._commits = 0

    # --- the whole ---------------------------------------------------------------------------------------------

    def play(self) -> Outcome:
        world = self.world
        problem = ""
        collected = gc.isenabled()
        gc.disable()  # the order in which weak references die must not depend on when garbage is collected
        logging.getLogger("penstock").addHandler(self.defects)
        try:
            with world.lmdb.installed():
                self._play()
        except SimulationError as error:
            problem = str(error)
        except (Exception, ProcessDied, PowerLost):  # noqa: BLE001  # any other end is a defect, too: it is reported
            problem = traceback.format_exc()[-3000:]
        finally:
            with world.lmdb.installed():
                self._end_all()
            logging.getLogger("penstock").removeHandler(self.defects)
            if collected:
                gc.enable()
        return Outcome(world.seed, problem, world.digest, world.events, len(list(self.model.touched())), self.counts,
                       tuple(world.trace) if problem else ())

    def _play(self) -> None:
        world, profile = self.world, self.profile
        self.cluster.faults, self.cluster.zombie_s = profile.network, profile.zombie_s
        self._start_engine()
        self._set_up()
        self.model.may_lose = profile.wal_level == 1
        world.disk.on_log_sync_failed = lambda: self.model.sync_failed(world.clock.monotonic())
        world.on_power_loss = self._cut_power
        world.commit_fault = self._before_commit
        if profile.slow_disk:
            world.disk.slow = lambda: world.clock.advance(0.002)
        world.on_death.append(self._died)
        self._plan_faults()
        world.later(0.0, "world", self._operate)
        while self.done_operations < profile.operations:
            self._step()
        self._make_peace()
        self._await_rest()
        self._judge()

    def _step(self) -> None:
        world = self.world
        if world.events > _EVENTS_MAX:
            raise SimulationError(f"no end after {world.events} events: {self._state()}")
        if not world.step():
            raise SimulationError("nothing is going to happen any more")
        host = self.cluster.host
        if host is not None:
            with world.inside(host.process):
                try:
                    host.answer()
                except ProcessDied as death:
                    world.kill(death.process, "in the middle of a call")
                except PowerLost:
                    self._cut_power()
        if self.defects.texts:
            raise SimulationError(f"a defect was logged: {self.defects.texts[0]}")

    def _end_all(self) -> None:
        for worker in self.cluster.living_workers():
            self.world.kill(worker.process, "the run is over")
        if self.cluster.host is not None:
            self.world.kill(self.cluster.host.process, "the run is over")

    # --- engine ------------------------------------------------------------------------------------------------

    def _start_engine(self) -> None:
        if self.cluster.host is not None:
            return
        name = None
        try:
            host = self.cluster.start_engine()
        except ProcessDied as death:
            name, why = death.process, "while it started"
        except PowerLost:
            self.world.kill(self._starting(), "power cut")
            self._cut_power()
            return
        except StorageError as error:
            name, why = self._starting(), f"could not start: {error}"
        except CorruptionError as error:
            raise SimulationError(f"the engine doesn't start: {error}") from error
        else:
            self.world.tell(f"{host.process} is up")
            broken = host.engine.storage.broken
            for vgroup_id, error in broken.items():
                if not isinstance(error, StorageError):
                    raise SimulationError(f"vnode {vgroup_id} doesn't open: {error}")
            if broken:
                self.world.kill(host.process, f"vnodes could not be opened: {list(broken)}")
            else:
                self.model.logs_opened()
            return
        self.world.kill(name, why)
        self.world.later(0.5, "world", self._start_engine)

    def _starting(self) -> str:
        return f"engine-{next(self.cluster.engine_numbers) - 1}"

    def _died(self, process: str) -> None:
        if process.startswith("engine") and self.cluster.host is None:
            self.world.later(self.world.chance.random() * 2, "world", self._start_engine)

    def _cut_power(self) -> None:
        self._count("power cut")
        self.world.tell("the power is cut")
        self.model.cut_power(self.world.clock.monotonic())
        for worker in list(self.cluster.living_workers()):
            self.world.kill(worker.process, "power cut")
        if self.cluster.host is not None:
            self.world.kill(self.cluster.host.process, "power cut")
        else:
            self.world.later(self.world.chance.random() * 2, "world", self._start_engine)
        self.world.disk.cut_power()

    # --- the workload ------------------------------------------------------------------------------------------

    def _set_up(self) -> None:
        host = self._host()
        with self.world.inside(host.process):
            for text in (
                f"CREATE DATABASE d VGROUPS {self.profile.vgroups} WAL_LEVEL {self.profile.wal_level} "
                "WAL_RETENTION_PERIOD 1 KEEP 36500d",
                "CREATE STABLE d.m (ts TIMESTAMP, k INT, v INT) TAGS (site INT)",
                *(f"CREATE TABLE d.t{n} USING d.m TAGS ({n % 2})" for n in range(TABLES)),
            ):
                host.engine.execute(text, host.session)
            for dnode in range(1, self.profile.snodes + 1):
                # By SQL an engine has one dnode, and so one snode.
                host.engine.catalog.snodes.create(dnode, T0)
        self.model.sites = {f"t{n}": n % 2 for n in range(TABLES)}
        for stream in self.profile.streams[:1]:
            # Before there is a row, so that it has the same rows with and without a history.
            self._create(stream, history=self.profile.history)

    def _host(self) -> EngineProcess:
        if self.cluster.host is None:
            raise SimulationError("the engine isn't there")
        return self.cluster.host

    def _operate(self) -> None:
        """One thing that a user does; then the next one, some time later."""
        try:
            self._operate_once()
        finally:
            if self.done_operations < self.profile.operations:
                self.world.later(self.world.chance.random() * 0.8, "world", self._operate)

    def _operate_once(self) -> None:
        host, chance = self.cluster.host, self.world.chance
        if host is not None:
            self.done_operations += 1
            what = chance.random()
            if what < 0.62 or not self.model.acknowledged:
                self._insert(self._new_rows())
            elif what < 0.70 and self.profile.deletes:
                self._delete() if chance.random() < 0.7 else self._retag()
            elif what < 0.78 and len(self.created) < len(self.profile.streams):
                self._create(self.profile.streams[len(self.created)])
            elif what < 0.84 and self.created:
                self._do(chance.choice(["PAUSE STREAM {0}", "RESUME STREAM {0}"]).format(
                    chance.choice(self.created).name))
            elif what < 0.90:
                self._do("FLUSH DATABASE d")
            elif self.created:
                self._checkpoint(chance.choice(self.created).name)

    def _new_rows(self) -> dict[Key, Written]:
        chance = self.world.chance
        rows: dict[Key, Written] = {}
        columns = chance.choice([(0, 1), (0, 1), (0,), (1,)]) if self.profile.partly else (0, 1)
        for _ in range(chance.randint(1, 8)):
            table = f"t{chance.randrange(TABLES)}"
            if self.profile.late and chance.random() < 0.15 and (known := list(self.model.touched())):
                table, ts = chance.choice(known)
            elif self.profile.late and chance.random() < 0.25:
                ts = chance.randint(T0, self.newest)
            elif self.profile.late and rows and chance.random() < 0.1:
                ts = chance.choice(list(rows))[1]
            else:
                ts = self.newest + chance.randint(0, 6000)
                self.newest = ts
            values = [None if self.profile.partly and chance.random() < 0.2 else chance.randint(0, most)
                      for most in (3, 9)]
            k, v = (value if place in columns else KEEP for place, value in enumerate(values))
            rows[table, ts] = k, v
        return rows

    def _insert(self, rows: dict[Key, Written]) -> None:
        by_table: dict[str, list[str]] = {}
        for (table, ts), written in rows.items():
            columns = ", ".join(["ts", *(name for name, value in zip("kv", written, strict=True) if value is not KEEP)])
            values = ["NULL" if value is None else str(value) for value in written if value is not KEEP]
            by_table.setdefault(f"{table} ({columns})", []).append(f"({', '.join([str(ts), *values])})")
        text = "INSERT INTO " + " ".join(f"d.{table} VALUES {' '.join(values)}" for table, values in by_table.items())
        self._write(text, rows)

    def _delete(self) -> None:
        chance = self.world.chance
        first = chance.randint(T0, self.newest)
        last = first + chance.choice([0, 2_000, 15_000])
        table = f"t{chance.randrange(TABLES)}" if chance.random() < 0.7 else None
        gone: dict[Key, Written | None] = {
            key: None for key in self.model.touched() if first <= key[1] <= last and table in (None, key[0])}
        self._write(f"DELETE FROM d.{table or 'm'} WHERE ts >= {first} AND ts <= {last}", gone)

    def _retag(self) -> None:
        table, site = f"t{self.world.chance.randrange(TABLES)}", self.world.chance.randrange(3)
        sure = False
        try:
            sure = self._do(f"ALTER TABLE d.{table} SET TAG site = {site}")
        finally:
            self.model.retag(table, site, sure=sure)

    def _write(self, text: str, rows: Mapping[Key, Written | None]) -> None:
        sure = False
        try:
            sure = self._do(text)
        finally:
            self.model.write(rows, self.world.clock.monotonic(), sure=sure)

    def _create(self, stream: StreamKind, *, history: bool = True) -> None:
        host = self._host()
        catalog, out = host.engine.catalog, f"out_{stream.name}"
        if catalog.streams.named(stream.name) is None and catalog.table("d", out) is not None:
            raise SimulationError(f"table {out} is there without its stream")
        text = (f"CREATE STREAM {stream.name} {stream.options} FILL_HISTORY {int(history)} INTO d.out_{stream.name} "
                f"{stream.into} AS {stream.query}")
        if self._do(text):
            self.created.append(stream)

    def _checkpoint(self, name: str) -> None:
        host = self._host()
        record = host.engine.catalog.streams.named(name)
        if host.controller is None or record is None:
            return
        with self.world.inside(host.process):
            runs = record.id in host.controller.stream_states()
        if runs:
            self._guard(lambda: host.controller.begin_checkpoint(record.id, 0.0))  # type: ignore[union-attr]
            return
        # The disk may have refused what its start needed; then it says so until it is resumed.
        states = self._rows(f"SELECT state FROM information_schema.ins_streams WHERE stream_name = '{name}'")
        if states != [("FAILED",)]:
            raise SimulationError(f"stream {name} doesn't run, but is shown as {states}")

    def _do(self, text: str) -> bool:
        """Executes a statement; returns whether it was acknowledged."""
        host = self._host()
        done = self._guard(lambda: host.engine.execute(text, host.session))
        self.world.tell(f"{'done' if done else 'not done'}: {text[:60]}")
        return done

    def _guard(self, action: Callable[[], Any]) -> bool:
        host = self._host()
        with self.world.inside(host.process):
            try:
                action()
            except (StorageError, UnavailableError) as error:
                self.world.tell(f"refused: {error}")
                return False
            except PenstockError as error:
                self.world.tell(f"refused: {error}")
                if f"{error}".endswith("already exists"):  # a statement whose answer was lost is tried again
                    return True
                raise
        return True

    # --- faults ------------------------------------------------------------------------------------------------

    def _plan_faults(self) -> None:
        profile, world, chance = self.profile, self.world, self.world.chance
        span = 0.4 * profile.operations
        plans: list[tuple[int, Callable[[], None]]] = [
            (profile.engine_kills, self._kill_engine), (profile.worker_kills, self._kill_worker),
            (profile.worker_stops, self._stop_worker), (profile.power_cuts, self._plan_power_cut),
            (profile.disk_faults, self._plan_disk_fault), (profile.commit_faults, self._plan_commit_fault),
            (profile.clock_jumps, self._jump), (profile.spark_kills, self._kill_spark),
            (profile.pauses, self._pause_between_kills),
        ]
        for count, action in plans:
            for _ in range(count):
                world.later(chance.random() * span, "world", self._unless_peace(action))

    def _unless_peace(self, action: Callable[[], None]) -> Callable[[], None]:
        return lambda: None if self.peaceful else action()

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def _kill_engine(self) -> None:
        if self.cluster.host is not None:
            self._count("engine killed")
            self.world.kill(self.cluster.host.process, "kill -9")

    def _kill_worker(self) -> None:
        workers = self.cluster.living_workers()
        if workers:
            self._count("worker killed")
            self.world.kill(self.world.chance.choice(workers).process, "kill -9")

    def _kill_spark(self) -> None:
        """Its daemon first, then the Java process: nobody is left who ends the workers."""
        self._count("Spark killed")
        host = self.cluster.host
        lost = [group for group in self.cluster.groups if group.host is host]
        for group in lost:
            group.lose("Spark is gone")
        if host is not None:
            self.world.later(_ENDED_WITHIN_S, host.process, lambda: self._all_ended(lost))

    def _all_ended(self, lost: list[SimGroup]) -> None:
        left = [worker.process for group in lost for worker in group.workers if self.world.alive(worker.process)]
        if left:
            raise SimulationError(f"nobody has ended the workers that Spark has lost: {left}")

    def _pause_between_kills(self) -> None:
        """The streams are paused while Spark starts anew, and go on after the engine and Spark were killed again."""
        self._count("pause between kills")
        at_s = 0.0
        for action in (self._kill_spark, lambda: self._order("PAUSE"), self._kill_engine, self._kill_spark,
                       lambda: self._order("RESUME")):
            self.world.later(at_s, "world", self._unless_peace(action))
            at_s += self.world.chance.random() * 4

    def _order(self, what: str) -> None:
        """Executes a statement on all streams, if the engine is there."""
        for stream in self.created:
            if self.cluster.host is not None:
                self._do(f"{what} STREAM {stream.name}")

    def _stop_worker(self) -> None:
        workers = self.cluster.living_workers()
        if workers:
            self._count("worker stopped")
            worker = self.world.chance.choice(workers)
            self.world.tell(f"{worker.process} is stopped")
            self.world.stop(worker.process, self.world.chance.choice([0.5, 3.0, 8.0]))

    def _plan_power_cut(self) -> None:
        if self.world.chance.random() < 0.5:
            self._cut_power()
        else:
            self.world.disk.faults[self.world.disk.calls + self.world.chance.randint(1, 40)] = "power"

    def _plan_disk_fault(self) -> None:
        chance, disk = self.world.chance, self.world.disk
        kind = chance.choice(["error", "short", "sync", "die", "die"])
        self._count(f"disk: {kind}")
        disk.faults[disk.calls + chance.randint(1, 40)] = kind

    def _plan_commit_fault(self) -> None:
        chance = self.world.chance
        kind = chance.choice(["error", "full", "die", "die after"])
        self._count(f"lmdb: {kind}")
        self._commit_faults[self._commits + chance.randint(1, 12)] = kind

    def _before_commit(self) -> None:
        self._commits += 1
        kind = self._commit_faults.pop(self._commits, None)
        if kind is None or self.world.current == "world":
            return
        self.world.tell(f"lmdb fault {kind} in {self.world.current}")
        if kind == "error":
            raise lmdb.DiskError("injected fault in a commit")
        if kind == "full":
            raise lmdb.MapFullError("injected fault in a commit")
        if kind == "die":
            self.world.disk.dead.add(self.world.current)
            raise ProcessDied(self.world.current)
        process = self.world.current
        self.world.after_commit_fault = lambda: self._die_after(process)

    def _die_after(self, process: str) -> None:
        self.world.after_commit_fault = lambda: None
        self.world.disk.dead.add(process)
        raise ProcessDied(process)

    def _jump(self) -> None:
        self._count("clock jump")
        self.world.clock.step_wall(self.world.chance.choice([-3_600_000, 3_600_000, -500, 86_400_000]))

    # --- the end -----------------------------------------------------------------------------------------------

    def _make_peace(self) -> None:
        """No more faults: the engine is started again if it isn't well, all streams are resumed, all windows closed."""
        self.peaceful = True
        self.world.disk.faults.clear()
        self.world.disk._sync_fails = False
        self._commit_faults.clear()
        self.cluster.faults = replace(self.cluster.faults, lost=0.0, twice=0.0)
        if self.cluster.host is not None and self.world.chance.random() < 0.5:
            self.world.kill(self.cluster.host.process, "the last restart")
        while self.cluster.host is None:
            self._step()
        if not self._well():
            self.world.kill(self._host().process, "a vnode takes no writes")
            while self.cluster.host is None:
                self._step()
        for stream in self.profile.streams[len(self.created):]:
            self._create(stream)
        for stream in self.created:
            if not self._do(f"RESUME STREAM {stream.name}"):
                raise SimulationError(f"stream {stream.name} cannot be resumed")
        self.newest = (self.newest // WINDOW + 4) * WINDOW
        self._insert({(f"t{n}", self.newest): (0, 5) for n in range(TABLES)})

    def _well(self) -> bool:
        host = self._host()
        with self.world.inside(host.process):
            for vgroup_id in host.engine.catalog.database("d").vgroup_ids:  # type: ignore[union-attr]
                try:
                    host.engine.storage.vnode(vgroup_id).writer.write_time_mark("simulation", 0)
                except StorageError:
                    return False
        return True

    def _await_rest(self) -> None:
        deadline = self.world.clock.monotonic() + _PATIENCE_S
        checked = rests_since = self.world.clock.monotonic()
        seen: list[object] | None = None
        while True:
            self._step()
            now = self.world.clock.monotonic()
            if now - checked >= 0.4:
                checked, before = now, seen
                seen = self._resting()
                if seen is None or seen != before:
                    rests_since = now
                elif now - rests_since >= _REST_S:
                    return
            if now > deadline:
                raise SimulationError(f"the streams don't come to rest: {self._state()}")

    def _resting(self) -> list[object] | None:
        """Returns how far all tasks are, None while one of them has something to do."""
        host = self.cluster.host
        if host is None or host.controller is None:
            return None
        with self.world.inside(host.process):
            reports = host.controller.stream_states()
            infos = host.engine.streams.reports.snapshot().infos
        if len(reports) < len(self.created) or any(report.state != "RUNNING" for report in reports.values()):
            return None
        hosted = {(worker.index, stream_id): each for worker in self.cluster.living_workers() if worker.host is host
                  for stream_id, each in worker.streams.items() if not each.over}
        seen: list[object] = []
        for info in infos.values():
            if info.verdict_kind in ("intake", "unbalanced"):
                raise SimulationError(info.verdict)
        for stream_id, report in reports.items():
            for index in range(infos[stream_id].stored.graph.nodes.workers):
                each = hosted.get((index, stream_id))
                if each is None or each.deployment.attempt != report.attempt or not each.started:
                    return None
                for task in each.tasks:
                    status = task.status()
                    if status.state not in _STATES:
                        raise SimulationError(f"{task.id} is in the state {status.state}")
                    if status.account.missing:
                        raise SimulationError(f"{task.id} has lost rows: {status.account}")
                    task.input.validate()
                    # Barriers of checkpoints are always on their way; rows must not be.
                    if status.state not in ("IDLE", "ALIGNING", "RUNNING") or task.input.used_bytes:
                        return None
                    if task.output is not None and task.output.used_bytes:
                        return None
                    if status.log.processed_version != status.log.wal_version:
                        return None
                    seen.append((status.time.watermark, status.time.idle, status.progress))
        return seen

    def _state(self) -> str:
        host = self.cluster.host
        if host is None or host.controller is None:
            return "there is no engine"
        with self.world.inside(host.process):
            texts = [f"{report.state} attempt {report.attempt} {report.reason}"
                     for report in host.controller.stream_states().values()]
        for worker in self.cluster.living_workers():
            for hosted in worker.streams.values():
                head = f"{worker.process}, attempt {hosted.deployment.attempt}, started {hosted.started}: "
                texts.append(head + " ".join(
                    f"{status.task} {status.state} ({status.reason}) "
                    f"{status.log.processed_version}/{status.log.wal_version} "
                    f"holds {status.queues.input_bytes}+{status.queues.output_bytes}"
                    for status in (task.status() for task in hosted.tasks)))
        return "; ".join(texts)[:4000]

    def _judge(self) -> None:
        found = {(tn, int(ts)): (k, v) for tn, ts, k, v in self._rows("SELECT tbname, ts, k, v FROM d.m")}
        problems = self.model.problems(found) + self.model.settle_sites(
            dict(self._rows("SELECT DISTINCT tbname, site FROM d.m")))
        for stream in self.created:
            wanted = batch_answer(stream, self.model, found, self.newest)
            got = shown(stream, self._rows(stream.result.format(out=f"d.out_{stream.name}")), self.model, self.newest)
            if got != wanted:
                extra = [row for row in got if row not in wanted][:5]
                missing = [row for row in wanted if row not in got][:5]
                problems.append(f"stream {stream.name}: too much {extra}, missing {missing}")
            problems += [f"stream {stream.name}: {line}" for line in self._rows(f"VERIFY STREAM {stream.name}")
                         if line[0] != "verified"]
        if problems:
            raise SimulationError("; ".join(problems[:6]))

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        host = self._host()
        with self.world.inside(host.process):
            table = host.engine.execute(query, host.session).table
        if table is None:
            return []
        columns = [column.cast("int64").to_pylist() if str(column.type).startswith("timestamp") else column.to_pylist()
                   for column in table.columns]
        return list(zip(*columns, strict=True))


def run_seed(seed: int, directory: Path, snodes: int = 0) -> Outcome:
    """Plays one seed in an empty directory below `directory`, and removes it."""
    place = directory / f"seed-{seed}"
    try:
        return Run(seed, place, snodes).play()
    finally:
        shutil.rmtree(place, ignore_errors=True)


def run_seeds(seeds: range, directory: Path) -> list[Outcome]:
    """Plays some seeds, one after the other."""
    _spare_modules()
    return [run_seed(seed, directory) for seed in seeds]


@cache
def _spare_modules() -> None:
    """Has no collection of garbage look at what was there before the first seed: modules and classes."""
    gc.collect()
    gc.freeze()
