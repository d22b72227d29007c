"""STATE_TTL in an engine: what is told of groups that were let go, how they go along, and what has none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kits.engines.sandboxes import T0, TestBed

from penstock.common.errors import InvalidStreamError, PenstockError

HOUR = 3_600_000
FORGOTTEN = "SELECT forgotten_groups FROM information_schema.ins_streams WHERE stream_name = 's'"
#: Each stream without groups that tasks keep, and why it has none, as the hint says.
WITHOUT_GROUPS = {
    "SELECT _wstart, g, count(*) n FROM m PARTITION BY g INTERVAL(1m)": "DELETE_MARK says for how long",
    "SELECT _wstart, count(*) n FROM m SESSION(ts, 1m)": "windows end with the watermark",
    "SELECT ts, v FROM t0": "keeps nothing of them",
    "SELECT a.ts, a.v, b.v w FROM m a JOIN m b ON a.ts = b.ts AND a.v = b.v": "the times of their partners",
    "SELECT g, count(*) n FROM m GROUP BY g ORDER BY n LIMIT 3": "a stream keeps nothing of rows, but reads",
    "SELECT a.g, count(*) n FROM m a JOIN k ON a.v = k.id GROUP BY a.g": "have no time",
    "SELECT v, count(*) n FROM k GROUP BY v": "a table with a KEY have no time by which",
    "SELECT count(*) n FROM m": "one group, which each of them changes",
}


@pytest.fixture
def bed() -> Iterator[TestBed]:
    with TestBed(config={"stateMapSize": "1GiB"}) as bed:
        bed.all("CREATE DATABASE d VGROUPS 1 KEEP 36500", "USE d", "CREATE STABLE m (ts TIMESTAMP, v INT) TAGS (g INT)",
                *(f"CREATE TABLE t{n} USING m TAGS ({n % 2})" for n in range(4)),
                "CREATE TABLE k (id INT PRIMARY KEY, v INT)")
        yield bed


def insert(bed: TestBed, table: int, hours: int, value: int) -> None:
    bed.execute(f"INSERT INTO t{table} VALUES ({T0 + hours * HOUR}, {value})")


def every(bed: TestBed, hours: int, value: int) -> None:
    for table in range(4):
        insert(bed, table, hours, value)


def results(bed: TestBed) -> list[tuple[Any, ...]]:
    return sorted(bed.rows("SELECT * FROM o"))


def created(bed: TestBed, key: str = "v") -> None:
    bed.execute(f"CREATE STREAM s STATE_TTL 1d INTO o AS SELECT {key} k, count(*) n FROM m GROUP BY {key}")


def test_it_is_told_what_went(bed: TestBed) -> None:
    """How many groups, in SQL; VERIFY STREAM says so of what differs, and nothing else is wrong before."""
    created(bed)
    for hours in range(3):
        insert(bed, hours, hours, 7)
    insert(bed, 0, 20, 8)
    assert (results(bed), bed.rows(FORGOTTEN)) == ([(7, 3), (8, 1)], [(0,)])
    assert bed.rows("VERIFY STREAM s")[-1][3] == "2 results are equal, 0 aren't"
    insert(bed, 0, 48, 8)
    insert(bed, 0, 49, 7)
    assert results(bed) == [(7, 1), (8, 1)]
    bed.checkpoint()
    assert bed.rows(FORGOTTEN) == [(2,)]
    *wrong, last = bed.rows("VERIFY STREAM s")
    assert last[3].startswith("0 results are equal")
    assert wrong
    assert {line[5] for line in wrong} == {"2 groups were removed, and start anew if rows arrive for them: STATE_TTL"}
    bed.execute("RECALCULATE STREAM s FROM 0")
    assert results(bed) == [(7, 4), (8, 2)]


def test_a_result_stays_when_its_group_goes(bed: TestBed) -> None:
    """Also through a start anew; a row that is rewritten brings back what was there."""
    created(bed)
    insert(bed, 0, 0, 7)
    insert(bed, 1, 1, 7)
    insert(bed, 0, 90, 8)
    bed.checkpoint()
    bed.kill()
    assert (results(bed), bed.rows(FORGOTTEN)) == ([(7, 2), (8, 1)], [(1,)])
    insert(bed, 1, 1, 9)
    assert results(bed) == [(7, 1), (8, 1), (9, 1)]


@pytest.mark.parametrize("key", ["v", "g", "tbname"])
def test_groups_go_along_with_their_vnodes(bed: TestBed, key: str) -> None:
    """When SPLIT VGROUP moves them: those that are kept go on, those that went stay so.

    Groups with rows on both vnodes (g) are divided by reading them back, and are whole then.
    """
    created(bed, key)
    every(bed, 0, 1)
    every(bed, 40, 2)
    before = results(bed)
    vgroup_id = bed.rows("SELECT vgroup_id FROM information_schema.ins_vgroups WHERE db_name = 'd'")[0][0]
    bed.execute(f"SPLIT VGROUP {vgroup_id}")
    went = bed.rows(FORGOTTEN)
    assert went[0][0] > 0
    assert results(bed) == before
    every(bed, 41, 2)
    assert results(bed) == {"v": [(1, 4), (2, 8)], "g": [(0, 6), (1, 6)],
                            "tbname": [(f"t{n}", 2) for n in range(4)]}[key]
    every(bed, 100, 3)
    bed.kill()
    every(bed, 101, 1)
    every(bed, 102, 2)
    if key != "g":
        assert results(bed) == {"v": [(1, 4), (2, 4), (3, 4)], "tbname": [(f"t{n}", 3) for n in range(4)]}[key]
        assert bed.rows(FORGOTTEN) > went


def test_explain_names_it(bed: TestBed) -> None:
    """With both bounds, what becomes of results, and that rows that go are read back."""
    lines = [line for line, *_ in bed.rows(
        "EXPLAIN CREATE STREAM s STATE_TTL 1d INTO o AS SELECT v, count(*) n FROM m GROUP BY v")]
    state = next(line for line in lines if line.startswith("State: "))
    assert "bounded, groups without changes for 1d of event time, or an eighth longer, are removed (STATE_TTL)" in state
    assert "may differ from the query's" in state
    assert "Rows that are rewritten or deleted are read back with all others of their group" in lines


@pytest.mark.parametrize("query", WITHOUT_GROUPS)
def test_streams_without_groups_have_none(bed: TestBed, query: str) -> None:
    """The error says where the option is, and why."""
    with pytest.raises(InvalidStreamError) as refused:
        bed.execute(f"CREATE STREAM s\n  STATE_TTL 1d INTO o AS {query}")
    assert "STATE_TTL is for groups without a window that tasks keep" in str(refused.value)
    assert WITHOUT_GROUPS[query] in str(refused.value)
    position = refused.value.position
    assert position is not None
    assert (position.line, position.column, position.text) == (2, 3, "STATE_TTL")


@pytest.mark.parametrize(("ttl", "why"), [("0s", "longer than 0"), ("1u", "longer than 0"), ("0", "longer than 0"),
                                          ("1n", "months or years"), ("x", "STATE_TTL"), ("", "STATE_TTL"),
                                          ("1d STATE_TTL 2d", "given twice")])
def test_it_is_a_time_that_is_longer_than_nothing(bed: TestBed, ttl: str, why: str) -> None:
    """In the precision of the table; else the error says where."""
    with pytest.raises(PenstockError, match=why) as refused:
        bed.execute(f"CREATE STREAM s STATE_TTL {ttl} INTO o AS SELECT v, count(*) n FROM m GROUP BY v")
    assert refused.value.position is not None


def test_it_stays_as_it_is(bed: TestBed) -> None:
    """SHOW CREATE STREAM has it; ALTER STREAM doesn't change it, but other options beside it."""
    created(bed)
    with pytest.raises(InvalidStreamError, match="STATE_TTL of a stream can't be changed"):
        bed.execute("ALTER STREAM s SET STATE_TTL 2d")
    bed.execute("ALTER STREAM s SET CHECKPOINT_INTERVAL 1m")
    assert "STATE_TTL 1d" in bed.rows("SHOW CREATE STREAM s")[0][1]
    insert(bed, 0, 0, 7)
    insert(bed, 0, 30, 7)
    assert results(bed) == [(7, 1)]


def test_what_goes_on_by_its_results_follows(bed: TestBed) -> None:
    """A stream over the results, and one without STATE_TTL beside it, which is the answer."""
    created(bed)
    bed.execute("CREATE STREAM whole INTO w AS SELECT v k, count(*) n FROM m GROUP BY v")
    bed.execute("CREATE STREAM sizes INTO sized AS SELECT n, count(*) c FROM o GROUP BY n")
    for hours in (0, 1, 90):
        insert(bed, 0, hours, 7)
        insert(bed, 1, hours, 8)
    assert sorted(bed.rows("SELECT * FROM w")) == [(7, 3), (8, 3)]
    assert bed.rows("SELECT * FROM sized") == [(1, 2)]
    assert bed.rows(FORGOTTEN.replace("'s'", "'whole'")) == [(None,)]
