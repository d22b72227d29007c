"""What Spark's driver runs Java with."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.tasks.worker.spark_runtime import java_options


@pytest.mark.parametrize("configured", ["", "-Xmx2g", "-XX:+UseG1GC", "-XX:+UseZGC -Xmx2g"])
def test_java_gets_one_garbage_collector(configured: str) -> None:
    """It refuses to start with two of them; the configured one counts."""
    options = java_options(Path("/conf"), configured).split()
    assert [option for option in options if option.endswith("GC")] == (
        [option for option in configured.split() if option.endswith("GC")] or ["-XX:+UseSerialGC"])
    assert all(option in options for option in configured.split())
