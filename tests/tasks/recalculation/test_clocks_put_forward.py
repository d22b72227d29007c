"""Windows whose ends a clock puts behind those of later ones: streams equal queries, whatever is computed anew."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.engines.sandboxes import TestBed

from penstock.planner.duckdb_sql.interval_windows import end_of, grid_of, latest_end, starts_between
from penstock.sql.tree.statements import Duration, IntervalWindow

HOUR = 3_600_000
#: Zones, an instant near which each puts its clock forward, and windows of which some end in what it leaves out.
PLACES = [("Pacific/Apia", datetime(2011, 12, 30, 10, tzinfo=UTC), "2d", "12h"),
          ("Pacific/Apia", datetime(2011, 12, 30, 10, tzinfo=UTC), "2d", "1d"),
          ("Pacific/Apia", datetime(2011, 12, 30, 10, tzinfo=UTC), "1d", "7h"),
          ("Europe/Berlin", datetime(2024, 3, 31, 1, tzinfo=UTC), "1d", "20m"),
          ("Europe/Berlin", datetime(2024, 10, 27, 1, tzinfo=UTC), "1d", "20m")]
ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(-140, 140), st.integers(-9, 9)), min_size=1, max_size=20)


def length(text: str) -> Duration:
    unit: Any = text[-1]
    return Duration(int(text[:-1]), unit)


@pytest.mark.parametrize(("zone", "moment", "interval", "sliding"), PLACES)
def test_the_latest_end(zone: str, moment: datetime, interval: str, sliding: str) -> None:
    """It is the greatest of the ends of all windows up to one, whatever the clock does around it."""
    window = IntervalWindow(length(interval), None, length(sliding))
    grid, middle = grid_of(window, "ms", zone), round(moment.timestamp()) * 1000
    latest = 0
    for start in starts_between(middle - 240 * HOUR, middle + 48 * HOUR, grid):
        latest = max(latest, end_of(start, grid))
        if start > middle - 96 * HOUR:
            assert latest_end(start, grid) == latest


@pytest.mark.parametrize(("zone", "moment", "interval", "sliding"), PLACES)
@settings(max_examples=times(2, 40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rows=ROWS, missed=ROWS, late=ROWS, piece=st.integers(1, 5), kill=st.booleans(),
       partition=st.sampled_from(["", "PARTITION BY tbname"]))
def test_streams_equal_queries(
    zone: str, moment: datetime, interval: str, sliding: str, rows: list[Any], missed: list[Any], late: list[Any],
    piece: int, kill: bool, partition: str
) -> None:
    """Rows that were missed are recalculated in small pieces; late and rewritten ones are counted where they belong."""
    middle, window = round(moment.timestamp()) * 1000, f"{partition} INTERVAL({interval}) SLIDING({sliding})"
    with TestBed(config={"blockRowsMax": piece}, time_zone=zone) as bed:
        bed.all("CREATE DATABASE d KEEP 36500", "USE d", "CREATE STABLE meters (ts timestamp, v int) TAGS (g int)",
                *(f"CREATE TABLE d{n} USING meters TAGS ({n})" for n in range(3)),
                "CREATE STREAM s TRIGGER AT_ONCE IGNORE EXPIRED 0 IGNORE UPDATE 0 DELETE_MARK 6h INTO o AS "
                f"SELECT _wstart ts, count(*) n, sum(v) total FROM meters {window}")

        def insert(some: list[Any]) -> None:
            for table, half_hours, value in some:
                bed.execute(f"INSERT INTO d{table} VALUES ({middle + half_hours * HOUR // 2}, {value})")

        insert(rows)
        bed.execute("PAUSE STREAM s")
        insert(missed)
        bed.execute("RESUME STREAM IGNORE UNTREATED s")
        bed.engine.execute(f"RECALCULATE STREAM s FROM {middle - 240 * HOUR}", bed.session)
        bed.run()
        if kill:
            bed.checkpoint()
            bed.kill()
        insert(late)
        assert sorted(bed.rows("SELECT ts, n, total FROM o")) == sorted(
            bed.rows(f"SELECT _wstart, count(*), sum(v) FROM meters {window}"))
