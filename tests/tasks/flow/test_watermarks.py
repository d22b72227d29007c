"""Which inputs of a task are ahead of the others: MAX_SKEW holds these back."""

from __future__ import annotations

from penstock.tasks.flow.watermarks import Watermarks


def test_one_that_has_said_nothing_yet_counts_as_being_where_the_first_began() -> None:
    """Until it speaks or is idle: what is ahead would be read without bound. A restart knows it, too."""
    watermarks = Watermarks(3)
    for input, ts in ((0, 700), (1, 500), (0, 1_000)):
        watermarks.update(input, ts, idle=False)
        assert watermarks.ahead(500) == []
    watermarks.update(1, 900, idle=False)
    watermarks.update(0, 1_001, idle=False)
    assert watermarks.ahead(500) == [0]
    restored = Watermarks(3)
    restored.restore(watermarks.save())
    assert restored.ahead(500) == [0]
    restored.update(2, None, idle=True)
    assert restored.ahead(500) == []
    restored.update(2, 100, idle=False)
    assert restored.ahead(500) == [0, 1]
