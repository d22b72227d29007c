"""A logical plan as the tree that EXPLAIN prints."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.planner.logical.expr import Computed
from penstock.planner.logical.joining import method_of
from penstock.planner.logical.operators import (
    Aggregate,
    Children,
    Combined,
    ConstantRows,
    Distinct,
    FillGaps,
    Filter,
    Generated,
    Interpolate,
    Iterated,
    Join,
    Lateral,
    LimitRows,
    Lookup,
    NameTables,
    OneRow,
    Operator,
    Over,
    Parameter,
    PartitionLimit,
    Pick,
    Project,
    Recursive,
    Scan,
    SeriesValues,
    Shared,
    Sort,
    Viewed,
    Window,
    WindowGrid,
    inputs_of,
)
from penstock.planner.logical.stream import LogicalStream
from penstock.planner.logical.written import text_of, window_text
from penstock.planner.task_plans.plan_tree import PlanNode
from penstock.sql.schema import UNSEEN

Properties = list[tuple[str, str]]


def explained(plan: Operator) -> PlanNode:
    """Returns the tree of the operators that the statement asks for; helping ones aren't shown.

    What is below a query that WITH names stands where it is read first.
    """
    return _explained(plan, set())


def _explained(plan: Operator, told: set[str]) -> PlanNode:
    found, below = _shown(plan), inputs_of(plan)
    if isinstance(plan, Shared):
        below = () if plan.key in told else below
        told.add(plan.key)
    inputs = tuple(_explained(each, told) for each in below)
    return inputs[0] if found is None else PlanNode(found[0], tuple(found[1]), inputs)


def explained_stream(stream: LogicalStream, times: Sequence[tuple[str, str]]) -> PlanNode:
    """Returns the tree of a stream, below a line of what only streams have. `times`: what is told of its time."""
    policies = stream.policies
    zone = [("timezone", stream.time_zone)] if stream.own_zone else []
    rules = zone if stream.trigger == "force_window_close" else [
        *([("period", f"{stream.period_ms}ms")] if stream.period_ms else []),
        ("watermark", f"{policies.watermark}{stream.precision}"), *times, *zone,
        *([("on error", policies.on_error)] if policies.on_error != "null" else []),
        *([("dlq", stream.dlq.name)] if stream.dlq is not None else []),
        ("ignore expired", str(int(policies.ignore_expired))), ("ignore update", str(int(policies.ignore_update))),
        *([("history", "filled")] if stream.history is not None else [])]
    return PlanNode("Stream", (("trigger", stream.trigger), *rules, ("into", stream.target.text)),
                    (explained(stream.plan),))


def _shown(operator: Operator) -> tuple[str, Properties] | None:
    """The name and the properties of an operator, None if it isn't shown."""
    match operator:
        case Scan():
            return "Scan", _scan(operator)
        case Children(table=table):
            return "Tables", [("of", f"{table.database}.{table.name}")]
        case OneRow():
            return "OneRow", []
        case ConstantRows(rows=rows):
            return "Values", [("rows", str(len(rows)))]
        case Generated(function=function):
            return "Generated", [("by", function)]
        case Iterated():
            return "LastStep", []
        case Lateral(outer=outer):
            return "Lateral", [("kind", "left" if outer else "inner")]
        case Recursive():
            return "Recursive", [("all", "yes" if operator.all else "no")]
        case Filter():
            return "Filter", [(operator.clause, text_of(operator.written))]
        case Project():
            labels = [column.label for column in operator.columns if column.label is not None]
            return ("Project", [("columns", " ".join(labels))]) if labels else None
        case Lookup():
            written = [("on", text_of(operator.written))] if operator.written is not None else []
            return "Lookup", [("kind", "left" if operator.outer else "inner"), *written]
        case Join():
            return "Join", _join(operator)
        case Window() | NameTables():
            return None  # the operator that computes over it, or below it, says so
        case Aggregate():
            window = [("window", window_text(operator.window))] if operator.window is not None else []
            functions = " ".join(map(text_of, operator.functions)) or "none"
            sets = [] if operator.sets is None else [("sets", str(len(operator.sets)))]
            return "Aggregate", [*window, *_by(operator.by), *sets, ("functions", functions)]
        case FillGaps(mode=mode):
            return "Fill", [("mode", mode)]
        case SeriesValues(calls=calls):
            return "Series", [("functions", " ".join(call.function for call in calls)), *_by(operator.by)]
        case Pick(call=call):
            window_by = () if operator.window is None else (window_text(operator.window),)
            return "Pick", [("function", call.function), *_by((*window_by, *operator.by))]
        case Interpolate(grid=grid, mode=mode):
            return "Interp", [("fill", mode), ("grid", _grid(grid))]
        case Over(written=written):
            return "Over", [("functions", " ".join(map(text_of, written)))]
        case Combined():
            return operator.kind.capitalize(), [("all", "yes" if operator.all else "no")]
        case Viewed(view=view):
            return "View", [("name", view)]
        case Shared(name=name):
            return "With", [("name", name)]
    return _of_result(operator)


def _of_result(operator: Distinct | Sort | LimitRows | PartitionLimit) -> tuple[str, Properties] | None:
    match operator:
        case Distinct():
            return "Distinct", []
        case Sort(keys=keys):
            written = [f"{text_of(key.written)}{' desc' if key.descending else ''}" for key in keys
                       if key.written is not None]
            return ("Sort", [("by", " ".join(written))]) if written else None
        case LimitRows() | PartitionLimit():
            if isinstance(operator, LimitRows) and operator.distinct_on:
                return "DistinctOn", [("by", " ".join(map(text_of, operator.distinct_on)))]
            kind = "Limit" if isinstance(operator, LimitRows) else "PartitionLimit"
            count, offset = (str(each.label if isinstance(each, Computed) else each)
                             for each in (operator.count, operator.offset))
            return kind, [("count", "all" if operator.count is None else count), ("offset", offset)]


def _by(labels: tuple[str, ...]) -> Properties:
    return [("by", " ".join(labels))] if labels else []


def _scan(scan: Scan) -> Properties:
    properties = [("table", f"{scan.table.database}.{scan.table.name}"), ("kind", scan.table.kind),
                  ("columns", " ".join(name for name in scan.columns if name not in UNSEEN) or "none")]
    if scan.tuids is not None:
        properties.append(("tables", str(len(scan.tuids))))
    if scan.newest is not None:
        properties.append(("newest", scan.newest))
    if scan.counted:
        properties.append(("rows", "counted"))
    if scan.first_ts is not None or scan.last_ts is not None:
        properties.append(("time", _between(scan.first_ts, scan.last_ts)))
    if scan.keys is not None:
        properties.append(("keys", str(len(scan.keys))))
    if scan.ranges:
        properties.append(("ranges", " ".join(f"{name}{_between(first, last)}" for name, first, last in scan.ranges)))
    return properties


def _between(first: int | None, last: int | None) -> str:
    return f"[{'' if first is None else first}..{'' if last is None else last}]"


def _grid(grid: WindowGrid) -> str:
    first, last = (f":{end.name}" if isinstance(end, Parameter) else end for end in (grid.first, grid.last))
    return f"{first}..{last}/{grid.step}"


def _join(join: Join) -> Properties:
    variant = "asof" if join.nearest else join.variant
    properties = [("kind", " ".join(word for word in (join.kind, variant) if word))]
    source = join.written
    if source.on is not None:
        properties.append(("on", text_of(source.on)))
    if source.window is not None:
        properties.append(("window", f"{source.window[0]}..{source.window[1]}"))
    if source.jlimit is not None:
        properties.append(("jlimit", str(source.jlimit)))
    properties.append(("by", method_of(join)))
    if join.looked_up is not None:
        properties.append(("looked up in", " ".join(join.side(join.looked_up).qualifiers)))
    return properties
