"""Which rows of an answer a changed row can touch: those with its values in columns that no operator mixes.

Rows of a plan go their way apart from all others that have another value in such a column: as keys of groups and
partitions, as what both sides of a join have in common, or as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from sqlglot import exp

from penstock.planner.duckdb_sql.duckdb_tree import is_column
from penstock.planner.logical.operators import (
    Aggregate,
    Combined,
    Distinct,
    Filter,
    Join,
    LimitRows,
    Operator,
    Over,
    Project,
    Scan,
    Shared,
    Side,
    Sort,
    Viewed,
    Window,
)
from penstock.planner.logical.window_kinds import ByClock, ByInterval
from penstock.sql.tree.walking import found_in
from penstock.sql.types import INTEGERS, Kind

_KINDS = (*INTEGERS, Kind.VARCHAR, Kind.NCHAR)

Origins = frozenset[tuple[str, str]]
"""Columns of scans, by the names of both, one of each scan: rows with another value there are of another part."""

ValuesOfColumn = tuple[pa.Array, ...]
"""Whole numbers, or texts, and NULL; arrays, since columns of the tables that are joined may have several types."""

TouchedValues = tuple[ValuesOfColumn, ...]
"""Values of each touched column of an answer."""


@dataclass(frozen=True, slots=True)
class TouchedColumn:
    """A column of an answer, by its `place`, and the columns of tables that its values are: of each scan one."""

    place: int
    origins: Origins


def touched_columns(plan: Operator) -> tuple[TouchedColumn, ...]:
    """Returns the columns of an answer by whose values its rows come of rows of their own; none if there aren't any."""
    found = _apart(plan)
    return tuple(TouchedColumn(place, found[each.name]) for place, each in enumerate(plan.output)
                 if each.name in found and each.type.kind in _KINDS)


def read_with(touched: Sequence[TouchedColumn], values: TouchedValues) -> Mapping[str, Mapping[str, ValuesOfColumn]]:
    """Returns which rows scans give for that part of an answer that has some values in such columns: by scan and column
    those that have one of these values."""
    found: dict[str, dict[str, ValuesOfColumn]] = {}
    for each, some in zip(touched, values, strict=True):
        for scan, name in each.origins:
            found.setdefault(scan, {})[name] = some
    return found


# --- which columns keep rows apart ------------------------------------------------------------------------------


def _apart(plan: Operator) -> Mapping[str, Origins]:
    """Returns the columns of rows by which they are apart, with where their values come from."""
    match plan:
        case Scan():
            return _of_scan(plan)
        case Filter():
            return {} if _asks(plan.condition.node) else _apart(plan.input)
        case Project():
            return _projected(plan)
        case Aggregate():
            return {} if plan.sets is not None else _only(_apart(plan.input), plan.keys)
        case Window():
            below = _apart(plan.input)
            return below if isinstance(plan.shape, ByInterval | ByClock) else _only(below, plan.line.keys)
        case Over():
            found = _apart(plan.input)
            for computed in plan.columns:
                overs = list(found_in(computed.value.node, exp.Window))
                if not overs or _asks(computed.value.node):
                    return {}
                for over in overs:
                    found = _only(found, [each.name for each in over.args.get("partition_by") or ()
                                          if isinstance(each, exp.Column)])
            return found
        case LimitRows():
            return _apart(plan.input) if plan.count is None and plan.offset == 0 else _only(
                _apart(plan.input), plan.keys)
        case Distinct() | Sort() | Viewed() | Shared():
            return _apart(plan.input)
        case Combined():
            sides = [[_apart(each).get(column.name) for column in each.output] for each in plan.inputs]
            return {each.name: merged for each, *parts in zip(plan.output, *sides, strict=True)
                    if (merged := _merged(parts)) is not None}
        case Join():
            return _joined(plan)
    return {}


def _of_scan(scan: Scan) -> Mapping[str, Origins]:
    if scan.table.kind not in ("super", "normal", "child") or scan.newest is not None or scan.counted or scan.names or (
            scan.cuts is not None):
        return {}
    kinds = {each.name: each.type.kind for each in scan.table.columns}
    return {name: frozenset([(scan.name, name)]) for name in scan.columns if kinds.get(name) in _KINDS}


def _only(found: Mapping[str, Origins], names: Sequence[str]) -> Mapping[str, Origins]:
    return {name: origins for name, origins in found.items() if name in names}


def _asks(node: exp.Expression) -> bool:
    """Whether an expression has a query, which may read any rows."""
    return any(True for _ in found_in(node, exp.Select, exp.Subquery, exp.Exists))


def _projected(plan: Project) -> Mapping[str, Origins]:
    below = _apart(plan.input)
    found = dict(below) if plan.extends else {}
    for computed in plan.columns:
        node = computed.value.node
        if _asks(node):
            return {}
        if isinstance(node, exp.Column) and is_column(node, node.name) and node.name in below:
            found[computed.name] = below[node.name]
        else:
            found.pop(computed.name, None)
    return found


def _joined(plan: Join) -> Mapping[str, Origins]:
    """What is equal on both sides keeps rows apart, but for those of a side that may stay alone."""
    if plan.variant not in ("", "semi", "anti") or plan.kind == "full" or plan.limit is not None or _asks(
            plan.condition.node):
        return {}
    left, right = _apart(plan.left.rows), _apart(plan.right.rows)
    sides: dict[Side, dict[str, Origins]] = {"l": {}, "r": {}}
    for key in plan.keys:
        if not isinstance(key.left.node, exp.Column) or not isinstance(key.right.node, exp.Column) or (
                key.left.type.kind is not key.right.type.kind):
            continue
        merged = _merged([left.get(key.left.node.name), right.get(key.right.node.name)])
        if merged is not None:
            sides["l"][key.left.node.name] = merged
            sides["r"][key.right.node.name] = merged
    alone: list[Side] = [] if plan.variant == "" and plan.kind == "inner" else [plan.other]
    return {each.name: sides[each.side][each.column.name] for each in plan.columns
            if each.side not in alone and each.column.name in sides[each.side]}


def _merged(parts: Sequence[Origins | None]) -> Origins | None:
    """Returns all origins together; None where one is missing, or a scan would have two."""
    if None in parts:
        return None
    merged = frozenset[tuple[str, str]]().union(*(part for part in parts if part is not None))
    return merged if len({scan for scan, _ in merged}) == len(merged) else None
