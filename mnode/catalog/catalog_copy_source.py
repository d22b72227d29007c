"""The catalog on its way to another node: its file as of one moment, and the end of its log."""

from __future__ import annotations

import shutil
from pathlib import Path

from penstock.common.fs import Fs
from penstock.mnode.catalog.catalog_copying import CatalogCopying
from penstock.vnode.write.vnode_copy import CopiedFile, CopiedPiece, log_files, next_piece
from penstock.wal.epoch_file import EPOCHS_NAME

CATALOG, LOG = CATALOG_FOLDERS = ("catalog", "catalog-log")
"""The folders of a copy, as they are called in a data directory."""


class CatalogCopySource:
    """What is to be copied stays as it is until `close`. Methods raise StorageError."""

    def __init__(self, copying: CatalogCopying, folder: Path, fs: Fs) -> None:
        """`folder`: for the copy of the catalog's file, on the disk of the catalog; what was there goes."""
        self._copying = copying
        self._folder = folder
        self._fs = fs
        shutil.rmtree(folder, ignore_errors=True)
        version = copying.begin_copy(folder / CATALOG)
        try:
            log = copying.log.directory
            self._log = log_files(fs, log, copying.log.writer.tail, version, LOG)
            self._contents: dict[str, bytes] = {}
            if EPOCHS_NAME in fs.list(log):
                self._contents[f"{LOG}/{EPOCHS_NAME}"] = fs.read(log / EPOCHS_NAME)
            #: in the order in which they are to be read
            self.files = (*(CopiedFile(f"{CATALOG}/{name}", fs.size(folder / CATALOG / name))
                            for name in fs.list(folder / CATALOG)), *self._log,
                          *(CopiedFile(name, len(data)) for name, data in self._contents.items()))
        except BaseException:
            self.close()
            raise

    def read(self, file: int, offset: int, size_max: int) -> CopiedPiece:
        """Returns the next bytes of a file; see `next_piece`."""
        root = self._copying.log.directory.parent if self.files[file] in self._log else self._folder
        return next_piece(self._fs, root, self.files, self._contents, file, offset, size_max)

    def close(self) -> None:
        """Lets the files go."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._copying.end_copy()
