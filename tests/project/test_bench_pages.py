"""The pages of figures: what stands on them is what bench/figures.jsonl says, and commands are there."""

from __future__ import annotations

import importlib
import json
import math
import re
import shlex
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from bench import pages
from bench.drawings import dots
from bench.page_runs import DRAWINGS, PAGES, RUNS, Run
from bench.page_tables import Column, Fact, Facts, Pivot, Rows, short, whole

SPEED = Pivot("", lambda line: line["measure"] == "throughput", Column("query", "query"), "engine",
              ("penstock", "spark", "flink", "duckdb-batch"), Column("", "rows_per_second", short), ours="penstock")


def line(engine: str, rows_per_second: int, query: str = "q1") -> dict[str, object]:
    return {"measure": "throughput", "engine": engine, "query": query, "rows_per_second": rows_per_second}


def test_the_pages_say_what_was_measured() -> None:
    """Tables and drawings are those of the file; `python -m bench.pages --tables` writes them."""
    assert pages.main(["--check"]) == 0


def test_every_run_is_on_its_page_and_a_command() -> None:
    """Each has a place, and its modules are there; of a file's runs none is unknown."""
    for name, run in RUNS.items():
        assert run.page in PAGES
        assert pages.BEGIN.format(name) in (pages.ROOT / "docs" / f"{run.page}.md").read_text("utf-8")
        for command in run.commands:
            assert callable(importlib.import_module(shlex.split(command)[0]).main)
    assert set(pages.known()) <= set(RUNS)
    assert {drawing.run for drawing in DRAWINGS.values()} <= set(RUNS)


def test_without_names_the_usual_pages_are_measured() -> None:
    """Runs that take long are meant only by their names."""
    assert "streams" in pages.chosen([])
    assert not {"soak", "growth"} & set(pages.chosen([]))
    assert "growth" in pages.chosen(["scaling"])
    assert pages.chosen(["soak"]) == ["soak"]
    with pytest.raises(SystemExit, match="no page or run nope"):
        pages.main(["nope"])


def test_what_is_measured_replaces_what_was_known(tmp_path: Path) -> None:
    """Lines of other runs stay, in the order of the runs."""
    path = tmp_path / "figures.jsonl"
    pages.keep("joins", [{"cores": 2}, {"case": "asof"}], path)
    pages.keep("ingest", [{"cores": 2}], path)
    pages.keep("joins", [{"cores": 4}, {"case": "range"}], path)
    assert pages.known(path) == {"ingest": [{"cores": 2}], "joins": [{"cores": 4}, {"case": "range"}]}
    assert [json.loads(text)["run"] for text in path.read_text().splitlines()] == ["ingest", "joins", "joins"]


@pytest.mark.parametrize(("said", "code", "kept"), [
    ('{"case": "asof"}', 0, [{"case": "asof"}]), ('{"case": "asof"}\n{"failed": "it"}', 1, [{"case": "asof"}]),
    ('{"case": "asof"}', 3, None)])
def test_what_fails_is_told_and_the_rest_kept(
    said: str, code: int, kept: list[dict[str, str]] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that ends before it is through leaves what was known as it is."""
    (tmp_path / "measuring.py").write_text(f"print({said!r})\nraise SystemExit({code})\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(pages, "FIGURES", tmp_path / "figures.jsonl")
    monkeypatch.setattr(pages, "RUNS", {"joins": Run("performance", ["measuring"], [])})
    assert pages.taken("joins", None) == (code == 0)
    runs = pages.known()
    assert (runs["joins"][1:] if runs else None) == kept


def test_figures_go_between_their_marks() -> None:
    """The rest of a page stays; a page without a place for them is refused."""
    page = f"before\n{pages.BEGIN.format('joins')}\nold\n{pages.END}\nafter\n"
    once = pages.replaced(page, "joins", "new\n")
    assert once == f"before\n{pages.BEGIN.format('joins')}\n\nnew\n\n{pages.END}\nafter\n"
    assert pages.replaced(once, "joins", "new\n") == once
    with pytest.raises(ValueError, match="there is no"):
        pages.replaced(page, "ingest", "new")


def test_a_block_says_how_it_was_measured() -> None:
    """The commands that were run, the day, the machine's cores, its unit and its load."""
    run = Run("performance", ["bench.joins"], [Rows("Joins", lambda line: True, [Column("case", "case")])])
    text = pages.block(run, [{"commands": ["bench.joins --rows 5"], "at": "2026-01-02", "cores": 2, "unit_us": 26.5,
                              "load": 0.3}, {"case": "asof"}])
    assert text == ("**Joins**\n\n| case |\n| --- |\n| asof |\n\n"
                    "`python -m bench.joins --rows 5`, 2026-01-02. 2 cores, a unit takes 26.5 µs, load average 0.3.\n")


def test_the_ratio_is_to_the_best_peer() -> None:
    """DuckDB's batch isn't one, of equal lines the last counts, and engines that nobody measured have no column."""
    text = SPEED.text([line("penstock", 1_000_000), line("penstock", 3_000_000), line("spark", 500_000),
                       line("duckdb-batch", 9_000_000), line("penstock", 4_000, "q2")])
    assert text.splitlines()[0] == "| query | penstock | spark | duckdb-batch | times the best peer |"
    assert text.splitlines()[2:] == ["| q1 | 3 M | 500 k | 9 M | 6.0 |", "| q2 | 4 k |  |  |  |"]


def test_what_was_not_measured_is_left_out() -> None:
    """A table without lines is none, a fact without a figure has no row, a field that is missing an empty cell."""
    rows = Rows("", lambda line: line["engine"] == "spark", [Column("speed", "rows_per_second", whole),
                                                             Column("p50", "latency_ms p50")])
    assert rows.text([line("penstock", 1)]) == ""
    assert rows.text([line("spark", 1000)]).splitlines()[2] == "| 1,000 |  |"
    facts = Facts("", [Fact("one", lambda line: line["query"] == "q1", "rows_per_second"),
                       Fact("two", lambda line: line["query"] == "q2", "rows_per_second")])
    assert facts.text([line("spark", 5), line("spark", 6)]).splitlines()[2:] == ["| one | 5 |"]


def test_a_drawing_has_its_values_on_a_logarithmic_axis() -> None:
    """It is XML; a dot ten times as large is one step of the axis further, whatever the values are."""
    root = ET.fromstring(dots("a < b", {"q1": {"x": 10, "y": 100}, "q2": {"x": 1000}}, ["x", "y", "z"]))
    space = "{http://www.w3.org/2000/svg}"
    dots_of = {(dot.find(f"{space}title").text): float(dot.get("cx", 0))  # type: ignore[union-attr]
               for dot in root.iter(f"{space}circle") if dot.find(f"{space}title") is not None}
    first, second, third = dots_of["x: 10"], dots_of["y: 100"], dots_of["x: 1,000"]
    assert math.isclose(second - first, third - second, abs_tol=0.2)
    assert first < second
    assert "z" not in [text.text for text in root.iter(f"{space}text")]
    with pytest.raises(ValueError, match="no values"):
        dots("", {"q1": {}}, ["x"])


def test_drawings_are_shown() -> None:
    """Each is on a page."""
    text = "".join((pages.ROOT / "docs" / f"{page}.md").read_text("utf-8") for page in PAGES)
    assert set(re.findall(r"\(images/(\w+)\.svg\)", text)) == set(DRAWINGS)
