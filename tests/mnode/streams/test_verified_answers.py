"""VERIFY STREAM and the audit of streams of any query: the result table beside the answer, which both compute anew."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest
from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.engines.sandboxes import T0, TestBed
from kits.streams.verified_streams import STEPS, insert, made, play

from penstock.common.errors import InvalidStatementError, InvalidValueError, UnavailableError
from penstock.mnode.streams import stream_audit
from penstock.mnode.streams.stream_answers import StreamAnswers
from penstock.tasks.refresh.refresh_task import RefreshTask

GROUPS = ("", "SELECT g, count(*) n, sum(v) s, median(f) a FROM m GROUP BY g")
KEPT = ("", "SELECT g, count(*) n, sum(v) s, avg(f) a FROM m GROUP BY g")
STREAMS = [
    GROUPS,
    KEPT,
    ("", "SELECT tbname, g, max(f) x FROM m GROUP BY tbname, g HAVING count(*) > 1"),
    ("", "SELECT DISTINCT v FROM m"),
    ("", "SELECT stddev(f) d, sum(f) s, count(DISTINCT v) n FROM m"),
    ("", "SELECT _wstart, v, mode(f) p FROM m PARTITION BY v INTERVAL(10s)"),
    ("", "SELECT DISTINCT g FROM m"),
]
INCIDENTS = ("SELECT state, table_name, ts, stream_values, query_values, action, equal_since IS NULL "
             "FROM information_schema.ins_stream_incidents ORDER BY incident")
EQUAL = "{} results are equal, 0 aren't"


def verified(bed: TestBed, name: str = "s0", more: str = "") -> list[tuple[Any, ...]]:
    """Returns what is told of results that aren't equal, and the line that counts."""
    *lines, last = bed.rows(f"VERIFY STREAM {name} {more}")
    assert last[0] == "verified"
    assert f", {len(lines)} aren't" in last[3]
    return lines


def audit(bed: TestBed, looks: int = 6) -> None:
    bed.engine.parts.audit._random = Random(11)
    for _ in range(looks):
        bed.engine.parts.audit.step()
        bed.advance(4)


def shown(bed: TestBed, columns: str) -> tuple[Any, ...]:
    return bed.rows(f"SELECT {columns} FROM information_schema.ins_streams WHERE stream_name = 's0'")[0]


@pytest.fixture
def bed() -> Iterator[TestBed]:
    with made(GROUPS) as opened:
        insert(opened, 0, 1, 5)
        insert(opened, 1, 2, 6)
        opened.checkpoint()
        yield opened


@settings(max_examples=times(2, 400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(streams=st.lists(st.sampled_from(STREAMS), min_size=1, max_size=3, unique=True), steps=STEPS)
def test_right_streams_are_equal(streams: list[tuple[str, str]], steps: list[tuple[str, Any]]) -> None:
    """For VERIFY STREAM and for the audit, whatever comes."""
    with made(*streams) as bed:
        for step in steps:
            play(bed, *step)
            audit(bed, 1)
        for n in range(len(streams)):
            assert verified(bed, f"s{n}") == []
        audit(bed, len(streams))
        assert bed.rows(INCIDENTS) == []


@pytest.mark.parametrize("stream", [GROUPS, KEPT])
def test_what_was_changed_by_hand_is_told_and_mended(stream: tuple[str, str]) -> None:
    """Rows that were changed, added and deleted; RECALCULATE STREAM makes the table the answer again."""
    with made(stream) as bed:
        insert(bed, 0, 1, 5)
        insert(bed, 1, 2, 6)
        bed.checkpoint()
        _change_and_mend(bed)


def _change_and_mend(bed: TestBed) -> None:
    assert bed.rows("VERIFY STREAM s0")[-1][:4] == ("verified", None, None, EQUAL.format(2))
    bed.forge("INSERT INTO o0 VALUES (0, 7, 5, 1.0) (9, 9, 9, NULL)", "DELETE FROM o0 WHERE g = 1")
    wrong = [("differs", "g = 0", None, "n = 7", "n = 1", None),
             ("missing", "g = 1", None, None, "n = 1, s = 6, a = 1.0", None),
             ("extra", "g = 9", None, "n = 9, s = 9, a = NULL", None, None)]
    assert verified(bed) == wrong
    assert verified(bed, more="SAMPLE 1") == wrong
    bed.execute("RECALCULATE STREAM s0 FROM 0")
    assert verified(bed) == []


def test_results_with_a_time_are_told_by_it() -> None:
    """And compared of a range of it."""
    with made(("", "SELECT _wstart, mode(f) p FROM m INTERVAL(10s)")) as bed:
        for second in (1, 11, 21):
            insert(bed, 0, second, 5, second)
        bed.forge(f"INSERT INTO o0 VALUES ({T0 + 10_000}, 7.0)")
        bed.forge(f"DELETE FROM o0 WHERE _wstart = {T0 + 20_000}")
        wrong = [("differs", None, 10_000, "p = 7.0", "p = 11.0", None),
                 ("missing", None, 20_000, None, "p = 21.0", None)]
        assert verified(bed) == wrong
        assert verified(bed, more=f"FROM {T0 + 20_000}") == wrong[1:]
        assert verified(bed, more=f"FROM {T0} TO {T0 + 9_999}") == []


def test_what_can_not_be_compared_is_refused(bed: TestBed) -> None:
    """A range of what has no time, a stream that rests, and an answer that no table can hold."""
    with pytest.raises(InvalidStatementError, match="have no time of which there are ranges"):
        bed.execute("VERIFY STREAM s0 FROM 0")
    bed.execute("PAUSE STREAM s0")
    with pytest.raises(UnavailableError, match="doesn't run"):
        bed.execute("VERIFY STREAM s0")
    bed.execute("CREATE STREAM t INTO x (g PRIMARY KEY, v) AS SELECT g, v FROM m ORDER BY v")
    insert(bed, 0, 2, 6)
    with pytest.raises(UnavailableError, match="is behind its source: several rows of the result have the same g"):
        bed.execute("VERIFY STREAM t")


def test_a_table_that_is_behind_is_waited_for_and_not_told(bed: TestBed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison that the engine doesn't get round to leaves the table as it was: nothing is said of that."""
    refresh = RefreshTask._refresh
    monkeypatch.setattr(RefreshTask, "_refresh", lambda self, *asked: None)
    insert(bed, 0, 3, 9)
    waited = []
    monkeypatch.setattr(bed.clock, "wait", lambda event, timeout_s: waited.append(timeout_s) or bed.clock.advance(9))
    with pytest.raises(UnavailableError, match="is behind its source: unread rows"):
        bed.execute("VERIFY STREAM s0")
    assert waited
    audit(bed)
    assert bed.rows(INCIDENTS) == []
    assert "looked at again once there is a checkpoint" in shown(bed, "audit_note")[0]
    monkeypatch.setattr(RefreshTask, "_refresh", refresh)
    bed.kill()
    assert verified(bed) == []
    audit(bed)
    assert (bed.rows(INCIDENTS), *shown(bed, "mismatches, audited_results > 0")) == ([], 0, True)


def test_what_goes_on_changing_is_no_difference(bed: TestBed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that come while it is looked at: what is told changed meanwhile."""
    differing, come = StreamAnswers.differing, iter(range(100))

    def with_new_rows(self: StreamAnswers, *given: Any) -> Any:
        bed.engine.execute(f"INSERT INTO t0 VALUES ({T0 + 60_000 + next(come)}, 1, 1)", bed.session)
        return differing(self, *given)

    monkeypatch.setattr(StreamAnswers, "differing", with_new_rows)
    assert {line[-1] for line in verified(bed)} == {"changed while it was looked at"}
    audit(bed)
    assert bed.rows(INCIDENTS) == []


def test_the_audit_finds_what_was_changed(bed: TestBed) -> None:
    """It is an incident of its KEY with the rows of the source, settled once a comparison has put it right."""
    audit(bed, 1)
    assert shown(bed, "mismatches, audited_results, last_audit IS NULL, audit_note") == (
        0, 2, False, "differences are reported only while no rows arrive, since any row may change its results")
    bed.forge("INSERT INTO o0 VALUES (0, 7, 5, 1.0)")
    audit(bed)
    wrong = ("differs", "g = 0", None, "n = 7", "n = 1", None)
    assert bed.rows(INCIDENTS) == [(*wrong, True)]
    assert shown(bed, "mismatches, verdict_kind") == (1, "mismatch")
    (folder,), = bed.rows("SELECT folder FROM information_schema.ins_stream_incidents")
    (incident,) = json.loads((Path(folder) / "incident.json").read_text())
    assert (incident["child"], incident["moment"]) == ("g = 0", None)
    assert pq.read_table(Path(folder) / "rows.parquet").num_rows == 2
    bed.execute("RECALCULATE STREAM s0 FROM 0")
    audit(bed)
    assert (bed.rows(INCIDENTS), *shown(bed, "mismatches")) == ([(*wrong, False)], 0)


def test_on_mismatch_recalculate_mends() -> None:
    """The whole answer is written again."""
    with made(("ON_MISMATCH RECALCULATE", GROUPS[1]), GROUPS) as bed:
        insert(bed, 0, 1, 5)
        bed.forge("DELETE FROM o0")
        audit(bed, 12)
        assert bed.rows("SELECT g, n FROM o0") == [(0, 1)]
        assert bed.rows(INCIDENTS) == [("missing", "g = 0", None, None, "n = 1, s = 5, a = 1.0", "recalculated", False)]


def test_answers_of_many_rows_are_not_audited(bed: TestBed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is one that is an error, which the note tells."""
    monkeypatch.setattr(stream_audit, "ROWS_MAX", 1)
    audit(bed, 1)
    assert "its results aren't audited: they may come of any of 2 rows" in shown(bed, "audit_note")[0]
    monkeypatch.undo()

    def failing(self: StreamAnswers, *given: Any) -> Any:
        raise InvalidValueError("several rows of the result have the same g, which must be unique")

    monkeypatch.setattr(StreamAnswers, "differing", failing)
    audit(bed, 1)
    assert "several rows of the result have the same g" in shown(bed, "audit_note")[0]


def test_sums_in_another_order_are_equal(bed: TestBed) -> None:
    """Numbers with a fraction may differ by what is lost of the values that they are made of."""
    insert(bed, 0, 3, 1, 1e15)
    insert(bed, 0, 4, 1, -1e15)
    (mean,), = bed.rows("SELECT a FROM o0 WHERE g = 0")
    bed.forge(f"INSERT INTO o0 VALUES (0, 3, 7, {mean + 0.01})")
    assert verified(bed) == []
    bed.forge("INSERT INTO o0 VALUES (0, 3, 7, 1e10)")
    assert [line[0] for line in verified(bed)] == ["differs"]
