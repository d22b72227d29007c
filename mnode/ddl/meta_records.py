"""The bodies of META records: how child tables and schemas change, in the order of the rows around them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from penstock.sql.schema import ChildTable, Table


def create_children(table_uid: int, children: Iterable[ChildTable]) -> dict[str, Any]:
    """`children`: [uid, name, [tag values in the order of the super table's tags]] each."""
    return {"op": "create_children", "table_uid": table_uid, "children": [_child(child) for child in children]}


def set_tags(table_uid: int, child: ChildTable) -> dict[str, Any]:
    """The child's tags, all of them, as they are from now on."""
    return {"op": "set_tags", "table_uid": table_uid, "child": _child(child)}


def drop_children(table_uid: int, uids: Sequence[int]) -> dict[str, Any]:
    """The children are gone; a delete record for their rows came before."""
    return {"op": "drop_children", "table_uid": table_uid, "children": list(uids)}


def alter_table(table: Table) -> dict[str, Any]:
    """The table's columns and tags as they are from now on: [name, physical name, type] each."""
    return {
        "op": "alter_table", "table_uid": table.uid, "schema_version": table.schema_version,
        "columns": [[column.name, column.physical, column.type.sql()] for column in table.columns],
        "tags": [[tag.name, tag.physical, tag.type.sql()] for tag in table.tags],
    }


def _child(child: ChildTable) -> tuple[int, str, Sequence[Any]]:
    """Returns what JSON writes as a list."""
    tags = child.tag_values
    if bytes in map(type, tags):
        return child.uid, child.name, [value.hex() if isinstance(value, bytes) else value for value in tags]
    return child.uid, child.name, tags
