"""The number that names a group of a stream: equal for equal values, and only for them."""

from __future__ import annotations

import duckdb
import pytest

from penstock.planner.duckdb_sql.duckdb_tree import column, render
from penstock.planner.duckdb_sql.group_ids import group_id
from penstock.sql.types import DOUBLE, DataType, Kind

TEXT = DataType(Kind.VARCHAR, 16)
TEXTS = (None, "", "\0", "\x1e", "\x1e0", "\x1e1", "\x1e2", "\x1f", "0", "a", "a\x1f", "\x1fa", "a\x1fa")


@pytest.fixture(scope="module")
def connection() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


def test_texts_with_marks_in_them_are_groups_of_their_own(connection: duckdb.DuckDBPyConnection) -> None:
    """No text, and no pair of texts, is taken for another, whatever characters it is made of."""
    connection.execute("CREATE OR REPLACE TABLE texts (t VARCHAR)")
    connection.executemany("INSERT INTO texts VALUES (?)", [(text,) for text in TEXTS])
    one = render(group_id([(column("t", "a"), TEXT)]))
    two = render(group_id([(column("t", "a"), TEXT), (column("t", "b"), TEXT)]))
    assert connection.execute(f"SELECT count(DISTINCT {one}) FROM texts a").fetchall() == [(len(TEXTS),)]
    found = connection.execute(f"SELECT count(DISTINCT {two}) FROM texts a, texts b").fetchall()
    assert found == [(len(TEXTS) ** 2,)]


def test_zeros_of_both_signs_are_one_value(connection: duckdb.DuckDBPyConnection) -> None:
    """-0.0 and 0.0 make one group, NULL another."""
    name = render(group_id([(column("x"), DOUBLE)]))
    found = connection.execute(
        f"SELECT count(DISTINCT {name}) FROM (VALUES (0.0::DOUBLE), (-0.0::DOUBLE), (NULL)) v(x)").fetchall()
    assert found == [(2,)]
