"""Streams of any query over a database that is split: they go on over all vnodes, wherever their tables are."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.engines.sandboxes import T0, TestBed
from kits.streams.verified_streams import STEPS, insert, play

from penstock.common.errors import InUseError, StorageError
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.streams.stream_pins import pin_of

#: What each stream reads: a super table, normal ones of both databases, views, what another one gives, one child table.
QUERIES = {
    "per_g": "SELECT g, count(*) n, sum(v) s FROM m GROUP BY g",
    "named": "SELECT p.name, max(m.v) v FROM m JOIN p ON m.v = p.id GROUP BY p.name",
    "far": "SELECT DISTINCT q.a, per_g.n FROM e.q JOIN d.per_g ON q.a = per_g.g",
    "seen": "SELECT * FROM w",
    "of_one": "SELECT DISTINCT v FROM t1",
    "of_p": "SELECT count(*) n FROM p",
}


def made(*names: str, **options: Any) -> TestBed:
    bed = TestBed(config={"stateMapSize": "1GiB"}, **options)
    bed.all("CREATE DATABASE d VGROUPS 2 KEEP 36500", "CREATE DATABASE e VGROUPS 1 KEEP 36500", "USE d",
            "CREATE STABLE m (ts TIMESTAMP, v INT, f DOUBLE) TAGS (g INT)",
            *(f"CREATE TABLE t{n} USING m TAGS ({n % 2})" for n in range(4)),
            "CREATE TABLE p (id INT PRIMARY KEY, name VARCHAR(8))", "INSERT INTO p VALUES (1, 'one') (2, 'two')",
            "CREATE TABLE e.q (ts TIMESTAMP, a INT)", f"INSERT INTO e.q VALUES ({T0}, 1)",
            "CREATE VIEW w AS SELECT id, count(*) n FROM p GROUP BY id",
            *(f"CREATE MATERIALIZED VIEW {name} AS {QUERIES[name]}" for name in names))
    bed.checkpoint()
    return bed


def agree(bed: TestBed, *names: str) -> None:
    for name in names:
        assert sorted(map(repr, bed.rows(f"SELECT * FROM {name}"))) == sorted(map(repr, bed.rows(QUERIES[name]))), name


def vgroups(bed: TestBed, database: str = "d") -> list[int]:
    return [row[0] for row in bed.rows(f"SHOW {database}.VGROUPS")]


def change(bed: TestBed, at: int) -> None:
    insert(bed, at % 4, at, at % 3)
    bed.all(f"INSERT INTO p VALUES ({at}, 'n')", f"INSERT INTO e.q VALUES ({T0 + at}, {at % 2})")


def test_streams_go_on_over_more_vnodes() -> None:
    """Behind one split and another one, of each database, after kills, and when all that is left is deleted."""
    with made(*QUERIES) as bed:
        change(bed, 3)
        for number, statement in enumerate(("ALTER DATABASE d VGROUPS 4", f"SPLIT VGROUP {vgroups(bed, 'e')[0]}",
                                            "ALTER DATABASE d VGROUPS 7")):
            bed.execute(statement)
            agree(bed, *QUERIES)
            change(bed, 7 + number)
            agree(bed, *QUERIES)
            bed.kill()
            change(bed, 17 + number)
            bed.checkpoint()
            agree(bed, *QUERIES)
        bed.all("DELETE FROM m", "DELETE FROM p")
        agree(bed, *QUERIES)
        for name in QUERIES:
            assert bed.rows(f"VERIFY STREAM {name}")[-1][3].endswith("results are equal, 0 aren't")


def test_logs_are_let_go_of_by_what_has_moved() -> None:
    """A stream holds the logs that it reads, and no other."""
    with made("of_p", "per_g") as bed:
        for count in range(3, 9):
            bed.execute(f"ALTER DATABASE d VGROUPS {count}")
            change(bed, count)
            bed.checkpoint()
        catalog, storage = bed.engine.catalog, bed.engine.parts.directory.storage
        home = catalog.table("d", "p").vgroup_id
        for name, read in (("of_p", {home}), ("per_g", set(vgroups(bed)))):
            stream = catalog.streams.named(name)
            pins = {one for one in vgroups(bed) if pin_of(stream.id) in storage.vnode(one).reader.stats().pins}
            assert (pins, {one for one, _ in stream.start_cut}) == (read, read)


@settings(max_examples=times(3, 300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(names=st.lists(st.sampled_from(sorted(QUERIES)), min_size=1, max_size=3, unique=True), steps=STEPS,
       splits=st.sets(st.integers(0, 7), min_size=1, max_size=2))
def test_the_table_is_the_answer_whenever_it_is_split(
    names: list[str], steps: list[tuple[str, Any]], splits: set[int]
) -> None:
    """Whatever comes before and behind."""
    names = ["per_g", *names] if "far" in names and "per_g" not in names else sorted(names, key=list(QUERIES).index)
    with made(*names) as bed:
        for place, step in enumerate(steps):
            if place in splits:
                bed.execute(f"ALTER DATABASE d VGROUPS {len(vgroups(bed)) + 1}")
            play(bed, *step)
            agree(bed, *names)


def test_a_split_that_fails_leaves_streams_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """They go on over the vnodes that there are."""
    def failing(self: Catalog, *given: Any) -> None:
        raise StorageError("the disk is full")

    with made("per_g", "of_p") as bed:
        with monkeypatch.context() as patch:
            patch.setattr(Catalog, "regroup", failing)
            with pytest.raises(StorageError, match="the disk is full"):
                bed.execute("ALTER DATABASE d VGROUPS 3")
        bed.run()
        change(bed, 4)
        agree(bed, "per_g", "of_p")
        assert len(vgroups(bed)) == 2
        bed.execute("ALTER DATABASE d VGROUPS 3")
        change(bed, 5)
        agree(bed, "per_g", "of_p")


def test_what_is_named_stays_where_it_is() -> None:
    """A savepoint is of the vnodes that there are."""
    with made("per_g") as bed:
        bed.execute("STOP STREAM per_g WITH SAVEPOINT 'x'")
        bed.execute("START STREAM per_g")
        with pytest.raises(InUseError, match="has savepoints"):
            bed.execute("ALTER DATABASE d VGROUPS 3")
