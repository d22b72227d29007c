"""Random streams over tables that change while they run: columns and child tables come and go, and get other tags.

All is said in SQL, or comes as Arrow, to an engine in a sandbox. In the end each stream has DuckDB's answer over the
rows that are left.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import duckdb
import pytest
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.basics.faulty_fs import FaultyFs
from kits.engines.sandboxes import OF_ANY_TIME
from kits.queries.random_queries import MACROS, Question, groups, same, table, windows
from kits.queries.targets import Boxed
from kits.queries.written_tables import Design, Written, designs
from kits.streams.shared_computers import share_computers

from penstock.mnode.admin.sandbox import Sandbox
from penstock.sql.types import Kind

share_computers()

#: Streams over one table: those who write it share what it costs.
STREAMS = 3
NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def target() -> Iterator[Boxed]:
    with Sandbox(fs=FaultyFs(), config={"maxFuture": OF_ANY_TIME}) as box:
        yield Boxed(box)


@settings(max_examples=times(4, 2_000))
@given(designs(), st.data())
def test_streams_equal_plain_sql_whatever_changes(target: Boxed, design: Design, data: st.DataObject) -> None:
    """Each stream begins before some step, with what is there already.

    None has DISTINCT: such streams are computed again as a whole, as views are (`test_random_views.py`).
    """
    def create(name: str, table: str) -> Question:
        question = data.draw(st.composite(windows)(design, table, "t").filter(
            lambda question: "count(distinct" not in question.ours))
        target.execute(f"CREATE STREAM {name} TRIGGER AT_ONCE IGNORE EXPIRED 0 IGNORE UPDATE 0 FILL_HISTORY 1 "
                       f"INTO out_{name} AS {question.ours}")
        return question

    play(target, design, data, create)


@settings(max_examples=times(4, 2_000))
@given(designs(), st.data())
def test_groups_equal_plain_sql_whatever_changes(target: Boxed, design: Design, data: st.DataObject) -> None:
    """Streams of groups, or of all rows, without a window; those that tasks don't keep are computed again."""
    design = replace(design, since=(0,) * len(design.since))

    def create(name: str, source: str) -> Question:
        question = data.draw(st.composite(groups)(
            table(design, source, "t"), limited=False, windowed=False).filter(
            lambda question: Kind.OTHER not in question.kinds))
        target.execute(f"CREATE STREAM {name} INTO out_{name} AS {question.ours}")
        return question

    play(target, design, data, create)


def verify(target: Boxed, name: str, question: Question, results: int) -> None:
    verified = target.ask(f"VERIFY STREAM {name}")
    assert [line[0] for line in verified] == ["verified"], f"{question.ours}\n{verified}"
    assert verified[0][3] == f"{results} results are equal, 0 aren't"


def play(target: Boxed, design: Design, data: st.DataObject, create: Callable[[str, str], Question]) -> None:
    """Plays a design's steps, before which the streams begin that `create` makes over its table; all must have DuckDB's
    answers, in tables called out_ and their name."""
    written = Written(design, target)
    made: dict[str, Question] = {}
    begins = [data.draw(st.integers(0, len(design.steps) - 1)) for _ in range(STREAMS)]
    try:
        written.create()
        for step in range(len(design.steps)):
            for _ in range(begins.count(step)):
                name = f"s{next(NUMBERS)}"
                made[name] = create(name, written.name)
            written.play(step)
        with duckdb.connect(config={"threads": 1}) as peer:
            peer.execute(MACROS.format(units=design.units, zone=design.zone))
            written.load(peer, "t")
            for name, question in made.items():
                columns = ", ".join(f"r{n}" for n in range(len(question.kinds)))
                got = target.ask(f"SELECT {columns} FROM out_{name}")
                want = peer.execute(question.theirs).fetchall()
                assert same(got, want, ordered=False), f"{question.ours}\n{got}\ninstead of\n{want}"
                verify(target, name, question, len(got))
    finally:
        for name in made:
            target.execute(f"DROP STREAM IF EXISTS {name}")
        written.drop()
