"""VERIFY STREAM ... SAMPLE n: which windows are drawn, that what is wrong in them is told, and nothing else is read."""

from __future__ import annotations

from random import Random

import pytest
from kits.engines.sandboxes import T0, TestBed
from kits.streams.verified_streams import BATCH, STREAMS, insert, made

from penstock.mnode.streams import stream_verification
from penstock.mnode.streams.stream_comparison import Span
from penstock.mnode.streams.stream_verification import drawn_windows
from penstock.sql.schema import Session
from penstock.vnode.store.sorted_keys import TS_MAX, TS_MIN


def told(bed: TestBed, more: str, name: str = "s0") -> tuple[list[tuple[str, int]], str, str]:
    """Returns the state and the time of each difference, what is counted, and what is known of the whole."""
    *lines, last = bed.rows(f"VERIFY STREAM {name} {more}")
    return [(line[0], line[2]) for line in lines], last[3], last[5]


def drawn(bed: TestBed, count: int, seed: int, pieces: list[Span]) -> list[Span]:
    comparison = bed.engine.parts.verification._comparison
    stream = bed.engine.catalog.streams.all()[0]
    return drawn_windows(comparison, comparison.subject(stream), pieces, count, Session(), Random(seed))


def filled(bed: TestBed, *seconds: float) -> None:
    """Inserts rows, one at each of these seconds."""
    bed.execute("INSERT INTO " + " ".join(
        f"t{round(second) % 4} (ts, v, f) VALUES ({T0 + round(second * 1_000)}, 1, 1.0)" for second in seconds))


@pytest.mark.parametrize(("stream", "word"), [
    (STREAMS[0], "times"), (STREAMS[1], "windows"), (STREAMS[2], "windows")])
def test_so_many_are_compared(stream: tuple[str, str], word: str) -> None:
    """Each window, or time of rows, is one; where there are fewer, all are."""
    with made(stream) as bed:
        filled(bed, *range(0, 100, 5))
        results = bed.rows("SELECT * FROM o0")
        wrong, counted, known = told(bed, "SAMPLE 7")
        assert (wrong, known.split("; ")[1]) == ([], f"7 {word} were drawn")
        assert int(counted.split()[0]) >= 7
        _, counted, known = told(bed, "SAMPLE 1000")
        assert known.split("; ")[1] == f"{len({row[0] for row in results})} {word} were drawn"
        assert counted == f"{len(results)} results are equal, 0 aren't"


def test_what_is_drawn_follows_from_the_random() -> None:
    """The same seed draws the same windows, another one others."""
    with made(STREAMS[1]) as bed:
        filled(bed, *range(0, 600, 5))
        whole = [(TS_MIN, TS_MAX)]
        first = drawn(bed, 20, 1, whole)
        assert first == drawn(bed, 20, 1, whole)
        assert first != drawn(bed, 20, 2, whole)
        assert len(set(first)) == 20
        assert all((start - T0) % 10_000 == 0 and start == end for start, end in first)


def test_windows_of_all_pieces_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read at once has a bound; beyond the range nothing is drawn."""
    with made(STREAMS[1]) as bed:
        filled(bed, *range(0, 600, 5))
        pieces = [(T0 + n * 100_000, T0 + (n + 1) * 100_000 - 1) for n in range(4)]
        starts = {start for start, _ in drawn(bed, 30, 1, pieces)}
        assert {(start - T0) // 100_000 for start in starts} == {0, 1, 2, 3}
        assert len(drawn(bed, 3, 1, pieces)) == 3
        monkeypatch.setattr(stream_verification, "ROWS_PER_PIECE", 20)
        range_ = f"FROM {T0 + 100_000} TO {T0 + 190_000}"
        assert told(bed, f"{range_} SAMPLE 1000")[:2] == told(bed, range_)[:2]
        assert told(bed, f"{range_} SAMPLE 4")[2].endswith("; 4 windows were drawn")


def test_windows_with_results_only_and_with_rows_only_are_drawn_too() -> None:
    """What nobody computed, and what was lost, is found like what differs."""
    with made(STREAMS[1]) as bed:
        filled(bed, 1, 12)
        (child,), = bed.rows("SELECT DISTINCT tbname FROM o0 LIMIT 1")
        bed.forge(f"INSERT INTO `{child}` (_wstart, n) VALUES ({T0 + 50_000}, 1)")
        bed.forge(f"DELETE FROM o0 WHERE _wstart = {T0 + 10_000}")
        wrong, counted, known = told(bed, "SAMPLE 3")
        assert wrong == [("missing", 10_000), ("extra", 50_000)]
        assert (counted, known.split("; ")[1]) == ("1 results are equal, 2 aren't", "3 windows were drawn")


def test_rows_that_do_not_count_are_not_drawn() -> None:
    """Neither such from before the stream, nor such that WHERE leaves out."""
    with made() as bed:
        filled(bed, 1, 12)
        bed.execute(f"CREATE STREAM s0 {BATCH} INTO o0 AS SELECT _wstart, count(*) n FROM m WHERE v > 3 INTERVAL(10s)")
        insert(bed, 0, 25, 5)
        insert(bed, 0, 35, 2)
        bed.run()
        assert told(bed, "SAMPLE 9")[1:] == ("1 results are equal, 0 aren't", told(bed, "SAMPLE 8")[2])
        assert told(bed, "SAMPLE 9")[2].endswith("; 1 windows were drawn")


def test_results_of_any_rows_are_compared_as_a_whole() -> None:
    """Nothing could be left out of the rows that are read; the last line says so."""
    with made(STREAMS[4]) as bed:
        filled(bed, 1, 12, 30, 50)
        wrong, counted, known = told(bed, "SAMPLE 1")
        assert wrong == []
        assert counted.startswith(f"{bed.rows('SELECT count(*) FROM o0')[0][0]} results are equal")
        assert known.endswith("; not drawn, since results may come of any rows")
