"""Columns of results as fields of Arrow that say their SQL type, and back."""

from __future__ import annotations

import re
from typing import cast

import pyarrow as pa

from penstock.planner.task_plans.plan_tree import ResultColumn
from penstock.sql.schema import Column
from penstock.sql.types import DataType, Kind, Precision, other_type

_TYPE_NAME = b"ARROW:FLIGHT:SQL:TYPE_NAME"
_KINDS = frozenset(map(str, Kind))
_SQL_TYPE = re.compile(r"(?P<kind>[A-Z ]+)(?:\((?P<first>\d+)(?:,(?P<scale>\d+))?\))?")


def arrow_schema(columns: tuple[ResultColumn | Column, ...]) -> pa.Schema:
    """Returns the columns as Arrow's schema; each field's metadata has its SQL type, as Flight SQL wants it."""
    return pa.schema([
        pa.field(column.name, column.type.arrow(), metadata={_TYPE_NAME: column.type.sql()}) for column in columns])


def result_columns(schema: pa.Schema) -> tuple[ResultColumn, ...]:
    """Returns the columns that `arrow_schema` was given."""
    return tuple(ResultColumn(field.name, _data_type(field)) for field in schema)


def _data_type(field: pa.Field) -> DataType:
    name = field.metadata[_TYPE_NAME].decode()
    found = _SQL_TYPE.fullmatch(name)
    if found is None or found["kind"] not in _KINDS:
        return other_type(name)
    kind = Kind(found["kind"])
    size = int(found["first"]) if found["first"] else None
    if kind is Kind.TIMESTAMP:
        return DataType(kind, precision=cast(Precision, field.type.unit))
    if kind is Kind.DECIMAL:
        return DataType(kind, digits=size, scale=int(found["scale"]))
    return DataType(kind, length=size)
