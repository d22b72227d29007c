"""`penstock serve` as a service: its beginning, its end, and the shell at the other side."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.basics.commands import run_here
from kits.basics.waiting import wait_until
from kits.engines.serve_kit import ROOT, Served, arguments, served

import penstock
from penstock.shell import main as shell_main
from penstock.shell.commands import serve_command
from penstock.shell.main import _parser, _run_serve

TIMEOUT_S = 60


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("serve") / "data"


@pytest.fixture(scope="module")
def server(data: Path) -> Iterator[Served]:
    with served(data) as running:
        yield running


def shell(server: Served, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Runs the shell against a server; its own data directory, which must not come into being, is `none`."""
    return run_here("--data", "none", "--set", "timezone=UTC", "--host", "127.0.0.1", "--port", str(server.port),
                    *words, stdin=stdin)


def test_example_unit() -> None:
    """The command of systemd's example unit is one that penstock takes."""
    unit = (ROOT / "conf" / "systemd" / "penstock.service").read_text()
    [line] = re.findall(r"^ExecStart=(.*)$", unit, flags=re.MULTILINE)
    program, *words = line.split()
    assert Path(program).name == "penstock"
    options = _parser().parse_args(words)
    assert options.run is _run_serve
    assert options.data == "/var/lib/penstock"


def test_service_manager_is_told(tmp_path: Path) -> None:
    """systemd hears when the server is ready and when it closes; the PID file is there as long as the server."""
    pid_file = tmp_path / "penstock.pid"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(TIMEOUT_S)
        server = Served(tmp_path / "data", {}, "--pid-file", str(pid_file), NOTIFY_SOCKET=str(tmp_path / "notify"))
        try:
            assert manager.recv(100) == b"READY=1"
            assert int(pid_file.read_text()) == server.process.pid
            code, output, errors = server.end()
            assert manager.recv(100) == b"STOPPING=1"
        finally:
            server.end()
    assert (code, errors) == (0, "")
    assert output.endswith("closed\n")
    assert not pid_file.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_rows_are_there_after_a_signal(tmp_path: Path, number: int) -> None:
    """Whichever signal ends it, the server closes its engine in order, with clients still connected."""
    data = tmp_path / "data"
    with served(data) as server:
        con = penstock.connect(host="127.0.0.1", port=server.port)
        con.execute("CREATE DATABASE d VGROUPS 1")
        con.execute("CREATE TABLE d.t (ts TIMESTAMP, v INT)")
        con.execute("INSERT INTO d.t VALUES (1700000000000, 1)")
        assert server.end(number)[0] == 0
        with pytest.raises(penstock.shell.api.dbapi.OperationalError, match="doesn't answer"):
            con.execute("SELECT 1")
        con.close()
    with penstock.connect(str(data)) as own:
        assert own.execute("SELECT v FROM d.t").fetchall() == [(1,)]


FIRST_LOOK = """
import os, sys
class Finder:
    def find_spec(self, name, *_):
        if name == "grpc":
            print(os.environ.get("GRPC_ENABLE_FORK_SUPPORT"))
sys.meta_path.insert(0, Finder())
import penstock.shell.server.flight_server
"""


def test_grpc_is_not_ready_for_forks() -> None:
    """It would complain when Spark is started while requests come; it reads that when it is loaded."""
    found = subprocess.run([sys.executable, "-c", FIRST_LOOK], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["false"]


@pytest.mark.slow
def test_last_checkpoint(tmp_path: Path) -> None:
    """At SIGTERM streams write a checkpoint, long before their interval is over."""
    data = tmp_path / "data"
    with served(data, {"checkpointInterval": "1d"}) as server, \
            penstock.connect(host="127.0.0.1", port=server.port) as con:
        con.execute("CREATE DATABASE d VGROUPS 1")
        con.execute("CREATE TABLE d.t (ts TIMESTAMP, v INT)")
        con.execute("CREATE STREAM s INTO d.sums AS SELECT _wstart AS ts, sum(v) AS total FROM d.t INTERVAL(1m)")
        for minute in range(3):
            con.execute(f"INSERT INTO d.t VALUES ({1_700_000_000_000 + minute * 60_000}, {minute})")
        wait_until(lambda: con.execute("SELECT total FROM d.sums").fetchall())  # Spark takes a moment
        assert con.execute("SHOW CHECKPOINTS").fetchall() == []
        code, _, errors = server.end()
        assert code == 0
        assert "gRPC" not in errors
    with penstock.connect(str(data), {"disableStream": True}) as own:
        [checkpoint] = own.execute(
            "SELECT stream_name, state FROM information_schema.ins_stream_checkpoints").fetchall()
    assert checkpoint == ("s", "COMMITTED")


def test_a_second_server_is_refused(
    server: Served, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second server on the same directory, or the same port, ends with a reason; the first one goes on."""
    monkeypatch.setattr(serve_command, "_catch_signals", lambda: (0, 0))
    monkeypatch.setattr(shell_main, "share_heaps_between_threads", lambda: None)
    for directory, settings, complaint in [
        (data, {}, f"in use by the engine with process id {server.process.pid}"),
        (tmp_path / "other", {"flightPort": server.port}, f"port {server.port} of 127.0.0.1 can't be opened"),
        (tmp_path / "third", {"host": "0.0.0.0"}, "there are no users"),
    ]:
        second = run_here(*arguments(directory, settings, "serve"))
        assert second.returncode in (1, 2)
        (line,) = (line for line in second.stderr.splitlines() if not line.startswith("Hint: "))
        assert line.startswith("ERROR")
        assert complaint in line
    assert "1" in shell(server, "--csv", "-c", "SELECT 1").stdout


def test_shell_against_a_server(server: Served) -> None:
    """The shell shows the same against a server: results in all modes, summaries, errors with a caret."""
    script = (
        "create database power; use power; "
        "create stable meters (ts timestamp, amps float, note varchar(20)) tags (place varchar(10)); "
        "insert into d1 using meters tags ('Rome') values ('2024-05-01 00:00:00', 10.5, 'a'), "
        "('2024-05-01 00:00:01', null, null); select note from meters where amps is null\\G .schema\n")
    answer = shell(server, stdin=script)
    assert answer.returncode == 0, answer.stderr
    assert "Database changed." in answer.stdout
    assert "Insert OK, 2 row(s) affected" in answer.stdout
    assert "*************************** 1.row ***************************\nnote: NULL" in answer.stdout
    assert "CREATE STABLE meters" in answer.stdout
    table = shell(server, "-c", "select ts, amps, place from power.meters order by ts")
    assert "│ 2024-05-01 00:00:00.000 │ 10.5 │ Rome  │" in table.stdout
    csv = shell(server, "--csv", "-c", "select amps, note from power.meters order by ts")
    assert csv.stdout == "amps,note\n10.5,a\n,\n"
    wrong = shell(server, "-c", "select nothing from power.meters")
    assert wrong.returncode == 1
    assert "^^^^^^^" in wrong.stderr
    assert not Path("none").exists()


def test_connections_of_one_process_are_apart(server: Served) -> None:
    """Without a login the server tells clients apart by their connections: each has a session, and ends its own."""
    first, second = (penstock.connect(host="127.0.0.1", port=server.port) for _ in range(2))
    first.execute("CREATE DATABASE apart VGROUPS 1")
    second.execute("USE apart")
    with pytest.raises(penstock.shell.api.dbapi.ProgrammingError):
        first.execute("CREATE TABLE t (ts TIMESTAMP, v INT)")
    first.close()
    second.execute("CREATE TABLE t (ts TIMESTAMP, v INT)")
    second.close()


def test_shell_logs_in(tmp_path: Path) -> None:
    """`--user` with a password file logs in; with a wrong password, or without a server, the shell says so."""
    data = tmp_path / "data"
    with penstock.connect(str(data)) as own:
        own.execute("CREATE USER boss PASS 'correct horse' ROLE admin")
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("correct horse\n")
    wrong.write_text("wrong horse\n")
    with served(data) as server:
        login = ("--user", "boss", "--password-file")
        answer = shell(server, *login, str(right), "--csv", "-c", "SHOW USERS")
        assert answer.returncode == 0, answer.stderr
        assert "boss" in answer.stdout
        for words, code, complaint in [
            ([*login, str(wrong)], 1, "0x0357"), ([], 1, "0x0357"), (login[:2], 2, "--password-file"),
        ]:
            refused = shell(server, *words, "-c", "SELECT 1")
            assert refused.returncode == code
            assert complaint in refused.stderr
    gone = shell(server, "-c", "SELECT 1")
    assert gone.returncode == 1
    assert "is `penstock serve` running there?" in gone.stderr
