"""The empty job that Spark begins with, and who is told if it fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kits.basics.waiting import wait_until

from penstock.common.config import CONF_DIRECTORY
from penstock.tasks.worker import java_classes, spark_runtime
from penstock.tasks.worker.spark_runtime import SparkRuntime


class FailingContext:
    """A Spark whose jobs fail, after something was done."""

    def __init__(self, before: Callable[[], None]) -> None:
        self._before = before

    def setJobDescription(self, text: str) -> None:
        """Nobody looks at it."""

    def parallelize(self, *arguments: Any) -> Any:
        self._before()
        raise RuntimeError("Job 1 cancelled because SparkContext was shut down")


@pytest.mark.parametrize("stops", [True, False])
def test_a_warm_up_is_an_error_unless_spark_is_stopped(
    stops: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A program that ends at once ends without a word; whatever else is wrong is in the log."""
    runtime = SparkRuntime({}, CONF_DIRECTORY)
    ended: list[str] = []
    monkeypatch.setattr(spark_runtime, "_get_or_create",
                        lambda *arguments: FailingContext(runtime.stop if stops else lambda: None))
    monkeypatch.setattr(spark_runtime, "_is_active", lambda context: False)
    monkeypatch.setattr(java_classes, "have_made", ended.append)
    runtime.start()
    wait_until(lambda: ended)
    assert ("the warm-up job failed" in caplog.text) is not stops
