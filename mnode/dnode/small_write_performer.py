"""Performs the small writes of all sink tasks of one worker, in the order of their messages. Opens no connection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.common.errors import InternalError
from penstock.tasks.protocol.messages import Delivered, ResultChild, ResultWrite
from penstock.tasks.worker.write_messages import Fresh, SinkEnd, SmallWrite, WritesOf, pack_outcomes, parts, rows_of


def add_fresh(children: list[ResultChild], fresh: Fresh) -> Delivered | None:
    """Adds the children that come with a write to those known; returns where its rows were delivered from."""
    delivered: Delivered | None = None
    for one in fresh:
        if isinstance(one, Delivered):
            delivered = one
        else:
            children.append(one)
    return delivered


@dataclass(slots=True)
class _Sink:
    """What is known of a sink task on this connection."""

    writes_of: WritesOf
    schema: pa.Schema
    children: list[ResultChild] = field(default_factory=list)
    failure: bytes | None = None


class SmallWritePerformer:
    """Serves one connection; for one thread.

    Behind a write that failed none of the same sink task is performed: those get the same answer. Others go on.
    """

    def __init__(self, write: Callable[[ResultWrite], bytes | None]) -> None:
        """`write` performs a write, and returns the encoded error if it fails."""
        self._write = write
        self._sinks: dict[int, _Sink] = {}

    def perform(self, message: bytes) -> bytes:
        """Performs the writes of a message; returns the answer. InternalError if not all of it makes sense: nothing of
        it is performed then."""
        understood = [self._understand(part) for part in parts(message)]
        answers: list[tuple[int, bytes | None]] = []
        for one in understood:
            if one is not None:
                number, sink, write = one
                if sink.failure is None:
                    sink.failure = self._write(write)
                answers.append((number, sink.failure))
        return pack_outcomes(answers)

    def _understand(self, part: SmallWrite | SinkEnd) -> tuple[int, _Sink, ResultWrite] | None:
        if isinstance(part, SinkEnd):
            if self._sinks.pop(part.number, None) is None:
                raise InternalError(f"the end of sink task {part.number}, which has written nothing")
            return None
        if (part.kind is None) is not (part.number in self._sinks):
            raise InternalError(f"a small write of sink task {part.number} should say once whose it is")
        if part.kind is not None:
            self._sinks[part.number] = _Sink(*part.kind)
        sink = self._sinks[part.number]
        delivered = add_fresh(sink.children, part.fresh)
        return part.number, sink, sink.writes_of.write(sink.children, rows_of(part.rows, sink.schema), delivered)
