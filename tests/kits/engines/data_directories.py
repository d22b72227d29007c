"""Small data directories with everything in them that a format covers, for tests of damage, repair and old formats."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.common.config import load_config
from penstock.mnode.admin.sandbox import Sandbox
from penstock.vnode.store.delivery import IngestDelivery
from penstock.vnode.write.vnode_writer import DeletedRows

T0 = 1_700_000_000_000
CONFIG = {"stateMapSize": "64MiB", "streamBufferSize": "1MiB", "walSegmentSize": "64KiB", "partGrace": "0s"}
SETUP = (
    "CREATE DATABASE d VGROUPS 2 WAL_RETENTION_PERIOD -1 WAL_LEVEL 2 KEEP 36500d",
    "CREATE STABLE d.m (ts TIMESTAMP, v INT, note VARCHAR(8)) TAGS (site INT)",
    "CREATE TABLE d.t0 USING d.m TAGS (0)",
    "CREATE TABLE d.t1 USING d.m TAGS (1)",
    "CREATE TABLE " + " ".join(f"d.e{n} USING d.m TAGS ({n})" for n in range(20)),
    "CREATE TABLE d.plain (ts TIMESTAMP, x DOUBLE)",
    "CREATE STREAM s TRIGGER AT_ONCE IGNORE EXPIRED 0 IGNORE UPDATE 0 INTO d.out AS "
    "SELECT _wstart ts, count(*) c, sum(v) s FROM d.m INTERVAL(10s)",
)
QUERIES = (
    "SELECT tbname, ts, v, note FROM d.m ORDER BY tbname, ts",
    "SELECT ts, x FROM d.plain ORDER BY ts",
    "SELECT ts, c, s FROM d.out ORDER BY ts",
)

Answers = list[list[tuple[Any, ...]]]


def open_sandbox(directory: Path, **config: Any) -> Sandbox:
    """Opens a data directory without Spark or threads of its own clock."""
    return Sandbox("UTC", T0 + 1_000_000, {**CONFIG, **config}, directory=directory)


def make_directory(directory: Path) -> Answers:
    """Makes a directory with two vnodes, parts, deletes, a stream with checkpoints and rows behind the last of them.

    Returns the answers of QUERIES.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with open_sandbox(directory) as sandbox:
        for text in SETUP:
            sandbox.execute(text)
        for number in range(3):
            at = T0 + number * 4000
            sandbox.execute(f"INSERT INTO d.t0 VALUES ({at}, {number}, 'a') d.t1 VALUES ({at + 1500}, {number}, 'b') "
                            f"d.plain VALUES ({at}, {number}.5)")
            sandbox.checkpoint()
            sandbox.execute("FLUSH DATABASE d")
        sandbox.execute(f"DELETE FROM d.t1 WHERE ts = {T0 + 1500}")
        sandbox.execute(f"INSERT INTO d.t0 VALUES ({T0}, 9, 'new') d.t1 VALUES ({T0 + 90_000}, 7, NULL)")
        sandbox.checkpoint()
        sandbox.execute("FLUSH DATABASE d")
        _deliver(sandbox, "t0", (T0 + 95_000, 5, "z"))
        _delete_at(sandbox, "t0", T0 + 4000)
        return answers(sandbox)


def _delete_at(sandbox: Sandbox, child: str, *times: int) -> None:
    """Deletes rows of a child table of `m` as results are deleted."""
    stable = sandbox.engine.catalog.table("d", "m")
    found = sandbox.engine.catalog.child("d", child)
    assert stable is not None
    assert found is not None
    begun = sandbox.engine.storage.vnode(found.vgroup_id).writer.begin_together([DeletedRows(
        stable.uid, np.full(len(times), found.uid, np.uint64), np.array(times, np.int64))])
    assert begun is not None
    begun.wait()


def _deliver(sandbox: Sandbox, child: str, row: tuple[Any, ...]) -> None:
    """Appends a row to a child table of `m` as one that an ingest has read."""
    stable = sandbox.engine.catalog.table("d", "m")
    found = sandbox.engine.catalog.child("d", child)
    assert stable is not None
    assert found is not None
    begun = sandbox.engine.storage.vnode(found.vgroup_id).writer.begin_few(
        stable.uid, tuple(column.physical for column in stable.columns), [(found.uid, *row)],
        delivery=IngestDelivery(1, "partition", "", np.array([4])))
    assert begun is not None
    begun.wait()


def answers(sandbox: Sandbox) -> Answers:
    """Returns the rows of each of QUERIES."""
    return [_rows(sandbox.execute(query).table) for query in QUERIES]


def read_directory(directory: Path) -> Answers:
    """Opens a directory, lets its stream run to its end, and returns the answers of QUERIES."""
    with open_sandbox(directory) as sandbox:
        sandbox.run()
        return answers(sandbox)


def copy_of(source: Path, target: Path) -> Path:
    """Copies a closed directory, without its views, which are over the original's files."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("LOCK", "lock.mdb", "OWNER", "log", "views.*"))
    return target


def tree(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Returns mode, time of change and content of everything below a directory."""
    return {str(path.relative_to(root)): (path.lstat().st_mode, path.lstat().st_mtime_ns,
                                          path.read_bytes() if path.is_file() else b"")
            for path in (root, *sorted(root.rglob("*")))}


def log_segments(directory: Path) -> list[Path]:
    """Returns the segments of all vnodes, those of the vnode with the most first."""
    return sorted(directory.glob("vnode/*/wal/*.log"), key=lambda path: (-path.stat().st_size, path))


def config_of(**values: Any) -> Any:
    """Returns a configuration for engines of these directories."""
    return load_config({"timezone": "UTC", **CONFIG, **values}, environment={})


def _rows(table: pa.Table | None) -> list[tuple[Any, ...]]:
    assert table is not None
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))
