"""Joins of an engine's tables in several vgroups, against plain DuckDB SQL over the rows that were written last."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import duckdb
import pytest
from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.engines.embedded import Embedded

History = list[tuple[int, int, int | None]]  # time, child table, key: written one after the other
HISTORIES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.sampled_from([0, 1, None])), max_size=14)
RANGE = "s.k = t.k AND s.ts BETWEEN t.ts - 2{a} AND t.ts + 1{a}"
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    embedded = Embedded(tmp_path_factory.mktemp("joins"))
    embedded.execute("CREATE DATABASE d VGROUPS 3 KEEP 36500")
    embedded.execute("USE d")
    yield embedded
    embedded.close()


def written(engine: Embedded, peer: duckdb.DuckDBPyConnection, alias: str, history: History) -> str:
    """Writes a history into a new super table, and what is left of it into a table of DuckDB; returns the name."""
    name = f"{alias}{next(NUMBERS)}"
    engine.execute(f"CREATE STABLE {name} (ts TIMESTAMP, n INT, k INT) TAGS (g INT)")
    for number, (ts, child, k) in enumerate(history):
        engine.execute(f"INSERT INTO {name}_{child} USING {name} TAGS ({child}) VALUES "
                       f"({ts}, {number}, {'NULL' if k is None else k})")
    left = {(ts, child): (ts, number, k, child) for number, (ts, child, k) in enumerate(history)}
    peer.execute(f"CREATE OR REPLACE TABLE {alias} (ts BIGINT, n INT, k INT, g INT)")
    if left:
        peer.executemany(f"INSERT INTO {alias} VALUES (?, ?, ?, ?)", list(left.values()))
    return name


def rows(found: list[tuple[object, ...]]) -> list[str]:
    return sorted(map(repr, found))


@settings(max_examples=times(3, 200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(HISTORIES, HISTORIES)
def test_joins_are_those_of_plain_sql(engine: Embedded, left: History, right: History) -> None:
    """Each kind of join gives the rows of the same join in plain SQL: with NULL keys, equal times, empty sides, too."""
    peer = duckdb.connect(config={"threads": 1})
    tables = {alias: written(engine, peer, alias, history) for alias, history in (("s", left), ("t", right))}
    s, t = (f"{tables[alias]} {alias}" for alias in "st")
    ours, theirs = RANGE.format(a="a"), RANGE.format(a="")
    within = "s.k = t.k AND t.ts BETWEEN s.ts - 2 AND s.ts + 1"
    for query, plain in (
        *((f"SELECT s.n, t.n FROM {s} {kind} JOIN {t} ON {ours}", f"SELECT s.n, t.n FROM s {kind} JOIN t ON {theirs}")
          for kind in ("INNER", "LEFT", "RIGHT", "FULL")),
        (f"SELECT s.n FROM {s} LEFT SEMI JOIN {t} ON {ours}", f"SELECT n FROM s WHERE EXISTS (FROM t WHERE {theirs})"),
        (f"SELECT s.n FROM {s} LEFT ANTI JOIN {t} ON {ours}",
         f"SELECT n FROM s WHERE NOT EXISTS (FROM t WHERE {theirs})"),
        (f"SELECT s.n, cast(t.ts AS BIGINT) FROM {s} LEFT ASOF JOIN {t} ON s.k = t.k",
         "SELECT n, (SELECT max(ts) FROM t WHERE t.ts <= s.ts AND t.k = s.k) FROM s"),
        (f"SELECT t.n, cast(s.ts AS BIGINT) FROM {s} RIGHT ASOF JOIN {t} ON s.ts > t.ts",
         "SELECT n, (SELECT min(ts) FROM s WHERE s.ts > t.ts) FROM t"),
        (f"SELECT s.n, count(t.n), sum(t.n) FROM {s} LEFT WINDOW JOIN {t} ON s.k = t.k WINDOW_OFFSET(-2a, 1a)",
         f"SELECT s.n, count(t.n), sum(t.n)::BIGINT FROM s LEFT JOIN t ON {within} GROUP BY s.n"),
        (f"SELECT s.n, x.g FROM {s} LEFT JOIN (SELECT TAGS g FROM {tables['t']}) x ON s.k = x.g",
         "SELECT s.n, x.g FROM s LEFT JOIN (SELECT DISTINCT g FROM t) x ON s.k = x.g"),
    ):
        assert rows(engine.run(query)) == rows(peer.execute(plain).fetchall()), query
