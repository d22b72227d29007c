"""Runs worker groups in the calling thread, for tests and dry runs: no Spark, no sockets, no threads, no waiting.

Nothing runs by itself: `run` has the controller, its helpers and all streams work until none has anything to do.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from math import inf
from typing import Any, TypeVar

from penstock.common.clock import Clock
from penstock.common.errors import CheckpointDamagedError, InternalError
from penstock.mnode.checkpoints.checkpoint_machine import CheckpointSettings
from penstock.mnode.checkpoints.commit_records import CommitRecords
from penstock.mnode.controller.controller_settings import ControllerSettings
from penstock.mnode.controller.engine_hooks import EngineHooks
from penstock.mnode.controller.group_runtime import WorkerLaunch
from penstock.mnode.controller.local_group import LocalGroup
from penstock.mnode.controller.runtime_environment import Entrance, OnHello, OnLost, OnMessage
from penstock.mnode.controller.stream_controller import StreamController
from penstock.mnode.groups.group_events import GroupSettings
from penstock.tasks.protocol.task_status import TaskStatus
from penstock.tasks.worker.local_environment import LocalEnvironment, LocalStream
from penstock.tasks.worker.spark_executors import Executors
from penstock.tasks.worker.worker_process import WorkerSpec

T = TypeVar("T")

_BACK_OFF_S = 1e9
#: Nothing is late where nothing runs by itself, and what has failed rests until it is killed.
LOCAL_SETTINGS = ControllerSettings(
    GroupSettings(idle_timeout_s=inf, start_timeout_s=inf, deploy_timeout_s=inf, stop_timeout_s=inf,
                  restart_delay_min_s=_BACK_OFF_S, restart_delay_max_s=_BACK_OFF_S),
    CheckpointSettings(inf, inf), heartbeat_interval_s=inf, heartbeat_timeout_s=inf, stall_timeout_s=inf,
    executors_interval_s=inf)


class LocalClock:
    """An engine's clock, of which those who wait for the end of a back-off have seen more."""

    def __init__(self, clock: Clock) -> None:
        self._skipped_s = 0.0
        self._clock = clock
        self.now_ms = clock.now_ms
        self.processor = clock.processor
        self.wait = clock.wait

    def monotonic(self) -> float:
        return self._clock.monotonic() + self._skipped_s

    def end_back_offs(self) -> None:
        """Lets all back-offs that have begun be over."""
        self._skipped_s += 2 * _BACK_OFF_S


class _Helpers(Executor):
    """Keeps calls until the runtime comes to them: a thread would not begin in the midst of its caller either."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        self.waiting.append(lambda: future.set_result(fn(*args, **kwargs)))
        return future


class LocalRuntime:
    """What runs the worker groups of one controller, and the controller itself.

    It is the `Runtime` and the `RuntimeEnvironment` of the one that `open_controller` returns.
    """

    threaded = False

    def __init__(self, tasks: LocalEnvironment) -> None:
        """`tasks`: what surrounds tasks; whom they tell, each job of theirs decides."""
        self.clock = LocalClock(tasks.clock)
        self.tasks = tasks
        self.entrance: Entrance
        self._groups: list[LocalGroup] = []
        self._helpers = _Helpers()
        self._failures: list[BaseException] = []
        self._goes_back = False
        self._ordered = False
        #: How all tasks were when they reported last.
        self.reported: Sequence[TaskStatus] = ()
        # Questions may be asked by other threads, too.
        self._lock = threading.RLock()
        self._controller: StreamController

    # --- RuntimeEnvironment ------------------------------------------------------------------------------------

    def pool(self, name: str, threads: int) -> Executor:
        return self._helpers

    def launch(self, name: str, run: Callable[[], None]) -> threading.Thread | None:
        return None

    def listen(
        self, secret: bytes, on_hello: OnHello, on_message: OnMessage, on_lost: OnLost, host: str
    ) -> Entrance:
        self.entrance = Entrance(on_hello, on_message, on_lost)
        return self.entrance

    def is_full(self) -> bool:
        return False

    def result(self, future: Future[T], timeout_s: float) -> T:
        """Lets the streams work until there is an answer, or they rest: then it never comes."""
        with self._lock:
            self._settle()
            while not future.done():
                if not self._step():
                    raise FutureTimeoutError
                self._settle()
        return future.result()

    # --- Runtime -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        return

    def submit_group(
        self, spec: WorkerSpec, workers: int, description: str, on_end: Callable[[str | None], None]
    ) -> LocalGroup:
        group = LocalGroup(
            spec.group, workers, self.entrance, self.tasks, self._helpers.submit, self._note_order, self._note_failure,
            on_end)
        self._groups = [each for each in self._groups if not each.ended] + [group]
        return group

    def is_ready(self) -> bool:
        return True

    def executors(self) -> Executors | None:
        return None

    def scale(self, executors: int, released: Sequence[str]) -> None:
        raise InternalError("there is nothing to scale in one thread")

    # --- for those who have it work ----------------------------------------------------------------------------

    def open_controller(self, records: CommitRecords, hooks: EngineHooks) -> StreamController:
        """Returns the controller whose streams run here."""
        self._controller = StreamController(
            self.clock, LOCAL_SETTINGS, records, self, WorkerLaunch(self.tasks.paths.root), hooks, self)
        return self._controller

    def run(self) -> None:
        """Lets all streams work until they rest, also streams on the results of streams, and report how they are.

        Raises what a task failed with; its stream stays down until `kill` starts it again.
        """
        with self._lock:
            self._work()
            self._report()
        self.go_on()  # reports may have led to orders

    def go_on(self) -> None:
        """Does the same where streams have rested and reported, and all that may be new is orders: none, mostly."""
        with self._lock:
            self._settle()
            while self._ordered:
                self._work()
                self._report()
        self.raise_failure()

    def step(self) -> None:
        """Gives each task one step, and has all report how they are. Raises what a task failed with."""
        with self._lock:
            self._settle()
            self._step()
            self._report()
        self.raise_failure()

    def report(self) -> None:
        """Has all tasks report how they are, without a step."""
        with self._lock:
            self._report()

    def raise_failure(self) -> None:
        """Raises what a task has failed with since it was asked last."""
        failures, self._failures = self._failures, []
        if failures:
            raise failures[0]

    def kill(self) -> None:
        """Ends all tasks as a crash would, and starts them from their last checkpoints."""
        with self._lock:
            for group in self._groups:
                group.end("killed")
            self._settle()
            self.clock.end_back_offs()
            self._settle()

    def checkpoint(self) -> None:
        """Takes a checkpoint of every stream that runs, in the middle of its work, and commits it."""
        for stream_id, status in self._controller.stream_states().items():
            if status.state in ("RUNNING", "PAUSED"):
                try:
                    self._controller.checkpoint_now(stream_id)
                finally:
                    self.raise_failure()

    def close(self) -> None:
        """Ends all tasks as a crash of the engine would: nobody hears of it."""
        for group in self._groups:
            group.drop()

    def statuses(self) -> list[TaskStatus]:
        """Returns how all tasks are now."""
        return [status for stream in self.local_streams().values() for status in stream.statuses()]

    def local_streams(self) -> dict[int, LocalStream]:
        """Returns the streams that have tasks, by id."""
        return {stream_id: stream for group in self._groups for stream_id, stream in group.streams.items()}

    # --- inside --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Lets all streams work until they rest."""
        worked = True
        while worked:
            self._settle()
            self._ordered = False
            worked = self._step()

    def _step(self) -> bool:
        worked = False
        for group in self._groups:
            worked |= group.step()
        return worked

    def _note_order(self) -> None:
        self._ordered = True

    def _note_failure(self, error: BaseException) -> None:
        """Hears what a task failed with. A damaged checkpoint is no failure: the one before is tried."""
        if isinstance(error, CheckpointDamagedError):
            self._goes_back = True
        else:
            self._failures.append(error)

    def _report(self) -> None:
        self.reported = [status for group in self._groups for status in group.heartbeat()]
        self._settle()

    def _settle(self) -> None:
        """Has the controller and its helpers do what they can do without the streams' work."""
        self._controller.turn()
        while True:
            if self._controller.asked:
                self._controller.turn()
            elif self._helpers.waiting:
                self._helpers.waiting.popleft()()
            elif self._goes_back:
                self._goes_back = False
                self.clock.end_back_offs()
                self._controller.turn()
            else:
                return
