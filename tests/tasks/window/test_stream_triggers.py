"""Triggers: MAX_DELAY, FORCE_WINDOW_CLOSE and CONTINUOUS_WINDOW_CLOSE by a manual clock, and what each refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.streams.stream_kit import Catalog, StreamKit

from penstock.common.errors import InvalidStreamError, SqlSyntaxError
from penstock.planner.streams.stream_planner import plan_stream
from penstock.sql.dialect.parser import parse_one
from penstock.sql.schema import Session
from penstock.tasks.protocol.messages import Pause, Resume

NOW = 1_600_000_000_000
STEP = 10_000
Make = Callable[..., StreamKit]


@pytest.fixture
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """Makes kits and closes them."""
    made: list[StreamKit] = []

    def make(sql: str, **options: Any) -> StreamKit:
        kit = StreamKit(tmp_path_factory.mktemp("stream"), sql, now_ms=NOW, **options)
        made.append(kit)
        return kit

    yield make
    for kit in made:
        kit.close()


def starts(kit: StreamKit, column: str, time: str = "_wstart") -> list[tuple[int, Any]]:
    """The results as (seconds since the stream's creation, value)."""
    return [(round(row[time].timestamp()) - NOW // 1000, row[column]) for row in kit.rows()]


# -- AT_ONCE ----------------------------------------------------------------------------------------------------


def test_blocks_of_several_vnodes_that_wait_are_shown_at_once(make: Make) -> None:
    """An agg task that finds partials of both vnodes writes each window once, with the rows of both."""
    kit = make("create stream s trigger at_once into o as select _wstart, sum(voltage) v, count(*) c from meters "
               "interval(10s)", vnodes=2, tables=8)
    kit.insert([(table, NOW + at, 1 << table, 0.0, "") for at in (0, 10_000) for table in range(8)])
    for task in kit.tasks:
        if task.id.operator == "source":
            while task.step():
                continue
    for link in kit.stream.links:
        link.move()
    kit.run()
    assert starts(kit, "v") == [(0, 255), (10, 255)]
    assert [write.rows.num_rows for write in kit.writes] == [2]


# -- MAX_DELAY --------------------------------------------------------------------------------------------------


def test_max_delay_shows_open_windows_after_the_delay(make: Make) -> None:
    """A closed window comes at once, an open one the delay after it first changed, and again only after changes."""
    kit = make("create stream s trigger max_delay 5s into o as select _wstart, sum(voltage) v from d0 interval(10s)")
    kit.insert([(0, NOW, 1, 0.0, ""), (0, NOW + 10_000, 2, 0.0, "")])
    kit.run()
    assert starts(kit, "v") == [(0, 1)]
    kit.pass_time(4.9)
    assert starts(kit, "v") == [(0, 1)]
    kit.pass_time(0.1)
    assert starts(kit, "v") == [(0, 1), (10, 2)]
    written = len(kit.writes)
    kit.pass_time(60)
    assert len(kit.writes) == written
    kit.insert([(0, NOW + 11_000, 5, 0.0, "")])
    kit.run()
    assert starts(kit, "v") == [(0, 1), (10, 2)]
    kit.pass_time(5)
    assert starts(kit, "v") == [(0, 1), (10, 7)]


def test_max_delay_shows_changes_from_before_a_restart(make: Make) -> None:
    """What was modified but not shown when a checkpoint was taken is shown after the restart."""
    kit = make("create stream s trigger max_delay 5s into o as select _wstart, sum(voltage) v from d0 interval(10s)")
    kit.insert([(0, NOW, 1, 0.0, "")])
    kit.run()
    kit.checkpoint()
    kit.kill()
    kit.run()
    assert starts(kit, "v") == []
    kit.pass_time(5)
    assert starts(kit, "v") == [(0, 1)]


# -- CONTINUOUS_WINDOW_CLOSE ------------------------------------------------------------------------------------


@pytest.mark.parametrize("killed", [False, True])
def test_continuous_recalculates_closed_windows_by_the_clock(make: Make, killed: bool) -> None:
    """Closing emits; late rows, updates and deletes in closed windows show after RECALCULATE, also over a restart."""
    kit = make("create stream s trigger continuous_window_close recalculate 10m into o as "
               "select _wstart, sum(voltage) v from d0 interval(10s)")
    kit.insert([(0, NOW + n * STEP, n, 0.0, "") for n in range(4)])
    kit.run()
    assert starts(kit, "v") == [(0, 0), (10, 1), (20, 2)]
    kit.insert([(0, NOW + 1, 5, 0.0, ""), (0, NOW + STEP, 7, 0.0, "")])
    kit.delete([0], NOW + 2 * STEP, NOW + 2 * STEP)
    kit.run()
    if killed:
        kit.checkpoint()
        kit.kill()
    kit.pass_time(599)
    assert starts(kit, "v") == [(0, 0), (10, 1), (20, 2)]
    kit.pass_time(1)
    assert starts(kit, "v") == [(0, 5), (10, 7)]


# -- FORCE_WINDOW_CLOSE -----------------------------------------------------------------------------------------

ROW = st.tuples(st.integers(0, 3), st.integers(-25, 15), st.integers(-5, 5))
ACTION = st.one_of(
    st.tuples(st.just("insert"), st.lists(ROW, min_size=1, max_size=4)),
    st.tuples(st.just("insert"), st.lists(ROW, min_size=1, max_size=4)),
    st.tuples(st.just("wait"), st.integers(1, 25)),
    st.tuples(st.just("wait"), st.integers(1, 25)),
    st.tuples(st.just("delete"), st.tuples(st.integers(0, 3), st.integers(-25, 5), st.integers(0, 15))),
    st.tuples(st.just("checkpoint"), st.booleans()),
    st.tuples(st.just("kill"), st.none()),
    st.tuples(st.just("pause"), st.integers(1, 40)),
)
NULLS = st.tuples(st.just("insert"), st.lists(
    st.tuples(st.integers(0, 3), st.integers(-25, 15), st.none()), min_size=1, max_size=2))
Log = list[tuple[int, str, Any]]


def act(kit: StreamKit, actions: list[tuple[str, Any]]) -> Log:
    """Carries the actions out; returns what was written, with the time of writing."""
    log: Log = []
    for kind, what in actions:
        now = kit.clock.now_ms()
        match kind:
            case "insert":
                rows = [(table, now + offset * 1000, value) for table, offset, value in what]
                kit.insert(rows, ("voltage",))
                log.append((now, kind, rows))
            case "delete":
                table, offset, length = what
                span = (table, now + offset * 1000, now + (offset + length) * 1000)
                kit.delete([table], *span[1:])
                log.append((now, kind, span))
            case "wait":
                kit.pass_time(what)
            case "checkpoint":
                kit.run()
                kit.checkpoint(commit=what)
            case "kill":
                kit.kill()
            case "pause":
                kit.run()
                kit.post(Pause(), "source")
                kit.pass_time(what)
                kit.post(Resume(), "source")
        kit.run()
    return log


def stored(log: Log, until: int) -> dict[tuple[int, int], Any]:
    """The rows as of a time: value by (table, ts)."""
    rows: dict[tuple[int, int], Any] = {}
    for at, kind, what in log:
        if at >= until:
            break
        if kind == "insert":
            rows.update({(table, ts): value for table, ts, value in what})
        else:
            rows = {key: value for key, value in rows.items()
                    if not (key[0] == what[0] and what[1] <= key[1] <= what[2])}
    return rows


def forced(log: Log, now: int, fill: str) -> dict[tuple[str, int], tuple[Any, ...]]:
    """Plain Python: every window that has ended, from the rows as of its end."""
    results: dict[tuple[str, int], tuple[Any, ...]] = {}
    known: dict[str, tuple[Any, ...]] = {}
    for start in range(NOW // STEP * STEP, now - STEP + 1, STEP):
        found: dict[str, list[int | None]] = {}
        for (table, ts), value in stored(log, start + STEP).items():
            if start <= ts < start + STEP:
                found.setdefault(f"d{table}", []).append(value)
        for name in known.keys() | found.keys():
            if name in found:
                values = [value for value in found[name] if value is not None]
                total = sum(values) if values else {"prev": known.get(name, (0, None))[1], "value": -1}.get(fill)
                known[name] = results[name, start] = (len(found[name]), total)
            elif fill != "none":
                results[name, start] = {"null": (None, None), "value": (0, -1), "prev": known[name]}[fill]
    return results


@pytest.mark.parametrize("fill", ["none", "null", "value", "prev"])
@settings(max_examples=times(4, 200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(actions=st.lists(ACTION | NULLS, min_size=2, max_size=12), vnodes=st.integers(1, 3))
def test_force_window_close_sees_what_was_there_when_the_window_ended(
    tmp_path_factory: pytest.TempPathFactory, fill: str, actions: list[Any], vnodes: int
) -> None:
    """Each window is what the store had at its end, whenever it is computed: paused, killed or replayed."""
    clause = "value, 0, -1" if fill == "value" else fill
    kit = StreamKit(
        tmp_path_factory.mktemp("stream"),
        "create stream s trigger force_window_close into o tags(tn varchar(20)) as select _wstart, count(*) c, "
        f"sum(voltage) v, now at, tn from meters partition by tbname tn interval(10s) fill({clause})",
        vnodes=vnodes, now_ms=NOW)
    try:
        log = act(kit, actions)
        got = {}
        for row in kit.rows():
            start = round(row["_wstart"].timestamp() * 1000)
            got[row["tn"], start] = (row["c"], row["v"])
            assert round(row["at"].timestamp() * 1000) == start + STEP
        assert got == forced(log, kit.clock.now_ms(), fill)
    finally:
        kit.close()


def interpolated(log: Log, now: int, fill: str) -> dict[tuple[str, int], Any]:
    """Plain Python: INTERP at every instant, over rows that were there when the step that they are in ended."""
    results: dict[tuple[str, int], Any] = {}
    last: dict[str, tuple[int, int]] = {}
    for at in range(NOW // STEP * STEP + STEP, now + 1, STEP):
        for (table, ts), value in sorted(stored(log, at).items()):
            if at - STEP < ts <= at:
                last[f"d{table}"] = (ts, value)
        for name, (ts, value) in last.items():
            results[name, at] = value if ts == at or fill == "prev" else {"null": None, "value": 9}[fill]
    return results


@pytest.mark.parametrize("fill", ["null", "value", "prev"])
@settings(max_examples=times(4, 200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(actions=st.lists(ACTION.filter(lambda action: action[0] != "delete"), min_size=2, max_size=12),
       vnodes=st.integers(1, 3))
def test_interp_by_the_clock(
    tmp_path_factory: pytest.TempPathFactory, fill: str, actions: list[Any], vnodes: int
) -> None:
    """INTERP gives a row per instant for every group that had data, also while it is idle."""
    clause = "value, 9" if fill == "value" else fill
    kit = StreamKit(
        tmp_path_factory.mktemp("stream"),
        "create stream s trigger force_window_close into o tags(tn varchar(20)) as select _irowts, interp(voltage) v, "
        f"_isfilled f, tn from meters partition by tbname tn every(10s) fill({clause})",
        vnodes=vnodes, now_ms=NOW)
    try:
        log = act(kit, actions)
        got = {(row["tn"], round(row["_irowts"].timestamp() * 1000)): row["v"] for row in kit.rows()}
        assert got == interpolated(log, kit.clock.now_ms(), fill)
    finally:
        kit.close()


def test_twa_takes_the_row_before_the_window(make: Make) -> None:
    """TWA interpolates at the window's start with the last row before it, also after a restart."""
    kit = make("create stream s trigger force_window_close into o as select _wstart, twa(voltage) w, elapsed(ts) e "
               "from meters partition by tbname interval(10s)")
    kit.insert([(0, NOW + 5_000, 0, 0.0, "")])
    kit.pass_time(10)
    kit.checkpoint()
    kit.kill()
    kit.insert([(0, NOW + 15_000, 10, 0.0, "")])
    kit.pass_time(10)
    assert starts(kit, "w")[1] == (10, pytest.approx(7.5))
    assert starts(kit, "e")[1] == (10, pytest.approx(5_000))


def test_ignoring_what_is_untreated_skips_windows(make: Make) -> None:
    """RESUME IGNORE UNTREATED leaves out the windows that ended during the pause."""
    kit = make("create stream s trigger force_window_close into o as select _wstart, count(*) c from d0 interval(10s)")
    kit.post(Pause(), "source")
    kit.insert([(0, NOW + n * STEP, 1, 0.0, "") for n in range(4)])
    kit.pass_time(25)
    kit.post(Resume(skip_to_end=True), "source")
    kit.run()
    kit.pass_time(20)
    assert starts(kit, "c") == [(20, 1), (30, 1)]


def test_groups_by_a_column_are_those_of_event_time_streams(make: Make) -> None:
    """PARTITION BY tbname and a column gives one child table per pair, and WHERE holds for kept rows."""
    kit = make("create stream s trigger force_window_close into o tags(cc varchar(16)) "
               "subtable(concat(tbname, '-', cc)) "
               "as select _irowts, interp(voltage) v from meters where voltage > 0 partition by tbname, note as cc "
               "every(10s) fill(prev)")
    kit.insert([(0, NOW + 1_000, 1, 0.0, "x"), (0, NOW + 2_000, 2, 0.0, "y"), (0, NOW + 3_000, -3, 0.0, "y")])
    kit.pass_time(20)
    assert sorted((row["_child"].split("_")[0], row["v"]) for row in kit.rows()) == [
        ("d0-x", 1), ("d0-x", 1), ("d0-y", 2), ("d0-y", 2)]


def test_a_window_is_computed_from_the_creation_on(make: Make) -> None:
    """The first window is the one that holds the creation, with all rows that are stored in it."""
    kit = make("create stream s trigger force_window_close into o as select count(*) c from meters partition by tbname "
               "interval(1m)")
    kit.insert([(0, NOW - 1, 1, 0.0, ""), (0, NOW - 60_000, 1, 0.0, "")])
    kit.pass_time(60)
    assert [row["c"] for row in kit.rows()] == [1]


# -- what is allowed ----------------------------------------------------------------------------------------------

FORCE = "trigger force_window_close"
CONTINUOUS = "trigger continuous_window_close"
TABLES = "from meters partition by tbname"


@pytest.mark.parametrize(("options", "query"), [
    ("trigger max_delay 4999a", "select count(*) from d0 interval(10s)"),
    ("trigger max_delay 5s", "select ts, voltage from d0"),
    ("trigger window_close", "select ts, voltage from d0"),
    ("trigger at_once", "select _wstart, twa(voltage) from d0 interval(10s)"),
    ("trigger at_once", "select _wstart, elapsed(ts) from d0 interval(10s)"),
    ("trigger at_once", "select _irowts, interp(voltage) from d0 every(1s) fill(prev)"),
    ("", "select _irowts, interp(voltage) from d0 every(1s) fill(prev)"),
    (FORCE, "select ts, voltage from d0"),
    (FORCE, "select count(*) from meters interval(10s)"),
    (FORCE, "select count(*) from meters partition by site interval(10s)"),
    (FORCE, f"select count(*) {TABLES} session(ts, 10s)"),
    (FORCE, f"select count(*) {TABLES} interval(10s) sliding(5s)"),
    (FORCE, f"select count(*) {TABLES} interval(10s) fill(next)"),
    (FORCE, f"select count(*) {TABLES} interval(10s) fill(linear)"),
    (FORCE, f"select diff(voltage) {TABLES} interval(10s)"),
    (f"{FORCE} ignore expired 0", f"select count(*) {TABLES} interval(10s)"),
    (f"{FORCE} ignore update 0", f"select count(*) {TABLES} interval(10s)"),
    (f"{FORCE} fill_history 1", f"select count(*) {TABLES} interval(10s)"),
    (FORCE, f"select interp(voltage) {TABLES} every(1s)"),
    (FORCE, f"select interp(voltage) {TABLES} fill(prev)"),
    (FORCE, f"select interp(voltage) {TABLES} every(1s) fill(linear)"),
    (FORCE, f"select interp(voltage) {TABLES} range(0, 10) every(1s) fill(prev)"),
    (FORCE, "select interp(voltage) from meters every(1s) fill(prev)"),
    (CONTINUOUS, "select count(*) from d0 session(ts, 10s)"),
    (f"{CONTINUOUS} recalculate 9m", "select count(*) from d0 interval(10s)"),
    (f"{CONTINUOUS} ignore expired 1", "select count(*) from d0 interval(10s)"),
    (f"{CONTINUOUS} ignore update 1", "select count(*) from d0 interval(10s)"),
])
def test_what_a_trigger_refuses(options: str, query: str) -> None:
    """Combinations that TDengine refuses are refused when the stream is created."""
    with pytest.raises((InvalidStreamError, SqlSyntaxError)):
        plan_stream(parse_one(f"create stream s {options} into o as {query}"), Catalog(1, 4), Session("p", "UTC", NOW))


@pytest.mark.parametrize(("options", "query", "trigger", "period_ms"), [
    ("", "select ts, voltage from d0", "at_once", 0),
    ("trigger at_once", "select ts, voltage from d0", "at_once", 0),
    ("", "select count(*) from d0 interval(10s)", "window_close", 0),
    ("trigger max_delay 5000a", "select count(*) from d0 interval(10s)", "max_delay", 5_000),
    (CONTINUOUS, "select count(*) from d0 interval(10s) sliding(5s)", "continuous_window_close", 3_600_000),
    (f"{CONTINUOUS} recalculate 10m ignore expired 0 ignore update 0", "select count(*) from d0 interval(10s)",
     "continuous_window_close", 600_000),
    (f"{FORCE} ignore expired 1 ignore update 1", f"select count(*) {TABLES} interval(10s) sliding(10s) fill(none)",
     "force_window_close", 0),
])
def test_what_a_trigger_becomes(options: str, query: str, trigger: str, period_ms: int) -> None:
    """Left-out options get their defaults; a stream without a window runs at once."""
    plan = plan_stream(parse_one(f"create stream s {options} into o as {query}"), Catalog(1, 4),
                       Session("p", "UTC", NOW))
    assert (plan.trigger, getattr(plan.computation, "period_ms", 0)) == (trigger, period_ms)
