"""Writes to several vnodes that readers of all of these see at once, and the cuts that show them so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor

from penstock.common.errors import PenstockError
from penstock.vnode.vnode import Vnode
from penstock.vnode.write.vnode_writer import BegunWrite

Begin = Callable[[], BegunWrite | None]
"""Begins what a write does in one vnode; None: there is nothing to do."""

_Parts = dict[int, BegunWrite]
"""By vgroup."""


class WholeWrites:
    """Safe for many threads.

    Each vnode acknowledges its part of a write by itself. Who reads several vnodes takes a cut: a version of each, with
    all that was acknowledged before, and of each write of here that is under way either all or nothing. Parts get
    their versions while `_lock` is held: of two writes, the same one comes first in all vnodes. So whoever waits for
    the newest write of which a part is acknowledged already, has all parts of those before it, and none of those
    behind it. No writer waits for readers.
    """

    def __init__(self, vnode: Callable[[int], Vnode]) -> None:
        """`vnode` returns the one of a vgroup, or raises."""
        self._vnode = vnode
        self._lock = threading.Lock()
        self._under_way: list[_Parts] = []

    def write(self, begins: Sequence[tuple[int, Begin]], pool: Executor | None = None) -> None:
        """Performs a write whose parts `begins` tells, by vgroup, each once; returns when all of it is acknowledged.

        `pool`: where vnodes wait for their disks at the same time. Raises what beginning raises, and StorageError: then
        some vnodes may have their part.
        """
        if len(begins) == 1:
            begun = begins[0][1]()
            if begun is not None:
                begun.wait()
        else:
            self._finish(self._begun(begins), pool)

    def begin(self, begins: Sequence[tuple[int, Begin]]) -> Callable[[Executor | None], None]:
        """Begins what `write` does; what it returns is to be called, and waits."""
        if len(begins) == 1:
            begun = begins[0][1]()
            return lambda pool: None if begun is None else _wait(begun)
        parts = self._begun(begins)
        return lambda pool: self._finish(parts, pool)

    def _begun(self, begins: Sequence[tuple[int, Begin]]) -> _Parts:
        parts: _Parts = {}
        with self._lock:
            for vgroup_id, begin in begins:
                write = begin()
                if write is not None:
                    parts[vgroup_id] = write
            self._under_way.append(parts)
        return parts

    def _finish(self, parts: _Parts, pool: Executor | None) -> None:
        try:
            _wait_for_all(parts.values(), pool)
        finally:
            with self._lock:
                self._under_way = [other for other in self._under_way if other is not parts]

    def cut(self, vgroup_ids: Iterable[int]) -> dict[int, int]:
        """Returns a version of each vnode, acknowledged: all that was acknowledged before, and no part of a write.

        Waits for writes of which a part is acknowledged already. Raises what the vnodes raise that can't be used.
        """
        vnodes = {vgroup_id: self._vnode(vgroup_id) for vgroup_id in vgroup_ids}
        if len(vnodes) == 1:
            return {vgroup_id: vnode.acknowledged_version for vgroup_id, vnode in vnodes.items()}
        with self._lock:
            versions = {vgroup_id: vnode.acknowledged_version for vgroup_id, vnode in vnodes.items()}
            awaited = _up_to_the_newest_begun(self._under_way, versions)
        for parts in awaited:
            for vgroup_id, write in parts.items():
                if vgroup_id in versions and write.version > versions[vgroup_id]:
                    try:
                        write.settle()
                    except PenstockError:
                        continue  # whoever writes is told; some of it is there, as is said
                    versions[vgroup_id] = min(write.version, vnodes[vgroup_id].acknowledged_version)
        return versions


def _up_to_the_newest_begun(under_way: Sequence[_Parts], versions: Mapping[int, int]) -> Sequence[_Parts]:
    """Returns the writes up to the last one of which something is acknowledged at these versions."""
    for count in range(len(under_way), 0, -1):
        if any(write.version <= versions.get(vgroup_id, -1) for vgroup_id, write in under_way[count - 1].items()):
            return under_way[:count]
    return ()


def _wait_for_all(writes: Iterable[BegunWrite], pool: Executor | None) -> None:
    """Raises the first error, when all of them have ended."""
    errors: list[BaseException] = []
    if pool is not None:
        errors += [error for future in [pool.submit(write.wait) for write in writes]
                   if (error := future.exception()) is not None]
    else:
        for write in writes:
            try:
                write.wait()
            except PenstockError as error:
                errors.append(error)
    if errors:
        raise errors[0]


def _wait(write: BegunWrite) -> None:
    write.wait()
