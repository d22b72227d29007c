"""What the catalog keeps of a stream that was planned: deployed again after a restart, as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from penstock.common.typed_json import Parts, TypedJson, parts_of_dataclass
from penstock.mnode.records import require_layout
from penstock.planner.stream import StreamPlan
from penstock.sql.node import Node
from penstock.sql.statements import StreamOptions
from penstock.tasks.graph import TaskGraph
from penstock.tasks.layout import layout_of


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """What a stream computes, by which tasks, and the options of its statement."""

    plan: StreamPlan
    graph: TaskGraph
    options: StreamOptions


_FORMAT = 1
"""Raise it when the same JSON means something else."""


def _parts_of(kind: type) -> Parts | None:
    if issubclass(kind, Node):
        return {name: part.default for name, part in kind.parts.items() if not part.in_meta}
    return parts_of_dataclass(kind)


JSON = TypedJson(StoredPlan, _parts_of)


def to_json(stored: StoredPlan) -> dict[str, Any]:
    """Returns the plan with the fingerprint of the layout of its state."""
    return {"format": _FORMAT, "layout": layout_of(stored.plan), "parts": JSON.encode(stored)}


def from_json(value: dict[str, Any]) -> StoredPlan:
    """Returns the plan that was stored.

    Raises ValueError if it is one of another version, StateLayoutError if this version lays its state out otherwise.
    """
    if value.get("format") != _FORMAT:
        raise ValueError(f"the format of stored plans {value.get('format')} is unknown")
    stored = JSON.decode(value["parts"])
    require_layout(value["layout"], layout_of(stored.plan))
    return stored
