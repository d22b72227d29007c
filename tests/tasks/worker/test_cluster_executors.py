"""Executors of a real Spark cluster: given back when they host nothing, asked for when slots are missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from kits.basics.waiting import wait_until

from penstock.common.config import CONF_DIRECTORY, load_config

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_TIMEOUT_S = 120.0


def test_executors_come_and_go_with_what_they_host(tmp_path: Path) -> None:
    """Two executors of two slots: both are given back after the last stream, and one comes for the next."""
    # Spark's master puts a folder of its own beside Spark's files.
    home = tmp_path / "spark"
    home.mkdir()
    for place in Path(pyspark.__file__).parent.iterdir():
        (home / place.name).symlink_to(place)
    # A process has one Spark, and the tests' own is a local one.
    done = subprocess.run([sys.executable, __file__, str(tmp_path)], capture_output=True, text=True, timeout=600, env={
        **os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "SPARK_HOME": str(home)})
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines() == ["two executors", "none", "waits", "runs on one"]


def main(root: Path) -> None:
    from kits.engines import runtime_fakes
    from pyspark import cloudpickle
    from test_spark_runtime import EXPECTED, Engine

    from penstock.tasks.worker.spark_runtime import SparkRuntime

    cloudpickle.register_pickle_by_value(runtime_fakes)
    # Spark is ready when both executors are there: one that comes later would host nothing, and go before it is seen.
    config = load_config({
        "spark.master": "local-cluster[2,2,512]", "spark.executor.memory": "512m", "spark.cores.max": "4",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{_TIMEOUT_S:.0f}s"})
    runtime = SparkRuntime(config.spark_properties(), CONF_DIRECTORY, root / "spark.log")
    engine = Engine(root / "data", runtime)
    try:
        engine.start(1)
        assert engine.results.wait_rows(1, 200, timeout_s=_TIMEOUT_S) == EXPECTED
        wait_until(lambda: sum(worker.slots for worker in engine.controller.workers()) == 4, _TIMEOUT_S)
        # Where workers are is told by Spark's status store, somewhat later than they run.
        wait_until(lambda: {worker.executor for worker in engine.controller.workers() if worker.group} == {"0", "1"},
                   _TIMEOUT_S)
        print("two executors")
        engine.controller.stop(1)
        wait_until(lambda: engine.controller.workers() == [], _TIMEOUT_S)
        print("none")
        engine.start(2)
        state = engine.controller.stream_states()[2]
        assert (state.state, state.reason) == (
            "WAITING", "2 slots are missing: its worker group needs 2, 0 of Spark's 0 are free")
        print("waits")
        assert engine.results.wait_rows(2, 200, timeout_s=_TIMEOUT_S) == EXPECTED
        wait_until(lambda: [worker.executor for worker in engine.controller.workers()] == ["2", "2"], _TIMEOUT_S)
        print("runs on one")
    finally:
        engine.close()
        runtime.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
