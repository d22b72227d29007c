"""Random streams with a trigger of their own: each window's results are what the query gives with its constants.

`tests/programs/random_triggers.py` plays 5,000 of them in `make nightly`.
"""

from __future__ import annotations

import pytest
from conftest import by_night, times
from hypothesis import given, settings
from kits.streams.trigger_histories import Compared, TriggerCase, play_triggers, trigger_cases
from programs.random_triggers import case_of, summary

from penstock.mnode.streams.calculated_results import Results


@settings(max_examples=times(2, 200))
@given(trigger_cases())
def test_streams_compute_what_their_windows_are_for(case: TriggerCase) -> None:
    """Four streams over the same tables, whatever happens to these and to the engine."""
    failures, story = play_triggers(case, Compared())
    assert not failures, "\n".join([*failures, *story])


def test_windows_are_compared_that_were_computed_in_each_way() -> None:
    """One by one, together, and by the tasks that have their rows; none was refused."""
    outcome = Compared()
    for seed in range(3):
        play_triggers(case_of(seed), outcome)
    assert not outcome.failures
    assert outcome.streams == 12
    assert outcome.windows > 50
    assert outcome.executions > 50
    assert outcome.ways["one by one"] > 20
    assert outcome.ways["together"] > 20
    assert outcome.ways["handed over"] > 5
    assert "12 streams" in summary(outcome)


@by_night
def test_what_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here results that windows don't give any more stay."""
    gone = Results.gone
    monkeypatch.setattr(Results, "gone", lambda self, windows, voided, known, *, every: gone(
        self, windows, voided, {}, every=every))
    found = (failure for seed in range(20) for failure in play_triggers(case_of(seed), Compared())[0])
    assert "written alone" in next(found)
