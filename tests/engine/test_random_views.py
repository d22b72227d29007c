"""Random views and streams of any query: each is DuckDB's answer after whatever happens to the tables.

`tests/programs/random_views.py` keeps 20,000 of them in `make nightly`.
"""

from __future__ import annotations

import pytest
from conftest import by_night, times
from kits.streams.view_histories import Outcome, case, play, smaller

from penstock.mnode.streams.stream_refreshes import StreamRefreshes


@pytest.mark.parametrize("seed", range(times(1, 3)))
def test_views_are_their_queries_whatever_happens(seed: int) -> None:
    """Ten over the same tables, of which some may be refused."""
    outcome = Outcome()
    play(case(seed, 10), outcome)
    assert not outcome.failures
    assert outcome.views > 5
    assert outcome.comparisons["table and DuckDB"] >= outcome.views


@by_night
def test_what_is_wrong_is_found_and_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here nothing is ever written."""
    monkeypatch.setattr(StreamRefreshes, "_publish", lambda self, members, round_: None)
    drawn = case(0, 2)
    failure = play(drawn)[0][0]
    assert "table and DuckDB differ" in failure.problem
    least = smaller(drawn, failure)
    assert [kept.name for kept in least.kept] == [failure.name]
    assert 1 <= sum(map(len, least.rounds)) <= 2
