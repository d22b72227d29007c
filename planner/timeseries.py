"""Functions that give rows rather than a value: DIFF and its kin, TOP and its kin. No windows over time, no groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from penstock.planner.binder import Builder, Relation
from penstock.planner.expressions import compile_expression
from penstock.planner.functions.table import check_call, require
from penstock.planner.plan import SqlExpr
from penstock.planner.scopes import NO_TIME_LINE, NOT_ALLOWED_FUNCTION, RowScope
from penstock.sql.dialect import DurationLiteral
from penstock.sql.literals import parse_duration
from penstock.sql.statements import Duration
from penstock.sql.types import DataType, Kind

# Functions of the same row rule may stand side by side: their results have the same rows.
ROW_RULES = {"diff": "diff", "derivative": "derivative", "csum": "csum", "mavg": "mavg",
             "statecount": "state", "stateduration": "state"}
PICKING = ("top", "bottom", "sample", "tail", "unique")
_COMPARISONS = {"lt": "<", "gt": ">", "le": "<=", "ge": ">=", "ne": "<>", "eq": "="}


@dataclass(frozen=True, slots=True)
class Call:
    """A checked call: compiled arguments (None for durations), constants by position, result type."""

    name: str
    arguments: tuple[SqlExpr, ...]
    constants: tuple[object, ...]
    type: DataType
    node: exp.Anonymous

    def constant(self, index: int, default: object = None) -> object:
        """Returns the value of an argument that is known when planning."""
        return self.constants[index] if index < len(self.constants) else default

    def integer(self, index: int, default: int = 0) -> int:
        """Returns such a value, which the checks have found to be an integer."""
        value = self.constant(index, default)
        assert isinstance(value, int)
        return value


def checked_call(node: exp.Anonymous, scope: RowScope) -> Call:
    """Compiles and checks the arguments of a call over rows. Raises InvalidStatementError."""
    spec = require(str(node.this), scope.builder.position(node))
    arguments: list[SqlExpr] = []
    constants: list[object] = []
    for index, argument in enumerate(node.expressions):
        if isinstance(argument, exp.Star):
            raise scope.builder.error(f"{spec.name}(*) is not possible", node, hint=f"write {spec.signature}")
        duration = _duration(argument) if index < spec.maximum and spec.argument(index).duration else None
        if duration is not None:
            arguments.append(SqlExpr("NULL", DataType(Kind.BIGINT)))
            constants.append(duration)
        else:
            compiled = compile_expression(argument, scope)
            arguments.append(compiled)
            constants.append(compiled.constant)
    result = check_call(spec, [argument.type for argument in arguments], constants,
                        precision=scope.precision, position=scope.builder.position(node))
    return Call(spec.name, tuple(arguments), tuple(constants), result, node)


def _duration(node: exp.Expression) -> Duration | None:
    if isinstance(node, DurationLiteral):
        return node.duration
    if isinstance(node, exp.Literal) and node.is_string:
        return parse_duration(node.this)
    return None


def unit_of(duration: object, scope: RowScope, node: exp.Expression, least: int = 1) -> int:
    """Returns the length of a unit argument in units of the precision; None is one such unit."""
    if duration is None:
        return 1
    assert isinstance(duration, Duration)
    if duration.is_calendar or duration.in_units(scope.precision) < least:
        raise scope.builder.error(f"the unit {duration} is too short or not a fixed time", node)
    return duration.in_units(scope.precision)


def over(keys: Sequence[str], order: Sequence[str], frame: str = "") -> str:
    """Returns the OVER clause of a window function that runs along the time line of each group."""
    partition = f"PARTITION BY {', '.join(keys)} " if keys else ""
    ordering = f"ORDER BY {', '.join(order)}" if order else ""
    return f"OVER ({partition}{ordering}{frame})"


def time_series(
    calls: Sequence[Call], relation: Relation, keys: Sequence[str], builder: Builder, scope: RowScope
) -> tuple[Relation, list[SqlExpr]]:
    """Returns the rows that the calls leave, and the value of each call on them."""
    rules = {ROW_RULES[call.name] for call in calls}
    if len(rules) > 1:
        names = " and ".join(f"{call.name}()" for call in calls)
        raise builder.error(f"{names} give different rows, so they cannot stand in one query", calls[1].node,
                            code=NOT_ALLOWED_FUNCTION)
    if relation.time is None:
        raise builder.error(f"{calls[0].name}() needs a time line", calls[0].node, code=NO_TIME_LINE,
                            hint="let the sub-query return the primary timestamp")
    order = relation.order
    ts = order[0]
    name = relation.name
    match rules.pop():
        case "csum" | "mavg":
            present = " AND ".join(f"({call.arguments[0].sql}) IS NOT NULL" for call in calls)
            name = builder.step("rows", f"SELECT * FROM {name} WHERE {present}")
        case "state":
            so_far = over(keys, order, " ROWS UNBOUNDED PRECEDING")
            runs = [f"sum(CASE WHEN {_holds(call)} THEN 0 WHEN ({call.arguments[0].sql}) IS NULL THEN 0 ELSE 1 END) "
                    f"{so_far} AS \"#run{index}\"" for index, call in enumerate(calls)]
            name = builder.step("runs", f"SELECT *, {', '.join(runs)} FROM {name}")
    values, keeps = [], []
    for index, call in enumerate(calls):
        value, keep = _series_value(call, index, keys, order, ts, scope)
        values.append(f"{value} AS \"#value{index}\"")
        keeps.append(keep.replace("{value}", f"\"#value{index}\""))
    helper = f"row_number() {over(keys, order)} AS \"#row\""
    name = builder.step("series", f"SELECT *, {helper}, {', '.join(values)} FROM {name}")
    name = builder.step("series", f"SELECT * FROM {name} WHERE {' OR '.join(f'({keep})' for keep in keeps)}")
    return relation.over(name), [SqlExpr(f"\"#value{index}\"", call.type) for index, call in enumerate(calls)]


def _series_value(
    call: Call, index: int, keys: Sequence[str], order: Sequence[str], ts: str, scope: RowScope
) -> tuple[str, str]:
    """SQL of the value of a call on each row, and of whether the row stays; `{value}` there is the value."""
    value = call.arguments[0].sql
    match call.name:
        case "diff":
            wide = "DOUBLE" if call.type.kind is Kind.DOUBLE else "HUGEINT"
            number = f"({value})::{'TINYINT::' if call.arguments[0].type.kind is Kind.BOOL else ''}{wide}"
            change = f"{number} - lag({number} IGNORE NULLS) {over(keys, order)}"
            result = f"TRY_CAST({change} AS {call.type.duckdb()})"
            ignore = call.integer(1)
            if ignore & 1:
                result = f"CASE WHEN {change} >= 0 THEN {result} END"
            return result, "{value} IS NOT NULL" if ignore & 2 else '"#row" > 1'
        case "derivative":
            unit = unit_of(call.constant(1), scope, call.node)
            point = f"CASE WHEN ({value}) IS NOT NULL THEN {{'t': {ts}, 'v': ({value})::DOUBLE}} END"
            before = f"lag({point} IGNORE NULLS) {over(keys, order)}"
            rate = (f"(({value})::DOUBLE - ({before}).v) / nullif(({ts} - ({before}).t)::DOUBLE / {unit}, 0)")
            keep = "{value} IS NOT NULL" + (" AND {value} >= 0" if call.integer(2) else "")
            return rate, keep
        case "csum":
            number = f"({value})::TINYINT" if call.arguments[0].type.kind is Kind.BOOL else f"({value})"
            running = f"sum({number}) {over(keys, order, ' ROWS UNBOUNDED PRECEDING')}"
            return f"TRY_CAST({running} AS {call.type.duckdb()})", "true"
        case "mavg":
            rows = call.integer(1, 1)
            frame = f" ROWS BETWEEN {rows - 1} PRECEDING AND CURRENT ROW"
            return f"avg(({value})::DOUBLE) {over(keys, order, frame)}", f'"#row" >= {rows}'
    run = over([*keys, f'"#run{index}"'], order, " ROWS UNBOUNDED PRECEDING")
    if call.name == "statecount":
        result = f"count(*) FILTER ({_holds(call)}) {run}"
    else:
        unit = unit_of(call.constant(3), scope, call.node)
        result = f"({ts} - min({ts}) FILTER ({_holds(call)}) {run}) // {unit}"
    return f"CASE WHEN {_holds(call)} THEN {result} WHEN ({value}) IS NOT NULL THEN -1 END", "true"


def _holds(call: Call) -> str:
    operator = _COMPARISONS[str(call.constant(1)).lower()]
    return f"(({call.arguments[0].sql}) {operator} ({call.arguments[2].sql}))"


def picked_rows(
    call: Call, relation: Relation, keys: Sequence[str], builder: Builder, seed: int
) -> tuple[Relation, SqlExpr]:
    """Returns the rows that TOP, BOTTOM, SAMPLE, TAIL or UNIQUE picks in each group, and the call's value on them."""
    # Computed once: what is ranked by is what is shown, also if it is random.
    valued = builder.step("valued", f"SELECT *, {call.arguments[0].sql} AS \"#picked\" FROM {relation.name}")
    relation, value = relation.over(valued), SqlExpr('"#picked"', call.arguments[0].type)
    order = relation.order
    if call.name in ("tail", "unique") and not order:
        raise builder.error(f"{call.name}() needs a time line", call.node, code=NO_TIME_LINE,
                            hint="let the sub-query return the primary timestamp")
    partition = list(keys)
    present = f" WHERE ({value.sql}) IS NOT NULL"
    first, last = 1, call.integer(1, 1)
    match call.name:
        case "top":
            ranking = [f"({value.sql}) DESC", *order]
        case "bottom":
            ranking = [f"({value.sql}) ASC", *order]
        case "sample":
            identity = ", ".join((*order, value.sql, str(seed)))
            ranking = [f"hash({identity})", *order]
        case "tail":
            present = ""
            ranking = [f"{column} DESC" for column in order]
            skipped = call.integer(2)
            first, last = skipped + 1, skipped + last
        case _:
            present, last = "", 1
            partition.append(f"({value.sql})")
            ranking = list(order)
    rank = f"row_number() {over(partition, ranking)} AS \"#rank\""
    ranked = builder.step("ranked", f"SELECT *, {rank} FROM {relation.name}{present}")
    name = builder.step("picked", f"SELECT * FROM {ranked} WHERE \"#rank\" BETWEEN {first} AND {last}")
    return relation.over(name), SqlExpr(value.sql, call.type)
