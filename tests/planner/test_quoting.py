"""What DuckDB calls names: it tells all of them apart."""

from __future__ import annotations

import string

import duckdb
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from kits.basics.extreme_values import CASES, NAMES

from penstock.planner.duckdb_sql.quoting import duckdb_name, for_duckdb, from_duckdb, own_name, quote_name

_SMALL = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
NAMED = st.one_of(st.sampled_from([*NAMES, *CASES]), st.text("aAbBzZ^019fİiıſKß\U0001d11e\"", min_size=1, max_size=6))


@given(NAMED, NAMED)
def test_no_two_names_are_the_same_to_duckdb(one: str, other: str) -> None:
    """Whatever their case; and each name comes back."""
    assert own_name(duckdb_name(one)) == one
    assert (duckdb_name(one).translate(_SMALL) == duckdb_name(other).translate(_SMALL)) == (one == other)


@given(st.lists(NAMED, min_size=1, max_size=6, unique=True))
def test_duckdb_finds_each_column(names: list[str]) -> None:
    """Also in a table of its own, which it doesn't make if two columns are one to it."""
    table = pa.table([pa.array([number]) for number in range(len(names))], names)
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.register("given", for_duckdb(table))
        connection.execute("CREATE TABLE kept AS FROM given")
        quoted = ", ".join(map(quote_name, names))
        assert connection.execute(f"SELECT {quoted} FROM kept").fetchone() == tuple(range(len(names)))
        assert from_duckdb(connection.execute("FROM kept").to_arrow_table()).equals(table)


def test_names_without_capitals_stay() -> None:
    """SQL is as readable as before; the others tell where capitals are."""
    assert [duckdb_name(name) for name in ("v", "_tuid", "straße", "v^", "Übung")] == [
        "v", "_tuid", "straße", "v^", "Übung"]
    assert [duckdb_name(name) for name in ("V", "aBC", "v^1")] == ["V^1", "aBC^6", "v^1^0"]
