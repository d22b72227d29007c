"""Composite primary keys: of sources and of targets, for streams with and without windows."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.engines.sandboxes import T0, TestBed

from penstock.common.errors import InvalidStatementError, InvalidStreamError

CREATE = "CREATE STREAM s TRIGGER AT_ONCE IGNORE EXPIRED 0 IGNORE UPDATE 0 "


def make(*streams: str) -> TestBed:
    bed = TestBed()
    bed.all("CREATE DATABASE d VGROUPS 2", "USE d",
            "CREATE STABLE ovens (ts timestamp, k int PRIMARY KEY, v int) TAGS (g int)",
            "CREATE TABLE o0 USING ovens TAGS (0)", "CREATE TABLE o1 USING ovens TAGS (1)", *streams)
    return bed


STEP = st.one_of(
    st.tuples(st.just("insert"), st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 3), st.integers(0, 2), st.integers(-3, 3)),
        min_size=1, max_size=4)),
    st.tuples(st.just("delete"), st.tuples(st.integers(0, 1), st.integers(0, 3), st.integers(0, 2))),
    st.tuples(st.just("kill"), st.none()),
)


def play(bed: TestBed, steps: list[tuple[str, Any]]) -> None:
    for kind, what in steps:
        match kind:
            case "insert":
                bed.execute("INSERT INTO " + " ".join(
                    f"o{table} VALUES ({T0 + ts}, {key}, {value})" for table, ts, key, value in what))
            case "delete":
                table, first, length = what
                bed.execute(f"DELETE FROM o{table} WHERE ts >= {T0 + first} AND ts <= {T0 + first + length}")
            case "kill":
                bed.kill()


@settings(max_examples=times(2, 100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(STEP, min_size=1, max_size=6))
def test_rows_of_one_time_are_told_apart_by_their_key(steps: list[Any]) -> None:
    """Without a window, a row that is rewritten, filtered out or deleted takes no other row of its time along."""
    query = "SELECT ts, k, v FROM ovens WHERE v > 0 PARTITION BY tbname"
    with make(CREATE + f"INTO out SUBTABLE(tbname) AS {query}") as bed:
        play(bed, steps)
        want = bed.rows("SELECT tbname, ts, k, v FROM ovens WHERE v > 0")
        got = bed.rows("SELECT tbname, ts, k, v FROM out")
        assert sorted((name.split("_")[0], *rest) for name, *rest in got) == sorted(want)


@settings(max_examples=times(2, 100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(STEP, min_size=1, max_size=6))
def test_windows_over_rows_with_keys(steps: list[Any]) -> None:
    """first and last of rows with the same time go by the key; a window is one row, whatever its key in the target."""
    columns = "count(*), first(v), last(v), sum(v)"
    with make("CREATE STABLE out (ts timestamp, n int PRIMARY KEY, f int, l int, s bigint) TAGS (g int)",
              CREATE + f"INTO out TAGS (g) AS SELECT _wstart, {columns} FROM ovens PARTITION BY g INTERVAL(2a)") as bed:
        play(bed, steps)
        assert sorted(bed.rows("SELECT g, ts, n, f, l, s FROM out")) == sorted(
            bed.rows(f"SELECT g, _wstart, {columns} FROM ovens PARTITION BY g INTERVAL(2a)"))


@pytest.mark.parametrize(("text", "kind"), [
    ("INTO x AS SELECT ts, v FROM ovens PARTITION BY tbname", InvalidStreamError),
    ("INTO x AS SELECT ts, v, k FROM ovens PARTITION BY tbname", InvalidStreamError),
    ("INTO plain TAGS (g) AS SELECT ts, k FROM ovens PARTITION BY tbname, g", InvalidStreamError),
    ("INTO x (ts, a PRIMARY KEY, b PRIMARY KEY) AS SELECT ts, k, v FROM ovens PARTITION BY tbname",
     InvalidStatementError),
    ("INTO x (ts, a, b PRIMARY KEY) AS SELECT _wstart, count(*), sum(v) FROM ovens INTERVAL(1s)",
     InvalidStatementError),
    ("INTO x (ts, a PRIMARY KEY) AS SELECT _wstart, avg(v) FROM ovens INTERVAL(1s)", InvalidStatementError),
    ("INTO keyed (ts, s) AS SELECT _wstart, sum(v) FROM ovens INTERVAL(1s)", InvalidStatementError),
])
def test_what_keys_must_be(text: str, kind: type[Exception]) -> None:
    """The key of the source is the second column; a target's key is its second column, an integer or VARCHAR."""
    with make("CREATE STABLE plain (ts timestamp, a int) TAGS (g int)",
              "CREATE STABLE keyed (ts timestamp, n int PRIMARY KEY, s bigint) TAGS (g bigint unsigned)") as bed, \
            pytest.raises(kind):
        bed.execute(CREATE + text)
