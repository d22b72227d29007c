"""The 22 queries of TPC-H as materialized views: each is DuckDB's answer while orders come and go and rows change."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import profile, times
from kits.engines.sandboxes import TestBed

from bench.tpch import TABLES, Row, column_type, difference, generate
from bench.tpch_queries import QUERIES, query_of

SCALE = times(2, 100) / 1000
KEYS = {"region": "r_regionkey", "nation": "n_nationkey", "supplier": "s_suppkey", "customer": "c_custkey",
        "part": "p_partkey", "partsupp": "ps_partkey, ps_suppkey", "orders": "o_orderkey",
        "lineitem": "l_orderkey, l_linenumber"}
#: The benchmark's refresh functions come with orders of one part and delete those of another.
NEW = {"orders": "o_orderkey % 97 IN (5, 50)", "lineitem": "l_orderkey % 97 IN (5, 50)"}
OLD = {"orders": "o_orderkey % 97 IN (7, 70)", "lineitem": "l_orderkey % 97 IN (7, 70)"}
#: What else changes: rows of a table as a query has them, which take the places of those with their keys.
UPDATES = {
    "prices": ("lineitem", "SELECT * REPLACE (l_extendedprice * 2 AS l_extendedprice, 9 AS l_quantity) FROM lineitem "
                           "WHERE l_partkey % 5 = 0"),
    "shipped": ("lineitem", "SELECT * REPLACE (l_shipdate + INTERVAL 200 DAY AS l_shipdate, 'R' AS l_returnflag) FROM "
                            "lineitem WHERE l_orderkey % 11 = 3"),
    "moved": ("supplier", "SELECT * REPLACE ((s_nationkey + 1) % 25 AS s_nationkey) FROM supplier WHERE s_suppkey % 3 "
                          "= 0"),
    "renamed": ("nation", "SELECT * REPLACE (n_name || ' II' AS n_name) FROM nation WHERE n_nationkey % 7 = 0"),
    "richer": ("customer", "SELECT * REPLACE (c_acctbal + 1000 AS c_acctbal, 'BUILDING' AS c_mktsegment) FROM "
                           "customer WHERE c_custkey % 4 = 1"),
}
#: An aggregate over no rows has no row.
NULL_IN_DUCKDB = {6, 14, 17, 19}


class Database:
    """The tables with their keys, and one view per query; DuckDB with the same rows."""

    def __init__(self, folder: Path) -> None:
        generate(folder, SCALE)
        self.bed = TestBed()
        self.peer = duckdb.connect(config={"threads": 2})
        self.bed.all("CREATE DATABASE tpch VGROUPS 2", "USE tpch")
        for name in TABLES:
            rows = pq.read_table(folder / f"{name}.parquet")
            columns = ", ".join(f"{field.name} {column_type(field.type)}" for field in rows.schema)
            self.bed.execute(f"CREATE TABLE {name} ({columns}, PRIMARY KEY ({KEYS[name]}))")
            # At small scales parts have a supplier twice.
            self.peer.execute(f"CREATE TABLE {name} AS SELECT DISTINCT ON ({KEYS[name]}) * FROM "
                              f"'{folder / name}.parquet' WHERE NOT ({NEW.get(name, 'false')})")
            self._insert(name, self._asked(f"SELECT * FROM {name}"))
        self.new = {name: self._asked(f"SELECT * FROM '{folder / name}.parquet' WHERE {rows}")
                    for name, rows in NEW.items()}
        for number in QUERIES:
            self.bed.execute(f"CREATE MATERIALIZED VIEW q{number} AS {query_of(number, SCALE)}")

    def insert_new(self) -> None:
        for name, rows in self.new.items():
            self._upsert(name, rows)

    def delete_old(self) -> None:
        for name, rows in OLD.items():
            self.delete(name, rows)

    def delete(self, table: str, condition: str) -> None:
        for execute in (self.bed.execute, self.peer.execute):
            execute(f"DELETE FROM {table} WHERE {condition}")

    def update(self, table: str, query: str) -> None:
        self._upsert(table, self._asked(query))

    def differences(self) -> dict[int, str]:
        """What is different of each query's view, and not its order."""
        self.bed.run()
        found = {}
        for number in QUERIES:
            theirs = self.peer.execute(query_of(number, SCALE)).fetchall()
            if number in NULL_IN_DUCKDB and theirs == [(None,)]:
                theirs = []
            ours = self.bed.execute(f"SELECT * FROM q{number}").table
            assert ours is not None
            said = difference(sorted(zip(*(column.to_pylist() for column in ours.columns), strict=True), key=_order),
                              sorted(theirs, key=_order))
            if said is not None:
                found[number] = said
        return found

    def close(self) -> None:
        self.peer.close()
        self.bed.close()

    def _asked(self, query: str) -> pa.Table:
        return self.peer.execute(query).to_arrow_table()

    def _insert(self, table: str, rows: pa.Table) -> None:
        self.bed.engine.insert_arrow(f"tpch.{table}", rows, self.bed.session)

    def _upsert(self, table: str, rows: pa.Table) -> None:
        self._insert(table, rows)
        self.peer.register("given", rows)
        self.peer.execute(f"DELETE FROM {table} WHERE ({KEYS[table]}) IN (SELECT ({KEYS[table]}) FROM given)")
        self.peer.execute(f"INSERT INTO {table} SELECT * FROM given")
        self.peer.unregister("given")


def _order(row: Row) -> list[Any]:
    """Numbers differ by what DOUBLE rounds: they come last."""
    numbers = [isinstance(value, float | Decimal) for value in row]
    return [*(str(value)[:10] if isinstance(value, date) else str(value)
              for value, is_number in zip(row, numbers, strict=True) if not is_number),
            *(round(float(value), 2) for value, is_number in zip(row, numbers, strict=True) if is_number)]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    found = Database(tmp_path_factory.mktemp("tpch"))
    yield found
    found.close()


def test_views_are_the_answers(database: Database) -> None:
    """After each step: orders come, others are deleted, prices and dates and names change, a nation is no more."""
    assert database.differences() == {}, "from the start"
    database.insert_new()
    assert profile() != "nightly" or database.differences() == {}, "orders that came"
    database.delete_old()
    assert database.differences() == {}, "orders that were deleted"
    for what, (table, query) in list(UPDATES.items())[::times(2, 1)]:
        database.update(table, query)
        assert profile() != "nightly" or database.differences() == {}, what
    assert database.differences() == {}, "rows that were changed"
    database.bed.checkpoint()
    database.bed.kill()
    database.delete("nation", "n_name IN ('GERMANY', 'CANADA')")
    assert database.differences() == {}, "nations that are no more, after a kill"
    database.delete("lineitem", "true")
    assert database.differences() == {}, "no lines at all"
