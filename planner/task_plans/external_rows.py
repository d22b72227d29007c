"""Results as rows that leave Penstock: which columns they have, and what tells them apart."""

from __future__ import annotations

from penstock.planner.task_plans.stream_plan import SinkPlan
from penstock.sql.schema import Column

IDENTITY = "_id"
"""What every external result has besides its columns and its operation: a hash of it."""
UPSERTED, DELETED, REFUSED = 0, 1, 2
"""Operations: there is this result, there are none of this time any more, the DLQ has it instead of the target."""


def key_names(sink: SinkPlan) -> tuple[str, ...]:
    """Returns the columns that tell one result from all others: the groups' keys, the time, and a second key; or the
    KEY.
    """
    if sink.by_key:
        return tuple(column.name for column in sink.columns if column.primary_key)
    second = () if sink.key_column is None else (sink.key_column.name,)
    return (*(tag.name for tag in sink.tags), sink.columns[0].name, *second)


def external_columns(sink: SinkPlan) -> tuple[Column, ...]:
    """Returns the columns of external results: the groups' keys, or the KEY, then what is selected and isn't among
    these.
    """
    if sink.by_key:
        return tuple(sorted(sink.columns, key=lambda column: not column.primary_key))
    keys = {tag.name for tag in sink.tags}
    return (*sink.tags, *(column for column in sink.columns if column.name not in keys))
