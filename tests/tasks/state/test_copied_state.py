"""State that is kept elsewhere: after each checkpoint the dnode has the same store, whoever goes on from it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.common.clock import ManualClock
from penstock.common.errors import CheckpointDamagedError, InternalError, StaleAttemptError, UnavailableError
from penstock.common.fs import OsFs
from penstock.common.paths import DataPaths
from penstock.mnode.dnode.dnode_service import DnodeService
from penstock.mnode.dnode.task_states import TaskStates
from penstock.tasks.dnode_access.data_access import StateDirectories
from penstock.tasks.dnode_access.dnode_client import DnodeClient
from penstock.tasks.protocol.messages import TaskId
from penstock.tasks.state.copied_state import CheckpointOf, CopiedState
from penstock.tasks.state.state_cache import StateCache
from penstock.tasks.state.state_store import StateStore

SECRET = b"secret"
TASK = TaskId(5, "agg", 1)
MAP_BYTES = 64 << 20


class Dnode:
    """A dnode that keeps states, and workers that reach it over the network only."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.paths = DataPaths(root / "data")
        self.states = TaskStates(self.paths, OsFs(), ManualClock(), MAP_BYTES)
        self.service = DnodeService(SECRET, self._refuse, self.states.answer, self.states.keep)
        self.client = DnodeClient(self.service.address, SECRET)
        self.attempt = 0
        self.stores: list[StateStore] = []
        self._here: StateStore | None = None

    def _refuse(self, *message: object) -> None:
        raise AssertionError(f"nobody sends {message}")

    def begin(self, checkpoint_id: int | None, *, here: bool = False) -> tuple[StateStore, dict[str, Any] | None]:
        """Begins an attempt from a checkpoint, on a new machine, or `here`; returns its store and what it restored."""
        self.attempt += 1
        self.states.fence(TASK.stream_id, self.attempt)
        if self._here is not None:
            self._here.close()  # LMDB opens an environment once per process
            self._here = None
        store: StateStore
        if here:
            store = self._here = StateStore(self.paths.state(TASK.stream_id, str(TASK)), MAP_BYTES)
        else:
            store = CopiedState(self.root / f"machine {self.attempt}", MAP_BYTES, StateCache(), self.client, TASK)
        self.stores.append(store)
        store.enter(self.attempt)
        return store, store.restore(checkpoint_id)

    def close(self) -> None:
        for store in self.stores:
            store.close()
        self.client.close()
        self.service.shutdown()
        self.states.close()


@pytest.fixture
def dnodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Dnode]]:
    made: list[Dnode] = []

    def make() -> Dnode:
        made.append(Dnode(tmp_path_factory.mktemp("dnode")))
        return made[-1]

    yield make
    for dnode in made:
        dnode.close()


Write = tuple[int, bytes | None]
WRITES = st.lists(st.tuples(st.integers(0, 9), st.none() | st.binary(max_size=40)), max_size=12)
STEPS = st.lists(st.one_of(
    st.tuples(st.just("write"), WRITES), st.tuples(st.just("checkpoint"), st.booleans()),
    st.tuples(st.just("fail"), st.booleans())), max_size=14)


@settings(max_examples=times(10, 250), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_whoever_goes_on_has_what_was_committed(dnodes: Callable[[], Dnode], steps: list[tuple[str, Any]]) -> None:
    """Writes, deletes, checkpoints of which some are never committed, failures; on new machines and on the dnode's."""
    dnode = dnodes()
    store, meta = dnode.begin(None)
    assert meta is None
    now: dict[bytes, bytes] = {}
    committed: dict[bytes, bytes] = {}
    committed_id: int | None = None
    last_id = 0
    for kind, what in steps:
        if kind == "write":
            items = [(b"k%d" % key, value) for key, value in what]
            store.put_many(items)
            for key, value in items:
                now.pop(key, None)
                if value is not None:
                    now[key] = value
        elif kind == "checkpoint":
            last_id += 1
            store.checkpoint(last_id, {"id": last_id, "keys": len(now)})
            if what:
                store.committed(last_id, () if committed_id is None else (committed_id,))
                committed, committed_id = dict(now), last_id
        else:
            store, meta = dnode.begin(committed_id, here=what)
            now = dict(committed)
            assert meta == (None if committed_id is None else {"id": committed_id, "keys": len(committed)})
        assert dict(store.items()) == now
    store, _ = dnode.begin(committed_id, here=True)
    assert dict(store.items()) == committed


def test_large_states_travel_in_pieces(dnodes: Callable[[], Dnode]) -> None:
    """Many keys and a value larger than a batch arrive whole, both ways; what the dnode has passes its own checks."""
    dnode = dnodes()
    store, _ = dnode.begin(None)
    items = {b"%06d" % n: bytes([n % 251]) * 300 for n in range(12_000)} | {b"big": b"v" * (5 << 20)}
    store.put_many(items.items())
    store.checkpoint(1, {})
    store.committed(1)
    store.put_many([(b"000007", None)])
    store.checkpoint(2, {"n": 2})
    del items[b"000007"]
    store, meta = dnode.begin(2)
    assert meta == {"n": 2}
    assert dict(store.items()) == items
    dnode.states.forget(TASK.stream_id)
    kept = StateStore(dnode.paths.state(TASK.stream_id, str(TASK)), MAP_BYTES)
    kept.verify(2)
    kept.close()


def test_an_earlier_attempt_can_change_nothing(dnodes: Callable[[], Dnode]) -> None:
    """Whatever it tries after its successor was announced is refused, and what counts stays as it was."""
    dnode = dnodes()
    old, _ = dnode.begin(None)
    old.put_many([(b"a", b"1")])
    old.checkpoint(1, {})
    new, _ = dnode.begin(1)
    old.put_many([(b"a", b"2")])
    for attempt in (lambda: old.checkpoint(2, {}), lambda: old.reserve(9), lambda: old.restore(1)):
        with pytest.raises(StaleAttemptError, match="attempt 2 runs"):
            attempt()
    dnode.states.forget(TASK.stream_id)
    with pytest.raises(StaleAttemptError, match="the stream is gone"):
        new.checkpoint(2, {})
    dnode.attempt = 2
    last, _ = dnode.begin(1)
    assert last.items() == [(b"a", b"1")]


def test_what_is_reserved_outlives_the_machine(dnodes: Callable[[], Dnode]) -> None:
    """A number that a task has noted is there for the next attempt, whatever that goes back to."""
    dnode = dnodes()
    store, _ = dnode.begin(None)
    assert store.reserved is None
    assert store.reserve(70) == 70
    shutil.rmtree(dnode.root / "machine 1")
    store, _ = dnode.begin(None)
    assert store.reserved == 70


def test_a_checkpoint_that_the_dnode_lacks_is_named(dnodes: Callable[[], Dnode]) -> None:
    """The next attempt then starts from the one before, as where the files are at hand."""
    dnode = dnodes()
    with pytest.raises(CheckpointDamagedError, match="checkpoint 3 is missing"):
        dnode.begin(3)


def test_a_state_that_a_process_of_the_dnodes_machine_holds_is_not_taken(dnodes: Callable[[], Dnode]) -> None:
    """Two must never write it: the one over the network waits for the other, and gives up."""
    dnode = dnodes()
    holder = StateDirectories(dnode.paths, OsFs(), ManualClock())
    holder.open(TASK)
    with pytest.raises(UnavailableError, match="still held"):
        dnode.begin(None)
    holder.close()
    dnode.begin(None)


def test_a_checkpoint_that_arrives_damaged_is_refused(dnodes: Callable[[], Dnode]) -> None:
    """The dnode compares what it has kept with what the worker has; such a checkpoint never becomes valid."""
    dnode = dnodes()
    dnode.begin(None)
    changes = pa.record_batch({"key": pa.array([b"a"], pa.binary()), "value": pa.array([b"1"], pa.large_binary())})
    with pytest.raises(InternalError, match="isn't what its worker has sent"):
        dnode.client.keep_state(CheckpointOf(TASK, dnode.attempt, 1, {}, "0badcafe"), [changes])
