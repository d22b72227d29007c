"""Functions that give rows rather than a value, DIFF and TOP and their kin, as the table of functions has them."""

from __future__ import annotations

from sqlglot import exp

from penstock.planner.duckdb_sql.duckdb_tree import Tree, all_of, any_of, column, fragment, named, select
from penstock.planner.duckdb_sql.pieces import columns, row_number, so_far, star
from penstock.planner.functions.line_call import ROW_NUMBER, AlongRows, LineBuilder, LineCall, PicksRows
from penstock.planner.functions.table import require
from penstock.planner.logical.operators import Pick, RowCall, SeriesValues
from penstock.planner.lower.duckdb.steps import Steps

_RANK = "#rank"


def ran(series: SeriesValues, steps: Steps) -> exp.Select:
    """Returns the rows that the calls leave, with the value of each."""
    calls = [(_along(call), LineCall(call, series.line)) for call in series.calls]
    rows = steps.rows(series.input)
    present = [fragment(":value IS NOT NULL", value=given.value) for along, given in calls if along.present]
    if present:
        rows = steps.add("rows", select([star()], rows, where=all_of(present)))
    runs = [_run(along.holds, given) for along, given in calls if along.holds is not None]
    if runs:
        rows = steps.add("runs", select([star(), *runs], rows))
    number = named(row_number(columns(series.line.keys), columns(series.line.order)), ROW_NUMBER)
    values = [named(along.value(given), given.call.name) for along, given in calls]
    found = steps.add("series", select([star(), number, *values], rows))
    return select([star()], found, where=any_of([along.stays(given) for along, given in calls]))


def _along(call: RowCall) -> AlongRows:
    found = require(call.function).along
    assert found is not None
    return found


def _run(holds: LineBuilder, given: LineCall) -> exp.Alias:
    return named(given.along(
        fragment("sum(CASE WHEN :holds THEN 0 WHEN :value IS NULL THEN 0 ELSE 1 END)", holds=holds(given),
                 value=given.value), so_far()), given.run_name)


def picked(pick: Pick, steps: Steps) -> exp.Select:
    """Returns the rows that the call picks in each group, with its value on them."""
    given, picks = LineCall(pick.call, pick.line, pick.seed), _picks(pick.call)
    # Computed once: what is ranked by is what is shown, also if it is random.
    valued = steps.add("valued", select([star(), named(given.value, pick.call.name)],
                                        steps.rows(pick.input)))
    keys: list[Tree] = [*columns(pick.line.keys), *([given.shown] if picks.each_value else [])]
    ranked = steps.add("ranked", select([star(), named(row_number(keys, picks.ranking(given)), _RANK)], valued,
                                        where=given.has_value if picks.present else None))
    first, last = picks.ranks(given)
    kept = fragment(":rank BETWEEN :first AND :last", rank=column(_RANK), first=first, last=last)
    return select([star()], ranked, where=kept)


def _picks(call: RowCall) -> PicksRows:
    found = require(call.function).picks
    assert found is not None
    return found
