"""`--safe-mode`: an engine on a stand-in of a data directory, so that nothing in the directory itself changes.

What an engine may change is copied: the catalog, MANIFESTs, the newest segment of each log. Links stand for the rest.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.common.errors import DataDirectoryInUseError, NotFoundError
from penstock.common.paths import DataPaths

_LEFT_OUT = {"LOCK", "PLACE", "lock.mdb", "views.sql", "views.duckdb", "log", "spill", "scratch", "state", "copies",
             "damaged", "penstock.sock"}


@contextmanager
def stand_in(directory: Path) -> Iterator[Path]:
    """Gives a directory that answers as `directory` does; what is changed in it is thrown away.

    Raises NotFoundError, or DataDirectoryInUseError if an engine has `directory` open.
    """
    paths = DataPaths(directory)
    if not directory.is_dir():
        raise NotFoundError(f"{directory} is not a data directory", hint="name one with --data")
    with tempfile.TemporaryDirectory(prefix="penstock-safe-") as name:
        root = Path(name) / "data"
        if not paths.lock.exists():  # no engine has ever had it open
            _fill(directory, root)
            yield root
            return
        with paths.lock.open("rb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise DataDirectoryInUseError(f"the data directory {directory} is in use by an engine",
                                              hint="stop it first, or connect to it with penstock --host") from error
            _fill(directory, root)
            yield root


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
