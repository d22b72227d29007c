"""INTERP: values on a grid of instants, taken from or computed between the rows around each of them."""

from __future__ import annotations

from sqlglot import exp

from penstock.planner.duckdb_sql.duckdb_tree import Tree, any_of, column, fragment, hole, made, named, number, select
from penstock.planner.duckdb_sql.fill import FORCED, can_interpolate, straight_line
from penstock.planner.duckdb_sql.interval_windows import series
from penstock.planner.duckdb_sql.pieces import (
    as_type,
    columns,
    from_here,
    ignoring_nulls,
    joined,
    nested,
    over,
    so_far,
    star,
)
from penstock.planner.logical.operators import AT, FILLED, ORIGIN, Interpolate, Interpolated, Parameter, WindowGrid
from penstock.planner.lower.duckdb.steps import Steps
from penstock.sql.tree.statements import FillMode

_KIND = "#kind"


def interpolated(interpolate: Interpolate, steps: Steps) -> exp.Select:
    """Returns the rows of the grid.

    Rows and instants are put in one order in time, rows first; what surrounds an instant is then the last row before
    it in that order (or at the same time) and the first one after it.
    """
    grid, mode, keys = interpolate.grid, interpolate.mode, interpolate.line.keys
    time, *ties = interpolate.line.order
    rows = steps.rows(interpolate.input)
    points = [named(_point(item, time), f"#p{index}") for index, item in enumerate(interpolate.calls)]
    tie_names = [f"#tie{index}" for index in range(len(ties))]
    data = select(
        [*columns(keys), named(column(time), AT), named(number(0), _KIND), *points,
         *(named(column(tie), name) for tie, name in zip(ties, tie_names, strict=True))], rows)
    if keys:
        groups = select(columns(keys), rows, distinct=True)
    else:
        met = None if mode in FORCED else made(exp.Exists, this=select([number(1)], rows))
        groups = select([number(1)], where=met)
    marks = select(
        [*(column(key, "g") for key in keys), column("s", "s"), number(1),
         *(exp.null() for _ in (*interpolate.calls, *ties))],
        nested(groups, "g"), joins=[joined(nested(series(_end(grid.first), _end(grid.last), grid.step), "s"))])
    line = (columns(keys), columns([AT, _KIND, *tie_names]))
    around: list[Tree] = []
    for index in range(len(interpolate.calls)):
        point = column(f"#p{index}")
        around.append(named(over(ignoring_nulls("last_value", point), *line, so_far()), f"#b{index}"))
        around.append(named(over(ignoring_nulls("first_value", point), *line, from_here()), f"#a{index}"))
    both = select([star(), *around], nested(made(exp.Union, this=data, expression=marks, distinct=False)))
    results: list[Tree] = []
    present: list[Tree] = []
    for index, item in enumerate(interpolate.calls):
        value, has = _value(item, column(f"#b{index}"), column(f"#a{index}"), grid, mode)
        results.append(named(value, item.name))
        present.append(has)
    wanted = fragment(":kind = 1 AND :present", kind=column(_KIND), present=any_of(present))
    return select(
        [*columns(keys), column(AT), named(made(exp.Not, this=_exact(column("#b0"))), FILLED),
         named(_origin(grid, mode), ORIGIN), *results], nested(both), where=wanted)


def _end(end: int | Parameter) -> int | Tree:
    return hole(end.name) if isinstance(end, Parameter) else end


def _point(item: Interpolated, time: str) -> Tree:
    value = item.argument.node
    point = fragment("{'t': :time, 'v': :value}", time=column(time), value=value)
    return fragment("CASE WHEN :value IS NOT NULL THEN :point END", value=value, point=point) \
        if item.ignore_null else point


def _exact(before: Tree) -> Tree:
    """Whether there is a row at the instant."""
    return fragment("((:before).t IS NOT NULL AND (:before).t = :at)", before=before, at=column(AT))


def _value(item: Interpolated, before: Tree, after: Tree, grid: WindowGrid, mode: FillMode) -> tuple[Tree, Tree]:
    """The value at an instant, and whether there is a row for it."""
    fallback: Tree = exp.null() if item.constant is None else item.constant.node
    if mode in ("null", "null_f", "value", "value_f"):
        return fragment("CASE WHEN :exact THEN (:before).v ELSE :otherwise END", exact=_exact(before), before=before,
                        otherwise=as_type(fallback, item.argument.type)), exp.true()
    if mode == "none":
        return fragment("(:before).v", before=before), _exact(before)
    if mode == "linear":
        between: Tree = exp.null()
        if can_interpolate(item.argument.type):
            between = straight_line(before, after, column(AT), item.argument.type)
        return (fragment("CASE WHEN :exact THEN (:before).v ELSE :computed END", exact=_exact(before), before=before,
                         computed=between),
                fragment(":exact OR ((:before).t IS NOT NULL AND (:after).t IS NOT NULL)", exact=_exact(before),
                         before=before, after=after))
    source = _nearest(before, after, mode)
    if grid.reach is None:
        return fragment("(:source).v", source=source), fragment("(:source).t IS NOT NULL", source=source)
    close = fragment("coalesce(abs((:source).t - :at) <= :reach, false)", source=source, at=column(AT),
                     reach=grid.reach)
    return fragment("CASE WHEN :close THEN (:source).v ELSE :otherwise END", close=close, source=source,
                    otherwise=as_type(fallback, item.argument.type)), (
        close if item.constant is None else exp.true())


def _nearest(before: Tree, after: Tree, mode: FillMode) -> Tree:
    """The point that PREV, NEXT or NEAR takes: an exact hit is `before` in every mode."""
    if mode == "prev":
        return before
    if mode == "next":
        return fragment("CASE WHEN :exact THEN :before ELSE :after END", exact=_exact(before), before=before,
                        after=after)
    return fragment(
        "CASE WHEN (:before).t IS NOT NULL AND ((:after).t IS NULL OR :at - (:before).t <= (:after).t - :at) "
        "THEN :before ELSE :after END", before=before, after=after, at=column(AT))


def _origin(grid: WindowGrid, mode: FillMode) -> Tree:
    """The time of the row that the first value was taken from."""
    if mode in ("prev", "next", "near"):
        source = fragment("(:nearest).t", nearest=_nearest(column("#b0"), column("#a0"), mode))
        return source if grid.reach is None else fragment(
            "CASE WHEN abs(:source - :at) <= :reach THEN :source END", source=source, at=column(AT), reach=grid.reach)
    return fragment("CASE WHEN (:before).t = :at THEN :at END", before=column("#b0"), at=column(AT))
