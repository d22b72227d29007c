"""The budget of an engine for queued bytes: never exceeded, shared equally, and never all taken."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kits.engines.runtime_fakes import numbers

from penstock.mnode.coordinator.queue_shares import QueueShare, QueueShares
from penstock.tasks.flow.queues import ChannelQueue, QueueSet
from penstock.tasks.protocol.messages import Block

ROW_BYTES = numbers(0, 1).nbytes
BUDGET, QUEUE_MAX = 1 << 15, 1 << 13
CHANNELS = 2


@dataclass
class Worker:
    """One worker's queues of one stream, and what is on its way to and from the mnode."""

    attempt: int
    queues: list[ChannelQueue[int]]
    orders: deque[QueueShare] = field(default_factory=deque)
    reports: deque[tuple[int, int]] = field(default_factory=deque)
    set: QueueSet = field(default_factory=QueueSet)


class Budget(RuleBasedStateMachine):
    """Streams come and go, queues fill and drain, and every message takes as long as it likes, in order."""

    @initialize()
    def begin(self) -> None:
        self.shares = QueueShares(BUDGET)
        self.streams: dict[int, list[Worker]] = {}
        self.attempts = 0

    @rule(stream=st.integers(1, 5), counts=st.lists(st.integers(2, 5), min_size=1, max_size=2))
    def deploy(self, stream: int, counts: list[int]) -> None:
        """A stream comes, or gets another attempt: nothing is left of the one before."""
        if stream in self.streams:
            counts = [len(worker.queues) for worker in self.streams[stream]]
        capacity = self.shares.enter(stream, counts, QUEUE_MAX)
        if capacity < CHANNELS * ROW_BYTES:
            # Where others hold nearly everything, a row goes beyond a share: alone, so that things go on.
            self.shares.leave(stream)
            self.streams.pop(stream, None)
            return
        self.attempts += 1
        workers = [Worker(self.attempts, [ChannelQueue(capacity, range(CHANNELS), lambda: None) for _ in range(count)])
                   for count in counts]
        for worker in workers:
            worker.set.add(worker.queues)
        self.streams[stream] = workers
        self.share()

    @rule(data=st.data())
    @precondition(lambda self: self.streams)
    def remove(self, data: Any) -> None:
        stream = data.draw(st.sampled_from(sorted(self.streams)))
        del self.streams[stream]
        self.shares.leave(stream)
        self.share()

    @rule(data=st.data(), rows=st.integers(1, QUEUE_MAX // ROW_BYTES), channel=st.integers(0, CHANNELS - 1))
    @precondition(lambda self: self.streams)
    def put(self, data: Any, rows: int, channel: int) -> None:
        queue = data.draw(st.sampled_from(self.worker(data).queues))
        queue.put_pieces(channel, deque([Block(numbers(0, rows))]))

    @rule()
    def fill(self) -> None:
        """Everybody takes what there is."""
        for queue in self.all_queues():
            for channel in queue.channels:
                queue.put_pieces(channel, deque([Block(numbers(0, QUEUE_MAX // ROW_BYTES))]))

    @rule(data=st.data(), channel=st.integers(0, CHANNELS - 1), blocks=st.integers(1, 50))
    @precondition(lambda self: self.streams)
    def take(self, data: Any, channel: int, blocks: int) -> None:
        queue = data.draw(st.sampled_from(self.worker(data).queues))
        for _ in range(blocks):
            queue.take(channel)

    @rule(data=st.data())
    @precondition(lambda self: self.streams)
    def obey(self, data: Any) -> None:
        worker = self.worker(data)
        if worker.orders:
            share = worker.orders.popleft()
            worker.set.bound(share.order, share.queue_bytes)

    @rule(data=st.data())
    @precondition(lambda self: self.streams)
    def report(self, data: Any) -> None:
        worker = self.worker(data)
        held = worker.set.held()
        assert held is not None
        worker.reports.append(held)

    @rule(data=st.data())
    @precondition(lambda self: self.streams)
    def hear(self, data: Any) -> None:
        stream = data.draw(st.sampled_from(sorted(self.streams)))
        for place, worker in enumerate(self.streams[stream]):
            if worker.reports:
                self.shares.heard(stream, place, *worker.reports.popleft())
        self.share()

    @invariant()
    def budget_holds(self) -> None:
        """No queue has more than it may ever have, all together never more than the budget, nor what the mnode says."""
        used = [queue.used_bytes for queue in self.all_queues()]
        assert max(used, default=0) <= QUEUE_MAX
        assert sum(used) <= self.shares.held <= BUDGET
        for queue in self.all_queues():
            queue.validate()

    def teardown(self) -> None:
        """Once all is drained and all messages are there, everybody has the same."""
        for queue in self.all_queues():
            for channel in queue.channels:
                while queue.take(channel) is not None:
                    pass
        for _ in range(100):
            for stream, workers in self.streams.items():
                for place, worker in enumerate(workers):
                    while worker.orders:
                        share = worker.orders.popleft()
                        worker.set.bound(share.order, share.queue_bytes)
                    held = worker.set.held()
                    assert held is not None
                    self.shares.heard(stream, place, *held)
            self.share()
        counts = [sum(len(worker.queues) for worker in workers) for workers in self.streams.values()]
        fair = BUDGET // (sum(counts) + max(counts, default=1))
        found = {queue.capacity_bytes for queue in self.all_queues()}
        assert len(found) <= 1
        assert all(min(QUEUE_MAX, fair * 8 // 9) <= share <= fair for share in found)

    def share(self) -> None:
        for share in self.shares.decide():
            for worker in self.streams[share.stream_id]:
                worker.orders.append(share)

    def worker(self, data: Any) -> Worker:
        stream = data.draw(st.sampled_from(sorted(self.streams)))
        workers: list[Worker] = self.streams[stream]
        return data.draw(st.sampled_from(range(len(workers))).map(workers.__getitem__))  # type: ignore[no-any-return]

    def all_queues(self) -> list[ChannelQueue[int]]:
        return [queue for workers in self.streams.values() for worker in workers for queue in worker.queues]


Budget.TestCase.settings = settings(max_examples=times(24, 600), stateful_step_count=40, deadline=None)
TestBudget = Budget.TestCase


def test_streams_that_nobody_empties_leave_room_for_others() -> None:
    """Six streams fill their queues one after the other, and never drain: the next one always gets something."""
    shares = QueueShares(6000)
    got = [shares.enter(stream, (5,), 1000) for stream in range(6)]
    for share in shares.decide():
        shares.heard(share.stream_id, 0, share.order, 5 * got[share.stream_id])
    assert got[0] == 600
    assert all(following > 0 for following in got)
    assert shares.held <= 6000


def test_a_stream_that_goes_leaves_its_share_to_the_others() -> None:
    """Two streams have a third each (and as much is free); alone, one has half, or what a queue may have at most."""
    shares = QueueShares(6000)
    for stream in (1, 2):
        shares.enter(stream, (2, 3), 1000)
    shares.decide()
    shares.leave(2)
    assert shares.decide()[-1].queue_bytes == 600
    assert QueueShares(6000).enter(1, (2,), 1000) == 1000
    assert QueueShares(0).enter(1, (200,), 1000) == 1000


def test_of_many_streams_each_is_told_of_a_few_others_only() -> None:
    """Streams come one by one, and what the last one of a thousand changes is nothing, or one step for all."""
    shares = QueueShares(1 << 30)
    told = []
    for stream in range(1000):
        shares.enter(stream, (4,), 60 << 20)
        changed = shares.decide()
        told.append(len(changed))
        for share in changed:
            shares.heard(share.stream_id, 0, share.order, 4 * share.queue_bytes)
    assert sum(told) < 40 * 1000  # 500,000 if each came to hear of each
    assert sum(count > 0 for count in told[500:]) <= 20
    assert 0.85 * (1 << 30) < shares.held <= 1 << 30


def test_an_order_that_comes_before_the_queues_counts_for_them() -> None:
    """Building tasks takes a while; older orders that come late change nothing."""
    queues = QueueSet()
    assert queues.held() is None
    queues.bound(2, 500)
    queue: ChannelQueue[int] = ChannelQueue(1000, [0], lambda: None)
    queues.add([queue])
    queues.bound(1, 900)
    assert (queue.capacity_bytes, queues.held()) == (500, (2, 500))


@given(st.lists(st.integers(0, 40), max_size=20), st.integers(2, 100), st.integers(2, 100))
def test_pieces_hold_all_rows_in_order(sizes: list[int], rows_max: int, rows_later: int) -> None:
    """Blocks larger than a queue are cut, also when the bound changes half-way; no row is lost or moves."""
    queue: ChannelQueue[int] = ChannelQueue(rows_max * ROW_BYTES, [0], lambda: None)
    pieces = deque(Block(numbers(100 * place, rows)) for place, rows in enumerate(sizes))
    expected = [n for block in pieces for n in block.data.column("n").to_pylist()]
    taken: list[int] = []
    while not queue.put_pieces(0, pieces):
        queue.validate()
        item = queue.take(0)
        assert isinstance(item, Block)
        taken += item.data.column("n").to_pylist()
        queue.bound(rows_later * ROW_BYTES)
    while (item := queue.take(0)) is not None:
        assert isinstance(item, Block)
        taken += item.data.column("n").to_pylist()
    assert taken == expected


def test_a_lower_bound_waits_until_the_queue_has_drained() -> None:
    """What is there stays, nothing is put until it has gone below, and whoever waited is told when there is room."""
    told: list[int] = []
    queue: ChannelQueue[int] = ChannelQueue(10 * ROW_BYTES, [0], lambda: told.append(1))
    for _ in range(2):
        assert queue.try_put(0, Block(numbers(0, 5)))
    queue.bound(6 * ROW_BYTES)
    assert queue.held_bytes == 10 * ROW_BYTES
    assert not queue.try_put(0, Block(numbers(0, 1)))
    before = len(told)
    queue.take(0)
    assert len(told) == before + 1
    assert queue.held_bytes == 6 * ROW_BYTES
    assert queue.try_put(0, Block(numbers(0, 1)))
    assert not queue.try_put(0, Block(numbers(0, 1)))


@pytest.mark.parametrize("rows", [1, 2])
def test_only_a_single_row_may_be_larger_than_a_queue(rows: int) -> None:
    """It is alone then."""
    queue: ChannelQueue[int] = ChannelQueue(ROW_BYTES // 2, [0], lambda: None)
    assert queue.try_put(0, Block(numbers(0, rows))) is (rows == 1)


def test_what_was_said_before_the_last_order_counts_no_more() -> None:
    """A share goes down and up again; that the queues were low in between says nothing of what they hold now."""
    shares = QueueShares(6000)
    shares.enter(1, (5,), 1000)
    shares.enter(2, (5,), 1000)
    assert [share.queue_bytes for share in shares.decide() if share.stream_id == 1] == [400]
    shares.leave(2)
    assert shares.decide() == [QueueShare(1, 2, 600)]
    held = shares.held
    shares.heard(1, 0, 1, 2000)
    assert shares.held == held >= 3000
    shares.heard(1, 0, 2, 3000)
    assert shares.held == 3000
