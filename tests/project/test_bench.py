"""The benchmarks' own arithmetic: schedules, latencies, rows, answers and reports. Nothing here measures."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.answers import WrongAnswerError, check, expected
from bench.coordinator import measurements as coordinator_costs
from bench.figures import closed_latencies, closing_rows, percentiles, row_latencies
from bench.jobs import PARTS, Options
from bench.latency import with_vnodes
from bench.load import Schedule, play, receive, start_sender, wait_for
from bench.neighbours import ratios
from bench.profiling import profile
from bench.queries import ACCOUNTS_COLUMN, ACCOUNTS_MINUTE, QUERIES, Query
from bench.rows import FIRST_MS, LATE_MAX, Shape, all_rows, arrivals
from bench.soak import Sample, phases, summary

MS = 1_000_000
Q1 = QUERIES["q1"]


class SimulatedTime:
    """A clock that moves when it is waited on, or when sending takes time."""

    def __init__(self) -> None:
        self.now = 0

    def now_ns(self) -> int:
        return self.now

    def wait(self, left_ns: int) -> None:
        self.now += min(left_ns, 3 * MS)


def test_ticks_are_sent_when_they_are_due() -> None:
    """A sender that nothing holds up sends each tick at its time."""
    time, sent = SimulatedTime(), []
    play(Schedule(20_000), 0, 4, 50 * MS, lambda tick, due: sent.append((tick, due, time.now)), time.now_ns, time.wait)
    assert sent == [(0, 50 * MS, 50 * MS), (1, 60 * MS, 60 * MS), (2, 70 * MS, 70 * MS), (3, 80 * MS, 80 * MS)]


def test_a_stall_does_not_move_the_schedule() -> None:
    """Ticks that come due while a receiver stalls are sent at once, with the times at which they should have been."""
    time, sent = SimulatedTime(), []

    def send(tick: int, due: int) -> None:
        sent.append((tick, due, time.now))
        if tick == 1:
            time.now += 25 * MS

    play(Schedule(20_000), 0, 6, 0, send, time.now_ns, time.wait)
    assert [due for _, due, _ in sent] == [0, 10 * MS, 20 * MS, 30 * MS, 40 * MS, 50 * MS]
    assert [at for _, _, at in sent] == [0, 10 * MS, 35 * MS, 35 * MS, 40 * MS, 50 * MS]


def test_a_schedule_has_whole_rows() -> None:
    """A rate that doesn't divide into ticks is refused."""
    assert Schedule(20_000).rows_per_tick == 200
    assert Schedule(200_000).ticks(2_001) == 2
    with pytest.raises(ValueError, match="whole number"):
        _ = Schedule(150).rows_per_tick


def test_rows_cross_to_the_receiver(tmp_path: Path) -> None:
    """The receiver gets all rows from the tick on that it asks for, in order, none before it was due."""
    shape, schedule = Shape(10, 200), Schedule(2_000)
    sender = start_sender(tmp_path / "sender", shape, schedule)
    wait_for(tmp_path / "sender")
    ticks = list(receive(tmp_path / "sender", 3))
    sender.join(30)
    assert [tick.number for tick in ticks] == list(range(3, 10))
    assert all(tick.received_ns >= tick.due_ns for tick in ticks)
    assert pa.Table.from_batches([tick.rows for tick in ticks]).column("ts").to_pylist() == \
        all_rows(shape).column("ts").to_pylist()[60:]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_percentiles_are_values_that_enough_others_do_not_exceed(values: list[float]) -> None:
    """At least p percent of the values are not greater than the p-th percentile, and fewer lie below it."""
    found = percentiles(np.array(values))
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999)):
        assert sum(round(value, 3) <= found[name] for value in values) >= share * len(values)
        assert sum(round(value, 3) < found[name] for value in values) < share * len(values) + 1e-9
    assert found["max"] == round(max(values), 3)


def test_no_values_have_no_percentiles() -> None:
    """An empty measurement is an error, not a zero."""
    with pytest.raises(ValueError, match="no values"):
        percentiles(np.array([]))


def rows_of(shape: Shape, vnodes: list[int]) -> pa.Table:
    return with_vnodes(all_rows(shape), np.array(vnodes))


def test_a_window_is_closed_by_the_first_row_beyond_the_watermark() -> None:
    """Per table the first row of its vnode counts, across vnodes the last of those of all vnodes."""
    source = rows_of(Shape(2, 60), [0, 1])  # rows of d0, d1, d0, d1, ...; one per second each
    own = closing_rows(Q1, source, all_vnodes=False)
    assert {(row["tn"], row["ts"] - FIRST_MS): row["place"] for row in own.to_pylist()} == {
        ("d0", 0): 30, ("d1", 0): 31, ("d0", 10_000): 50, ("d1", 10_000): 51}
    crossing = closing_rows(QUERIES["q2"], source, all_vnodes=True)
    assert {(row["g"], row["ts"] - FIRST_MS): row["place"] for row in crossing.to_pylist()}[(0, 3000)] == 19


def test_latencies_count_from_the_closing_row_and_the_first_write() -> None:
    """Later writes of a window don't count, and a window that never appears is an error."""
    source = rows_of(Shape(1, 30), [0])
    closing = closing_rows(Q1, source, all_vnodes=False)
    arrived = np.arange(30) * 10 * MS  # one row per tick
    visible = pa.table({"tn": ["d0", "d0", "d0"], "ts": [FIRST_MS, FIRST_MS, FIRST_MS + 10_000],
                        "shown_ns": [157 * MS, 400 * MS, 251 * MS]})
    ticks, values = closed_latencies(visible, closing, arrived, Q1, 1)
    assert dict(zip(ticks.tolist(), values.tolist(), strict=True)) == {15: 7.0, 25: 1.0}
    with pytest.raises(ValueError, match="1 closed windows were never written"):
        closed_latencies(visible.slice(0, 2), closing, arrived, Q1, 1)


def test_each_row_counts_although_results_skip_some() -> None:
    """A row's latency ends with the first result that counts it, also if that counts later rows as well."""
    source = rows_of(Shape(1, 4), [0])
    arrived = np.arange(4) * 10 * MS
    visible = pa.table({"tn": ["d0"] * 3, "ts": [FIRST_MS] * 3, "c": [1, 3, 4],
                        "shown_ns": [2 * MS, 25 * MS, 31 * MS]})
    _, values = row_latencies(visible, source, arrived, Q1, 1)
    assert sorted(values.tolist()) == [1.0, 2.0, 5.0, 15.0]
    with pytest.raises(ValueError, match="1 rows were never counted"):
        row_latencies(visible.slice(0, 2), source, arrived, Q1, 1)


@pytest.mark.parametrize("changes", [{}, {"late": 0.3}, {"updated": 0.2}, {"pauses": True}, {"source": "ads"}])
def test_rows_are_the_same_each_time_and_however_they_are_cut(changes: dict[str, object]) -> None:
    """Sender and judge make the same rows, each (table, time) at least once, late ones by no more than is said."""
    shape = replace(Shape(5, 1500), **changes)  # type: ignore[arg-type]
    whole = pa.Table.from_batches(list(arrivals(shape, 10_000)))
    cut = pa.Table.from_batches(list(arrivals(shape, 7)))
    assert cut.num_rows == whole.num_rows
    assert cut.column("ts").to_pylist() == whole.column("ts").to_pylist()
    assert cut.column("tbname").to_pylist() == whole.column("tbname").to_pylist()
    keys = list(zip(whole.column("tbname").to_pylist(), whole.column("ts").cast(pa.int64()).to_pylist(), strict=True))
    if shape.pauses:
        assert len(keys) < shape.rows
    else:
        assert len(set(keys)) == shape.rows
    assert (len(keys) > shape.rows) == bool(shape.updated)
    times = np.array([ts for _, ts in keys])
    behind = (np.maximum.accumulate(times) - times) // 1000
    assert behind.max() <= 2 * LATE_MAX
    assert (behind.max() > 0) == bool(shape.late or shape.updated)


def test_a_wrong_answer_is_refused() -> None:
    """A value, a key or a number of rows that differs from the batch answer stops a measurement."""
    right = expected(Q1, Shape(3, 90), "WINDOW_CLOSE")
    assert right.num_rows == 6
    check(Q1, right.sort_by([("a", "ascending")]), right)
    wrong = right.set_column(2, "a", pa.array([value + 1e-3 for value in right.column("a").to_pylist()]))
    with pytest.raises(WrongAnswerError, match="6 of 6 rows differ in a"):
        check(Q1, wrong, right)
    with pytest.raises(WrongAnswerError, match="5 result rows, the batch query has 6; missing: 1"):
        check(Q1, right.slice(1), right)
    with pytest.raises(WrongAnswerError, match="too many: 1"):
        check(Q1, right, right.slice(1))


@pytest.mark.parametrize("query", [*QUERIES.values(), ACCOUNTS_COLUMN, ACCOUNTS_MINUTE], ids=lambda query: query.name)
def test_streams_give_the_answers_of_their_batch_queries(query: Query, tmp_path: Path) -> None:
    """Both forms of each query mean the same: the profile of a stream checks its answer."""
    shape = query.of(Shape(20, 4000, accounts=50))
    found = profile(query, shape, "WINDOW_CLOSE", tmp_path / "data", batch_rows=300, config={"stateMapSize": "256MiB"})
    assert found["result_rows"] == expected(query, shape, "WINDOW_CLOSE").num_rows > 0


def test_every_part_has_jobs() -> None:
    """Each part of a run measures something by default, and nothing of queries that weren't asked for."""
    options = Options(queries=list(QUERIES), flink_python=Path("python"))
    for name, part in PARTS.items():
        assert list(part(options)), name
        if name not in ("growth", "groups"):  # their series are what they are
            assert all(job.arguments["query"].name == "q4" for job in part(replace(options, queries=["q4"])))


# --- soak ------------------------------------------------------------------------------------------------------------


def sample(state: str, size: int, verdict: str = "", rss: int | None = None) -> Sample:
    return Sample(0.0, "RUNNING", verdict, {"source": state}, [("sink input", size, max(size, 50), 100)], 0, 1, 0,
                  {} if rss is None else {"engine": rss, "java": 1, "workers": 2})


def test_a_soak_takes_as_long_as_it_was_told() -> None:
    """All phases together; the sink fails inside of its phase, for a minute at most."""
    for minutes in (1.0, 30.0):
        parts = phases(minutes)
        assert sum(part.seconds for part in parts) == pytest.approx(60 * minutes)
        assert [part.factor for part in parts] == [10, 100, 10]
        assert 0 < parts[2].fault_s <= min(60.0, parts[2].seconds / 3)
        assert all(part.produce_s <= part.seconds for part in parts)


def test_a_soak_counts_what_was_above_its_bound_and_how_often_the_source_rested() -> None:
    """A queue that was too full at any moment, also between two samples, is told."""
    found = summary([sample("RUNNING", 20, rss=10), sample("BACKPRESSURED", 100, rss=30), sample("BACKPRESSURED", 99),
                     sample("RUNNING", 101, rss=20), sample("BACKPRESSURED", 30)])
    assert found["over_bound"] == 1
    assert (found["source_paused"], found["source_resumed"]) == (2, 1)
    assert found["queues"]["sink input"] == {"most_sampled": 101, "most_ever": 101, "bound": 100}
    assert found["rss_mib"]["engine"] == {"first_quarter": 10, "last_quarter": 20, "most": 30}


def test_ratios_of_neighbours_are_hostile_by_tame() -> None:
    """Above 1 means that a hostile stream made the others slower."""
    assert ratios({"p50": 2.0, "p99": 10.0}, {"p50": 3.0, "p99": 5.0}) == {"p50": 1.5, "p99": 0.5}


def test_the_coordinator_s_cost_is_simulated_from_start_to_failover(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker costs three messages per stream to start and one per heartbeat; it gets no tables but its own."""
    monkeypatch.setattr(logging.getLogger("penstock"), "handlers", [caplog.handler])
    found = {(line["measure"], line["vnodes"]): line for line in coordinator_costs(
        [(2, 2), (4, 2)], tmp_path, streams_per_worker=2, tables_per_vnode=200, seed=1)}
    things = ("start", "heartbeat", "checkpoint", "failover")
    assert [*found] == [(thing, vnodes) for vnodes in (2, 4) for thing in things]
    for vnodes in (2, 4):
        assert found["start", vnodes]["messages"] == found["failover", vnodes]["messages"] == 3 * 2 * vnodes
        assert found["heartbeat", vnodes]["messages"] == vnodes
    assert found["start", 4]["sent_bytes"] < 2.5 * found["start", 2]["sent_bytes"]
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
