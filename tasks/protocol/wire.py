"""Encodes objects, errors and the shared secret for other processes. Opens no connection itself."""

from __future__ import annotations

import hmac
import io
import pickle
import threading
from typing import Any

import pyarrow.flight as flight

from penstock.common.admission import WORKER_PORTS
from penstock.common.clock import SystemClock
from penstock.common.errors import InternalError, PenstockError, UnavailableError
from penstock.common.logging import logger
from penstock.common.port_guard import PortGuard
from penstock.common.sent_errors import decode_error, encode_error

_log = logger(__name__)

#: Packages whose classes a message may contain. Peers have proved that they know the secret before anything is
#: decoded; this keeps a stray object from being built all the same.
_PACKAGES = frozenset(
    {"penstock", "pyarrow", "numpy", "sqlglot", "datetime", "decimal", "zoneinfo", "collections", "uuid", "pathlib"}
)
_BUILTINS = frozenset({"set", "frozenset", "bytearray", "complex", "range", "slice", "object"})
_TOKEN_HEADER = "authorization"
_SHUTDOWN_TIMEOUT_S = 3.0

#: So many bytes on their way at once never wait for the peer to read: they fit what gRPC sends ahead.
SENT_AHEAD = 48 * 1024


class _ClosedUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] in _PACKAGES or (module == "builtins" and name in _BUILTINS):
            return super().find_class(module, name)
        raise InternalError(f"a message contains {module}.{name}, which no message may contain")


def encode(message: object) -> bytes:
    """Returns the bytes of a message or of a value in one."""
    return pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)


def decode(data: bytes, kinds: tuple[type, ...]) -> Any:
    """Returns what `encode` was given; raises InternalError if it isn't one of `kinds`."""
    try:
        message = _ClosedUnpickler(io.BytesIO(data)).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, ValueError, TypeError) as error:
        raise InternalError(f"an undecodable message of {len(data)} bytes: {error}") from error
    if not isinstance(message, kinds):
        raise InternalError(f"a {type(message).__name__} where {' or '.join(k.__name__ for k in kinds)} belongs")
    return message


def error_of_flight(error: flight.FlightError, doing: str) -> PenstockError:
    """Returns the Penstock error that a server raised by `flight_error`, else UnavailableError saying `doing`."""
    extra = getattr(error, "extra_info", None)
    if extra:
        return decode_error(bytes(extra))
    return UnavailableError(f"{doing}: {_first_line(error)}")


def flight_error(error: BaseException) -> flight.FlightError:
    """Returns `error` in the form in which Flight carries it to the caller."""
    return flight.FlightServerError(str(error), extra_info=encode_error(error))


class BoundedFlightServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """A server on the loopback interface for those who know the secret, which shuts down in bounded time."""

    def __init__(self, secret: bytes, host: str = "127.0.0.1") -> None:
        super().__init__(f"grpc://{host}:0", middleware={"token": _TokenServerFactory(secret)})
        self.address = f"{host}:{self.port}"
        self.guard = PortGuard(f"port {self.port} for workers", self.port, WORKER_PORTS, SystemClock())

    def let_in(self, context: Any) -> None:
        """To be called first in each call: only those who know the secret come that far."""
        self.guard.logged_in(context.peer())

    def shutdown(self) -> None:
        """Lets nobody else in, and waits a while for the calls under way to end.

        Flight's own shutdown waits without end for a caller that is stuck; here such a call is left to itself.
        """
        self.guard.close()
        ending = threading.Thread(target=super().shutdown, name="flight shutdown", daemon=True)
        ending.start()
        ending.join(_SHUTDOWN_TIMEOUT_S)
        if ending.is_alive():
            _log.warning("a Flight server still has calls open after %g s", _SHUTDOWN_TIMEOUT_S)


class _TokenServerFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    """Lets only callers in that present the deployment's secret."""

    def __init__(self, secret: bytes) -> None:
        super().__init__()
        self._expected = _bearer(secret)

    def start_call(self, info: Any, headers: Any) -> None:
        given = headers.get(_TOKEN_HEADER, [""])[0]
        if not hmac.compare_digest(given.encode(), self._expected):
            raise flight.FlightUnauthenticatedError("the caller doesn't know the deployment's secret")


def call_options(secret: bytes, timeout_s: float | None = None) -> flight.FlightCallOptions:
    """Returns the options with which a client presents the secret."""
    return flight.FlightCallOptions(headers=[(_TOKEN_HEADER.encode(), _bearer(secret))], timeout=timeout_s)


def _bearer(secret: bytes) -> bytes:
    return b"Bearer " + secret.hex().encode()


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0].partition(". gRPC client debug context")[0]
