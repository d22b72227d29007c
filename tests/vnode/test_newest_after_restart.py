"""The newest row of each child table after a restart: what is not known to be gone is read from where it must be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from kits.basics.faulty_fs import FaultyFs

from penstock.common.clock import ManualClock
from penstock.vnode.read import newest_rows
from penstock.vnode.store.vnode_options import VnodeOptions
from penstock.vnode.vnode import Vnode

TABLE = 9
SCHEMA = pa.schema([("ts", pa.timestamp("ms")), ("v", pa.int64())])


def opened(folder: Path) -> Vnode:
    vnode = Vnode.open(folder, VnodeOptions(1, part_grace_s=0.0), fs=FaultyFs(), clock=ManualClock())
    vnode.tables.define(TABLE, SCHEMA, 1)
    return vnode


def reopened(vnode: Vnode, folder: Path) -> Vnode:
    vnode.close()
    return opened(folder)


def write(vnode: Vnode, rows: dict[int, int], value: int | None) -> None:
    """Writes a row for each child table at a time."""
    vnode.write(TABLE, pa.record_batch({
        "_tuid": pa.array(sorted(rows), pa.uint64()),
        "ts": pa.array([rows[tuid] for tuid in sorted(rows)], pa.timestamp("ms")),
        "v": pa.array([value] * len(rows), pa.int64())}))


def newest(vnode: Vnode, *, values: bool = False) -> list[tuple[int, int | None]] | None:
    """Returns the child tables and values that were read, None if all rows must be."""
    rows = vnode.reader.newest_rows(TABLE, ["v"], values=values)
    return None if rows is None else list(zip(*(column.to_pylist() for column in rows.columns), strict=True))


@pytest.mark.parametrize("flushed", [True, False])
def test_newest_rows_are_known_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flushed: bool
) -> None:
    """From parts or from the log; of what was deleted, also before parts were merged, all rows are read."""
    vnode = opened(tmp_path)
    write(vnode, dict.fromkeys(range(1, 5), 10), 1)
    write(vnode, dict.fromkeys(range(1, 5), 20), 2)
    if flushed:
        vnode.flush()
    vnode = reopened(vnode, tmp_path)
    assert newest(vnode) == [(tuid, 2) for tuid in range(1, 5)]
    vnode.delete(TABLE, [3], 15, 25)
    if flushed:
        vnode.flush()
        vnode.compact(full=True)
    vnode = reopened(vnode, tmp_path)
    assert newest(vnode) is None  # one in four
    monkeypatch.setattr(newest_rows, "_FEW", 0)
    assert newest(vnode) == [(1, 2), (2, 2), (4, 2), (3, 1)]
    write(vnode, {3: 30}, 3)
    assert newest(vnode) == [(1, 2), (2, 2), (3, 3), (4, 2)]
    vnode.close()


def test_all_rows_are_read_of_few_that_lack_values(tmp_path: Path) -> None:
    """One in twenty is few."""
    vnode = opened(tmp_path)
    write(vnode, dict.fromkeys(range(40), 10), 1)
    write(vnode, {7: 20}, None)
    assert newest(vnode, values=True) == [*((tuid, 1) for tuid in range(40) if tuid != 7), (7, 1), (7, None)]
    assert newest(vnode) == [(tuid, None if tuid == 7 else 1) for tuid in range(40)]
    write(vnode, dict.fromkeys((8, 9), 20), None)
    assert newest(vnode, values=True) is None
    assert vnode.reader.newest_rows(TABLE, ["v"], np.array([7], np.uint64)) is not None
    vnode.close()
