"""Lines of which some are wrong: exactly the others are written, in few calls, each with its own number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.common.errors import InvalidValueError, StorageError
from penstock.mnode.http import partial_writes
from penstock.mnode.http.partial_writes import write_what_can_be


class Table:
    """Takes lines that say `good`, all or none, and notes them with their numbers."""

    def __init__(self) -> None:
        self.lines: dict[int, bytes] = {}
        self.calls = 0

    def write(self, data: bytes, first_line: int) -> None:
        self.calls += 1
        lines = [(number, line) for number, line in enumerate(data.split(b"\n"), first_line) if line]
        bad = next((number for number, line in lines if not line.startswith(b"good")), None)
        if bad is not None:
            raise InvalidValueError(f"line {bad}: no")
        self.lines.update(lines)


@given(st.lists(st.sampled_from([b"good", b"good v=\"x\"", b"bad", b"", b"good \\\"t"]), max_size=60))
def test_the_good_lines_are_written(lines: list[bytes]) -> None:
    """Whatever is wrong and wherever it stands; without a good line there is the refusal itself."""
    table = Table()
    data = b"\n".join(lines)
    wanted = {number: line for number, line in enumerate(lines, 1) if line.startswith(b"good")}
    bad = [number for number, line in enumerate(lines, 1) if line == b"bad"]
    if bad and not wanted:
        with pytest.raises(InvalidValueError, match="line"):
            write_what_can_be(data, table.write)
        assert not table.lines
        return
    dropped = write_what_can_be(data, table.write)
    assert table.lines == wanted
    assert (dropped is None) == (not bad)
    if dropped is not None:
        assert dropped.lines == len(bad)
        assert dropped.error.message == f"line {bad[0]}: no"


def test_one_wrong_line_among_many_costs_few_calls() -> None:
    """Halves are halved again: a thousand lines take about twice ten calls more."""
    table = Table()
    dropped = write_what_can_be(b"\n".join([b"good"] * 600 + [b"bad"] + [b"good"] * 400), table.write)
    assert dropped is not None
    assert (dropped.lines, len(table.lines)) == (1, 1000)
    assert table.calls < 25


def test_where_all_is_wrong_there_is_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a bound pieces aren't looked at singly any more, and go with what is wrong in them."""
    monkeypatch.setattr(partial_writes, "REFUSALS_MAX", 3)
    table = Table()
    dropped = write_what_can_be(b"\n".join([b"good", *[b"bad", b"bad"] * 50, *[b"good"] * 3]), table.write)
    assert dropped is not None
    assert set(table.lines) >= {1}
    assert dropped.lines + len(table.lines) == 104
    assert table.calls < 30


def test_a_text_with_line_ends_is_never_cut() -> None:
    """What stands in a text must not become a line: the whole text goes with what is wrong about it."""
    table = Table()
    dropped = write_what_can_be(b'good\nbad t="\ngood injected\n"\ngood', table.write)
    assert dropped is not None
    assert table.lines == {1: b"good", 5: b"good"}


def test_other_errors_are_not_about_lines() -> None:
    """What fails for another reason fails at once, and is tried again by the client."""
    def write(data: bytes, first_line: int) -> None:
        raise StorageError("the disk is full")

    with pytest.raises(StorageError):
        write_what_can_be(b"good\ngood", write)
