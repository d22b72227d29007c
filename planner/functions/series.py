"""Functions along the time line: they give a value per row, made of the rows before it."""

from __future__ import annotations

from penstock.planner.duckdb_sql.duckdb_tree import Tree, call, column, fragment, number
from penstock.planner.duckdb_sql.pieces import frame, ignoring_nulls, so_far, try_as
from penstock.planner.functions.line_call import AlongRows, LineCall
from penstock.planner.functions.spec import (
    INTEGER_KINDS,
    NUMBERS,
    TEXTS,
    Argument,
    FunctionSpec,
    ResultRule,
    always,
    same_as_first,
    sum_type,
)
from penstock.sql.types import BIGINT, DOUBLE, Kind

_NUMBER = Argument("number", NUMBERS)
_LIMIT = Argument("limit", NUMBERS, literal=True)
_OPERATOR = Argument("operator", TEXTS, literal=True, choices=("lt", "gt", "le", "ge", "ne", "eq"))
_COMPARISONS = {"lt": ":value < :bound", "gt": ":value > :bound", "le": ":value <= :bound", "ge": ":value >= :bound",
                "ne": ":value <> :bound", "eq": ":value = :bound"}


def _series(name: str, arguments: tuple[Argument, ...], result: ResultRule, along: AlongRows, summary: str,
            example: str) -> FunctionSpec:
    return FunctionSpec(name, "timeseries", arguments, result, summary, in_stream=False, multi_row=True,
                        needs_time=True, example=example, along=along)


# --- changes ----------------------------------------------------------------------------------------------------


def _diff(given: LineCall) -> Tree:
    wide = ":number::DOUBLE" if given.call.type.kind is Kind.DOUBLE else ":number::HUGEINT"
    number = fragment(wide, number=given.number)
    change = fragment(":number - :before", number=number, before=given.along(ignoring_nulls("lag", number)))
    result = try_as(change, given.call.type)
    if given.integer(1) & 1:
        return fragment("CASE WHEN :change >= 0 THEN :result END", change=change, result=result)
    return result


def _diff_stays(given: LineCall) -> Tree:
    return given.has_value if given.integer(1) & 2 else fragment(":row > 1", row=given.row)


def _derivative(given: LineCall) -> Tree:
    point = fragment("CASE WHEN :value IS NOT NULL THEN {'t': :time, 'v': :value::DOUBLE} END", value=given.value,
                     time=given.time)
    return fragment("(:value::DOUBLE - (:before).v) * :unit / nullif((:time - (:before).t)::DOUBLE, 0)",
                    value=given.value, before=given.along(ignoring_nulls("lag", point)), time=given.time,
                    unit=given.call.unit)


def _derivative_stays(given: LineCall) -> Tree:
    if not given.integer(2):
        return given.has_value
    return fragment(":shown IS NOT NULL AND :shown >= 0", shown=given.shown)


# --- sums and means ---------------------------------------------------------------------------------------------


def _csum(given: LineCall) -> Tree:
    return try_as(given.along(call("sum", given.number), so_far()), given.call.type)


def _mavg(given: LineCall) -> Tree:
    return given.along(fragment("avg(:value::DOUBLE)", value=given.value),
                       frame(str(given.integer(1) - 1), "PRECEDING", "CURRENT ROW"))


def _mavg_stays(given: LineCall) -> Tree:
    return fragment(":row >= :rows", row=given.row, rows=given.integer(1))


# --- values of other rows -----------------------------------------------------------------------------------------


def _shifted(given: LineCall) -> Tree:
    default = [try_as(argument.node, given.call.type) for argument in given.call.arguments[2:]]
    return given.along(call(given.call.function, given.value, number(given.integer(1)), *default))


def _fill_forward(given: LineCall) -> Tree:
    return given.along(ignoring_nulls("last_value", given.value), so_far())


def _neighbour(name: str, summary: str, example: str) -> FunctionSpec:
    return _series(name, (Argument("value"), Argument("rows", INTEGER_KINDS, literal=True, low=1),
                          Argument("default", literal=True, optional=True)),
                   same_as_first, AlongRows("every row", _shifted), summary, example)


# --- runs of rows for which a comparison holds --------------------------------------------------------------------


def _holds(given: LineCall) -> Tree:
    return fragment(_COMPARISONS[given.text(1)], value=given.value, bound=given.call.arguments[2].node)


def _along_run(function: Tree, given: LineCall) -> Tree:
    return given.along(function, so_far(), within=[column(given.run_name)])


def _where_it_holds(result: Tree, given: LineCall) -> Tree:
    return fragment("CASE WHEN :holds THEN :result WHEN :value IS NOT NULL THEN -1 END", holds=_holds(given),
                    result=result, value=given.value)


def _state_count(given: LineCall) -> Tree:
    return _where_it_holds(_along_run(fragment("count(*) FILTER (WHERE :holds)", holds=_holds(given)), given), given)


def _state_duration(given: LineCall) -> Tree:
    first = _along_run(fragment("min(:time) FILTER (WHERE :holds)", time=given.time, holds=_holds(given)), given)
    return _where_it_holds(
        fragment("(:time - :first) // :unit", time=given.time, first=first, unit=given.call.unit), given)


FUNCTIONS = (
    _series("diff", (Argument("value", NUMBERS | {Kind.BOOL, Kind.TIMESTAMP}, not_time_line=True),
                     Argument("ignore", INTEGER_KINDS, literal=True, low=0, high=3, optional=True)),
            lambda types: DOUBLE if types[0].kind in (Kind.FLOAT, Kind.DOUBLE) else BIGINT,
            AlongRows("diff", _diff, _diff_stays),
            "Each value minus the previous one. `ignore` 1 makes negative results NULL, 2 drops rows without a "
            "result.",
            "diff(v) FROM m"),
    _series("derivative", (_NUMBER, Argument("interval", duration=True, units=True),
                           Argument("ignore_negative", INTEGER_KINDS, literal=True, choices=(0, 1))),
            always(DOUBLE), AlongRows("derivative", _derivative, _derivative_stays),
            "The change per interval from each value to the next.", "derivative(v, 1m, 0) FROM m"),
    _series("csum", (_NUMBER,), sum_type, AlongRows("csum", _csum, present=True), "The running sum.",
            "csum(v) FROM m"),
    _series("mavg", (_NUMBER, Argument("rows", INTEGER_KINDS, literal=True, low=1, high=1000)), always(DOUBLE),
            AlongRows("mavg", _mavg, _mavg_stays, present=True), "The moving average over the given number of rows.",
            "mavg(v, 2) FROM m"),
    _neighbour("lag", "The value that many rows before; the default, or NULL, if there is no such row.",
               "lag(v, 1) FROM m"),
    _neighbour("lead", "The value that many rows after; the default, or NULL, if there is no such row.",
               "lead(v, 1, 0) FROM m"),
    _series("fill_forward", (Argument("value", NUMBERS | TEXTS | {Kind.BOOL}),), same_as_first,
            AlongRows("every row", _fill_forward), "The value, or the last previous value that isn't NULL.",
            "fill_forward(v) FROM m"),
    _series("statecount", (_NUMBER, _OPERATOR, _LIMIT), always(BIGINT), AlongRows("state", _state_count, holds=_holds),
            "The number of consecutive rows that satisfy the comparison; -1 if the row doesn't.",
            "statecount(v, 'GE', 2) FROM m"),
    _series("stateduration", (_NUMBER, _OPERATOR, _LIMIT, Argument("unit", duration=True, optional=True)),
            always(BIGINT), AlongRows("state", _state_duration, holds=_holds),
            "How long the comparison has been true; -1 if it is false.",
            "stateduration(v, 'GE', 2, 1s) FROM m"),
)
