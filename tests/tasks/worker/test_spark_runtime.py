"""Worker groups on a real Spark: start, blocks across processes, killed workers, cancelled groups, dead engines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from kits.basics.places import TESTS
from kits.basics.waiting import wait_until
from kits.engines import runtime_fakes
from kits.engines.runtime_fakes import FakeKeeper, FakePlan, Results, build_fakes, fake_graph, serve

from penstock.common.clock import SystemClock
from penstock.common.config import CONF_DIRECTORY
from penstock.common.fs import OsFs
from penstock.common.paths import DataPaths
from penstock.mnode.checkpoints.checkpoint_machine import CheckpointSettings
from penstock.mnode.checkpoints.commit_records import CommitRecords
from penstock.mnode.controller.controller_settings import ControllerSettings
from penstock.mnode.controller.engine_hooks import EngineHooks
from penstock.mnode.controller.group_runtime import WorkerLaunch
from penstock.mnode.controller.stream_controller import StreamController
from penstock.mnode.coordinator.running_stream import RunningStream
from penstock.mnode.groups.group_events import GroupSettings
from penstock.planner.task_plans.stream_plan import IsolationClass
from penstock.tasks.protocol.deployment import TaskSettings
from penstock.tasks.worker.spark_runtime import SparkRuntime
from penstock.tasks.worker.worker_process import WorkerSpec

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SECRET = b"k" * 32
PLAN = FakePlan(blocks=10, rows=10)


@pytest.fixture(scope="module")
def runtime() -> SparkRuntime:
    from pyspark import cloudpickle

    # Spark's workers can't import the tests' modules.
    cloudpickle.register_pickle_by_value(runtime_fakes)
    return SparkRuntime({}, CONF_DIRECTORY)


class Engine:
    """A controller on Spark with what it needs."""

    def __init__(self, root: Path, runtime: SparkRuntime) -> None:
        self.results = Results()
        self.service = serve(root, SECRET, self.results)
        self.attempts: dict[int, int] = {}
        settings = ControllerSettings(
            GroupSettings(restart_delay_min_s=0.05, idle_timeout_s=0.5), CheckpointSettings(),
            heartbeat_interval_s=0.1, apart_nice=7,
        )
        self.controller = StreamController(
            SystemClock(), settings, CommitRecords(DataPaths(root), OsFs()), runtime,
            WorkerLaunch(root, self.service.address, SECRET, build_fakes), EngineHooks())

    def start(
        self, stream_id: int, isolation_class: IsolationClass = IsolationClass.ANY, snode_ids: tuple[int, ...] = (),
        **more: Any,
    ) -> None:
        self.controller.start(
            RunningStream(
                stream_id=stream_id,
                name=f"s{stream_id}",
                plan=PLAN.shipped(isolation_class),
                graph=fake_graph(snode_ids),
                start_versions=(0, 0),
                keeper=FakeKeeper(stream_id, self.attempts),
                settings=TaskSettings(queue_bytes=1 << 20),
                **more,
            )
        )

    def close(self) -> None:
        self.controller.close(final_checkpoint=False)
        self.service.shutdown()


@pytest.fixture
def engine(tmp_path: Path, runtime: SparkRuntime) -> Iterator[Engine]:
    engine = Engine(tmp_path, runtime)
    yield engine
    engine.close()


EXPECTED = sorted(list(range(100)) * 2)


def test_streams_run_on_spark_and_share_its_workers(engine: Engine) -> None:
    """Blocks cross between processes, results arrive complete; a second stream uses the same two processes."""
    engine.start(1)
    assert engine.results.wait_rows(1, 200) == EXPECTED
    engine.start(2)
    assert engine.results.wait_rows(2, 200) == EXPECTED
    assert list(engine.controller.worker_pids()) == ["db-1.1"]
    record = engine.controller.checkpoint_now(1)
    assert record is not None
    assert record.versions == ((2, 10), (3, 10))
    engine.controller.stop(1)
    assert list(engine.controller.stream_states()) == [2]


def test_a_killed_worker_brings_all_streams_back_as_new_attempts(engine: Engine) -> None:
    """kill -9 of one Python worker: the group starts again, each stream runs as attempt 2, none is lost."""
    for stream_id in (1, 2):
        engine.start(stream_id)
        engine.results.wait_rows(stream_id, 200)
    os.kill(engine.controller.worker_pids()["db-1.1"][1], signal.SIGKILL)
    for stream_id in (1, 2):
        assert engine.results.wait_rows(stream_id, 200, attempt=2, timeout_s=60) == EXPECTED
    states = engine.controller.stream_states()
    assert {report.group for report in states.values()} == {"db-1.2"}
    assert {report.attempt for report in states.values()} == {2}


def test_agg_tasks_on_an_snode_have_a_process_of_their_own(engine: Engine) -> None:
    """Sources and sinks are in the processes of their vnodes; kill -9 of the snode's costs an attempt, and no row."""
    engine.start(1, snode_ids=(9,))
    assert engine.results.wait_rows(1, 200) == EXPECTED
    pids = engine.controller.worker_pids()["db-1.1"]
    assert [states_of(pids[index]) for index in range(3)] == [
        {"1-source-0"}, {"1-source-1"}, {"1-agg-0", "1-agg-1"}]
    os.kill(pids[2], signal.SIGKILL)
    assert engine.results.wait_rows(1, 200, attempt=2, timeout_s=60) == EXPECTED


def states_of(pid: int) -> set[str]:
    """Returns the tasks whose state a process has open; sink tasks here have none."""
    files = (Path(file.path) for file in psutil.Process(pid).open_files())
    return {file.parent.name for file in files if file.name == "data.mdb"}


def test_processes_of_workers_end_when_the_controller_closes(engine: Engine) -> None:
    """Spark keeps none of them for later use."""
    engine.start(1)
    engine.results.wait_rows(1, 200)
    pids = list(engine.controller.worker_pids()["db-1.1"].values())
    assert all(psutil.pid_exists(pid) for pid in pids)
    engine.controller.close(final_checkpoint=False)
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids))


def test_users_functions_run_at_a_lower_priority_that_ends_with_their_group(engine: Engine) -> None:
    """All threads of their workers have it, and no worker that comes later."""
    own = psutil.Process().nice()
    engine.start(1, isolation_class=IsolationClass.USER_CODE)
    engine.results.wait_rows(1, 200)
    for pid in engine.controller.worker_pids()["db-1.1"].values():
        assert {os.getpriority(os.PRIO_PROCESS, thread.id) for thread in psutil.Process(pid).threads()} == {own + 7}
    engine.controller.stop(1)
    wait_until(lambda: not engine.controller.worker_pids())
    engine.start(2)
    engine.results.wait_rows(2, 200)
    assert {psutil.Process(pid).nice() for pid in engine.controller.worker_pids()["db-2.1"].values()} == {own}


def test_a_cancelled_group_ends_without_a_reason(runtime: SparkRuntime, tmp_path: Path) -> None:
    """A group whose workers hang can be cancelled from outside."""
    ended: list[str | None] = []
    ended_it = threading.Event()
    with runtime_fakes.silent_listener() as address:
        spec = WorkerSpec("hanging", address, "127.0.0.1:1", SECRET, str(tmp_path))
        handle = runtime.submit_group(
            spec, 2, "a group that hangs", lambda reason: (ended.append(reason), ended_it.set())  # type: ignore[func-returns-value]
        )
        context = runtime.context()
        wait_until(lambda: context.statusTracker().getActiveJobsIds())
        handle.cancel()
        assert ended_it.wait(30)
    assert ended == [None]
    assert handle.wait(0)


ENGINE_PROGRAM = """
import sys
sys.path[:0] = [{tests!r}, {here!r}]
import threading
from pathlib import Path
from penstock.common.config import CONF_DIRECTORY, load_config
from penstock.planner.task_plans.stream_plan import IsolationClass
from penstock.tasks.worker.spark_runtime import SparkRuntime
from kits.engines import runtime_fakes
import test_spark_runtime
from pyspark import cloudpickle
cloudpickle.register_pickle_by_value(runtime_fakes)
runtime = SparkRuntime(load_config().spark_properties(), CONF_DIRECTORY, Path({log!r}))
engine = test_spark_runtime.Engine(Path({root!r}), runtime)
engine.start(1)
engine.results.wait_rows(1, 200, timeout_s=120)
sys.stdout.write("running\\n")
sys.stdout.flush()
threading.Event().wait()
"""


def test_a_killed_engine_leaves_no_process_behind(tmp_path: Path) -> None:
    """kill -9 of the engine's process: Java, the daemon and all workers end by themselves."""
    program = ENGINE_PROGRAM.format(
        tests=str(TESTS), here=str(Path(__file__).parent), log=str(tmp_path / "spark.log"), root=str(tmp_path / "data")
    )
    engine = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert engine.stdout is not None
    with engine.stdout:
        assert engine.stdout.readline() == "running\n"
        children = psutil.Process(engine.pid).children(recursive=True)
        assert len(children) >= 4  # Java, the daemon, two workers
        engine.kill()
        engine.wait()
    _, alive = psutil.wait_procs(children, timeout=15)
    assert alive == []


DYING_JAVA_PROGRAM = """
from pathlib import Path
from pyspark import SparkContext
from penstock.common.config import CONF_DIRECTORY, load_config
from penstock.common.errors import UnavailableError
from penstock.tasks.worker.spark_runtime import SparkRuntime

make = SparkContext._do_init

def die_once(context, *arguments, **options):
    SparkContext._do_init = make
    context._gateway.proc.kill()
    context._gateway.proc.wait()
    return make(context, *arguments, **options)

SparkContext._do_init = die_once
runtime = SparkRuntime(load_config().spark_properties(), CONF_DIRECTORY, Path({log!r}))
try:
    runtime.context()
except UnavailableError:
    print("could not be started")
print(runtime.context().parallelize([1, 2], 1).sum())
runtime.stop()
"""


def test_spark_starts_after_its_java_was_killed_while_it_started(tmp_path: Path) -> None:
    """A start that fails half way leaves nothing behind that the next one would use."""
    program = DYING_JAVA_PROGRAM.format(log=str(tmp_path / "spark.log"))
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=False)
    assert ended.stdout.split("\n")[:2] == ["could not be started", "3"], ended.stderr[-2000:]
