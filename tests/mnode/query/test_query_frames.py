"""Frames between the engine and the process of the queries: bounded, and what is none is told as an error."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.common import errors
from penstock.common.errors import InternalError, LimitExceededError, PenstockError
from penstock.common.sent_errors import decode_error, encode_error
from penstock.mnode.query.json_rows import UTC_ROWS, RowStyle
from penstock.mnode.query.query_frames import (
    ARROW,
    END,
    ERROR,
    REQUEST,
    QueryFrame,
    QueryRequest,
    receive_frame,
    send_frame,
)

KINDS = sorted((kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PenstockError)
                and kind.__init__ is PenstockError.__init__), key=lambda kind: kind.__name__)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_frames_arrive_as_they_were_sent(pair: tuple[socket.socket, socket.socket]) -> None:
    """Empty ones, too; then the end of the connection is no frame."""
    send_frame(pair[0], ARROW, b"rows", 7, 99)
    send_frame(pair[0], END)
    pair[0].close()
    assert [receive_frame(pair[1]) for _ in range(3)] == [
        QueryFrame(ARROW, 7, 99, b"rows"), QueryFrame(END, 0, 0, b""), None]


@pytest.mark.parametrize("data", [
    struct.pack("<BIQI", 0, 0, 0, 0), struct.pack("<BIQI", ERROR + 1, 0, 0, 0), struct.pack("<BIQI", ARROW, 0, 0, 11),
    b"GET / HTTP/1.1\r\n\r\n"])
def test_what_is_no_frame_is_refused(pair: tuple[socket.socket, socket.socket], data: bytes) -> None:
    """Of an unknown kind, or too long."""
    pair[0].sendall(data)
    pair[0].close()
    with pytest.raises(InternalError):
        receive_frame(pair[1], 10)


@pytest.mark.parametrize("data", [b"\x01", struct.pack("<BIQI", ARROW, 0, 0, 4) + b"abc"])
def test_what_breaks_off_is_a_broken_connection(pair: tuple[socket.socket, socket.socket], data: bytes) -> None:
    """Whoever sent it has ended."""
    pair[0].sendall(data)
    pair[0].close()
    with pytest.raises(ConnectionError):
        receive_frame(pair[1])


@given(st.text(), st.dictionaries(st.text(), st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)), max_size=3),
       st.none() | st.builds(RowStyle, st.none() | st.text(), st.booleans()), st.integers(1, 10**6))
def test_requests_survive(sql: str, tables: dict[str, tuple[int, int]], style: RowStyle | None, rows_max: int) -> None:
    """Whatever a query is called, and whatever is in it."""
    schema = pa.schema([("a", pa.int64()), ("a", pa.null()), ("t", pa.timestamp("us")), ("d", pa.decimal128(38, 2))])
    request = QueryRequest(sql, tables, schema, style, rows_max)
    assert QueryRequest.decode(request.encode()) == request


@given(st.binary() | st.sampled_from([
    b"{}", b"[]", b"null", b'{"sql": 1, "tables": [], "style": null, "rows_max": 1, "schema": ""}',
    QueryRequest("x", {}, pa.schema([]), UTC_ROWS, 1).encode().replace(b"[", b"[1, "),
    QueryRequest("x", {}, pa.schema([]), None, 1).encode().replace(b'"rows_max": 1', b'"rows_max": 0')]))
def test_requests_that_are_none_are_refused(data: bytes) -> None:
    """With an error of ours."""
    with pytest.raises(InternalError):
        QueryRequest.decode(data)


@pytest.mark.parametrize("kind", KINDS)
def test_errors_keep_their_class(kind: type[PenstockError]) -> None:
    """And their code and hint."""
    error = decode_error(encode_error(kind("no", code=7, hint="do")))
    assert (type(error), error.message, error.code, error.hint) == (kind, "no", 7, "do")


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\xff", encode_error(LimitExceededError("x")).replace(
    b"LimitExceededError", b"Any"), encode_error(LimitExceededError("x")).replace(b"LimitExceededError", b"nosuch")])
def test_errors_that_are_none_are_internal_errors(data: bytes) -> None:
    """Nothing else of the module is called by its name."""
    assert type(decode_error(data)) is InternalError


def test_a_request_must_not_be_too_long(pair: tuple[socket.socket, socket.socket]) -> None:
    """The bound is looked at before anything is read."""
    pair[0].sendall(struct.pack("<BIQI", REQUEST, 0, 0, 2**32 - 1))
    with pytest.raises(InternalError):
        receive_frame(pair[1], 1 << 20)
