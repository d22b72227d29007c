"""Aggregates at the ends of their types' ranges: streams have what queries have, in any order; no value stops one."""

from __future__ import annotations

import math
from typing import Any

import pytest
from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.engines.sandboxes import T0, TestBed

COLUMNS = {"b": "BIGINT", "u": "BIGINT UNSIGNED", "i": "INT", "s": "TINYINT", "x": "DOUBLE", "f": "FLOAT"}
#: Doubles near the end have one sign: whether a sum gets back into its range must not depend on the order of rows.
ENDS: dict[str, tuple[Any, ...]] = {
    "b": (2**63 - 1, -(2**63 - 1), 2**62, -(2**62), 1, 0, -1, 1_746_000_000_000, None),
    "u": (2**64 - 1, 2**63, 1, 0, None), "i": (2**31 - 1, -(2**31 - 1), 0, 7, None), "s": (127, -127, 0, None),
    "x": (1.7e308, 1e308, 5e-324, -0.0, 0.5, -3.25, 1e15, None), "f": (3.4e38, 1e-45, -0.0, 1.5, None)}
CALLS = ("count(*)", *(f"{call}({name})" for name in COLUMNS for call in (
    "count", "sum", "avg", "min", "max", "spread", "stddev", "var_pop", "first", "last", "hyperloglog")),
    "apercentile(x, 50)", "apercentile(b, 90)", "sum(x * 10)", "avg(x * x)", "sum(b) + 1", "max(x) - min(x)",
    "sum(b * 2)", "avg(abs(b))")
#: By which sums of large DOUBLEs of both signs differ with the order of rows.
SCALES = {"sum(b * 2)": 1e6}
ROW = st.tuples(st.integers(0, 3), st.integers(0, 39), *(st.sampled_from(ENDS[name]) for name in COLUMNS))
STEP = st.one_of(st.tuples(st.just("insert"), st.lists(ROW, min_size=1, max_size=6)),
                 st.tuples(st.sampled_from(["checkpoint", "kill"]), st.none()))


def exact_sum(values: list[int], low: int, high: int) -> int | None:
    """Returns what a sum of integers is to be: NULL beyond the range of its type."""
    return sum(values) if values and low <= sum(values) <= high else None


def is_near(one: Any, other: Any, scale: float) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=scale)
    return one is None and other is None if one is None or other is None else bool(one == other)


@settings(max_examples=times(2, 400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(vgroups=st.integers(1, 2), by=st.sampled_from(["tbname", "g"]),
       steps=st.lists(STEP, min_size=1, max_size=6))
def test_streams_equal_queries(vgroups: int, by: str, steps: list[Any]) -> None:
    """Whatever rows come, late and rewritten ones too; sums of integers are exact or NULL, and nothing is infinite."""
    shown = ", ".join(f"{call} c{n}" for n, call in enumerate(CALLS))
    with TestBed() as bed:
        bed.all(f"CREATE DATABASE d VGROUPS {vgroups} KEEP 36500", "USE d",
                f"CREATE STABLE m (ts TIMESTAMP, {', '.join(map(' '.join, COLUMNS.items()))}) TAGS (g INT)",
                *(f"CREATE TABLE t{n} USING m TAGS ({n % 2})" for n in range(4)),
                f"CREATE STREAM st TRIGGER AT_ONCE IGNORE EXPIRED 0 IGNORE UPDATE 0 INTO o TAGS (k VARCHAR(9)) AS "
                f"SELECT _wstart w, {shown} FROM m PARTITION BY {by} k INTERVAL(10a)")
        written: dict[tuple[int, int], tuple[Any, ...]] = {}
        for kind, rows in steps:
            if kind == "insert":
                for child, ts, *values in rows:
                    written[child, ts] = tuple(values)
                    texts = ", ".join("NULL" if value is None else repr(value) for value in values)
                    bed.execute(f"INSERT INTO t{child} VALUES ({T0 + ts}, {texts})")
            else:
                getattr(bed, kind)()
        names = ", ".join(f"c{n}" for n in range(len(CALLS)))
        found = {row[:2]: row[2:] for row in bed.rows(f"SELECT k, w, {names} FROM o")}
        wanted = {(str(row[0]), row[1]): row[2:] for row in
                  bed.rows(f"SELECT {by} k, _wstart w, {shown} FROM m PARTITION BY {by} INTERVAL(10a)")}
        assert found.keys() == wanted.keys()
        for key, values in wanted.items():
            for call, got, want in zip(CALLS, found[key], values, strict=True):
                assert is_near(got, want, SCALES.get(call, 1e-3 if "stddev" in call or "var" in call else 0.0)), (
                    key, call, got, want)
                assert not isinstance(want, float) or math.isfinite(want), (key, call, want)
        for name, low, high in (("b", -(2**63), 2**63 - 1), ("u", 0, 2**64 - 1)):
            place = list(COLUMNS).index(name)
            for (group, start), values in wanted.items():
                own = [row[place] for (child, ts), row in written.items() if ts // 10 * 10 == start and (
                    group == f"t{child}" if by == "tbname" else group == str(child % 2)) and row[place] is not None]
                assert values[CALLS.index(f"sum({name})")] == exact_sum(own, low, high)
                for means in (values, found[group, start]):
                    assert is_near(means[CALLS.index(f"avg({name})")], sum(own) / len(own) if own else None, 0.0)


def test_a_sum_beyond_its_range_stops_nobody_and_comes_back() -> None:
    """One device's values leave 64 bits: its sum is NULL, others go on; rewritten, it is right again, late as well."""
    largest = 2**63 - 1
    with TestBed() as bed:
        bed.all("CREATE DATABASE d VGROUPS 1 KEEP 36500", "USE d",
                "CREATE STABLE m (ts TIMESTAMP, v BIGINT) TAGS (g INT)",
                "CREATE STREAM st TRIGGER AT_ONCE IGNORE EXPIRED 0 INTO o TAGS (g INT) AS "
                "SELECT _wstart w, sum(v) s FROM m PARTITION BY g INTERVAL(10s)",
                f"INSERT INTO a USING m TAGS (1) VALUES ({T0}, {largest})",
                f"INSERT INTO a VALUES ({T0 + 1}, {largest})",
                f"INSERT INTO b USING m TAGS (2) VALUES ({T0}, 3)")
        assert sorted(bed.rows("SELECT g, s FROM o")) == [(1, None), (2, 3)]
        bed.execute(f"INSERT INTO a VALUES ({T0 + 2}, {-largest})")
        assert sorted(bed.rows("SELECT g, s FROM o")) == [(1, largest), (2, 3)]
        bed.checkpoint()
        bed.kill()
        bed.execute(f"INSERT INTO a VALUES ({T0}, 5)")
        assert sorted(bed.rows("SELECT g, s FROM o")) == [(1, 5), (2, 3)]


@pytest.mark.parametrize(("column", "before", "after", "between"), [
    ("BIGINT", 2**63 - 1, 2**63 - 3, None), ("BIGINT UNSIGNED", 2**64 - 1, 1, 2**63),
    ("DOUBLE", 1.7e308, -1.7e308, None), ("FLOAT", 3e38, 1e38, 2e38), ("DECIMAL(38, 0)", 10**38 - 1, 10**38 - 1, None)])
def test_lines_between_ends_stop_nobody(column: str, before: float, after: float, between: float | None) -> None:
    """What DOUBLE rounds beyond the type, or has no finite difference, has nothing between; queries say the same."""
    query = "SELECT _wstart w, last(v) v FROM m INTERVAL(1s)"
    with TestBed() as bed:
        bed.all("CREATE DATABASE d VGROUPS 1 KEEP 36500", "USE d", f"CREATE TABLE m (ts TIMESTAMP, v {column})",
                f"CREATE STREAM st TRIGGER AT_ONCE INTO o AS {query} FILL(LINEAR)",
                f"INSERT INTO m VALUES ({T0}, {before})", f"INSERT INTO m VALUES ({T0 + 2000}, {after})")
        found = bed.rows("SELECT w, v FROM o ORDER BY w")
        assert found == bed.rows(query.replace(" INTERVAL", f" WHERE ts >= {T0} AND ts <= {T0 + 2000} INTERVAL")
                                 + " FILL(LINEAR)")
        assert is_near(found[1][1], between, 1e32 if column == "FLOAT" else 0.0)
