"""What waits for the output queue is cut into blocks that know about how large they are."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.tasks.flow.outbox import cut
from penstock.tasks.protocol.messages import Block, TaskId


def _block(rows: int) -> Block:
    return Block(pa.record_batch({"n": pa.array(range(rows), pa.int64())}))


@given(st.integers(1, 300), st.integers(1, 2000))
def test_pieces_are_all_rows_in_order_and_as_large_as_they_may_be(rows: int, bytes_max: int) -> None:
    """A piece shares its buffers with the others: it must not count as all of them, or it would be cut for ever."""
    block = _block(rows)
    pieces = cut(block, bytes_max)
    assert [n for piece in pieces for n in piece.data.column("n").to_pylist()] == list(range(rows))
    assert all(piece.nbytes <= bytes_max or piece.data.num_rows == 1 for piece in pieces)
    assert all(abs(piece.nbytes - 8 * piece.data.num_rows) <= rows.bit_length() for piece in pieces)
    assert len(pieces) == 1 or block.nbytes > bytes_max


def test_ids_of_a_vnodes_tasks_are_told_apart_quickly() -> None:
    """Queues look channels up by them: those of a stream shouldn't share their hashes."""
    tasks = [TaskId(stream, level, index) for stream in (1, 2, 2000) for index in range(8)
             for level in ("source", "agg", "sink")]  # type: ignore[arg-type]
    assert len({hash(task) for task in tasks}) == len(tasks)
