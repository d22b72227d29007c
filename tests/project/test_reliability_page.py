"""docs/reliability.md: all faults are in its table, and the tests that it names exist."""

from __future__ import annotations

import re

import pytest
from kits.basics.places import ROOT

PAGE = (ROOT / "docs" / "reliability.md").read_text("utf-8")
ROWS = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \| (.*?) ?\|$", PAGE, flags=re.MULTILINE)


def test_every_fault_has_a_row() -> None:
    """Thirty faults, in order, each with an outcome."""
    assert [int(number) for number, *_ in ROWS] == list(range(1, 31))


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_its_tests_exist(row: tuple[str, str, str, str]) -> None:
    """What is said to be tried names tests that exist; what isn't says so."""
    _, fault, outcome, tried = row
    names = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", tried)
    assert bool(names) != ("not yet tried" in outcome), fault
    for file, test in names:
        assert f"def {test}(" in (ROOT / file).read_text("utf-8"), f"{file}::{test}"
