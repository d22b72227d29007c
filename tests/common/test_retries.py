"""What fails over and over: pauses that grow, and what is told of it."""

from __future__ import annotations

import logging

import pytest

from penstock.common.clock import ManualClock
from penstock.common.errors import StorageError
from penstock.common.retries import Retries

LOG = logging.getLogger("penstock.retries-test")


def test_pauses_grow_until_it_goes_well() -> None:
    """To the longest one; then they begin anew, and nothing is told any more."""
    retries = Retries("it can't be copied", ManualClock(), LOG, 1.0, 5.0)
    assert [retries.failed(StorageError("disk full")) for _ in range(5)] == [1, 2, 4, 5, 5]
    assert retries.problem == "it can't be copied: disk full"
    retries.succeeded()
    assert retries.problem == ""
    assert retries.failed(StorageError("disk full")) == 1


def test_what_has_not_failed_for_long_counts_no_more() -> None:
    """A thread that goes on after a failure doesn't have to say that all is well."""
    clock = ManualClock()
    retries = Retries("a turn has failed", clock, LOG, 1.0, 5.0)
    retries.failed(StorageError("disk full"))
    clock.advance(60)
    assert retries.problem
    clock.advance(6)
    assert not retries.problem
    assert retries.failed(StorageError("disk full")) == 1


def test_what_nobody_foresaw_is_logged_with_its_trace_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """Other failures by what they say alone, and when they are others at once."""
    clock = ManualClock()
    retries = Retries("a turn has failed", clock, LOG, 1.0, 5.0)
    caplog.set_level(logging.WARNING, LOG.name)
    LOG.addHandler(caplog.handler)  # that of Penstock's root may be cut off from the root
    try:
        for _ in range(3):
            retries.failed(KeyError("v"))
            clock.advance(5)
        retries.failed(StorageError("disk full"))
        clock.advance(61)
        retries.failed(StorageError("disk full"))
    finally:
        LOG.removeHandler(caplog.handler)
    said = {(record.getMessage(), record.exc_info is not None) for record in caplog.records}
    assert said == {("a turn has failed: KeyError: 'v'", True), ("a turn has failed: disk full", False)}
