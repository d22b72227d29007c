"""What keeps something current in the background tries again, and says what is wrong once."""

from __future__ import annotations

import logging
import threading

import pytest

from penstock.common.clock import SystemClock
from penstock.common.errors import StorageError
from penstock.mnode.catalog.background_keeper import Keeper


def test_what_goes_on_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Something else that is wrong is told, too; and the same once more when it had been well meanwhile."""
    outcomes = ["full", "full", "full", "away", "", "away", ""]
    over = threading.Event()

    def refresh() -> None:
        problem = outcomes.pop(0)
        if not outcomes:
            over.set()
        elif not problem:
            keeper.wake()
        if problem:
            raise StorageError(f"the disk is {problem}")

    keeper = Keeper("it", refresh, SystemClock(), 0.0)
    with caplog.at_level(logging.ERROR):
        keeper.start()
        assert over.wait(60)
        keeper.stop()
    assert [record.getMessage().split(" is ")[-1] for record in caplog.records] == ["full", "away", "away"]
