"""Plans that older versions have stored are read in the words of today."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kits.basics.places import GOLDEN

from penstock.mnode.coordinator import stored_plan
from penstock.planner.task_plans.stream_plan import ExternalSinkPlan, JoinPlan

FORMAT_2 = (GOLDEN / "stored_plans" / "2.json").read_text("utf-8")
"""A join that is exchanged by key and goes to Kafka."""


def test_a_plan_of_format_2_is_read() -> None:
    """What was renamed since is what it was; written again, it is of the present format."""
    stored = stored_plan.decode(FORMAT_2)
    assert stored.plan.sink.external == ExternalSinkPlan("k", "kafka", "t", "json")
    assert isinstance(stored.plan.computation, JoinPlan)
    assert stored.plan.computation.distribution == "exchange"
    written = stored_plan.encode(stored)
    assert json.loads(written)["format"] == stored_plan._FORMAT
    assert stored_plan.decode(written) == stored


@pytest.mark.parametrize("parts", [[], [3], [{}], [{"class": ["SinkPlan"]}], [{"class": "Lost"}], None])
def test_a_damaged_plan_of_format_2_is_refused(parts: Any) -> None:
    """As one of the present format is: the statement is planned again then."""
    with pytest.raises(ValueError, match=r"parts|object|unknown"):
        stored_plan.decode(json.dumps({**json.loads(FORMAT_2), "parts": parts}))


def test_plans_whose_sql_has_capitals_as_they_are_are_refused() -> None:
    """Since format 6 SQL has other names for those: the statement is planned again then."""
    for name, kept in (("V", False), ("v^1", False), ("v", True), ("'V'", True)):
        old = FORMAT_2.replace('\\"v\\" AS', f'\\"{name}\\" AS' if name[0] != "'" else f"{name} AS")
        assert old != FORMAT_2 or name == "v"
        if kept:
            stored_plan.decode(old)
        else:
            with pytest.raises(ValueError, match="capitals"):
                stored_plan.decode(old)
