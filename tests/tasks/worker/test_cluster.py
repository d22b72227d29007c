"""The engine on a Spark cluster whose workers have neither Penstock's code nor its data directory."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path

import psutil
import pytest
from conftest import TEST_CONFIG, profile, times
from kits.basics.waiting import wait_until
from kits.engines.spark_cluster import (
    LOOPBACK,
    SETTINGS,
    SPARK_IN_A_HURRY,
    SparkCluster,
    SparkMaster,
    bare_environment,
    installed_package,
    two_networks,
    unshare,
)
from kits.engines.statement_engine import StatementEngine

import penstock
from penstock.tasks.worker.code_archive import code_archive

VNODES, PATIENCE_S = 4, 300.0
WINDOWS = "count(*) n, sum(v) total, max(v) top FROM d.meters PARTITION BY g INTERVAL(1s)"
BATCH, RESULT = f"SELECT _wstart, g, {WINDOWS}", "SELECT ts, g, n, total, top FROM d.o"
T0 = 1_700_000_000_000


def test_shipped_code_is_all_that_a_worker_needs(tmp_path: Path) -> None:
    """A Python without Penstock imports the worker from the archive, which is the same for the same files."""
    package = Path(penstock.__file__).parent
    archive = code_archive(package)
    assert code_archive(package) == archive
    (tmp_path / archive.name).write_bytes(archive.data)
    program = "import penstock.tasks.worker.daemon as daemon; print(daemon.__file__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=True,
                          env=bare_environment() | {"PYTHONPATH": archive.name})
    assert done.stdout.strip() == str(tmp_path / archive.name / "penstock" / "tasks" / "worker" / "daemon.py")


@pytest.mark.slow
def test_a_master_refuses_who_does_not_know_the_secret(tmp_path: Path) -> None:
    """Set up as docs/cluster.md says, it registers who knows the secret, and listens to nobody else."""
    with closing(SparkMaster(tmp_path, LOOPBACK)) as master:
        refused = [master.client("wrong", SETTINGS | {"spark.authenticate.secret": "another secret"}),
                   *(master.client("without", {}) for _ in range(times(0, 1)))]
        master.client("right", SETTINGS)
        assert master.master.said("Registered app (right)") == "right"
        for client in refused:
            assert client.said("(Failed to connect to master)")
        assert set(re.findall(r"Registered app (\w+)", master.master.log.read_text())) == {"right"}
        listening = [each for pid in master.master.pids() for each in psutil.Process(pid).net_connections("tcp")
                     if each.status == psutil.CONN_LISTEN]
        assert len(listening) == 2  # Spark's own protocol, and the page; its REST server would take programs from all


@pytest.fixture(params=["two networks"] if profile() == "default" else ["two networks", "loopback"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SparkCluster]:
    """Two machines whose workers see neither the data directory nor an installed Penstock."""
    if not unshare():
        pytest.skip("mount namespaces are not allowed here, by which workers are kept from the data directory")
    (tmp_path / "data").mkdir()
    package = installed_package()
    hidden = [tmp_path / "data", *([] if package is None else [package])]
    networks = two_networks() if request.param == "two networks" else nullcontext([LOOPBACK, LOOPBACK])
    with networks as machines:
        # Where no network namespaces can be made, both are this one.
        cluster = SparkCluster(tmp_path, machines or [LOOPBACK, LOOPBACK], cores=VNODES, hidden=hidden)
        yield cluster
        cluster.close()


class Engine(StatementEngine):
    """An engine on the cluster, with a stream that crosses between vnodes."""

    def __init__(self, data: Path, cluster: SparkCluster) -> None:
        super().__init__(data, TEST_CONFIG | {
            "host": cluster.host, "spark.master": cluster.url, "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": SPARK_IN_A_HURRY, "spark.driver.extraJavaOptions": SPARK_IN_A_HURRY,
            "spark.authenticate.secret.file": str(cluster.secret_file),
            # No group is placed before both machines are there.
            "spark.cores.max": 2 * VNODES, "spark.scheduler.minRegisteredResourcesRatio": 1,
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
            "checkpointInterval": "300ms", "restartDelayMax": "1s"})
        self.seconds = 0

    def create(self) -> None:
        self.run(f"CREATE DATABASE d VGROUPS {VNODES}")
        self.run("CREATE STABLE d.meters (ts timestamp, v int) TAGS (g int)")
        for n in range(16):
            self.run(f"CREATE TABLE d.d{n} USING d.meters TAGS ({n % 3})")
        self.run("CREATE STREAM s TRIGGER AT_ONCE IGNORE EXPIRED 0 INTO d.o TAGS (g int) AS "
                 f"SELECT _wstart ts, {WINDOWS}")

    def insert(self) -> None:
        """Writes a row into each child table, a second later than the last ones."""
        self.seconds += 1
        self.run("INSERT INTO " + " ".join(
            f"d.d{n} VALUES ({T0 + self.seconds * 1000 + n}, {self.seconds * n})" for n in range(16)))

    def equals_batch(self) -> bool:
        return sorted(self.run(RESULT)) == sorted(self.run(BATCH))

    def worker_pids(self) -> list[int]:
        """Returns the processes of the worker group that runs."""
        return [int(pid) for (pid,) in self.run(
            "SELECT pid FROM information_schema.ins_stream_workers WHERE pid IS NOT NULL")]

    def attempt_runs(self) -> int:
        rows = self.run("SELECT attempt FROM information_schema.ins_streams WHERE state = 'RUNNING'")
        return int(rows[0][0]) if rows else 0

    def checkpoint(self) -> int:
        """Returns the newest valid one, 0 if there is none."""
        rows = self.run("SELECT checkpoint_id FROM information_schema.ins_stream_checkpoints WHERE state = 'COMMITTED'")
        return max((int(checkpoint_id) for (checkpoint_id,) in rows), default=0)


@pytest.fixture
def engine(tmp_path: Path, cluster: SparkCluster) -> Iterator[Engine]:
    engine = Engine(tmp_path / "data", cluster)
    yield engine
    engine.end()


@pytest.mark.slow
def test_a_stream_survives_the_loss_of_a_machine(engine: Engine, cluster: SparkCluster) -> None:
    """Four vnodes on two machines; one of them is lost under load: the other goes on, and equals the batch answer."""
    engine.create()
    wait_until(engine.attempt_runs, PATIENCE_S, "the stream never ran")
    first = engine.attempt_runs()
    pids = engine.worker_pids()
    assert len(pids) == VNODES
    assert {cluster.worker_of(pid) for pid in pids} == {0, 1}
    for _ in range(20):
        engine.insert()
    wait_until(engine.equals_batch, PATIENCE_S, "the results differ")
    assert engine.run("SELECT DISTINCT wal_access FROM information_schema.ins_stream_tasks WHERE level = 'source'"
                      ) == [["network"]]
    before = engine.checkpoint()
    wait_until(lambda: engine.insert() or engine.checkpoint() > before + 1, PATIENCE_S, "no checkpoint")

    restored = engine.checkpoint()
    cluster.workers[1].kill()
    wait_until(lambda: engine.insert() or engine.attempt_runs() > first, PATIENCE_S, "the stream never came back")
    assert {cluster.worker_of(pid) for pid in engine.worker_pids()} == {0}
    events = [row[-1] for row in engine.run("SELECT * FROM information_schema.ins_stream_events")]
    begun = [event for event in events if "is deployed" in event][-1]
    assert int(begun.rpartition(" ")[2]) >= restored, events
    for _ in range(20):
        engine.insert()
    wait_until(engine.equals_batch, PATIENCE_S, "the results differ after the loss")
    assert len(states_on(cluster)) == len(engine.run("SELECT * FROM information_schema.ins_stream_tasks"))
    engine.run("DROP STREAM s")
    wait_until(lambda: not states_on(cluster), PATIENCE_S, "states stay behind")
    engine.close()


def states_on(cluster: SparkCluster) -> list[Path]:
    """Returns the states on the machine that wasn't lost."""
    return list(cluster.workers[0].folder.rglob("data.mdb"))
