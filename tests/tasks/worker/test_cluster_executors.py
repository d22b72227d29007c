"""Executors of a real Spark cluster: given back when they host nothing, asked for when slots are missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
from conftest import by_night
from kits.basics.waiting import wait_until

from penstock.common.config import CONF_DIRECTORY, load_config

if TYPE_CHECKING:
    from penstock.tasks.worker.spark_executors import Executor
    from penstock.tasks.worker.spark_runtime import SparkRuntime

pytestmark = [pytest.mark.spark, pytest.mark.slow, by_night]

_TIMEOUT_S = 300.0


def test_executors_come_and_go_with_what_they_host(tmp_path: Path) -> None:
    """Two executors of one slot: both are given back after the last stream, and others come for the next."""
    # Spark's master puts a folder of its own beside Spark's files.
    home = tmp_path / "spark"
    home.mkdir()
    for place in Path(pyspark.__file__).parent.iterdir():
        (home / place.name).symlink_to(place)
    # A process has one Spark, and the tests' own is a local one.
    done = subprocess.run([sys.executable, __file__, str(tmp_path)], capture_output=True, text=True, timeout=600, env={
        **os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "SPARK_HOME": str(home)})
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines() == ["two executors", "none", "waits", "two others"]


def main(root: Path) -> None:
    from kits.engines import runtime_fakes
    from pyspark import cloudpickle
    from test_spark_runtime import EXPECTED, Engine

    from penstock.tasks.worker.spark_runtime import SparkRuntime

    cloudpickle.register_pickle_by_value(runtime_fakes)
    # Spark is ready when both executors are there: one that comes later would host nothing, and go before it is seen.
    config = load_config({
        "spark.master": "local-cluster[2,1,512]", "spark.executor.memory": "512m", "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{_TIMEOUT_S:.0f}s"})
    runtime = SparkRuntime(config.spark_properties(), CONF_DIRECTORY, root / "spark.log")
    engine = Engine(root / "data", runtime)
    try:
        engine.start(1)
        assert engine.results.wait_rows(1, 200, timeout_s=_TIMEOUT_S) == EXPECTED
        # Where workers are is told by Spark's status store, somewhat later than they run.
        first: set[str | None] = set()

        def are_on_two(but: set[str | None]) -> bool:
            found = {worker.executor for worker in engine.controller.workers() if worker.group}
            if None in found or len(found) != 2 or found & but:
                return False
            first.update(found)
            return True

        wait_until(lambda: are_on_two(set()), _TIMEOUT_S, "they aren't on two executors")
        print("two executors")
        engine.controller.stop(1)
        wait_until(lambda: executors_of(runtime) == () and engine.controller.workers() == [], _TIMEOUT_S)
        print("none")
        engine.start(2)
        wait_until(lambda: engine.controller.stream_states()[2].reason
                   == "2 slots are missing: its worker group needs 2, 0 of Spark's 0 are free", _TIMEOUT_S)
        print("waits")
        assert engine.results.wait_rows(2, 200, timeout_s=_TIMEOUT_S) == EXPECTED
        wait_until(lambda: are_on_two(set(first)), _TIMEOUT_S, "they aren't on two executors that are new")
        print("two others")
    finally:
        engine.close()
        runtime.stop()


def executors_of(runtime: SparkRuntime) -> tuple[Executor, ...] | None:
    """Returns those that Spark has; None if it doesn't tell now."""
    executors = runtime.executors()
    return None if executors is None else executors.all


if __name__ == "__main__":
    main(Path(sys.argv[1]))
