"""`--safe-mode`: an engine on a stand-in of a data directory, so that nothing in the directory itself changes.

What an engine may change is copied: the catalog, MANIFESTs, the newest segment of each log. Links stand for the rest.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from penstock.common.errors import DataDirectoryInUseError, NotFoundError, PenstockError, StorageError
from penstock.common.paths import DataPaths

_LEFT_OUT = {"LOCK", "PLACE", "lock.mdb", "views.sql", "views.duckdb", "log", "spill", "scratch", "state", "copies",
             "damaged", "penstock.sock"}
_PLACE = "TMPDIR says where the copies go"


@contextmanager
def stand_in(directory: Path) -> Iterator[Path]:
    """Gives a directory that answers as `directory` does; what is changed in it is thrown away.

    Raises NotFoundError, DataDirectoryInUseError if an engine has `directory` open, and StorageError if this process
    must not read it. PenstockErrors that come by have its name in the place of the other's.
    """
    if not directory.is_dir():
        raise NotFoundError(f"{directory} is not a data directory", hint="name one with --data")
    with ExitStack() as held:
        try:
            root = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="penstock-safe-"))) / "data"
        except OSError as error:
            raise StorageError(f"cannot make a folder for copies in {tempfile.gettempdir()}: {error.strerror}",
                               hint=_PLACE) from error
        try:
            _lock(DataPaths(directory), held)
            _fill(directory, root)
        except OSError as error:
            refused = isinstance(error, PermissionError)
            raise StorageError(
                f"cannot {'read' if refused else 'copy'} {error.filename or directory}: {error.strerror}",
                hint="run penstock as the user who owns the directory, or on a copy of it" if refused else
                     _PLACE) from error
        try:
            yield root
        except PenstockError as error:
            error.message = error.message.replace(str(root), str(directory))
            raise


def _lock(paths: DataPaths, held: ExitStack) -> None:
    """Keeps engines away until `held` ends. Raises DataDirectoryInUseError."""
    if not paths.lock.exists():  # no engine has ever had it open
        return
    lock = held.enter_context(paths.lock.open("rb"))
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise DataDirectoryInUseError(f"the data directory {paths.root} is in use by an engine",
                                      hint="stop it first, or connect to it with penstock --host") from error


def _fill(source: Path, target: Path) -> None:
    target.mkdir(0o700)
    entries = sorted(path for path in source.iterdir() if path.name not in _LEFT_OUT)
    segments = [path for path in entries if path.suffix == ".log" and path.stem.isdigit()]
    for path in entries:
        place = target / path.name
        if path.is_dir():
            _fill(path, place)
        elif path.suffix == ".parquet" or path in segments[:-1]:
            place.symlink_to(path.absolute())
        elif path.is_file():
            shutil.copyfile(path, place)
