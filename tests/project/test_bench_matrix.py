"""The benchmark of every kind of small write and question: its cells, their rows, its table, and a run of tiny ones."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from conftest import times

from bench.matrix import main, measure
from bench.matrix_cells import (
    BROKERS,
    CHILDREN,
    FIRST_MS,
    HERE,
    KINDS,
    PERIOD_MS,
    QUESTIONS,
    ROWS_EACH,
    SOCKETS,
    WAYS,
    Cell,
    Writes,
    all_cells,
    is_dear,
    table,
    times_in_order,
)

KNOWN = {FIRST_MS + PERIOD_MS * place for place in range(ROWS_EACH)}


def written(cell: Cell, statements: int) -> dict[int, list[int]]:
    """Returns the times of each child table, in the order in which they are written."""
    writes, found = Writes(), defaultdict(list)
    for _ in range(statements):
        made = writes.next(cell)
        assert len(made) == len({each.table for each in made}) == cell.tables
        assert sum(len(each.rows) for each in made) == cell.rows
        for each in made:
            assert {len(row) for row in each.rows} == {cell.columns}
            found[each.table] += [row[0] for row in each.rows]
    return found


def test_all_pairs_are_there_once_and_their_siblings_before_them() -> None:
    """Every kind, every way with every number of rows, and the kinds that count beside streams."""
    cells = [*all_cells()]
    assert len(cells) == len(set(cells))
    assert {cell.kind for cell in cells} == KINDS.keys() | QUESTIONS.keys()
    assert {(cell.way, cell.rows) for cell in cells} == {(way, rows) for way in WAYS for rows in (1, 20, 1000)}
    assert {(cell.kind, cell.streams) for cell in cells if cell.streams} == {
        (kind, streams) for kind in ("in-order", "late", "rewritten", "composite", "new-table") for streams in (1, 10)}
    assert {(cell.columns, cell.tables) for cell in cells} == {(3, 1), (30, 1), (300, 1), (3, 20), (3, 100)}
    cost = dict.fromkeys(cells, 1.0)
    for place, cell in enumerate(cells):
        assert not cell.streams or place >= len(cells) - 10
        if cell.kind in KINDS and cell.kind != "in-order":
            assert times_in_order(cell, {key: cost[key] for key in cells[:place + 1]}) == 1.0
    databases = [key for key, _ in groupby(cell.database for cell in cells)]
    assert len(databases) == len(set(databases))


@pytest.mark.parametrize("cell", [Cell(), Cell(rows=20), Cell(rows=20, tables=20), Cell(rows=1000, tables=100),
                                  Cell(columns=300)], ids=str)
def test_rows_in_order_are_newer_than_all_of_their_table(cell: Cell) -> None:
    """Nothing of them is late, or written a second time."""
    for of_table in written(cell, 150).values():
        assert of_table[0] > max(KNOWN)
        assert of_table == sorted(set(of_table))


def test_late_and_rewritten_rows_are_what_they_are_called() -> None:
    """Late ones are older than what is there, and new; others are there."""
    statements = 2 * CHILDREN * ROWS_EACH
    for of_table in written(Cell("late"), statements).values():
        assert not KNOWN.intersection(of_table)
        assert len(set(of_table)) == len(of_table)
        assert max(of_table) < max(KNOWN) + PERIOD_MS
    for of_table in written(Cell("rewritten"), statements).values():
        assert set(of_table) == KNOWN


def test_a_table_marks_what_is_dear_and_says_what_is_missing() -> None:
    """More than three times as dear as in order is bold; questions have no shape."""
    line: dict[str, Any] = {
        "rows": 1, "columns": 3, "tables": 1, "way": "execute", "streams": 0, "per_second": 12_345, "cpu_us": 60.0,
        "unit_us": 20.0, "units": 3.0, "latency_us": {"p50": 50.0, "p99": 1234.0}}
    cost = {Cell(): 20.0, Cell("late"): 62.0, Cell("nulls"): 60.0}
    lines = [{**line, "kind": cell.kind, "times_in_order": times_in_order(cell, cost)} for cell in cost]
    assert [is_dear(each["times_in_order"]) for each in lines] == [False, True, False]
    text = table([{"unit_us": 21.0, "thread_round_trip_us": 50.0, "load": 0.5, "cores": 2}, *lines,
                  {**line, "kind": "count", "times_in_order": None}, {"left_out": "mqtt", "reason": "it is away"}])
    assert "| in-order | execute | 0 | 1 | 3 | 1 | 12,345 | 60.0 | 3.00 | 50 | 1,234 |  |" in text
    assert "| late | execute | 0 | 1 | 3 | 1 | 12,345 | 60.0 | 3.00 | 50 | 1,234 | **3.1** |" in text
    assert "| nulls | execute | 0 | 1 | 3 | 1 | 12,345 | 60.0 | 3.00 | 50 | 1,234 | 3.0 |" in text
    assert "| count | execute | 0 |  |  |  | 12,345 |" in text
    assert text.endswith("Left out: mqtt, since it is away.")


def test_a_run_measures_all_that_is_chosen(tmp_path: Path) -> None:
    """Each cell has its line, in which everything was counted; what a table then lacks or has too much is an error."""
    few = ("in-order", "late", "new-table", "delete", "ten-windows-of-ten")
    cells = [cell for cell in all_cells() if not cell.streams and cell.way in (*HERE, *SOCKETS[:times(0, len(SOCKETS))])
             and cell.rows < times(20, 1000)
             and ((cell.kind in few and cell.columns == 3) or times(0, 1))]
    machine, *lines = measure(cells, 0.01, tmp_path)
    assert machine["unit_us"] > 0
    assert [Cell(*(line[name] for name in ("kind", "rows", "columns", "tables", "way", "streams")))
            for line in lines] == cells
    for line in lines:
        assert line["statements"] >= 5
        assert min(line["per_second"], line["latency_us"]["p50"]) > 0
        assert line["latency_us"]["p50"] <= line["latency_us"]["p99"]
    assert table([machine, *lines]).count("\n| ") == len(cells) + 2


def test_a_choice_without_cells_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Late rows are measured one by one."""
    with pytest.raises(SystemExit):
        main(["--kinds", "late", "--rows", "20"])
    assert "no cell has all of these values" in capsys.readouterr().err


@pytest.mark.skipif(not times(0, 1), reason="it starts Spark")
def test_ingests_and_streams_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of both brokers come, and streams catch up."""
    monkeypatch.chdir(tmp_path)
    assert main(["--kinds", "in-order", "late", "--ways", "execute", *BROKERS, "--streams", "0", "1", "--rows", "1",
                 "--columns", "3", "--seconds", "0.05"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["kind"], line["way"], line["streams"]) for line in lines[1:]] == [
        ("in-order", "execute", 0), ("late", "execute", 0), ("in-order", "mqtt", 0), ("in-order", "kafka", 0),
        ("in-order", "execute", 1), ("late", "execute", 1)]
