"""Threads of a node whose turns raise what nobody foresaw: it is told, and they go on or end the node."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from kits.basics.hurried_clock import HurriedClock
from kits.basics.waiting import wait_until
from kits.cluster.memory_checkpoints import MemoryShelf
from kits.cluster.memory_logs import MemoryLog, MemoryNode, record_after

from penstock.common.clock import ManualClock
from penstock.common.errors import ReplicasMissingError, StorageError, UnavailableError
from penstock.common.fs import OsFs
from penstock.mnode.checkpoint_courier import CheckpointCourier
from penstock.mnode.checkpoints.checkpoint_copies import CheckpointsToGive
from penstock.mnode.cluster.checkpoint_taking import CheckpointTaking, TakingSettings
from penstock.mnode.cluster.cluster_messages import (
    MANIFEST,
    CheckpointCopy,
    CheckpointMessage,
    CheckpointName,
    CheckpointOffers,
    CopyAnswer,
    CopyRequest,
    PieceAnswer,
    PieceRequest,
)
from penstock.mnode.cluster.cluster_node import ClusterNode
from penstock.mnode.cluster.cluster_service import ClusterService
from penstock.mnode.cluster.node_transport import NodeTransport
from penstock.mnode.cluster.zookeeper_registry import ZookeeperRegistry
from penstock.mnode.dnode.vnode_copies import CopySources
from penstock.mnode.node_checkpoints import NodeCheckpoints
from penstock.mnode.vnode_copier import VnodeCopier
from penstock.vnode.store.vnode_options import VnodeOptions
from penstock.vnode.vnode import Vnode

ACTIVE, STANDBY, VGROUP = 1, 2, 2


class Failing:
    """Raises each of some errors once, then returns nothing."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        if self._errors:
            raise self._errors.pop(0)


@pytest.fixture
def vnode(tmp_path: Path) -> Any:
    made = Vnode.open(tmp_path / "source", VnodeOptions(VGROUP, replicated=True), fs=OsFs(), clock=ManualClock())
    made.tables.define(7, pa.schema([("ts", pa.timestamp("ms")), ("v", pa.int64())]), 1)
    made.copying.acknowledge(made.copying.written_version)
    yield made
    made.close()


def test_a_copy_is_tried_again_whatever_went_wrong(vnode: Vnode, tmp_path: Path) -> None:
    """What nobody foresaw in its own turn, or in putting the copy in its place, ends no thread."""
    turns, puts, seen = Failing(KeyError("turn")), Failing(ValueError("put"), StorageError("no room")), set[str]()
    lacking = {VGROUP: "its log begins later"}

    def no_catalog(node: int) -> Any:
        raise AssertionError(node)

    def send(node: int, message: CopyRequest | CopyAnswer) -> None:
        assert isinstance(message, CopyRequest)
        answer = sources.answer(STANDBY, message)
        if answer is not None:
            copier.receive(node, answer)

    def needed() -> tuple[int | None, Mapping[int, str]]:
        seen.update(copier.problems)
        turns()
        return ACTIVE, dict(lacking)

    def put(log: int, folder: Path) -> bool:
        puts()
        del lacking[log]
        return True

    sources = CopySources(lambda: {VGROUP: vnode}, no_catalog, ManualClock())
    copier = VnodeCopier(sources, tmp_path / "scratch", OsFs(), HurriedClock(), send, needed, put)
    copier.start()
    wait_until(lambda: not lacking, 30, "the copy isn't had")
    assert seen >= {"copies for or from other nodes wait: KeyError: 'turn'",
                    "what this node lacks can't be copied: ValueError: put",
                    "what this node lacks can't be copied: no room"}
    wait_until(lambda: not copier.problems, 30, "it is still told")
    copier.close()


class Place:
    """Stands for `NodeCheckpoints`: a node that is active, and has one stream."""

    def __init__(self) -> None:
        self.turns = Failing(KeyError("turn"))
        self.offers: list[CheckpointOffers] = []

    def tenure(self) -> int | None:
        self.turns()
        return 3

    def followed(self) -> tuple[int, int] | None:
        return None

    def written(self) -> Mapping[int, int]:
        return {}

    def others(self) -> Sequence[int]:
        return [STANDBY]

    def streams(self) -> tuple[Sequence[int], bool]:
        return [11], True

    def send(self, node: int, message: CheckpointMessage) -> None:
        assert isinstance(message, CheckpointOffers)
        self.offers.append(message)


class Giving:
    """Stands for `CheckpointsToGive`: one stream's checkpoint, which can't be copied at first."""

    copy = CheckpointCopy(CheckpointName(11, 1, 5), ((1, 4),))

    def __init__(self, *failures: Exception | str) -> None:
        self.failures = list(failures)

    def clear(self) -> None: ...

    def keep_only(self, streams: Collection[int]) -> None: ...

    def with_checkpoints(self) -> list[int]:
        return [11]

    def news(self) -> frozenset[int]:
        return frozenset()

    def make(self, streams: Sequence[int]) -> tuple[list[CheckpointCopy], dict[int, str]]:
        failure = self.failures.pop(0) if self.failures else None
        if isinstance(failure, Exception):
            raise failure
        return ([self.copy], {}) if failure is None else ([], {11: failure})


def test_a_checkpoint_that_cannot_be_copied_is_tried_again() -> None:
    """Nor is it said that all streams' checkpoints are offered before this one is."""
    place, giving = Place(), Giving(KeyError("made"), "the state is damaged")
    shelf = MemoryShelf(MemoryNode(ACTIVE, {}, 3), {})
    courier = CheckpointCourier(
        cast(NodeCheckpoints, place), cast(CheckpointsToGive, giving), shelf, HurriedClock(), 60.0)
    seen = set[str]()
    courier.start()

    def is_offered() -> bool:
        seen.update(courier.problems)
        return bool(place.offers) and place.offers[-1].complete

    wait_until(is_offered, 30, "the checkpoint isn't offered")
    courier.close()
    assert place.offers[-1].copies == (Giving.copy,)
    assert all(offer.complete == bool(offer.copies) for offer in place.offers)
    assert seen >= {"checkpoints can't be brought to other nodes, or had from one: KeyError: 'turn'",
                    "checkpoints can't be copied for other nodes: KeyError: 'made'",
                    "checkpoints can't be copied for other nodes: stream b: the state is damaged"}


def test_a_checkpoint_that_cannot_be_had_is_asked_for_ever_more_seldom() -> None:
    """And is told, until it is had."""
    node = MemoryNode(STANDBY, {1: MemoryLog([record_after(None, 1, 3, 1)])}, 3)
    taking = CheckpointTaking(MemoryShelf(node, {}, refusals=3, copied=[1]), TakingSettings())
    taking.follow((3, ACTIVE))
    taking.on_offers(ACTIVE, CheckpointOffers(3, 1, (11, 12), True, (Giving.copy,), True))
    asked_at = []
    for now in range(120):
        for _, message in taking.poll(float(now), {1: (1, 10)}):
            if isinstance(message, PieceRequest):
                is_first = message.number == MANIFEST
                asked_at += [now] if is_first else []
                data = b"[7, 7, 7, 7, 7]" if is_first else b"7"
                taking.on_answer(float(now), ACTIVE, PieceAnswer(message.name, message.number, data=data))
        assert taking.problem == ("checkpoints of stream b can't be had: the disk refuses" if now < 30 else "")
    assert asked_at == [0, 5, 15, 25]


class Hooks:
    """Implements `TenureHooks`."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def keep_up(self) -> None: ...

    def begin_tenure(self, epoch: int) -> None: ...

    def hold_writes(self, reason: str) -> None: ...

    def end_tenure(self, reason: str) -> None: ...

    def break_down(self, reason: str) -> None:
        self.told.append(reason)


def started(turn: Callable[..., Any]) -> tuple[ClusterService, Hooks]:
    """Returns a service whose node does that in each turn."""
    node = SimpleNamespace(
        settings=SimpleNamespace(nodes=(ACTIVE,)), active=None, poll=turn, life=SimpleNamespace(node=ACTIVE),
        role=SimpleNamespace(role=None, reason="", following=None))
    hooks = Hooks()
    service = ClusterService(cast(ClusterNode, node), hooks, HurriedClock(), 1.0)
    service.start(cast(ZookeeperRegistry, SimpleNamespace(poll=lambda: None)), cast(NodeTransport, SimpleNamespace()))
    return service, hooks


def test_what_nobody_foresaw_ends_the_node() -> None:
    """Nobody waits for it any more, and the process is told to start anew."""
    may_end = threading.Event()

    def turn(*_: object) -> None:
        may_end.wait()
        raise ZeroDivisionError("turn")

    service, hooks = started(turn)
    told = list[type[Exception]]()

    def promote() -> None:
        try:
            service.promote()
        except UnavailableError as error:
            told.append(type(error))

    waiting = threading.Thread(target=promote)
    waiting.start()
    may_end.set()
    waiting.join(30)
    assert told == [UnavailableError]
    assert hooks.told == [service.problem] == ["the cluster's node has broken off: ZeroDivisionError: turn"]
    with pytest.raises(UnavailableError):
        service.promote()
    with pytest.raises(ReplicasMissingError):
        service.await_acknowledged(VGROUP, 1)
    service.close()


def fails(*_: object) -> None:
    raise StorageError("disk full")


def test_a_log_that_has_been_copied_is_needed_no_more() -> None:
    """From then on, not from the next look at all nodes on: the same would be copied once more."""
    service, _ = started(fails)
    lacking = {VGROUP: "it lacks all"}
    service._node.role.following = cast(Any, SimpleNamespace(active=SimpleNamespace(node=STANDBY), epoch=3))
    service._node.standby = cast(Any, SimpleNamespace(
        copies_needed=lambda: dict(lacking), copied=lambda *_: lacking.clear(), matched=dict))
    service.copies = (STANDBY, dict(lacking))
    service.replace_log(VGROUP, lambda: cast(Any, "a log"))
    assert service.copies == (STANDBY, {})
    service.close()


def test_what_a_call_raises_is_its_callers() -> None:
    """The thread goes on, which has only lent itself."""
    service, hooks = started(fails)
    service._node.standby = cast(Any, SimpleNamespace(copies_needed=lambda: {VGROUP: "it lacks all"}))
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            service.replace_log(VGROUP, lambda: cast(Any, 1 // 0))
    assert not hooks.told
    assert service.problem == "the cluster's node can't go on for now: disk full"
    service.close()
