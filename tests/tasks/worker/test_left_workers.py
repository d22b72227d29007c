"""Workers that Spark has lost: the engine ends them, and nobody else; they end with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
from kits.basics.waiting import wait_until

from penstock.common.processes import kill_holder
from penstock.mnode.controller.worker_connections import WorkerConnection, WorkerListener

SECRET = b"k" * 32
_COMES_IN = """
import os, signal, sys
from penstock.tasks.protocol import control
connection = control.connect(("127.0.0.1", int(sys.argv[1])), b"k" * 32, 10.0)
connection.send(control.Hello("db-1.1", 0, int(sys.argv[2]) or os.getpid(), "127.0.0.1:1", sys.argv[3] == "here"))
os.kill(os.getpid(), signal.SIGSTOP)
"""
_HAS_A_CHILD = """
import os, sys, threading
from penstock.common.processes import end_with_parent
pid = os.fork()
if pid == 0:
    end_with_parent()
    os.write(1, f"{os.getpid()}\\n".encode())
threading.Event().wait()
"""


@contextmanager
def worker(pid: int = 0, place: str = "here") -> Iterator[tuple[subprocess.Popen[bytes], WorkerConnection]]:
    """Yields a process that has come in as a worker and has been stopped, and the mnode's end of its connection.

    `pid`: the id that it claims to have; 0: its own.
    """
    came: list[WorkerConnection] = []
    listener = WorkerListener(SECRET, came.append, lambda worker, message: None, lambda worker, reason: None)
    process = subprocess.Popen([sys.executable, "-c", _COMES_IN, str(listener.address[1]), str(pid), place])
    try:
        wait_until(lambda: came)
        wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
        yield process, came[0]
    finally:
        process.kill()
        process.wait()
        listener.close()


@pytest.mark.parametrize("closed", [False, True])
def test_a_worker_that_is_stopped_is_killed(closed: bool) -> None:
    """It can't see that its connection is closed, and would hold its locks for ever."""
    with worker() as (process, connection):
        if closed:
            connection.close()
        connection.kill()
        assert process.wait(30) == -signal.SIGKILL


def test_whoever_else_a_worker_names_lives_on() -> None:
    """Only the process that holds the other end of the connection is ended, whatever id was told."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        with worker(other.pid) as (process, connection):
            connection.kill()
            assert process.poll() is None
        assert other.poll() is None
        assert other.stdin is not None
        other.stdin.close()
    with worker(os.getpid()) as (_, connection):
        connection.kill()


def test_a_worker_on_another_machine_is_left_to_spark() -> None:
    """Its process id means nothing here."""
    with worker(place="elsewhere") as (process, connection):
        connection.kill()
        assert process.poll() is None


def test_a_process_that_has_ended_is_nobody() -> None:
    """Its id may be somebody else's by now."""
    with worker() as (process, connection):
        process.kill()
        process.wait()
        connection.kill()
    assert not kill_holder(process.pid, ("127.0.0.1", 1), ("127.0.0.1", 2))


def test_a_worker_ends_with_its_parent() -> None:
    """Also when nobody tells it, and it is doing something else."""
    parent = subprocess.Popen([sys.executable, "-c", _HAS_A_CHILD], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        child = psutil.Process(int(parent.stdout.readline()))
        child.suspend()
        parent.kill()
        parent.wait()
        wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
