"""Deletes and rows that are written together: no reader sees a part of them, and no crash leaves one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from kits.basics.faulty_fs import FaultyFs

from penstock.common.clock import ManualClock
from penstock.common.errors import InvalidValueError, PenstockError, StorageError
from penstock.common.fs import OsFs
from penstock.vnode.read.detached_reader import DetachedVnode
from penstock.vnode.store.vnode_options import VnodeOptions
from penstock.vnode.vnode import Vnode
from penstock.vnode.write.vnode_writer import Change, DeletedRows, WrittenRows
from penstock.wal import record_plan
from penstock.wal.copied_log import CopiedLog
from penstock.wal.segment import list_segments, segment_name

TABLE, OTHER = 10, 11
SCHEMA = pa.schema([("ts", pa.timestamp("ms")), ("v", pa.string())])


class Clock(ManualClock):
    """Is asked for the time between the records of one change."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Callable[[], object] = int

    def now_ms(self) -> int:
        self.asked()
        return super().now_ms()


def opened(directory: Path, fs: FaultyFs | None = None, clock: ManualClock | None = None,
           segment_bytes: int = 64 << 20) -> Vnode:
    """Opens a vnode with two tables."""
    vnode = Vnode.open(directory, VnodeOptions(1, segment_bytes=segment_bytes), fs=fs or FaultyFs(),
                       clock=clock or ManualClock())
    for table in (TABLE, OTHER):
        vnode.tables.define(table, SCHEMA, 1)
    return vnode


def rows(**values: str) -> pa.RecordBatch:
    """Returns rows of child table 1, by their times: `t5="x"`."""
    return pa.record_batch([
        pa.array([1] * len(values), pa.uint64()), pa.array([int(name[1:]) for name in values], pa.timestamp("ms")),
        pa.array(list(values.values()))], names=["_tuid", "ts", "v"])


def gone(*times: int) -> DeletedRows:
    return DeletedRows(TABLE, np.full(len(times), 1, np.uint64), np.array(times, np.int64))


def held(vnode: Vnode | DetachedVnode) -> tuple[dict[int, str], dict[int, str]]:
    """Returns what both tables hold, by time."""
    reader = vnode.reader if isinstance(vnode, Vnode) else vnode
    found = [reader.snapshot(table).to_arrow() for table in (TABLE, OTHER)]
    first, second = (dict(zip(table.column("ts").cast(pa.int64()).to_pylist(), table.column("v").to_pylist(),
                              strict=True)) for table in found)
    return first, second


BEFORE = ({1: "a", 2: "b", 3: "c"}, {1: "a"})
AFTER = ({1: "x", 3: "c", 4: "y"}, {1: "a", 2: "z"})


def filled(vnode: Vnode) -> Vnode:
    vnode.write(TABLE, rows(t1="a", t2="b", t3="c"))
    vnode.write(OTHER, rows(t1="a"))
    assert held(vnode) == BEFORE
    return vnode


def changes(padding: str = "") -> list[Change]:
    """What makes AFTER of BEFORE: deletes, and rows of both tables."""
    return [gone(1, 2, 9), WrittenRows(TABLE, rows(t1="x", t4="y" + padding)), WrittenRows(OTHER, rows(t2="z"))]


def change(vnode: Vnode) -> None:
    begun = vnode.writer.begin_together(changes())
    assert begun is not None
    assert begun.wait() == vnode.acknowledged_version
    assert held(vnode) == AFTER


def test_a_part_is_never_seen(tmp_path: Path) -> None:
    """Whoever writes the log in between writes none of what isn't whole; other processes don't see it either."""
    clock = Clock()
    vnode = filled(opened(tmp_path, clock=clock))
    outside = DetachedVnode(tmp_path, 1, OsFs())
    seen = []

    def write_the_log() -> None:
        # Another writer, which waits for its own record, would write all that is enqueued.
        thread = threading.Thread(target=vnode._wal.commit_all)
        thread.start()
        thread.join()
        seen.append((held(vnode), held(outside)))

    clock.asked = write_the_log
    begun = vnode.writer.begin_together(changes())
    clock.asked = int
    assert seen == [(BEFORE, BEFORE)] * 3
    assert held(vnode) == BEFORE
    assert begun is not None
    begun.wait()
    assert (held(vnode), held(outside)) == (AFTER, AFTER)
    vnode.close(flush=False)
    assert held(opened(tmp_path)) == AFTER


def test_a_log_that_breaks_off_has_all_or_nothing(tmp_path: Path) -> None:
    """Wherever the last bytes are missing, a start finds what was before, and goes on from there."""
    vnode = filled(opened(tmp_path / "0"))
    path = tmp_path / "0/wal" / segment_name(1)
    begin = path.stat().st_size
    change(vnode)
    vnode.close(flush=False)
    data, end = path.read_bytes(), (tmp_path / "0/wal/END").read_bytes()
    for size in range(begin, len(data) + 1, 8):
        directory = tmp_path / str(size)
        filled(opened(directory)).close(flush=False)
        (directory / "wal" / path.name).write_bytes(data[:size])
        assert end != (directory / "wal/END").read_bytes()  # one that knows nothing of what is missing
        again = opened(directory)
        assert held(again) == (AFTER if size == len(data) else BEFORE)
        if size < len(data):
            change(again)
        again.close(flush=False)
        assert held(opened(directory)) == AFTER


@pytest.mark.parametrize("fault", ["error", "short"])
def test_a_disk_that_refuses_leaves_nothing(tmp_path: Path, fault: str) -> None:
    """The write fails as a whole, and can be done again."""
    fs = FaultyFs(fault=fault)
    vnode = filled(opened(tmp_path, fs))
    fs.fail_at = fs.calls + 1
    begun = vnode.writer.begin_together(changes())
    assert begun is not None
    with pytest.raises(StorageError):
        begun.wait()
    assert held(vnode) == BEFORE
    change(vnode)
    vnode.close(flush=False)
    assert held(opened(tmp_path)) == AFTER


def test_what_can_not_be_begun_as_a_whole_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that is too large takes back those before it, and nothing else."""
    vnode = filled(opened(tmp_path))
    monkeypatch.setattr(record_plan, "MAX_PAYLOAD", 1000)
    earlier = vnode.writer.begin_write(OTHER, rows(t7="not waited for"))
    version = vnode.acknowledged_version + 1
    with pytest.raises(InvalidValueError, match="too large"):
        vnode.writer.begin_together(changes(padding="y" * 1000))
    assert earlier.wait() == vnode.acknowledged_version == version
    assert held(vnode) == (BEFORE[0], {**BEFORE[1], 7: "not waited for"})
    begun = vnode.writer.begin_together(changes())
    assert begun is not None
    begun.wait()
    vnode.close(flush=False)
    assert held(opened(tmp_path)) == (AFTER[0], {**AFTER[1], 7: "not waited for"})


def test_where_there_is_nothing_to_do_nothing_is_written(tmp_path: Path) -> None:
    """Nor where a change can't be prepared."""
    vnode = filled(opened(tmp_path))
    version = vnode.acknowledged_version
    assert vnode.writer.begin_together([gone(8, 9)]) is None
    assert vnode.writer.begin_together([]) is None
    assert vnode.acknowledged_version == version
    with pytest.raises(PenstockError, match="no columns"):
        vnode.writer.begin_together(
            [gone(1), WrittenRows(TABLE, rows(t1="a").rename_columns(["_tuid", "ts", "other"]))])
    assert held(vnode) == BEFORE


def test_copies_and_segments_hold_all_of_it(tmp_path: Path) -> None:
    """However few bytes a copy asks for, it gets all that belongs together; and no segment ends in its middle."""
    vnode = filled(opened(tmp_path / "active", segment_bytes=400))
    begin = vnode.acknowledged_version
    whole = {*range(begin + 1)}
    for number in range(6):
        begun = vnode.writer.begin_together([WrittenRows(TABLE, rows(t1=f"x{number}" * 20)),
                                      WrittenRows(OTHER, rows(t2=f"z{number}" * 20)),
                                      *([gone(3)] if number == 4 else [])])
        assert begun is not None
        whole.add(begun.wait())
    starts = list_segments(OsFs(), tmp_path / "active/wal")
    assert len(starts) > 3
    assert {start - 1 for start in starts[1:]} <= whole
    copied = CopiedLog(vnode._wal, tmp_path / "active/wal", FaultyFs(), 1)
    reached, last = begin, vnode.acknowledged_version
    for limit in (begin + 1, None):
        while (found := copied.read(reached, 1, limit)) is not None:
            reached = found.last
            assert reached in whole
    assert reached == last
