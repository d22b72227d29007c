"""Performs the small writes of all sink tasks of one worker, in the order of their messages. Opens no connection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.common.errors import InternalError
from penstock.tasks.dnode_access.write_messages import (
    Fresh,
    SinkEnd,
    SmallWrite,
    WritesOf,
    pack_outcomes,
    parts,
    rows_of,
)
from penstock.tasks.protocol.messages import Delivered, ResultWrite
from penstock.tasks.protocol.numbered_children import NumberedChildren


def add_fresh(children: NumberedChildren, fresh: Fresh) -> Delivered | None:
    """Adds the children that come with a write to those known; returns where its rows were delivered from.

    InternalError if they aren't any.
    """
    delivered: Delivered | None = None
    for one in fresh:
        if isinstance(one, Delivered):
            delivered = one
        else:
            try:
                children.add(one.names, one.tags)
            except (TypeError, ValueError) as error:
                raise InternalError(f"a write brings children that aren't any: {error}") from error
    return delivered


@dataclass(slots=True)
class _Sink:
    """What is known of a sink task on this connection."""

    writes_of: WritesOf
    schema: pa.Schema
    children: NumberedChildren = field(default_factory=NumberedChildren)
    failure: bytes | None = None
    #: of the write that is begun: where its answer stands, and what waits for it and returns what it failed with
    under_way: tuple[int, Callable[[], bytes | None]] | None = None

    def settle(self, answers: list[tuple[int, bytes | None]]) -> None:
        """Waits for the write that is begun, and puts what it failed with into its answer."""
        if self.under_way is not None:
            (place, wait), self.under_way = self.under_way, None
            self.failure = wait()
            answers[place] = answers[place][0], self.failure


class SmallWritePerformer:
    """Serves one connection; for one thread.

    Behind a write that failed none of the same sink task is performed: those get the same answer. Others go on. The
    writes of a message are begun one after the other and waited for at its end, so that a vnode puts them into its log
    together; a second one of a sink task begins when its first is done.
    """

    def __init__(self, begin: Callable[[ResultWrite], Callable[[], bytes | None]]) -> None:
        """`begin` begins a write; what it returns waits for its end, and returns the encoded error if it failed."""
        self._begin = begin
        self._sinks: dict[int, _Sink] = {}

    def perform(self, message: bytes) -> bytes:
        """Performs the writes of a message; returns the answer. InternalError if not all of it makes sense: nothing of
        it is performed then."""
        understood = [one for part in parts(message) if (one := self._understand(part)) is not None]
        answers: list[tuple[int, bytes | None]] = []
        for number, sink, write in understood:
            sink.settle(answers)
            if sink.failure is None:
                sink.under_way = len(answers), self._begin(write)
            answers.append((number, sink.failure))
        for _, sink, _ in understood:
            sink.settle(answers)
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
