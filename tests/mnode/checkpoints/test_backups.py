"""Backups of checkpoints: whole or worth nothing, never in the way of a stream, and enough to go on from elsewhere."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kits.basics.faulty_fs import FaultyFs
from kits.engines.sandboxes import T0, TestBed

from penstock.common.errors import CheckpointDamagedError, ConfigError
from penstock.common.sealed import seal, unseal
from penstock.mnode.checkpoints import checkpoint_backups, checkpoint_manifest
from penstock.mnode.checkpoints.backup_store import DirectoryStore, open_backup_store
from penstock.tasks.state.state_copy import CopyOrder, copy_states
from penstock.tasks.state.state_store import StateStore
from penstock.wal.reader import WalGapError

QUERY = "SELECT _wstart ts, count(*) n, sum(v) total FROM d.meters INTERVAL(10s)"


def open_bed(root: Path, backup: Path | str, **config: Any) -> TestBed:
    return TestBed(directory=root, config={
        "checkpointBackupDir": str(backup), "checkpointBackupInterval": "0s", **config})


def make(root: Path, backup: Path | str, **config: Any) -> TestBed:
    root.mkdir(exist_ok=True)
    bed = open_bed(root, backup, **config)
    bed.all("CREATE DATABASE d VGROUPS 2", "CREATE STABLE d.meters (ts timestamp, v int) TAGS (g int)",
            *(f"CREATE TABLE d.d{n} USING d.meters TAGS ({n})" for n in range(3)),
            f"CREATE STREAM s TRIGGER AT_ONCE IGNORE EXPIRED 0 INTO d.o AS {QUERY}")
    return bed


def insert(bed: TestBed, *seconds: int) -> None:
    for second in seconds:
        bed.execute(f"INSERT INTO d.d{second % 3} VALUES ({T0 + second * 1000}, {second})")


def is_right(bed: TestBed) -> bool:
    return sorted(bed.rows("SELECT ts, n, total FROM d.o")) == sorted(bed.rows(QUERY))


def shown(bed: TestBed) -> str:
    return str(bed.rows("SELECT checkpoint_backup FROM information_schema.ins_streams")[0][0])


def events(bed: TestBed) -> list[str]:
    """Returns what happened to streams, besides that their attempts begin and end."""
    told = [row[2] for row in bed.rows("SELECT * FROM information_schema.ins_stream_events")]
    return [event for event in told if not event.startswith(("attempt ", "down: "))]


def copies(backup: Path) -> list[str]:
    (stream,) = backup.iterdir()
    return sorted(path.name for path in stream.iterdir() if path.name.isdigit())


def pieces(backup: Path) -> dict[str, set[str]]:
    """Returns the names of the pieces on each shelf."""
    (stream,) = backup.iterdir()
    return {shelf.name: {piece.name for piece in shelf.iterdir()} for shelf in sorted(stream.glob("pieces-*"))}


def assert_restored(directory: Path, backup: Path, checkpoint: int) -> None:
    """Loses the state of the stream; the next start takes that of a checkpoint from its backup, and all is right."""
    shutil.rmtree(directory / "data" / "streams")
    with open_bed(directory / "data", backup) as bed:
        bed.run()
        assert events(bed)[-1] == f"its state is restored from the backup of checkpoint {checkpoint}"
        assert is_right(bed)


def test_a_stream_goes_on_from_a_backup_where_its_state_is_gone(tmp_path: Path) -> None:
    """Without streams/ in the data directory the newest copy is taken, and what came after it is read again."""
    backup = tmp_path / "backup"
    with make(tmp_path / "data", backup) as bed:
        assert shown(bed) == "nothing yet"
        for second in (1, 2, 13, 24, 35):
            insert(bed, second)
            bed.execute("CHECKPOINT STREAM s")
        assert shown(bed) == "checkpoint 5"
        assert copies(backup) == ["4", "5"]
        insert(bed, 46, 7)
    shutil.move(tmp_path / "data", tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "elsewhere" / "streams")
    with open_bed(tmp_path / "elsewhere", backup) as bed:
        bed.run()
        assert events(bed) == ["its state is restored from the backup of checkpoint 5"]
        assert sum(row[0] for row in bed.rows("SELECT rows_in FROM information_schema.ins_streams")) == 2
        assert is_right(bed)
        insert(bed, 8, 57)
        bed.execute("CHECKPOINT STREAM s")
        bed.kill()
        assert is_right(bed)
        assert [row[1] for row in bed.rows("SHOW CHECKPOINTS") if row[2] == "COMMITTED"] == [5, 6]


def test_a_backup_from_before_vgroups_were_split_is_not_taken(tmp_path: Path) -> None:
    """Its state is of other tasks; one that was made since is taken, and is right."""
    backup = tmp_path / "backup"
    with make(tmp_path / "data", backup) as bed:
        insert(bed, 1, 13)
        bed.execute("CHECKPOINT STREAM s")
        assert copies(backup) == ["1"]
        bed.execute("ALTER DATABASE d VGROUPS 3")
        insert(bed, 24)
        assert is_right(bed)
        old, new = copies(backup)
    shutil.copytree(tmp_path / "data", tmp_path / "lost")
    shutil.rmtree(tmp_path / "lost" / "streams")
    shutil.copytree(backup, tmp_path / "stale")
    shutil.rmtree(next((tmp_path / "stale").iterdir()) / new)
    with open_bed(tmp_path / "lost", tmp_path / "stale") as bed:
        with pytest.raises(WalGapError):  # it would have to begin anew, and the new logs don't reach back so far
            bed.run()
        assert any("from before vgroups were split" in event for event in events(bed))
        assert not any("its state is taken" in event for event in events(bed))
    assert int(old) == 1
    assert_restored(tmp_path, backup, int(new))


@pytest.mark.parametrize(("left", "taken"), [(("1", "2"), "1"), (("2",), None)])
def test_a_backup_that_is_ahead_of_the_logs_is_not_taken(
    tmp_path: Path, left: tuple[str, ...], taken: str | None
) -> None:
    """Rows were lost since it was made, and others are at their versions now: an older one is taken, or the start."""
    backup, data = tmp_path / "backup", tmp_path / "data"
    with make(data, backup) as bed:
        insert(bed, 1)
        bed.execute("CHECKPOINT STREAM s")
        insert(bed, 2)
    shutil.copytree(data, tmp_path / "before")
    shutil.rmtree(tmp_path / "before" / "streams")
    with open_bed(data, backup) as bed:
        bed.run()
        insert(bed, 13, 24, 35)
        bed.execute("CHECKPOINT STREAM s")
        ahead = copies(backup)[-1]
    for gone in set(copies(backup)) - {{"1": "1", "2": ahead}[one] for one in left}:
        shutil.rmtree(next(backup.iterdir()) / gone)
    with open_bed(tmp_path / "before", backup) as bed:
        bed.run()
        insert(bed, 14, 25, 36, 40)
        told = events(bed)
        assert is_right(bed)
    assert any(event.startswith(f"the backup of checkpoint {ahead} has version ") and "which ends at" in event
               for event in told)
    assert [event for event in told if "its state is restored" in event] == (
        [] if taken is None else [f"its state is restored from the backup of checkpoint {taken}"])


@pytest.mark.parametrize("damage", ["no manifest", "cut manifest", "missing file", "flipped byte"])
def test_copies_that_are_not_whole_count_for_nothing(tmp_path: Path, damage: str) -> None:
    """Whatever is wrong with the newest copy, the one before it is taken."""
    backup = tmp_path / "backup"
    with make(tmp_path / "data", backup) as bed:
        for second in (1, 2, 13):
            insert(bed, second)
            bed.execute("CHECKPOINT STREAM s")
        insert(bed, 20)
    newest = next(backup.iterdir()) / "3"
    manifest = json.loads(newest.joinpath("MANIFEST").read_bytes().partition(b"\n")[2])
    task = next(file for file in manifest["files"] if "-agg-0" in file[0])
    state = newest.parent / f"pieces-{manifest['shelf']}" / task[2][0]
    match damage:
        case "no manifest":
            (newest / "MANIFEST").unlink()
        case "cut manifest":
            (newest / "MANIFEST").write_bytes((newest / "MANIFEST").read_bytes()[:-9])
        case "missing file":
            state.unlink()
        case "flipped byte":
            data = bytearray(state.read_bytes())
            data[len(data) // 2] ^= 1
            state.write_bytes(data)
    assert_restored(tmp_path, backup, 2)


FORGERIES: dict[str, Callable[[dict[str, Any]], None]] = {
    "a task outside": lambda body: body["files"][0].__setitem__(0, "../../../outside"),
    "an absolute task": lambda body: body["files"][0].__setitem__(0, "/tmp/outside"),
    "a task twice": lambda body: body["files"].append(body["files"][0]),
    "a task of another stream": lambda body: body["files"][0].__setitem__(0, "1-agg-0"),
    "a piece outside": lambda body: body["files"][0][2].__setitem__(0, "../../../secret"),
    "another shelf": lambda body: body.__setitem__("shelf", "../.."),
    "a giant": lambda body: body["files"][0].__setitem__(1, 1 << 60),
    "no list": lambda body: body.__setitem__("files", 7),
    "no name": lambda body: body["files"][0].__setitem__(0, None),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_what_a_forged_manifest_names_is_not_touched(tmp_path: Path, forgery: str) -> None:
    """Names and sizes are checked before anything is opened; the copy is passed over, the one before it is taken."""
    backup = tmp_path / "backup"
    with make(tmp_path / "data", backup) as bed:
        for second in (1, 2):
            insert(bed, second)
            bed.execute("CHECKPOINT STREAM s")
    path = next(backup.glob("*/2/MANIFEST"))
    body = json.loads(unseal(path.read_bytes(), "the copy"))
    FORGERIES[forgery](body)
    path.write_bytes(seal(json.dumps(body).encode()))
    before = {path for path in tmp_path.rglob("*") if tmp_path / "data" not in path.parents}
    assert_restored(tmp_path, backup, 1)
    assert {path for path in tmp_path.rglob("*") if tmp_path / "data" not in path.parents} == before


def test_a_copy_without_the_key_counts_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With checkpointBackupKey who can write the place but doesn't know the key can't make or change a copy."""
    monkeypatch.setenv("BACKUP_KEY", "k" * 32)
    backup, key = tmp_path / "backup", {"checkpointBackupKey": "env:BACKUP_KEY"}
    with make(tmp_path / "data", backup, **key) as bed:
        for second in (1, 2):
            insert(bed, second)
            bed.execute("CHECKPOINT STREAM s")
        insert(bed, 13)
    authentic = next(backup.glob("*/2/MANIFEST")).read_bytes()
    shutil.rmtree(tmp_path / "data" / "streams")
    _, _, text = authentic.partition(b"\n")
    changed = seal(unseal(text, "the copy").replace(b'"shelf": 1', b'"shelf": 0'))
    assert changed != text
    for number, forged in enumerate((text, authentic.replace(text, changed), b"hmac-sha256:\n" + text)):
        shutil.copytree(tmp_path / "data", tmp_path / str(number))
        place = shutil.copytree(backup, tmp_path / f"forged {number}")
        next(place.glob("*/2/MANIFEST")).write_bytes(forged)
        with open_bed(tmp_path / str(number), place, **key) as bed:
            bed.run()
            assert "isn't authenticated by checkpointBackupKey" in events(bed)[0]
            assert events(bed)[-1] == "its state is restored from the backup of checkpoint 1"
            assert is_right(bed)
    with open_bed(tmp_path / "data", backup, **key) as bed:
        bed.run()
        assert events(bed) == ["its state is restored from the backup of checkpoint 2"]
        assert is_right(bed)


@pytest.mark.parametrize(("reference", "message"), [
    ("sesame-open-thou-and-let-me-in", "isn't written into the configuration"), ("env:MISSING", "MISSING is not set"),
    ("file:/nowhere/key", "/nowhere/key cannot be read"), ("env:SHORT", "fewer than 16 characters"),
])
def test_a_key_that_cannot_be_had_is_told_at_start(reference: str, message: str) -> None:
    """The key is named, not written; the text doesn't quote it."""
    with pytest.raises(ConfigError, match=message) as caught:
        checkpoint_backups.backup_key(reference, {"SHORT": "short"}, lambda path: Path(path).read_text())
    assert "sesame" not in str(caught.value)


def test_a_state_without_any_intact_checkpoint_is_taken_from_the_backup(tmp_path: Path) -> None:
    """Commit records that are all damaged are an error without a backup, and none with one."""
    backup = tmp_path / "backup"
    with make(tmp_path / "data", backup) as bed:
        insert(bed, 1, 2)
        bed.execute("CHECKPOINT STREAM s")
        insert(bed, 3)
    for record in (tmp_path / "data").glob("streams/*/checkpoints/*.json"):
        record.write_bytes(b"damaged")
    shutil.copytree(tmp_path / "data", tmp_path / "without")
    with TestBed(directory=tmp_path / "without") as bed:
        ((state, reason),) = bed.rows("SELECT state, reason FROM information_schema.ins_streams")
        assert state == "RESTARTING"
        assert "restore the data directory from a backup" in reason
    with open_bed(tmp_path / "data", backup) as bed:
        bed.run()
        assert is_right(bed)


class Crash(BaseException):
    """The engine's process ends here."""


@pytest.mark.parametrize(("number", "after"), [(0, False), (0, True), (1, False), (1, True)])
def test_a_restore_that_is_killed_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, after: bool
) -> None:
    """Before and behind each rename: the old state is in its place or in damaged/, and the stream goes on.

    Once the old state has left its place, it does so without the backup, too.
    """
    data, backup = tmp_path / "data", tmp_path / "backup"
    with make(data, backup) as bed:
        insert(bed, 1, 2)
        bed.execute("CHECKPOINT STREAM s")
        insert(bed, 3)
    (record,) = data.glob("streams/*/checkpoints/*.json")
    record.write_bytes(b"damaged")
    stream = record.parent.parent
    aside = data / "damaged" / stream.relative_to(data)
    rename, renamed = FaultyFs.rename, []

    def mortal(fs: FaultyFs, source: Path, target: Path) -> None:
        dies = stream.name in source.parts and len(renamed) == number
        if not dies or after:
            rename(fs, source, target)
        renamed.extend([source] if stream.name in source.parts else [])
        if dies:
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(FaultyFs, "rename", mortal)
        with pytest.raises(Crash):
            open_bed(data, backup)
    left = (number, after) != (0, False)
    assert (aside if left else stream).joinpath("checkpoints", record.name).read_bytes() == b"damaged"
    with open_bed(data, tmp_path / "nowhere" if left else backup) as bed:
        bed.run()
        assert is_right(bed)
        assert sum(row[0] for row in bed.rows("SELECT rows_in FROM information_schema.ins_streams")) == 1
    assert (aside / "checkpoints" / record.name).read_bytes() == b"damaged"
    assert not list((data / "scratch").rglob("*.mdb"))


def test_a_place_that_is_not_there_is_seen_and_in_nobodys_way(tmp_path: Path) -> None:
    """The stream works on, checkpoints commit, SHOW and an event tell; once the place is there, copies are made."""
    backup = tmp_path / "mount" / "backup"
    (tmp_path / "mount").write_bytes(b"a file where a directory should be")
    with make(tmp_path / "data", backup) as bed:
        for second in (1, 2):
            insert(bed, second)
            bed.execute("CHECKPOINT STREAM s")
        assert is_right(bed)
        assert shown(bed).startswith("nothing yet; failed: NotADirectoryError")
        assert len([event for event in events(bed) if event.startswith("the backup failed: ")]) == 1
        (tmp_path / "mount").unlink()
        insert(bed, 3)
        bed.execute("CHECKPOINT STREAM s")
        assert shown(bed) == "checkpoint 3"
        assert events(bed)[-1] == "backups succeed again"


def test_copies_keep_their_distance_and_the_log_behind_them(tmp_path: Path) -> None:
    """Not every checkpoint is copied; the copied one is kept, and so is the log that a start from the copy needs."""
    backup = tmp_path / "backup"
    with make(tmp_path / "data", backup, checkpointBackupInterval="10m", checkpointsKept=1) as bed:
        for second in range(5):
            insert(bed, second)
            bed.execute("CHECKPOINT STREAM s")
        assert copies(backup) == ["1"]
        assert [row[1] for row in bed.rows("SHOW CHECKPOINTS")] == [1, 5]
        bed.advance(601)
        assert copies(backup) == ["1", "5"]
        insert(bed, 6)
        bed.execute("CHECKPOINT STREAM s")
        assert [row[1] for row in bed.rows("SHOW CHECKPOINTS")] == [5, 6]


def test_a_copy_sends_what_the_last_but_one_does_not_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces that haven't changed aren't written again; the two copies share none; what no copy names is removed."""
    monkeypatch.setattr(checkpoint_manifest, "PIECE_BYTES", 4096)
    written: list[str] = []
    write = DirectoryStore.write

    def note(self: DirectoryStore, name: str, data: bytes) -> None:
        written.append(name.rpartition("/")[2])
        write(self, name, data)

    monkeypatch.setattr(DirectoryStore, "write", note)
    backup = tmp_path / "backup"
    with make(tmp_path / "data", backup) as bed:
        insert(bed, *range(0, 4000, 100))
        sent = []
        for second in range(4000, 4006):
            insert(bed, second)
            written.clear()
            bed.execute("CHECKPOINT STREAM s")
            sent.append(len(written))
            shelves = pieces(backup)
            named = {piece for path in backup.glob("*/*/MANIFEST")
                     for file in json.loads(path.read_bytes().partition(b"\n")[2])["files"] for piece in file[2]}
            assert set().union(*shelves.values()) == named
        assert len(shelves) == 2
        assert max(sent[2:]) < max(len(shelf) for shelf in shelves.values())
    assert_restored(tmp_path, backup, 6)


def test_state_is_copied_while_it_is_open(tmp_path: Path) -> None:
    """A copy has the checkpoint although the task goes on writing; one that is folded away is an error."""
    store = StateStore(tmp_path / "state", 1 << 24)
    store.put_many([(b"a", b"1")])
    store.checkpoint(1, {"n": 1})
    store.put_many([(b"a", b"2"), (b"b", b"2")])
    store.flush()
    (tmp_path / "copy").mkdir()
    (tmp_path / "other").mkdir()
    first, second = copy_states([CopyOrder(1, [(tmp_path / "state", tmp_path / "copy")]),
                                 CopyOrder(7, [(tmp_path / "state", tmp_path / "other")])])
    copy = StateStore(tmp_path / "copy", 1 << 24)
    assert copy.restore(1) == {"n": 1}
    assert copy.items() == [(b"a", b"1")]
    copy.close()
    assert first is None
    assert isinstance(second, CheckpointDamagedError)
    assert "checkpoint 7 is missing" in second.message
    store.close()


def test_urls_need_fsspec(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library a URL is refused when the engine starts, with what to do; a directory needs none."""
    monkeypatch.setitem(__import__("sys").modules, "fsspec.core", None)
    with pytest.raises(ConfigError, match=r"needs fsspec \(pip install 'penstock\[backup\]'\)"):
        open_backup_store("s3://bucket/checkpoints")
    assert isinstance(open_backup_store("/some/directory"), DirectoryStore)


def test_a_backup_by_url(tmp_path: Path) -> None:
    """The same by way of fsspec."""
    pytest.importorskip("fsspec")
    with make(tmp_path / "data", "memory://backups/penstock") as bed:
        for second in (1, 2, 13, 24):
            insert(bed, second)
            bed.execute("CHECKPOINT STREAM s")
        assert shown(bed) == "checkpoint 4"
        insert(bed, 35)
    shutil.rmtree(tmp_path / "data" / "streams")
    with open_bed(tmp_path / "data", "memory://backups/penstock") as bed:
        bed.run()
        assert events(bed) == ["its state is restored from the backup of checkpoint 4"]
        assert is_right(bed)


def test_unknown_kinds_of_urls_are_refused() -> None:
    """A URL that fsspec doesn't know says so when the engine starts."""
    pytest.importorskip("fsspec")
    with pytest.raises(ConfigError, match="cannot be used"):
        open_backup_store("nosuch://place")
