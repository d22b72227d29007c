"""An engine in a process of its own, told what to do line by line: for tests that kill it or its workers."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import psutil
from kits.basics.places import ROOT, TESTS

ANSWER_S = 180.0
ENDED = "ended"


class EngineProcess:
    """Runs a program of this directory, which prints `ready` and then answers commands from its standard input."""

    def __init__(self, program: str, *arguments: object) -> None:
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "src"), str(TESTS)]))
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(program)), *map(str, arguments)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, cwd=ROOT,
            env=environment)
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(ENDED)

    def errors(self) -> str:
        """Returns the end of what the process has said on its standard error."""
        self._errors.seek(0)
        return self._errors.read()[-4_000:]

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def next(self) -> str:
        """Returns the next line that the program prints; ENDED once it has ended."""
        return self._lines.get(timeout=ANSWER_S)

    def kill(self) -> list[str]:
        """Kills the engine with SIGKILL and returns the lines that it had printed and nobody had read."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        lines = []
        while (line := EngineProcess.next(self)) != ENDED:
            lines.append(line)
        return lines

    def workers(self) -> list[psutil.Process]:
        """Returns the Python workers of the engine's Spark: children of the daemon."""
        return workers_below(self.process.pid)

    def close(self) -> None:
        """Ends the engine in order."""
        if self.process.poll() is None:
            self.tell("exit")
            self.process.wait(timeout=ANSWER_S)

    def end(self) -> None:
        """Makes sure that the process is gone."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def workers_below(pid: int) -> list[psutil.Process]:
    """Returns the Python workers of the Spark of the engine in a process: children of the daemon."""
    return [worker for daemon in daemons_below(pid) for worker in daemon.children()]


def daemons_below(pid: int) -> list[psutil.Process]:
    """Returns the processes from which the Spark of the engine in a process forks workers."""
    return [process for process in psutil.Process(pid).children(recursive=True) if _is_daemon(process)]


def _is_daemon(process: psutil.Process) -> bool:
    try:
        words = process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
    parent = process.parent()
    return "penstock.tasks.worker.daemon" in words and parent is not None and "java" in parent.name()
