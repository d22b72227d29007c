"""Random streams over tables that change while they run: columns and child tables come and go, and get other tags.

All is said in SQL, or comes as Arrow, to an engine in a sandbox. In the end each stream has DuckDB's answer over the
rows that are left.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import duckdb
import pytest
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.basics.faulty_fs import FaultyFs
from kits.queries.random_queries import MACROS, Question, same, windows
from kits.queries.random_questions import questions
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
    with Sandbox(fs=FaultyFs()) as box:
        yield Boxed(box)


@settings(max_examples=times(4, 2_000))
@given(designs(), st.data())
def test_streams_equal_plain_sql_whatever_changes(target: Boxed, design: Design, data: st.DataObject) -> None:
    """Each stream begins before some step, with what is there already.

    None has DISTINCT: such streams are computed again as a whole, as the views below are.
    """
    written = Written(design, target)
    streams: dict[str, Question] = {}
    begins = [data.draw(st.integers(0, len(design.steps) - 1)) for _ in range(STREAMS)]
    try:
        written.create()
        for step in range(len(design.steps)):
            for _ in range(begins.count(step)):
                name = f"s{next(NUMBERS)}"
                streams[name] = question = data.draw(st.composite(windows)(design, written.name, "t").filter(
                    lambda question: "count(distinct" not in question.ours))
                target.execute(f"CREATE STREAM {name} TRIGGER AT_ONCE IGNORE EXPIRED 0 IGNORE UPDATE 0 FILL_HISTORY 1 "
                               f"INTO out_{name} AS {question.ours}")
            written.play(step)
        with duckdb.connect(config={"threads": 1}) as peer:
            peer.execute(MACROS.format(units=design.units, zone=design.zone))
            written.load(peer, "t")
            for name, question in streams.items():
                columns = ", ".join(f"r{n}" for n in range(len(question.kinds)))
                got, want = target.ask(f"SELECT {columns} FROM out_{name}"), peer.execute(question.theirs).fetchall()
                assert same(got, want, ordered=False), f"{question.ours}\n{got}\ninstead of\n{want}"
                verified = target.ask(f"VERIFY STREAM {name}")
                assert [line[0] for line in verified] == ["verified"], f"{question.ours}\n{verified}"
                assert verified[0][3] == f"{len(got)} results are equal, 0 aren't"
    finally:
        for name in streams:
            target.execute(f"DROP STREAM IF EXISTS {name}")
        written.drop()


@settings(max_examples=times(4, 2_000))
@given(designs(), st.data())
def test_views_equal_plain_sql_whatever_changes(target: Boxed, design: Design, data: st.DataObject) -> None:
    """Materialized views of any query, but for values that no column can be. No column is missing when one begins."""
    design = replace(design, since=(0,) * len(design.since))
    written = Written(design, target)
    views: dict[str, Question] = {}
    begins = [data.draw(st.integers(0, len(design.steps) - 1)) for _ in range(STREAMS)]
    try:
        written.create()
        for step in range(len(design.steps)):
            for _ in range(begins.count(step)):
                name = f"v{next(NUMBERS)}"
                question = data.draw(st.composite(questions)(design, written.name, "t").filter(
                    lambda question: Kind.OTHER not in question.kinds))
                target.execute(f"CREATE MATERIALIZED VIEW {name} AS {question.ours}")
                views[name] = question
            written.play(step)
        with duckdb.connect(config={"threads": 1}) as peer:
            peer.execute(MACROS.format(units=design.units, zone=design.zone))
            written.load(peer, "t")
            for name, question in views.items():
                columns = ", ".join(f"r{n}" for n in range(len(question.kinds)))
                got, want = target.ask(f"SELECT {columns} FROM {name}"), peer.execute(question.theirs).fetchall()
                assert same(got, want, ordered=False), f"{question.ours}\n{got}\ninstead of\n{want}"
    finally:
        for name in views:
            target.execute(f"DROP MATERIALIZED VIEW IF EXISTS {name}")
        written.drop()
