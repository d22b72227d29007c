"""Rows put into windows."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from penstock.common.errors import InternalError
from penstock.planner.duckdb_sql.duckdb_tree import Tree, any_of, call, column, fragment, made, named, number, select
from penstock.planner.duckdb_sql.interval_windows import (
    expanded_windows,
    interval_end,
    is_local,
    quick_start,
    starts_in_range,
)
from penstock.planner.duckdb_sql.pieces import (
    columns,
    joined,
    nested,
    over,
    relation,
    row_number,
    so_far,
    star,
)
from penstock.planner.logical.operators import Window
from penstock.planner.logical.window_kinds import (
    END,
    NUMBER,
    START,
    STATE,
    ByCount,
    ByEvent,
    ByInterval,
    BySession,
    ByState,
)
from penstock.planner.lower.duckdb.steps import Steps


def windowed(window: Window, steps: Steps) -> exp.Query:
    """Returns the rows with the columns that tell their windows apart."""
    rows = steps.rows(window.input)
    if isinstance(window.shape, ByInterval):
        return _on_grid(window, window.shape, rows, steps)
    time = window.line.order[0]
    found = row_windows(window, rows)
    if not window.borders:
        return found
    keys = [*window.line.keys, NUMBER]
    bounds = [named(over(call(function, column(time)), columns(keys)), name)
              for function, name in (("min", START), ("max", END))]
    found = select([star(), *bounds], steps.add("windowed", found))
    if window.least is None:
        return found
    return select([star()], steps.add("windowed", found), where=long_enough(window.least))


def long_enough(least: int) -> Tree:
    """Returns the condition that a window isn't shorter."""
    return fragment(":end - :start >= :least", end=column(END), start=column(START), least=least)


def end_of(interval: ByInterval) -> Tree:
    """Returns the end of a window on a grid by its START."""
    return interval_end(column(START), interval.window, interval.precision, interval.zone)


def _on_grid(window: Window, interval: ByInterval, rows: str, steps: Steps) -> exp.Select:
    time = window.line.order[0]
    grid = (interval.window, interval.precision, interval.zone)
    if is_local(interval.window, interval.zone):
        found = _by_calendar(interval, time, rows, steps)
    elif interval.window.sliding is None:
        found = select([star(), named(quick_start(column(time), *grid), START)], rows)
    else:
        starts = call("unnest", expanded_windows(column(time), *grid))
        found = select([star(), named(starts, START)], rows)
    if not window.borders:
        return found
    return select([star(), named(end_of(interval), END)], steps.add("windowed", found))


def _by_calendar(interval: ByInterval, time: str, rows: str, steps: Steps) -> exp.Select:
    """Rows joined with the windows between the least and the greatest time.

    For many rows in few windows that is far cheaper than asking for each row's windows on a grid of local times.
    """
    ends = select([named(call(function, column(time)), name) for function, name in (("min", "lo"), ("max", "hi"))],
                  rows)
    grid = (interval.window, interval.precision, interval.zone)
    starts = select([named(call("unnest", starts_in_range(column("lo"), column("hi"), *grid)), START)], nested(ends))
    calendar = steps.add("calendar", select([column(START), named(end_of(interval), END)], nested(starts)))
    since = fragment(":time >= :start", time=column(time, "r"), start=column(START, "w"))
    if interval.window.sliding is None:
        join = joined(relation(calendar, "w"), since, method="ASOF")
    else:
        before = fragment(":time < :end", time=column(time, "r"), end=column(END, "w"))
        join = joined(relation(calendar, "w"), made(exp.And, this=since, expression=before))
    return select([star(of="r"), named(column(START, "w"), START)], relation(rows, "r"), joins=[join])


def row_windows(window: Window, rows: str) -> exp.Select:
    """Returns the rows of windows that rows define, with their NUMBER; rows in no window are left out."""
    keys, order = columns(window.line.keys), columns(window.line.order)
    match window.shape:
        case BySession(gap):
            first = fragment("CASE WHEN :time - :before <= :gap THEN 0 ELSE 1 END", time=order[0],
                             before=over(call("lag", order[0]), keys, order), gap=gap)
            return _numbered(select([star(), named(first, "#new")], rows), keys, order)
        case ByState(value):
            stated = select([star(), named(value.node, STATE)], rows)
            first = fragment("CASE WHEN :state = :before THEN 0 ELSE 1 END", state=column(STATE),
                             before=over(call("lag", column(STATE)), keys, order))
            known = fragment(":state IS NOT NULL", state=column(STATE))
            return _numbered(select([star(), named(first, "#new")], nested(stated), where=known), keys, order)
        case ByEvent():
            return _event(window.shape, rows, keys, order)
        case ByCount():
            return _count(window.shape, rows, keys, order)
    raise InternalError(f"{type(window.shape).__name__} is no window that rows define")


def _numbered(rows: exp.Select, keys: Sequence[Tree], order: Sequence[Tree]) -> exp.Select:
    """Numbers windows by the rows so far that open one."""
    opened = over(call("sum", column("#new")), keys, order, so_far())
    return select([star(without=["#new"]), named(opened, NUMBER)], nested(rows))


def _event(event: ByEvent, rows: str, keys: Sequence[Tree], order: Sequence[Tree]) -> exp.Select:
    """From the first row that starts a window to the next row that ends it, which may be the same row.

    After any row that fulfils the end condition no window is open. So a row is in a window if a start came after the
    newest end before the row, and if an end follows; the number of ends before it tells windows apart.
    """
    marked = select([star(), *(
        named(fragment("coalesce(:met, false)::TINYINT", met=condition.node), name)
        for condition, name in ((event.start, "#start"), (event.end, "#end")))], rows)
    # Running sums over all rows so far are what DuckDB computes fastest; frames that end before the row are not.
    after = over(call("lag", column("#end"), number(1), number(0)), keys, order)
    stepped = select([star(), named(row_number(keys, order), "#row"), named(after, "#after")], nested(marked))
    along = [column("#row")]
    numbered = select([
        star(), named(over(call("sum", column("#after")), keys, along, so_far()), NUMBER),
        *(named(over(fragment("max(:row * :mark)", row=column("#row"), mark=column(mark)), keys, along, so_far()), name)
          for mark, name in (("#start", "#started"), ("#after", "#began"))),
        named(over(call("sum", column("#end")), keys), "#ends"),
    ], nested(stepped))
    inside = fragment(':started > 0 AND :started >= "#began" AND :number < "#ends"', started=column("#started"),
                      number=column(NUMBER))
    helpers = ["#row", "#start", "#end", "#after", "#started", "#began", "#ends"]
    return select([star(without=helpers)], nested(numbered), where=inside)


def _count(window: ByCount, rows: str, keys: Sequence[Tree], order: Sequence[Tree]) -> exp.Select:
    """Windows of so many rows, a new one at every `sliding`-th row; the last ones may have fewer."""
    present = [fragment(":value IS NOT NULL", value=value.node) for value in window.values]
    source: Tree = relation(rows)
    if present:
        source = nested(select([star()], source, where=any_of(present)))
    position = fragment(":number - 1", number=row_number(keys, order))
    numbered = nested(select([star(), named(position, "#row")], source))
    last = fragment(":row // :sliding", row=column("#row"), sliding=window.sliding)
    if window.sliding == window.count:
        return select([star(without=["#row"]), named(last, NUMBER)], numbered)
    # The oldest window that still reaches this row starts less than `count` rows before it.
    numbers = fragment("unnest(range(greatest(0, (:row - :count + :sliding) // :sliding), :last + 1))",
                       row=column("#row"), count=window.count, sliding=window.sliding, last=last)
    return select([star(without=["#row"]), named(numbers, NUMBER)], numbered)
