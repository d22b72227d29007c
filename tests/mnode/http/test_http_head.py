"""Heads of requests over one connection: known or read, they are the same, and so is what follows them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

from hypothesis import given
from hypothesis import strategies as st

from penstock.mnode.http.http_body import RequestError
from penstock.mnode.http.http_head import HeadReader, RequestHead, read_head

ENDS = st.sampled_from([b"\r\n", b"\n"])
NAMES = st.sampled_from([b"Host", b"Accept", b"authorization", b"Content-Length"])
TARGETS = st.sampled_from([b"/sql/d", b"//write?db=d&precision=ms", b"/a%2Fb?x=%3D&y", b"/\xe9", b"/" + b"a" * 3000])
BAD = st.sampled_from([b"two words: x\r\n", b"no colon\r\n", b"\r\n\r\n", b": x\n"])


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    """Returns a head, and every now and then one that is malformed."""
    first = draw(st.sampled_from([b"GET", b"POST"])) + b" " + draw(TARGETS) + b" HTTP/1." + draw(
        st.sampled_from([b"0", b"1"]))
    headers = draw(st.lists(st.tuples(NAMES, st.sampled_from([b"a", b" b ", b"\xe9"])), max_size=3))
    end = draw(ENDS)
    bad = draw(BAD) if draw(st.integers(0, 9)) == 9 else b""
    return end.join([first, *(b":".join(each) for each in headers), bad + end])


def told(read: Callable[[], RequestHead | None], stream: io.BufferedReader) -> Iterator[object]:
    """Yields each request that is read, and the first byte behind its head; ends with what can't be read."""
    while True:
        try:
            head = read()
        except RequestError as error:
            yield error.status, error.text
            return
        yield head
        if head is None:
            return
        yield stream.read(1)


@given(st.lists(heads(), min_size=1, max_size=3), st.data(), st.integers(1, 9000))
def test_known_heads_are_what_is_read(some: list[bytes], data: st.DataObject, buffered: int) -> None:
    """However they end, and however much of them comes at once."""
    sent = b"".join(data.draw(st.sampled_from(some)) + b"x" for _ in range(12))
    known, plain = (io.BufferedReader(io.BytesIO(sent), buffered) for _ in range(2))  # type: ignore[arg-type]
    assert list(told(HeadReader(known).read, known)) == list(told(lambda: read_head(plain), plain))


def test_a_head_that_comes_again_is_known() -> None:
    """Byte by byte; there may be some of them."""
    sent = [b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % (number % 5) for number in range(20)]
    stream = io.BufferedReader(io.BytesIO(b"".join(sent)))  # type: ignore[arg-type]
    reader = HeadReader(stream)
    found = [reader.read() for _ in sent]
    assert [head and head.path for head in found] == [f"/{number % 5}" for number in range(20)]
    assert len({*map(id, found)}) == 5
