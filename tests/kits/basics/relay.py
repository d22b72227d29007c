"""What stands between a client and a server, and can be cut as the end of the client would."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType

_PIECE_BYTES = 64 * 1024


class Relay:
    """Listens by TCP, or at a Unix socket, and passes on what comes in both directions."""

    def __init__(self, target: tuple[str, int] | str) -> None:
        """`target`: where the server listens, a host and a port, or the path of its Unix socket."""
        self._target = target
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        if isinstance(target, str):
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(f"{target}.relay")
        else:
            self._listener = socket.socket()
            self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        """The port of one that listens by TCP."""
        return int(self._listener.getsockname()[1])

    @property
    def path(self) -> str:
        """The path of one that listens at a Unix socket."""
        return str(self._listener.getsockname())

    def cut(self) -> None:
        """Closes all connections on both sides, and takes no more."""
        with self._lock:
            sockets = [self._listener, *self._sockets]
            self._sockets = []
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # it was cut
                return
            server = socket.socket(socket.AF_UNIX if isinstance(self._target, str) else socket.AF_INET)
            server.connect(self._target)
            with self._lock:
                self._sockets += [client, server]
            for source, destination in ((client, server), (server, client)):
                threading.Thread(target=_pass_on, args=(source, destination), daemon=True).start()

    def __enter__(self) -> Relay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()


def _pass_on(source: socket.socket, destination: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(_PIECE_BYTES):
            destination.sendall(piece)
        destination.shutdown(socket.SHUT_WR)
