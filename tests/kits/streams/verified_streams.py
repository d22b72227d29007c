"""Streams that are verified and audited: of all kinds, what is done to their sources, and faults that are planted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from kits.engines.sandboxes import T0, TestBed

from penstock.tasks.compute.dense_aggregation import DenseAggregation
from penstock.tasks.sink.sink_task import SinkTask
from penstock.tasks.source.change_emitter import ChangeEmitter
from penstock.tasks.window.window_table import WindowTable

Line = tuple[Any, ...]
BATCH = "TRIGGER AT_ONCE IGNORE EXPIRED 0 IGNORE UPDATE 0"
#: Streams of all kinds: their options, and their query.
STREAMS = [
    (BATCH, "SELECT ts, v + 1 w, f FROM m WHERE v >= 0 PARTITION BY tbname"),
    (BATCH, "SELECT _wstart, count(*) n, sum(v) s, avg(f) a, last(v) l FROM m PARTITION BY tbname INTERVAL(10s)"),
    (BATCH, "SELECT _wstart, _wend e, g k, stddev(f) d, first(v) l FROM m PARTITION BY g INTERVAL(10s) SLIDING(3s)"),
    ("WATERMARK 4s IGNORE EXPIRED 0", "SELECT _wstart, count(*) n, max(f) x FROM m PARTITION BY v INTERVAL(7s, 2s)"),
    ("WATERMARK 4s IGNORE EXPIRED 0", "SELECT _wstart, _wend e, count(*) n, spread(v) s FROM m SESSION(ts, 2s)"),
    ("TRIGGER MAX_DELAY 5s IGNORE EXPIRED 0", "SELECT _wstart, count(v) n FROM m INTERVAL(5s)"),
    (BATCH, "SELECT _wstart, v k, count(*) n FROM m PARTITION BY tbname, g STATE_WINDOW(v)"),
    (BATCH, "SELECT _wstart, count(*) n FROM m PARTITION BY tbname EVENT_WINDOW START WITH v > 1 END WITH v < 0"),
    (BATCH, "SELECT ts, coalesce(v, f) c, gcd(v, 6) d, date_trunc('minute', ts) t, split_part(tbname, 't', 2) p FROM m "
            "PARTITION BY tbname"),
    (BATCH, "SELECT _wstart, count(*) n, var_samp(v) s, max(if(v > 0, levenshtein(tbname, 'x'), NULL)) l FROM m "
            "INTERVAL(10s)"),
    (BATCH, "SELECT ts, (ts + interval '1' month)::date::varchar(20) d, list_sum([v, 2])::double s, {'a': v}['a'] a, "
            "v // 2 h FROM m WHERE ts >= date '1970-01-01' AND (v, 1) <> (2, 1) PARTITION BY tbname"),
    (BATCH, "SELECT _wstart, count(ts::date) n, sum(extract(second FROM ts)) s, max([v, 1][1]) m FROM m INTERVAL(10s)"),
]
ROW = st.tuples(st.integers(0, 3), st.integers(0, 60), st.sampled_from([None, -2, 0, 1, 2, 3]),
                st.sampled_from([None, 0.1, -1.5, 1e15]))
STEPS = st.lists(st.one_of(
    st.tuples(st.just("insert"), st.lists(ROW, min_size=1, max_size=8)),
    st.tuples(st.just("insert"), st.lists(ROW, min_size=1, max_size=8)),
    st.tuples(st.just("delete"), st.tuples(st.integers(0, 3), st.integers(0, 60))),
    st.tuples(st.just("retag"), st.tuples(st.integers(0, 3), st.integers(0, 2))),
    st.tuples(st.sampled_from(["checkpoint", "kill", "flush", "wait"]), st.none())), min_size=1, max_size=8)


def made(*streams: tuple[str, str], **options: Any) -> TestBed:
    bed = TestBed(config={"stateMapSize": "1GiB"}, **options)
    bed.all("CREATE DATABASE d VGROUPS 2 KEEP 36500", "USE d",
            "CREATE STABLE m (ts TIMESTAMP, v INT, f DOUBLE) TAGS (g INT)",
            *(f"CREATE TABLE t{n} USING m TAGS ({n % 2})" for n in range(4)),
            *(f"CREATE STREAM s{n} {options} INTO o{n} AS {query}" for n, (options, query) in enumerate(streams)))
    return bed


def insert(bed: TestBed, table: int, second: float, value: Any = 1, real: Any = 1.0) -> None:
    texts = ", ".join("NULL" if each is None else repr(each) for each in (value, real))
    bed.execute(f"INSERT INTO t{table} (ts, v, f) VALUES ({T0 + round(second * 1000)}, {texts})")


def play(bed: TestBed, kind: str, what: Any) -> None:
    match kind:
        case "insert":
            for row in what:
                insert(bed, *row)
        case "delete":
            bed.execute(f"DELETE FROM t{what[0]} WHERE ts >= {T0 + what[1] * 1000} AND ts < {T0 + what[1] * 1200}")
        case "retag":
            bed.execute(f"ALTER TABLE t{what[0]} SET TAG g = {what[1]}")
        case "flush":
            bed.execute("FLUSH DATABASE d")
        case "wait":
            bed.advance(6)
        case _:
            getattr(bed, kind)()


def verified(bed: TestBed, name: str = "s0", more: str = "") -> list[Line]:
    """Returns what is told of results that aren't equal: state, time, both sides' values, what is known."""
    *lines, last = bed.rows(f"VERIFY STREAM {name} {more}")
    assert last[0] == "verified"
    assert f", {len(lines)} aren't" in last[3]
    return [(state, ts, found, wanted, known) for state, _, ts, found, wanted, known in lines]


def told(rows: list[tuple[Any, ...]]) -> list[str]:
    """Rows as texts, in one order.

    Of 0.0 and -0.0, which are one group, either may stand for it; the last digits of a sum depend on the order of rows.
    """
    return sorted(repr([float(f"{value + 0.0:.12g}") if isinstance(value, float) else value for value in row])
                  for row in rows)


# --- faults -----------------------------------------------------------------------------------------------------

Plant = Callable[[pytest.MonkeyPatch], None]


def once(patch: pytest.MonkeyPatch, owner: type, name: str, fault: Callable[..., Any]) -> None:
    """Has one call of a method do what `fault` does: it is given the method, and what that was given."""
    method, calls = getattr(owner, name), iter([True])
    patch.setattr(owner, name, lambda self, *given, **named: fault(method, self, *given, **named) if next(
        calls, False) else method(self, *given, **named))


def a_source_skips_a_record(patch: pytest.MonkeyPatch) -> None:
    once(patch, ChangeEmitter, "emit", lambda *given, **named: None)


def a_window_forgets_what_was_kept(patch: pytest.MonkeyPatch) -> None:
    restore = WindowTable.restore
    patch.setattr(WindowTable, "restore", lambda self, meta, closed: restore(
        self, {**meta, "newest_stored": None}, closed))


def a_sink_drops_a_write(patch: pytest.MonkeyPatch) -> None:
    once(patch, SinkTask, "_add", lambda *given, **named: None)


def a_kernel_adds_otherwise(patch: pytest.MonkeyPatch) -> None:
    summed = DenseAggregation._sum
    patch.setattr(DenseAggregation, "_sum", lambda self, values, codes: summed(self, np.minimum(values, 3), codes))


FAULTS: list[Plant] = [
    a_source_skips_a_record, a_window_forgets_what_was_kept, a_sink_drops_a_write, a_kernel_adds_otherwise]


def meet_fault(bed: TestBed, plant: Plant) -> None:
    """Has stream s0 meet a fault when a row of its first window comes late, behind a restart."""
    bed.loses_rows = True
    with pytest.MonkeyPatch.context() as patch:
        insert(bed, 0, 1, 5)
        bed.checkpoint()
        plant(patch)
        bed.kill()
        insert(bed, 0, 2, 6)
    insert(bed, 0, 12, 7)
