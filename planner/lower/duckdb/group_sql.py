"""Rows grouped, and windows without rows filled in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from sqlglot import exp

from penstock.planner.duckdb_sql.duckdb_tree import (
    Template,
    Tree,
    all_of,
    any_of,
    call,
    column,
    fragment,
    hole,
    made,
    named,
    number,
    select,
)
from penstock.planner.duckdb_sql.fill import FORCED, MAX_FILLED, REFUSAL, can_interpolate, straight_line
from penstock.planner.duckdb_sql.interval_windows import grid_of, series, starts_from_to, starts_in_range
from penstock.planner.duckdb_sql.pieces import (
    columns,
    from_here,
    ignoring_nulls,
    joined,
    nested,
    over,
    relation,
    so_far,
    star,
)
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.operators import TABLE_UID, Aggregate, FillColumn, FillGaps, FillSpan, NameTables
from penstock.planner.logical.window_kinds import END, START
from penstock.planner.lower.duckdb.aggregate_sql import aggregate as computed
from penstock.planner.lower.duckdb.steps import Steps
from penstock.planner.lower.duckdb.window_sql import end_of, long_enough
from penstock.sql.types import DataType

_HIT = "#hit"


def aggregated(aggregate: Aggregate, steps: Steps) -> exp.Select:
    """Returns a row per group."""
    shown = columns(aggregate.keys)
    if aggregate.time is not None:
        shown += [named(call(function, column(aggregate.time)), name)
                  for function, name in (("min", START), ("max", END))]
    shown += [named(computed(value), value.name) for value in aggregate.calls]
    by = columns(aggregate.keys) if aggregate.sets is None else [made(exp.GroupingSets, expressions=[
        made(exp.Tuple, expressions=columns(keys)) for keys in aggregate.sets])]
    found = select(shown or [number(1)], steps.rows(aggregate.input), group_by=by,
                   having=None if aggregate.present is None else _present(aggregate.present))
    if aggregate.interval is not None:
        return select([star(), named(end_of(aggregate.interval), END)], steps.add("groups", found))
    if aggregate.least is not None:
        return select([star()], steps.add("groups", found), where=long_enough(aggregate.least))
    return found


def tables_named(named_tables: NameTables, steps: Steps) -> exp.Select:
    """Returns groups with names of child tables in place of uids."""
    key = named_tables.key
    groups, names = steps.rows(named_tables.input, "groups"), steps.rows(named_tables.names)
    same = fragment(":one = :other", one=column(TABLE_UID, "t"), other=column(key, "r"))
    return select([named(column("tbname", "t"), key), star(of="r", without=[key])], relation(groups, "r"),
                  joins=[joined(relation(names, "t"), same)])


def _present(values: Sequence[SqlExpr]) -> Tree:
    """Whether a group has rows, or rows with one of the values."""
    return any_of([fragment("count(:value) > 0", value=value.node) for value in values] or [
        fragment("count(*) > 0")])


def filled(fill: FillGaps, steps: Steps) -> exp.Select:
    """Returns all windows of each group that has any, with the values of those without rows."""
    windows = steps.rows(fill.input, "values")
    keys, mode = fill.keys, fill.mode
    if keys:
        groups = select(columns(keys), windows, distinct=True)
    else:
        met = None if mode in FORCED else made(exp.Exists, this=select([number(1)], windows))
        groups = select([number(1)], where=met)
    grid = steps.add("grid", _grid(fill, windows, groups))
    if mode == "linear":
        grid = steps.add("around", select([star(), *_around(fill)], grid))
    replaced = [named(value, item.name) for index, item in enumerate(fill.columns)
                if (value := _filled_value(index, item, fill)) is not None]
    rows = steps.add("filled", select([star(replaced=replaced)], grid))
    return select([star(), named(end_of(fill.interval), END)], rows)


def _grid(fill: FillGaps, windows: str, groups: exp.Select) -> exp.Select:
    """A row per group and window: its keys, START, and whether there are rows (_HIT), with the values if so."""
    places, start = nested(_between_windows(fill, windows), "g"), column("s", "g")
    more: list[exp.Join] = []
    if fill.span is not None:
        places, start = nested(groups, "g"), column("s", "s")
        more.append(joined(nested(_within_span(fill, fill.span, groups), "s")))
    same = [fragment(":one = :other", one=column(START, "w"), other=start),
            *(fragment(":one IS NOT DISTINCT FROM :other", one=column(key, "w"), other=column(key, "g"))
              for key in fill.keys)]
    hit = fragment(":start IS NOT NULL", start=column(START, "w"))
    return select(
        [*(column(key, "g") for key in fill.keys), named(start, START), named(hit, _HIT),
         star(of="w", without=[*fill.keys, START])],
        places, joins=[*more, joined(relation(windows, "w"), all_of(same), side="LEFT")])


def _within_span(fill: FillGaps, span: FillSpan, groups: exp.Select) -> Tree:
    """The windows that each group has, by their starts `s`."""
    interval = fill.interval
    starts: Tree = series(0, -1, 1)
    if span.first is not None:
        starts = starts_from_to(span.first, span.last, interval.window, interval.precision, interval.zone)
    return _unless_too_many(starts, groups, MAX_FILLED // max(span.count, 1)) if fill.keys else starts


def _between_windows(fill: FillGaps, windows: str) -> exp.Select:
    """The windows of each group from its first to its last one with rows, by their starts `s`, with its keys.

    Streams leave gaps of more than MAX_FILLED windows as they are.
    """
    interval = fill.interval
    grid = interval.window, interval.precision, interval.zone
    following = over(call("lead", column(START)), *_line(fill))
    pairs = select([*columns(fill.keys), column(START), named(following, "#next")], windows)
    starts = fragment(
        'CASE WHEN :count <= :most THEN list_filter(:starts, lambda "#start": "#start" >= :first AND "#start" < :last) '
        "ELSE [:first] END", first=column(START), last=column("#next"), most=MAX_FILLED,
        starts=starts_in_range(column(START), column("#next"), *grid),
        count=fragment("(:last - :first) // :step", first=column(START), last=column("#next"),
                       step=grid_of(*grid).shortest_step))
    return select([*columns(fill.keys), named(call("unnest", starts), "s")], nested(pairs))


def _unless_too_many(starts: Tree, groups: exp.Select, most: int) -> Tree:
    """The starts, or what says that there are more groups than may be."""
    few = fragment("CASE WHEN :count > :most THEN error(:refusal) ELSE true END", count=call("count", star()),
                   most=most, refusal=REFUSAL)
    bound = nested(select([named(few, "#few")], nested(groups)), "bound")
    return select([column("s")], bound, where=column("#few"), joins=[joined(nested(starts, "starts"))])


def _line(fill: FillGaps) -> tuple[list[Tree], list[Tree]]:
    """What tells groups apart, and what orders their windows."""
    return columns(fill.keys), [column(START)]


def _around(fill: FillGaps) -> list[Tree]:
    """The time and the value of the last window with rows up to each window, and of the first from it on."""
    found: list[Tree] = []
    for index, item in enumerate(fill.columns):
        if can_interpolate(item.type):
            point = fragment("CASE WHEN :hit THEN {'t': :start, 'v': :value::DOUBLE} END", hit=column(_HIT),
                             start=column(START), value=column(item.name))
            found += (named(over(ignoring_nulls("last_value", point), *_line(fill), so_far()), f"#before{index}"),
                      named(over(ignoring_nulls("first_value", point), *_line(fill), from_here()), f"#after{index}"))
    return found


def _filled_value(index: int, item: FillColumn, fill: FillGaps) -> Tree | None:
    """The value of a column in all windows, None if it stays as it is."""
    value = column(item.name)
    match fill.mode:
        case "value" | "value_f":
            assert item.constant is not None
            return call("coalesce", value, item.constant.node)
        case "prev":
            return over(ignoring_nulls("last_value", value), *_line(fill), so_far())
        case "next":
            return over(ignoring_nulls("first_value", value), *_line(fill), from_here())
        case "linear" if can_interpolate(item.type):
            return _on_line(index, item.type).filled(value=value)
    return None


@lru_cache(maxsize=256)
def _on_line(index: int, type_: DataType) -> Template:
    """The `value` of this column where there are rows, else that on the line between what `_around` found."""
    computed = straight_line(column(f"#before{index}"), column(f"#after{index}"), column(START), type_)
    return Template(fragment("CASE WHEN :hit THEN :value ELSE :computed END", hit=column(_HIT), value=hole("value"),
                             computed=computed))
