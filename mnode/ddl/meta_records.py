"""The bodies of META records: how child tables and schemas change, in the order of the rows around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.sql.schema import ChildTable, Table, TagValue, joined_names
from penstock.tasks.protocol.child_records import written_uids


def create_children(
    table_uid: int, uids: npt.NDArray[np.uint64], names: Sequence[str], tags: Sequence[Sequence[TagValue]]
) -> dict[str, Any]:
    """New child tables by columns, as `penstock.tasks.protocol.child_records` reads them: there may be a million.

    `uids`: as numbers of 64 bits, in base64; `names`: see `joined_names`; `tags`: for each tag of the super table the
    values of all children.
    """
    return {"op": "create_children", "table_uid": table_uid, "uids": written_uids(uids), "names": joined_names(names),
            "tags": [_plain(values) for values in tags]}


def set_tags(table_uid: int, before: ChildTable, child: ChildTable) -> dict[str, Any]:
    """The child's tags, all of them, as they are from now on, and as they were."""
    return {"op": "set_tags", "table_uid": table_uid, "child": _child(child), "before": [_child(before)]}


def drop_children(table_uid: int, children: Sequence[ChildTable]) -> dict[str, Any]:
    """The children are gone, which had these names and tags; a delete record for their rows came before."""
    return {"op": "drop_children", "table_uid": table_uid, "children": [child.uid for child in children],
            "before": list(map(_child, children))}


def alter_table(table: Table) -> dict[str, Any]:
    """The table's columns and tags as they are from now on: [name, physical name, type] each."""
    return {
        "op": "alter_table", "table_uid": table.uid, "schema_version": table.schema_version,
        "columns": [[column.name, column.physical, column.type.sql()] for column in table.columns],
        "tags": [[tag.name, tag.physical, tag.type.sql()] for tag in table.tags],
    }


def told_tags(child: ChildTable) -> list[Any]:
    """Returns the tags of a child table as a record has them."""
    return list(_plain(child.tag_values))


def _child(child: ChildTable) -> tuple[int, str, Sequence[Any]]:
    """Returns what JSON writes as a list."""
    return child.uid, child.name, _plain(child.tag_values)


def _plain(values: Sequence[TagValue]) -> Sequence[Any]:
    """Returns values of tags as JSON has them."""
    if bytes in map(type, values):
        return [value.hex() if isinstance(value, bytes) else value for value in values]
    return values
