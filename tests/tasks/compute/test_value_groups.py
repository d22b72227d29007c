"""Groups of values have the ids that SQL gives them."""

from __future__ import annotations

import pyarrow as pa
from kits.basics.shared_duckdb import duckdb_with

from penstock.planner.duckdb_sql.duckdb_tree import column, render
from penstock.planner.duckdb_sql.group_ids import group_digest, group_id
from penstock.sql.types import INT
from penstock.tasks.compute.value_groups import _ids_of


def test_digests_end_with_the_ids_of_groups() -> None:
    """Also in a part of an array; of no digests there are no ids."""
    values = [(column("x"), INT)]
    with duckdb_with({}) as connection:
        found = connection.execute(
            f"SELECT {render(group_digest(values))}, {render(group_id(values))} FROM range(-50, 500) r(x)").fetchall()
    digests = pa.array([digest for digest, _ in found])
    assert _ids_of(digests).tolist() == [id_ for _, id_ in found]
    assert _ids_of(digests[7:19]).tolist() == [id_ for _, id_ in found[7:19]]
    assert _ids_of(digests[:0]).tolist() == []
