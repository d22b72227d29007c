"""EXACTLY_ONCE and AT_LEAST_ONCE: who waits for barriers, and what a sink that can't replace rows sees of a failure."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.basics.places import ROOT, TESTS
from kits.streams import sink_child
from kits.streams.stream_kit import StreamKit

from penstock.tasks.flow.inbox import Inbox
from penstock.tasks.flow.queues import ChannelQueue
from penstock.tasks.protocol.messages import Barrier, Block, StartCheckpoint, TaskId
from penstock.tasks.worker.runner import drive_once

CHANNELS = [TaskId(1, "source", n) for n in range(3)]


def block(number: int) -> Block:
    return Block(pa.record_batch({"n": pa.array([number])}))


@given(st.booleans(), st.lists(st.lists(st.integers(0, 4), min_size=2, max_size=2), min_size=3, max_size=3),
       st.integers(0, 1 << 32))
def test_only_aligned_channels_wait(aligned: bool, sizes: list[list[int]], seed: int) -> None:
    """Aligned: at a checkpoint's moment exactly what was before its barriers has been taken. Unaligned: a channel that
    has something is never held back, and the moment comes when the last barrier does."""
    chance = random.Random(seed)
    queue: ChannelQueue[TaskId] = ChannelQueue(1 << 20, CHANNELS, lambda: None)
    inbox = Inbox(queue, aligned=aligned)
    lengths = dict(zip(CHANNELS, sizes, strict=True))
    items = {channel: [item for number, length in enumerate(parts)
                       for item in (*(block(number) for _ in range(length)), Barrier(number + 1))]
             for channel, parts in lengths.items()}
    taken = dict.fromkeys(CHANNELS, 0)
    moments = []
    while any(items.values()) or any(queue.peek(channel) for channel in CHANNELS):
        waiting = [channel for channel in CHANNELS if items[channel]]
        if waiting and chance.random() < 0.5:
            channel = chance.choice(waiting)
            assert queue.try_put(channel, items[channel].pop(0))
        got = (chance.random() < 0.5 and inbox.next_block((), CHANNELS[:1])) or inbox.next()
        if got is None:
            if not aligned:
                assert all(queue.peek(channel) is None for channel in CHANNELS)
            continue
        channel, item = got
        if isinstance(item, Block):
            taken[channel] += 1
        elif isinstance(item, Barrier) and inbox.barrier(channel, item):
            moments.append(item.checkpoint_id)
            before = {channel: sum(lengths[channel][:item.checkpoint_id]) for channel in CHANNELS}
            assert taken == before if aligned else all(taken[channel] >= before[channel] for channel in CHANNELS)
    assert moments == [1, 2]


@pytest.mark.parametrize("aligned", [True, False])
def test_an_abandoned_checkpoint_holds_nobody(aligned: bool) -> None:
    """Channels that waited for it go on; its barrier counts no more when it comes in the end."""
    queue: ChannelQueue[TaskId] = ChannelQueue(1 << 20, CHANNELS[:2], lambda: None)
    inbox = Inbox(queue, aligned=aligned)
    fast, slow = CHANNELS[:2]
    assert not inbox.barrier(fast, Barrier(1))
    inbox.abandon(1)
    assert not inbox.aligning
    assert not inbox.barrier(slow, Barrier(1))
    assert not inbox.aligning
    assert not inbox.barrier(fast, Barrier(2))
    assert inbox.barrier(slow, Barrier(2))


# --- a sink that cannot replace rows ---------------------------------------------------------------------------------


def seen_after_a_kill(root: Path, guarantee: str, moment: str, number: int) -> list[int]:
    """Lets the process of sink_child.py kill itself, and this one go on; returns what the sink's database has then."""
    root.mkdir()
    command = [sys.executable, sink_child.__file__, str(root), guarantee, moment, str(number)]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "src"), str(TESTS)]))
    killed = subprocess.run(command, env=environment, check=False, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    return sink_child.play(root, guarantee)


@pytest.mark.slow
@pytest.mark.parametrize(("moment", "number", "replays"), [("stepped", 7, True), ("written", 3, True),
                                                           ("recorded", 2, False)])
def test_replays_are_seen_under_at_least_once_and_not_under_exactly_once(
    tmp_path: Path, moment: str, number: int, replays: bool
) -> None:
    """The same rows and the same kill -9: what was written since the checkpoint comes twice, or once; nothing is lost.

    Right behind a commit record there is nothing to replay, and what wasn't told to the sink is committed all the same.
    """
    values = list(range(sink_child.ROWS))
    assert seen_after_a_kill(tmp_path / "exactly", "EXACTLY_ONCE", moment, number) == values
    seen = seen_after_a_kill(tmp_path / "least", "AT_LEAST_ONCE", moment, number)
    assert set(seen) == set(values)
    assert (len(seen) > len(values)) == replays


def test_state_counts_rows_again_under_at_least_once_only(tmp_path: Path) -> None:
    """A channel that runs ahead of the others' barriers is in the state and read again after a kill."""
    counts = {}
    for guarantee in ("EXACTLY_ONCE", "AT_LEAST_ONCE"):
        kit = StreamKit(
            tmp_path / guarantee, f"CREATE STREAM s TRIGGER AT_ONCE GUARANTEE {guarantee} INTO o AS "
            "SELECT _wstart, count(*) n FROM meters INTERVAL(1h)", vnodes=2, tables=4)
        try:
            kit.insert([(n % 4, 1000 + n, n) for n in range(8)], ("voltage",))
            kit.run()
            sources = [task for task in kit.tasks if task.id.operator == "source"]
            others = [task for task in kit.tasks if task.id.operator != "source"]
            first, second = sources
            kit.checkpoints += 1
            kit.post(StartCheckpoint(kit.checkpoints), "source")
            drive(kit, [first, *others])  # the second source's barrier isn't on its way yet
            kit.insert([(n % 4, 2000 + n, n) for n in range(8)], ("voltage",))
            drive(kit, [first, *others])
            drive(kit, [second, *others])
            kit.run()
            kit.committed = kit.checkpoints
            kit.kill()
            kit.run()
            counts[guarantee] = kit.rows()[0]["n"]
        finally:
            kit.close()
    assert counts["EXACTLY_ONCE"] == 16
    assert counts["AT_LEAST_ONCE"] > 16


def drive(kit: StreamKit, tasks: list[Any]) -> None:
    """Steps only these tasks, and moves what they sent."""
    while drive_once(tasks, kit.stream.links):
        continue
