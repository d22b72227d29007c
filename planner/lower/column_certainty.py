"""How surely columns of results are known: floating point sums depend on the order in which they are made."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from penstock.planner.duckdb_sql.duckdb_tree import called
from penstock.planner.functions.table import FUNCTIONS
from penstock.planner.logical.group_values import AggregateCall
from penstock.planner.logical.operators import Aggregate, FillGaps, Project
from penstock.planner.logical.stream import LogicalStream
from penstock.planner.lower.stages import aggregate_of
from penstock.sql.tree.walking import found_in, nodes_of
from penstock.sql.types import FLOATS

#: What gives another value altogether where its argument is a little different.
_JUMPS, _JUMPING = (exp.Case, exp.Predicate, exp.Mod), frozenset({"floor", "ceil", "round", "trunc", "sign"})


@dataclass(frozen=True, slots=True)
class ColumnCertainty:
    """By their places: columns that are `unsure`, and those that are made of squares.

    The last digits of a sum may change them altogether, or the stream doesn't write them.
    """

    unsure: frozenset[int] = frozenset()
    squared: frozenset[int] = frozenset()


CERTAIN = ColumnCertainty()


def column_certainty(stream: LogicalStream, project: Project) -> ColumnCertainty:
    """Returns what is known of the columns that `project` makes."""
    groups = project.input
    calls = {} if not isinstance(groups, FillGaps | Aggregate) else {
        each.name: each for each in aggregate_of(groups).calls if isinstance(each, AggregateCall)}
    unsure, squared = set(), set()
    for place, target in enumerate(stream.target.columns):
        if place >= len(project.columns):
            unsure.add(place)
            continue
        node = project.columns[place].value.node
        summed = [call for found in found_in(node, exp.Column) if (call := calls.get(found.name)) is not None
                  and call.type.kind in FLOATS and not _is_of_a_row(call)]
        jumps = target.type.kind not in FLOATS or any(
            isinstance(each, _JUMPS) or called(each) in _JUMPING for each in nodes_of(node))
        if isinstance(node, exp.Null) or (summed and jumps):
            unsure.add(place)
        if any(call.user is None and FUNCTIONS[call.function].adds_squares for call in summed) or any(
                found_in(each, exp.Mul) for each in (node, *(part.node for call in summed for part in call.arguments))):
            squared.add(place)
    return ColumnCertainty(frozenset(unsure), frozenset(squared))


def _is_of_a_row(call: AggregateCall) -> bool:
    """Whether a call gives a value of a row: that is the same in whatever order rows come."""
    return call.user is None and FUNCTIONS[call.function].category == "selection"
