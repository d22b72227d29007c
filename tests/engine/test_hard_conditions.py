"""Limits and leaks: full states, disks that take nothing, and streams that come and go."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import pytest
from kits.basics.faulty_fs import FaultyFs
from kits.engines.data_directories import open_sandbox
from kits.engines.embedded import Embedded

from penstock.common.errors import StorageError
from penstock.tasks.state.state_store import StateStore

STREAMS = 60


def fill(store: StateStore) -> None:
    """Writes checkpoints of 20 kB until the map is full."""
    for number in range(100):
        store.put_many([(b"%d" % number, os.urandom(20_000))])
        store.checkpoint(2 + number, {})


def test_a_full_task_state_is_an_error(tmp_path: Path) -> None:
    """A state that doesn't fit its map is refused with the key to raise, and what was committed before is intact."""
    store = StateStore(tmp_path, 1 << 18)
    store.restore(None)
    store.put_many([(b"kept", b"value")])
    store.checkpoint(1, {})
    with pytest.raises(StorageError, match="stateMapSize"):
        fill(store)
    store.close()
    again = StateStore(tmp_path, 1 << 18)
    again.restore(1)
    assert again.items() == [(b"kept", b"value")]
    again.close()


def test_a_disk_that_takes_nothing_is_named(tmp_path: Path) -> None:
    """On a disk that refuses every change the engine doesn't start, and says so; what is there is untouched."""

    class ReadOnlyFs(FaultyFs):
        read_only = False

        def trip(self, what: str, *, sync: bool = False) -> bool:
            return self.read_only

    fs = ReadOnlyFs()
    db = Embedded(tmp_path, fs=fs)
    db.all("CREATE DATABASE d VGROUPS 1", "CREATE TABLE d.t (ts TIMESTAMP, v INT)",
           "INSERT INTO d.t VALUES (1700000000000, 1)")
    db.close()
    fs.read_only = True
    again = Embedded(tmp_path, fs=fs)
    problem = again.engine.storage.problem(2)
    assert problem is not None
    assert "injected fault" in problem
    again.engine.abandon()
    fs.read_only = False
    last = Embedded(tmp_path, fs=fs)
    assert last.run("SELECT count(*) FROM d.t") == [(1,)]
    last.close()


def test_streams_leave_nothing_behind(tmp_path: Path) -> None:
    """Streams that are created, run and dropped leave no descriptor, no thread and no file of theirs behind."""
    with open_sandbox(tmp_path) as sandbox:
        sandbox.execute("CREATE DATABASE d VGROUPS 1")
        sandbox.execute("CREATE STABLE d.m (ts TIMESTAMP, v INT) TAGS (site INT)")

        def one(number: int) -> None:
            sandbox.execute(f"CREATE STREAM s{number} TRIGGER AT_ONCE INTO d.out{number} AS SELECT _wstart, count(*) "
                            "FROM d.m PARTITION BY tbname INTERVAL(10s)")
            sandbox.execute(f"INSERT INTO d.t{number % 3} USING d.m TAGS (1) VALUES ({1_700_000_000_000 + number}, 1)")
            sandbox.checkpoint()
            sandbox.execute(f"DROP STREAM s{number}")
            sandbox.execute(f"DROP TABLE d.out{number}")

        for number in range(5):
            one(number)
        gc.collect()
        before = (len(os.listdir("/proc/self/fd")), threading.active_count())
        for number in range(5, STREAMS):
            one(number)
        gc.collect()
        after = (len(os.listdir("/proc/self/fd")), threading.active_count())
        # Open parts are kept in a bounded cache.
        assert after[0] <= before[0] + 64
        assert after[1] <= before[1]
        assert list((tmp_path / "streams").iterdir()) == []
        sandbox.engine.flush()
        sandbox.advance(1)
        sandbox.engine.maintain()
        (source,) = (table.uid for table in sandbox.engine.catalog.tables("d", "super"))
        assert [path.name for path in (tmp_path / "children").iterdir()] == [f"{source}.parquet"]
        for kind in ("parts", "tombstones"):
            assert {path.name for path in tmp_path.glob(f"vnode/*/store/{kind}/*")} == {str(source)}
        assert {path.name.split("-")[0] for path in tmp_path.glob("vnode/*/store/last/*")} == {str(source)}
