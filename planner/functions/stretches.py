"""What rows cover of time and of the area under their values: what functions of the stretches between rows sum up."""

from __future__ import annotations

from penstock.planner.duckdb_sql.duckdb_tree import Tree, column, fragment
from penstock.planner.logical.group_values import Covered
from penstock.planner.logical.window_kinds import END, START


def double(given: Covered) -> Tree:
    """Returns the value of a row as DOUBLE."""
    return fragment(":value::DOUBLE", value=given.value.node)


def lengths_and_areas(given: Covered, border: Tree) -> tuple[Tree, Tree]:
    """Returns the length that a row covers, and the area under the line of the values there.

    A row covers what lies between it and the row before, and the last one of a window what lies up to its `border`,
    both within the window.
    """
    value, ts, before = double(given), given.ts.node, given.before.node
    slope = fragment("(:value - (:before).v) / (:ts - (:before).t)", value=value, before=before, ts=ts)
    since = fragment("(:before).t", before=before) if given.after is None else fragment(
        "greatest((:before).t, :start)", before=before, start=column(START))
    length = fragment("(:ts - :since)", ts=ts, since=since)
    area = fragment("(:value - :slope * :length / 2) * :length", value=value, slope=slope, length=length)
    head = "CASE WHEN :value IS NOT NULL AND (:before).t < :ts THEN :covered ELSE 0 END"
    lengths, areas = (fragment(head, value=value, before=before, ts=ts, covered=covered)
                      for covered in (length, area))
    if given.after is None:
        return lengths, areas
    after = given.after.node
    slope = fragment("((:after).v - :value) / ((:after).t - :ts)", value=value, after=after, ts=ts)
    length = fragment("(:border - :ts)", border=border, ts=ts)
    area = fragment("(:value + :slope * :length / 2) * :length", value=value, slope=slope, length=length)
    tail = "CASE WHEN :value IS NOT NULL AND (:after).t >= :till AND (:after).t > :ts THEN :covered ELSE 0 END"
    tails = [fragment(tail, value=value, after=after, till=column(END), ts=ts, covered=covered)
             for covered in (length, area)]
    lengths, areas = (fragment(":head + :tail", head=one, tail=other)
                      for one, other in zip((lengths, areas), tails, strict=True))
    return lengths, areas
