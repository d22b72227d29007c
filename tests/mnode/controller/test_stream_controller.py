"""The stream controller with real workers, control connections and exchange, in threads instead of on Spark."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kits.basics.waiting import wait_until
from kits.engines.runtime_fakes import (
    FakeKeeper,
    FakePlan,
    FakeTask,
    Results,
    ThreadRuntime,
    build_fakes,
    fake_graph,
    serve,
)

from penstock.common.clock import SystemClock
from penstock.common.errors import CheckpointDamagedError, NotFoundError, UnavailableError
from penstock.common.fs import OsFs
from penstock.common.memory import Memory
from penstock.common.paths import DataPaths
from penstock.mnode.catalog.catalog_records import PauseCause
from penstock.mnode.checkpoints.checkpoint_machine import CheckpointSettings
from penstock.mnode.checkpoints.commit_records import CommitRecords
from penstock.mnode.controller.controller_settings import ControllerSettings
from penstock.mnode.controller.engine_hooks import EngineHooks
from penstock.mnode.controller.group_runtime import WorkerLaunch
from penstock.mnode.controller.stream_controller import StreamController
from penstock.mnode.coordinator.executor_keeper import Scale
from penstock.mnode.coordinator.running_stream import RunningStream
from penstock.mnode.coordinator.stream_status import MemoryInfo, WorkerInfo
from penstock.mnode.groups.group_events import GroupSettings
from penstock.planner.task_plans.stream_plan import IsolationClass
from penstock.tasks.flow.queues import ChannelQueue
from penstock.tasks.operators.stream_task import TaskEnvironment
from penstock.tasks.protocol.deployment import StreamDeployment, TaskSettings
from penstock.tasks.protocol.messages import SetRates, TaskEvent, TaskId
from penstock.tasks.worker import worker_process
from penstock.tasks.worker.spark_executors import Executor, Executors
from penstock.tasks.worker.worker_process import TaskBuilder, queues_of

SECRET = b"s" * 32


class Engine:
    """A controller with all that it needs."""

    def __init__(
        self, root: Path, build: TaskBuilder = build_fakes, measure: Callable[[float], Memory] | None = None,
        end_queries: Callable[[str], int] = lambda shortage: 0, **limits: int
    ) -> None:
        self.root = root
        self.limits = limits
        self.measure = measure
        self.end_queries = end_queries
        self.paused: list[tuple[int, PauseCause]] = []
        self.build = build
        self.results = Results()
        self.runtime = ThreadRuntime()
        self.service = serve(root, SECRET, self.results)
        self.pins: list[tuple[int, dict[int, int]]] = []
        self.attempts: dict[int, int] = {}
        self.controller = self.open()

    def open(self) -> StreamController:
        settings = ControllerSettings(
            GroupSettings(streams_per_worker=2, idle_timeout_s=60, restart_delay_min_s=0.01, restart_delay_max_s=0.1),
            CheckpointSettings(interval_s=60, timeout_s=20),
            heartbeat_interval_s=0.05,
            heartbeat_timeout_s=20,
            executors_interval_s=0.05,
            close_timeout_s=5,
            **self.limits,  # type: ignore[arg-type]
        )
        return StreamController(
            SystemClock(),
            settings,
            CommitRecords(DataPaths(self.root), OsFs()),
            self.runtime,
            WorkerLaunch(self.root, self.service.address, SECRET, self.build),
            EngineHooks(
                on_checkpoint=lambda stream_id, versions: self.pins.append((stream_id, dict(versions))),
                on_pause=lambda stream_id, cause: self.paused.append((stream_id, cause)),
                measure=self.measure,
                end_queries=self.end_queries,
            ),
        )

    def stream(
        self, stream_id: int, plan: FakePlan, isolation_class: IsolationClass = IsolationClass.ANY,
        snode_ids: tuple[int, ...] = (), **more: Any,
    ) -> RunningStream:
        arguments: dict[str, Any] = {"settings": TaskSettings(queue_bytes=1 << 20)} | more
        return RunningStream(
            stream_id=stream_id,
            name=f"s{stream_id}",
            plan=plan.shipped(isolation_class),
            graph=fake_graph(snode_ids),
            start_versions=(0, 0),
            keeper=FakeKeeper(stream_id, self.attempts),
            **arguments,
        )

    def close(self) -> None:
        self.results.gate.set()
        self.controller.close(final_checkpoint=False)
        self.service.shutdown()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path)
    yield engine
    engine.close()


def expected(plan: FakePlan, sources: int = 2) -> list[int]:
    return sorted(list(range(plan.blocks * plan.rows)) * sources)


def test_rows_cross_workers_and_reach_the_dnode_once(engine: Engine) -> None:
    """What two sources send reaches the dnode completely, once, with the attempt that wrote it."""
    plan = FakePlan(blocks=50, rows=10)
    engine.controller.start(engine.stream(1, plan))
    assert engine.results.wait_rows(1, 1000) == expected(plan)
    assert {write.attempt for write in engine.results.writes} == {1}
    assert engine.results.writes[0].children[0].tag_values == (1, "x")
    assert engine.runtime.descriptions == ["penstock db-1.1 on database db: 2 workers"]


def test_a_second_stream_shares_the_group_and_a_third_gets_another(engine: Engine) -> None:
    """With two places per worker, the third stream of a database starts a second group."""
    for stream_id in (1, 2, 3):
        engine.controller.start(engine.stream(stream_id, FakePlan(4, 5)))
    for stream_id in (1, 2, 3):
        engine.results.wait_rows(stream_id, 40)
    groups = {stream_id: report.group for stream_id, report in engine.controller.stream_states().items()}
    assert groups == {1: "db-1.1", 2: "db-1.1", 3: "db-2.1"}


def test_rates_that_change_while_an_attempt_is_prepared_hold(tmp_path: Path) -> None:
    """All tasks of the attempt hear of them before they run, though its deployment has the rates of before."""
    asked, gate = threading.Event(), threading.Event()
    heard: dict[TaskId, tuple[SetRates, int]] = {}

    class Listening(FakeTask):
        def _handle(self, event: TaskEvent) -> None:
            if isinstance(event, SetRates):
                heard[self.id] = event, self.sent + self.seen
            super()._handle(event)

    def build(deployment: StreamDeployment, index: int, environment: TaskEnvironment) -> list[FakeTask]:
        assert deployment.settings.rates == TaskSettings().rates
        return build_fakes(deployment, index, environment, Listening)

    class Slow(FakeKeeper):
        def children(self) -> tuple[bytes, ...]:
            asked.set()
            gate.wait(30)
            return super().children()

    engine = Engine(tmp_path, build)
    try:
        plan = FakePlan(4, 5)
        engine.controller.start(replace(engine.stream(1, plan), keeper=Slow(1, engine.attempts)))
        assert asked.wait(30)
        rates = replace(TaskSettings().rates, source_rows_per_second=5.0)
        engine.controller.set_rates(1, rates)
        gate.set()
        assert engine.results.wait_rows(1, 40) == expected(plan)
        assert len(heard) == 6
        assert set(heard.values()) == {(rates, 0)}
    finally:
        gate.set()
        engine.close()


def test_streams_kept_apart_get_workers_of_a_lower_priority(tmp_path: Path) -> None:
    """A stream that may harm others shares with its like only, where apartNice says how low the priority is."""
    engine = Engine(tmp_path, apart_nice=7)
    classes = (IsolationClass.ANY, IsolationClass.USER_CODE, IsolationClass.ANY, IsolationClass.OPEN_GROUPS,
               IsolationClass.USER_CODE)
    try:
        for stream_id, isolation_class in enumerate(classes, 1):
            engine.controller.start(engine.stream(stream_id, FakePlan(4, 5), isolation_class=isolation_class))
            engine.results.wait_rows(stream_id, 40)
        groups = {stream_id: report.group for stream_id, report in engine.controller.stream_states().items()}
        assert groups == {1: "db-1.1", 2: "db-2.1", 3: "db-1.1", 4: "db-3.1", 5: "db-2.1"}
        assert {spec.group: spec.nice for spec in engine.runtime.specs} == {"db-1.1": 0, "db-2.1": 7, "db-3.1": 7}
    finally:
        engine.close()


def test_workers_are_listed_with_their_places(engine: Engine) -> None:
    """Each group has a worker per vgroup: its process, where it is reached, when it was heard, what it hosts."""
    assert engine.controller.workers() == []
    engine.runtime.found = Executors((Executor("driver", "here", 6, 4),), elastic=False)
    for stream_id in (1, 2, 3):
        engine.controller.start(engine.stream(stream_id, FakePlan(4, 5)))
    for stream_id in (1, 2, 3):
        engine.results.wait_rows(stream_id, 40)
    wait_until(lambda: all(worker.host == "here" for worker in engine.controller.workers()))
    *workers, free = engine.controller.workers()
    assert [(worker.group, worker.index, worker.node_id, worker.state, worker.streams) for worker in workers] == [
        ("db-1.1", 0, 2, "RUNNING", ("s1", "s2")), ("db-1.1", 1, 3, "RUNNING", ("s1", "s2")),
        ("db-2.1", 0, 2, "RUNNING", ("s3",)), ("db-2.1", 1, 3, "RUNNING", ("s3",))]
    assert all(worker.pid and worker.address and worker.heard_ms for worker in workers)
    assert all(worker.gathering_ms is not None and 0 <= worker.gathering_ms <= 20 for worker in workers)
    assert {(worker.executor, worker.slots) for worker in workers} == {("driver", 1)}
    assert free == WorkerInfo(None, None, None, "FREE", executor="driver", host="here", slots=2)


def test_a_stream_that_finds_no_slots_waits_by_name(engine: Engine) -> None:
    """WAITING says how many are missing; more executors are asked for, and what they bring lets the stream run."""
    engine.runtime.found = Executors((Executor("0", "here", 3, 2),), elastic=True)
    for stream_id in (1, 2):
        engine.controller.start(engine.stream(stream_id, FakePlan(4, 5)))
        engine.results.wait_rows(stream_id, 40)
    wait_until(lambda: any(worker.state == "FREE" for worker in engine.controller.workers()))
    engine.controller.start(engine.stream(3, FakePlan(4, 5)))
    report = engine.controller.stream_states()[3]
    assert report.state == "WAITING"
    assert report.reason == "1 slot is missing: its worker group needs 2, 1 of Spark's 3 are free"
    waiting = [worker for worker in engine.controller.workers() if worker.state == "WAITING"]
    assert {(worker.streams, worker.reason, worker.slots) for worker in waiting} == {(("s3",), report.reason, 0)}
    wait_until(lambda: engine.runtime.scaled == [Scale(2)])
    engine.runtime.found = Executors((Executor("0", "here", 3, 2), Executor("1", "there", 3, 0)), elastic=True)
    assert engine.results.wait_rows(3, 40) == expected(FakePlan(4, 5))
    assert engine.controller.stream_states()[3].state == "RUNNING"


def test_a_failing_task_restarts_its_stream_and_no_other(engine: Engine) -> None:
    """A task that raises costs its stream an attempt; the neighbour in the same group runs on."""
    engine.controller.start(engine.stream(1, FakePlan(4, 5)))
    engine.controller.start(engine.stream(2, FakePlan(4, 5, fail_in="agg", fail_on_attempts=2)))
    assert engine.results.wait_rows(2, 40) == expected(FakePlan(4, 5))
    states = engine.controller.stream_states()
    assert (states[1].attempt, states[2].attempt, states[2].restarts) == (1, 3, 2)
    assert any("fails on purpose" in event.text for event in engine.controller.events())
    assert len(engine.runtime.groups) == 1


def test_the_loss_of_a_worker_restarts_the_group_with_new_attempts(engine: Engine) -> None:
    """After a worker is cut off, all streams of its group run again, as another attempt in another job."""
    for stream_id in (1, 2):
        engine.controller.start(engine.stream(stream_id, FakePlan(4, 5)))
        engine.results.wait_rows(stream_id, 40)
    engine.runtime.groups[0].kill(1)
    for stream_id in (1, 2):
        assert engine.results.wait_rows(stream_id, 40, attempt=2) == expected(FakePlan(4, 5))
    assert {report.group for report in engine.controller.stream_states().values()} == {"db-1.2"}


def test_a_checkpoint_commits_moves_pins_and_is_restored_from(engine: Engine) -> None:
    """A requested checkpoint has a record on disk, releases WAL, and is what the next engine deploys from."""
    engine.controller.start(engine.stream(1, FakePlan(4, 5)))
    engine.results.wait_rows(1, 40)
    record = engine.controller.checkpoint_now(1)
    assert record is not None
    assert record.versions == ((2, 4), (3, 4))
    assert [task.task for task in record.tasks] == sorted(
        f"1-{level}-{index}" for level in ("source", "agg", "sink") for index in (0, 1)
    )
    assert CommitRecords(DataPaths(engine.root), OsFs()).newest(1) == record
    engine.controller.close(final_checkpoint=True)
    assert engine.pins == [(1, {2: 4, 3: 4}), (1, {2: 4, 3: 4})]
    engine.controller = engine.open()
    engine.controller.start(engine.stream(1, FakePlan(4, 5)))
    assert engine.controller.wait_running(1, 30)
    assert any("attempt 2 is deployed, from checkpoint 2" in event.text for event in engine.controller.events())


def test_a_checkpoint_that_a_task_finds_damaged_is_passed_over(tmp_path: Path) -> None:
    """The attempt after the failed one starts from the checkpoint before, and an event and the report say why."""

    def build(deployment: StreamDeployment, index: int, environment: TaskEnvironment) -> list[FakeTask]:
        if deployment.checkpoint_id == 2 and index == 1:
            raise CheckpointDamagedError("the state of 1-agg-1 is not as it was written")
        return build_fakes(deployment, index, environment)

    engine = Engine(tmp_path, build)
    try:
        engine.controller.start(engine.stream(1, FakePlan(4, 5)))
        engine.results.wait_rows(1, 40)
        for _ in range(2):
            engine.controller.checkpoint_now(1)
        engine.runtime.groups[0].kill(0)
        wait_until(lambda: (report := engine.controller.stream_states()[1]).damaged and report.state == "RUNNING")
        assert list(engine.controller.stream_states()[1].damaged) == [2]
        texts = [event.text for event in engine.controller.events()]
        assert "checkpoint 2 is damaged and skipped: the state of 1-agg-1 is not as it was written" in texts
        assert any(text.endswith("is deployed, from checkpoint 1") for text in texts)
        record = engine.controller.checkpoint_now(1)
        assert record is not None
        assert record.checkpoint_id == 3
    finally:
        engine.close()


def test_control_answers_while_queues_are_full(engine: Engine) -> None:
    """With a dnode that doesn't answer and all queues full, pause, statuses and stop still come through."""
    engine.results.gate.clear()
    plan = FakePlan(blocks=10_000, rows=1000)
    engine.controller.start(engine.stream(1, plan, settings=TaskSettings(queue_bytes=200_000)))
    assert engine.controller.wait_running(1, 30)
    # A block on its way, which nobody has refused yet, blocks its sender as well, but there is nobody to name.
    statuses = wait_statuses(engine.controller, lambda found: all(
        s.state == "BACKPRESSURED" and s.blocked_by for s in found if s.task.operator != "sink"
    ))
    assert max(s.queues.input_peak for s in statuses) <= 200_000
    engine.controller.pause(1)
    assert engine.controller.stream_states()[1].state == "PAUSED"
    engine.controller.stop(1)
    assert engine.controller.stream_states() == {}
    assert engine.controller.statuses() == []


def test_a_stop_does_not_wait_for_garbage(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers look for what a stream has left when they have said that it is gone. If they said nothing meanwhile,
    their group would be ended."""
    stopped = threading.Event()
    monkeypatch.setattr(worker_process, "gc", SimpleNamespace(collect=stopped.wait))
    engine.controller.start(engine.stream(1, FakePlan(4, 5)))
    engine.results.wait_rows(1, 40)
    try:
        engine.controller.stop(1)
        assert all(thread.is_alive() for thread in engine.runtime.groups[0].threads)
    finally:
        stopped.set()


def test_the_queues_of_all_streams_stay_within_the_budget(tmp_path: Path) -> None:
    """While nobody takes results, a second stream still gets its part; at no look is there more than the budget, and
    when results are taken again, all rows arrive and both streams have the same."""
    tasks: dict[int, list[FakeTask]] = {1: [], 2: []}

    def build(deployment: StreamDeployment, index: int, environment: TaskEnvironment) -> list[FakeTask]:
        made = build_fakes(deployment, index, environment)
        tasks[deployment.stream_id] += made
        return made

    budget, plan = 1 << 16, FakePlan(500, 10)
    engine = Engine(tmp_path, build, queue_budget_bytes=budget)

    def queues(stream_id: int) -> list[ChannelQueue[TaskId]]:
        return queues_of(tasks[stream_id])

    def used(stream_id: int) -> int:
        assert sum(queue.used_bytes for stream in tasks for queue in queues(stream)) <= budget
        return sum(queue.used_bytes for queue in queues(stream_id))

    engine.results.gate.clear()
    engine.controller.start(engine.stream(1, plan))
    wait_until(lambda: used(1) > budget // 6)
    assert {queue.capacity_bytes for queue in queues(1)} == {budget // 20}
    engine.controller.start(engine.stream(2, plan))
    wait_until(lambda: used(2) > budget // 9)
    engine.results.gate.set()
    for stream_id in (1, 2):
        wait_until(lambda: used(1) + used(2) == 0)
        assert engine.results.wait_rows(stream_id, 10_000) == expected(plan)
    wait_until(lambda: {queue.capacity_bytes for stream in tasks for queue in queues(stream)} == {budget // 30})
    engine.controller.stop(1)
    wait_until(lambda: {queue.capacity_bytes for queue in queues(2)} == {budget // 20})
    engine.close()


def test_memory_beyond_the_limit_pauses_the_stream_that_holds_most(tmp_path: Path) -> None:
    """Its queues are full; the stream beside it runs on. When there is memory it goes on by itself and has
    missed nothing."""
    takes = [100]
    engine = Engine(tmp_path, measure=lambda exact_from: Memory({os.getpid(): takes[0]}), memory_limit_bytes=900)
    plan = FakePlan(500, 10)
    engine.results.gate.clear()
    engine.controller.start(engine.stream(1, plan))
    engine.controller.start(engine.stream(2, FakePlan(1, 1)))
    wait_until(lambda: sum(status.queues.input_bytes for status in engine.controller.statuses()) > 40_000)
    wait_until(lambda: engine.controller.memory()[-1:] == [MemoryInfo("all", None, 100, 900)])
    assert {stream.state for stream in engine.controller.stream_states().values()} == {"RUNNING"}
    takes[0] = 1000
    wait_until(lambda: engine.controller.stream_states()[1].state == "PAUSED")
    reason = engine.controller.stream_states()[1].reason
    assert reason.startswith("the engine and its processes take 0.0 MiB of memory, memoryLimit is 0.0 MiB; of them ")
    assert reason.endswith("it goes on by itself when there is room, or by RESUME STREAM `s1`")
    assert engine.controller.stream_states()[1].since_ms >= SystemClock().now_ms() - 60_000
    assert engine.controller.stream_states()[2].state == "RUNNING"
    assert any(event.text == f"paused: {reason}" for event in engine.controller.events())
    engine.results.gate.set()
    assert engine.results.wait_rows(2, 2) == [0, 0]
    takes[0] = 850
    measured = engine.controller.memory
    wait_until(lambda: measured()[-1:] == [MemoryInfo("all", None, 850, 900)])
    assert engine.controller.stream_states()[1].state == "PAUSED"
    takes[0] = 100
    wait_until(lambda: engine.controller.stream_states()[1].state == "RUNNING")
    assert engine.results.wait_rows(1, 10_000) == expected(plan)
    assert engine.controller.stream_states()[1].reason == ""
    assert any("memory is available again" in event.text for event in engine.controller.events())
    assert engine.paused == []
    engine.close()


def test_queries_are_ended_before_a_stream_is_paused(tmp_path: Path) -> None:
    """No stream pays for them: while memory doesn't grow on without them, all streams run."""
    takes, running, told = [100], [3], list[str]()

    def end_queries(shortage: str) -> int:
        told.append(shortage)
        ended, running[0] = running[0], 0
        return ended

    engine = Engine(tmp_path, measure=lambda exact_from: Memory({os.getpid(): takes[0]}), end_queries=end_queries,
                    memory_limit_bytes=900)
    try:
        engine.results.gate.clear()
        engine.controller.start(engine.stream(1, FakePlan(500, 10)))
        wait_until(lambda: sum(status.queues.input_bytes for status in engine.controller.statuses()) > 20_000)
        takes[0] = 1000
        wait_until(lambda: len(told) >= 3)
        assert engine.controller.stream_states()[1].state == "RUNNING"
        takes[0] = 1100
        wait_until(lambda: engine.controller.stream_states()[1].state == "PAUSED")
        engine.controller.pause(1)
        takes[0] = 100
        wait_until(lambda: engine.controller.memory()[-1:] == [MemoryInfo("all", None, 100, 900)])
        assert engine.controller.stream_states()[1].state == "PAUSED"
    finally:
        engine.close()


def test_what_agg_tasks_on_an_snode_hold_counts_for_its_worker(tmp_path: Path) -> None:
    """The queues of both agg tasks fill up on the third worker, which is the one that the reason names."""
    takes = [100]
    engine = Engine(tmp_path, measure=lambda exact_from: Memory({os.getpid(): takes[0]}), memory_limit_bytes=900)
    try:
        engine.results.gate.clear()
        engine.controller.start(engine.stream(1, FakePlan(500, 10), snode_ids=(9,),
                                              settings=TaskSettings(queue_bytes=1 << 12)))
        wait_until(lambda: sum(status.queues.input_bytes for status in engine.controller.statuses()
                               if status.task.operator == "agg") > 4000)
        takes[0] = 1000
        wait_until(lambda: engine.controller.stream_states()[1].state == "PAUSED")
        assert "of them worker db-1.1/2 has the most" in engine.controller.stream_states()[1].reason
    finally:
        engine.close()


def test_a_paused_stream_rests_until_resumed(engine: Engine) -> None:
    """A stream that is started paused does nothing until it is resumed."""
    engine.controller.start(engine.stream(1, FakePlan(4, 5), paused=False))
    engine.results.wait_rows(1, 40)
    engine.controller.pause(1)
    wait_statuses(engine.controller, lambda found: all(
        s.state == "PAUSED" for s in found if s.task.operator == "source"
    ))
    assert engine.controller.stream_states()[1].state == "PAUSED"
    engine.controller.resume(1)
    assert engine.controller.stream_states()[1].state == "RUNNING"


def test_unknown_streams_are_named(engine: Engine) -> None:
    """Commands for a stream that doesn't run say so; stopping one is no error."""
    with pytest.raises(NotFoundError, match="stream 9 "):
        engine.controller.pause(9)
    with pytest.raises(NotFoundError):
        engine.controller.checkpoint_now(9)
    engine.controller.stop(9)


def test_a_closed_controller_refuses(engine: Engine) -> None:
    """After close, every call is refused, and a second close does nothing."""
    engine.controller.close(final_checkpoint=False)
    with pytest.raises(UnavailableError):
        engine.controller.stream_states()
    engine.controller.close()


def wait_statuses(controller: StreamController, condition: Any) -> list[Any]:
    """Waits until the heartbeats of six tasks fulfil `condition`."""

    def fulfilling() -> list[Any] | None:
        found = controller.statuses()
        return found if len(found) == 6 and condition(found) else None

    return wait_until(fulfilling)
