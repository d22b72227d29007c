"""Child tables that get other tags, or are gone, while streams read them: their rows leave their groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kits.streams.failing_functions import SOUND
from kits.streams.stream_kit import Catalog, Store, StreamKit

from penstock.sql.schema import Column
from penstock.sql.types import DataType, Kind

AT_ONCE = "CREATE STREAM s TRIGGER AT_ONCE IGNORE EXPIRED 0 IGNORE UPDATE 0"
BY_SITE = f"{AT_ONCE} INTO o TAGS (site VARCHAR(16)) AS SELECT _wstart, count(*) c FROM meters PARTITION BY site"


@pytest.fixture
def kit(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StreamKit]:
    made = StreamKit(tmp_path, request.param, tables=2)
    made.store.retag(1, ("other",))
    made.run()
    yield made
    made.close()


def counted(kit: StreamKit) -> dict[Any, int]:
    """Returns how many rows count for each site."""
    sites: dict[Any, int] = {}
    for write in kit.writes:
        for n, name in enumerate(write.children.names):
            sites[name] = write.children.tags[0][n]
    found: dict[Any, int] = {}
    for row in kit.rows():
        site = sites[row["_child"]]
        found[site] = found.get(site, 0) + list(row.values())[1]
    return found


@pytest.mark.parametrize("kit", [f"{BY_SITE} INTERVAL(10s)", f"{BY_SITE} INTERVAL(10s) SLIDING(5s)", *(
    f"{BY_SITE.replace('BY site', 'BY tbname, site')} {window}"
    for window in ("INTERVAL(10s)", "SESSION(ts, 1s)", "STATE_WINDOW(note)",
                   "EVENT_WINDOW START WITH voltage > 0 END WITH voltage < 0")),
    f"{BY_SITE.replace('IGNORE EXPIRED 0', 'WATERMARK 1h').replace('BY site', 'BY tbname, site')} COUNT_WINDOW(3)",
], indirect=True)
def test_rows_move_with_their_table_through_kills(kit: StreamKit) -> None:
    """What was written under the old tags behind the last checkpoint goes, even if its rows were deleted since."""
    kit.insert([(n, at * 20_000, 1, 1.0, "x") for n in (0, 1) for at in range(3)])
    kit.insert([(n, at * 20_000 + 500, -1, 1.0, "x") for n in (0, 1) for at in range(3)])
    kit.run()
    kit.checkpoint()
    kit.insert([(0, 60_000, 1, 1.0, "x"), (0, 60_500, -1, 1.0, "x")])
    kit.run()
    before = counted(kit)
    assert set(before) == {"s0", "other"}
    kit.delete([0], 60_000, 70_000)
    kit.store.retag(0, ("moved",))
    kit.store.retag(0, ("last",))
    kit.kill()
    kit.run()
    after = counted(kit)
    assert set(after) == {"last", "other"}
    assert after["last"] == after["other"]
    kit.kill()
    kit.run()
    assert counted(kit) == after
    kit.store.renew(0, ("new",))
    kit.store.renew(1, ("new",))
    kit.kill()
    kit.run()
    assert counted(kit) == {}


@pytest.mark.parametrize("kit", [
    f"{AT_ONCE} INTO o AS SELECT _wstart, count(*) c FROM meters PARTITION BY tbname INTERVAL(10s)"], indirect=True)
def test_tags_that_a_stream_does_not_read_cost_it_nothing(kit: StreamKit) -> None:
    """Nothing is written again."""
    kit.insert([(0, 0, 1, 1.0, "x")])
    kit.run()
    writes = len(kit.writes)
    kit.store.retag(0, ("moved",))
    kit.run()
    assert len(kit.writes) == writes


@pytest.mark.parametrize("kit", [f"{BY_SITE.replace('UPDATE 0', 'UPDATE 1')} INTERVAL(10s)"], indirect=True)
def test_rows_stay_where_they_came_to_if_updates_are_ignored(kit: StreamKit) -> None:
    """Only rows that come behind the tag have it."""
    kit.insert([(0, 0, 1, 1.0, "x")])
    kit.run()
    kit.store.retag(0, ("moved",))
    kit.insert([(0, 1, 1, 1.0, "x")])
    kit.run()
    assert counted(kit) == {"s0": 1, "moved": 1}


def test_rows_from_before_the_stream_make_no_windows(tmp_path: Path) -> None:
    """The stream has never computed these windows."""
    kit = StreamKit(tmp_path, f"{BY_SITE} INTERVAL(10s)", tables=2,
                    before=lambda kit: kit.insert([(0, 0, 1, 1.0, "x")]))
    kit.insert([(0, 60_000, 1, 1.0, "x")])
    kit.store.retag(0, ("moved",))
    kit.run()
    assert counted(kit) == {"moved": 1}
    kit.close()


def test_rows_that_new_tags_make_impossible_are_left_out(tmp_path: Path) -> None:
    """They leave their group, and are counted as dropped; the other rows go on."""
    sql = BY_SITE.replace("IGNORE UPDATE 0", "IGNORE UPDATE 0 ON_ERROR SKIP").replace(
        "PARTITION", "WHERE sound(CASE WHEN site = 'bad' THEN 1 ELSE 0 END) = 1 PARTITION")
    kit = StreamKit(tmp_path, f"{sql} INTERVAL(10s)", tables=2, functions=[SOUND])
    kit.insert([(n, at, 1, 1.0, "x") for n in (0, 1) for at in range(3)])
    kit.run()
    assert counted(kit) == {"s0": 6}
    kit.store.retag(0, ("bad",))
    kit.run()
    assert counted(kit) == {"s0": 3}
    assert kit.tasks[0].status().dropped
    kit.close()


def test_binary_tags_are_the_same_whenever_a_table_comes(tmp_path: Path) -> None:
    """Logs have them as digits, deployments as bytes."""
    tags = (Column("site", DataType(Kind.VARBINARY, 4), "site"),)
    store = Store(tmp_path, Catalog(1, 2, tags=tags, tag_values=[(b"\xff",), (b"\xff",)]))
    kit = StreamKit(tmp_path / "s", f"{BY_SITE.replace(' TAGS (site VARCHAR(16))', '')} INTERVAL(10s)", store=store)
    kit.insert([(n, n, 1, 1.0, "x") for n in (0, 1)])
    kit.run()
    store.renew(0, (b"\xff",))
    kit.insert([(0, 5, 1, 1.0, "x")])
    kit.run()
    assert [list(row.values())[1] for row in kit.rows()] == [2]
    kit.close()
    store.close()
