"""The body of an HTTP request from a stream: its end, chunks, gzip, and a bound on what it may become."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from io import BufferedIOBase
from typing import ClassVar

_PIECE = 64 * 1024
_LINE_MAX = 1024
_TRAILERS_MAX = 100
_GZIP = 31
_CHUNK_SIZE = re.compile(rb"[0-9a-fA-F]{1,15}")


class RequestError(Exception):
    """A request that isn't answered as it asks: the status says why, the text says it to people."""

    code: ClassVar[int | None] = None  # TDengine has none for these

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def read_body(stream: BufferedIOBase, headers: Mapping[str, str], size_max: int) -> bytes:
    """Returns the body, unpacked. Raises RequestError; then the rest of the stream means nothing.

    Names of `headers` are in lower case. `size_max` bounds what is sent and what comes out of it, in bytes. Without a
    length there is no body.
    """
    length = _length(headers, size_max)
    if length is not None and length <= _PIECE and "content-encoding" not in headers:
        return _whole(stream, length)
    pieces = _chunks(stream) if length is None else _exactly(stream, length)
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("gzip", "x-gzip"):
        pieces = _unpacked(pieces, size_max)
    elif encoding != "identity":
        raise RequestError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"Content-Encoding {encoding} is not known; gzip is")
    body = bytearray()
    for piece in pieces:
        body += piece
        if len(body) > size_max:
            raise _too_large(size_max)
    return bytes(body)


def _length(headers: Mapping[str, str], size_max: int) -> int | None:
    """Returns how many bytes are sent; None if they come in chunks."""
    transfer, length = headers.get("transfer-encoding"), headers.get("content-length")
    if transfer is not None:
        if transfer.strip().lower() != "chunked" or length is not None:
            raise _malformed("a body is sent either in chunks or with a Content-Length")
        return None
    if length is None:
        return 0
    if not (length.isascii() and length.isdigit()):
        raise _malformed("Content-Length is not a number of bytes")
    if int(length) > size_max:
        raise _too_large(size_max)
    return int(length)


def _exactly(stream: BufferedIOBase, size: int) -> Iterator[bytes]:
    for start in range(0, size, _PIECE):
        yield _whole(stream, min(size - start, _PIECE))


def _whole(stream: BufferedIOBase, size: int) -> bytes:
    piece = stream.read(size)
    if len(piece) < size:
        raise _malformed("the body ends before its length")
    return piece


def _chunks(stream: BufferedIOBase) -> Iterator[bytes]:
    while size := _chunk_size(stream):
        yield from _exactly(stream, size)
        if _line(stream):
            raise _malformed("a chunk is longer than its size")
    for _ in range(_TRAILERS_MAX):
        if not _line(stream):
            return
    raise _malformed("there are too many trailers")


def _chunk_size(stream: BufferedIOBase) -> int:
    text = _line(stream).partition(b";")[0].strip()
    if _CHUNK_SIZE.fullmatch(text) is None:
        raise _malformed("the size of a chunk is not a hexadecimal number")
    return int(text, 16)


def _line(stream: BufferedIOBase) -> bytes:
    line = stream.readline(_LINE_MAX)
    if not line.endswith(b"\n"):
        raise _malformed("the body ends within a line, or the line is too long")
    return line.rstrip(b"\r\n")


def _unpacked(pieces: Iterator[bytes], size_max: int) -> Iterator[bytes]:
    """Yields what gzip packed, never more than `size_max` + 1 bytes at once: a small body may stand for a huge one."""
    decoder = zlib.decompressobj(_GZIP)
    started = False
    for piece in pieces:
        while piece:
            if decoder.eof:
                decoder = zlib.decompressobj(_GZIP)
            started = True
            try:
                yield decoder.decompress(piece, size_max + 1)
            except zlib.error as error:
                raise _malformed(f"the body is not gzip: {error}") from error
            piece = decoder.unconsumed_tail or decoder.unused_data
    if started and not decoder.eof:
        raise _malformed("the gzip body ends too early")


def _malformed(text: str) -> RequestError:
    return RequestError(HTTPStatus.BAD_REQUEST, text)


def _too_large(size_max: int) -> RequestError:
    return RequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {size_max} bytes")
