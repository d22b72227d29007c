"""What the catalog keeps of a stream that was planned: deployed again after a restart, as it is."""

from __future__ import annotations

import json
from dataclasses import dataclass

from penstock.common.typed_json import Parts, TypedJson, parts_of_dataclass
from penstock.mnode.checkpoints.commit_records import require_layout
from penstock.planner.task_plans.stream_plan import StreamPlan
from penstock.sql.tree.node import Node
from penstock.sql.tree.statements import StreamOptions
from penstock.tasks.protocol.task_graph import TaskGraph
from penstock.tasks.state.state_layout import layout_of


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """What a stream computes, by which tasks, and the options of its statement."""

    plan: StreamPlan
    graph: TaskGraph
    options: StreamOptions


_FORMAT = 12
"""Raise it when the same JSON means something else."""


def _parts_of(kind: type) -> Parts | None:
    if issubclass(kind, Node):
        return {name: part.default for name, part in kind.parts.items() if not part.in_meta}
    return parts_of_dataclass(kind)


JSON = TypedJson(StoredPlan, _parts_of)


def encode(stored: StoredPlan) -> str:
    """Returns the plan as JSON, with the fingerprint of the layout of its state."""
    body = {"format": _FORMAT, "layout": layout_of(stored.plan), "parts": JSON.encode(stored)}
    return json.dumps(body, separators=(",", ":"))


def decode(text: str) -> StoredPlan:
    """Returns the plan that was stored.

    Raises ValueError if it is one of another version, StateLayoutError if this version lays its state out otherwise.
    """
    body = json.loads(text)
    if body["format"] != _FORMAT:
        raise ValueError(f"the format of stored plans {body['format']} is unknown")
    stored = JSON.decode(body["parts"])
    require_layout(body["layout"], layout_of(stored.plan))
    return stored


def stored_layout(text: str) -> str:
    """Returns the fingerprint of the layout of the state that a stored plan has, also if it is of another version."""
    return str(json.loads(text)["layout"])
