"""Performs what the state machines decide: runs streams on worker groups, checkpoints them, and tells how they are.

One thread takes all events, in order, and never waits for anything: slow work (starting jobs, writing records,
collecting a deployment) is done elsewhere and comes back as an event. The public methods may be called by any thread.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from penstock.common.clock import Clock
from penstock.common.errors import CorruptionError, InternalError, NotFoundError, PenstockError, UnavailableError
from penstock.common.logging import about, logger
from penstock.common.memory import Memory, limit_bytes
from penstock.common.paths import DataPaths
from penstock.common.quantities import MIB
from penstock.mnode.catalog.catalog_records import PauseCause
from penstock.mnode.coordinator import checkpoint_machine, worker_groups
from penstock.mnode.coordinator.checkpoint_machine import CheckpointMachine, CheckpointSettings, Progress
from penstock.mnode.coordinator.commit_records import CommitRecord, CommitRecords
from penstock.mnode.coordinator.executor_keeper import ExecutorKeeper, Scale
from penstock.mnode.coordinator.memory_watch import Holding, MemoryWatch, Place
from penstock.mnode.coordinator.queue_shares import QueueShares
from penstock.mnode.coordinator.running_stream import RunningStream
from penstock.mnode.coordinator.runtime_environment import Surroundings, Threads, WorkerLine
from penstock.mnode.coordinator.stream_bounds import over_state_limit, state_bytes
from penstock.mnode.coordinator.stream_status import CheckpointInfo, MemoryInfo, StreamStatus, WorkerInfo
from penstock.mnode.coordinator.task_monitor import Monitor, TaskReport
from penstock.mnode.coordinator.worker_groups import GroupMachine, GroupSettings, GroupState, StreamState
from penstock.mnode.ddl.connections import tell_contacts
from penstock.planner.streams.ingest_plan import IngestPlan
from penstock.planner.task_plans.stream_plan import Company
from penstock.tasks.protocol import control
from penstock.tasks.protocol.deployment import Deployment
from penstock.tasks.protocol.messages import (
    CheckpointAbandoned,
    CheckpointCommitted,
    ConnectionHealth,
    Pause,
    Recalculate,
    Replay,
    Resume,
    SetRates,
    StartCheckpoint,
    TaskEvent,
    TaskId,
    TaskStatus,
    UseConnection,
)
from penstock.tasks.state.state_cache import DEFAULT_BYTES
from penstock.tasks.worker.spark_executors import Executors
from penstock.tasks.worker.worker_process import TaskBuilder, WorkerSpec

if TYPE_CHECKING:
    from penstock.common.config import Config
    from penstock.common.connection import OpenedConnection

_log = logger(__name__)

T = TypeVar("T")

# Answers come within milliseconds; on a machine with no processor to spare, a late one is still better than none.
_ANSWER_TIMEOUT_S = 30.0
_ORDER_TIMEOUT_S = 1.5
_STOP_TIMEOUT_S = 30.0
_EVENTS_KEPT = 1000
_ABANDONED_KEPT = 5
_SILENCE_CHECK_S = 0.5
_FIRST_COUNT_S = 0.1
"""How often it is looked whether Spark is there and tells its executors."""
_MEASURE_LEAST_S = 0.5
"""A look at all processes takes milliseconds: more often than so it is not worth it, however fast heartbeats come."""


class Handle(Protocol):
    """A submitted worker group."""

    def cancel(self) -> None: ...

    def places(self) -> Mapping[int, str]:
        """Returns the executors' ids by worker, as far as they are known."""
        ...


class Runtime(Protocol):
    """What runs worker groups; `penstock.tasks.worker.spark_runtime.SparkRuntime` outside of tests."""

    def submit_group(
        self, spec: WorkerSpec, workers: int, description: str, on_end: Callable[[str | None], None]
    ) -> Handle: ...

    def is_ready(self) -> bool: ...

    def executors(self) -> Executors | None:
        """Returns where workers can be; None while Spark isn't there."""
        ...

    def scale(self, executors: int, released: Sequence[str]) -> None:
        """Asks for so many executors in all, without those `released`. Raises UnavailableError."""
        ...


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """The numbers that the controller works by."""

    groups: GroupSettings = field(default_factory=GroupSettings)
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    heartbeat_interval_s: float = 1.0
    heartbeat_timeout_s: float = 15.0
    wal_poll_interval_s: float = 0.0005
    stall_timeout_s: float = 30.0
    queue_budget_bytes: int = 0
    state_cache_bytes: int = DEFAULT_BYTES
    memory_limit_bytes: int = 0
    apart_nice: int = 0
    executors_interval_s: float = 2.0
    final_checkpoint_timeout_s: float = 10.0
    close_timeout_s: float = 5.0
    log_level: str = "warning"
    log_format: str = "text"
    host: str = "127.0.0.1"

    @classmethod
    def from_config(cls, config: Config, memory_bytes: int) -> ControllerSettings:
        """`memory_bytes`: how much memory there is."""
        return cls(
            GroupSettings(
                streams_per_worker=config.streams_per_worker,
                idle_timeout_s=config.worker_idle_timeout,
                start_timeout_s=config.worker_start_timeout,
                restart_delay_min_s=config.restart_delay_min,
                restart_delay_max_s=config.restart_delay_max,
            ),
            CheckpointSettings(config.checkpoint_interval, config.checkpoint_timeout),
            heartbeat_interval_s=config.heartbeat_interval,
            heartbeat_timeout_s=config.heartbeat_timeout,
            wal_poll_interval_s=config.wal_poll_interval,
            stall_timeout_s=config.stall_timeout,
            queue_budget_bytes=config.queue_budget,
            state_cache_bytes=config.max_stream_backend_cache * MIB,
            memory_limit_bytes=limit_bytes(config.memory_limit, memory_bytes),
            apart_nice=config.apart_nice,
            log_level=config.log_level,
            log_format=config.log_format,
            host=config.worker_host,
        )


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """Something worth telling that happened to a stream."""

    at_ms: int
    stream_id: int
    text: str


@dataclass(slots=True)
class _Entry:
    """What the controller keeps of a stream besides the machines' states."""

    stream: RunningStream
    paused: bool
    #: why, if nobody has asked for it
    pause: PauseCause | None = None
    #: it was paused for want of memory, as the n-th one; 0: it wasn't
    until_room: int = 0
    #: since when; 0: since it was started
    paused_ms: int = 0
    #: when it was resumed last: its target outside has the whole time again
    resumed_ms: int = 0
    #: what was said last of how it fares outside, by connection
    contacts: dict[str, ConnectionHealth] = field(default_factory=dict)
    #: RESUME IGNORE UNTREATED came while no attempt ran: the next one skips what it hasn't read
    skip_pending: bool = False
    deployment: Deployment | None = None
    tasks: set[TaskId] = field(default_factory=set)
    record: CommitRecord | None = None
    last_checkpoint_id: int = 0
    begun_ms: int = 0
    abandoned: deque[CheckpointInfo] = field(default_factory=lambda: deque(maxlen=_ABANDONED_KEPT))
    #: a commit record is being written; an attempt that is to be prepared meanwhile waits for it
    record_under_way: bool = False
    preparation: int | None = None
    #: checkpoints that a task couldn't restore, with its reason
    damaged: dict[int, str] = field(default_factory=dict)
    #: damaged checkpoints that an event has told of
    told_damaged: set[int] = field(default_factory=set)
    #: (lowest checkpoint id that satisfies the waiter, waiter)
    waiters: list[tuple[int, Future[CommitRecord]]] = field(default_factory=list)
    removed: Future[None] = field(default_factory=Future)
    running: Future[None] = field(default_factory=Future)


@dataclass(slots=True)
class _Worker:
    connection: WorkerLine
    heard_at: float


class StreamController:
    """Runs the streams of one engine; see the methods. Construct, use, `close`."""

    def __init__(
        self,
        paths: DataPaths,
        clock: Clock,
        settings: ControllerSettings,
        records: CommitRecords,
        runtime: Runtime,
        service_address: str,
        secret: bytes,
        on_checkpoint: Callable[[int, Mapping[int, int]], None],
        build: TaskBuilder | None = None,
        surroundings: Surroundings | None = None,
        before_commit: Callable[[int], None] = lambda stream_id: None,
        on_pause: Callable[[int, PauseCause], None] = lambda stream_id, cause: None,
        measure: Callable[[float], Memory] | None = None,
        end_queries: Callable[[str], int] = lambda shortage: 0,
    ) -> None:
        """`service_address` and `secret` are those of the DnodeService. `build` replaces the task builder, for tests.

        `on_checkpoint(stream id, {vgroup id: version})` is called after each commit, from another thread: WAL up to
        these versions isn't needed any more, not even for a restart from the oldest record that is kept.
        `before_commit(stream id)` is called before each commit, from another thread, and makes durable what the stream
        has read and written; if it raises, the checkpoint is abandoned. `on_pause(stream id, cause)` is called, from
        another thread, for a stream that was paused because it has more than it may have. `measure` is called once per
        heartbeat, from another thread, and returns what all processes take; None: memory isn't watched.
        """
        self._paths = paths
        self._clock = clock
        self._settings = settings
        self._runtime = runtime
        self._service_address = service_address
        self._secret = secret
        self._on_checkpoint = on_checkpoint
        self._before_commit = before_commit
        self._on_pause = on_pause
        self._end_queries = end_queries
        self._measure = measure
        self._memory_watch = MemoryWatch(settings.memory_limit_bytes)
        self._memory = Memory({})
        self._measured_at: float | None = clock.monotonic()  # None: a measurement is under way
        self._keeper = ExecutorKeeper(settings.groups.idle_timeout_s)
        self._executors: Executors | None = None
        self._places: dict[str, Mapping[int, str]] = {}
        self._counted_at: float | None = clock.monotonic() - settings.executors_interval_s  # None: Spark is being asked
        self._build = build
        self._records = records
        self._machine = GroupMachine(settings.groups)
        self._checkpoints = CheckpointMachine(settings.checkpoints)
        self._monitor = Monitor(max(3.0 * settings.heartbeat_interval_s, 1.0), settings.stall_timeout_s)
        self._queue_shares = QueueShares(settings.queue_budget_bytes)
        self._entries: dict[int, _Entry] = {}
        self._workers: dict[str, dict[int, _Worker]] = {}
        self._handles: dict[str, Handle] = {}
        self._events: deque[StreamEvent] = deque(maxlen=_EVENTS_KEPT)
        self._silence_checked_at = clock.monotonic()
        self._inbox: deque[Callable[[], None]] = deque()
        self._flag = threading.Event()
        self._stopping = False
        self._gone: Future[None] | None = None
        self._surroundings: Surroundings = surroundings or Threads()
        self._helpers = self._surroundings.pool("controller helper", 4)
        self._door = self._surroundings.door(secret, self._hello, self._message, self._lost, settings.host)
        self._thread = self._surroundings.launch("stream controller", self._run)

    # --- what others ask for -----------------------------------------------------------------------------------

    def start(self, stream: RunningStream) -> None:
        """Begins to run a stream; returns at once. Nothing happens if it runs already."""
        self._ask(lambda: self._start(stream))

    def wait_running(self, stream_id: int, timeout_s: float) -> bool:
        """Waits until the stream's tasks run for the first time; returns whether they do."""
        future = self._ask(lambda: self._entry(stream_id).running)
        with contextlib.suppress(FutureTimeoutError):
            self._surroundings.result(future, timeout_s)
        return future.done()

    def stop(self, stream_id: int, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        """Ends a stream and forgets it; returns when none of its tasks is left.

        Raises UnavailableError if that takes longer than `timeout_s`; it goes on being ended all the same.
        """
        removed = self._ask(lambda: self._remove(stream_id))
        if removed is None:
            return
        try:
            self._surroundings.result(removed, timeout_s)
        except FutureTimeoutError:
            raise UnavailableError(f"stream {stream_id:x} has not ended within {timeout_s:g} s") from None

    def pause(self, stream_id: int) -> None:
        """Lets the source tasks of a stream rest, also those of later attempts."""
        self._ask(lambda: self._pause_on_demand(stream_id))

    def resume(self, stream_id: int, skip_to_end: bool = False) -> None:
        """Lets a paused stream go on; `skip_to_end` leaves out what was written meanwhile."""
        self._ask(lambda: self._resume(stream_id, skip_to_end))

    def set_rates(self, stream_id: int, rates: SetRates) -> None:
        """Has the tasks of a stream work by other rates from now on, also those of later attempts."""
        self._ask(lambda: self._set_rates(stream_id, rates))

    def set_state_limit(self, stream_id: int, limit: int) -> None:
        """Gives a stream another limit, 0 for none; a paused stream stays so."""
        self._ask(lambda: self._set_state_limit(stream_id, limit))

    def use_connection(self, stream_id: int, connection: OpenedConnection) -> None:
        """Has a stream write, or an ingest read, by this version of its connection. A later attempt opens it itself."""
        self._ask(lambda: self._post_event(stream_id, UseConnection(connection)))

    def recalculate(self, stream_id: int, order: Recalculate | Replay) -> None:
        """Has a running stream compute a range of time, or rows that it left out, again.

        Returns once a checkpoint holds the order. If that takes long the order stands all the same. Raises
        NotFoundError, or UnavailableError if it doesn't run.
        """
        future = self._ask(lambda: self._recalculate(stream_id, order))
        try:
            self._surroundings.result(future, _ORDER_TIMEOUT_S)
        except FutureTimeoutError:
            _log.info("stream %x: RECALCULATE is under way, but no checkpoint holds it yet", stream_id)

    def checkpoint_now(self, stream_id: int, timeout_s: float = 30.0) -> CommitRecord:
        """Takes a checkpoint of a running stream; returns its record once it is valid.

        Raises NotFoundError for an unknown stream, UnavailableError if the checkpoint is abandoned or takes too long.
        """
        _, future = self._ask(lambda: self._request_checkpoint(stream_id))
        try:
            return self._surroundings.result(future, timeout_s)
        except FutureTimeoutError:
            text = f"the checkpoint of stream {stream_id:x} is not done within {timeout_s:g} s"
            raise UnavailableError(text) from None

    def begin_checkpoint(self, stream_id: int, timeout_s: float) -> tuple[int, bool]:
        """Has a checkpoint of a running stream taken; returns its id, and whether it became valid within `timeout_s`.

        One that takes longer goes on. Raises NotFoundError for an unknown stream, UnavailableError if it is abandoned.
        """
        checkpoint_id, future = self._ask(lambda: self._request_checkpoint(stream_id))
        try:
            return self._surroundings.result(future, timeout_s).checkpoint_id, True
        except FutureTimeoutError:
            return checkpoint_id, False

    def statuses(self) -> list[TaskStatus]:
        """Returns the latest status of each task, ordered by task."""
        return self._ask(self._monitor.statuses)

    def task_reports(self) -> list[TaskReport]:
        """Returns the latest status of each task with its rates and lag, ordered by task."""
        return self._ask(lambda: self._monitor.report(self._clock.monotonic()))

    def stream_states(self) -> dict[int, StreamStatus]:
        """Returns how each stream is."""
        return self._ask(lambda: {stream.stream_id: self._status(stream) for stream in self._machine.streams})

    def events(self) -> list[StreamEvent]:
        """Returns what happened lately, oldest first."""
        return self._ask(lambda: list(self._events))

    def worker_pids(self) -> dict[str, dict[int, int]]:
        """Returns the process ids of the workers by group and place."""
        return self._ask(
            lambda: {
                group: {index: worker.connection.pid for index, worker in workers.items()}
                for group, workers in self._workers.items()
            }
        )

    def memory(self) -> list[MemoryInfo]:
        """Returns what each process took when memory was measured last, and all together."""
        return self._ask(self._memory_infos)

    def _memory_infos(self) -> list[MemoryInfo]:
        workers = {worker.connection.pid: f"worker {group}/{index}"
                   for group, members in self._workers.items() for index, worker in members.items()
                   if worker.connection.here}
        known = [MemoryInfo("java" if pid in self._memory.java else workers.get(pid, "engine"), pid, nbytes)
                 for pid, nbytes in self._memory.by_pid.items()]
        limit = self._memory_watch.limit
        return [*known, MemoryInfo("all", None, self._memory.total, limit or None)] if known else []

    def workers(self) -> list[WorkerInfo]:
        """Returns all worker processes that there are or should be."""
        return self._ask(lambda: [
            *(self._worker_info(group, index) for group in self._machine.groups for index in range(group.workers)),
            *self._free_slots()])

    def _worker_info(self, group: worker_groups.Group, index: int) -> WorkerInfo:
        executor = self._places.get(group.name, {}).get(index)
        hosts = {} if self._executors is None else {executor.id: executor.host for executor in self._executors.all}
        info = WorkerInfo(
            group.name, index, group.nodes.node_of(index).id, group.state.name,
            self._machine.waits_for(group) if group.lacks_slots else group.reason, failures=group.failures,
            streams=tuple(self._entries[stream_id].stream.name for stream_id in sorted(group.streams)),
            executor=executor, host=None if executor is None else hosts.get(executor), slots=1 if group.slots else 0,
            nice=self._nice(group.company))
        worker = self._workers.get(group.name, {}).get(index)
        if worker is None:
            return info
        silent_ms = round((self._clock.monotonic() - worker.heard_at) * 1000)
        return replace(info, state="RUNNING", pid=worker.connection.pid, address=worker.connection.exchange_address,
                       heard_ms=self._clock.now_ms() - silent_ms,
                       memory_bytes=self._memory.by_pid.get(worker.connection.pid))

    def _free_slots(self) -> Iterator[WorkerInfo]:
        """Yields a line for each executor that has free slots."""
        for executor in () if self._executors is None else self._executors.all:
            hosted = sum(list(places.values()).count(executor.id) for places in self._places.values())
            free = executor.slots - max(executor.busy, hosted)
            if free > 0:
                yield WorkerInfo(None, None, None, "FREE", executor=executor.id, host=executor.host, slots=free)

    def _nice(self, company: Company) -> int:
        """Returns how much lower the priority of a group's processes is."""
        return 0 if company is Company.ANY else self._settings.apart_nice

    def close(self, final_checkpoint: bool = True) -> None:
        """Ends all streams and workers; takes at most about as long as the two timeouts for it together.

        With `final_checkpoint`, running streams are checkpointed first, so that they go on from here next time.
        """
        if self._stopping:
            return
        timeout_s = self._settings.close_timeout_s
        if final_checkpoint:
            self._checkpoint_all(self._settings.final_checkpoint_timeout_s)
        gone = self._ask(self._close_all)
        try:
            self._surroundings.result(gone, timeout_s)
        except FutureTimeoutError:
            _log.warning("some workers have not left within %g s; they are cut off", timeout_s)
        self._ask(self._cut_off)
        self._stopping = True
        self._flag.set()
        if self._thread is not None:
            self._thread.join()
        self._door.close()
        self._helpers.shutdown(wait=True, cancel_futures=True)

    def _checkpoint_all(self, timeout_s: float) -> None:
        running = [stream_id for stream_id, status in self.stream_states().items() if status.state == "RUNNING"]
        futures = [self._ask(partial(self._request_checkpoint, stream_id))[1] for stream_id in running]
        deadline = self._clock.monotonic() + timeout_s
        for stream_id, future in zip(running, futures, strict=True):
            try:
                self._surroundings.result(future, max(0.0, deadline - self._clock.monotonic()))
            except FutureTimeoutError:
                _log.warning("stream %x is closed without a last checkpoint: it took too long", stream_id,
                             extra=about(stream=self._name(stream_id)))
            except UnavailableError as error:
                _log.warning("stream %x is closed without a last checkpoint: %s", stream_id, error,
                             extra=about(stream=self._name(stream_id)))

    # --- the loop ----------------------------------------------------------------------------------------------

    def _ask(self, question: Callable[[], T]) -> T:
        """Has the loop answer a question; raises what it raises, or UnavailableError if the loop is gone."""
        answer: Future[T] = Future()

        def reply() -> None:
            try:
                answer.set_result(question())
            except Exception as error:  # noqa: BLE001  # raised again where the question was asked
                answer.set_exception(error)

        if self._stopping:
            raise UnavailableError("the engine is closed")
        self._post(reply)
        try:
            return self._surroundings.result(answer, _ANSWER_TIMEOUT_S)
        except FutureTimeoutError:
            raise UnavailableError("the stream controller hasn't answered for "
                                   f"{_ANSWER_TIMEOUT_S:.0f} s; the statement may still be carried out") from None

    def _post(self, action: Callable[[], None]) -> None:
        self._inbox.append(action)
        self._flag.set()

    def _run(self) -> None:
        while not self._stopping:
            self._flag.clear()
            self.turn()
            self._wait()

    @property
    def asked(self) -> bool:
        """Whether something has come in that `turn` would handle, besides what is due by time."""
        return bool(self._inbox)

    def turn(self) -> None:
        """Handles everything that has come in, and what is due; the loop's body."""
        while self._inbox:
            self._guard(self._inbox.popleft())
        self._guard(self._tick)

    def _guard(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:  # noqa: BLE001
            # A defect in the handling of one event must not take all streams along; it is told with its story.
            _log.exception("the stream controller could not handle an event")

    def _wait(self) -> None:
        deadlines = [self._machine.next_deadline(), self._checkpoints.next_deadline()]
        if self._workers:
            deadlines += [self._silence_checked_at + _SILENCE_CHECK_S, self._next_measurement()]
        deadlines.append(self._next_count())
        known = [deadline for deadline in deadlines if deadline is not None]
        if not known:
            self._flag.wait()
            return
        timeout = min(known) - self._clock.monotonic()
        if timeout > 0:
            self._clock.wait(self._flag, timeout)

    def _tick(self) -> None:
        now = self._clock.monotonic()
        at = self._machine.next_deadline()
        if at is not None and at <= now:
            self._handle(worker_groups.Tick())
        at = self._checkpoints.next_deadline()
        if at is not None and at <= now:
            self._handle_checkpoint(checkpoint_machine.Tick())
        if now >= self._silence_checked_at + _SILENCE_CHECK_S:
            self._silence_checked_at = now
            self._check_silence(now)
        at = self._next_measurement()
        if self._workers and at is not None and at <= now:
            self._measured_at = None
            self._helpers.submit(self._measure_memory)
        at = self._next_count()
        if at is not None and at <= now:
            self._counted_at = None
            handles = {group: handle for group, handle in self._handles.items() if group not in self._places}
            self._helpers.submit(self._count_executors, handles)

    def _next_measurement(self) -> float | None:
        if self._measure is None or self._measured_at is None:
            return None
        return self._measured_at + max(self._settings.heartbeat_interval_s, _MEASURE_LEAST_S)

    def _measure_memory(self) -> None:
        """Looks at all processes, in a helper thread."""
        assert self._measure is not None
        memory = None
        try:
            memory = self._measure(self._memory_watch.near)
        except Exception:  # noqa: BLE001
            # The next heartbeat tries again.
            _log.exception("memory could not be measured")
        self._post(lambda: self._measured(memory))

    def _measured(self, memory: Memory | None) -> None:
        self._measured_at = self._clock.monotonic()
        if memory is None:
            return
        self._memory = memory
        workers = {Place(group, index): memory.by_pid.get(worker.connection.pid, 0)
                   for group, members in self._workers.items() for index, worker in members.items()
                   if worker.connection.here}
        watch = self._memory_watch
        shortage = watch.shortage(memory.total)
        if shortage is not None and self._end_queries(shortage):
            watch.note_ended(memory.total)
        found = watch.decide(memory.total, workers, list(self._holdings()))
        if found is not None:
            holding, reason = found
            self._pause_for(self._entries[holding.stream_id], PauseCause(reason), until_room=True)
        elif watch.has_room(memory.total):
            self._let_go_on()

    def _let_go_on(self) -> None:
        """Resumes the stream that was paused last for want of memory: one for each measurement."""
        waiting = [entry for entry in self._entries.values() if entry.until_room]
        if waiting:
            entry = max(waiting, key=lambda entry: entry.until_room)
            self._resume(entry.stream.stream_id, skip_to_end=False)
            self._tell(entry.stream.stream_id, "goes on: there is room in memory again")

    def _next_count(self) -> float | None:
        scalable = self._executors is not None and self._executors.elastic and self._executors.all
        if self._counted_at is None or not (self._machine.groups or scalable):
            return None
        return self._counted_at + (_FIRST_COUNT_S if self._executors is None else self._settings.executors_interval_s)

    def _count_executors(self, handles: Mapping[str, Handle]) -> None:
        """Asks Spark for its executors, and where the workers of these groups are, in a helper thread."""
        executors: Executors | None = None
        places: dict[str, Mapping[int, str]] = {}
        try:
            executors = self._runtime.executors()
            if executors is not None:
                places = {group: handle.places() for group, handle in handles.items()}
        except Exception:  # noqa: BLE001
            # Spark may be going; it is asked again.
            _log.exception("Spark's executors could not be counted")
        self._post(lambda: self._counted(executors, places))

    def _counted(self, executors: Executors | None, places: Mapping[str, Mapping[int, str]]) -> None:
        now = self._counted_at = self._clock.monotonic()
        if executors is None:
            return
        for group in self._machine.groups:
            found = places.get(group.name, {})
            if group.slots and len(found) == group.workers:
                self._places[group.name] = found
        remaining = self._note_executors(executors)
        missing = self._machine.missing_slots(*(group for group in self._machine.groups if group.lacks_slots))
        placed = all(group.name in self._places for group in self._machine.groups)
        hosting = {id_ for places in self._places.values() for id_ in places.values()}
        scale = self._keeper.decide(remaining, hosting, missing, placed, now)
        if scale is not None:
            self._note_executors(remaining)
            self._helpers.submit(self._scale, scale)

    def _note_executors(self, found: Executors) -> Executors:
        """Takes notice of those executors that aren't being given back, and returns them."""
        known = None if self._executors is None else self._executors.slots
        self._executors = self._keeper.remaining(found)
        if self._executors.slots != known:
            self._handle(worker_groups.SlotsKnown(self._executors.slots))
        return self._executors

    def _scale(self, scale: Scale) -> None:
        _log.info("Spark is asked for %d executors%s", scale.executors,
                  f", and gets {', '.join(scale.released)} back" if scale.released else "")
        try:
            self._runtime.scale(scale.executors, scale.released)
        except Exception:  # noqa: BLE001
            # The next count decides anew.
            _log.exception("Spark could not be asked for executors")
            self._post(lambda: self._keeper.failed(scale))

    def _holdings(self) -> Iterator[Holding]:
        """Yields what each stream that isn't paused holds in the memory of each worker."""
        for stream in self._machine.streams:
            entry = self._entries[stream.stream_id]
            if stream.state is not StreamState.RUNNING or entry.paused:
                continue
            by_worker: dict[int, int] = {}
            for status in self._monitor.statuses_of(stream.stream_id):
                held = status.state_memory + status.input_bytes + (status.output_bytes or 0)
                index = entry.stream.graph.worker_of(status.task)
                by_worker[index] = by_worker.get(index, 0) + held
            for index, nbytes in by_worker.items():
                yield Holding(stream.stream_id, entry.stream.name, Place(stream.group.name, index), nbytes)

    def _check_silence(self, now: float) -> None:
        limit = self._settings.heartbeat_timeout_s
        for group, workers in list(self._workers.items()):
            for index, worker in list(workers.items()):
                if now - worker.heard_at > limit:
                    self._handle(worker_groups.WorkerLost(group, index, f"no heartbeat for {limit:g} s"))

    # --- requests, in the loop ---------------------------------------------------------------------------------

    def _entry(self, stream_id: int) -> _Entry:
        entry = self._entries.get(stream_id)
        if entry is None:
            raise NotFoundError(f"stream {stream_id:x} doesn't run")
        return entry

    def _start(self, stream: RunningStream) -> None:
        if stream.stream_id in self._entries:
            return
        self._entries[stream.stream_id] = _Entry(stream, stream.paused, stream.pause)
        self._handle(worker_groups.AddStream(stream.stream_id, stream.database, stream.graph.nodes, stream.company))

    def _remove(self, stream_id: int) -> Future[None] | None:
        entry = self._entries.get(stream_id)
        if entry is None:
            return None
        self._handle(worker_groups.RemoveStream(stream_id))
        return entry.removed

    def _pause_on_demand(self, stream_id: int) -> None:
        entry = self._entry(stream_id)
        self._pause(stream_id)
        # Whatever it was paused for before, it goes on when somebody says so.
        entry.pause, entry.until_room = None, 0

    def _pause(self, stream_id: int) -> None:
        entry = self._entry(stream_id)
        if not entry.paused:
            entry.paused_ms = self._clock.now_ms()
        entry.paused = True
        self._post_event(stream_id, Pause())

    def _resume(self, stream_id: int, skip_to_end: bool) -> None:
        entry = self._entry(stream_id)
        entry.paused, entry.paused_ms, entry.pause, entry.until_room = False, 0, None, 0
        entry.resumed_ms = self._clock.now_ms()
        stream = self._machine.stream(stream_id)
        entry.skip_pending = skip_to_end and (stream is None or stream.state is not StreamState.RUNNING)
        self._post_event(stream_id, Resume(skip_to_end))
        if skip_to_end and self._checkpoints.progress(stream_id) is not None:
            # An attempt that starts from an older checkpoint would read what was to be skipped.
            self._handle_checkpoint(checkpoint_machine.Request(stream_id))

    def _set_rates(self, stream_id: int, rates: SetRates) -> None:
        entry = self._entry(stream_id)
        entry.stream = replace(entry.stream, settings=entry.stream.settings.with_rates(rates))
        self._post_event(stream_id, rates)

    def _set_state_limit(self, stream_id: int, limit: int) -> None:
        entry = self._entry(stream_id)
        entry.stream = replace(entry.stream, state_limit=limit)

    def _recalculate(self, stream_id: int, order: Recalculate | Replay) -> Future[CommitRecord]:
        stream = self._machine.stream(stream_id)
        self._entry(stream_id)
        if stream is None or stream.state is not StreamState.RUNNING:
            raise UnavailableError(f"stream {stream_id:x} isn't running", hint="try again once SHOW STREAMS says so")
        self._post_event(stream_id, order)
        return self._request_checkpoint(stream_id)[1]

    def _request_checkpoint(self, stream_id: int) -> tuple[int, Future[CommitRecord]]:
        """Returns the id of the checkpoint that will have everything until now, and what waits for it."""
        entry = self._entry(stream_id)
        future: Future[CommitRecord] = Future()
        progress = self._checkpoints.progress(stream_id)
        if progress is None:
            future.set_exception(UnavailableError(
                f"stream {entry.stream.name} doesn't run now and can't be checkpointed",
                hint="SHOW STREAMS says what it waits for"))
            return 0, future
        checkpoint_id = progress.checkpoint_id + 1
        entry.waiters.append((checkpoint_id, future))
        self._handle_checkpoint(checkpoint_machine.Request(stream_id))
        return checkpoint_id, future

    def _close_all(self) -> Future[None]:
        gone = self._gone = Future()
        self._handle(worker_groups.CloseAll())
        self._see_whether_gone()
        return gone

    def _see_whether_gone(self) -> None:
        if self._gone is not None and not self._gone.done() and not self._machine.groups:
            self._gone.set_result(None)

    def _cut_off(self) -> None:
        for group in list(self._handles):
            self._cancel_group(group)

    def _status(self, stream: worker_groups.Stream) -> StreamStatus:
        entry = self._entries[stream.stream_id]
        reason = stream.reason or stream.group.reason
        if stream.remove:
            state = "STOPPING"
        elif stream.group.lacks_slots:
            state, reason = "WAITING", self._machine.waits_for(stream.group)
        elif stream.state is StreamState.RUNNING:
            state = "PAUSED" if entry.paused else "RUNNING"
            reason = reason or ("" if entry.pause is None else entry.pause.text)
        else:
            state = "STARTING" if stream.attempt == 0 and not reason else "RESTARTING"
            if not reason:
                reason = self._what_it_waits_for(stream)
        since_ms = self._clock.now_ms() - round((self._clock.monotonic() - stream.since) * 1000)
        return StreamStatus(
            state, reason, max(since_ms, entry.paused_ms) if state == "PAUSED" else since_ms, stream.attempt,
            stream.restarts, stream.alike, stream.group.name, entry.pause if state == "PAUSED" else None,
            (*entry.abandoned, *self._under_way(stream.stream_id)), dict(entry.damaged))

    def _under_way(self, stream_id: int) -> list[CheckpointInfo]:
        progress = self._checkpoints.progress(stream_id)
        return [] if progress is None or not progress.under_way else [_running_info(progress)]

    def _what_it_waits_for(self, stream: worker_groups.Stream) -> str:
        if stream.state is StreamState.WAITING and not self._runtime.is_ready():
            return "Spark is starting"
        if stream.group.state is GroupState.STARTING:
            return f"{len(stream.group.joined)} of {stream.group.workers} workers are there"
        return stream.state.value

    # --- what workers say: from their receiving threads -----------------------------------------------------------

    def _hello(self, connection: WorkerLine) -> None:
        self._post(lambda: self._handle_hello(connection))

    def _message(self, connection: WorkerLine, message: control.WorkerMessage) -> None:
        self._post(lambda: self._handle_message(connection, message))

    def _lost(self, connection: WorkerLine, reason: str) -> None:
        self._post(lambda: self._handle_lost(connection, reason))

    def _handle_hello(self, connection: WorkerLine) -> None:
        if connection.group not in self._handles:
            _log.info("worker %s/%d comes too late and is sent away", connection.group, connection.index)
            connection.close()
            return
        workers = self._workers.setdefault(connection.group, {})
        workers[connection.index] = _Worker(connection, self._clock.monotonic())
        self._handle(worker_groups.WorkerJoined(connection.group, connection.index))

    def _handle_lost(self, connection: WorkerLine, reason: str) -> None:
        worker = self._workers.get(connection.group, {}).get(connection.index)
        if worker is not None and worker.connection is connection:
            self._handle(worker_groups.WorkerLost(connection.group, connection.index, reason))

    def _handle_message(self, connection: WorkerLine, message: control.WorkerMessage) -> None:
        worker = self._workers.get(connection.group, {}).get(connection.index)
        if worker is None or worker.connection is not connection:
            return
        worker.heard_at = self._clock.monotonic()
        if isinstance(message, control.Heartbeat):
            known = [status for status in message.statuses if status.task.stream_id in self._entries]
            self._monitor.heartbeat(known, worker.heard_at)
            for stream_id in {status.task.stream_id for status in known}:
                self._keep_state_limit(self._entries[stream_id])
                self._watch_contact(self._entries[stream_id])
            self._hear_of_queues(message.queues, connection.index)
        elif isinstance(message, control.Deployed):
            self._handle_deployed(message, connection.index)
        elif isinstance(message, control.Failed):
            where = f"task {message.task}" if message.task else f"worker {connection.index}"
            _log.error("stream %x, %s: %s\n%s", message.stream_id, where, message.error, message.trace,
                       extra=about(stream=self._name(message.stream_id), task=message.task, attempt=message.attempt))
            reason = f"{where}: {message.error}"
            if message.damaged:
                self._note_damage(message)
            cause = worker_groups.Cause(message.kind, message.code, message.task.operator if message.task else "")
            self._handle(worker_groups.StreamFailed(message.stream_id, message.attempt, reason, cause))
        elif isinstance(message, control.Stopped):
            self._handle(worker_groups.StreamStopped(message.stream_id, message.attempt, connection.index))
        elif isinstance(message, control.ReadBackWanted):
            self._read_back(message)
        elif isinstance(message, control.Acknowledged):
            self._handle_checkpoint(checkpoint_machine.Acknowledgement(message.checkpoint, message.attempt))
        else:
            raise InternalError(f"worker {connection.index} sent a {type(message).__name__}")

    def _read_back(self, message: control.ReadBackWanted) -> None:
        """Hands an agg task's order to the source tasks; what comes of it is part of its stream's next checkpoints."""
        stream_id = message.order.task.stream_id
        stream = self._machine.stream(stream_id)
        if stream is not None and stream.attempt == message.attempt:
            for first, last in message.order.ranges:
                self._post_event(stream_id, Recalculate(first, last))

    def _hear_of_queues(self, queues: Iterable[control.QueuesHeld], index: int) -> None:
        for held in queues:
            entry = self._entries.get(held.stream_id)
            if entry is not None and entry.deployment is not None and entry.deployment.attempt == held.attempt:
                self._queue_shares.heard(held.stream_id, index, held.order, held.held_bytes)
        self._share_queues()

    def _share_queues(self) -> None:
        """Tells workers which bounds of queues have changed."""
        for share in self._queue_shares.decide():
            stream, deployment = self._machine.stream(share.stream_id), self._entries[share.stream_id].deployment
            if stream is not None and deployment is not None:
                self._send(stream.group.name, control.BoundQueues(
                    share.stream_id, deployment.attempt, share.order, share.queue_bytes))

    def _keep_state_limit(self, entry: _Entry) -> None:
        limit = entry.stream.state_limit
        if limit and not entry.paused:
            held = state_bytes(self._monitor.statuses_of(entry.stream.stream_id))
            reason = over_state_limit(entry.stream.name, held, limit)
            if reason is not None:
                self._pause_for(entry, PauseCause(reason))

    def _watch_contact(self, entry: _Entry) -> None:
        """Says how a stream or an ingest fares outside, and pauses a stream that has tried for long enough, unless it
        has a DLQ for that."""
        plan = entry.stream.plan
        if not entry.stream.connected:
            return
        statuses = self._monitor.statuses_of(entry.stream.stream_id)
        tell_contacts(statuses, entry.contacts, entry.stream.keeper.note_contact)
        outside = None if isinstance(plan, IngestPlan) else plan.sink.outside
        away = next((status for status in statuses if status.outage_since_ms is not None), None)
        if outside is None or away is None or away.outage_since_ms is None:
            return
        tried_ms = self._clock.now_ms() - max(away.outage_since_ms, entry.resumed_ms)
        long_enough = tried_ms > entry.stream.settings.retry_time_s * 1000
        if long_enough and outside.on_failure == "pause" and not entry.paused:
            self._pause_for(entry, PauseCause(
                f"{away.reason}; to go on: RESUME STREAM {entry.stream.name}", outside.connection))

    def _pause_for(self, entry: _Entry, cause: PauseCause, *, until_room: bool = False) -> None:
        """Pauses a stream that has too much, or nowhere to write to; what it has read already still flows on.

        `until_room`: it goes on by itself when there is memory, and so it does when the engine is started again.
        """
        stream_id = entry.stream.stream_id
        entry.pause = cause
        self._pause(stream_id)
        self._tell(stream_id, f"paused: {cause.text}", logging.WARNING)
        if until_room:
            entry.until_room = 1 + max(each.until_room for each in self._entries.values())
            return
        self._helpers.submit(self._call_on_pause, stream_id, cause)

    def _call_on_pause(self, stream_id: int, cause: PauseCause) -> None:
        try:
            self._on_pause(stream_id, cause)
        except Exception:  # noqa: BLE001
            # It is paused all the same, though not for longer than the engine runs.
            _log.exception("that stream %x is paused could not be noted", stream_id,
                           extra=about(stream=self._name(stream_id)))

    def _note_damage(self, message: control.Failed) -> None:
        """Sees to it that the next attempt starts from the checkpoint before."""
        entry = self._entries.get(message.stream_id)
        deployment = None if entry is None else entry.deployment
        if entry is None or deployment is None or deployment.attempt != message.attempt:
            return
        if deployment.checkpoint_id is not None:
            entry.damaged[deployment.checkpoint_id] = message.error

    def _handle_deployed(self, message: control.Deployed, index: int) -> None:
        entry = self._entries.get(message.stream_id)
        if entry is not None and entry.deployment is not None and entry.deployment.attempt == message.attempt:
            entry.tasks.update(message.tasks)
        self._handle(worker_groups.StreamDeployed(message.stream_id, message.attempt, index))

    # --- groups: performing ------------------------------------------------------------------------------------

    def _handle(self, event: worker_groups.Event) -> None:
        for instruction in self._machine.handle(event, self._clock.monotonic()):
            self._perform(instruction)
        self._see_whether_gone()

    def _perform(self, instruction: worker_groups.Instruction) -> None:
        match instruction:
            case worker_groups.SubmitGroup():
                self._submit_group(instruction)
            case worker_groups.ShutdownGroup(group):
                self._send(group, control.Shutdown())
            case worker_groups.CancelGroup(group):
                self._cancel_group(group)
            case worker_groups.ForgetGroup(group):
                self._end_workers(group)
                self._handles.pop(group, None)
                self._places.pop(group, None)
            case worker_groups.PrepareStream(stream_id, preparation):
                entry = self._entries[stream_id]
                entry.preparation = preparation
                if not entry.record_under_way:
                    self._helpers.submit(self._prepare, entry, preparation)
            case worker_groups.DeployStream():
                self._deploy(instruction)
            case worker_groups.LetStreamRun(stream_id, attempt, group):
                self._let_run(stream_id, attempt, group)
            case worker_groups.HaltStream(stream_id, attempt, group):
                self._send(group, control.StopTasks(stream_id, attempt))
            case worker_groups.StreamDown(stream_id, reason):
                self._tell(stream_id, f"down: {reason}")
                self._monitor.forget(stream_id)
                self._handle_checkpoint(checkpoint_machine.AttemptEnds(stream_id, reason))
            case worker_groups.StreamRemoved(stream_id):
                self._forget(stream_id)
            case worker_groups.Ignored(ignored, reason):
                _log.debug("ignored %s: %s", ignored, reason)

    def _submit_group(self, instruction: worker_groups.SubmitGroup) -> None:
        group = instruction.group
        workers = instruction.nodes.workers
        spec = WorkerSpec(
            group,
            self._door.address,
            self._service_address,
            self._secret,
            str(self._paths.root),
            self._settings.heartbeat_interval_s,
            self._settings.wal_poll_interval_s,
            self._settings.log_level,
            self._settings.log_format,
            self._settings.state_cache_bytes,
            self._nice(instruction.company),
            self._build,
        )
        description = f"penstock {group} on database {instruction.database}: {workers} workers"

        def on_end(reason: str | None) -> None:
            self._post(lambda: self._handle(worker_groups.JobEnded(group, reason)))

        self._handles[group] = self._runtime.submit_group(spec, workers, description, on_end)

    def _cancel_group(self, group: str) -> None:
        self._end_workers(group)
        handle = self._handles.get(group)
        if handle is not None:
            handle.cancel()

    def _end_workers(self, group: str) -> None:
        for worker in self._workers.pop(group, {}).values():
            worker.connection.close()
            self._helpers.submit(worker.connection.kill)

    def _prepare(self, entry: _Entry, preparation: int) -> None:
        """Collects what the next attempt needs; in a helper thread, since files and the catalog may be slow."""
        stream = entry.stream
        try:
            attempt = stream.keeper.next_attempt()
            record = newest_or_recovered(self._records, stream, attempt, entry.damaged)
            ids = self._records.ids(stream.stream_id)
            deployment = stream.deployment(attempt, None if record is None else record.checkpoint_id, entry.paused)
        except PenstockError as error:
            failed = worker_groups.PreparationFailed(
                stream.stream_id, preparation, str(error), worker_groups.Cause.of(error))
            self._post(lambda: self._handle(failed))
            return
        except Exception as error:  # noqa: BLE001
            _log.exception("stream %s could not be prepared", stream.name, extra=about(stream=stream.name))
            reason = f"{type(error).__name__}: {error}"
            failed = worker_groups.PreparationFailed(
                stream.stream_id, preparation, reason, worker_groups.Cause.of(error))
            self._post(lambda: self._handle(failed))
            return
        last_id = max([*ids, entry.last_checkpoint_id, stream.last_checkpoint_id])
        self._post(lambda: self._prepared(entry, preparation, deployment, record, last_id))

    def _prepared(
        self,
        entry: _Entry,
        preparation: int,
        deployment: Deployment,
        record: CommitRecord | None,
        last_checkpoint_id: int,
    ) -> None:
        entry.deployment = deployment
        entry.record = record
        entry.last_checkpoint_id = last_checkpoint_id
        entry.tasks.clear()
        self._tell_damaged(entry, record)
        self._handle(worker_groups.StreamPrepared(deployment.stream_id, preparation, deployment.attempt))

    def _tell_damaged(self, entry: _Entry, record: CommitRecord | None) -> None:
        """Says once of each checkpoint that is newer than the one to start from why it is passed over."""
        used = None if record is None else record.checkpoint_id
        for checkpoint_id, why in self._records.passed_over(entry.stream.stream_id, used, entry.damaged).items():
            if checkpoint_id not in entry.told_damaged:
                entry.told_damaged.add(checkpoint_id)
                self._tell(entry.stream.stream_id, f"checkpoint {checkpoint_id} is damaged and passed over: {why}")

    def _deploy(self, instruction: worker_groups.DeployStream) -> None:
        entry = self._entries[instruction.stream_id]
        if entry.deployment is None:
            raise InternalError(f"stream {instruction.stream_id:x} is to be deployed without a deployment")
        settings = entry.deployment.settings
        queue_bytes = self._queue_shares.enter(
            instruction.stream_id, entry.stream.graph.queue_counts(), settings.queue_bytes)
        deployment = replace(entry.deployment, settings=replace(settings, queue_bytes=queue_bytes))
        workers = self._workers.get(instruction.group, {})
        peers = tuple(workers[index].connection.exchange_address for index in sorted(workers))
        since = "the start" if deployment.checkpoint_id is None else f"checkpoint {deployment.checkpoint_id}"
        self._tell(instruction.stream_id, f"attempt {deployment.attempt} is deployed, from {since}")
        for index, worker in workers.items():
            worker.connection.send(control.Deploy(deployment.for_worker(index), peers))
        self._share_queues()

    def _let_run(self, stream_id: int, attempt: int, group: str) -> None:
        entry = self._entries[stream_id]
        if entry.skip_pending and not entry.paused:
            self._post_event(stream_id, Resume(skip_to_end=True))
            entry.skip_pending = False
        elif entry.deployment is not None and entry.deployment.paused != entry.paused:
            # Before the tasks start: a stream that was paused meanwhile must not read a single row.
            self._post_event(stream_id, Pause() if entry.paused else Resume())
        if entry.deployment is not None and entry.deployment.settings != entry.stream.settings:
            self._post_event(stream_id, entry.stream.settings.rates)  # they changed since it was prepared
        self._send(group, control.StartTasks(stream_id, attempt))
        running = checkpoint_machine.AttemptRuns(
            stream_id, attempt, frozenset(entry.tasks), entry.stream.graph.source_vgroup_ids, entry.last_checkpoint_id,
            entry.stream.checkpoint_interval_s, entry.stream.layout,
        )
        self._handle_checkpoint(running)
        self._tell(stream_id, f"attempt {attempt} runs")
        if not entry.running.done():
            entry.running.set_result(None)

    def _forget(self, stream_id: int) -> None:
        self._handle_checkpoint(checkpoint_machine.AttemptEnds(stream_id, "the stream was removed"))
        entry = self._entries.pop(stream_id, None)
        self._monitor.forget(stream_id)
        self._queue_shares.leave(stream_id)
        self._share_queues()
        if entry is not None and not entry.removed.done():
            entry.removed.set_result(None)

    def _send(self, group: str, message: control.MnodeMessage) -> None:
        for worker in self._workers.get(group, {}).values():
            worker.connection.send(message)

    def _post_event(self, stream_id: int, event: TaskEvent) -> None:
        stream = self._machine.stream(stream_id)
        if stream is not None and stream.state is StreamState.RUNNING:
            self._send(stream.group.name, control.PostEvent(stream_id, stream.attempt, event))

    def _name(self, stream_id: int) -> str:
        entry = self._entries.get(stream_id)
        return f"0x{stream_id:x}" if entry is None else entry.stream.name

    def _tell(self, stream_id: int, text: str, level: int = logging.INFO) -> None:
        deployment = self._entries[stream_id].deployment if stream_id in self._entries else None
        _log.log(level, "stream %x: %s", stream_id, text, extra=about(
            stream=self._name(stream_id), attempt=None if deployment is None else deployment.attempt))
        self._events.append(StreamEvent(self._clock.now_ms(), stream_id, text))

    # --- checkpoints: performing -------------------------------------------------------------------------------

    def _handle_checkpoint(self, event: checkpoint_machine.Event) -> None:
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        for instruction in self._checkpoints.handle(event, now, now_ms):
            self._perform_checkpoint(instruction)

    def _perform_checkpoint(self, instruction: checkpoint_machine.Instruction) -> None:
        match instruction:
            case checkpoint_machine.Begin(stream_id, _, checkpoint_id):
                entry = self._entries[stream_id]
                entry.last_checkpoint_id, entry.begun_ms = checkpoint_id, self._clock.now_ms()
                self._post_event(stream_id, StartCheckpoint(checkpoint_id))
            case checkpoint_machine.WriteRecord(record):
                entry = self._entries[record.stream_id]
                entry.record_under_way, entry.preparation = True, None
                self._helpers.submit(self._write_record, entry, record)
            case checkpoint_machine.Announce(record):
                self._announce(record)
            case checkpoint_machine.CallOff(stream_id, checkpoint_id):
                self._post_event(stream_id, CheckpointAbandoned(checkpoint_id))
            case checkpoint_machine.Finished():
                self._finished(instruction)
            case checkpoint_machine.Ignored(ignored, reason):
                _log.debug("ignored %s: %s", ignored, reason)

    def _write_record(self, entry: _Entry, record: CommitRecord) -> None:
        """Writes a commit record, in a helper thread."""
        outcome: checkpoint_machine.Event
        try:
            self._before_commit(record.stream_id)
            self._records.write(record, entry.stream.keeper.savepoints())
            outcome = checkpoint_machine.RecordWritten(record.stream_id, record.checkpoint_id)
        except PenstockError as error:
            outcome = checkpoint_machine.RecordFailed(record.stream_id, record.checkpoint_id, str(error))
        except Exception as error:  # noqa: BLE001
            _log.exception("a commit record could not be written",
                           extra=about(stream=entry.stream.name, attempt=record.attempt))
            text = f"{type(error).__name__}: {error}"
            outcome = checkpoint_machine.RecordFailed(record.stream_id, record.checkpoint_id, text)
        event = outcome
        self._post(lambda: self._record_done(entry, event))

    def _record_done(self, entry: _Entry, event: checkpoint_machine.Event) -> None:
        """Lets the next attempt be prepared if it had to wait: it must know of this record.

        Else it would go back behind a checkpoint that counts, and drop the tasks' parts of it.
        """
        entry.record_under_way = False
        self._handle_checkpoint(event)
        if entry.preparation is not None:
            self._helpers.submit(self._prepare, entry, entry.preparation)

    def _announce(self, record: CommitRecord) -> None:
        self._entries[record.stream_id].record = record
        kept = tuple(id_ for id_ in self._records.ids(record.stream_id) if id_ != record.checkpoint_id)
        self._post_event(record.stream_id, CheckpointCommitted(record.checkpoint_id, kept))
        self._helpers.submit(self._call_on_checkpoint, record)

    def _call_on_checkpoint(self, record: CommitRecord) -> None:
        try:
            self._on_checkpoint(record.stream_id, self._records.oldest_versions(record.stream_id))
        except Exception:  # noqa: BLE001
            # WAL is kept for longer than needed; the next checkpoint tries again.
            _log.exception("the WAL pins of stream %x could not be moved", record.stream_id,
                           extra=about(stream=self._name(record.stream_id), attempt=record.attempt))

    def _finished(self, finished: checkpoint_machine.Finished) -> None:
        entry = self._entries.get(finished.stream_id)
        if entry is None:
            return
        committed = finished.outcome == "committed"
        last = 0 if entry.record is None else entry.record.checkpoint_id
        if not committed and finished.checkpoint_id > last:
            entry.abandoned.append(CheckpointInfo(
                finished.checkpoint_id, "ABANDONED", entry.begun_ms, self._clock.now_ms(), reason=finished.reason))
            self._tell(finished.stream_id, f"checkpoint {finished.checkpoint_id} abandoned: {finished.reason}")
        still_running = self._checkpoints.progress(finished.stream_id) is not None
        for lowest_id, waiter in list(entry.waiters):
            if still_running and finished.checkpoint_id < lowest_id:
                continue
            entry.waiters.remove((lowest_id, waiter))
            if committed and entry.record is not None:
                waiter.set_result(entry.record)
            else:
                text = f"checkpoint {finished.checkpoint_id} was abandoned: {finished.reason}"
                waiter.set_exception(UnavailableError(text))


def newest_or_recovered(
    records: CommitRecords, stream: RunningStream, attempt: int, damaged: dict[int, str]
) -> CommitRecord | None:
    """Returns the newest checkpoint that can be used, from the stream's backup if none is there; None: the beginning.

    `damaged` are those that can't be; what comes from the backup can. Raises CorruptionError, and StateLayoutError if
    the state was saved by another plan.
    """
    record = _newest_or_recovered(records, stream, attempt, damaged)
    if record is not None:
        record.check_layout(stream.layout)
    return record


def _newest_or_recovered(
    records: CommitRecords, stream: RunningStream, attempt: int, damaged: dict[int, str]
) -> CommitRecord | None:
    try:
        record = records.newest(stream.stream_id, damaged)
    except CorruptionError:
        if not stream.keeper.recover():
            raise
        damaged.clear()
        return records.newest(stream.stream_id)
    if record is None and attempt > 1 and stream.keeper.recover():
        return records.newest(stream.stream_id)
    return record


def _running_info(progress: Progress) -> CheckpointInfo:
    missing = sorted(progress.tasks - progress.acknowledged.keys())
    phase = f"{len(progress.acknowledged)} of {len(progress.tasks)} tasks have written their state"
    return CheckpointInfo(
        progress.checkpoint_id, "RUNNING", progress.started_ms,
        bytes_written=sum(part.bytes_written for part in progress.acknowledged.values()),
        phase=phase if missing else "the commit record is being written",
        slowest_task=str(missing[0]) if missing else "",
        task_bytes={str(task): part.bytes_written for task, part in progress.acknowledged.items()})
