"""Streams over joins against the same joins as queries, and as plain SQL: any history, vgroups, restarts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from conftest import by_night, times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.basics.shared_duckdb import duckdb_with
from kits.engines.sandboxes import T0
from kits.streams.join_bed import FAR, JoinBed, Row, greatest, near

from penstock.mnode.coordinator.stream_bounds import over_state_limit, state_bytes
from penstock.mnode.coordinator.stream_status import StreamInfo, StreamStatus
from penstock.mnode.coordinator.task_monitor import Monitor
from penstock.mnode.explain.stream_verdict import TaskNames, Verdict, verdict
from penstock.tasks.protocol.messages import SetRates, TaskId
from penstock.tasks.protocol.task_status import TaskStatus


@dataclass(frozen=True)
class Case:
    """A join, and the same as plain SQL over `a` and `b` (c, ts, n, k), whose first two columns are group and time."""

    select: str
    plain: str
    partition: str = "partition by a.tbname"
    windowed: bool = False


RANGE = "a.k = b.k and a.ts between b.ts - 3{u} and b.ts + 2{u}"


def joined(kind: str, on: str = RANGE, columns: str = "a.n, b.n") -> Case:
    """A join whose left rows drive it."""
    ours, theirs = on.format(u="a"), on.format(u="")
    return Case(f"select a.ts, {columns} from {{a}} a {kind} join {{b}} b on {ours}",
                f"select a.c, a.ts, {columns} from a {kind} join b on {theirs}")


CASES = {
    "inner": joined("inner"),
    "left": joined("left"),
    "equal times": joined("inner", "a.k = b.k and a.ts = b.ts"),
    "without keys": joined("left", "a.ts between b.ts - 1{u} and b.ts + 1{u}"),
    "shifted": joined("left", "a.k = b.k and a.ts between b.ts + 2{u} and b.ts + 4{u}"),
    "more conditions": joined("left", RANGE + " and a.n < b.n"),
    "right": Case(
        f"select b.ts, a.n, b.n from {{a}} a right join {{b}} b on {RANGE.format(u='a')}",
        f"select b.c, b.ts, a.n, b.n from a right join b on {RANGE.format(u='')}", "partition by b.tbname"),
    "full": Case(
        "select case when a.ts is null then b.ts else a.ts end, a.n, b.n from {a} a full join {b} b on "
        + RANGE.format(u="a"),
        f"select null, coalesce(a.ts, b.ts), a.n, b.n from a full join b on {RANGE.format(u='')}", ""),
    "by key": Case(
        f"select a.ts, a.n, b.n from {{a}} a left join {{b}} b on {RANGE.format(u='a')}",
        f"select a.k, a.ts, a.n, b.n from a left join b on {RANGE.format(u='')}", "partition by a.k"),
    "by nothing": Case(
        f"select a.ts, a.n, b.n from {{a}} a join {{b}} b on {RANGE.format(u='a')} where a.n > 3 and b.n > 2",
        f"select null, a.ts, a.n, b.n from a join b on {RANGE.format(u='')} where a.n > 3 and b.n > 2", ""),
    "semi": Case(
        f"select a.ts, a.n from {{a}} a left semi join {{b}} b on {RANGE.format(u='a')}",
        f"select a.c, a.ts, a.n from a where exists (from b where {RANGE.format(u='')})"),
    "anti": Case(
        f"select a.ts, a.n from {{a}} a left anti join {{b}} b on {RANGE.format(u='a')}",
        f"select a.c, a.ts, a.n from a where not exists (from b where {RANGE.format(u='')})"),
    "asof": Case(
        "select a.ts, a.n, b.ts from {a} a left asof join {b} b on a.k = b.k",
        "select c, ts, n, (select max(b.ts) from b where b.ts <= a.ts and b.k = a.k) from a"),
    "asof before": Case(
        "select a.ts, a.n, b.ts from {a} a left asof join {b} b on a.ts > b.ts",
        "select c, ts, n, (select max(b.ts) from b where b.ts < a.ts) from a"),
    "window join": Case(
        "select a.ts, count(b.n), sum(b.n) from {a} a left window join {b} b on a.k = b.k window_offset(-2a, 1a)",
        "select a.c, a.ts, count(b.n), sum(b.n) from a left join b on a.k = b.k and b.ts between a.ts - 2 and a.ts + 1 "
        "group by a.c, a.ts"),
    "windows": Case(
        f"select _wstart, count(*), sum(b.n) from {{a}} a join {{b}} b on {RANGE.format(u='a')}",
        f"select a.c, a.ts // 4 * 4, count(*), sum(b.n) from a join b on {RANGE.format(u='')} group by 1, 2",
        "partition by a.tbname interval(4a)", windowed=True),
    "windows of keys": Case(
        f"select _wstart, count(*), count(b.n) from {{a}} a left join {{b}} b on {RANGE.format(u='a')}",
        f"select a.k, t, count(*), count(b.n) from (select *, unnest([ts // 2 * 2 - 2, ts // 2 * 2]) t from a) a "
        f"left join b on {RANGE.format(u='')} group by 1, 2",
        "partition by a.k interval(4a) sliding(2a)", windowed=True),
}

ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.sampled_from([0, 1, None])), min_size=1,
                max_size=6, unique_by=lambda row: row[:2])
STEP = st.one_of(
    st.tuples(st.just("insert"), st.tuples(st.sampled_from("ab"), ROWS)),
    st.tuples(st.just("insert"), st.tuples(st.sampled_from("ab"), ROWS)),
    st.tuples(st.just("insert"), st.tuples(st.sampled_from("ab"), ROWS)),
    st.tuples(st.just("delete"), st.tuples(st.sampled_from("ab"), st.sampled_from([None, 0, 1]), st.integers(0, 30),
                                           st.integers(0, 6))),
    st.tuples(st.sampled_from(["run", "idle", "checkpoint", "kill"]), st.none()),
)


class Pair(JoinBed):
    """Tables a and b of four children each, in one database or in two, with a stream over their join."""

    def __init__(self, case: Case, vgroups: tuple[int, int | None], options: str, **config: Any) -> None:
        super().__init__(config=config)
        self.case = case
        left, right = vgroups
        self.execute(f"create database d vgroups {left} keep 36500")
        self.tables = {"a": "d.a", "b": "d.b"}
        if right is not None:
            self.execute(f"create database e vgroups {right} keep 36500")
            self.tables["b"] = "e.b"
        for table in self.tables.values():
            self.execute(f"create stable {table} (ts timestamp, n int, k int) tags (g int)")
        self.numbers = 0
        #: what a stream counts that leaves late rows out: per side and vnode the newest time, and the rows
        self.newest: dict[tuple[str, int], int] = {}
        self.counted: dict[tuple[str, int, int], Row] = {}
        self.late = 0
        self.options = options

    def start(self) -> None:
        query = self.case.select.format(**self.tables)
        partition = self.case.partition.replace("by a.tbname", "by a.tbname c").replace("by b.tbname", "by b.tbname c")
        name = "c" if "tbname" in partition else "cast(k as varchar)" if "a.k" in partition else "'all'"
        self.execute(f"create stream s {self.options} into d.o subtable({name}) as {query} {partition}")

    def step(self, kind: str, what: Any) -> None:
        match kind:
            case "insert":
                self.insert(*what)
            case "delete":
                side, child, first, length = what
                table = self.tables[side] if child is None else f"{self.tables[side]}{child}"
                if child is None or self.engine.catalog.table(table[0], table[2:]) is not None:
                    self.hand(f"delete from {table} where ts >= {T0 + first} and ts <= {T0 + first + length}")
            case _:
                self.rest(kind)

    def insert(self, side: str, rows: Iterable[tuple[int, int, int | None]]) -> None:
        table = self.tables[side]
        values: dict[int, list[str]] = {}
        for child, ts, key in rows:
            self.numbers += 1
            shown = "null" if key is None else key
            values.setdefault(child, []).append(f"({T0 + ts}, {self.numbers}, {shown})")
        self.hand("insert into " + " ".join(
            f"{table}{child} using {table} tags ({child}) values {' '.join(found)}" for child, found in values.items()))

    def judge(self, side: str, row: tuple[int, int, int | None], slack: int) -> None:
        """Inserts a row, and notes whether a stream counts it."""
        table, (child, ts, key) = self.tables[side], row
        self.insert(side, [row])
        found = self.engine.catalog.table(table[0], f"{table[2:]}{child}")
        assert found is not None
        assert found.vgroup_id is not None
        vnode = side, found.vgroup_id
        if vnode in self.newest and ts < self.newest[vnode] - slack:
            self.late += 1
            return
        self.counted[side, child, ts] = (f"{table[2:]}{child}", ts, self.numbers, key)
        self.newest[vnode] = max(ts, self.newest.get(vnode, ts))

    def finish(self) -> None:
        """Lets time pass everywhere: all that was inserted before is final."""
        for side in "ab":
            self.insert(side, [(child, FAR, None) for child in range(4)])
        self.run()
        self.advance(5)

    def results(self) -> list[Row]:
        """What the stream wrote: group, time and values."""
        return near((_group(row[0]), *row[1:]) for row in super().results())

    def plain(self, *, counted: bool = False) -> list[Row]:
        """The same join in plain SQL: of rows of one place the greatest. `counted`: without late rows."""
        with duckdb_with({}) as peer:
            for side, table in self.tables.items():
                peer.execute(f"create temp table {side} (c varchar, ts bigint, n int, k int)")
                rows = [row for key, row in self.counted.items() if key[0] == side] if counted else (
                    self.rows(f"select tbname, ts, n, k from {table}"))
                if rows:
                    peer.register("given", pa.table(list(zip(*rows, strict=True)), names=["c", "ts", "n", "k"]))
                    peer.execute(f"insert into {side} from given")
            found = peer.execute(self.case.plain).fetchall()
        return near(greatest((("" if row[0] is None else str(row[0])), *row[1:]) for row in found))

    def batch(self) -> list[Row]:
        """The same join as a query."""
        query = self.case.select.format(**self.tables)
        partition = self.case.partition
        named = {"partition by a.tbname": "a.tbname", "partition by b.tbname": "b.tbname", "partition by a.k": "a.k"}
        name = next((shown for words, shown in named.items() if partition.startswith(words)), "''")
        query = query.replace("select ", f"select {name}, ", 1)
        found = self.rows(f"{query} {partition if self.case.windowed else ''}")
        return near(greatest((("" if row[0] is None else str(row[0])), *row[1:]) for row in found))


def _group(child: str) -> str:
    """Returns what a child of the result table was named by; "" for NULL and where there are no groups."""
    return "" if child == "all" or child.startswith("t_") else child.rsplit("_o_", 1)[0]


VGROUPS = st.one_of(st.tuples(st.integers(1, 4), st.none()), st.tuples(st.integers(1, 4), st.integers(1, 4)))


@settings(max_examples=times(2, 160), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(name=st.sampled_from(list(CASES)), trigger=st.sampled_from(["at_once", "window_close"]),
       before=st.lists(STEP, max_size=3), steps=st.lists(STEP, min_size=1, max_size=12), vgroups=VGROUPS)
def test_stream_equals_batch_equals_plain_sql(
    name: str, trigger: str, before: list[Any], steps: list[Any], vgroups: tuple[int, int | None]
) -> None:
    """After any history, with whatever restarts, the result table has what the query has."""
    options = f"trigger {trigger} ignore expired 0 fill_history 1"
    with Pair(CASES[name], vgroups, options) as pair:
        for step in before:
            if step[0] in ("insert", "delete"):
                pair.step(*step)
        pair.start()
        for step in steps:
            pair.step(*step)
        pair.finish()
        expected = pair.plain()
        assert pair.batch() == expected
        assert pair.results() == expected


WATERMARK = 4
BYTES_PER_ROW = 48
STATE_LIMIT = 1 << 20
#: how much longer than the watermark says rows of both sides may come
SLACK = {"inner": (3, 2), "left": (3, 2), "asof": (0, 0), "windows": (7, 6)}
TIMED = st.one_of(
    st.tuples(st.just("insert"), st.tuples(st.sampled_from("ab"), ROWS)),
    st.tuples(st.just("insert"), st.tuples(st.sampled_from("ab"), ROWS)),
    st.tuples(st.sampled_from(["run", "checkpoint", "kill"]), st.none()),
)


@settings(max_examples=times(2, 60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(name=st.sampled_from(list(SLACK)), steps=st.lists(TIMED, min_size=2, max_size=12), vgroups=VGROUPS)
def test_late_rows_are_told_by_the_log_alone(name: str, steps: list[Any], vgroups: tuple[int, int | None]) -> None:
    """Rows that come too late count for nothing, and are counted, however the work is cut and restarted."""
    case = CASES[name]
    with Pair(case, vgroups, f"watermark {WATERMARK}a") as pair:
        pair.start()
        for kind, what in steps:
            if kind == "insert":
                side, rows = what
                for row in rows:
                    pair.judge(side, row, WATERMARK + SLACK[name]["ab".index(side)])
            else:
                pair.step(kind, what)
        pair.run()
        late = sum(status.late.late_rows for status in pair.streams.statuses() if status.task.operator == "source")
        assert late == pair.late
        pair.finish()
        assert pair.results() == pair.plain(counted=True)


@pytest.mark.parametrize("ahead", ["a", "b"])
def test_a_side_that_is_written_late_keeps_the_other_waiting(ahead: str) -> None:
    """One side is written at once, the other bit by bit: MAX_SKEW bounds what is kept, and nothing is lost."""
    behind = "b" if ahead == "a" else "a"
    case = joined("left", "a.k = b.k and a.ts between b.ts - 5{u} and b.ts + 5{u}")
    with Pair(case, (2, None), "max_skew 50a", blockRowsMax=1) as pair:
        pair.start()
        parts = [range(start, start + 60, 3) for start in range(0, 1_200, 60)]
        for side in "ab":
            pair.insert(side, [(child, 0, 1) for child in range(2)])
        pair.run()
        for part in parts:
            pair.insert(ahead, [(child, ts, 0) for ts in part for child in range(2)])
        kept = 0
        for part in parts:
            pair.insert(behind, [(child, ts, 0) for ts in part for child in range(2)])
            pair.run()
            kept = max([kept, *(status.size.memory for status in pair.streams.statuses()
                                if status.task.operator == "agg")])
        pair.finish()
        assert pair.results() == pair.plain()
        # The range of the join, MAX_SKEW, and a record of each side, twice: rows are let go of when they are many.
        rows = 2 * 2 * 2 * (15 + 50 + 60) // 3
        assert kept < rows * BYTES_PER_ROW < 2 * 400 * BYTES_PER_ROW / 2


class Throttle:
    """Paces the source tasks of both sides of a join by rate limits, those of one side 100 times slower."""

    FAST, SLOW = 50_000.0, 500.0
    STEP_S = 0.25

    def __init__(self, pair: Pair, slow: str) -> None:
        self.pair = pair
        self.slow = slow
        self.monitor = Monitor(1_000, 10)
        self.limit()

    def limit(self) -> None:
        """Sets the rates; after a restart of the tasks once more."""
        (stream,) = self.pair.streams.local_streams().values()
        self.left = len(stream.deployment.graph.vgroup_ids)
        for task in stream.tasks:
            if task.id.operator == "source":
                task.post(SetRates(0, 0, self.SLOW if self._side(task.id) == self.slow else self.FAST, 0))

    def pass_time(self) -> dict[str, list[TaskStatus]]:
        """Lets a moment pass; returns how the tasks are then: the sources `a` and `b`, and others by level."""
        self.pair.advance(self.STEP_S)
        found: dict[str, list[TaskStatus]] = {}
        for status in self.pair.streams.statuses():
            found.setdefault(self._side(status.task) if status.task.operator == "source" else status.task.operator,
                             []).append(status)
        self.monitor.heartbeat([status for statuses in found.values() for status in statuses],
                               self.pair.clock.monotonic())
        return found

    def verdict(self) -> Verdict:
        """What SHOW STREAMS says on a cluster, where statuses come again and again."""
        (stream,) = self.pair.streams.local_streams().values()
        graph = stream.deployment.graph
        names = TaskNames("s", graph.nodes, graph.right_vgroup_ids)
        return verdict(StreamInfo(StreamStatus("RUNNING")), self.monitor.report(self.pair.clock.monotonic()), names)

    def _side(self, source: TaskId) -> str:
        return "a" if source.index < self.left else "b"


@pytest.mark.parametrize(("slow", "options", "until"), [
    pytest.param("a", "trigger window_close max_skew 500a", 15_000, marks=by_night),
    ("b", "trigger at_once max_skew 500a", 5_000), ("b", "trigger window_close", times(8_000, 15_000))])
def test_a_throttled_side(slow: str, options: str, until: int) -> None:
    """All rows wait in the logs, and one side's sources may read 100 times fewer per second than the other's.

    With MAX_SKEW what is kept stays within its bound and below STATE_LIMIT: the fast side waits, is told so, and goes
    on. Without, more than STATE_LIMIT is kept. Nothing is lost either way, nor by a kill in the middle.
    """
    step = 2
    bounded = "max_skew" in options
    case = joined("left", "a.k = b.k and a.ts between b.ts - 3{u} and b.ts + 3{u}")
    with Pair(case, (2, None), options, blockRowsMax=100, blockBytesMax="8KiB", streamQueueSize="64KiB") as pair:
        pair.start()
        throttle = Throttle(pair, slow)
        for start in range(0, until, 500):
            for side in "ab":
                pair.insert(side, [(child, ts, child) for ts in range(start, start + 500, step) for child in range(4)])
        held: list[int] = []
        kept: list[int] = []
        fast: list[TaskStatus] = []
        told: set[str] = set()
        slowest = None
        while slowest is None or any(status.state == "RATE_LIMITED" for status in slowest):
            now = throttle.pass_time()
            slowest = now[slow]
            held.append(state_bytes(status for statuses in now.values() for status in statuses))
            kept.append(sum(status.size.memory for status in now["agg"]))
            fast.append(now["b" if slow == "a" else "a"][0])
            told.add(throttle.verdict().text)
            if len(held) == 20:
                pair.checkpoint()
                pair.streams.kill()
                throttle.limit()
        waits = [status.progress.rows_in for status in fast if status.state == "BACKPRESSURED"]
        where = " (right side)" if slow == "b" else ""
        bottleneck = f"source s/v2{where} is the bottleneck: its rate limit of {Throttle.SLOW:.0f} rows/s"
        if bounded:
            # The join's range, MAX_SKEW, and two blocks, of both sides, twice: rows are let go of when they are many.
            assert max(kept) < 2 * 2 * 4 * (6 + 500 + 2 * 100) // step * BYTES_PER_ROW
            assert over_state_limit("s", max(held), STATE_LIMIT) is None
            assert len(set(waits)) >= 5
            assert f"{bottleneck}; others wait, since they are ahead of its rows by more than MAX_SKEW" in told
        else:
            assert over_state_limit("s", max(held), STATE_LIMIT) is not None
            assert waits == []
            assert bottleneck in told
        pair.finish()
        assert pair.results() == pair.plain()
