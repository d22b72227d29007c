"""The record of what was sent: the last results up to its bound, as of each checkpoint; from when on it is whole."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.common.errors import CorruptionError
from penstock.planner.task_plans.external_rows import REFUSED, UPSERTED
from penstock.planner.task_plans.stream_plan import ExternalSinkPlan, SinkPlan
from penstock.sql.schema import Column
from penstock.sql.types import BIGINT, VARCHAR, timestamp
from penstock.tasks.external.emit.result_events import ExternalRows
from penstock.tasks.external.emit.sent_record import ANY_TIME, SentRecord, recorded
from penstock.tasks.state.state_store import StateStore

ROWS = ExternalRows(SinkPlan(
    "hook", "", (Column("ts", timestamp(), "ts"), Column("n", BIGINT, "n")), (Column("site", VARCHAR, "site"),), "", 0,
    create=False, external=ExternalSinkPlan("hook", "webhook", "", "json")), "s")
BOUND = 8_000
Row = tuple[int, str, int, int]
"""`_op`, site, time, n."""


def batch(first: int, moments: list[int]) -> pa.RecordBatch:
    """Returns rows of these times, numbered from `first` on."""
    count = len(moments)
    return pa.RecordBatch.from_arrays([
        pa.array([UPSERTED] * count, pa.uint8()), pa.array(["here"] * count),
        pa.array(moments, pa.int64()).cast(timestamp().arrow()), pa.array(range(first, first + count), pa.int64()),
    ], schema=ROWS.schema)


def opened(root: Path, bytes_max: int = BOUND, tasks: int = 1) -> tuple[StateStore, SentRecord]:
    store = StateStore(root, 1 << 26)
    return store, SentRecord(store, ROWS, bytes_max, tasks)


def saved(store: StateStore, record: SentRecord, checkpoint_id: int) -> Any:
    """Takes a checkpoint and commits it; returns what is beside it."""
    meta = record.save()
    store.checkpoint(checkpoint_id, {"sent": meta})
    store.committed(checkpoint_id)
    return meta


def rows_at(root: Path, checkpoint_id: int) -> list[Row]:
    """Returns what a checkpoint has, as whoever only reads finds it."""
    with closing(StateStore(root, 1 << 26, readonly=True)) as store:
        store.read_as_of(checkpoint_id)
        found = recorded(store, store.meta(checkpoint_id)["sent"], ROWS.schema)
    return [(op, site, ts, n) for each in found for op, site, ts, n in zip(
        each.column(0).to_pylist(), each.column(1).to_pylist(), each.column(2).view(pa.int64()).to_pylist(),
        each.column(3).to_pylist(), strict=True)]


@settings(max_examples=times(8, 1_000), deadline=None)
@given(steps=st.lists(st.one_of(
    st.lists(st.integers(0, 1_000), min_size=1, max_size=400), st.sampled_from(["checkpoint", "kill", "settle"])),
    min_size=1, max_size=30))
def test_a_checkpoint_has_the_last_rows_that_were_sent_before_it(tmp_path_factory: pytest.TempPathFactory,
                                                                 steps: list[Any]) -> None:
    """As many as the bound lets it have, in their order, and the greatest time of those that it has lost."""
    root = tmp_path_factory.mktemp("record")
    store, record = opened(root)
    sent: list[tuple[int, int]] = []  # time and number
    at_checkpoint: list[tuple[int, int]] = []
    number, meta, checkpoint = 0, None, 0
    for step in [*steps, "checkpoint"]:
        if step == "settle":
            record.settle()
        elif step == "checkpoint":
            checkpoint += 1
            meta, at_checkpoint = saved(store, record, checkpoint), list(sent)
        elif step == "kill":
            store.close()
            store, record = opened(root)
            sent = list(at_checkpoint)
            if store.restore(checkpoint or None) is not None:
                record.restore(meta)
        else:
            sent += [(ts, number + n) for n, ts in enumerate(step)]
            record.note(batch(number, step))
            number += len(step)
    store.close()
    found = [(ts, n) for _, _, ts, n in rows_at(root, checkpoint)]
    lost = sent[:len(sent) - len(found)]
    assert found == sent[len(lost):]
    assert meta is not None
    assert meta["behind"] == max((ts for ts, _ in lost), default=None)
    assert record.nbytes == sum(part[2] for part in meta["parts"]) <= BOUND
    assert record.nbytes > BOUND // 2 or not lost


def test_checkpoints_that_come_often_make_few_parts(tmp_path: Path) -> None:
    """And none is written anew with each of them."""
    store, record = opened(tmp_path, 1 << 20)
    written = 0
    with closing(store):
        for number in range(256):
            record.note(batch(number, [number]))
            before = store.memory_bytes
            meta = record.save()
            written += store.memory_bytes - before
            store.checkpoint(number + 1, {"sent": meta})
            store.committed(number + 1)
        assert len(meta["parts"]) < 16
        assert written < 256 * 8 * 500  # a single row takes less than 500 bytes, and is merged 8 times
    assert [n for _, _, _, n in rows_at(tmp_path, 256)] == list(range(256))


def test_the_past_of_a_store_is_read_while_later_checkpoints_have_lost_it(tmp_path: Path) -> None:
    """What a checkpoint has stays readable until it is given up."""
    store, record = opened(tmp_path)
    with closing(store):
        record.note(batch(0, [1, 2, 3]))
        store.checkpoint(1, {"sent": record.save()})
        for _ in range(20):
            record.note(batch(100, list(range(100))))
        store.checkpoint(2, {"sent": record.save()})
    assert [n for _, _, _, n in rows_at(tmp_path, 1)] == [0, 1, 2]
    assert 0 not in [n for _, _, _, n in rows_at(tmp_path, 2)]


def test_what_went_to_the_dlq_is_told_apart(tmp_path: Path) -> None:
    """In its place among what was sent."""
    store, record = opened(tmp_path)
    with closing(store):
        record.note_refused(batch(0, [5]))
        record.note(batch(1, [6]))
        saved(store, record, 1)
    assert rows_at(tmp_path, 1) == [(REFUSED, "here", 5, 0), (UPSERTED, "here", 6, 1)]


@pytest.mark.parametrize(("bytes_max", "tasks"), [(0, 1), (BOUND, 2)])
def test_a_record_begins_anew(tmp_path: Path, bytes_max: int, tasks: int) -> None:
    """Where there was none for a while, and where groups may have changed their task: nothing older is whole."""
    store, record = opened(tmp_path)
    with closing(store):
        record.note(batch(0, [5]))
        before = saved(store, record, 1)
        changed = SentRecord(store, ROWS, bytes_max, tasks)
        changed.restore(before)
        changed.note(batch(1, [6]))
        meta = saved(store, changed, 2)
        assert (meta is None) == (not bytes_max)
        assert not list(store.items(b"sent/")) or bytes_max
        if not bytes_max:
            changed = SentRecord(store, ROWS, BOUND, 1)
            changed.restore(meta)
            changed.note(batch(1, [6]))
            meta = saved(store, changed, 3)
        assert meta["behind"] == ANY_TIME
    assert [n for _, _, _, n in rows_at(tmp_path, 2 if bytes_max else 3)] == [1]


def test_a_part_that_is_not_what_was_written_is_told(tmp_path: Path) -> None:
    """Bytes that aren't rows of these columns are an error, not other rows."""
    store, record = opened(tmp_path)
    with closing(store):
        record.note(batch(0, [5]))
        meta = record.save()
        ((key, _),) = store.items(b"sent/")
        store.put_many([(key, b"something else")])
        with pytest.raises(CorruptionError, match="part 0 of the record of what was sent cannot be read"):
            recorded(store, meta, ROWS.schema)
        store.put_many([(key, None)])
        with pytest.raises(CorruptionError):
            recorded(store, meta, ROWS.schema)
