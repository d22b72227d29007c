"""Streams of any query that have tables in common: their results are those of one cut, and are seen all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from kits.engines.sandboxes import T0, TestBed

from penstock.mnode.dnode.whole_writes import WholeWrites
from penstock.mnode.streams.refresh_groups import Member, connected
from penstock.mnode.streams.stream_refreshes import StreamRefreshes
from penstock.sql.schema import Table
from penstock.tasks.protocol.refreshing import Refreshed
from penstock.tasks.refresh.refresh_task import RefreshTask

DEBITS = "SELECT source id, sum(amount) total FROM transfers GROUP BY source"
CREDITS = "SELECT goal id, sum(amount) total FROM transfers GROUP BY goal"
BALANCES = ("SELECT a.id, coalesce(c.total, 0) - coalesce(d.total, 0) balance FROM accounts a LEFT JOIN debits d "
            "ON a.id = d.id LEFT JOIN credits c ON a.id = c.id")
#: Each of them is zero at all times; and the levels agree with each other.
ZEROS = ["SELECT coalesce((SELECT sum(total) FROM credits), 0) - coalesce((SELECT sum(total) FROM debits), 0)",
         "SELECT coalesce(sum(balance), 0) FROM balances", "SELECT coalesce(sum(total), 0) FROM overall",
         f"SELECT count(*) FROM (SELECT balance FROM ({BALANCES}) b SEMI JOIN balances USING (id) EXCEPT "
         "SELECT balance FROM balances)"]
MADE = ["CREATE DATABASE d VGROUPS 4 KEEP 36500", "USE d",
        "CREATE STABLE transfers (ts TIMESTAMP, source INT, goal INT, amount BIGINT) TAGS (branch INT)",
        *(f"CREATE TABLE b{n} USING transfers TAGS ({n})" for n in range(4)),
        "CREATE TABLE accounts (id INT PRIMARY KEY)", "INSERT INTO accounts VALUES (0) (1) (2) (3)",
        f"CREATE MATERIALIZED VIEW debits AS {DEBITS}", f"CREATE MATERIALIZED VIEW credits AS {CREDITS}",
        f"CREATE MATERIALIZED VIEW balances (id PRIMARY KEY, balance) AS {BALANCES}",
        "CREATE MATERIALIZED VIEW overall AS SELECT count(*) accounts, sum(balance) total FROM balances"]


@pytest.fixture
def bed() -> Iterator[TestBed]:
    with TestBed(config={"stateMapSize": "1GiB"}) as found:
        found.all(*MADE)
        homes = {found.engine.catalog.table("d", name).vgroup_id  # type: ignore[union-attr]
                 for name in ("debits", "credits", "balances")}
        assert len(homes) > 1  # what is seen at once must not depend on where it is
        yield found


def transfer(number: int, amount: int = 7) -> str:
    """A statement that moves money between two of four accounts, in one of four branches."""
    source, goal = number % 4, (number // 4 + number + 1) % 4
    return f"INSERT INTO b{number % 4} VALUES ({T0 + number}, {source}, {goal}, {amount})"


def value(bed: TestBed, query: str) -> Any:
    """Asks while streams are at work, without letting them."""
    table = bed.engine.execute(query, bed.session).table
    assert table is not None
    return table.column(0)[0].as_py()


def look(bed: TestBed) -> None:
    for query in ZEROS:
        assert value(bed, query) == 0, query


def agree(bed: TestBed) -> None:
    for table, query in (("debits", DEBITS), ("credits", CREDITS), ("balances", BALANCES)):
        assert sorted(bed.rows(f"SELECT * FROM {table}")) == sorted(bed.rows(query))
    look(bed)


def before_each(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, action: Callable[[], None]
) -> list[int]:
    """Has something done before each call of a method; returns how often, with the numbers of calls."""
    called: list[int] = []
    original = getattr(owner, name)

    def method(*arguments: Any) -> Any:
        called.append(len(called))
        action()
        return original(*arguments)

    monkeypatch.setattr(owner, name, method)
    return called


def test_results_are_those_of_one_cut(bed: TestBed, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written while they are computed one after the other is in none of them, and comes with the next round."""
    numbers = iter(range(100, 104))

    def write_and_look() -> None:
        look(bed)
        number = next(numbers, None)
        if number is not None:
            bed.engine.execute(transfer(number), bed.session)

    computed = before_each(monkeypatch, StreamRefreshes, "_wanted", write_and_look)
    written = before_each(monkeypatch, WholeWrites, "_finish", lambda: look(bed))
    for number in range(4):
        bed.execute(transfer(number))
        look(bed)
    assert len(computed) >= 8
    assert written
    monkeypatch.undo()
    assert bed.rows("SELECT sum(total) FROM debits") == [(8 * 7,)]
    agree(bed)


def test_changes_of_any_kind_keep_the_levels_together(bed: TestBed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Late, rewritten and deleted rows, flushes, kills and a start of the engine."""
    before_each(monkeypatch, StreamRefreshes, "_publish", lambda: look(bed))
    for number in range(8):
        bed.execute(transfer(number))
    for statement in (transfer(5, 100), transfer(2, -3), f"DELETE FROM b1 WHERE ts = {T0 + 1}", "FLUSH DATABASE d",
                      transfer(3, 1), "DELETE FROM transfers", transfer(9), "INSERT INTO accounts VALUES (4)",
                      "DELETE FROM accounts WHERE id = 4"):
        bed.execute(statement)
        look(bed)
    bed.checkpoint()
    bed.engine.execute(transfer(11), bed.session)  # is met by tasks that start one after the other
    bed.kill()
    look(bed)
    assert bed.rows("SELECT sum(total) FROM debits") == bed.rows("SELECT sum(amount) FROM transfers")
    bed.execute(transfer(10))
    agree(bed)


def test_each_is_computed_once_for_a_change(bed: TestBed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is told of a change second finds its table as it should be; those whose sources are as they were have
    no part in it."""
    bed.execute(transfer(0))
    computed = before_each(monkeypatch, StreamRefreshes, "_wanted", lambda: None)
    bed.execute(transfer(1))
    assert len(computed) == 4
    bed.execute("INSERT INTO accounts VALUES (11)")
    assert len(computed) == 6
    agree(bed)


def test_nobody_rests_who_has_all_that_came(bed: TestBed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Source tasks may tell of rows that were read already; but what came while an answer was computed must wait."""
    rests: list[float] = []
    done, late = RefreshTask._done, iter([transfer(1)])

    def noted(task: RefreshTask, answer: pa.Table, took: float) -> Refreshed:
        found = done(task, answer, took)
        rests.append(found.rest_s)
        return found

    def take_long() -> None:
        bed.clock.advance(10)
        for statement in late:
            bed.engine.execute(statement, bed.session)

    monkeypatch.setattr(RefreshTask, "_done", noted)
    before_each(monkeypatch, StreamRefreshes, "_wanted", take_long)
    bed.execute(transfer(0))
    assert len(rests) > 1
    assert min(rests) > 0
    bed.advance(1_000)
    assert rests[-4:] == [0] * 4
    agree(bed)


def test_one_that_fails_holds_only_those_that_read_it(bed: TestBed) -> None:
    """They stay as they were, all of one cut, and say whom they wait for; and go on with it."""
    bed.execute("CREATE MATERIALIZED VIEW halves (id PRIMARY KEY, total) AS SELECT CASE WHEN min(amount) = 13 THEN 1 "
                "ELSE goal END, sum(100 // amount) FROM transfers GROUP BY goal")
    bed.execute("CREATE MATERIALIZED VIEW sides AS SELECT (SELECT sum(total) FROM halves) - (SELECT sum(100 // "
                "amount) FROM transfers) none")
    bed.execute(transfer(0))
    bed.execute(transfer(1, 13))
    bed.execute(transfer(2))
    agree(bed)
    assert bed.rows("SELECT none FROM sides") == [(0,)]
    assert bed.rows("SELECT sum(total) FROM halves") == [(100 // 7,)]
    reasons = dict(bed.rows("SELECT stream_name, reason FROM information_schema.ins_stream_tasks WHERE level = 'sink'"))
    assert "have the same id" in reasons["halves"]
    assert "stream halves, whose results it reads" in reasons["sides"]
    bed.execute(transfer(1, 14))
    bed.advance(3600)
    agree(bed)
    assert bed.rows("SELECT none FROM sides") == [(0,)]
    assert bed.rows("SELECT sum(total) FROM halves") == [(2 * (100 // 7) + 100 // 14,)]


def test_a_pause_holds_one_table_and_no_other(bed: TestBed) -> None:
    """Others read it as it stands still; when it goes on, all are together again."""
    bed.execute(transfer(0))
    bed.execute("PAUSE STREAM debits")
    bed.execute(transfer(1))
    assert bed.rows("SELECT sum(total) FROM debits") == [(7,)]
    assert bed.rows("SELECT sum(total) FROM credits") == [(14,)]
    assert bed.rows("SELECT sum(balance) FROM balances") == [(7,)]
    bed.execute("RESUME STREAM debits")
    agree(bed)
    bed.execute("DROP STREAM credits")
    bed.execute(transfer(2))
    assert bed.rows("SELECT sum(balance) FROM balances") == [(-7,)]


def test_a_pause_that_comes_while_results_are_computed(bed: TestBed, monkeypatch: pytest.MonkeyPatch) -> None:
    """They aren't written, nor are those that others have made of them."""
    bed.execute(transfer(0))
    paused: list[bool] = []

    def pause() -> None:
        if not paused:
            paused.append(True)
            bed.engine.execute("PAUSE STREAM debits", bed.session)

    before_each(monkeypatch, StreamRefreshes, "_publish", pause)
    bed.execute(transfer(1))
    assert bed.rows("SELECT sum(total) FROM debits") == [(7,)]
    assert bed.rows("SELECT sum(total) FROM credits") == [(14,)]
    bed.execute("RESUME STREAM debits")
    bed.advance(3600)
    agree(bed)


def test_groups_of_tables_are_computed_as_of_the_same_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of child tables that nobody has told of yet, too: who computes few groups takes all that have changed."""
    with TestBed(config={"stateMapSize": "1GiB"}) as bed:
        bed.all(*MADE[:7],
                "CREATE MATERIALIZED VIEW o1 AS SELECT branch, sum(amount) total FROM transfers GROUP BY branch",
                "CREATE MATERIALIZED VIEW o2 AS SELECT sum(amount) total FROM transfers",
                "CREATE MATERIALIZED VIEW o3 AS SELECT tbname, max(amount) most FROM transfers GROUP BY tbname")
        numbers = iter(range(1, 40))

        def write() -> None:
            number = next(numbers, None)
            if number is not None:
                bed.engine.execute(transfer(number), bed.session)

        computed = before_each(monkeypatch, StreamRefreshes, "_wanted", write)
        totals: list[tuple[Any, Any]] = []
        original = StreamRefreshes._publish

        def publish(*arguments: Any) -> None:
            original(*arguments)
            totals.append((value(bed, "SELECT sum(total) FROM o1"), value(bed, "SELECT sum(total) FROM o2")))

        monkeypatch.setattr(StreamRefreshes, "_publish", publish)
        bed.execute(transfer(0))
        assert len(totals) > 5
        assert len(computed) > 5
        assert all(by_branch == whole for by_branch, whole in totals), totals
        bed.execute("DELETE FROM b2")
        assert bed.rows("SELECT sum(total) FROM o1") == bed.rows("SELECT total FROM o2")
        assert sorted(bed.rows("SELECT * FROM o3")) == [("b0", 7), ("b1", 7), ("b3", 7)]


def test_streams_are_ordered_by_what_they_read() -> None:
    """Only those that are connected, each behind its sources."""
    def member(number: int, target: int, *sources: int) -> Member:
        stream: Any = SimpleNamespace(id=number)
        plan: Any = SimpleNamespace(sources=[SimpleNamespace(storage_uid=uid) for uid in sources])
        return Member(stream, Table(target, "d", f"t{target}", "normal", (), ()), plan, 1)

    first, second, third = member(3, 30, 10), member(2, 20, 30, 11), member(1, 40, 20)
    apart, beside = member(4, 50, 12), member(5, 60, 11)
    everyone = [first, second, third, apart, beside]
    for one in (first, second, third, beside):
        found = connected(one, [other for other in everyone if other is not one])
        assert {other.stream.id for other in found} == {1, 2, 3, 5}
        assert [other.stream.id for other in found if other.stream.id < 4] == [3, 2, 1]
    assert connected(apart, everyone[:3]) == [apart]
