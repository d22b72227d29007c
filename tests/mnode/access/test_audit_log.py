"""The audit log: who came by which interface, what was done and refused, and nothing that is secret."""

from __future__ import annotations

import base64
import json
import stat
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from kits.basics.external_servers import free_port
from kits.engines.embedded import Embedded
from kits.engines.served_here import ServedHere

import penstock
from penstock.common.errors import PermissionDeniedError
from penstock.mnode.access.audit_log import Origin
from penstock.mnode.access.roles import Identity
from penstock.shell.api.dbapi import Error

SECRETS = ("correct horse", "battery staple", "4711", "hall-secret")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "log" / "audit.log").read_text().splitlines()]


def short(path: Path) -> list[tuple[Any, ...]]:
    return [(each["user"], each["interface"], each["what"], each["on"], each["outcome"]) for each in lines(path)]


def test_each_interface_leaves_its_lines(tmp_path: Path) -> None:
    """Logins right and wrong, definitions and refusals, with address and interface; a password is noted once."""
    port = free_port()
    with ServedHere(tmp_path / "data", {"trustLoopback": False, "httpPort": port}) as server:
        with penstock.connect(host=f"unix:{server.server.socket}") as owner:
            owner.cursor().execute("CREATE USER ada PASS 'correct horse' ROLE admin")
            owner.cursor().execute("CREATE USER bob PASS 'battery staple'")
        with server.connect("ada", "correct horse") as ada:
            ada.cursor().execute("CREATE DATABASE d")
            ada.cursor().execute("CREATE TABLE d.t (ts TIMESTAMP, v INT)")
            ada.cursor().execute("INSERT INTO d.t VALUES (now, 4711)")
            ada.cursor().execute("GRANT WRITE ON d.t TO bob")
        with pytest.raises(Error):
            server.connect("4711", "battery staple")
        for text in ("SELECT v FROM d.t WHERE v = 4711", "SHOW DATABASES", "DROP TABLE d.t"):
            asked(port, text, "bob:battery staple")
        asked(port, "SHOW DATABASES", "bob:hall-secret")
        with server.own() as own:
            seen = own.cursor().execute(
                "SELECT user_name, what, outcome FROM information_schema.ins_audit").fetchall()
    found = short(tmp_path / "data")
    assert found == [
        ("root", "socket", "LOGIN", "", "allowed"),
        ("root", "socket", "CREATE USER", "ada", "allowed"),
        ("root", "socket", "CREATE USER", "bob", "allowed"),
        ("ada", "flight", "LOGIN", "", "allowed"),
        ("ada", "flight", "CREATE DATABASE", "d", "allowed"),
        ("ada", "flight", "CREATE TABLE", "d.t", "allowed"),
        ("ada", "flight", "GRANT", "WRITE ON d.t TO bob", "allowed"),
        ("", "flight", "LOGIN", "", "refused"),
        ("bob", "http", "LOGIN", "", "allowed"),
        ("bob", "http", "DROP TABLE", "d.t", "refused"),
        ("", "http", "LOGIN", "", "refused"),
    ]
    assert {each["address"] for each in lines(tmp_path / "data")} == {"", "127.0.0.1"}
    assert seen == [(user or None, what, outcome) for user, _, what, _, outcome in found]
    log = tmp_path / "data" / "log" / "audit.log"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    for secret in SECRETS:
        assert secret not in log.read_text()


@pytest.mark.parametrize(("level", "wanted"), [
    ("off", []),
    ("changes", ["CREATE DATABASE", "CREATE TABLE", "CREATE CONNECTION", "SELECT", "DROP TABLE"]),
    ("all", ["CREATE DATABASE", "CREATE TABLE", "CREATE CONNECTION", "INSERT", "SELECT", "line protocol", "SELECT",
             "DROP TABLE"]),
])
def test_the_configuration_says_what_is_written(tmp_path: Path, level: str, wanted: list[str]) -> None:
    """Nothing, what changes something, or all; refusals in both of the latter. Values are in none."""
    db = Embedded(tmp_path / "data", {"auditLog": level})
    db.all("create database d", "create table d.t (ts timestamp, v int)",
           "create connection c type mqtt with (url='mqtt://hall', username='u', password='env:HALL')",
           "insert into d.t values (now, 4711)", "select * from d.t where v = 4711")
    db.engine.ingest_lines(b"m v=4711", "d", "ns", db.session)
    db.session.identity, db.session.origin = Identity("bob", "none"), Origin("http", "::1")
    for text in ("select * from d.t", "drop table d.t"):
        with pytest.raises(PermissionDeniedError):
            db.execute(text)
    db.close()
    path = tmp_path / "data" / "log" / "audit.log"
    assert path.exists() == bool(wanted)
    assert [what for _, _, what, _, _ in (short(tmp_path / "data") if wanted else [])] == wanted
    for secret in SECRETS:
        assert not wanted or secret not in path.read_text()


def test_the_files_are_bounded_and_damaged_lines_are_passed_over(tmp_path: Path) -> None:
    """They are rotated as the log is; SQL shows what is left, to admins only."""
    db = Embedded(tmp_path / "data", {"auditLog": "all", "logFileSize": "64KiB", "logFilesKept": 1})
    db.execute("create user ada pass 'correct horse' role admin")
    name = "t" * 190
    for _ in range(1000):
        db.engine.audit.refused("bob", Origin(), "SELECT", name)
    log = tmp_path / "data" / "log"
    assert sorted(path.name for path in log.glob("audit.log*")) == ["audit.log", "audit.log.1"]
    assert all(path.stat().st_size <= 64 * 1024 for path in log.glob("audit.log*"))
    with (log / "audit.log").open("ab") as file:
        file.write(b"{\n[1]\n\xff\n{\"time_ms\": 1}\n")
    rows = db.run("select * from information_schema.ins_audit")
    assert 200 < len(rows) < 1000
    assert rows[-1][-1] == "allowed"
    db.session.identity = Identity("bob", "write")
    assert db.run("select * from information_schema.ins_audit") == []
    db.close()


def asked(port: int, text: str, login: str) -> int:
    """Sends a statement over HTTP, and returns the status."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/sql", text.encode(), {
        "Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
