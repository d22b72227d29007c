"""Another account of the same machine tries every port and file of a running engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kits.basics.external_servers import free_port
from kits.basics.waiting import wait_until
from kits.engines.serve_kit import served
from programs import stranger
from programs.stranger import NOTHING

import penstock


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another account")
def test_another_account_gets_nothing(tmp_path: Path) -> None:
    """With users and a stream that runs: no port lets it in, no file opens, no memory of a process is read."""
    data, http, page = tmp_path / "data", free_port(), free_port()
    for folder in (tmp_path, *tmp_path.parents):
        if str(folder).startswith("/tmp/"):  # that it can't pass here must not be what keeps it out
            folder.chmod(0o755)
    with penstock.connect(str(data), config={"disableStream": True}) as connection:
        for statement in ("CREATE USER ada PASS 'correct horse' ROLE admin", "CREATE DATABASE d KEEP 36500d",
                          "CREATE TABLE d.t (ts TIMESTAMP, v INT)", "INSERT INTO d.t VALUES (NOW, 1)"):
            connection.execute(statement)
    with served(data, {"httpPort": http, "uiPort": page, "metricsPort": page}) as server:
        with penstock.connect(host="127.0.0.1", port=server.port, user="ada", password="correct horse") as connection:
            connection.execute("USE d")
            connection.execute("CREATE STREAM s INTO o AS SELECT _wstart, count(*) n FROM t INTERVAL(1s)")
            running = "SELECT count(*) FROM information_schema.ins_streams WHERE state = 'RUNNING'"
            wait_until(lambda: connection.execute(running).fetchone() == (1,), 120)
        answer = subprocess.run([sys.executable, stranger.__file__, str(server.process.pid), str(data)],
                                capture_output=True, text=True, timeout=120, check=True)
    found = [json.loads(line) for line in answer.stdout.splitlines()]
    tried = {finding["what"] for finding in found}
    assert {f"127.0.0.1:{port}" for port in (server.port, http, page)} <= tried
    assert any(what.endswith("data.mdb") for what in tried)
    got = [f"{finding['owner']} {finding['what']}: {finding['tried']}: {finding['got']}" for finding in found
           if finding["got"] != NOTHING and finding["tried"] != "connect"]
    assert got == []
