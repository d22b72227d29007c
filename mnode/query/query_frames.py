"""What goes to the process of the queries and comes back from it, in frames of bounded length: never pickles.

For each query the engine sends a request over a connection of its own; answers are frames of rows, then the end or an
error. Whoever has no use for the rest hangs up. The tables of a request are in shared memory, which goes with it.
"""

from __future__ import annotations

import base64
import json
import socket
import struct
from dataclasses import dataclass

import pyarrow as pa

from penstock.common.errors import InternalError
from penstock.common.quantities import GIB, MIB
from penstock.mnode.query.json_rows import RowStyle

REQUEST, ARROW, JSON, END, ERROR = range(1, 6)
FRAME_MAX = GIB
REQUEST_MAX = 256 * MIB
_HEADER = struct.Struct("<BIQI")


@dataclass(frozen=True, slots=True)
class QueryFrame:
    """One message. `rows` and `nbytes`: how many rows are in it, and how many bytes they take as Arrow."""

    kind: int
    rows: int
    nbytes: int
    data: bytes


@dataclass(frozen=True, slots=True)
class QueryRequest:
    """A query: its SQL, where each of its tables is in the shared memory (first byte, length), the result's schema.

    `style` says how the frames of rows have them as JSON, None is as Arrow; `rows_max` how many rows each may have.
    """

    sql: str
    tables: dict[str, tuple[int, int]]
    schema: pa.Schema
    style: RowStyle | None
    rows_max: int

    def encode(self) -> bytes:
        """Returns the bytes that `decode` takes."""
        return json.dumps({
            "sql": self.sql, "tables": self.tables, "rows_max": self.rows_max,
            "style": self.style and [self.style.time_zone, self.style.as_objects, self.style.nested],
            "schema": base64.b64encode(self.schema.serialize()).decode()}).encode()

    @classmethod
    def decode(cls, data: bytes) -> QueryRequest:
        """Returns what was encoded. Raises InternalError."""
        try:
            told = json.loads(data)
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(told["schema"], validate=True)))
            tables = {str(name): (int(first), int(length)) for name, (first, length) in told["tables"].items()}
            style = None if told["style"] is None else _style(*told["style"])
            request = cls(str(told["sql"]), tables, schema, style, int(told["rows_max"]))
        except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException, OSError) as error:
            raise InternalError(f"the request of a query can't be read: {type(error).__name__}") from error
        if request.rows_max < 1:
            raise InternalError("the request of a query asks for no rows")
        return request


def _style(time_zone: str | None, as_objects: bool, nested: bool) -> RowStyle:
    return RowStyle(None if time_zone is None else str(time_zone), bool(as_objects), bool(nested))


def send_frame(
    connection: socket.socket, kind: int, data: bytes | pa.Buffer = b"", rows: int = 0, nbytes: int = 0
) -> None:
    """Sends a frame. Raises OSError if nobody takes it, ValueError if it is too long."""
    view = memoryview(data)
    if view.nbytes > FRAME_MAX:
        raise ValueError(f"a frame of {view.nbytes} bytes")
    connection.sendall(_HEADER.pack(kind, rows, nbytes, view.nbytes))
    if view.nbytes:
        connection.sendall(view)


def receive_frame(connection: socket.socket, length_max: int = FRAME_MAX) -> QueryFrame | None:
    """Returns the next frame, None if the other side has hung up. Raises OSError, InternalError for what isn't one."""
    header = _receive(connection, _HEADER.size)
    if not header:
        return None
    if len(header) < _HEADER.size:
        raise ConnectionError("a frame breaks off")
    kind, rows, nbytes, length = _HEADER.unpack(header)
    if not REQUEST <= kind <= ERROR or length > length_max:
        raise InternalError(f"a frame of kind {kind} with {length} bytes isn't one of a query")
    data = _receive(connection, length)
    if len(data) < length:
        raise ConnectionError("a frame breaks off")
    return QueryFrame(kind, rows, nbytes, data)


def _receive(connection: socket.socket, length: int) -> bytes:
    """Returns so many bytes, fewer if there are no more."""
    pieces: list[bytes] = []
    while length:
        # No more than that at once: room is taken for what was asked for before anything is there.
        piece = connection.recv(min(length, MIB), socket.MSG_WAITALL)
        if not piece:
            break
        pieces.append(piece)
        length -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
