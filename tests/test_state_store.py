"""The durable state of a task: what is restored is exactly what the committed checkpoint had."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.common.errors import CorruptionError
from penstock.tasks.state_store import StateStore

MAP = 64 * 1024 * 1024


def test_restore_goes_back_to_the_committed_checkpoint(tmp_path: Path) -> None:
    """What was written after the committed checkpoint, even checkpointed, is gone after a restore."""
    store = StateStore(tmp_path, MAP)
    store.put_many([(b"a", b"1"), (b"b", b"1")])
    store.checkpoint(1, {"version": 10})
    store.put_many([(b"a", b"2"), (b"b", None)])
    store.checkpoint(2, {"version": 20})
    store.put_many([(b"c", b"3")])
    store.close()
    store = StateStore(tmp_path, MAP)
    assert store.restore(1) == {"version": 10}
    assert store.get_many([b"a", b"b", b"c"]) == [b"1", b"1", None]
    store.put_many([(b"a", b"9")])
    store.checkpoint(3, {"version": 30})
    assert store.items() == [(b"a", b"9"), (b"b", b"1")]
    store.close()


def test_missing_checkpoint_is_named(tmp_path: Path) -> None:
    """Restoring a checkpoint that the store doesn't have is an error that names it."""
    store = StateStore(tmp_path, MAP)
    store.checkpoint(1, {})
    with pytest.raises(CorruptionError, match="checkpoint 7 is missing"):
        store.restore(7)
    store.close()


def test_restore_none_empties(tmp_path: Path) -> None:
    """A stream that never committed a checkpoint starts from nothing."""
    store = StateStore(tmp_path, MAP)
    store.put_many([(b"a", b"1")])
    store.checkpoint(1, {})
    assert store.restore(None) is None
    assert store.items() == []
    store.close()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 5), st.one_of(st.none(), st.binary(max_size=4))),
        st.tuples(st.just("checkpoint"), st.booleans(), st.none()),
        st.tuples(st.just("crash"), st.none(), st.none()),
    ),
    max_size=40,
)


@settings(max_examples=40, deadline=None)
@given(steps=STEPS)
def test_equals_a_dict_with_snapshots(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple]) -> None:
    """Random puts, checkpoints, commits and crashes behave like a dict that is copied at each checkpoint."""
    directory = tmp_path_factory.mktemp("state")
    store = StateStore(directory, MAP)
    live: dict[bytes, bytes] = {}
    committed: tuple[int | None, dict[bytes, bytes]] = (None, {})
    number = 0
    for kind, first, second in steps:
        if kind == "put":
            key = bytes([first])
            store.put_many([(key, second)])
            live.pop(key, None)
            if second is not None:
                live[key] = second
        elif kind == "checkpoint":
            number += 1
            store.checkpoint(number, {"n": number})
            if first:
                store.committed(number)
                committed = (number, dict(live))
        else:
            store.close()
            store = StateStore(directory, MAP)
            meta = store.restore(committed[0])
            assert meta == (None if committed[0] is None else {"n": committed[0]})
            live = dict(committed[1])
        assert store.get_many([bytes([n]) for n in range(6)]) == [live.get(bytes([n])) for n in range(6)]
    assert dict(store.items()) == live
    store.close()
