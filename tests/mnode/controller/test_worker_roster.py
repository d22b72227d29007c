"""Who shares a machine, and what they are told of each other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.common.clock import SystemClock
from penstock.mnode.controller.worker_roster import JoinedWorker, WorkerRoster
from penstock.tasks.protocol.control import Crowded


def test_workers_hear_how_much_those_beside_them_take() -> None:
    """As a multiple of their own turns, counted at most once per worker, of their own machine, and only if it has
    changed by some percent."""
    roster = WorkerRoster(SystemClock(), None, 10.0, lambda: False)  # type: ignore[arg-type]  # nobody is cut off here

    def joined(group: str, host: str) -> tuple[JoinedWorker, list[Any]]:
        told: list[Any] = []
        connection = SimpleNamespace(group=group, index=0, exchange_address=f"{host}:1", send=told.append)
        roster.join(connection)  # type: ignore[arg-type]
        worker = roster.of(connection)  # type: ignore[arg-type]
        assert worker is not None
        return worker, told

    (first, to_first), (second, to_second), (elsewhere, to_elsewhere) = (
        joined("a", "10.0.0.1"), joined("b", "10.0.0.1"), joined("c", "10.0.0.2"))
    workers = first, second, elsewhere

    def beat(*busy: float) -> None:
        for worker, taken in zip(workers, busy, strict=True):
            worker.busy = taken
        for worker in workers:
            roster.tell_crowd(worker)

    beat(0.5, 0.0, 0.9)
    assert (to_first, to_second, to_elsewhere) == ([], [], [])
    beat(0.5, 0.25, 0.9)
    beat(0.5, 0.26, 0.9)
    assert [message.times for message in to_first] == [pytest.approx(1.5)]
    assert to_second == [Crowded(2.0)]
    beat(0.0, 0.26, 0.9)
    assert to_first[-1] == to_second[-1] == Crowded(1.0)
    assert to_elsewhere == []


def test_workers_count_twice_where_their_machine_is_full() -> None:
    """For workers of the engine's machine, and as long as that is so."""
    full = False
    roster = WorkerRoster(SystemClock(), None, 10.0, lambda: full)  # type: ignore[arg-type]  # nobody is cut off here
    told: dict[str, list[Crowded]] = {"127.0.0.1": [], "10.0.0.1": []}
    workers = []
    for host, messages in told.items():
        connection = SimpleNamespace(group=host, index=0, exchange_address=f"{host}:1", send=messages.append)
        roster.join(connection)  # type: ignore[arg-type]
        worker = roster.of(connection)  # type: ignore[arg-type]
        assert worker is not None
        worker.busy = 0.9
        workers.append(worker)

    def beat() -> list[Crowded]:
        for worker in workers:
            roster.tell_crowd(worker)
        return told["127.0.0.1"]

    assert beat() == []
    full = True
    assert beat() == [Crowded(2.0)]
    full = False
    assert beat()[-1] == Crowded(1.0)
    assert told["10.0.0.1"] == []
