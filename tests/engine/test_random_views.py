"""Random queries as materialized views: view, query and DuckDB have the same rows after whatever happens to the tables.

`make nightly` draws 4,000 examples (the profile `nightly` in conftest.py), of three views each.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from conftest import times
from hypothesis import given, note, settings
from hypothesis import strategies as st
from kits.engines.sandboxes import TestBed
from kits.queries.random_queries import same
from kits.queries.random_views import Drawing, Relation, Type, View, views
from kits.queries.targets import rows_of

NUMBERS = itertools.count()
VIEWS = 3
TYPES: dict[str, Type] = {"INT": "number", "BIGINT": "number", "VARCHAR": "text"}
VALUES = st.tuples(st.sampled_from([None, -1, 0, 1, 2, 3]), st.sampled_from([None, 0, 1, 2]),
                   st.sampled_from([None, "x", "xy", "y", ""]))
TIME = st.integers(0, 9)
STEP = st.one_of(
    st.tuples(st.just("k"), st.lists(VALUES, min_size=1, max_size=5)),
    st.tuples(st.just("n"), st.lists(st.tuples(TIME, VALUES), min_size=1, max_size=5)),
    st.tuples(st.just("m"), st.lists(st.tuples(st.integers(0, 2), TIME, VALUES), min_size=1, max_size=5)),
    st.tuples(st.just("forget k"), st.sampled_from(["a = 1", "b > 0", "c IS NULL", "true"])),
    st.tuples(st.just("forget n"), st.tuples(TIME, TIME)),
    st.tuples(st.just("forget m"), st.tuples(st.integers(0, 2), TIME, TIME)),
    st.tuples(st.just("retag"), st.tuples(st.integers(0, 2), st.sampled_from([None, 0, 1]))),
    st.tuples(st.just("drop"), st.integers(0, 2)),
    st.tuples(st.just("widen"), st.sampled_from(["TABLE k", "TABLE n", "STABLE m"])),
    st.tuples(st.sampled_from(["checkpoint", "kill", "flush", "pause", "resume"]), st.none()))


class Tables:
    """The three tables here and, as they are to be, in DuckDB."""

    def __init__(self, bed: TestBed, peer: duckdb.DuckDBPyConnection, vgroups: int) -> None:
        self.bed, self.peer, self.number = bed, peer, next(NUMBERS)
        self.views: dict[str, View] = {}
        self.paused = False
        bed.all(f"CREATE DATABASE v{self.number} VGROUPS {vgroups} KEEP 36500", f"USE v{self.number}",
                "CREATE TABLE k (a INT, b INT, c VARCHAR(8), PRIMARY KEY (a))",
                "CREATE TABLE n (ts TIMESTAMP, a INT, b INT, c VARCHAR(8))",
                "CREATE STABLE m (ts TIMESTAMP, a INT, b INT, c VARCHAR(8)) TAGS (g INT)")
        for statement in ("k (a INT, b INT, c VARCHAR)", "n (ts BIGINT, a INT, b INT, c VARCHAR)",
                          "m (ts BIGINT, a INT, b INT, c VARCHAR, g INT, tbname VARCHAR)"):
            peer.execute(f"CREATE OR REPLACE TABLE {statement}")
        for child in range(3):
            self._create(child)

    def _create(self, child: int) -> None:
        self.bed.execute(f"CREATE TABLE m{child} USING m TAGS ({child % 2})")

    def create_view(self, view: View) -> None:
        name = f"v{self.number}_{len(self.views)}"
        self.views[name] = view
        self.bed.execute(f"CREATE MATERIALIZED VIEW {name} AS {view.ours}")
        self.peer.execute(f"CREATE VIEW {name} AS {view.theirs}")
        if self.paused:
            self.bed.execute(f"PAUSE STREAM {name}")

    @property
    def known(self) -> list[Relation]:
        """The views that others can read, with those of their columns that all is known of."""
        found = []
        for name in self.views:
            columns = tuple((column, TYPES[type]) for column, type, *_ in self.bed.rows(f"DESCRIBE {name}")
                            if type in TYPES and column.startswith("r"))
            if {"number", "text"} <= {type for _, type in columns}:
                found.append(Relation(name, columns))
        return found

    def play(self, kind: str, what: Any) -> None:
        match kind:
            case "k":
                self._write("k", "a, b, c", what, "a", "k")
            case "n":
                self._write("n", "ts, a, b, c", [(at, *values) for at, values in what], "ts", "n")
            case "m":
                for child, at, values in what:
                    self._write(f"m{child}", "ts, a, b, c", [(at, *values)], f"ts AND m.tbname = 'm{child}'", "m")
                self._tell_children()
            case "forget k":
                self._both(f"DELETE FROM k WHERE {what}")
            case "forget n":
                self._both(f"DELETE FROM n WHERE ts >= {what[0]} AND ts <= {what[1]}")
            case "forget m":
                self.bed.execute(f"DELETE FROM m{what[0]} WHERE ts >= {what[1]} AND ts <= {what[2]}")
                self.peer.execute(f"DELETE FROM m WHERE tbname = 'm{what[0]}' AND ts BETWEEN {what[1]} AND {what[2]}")
            case "retag":
                self.bed.execute(f"ALTER TABLE m{what[0]} SET TAG g = {'NULL' if what[1] is None else what[1]}")
                self.peer.execute("UPDATE m SET g = ? WHERE tbname = ?", [what[1], f"m{what[0]}"])
            case "drop":
                self.bed.execute(f"DROP TABLE m{what}")
                self.peer.execute(f"DELETE FROM m WHERE tbname = 'm{what}'")
                self._create(what)
            case "widen":
                self.bed.execute(f"ALTER {what} ADD COLUMN more{next(NUMBERS)} INT")
            case "flush":
                self.bed.execute(f"FLUSH DATABASE v{self.number}")
            case "pause" | "resume":
                self.paused = kind == "pause"
                for name in self.views:
                    self.bed.execute(f"{kind.upper()} STREAM {name}")
                self.bed.run()
            case _:
                getattr(self.bed, kind)()

    def _both(self, statement: str) -> None:
        self.bed.execute(statement)
        self.peer.execute(statement)

    def _write(self, table: str, names: str, rows: list[tuple[Any, ...]], key: str, into: str) -> None:
        listed = " ".join(f"({', '.join(map(_literal, row))})" for row in rows)
        self.bed.execute(f"INSERT INTO {table} ({names}) VALUES {listed}")
        for row in rows:  # of equal keys the last one stays
            value = _literal(row[0])
            name, _, more = key.partition(" ")
            self.peer.execute(f"DELETE FROM {into} WHERE {name} IS NOT DISTINCT FROM {value} {more}")
            shown = ", ".join(map(_literal, row))
            child = f", NULL, '{table}'" if into == "m" else ""
            self.peer.execute(f"INSERT INTO {into} VALUES ({shown}{child})")

    def _tell_children(self) -> None:
        """Has DuckDB know the tags of rows that came."""
        for name, tag in self.bed.rows("SELECT DISTINCT tbname, g FROM m"):
            self.peer.execute("UPDATE m SET g = ? WHERE tbname = ?", [tag, name])

    def check(self) -> None:
        """Compares each view with its query, and with DuckDB."""
        for name, view in self.views.items():
            want = self.peer.execute(view.theirs).fetchall()
            asked, held = (_rows(self.bed, query) for query in (view.ours, f"SELECT * FROM {name}"))
            if not self.paused or not any(other in view.ours for other in self.views):
                assert same(asked, want, ordered=False), f"{view.ours}\n{asked}\ninstead of\n{want}"
            if not self.paused:
                shown = [row[:len(want[0])] if want else () for row in held]  # a tag may be behind
                assert len(held) == len(want), f"{view.ours}\n{held}\ninstead of\n{want}"
                assert same(shown if want else [], want, ordered=False), f"{view.ours}\n{held}\ninstead of\n{want}"

    def drop(self) -> None:
        for name in reversed(self.views):
            self.bed.execute(f"DROP MATERIALIZED VIEW IF EXISTS {name}")
        self.bed.execute(f"DROP DATABASE v{self.number}")


def _literal(value: Any) -> str:
    return "NULL" if value is None else repr(value)


def _rows(bed: TestBed, query: str) -> list[tuple[Any, ...]]:
    table: pa.Table | None = bed.execute(query).table
    return [] if table is None else rows_of(table)


@pytest.fixture(scope="module")
def bed() -> Iterator[TestBed]:
    with TestBed(config={"stateMapSize": "1GiB"}) as found:
        yield found


@settings(max_examples=times(12, 4_000))
@given(st.integers(1, 3), st.lists(STEP, min_size=1, max_size=8), st.data())
def test_views_are_their_queries_whatever_happens(
        bed: TestBed, vgroups: int, steps: list[tuple[str, Any]], data: st.DataObject) -> None:
    """Each view begins before some step, with what is there already, and may read those before it."""
    begins = [data.draw(st.integers(0, len(steps) - 1)) for _ in range(VIEWS)]
    with duckdb.connect(config={"threads": 1}) as peer:
        tables = Tables(bed, peer, vgroups)
        try:
            for number, step in enumerate(steps):
                for _ in range(begins.count(number)):
                    known = tables.known
                    view = data.draw(st.composite(lambda draw: views(Drawing(draw, known)))())  # noqa: B023
                    note(view.ours)
                    tables.create_view(view)
                tables.play(*step)
                tables.check()
            if tables.paused:
                tables.play("resume", None)
                tables.check()
        finally:
            tables.drop()
