"""JSON tags: `->`, CONTAINS and comparisons of their values, whose type is known only per row."""

from __future__ import annotations

from typing import Literal

from penstock.planner.duckdb_sql.duckdb_tree import Tree, fragment
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.sql.types import DataType

JsonKind = Literal["number", "text", "bool"]

_TYPED: dict[JsonKind, str] = {
    "number": "CASE WHEN json_type(:raw) IN ('BIGINT', 'UBIGINT', 'DOUBLE', 'HUGEINT') "
              "THEN TRY_CAST(json_extract_string(:raw, '$') AS DOUBLE) END",
    "text": "CASE WHEN json_type(:raw) IN ('VARCHAR') THEN json_extract_string(:raw, '$') END",
    "bool": "CASE WHEN json_type(:raw) IN ('BOOLEAN') THEN TRY_CAST(json_extract_string(:raw, '$') AS BOOLEAN) END",
}


class JsonValue(SqlExpr):
    """The value of a key: `node` is its text as results show it, `raw` the JSON value itself."""

    __slots__ = ("raw",)

    def __init__(self, node: Tree, type: DataType, raw: Tree) -> None:
        super().__init__(node, type)
        self.raw = raw

    def is_null(self) -> Tree:
        """Returns the condition that the key is missing or its value is JSON's null."""
        return fragment("COALESCE(json_type(:raw), 'NULL') = 'NULL'", raw=self.raw)

    def typed(self, kind: JsonKind) -> Tree:
        """Returns the value as DOUBLE, VARCHAR or BOOLEAN, NULL where the value is of another type."""
        return fragment(_TYPED[kind], raw=self.raw)


def is_null(value: SqlExpr) -> Tree:
    """Compiles `value IS NULL`, of any type."""
    return value.is_null() if isinstance(value, JsonValue) else fragment(":value IS NULL", value=value.node)


def _path(key: str) -> str:
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'$."{escaped}"'


def get(document: SqlExpr, key: str) -> JsonValue:
    """Compiles `document -> 'key'`: strings keep their quotes, numbers are printed with nine decimals."""
    raw = fragment("json_extract(:document, :path)", document=document.node, path=_path(key))
    shown = fragment(
        "CASE WHEN json_type(:raw) IN ('BIGINT', 'UBIGINT', 'DOUBLE', 'HUGEINT') "
        "THEN printf('%.9f', TRY_CAST(json_extract_string(:raw, '$') AS DOUBLE)) ELSE CAST(:raw AS VARCHAR) END",
        raw=raw)
    return JsonValue(shown, document.type, raw)


def contains(document: SqlExpr, key: str) -> Tree:
    """Compiles `document CONTAINS 'key'`, also true where the key's value is null."""
    return fragment("COALESCE(json_exists(:document, :path), false)", document=document.node, path=_path(key))
