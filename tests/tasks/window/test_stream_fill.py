"""FILL in streams: after any changes, kills and over any vnodes the result is the filled batch answer."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.basics.shared_duckdb import duckdb_with
from kits.streams.interval_streams import INTO, PARTITIONS, WIDTH
from kits.streams.stream_kit import StreamKit, millis, newest_per_vnode, play, table_vnode, unhurried

from penstock.common.errors import PenstockError
from penstock.planner.duckdb_sql.interval_windows import grid_of, starts_between
from penstock.sql.tree.statements import Duration, IntervalWindow
from penstock.tasks.state.state_store import StateStore
from penstock.tasks.window.result_index import ResultIndex

COLUMNS = "_wstart, _wend e, count(*) c, sum(voltage) s, avg(current) a, last(note) l"
BATCH = """
    SELECT {keys} (ts // {width}) * {width} AS start, count(*) AS c, sum(voltage)::BIGINT AS s, avg(current) AS a,
        arg_max(note, (ts, -(_tuid::HUGEINT))) FILTER (note IS NOT NULL) AS l
    FROM source GROUP BY ALL ORDER BY ALL
"""
FILLS = {"null": "null", "null_f": "null_f", "value": "value, -1, 7.9, 2, 'none'", "prev": "prev", "next": "next",
         "linear": "linear"}
CONSTANTS = (-1, 7, 2.0, "none")
ROW = st.tuples(
    st.sampled_from([0, 0, 0, 1, 2, 3]), st.integers(0, 14).map(lambda n: n * WIDTH),
    st.one_of(st.none(), st.integers(-5, 5)), st.one_of(st.none(), st.floats(-10, 10)),
    st.one_of(st.none(), st.sampled_from(["x", "y", ""])),
)
# Windows of NULLs only, alone and in runs.
NULLS = ROW.map(lambda row: (*row[:2], None, None, None))
INSERT = st.tuples(st.just("insert"), st.lists(st.one_of(ROW, NULLS), min_size=1, max_size=6))
DELETE = st.tuples(st.just("delete"), st.tuples(
    st.sampled_from([None, [0], [0], [1, 2]]), st.integers(0, 14).map(lambda n: n * WIDTH),
    st.sampled_from([0, 0, 2 * WIDTH, 6 * WIDTH, 20 * WIDTH])))
RUN = st.tuples(st.just("run"), st.none())
REST = st.one_of(RUN, st.tuples(st.just("checkpoint"), st.booleans()), st.tuples(st.just("kill"), st.none()))


def played(*more: st.SearchStrategy[tuple[str, Any]]) -> st.SearchStrategy[list[tuple[str, Any]]]:
    """Lists of steps: changes, most of them seen by the stream one by one, and what interrupts it."""
    change = st.one_of(INSERT, INSERT, DELETE)
    pair = st.tuples(change, st.one_of(RUN, RUN, REST, *more)).map(list)
    return st.lists(st.one_of(pair, pair, change.map(lambda step: [step])), min_size=1, max_size=8).map(
        lambda parts: [step for part in parts for step in part])


Windows = dict[Any, dict[int, tuple[Any, ...]]]


def batch(kit: StreamKit, keys: str) -> Windows:
    """The batch answer: values per group and window."""
    source = kit.source()
    with duckdb_with({"source": source}) as connection:
        rows = connection.execute(BATCH.format(keys=keys, width=WIDTH)).fetchall()
    windows: Windows = {}
    for row in rows:
        head, start, values = (row[0], row[1], row[2:]) if keys else (None, row[0], row[1:])
        windows.setdefault(head, {})[start] = values
    return windows


def filled(windows: Windows, mode: str) -> dict[tuple[Any, int], tuple[Any, ...]]:
    """Plain Python: the windows, and rows between every two neighbours of a group."""
    rows = {}
    for head, group in windows.items():
        starts = sorted(group)
        if mode in ("prev", "next"):
            group = carried(group, reverse=mode == "next")
        for start in starts:
            rows[head, start] = tuple(c if v is None and mode == "value" else v
                                      for v, c in zip(group[start], CONSTANTS, strict=True))
        for before, after in itertools.pairwise(starts):
            for start in range(before + WIDTH, after, WIDTH):
                part = (start - before) / (after - before)
                rows[head, start] = tuple(
                    between(mode, b, a, part, c)
                    for b, a, c in zip(group[before], group[after], CONSTANTS, strict=True))
    return rows


def carried(group: dict[int, tuple[Any, ...]], *, reverse: bool) -> dict[int, tuple[Any, ...]]:
    """The windows of a group with what is nearest before (or after) them instead of NULLs."""
    found: tuple[Any, ...] = (None,) * len(CONSTANTS)
    rows = {}
    for start in sorted(group, reverse=reverse):
        found = tuple(old if new is None else new for new, old in zip(group[start], found, strict=True))
        rows[start] = found
    return rows


def between(mode: str, before: Any, after: Any, part: float, constant: Any) -> Any:
    match mode:
        case "value":
            return constant
        case "prev":
            return before
        case "next":
            return after
        case "linear" if before is not None and after is not None and not isinstance(before, str):
            value = before + (after - before) * part
            return value if isinstance(before, float) else math.trunc(value + math.copysign(1e-9, value))
        case _:
            return None


def stream(kit: StreamKit, key: str | None) -> dict[tuple[Any, int], tuple[Any, ...]]:
    rows = {}
    for row in kit.rows():
        start = millis(row["_wstart"])
        assert millis(row["e"]) == start + WIDTH
        rows[row[key] if key else None, start] = tuple(row[name] for name in ("c", "s", "a", "l"))
    return rows


def assert_rows(got: dict[Any, Any], want: dict[Any, Any]) -> None:
    assert got.keys() == want.keys(), (sorted(map(str, got.keys() - want.keys())),
                                       sorted(map(str, want.keys() - got.keys())))
    for head, values in want.items():
        for left, right in zip(got[head], values, strict=True):
            if isinstance(left, float) and isinstance(right, float):
                assert math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-6), (head, got[head], values)
            else:
                assert left == right, (head, got[head], values)


def make(tmp_path_factory: pytest.TempPathFactory, partition: str, trigger: str, fill: str, vnodes: int,
         memory: int = 1 << 27, block: int = 65_536) -> StreamKit:
    clause, key, _ = PARTITIONS[partition]
    into = INTO[partition]
    name = f", {key}" if key else ""
    sql = (f"create stream s trigger {trigger} ignore expired 0 ignore update 0 into {into} as "
           f"select {COLUMNS}{name} from meters {clause} interval(10s) fill({fill})")
    return StreamKit(tmp_path_factory.mktemp("stream"), sql, vnodes=vnodes, settings=unhurried(
        state_memory_bytes=memory, block_rows_max=block))


@pytest.mark.parametrize("mode", FILLS)
@settings(max_examples=times(4, 200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=played(), vnodes=st.integers(1, 3), block=st.integers(1, 4),
       partition=st.sampled_from(["table", "tag", "none"]), memory=st.sampled_from([0, 1 << 27]))
def test_at_once_equals_the_filled_batch(
    tmp_path_factory: pytest.TempPathFactory, mode: str, steps: list[Any], vnodes: int, block: int, partition: str,
    memory: int
) -> None:
    """AT_ONCE: the result is the batch answer with the gaps inside of each group filled, and nothing else."""
    kit = make(tmp_path_factory, partition, "at_once", FILLS[mode], vnodes, memory, block)
    try:
        play(kit, steps)
        kit.run()
        _, key, oracle_key = PARTITIONS[partition]
        want = filled(batch(kit, oracle_key), mode.removesuffix("_f"))
        assert_rows(stream(kit, key), want)
    finally:
        kit.close()


@pytest.mark.parametrize("mode", ["null", "prev", "linear"])
@settings(max_examples=times(4, 200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=played(), vnodes=st.integers(1, 3), memory=st.sampled_from([0, 1 << 27]))
def test_window_close_fills_between_closed_windows(
    tmp_path_factory: pytest.TempPathFactory, mode: str, steps: list[Any], vnodes: int, memory: int
) -> None:
    """WINDOW_CLOSE: filled are the gaps between closed windows; open windows are not seen."""
    kit = make(tmp_path_factory, "table", "window_close", FILLS[mode], vnodes, memory)
    try:
        play(kit, steps)
        kit.run()
        newest = newest_per_vnode(kit, steps)
        windows = {
            head: {start: values for start, values in group.items() if start + WIDTH <= newest[table_vnode(kit, head)]}
            for head, group in batch(kit, "tbname,").items()}
        assert_rows(stream(kit, "tn"), filled(windows, mode))
    finally:
        kit.close()


@settings(max_examples=times(4, 200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=played(st.tuples(st.just("wait"), st.integers(1, 8))),
       vnodes=st.integers(1, 3), mode=st.sampled_from(["value", "prev", "next", "linear"]),
       memory=st.sampled_from([0, 1 << 27]))
def test_max_delay_fills_all_windows_in_the_end(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], vnodes: int, mode: str, memory: int
) -> None:
    """MAX_DELAY: the delay after the last change, the result is the filled batch answer, open windows included."""
    kit = make(tmp_path_factory, "tag", "max_delay 5s", FILLS[mode], vnodes, memory)
    try:
        play(kit, steps)
        kit.run()
        kit.pass_time(5)
        assert_rows(stream(kit, "site"), filled(batch(kit, "site,"), mode))
    finally:
        kit.close()


@settings(max_examples=times(4, 200), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=played(st.tuples(st.just("wait"), st.integers(1, 900))),
       vnodes=st.integers(1, 3), mode=st.sampled_from(["none", "value", "prev", "linear"]),
       memory=st.sampled_from([0, 1 << 27]))
def test_continuous_window_close_is_right_after_the_recalculation(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], vnodes: int, mode: str, memory: int
) -> None:
    """CONTINUOUS_WINDOW_CLOSE: a recalculation after the last change, closed windows are the filled batch answer."""
    sql = ("create stream s trigger continuous_window_close recalculate 10m into o tags(tn varchar(20)) as "
           f"select {COLUMNS}, tn from meters partition by tbname tn interval(10s) fill({FILLS.get(mode, mode)})")
    kit = StreamKit(tmp_path_factory.mktemp("stream"), sql, vnodes=vnodes,
                    settings=unhurried(state_memory_bytes=memory))
    try:
        play(kit, steps)
        kit.run()
        kit.pass_time(600)
        newest = newest_per_vnode(kit, steps)
        windows = {
            head: {start: values for start, values in group.items() if start + WIDTH <= newest[table_vnode(kit, head)]}
            for head, group in batch(kit, "tbname,").items()}
        want = filled(windows, mode)
        if mode == "none":
            want = {(head, start): values for head, group in windows.items() for start, values in group.items()}
        assert_rows(stream(kit, "tn"), want)
    finally:
        kit.close()


CHANGES: dict[str, tuple[list[tuple[int, int]], list[tuple[int, int]], list[int]]] = {
    # rows first, rows or deletes (from, to) then, the seconds of all windows in the end
    "a window in between": ([(0, 0), (60, 6)], [(30, 3)], [0, 10, 20, 30, 40, 50, 60]),
    "a window in front": ([(30, 0), (50, 6)], [(10, 3)], [10, 20, 30, 40, 50]),
    "a window behind": ([(0, 0), (20, 6)], [(40, 3)], [0, 10, 20, 30, 40]),
    "an update": ([(0, 0), (30, 6), (60, 9)], [(30, 3)], [0, 10, 20, 30, 40, 50, 60]),
    "the middle is gone": ([(0, 0), (30, 6), (60, 9)], [(-30, -30)], [0, 10, 20, 30, 40, 50, 60]),
    "the last is gone": ([(0, 0), (30, 6), (60, 9)], [(-60, -60)], [0, 10, 20, 30]),
    "the first is gone": ([(1, 0), (30, 6), (60, 9)], [(-1, -1)], [30, 40, 50, 60]),
    "two are gone": ([(1, 0), (30, 6), (60, 9)], [(-30, -60)], [0]),
    "all are gone": ([(1, 0), (30, 6), (60, 9)], [(-1, -60)], []),
    "only one is left": ([(1, 0), (30, 6), (60, 9)], [(-1, -1), (-60, -60)], [30]),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("trigger", "mode"), [
    ("at_once", "value"), ("at_once", "prev"), ("at_once", "next"), ("at_once", "linear"), ("max_delay 5s", "prev")])
def test_one_change_rewrites_what_is_around_it(
    tmp_path_factory: pytest.TempPathFactory, trigger: str, mode: str, change: str
) -> None:
    """Each kind of change leaves exactly the rows between the windows that are left, with their values.

    MAX_DELAY (with a watermark that keeps all windows open) takes all changes at once.
    """
    first, then, left = CHANGES[change]
    kit = make(tmp_path_factory, "none", f"{trigger} watermark 1h", FILLS[mode], 1)
    try:
        kit.insert([(0, second * 1000, value, float(value), "x") for second, value in first])
        kit.run()
        kit.pass_time(5)
        for second, value in then:
            if second < 0:
                kit.delete(None, -second * 1000, -value * 1000)
            else:
                kit.insert([(0, second * 1000, value, float(value), "x")])
        kit.run()
        kit.pass_time(5)
        got = stream(kit, None)
        assert [start // 1000 for _, start in sorted(got)] == left
        assert_rows(got, filled(batch(kit, ""), mode))
    finally:
        kit.close()


@pytest.mark.parametrize("last_row_too", [False, True])
def test_a_gap_that_an_attempt_filled_before_it_died_is_emptied(kits: Any, last_row_too: bool) -> None:
    """The next attempt learns first that one window is gone, which is closed, and after the delay of the other."""
    kit = kits("create stream s trigger max_delay 5s into o as select _wstart, count(*) c from meters interval(10s) "
               "fill(prev)")
    kit.insert([(0, 5_000, 1, 1.0, "x"), (0, 45_000, 1, 1.0, "x")])
    kit.run()
    kit.pass_time(5)
    assert len(kit.rows()) == 5
    kit.delete(None, 0, 50_000 if last_row_too else 10_000)
    kit.kill()
    kit.run()
    kit.pass_time(5)
    assert [millis(row["_wstart"]) for row in kit.rows()] == ([] if last_row_too else [40_000])


@pytest.mark.parametrize("mode", ["value", "prev", "next", "linear"])
@pytest.mark.parametrize("second", [0, 40])
def test_a_gap_that_an_attempt_emptied_before_it_died_is_filled(kits: Any, mode: str, second: int) -> None:
    """A window goes and comes back after the checkpoint: the next attempt sees both at once, as a change of it."""
    kit = kits("create stream s trigger at_once ignore expired 0 ignore update 0 into o as select _wstart, _wend e, "
               "count(*) c, sum(voltage) s, avg(current) a, last(note) l from meters where voltage < 10 interval(10s) "
               f"fill({FILLS[mode]})")
    kit.insert([(0, 1_000, 1, 1.0, "x"), (0, 41_000, 1, 1.0, "x")])
    kit.run()
    kit.checkpoint()
    kit.insert([(0, second * 1000 + 1_000, 20, 1.0, "x")])
    kit.run()
    assert [millis(row["_wstart"]) for row in kit.rows()] == [40_000 - second * 1000]
    kit.insert([(0, second * 1000 + 2_000, 2, 2.0, "y")])
    kit.kill()
    kit.run()
    assert [millis(row["_wstart"]) for row in kit.rows()] == [0, 10_000, 20_000, 30_000, 40_000]
    windows = {None: {millis(row["_wstart"]): tuple(row[name] for name in ("c", "s", "a", "l"))
                      for row in kit.rows() if millis(row["_wstart"]) in (0, 40_000)}}
    assert_rows(stream(kit, None), filled(windows, mode))


def test_a_long_gap_is_filled_in_chunks(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A gap of more windows than a chunk has rows is filled block by block, and emptied in the same way."""
    kit = make(tmp_path_factory, "none", "at_once", "prev", 1)
    try:
        kit.insert([(0, 5_000, 3, 1.5, "x"), (0, 500_005_000, 4, 2.5, "y")])
        kit.run()
        assert len(kit.results) == 50_001
        assert len(kit.writes) > 2
        assert all(row["s"] == 3 for (_, start), row in kit.results.items() if start.timestamp() < 500_000)
        kit.delete(None, 500_000_000, 600_000_000)
        kit.run()
        assert [row["s"] for row in kit.rows()] == [3]
    finally:
        kit.close()


def test_sliding_windows_are_filled_on_their_grid(tmp_path_factory: pytest.TempPathFactory) -> None:
    """With SLIDING there is a filled row for every start of a window."""
    kit = StreamKit(tmp_path_factory.mktemp("stream"),
                    "create stream s trigger at_once into o as select _wstart, count(*) c from meters "
                    "interval(10s) sliding(5s) fill(value, 0)")
    try:
        kit.insert([(0, 10_000, 1, 1.0, "x"), (0, 40_000, 1, 1.0, "x")])
        kit.run()
        assert [(round(row["_wstart"].timestamp()), row["c"]) for row in kit.rows()] == [
            (5, 1), (10, 1), (15, 0), (20, 0), (25, 0), (30, 0), (35, 1), (40, 1)]
    finally:
        kit.close()


@pytest.mark.parametrize("fill", ["value", "value, 1, 2", "near"])
def test_wrong_fills_are_refused(tmp_path_factory: pytest.TempPathFactory, fill: str) -> None:
    """VALUE needs one value per column with a function; NEAR is for INTERP."""
    with pytest.raises(PenstockError):
        StreamKit(tmp_path_factory.mktemp("stream"),
                  f"create stream s trigger at_once into o as select _wstart, count(*) c from meters interval(10s) "
                  f"fill({fill})")


@settings(max_examples=times(4, 200), deadline=None)
@given(steps=st.lists(st.tuples(st.sampled_from(["add", "remove", "save", "restore"]), st.integers(0, 2),
                                st.integers(-30, 30)), max_size=60), small=st.booleans())
def test_the_index_is_a_sorted_set_per_group(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], small: bool
) -> None:
    """Neighbours are those of a plain sorted set, whatever is in memory, in deltas or in the base."""
    store = StateStore(tmp_path_factory.mktemp("index"), 1 << 24)
    try:
        index = ResultIndex(store, 3 if small else 1000)
        model: set[tuple[int, int]] = set()
        saved, checkpoint = set(model), 0
        for action, gid, start in steps:
            match action:
                case "add":
                    assert index.add(gid, start) == ((gid, start) not in model)
                    model.add((gid, start))
                case "remove":
                    index.remove(gid, start)
                    model.discard((gid, start))
                case "save":
                    checkpoint += 1
                    index.save()
                    store.checkpoint(checkpoint, {})
                    store.committed(checkpoint)
                    saved = set(model)
                case "restore" if checkpoint:
                    store.restore(checkpoint)
                    index, model = ResultIndex(store, 3 if small else 1000), set(saved)
            mine = [other for group, other in model if group == gid]
            assert index.before(gid, start) == max((other for other in mine if other < start), default=None)
            assert index.after(gid, start) == min((other for other in mine if other > start), default=None)
    finally:
        store.close()


@pytest.mark.parametrize(("interval", "zone", "want"), [
    (Duration(10, "s"), "UTC", [10_000, 20_000]),
    (Duration(1, "d"), "Europe/Berlin", None),
    (Duration(1, "n"), "UTC", None),
])
def test_starts_between_lie_on_the_grid(interval: Duration, zone: str, want: list[int] | None) -> None:
    """The starts between two windows are exactly the windows that follow on each other."""
    from penstock.planner.duckdb_sql.interval_windows import window_bounds

    window = IntervalWindow(interval)
    grid = grid_of(window, "ms", zone)
    if want is not None:
        assert list(starts_between(0, 30_000, grid)) == want
        return
    first = window_bounds(1_700_000_000_000, window, "ms", zone)[0][0]
    chain, at = [], first
    for _ in range(400 if interval.unit == "d" else 30):
        at = window_bounds(at, window, "ms", zone)[0][1]
        chain.append(at)
    assert list(starts_between(first, chain[-1], grid)) == chain[:-1]


@pytest.mark.parametrize("at", [False, True])
def test_a_gap_is_not_filled_over_windows_that_come_with_it(
    tmp_path_factory: pytest.TempPathFactory, at: bool
) -> None:
    """Where windows are emitted one by one, the later ones lie in the gap behind the first: they stay."""
    rows = [(0, 0), (2, 2 * WIDTH)], [(0, 0), (2, 0), (2, WIDTH)]
    first, second = ([(*key, None, None, None) for key in keys] for keys in rows)
    steps = [("insert", first), ("run", None), ("delete", (None, 0, 0)), ("checkpoint", at), ("insert", second),
             ("wait", 5)]
    kit = make(tmp_path_factory, "tag", "max_delay 5s", FILLS["value"], 3, 0)
    try:
        play(kit, steps)
        kit.run()
        kit.pass_time(5)
        assert_rows(stream(kit, "site"), filled(batch(kit, "site,"), "value"))
    finally:
        kit.close()


@pytest.mark.parametrize("mode", ["prev", "next", "linear", "null", "value"])
@pytest.mark.parametrize("change", ["a value", "a NULL", "a delete"])
def test_values_reach_over_windows_of_nulls(tmp_path_factory: pytest.TempPathFactory, mode: str, change: str) -> None:
    """A run of NULLs and the gaps in it follow what is beside them, after a restart too; each column for itself."""
    kit = make(tmp_path_factory, "none", "at_once", FILLS[mode], 1, 0)
    nulls = [(0, n * 2 * WIDTH, None, 1.0 if n == 3 else None, None) for n in range(2, 6)]
    try:
        kit.insert([(0, 0, 5, 5.0, "x"), (0, 2 * WIDTH, 6, 6.0, "y"), *nulls, (0, 12 * WIDTH, 8, 8.0, "z")])
        kit.run()
        kit.checkpoint()
        for at in (2 * WIDTH, 12 * WIDTH):
            if change == "a delete":
                kit.delete(None, at, at)
            else:
                kit.insert([(0, at, *((7, 7.0, "w") if change == "a value" else (None, None, None)))])
            kit.run()
            assert_rows(stream(kit, None), filled(batch(kit, ""), mode))
            kit.kill()
    finally:
        kit.close()
