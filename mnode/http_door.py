"""Answers HTTP on one port, GET only, from a table of what there is; knows nothing of what it answers.

Meant for the loopback interface: there is no login, so requests that a browser was lured into by a foreign page are
refused by the name that they call this machine.
"""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from penstock.common.errors import PenstockError, UnavailableError
from penstock.common.logging import logger

_log = logger(__name__)
_TIMEOUT_S = 10.0
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
                               "connect-src 'self'; img-src data:",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Page:
    """What one path gives: `make` is called for each request, by many threads at once."""

    content_type: str
    make: Callable[[], bytes]


class HttpDoor:
    """Serves `pages` by their paths until `close`."""

    def __init__(self, host: str, port: int, pages: Mapping[str, Page]) -> None:
        """A `port` of 0 is any free one. Raises UnavailableError if it can't be had."""
        try:
            self._server = _Server((host, port), _handler(pages, host))
        except OSError as error:
            raise UnavailableError(f"port {port} of {host} can't be opened: {error.strerror}",
                                   hint="another engine or program has it; choose another one") from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="http door", daemon=True,
                                        kwargs={"poll_interval": 0.1})
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Answers no more; who is being answered is cut off when the process ends."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False


def _handler(pages: Mapping[str, Page], host: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _TIMEOUT_S
        server_version, sys_version = "penstock", ""

        def do_GET(self) -> None:
            if not _is_us(self.headers.get("Host", ""), host):
                self._answer(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", b"this is not who you asked for\n")
                return
            page = pages.get(self.path.partition("?")[0])
            if page is None:
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", ("\n".join(["there are", *pages]) + "\n").encode())
                return
            try:
                content = page.make()
            except PenstockError as error:
                self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", f"{error}\n".encode())
                return
            except Exception:  # noqa: BLE001 - one page that fails must not take the others along
                _log.exception("%s could not be made", self.path)
                self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", b"see the log\n")
                return
            self._answer(HTTPStatus.OK, page.content_type, content)

        def _answer(self, status: HTTPStatus, content_type: str, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(content)))
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            _log.debug(format, *args)

    return Handler


def _is_us(asked: str, host: str) -> bool:
    """Tells whether a Host header names this machine by an address or by a name that no one else can give it."""
    name = asked.rpartition(":")[0] if asked.rpartition(":")[2].isdigit() else asked
    if name.lower() in ("localhost", host.lower()):
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
