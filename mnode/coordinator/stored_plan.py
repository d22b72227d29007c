"""What the catalog keeps of a stream that was planned: deployed again after a restart, as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.common.typed_json import Parts, TypedJson, parts_of_dataclass
from penstock.mnode.checkpoints.commit_records import require_layout
from penstock.planner.duckdb_sql.quoting import duckdb_name
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

_CAPITALS_MARKED = 6
"""Since this format SQL has other names for those with capitals (planner.duckdb_sql.quoting)."""
_QUOTED = re.compile(r"""'(?:[^']|'')*+'|"((?:[^"]|"")*+)\"""")
"""A text, or a name, in SQL."""

_RENAMED_IN_3: dict[str, tuple[str, dict[str, str]]] = {
    "OutsidePlan": ("ExternalSinkPlan", {}),
    "SinkPlan": ("SinkPlan", {"outside": "external"}),
    "JoinPlan": ("JoinPlan", {"meeting": "distribution"}),
}
"""Classes of format 2, with what format 3 calls them and their fields; all else is the same."""


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
    parts = body["parts"]
    if body["format"] == 2 and isinstance(parts, list):
        parts = [_renamed(part) for part in parts]
    elif body["format"] not in (3, 4, 5, 6, 7, 8, 9, 10, 11, _FORMAT):
        # Scans of 4 say whether newest rows suffice, kernels of 5 how values of rows make groups, sources of 7 which
        # tags are used, options of 8 what becomes of mismatches, graphs of 9 which of a
        # query's sources a task reads, plans of 12 what is computed apart from a trigger.
        raise ValueError(f"the format of stored plans {body['format']} is unknown")
    if body["format"] < _CAPITALS_MARKED and any(map(_is_otherwise_now, _texts(parts))):
        raise ValueError("its SQL has names with capitals as they are")
    stored = JSON.decode(parts)
    require_layout(body["layout"], layout_of(stored.plan))
    return stored


def stored_layout(text: str) -> str:
    """Returns the fingerprint of the layout of the state that a stored plan has, also if it is of another version."""
    return str(json.loads(text)["layout"])


def _texts(value: Any) -> Iterator[str]:
    """All texts in JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)


def _is_otherwise_now(text: str) -> bool:
    """Whether it is SQL with a name that is another one now."""
    return any(found[1] and duckdb_name(found[1]) != found[1] for found in _QUOTED.finditer(text))


def _renamed(part: Any) -> Any:
    """Returns a part of a plan of format 2 in the words of format 3; what is no such part as it is."""
    name = part.get("class") if isinstance(part, dict) else None
    if not isinstance(name, str) or name not in _RENAMED_IN_3:
        return part
    name, fields = _RENAMED_IN_3[name]
    return {**{fields.get(field, field): value for field, value in part.items()}, "class": name}
