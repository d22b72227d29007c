"""The 23 queries of NEXMark as streams have the answers of DuckDB over the same events, whatever order they come in."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pyarrow as pa
import pytest
from conftest import by_night
from kits.engines.sandboxes import TestBed

from bench.nexmark import TABLES, Events, arrivals, side_input
from bench.nexmark_answers import DATABASE, Oracle, create_tables, with_arrival
from bench.nexmark_queries import QUESTIONS

#: A minute of events, so that windows of 10 s begin and end.
_EVENTS, _RATE, _AT_ONCE = 3000, 50, 500
_LATE_S = 5.0


class Played:
    """All streams over all events, and DuckDB with the same rows; `kills`: where tasks are killed, by this seed."""

    def __init__(self, late_s: float, seed: int = 1, kills: int | None = None) -> None:
        self.bed = TestBed()
        create_tables(self.bed.execute)
        self._insert("side_input", side_input())
        for number, question in QUESTIONS.items():
            self.bed.execute(question.stream(f"q{number}"))
        came: dict[str, list[pa.Table]] = {name: [] for name in TABLES}
        draw = random.Random(kills)
        for batch in arrivals(Events(_EVENTS, _RATE, late_s, seed), _AT_ONCE):
            for name, rows in batch.items():
                self._insert(name, rows)
                came[name].append(with_arrival(rows, self.bed.clock.now_ms() * 1000))
                if kills is not None and draw.random() < 0.5:
                    self._disturb(draw)
            self.bed.advance(7)
        self.bed.advance(60)
        self.oracle = Oracle({name: pa.concat_tables(parts) for name, parts in came.items()})

    def difference(self, number: int) -> str | None:
        """Returns what is different in the results of a query's stream."""
        table = self.bed.execute(f"SELECT * FROM q{number}").table
        assert table is not None
        assert table.num_rows
        return self.oracle.difference(number, table)

    def close(self) -> None:
        self.oracle.close()
        self.bed.close()

    def _insert(self, table: str, rows: pa.Table) -> None:
        self.bed.engine.insert_arrow(f"{DATABASE}.{table}", rows, self.bed.session)

    def _disturb(self, draw: random.Random) -> None:
        """Kills all tasks, after they have seen the newest rows or before, perhaps behind a checkpoint."""
        if draw.random() < 0.5:
            self.bed.run()
        if draw.random() < 0.5:
            self.bed.checkpoint()
        self.bed.kill()


@pytest.fixture(scope="module", params=[
    pytest.param(0.0, marks=by_night, id="in order"), pytest.param(_LATE_S, id="late")])
def played(request: pytest.FixtureRequest) -> Iterator[Played]:
    found = Played(request.param)
    yield found
    found.close()


@pytest.mark.parametrize("number", QUESTIONS)
def test_answers_are_those_of_duckdb(played: Played, number: int) -> None:
    """A stream has the rows of DuckDB's query, and there are some."""
    assert played.difference(number) is None


@by_night
@pytest.mark.parametrize("seed", range(20))
def test_answers_are_those_of_duckdb_after_kills(seed: int) -> None:
    """Kills at any place change none of the answers."""
    found = Played(_LATE_S, seed, kills=seed)
    try:
        differences = {number: found.difference(number) for number in QUESTIONS}
        assert {number: said for number, said in differences.items() if said is not None} == {}
    finally:
        found.close()
