"""The 22 queries of TPC-H have the answers of plain DuckDB over the same rows, in either order that they may lie in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conftest import by_night, profile

from bench.tpch import Sides, difference, opened
from bench.tpch_queries import QUERIES


@pytest.fixture(scope="module", params=[
    pytest.param(False, id="as filed"), pytest.param(True, marks=by_night, id="by dates")])
def sides(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    scale = 0.1 if profile() == "nightly" else 0.01
    with opened(tmp_path_factory.mktemp("tpch"), scale, dates=request.param) as found:
        yield found


#: An aggregate over no rows has no row.
NOT_YET = {17}


@pytest.mark.parametrize("number", [
    pytest.param(number, marks=pytest.mark.xfail) if number in NOT_YET else number for number in QUERIES])
def test_answers_are_those_of_duckdb(sides: Sides, number: int) -> None:
    """A query has the rows of plain DuckDB over the same Parquet files, and there are some."""
    theirs = sides.ask_plain(number)
    assert theirs
    assert difference(sides.ask_ours(number), theirs) is None
