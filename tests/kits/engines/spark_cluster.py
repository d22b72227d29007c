"""A standalone Spark of its own: a master and workers, each as if on a machine without Penstock and without its data.

What a worker must not see is covered by an empty file system, in a mount namespace that the worker and all that it
starts live in. A machine may also have a network of its own, with one cable to the first machine's.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import gettempdir

import psutil
import pyspark
from kits.basics.waiting import wait_until
from kits.engines.hurried_java import SPARK_IN_A_HURRY

PATIENCE_S = 120.0
SECRET = "secret of the tests' clusters"
#: What docs/cluster.md says that master and workers need.
SETTINGS = {"spark.authenticate": "true", "spark.authenticate.secret": SECRET, "spark.network.crypto.enabled": "true",
            "spark.network.crypto.authEngineVersion": "2", "spark.master.rest.enabled": "false"}
_SPARK = Path(pyspark.__file__).parent
_SPARK_CLASS = str(_SPARK / "bin" / "spark-class")
_DEPLOY = "org.apache.spark.deploy"


@cache
def unshare() -> tuple[str, ...]:
    """Returns the command that runs another in a mount namespace; empty where that isn't allowed."""
    command = ("unshare", "--mount") if os.geteuid() == 0 else ("unshare", "--map-root-user", "--mount")
    try:
        mount = ("mount", "-t", "tmpfs", "none", gettempdir())
        tried = subprocess.run([*command, *mount], capture_output=True, check=False)
    except OSError:
        return ()
    return command if tried.returncode == 0 else ()


@dataclass(frozen=True)
class Machine:
    """Where a worker runs: its address, and the command that runs others in its network."""

    host: str
    inside: tuple[str, ...] = ()


LOOPBACK = Machine("127.0.0.1")


@contextmanager
def two_networks() -> Iterator[list[Machine]]:
    """Gives two machines that have a network each, joined by a cable; none where such a thing can't be made."""
    name = f"penstock-{os.getpid()}"
    network, cable = f"10.254.{os.getpid() % 256}", f"ps{os.getpid()}"
    near, far = f"{network}.1", f"{network}.2"
    steps = [f"ip netns add {name}", f"ip link add {cable}a type veth peer name {cable}b netns {name}",
             f"ip addr add {near}/30 dev {cable}a", f"ip link set {cable}a up",
             f"ip -n {name} addr add {far}/30 dev {cable}b", f"ip -n {name} link set {cable}b up",
             f"ip -n {name} link set lo up"]
    try:
        made = all(subprocess.run(step.split(), capture_output=True, check=False).returncode == 0 for step in steps)
        yield [Machine(near), Machine(far, ("ip", "netns", "exec", name))] if made else []
    except FileNotFoundError:  # there is no `ip`
        yield []
    finally:
        subprocess.run(["sh", "-c", f"ip netns del {name}"], capture_output=True, check=False)


def bare_environment() -> dict[str, str]:
    """Returns an environment in which Python finds installed packages only."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPARK", "PENSTOCK"))}
    return kept | {"SPARK_HOME": str(_SPARK), "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": SPARK_IN_A_HURRY,
                   "PYSPARK_PYTHON": sys.executable}


def installed_package() -> Path | None:
    """Returns where Penstock is for a Python of that environment; None: nowhere."""
    found = subprocess.run([sys.executable, "-c", "import penstock; print(penstock.__file__)"], capture_output=True,
                           text=True, env=bare_environment(), cwd="/", check=False)
    return Path(found.stdout.strip()).parent if found.returncode == 0 else None


class Node:
    """A process of Spark's own, with a folder for its files and its log."""

    def __init__(self, folder: Path, command: Sequence[str], environment: dict[str, str]) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, start_new_session=True,
                env=environment | {"SPARK_LOCAL_DIRS": str(folder)})

    def said(self, pattern: str) -> str:
        """Waits until the log has this, and returns its group."""
        def found() -> re.Match[str] | None:
            text = self.log.read_text(errors="replace")
            assert self.process.poll() is None, text
            return re.search(pattern, text)

        return str(wait_until(found, PATIENCE_S, f"{self.log} never said {pattern}")[1])

    def pids(self) -> set[int]:
        """Returns the processes of the node: itself and all that it has started."""
        try:
            root = psutil.Process(self.process.pid)
            return {process.pid for process in (root, *root.children(recursive=True))}
        except psutil.NoSuchProcess:
            return set()

    def kill(self) -> None:
        """Kills all of it with SIGKILL at once, as when its machine loses power."""
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # ended by itself meanwhile
        self.process.wait()


class SparkMaster:
    """A master, to which nobody comes without the secret."""

    def __init__(self, root: Path, machine: Machine) -> None:
        self._root = root
        self._nodes: list[Node] = []
        self.host = machine.host
        self.secret_file = root / "secret"
        self.secret_file.write_text(SECRET)
        settings = root / "cluster.conf"
        settings.write_text("".join(f"{name} {value}\n" for name, value in SETTINGS.items()))
        self._ports = ["--port", "0", "--webui-port", "0", "--properties-file", str(settings)]
        try:
            self.master = self._start("master", machine, [
                _SPARK_CLASS, f"{_DEPLOY}.master.Master", "--host", self.host, *self._ports])
            self.url = self.master.said(r"Starting Spark master at (spark://\S+)")
        except BaseException:
            self.close()
            raise

    def client(self, name: str, settings: Mapping[str, str]) -> Node:
        """Starts a program on the first machine that asks the master for executors, with these settings alone."""
        settings = {"spark.master": self.url, "spark.app.name": name, "spark.driver.host": self.host,
                    "spark.ui.enabled": "false", "spark.log.level": "INFO"} | settings
        program = ("from pyspark import SparkConf, SparkContext\n"
                   f"SparkContext(conf=SparkConf().setAll({list(settings.items())!r}))")
        return self._start(name, Machine(self.host), [sys.executable, "-c", program])

    def _start(self, name: str, machine: Machine, command: Sequence[str]) -> Node:
        environment = bare_environment() | {"SPARK_LOCAL_IP": machine.host}
        self._nodes.append(Node(self._root / name, [*machine.inside, *command], environment))
        return self._nodes[-1]

    def close(self) -> None:
        for node in reversed(self._nodes):
            node.kill()


class SparkCluster(SparkMaster):
    """A master on the first machine, and a worker of `cores` slots on each."""

    def __init__(self, root: Path, machines: Sequence[Machine], cores: int, hidden: Sequence[Path]) -> None:
        """`hidden`: folders that are empty for the workers."""
        super().__init__(root, machines[0])
        self.workers: list[Node] = []
        try:
            for number, machine in enumerate(machines):
                folder = root / f"worker{number}"
                start = [_SPARK_CLASS, f"{_DEPLOY}.worker.Worker", "--host", machine.host, *self._ports,
                         "--cores", str(cores), "--memory", "1g", "--work-dir", str(folder / "work"), self.url]
                self.workers.append(self._start(
                    folder.name, machine, [*unshare(), "sh", "-c", _covering(hidden, start)]))
            for worker in self.workers:
                worker.said(r"(Successfully registered) with master")
        except BaseException:
            self.close()
            raise

    def worker_of(self, pid: int) -> int | None:
        """Returns the number of the worker that a process belongs to."""
        return next((number for number, node in enumerate(self.workers) if pid in node.pids()), None)


def _covering(hidden: Sequence[Path], command: Sequence[str]) -> str:
    mounts = [f"mount -t tmpfs none {shlex.quote(str(folder))}" for folder in hidden]
    return " && ".join([*mounts, f"exec {shlex.join(command)}"])
