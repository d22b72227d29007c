"""Power cuts at every write boundary of a script, and at random ones: what was synced is there, the rest is cut off."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import times
from simulation.disk import Disk, PowerLost

from penstock.common.clock import ManualClock
from penstock.common.errors import PenstockError
from penstock.mnode.admin.sandbox import Sandbox
from penstock.tasks.state.state_store import StateStore
from penstock.vnode.store.vnode_options import VnodeOptions
from penstock.vnode.vnode import Vnode

TABLE = 7
SCHEMA = pa.schema([("ts", pa.timestamp("ms")), ("v", pa.int64())])
OPERATIONS = 200
#: Every how many calls to the disk the power is cut; a prime, so that it meets all kinds of calls.
STRIDE = times(31, 1)
PAGE = 4096

Rows = dict[int, int]


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory: the simulated disk says what survives, not the machine's."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="power-", dir=shared if shared.is_dir() else None) as name:
        yield Path(name)


def open_vnode(root: Path, disk: Disk, process: str, level: int) -> Vnode:
    options = VnodeOptions(1, wal_level=level, segment_bytes=2000, compact_min_parts=4, part_grace_s=0.0)
    return Vnode.open(root / "vnode", options, fs=disk.view(process), clock=ManualClock())


def script(chance: random.Random) -> list[tuple[str, int, int]]:
    """Returns writes, deletes, flushes, syncs and compactions of a small table."""
    names = ["write"] * 12 + ["delete", "flush", "flush", "sync", "compact"]
    return [(chance.choice(names), chance.randrange(30), number) for number in range(OPERATIONS)]


def play(root: Path, disk: Disk, operations: list[tuple[str, int, int]], level: int) -> tuple[list[Rows], int]:
    """Plays until the power is cut or the script is over.

    Returns the states of the table after each acknowledged operation, the last one perhaps not acknowledged, and the
    place of the last state that is durable.
    """
    states: list[Rows] = [{}]
    durable = 0
    try:
        vnode = open_vnode(root, disk, "first", level)
        vnode.tables.define(TABLE, SCHEMA, 1)
        for name, key, number in operations:
            rows = dict(states[-1])
            if name == "write":
                rows[key] = number
                states.append(rows)
                vnode.write(TABLE, pa.RecordBatch.from_pydict(
                    {"_tuid": pa.array([1], pa.uint64()), "ts": pa.array([key], pa.timestamp("ms")), "v": [number]}))
            elif name == "delete":
                states.append({ts: v for ts, v in rows.items() if not key <= ts <= key + 3})
                vnode.delete(TABLE, None, key, key + 3)
            elif name == "flush":
                vnode.flush()
            elif name == "sync":
                vnode.sync()
            else:
                vnode.compact()
                vnode.maintain()
            if level == 2 or name in ("flush", "sync"):
                durable = len(states) - 1
    except PowerLost:
        pass
    disk.kill("first")
    return states, durable


def read(root: Path, disk: Disk, level: int) -> Rows:
    """Opens the vnode after the power is back, and returns its rows."""
    vnode = open_vnode(root, disk, "second", level)
    try:
        vnode.tables.define(TABLE, SCHEMA, 1)
        stored = vnode.reader.snapshot(TABLE).to_arrow()
        vnode.reader.verify()
        return dict(zip(stored.column("ts").cast(pa.int64()).to_pylist(), stored.column("v").to_pylist(), strict=True))
    finally:
        disk.kill("second")


def cut_at(place: Path, boundary: int, operations: list[tuple[str, int, int]], level: int, seed: int) -> bool:
    """Cuts the power at a call to the disk; returns whether the script came so far."""
    disk = Disk(place, random.Random(seed))
    disk.faults[boundary] = "power"
    states, durable = play(place, disk, operations, level)
    reached = disk.off
    if reached:
        disk.cut_power()
        found = read(place, disk, level)
        assert found in states[durable:], f"cut at call {boundary} (seed {seed}): {disk.failed}"
    shutil.rmtree(place / "vnode")
    return reached


@pytest.mark.parametrize("level", [1, 2])
def test_every_boundary_of_a_script(memory: Path, level: int) -> None:
    """Wherever the power is cut: the rows are those after some operation, none that was durable is missing.

    All boundaries are for `make nightly`; otherwise it is every STRIDE-th.
    """
    operations = script(random.Random(7))
    boundary = 1
    while cut_at(memory, boundary, operations, level, seed=boundary):
        boundary += STRIDE
    assert boundary > 2 * OPERATIONS


@pytest.mark.parametrize("seed", range(40))
def test_random_boundaries_of_random_scripts(memory: Path, seed: int) -> None:
    """As above, with another script, another place and other garbage for each seed."""
    chance = random.Random(seed)
    cut_at(memory, chance.randint(1, 300), script(chance), chance.choice([1, 2]), seed)


def torn(before: bytes, after: bytes, chance: random.Random) -> bytes:
    """Returns a file as a power cut in the middle of an LMDB commit may leave it: some pages new, not the two of meta.

    LMDB syncs the data pages before it writes a meta page, which makes them count.
    """
    pages = []
    for start in range(0, len(after), PAGE):
        old, new = before[start:start + PAGE], after[start:start + PAGE]
        meta = start < 2 * PAGE
        pages.append(old if (meta or chance.random() < 0.5) and len(old) == PAGE else new)
    return b"".join(pages)


@pytest.mark.parametrize("seed", range(20))
def test_a_task_state_survives_torn_commits(tmp_path: Path, seed: int) -> None:
    """Whatever pages of a commit arrive: the checkpoint before it is intact."""
    chance = random.Random(seed)
    folder = tmp_path / "state"
    store = StateStore(folder, 1 << 22)
    store.restore(None)
    contents: dict[int, list[tuple[bytes, bytes]]] = {}
    for checkpoint in range(1, 8):
        before = (folder / "data.mdb").read_bytes()
        keys = [b"%04d" % chance.randrange(60) for _ in range(chance.randint(1, 40))]
        store.put_many((key, None if chance.random() < 0.2 else chance.randbytes(chance.choice([8, 3000])))
                       for key in keys)
        store.checkpoint(checkpoint, {"n": checkpoint})
        if checkpoint > 1:
            check_torn(tmp_path / f"cut-{checkpoint}", torn(before, (folder / "data.mdb").read_bytes(), chance),
                       checkpoint - 1, contents[checkpoint - 1])
        contents[checkpoint] = store.items()
    store.close()


def check_torn(folder: Path, data: bytes, checkpoint: int, wanted: Any) -> None:
    """Opens a torn state and compares what the checkpoint holds."""
    folder.mkdir()
    (folder / "data.mdb").write_bytes(data)
    store = StateStore(folder, 1 << 22)
    try:
        meta = store.restore(checkpoint)
        assert meta == {"n": checkpoint}
        assert store.items() == wanted
    finally:
        store.close()


def test_a_cut_in_the_middle_of_a_first_start_leaves_nothing_strange(memory: Path) -> None:
    """If the power goes while a vnode is created for the first time, it opens empty, or is created once more."""
    for boundary in range(1, 30):
        disk = Disk(memory, random.Random(boundary))
        disk.faults[boundary] = "power"
        try:
            open_vnode(memory, disk, "first", 2)
        except PowerLost:
            disk.kill("first")
            disk.cut_power()
            try:
                assert read(memory, disk, 2) == {}
            except PenstockError as error:
                raise AssertionError(f"cut at call {boundary}: {error}") from error
        disk.kill("first")
        shutil.rmtree(memory / "vnode")


def test_a_stream_begins_behind_what_a_power_cut_would_leave() -> None:
    """The versions before a stream are on disk when it is created, also under WAL_LEVEL 1: none is given out again."""
    with Sandbox(now_ms=1_700_000_000_000) as bed:
        for statement in ("CREATE DATABASE d VGROUPS 1 WAL_LEVEL 1", "USE d", "CREATE TABLE t (ts TIMESTAMP, v INT)",
                          "INSERT INTO t VALUES (1700000000000, 1)"):
            bed.engine.execute(statement, bed.session)
        (vgroup_id,) = bed.engine.catalog.database("d").vgroup_ids
        vnode = bed.engine.storage.vnode(vgroup_id)
        assert vnode.reader.stats().synced_version < vnode.acknowledged_version
        bed.engine.execute("CREATE STREAM s TRIGGER AT_ONCE INTO o AS SELECT _wstart, count(*) FROM t INTERVAL(10s)",
                           bed.session)
        (stream,) = bed.engine.catalog.streams.all()
        assert stream.start_cut == ((vgroup_id, vnode.reader.stats().synced_version),)
