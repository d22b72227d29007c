"""VERIFY STREAM of streams with FILL: what is in gaps follows from the rows, too."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import in_turn, times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.engines.sandboxes import T0
from kits.streams.verified_streams import BATCH, STEPS, insert, made, play, verified

CLOSED = "WATERMARK 4s IGNORE EXPIRED 0"
MODES = ["NULL", "NULL_F", "VALUE, 7, 8, 9", "VALUE_F, 7, 8, 9", "PREV", "NEXT", "LINEAR"]
#: Groups and windows of streams with FILL.
SHAPES = ["PARTITION BY tbname INTERVAL(5s)", "PARTITION BY g, v INTERVAL(4s) SLIDING(3s)", "INTERVAL(7s, 2s)"]


def stream(options: str, shape: str, mode: str) -> tuple[str, str]:
    return options, f"SELECT _wstart, _wend e, count(*) n, sum(v) s, avg(f) a FROM m {shape} FILL({mode})"


@settings(max_examples=times(3, 400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(streams=st.lists(st.builds(stream, st.sampled_from([BATCH, CLOSED]), st.sampled_from(SHAPES),
                                  st.sampled_from(MODES)), min_size=2, max_size=3, unique=True), steps=STEPS)
def test_right_streams_are_equal(streams: list[tuple[str, str]], steps: list[Any]) -> None:
    """Late and rewritten rows, deletes, new tags, kills: no result is told, before the end neither, of each in turn."""
    with made(*streams) as bed:
        for step, (kind, what) in enumerate(steps):
            play(bed, kind, what)
            assert verified(bed, f"s{step % len(streams)}") == []
        for n in range(len(streams)):
            assert verified(bed, f"s{n}") == []
            assert verified(bed, f"s{n}", f"FROM {T0 + 10_000} TO {T0 + 20_000}") == []


@pytest.mark.parametrize(("options", "mode"), in_turn([BATCH, CLOSED], MODES))
def test_what_is_wrong_in_gaps_is_told(options: str, mode: str) -> None:
    """A filled result that was changed, one that was lost, and one behind the last window."""
    with made(stream(options, SHAPES[0], mode)) as bed:
        for second, value in ((1, 10), (3, 20), (32, 40), (62, 1)):
            insert(bed, 0, second, value)
        assert verified(bed) == []
        (child,), = bed.rows("SELECT DISTINCT tbname FROM o0")
        bed.forge(f"INSERT INTO `{child}` (_wstart, n) VALUES ({T0 + 10_000}, 99)")
        bed.forge(f"DELETE FROM o0 WHERE _wstart = {T0 + 20_000}")
        bed.forge(f"INSERT INTO `{child}` (_wstart, n) VALUES ({T0 + 90_000}, 1)")
        assert [(*line[:2], line[4]) for line in verified(bed)] == [
            ("differs", 10_000, None), ("missing", 20_000, None), ("extra", 90_000, None)]


@pytest.mark.parametrize(("mode", "found"), [
    ("PREV", [1, 1, 4]), ("NEXT", [1, 4, 4]), ("LINEAR", [1, 2, 4]), ("VALUE, 3.7", [1, 4, 4])])
def test_what_is_filled_is_of_the_type_of_its_column(mode: str, found: list[int]) -> None:
    """Values are rounded as results are, and gaps are filled with these: 1.4 and 4.4 have 2 between them."""
    with made() as bed:
        bed.all("CREATE STABLE o0 (ts TIMESTAMP, i INT) TAGS (group_id BIGINT UNSIGNED)",
                f"CREATE STREAM s0 {BATCH} INTO o0 AS SELECT _wstart, avg(f) FROM m INTERVAL(5s) FILL({mode})")
        for second, real in ((1, 1.4), (11, 4.4)):
            insert(bed, 0, second, 1, real)
        assert [row[0] for row in bed.rows("SELECT i FROM o0 ORDER BY ts")] == found
        assert verified(bed) == []


def test_a_gap_before_an_open_window_may_be_missing() -> None:
    """It is filled once both windows beside it are closed; NULLs that NEXT replaces wait for the value as well."""
    with made(stream(CLOSED, SHAPES[0], "NEXT")) as bed:
        for second, value in ((1, None), (31, None), (36, 3)):
            insert(bed, 0, second, value)
        assert bed.rows("SELECT count(*), count(s) FROM o0") == [(1, 0)]
        assert verified(bed) == []
        insert(bed, 0, 50)
        assert bed.rows("SELECT count(*), count(s) FROM o0") == [(8, 8)]
        assert verified(bed) == []
        bed.forge(f"DELETE FROM o0 WHERE _wstart = {T0 + 10_000}")
        assert [line[:2] for line in verified(bed)] == [("missing", 10_000)]


@pytest.mark.parametrize("window", ["INTERVAL(1d)", "INTERVAL(1n)", "INTERVAL(2d) SLIDING(1d)"])
def test_days_and_months_have_the_gaps_of_their_calendar(window: str) -> None:
    """Where clocks are changed, too."""
    with made() as bed:
        bed.execute(f"CREATE STREAM s0 {BATCH} TIMEZONE 'Europe/Berlin' INTO o0 AS SELECT _wstart, count(*) n, "
                    f"sum(v) s FROM m {window} FILL(PREV)")
        for day in (0, 40, 200):
            insert(bed, 0, day * 86_400)
        assert len(bed.rows("SELECT n FROM o0")) > 6
        assert verified(bed) == []


def test_a_left_out_row_may_be_why_a_gap_differs() -> None:
    """Wherever it is: what is before and behind takes values from its window."""
    with made(stream("WATERMARK 4s", SHAPES[0], "PREV")) as bed:
        for second, value in ((1, 10), (32, 40), (62, 1), (11, 5)):
            insert(bed, 0, second, value)
        lines = verified(bed)
        assert [line[1] for line in lines] == [10_000, 15_000, 20_000, 25_000]
        assert {line[4] for line in lines} == {"1 rows were left out: late"}


def test_refused_results_leave_the_gaps_beside_them() -> None:
    """A value that doesn't fit its column isn't written; gaps take the one before it."""
    with made() as bed:
        bed.all("CREATE STABLE o0 (ts TIMESTAMP, i TINYINT) TAGS (group_id BIGINT UNSIGNED)",
                f"CREATE STREAM s0 {BATCH} INTO o0 AS SELECT _wstart, sum(v) FROM m INTERVAL(5s) FILL(PREV)")
        for second, value in ((1, 3), (11, 1_000), (21, 4)):
            insert(bed, 0, second, value)
        assert bed.rows("SELECT i FROM o0 ORDER BY ts") == [(3,), (3,), (3,), (4,)]
        assert verified(bed) == []
