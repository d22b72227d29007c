"""What stands in the way of a DROP: it is refused with a hint, or goes as well with CASCADE."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kits.engines.sandboxes import TestBed

from penstock.common.errors import InUseError


@pytest.fixture
def bed() -> Iterator[TestBed]:
    with TestBed() as bed:
        bed.all(
            "CREATE DATABASE d VGROUPS 1", "CREATE DATABASE e VGROUPS 1", "USE d",
            "CREATE STABLE st (ts TIMESTAMP, v INT) TAGS (g INT)", "CREATE TABLE d0 USING st TAGS (0)",
            "CREATE STREAM inside INTO o AS SELECT _wstart ts, count(*) n FROM st PARTITION BY tbname INTERVAL(1m)")
        yield bed


def streams(bed: TestBed) -> list[str]:
    return [name for (name,) in bed.rows("SELECT stream_name FROM information_schema.ins_streams ORDER BY stream_name")]


def tables(bed: TestBed, database: str) -> list[str]:
    return [name for (name,) in bed.rows(
        "SELECT table_name FROM information_schema.ins_tables WHERE table_name <> 'd0' AND "
        f"db_name = '{database}' UNION ALL SELECT stable_name FROM information_schema.ins_stables WHERE "
        f"db_name = '{database}' ORDER BY 1")]


def test_a_table_in_use_is_refused_and_the_hint_says_what_to_do(bed: TestBed) -> None:
    """Nothing of several tables goes if one of them can't."""
    bed.execute("CREATE TABLE other (ts TIMESTAMP, v INT)")
    with pytest.raises(InUseError, match="table st is in use: stream inside reads it") as refused:
        bed.execute("DROP TABLE other, st")
    assert refused.value.hint == "DROP STREAM inside first, or DROP ... CASCADE, which drops it, too"
    assert streams(bed) == ["inside"]
    assert tables(bed, "d") == ["o", "other", "st"]


def test_cascade_drops_who_reads_a_table_and_leaves_results(bed: TestBed) -> None:
    """Streams go, their results stay; a materialized view goes as a whole, and who reads it before it does."""
    bed.all("CREATE MATERIALIZED VIEW counted AS SELECT count(*) n FROM st",
            "CREATE MATERIALIZED VIEW more AS SELECT n + 1 m FROM counted",
            "CREATE TABLE other (ts TIMESTAMP, v INT)",
            "CREATE STREAM elsewhere INTO p AS SELECT _wstart ts, count(*) n FROM other INTERVAL(1m)")
    bed.execute("DROP TABLE st CASCADE")
    assert streams(bed) == ["elsewhere"]
    assert tables(bed, "d") == ["o", "other", "p"]


def test_cascade_drops_who_writes_a_table(bed: TestBed) -> None:
    """A stream has no place for its results any more."""
    bed.execute("DROP STABLE o CASCADE")
    assert streams(bed) == []
    assert tables(bed, "d") == ["st"]


def test_a_table_of_executions_goes_with_its_stream(bed: TestBed) -> None:
    """CASCADE for it drops the stream, which has made it."""
    bed.execute("CREATE STREAM w INTERVAL(1m) SLIDING(1m) FROM st PARTITION BY tbname INTO o2 "
                "AS SELECT _twstart ts, count(*) n FROM %%trows")
    with pytest.raises(InUseError):
        bed.execute("DROP TABLE w_executions")
    bed.execute("DROP TABLE w_executions CASCADE")
    assert streams(bed) == ["inside"]
    assert tables(bed, "d") == ["o", "o2", "st"]


def test_who_reads_executions_is_in_the_way_of_their_stream(bed: TestBed) -> None:
    """Whether windows are of their rows, or only the query of a trigger reads them; CASCADE drops it as well."""
    bed.all("CREATE STREAM w INTERVAL(1m) SLIDING(1m) FROM st PARTITION BY tbname INTO o2 "
            "AS SELECT _twstart ts, count(*) n FROM %%trows",
            "CREATE STREAM failed INTERVAL(1m) SLIDING(1m) FROM w_executions INTO o3 "
            "AS SELECT _twstart ts, count(problem) n FROM %%trows",
            "CREATE TABLE other (ts TIMESTAMP, v INT)",
            "CREATE STREAM asks INTERVAL(1m) SLIDING(1m) FROM other INTO o4 "
            "AS SELECT _twstart ts, (SELECT count(*) FROM w_executions) n FROM %%trows")
    for reader in ("failed", "asks"):
        with pytest.raises(InUseError, match=f"table w_executions is in use: stream {reader} reads it") as refused:
            bed.execute("DROP STREAM w")
        assert refused.value.hint == f"DROP STREAM {reader} first"
        assert reader in streams(bed)
        if reader == "failed":
            bed.execute("DROP STREAM failed")
    bed.execute("DROP TABLE st CASCADE")
    assert streams(bed) == []
    assert tables(bed, "d") == ["o", "o2", "o3", "o4", "other"]


def test_a_materialized_view_that_only_the_query_of_a_trigger_reads_stays(bed: TestBed) -> None:
    """It goes when nobody reads it."""
    bed.all("CREATE MATERIALIZED VIEW counted AS SELECT count(*) n FROM st",
            "CREATE STREAM asks INTERVAL(1m) SLIDING(1m) FROM st INTO o2 "
            "AS SELECT _twstart ts, (SELECT max(n) FROM counted) n FROM %%trows")
    with pytest.raises(InUseError, match="table counted is in use: stream asks reads it"):
        bed.execute("DROP MATERIALIZED VIEW counted")
    bed.all("DROP STREAM asks", "DROP MATERIALIZED VIEW counted")
    assert streams(bed) == ["inside"]


def test_a_child_of_a_source_may_go(bed: TestBed) -> None:
    """Its rows go, as by DELETE, and what was computed of them."""
    bed.all("INSERT INTO d0 VALUES (now, 1)", "INSERT INTO d0 VALUES (now + 2m, 1)")
    assert bed.rows("SELECT n FROM o") == [(1,)]
    bed.execute("DROP TABLE d0")
    assert bed.rows("SELECT n FROM o") == []


def test_a_database_takes_the_streams_inside_along_and_tells(bed: TestBed) -> None:
    """As TDengine has it."""
    bed.execute("DROP DATABASE d")
    assert streams(bed) == []
    assert [event for (event,) in bed.rows("SELECT event FROM information_schema.ins_stream_events")][-1:] == [
        "stream inside was dropped with database d"]


@pytest.mark.parametrize("database", ["d", "e"])
def test_a_database_that_others_need_is_refused_or_takes_them_along(bed: TestBed, database: str) -> None:
    """Both the source's and the target's; the table of the other database stays."""
    bed.execute("CREATE STREAM across INTO e.p AS SELECT _wstart ts, count(*) n FROM st INTERVAL(1m)")
    with pytest.raises(InUseError, match=f"database {database} is used by stream across") as refused:
        bed.execute(f"DROP DATABASE {database}")
    assert refused.value.hint == "DROP STREAM across first, or DROP ... CASCADE, which drops it, too"
    assert streams(bed) == ["across", "inside"]
    bed.execute(f"DROP DATABASE {database} CASCADE")
    assert streams(bed) == ([] if database == "d" else ["inside"])
    assert tables(bed, "e" if database == "d" else "d") == (["p"] if database == "d" else ["o", "st"])


def test_a_database_with_a_dlq_table_of_a_stream_elsewhere_is_refused(bed: TestBed) -> None:
    """The stream couldn't go on without it; its own database takes it along."""
    bed.execute("CREATE STREAM q LATE DLQ e.dead INTO p AS SELECT _wstart ts, count(*) n FROM st INTERVAL(1m)")
    with pytest.raises(InUseError, match="database e is used by stream q"):
        bed.execute("DROP DATABASE e")
    bed.execute("DROP DATABASE d")
    assert streams(bed) == []
    bed.execute("DROP DATABASE e")
