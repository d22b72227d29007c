"""SESSION, STATE, EVENT and COUNT windows in streams: the result equals the batch answer, whatever happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.streams.stream_kit import Answer, Catalog, StreamKit, millis, newest_per_vnode, null_last, play, unhurried

from penstock.common.errors import PenstockError
from penstock.planner.streams.stream_planner import plan_stream
from penstock.planner.task_plans.stream_plan import RowWindow
from penstock.sql.dialect.parser import parse_one
from penstock.sql.schema import Session
from penstock.sql.tree.statements import CreateStream
from penstock.tasks.compute.row_segments import Carry, assign
from penstock.tasks.state.state_store import StateStore

SLOW = [HealthCheck.too_slow]
GAP = 5_000


@dataclass(frozen=True)
class Row:
    """A stored row as the oracle sees it."""

    table: str
    site: str
    uid: int
    ts: int
    voltage: int | None
    current: float | None
    note: str | None


Windows = list[list[Row]]


def sessions(rows: Sequence[Row]) -> Windows:
    windows: Windows = []
    for row in rows:
        if windows and row.ts - windows[-1][-1].ts <= GAP:
            windows[-1].append(row)
        else:
            windows.append([row])
    return windows


def states(rows: Sequence[Row]) -> Windows:
    windows: Windows = []
    for row in rows:
        if row.voltage is None:
            continue
        if windows and windows[-1][-1].voltage == row.voltage:
            windows[-1].append(row)
        else:
            windows.append([row])
    return windows


def events(rows: Sequence[Row]) -> Windows:
    windows: Windows = []
    current: list[Row] = []
    for row in rows:
        if current or (row.voltage is not None and row.voltage > 0):
            current.append(row)
            if row.current is not None and row.current < 0:
                windows.append(current)
                current = []
    return windows


def counts(count: int, sliding: int) -> Callable[[Sequence[Row]], Windows]:
    return lambda rows: [list(rows[n : n + count]) for n in range(0, len(rows), sliding)]


@dataclass(frozen=True)
class Case:
    """A window in SQL, and what it means in plain Python; `added` is how far `_wend` is from the last row."""

    clause: str
    windows: Callable[[Sequence[Row]], Windows]
    added: int = 0
    least: int = 0
    options: str = "ignore expired 0"


CASES = {
    "session": Case("session(ts, 5s)", sessions, GAP),
    "state": Case("state_window(voltage)", states),
    "state true_for": Case("state_window(voltage) true_for(3s)", states, least=3_000),
    "event": Case("event_window start with voltage > 0 end with current < 0", events),
    "event true_for": Case("event_window start with voltage > 0 end with current < 0 true_for(3s)", events,
                           least=3_000),
}
COUNTS = {
    "count": Case("count_window(3)", counts(3, 3), options="ignore expired 1 watermark 1d"),
    "sliding count": Case("count_window(4, 2)", counts(4, 2), options="ignore expired 1 watermark 1d"),
    "count by one": Case("count_window(3, 1)", counts(3, 1), options="ignore expired 1 watermark 1d"),
}
PARTITIONS: dict[str, tuple[str, str, Callable[[Row], Any]]] = {
    "table": ("partition by tbname tn", "o tags(tn varchar(20))", lambda row: row.table),
    "table and column": ("partition by tbname tn, note n", "o tags(tn varchar(20), n varchar(20))",
                         lambda row: (row.table, row.note)),
    "tag": ("partition by site", "o tags(site varchar(20))", lambda row: row.site),
    "column": ("partition by note", "o tags(note varchar(20))", lambda row: row.note),
    "none": ("", "o", lambda row: None),
}


def stored(kit: StreamKit) -> list[Row]:
    """All rows of the source, in the order of time and table."""
    rows = [Row(row["tbname"], row["site"], row["_tuid"], row["ts"], row["voltage"], row["current"], row["note"])
            for row in kit.source().to_pylist()]
    return sorted(rows, key=lambda row: (row.ts, row.uid))


def aggregated(window: Sequence[Row], added: int) -> Answer:
    """The aggregates of `SELECT` below over one window."""
    voltages = [row.voltage for row in window if row.voltage is not None]
    firsts = [row.voltage for row in window if row.voltage is not None]
    notes = [(row.ts, -row.uid, row.note) for row in window if row.note is not None]
    currents = [row.current for row in window if row.current is not None]
    return (window[0].ts, window[-1].ts + added, len(window), sum(voltages) if voltages else None,
            max(currents, default=None), firsts[0] if firsts else None, max(notes)[2] if notes else None)


SELECT = "_wstart, _wend e, count(*) c, sum(voltage) s, max(current) hi, first(voltage) f, last(note) l"


def batch(rows: Sequence[Row], case: Case, key: Callable[[Row], Any]) -> list[Answer]:
    """The batch answer: independent of SQL and of everything that the stream is made of."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    answers = [aggregated(window, case.added) for group in groups.values() for window in case.windows(group)
               if window[-1].ts - window[0].ts >= case.least]
    return sorted(answers, key=null_last)


def stream(kit: StreamKit) -> list[Answer]:
    """The stream's result rows, without their group."""
    return sorted(((millis(row["_wstart"]), millis(row["e"]), row["c"], row["s"], row["hi"], row["f"], row["l"])
                   for row in kit.rows()), key=null_last)


def sql_of(case: Case, partition: str, trigger: str = "at_once", options: str | None = None) -> str:
    clause, into, _ = PARTITIONS[partition]
    return (f"create stream s trigger {trigger} {options or case.options} ignore update 0 into {into} as "
            f"select {SELECT} from meters {clause} {case.clause}")


TIMES = st.one_of(st.integers(0, 30_000), st.integers(0, 30).map(lambda n: n * 1000), st.integers(0, 9_000_000))
ROW = st.tuples(
    st.integers(0, 3), TIMES, st.one_of(st.none(), st.integers(-1, 2)),
    st.one_of(st.none(), st.integers(-2, 2).map(float)), st.one_of(st.none(), st.sampled_from(["x", "y"])),
)
IN_ORDER = st.lists(ROW, min_size=1, max_size=12).map(lambda rows: sorted(rows, key=lambda row: row[1]))
STEP = st.one_of(
    st.tuples(st.just("insert"), st.lists(ROW, min_size=1, max_size=8)),
    st.tuples(st.just("each"), IN_ORDER),
    st.tuples(st.just("partial"), st.lists(ROW, min_size=1, max_size=3)),
    st.tuples(st.just("delete"), st.tuples(st.one_of(st.none(), st.lists(st.integers(0, 3), min_size=1, max_size=2)),
                                           TIMES, st.integers(0, 15_000))),
    st.tuples(st.just("run"), st.none()),
    st.tuples(st.just("checkpoint"), st.booleans()),
    st.tuples(st.just("kill"), st.none()),
)
STEPS = st.lists(STEP, min_size=1, max_size=12)


VARIANTS = {
    "session": (["session"], ["table", "tag", "column", "none"]),
    "state": (["state", "state true_for"], ["table", "table and column"]),
    "event": (["event", "event true_for"], ["table", "table and column"]),
    "count": (list(COUNTS), ["table", "table and column"]),
}


@pytest.mark.parametrize("kind", VARIANTS)
@settings(max_examples=times(4, 200), deadline=None, suppress_health_check=SLOW)
@given(data=st.data(), steps=STEPS, vnodes=st.integers(1, 4), block=st.sampled_from([1, 2, 4, 100]),
       memory=st.sampled_from([0, 1_000, 1 << 27]))
def test_at_once_equals_batch(
    tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject, steps: list[Any], vnodes: int,
    block: int, memory: int
) -> None:
    """AT_ONCE: the result is the batch answer, for any change, kill, vnode count, block size and memory for state."""
    name, partition = (data.draw(st.sampled_from(choices)) for choices in VARIANTS[kind])
    case = (CASES | COUNTS)[name]
    kit = StreamKit(tmp_path_factory.mktemp("stream"), sql_of(case, partition), vnodes=vnodes,
                    settings=unhurried(block_rows_max=block, state_memory_bytes=memory))
    try:
        play(kit, steps)
        kit.run()
        assert stream(kit) == batch(stored(kit), case, PARTITIONS[partition][2])
    finally:
        kit.close()


@pytest.mark.parametrize("kind", VARIANTS)
@settings(max_examples=times(4, 200), deadline=None, suppress_health_check=SLOW)
@given(data=st.data(), steps=STEPS, vnodes=st.integers(1, 3), watermark=st.sampled_from([1, 5_000, 86_400_000]),
       block=st.sampled_from([1, 3, 100]), memory=st.sampled_from([0, 1 << 27]))
def test_window_close_equals_batch(
    tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject, steps: list[Any], vnodes: int,
    watermark: int, block: int, memory: int
) -> None:
    """WINDOW_CLOSE: the result is the batch answer's windows whose last row is older than the watermark."""
    name, partition = (data.draw(st.sampled_from(choices)) for choices in VARIANTS[kind])
    case = (CASES | COUNTS)[name]
    if name in COUNTS:
        watermark = 86_400_000  # all rows are on time: COUNT needs IGNORE EXPIRED 1
    options = f"watermark {watermark}a ignore expired {int(name in COUNTS)}"
    kit = StreamKit(tmp_path_factory.mktemp("stream"), sql_of(case, partition, "window_close", options), vnodes=vnodes,
                    settings=unhurried(block_rows_max=block, state_memory_bytes=memory))
    try:
        play(kit, steps)
        kit.run()
        kit.pass_time(5)
        newest = newest_per_vnode(kit, steps)
        got = stream(kit)
        by_table = partition.startswith("table")
        if vnodes == 1 or by_table:
            vgroups = {child.name: child.vgroup_id for child in kit.catalog.child_list}
            want = []
            for table in {row.table if by_table else None for row in stored(kit)}:
                rows = [row for row in stored(kit) if table in (None, row.table)]
                until = newest[vgroups[table] if table else next(iter(newest))] - watermark
                want += [answer for answer in batch(rows, case, PARTITIONS[partition][2])
                         if answer[1] - case.added < until]
            assert got == sorted(want, key=null_last)
        else:
            answers = batch(stored(kit), case, PARTITIONS[partition][2])
            least, most = (choose(newest.values(), default=0) - watermark for choose in (min, max))
            assert all(answer in answers and answer[1] - case.added < most for answer in got)
            assert all(answer in got for answer in answers if answer[1] - case.added < least)
    finally:
        kit.close()


def test_a_session_that_was_shown_and_forgotten_is_withdrawn_when_it_begins_earlier(tmp_path: Path) -> None:
    """Its row came after the last checkpoint, by the clock: who goes on from there doesn't know that it is out."""
    case = CASES["session"]
    kit = StreamKit(tmp_path, sql_of(case, "column", "window_close"), vnodes=2, settings=unhurried(idle_timeout_s=1.0))
    try:
        kit.insert([(0, 10_000, 1, None, "x"), (0, 100_000, 1, None, "y")])
        kit.run()
        kit.checkpoint()
        assert stream(kit) == []
        kit.pass_time(3)  # the other vnode is idle
        assert [row[0] for row in stream(kit)] == [10_000]
        kit.insert([(0, 9_000, 2, None, "x")])
        kit.kill()
        kit.run()
        kit.pass_time(3)
        assert [(row[0], row[2], row[3]) for row in stream(kit)] == [(9_000, 2, 3)]
    finally:
        kit.close()


def on_time(batches: list[list[Any]], watermark: int) -> tuple[list[Any], int]:
    """Plain Python for tdengine.md 7.2: which rows count, judged before each row's own record; and how many don't."""
    newest: int | None = None
    tables: dict[int, int] = {}
    kept: dict[tuple[int, int], Any] = {}
    late = 0
    for rows in batches:
        distinct = {(row[0], row[1]): row for row in rows}
        for (table, ts), row in distinct.items():
            if table in tables and ts < tables[table] and newest is not None and ts < newest - watermark:
                late += 1
            else:
                kept[table, ts] = row
        for table, ts in distinct:
            tables[table] = max(ts, tables.get(table, ts))
            newest = ts if newest is None else max(ts, newest)
    return list(kept.values()), late


def without_updates(batches: list[list[Any]]) -> list[list[Any]]:
    """Leaves out rows that rewrite a key."""
    seen: set[tuple[int, int]] = set()
    result: list[list[Any]] = []
    for rows in batches:
        fresh = {(row[0], row[1]): row for row in rows if (row[0], row[1]) not in seen}
        seen.update(fresh)
        if fresh:
            result.append(list(fresh.values()))
    return result


@pytest.mark.parametrize("name", ["session", "state", "event", "sliding count"])
@settings(max_examples=times(4, 200), deadline=None, suppress_health_check=SLOW)
@given(
    batches=st.lists(st.lists(ROW, min_size=1, max_size=4), min_size=1, max_size=12),
    block=st.sampled_from([1, 3, 100]), kill_after=st.integers(0, 10), watermark=st.sampled_from([1, 7_000]),
    trigger=st.sampled_from(["at_once", "window_close"]),
)
def test_expired_rows_are_judged_row_by_row(
    tmp_path_factory: pytest.TempPathFactory, name: str, batches: list[Any], block: int, kill_after: int,
    watermark: int, trigger: str
) -> None:
    """IGNORE EXPIRED 1: which rows count is a function of the WAL alone, also when windows are read back."""
    batches = without_updates(batches)
    case = (CASES | COUNTS)[name]
    options = f"watermark {watermark}a ignore expired 1"
    kit = StreamKit(tmp_path_factory.mktemp("stream"), sql_of(case, "table", trigger, options),
                    settings=unhurried(block_rows_max=block, state_memory_bytes=1 << 27))
    try:
        for number, rows in enumerate(batches):
            kit.insert(rows)
            if number % 3 == 0:
                kit.run()
            if number == kill_after:
                kit.checkpoint()
                kit.kill()
        kit.run()
        kept, late = on_time(batches, watermark)
        children = kit.catalog.child_list
        rows = sorted((Row(children[row[0]].name, "", children[row[0]].uid, *row[1:]) for row in kept),
                      key=lambda row: (row.ts, row.uid))
        answers = batch(rows, case, PARTITIONS["table"][2])
        until = max(row[1] for rows in batches for row in rows) - watermark
        if trigger == "window_close":
            answers = [answer for answer in answers if answer[1] - case.added < until]
        assert stream(kit) == answers
        source = next(task for task in kit.tasks if task.id.operator == "source")
        # A row without a state is in no window, whatever its time.
        assert source.status().late.late_rows == late or name == "state"
    finally:
        kit.close()


@pytest.mark.parametrize(("clause", "options", "code"), [
    ("from meters state_window(voltage)", "", 0x2645),
    ("from meters event_window start with voltage > 1 end with voltage < 1", "", 0x2645),
    ("from meters count_window(3)", "ignore expired 1 watermark 1s", 0x2645),
    ("from d0 count_window(3)", "ignore expired 1", 0x2645),
    ("from d0 count_window(3)", "ignore expired 0 watermark 1s", 0x2645),
    ("from d0 state_window(current)", "", 0x2628),
    ("from meters partition by tbname state_window(site)", "", 0x2629),
    ("from d0 session(ts, 1n)", "", 0x262B),
    ("from d0 session(voltage, 1s)", "", 0x262C),
])
def test_what_a_stream_with_row_windows_may_not_be(clause: str, options: str, code: int) -> None:
    """What TDengine refuses is refused, with its code."""
    statement = parse_one(f"create stream s trigger at_once {options} into o as select count(*) {clause}")
    assert isinstance(statement, CreateStream)
    with pytest.raises(PenstockError) as caught:
        plan_stream(statement, Catalog(1, 1), Session("p", "UTC", 0))
    assert caught.value.code == code


KINDS = {"session": RowWindow("session", gap=GAP), "state": RowWindow("state"), "event": RowWindow("event"),
         "count": RowWindow("count", count=3, sliding=3), "sliding count": RowWindow("count", count=4, sliding=2),
         "count by one": RowWindow("count", count=3, sliding=1)}


@pytest.mark.parametrize("name", [name for name in KINDS if name != "session"])
@settings(max_examples=times(20, 1000), deadline=None, suppress_health_check=SLOW)
@given(rows=st.lists(ROW, max_size=30), cuts=st.lists(st.integers(1, 30), max_size=4))
def test_rows_that_come_in_parts_form_the_same_windows(name: str, rows: list[Any], cuts: list[int]) -> None:
    """What a carry says of earlier rows is all that later ones need."""
    case = (CASES | COUNTS)[name]
    line = [Row("", "", 7, ts, *row[2:]) for ts, row in enumerate(rows)]
    line = [row for row in line if name != "state" or row.voltage is not None]
    carries: dict[int, Carry] = {}
    starts: dict[int, list[int]] = {}
    for first, end in pairwise([0, *sorted(cuts), max([0, *cuts, len(line)])]):
        part = line[first:end]
        table = pa.table({
            "#group": pa.array([7] * len(part), pa.uint64()), "#ts": pa.array([row.ts for row in part], pa.int64()),
            "#state": pa.array([row.voltage for row in part], pa.int32()),
            "#opens": pa.array([row.voltage is not None and row.voltage > 0 for row in part], pa.bool_()),
            "#ends": pa.array([row.current is not None and row.current < 0 for row in part], pa.bool_())})
        assigned = assign(KINDS[name], table, carries)
        carries.update(assigned.carries)
        for row, start in zip(assigned.rows.tolist(), assigned.starts.tolist(), strict=True):
            starts.setdefault(start, []).append(part[row].ts)
    windows = {window[0].ts: [row.ts for row in window] for window in case.windows(line)}
    if name == "event":  # the last one may still be open
        still_open = carries[7].start if 7 in carries else None
        starts = {start: times for start, times in starts.items() if start != still_open}
    assert starts == windows


@settings(max_examples=times(12, 300), deadline=None)
@given(steps=st.lists(st.tuples(st.sampled_from(["put", "delete", "checkpoint"]), st.binary(min_size=1, max_size=2)),
                      max_size=30), first=st.binary(max_size=2), end=st.binary(min_size=1, max_size=2))
def test_ranges_of_a_state_store(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, bytes]], first: bytes, end: bytes
) -> None:
    """A range, and the last key before another, are found in whatever layers they are."""
    store = StateStore(tmp_path_factory.mktemp("store"), 1 << 24)
    kept: dict[bytes, bytes] = {}
    for number, (kind, key) in enumerate(steps):
        if kind == "checkpoint":
            store.checkpoint(number + 1, {})
        else:
            value = bytes([number]) if kind == "put" else None
            store.put_many([(key, value)])
            kept.pop(key, None)
            if value is not None:
                kept[key] = value
    assert store.between(first, end) == sorted(item for item in kept.items() if first <= item[0] < end)
    before = [item for item in kept.items() if item[0] < end and item[0].startswith(end[:1])]
    assert store.last_before(end, end[:1]) == max(before, default=None)
    store.close()
