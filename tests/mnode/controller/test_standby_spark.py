"""What a node of a cluster starts before it becomes active."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kits.engines.runtime_fakes import ThreadRuntime

from penstock.common.config import load_config
from penstock.common.paths import DataPaths
from penstock.mnode.worker_side import WorkerSide


@pytest.mark.parametrize(("settings", "started"), [
    ({}, True), ({"standbySpark": False}, False),
    ({"spark.master": "spark://a:7077", "host": "127.0.0.1", "spark.authenticate": "false"}, False)])
def test_spark_is_started_ahead_of_time(settings: dict[str, Any], started: bool, tmp_path: Path) -> None:
    """Unless it shall not, or would take the slots of the node that is active."""
    parts: Any = SimpleNamespace(directory=SimpleNamespace(
        config=load_config(settings, environment={}), paths=DataPaths(tmp_path)))
    runtime = ThreadRuntime()
    WorkerSide(parts, lambda config, root: runtime).prepare()
    assert runtime.started == started
