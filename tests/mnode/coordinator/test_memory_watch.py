"""Memory beyond the limit pauses the stream that has most on the largest worker, with figures; the others run on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.basics.waiting import wait_until

import penstock
from penstock.common.config import load_config
from penstock.common.errors import ConfigError
from penstock.common.memory import available_bytes, limit_bytes, measure_tree
from penstock.mnode.coordinator.memory_watch import Holding, MemoryWatch, WorkerPlace

MIB = 1 << 20
LARGE, SMALL = WorkerPlace("g-1.1", 0), WorkerPlace("g-1.1", 1)
WORKERS = {LARGE: 300 * MIB, SMALL: 100 * MIB}
HOLDINGS = [Holding(1, "modest", LARGE, 10 * MIB), Holding(2, "greedy", LARGE, 200 * MIB),
            Holding(2, "greedy", SMALL, 5 * MIB), Holding(3, "elsewhere", SMALL, 90 * MIB)]


def test_the_greediest_stream_of_the_largest_worker_is_paused_with_the_figures() -> None:
    """All that is needed to judge it is in the reason, and how to go on."""
    found = MemoryWatch(900 * MIB).decide(1000 * MIB, WORKERS, HOLDINGS)
    assert found is not None
    assert found[0] == HOLDINGS[1]
    assert found[1] == (
        "the engine and its processes take 1000.0 MiB of memory, memoryLimit is 900.0 MiB; of them worker g-1.1/0 has "
        "the most, 300.0 MiB, and there this stream: 200.0 MiB of state and rows in queues; it goes on by itself when "
        "there is room, or by RESUME STREAM `greedy`")


def test_the_next_stream_follows_only_if_memory_grows_on() -> None:
    """Pausing gives nothing back at once: what stays as it is costs no neighbour, what grows does, and what went below
    the limit begins anew."""
    watch = MemoryWatch(900)
    paused = [watch.decide(total, WORKERS, HOLDINGS) is not None for total in (900, 1000, 1001, 1049, 1051, 1060, 1110)]
    assert paused == [False, True, False, False, True, False, True]
    assert watch.decide(899, WORKERS, HOLDINGS) is None
    assert watch.decide(901, WORKERS, HOLDINGS) is not None


def test_a_worker_without_running_streams_is_passed_over() -> None:
    """What is paused already isn't among the holdings: then it is the turn of the next worker; at last of none."""
    watch = MemoryWatch(900)
    found = watch.decide(1000, WORKERS, [holding for holding in HOLDINGS if holding.place == SMALL])
    assert found is not None
    assert found[0].stream == "elsewhere"
    assert MemoryWatch(900).decide(1000, WORKERS, []) is None
    assert MemoryWatch(0).decide(1 << 60, WORKERS, HOLDINGS) is None


def test_streams_do_not_pay_for_queries() -> None:
    """Once queries were ended, a stream is paused only if memory grows on; what is paused goes on only with room."""
    watch = MemoryWatch(900)
    assert watch.shortage(900) is None
    assert "memoryLimit is" in str(watch.shortage(1000))
    watch.note_ended(1000)
    assert [watch.decide(total, WORKERS, HOLDINGS) is not None for total in (1000, 1049, 1051)] == [False, False, True]
    assert [watch.has_room(total) for total in (1000, 900, 811, 810)] == [False, False, False, True]
    assert MemoryWatch(0).has_room(1 << 60)
    assert MemoryWatch(0).shortage(1 << 60) is None


def test_what_forked_processes_share_counts_once() -> None:
    """Eight children that only wait take less than one of them has; where it doesn't matter, each is counted whole."""
    script = """
import os, sys
held = bytearray(b"x") * 60_000_000
children = []
for _ in range(8):
    if not (pid := os.fork()):
        sys.stdin.read()
        os._exit(0)
print("there", flush=True)
sys.stdin.read()
"""
    child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"there\n"
    each, once = measure_tree(child.pid, float("inf")), measure_tree(child.pid, 1.0)
    assert len(each.by_pid) == len(once.by_pid) == 9
    assert each.total > 9 * 60_000_000
    assert 60_000_000 < once.total < 3 * 60_000_000
    child.communicate()


@given(st.lists(st.integers(0, 2000)), st.integers(1, 1000))
def test_nothing_is_paused_within_the_limit(totals: list[int], limit: int) -> None:
    """Whatever came before, a measurement within the limit pauses nobody, and the first one beyond it somebody."""
    watch, within = MemoryWatch(limit), True
    for total in totals:
        found = watch.decide(total, WORKERS, HOLDINGS)
        if total <= limit:
            assert found is None
        elif within:
            assert found is not None
        within = total <= limit


def test_processes_are_measured_with_those_they_started() -> None:
    """A child that takes 60 MB counts with about that, under its own id, and no longer when it is gone."""
    script = "import sys; held = bytearray(60_000_000); print('there', flush=True); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"there\n"
    found = measure_tree(os.getpid())
    assert 60_000_000 < found.by_pid[child.pid] < 120_000_000
    assert found.by_pid[os.getpid()] > 10_000_000
    assert found.total == sum(found.by_pid.values())
    child.communicate()
    assert child.pid not in measure_tree(os.getpid()).by_pid


@pytest.mark.parametrize(("files", "own", "expected"), [
    ({"memory.max": "1000000"}, "0::/\n", 1_000_000),
    ({"memory.max": "max"}, "0::/\n", None),
    ({"a/memory.max": "3000000", "a/b/memory.max": "max"}, "0::/a/b\n", 3_000_000),
    ({"memory/memory.limit_in_bytes": "2000000"}, "5:memory:/x\n", 2_000_000),
])
def test_a_container_has_what_its_control_group_allows(
    tmp_path: Path, files: dict[str, str], own: str, expected: int | None
) -> None:
    """Limits of groups further up count, too; without one it is what the machine has."""
    for name, content in {"own": own, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    machine = available_bytes(tmp_path / "none", tmp_path / "none")
    assert available_bytes(tmp_path, tmp_path / "own") == (machine if expected is None else expected)


def test_a_limit_is_a_size_or_a_share() -> None:
    """Both are read from the configuration; nonsense is refused with what would be right."""
    limits: dict[Any, int] = {"90%": 900, "12.5 %": 125, "1GiB": 1 << 30, 0: 0, 1 << 26: 1 << 26}
    for written, expected in limits.items():
        config = load_config({"memoryLimit": written}, environment={})
        assert limit_bytes(config.memory_limit, 1000) == expected
        assert load_config({"memoryLimit": config.memory_limit}, environment={}) == config
    for wrong in ("0%", "101%", "63MiB", "much"):
        with pytest.raises(ConfigError, match="memoryLimit"):
            load_config({"memoryLimit": wrong}, environment={})


@pytest.mark.spark
def test_sparks_processes_are_watched(data_dir: Path, spark_context: Any) -> None:
    """Beyond the limit from the start, the stream is paused with figures of its worker; all kinds of processes are
    there, and together they are the total."""
    with penstock.connect(str(data_dir), {"memoryLimit": "64MiB", "heartbeatInterval": "100ms"}) as connection:
        cursor = connection.cursor()

        def rows(sql: str) -> list[tuple[Any, ...]]:
            cursor.execute(sql)
            return cursor.fetchall()

        for statement in ("create database p vgroups 1", "create table p.m (ts timestamp, v int) tags (g int)",
                          "create stream s into p.o as select _wstart, count(*) from p.m interval(1m)"):
            cursor.execute(statement)
        wait_until(lambda: rows("select state from information_schema.ins_streams") == [("PAUSED",)], 60.0)
        ((reason,),) = rows("select reason from information_schema.ins_streams")
        assert "memoryLimit is 64.0 MiB; of them worker p-1.1/0 has the most" in reason
        memory = {process: (nbytes, limit) for process, nbytes, limit in rows(
            "select process, sum(memory_bytes), max(memory_limit) from information_schema.ins_stream_memory "
            "group by process")}
        assert memory.keys() == {"engine", "java", "worker p-1.1/0", "all"}
        assert min(nbytes for nbytes, _ in memory.values()) > 1 << 20
        assert memory["all"] == (sum(nbytes for process, (nbytes, _) in memory.items() if process != "all"), 64 << 20)
