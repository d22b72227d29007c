"""Queries of triggers that aggregate the rows of their windows: the tasks that have these rows compute the results."""

from __future__ import annotations

from sqlglot import exp

from penstock.common.errors import NotSupportedError
from penstock.planner.bind.scopes import require_vector, vector_calls
from penstock.planner.logical.written import text_of
from penstock.planner.streams.stream_forms import in_form
from penstock.sql.tree.statements import CreateStream, Fill, IntervalWindow, Select, SelectItem, SessionWindow
from penstock.sql.tree.walking import conjuncts, copied, found_in

_SAME = frozenset({"count", "sum", "avg", "min", "max", "spread", "first", "last"})
"""Aggregates with a state of constant size, of which a stream and a query give equal values of equal rows."""
_OF_ROWS = frozenset({"first", "last"})
"""Where there are no others, a query has no row for rows that all are NULL."""
_ENDS = frozenset({"_wend", "_wduration"})


def value_items(statement: CreateStream) -> tuple[SelectItem, ...]:
    """Returns the SELECT list of a trigger's query as one over its windows; none if it needs more than their rows.

    Rows of other windows than INTERVAL's and SESSION's aren't told apart by their times alone, as the query tells them.
    """
    does, options = statement.calculation, statement.options
    query = None if does is None or options.ignore_expired or does.history_from is not None else does.query
    if not isinstance(query, Select) or query.nests:
        return ()
    window = statement.select.window
    if not isinstance(window, IntervalWindow | SessionWindow):
        return ()
    try:
        older = in_form(statement, "old", statement.source_text).statement.select
    except NotSupportedError:
        return ()
    filtered, counted = ({text_of(part) for part in conjuncts(each.where)} for each in (statement.select, older))
    ends = _ENDS if isinstance(window, SessionWindow) else frozenset()
    if filtered != counted or not all(_is_same(item.expression, ends) for item in older.items):
        return ()
    names = {require_vector(call).name for item in older.items for call in vector_calls(item.expression)}
    if names and names <= _OF_ROWS:
        return ()
    return tuple(SelectItem(copied(item.expression), f"_value{place}", f"_value{place}")
                 for place, item in enumerate(older.items, 1))


def with_values(trigger: Select, items: tuple[SelectItem, ...]) -> Select:
    """Returns the query of a trigger with more columns of its windows; in those without rows they are NULL."""
    fill = trigger.fill
    if fill is not None:
        aggregated = sum(next(vector_calls(item.expression), None) is not None for item in items)
        fill = Fill(fill.mode, (*fill.values, *(exp.Null() for _ in range(aggregated))))
    return trigger.with_changes(items=(*trigger.items, *items), fill=fill)


def _is_same(value: exp.Expression, ends: frozenset[str]) -> bool:
    """Whether a value is known of a window, or an aggregate of a column: no other can fail for one window alone."""
    aggregates = list(vector_calls(value))
    calls = len(found_in(value, exp.Anonymous, exp.Cast))
    if any(column.name in ends for column in found_in(value, exp.Column)):
        return False
    if not aggregates:
        return not calls
    return value is aggregates[0] and calls == 1 and require_vector(aggregates[0]).name in _SAME and all(
        isinstance(argument, exp.Column | exp.Star) for argument in aggregates[0].expressions)
