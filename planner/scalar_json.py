"""JSON tags: `->`, CONTAINS and comparisons of their values, whose type is known only per row."""

from __future__ import annotations

from typing import Literal

from penstock.planner.plan import SqlExpr
from penstock.planner.scalar_sql import quote_text
from penstock.sql.types import DataType

JsonKind = Literal["number", "text", "bool"]

_TYPES: dict[JsonKind, str] = {
    "number": "'BIGINT', 'UBIGINT', 'DOUBLE', 'HUGEINT'", "text": "'VARCHAR'", "bool": "'BOOLEAN'",
}


class JsonValue(SqlExpr):
    """The value of a key: `sql` is its text as results show it, `raw` is SQL of the JSON value itself."""

    __slots__ = ("raw",)

    def __init__(self, sql: str, type: DataType, raw: str) -> None:
        super().__init__(sql, type)
        self.raw = raw

    def is_null(self) -> str:
        """Returns the condition that the key is missing or its value is JSON's null."""
        return f"(COALESCE(json_type({self.raw}), 'NULL') = 'NULL')"

    def typed(self, kind: JsonKind) -> str:
        """Returns SQL of the value as DOUBLE, VARCHAR or BOOLEAN, NULL where the value is of another type."""
        convert = {
            "number": f"TRY_CAST(json_extract_string({self.raw}, '$') AS DOUBLE)",
            "text": f"json_extract_string({self.raw}, '$')",
            "bool": f"TRY_CAST(json_extract_string({self.raw}, '$') AS BOOLEAN)",
        }[kind]
        return f"CASE WHEN json_type({self.raw}) IN ({_TYPES[kind]}) THEN {convert} END"


def _path(key: str) -> str:
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return quote_text(f'$."{escaped}"')


def get(document: SqlExpr, key: str) -> JsonValue:
    """Compiles `document -> 'key'`: strings keep their quotes, numbers are printed with nine decimals."""
    raw = f"json_extract({document.sql}, {_path(key)})"
    shown = (f"CASE WHEN json_type({raw}) IN ({_TYPES['number']}) "
             f"THEN printf('%.9f', TRY_CAST(json_extract_string({raw}, '$') AS DOUBLE)) "
             f"ELSE CAST({raw} AS VARCHAR) END")
    return JsonValue(shown, document.type, raw)


def contains(document: SqlExpr, key: str) -> str:
    """Compiles `document CONTAINS 'key'`, also true where the key's value is null."""
    return f"COALESCE(json_exists({document.sql}, {_path(key)}), false)"
