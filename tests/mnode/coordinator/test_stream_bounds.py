"""Streams that have more than they may have are paused and say why; nothing is lost, and the others run on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.engines.embedded import NOW_MS
from kits.engines.threaded import Threaded

from penstock.mnode.coordinator.stream_bounds import over_state_limit

BATCH = "SELECT _wstart, k, count(*), sum(v) FROM d.m PARTITION BY k INTERVAL(1m) ORDER BY 1, 2"


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Threaded]:
    bed = Threaded(tmp_path)
    yield bed
    bed.engine.close()


TABLES = ("CREATE DATABASE d VGROUPS 1 KEEP 36500d",
          "CREATE STABLE d.m (ts TIMESTAMP, v INT, k VARCHAR(80)) TAGS (g INT)", "CREATE TABLE d.t USING d.m TAGS (1)")


def groups_of(first: int, count: int) -> str:
    """Returns rows of a group each, in one window."""
    values = ", ".join(f"({NOW_MS + n}, 1, 'group {n:060}')" for n in range(first, first + count))
    return f"INSERT INTO d.t VALUES {values}"


def test_a_stream_beyond_its_state_limit_is_paused_and_goes_on_with_a_higher_one(bed: Threaded) -> None:
    """Its groups are without end: it is PAUSED with figures and remedy, its neighbour reads on, a restart changes
    nothing, and with a higher limit it catches up and has the batch answer."""
    bed.run(*TABLES)
    bed.run("CREATE STREAM s TRIGGER AT_ONCE STATE_LIMIT '1MiB' INTO d.o TAGS (k VARCHAR(80)) AS "
            "SELECT _wstart ts, count(*) c, sum(v) s FROM d.m PARTITION BY k INTERVAL(1m)",
            "CREATE STREAM calm TRIGGER AT_ONCE INTO d.p AS SELECT _wstart ts, count(*) c FROM d.m INTERVAL(1m)")
    for batch in range(8):
        bed.run(groups_of(batch * 1000, 1000))
    bed.until(lambda: bed.stream("s", "state") == ("PAUSED",))
    reason, held, limit, verdict = bed.stream("s", "reason", "state_bytes", "state_limit", "verdict")
    assert limit == 1 << 20 < held
    assert reason.startswith("its state of ")
    assert "exceeds its STATE_LIMIT of 1.0 MiB; to go on: ALTER STREAM `s` SET STATE_LIMIT '...', then RESUME" in reason
    assert verdict == f"PAUSED: {reason}"
    assert any(reason in text for text, in bed.run("SELECT event FROM information_schema.ins_stream_events"))
    bed.run(groups_of(8000, 500))
    bed.until(lambda: bed.run("SELECT sum(c) FROM d.p") == [(8500,)])
    assert bed.stream("s", "state") == ("PAUSED",)
    bed.reopen()
    bed.until(lambda: bed.stream("s", "state", "reason") == ("PAUSED", reason))
    attempt = bed.stream("s", "attempt")
    bed.run("ALTER STREAM s SET STATE_LIMIT '64MiB'")
    assert bed.stream("s", "state", "state_limit", "attempt") == ("PAUSED", 64 << 20, *attempt)
    bed.run("RESUME STREAM s")
    bed.until(lambda: bed.run("SELECT count(*) FROM d.o") == [(8500,)])
    assert bed.run("SELECT ts, k, c, s FROM d.o ORDER BY 1, 2") == bed.run(BATCH)
    assert bed.stream("s", "state", "reason") == ("RUNNING", None)


def test_a_stream_that_is_resumed_without_more_room_is_paused_again(bed: Threaded) -> None:
    """RESUME alone lets it run until the next look: nothing makes the bound forgotten."""
    bed.run(*TABLES,
            "CREATE STREAM s TRIGGER AT_ONCE STATE_LIMIT 1048576 INTO d.o TAGS (k VARCHAR(80)) AS "
            "SELECT _wstart ts, count(*) c FROM d.m PARTITION BY k INTERVAL(1m)")
    for batch in range(8):
        bed.run(groups_of(batch * 1000, 1000))
    bed.until(lambda: bed.stream("s", "state") == ("PAUSED",))
    events = "SELECT count(*) FROM information_schema.ins_stream_events WHERE event LIKE 'paused:%'"
    assert bed.run(events) == [(1,)]
    bed.run("RESUME STREAM s")
    bed.until(lambda: bed.run(events) == [(2,)])
    bed.until(lambda: bed.stream("s", "state") == ("PAUSED",))


def test_a_limit_is_kept_to_the_byte_and_zero_is_none() -> None:
    """As much as the limit is allowed; the remedy can be typed as it is, whatever the name."""
    assert over_state_limit("s", 100, 100) is None
    assert over_state_limit("s", 1 << 40, 0) is None
    reason = over_state_limit("a b", 3 << 20, 2 << 20)
    assert reason == ("its state of 3.0 MiB exceeds its STATE_LIMIT of 2.0 MiB; to go on: ALTER STREAM `a b` SET "
                      "STATE_LIMIT '...', then RESUME STREAM `a b`")


def test_what_stores_keep_in_memory_is_given_to_each_worker(tmp_path: Path) -> None:
    """`maxStreamBackendCache` is in MB, as TDengine has it, and for all streams of a worker."""
    bed = Threaded(tmp_path, maxStreamBackendCache=16)
    bed.run(*TABLES, "CREATE STREAM s INTO d.o AS SELECT _wstart ts, count(*) c FROM d.m INTERVAL(1m)")
    bed.until(lambda: bed.stream("s", "state") == ("RUNNING",))
    assert [spec.state_cache_bytes for spec in bed.runtime.specs] == [16 << 20]
    bed.engine.close()
