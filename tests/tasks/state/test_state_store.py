"""The durable state of a task: what is restored is exactly what the committed checkpoint had."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.common.errors import CheckpointDamagedError, CorruptionError, StaleAttemptError
from penstock.tasks.state.state_cache import StateCache
from penstock.tasks.state.state_store import StateStore

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


def test_a_damaged_delta_is_noticed_and_the_checkpoint_before_it_is_intact(tmp_path: Path) -> None:
    """A changed byte in what the newest checkpoint wrote, also in a key, costs that checkpoint and no other."""
    for wanted in (b"key-two", b"value-two"):
        directory = tmp_path / wanted.decode()
        store = StateStore(directory, MAP)
        store.put_many([(b"key-one", b"value-one")])
        store.checkpoint(1, {"n": 1})
        store.put_many([(b"key-two", b"value-two")])
        store.checkpoint(2, {"n": 2})
        store.committed(2, (1,))
        store.close()
        data = bytearray((directory / "data.mdb").read_bytes())
        while (place := data.find(wanted)) >= 0:
            data[place] ^= 1
        (directory / "data.mdb").write_bytes(data)
        store = StateStore(directory, MAP)
        with pytest.raises(CheckpointDamagedError, match=r"checkpoint 2 .* is damaged"):
            store.restore(2)
        assert store.restore(1) == {"n": 1}
        assert store.items() == [(b"key-one", b"value-one")]
        store.close()


def test_a_delta_that_was_spilled_in_pieces_is_verified_too(tmp_path: Path) -> None:
    """Keys that are written to disk several times before a checkpoint have one checksum in the end."""
    store = StateStore(tmp_path, MAP)
    for value in (b"1", b"2"):
        store.put_many([(b"b", value), (b"a", value)])
        store.flush()
    store.put_many([(b"a", None)])
    store.checkpoint(1, {})
    store.close()
    store = StateStore(tmp_path, MAP)
    store.restore(1)
    assert store.items() == [(b"b", b"2")]
    store.close()


def test_folding_costs_what_the_folded_checkpoint_changed(tmp_path: Path) -> None:
    """Behind an old kept checkpoint there is one layer for all that aren't kept, however many there were."""
    store = StateStore(tmp_path, MAP)
    for number in range(1, 40):
        store.put_many([(bytes([number]), b"x"), (b"same", bytes([number]))])
        store.checkpoint(number, {"n": number})
        store.committed(number, tuple(n for n in (5, number - 1) if n < number))
    assert [delta.checkpoint_id for delta in store._deltas] == [5, 37, 38, 39]
    assert store.restore(5) == {"n": 5}
    assert store.items() == [*((bytes([n]), b"x") for n in range(1, 6)), (b"same", b"\x05")]
    store.close()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 5), st.one_of(st.none(), st.binary(max_size=4))),
        st.tuples(st.just("flush"), st.none(), st.none()),
        st.tuples(st.just("checkpoint"), st.booleans(), st.booleans()),
        st.tuples(st.just("drop"), st.integers(0, 5), st.none()),
        st.tuples(st.just("crash"), st.integers(0, 5), st.none()),
    ),
    max_size=60,
)


@settings(max_examples=times(32, 800), deadline=None)
@given(steps=STEPS, newest=st.integers(1, 3))
def test_equals_a_dict_with_snapshots(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple], newest: int
) -> None:
    """Random puts, checkpoints, commits, and crashes back to any kept checkpoint behave like copies of a dict."""
    directory = tmp_path_factory.mktemp("state")
    store = StateStore(directory, MAP)
    live: dict[bytes, bytes] = {}
    kept: dict[int, dict[bytes, bytes]] = {}
    savepoints: set[int] = set()
    number = 0
    for kind, first, second in steps:
        if kind == "put":
            key = bytes([first])
            store.put_many([(key, second)])
            live.pop(key, None)
            if second is not None:
                live[key] = second
        elif kind == "flush":
            store.flush()
        elif kind == "checkpoint":
            number += 1
            store.checkpoint(number, {"n": number})
            if first:
                kept[number] = dict(live)
                savepoints |= {number} if second else set()
                for old in sorted(kept.keys() - savepoints)[:-newest]:
                    if old != number:
                        del kept[old]
                store.committed(number, tuple(kept.keys() - {number}))
        elif kind == "drop":
            savepoints.discard(first)
        else:
            store.close()
            store = StateStore(directory, MAP)
            back = sorted(kept)[-1 - first % len(kept)] if kept else None
            assert store.restore(back) == (None if back is None else {"n": back})
            live = dict(kept[back]) if back is not None else {}
            kept = {id_: content for id_, content in kept.items() if back is not None and id_ <= back}
        assert store.get_many([bytes([n]) for n in range(6)]) == [live.get(bytes([n])) for n in range(6)]
        used = store.used_bytes
        store._counted = -1, 0  # so that it is counted anew
        assert store.used_bytes == used
    assert dict(store.items()) == live
    store.close()


def test_what_was_spilled_before_the_first_checkpoint_never_comes_back(tmp_path: Path) -> None:
    """A store that begins anew twice shows nothing of what was spilled in between."""
    store = StateStore(tmp_path, 1 << 22)
    store.checkpoint(1, {})
    store.restore(None)
    store.put_many([(b"spilled", b"value")])
    store.flush()
    store.close()
    again = StateStore(tmp_path, 1 << 22)
    again.restore(None)
    again.checkpoint(2, {})
    assert again.items() == []
    again.close()


def test_an_older_attempt_cannot_enter(tmp_path: Path) -> None:
    """A worker that comes too late is refused before it can go back behind what a later attempt has done."""
    store = StateStore(tmp_path, 1 << 22)
    store.enter(3)
    store.enter(3)
    with pytest.raises(StaleAttemptError, match="attempt 2 comes too late"):
        store.enter(2)
    store.close()
    again = StateStore(tmp_path, 1 << 22)
    with pytest.raises(StaleAttemptError):
        again.enter(1)
    again.enter(4)
    again.close()


def test_a_changed_key_of_the_base_is_noticed(tmp_path: Path) -> None:
    """What was folded into the base is checked as a whole: keys, too, and none may be missing."""
    store = StateStore(tmp_path, 1 << 22)
    store.restore(None)
    for checkpoint in (1, 2, 3):
        store.put_many([(b"key %d" % checkpoint, b"value")])
        store.checkpoint(checkpoint, {})
        store.committed(checkpoint)
    store.verify(3)
    with store._database.writing() as transaction:
        transaction.delete(b"key 1", db=store._database.base)
    with pytest.raises(CheckpointDamagedError, match="base"):
        store.verify(3)
    store.close()


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.integers(1, 700)), max_size=40), st.integers(0, 39))
@settings(deadline=None)
def test_stores_that_share_a_cache_keep_within_it(puts: list[tuple[int, int, int]], closed_after: int) -> None:
    """Whoever puts how much, in memory is never more than the cache allows, also when one was full and is closed; and
    every store reads back what it was given."""
    cache = StateCache(2000)
    with TemporaryDirectory() as root:
        stores = [StateStore(Path(root) / str(n), MAP, cache) for n in range(3)]
        given_to: list[dict[bytes, bytes | None]] = [{} for _ in stores]
        for turn, (place, key, size) in enumerate(puts):
            if turn == closed_after:
                stores[2].close()
                stores[2], given_to[2] = StateStore(Path(root) / "other", MAP, cache), {}
            item = b"%d" % key, b"%d" % turn * size
            stores[place].put_many([item])
            given_to[place].update([item])
            assert sum(store.memory_bytes for store in stores) == cache.used_bytes <= cache.limit_bytes
        for store, items in zip(stores, given_to, strict=True):
            assert store.get_many(items) == list(items.values())
            store.checkpoint(1, {})
        assert cache.used_bytes == 0
        for store in stores:
            store.close()


def test_a_busy_store_leaves_room_for_the_others() -> None:
    """One that is alone has half of the cache, each of two a third: the next one always finds some."""
    cache = StateCache(600)
    assert cache.take(0, 300)
    assert not cache.take(300, 1)
    assert cache.take(0, 150)
    assert not cache.take(150, 1)
    cache.give_back(300)
    assert cache.take(150, 150)
