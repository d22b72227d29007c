"""Copies of checkpoints in another place, made in the background, and taken from there when the state is gone.

A copy is the state of all tasks as of one committed checkpoint, cut into pieces. Its manifest is written last and has
the checksum of every piece: a copy without one, or with other pieces than it says, counts for nothing. A copy sends
only the pieces that the last but one doesn't have, in the same of two shelves: the two newest copies share nothing, so
what is damaged in one place spoils one of them. No stream ever waits for a copy, nor for the place being there.
"""

from __future__ import annotations

import hashlib
import hmac
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.common.aside import set_aside
from penstock.common.clock import Clock
from penstock.common.connection import read_secret
from penstock.common.errors import ConfigError, CorruptionError, PenstockError
from penstock.common.fs import Fs
from penstock.common.logging import logger
from penstock.common.paths import DataPaths
from penstock.common.private import make_private, open_private
from penstock.mnode.checkpoints.backup_store import BackupStore
from penstock.mnode.checkpoints.checkpoint_manifest import (
    PIECE_BYTES,
    SHELVES,
    CopyManifest,
    StateFile,
    copy_order,
    pieces_of,
)
from penstock.mnode.checkpoints.commit_records import CommitRecord, CommitRecords
from penstock.mnode.checkpoints.staged_streams import StagedStreams
from penstock.tasks.state.state_copy import copy_states

COPIES_KEPT = 2
_MANIFEST = "MANIFEST"
_MANIFEST_BYTES_MAX = 64 * 1024 * 1024
_SIGNED = b"hmac-sha256:"
_KEY_CHARACTERS_MIN = 16

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class BackupInfo:
    """How a stream's backup is: the newest whole copy, and why the last try failed ("" if it didn't)."""

    checkpoint_id: int | None = None
    at_ms: int | None = None
    problem: str = ""


def backup_key(reference: str, environ: Mapping[str, str], read_text: Callable[[str], str]) -> bytes | None:
    """Returns the key that a value of checkpointBackupKey refers to, or None if there is none. Raises ConfigError."""
    if not reference:
        return None
    if not reference.startswith(("env:", "file:")):
        raise ConfigError("checkpointBackupKey is a secret, which isn't written into the configuration",
                          hint="write env:NAME or file:/path")
    secret, problem = read_secret(reference, environ, read_text)
    if problem is None and len(secret) < _KEY_CHARACTERS_MIN:
        problem = f"it has fewer than {_KEY_CHARACTERS_MIN} characters"
    if problem is not None:
        raise ConfigError(f"checkpointBackupKey: {problem}", hint="openssl rand -hex 32 makes a good key")
    return secret.encode()


class Backups:
    """The backups of all streams. `offer` is cheap and waits for nothing; `poll` does what was offered."""

    def __init__(
        self,
        store: BackupStore | None,
        interval_s: float,
        paths: DataPaths,
        fs: Fs,
        records: CommitRecords,
        clock: Clock,
        tell: Callable[[int, str], None],
        key: bytes | None = None,
    ) -> None:
        """`store` None: nothing is copied. `interval_s`: from one copy of a stream to the next, at least.

        `tell(stream id, text)` takes what people should hear of. `key`: copies whose manifests it doesn't authenticate
        count for nothing; None: whoever can write into the store is trusted.
        """
        self._key = key
        self._store = store
        self._interval_s = interval_s
        self._paths = paths
        self._fs = fs
        self._records = records
        self._staged = StagedStreams(paths, fs)
        self._clock = clock
        self._tell = tell
        self._lock = threading.Lock()
        self._offered: set[int] = set()
        self._infos: dict[int, BackupInfo] = {}
        self._copied_at: dict[int, float] = {}
        self._copying: dict[int, int] = {}
        self._wake = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None

    def clean(self) -> None:
        """Removes what a crash left of copies under way; a restored stream that lacked only its place gets it."""
        self._staged.clean()
        shutil.rmtree(self._paths.scratch, ignore_errors=True)

    def watch(self) -> None:
        """Polls in the background from now on."""
        if self._store is not None:
            self._thread = threading.Thread(target=self._run, name="penstock-backup", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Begins no further copy. One that is under way is left to itself: half a copy counts for nothing."""
        self._closing = True
        with self._lock:
            self._offered.clear()
        self._wake.set()

    def offer(self, stream_id: int) -> None:
        """A stream has a new checkpoint."""
        if self._store is not None:
            with self._lock:
                self._offered.add(stream_id)
            self._wake.set()

    def info(self, stream_id: int) -> BackupInfo | None:
        """Returns how the backup of a stream is, or None if there is none."""
        return None if self._store is None else self._infos.get(stream_id, BackupInfo())

    def held(self, stream_id: int) -> frozenset[int]:
        """Returns the checkpoints that must stay: the copied one, so that the log behind it does, and the next one."""
        copied = self._infos.get(stream_id, BackupInfo()).checkpoint_id
        ids = (copied, self._copying.get(stream_id))
        return frozenset(one for one in ids if one is not None)

    def forget(self, stream_id: int) -> None:
        """A stream was dropped: its copies go too."""
        with self._lock:
            self._offered.discard(stream_id)
            self._infos.pop(stream_id, None)
        if self._store is not None:
            threading.Thread(target=self._remove, args=(f"{stream_id:x}",), name="penstock-unbackup",
                             daemon=True).start()

    def poll(self) -> None:
        """Copies the newest checkpoint of each stream that has a new one and whose interval is over."""
        with self._lock:
            offered = sorted(self._offered)
        for stream_id in offered:
            if self._closing:
                return
            if self._clock.monotonic() >= self._copied_at.get(stream_id, float("-inf")) + self._interval_s:
                with self._lock:
                    self._offered.discard(stream_id)
                self._back_up(stream_id)

    def restore(self, stream_id: int, log_ends: Mapping[int, int]) -> bool:
        """Puts the newest whole copy over these vnodes in the place of a stream's state; returns whether there was one.

        `log_ends`: the last version of each vnode's log. A copy of more than that, made before rows were lost or the
        directory was taken from a backup, is passed over: the stream would miss what comes at those versions now. No
        task of the stream may run. What was there is set aside.
        """
        if self._store is None:
            return False
        try:
            for checkpoint_id in self._copies(self._store, stream_id):
                if self._restore(self._store, stream_id, checkpoint_id, log_ends):
                    return True
        except Exception as error:  # noqa: BLE001  # libraries behind URLs raise what they like
            self._tell(stream_id, f"the backup cannot be read: {_text_of(error)}")
        return False

    # --- inside ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            self._wake.clear()
            try:
                self.poll()
            except Exception:  # noqa: BLE001
                # What goes wrong with one stream's copy is told by `poll`; this is a defect, told here.
                _log.exception("backups could not be made")
            if self._offered:
                self._clock.wait(self._wake, max(0.1, min(self._interval_s, 1.0)))
            else:
                self._wake.wait()

    def _back_up(self, stream_id: int) -> None:
        store = self._store
        before = self._infos.get(stream_id, BackupInfo())
        try:
            record = self._records.newest(stream_id)
            if store is None or record is None or record.checkpoint_id == before.checkpoint_id:
                return
            self._copying[stream_id] = record.checkpoint_id
            self._copy(store, record)
        except Exception as error:  # noqa: BLE001  # libraries behind URLs raise what they like
            problem = _text_of(error)
            _log.warning("stream %x could not be backed up: %s", stream_id, problem)
            if not before.problem:
                self._tell(stream_id, f"the backup failed: {problem}")
            self._infos[stream_id] = replace(before, problem=problem)
        else:
            if before.problem:
                self._tell(stream_id, "backups succeed again")
            self._infos[stream_id] = BackupInfo(record.checkpoint_id, self._clock.now_ms())
            self._copied_at[stream_id] = self._clock.monotonic()
            self._thin_out(store, stream_id)
        finally:
            self._copying.pop(stream_id, None)

    def _copy(self, store: BackupStore, record: CommitRecord) -> None:
        name = f"{record.stream_id:x}/{record.checkpoint_id}"
        make_private(self._paths.scratch)
        with tempfile.TemporaryDirectory(prefix="backup-", dir=self._paths.scratch) as temporary:
            order = copy_order(self._paths, record, Path(temporary))
            problem, = copy_states([order])
            if problem is not None:
                raise problem
            before = self._manifests(store, record.stream_id)
            shelf = (before[0].shelf + 1) % SHELVES if before else 0
            # Only what a whole copy names is there for certain; other pieces may be half of themselves.
            there = {piece for manifest in before if manifest.shelf == shelf for piece in manifest.pieces}
            files = []
            for part in record.tasks:
                path = Path(temporary) / part.task / "data.mdb"
                files.append(StateFile.of(part.task, path))
                for piece, data in zip(files[-1].pieces, pieces_of(path), strict=True):
                    if piece not in there:
                        store.write(f"{_shelf(record.stream_id, shelf)}/{piece}", data)
                        there.add(piece)
            manifest = CopyManifest((record,), tuple(files), shelf)
            store.write(f"{name}/{_MANIFEST}", _signed(manifest.encode(), self._key))

    def _manifests(self, store: BackupStore, stream_id: int) -> list[CopyManifest]:
        """Returns those of a stream's copies that can be read, newest first."""
        found = []
        for checkpoint_id in self._copies(store, stream_id):
            name = f"{stream_id:x}/{checkpoint_id}"
            try:
                found.append(self._manifest(store, stream_id, checkpoint_id))
            except (CorruptionError, FileNotFoundError) as error:
                _log.info("backup %s is not complete: %s", name, error)
        return found

    def _manifest(self, store: BackupStore, stream_id: int, checkpoint_id: int) -> CopyManifest:
        data = store.read(f"{stream_id:x}/{checkpoint_id}/{_MANIFEST}", _MANIFEST_BYTES_MAX)
        what = f"backup {stream_id:x}/{checkpoint_id}"
        return CopyManifest.decode(_authenticated(data, self._key, what), stream_id, checkpoint_id, what)

    def _copies(self, store: BackupStore, stream_id: int) -> list[int]:
        return sorted((int(name) for name in store.names(f"{stream_id:x}") if name.isdigit()), reverse=True)

    def _thin_out(self, store: BackupStore, stream_id: int) -> None:
        try:
            for checkpoint_id in self._copies(store, stream_id)[COPIES_KEPT:]:
                store.remove(f"{stream_id:x}/{checkpoint_id}")
            kept = self._manifests(store, stream_id)
            for shelf in range(SHELVES):
                wanted = {piece for manifest in kept if manifest.shelf == shelf for piece in manifest.pieces}
                for piece in set(store.names(_shelf(stream_id, shelf))) - wanted:
                    store.remove_file(f"{_shelf(stream_id, shelf)}/{piece}")
        except Exception as error:  # noqa: BLE001  # libraries behind URLs raise what they like
            _log.warning("an old backup of stream %x stays: %s", stream_id, _text_of(error))

    def _remove(self, name: str) -> None:
        try:
            if self._store is not None and self._store.names(name):
                self._store.remove(name)
        except Exception as error:  # noqa: BLE001  # libraries behind URLs raise what they like
            _log.warning("the backups of the dropped stream %s stay: %s", name, _text_of(error))

    def _restore(
        self, store: BackupStore, stream_id: int, checkpoint_id: int, log_ends: Mapping[int, int]
    ) -> bool:
        name = f"{stream_id:x}/{checkpoint_id}"
        if _MANIFEST not in store.names(name):
            _log.info("backup %s is incomplete and is skipped", name)
            return False
        self._staged.give_up(stream_id)
        try:
            manifest = self._manifest(store, stream_id, checkpoint_id)
            unfit = _unfit(manifest.record, log_ends)
            if unfit:
                self._tell(stream_id, f"the backup of checkpoint {checkpoint_id} {unfit} and is skipped")
                return False
            self._stage(store, name, manifest)
        except (CorruptionError, FileNotFoundError) as error:
            self._staged.give_up(stream_id)
            _log.warning("a backup is skipped: %s", error)
            self._tell(stream_id, f"the backup of checkpoint {checkpoint_id} is damaged and skipped: {error}")
            return False
        before = self._paths.stream(stream_id)
        aside = set_aside(self._fs, self._paths, before) if before.exists() else None
        self._staged.put_in_place(stream_id)
        self._records.forget(stream_id)
        self._tell(stream_id, f"its state is restored from the backup of checkpoint {checkpoint_id}"
                              + (f"; the previous state is in {aside}" if aside else ""))
        return True

    def _stage(self, store: BackupStore, name: str, manifest: CopyManifest) -> None:
        """Puts a stream together beside its place, durably; its commit record comes last and says that it is whole."""
        stream_id = manifest.record.stream_id
        self._staged.begin(stream_id, manifest.size, f"backup {name}")
        for file in manifest.files:
            local = self._staged.file(stream_id, file.task)
            if not _fetch(store, _shelf(stream_id, manifest.shelf), file, local):
                raise CorruptionError(f"backup {name}: the state of {file.task} fails its checksum")
            data = self._fs.open_append(local)
            data.sync()
            data.close()
        self._staged.finish(stream_id, [file.task for file in manifest.files], [manifest.record])


def _unfit(record: CommitRecord, log_ends: Mapping[int, int]) -> str:
    """Returns why a stream can't go on from a checkpoint with logs that end there; "" if it can."""
    if not record.is_over(log_ends):
        return "is from before vgroups were split"
    return next((f"has version {version} of vnode {vgroup_id}'s log, which ends at {log_ends[vgroup_id]},"
                 for vgroup_id, version in record.versions if version > log_ends[vgroup_id]), "")


def _shelf(stream_id: int, shelf: int) -> str:
    return f"{stream_id:x}/pieces-{shelf}"


def _fetch(store: BackupStore, shelf: str, file: StateFile, local: Path) -> bool:
    """Copies a task's state from a backup to `local`; returns whether it is what was copied there."""
    with open_private(local, "wb") as target:
        for piece in file.pieces:
            data = store.read(f"{shelf}/{piece}", PIECE_BYTES)
            if hashlib.sha256(data).hexdigest() != piece:
                return False
            target.write(data)
        return target.tell() == file.size


def _signed(text: bytes, key: bytes | None) -> bytes:
    """Returns a manifest behind an HMAC of it, if there is a key."""
    return text if key is None else b"%s%s\n%s" % (_SIGNED, _mac(key, text), text)


def _authenticated(data: bytes, key: bytes | None, what: str) -> bytes:
    """Returns the manifest that `_signed` was given. Raises CorruptionError if it was given another, or no key."""
    mac, _, text = data.partition(b"\n") if data.startswith(_SIGNED) else (b"", b"", data)
    if key is not None and not hmac.compare_digest(mac, _SIGNED + _mac(key, text)):
        raise CorruptionError(f"{what}: the manifest isn't authenticated by checkpointBackupKey")
    return text


def _mac(key: bytes, text: bytes) -> bytes:
    return hmac.new(key, text, "sha256").hexdigest().encode()


def _text_of(error: Exception) -> str:
    return str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
