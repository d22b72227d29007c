"""Tools around DuckDB and notebooks, by the files and commands that the pages of the documentation show."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from conftest import by_night
from kits.basics.client_packages import TOOLS, needs_tools, run_tool
from kits.basics.places import ROOT, TESTS
from kits.engines.embedded import Embedded
from kits.pages.examples import files, shown_in

pytestmark = needs_tools
DOCS = ROOT / "docs"
VIEWS = "/var/lib/penstock/views.duckdb"
BY_PLACE = "SELECT place, count(*) AS n FROM power.meters GROUP BY place ORDER BY place"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory whose engine has been closed."""
    path = tmp_path_factory.mktemp("tools") / "data"
    engine = Embedded(path)
    for statement in (
            "CREATE DATABASE power VGROUPS 1 KEEP 36500d",
            "CREATE STABLE power.meters (ts TIMESTAMP, volts DOUBLE) TAGS (place NCHAR(16))",
            "INSERT INTO power.a USING power.meters TAGS ('Rome') VALUES (1700000000000, 230.5) (1700000001000, 231)",
            "INSERT INTO power.b USING power.meters TAGS ('Oslo') VALUES (1700000000000, 229)"):
        engine.run(statement)
    engine.close()
    return path


@by_night
def test_cells_of_a_notebook(data: Path, tmp_path: Path) -> None:
    """jupysql sends Penstock's dialect, takes variables in, gives data frames, and tells errors and tables."""
    cells = [cell.strip() for cell in shown_in(DOCS / "notebooks.md", "python")]
    cells[0] = cells[0].replace("penstock:///penstock-data", f"penstock:///{data}")
    more = ["%sqlcmd tables -s power", "%sqlcmd columns --table meters -s power", "%sql SELECT nothing FROM meters"]
    said = run_tool(str(TESTS / "programs" / "notebook_cells.py"), str(TOOLS), json.dumps([*cells, *more]),
                    cwd=tmp_path, packages="")
    [shown] = [json.loads(line) for line in said.splitlines() if line.startswith("[")]
    _, _, by_place, windows, _, mean, tables, columns, error = shown
    assert re.findall(r"\|\s+(\w+) \|\s+(\d+)\s+\|", by_place) == [("Rome", "2")]
    assert re.findall(r"22:13:2(\d)\D+([\d.]+)", windows) == [("0", "230.5"), ("1", "231.0")]
    assert "229.75" in mean
    assert "meters" in tables
    assert "NCHAR(16)" in columns
    assert "column nothing does not exist in meters at line 1, column 8" in error


@by_night
def test_models_of_dbt(data: Path, tmp_path: Path) -> None:
    """The page's project builds, with its test of a source, and a second time, then incrementally."""
    for name, text in files(DOCS / "dbt.md").items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace(VIEWS, str(data / "views.duckdb")))
    for _ in range(2):
        said = run_tool("-m", "dbt.cli.main", "build", "--profiles-dir", ".", cwd=tmp_path)
        assert "PASS=2 WARN=0 ERROR=0" in said
    query = "SELECT place, measured, most FROM main.minutes ORDER BY place"
    told = run_tool("-c", "import duckdb, json; print(json.dumps(duckdb.connect('report.duckdb', read_only=True)"
                    f".execute({query!r}).fetchall()))", cwd=tmp_path)
    assert json.loads(told) == [["Oslo", 1, 229.0], ["Rome", 2, 231.0]]


@by_night
def test_harlequin(data: Path, tmp_path: Path) -> None:
    """Its screen shows the rows of a query, and its command for scripts prints them; as the page has them."""
    _, start, query = (shlex.split(block) for block in shown_in(DOCS / "harlequin.md", "bash"))
    assert start == ["harlequin", "--read-only", VIEWS]
    views = str(data / "views.duckdb")
    shown = run_tool(str(TESTS / "programs" / "harlequin_screen.py"), views, BY_PLACE, cwd=tmp_path)
    assert json.loads(shown.splitlines()[-1]) == [["Oslo", 1], ["Rome", 2]]
    assert query[0] == "hsql"
    words = [word.replace(VIEWS, views) for word in query[1:]]
    said = run_tool(str(TOOLS / "bin" / "hsql"), *words, cwd=tmp_path)
    assert said.split() == ["place,n", "Oslo,1", "Rome,2"]
