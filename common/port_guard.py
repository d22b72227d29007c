"""Bounds the connections of a port whose sockets a library holds, such as gRPC, which bounds little by itself.

It finds the connections among this process's descriptors and ends those that must go, as if their peer had hung up.
Nothing that they carry passes through here.
"""

from __future__ import annotations

import os
import resource
import socket
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import unquote

from penstock.common.admission import Admission, ConnectionBounds
from penstock.common.clock import Clock
from penstock.common.logging import logger

_log = logger(__name__)
_LOOK_EVERY_S, _LOOK_AGAIN_S = 1.0, 0.1
_MAPPED = "::ffff:"

Peer = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Socket:
    """A socket of this process, by descriptor and inode, which both come again for others. `peer` None: not ours."""

    descriptor: int
    inode: int
    peer: Peer | None


class PortGuard:
    """Looks after the connections of one port until `close`."""

    def __init__(self, name: str, port: int, bounds: ConnectionBounds, clock: Clock) -> None:
        """`name` is what logs call the port."""
        self.admission: Admission[tuple[int, int]] = Admission(bounds)
        self._name = name
        self._port = port
        self._clock = clock
        self._sockets: dict[tuple[int, int], _Socket] = {}
        self._logged_in: set[str] = set()
        self._closing = threading.Event()
        # Kept for looking at others' descriptors: when there are no more to be had, it must work all the same.
        self._nothing, self._spare = (os.open(os.devnull, os.O_RDONLY) for _ in range(2))
        self._thread = threading.Thread(target=self._run, name=f"guard of {name}", daemon=True)
        self._thread.start()

    def logged_in(self, peer: str) -> None:
        """Takes note that a call from `peer`, as gRPC writes it, has proved who it is. Cheap; any thread."""
        self._logged_in.add(peer)

    def close(self) -> None:
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._look_after()
        finally:
            os.close(self._spare)
            os.close(self._nothing)

    def _look_after(self) -> None:
        wait_s = _LOOK_EVERY_S
        while not self._clock.wait(self._closing, wait_s):
            # Whoever opens connections as fast as they are closed is looked at more often.
            try:
                wait_s = _LOOK_AGAIN_S if self.look() else _LOOK_EVERY_S
            except Exception:  # noqa: BLE001 - a port whose guard has gone home has no bounds
                wait_s = _LOOK_EVERY_S
                _log.exception("the connections to %s could not be looked at, and will be again", self._name)

    def look(self) -> int:
        """Closes the connections that must go, and returns how many. For one thread at a time."""
        now = self._clock.monotonic()
        logged_in = tuple(self._logged_in)
        known = {read_peer(peer): peer for peer in logged_in}
        found = self._find()
        for key in self._sockets.keys() - found.keys():
            self.admission.closed(key)
        for key in found.keys() - self._sockets.keys():
            if (peer := found[key].peer) is not None:
                self.admission.opened(key, peer[0], now)
        self._sockets = found
        for key, one in found.items():
            if one.peer is not None and known.pop(one.peer, None) is not None:
                self.admission.logged_in(key)
        self._logged_in.difference_update(known.values())  # their connections are gone
        over = self.admission.over(now)
        for key in over:
            self._hang_up(self._sockets[key])
        if (text := self.admission.report(now)) is not None:
            _log.warning("connections to %s were closed: %s", self._name, text)
        return len(over)

    def _find(self) -> dict[tuple[int, int], _Socket]:
        """Returns all sockets of this process; those that were there before aren't asked again."""
        found: dict[tuple[int, int], _Socket] = {}
        for descriptor in _descriptors():
            try:
                status = os.fstat(descriptor)
            except OSError:  # closed meanwhile, as the one of the listing itself
                continue
            if stat.S_ISSOCK(status.st_mode):
                key = descriptor, status.st_ino
                found[key] = self._sockets.get(key) or _Socket(*key, self._peer(descriptor))
        return found

    def _peer(self, descriptor: int) -> Peer | None:
        """Returns who is at the other end, if this is a connection of the port."""
        try:
            with self._borrowed(descriptor) as one:
                if one.family not in (socket.AF_INET, socket.AF_INET6) or one.getsockname()[1] != self._port:
                    return None
                host, port = one.getpeername()[:2]
        except OSError:  # it listens, or is gone
            return None
        return host.removeprefix(_MAPPED), port

    def _hang_up(self, one: _Socket) -> None:
        """Ends a connection. Its descriptor is the library's to close; it may have become another's meanwhile."""
        try:
            with self._borrowed(one.descriptor) as borrowed:
                if os.fstat(borrowed.fileno()).st_ino == one.inode:
                    borrowed.shutdown(socket.SHUT_RDWR)
        except OSError as error:
            _log.debug("a connection was gone already: %s", error)

    @contextmanager
    def _borrowed(self, descriptor: int) -> Iterator[socket.socket]:
        """Gives a socket by a second descriptor, so that it stays the same one while it is looked at."""
        os.dup2(descriptor, self._spare, inheritable=False)
        try:
            borrowed = socket.socket(fileno=self._spare)
            try:
                yield borrowed
            finally:
                borrowed.detach()
        finally:
            os.dup2(self._nothing, self._spare, inheritable=False)


def _descriptors() -> Iterable[int]:
    """Returns at least all descriptors that are open."""
    try:
        return map(int, os.listdir("/dev/fd"))
    except OSError:  # the listing takes one, too
        return range(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def read_peer(text: str) -> Peer | None:
    """Returns address and port of a peer as gRPC writes it: `ipv4:127.0.0.1:4711`, `ipv6:%5B::1%5D:4711`."""
    host, _, port = unquote(text).partition(":")[2].rpartition(":")
    return (host.strip("[]").removeprefix(_MAPPED), int(port)) if port.isdigit() else None
