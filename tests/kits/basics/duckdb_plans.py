"""What DuckDB means to do with a query."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import duckdb


def join_conditions(connection: duckdb.DuckDBPyConnection, sql: str) -> list[list[str]]:
    """Returns the conditions of each join of a query's plan."""
    (_, plan), = connection.sql(f"EXPLAIN (FORMAT JSON) {sql}").fetchall()
    return [node["extra_info"]["Conditions"] for node in _nodes(json.loads(plan)[0]) if "JOIN" in node["name"]]


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan["children"]:
        yield from _nodes(below)
