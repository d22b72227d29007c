"""Functions that give rows rather than a value: DIFF and its kin, TOP and its kin."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from penstock.common.errors import InternalError
from penstock.planner.duckdb_tree import Tree, call, column, fragment, named, select
from penstock.planner.logical.operators import Pick, RowCall, Series
from penstock.planner.lower.duckdb.pieces import (
    all_true,
    any_true,
    columns,
    embedded,
    frame,
    ignoring_nulls,
    ordered,
    over,
    relation,
    row_number,
    so_far,
    star,
    try_as,
)
from penstock.planner.lower.duckdb.steps import Steps
from penstock.sql.types import Kind

_HOLDS = {"lt": ":value < :bound", "gt": ":value > :bound", "le": ":value <= :bound", "ge": ":value >= :bound",
          "ne": ":value <> :bound", "eq": ":value = :bound"}
_ROW = "#row"


def ran(series: Series, steps: Steps) -> exp.Select:
    """Returns the rows that the calls leave, with the value of each."""
    keys, order = columns(series.line.keys), columns(series.line.order)
    rows = steps.rows(series.input)
    function = series.calls[0].function
    if function in ("csum", "mavg"):
        present = [fragment(":value IS NOT NULL", value=embedded(item.arguments[0])) for item in series.calls]
        rows = steps.add("rows", select([star()], rows, where=all_true(present)))
    if function in ("statecount", "stateduration"):
        runs = [named(over(fragment("sum(CASE WHEN :holds THEN 0 WHEN :value IS NULL THEN 0 ELSE 1 END)",
                                    holds=_holds(item), value=embedded(item.arguments[0])), keys, order, so_far()),
                      _run(item)) for item in series.calls]
        rows = steps.add("runs", select([star(), *runs], rows))
    values: list[Tree] = []
    kept = []
    for item in series.calls:
        value, keep = _value(item, keys, order)
        values.append(named(value, item.name))
        kept.append(keep)
    found = steps.add("series", select([star(), named(row_number(keys, order), _ROW), *values], rows))
    return select([star()], found, where=any_true(kept))


def _run(item: RowCall) -> str:
    """The name of the column that numbers the runs of rows for which a condition holds."""
    return f"#run{item.name}"


def _holds(item: RowCall) -> Tree:
    return fragment(_HOLDS[str(item.constants[1]).lower()], value=embedded(item.arguments[0]),
                    bound=embedded(item.arguments[2]))


def _integer(item: RowCall, index: int, default: int = 0) -> int:
    value = item.constants[index] if index < len(item.constants) else default
    assert isinstance(value, int)
    return value


def _value(item: RowCall, keys: Sequence[Tree], order: Sequence[Tree]) -> tuple[Tree, Tree]:
    """The value of a call on each row, and whether the row stays."""
    value, time, shown = embedded(item.arguments[0]), order[0], column(item.name)
    is_bool = item.arguments[0].type.kind is Kind.BOOL
    present = fragment(":shown IS NOT NULL", shown=shown)
    match item.function:
        case "diff":
            number = fragment(":value::TINYINT", value=value) if is_bool else value
            wide = ":number::DOUBLE" if item.type.kind is Kind.DOUBLE else ":number::HUGEINT"
            number = fragment(wide, number=number)
            change = fragment(":number - :before", number=number,
                              before=over(ignoring_nulls("lag", number.copy()), keys, order))
            ignore = _integer(item, 1)
            result = try_as(change, item.type)
            if ignore & 1:
                result = fragment("CASE WHEN :change >= 0 THEN :result END", change=change.copy(), result=result)
            return result, present if ignore & 2 else fragment(":row > 1", row=column(_ROW))
        case "derivative":
            point = fragment("CASE WHEN :value IS NOT NULL THEN {'t': :time, 'v': :value::DOUBLE} END", value=value,
                             time=time)
            before = over(ignoring_nulls("lag", point), keys, order)
            rate = fragment("(:value::DOUBLE - (:before).v) / nullif((:time - (:before).t)::DOUBLE / :unit, 0)",
                            value=value, before=before, time=time, unit=item.unit)
            return rate, fragment(":shown IS NOT NULL AND :shown >= 0", shown=shown) if _integer(item, 2) else present
        case "csum":
            number = fragment(":value::TINYINT", value=value) if is_bool else value
            return try_as(over(call("sum", number), keys, order, so_far()), item.type), exp.true()
        case "mavg":
            rows = _integer(item, 1, 1)
            mean = over(fragment("avg(:value::DOUBLE)", value=value), keys, order,
                        frame(str(rows - 1), "PRECEDING", "CURRENT ROW"))
            return mean, fragment(":row >= :rows", row=column(_ROW), rows=rows)
        case "statecount":
            result = _along_run(fragment("count(*) FILTER (WHERE :holds)", holds=_holds(item)), item, keys, order)
        case "stateduration":
            first = _along_run(fragment("min(:time) FILTER (WHERE :holds)", time=time, holds=_holds(item)), item, keys,
                               order)
            result = fragment("(:time - :first) // :unit", time=time, first=first, unit=item.unit)
        case _:
            raise InternalError(f"{item.function} does not run along rows")
    return fragment("CASE WHEN :holds THEN :result WHEN :value IS NOT NULL THEN -1 END", holds=_holds(item),
                    result=result, value=value), exp.true()


def _along_run(function: Tree, item: RowCall, keys: Sequence[Tree], order: Sequence[Tree]) -> Tree:
    return over(function, [*keys, column(_run(item))], order, so_far())


def picked(pick: Pick, steps: Steps) -> exp.Select:
    """Returns the rows that the call picks in each group, with its value on them."""
    item, order = pick.call, columns(pick.line.order)
    # Computed once: what is ranked by is what is shown, also if it is random.
    valued = steps.add("valued", select([star(), named(embedded(item.arguments[0]), item.name)],
                                        relation(steps.rows(pick.input))))
    value, keys = column(item.name), columns(pick.line.keys)
    present: Tree | None = fragment(":value IS NOT NULL", value=value)
    first, last = 1, _integer(item, 1, 1)
    match item.function:
        case "top":
            ranking: list[Tree] = [ordered(value, descending=True), *order]
        case "bottom":
            ranking = [value, *order]
        case "sample":
            ranking = [fragment("hash(:seed)", seed=pick.seed)]
            ranking[0].set("expressions", [*(name.copy() for name in order), value, *ranking[0].expressions])
            ranking += order
        case "tail":
            present = None
            ranking = [ordered(name, descending=True) for name in order]
            skipped = _integer(item, 2)
            first, last = skipped + 1, skipped + last
        case _:
            present, last = None, 1
            keys.append(value)
            ranking = list(order)
    ranked = steps.add("ranked", select([star(), named(row_number(keys, ranking), "#rank")], valued,
                                        where=present))
    kept = fragment(":rank BETWEEN :first AND :last", rank=column("#rank"), first=first, last=last)
    return select([star()], ranked, where=kept)
