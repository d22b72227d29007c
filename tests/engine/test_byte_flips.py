"""Every byte of what is stored, flipped one at a time: the same answer, or an error that names what is damaged."""

from __future__ import annotations

import faulthandler
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import times
from kits.engines.data_directories import make_directory

from penstock.common.clock import ManualClock
from penstock.common.errors import PenstockError
from penstock.common.fs import AppendFile, OsAppendFile, OsFs
from penstock.common.paths import DataPaths
from penstock.mnode.checkpoints.commit_records import CommitRecords
from penstock.tasks.state.state_store import StateStore
from penstock.vnode.store.manifest import load
from penstock.vnode.store.parts import PartCache
from penstock.vnode.store.sorted_keys import TS_MAX, TS_MIN
from penstock.vnode.store.vnode_options import VnodeOptions
from penstock.vnode.vnode import Vnode
from penstock.wal.log import LogFiles
from penstock.wal.reader import WalReader
from penstock.wal.record import RowsRecord
from penstock.wal.writer import WalOptions, WalWriter

CHECKPOINT = 4


class UnsyncedFs(OsFs):
    """Makes nothing durable, which is slow: no power is cut here."""

    def fsync_dir(self, path: Path) -> None:
        return

    def open_append(self, path: Path) -> AppendFile:
        return UnsyncedFile(path)


class UnsyncedFile(OsAppendFile):
    """An appended file that isn't synced."""

    def sync(self) -> None:
        return


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory that all tests of this module read."""
    root = tmp_path_factory.mktemp("flips")
    make_directory(root / "data")
    return root / "data"


def flips(data: bytes, step: int = 1) -> Iterator[tuple[int, bytes]]:
    """Yields (position, the bytes with that one flipped)."""
    for at in range(0, len(data), step):
        yield at, data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1:]


def outcome(read: Callable[[], Any]) -> tuple[Any, str]:
    """Returns what was read, or the text of the error."""
    try:
        return read(), ""
    except PenstockError as error:
        return None, str(error)


def judge(path: Path, read: Callable[[], Any]) -> int:
    """Flips every byte of a file; returns how many flips gave an error. Fails at a wrong answer or a strange error."""
    good = path.read_bytes()
    wanted = read()
    errors = 0
    for at, bad in flips(good):
        path.write_bytes(bad)
        found, problem = outcome(read)
        errors += bool(problem)
        assert not problem or path.name in problem, f"byte {at}: {problem}"
        assert problem or found == wanted, f"byte {at} of {path.name} changed the answer"
    path.write_bytes(good)
    return errors


def rows_of_part(vnode_directory: Path, path: Path) -> Any:
    """Returns the rows of one part as queries read them."""
    manifest = load(OsFs(), vnode_directory / "store", int(vnode_directory.name))
    assert manifest is not None
    part = next(part for part in manifest.tables[int(path.parent.name)].parts if part.name == path.name)
    groups = PartCache().row_groups(path, part, None, TS_MIN, TS_MAX)
    return [(group.tuid.tolist(), group.ts.tolist(), group.version.tolist()) for group in groups]


def log_records(vnode_directory: Path) -> list[Any]:
    """Opens the log of a vnode as the engine does, and returns everything that a reader finds in it."""
    log = WalWriter.open(vnode_directory / "wal", WalOptions(int(vnode_directory.name), level=2), fs=UnsyncedFs(),
                         clock=ManualClock())
    log.close()
    reader = WalReader(LogFiles(vnode_directory / "wal", UnsyncedFs()))
    found: list[Any] = []
    try:
        while records := reader.read():
            found += [replace(record, batch=record.batch.to_pylist()) if isinstance(record, RowsRecord) else record
                      for record in records]
    finally:
        reader.close()
    return found


def a_vnode(directory: Path, tmp_path: Path) -> Path:
    """Returns a copy of the vnode whose log is the shortest that has a part."""
    found = min((path for path in (directory / "vnode").iterdir() if list(path.glob("store/parts/*/0*.parquet"))),
                key=lambda path: sum(each.stat().st_size for each in path.glob("wal/*.log")))
    target: Path = tmp_path / found.name
    shutil.copytree(found, target)
    return target


def test_every_byte_of_a_log_segment(directory: Path, tmp_path: Path) -> None:
    """Whichever byte of a vnode's log is flipped: its rows are the same, or the segment is named."""
    vnode = a_vnode(directory, tmp_path)
    segment = next(vnode.glob("wal/*.log"))
    assert judge(segment, lambda: log_records(vnode)) > 0.9 * segment.stat().st_size


def test_every_byte_of_a_manifest(directory: Path, tmp_path: Path) -> None:
    """Whichever byte of the MANIFEST is flipped, it is named."""
    vnode = a_vnode(directory, tmp_path)
    manifest = vnode / "store" / "MANIFEST"
    assert judge(manifest, lambda: load(OsFs(), manifest.parent, int(vnode.name))) == manifest.stat().st_size


def test_every_byte_of_a_part(directory: Path, tmp_path: Path) -> None:
    """Whichever byte of a part is flipped: its rows are the same, or the file is named."""
    vnode = a_vnode(directory, tmp_path)
    part = min(vnode.glob("store/parts/*/0*.parquet"))
    assert judge(part, lambda: rows_of_part(vnode, part)) == part.stat().st_size


def test_every_byte_of_the_newest_times(directory: Path, tmp_path: Path) -> None:
    """Whichever byte of the file of newest times is flipped: the same times, or the file is named."""
    vnode = a_vnode(directory, tmp_path)
    path = max(vnode.glob("store/last/*.parquet"))  # older ones are only kept for a moment

    def newest() -> list[int | None]:
        opened = Vnode.open(vnode, VnodeOptions(int(vnode.name), wal_level=2), fs=UnsyncedFs(), clock=ManualClock())
        try:
            return [opened.reader.last_ts(uid) for uid in range(1000, 1010)]
        finally:
            opened.close(flush=False)

    assert judge(path, newest) > 0


def test_every_byte_of_a_commit_record(directory: Path, tmp_path: Path) -> None:
    """A commit record with a flipped byte counts for nothing: the one before it does."""
    shutil.copytree(directory / "streams", tmp_path / "streams")
    stream_id = int(next((tmp_path / "streams").iterdir()).name, 16)
    paths = DataPaths(tmp_path)
    records = CommitRecords(paths, OsFs()).all(stream_id)
    assert records[0].checkpoint_id == CHECKPOINT
    path = paths.checkpoints(stream_id) / f"{CHECKPOINT}.json"
    good = path.read_bytes()
    for at, bad in flips(good):
        path.write_bytes(bad)
        assert CommitRecords(paths, OsFs()).newest(stream_id) == records[1].record, f"byte {at}"


#: The state of a task is mostly empty pages: only the nightly run flips every byte of it.
STATE_STEP = times(31, 1)


@pytest.mark.parametrize("task", ["agg", "source"])
def test_every_byte_of_a_task_state(directory: Path, tmp_path: Path, task: str) -> None:
    """Whichever byte of base or deltas is flipped: the same values, an error that says so, or the process ends.

    LMDB has no checksums of its own: damage in the structure of its pages may end the process, which is noticed, too.
    Never is another value read, or a key missed.
    """
    folder = next(directory.glob(f"streams/*/state/*-{task}-0"))
    good = (folder / "data.mdb").read_bytes()
    bad_end = [f"byte {at}: {text}" for at, text in flip_state(good, tmp_path / "state", STATE_STEP)]
    assert not bad_end, bad_end[:5]


def flip_state(good: bytes, folder: Path, step: int) -> list[tuple[int, str]]:
    """Returns (position, what went wrong); reads in forked processes, a new one when one was ended."""
    folder.mkdir()
    (folder / "data.mdb").write_bytes(good)
    wanted = read_state(folder)
    wrong: list[tuple[int, str]] = []
    start = 0
    while start < len(good):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            flip_some(good, folder, range(start, len(good), step), wanted, writer)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as lines:
            said = lines.read().decode().splitlines()
        _, status = os.waitpid(child, 0)
        wrong += [(int(line.split()[0]), line.split(" ", 1)[1]) for line in said if " " in line]
        if status == 0:
            break
        start = int(said[-1].split()[0]) + step
    return wrong


def flip_some(good: bytes, folder: Path, places: range, wanted: Any, writer: int) -> None:
    """Reads the state with one byte flipped after the other, and writes what isn't as it should be."""
    faulthandler.disable()
    for at in places:
        os.write(writer, f"{at}\n".encode())
        (folder / "lock.mdb").unlink(missing_ok=True)
        (folder / "data.mdb").write_bytes(good[:at] + bytes([good[at] ^ 0xFF]) + good[at + 1:])
        try:
            if read_state(folder) != wanted:
                os.write(writer, f"{at} another answer\n".encode())
        except PenstockError as error:
            if folder.name not in str(error):
                os.write(writer, f"{at} an error without a place: {error}\n".encode())
        except BaseException as error:  # noqa: BLE001  # whatever it is, the parent process reports it
            os.write(writer, f"{at} {type(error).__name__}: {error}\n".encode())


def read_state(folder: Path) -> Any:
    """Returns everything that a task finds in its state."""
    store = StateStore(folder, 1 << 20)
    try:
        return store.restore(CHECKPOINT), store.items(), store.reserved
    finally:
        store.close()
