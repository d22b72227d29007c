"""What streams and worker groups opened is closed at their end, without the garbage collector's help."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from threading import Thread

import pytest
from kits.engines.embedded import NOW_MS
from kits.engines.threaded import Threaded

TABLES = 4
KINDS = ("tbname INTERVAL(10s)", "tbname SESSION(ts, 10s)", "tbname STATE_WINDOW(v)", "site INTERVAL(10s)")


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """Turns the collector off: in a worker it comes so seldom that nothing may depend on it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def open_descriptors() -> Counter[str]:
    """Counts this process's descriptors by what they are, but for parts and views, which are cached, and its log."""
    found: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if "/store/parts/" not in target and not Path(target).name.startswith(("views.", "penstock.log")):
            found[target.partition("[")[0]] += 1
    return found


def run_and_drop(bed: Threaded, first: int) -> None:
    """Creates a stream of each kind, has it write results, and drops it."""
    streams = range(first, first + len(KINDS))
    for n, kind in zip(streams, KINDS, strict=True):
        bed.run(f"CREATE STREAM s{n} TRIGGER AT_ONCE INTO d.o{n} AS SELECT _wstart ts, count(*) c FROM d.m "
                f"PARTITION BY {kind}")
    bed.run(*(f"INSERT INTO d.t{n} USING d.m TAGS ({n}) VALUES ({NOW_MS + first * 1000}, 1)" for n in range(TABLES)))
    for n in streams:
        bed.until(lambda n=n: bed.run(f"SELECT count(*) FROM d.o{n}") == [(TABLES,)])  # type: ignore[misc]
        bed.run(f"DROP STREAM s{n}", f"DROP TABLE d.o{n}")
    bed.until(lambda: not list(bed.path.glob("streams/*")))
    if bed.config.worker_idle_timeout == 0:
        bed.until(lambda: not any(map(Thread.is_alive, chain.from_iterable(g.threads for g in bed.runtime.groups))))
        bed.runtime.groups.clear()  # they hold on to their workers' connections


@pytest.fixture(params=[{}, {"workerIdleTimeout": "0s"}], ids=["group stays", "groups go"])
def bed(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Threaded]:
    bed = Threaded(tmp_path, **request.param)
    bed.run("CREATE DATABASE d VGROUPS 2 KEEP 36500d", "CREATE STABLE d.m (ts TIMESTAMP, v INT) TAGS (site INT)")
    for n in range(TABLES):  # a log so long that readers map it
        bed.run(f"INSERT INTO d.t{n} USING d.m TAGS ({n}) VALUES "
                + ", ".join(f"({NOW_MS - ms}, 0)" for ms in range(1, 10_000)))
    yield bed
    bed.engine.close()


def test_dropped_streams_leave_no_descriptor(bed: Threaded) -> None:
    """When streams on two vnodes are dropped, nothing of theirs stays open; nor of their groups, once gone."""
    run_and_drop(bed, 0)
    before = open_descriptors()
    run_and_drop(bed, len(KINDS))

    def all_closed() -> bool:
        # Whoever has a task in hand at its end keeps the worker's last map of a log until the next stream ends.
        return all(target.endswith(".log") and more == 1 for target, more in (open_descriptors() - before).items())

    bed.until(all_closed)
