"""Random queries over tables with extreme values, written in every way: each answer is DuckDB's over the same rows.

An example is some queries over one table. `make nightly` asks 20,000 (the profile `nightly` in conftest.py).
"""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest
from conftest import TEST_CONFIG, times
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.queries.random_queries import MACROS, same
from kits.queries.random_questions import questions
from kits.queries.targets import Connected
from kits.queries.written_tables import Design, Written, designs

import penstock

#: Queries over one table: those who write it share what it costs.
QUERIES = times(6, 20)
TABLES = times(8, 1_000)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connected]:
    with penstock.connect(str(tmp_path_factory.mktemp("queries") / "data"), TEST_CONFIG) as connection:
        yield Connected(connection)


@settings(max_examples=TABLES)
@given(designs(), st.data())
def test_every_answer_is_that_of_plain_sql(target: Connected, design: Design, data: st.DataObject) -> None:
    """Whatever the types, the values, the way in, what was rewritten, deleted or flushed, and the vgroups."""
    written = Written(design, target)
    with duckdb.connect(config={"threads": 1}) as peer:
        try:
            written.write()
            peer.execute(MACROS.format(units=design.units, zone=design.zone))
            written.load(peer, "t")
            for _ in range(QUERIES):
                question = data.draw(st.composite(questions)(design, written.name, "t"))
                want = peer.execute(question.theirs).fetchall()
                got = target.ask(question.ours)
                assert same(got, want, ordered=question.ordered), f"{question.ours}\n{got}\ninstead of\n{want}"
        finally:
            written.drop()
