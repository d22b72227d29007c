"""What channels between two workers cost: `python -m bench.channels --channels 1000`; a JSON line.

Both ends are in this process, with a real connection between them. First each channel carries a signal, which opens it;
then all of them a block of 10 rows at once, again and again; then one channel carries blocks of several sizes, one
after the other. Processor time is that of both ends; threads, descriptors and memory are what was added to a server
without callers.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.common.clock import SystemClock
from penstock.tasks.exchange.channel_frames import ChannelId
from penstock.tasks.exchange.exchange_server import ExchangeServer
from penstock.tasks.exchange.outgoing_bundles import OutgoingBundles
from penstock.tasks.flow.queues import ChannelQueue
from penstock.tasks.protocol.messages import Block, Item, TaskId, Watermark

_SECRET = b"bench"
_QUEUE_BYTES = 64 << 20
_FRAMES = 5_000
_AT_ONCE = 50


class _Channel:
    """One channel with both of its ends."""

    def __init__(self, place: int, server: ExchangeServer, bundles: OutgoingBundles) -> None:
        self._up, self._down = TaskId(1, "source", place), TaskId(1, "agg", place)
        self._arrived = threading.Semaphore(0)
        self._output: ChannelQueue[TaskId] = ChannelQueue(_QUEUE_BYTES, [self._down], _ignore)
        self._input: ChannelQueue[TaskId] = ChannelQueue(_QUEUE_BYTES, [self._up], self._arrived.release)
        channel = ChannelId(1, self._up, self._down)
        server.register(channel, self._input)
        self.link = bundles.link(channel, server.address, self._output, _ignore)

    def send(self, item: Item) -> None:
        self._output.try_put(self._down, item)
        self.link.move()

    def receive(self) -> None:
        """Waits for the item."""
        self._arrived.acquire()
        self._input.take(self._up)


def _ignore() -> None:
    """Who sends here looks for itself."""


@contextmanager
def _channels(count: int, server: ExchangeServer) -> Iterator[list[_Channel]]:
    bundles = OutgoingBundles(_SECRET, SystemClock())
    channels = [_Channel(place, server, bundles) for place in range(count)]
    try:
        yield channels
    finally:
        server.unregister(1)
        for channel in channels:
            channel.link.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints what channels cost."""
    parser = argparse.ArgumentParser(prog="python -m bench.channels", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channels", type=int, default=1000)
    count = parser.parse_args(arguments).channels
    server = ExchangeServer(_SECRET)
    before, begun = _held(), time.process_time()
    with _channels(count, server) as channels:
        for at in range(0, count, _AT_ONCE):
            _all_at_once(channels[at : at + _AT_ONCE], Watermark(1))
        figures: dict[str, Any] = {"channels": count, "opening_cpu_s": time.process_time() - begun}
        figures |= {what: value - before[what] for what, value in _held().items()}
        rounds, small = max(1, _FRAMES // count), _block(10)
        begun = time.process_time()
        for _ in range(rounds):
            _all_at_once(channels, small)
        figures["ten_rows_us"] = (time.process_time() - begun) / rounds / count * 1e6
        for rows, times in ((10, 1500), (2_000, 200), (50_000, 60)):
            block, begun = _block(rows), time.process_time()
            for _ in range(times):
                _all_at_once(channels[:1], block)
            figures[f"{block.nbytes}_bytes_us"] = (time.process_time() - begun) / times * 1e6
    server.shutdown()
    sys.stdout.write(json.dumps({what: round(value, 2) for what, value in figures.items()}) + "\n")
    return 0


def _all_at_once(channels: Sequence[_Channel], item: Item) -> None:
    for channel in channels:
        channel.send(item)
    for channel in channels:
        channel.receive()


def _block(rows: int) -> Block:
    return Block(pa.record_batch({name: pa.array(range(rows), pa.int64()) for name in "abcde"}))


def _held() -> dict[str, float]:
    own = Path("/proc/self")
    pss = next(line for line in (own / "smaps_rollup").read_text().splitlines() if line.startswith("Pss:"))
    return {"threads": len(list((own / "task").iterdir())), "descriptors": len(list((own / "fd").iterdir())),
            "MiB": int(pss.split()[1]) / 1024}


if __name__ == "__main__":
    sys.exit(main())
