"""CREATE OR REPLACE STREAM: readers see the old result or the new one, whole, whatever happens on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.engines.sandboxes import T0, TestBed

from penstock.common.errors import (
    InUseError,
    InvalidStreamError,
    NotFoundError,
    PenstockError,
    SqlSyntaxError,
)

OLD = "SELECT _wstart ts, count(*) n FROM meters PARTITION BY tbname INTERVAL(10s)"
NEW = "SELECT _wstart ts, count(*) n, max(v) top FROM meters PARTITION BY tbname INTERVAL(5s)"
OPTIONS = "TRIGGER AT_ONCE IGNORE EXPIRED 0 IGNORE UPDATE 0"


def make(root: Path | None = None, **config: Any) -> TestBed:
    bed = TestBed(directory=root, config={"maxFuture": "1d", **config})
    bed.all("CREATE DATABASE d VGROUPS 2", "USE d", "CREATE STABLE meters (ts timestamp, v int) TAGS (g int)",
            *(f"CREATE TABLE d{n} USING meters TAGS ({n})" for n in range(3)),
            f"CREATE STREAM s {OPTIONS} INTO o SUBTABLE(concat('o-', tbname)) AS {OLD}")
    return bed


def insert(bed: TestBed, *seconds: int) -> None:
    for second in seconds:
        bed.execute(f"INSERT INTO d.d{second % 3} VALUES ({T0 + second * 1000}, {second})")


def replace_now(bed: TestBed, query: str = NEW, options: str = OPTIONS) -> None:
    """Executes the statement without letting streams work."""
    bed.engine.execute(f"CREATE OR REPLACE STREAM s {options} INTO o SUBTABLE(concat('o-', tbname)) AS {query}",
                       bed.session)


def replace_and_run(bed: TestBed) -> None:
    replace_now(bed)
    bed.run()


def now(bed: TestBed, query: str) -> list[tuple[Any, ...]]:
    """Returns the rows of a query without letting streams work."""
    table = bed.engine.execute(query, bed.session).table
    assert table is not None
    return [tuple(row.values()) for row in table.to_pylist()]


def equals(bed: TestBed, query: str) -> bool:
    """Whether the result table is the batch answer, with a child table per source table."""
    columns = "ts, n, top" if query == NEW else "ts, n"
    found = sorted((*row, name.split("_")[0]) for *row, name in bed.rows(f"SELECT {columns}, tbname FROM d.o"))
    wanted = sorted(bed.rows(query.replace("FROM meters", ", concat('o-', tbname) FROM d.meters")))
    return found == wanted


def names(bed: TestBed) -> list[str]:
    return [row[0] for row in bed.rows("SELECT stream_name FROM information_schema.ins_streams ORDER BY 1")]


def test_the_new_version_works_beside_the_old_and_takes_its_place_in_one_step() -> None:
    """Until the new one has read everything, the old one answers and goes on; then names lead to the new one."""
    with make() as bed:
        insert(bed, *range(0, 28, 2))
        assert equals(bed, OLD)
        old = now(bed, "SELECT ts, n, tbname FROM d.o ORDER BY ts, tbname")
        replace_now(bed)
        assert names_now(bed) == ["s", "s#new"]
        while "s#new" in names_now(bed):
            assert now(bed, "SELECT ts, n, tbname FROM d.o ORDER BY ts, tbname") == old
            bed.streams.step()
            bed.engine.parts.replacements.poll()
        assert equals(bed, NEW)
        insert(bed, 41, 3, 77)
        assert equals(bed, NEW)
        assert names(bed) == ["s"]
        text = bed.rows("SHOW CREATE STREAM s")[0][1]
        assert text.startswith(f"CREATE STREAM s {OPTIONS} FILL_HISTORY 1 INTO o")
        bed.kill()
        assert equals(bed, NEW)


def names_now(bed: TestBed) -> list[str]:
    return sorted(row[0] for row in now(bed, "SELECT stream_name FROM information_schema.ins_streams"))


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(before=st.lists(st.integers(0, 60), max_size=10), during=st.lists(st.integers(0, 60), max_size=5),
       steps=st.integers(0, 6), kill=st.booleans())
def test_rows_that_come_meanwhile_are_in_the_new_result(
    before: list[int], during: list[int], steps: int, kill: bool
) -> None:
    """In whatever order rows, steps, checkpoints and kills come: in the end it is the new query's batch answer."""
    with make(blockRowsMax=2) as bed:
        insert(bed, *before)
        replace_now(bed)
        for second in during:
            bed.engine.execute(f"INSERT INTO d.d{second % 3} VALUES ({T0 + second * 1000}, 1)", bed.session)
            for _ in range(steps):
                bed.streams.step()
        if kill:
            bed.checkpoint()
            bed.kill()
        bed.run()
        assert names(bed) == ["s"]
        assert equals(bed, NEW)


class Crash(BaseException):
    """The engine's process ends here."""


@pytest.mark.parametrize("step", ["before the stream", "before the swap", "in the swap", "behind the swap"])
def test_a_crash_at_any_step_leaves_one_of_both(tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old one, and the new one later, or the new one: never nothing, and no left-overs."""
    with make(tmp_path) as bed:
        insert(bed, *range(0, 28, 2))
        engine = bed.engine
        old_target = engine.catalog.streams.named("s").target_uid  # type: ignore[union-attr]

        def crash(*_: Any, **__: Any) -> Any:
            raise Crash

        target = {"before the stream": (engine.catalog.streams, "create"), "before the swap": (bed.streams, "run"),
                  "in the swap": (engine.catalog.streams, "replace"),
                  "behind the swap": (engine.streams.removal, "end_for_good")}[step]
        with monkeypatch.context() as patch:
            patch.setattr(*target, crash)
            with pytest.raises(Crash):
                replace_and_run(bed)
    with TestBed(directory=tmp_path) as bed:
        bed.engine.execute("USE d", bed.session)
        if step != "behind the swap":
            assert now(bed, "SELECT sum(n) FROM d.o") == [(14,)]
        bed.run()
        assert names(bed) == ["s"]
        assert equals(bed, OLD if step == "before the stream" else NEW)
        insert(bed, 50, 51)
        assert equals(bed, OLD if step == "before the stream" else NEW)
        (stream,) = bed.engine.catalog.streams.all()
        assert bed.engine.catalog.staged_tables("d") == []
        assert {path.name for path in (tmp_path / "streams").iterdir()} == {f"{stream.id:x}"}
        pins = bed.engine.storage.vnode(bed.engine.catalog.databases()[0].vgroup_ids[0]).reader.stats().pins
        assert set(pins) == {f"stream-{stream.id:x}"}
        assert (stream.target_uid == old_target) == (step == "before the stream")


def test_a_query_that_has_begun_reads_the_old_rows_to_its_end() -> None:
    """The old table can be read by what was planned before, until partGrace is over."""
    with make(partGrace="1m") as bed:
        insert(bed, 1, 2, 3)
        table = bed.engine.catalog.table("d", "o")
        assert table is not None
        replace_now(bed)
        bed.run()
        assert len(bed.engine.catalog.children(table.uid)) == 3
        vgroups = bed.engine.catalog.databases()[0].vgroup_ids
        assert sum(bed.engine.storage.snapshot(v, table.uid).to_arrow().num_rows for v in vgroups) == 3
        bed.advance(61)
        assert bed.engine.catalog.table_by_uid(table.uid) is None
        with pytest.raises(PenstockError):
            bed.engine.storage.snapshot(vgroups[0], table.uid)


def test_a_replacement_can_be_replaced_and_dropped() -> None:
    """Another CREATE OR REPLACE gives up the one that isn't done; DROP of that leaves the old, DROP of the old none."""
    with make() as bed:
        insert(bed, 1, 2)
        replace_now(bed)
        replace_now(bed, OLD)
        assert names_now(bed) == ["s", "s#new"]
        bed.engine.execute("DROP STREAM `s#new`", bed.session)
        assert names(bed) == ["s"]
        assert bed.engine.catalog.staged_tables("d") == []
        insert(bed, 3)
        assert equals(bed, OLD)
        replace_now(bed)
        bed.engine.execute("DROP STREAM s", bed.session)
        assert names(bed) == []
        assert equals(bed, OLD)
        bed.execute("DROP TABLE o")
        replace_and_run(bed)  # there is nothing to replace: it is CREATE STREAM, from now on
        insert(bed, 50)
        assert bed.rows("SELECT n, top FROM o") == [(1, 50)]
        replace_now(bed)
        bed.execute("DROP DATABASE d")
        assert names(bed) == []


def test_what_cannot_be_replaced_is_refused_and_goes_on() -> None:
    """Other targets, tables that the stream didn't make, streams on the result, and streams without history."""
    with make() as bed:
        with pytest.raises(InvalidStreamError, match=r"writes into d\.o, and so must what replaces it"):
            bed.execute(f"CREATE OR REPLACE STREAM s {OPTIONS} INTO other AS {NEW}")
        with pytest.raises(InvalidStreamError, match="computes its history"):
            replace_now(bed, options="FILL_HISTORY 0")
        with pytest.raises(InvalidStreamError):
            replace_now(bed, options="TRIGGER FORCE_WINDOW_CLOSE")
        with pytest.raises(SqlSyntaxError, match="OR REPLACE and IF NOT EXISTS exclude each other"):
            bed.execute(f"CREATE OR REPLACE STREAM IF NOT EXISTS s INTO o AS {NEW}")
        with pytest.raises(NotFoundError):
            replace_now(bed, "SELECT _wstart, count(*) FROM nosuch INTERVAL(1s)")
        bed.execute("CREATE STREAM upon TRIGGER AT_ONCE INTO further AS SELECT ts, n FROM o PARTITION BY tbname")
        with pytest.raises(InUseError, match="stream upon reads o"):
            replace_now(bed)
        bed.all("CREATE STABLE made (ts timestamp, n bigint) TAGS (g int)",
                "CREATE STREAM t TRIGGER AT_ONCE INTO made TAGS (g) AS SELECT _wstart, count(*) FROM meters "
                "PARTITION BY g INTERVAL(1m)")
        with pytest.raises(InvalidStreamError, match="a table that it didn't create"):
            bed.execute("CREATE OR REPLACE STREAM t INTO made TAGS (g) AS SELECT _wstart, count(*) FROM meters "
                        "PARTITION BY g INTERVAL(2m)")
        insert(bed, 1)
        assert equals(bed, OLD)
