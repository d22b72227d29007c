"""Copies of vnodes, and of the catalog, between nodes: what the active gives, and what a standby asks for, by pieces.

A standby needs one when the active's log begins later than what it has itself. Requests and answers may be lost: who
asks asks again. Nothing here waits.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from penstock.common.clock import Clock
from penstock.common.errors import InvalidValueError, PenstockError, UnavailableError
from penstock.common.fs import Fs
from penstock.mnode.catalog.catalog_copy_source import CATALOG_FOLDERS
from penstock.mnode.cluster.cluster_messages import CATALOG_LOG, CopyAnswer, CopyRequest
from penstock.vnode.vnode import Vnode
from penstock.vnode.write.vnode_copy import VNODE_FOLDERS, CopiedFile, CopiedPiece, ReceivedCopy

#: `CopyRequest.file` of who asks which files there are, and of who has all.
FILES, DONE = -1, -2
#: Of the owners of pins that keep what is being copied.
COPY_PIN_PREFIX = "copy-"
_PIECE_BYTES = 1 << 20
_IDLE_S = 60.0


class CopySource(Protocol):
    """Files that stay as they are until `close`, in the order in which they are to be read."""

    @property
    def files(self) -> Sequence[CopiedFile]: ...

    def read(self, file: int, offset: int, size_max: int) -> CopiedPiece: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Given:
    copy: int
    source: CopySource
    used_at: float


class CopySources:
    """The active's side, for all standbys; called by one thread."""

    def __init__(self, vnodes: Callable[[], Mapping[int, Vnode]], catalog: Callable[[int], CopySource], clock: Clock
                 ) -> None:
        """`catalog` begins a copy of the catalog for a node."""
        self._vnodes = vnodes
        self._catalog = catalog
        self._clock = clock
        self._given: dict[tuple[int, int], _Given] = {}

    def answer(self, node: int, request: CopyRequest) -> CopyAnswer | None:
        """Returns what a standby is told; None if it has all."""
        now, key = self._clock.monotonic(), (node, request.log)
        if request.file == DONE:
            self._end(key)
            return None
        try:
            given = self._given.get(key)
            if given is None or given.copy != request.copy:
                if request.file != FILES:
                    raise UnavailableError("this copy has ended: another one must be begun")
                self._end(key)
                given = self._given[key] = _Given(request.copy, self._begin(node, request.log), now)
            given.used_at = now
            if request.file == FILES:
                files = tuple((file.name, file.size) for file in given.source.files)
                return CopyAnswer(request.log, request.copy, FILES, 0, files=files)
            piece = given.source.read(request.file, request.offset, _PIECE_BYTES)
        except (PenstockError, IndexError) as error:
            self._end(key)
            return CopyAnswer(request.log, request.copy, request.file, request.offset, problem=str(error))
        return CopyAnswer(request.log, request.copy, piece.file, piece.offset, piece.checksum, data=piece.data)

    def _begin(self, node: int, log: int) -> CopySource:
        if log == CATALOG_LOG:
            return self._catalog(node)
        vnode = self._vnodes().get(log)
        if vnode is None:
            raise UnavailableError(f"there is no vnode {log}")
        return vnode.copying.copy_files(f"{COPY_PIN_PREFIX}{node}")

    def end_idle(self) -> None:
        """Lets go of what nobody has asked for in a while: it keeps the log from being cut."""
        before = self._clock.monotonic() - _IDLE_S
        for key in [key for key, given in self._given.items() if given.used_at < before]:
            self._end(key)

    def end_all(self) -> None:
        for key in list(self._given):
            self._end(key)

    def _end(self, key: tuple[int, int]) -> None:
        given = self._given.pop(key, None)
        if given is not None:
            given.source.close()


class CopyReception:
    """A standby's side of one copy. `copy` is a number that was never used before; `folder` gets the files."""

    def __init__(self, log: int, copy: int, folder: Path, fs: Fs) -> None:
        self.log = log
        self._copy = copy
        self._folder = folder
        self._fs = fs
        self._received: ReceivedCopy | None = None
        self._finished = False
        shutil.rmtree(folder, ignore_errors=True)

    @property
    def is_whole(self) -> bool:
        return self._received is not None and self._received.is_whole

    def request(self) -> CopyRequest:
        """Returns what to ask the active now; the same again if no answer comes."""
        if self._received is None:
            return CopyRequest(self.log, self._copy, FILES, 0)
        if self._received.is_whole:
            return CopyRequest(self.log, self._copy, DONE, 0)
        return CopyRequest(self.log, self._copy, *self._received.next)

    def take(self, answer: CopyAnswer) -> bool:
        """Takes an answer; returns whether it was what was asked for last.

        Raises UnavailableError if the active can't go on, InvalidValueError for files that it can't have, StorageError.
        """
        asked = self.request()
        if (answer.log, answer.copy, answer.file, answer.offset) != (asked.log, asked.copy, asked.file, asked.offset):
            return False
        if answer.problem:
            raise UnavailableError(f"the active node can't give a copy of {named(self.log)}: {answer.problem}")
        if self._received is None:
            files = tuple(CopiedFile(name, size) for name, size in answer.files)
            if len({file.name for file in files}) < len(files) or not files:
                raise InvalidValueError("a copy has each of its files once")
            folders = CATALOG_FOLDERS if self.log == CATALOG_LOG else VNODE_FOLDERS
            self._received = ReceivedCopy(self._folder, files, self._fs, folders)
        else:
            self._received.write(CopiedPiece(answer.file, answer.offset, answer.data, answer.checksum))
        return True

    def finish(self) -> Path:
        """Returns the folder, which has all for good now. Raises StorageError."""
        assert self._received is not None
        if not self._finished:
            self._received.finish()
            self._finished = True
        return self._folder

    def close(self) -> None:
        """Gives up; what has come is removed when the next one begins."""
        if self._received is not None:
            self._received.close()


def named(log: int) -> str:
    """Returns what a log belongs to, for people."""
    return "the catalog" if log == CATALOG_LOG else f"vnode {log}"
