"""The command `penstock` as users call it: its arguments, pipes and exit codes."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from kits.basics.commands import run_here
from kits.engines.serve_kit import clean_environment, command

import penstock

CREATE = (
    "create database power; use power; "
    "create stable meters (ts timestamp, current float, note varchar(20)) tags (place varchar(10)); "
    "insert into d1 using meters tags ('Rome') values ('2024-05-01 00:00:00', 10.3, 'a'), "
    "('2024-05-01 00:00:01', null, null);"
)


def run_shell(data: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return run_here("--data", str(data), "--set", "timezone=UTC", *arguments, stdin=stdin)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with one super table, one child table and two rows."""
    data = tmp_path_factory.mktemp("shell") / "data"
    answer = run_shell(data, "-c", CREATE)
    assert answer.returncode == 0, answer.stderr
    assert "Insert OK, 2 row(s) affected" in answer.stdout
    return data


def test_statements_of_the_command_line(filled: Path) -> None:
    """`-c` runs statements, shows results, and leaves with 0."""
    answer = run_shell(filled, "-c", "select ts, current, place from power.meters order by ts")
    assert answer.returncode == 0, answer.stderr
    assert "│ 2024-05-01 00:00:00.000 │    10.3 │ Rome  │" in answer.stdout
    assert "│ 2024-05-01 00:00:01.000 │    NULL │ Rome  │" in answer.stdout
    assert "Query OK, 2 row(s) in set (" in answer.stdout


def test_output_for_programs(filled: Path) -> None:
    """`--json` and `--csv` print nothing but the result."""
    query = "select current, note from power.meters order by ts"
    assert json.loads(run_shell(filled, "--json", "-c", query).stdout) == [
        {"current": pytest.approx(10.3), "note": "a"}, {"current": None, "note": None},
    ]
    assert run_shell(filled, "--csv", "-c", query).stdout == "current,note\n10.3,a\n,\n"


def test_views_are_listed_with_tables(tmp_path: Path) -> None:
    """`.tables` tells whether each can be read, `.schema` has the statements that make them."""
    script = ("create database d; use d; create table t (ts timestamp, v int); create view peak as select max(v) as m "
              "from t;\n.mode csv\n.tables\n.tables pea%\n.schema peak\n")
    found = run_shell(tmp_path / "data", stdin=script)
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("peak,ready") == 2
    assert "CREATE VIEW peak AS select max(v) as m from t;" in found.stdout


def test_statements_of_a_pipe(filled: Path) -> None:
    """Without a terminal, statements come from standard input; here of a process of its own."""
    script = "use power;\nselect count(*) from meters;\n.mode csv\nselect count(*) n from meters"
    answer = subprocess.run(command(filled, {}), input=script, capture_output=True, text=True, check=False, timeout=60,
                            env=clean_environment())
    assert answer.returncode == 0, answer.stderr
    assert "Database changed." in answer.stdout
    assert answer.stdout.endswith("n\n2\n")


def test_statements_of_a_file(filled: Path, tmp_path: Path) -> None:
    """`-f` runs a file; `>> file` in a query exports its result."""
    target = tmp_path / "out.csv"
    script = tmp_path / "script.sql"
    script.write_text(f"use power;\nselect note\nfrom meters order by ts >> '{target}';\n")
    answer = run_shell(filled, "-f", str(script))
    assert answer.returncode == 0, answer.stderr
    assert target.read_text().replace('"', "").splitlines() == ["note", "a", ""]
    assert "2 row(s)" in answer.stdout


def test_failing_statement(filled: Path) -> None:
    """A failing statement ends with 1, one line of explanation with a caret, and no traceback."""
    answer = run_shell(filled, "-c", "select nothing from power.meters")
    assert answer.returncode == 1
    assert "ERROR" in answer.stderr
    assert "^^^^^^^" in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--nonsense"], "unrecognized arguments"),
        (["--set", "noSuchKey=1"], "no key noSuchKey"),
        (["--set", "checkpointInterval"], "expected key=value"),
        (["--conf", "/nowhere.toml"], "cannot read /nowhere.toml"),
    ],
)
def test_wrong_calls(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    """A wrong call ends with 2 and creates nothing."""
    answer = run_shell(tmp_path / "data", *arguments, "-c", "select 1")
    assert answer.returncode == 2
    assert complaint in answer.stderr
    assert not (tmp_path / "data").exists()


def test_views_command(filled: Path, tmp_path: Path) -> None:
    """`penstock views` writes the views and says how to use them; a plain DuckDB then reads the rows, a copy too."""
    import duckdb

    copied = shutil.copytree(filled, tmp_path / "copy")
    assert run_shell(copied, "views").returncode == 0
    assert str(filled) not in (copied / "views.sql").read_text()
    answer = run_shell(filled, "views")
    assert answer.returncode == 0, answer.stderr
    assert "ATTACH" in answer.stdout
    with duckdb.connect() as plain:
        plain.execute(f"ATTACH '{filled / 'views.duckdb'}' AS penstock (READ_ONLY)")
        assert plain.sql("SELECT count(*) FROM penstock.power.meters").fetchall() == [(2,)]
    assert run_shell(tmp_path / "none", "views").returncode == 1


def test_config_command(filled: Path) -> None:
    """`penstock config` prints the values in force."""
    answer = run_shell(filled, "--set", "idleTimeout=5s", "config")
    assert "idleTimeout = 5s\n" in answer.stdout
    assert "timezone = UTC\n" in answer.stdout


def test_second_engine_is_refused(filled: Path) -> None:
    """One process owns a data directory; another one is told so."""
    with penstock.connect(str(filled), {"timezone": "UTC"}):
        answer = subprocess.run(command(filled, {}, "-c", "select 1"), capture_output=True, text=True, check=False,
                                timeout=60, env=clean_environment())
    assert answer.returncode == 1
    assert "in use" in answer.stderr.lower() or "open" in answer.stderr.lower()
