"""The range of time that a DELETE means: the same whether its constants are literals or what the planner computes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from conftest import times
from kits.engines.sandboxes import T0, TestBed

from penstock.common.errors import PenstockError
from penstock.mnode.write import deletes

TIMES = [str(T0 + 5_000), f"'{T0 + 5_000}'", "'2023-11-14 22:13:25'", "'2023-11-14T23:13:25+01:00'", "'2023-11-14'",
         f"{T0 + 5_000}.5", f"({T0 + 5_000})", "-5", "9" * 20, "now", "'now'", "'noon'", "NULL"]
CONDITIONS = [*(f"ts {operator} {time}" for time, operator in itertools.product(TIMES, ("<", "<=", ">", ">=", "="))),
              *(f"{time} > ts" for time in TIMES), *(f"_rowts <= {time}" for time in TIMES),
              *(f"ts BETWEEN {first} AND {last}"
                for first, last in list(itertools.product(TIMES, TIMES))[::times(5, 1)])]


@pytest.fixture(scope="module")
def bed() -> Iterator[TestBed]:
    with TestBed() as found:
        found.all("CREATE DATABASE d KEEP 36500d", "USE d", "CREATE TABLE t (ts TIMESTAMP, v INT)")
        yield found


def left(bed: TestBed, condition: str) -> list[tuple[object, ...]] | str:
    """Returns the rows that a DELETE leaves, or what is wrong with it."""
    bed.execute(f"INSERT INTO t VALUES {' '.join(f'({T0 + 500 * number}, {number})' for number in range(21))}")
    try:
        bed.execute(f"DELETE FROM t WHERE {condition}")
    except PenstockError as error:
        return str(error)
    return bed.rows("SELECT v FROM t")


def test_literals_mean_what_the_planner_says(bed: TestBed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that go, and what is wrong with constants."""
    found = {condition: left(bed, condition) for condition in CONDITIONS}
    monkeypatch.setattr(deletes, "_point", lambda *arguments: None)
    assert found == {condition: left(bed, condition) for condition in CONDITIONS}
    assert len(found[f"ts <= {T0 + 5_000}"]) == 10
