"""What queries may not ask for: each mistake is refused with its code, the place, and a hint where one helps."""

from __future__ import annotations

import pytest
from kits.basics.query_harness import Harness

from penstock.common.errors import InvalidStatementError, NotFoundError, PenstockError
from penstock.planner.bind import binder
from penstock.sql.types import DOUBLE, INT, DataType, Kind


@pytest.fixture(scope="module")
def db() -> Harness:
    """A super table with a child, a normal table."""
    harness = Harness()
    harness.create("st", {"a": INT, "b": DOUBLE, "s": DataType(Kind.VARCHAR, 8)}, {"t": INT})
    harness.child("c1", "st", 1)
    harness.create("n", {"speed": INT})
    harness.create("wind", {"w": INT})
    return harness


@pytest.mark.parametrize(("query", "code", "text"), [
    ("select speeed from n", 0x2602, "speeed"),
    ("select x.speed from n", 0x2603, "x.speed"),
    ("select speed from m", 0x2603, "m"),
    ("select speed from nosuch.n", 0x0388, "nosuch.n"),
    ("select ts from n a, n b where a.ts = b.ts", 0x2604, "ts"),
    ("select speed, sum(speed) from n", 0x260C, "speed"),
    ("select speed + 1, sum(speed) from n", 0x260C, "speed"),
    ("select first(a), last(a), ts from c1", 0x260C, "ts"),
    ("select a, sum(a) from c1 group by b", 0x260C, "a"),
    ("select tbname, sum(a) from st", 0x260C, "tbname"),
    ("select sum(sum(a)) from c1", 0x2627, "sum(a)"),
    ("select a from c1 where sum(a) > 1", 0x2608, "sum(a)"),
    ("select speed from n having speed > 1", 0x260A, "speed > 1"),
    ("select speed from n order by 2", 0x2609, "2"),
    ("select distinct speed from n order by ts", 0x260B, "ts"),
    ("select speed from n slimit 1", 0x2638, None),
    ("select count(*) from n interval(1s) group by speed", 0x2624, None),
    ("select count(*) from n interval(10s, 11s)", 0x262F, None),
    ("select count(*) from n interval(1s) sliding(2s)", 0x2631, None),
    ("select count(*) from n interval(1n) sliding(1n)", 0x2630, None),
    ("select count(*) from n interval(1000s) sliding(1s)", 0x2632, None),
    ("select count(*) from n session(speed, 1s)", 0x262C, "speed"),
    ("select count(*) from n session(ts, 1n)", 0x262B, None),
    ("select count(*) from c1 state_window(b)", 0x2628, "b"),
    ("select count(*) from st state_window(t)", 0x2629, "t"),
    ("select count(*) from (select speed from n) interval(1s)", 0x2650, None),
    ("select diff(speed) from (select speed from n)", 0x2650, "diff(speed)"),
    ("select last(speed) from (select speed from n)", 0x2650, "last(speed)"),
    ("select diff(speed), count(*) from n", 0x2654, "count(*)"),
    ("select diff(speed), csum(speed) from n", 0x2654, "csum(speed)"),
    ("select top(speed, 1), bottom(speed, 1) from n", 0x2654, "bottom(speed, 1)"),
    ("select diff(speed) from n interval(1s)", 0x2654, "diff(speed)"),
    ("select last_row(speed) from n interval(1s)", 0x2654, "last_row(speed)"),
    ("select percentile(a, 5) from st", 0x2654, "percentile(a, 5)"),
    ("select interp(speed) from n range(1, 2) every(1a)", 0x2654, None),
    ("select count(*) from n interval(1s) fill(prev)", 0x263B, None),
    ("select count(*) from n where ts > 0 and ts < 100000000000000 interval(1s) fill(prev)", 0x263B, None),
    ("select speed from n union all select speed, 1 from n", 0x2634, None),
    ("select speed from n union all select 1 order by nosuch", 0x2602, "nosuch"),
    ("select top(speed, 101) from n", 0x2803, "top(speed, 101)"),
])
def test_error(db: Harness, query: str, code: int, text: str | None) -> None:
    """The mistake has TDengine's code, and the place where it is."""
    with pytest.raises(PenstockError) as caught:
        db.plan(query)
    assert caught.value.code == code, caught.value
    assert (caught.value.position.text if caught.value.position else None) == text


@pytest.mark.parametrize("query", [
    "select _wstart from n", "select count(*) from n where _wstart > 0 interval(1s)", "select * where 1 = 1",
    "select count(*)", "select sum(k)", "select k + 1", "select _wstart, speed from n interval(1s)",
    "select _wstart from n interval(1s)", "select count(*) from n count_window(1)",
    "select count(*) from n count_window(2, 3)", "select interp(speed), ts from n range(1) fill(prev)",
    "select count(*) from n where ts > 0 and ts < 9 interval(1a) fill(value, 1, 2)",
    "select sum(*) from n", "select tags speed from n",
    "select count(*) from n event_window start with speed > 1 end with sum(speed) > 3",
])
def test_refused(db: Harness, query: str) -> None:
    """These are mistakes too."""
    with pytest.raises((InvalidStatementError, NotFoundError)):
        db.plan(query)


@pytest.mark.parametrize(("query", "hint"), [
    ("select speeed from n", "speed"), ("select speed from n where seped > 1", "speed"), ("select w from wnid", "wind"),
    ("select sum(speed) from (select speed from n) x where x.sped > 1", "speed"),
])
def test_did_you_mean(db: Harness, query: str, hint: str) -> None:
    """An unknown name brings the most similar known one as a hint."""
    with pytest.raises(NotFoundError) as caught:
        db.plan(query)
    assert caught.value.hint == f"did you mean {hint}?"


def test_a_misspelt_database_is_known_again() -> None:
    """In queries as in USE."""
    harness = Harness()
    harness.database_name = "power"
    with pytest.raises(NotFoundError, match=r"database pwoer does not exist .* \(did you mean power\?\)"):
        harness.plan("select * from pwoer.n")


def test_names_that_are_only_tried_are_not_compared_with_known_ones(
    db: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That would take a third of the time that a join of many tables is planned in."""
    compared: list[str] = []
    monkeypatch.setattr(binder, "did_you_mean", lambda name, known: compared.append(name))
    db.plan("select a.speed from n a, n b, (select speed as k from n) where a.ts = b.ts and k = a.speed and exists "
            "(select * from st where st.a = k and b = a.speed)")
    assert not compared


def test_no_database_in_use() -> None:
    """Without a database in use, a bare table name is refused."""
    harness = Harness()
    harness.database_name = ""
    with pytest.raises(PenstockError):
        harness.plan("select * from n")
