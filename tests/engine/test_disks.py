"""A real disk below a real Spark that takes nothing: the stream says so, nothing is damaged, and all goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from kits.basics.waiting import wait_until
from kits.engines.statement_engine import StatementEngine

from penstock.common.errors import StorageError
from penstock.common.fs import OsFs

CONFIG = {"timezone": "UTC", "idleTimeout": "1h", "checkpointInterval": "1s", "restartDelayMin": "50ms",
          "restartDelayMax": "500ms", "spark.ui.enabled": False}
BATCH = "SELECT _wstart, count(*), sum(v) FROM d.m PARTITION BY site INTERVAL(1m) ORDER BY 1, 2"
ROWS = 100
PATIENCE_S = 180.0

pytestmark = [pytest.mark.slow, pytest.mark.alone]


def run(*command: object) -> None:
    subprocess.run([str(word) for word in command], check=True, capture_output=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An empty file system; skips where none can be mounted."""
    image, mounted = tmp_path / "image", tmp_path / "disk"
    mounted.mkdir()
    image.touch()
    os.truncate(image, 96 << 20)
    try:
        run("mkfs.ext4", "-q", "-O", "^has_journal", image)
        mount(image, mounted)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    yield mounted
    run("umount", "--lazy", mounted)


def mount(image: Path, mounted: Path) -> None:
    run("mount", "-o", "loop,errors=remount-ro", image, mounted)


@pytest.fixture
def engines() -> Iterator[list[StatementEngine]]:
    """Engines that a test starts; all are ended after it."""
    started: list[StatementEngine] = []
    yield started
    for engine in started:
        engine.end()


class Load:
    """A stream, and rows for it: how many were acknowledged."""

    def __init__(self, engine: StatementEngine) -> None:
        self.engine = engine
        self.acknowledged = 0
        self._tried = 0
        engine.run("CREATE DATABASE d VGROUPS 2 WAL_LEVEL 2 KEEP 36500d")
        engine.run("CREATE STABLE d.m (ts TIMESTAMP, v INT) TAGS (site INT)")
        for site in range(5):
            engine.run(f"CREATE TABLE d.t{site} USING d.m TAGS ({site})")
        engine.run("CREATE STREAM s TRIGGER AT_ONCE INTO d.out TAGS (site INT) AS "
                   "SELECT _wstart ts, count(*) c, sum(v) s FROM d.m PARTITION BY site INTERVAL(1m)")

    def put(self) -> str:
        """Writes some rows into one table; returns why they were refused."""
        first = 1_700_000_000_000 + self._tried * ROWS * 1000
        rows = " ".join(f"({first + n * 1000}, {n % 7})" for n in range(ROWS))
        _, problem = self.engine.attempt(f"INSERT INTO d.t{self._tried % 5} VALUES {rows}")
        self._tried += 1
        self.acknowledged += 0 if problem else ROWS
        return problem

    def right(self) -> bool:
        """Tells whether the stream has the batch answer."""
        return self.engine.run("SELECT ts, c, s FROM d.out ORDER BY 1, 2") == self.engine.run(BATCH)

    def rows(self) -> int:
        return int(self.engine.run("SELECT count(*) FROM d.m")[0][0])

    def reason(self) -> str:
        """Returns why the stream doesn't run; empty while it does."""
        ((state, reason),) = self.engine.run("SELECT state, reason FROM information_schema.ins_streams")
        assert state in ("RUNNING", "STARTING", "RESTARTING", "STALLED")
        return reason if state == "RESTARTING" else ""


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """There is no room left on the disk."""
    filler = os.open(disk / "filler", os.O_WRONLY | os.O_CREAT)
    with suppress(OSError):
        while os.write(filler, bytes(1 << 12)):
            continue
    os.close(filler)
    yield
    (disk / "filler").unlink()


def test_the_stream_goes_on_once_there_is_room(disk: Path, engines: list[StatementEngine]) -> None:
    """Meanwhile writes are refused by name, queries are answered, and the stream says what it can't write."""
    engines.append(StatementEngine(disk / "data", CONFIG))
    load = Load(engines[-1])
    for _ in range(5):
        assert not load.put()
    wait_until(load.right, PATIENCE_S)
    with full(disk):
        wait_until(lambda: "No space left on device" in load.put(), PATIENCE_S, "writes were not refused")
        wait_until(lambda: str(disk / "data") in load.reason(), PATIENCE_S, "the stream didn't say what it can't write")
        assert load.rows() == load.acknowledged
    wait_until(lambda: not load.put(), PATIENCE_S, "writes are refused for ever")
    wait_until(load.right, PATIENCE_S, "the stream didn't go on")
    assert load.rows() == load.acknowledged
    engines[-1].close()


def test_a_disk_that_becomes_read_only_damages_nothing(disk: Path, engines: list[StatementEngine]) -> None:
    """After an error of the file system it takes nothing: named everywhere; once it is mounted anew all is there."""
    (image,) = disk.parent.glob("image")
    device = Path(subprocess.run(["findmnt", "-no", "SOURCE", disk], check=True, capture_output=True, text=True).stdout)
    trigger = Path("/sys/fs/ext4") / device.name.strip() / "trigger_fs_error"
    if not trigger.exists():
        pytest.skip("this system can't make a file system fail")
    engines.append(StatementEngine(disk / "data", CONFIG))
    load = Load(engines[-1])
    for _ in range(5):
        assert not load.put()
    wait_until(load.right, PATIENCE_S)
    trigger.write_text("a test")
    wait_until(lambda: "Read-only file system" in load.put(), PATIENCE_S, "writes were not refused")
    wait_until(lambda: "Read-only file system" in load.reason(), PATIENCE_S, "the stream didn't notice")
    assert load.rows() == load.acknowledged
    engines[-1].kill()
    wait_until(lambda: not subprocess.run(["umount", disk], check=False, capture_output=True).returncode, PATIENCE_S,
               "Spark has outlived its engine")
    # Where another mount namespace has the old mount still, its image would be mounted as it is now, read-only.
    os.sync()
    anew = Path(shutil.copy(image, image.with_name("anew")))
    subprocess.run(["e2fsck", "-fy", anew], check=False, capture_output=True)  # as any system does before it mounts it
    mount(anew, disk)
    load.engine = StatementEngine(disk / "data", CONFIG)
    engines.append(load.engine)
    assert load.rows() == load.acknowledged
    assert not load.put()
    wait_until(load.right, PATIENCE_S, "the stream didn't go on")
    load.engine.close()


def test_a_shared_map_on_a_full_disk_is_an_error(disk: Path) -> None:
    """It is refused when it is made: a write to a page without a place would end the process."""
    with full(disk), pytest.raises(StorageError, match="No space left on device"):
        OsFs().map_shared(disk / "END", 4096)
