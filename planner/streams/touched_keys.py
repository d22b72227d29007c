"""Which rows of an answer a changed row can touch: those with its values in columns that no operator mixes.

Rows of a plan go their way apart from all others that have another value in such a column: as keys of groups and
partitions, as what both sides of a join have in common, or as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from sqlglot import exp

from penstock.planner.duckdb_sql.duckdb_tree import all_of, column, fragment, is_column, text
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.expr import Expr
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
from penstock.planner.query.batch_plan import BatchPlan
from penstock.planner.query.select import plan_query, relowered
from penstock.sql.schema import CatalogView, Session, Table
from penstock.sql.tree.statements import Name, Select, SelectItem, TableSource
from penstock.sql.tree.walking import found_in
from penstock.sql.types import BOOL, INTEGERS, Kind

_BETWEEN = "\x1f"
_KINDS = (*INTEGERS, Kind.VARCHAR, Kind.NCHAR)

Origins = frozenset[tuple[str, str]]
"""Columns of scans, by the names of both, one of each scan: rows with another value there are of another part."""

Value = int | str | None


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


def with_values(plan: Operator, values: Sequence[tuple[TouchedColumn, Sequence[Value]]]) -> Operator | None:
    """Returns the plan of that part of an answer that has some values in such columns; None if one can't be written.
    """
    if any(isinstance(each, str) and _BETWEEN in each for _, some in values for each in some):
        return None
    conditions: dict[str, list[tuple[str, Sequence[Value]]]] = {}
    for touched, some in values:
        for scan, name in touched.origins:
            conditions.setdefault(scan, []).append((name, some))
    restricted: Operator = _restricted(plan, conditions)
    return restricted


def _one_of(value: Expr, some: Sequence[Value]) -> exp.Expression:
    """Returns the condition that a value is one of some, NULL being one, too."""
    given = [str(each) for each in some if each is not None]
    among = fragment("false") if not given else fragment(
        ":value IN (SELECT unnest(string_split(:given, chr(31)):::type))".replace(":type", f"{value.type.duckdb()}[]"),
        value=value.node, given=text(_BETWEEN.join(given)))
    return fragment("(:among OR :value IS NULL)", among=among, value=value.node) if None in some else among


def rows_with(
    table: Table, values: Sequence[tuple[int, Sequence[Value]]], catalog: CatalogView, session: Session
) -> BatchPlan:
    """Returns the plan of a query for the rows of a table that have some values in columns, by their places.

    No text has 0x1F.
    """
    every = Select((SelectItem(exp.Star(), None, "*"),), TableSource(Name(table.name, table.database)))
    batch = plan_query(every, catalog, session, ordered=False)
    (scan,) = batch.scans
    plan = with_values(batch.plan, [
        (TouchedColumn(place, frozenset([(scan.name, table.columns[place].name)])), some) for place, some in values])
    assert plan is not None
    return relowered(batch, plan)


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


# --- a part of the answer -----------------------------------------------------------------------------------------


def _restricted(value: Any, conditions: Mapping[str, Sequence[tuple[str, Sequence[Value]]]]) -> Any:
    """Returns a part of a plan in which scans give only rows with some values."""
    if isinstance(value, Scan):
        own = conditions.get(value.name)
        if own is None:
            return value
        types = {each.name: each.type for each in value.output}
        each = [_one_of(SqlExpr(column(name), types[name]), some) for name, some in own]
        condition = SqlExpr(all_of(each), BOOL)
        return Filter(value, condition, condition.node)
    if isinstance(value, tuple):
        return tuple(_restricted(each, conditions) for each in value)
    if is_dataclass(value) and not isinstance(value, type | SqlExpr):
        below = {each.name: _restricted(getattr(value, each.name), conditions) for each in fields(value)
                 if each.name in ("input", "inputs", "left", "right", "rows")}
        return replace(value, **below) if below else value
    return value
