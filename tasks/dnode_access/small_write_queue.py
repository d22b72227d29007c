"""Which small writes of a worker go in one message, and when: decides; has no threads and no connection itself."""

from __future__ import annotations

from collections import deque

from penstock.tasks.protocol.wire import SENT_AHEAD

_MESSAGES_AHEAD = 2  # while one is performed the next one is on its way


class SmallWriteQueue:
    """The writes of all sink tasks, as they are packed, in their order. Not thread-safe.

    What is added waits until it is released, and while enough is on its way: a message costs both sides more than
    most writes in it. Never so much is on its way that sending would wait for the dnode to read.
    """

    def __init__(self) -> None:
        self._added: list[tuple[int, bytes]] = []
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._sent: deque[int] = deque()  # bytes of the messages on their way
        self._sent_bytes = 0

    def add(self, number: int, packed: bytes) -> None:
        """Adds a part of a message that the sink task with this number sends."""
        self._added.append((number, packed))

    def release(self) -> None:
        """Lets what was added be sent."""
        self._waiting.extend(self._added)
        self._added.clear()

    def drop(self, number: int) -> None:
        """Drops what waits of a sink task."""
        self._added = [part for part in self._added if part[0] != number]
        self._waiting = deque(part for part in self._waiting if part[0] != number)

    def next_message(self) -> bytes | None:
        """Returns what is to be sent now; None: nothing waits, or enough is on its way."""
        if len(self._sent) >= _MESSAGES_AHEAD:
            return None
        # SENT_AHEAD is MESSAGE_MAX, too, and no write is larger than that.
        taken: list[bytes] = []
        size = 0
        while self._waiting and self._sent_bytes + size + len(self._waiting[0][1]) <= SENT_AHEAD:
            packed = self._waiting.popleft()[1]
            taken.append(packed)
            size += len(packed)
        if not taken:
            return None
        self._sent.append(size)
        self._sent_bytes += size
        return b"".join(taken)

    def note_answer(self) -> None:
        """Takes note that the oldest message is answered; raises IndexError if there is none."""
        self._sent_bytes -= self._sent.popleft()
