"""A server without users: who gets in at which interface, and how the first user is made."""

from __future__ import annotations

import socket
import stat
import urllib.error
import urllib.request
from http import HTTPStatus
from pathlib import Path

import adbc_driver_flightsql.dbapi as adbc
import pytest
from kits.basics.external_servers import free_port
from kits.engines.embedded import Embedded
from kits.engines.served_here import ServedHere

import penstock
from penstock.common.errors import ConfigError, UnavailableError
from penstock.shell.api.dbapi import OperationalError, ProgrammingError

FIRST = "CREATE USER ada PASS 'correct horse' ROLE admin"


def over_socket(server: ServedHere, user: str | None = None, password: str | None = None) -> penstock.Connection:
    return penstock.connect(config={"timezone": "UTC"}, host=f"unix:{server.server.socket}", user=user,
                            password=password)


def test_without_users_only_the_socket_answers(tmp_path: Path) -> None:
    """Every call over TCP is refused, with or without a login; whoever reaches the socket makes the first user."""
    with ServedHere(tmp_path / "data", {"trustLoopback": False}) as server:
        for login in ((None, None), ("root", ""), ("ada", "correct horse")):
            with pytest.raises(OperationalError, match="there are no users yet"):
                server.connect(*login)
        with (pytest.raises(adbc.Error, match="there are no users yet"),
              adbc.connect(f"grpc://127.0.0.1:{server.port}") as con, con.cursor() as cur):
            cur.execute("SHOW DATABASES")
        with over_socket(server) as owner:
            owner.cursor().execute(FIRST)
            assert owner.cursor().execute("SELECT user()").fetchall() == [("root",)]
        with pytest.raises(OperationalError, match="a token are needed"):
            server.connect()
        with server.connect("ada", "correct horse") as ada:
            assert ada.cursor().execute("SELECT user()").fetchall() == [("ada",)]


def test_the_socket_is_the_owners_alone(tmp_path: Path) -> None:
    """By its mode; also with users its sessions are the owner's, each its own, and a user's where one logs in."""
    with ServedHere(tmp_path / "data", {"trustLoopback": False}) as server:
        path = server.server.socket
        assert path == tmp_path / "data" / "penstock.sock"
        mode = path.stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
        with over_socket(server) as one, over_socket(server) as other:
            one.cursor().execute(FIRST)
            one.cursor().execute("CREATE USER bob PASS 'battery staple' ROLE none")
            one.cursor().execute("CREATE DATABASE d")
            one.cursor().execute("USE d")
            assert other.cursor().execute("SELECT database()").fetchall() == [(None,)]
            assert one.cursor().execute("SELECT database()").fetchall() == [("d",)]
        with (over_socket(server, "bob", "battery staple") as bob,
              pytest.raises(ProgrammingError, match="GRANT READ ON d")):
            bob.cursor().execute("USE d")
        with pytest.raises(OperationalError, match="is wrong"):
            over_socket(server, "bob", "battery")
    assert not path.exists()


def test_a_socket_file_that_was_left_is_replaced_and_others_are_not(tmp_path: Path) -> None:
    """A killed server leaves its file; what is no socket stays, and a path that is too long is told."""
    (tmp_path / "data").mkdir()
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "data" / "penstock.sock"))
    left.close()
    with ServedHere(tmp_path / "data", {"trustLoopback": False}) as server, over_socket(server) as owner:
        owner.cursor().execute("SHOW DATABASES")
    (tmp_path / "mine").write_text("kept")
    with pytest.raises(UnavailableError, match="socket"):
        ServedHere(tmp_path / "data", {"socketPath": str(tmp_path / "mine")})
    assert (tmp_path / "mine").read_text() == "kept"


def test_a_path_that_no_socket_can_have(tmp_path: Path) -> None:
    """It is refused where nothing else would let anybody in, and done without elsewhere."""
    long = {"socketPath": str(tmp_path / ("x" * 120))}
    with pytest.raises(ConfigError, match="socketPath"):
        ServedHere(tmp_path / "data", {**long, "trustLoopback": False})
    with ServedHere(tmp_path / "other", long) as server:
        assert server.server.socket is None
        server.connect().close()


@pytest.mark.parametrize("trusting", [False, True])
def test_http_follows_the_same_rule(tmp_path: Path, trusting: bool) -> None:
    """SQL, lines, the page and the metrics: nothing for anybody, unless the configuration says everything for all."""
    http, ui = free_port(), free_port()
    db = Embedded(tmp_path / "data", {"httpPort": http, "uiPort": ui, "trustLoopback": trusting})
    try:
        for port, path, body in ((http, "/sql", b"SHOW DATABASES"), (http, "/write?db=d", b"m v=1"),
                                 (ui, "/", None), (ui, "/api/overview", None), (ui, "/metrics", None)):
            request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body)
            status, text = asked(request)
            if trusting:
                assert status != HTTPStatus.UNAUTHORIZED, path
            else:
                assert status == HTTPStatus.UNAUTHORIZED, path
                assert "there are no users yet" in text
    finally:
        db.close()


def asked(request: urllib.request.Request) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
