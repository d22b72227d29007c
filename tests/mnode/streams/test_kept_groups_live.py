"""Streams of groups without a window in an engine: over splits, kills and a start anew, and as a source of others."""

from __future__ import annotations

from kits.engines.sandboxes import T0, TestBed
from kits.streams.verified_streams import insert

QUERIES = [
    "SELECT v, g, count(*) n, sum(v) s, max(f) x FROM m GROUP BY v, g",
    "SELECT v, count(*) n FROM m GROUP BY v HAVING count(*) > 3",
    "SELECT tbname t, count(DISTINCT v) n FROM m GROUP BY tbname",
]


def made() -> TestBed:
    bed = TestBed(config={"stateMapSize": "1GiB"})
    bed.all("CREATE DATABASE d VGROUPS 1 KEEP 36500", "USE d",
            "CREATE STABLE m (ts TIMESTAMP, v INT, f DOUBLE) TAGS (g INT)",
            *(f"CREATE TABLE t{n} USING m TAGS ({n % 2})" for n in range(6)),
            *(f"CREATE STREAM s{n} INTO o{n} AS {query}" for n, query in enumerate(QUERIES)))
    return bed


def agree(bed: TestBed) -> None:
    for number, query in enumerate(QUERIES):
        assert sorted(map(repr, bed.rows(f"SELECT * FROM o{number}"))) == sorted(map(repr, bed.rows(query))), query


def write(bed: TestBed, numbers: range) -> None:
    for number in numbers:
        insert(bed, number % 6, number % 50, number % 7, number * 0.5)


def test_groups_go_along_with_their_vnodes() -> None:
    """Through two splits, deletes and a kill; VERIFY STREAM finds them right."""
    with made() as bed:
        write(bed, range(40))
        bed.checkpoint()
        for first in (40, 80):
            vgroup_id = bed.rows("SELECT vgroup_id FROM information_schema.ins_vgroups WHERE db_name = 'd'")[0][0]
            bed.execute(f"SPLIT VGROUP {vgroup_id}")
            agree(bed)
            write(bed, range(first, first + 20))
            bed.execute(f"DELETE FROM m WHERE ts < {T0 + first * 100}")
            bed.kill()
            agree(bed)
        assert [bed.rows(f"VERIFY STREAM s{n}")[-1][0] for n in range(3)] == ["verified"] * 3


def test_streams_read_groups() -> None:
    """A stream of any query over their table follows it."""
    with made() as bed:
        bed.execute("CREATE MATERIALIZED VIEW most AS SELECT g, max(n) n FROM o0 GROUP BY g")
        write(bed, range(60))
        wanted = "SELECT g, max(n) n FROM (SELECT v, g, count(*) n FROM m GROUP BY v, g) GROUP BY g"
        assert sorted(bed.rows("SELECT * FROM most")) == sorted(bed.rows(wanted))
        bed.execute(f"DELETE FROM m WHERE ts < {T0 + 20_000}")
        assert sorted(bed.rows("SELECT * FROM most")) == sorted(bed.rows(wanted))
