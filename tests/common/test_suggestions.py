"""What is taken for a misspelling of what."""

from __future__ import annotations

import pytest

from penstock.common.suggestions import closest, did_you_mean


@pytest.mark.parametrize(("written", "meant"), [
    ("voltge", "voltage"), ("voltagge", "voltage"), ("volbage", "voltage"), ("votlage", "voltage"),
    ("VOLTAGE", "voltage"), ("vlotgae", "voltage"), ("temperatre_outsied", "temperature_outside"), ("bop", "bob"),
])
def test_slips_lead_to_the_name(written: str, meant: str) -> None:
    """A letter that is missing, too many, wrong or swapped; two of them in longer names."""
    assert closest(written, ["elapsed", meant, "current"]) == meant


@pytest.mark.parametrize(("written", "other"), [
    ("median", "min"), ("median", "mean"), ("stdev", "std"), ("t", "v"), ("d1", "d2"), ("", "v"), ("summary", "sum"),
    ("vlotgea", "voltage"),
])
def test_another_name_is_none_of_them(written: str, other: str) -> None:
    """What has too little in common with a name is no misspelling of it, and would only mislead."""
    assert closest(written, [other]) is None
    assert did_you_mean(written, [other]) is None


def test_the_closest_name_is_meant() -> None:
    """Of several the one with the fewest slips, and of equals the first."""
    assert closest("volttage", ["wattage", "voltages", "voltage", "voltagee"]) == "voltage"
    assert did_you_mean("meterz", ["meters", "metera"]) == "did you mean meters?"
