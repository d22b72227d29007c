"""What the pages show of clients of a server works, with the test's server in the place of theirs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
import pyarrow as pa
import pytest
from kits.basics.commands import run_here
from kits.basics.places import ROOT
from kits.engines.serve_kit import Served, served
from kits.pages.examples import examples

import penstock

HERE = "tests/shell/test_shown_clients.py"
USER, PASSWORD = "reader", "correct horse"


def shown(page: str, test: str, language: str) -> list[str]:
    """Returns the blocks that a page says this test runs."""
    found = examples((ROOT / "docs" / page).read_text("utf-8"))
    return [example.block.text for example in found
            if (example.value, example.language) == (f"{HERE}::{test}", language)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shown") / "data"


@pytest.fixture(scope="module")
def server(data: Path) -> Iterator[Served]:
    """A server whose first user was made as the page says."""
    with served(data) as running:
        [command] = shown("server.md", "test_the_first_user_is_made_over_the_socket", "bash")
        for there, here in {"/var/lib/penstock": str(data), "USER name": f"USER {USER}", "...": PASSWORD}.items():
            command = command.replace(there, here)
        program, *words = shlex.split(command)
        assert program == "penstock"
        done = run_here(*words)
        assert done.returncode == 0, done.stderr
        yield running


def connection(server: Served) -> Any:
    """Returns a connection of that user."""
    return penstock.connect(host="127.0.0.1", port=server.port, user=USER, password=PASSWORD)


def run(text: str, server: Served, names: dict[str, Any]) -> None:
    """Runs a block of Python with the address of the server, and the user's password."""
    for there, here in {"8815": str(server.port), "db.example": "127.0.0.1", '"..."': f'"{PASSWORD}"',
                        "user:password": f"{USER}:{quote(PASSWORD)}"}.items():
        text = text.replace(there, here)
    exec(compile(text, "page", "exec"), names)


def test_the_first_user_is_made_over_the_socket(server: Served) -> None:
    """The command of the page makes a user who may log in."""
    with connection(server) as con:
        assert con.execute("SHOW USERS").fetchone()[0] == USER


def test_python_and_adbc_connect(server: Served, capsys: pytest.CaptureFixture[str]) -> None:
    """The lines of the page connect, bring rows in and ask for them."""
    connect, adbc = shown("server.md", "test_python_and_adbc_connect", "python")
    names: dict[str, Any] = {}
    run("import penstock\n" + connect, server, names)
    with names["con"] as con:
        con.execute("CREATE DATABASE power KEEP 36500d")
        con.execute("CREATE STABLE power.meters (ts TIMESTAMP, volts DOUBLE) TAGS (place VARCHAR(16))")
        con.execute("CREATE TABLE power.d1 USING power.meters TAGS ('Rome')")
        names["table"] = pa.table({"tbname": ["d1"], "ts": pa.array([1_700_000_000_000], pa.timestamp("ms")),
                                   "volts": [230.5]})
        run(adbc, server, names)
    assert "230.5" in capsys.readouterr().out


def test_sqlalchemy_writes_a_frame(server: Served) -> None:
    """Both addresses of the page are understood, and the frame is a table afterwards."""
    [block] = shown("clients.md", "test_sqlalchemy_writes_a_frame", "python")
    frame = pd.DataFrame({"ts": pd.to_datetime([1_700_000_000_000], unit="ms"), "volts": [230.5]})
    names: dict[str, Any] = {"frame": frame}
    with connection(server) as con:
        con.execute("CREATE DATABASE IF NOT EXISTS power KEEP 36500d")
        run(block, server, names)
        assert con.execute("SELECT volts FROM power.readings").fetchall() == [(230.5,)]
