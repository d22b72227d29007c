"""Writers are told once: that what they wrote is there, that too few nodes are, or that nobody can say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.mnode.cluster.acknowledgement_waits import AcknowledgementWaits


def test_a_writer_is_told_by_name_what_it_waited_for() -> None:
    """After replicaTimeout, with a hint; a retry may help."""
    waits = AcknowledgementWaits(30)
    waits.add(0.0, 1, 5)
    assert waits.poll(29.9, {1: 4}, str) == []
    (ended,) = waits.poll(30.0, {1: 4}, lambda log: "REPLICA 2 needs 2 nodes")
    assert ended.error is not None
    assert ended.error.message == "the rows are written here, but REPLICA 2 needs 2 nodes after 30 s"
    assert ended.error.retry
    assert len(waits) == 0


@given(writes=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 20), st.floats(0, 10)), max_size=20),
       acknowledged=st.dictionaries(st.integers(0, 2), st.integers(0, 20)), now=st.floats(0, 20), ends=st.booleans())
def test_each_writer_is_told_once(writes: list[tuple[int, int, float]], acknowledged: dict[int, int], now: float,
                                  ends: bool) -> None:
    """What is acknowledged is never told to be missing, not even too late."""
    waits = AcknowledgementWaits(5.0)
    added = [waits.add(at, log, version) for log, version, at in writes]
    told = waits.poll(now, acknowledged, str)
    told += waits.end("another node is active") if ends else []
    assert len({one.wait.number for one in told}) == len(told)
    for wait in added:
        errors = [one.error for one in told if one.wait == wait]
        if acknowledged.get(wait.log, 0) >= wait.version:
            assert errors == [None]
        elif ends or now >= wait.until:
            assert errors != [None]
            assert len(errors) == 1
        else:
            assert errors == []
    assert len(waits) == len(added) - len(told)
