"""How the dnode performs the small writes of a worker: order, failures, what it keeps of sink tasks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pytest

from penstock.common.errors import InternalError, StaleAttemptError
from penstock.common.sent_errors import encode_error
from penstock.mnode.dnode.small_write_performer import SmallWritePerformer
from penstock.tasks.dnode_access.write_messages import SinkEnd, SmallWrite, WritesOf, outcomes
from penstock.tasks.protocol.messages import Delivered, ResultWrite, TaskId
from penstock.tasks.protocol.numbered_children import NumberedChildren

OF = WritesOf(5, 1, TaskId(5, "sink", 0), 77)
OTHER = WritesOf(6, 2, TaskId(6, "sink", 1), 78)
CHILD, ANOTHER = NumberedChildren(["c"], [[1]]), NumberedChildren(["d"], [[2]])


def rows(start: int) -> pa.RecordBatch:
    return pa.record_batch({"ts": pa.array([start, start + 1]), "v": pa.array(["a", None])})


def part(number: int, start: int, of: WritesOf | None = None, *fresh: NumberedChildren | Delivered) -> SmallWrite:
    kind = None if of is None else (of, rows(0).schema)
    return SmallWrite(number, kind, fresh, rows(start).serialize().to_pybytes())


class Engine:
    """Remembers writes, and refuses those of some streams: in the end, since all may begin."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, int]] = []
        self.writes: list[ResultWrite] = []
        self.refused: set[int] = set()
        self.performer = SmallWritePerformer(self.begin)

    def begin(self, write: ResultWrite) -> Callable[[], bytes | None]:
        self.steps.append(("begin", write.stream_id))
        return partial(self.end, write)

    def end(self, write: ResultWrite) -> bytes | None:
        self.steps.append(("end", write.stream_id))
        if write.stream_id in self.refused:
            return encode_error(StaleAttemptError("old"))
        self.writes.append(write)
        return None

    def perform(self, *message: SmallWrite | SinkEnd) -> list[tuple[int, type | None]]:
        """Returns whose writes were performed, and what kind of error each failed with."""
        answer = self.performer.perform(b"".join(part.pack() for part in message))
        return [(one.number, None if one.error is None else type(one.error)) for one in outcomes(answer)]


def test_writes_are_performed_in_order_with_what_is_known_of_their_tasks() -> None:
    """Children add up by task in one list; where rows were delivered from counts for one write."""
    engine = Engine()
    delivered = Delivered("p", "s")
    assert engine.perform(part(0, 1, OF, CHILD, delivered), part(3, 2, OTHER)) == [(0, None), (3, None)]
    assert engine.perform(part(0, 3, None, ANOTHER)) == [(0, None)]
    children = NumberedChildren(["c", "d"], [[1, 2]])
    assert engine.writes == [OF.write(children, rows(1), delivered), OTHER.write(NumberedChildren(), rows(2)),
                             OF.write(children, rows(3))]
    assert engine.writes[0].children is engine.writes[2].children


def test_a_failure_is_that_of_one_task() -> None:
    """Nothing behind it of the same task is performed, in this message and later ones; another task goes on."""
    engine = Engine()
    engine.refused.add(5)
    assert engine.perform(part(0, 1, OF), part(1, 1, OTHER), part(0, 2), part(1, 2)) == [
        (0, StaleAttemptError), (1, None), (0, StaleAttemptError), (1, None)]
    engine.refused.clear()
    assert engine.perform(part(0, 3), part(1, 3)) == [(0, StaleAttemptError), (1, None)]
    assert [write.stream_id for write in engine.writes] == [6, 6, 6]


def test_writes_of_a_message_are_waited_for_together() -> None:
    """All are begun before one is waited for, but a task's second one begins when its first is done."""
    engine = Engine()
    engine.perform(part(0, 1, OF), part(1, 1, OTHER))
    assert engine.steps == [("begin", 5), ("begin", 6), ("end", 5), ("end", 6)]
    engine.steps.clear()
    engine.perform(part(0, 2), part(0, 3), part(1, 2))
    assert engine.steps == [("begin", 5), ("end", 5), ("begin", 5), ("begin", 6), ("end", 5), ("end", 6)]
    assert [write.rows.column("ts")[0].as_py() for write in engine.writes if write.stream_id == 5] == [1, 2, 3]


def test_the_end_of_a_task_frees_what_is_kept_of_it() -> None:
    """Its writes before the end are performed; its number is unknown from then on, and its children are gone."""
    engine = Engine()
    assert engine.perform(part(0, 1, OF, CHILD), SinkEnd(0)) == [(0, None)]
    with pytest.raises(InternalError):
        engine.perform(part(0, 2))
    assert engine.perform(part(0, 3, OTHER)) == [(0, None)]
    assert [write.children for write in engine.writes] == [CHILD, NumberedChildren()]


@pytest.mark.parametrize("bad", [
    part(9, 1), SinkEnd(9), part(0, 1, None, NumberedChildren(["d"], [[]])), part(0, 1, OTHER),
    SmallWrite(0, None, (), b"no rows"),
    SmallWrite(1, (OF, pa.schema({"v": pa.struct([("a", pa.string()), ("b", pa.int8())])})), (),
               rows(1).serialize().to_pybytes()),
])
def test_nothing_of_a_message_with_a_forged_part_is_performed(bad: SmallWrite | SinkEnd) -> None:
    """Unknown numbers, numbers of others, rows that aren't any or of another schema."""
    engine = Engine()
    engine.perform(part(0, 1, OF))
    with pytest.raises(InternalError):
        engine.perform(part(0, 2), bad)
    assert len(engine.writes) == 1
