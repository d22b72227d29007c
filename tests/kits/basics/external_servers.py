"""Real external servers for tests: Mosquitto, PostgreSQL, and Kafka brokers that librdkafka simulates.

Each listens on a free port of 127.0.0.1, keeps its files in a folder of its own and keeps its address when it is
stopped and started again. The fixtures of these names are shared by a whole run: tests use topics and tables of their
own there. Who stops a server makes one for itself.
"""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kits.basics.waiting import wait_until

HERE = "127.0.0.1"
STARTED_S = 60.0
IN_CI = os.environ.get("CI") == "true"
ROOT_USER = os.geteuid() == 0


def _candidates() -> Iterator[int]:
    """Yields ports, from a random one on, that the system gives nobody who asks for any (Linux: 32768 and above).

    Tests may run in several processes: each has a range of its own.
    """
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
    ports = range(12_000 + number * 2_000, 14_000 + number * 2_000)
    start = secrets.randbelow(len(ports))
    return itertools.cycle([*ports[start:], *ports[:start]])


_CANDIDATES = _candidates()


def free_port() -> int:
    """Returns a port of 127.0.0.1 on which nothing listens, another one each time."""
    for port in _CANDIDATES:
        with closing(socket.socket()) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind((HERE, port))
            except OSError:
                continue
            return port
    raise AssertionError("there is always another candidate")


def listens(port: int) -> bool:
    """Whether somebody takes connections there."""
    with closing(socket.socket()) as tried:
        tried.settimeout(1.0)
        return tried.connect_ex((HERE, port)) == 0


def program(name: str, *folders: str) -> str:
    """Returns the path of a program. Skips the test where it isn't installed; under CI=true that is a failure."""
    found = shutil.which(name, path=os.pathsep.join([*folders, os.environ.get("PATH", ""), "/usr/sbin"]))
    if found is None:
        assert not IN_CI, f"{name} isn't installed"
        pytest.skip(f"{name} isn't installed")
    return found


class Server:
    """A process that listens on `port`. `kill` is SIGKILL, `stop` what it takes for a wish to end."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self.port = port
        self._process: subprocess.Popen[Any] | None = None

    def _command(self) -> Sequence[str]:
        raise NotImplementedError

    def _popen_options(self) -> dict[str, Any]:
        return {}

    def start(self) -> None:
        """Starts it and waits until it takes connections."""
        process = subprocess.Popen(self._command(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, **self._popen_options())
        self._process = process
        wait_until(lambda: process.poll() is not None or self._answers(), STARTED_S, f"{self.name} doesn't listen")
        assert process.poll() is None, f"{self.name} ended with {process.returncode}"

    def _answers(self) -> bool:
        """Whether it can be worked with."""
        return listens(self.port)

    @property
    def pid(self) -> int:
        """Its process, while it runs."""
        assert self._process is not None
        return self._process.pid

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Ends it and waits until it has ended; one that isn't running is no error."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(STARTED_S)
            self._process = None

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def freeze(self) -> None:
        """Stops its clock, so to say: it takes connections and answers nothing, until `thaw`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


class ZooKeeper(Server):
    """One ZooKeeper of Debian's package, whose sessions may be as short as half a second."""

    def __init__(self, folder: Path, host: str = HERE) -> None:
        """`host`: the address of this machine on which it listens."""
        super().__init__("ZooKeeper", free_port())
        self.host = host
        self._java = program("java")
        jar = Path("/usr/share/java/zookeeper.jar")
        if not jar.exists():
            assert not IN_CI, "ZooKeeper isn't installed"
            pytest.skip("ZooKeeper isn't installed")
        self._classes = str(jar)
        self._folder = folder
        self._configuration = folder / "zoo.cfg"
        self.limit_sessions(60.0)

    def limit_sessions(self, most_s: float) -> None:
        """Has sessions last no longer, from the next start on."""
        self._configuration.write_text(
            f"tickTime=250\ndataDir={self._folder}\nclientPortAddress={self.host}\nclientPort={self.port}\n"
            f"minSessionTimeout=500\nmaxSessionTimeout={round(1000 * most_s)}\nadmin.enableServer=false\n"
            "maxClientCnxns=0\n")

    def _command(self) -> Sequence[str]:
        return [self._java, "-Xmx64m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", self._classes,
                "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(self._configuration)]

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), timeout=1.0) as asked:
                asked.sendall(b"srvr")
                return asked.recv(100).startswith(b"Zookeeper version")
        except OSError:
            return False


class Mosquitto(Server):
    """An MQTT broker. Users must log in as `username` with `password`; `lines` are added to its configuration."""

    username = "sensor"

    def __init__(self, folder: Path, *lines: str) -> None:
        super().__init__("mosquitto", free_port())
        self.folder = folder
        self.password = secrets.token_hex(8)
        self.url = f"mqtt://{HERE}:{self.port}"
        passwords = folder / "passwords"
        subprocess.run([program("mosquitto_passwd"), "-b", "-c", str(passwords), self.username, self.password],
                       check=True, capture_output=True, timeout=STARTED_S)
        config = [
            f"listener {self.port} {HERE}", "allow_anonymous false", f"password_file {passwords}",
            f"log_dest file {folder / 'mosquitto.log'}", "log_type all", *lines,
        ]
        if ROOT_USER:
            config.append("user root")  # or it couldn't read its files: it gives up being root otherwise
        (folder / "mosquitto.conf").write_text("\n".join(config) + "\n")

    def _command(self) -> Sequence[str]:
        return [program("mosquitto"), "-c", str(self.folder / "mosquitto.conf")]


class Postgres(Server):
    """A PostgreSQL server with one superuser, who must log in with `password`, and the database `postgres`."""

    username = "keeper"
    database = "postgres"

    def __init__(self) -> None:
        super().__init__("postgres", free_port())
        self.password = secrets.token_hex(8)
        # It refuses to run as root, and the user that it runs as can't look into pytest's folders.
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-postgres-"))
        passwords = self.folder / "password"
        passwords.write_text(self.password)
        if ROOT_USER:
            for path in (self.folder, passwords):
                shutil.chown(path, "postgres", "postgres")
        subprocess.run(
            [self._program("initdb"), "-D", str(self.folder / "data"), "-U", self.username, "-A", "scram-sha-256",
             f"--pwfile={passwords}", "--no-sync", "--locale=C", "--encoding=UTF8"],
            check=True, capture_output=True, timeout=STARTED_S, **self._popen_options())

    @staticmethod
    def _program(name: str) -> str:
        versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
        return program(name, *(str(path) for path in reversed(versions)))

    def _command(self) -> Sequence[str]:
        settings = {
            "listen_addresses": HERE, "port": self.port, "unix_socket_directories": self.folder, "fsync": "off",
            "synchronous_commit": "off", "full_page_writes": "off", "shared_buffers": "32MB", "max_connections": 50,
        }
        return [self._program("postgres"), "-D", str(self.folder / "data"),
                *(word for name, value in settings.items() for word in ("-c", f"{name}={value}"))]

    def _popen_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"cwd": self.folder}
        return {**options, "user": "postgres", "group": "postgres", "extra_groups": []} if ROOT_USER else options

    def kill(self) -> None:
        """Ends it and its children without a shutdown: it recovers from its log when it is started again."""
        self.stop(signal.SIGQUIT)

    def _answers(self) -> bool:
        """While it recovers from its log it listens, but lets nobody in."""
        import psycopg

        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder)

    def connect(self, **options: Any) -> Any:
        """Returns a psycopg connection that commits each statement."""
        import psycopg

        return psycopg.connect(host=HERE, port=self.port, user=self.username, password=self.password,
                               dbname=self.database, autocommit=True, **options)


class Kafka:
    """A cluster of brokers that librdkafka simulates, in a process of their own; `servers` is its address.

    Topics that nobody created have four partitions. What is written is forgotten when the process ends.
    """

    def __init__(self, brokers: int = 3) -> None:
        pytest.importorskip("confluent_kafka")
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("kafka_child.py")), str(brokers)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.pid = self._process.pid
        self.servers = self._answer()

    def create_topic(self, name: str, partitions: int) -> None:
        self._tell(f"topic {name} {partitions}")

    def drop_topic(self, name: str) -> None:
        """Has the brokers say that there is no such topic, until `restore_topic`; its messages are only hidden."""
        self._tell(f"drop {name}")

    def restore_topic(self, name: str) -> None:
        self._tell(f"restore {name}")

    def down(self, broker: int) -> None:
        """Makes a broker refuse and drop connections; they are counted from 1."""
        self._tell(f"down {broker}")

    def up(self, broker: int) -> None:
        self._tell(f"up {broker}")

    def freeze(self) -> None:
        """All brokers take connections and answer nothing, until `thaw`."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _tell(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        assert self._answer() == "done", command

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@pytest.fixture(scope="session")
def mosquitto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    """The MQTT broker of this test run."""
    server = Mosquitto(tmp_path_factory.mktemp("mosquitto"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """The ZooKeeper of this test run."""
    server = ZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The PostgreSQL of this test run."""
    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def kafka() -> Iterator[Kafka]:
    """The Kafka cluster of this test run: three brokers."""
    cluster = Kafka()
    yield cluster
    cluster.close()
