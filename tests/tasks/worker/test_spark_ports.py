"""What Spark leaves open to other accounts: no page, no port that starts processes, no secret on a command line."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest
from conftest import TEST_CONFIG
from kits.engines.engine_process import daemons_below

from penstock.common.config import AUTHENTICATE, SECRET, SECRET_FILE, load_config
from penstock.common.errors import ConfigError
from penstock.tasks.worker.spark_settings import on_command_line, with_secret, with_sockets

CLUSTER = {"spark.master": "spark://10.0.0.9:7077", "host": "10.0.0.7"}
_CONNECTS = ("import os, socket, sys; os.setgroups([]); os.setuid(int(sys.argv[2])); "
             "socket.socket(socket.AF_UNIX).connect(sys.argv[1])")


def properties(**more: Any) -> dict[str, str]:
    return load_config(TEST_CONFIG | more, environment={}).spark_properties()


def test_each_run_has_a_secret_of_its_own() -> None:
    """Nobody has to configure one where all processes are started from here; one that is given is used."""
    first, second = (with_secret(properties(**{"spark.master": "local-cluster[2,2,512]"}))[SECRET] for _ in range(2))
    assert len(first) == len(second) == 64
    assert first != second
    assert with_secret(properties(**{SECRET: "mine"}))[SECRET] == "mine"
    assert SECRET not in with_secret(properties(**{AUTHENTICATE: False}))
    assert SECRET not in with_secret(properties(**{"spark.master": "yarn"}))


def test_the_secret_of_a_cluster_is_read_from_a_file(tmp_path: Path) -> None:
    """Spark itself takes such files on Kubernetes alone; there they stay what they are."""
    path = tmp_path / "secret"
    path.write_text("shared\n")
    found = with_secret(load_config(CLUSTER | {SECRET_FILE: str(path)}, environment={}).spark_properties())
    assert found[SECRET] == "shared"
    assert SECRET_FILE not in found
    kubernetes = properties(**{"spark.master": "k8s://10.0.0.9", SECRET_FILE: str(path)})
    assert with_secret(kubernetes)[SECRET_FILE] == str(path)


@pytest.mark.parametrize("content", [None, b"", b"\xff", b"a" * 5000])
def test_a_file_that_holds_no_secret_is_named(tmp_path: Path, content: bytes | None) -> None:
    """Before Spark is started."""
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"spark.authenticate.secret.file: {path}"):
        with_secret({"spark.master": "spark://a:7077", AUTHENTICATE: "true", SECRET_FILE: str(path)})


def test_a_cluster_without_a_secret_is_refused_unless_it_shall_have_none() -> None:
    """Whoever reaches the ports of such a cluster, or of its engine, can run programs there."""
    with pytest.raises(ConfigError, match=r"spark.authenticate.secret.file: .* need a secret that they share"):
        load_config(CLUSTER, environment={})
    assert load_config(CLUSTER | {AUTHENTICATE: False}, environment={}).spark[AUTHENTICATE] == "false"


def test_secrets_are_neither_shown_nor_on_a_command_line() -> None:
    """Users' own ones included; where a secret's file is may be told."""
    config = load_config(TEST_CONFIG | {
        SECRET: "s3cret", "spark.hadoop.fs.s3a.access.key": "s3cret", "spark.ssl.keyPassword": "s3cret",
        SECRET_FILE: "/etc/penstock/secret"}, environment={})
    assert "s3cret" not in str(config.items())
    assert ("spark.authenticate.secret.file", "/etc/penstock/secret") in config.items()
    told = on_command_line(config.spark_properties())
    assert "s3cret" not in str(told)
    assert told["spark.master"] == TEST_CONFIG["spark.master"]


def test_sockets_are_in_the_engines_folder_where_workers_are_on_its_machine(tmp_path: Path) -> None:
    """Elsewhere there is no such folder; a folder that is configured is used."""
    name = "spark.python.unix.domain.socket.dir"
    assert with_sockets(properties(), tmp_path)[name] == str(tmp_path)
    assert with_sockets(properties(**{name: "/run/x"}), tmp_path)[name] == "/run/x"
    assert name not in with_sockets({"spark.master": "yarn"}, tmp_path)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose path leaves room for the name of a socket."""
    with TemporaryDirectory() as folder:
        yield Path(folder)


def test_the_daemons_socket_is_its_accounts_own(short_path: Path) -> None:
    """Also in a folder that all can enter, as on the machines of a cluster; it goes with the daemon."""
    short_path.chmod(0o755)
    daemon = subprocess.Popen(
        [sys.executable, "-m", "penstock.tasks.worker.daemon"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=os.environ | {"PYTHON_UNIX_DOMAIN_ENABLED": "true", "PYTHON_WORKER_FACTORY_SOCK_DIR": str(short_path)})
    assert daemon.stdout is not None
    with daemon.stdout:
        size = int.from_bytes(daemon.stdout.read(4))
        socket = Path(daemon.stdout.read(size).decode())
        assert socket.is_socket()
        assert not stat.S_IMODE(socket.stat().st_mode) & 0o077
        assert daemon.stdin is not None
        daemon.stdin.close()
        daemon.wait(30)
    assert list(short_path.iterdir()) == []


@pytest.mark.spark
def test_a_running_spark_lets_no_other_account_in(spark_context: Any) -> None:
    """The daemon has no port; Java's are on loopback and ask for a secret; no other account can enter the sockets'."""
    spark_context.parallelize(range(1), 1).map(lambda n: n).count()  # a daemon is there
    java = psutil.Process(spark_context._gateway.proc.pid)
    daemons = daemons_below(os.getpid())
    assert daemons
    tree = [java, *daemons]
    assert not [found for process in daemons for found in process.net_connections("inet")
                if found.status == psutil.CONN_LISTEN]
    ports = [found.laddr for found in java.net_connections("inet") if found.status == psutil.CONN_LISTEN]
    assert {address.ip.removeprefix("::ffff:") for address in ports} == {"127.0.0.1"}
    assert len(ports) == 3, "driver, block manager, gateway"
    assert spark_context.uiWebUrl is None
    settings = spark_context.getConf()  # of the Java process
    assert settings.get(AUTHENTICATE) == settings.get("spark.network.crypto.enabled") == "true"
    secret = settings.get(SECRET)
    assert not [process for process in tree if any(secret in word for word in process.cmdline())]

    sockets = {Path(found.laddr) for process in tree for found in process.net_connections("unix") if found.laddr}
    assert sockets
    for socket in sockets:
        assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
        if os.geteuid() == 0:
            tried = subprocess.run([sys.executable, "-c", _CONNECTS, str(socket), str(pwd.getpwnam("nobody").pw_uid)],
                                   capture_output=True, text=True, check=False)
            assert "PermissionError" in tried.stderr
