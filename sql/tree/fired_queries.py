"""The query of a stream with a trigger of its own, as it runs for windows that have fired: trees of statements.

For one window what the trigger gives stands in the query as values that its plan is given, or, where planning must know
them, as constants; for many at once the query runs beside their rows, in a LATERAL over the table of executions, which
has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce

from sqlglot import exp

from penstock.common.errors import InvalidStreamError
from penstock.sql.tree.expression_nodes import DurationLiteral, Given, TypeName
from penstock.sql.tree.statements import (
    TRIGGER,
    Calculation,
    IntervalWindow,
    JoinSource,
    Limit,
    Name,
    OrderItem,
    PartitionItem,
    Query,
    Select,
    SelectItem,
    SetOperation,
    SubquerySource,
    TableSource,
)
from penstock.sql.tree.walking import conjuncts, copied, found_in
from penstock.sql.types import BIGINT, DataType, Precision, timestamp

START, ID, END, ROWS, FIRED = "ts", "group_id", "window_end", "window_rows", "triggered"
"""Columns of the table of executions that stand for what the trigger gives; see `group_column`."""

OF_START, OF_GROUP, TOLD = "#start", "#id", "#told"
"""Columns besides results: the window's start and its group's id, and whether NOTIFY's condition is met."""

PREVIOUS, NEXT = "previous", "next"
"""Names of what PERIOD gives besides, where a plan is given it. What else it is given has the names of the columns of
the table of executions."""

BOUNDS = ("first_start", "last_start", "first_end", "last_end")
"""Names of what a plan for many windows is given: see `for_many`."""

TBNAME = "tbname"
OF_CLOCK = frozenset({"_tprev_localtime", "_tnext_localtime"})
OF_SLIDING = frozenset({"_tprev_ts", "_tcurrent_ts", "_tnext_ts"})
OF_WINDOWS = frozenset({"_twstart", "_twend", "_twduration", "_twrownum"})
OF_ALL = frozenset({"_tgrpid", "_tlocaltime"})
PLACEHOLDERS = OF_CLOCK | OF_SLIDING | OF_WINDOWS | OF_ALL
_FIRED = "#fired"
_CUTS = TRIGGER + "cuts"
#: what every trigger by event time gives, for conditions of our own
_WINDOW_START, _WINDOW_END = "start", "end"

Values = Mapping[str, exp.Expression]
"""What placeholders, by their names, stand for."""

Bounds = tuple[exp.Expression, exp.Expression, exp.Expression, exp.Expression]
"""The first and last start, and the first and last end, of many windows."""


def group_column(place: int) -> str:
    """Returns what the column for the n-th item of PARTITION BY is called, from 1."""
    return f"group_{place}"


def constants(does: Calculation, trigger: Select, start: int, end: int, rows: int, group_id: int, fired_ns: int,
              groups: Sequence[exp.Expression], clock: Values) -> Values:
    """Returns what stands for one window; times are in units of the precision, `fired_ns` is in ns. `clock`: what
    PERIOD gives besides."""
    return _values(does, trigger, _time(start), _time(end), _number(rows), _number(group_id), _number(fired_ns), groups,
                   clock)


def given_values(does: Calculation, trigger: Select, precision: Precision, groups: Sequence[DataType]) -> Values:
    """Returns what stands for any one window; a plan is given the values by the names of their columns, and PREVIOUS
    and NEXT, when it runs."""
    time = timestamp(precision)
    return _values(
        does, trigger, _given(START, time), _given(END, time), _given(ROWS), _given(ID), _given(FIRED),
        [_given(group_column(place), kind) for place, kind in enumerate(groups, 1)], given_clock(does))


def given_clock(does: Calculation) -> Values:
    """Returns what stands for that which PERIOD gives besides; nothing says which rows are new."""
    return {} if does.period is None else {"_tprev_localtime": _given(PREVIOUS), "_tnext_localtime": _given(NEXT)}


def given_bounds(precision: Precision) -> Bounds:
    """Returns what stands for the bounds of many windows; a plan is given BOUNDS when it runs."""
    first_start, last_start, first_end, last_end = (_given(name, timestamp(precision)) for name in BOUNDS)
    return first_start, last_start, first_end, last_end


def of_clock(previous_ns: int, next_ns: int, cuts: tuple[str, str]) -> Values:
    """Returns what PERIOD gives: the times before and behind this one, and between which cuts rows were written."""
    return {"_tprev_localtime": _number(previous_ns), "_tnext_localtime": _number(next_ns),
            _CUTS: exp.Tuple(expressions=[exp.Literal.string(cut) for cut in cuts])}


def sample_values(does: Calculation, trigger: Select, types: Sequence[DataType]) -> Values:
    """Returns values of the types that windows give."""
    groups = [exp.Cast(this=exp.Null(), to=TypeName(this=kind)) for kind in types]
    return constants(does, trigger, 0, 1, 1, 0, 0, groups, of_clock(0, 0, ("", "")) if does.period else {})


def columns_of_fired(does: Calculation, trigger: Select) -> Values:
    """Returns the columns of the table of executions that stand for many windows at once."""
    def fired(name: str) -> exp.Expression:
        return exp.Column(this=exp.to_identifier(name, quoted=True), table=exp.to_identifier(_FIRED, quoted=True))

    groups = [fired(group_column(place)) for place in range(1, len(trigger.partition_by) + 1)]
    return _values(does, trigger, fired(START), fired(END), fired(ROWS), fired(ID), fired(FIRED), groups, {})


def _values(
    does: Calculation, trigger: Select, start: exp.Expression, end: exp.Expression, rows: exp.Expression,
    group_id: exp.Expression, fired: exp.Expression, groups: Sequence[exp.Expression],
    others: Mapping[str, exp.Expression],
) -> Values:
    found = {"_tgrpid": group_id, "_tlocaltime": fired, TRIGGER + _WINDOW_START: start, TRIGGER + _WINDOW_END: end,
             **others}
    found |= {f"{TRIGGER}{place}": value for place, value in enumerate(groups, 1)}
    found |= {f"{TRIGGER}tbname": value for item, value in zip(trigger.partition_by, groups, strict=True)
              if isinstance(item.expression, exp.Column) and item.expression.name == TBNAME}
    if isinstance(trigger.source, TableSource):
        found.setdefault(f"{TRIGGER}tbname", exp.Literal.string(trigger.source.name.name))
    if does.slides:
        assert isinstance(trigger.window, IntervalWindow)
        step = trigger.window.interval
        return found | {"_tprev_ts": start, "_tcurrent_ts": end, "_tnext_ts": exp.Paren(this=exp.Add(
            this=copied(end), expression=DurationLiteral(value=step.value, unit=step.unit)))}
    length = exp.Paren(this=exp.Sub(this=copied(end), expression=copied(start)))
    return found | {"_twstart": start, "_twend": end, "_twrownum": rows, "_twduration": length}


def with_told(query: Query, does: Calculation, names: Sequence[str]) -> Query:
    """Returns the query with a last column that says whether a result is told of, where NOTIFY has a condition, which
    is about the columns of the result by their `names`."""
    if does.where is None:
        return query
    told = exp.Case(ifs=[exp.If(this=copied(does.where), true=exp.true())], default=exp.false())
    everything = SelectItem(exp.Star(), None, "*")
    return Select((everything, SelectItem(told, TOLD, TOLD)), _named(query, names), nests=True)


def only_told(query: Query, where: exp.Expression, names: Sequence[str]) -> Query:
    """Returns the query with a condition of NOTIFY as its own, by which it is told whether that makes sense."""
    everything = SelectItem(exp.Star(), None, "*")
    return Select((everything,), _named(query, names), where=copied(where), nests=True)


def _named(query: Query, names: Sequence[str]) -> SubquerySource:
    return SubquerySource(copied(query), "results", tuple(names))


def forced(query: Query) -> Query:
    """Returns a query for the one row of windows without results: what is constant, and NULLs."""
    first = query
    while isinstance(first, SetOperation):
        first = first.queries[0]
    if not isinstance(first, Select) or any(isinstance(item.expression, exp.Star) for item in first.items):
        raise InvalidStreamError("FORCE_OUTPUT needs a query that names its columns")
    items = [item if _is_constant(item.expression) else item.with_changes(expression=exp.Null())
             for item in first.items]
    return Select(tuple(items), nests=True)


def rows_of_trigger(trigger: Select, clock: Values) -> Query:
    """Returns a query for the groups of which PERIOD's table has got rows, by what PARTITION BY gives; without a
    `clock`, of all that have rows."""
    items = tuple(SelectItem(item.expression, f"g{place}", f"g{place}") for place, item in
                  enumerate(trigger.partition_by)) or (SelectItem(exp.Literal.number("1"), "g", "g"),)
    assert isinstance(trigger.source, TableSource)
    cuts = tuple(cut.this for cut in clock[_CUTS].expressions) if clock else None
    where = None if trigger.where is None else copied(trigger.where)
    return Select(items, TableSource(trigger.source.name, None, cuts), distinct=True, where=where)


def newest_starts(executions: Name) -> Query:
    """Returns a query for the start of the newest window of each group in the table of executions: the group's id, and
    the start in units of the precision."""
    newest = exp.Anonymous(this="max", expressions=[exp.column(START)])
    return Select((_item(exp.column(ID)), _item(_units(newest))), TableSource(executions),
                  group_by=(PartitionItem(exp.column(ID), None, ID),))


def newest_time(executions: Name, before: int, column: str) -> Query:
    """Returns a query for the newest execution before a time: its time and a column. Times are in units of the
    precision."""
    return Select((_item(_units(exp.column(START))), _item(exp.column(column))), TableSource(executions),
                  where=exp.LT(this=exp.column(START), expression=_number(before)),
                  order_by=(OrderItem(exp.column(START), descending=True),), limit=Limit(1))


def _item(value: exp.Expression) -> SelectItem:
    return SelectItem(value, None, value.name)


def _units(time: exp.Expression) -> exp.Expression:
    return exp.Cast(this=time, to=TypeName(this=BIGINT))


def _is_constant(node: exp.Expression) -> bool:
    given = all(column.name in PLACEHOLDERS or column.name.startswith(TRIGGER) for column in found_in(node, exp.Column))
    return given and not found_in(node, Select, exp.Star)


def for_one(query: Query, trigger: Select, values: Values, *, by_table: bool) -> Query:
    """Returns the query for one window. `by_table`: `%%tbname` is a child of the trigger's table, not that itself."""
    return _placed(query, trigger, values, lambda condition: None, by_table=by_table)


def for_many(
    query: Query, trigger: Select, does: Calculation, executions: Name, bounds: Bounds, clock: Values, *,
    by_table: bool,
) -> Query:
    """Returns the query for all windows in the table of executions: their start and group's id, and the results.

    `clock`: what PERIOD gives besides, the same for all.
    """
    values = {**columns_of_fired(does, trigger), **clock}
    first_start, last_start, first_end, last_end = bounds
    start, end = values[TRIGGER + _WINDOW_START], values[TRIGGER + _WINDOW_END]
    limits = {start.sql("tdengine"): (first_start, last_start), end.sql("tdengine"): (first_end, last_end)}
    inner = _placed(query, trigger, values, lambda condition: _limit(condition, limits), by_table=by_table)
    source = JoinSource(TableSource(executions, _FIRED), SubquerySource(
        inner, "#results", lateral=True, as_alone=True), "inner")
    everything = exp.Column(this=exp.Star(), table=exp.to_identifier("#results", quoted=True))
    items = (SelectItem(start, OF_START, OF_START), SelectItem(values["_tgrpid"], OF_GROUP, OF_GROUP),
             SelectItem(everything, None, "*"))
    return Select(items, source, nests=True)


def _placed(
    query: Query, trigger: Select, values: Values, limit: Callable[[exp.Expression], exp.Expression | None], *,
    by_table: bool,
) -> Query:
    """Returns a copy of a query with values in the place of what a trigger gives. `limit`: what else a condition
    means, of all windows."""
    root = SubquerySource(copied(query))
    for source in found_in(root, TableSource):
        if source.name.database == TRIGGER:
            _place_table(source, trigger, values, by_table=by_table)
    for node in found_in(root, exp.Column):
        value = None if node.table or node.this.args.get("quoted") else values.get(node.name)
        if value is not None:
            node.replace(copied(value))
    for select in found_in(root, Select):
        if select.where is not None and select.fill is None:  # its bounds say what is filled
            found = [more for part in conjuncts(select.where) if (more := limit(part)) is not None]
            select.change(where=_all([copied(select.where), *found]))
    placed = root.query
    placed.meta.update(query.meta)
    return placed


def _place_table(source: TableSource, trigger: Select, values: Values, *, by_table: bool) -> None:
    """Puts the trigger's table, with conditions on its rows, in the place of %%tbname or %%trows."""
    if not isinstance(trigger.source, TableSource):
        raise InvalidStreamError(f"%%{source.name.name} needs FROM: the trigger has no table")
    name = trigger.source.name
    conditions: list[exp.Expression] = []
    rows, cuts = source.name.name == "trows", None
    if rows:
        window = trigger.window
        first, last = _placeholder(_WINDOW_START), _placeholder(_WINDOW_END)
        conditions += [exp.NullSafeEQ(this=copied(item.expression), expression=_placeholder(str(place)))
                       for place, item in enumerate(trigger.partition_by, 1)]
        until = exp.LT if isinstance(window, IntervalWindow) else exp.LTE
        time = exp.column("_c0")
        if window is not None:
            conditions += [exp.GTE(this=time, expression=first), until(this=copied(time), expression=last)]
        elif _CUTS not in values:
            raise InvalidStreamError("which rows are new must be known when the query is planned")
        elif (written := [cut.this for cut in values[_CUTS].expressions])[1]:
            cuts = (written[0], written[1])
        if trigger.where is not None:
            conditions.append(exp.Paren(this=copied(trigger.where)))
    elif by_table:
        conditions.append(exp.EQ(this=exp.column(TBNAME), expression=_placeholder(TBNAME)))
    above, real = source.parent, TableSource(name, source.alias or (None if rows else TBNAME), cuts)
    if isinstance(above, Select) and above.source is source:
        where = [] if above.where is None else [exp.Paren(this=copied(above.where))]
        above.change(source=real, where=_all([*where, *conditions]))
    else:
        everything = Select((SelectItem(exp.Star(), None, "*"),), TableSource(name, None, cuts), where=_all(conditions))
        exp.Expression.replace(source, SubquerySource(everything, source.alias or source.name.name))


def _limit(
    condition: exp.Expression, limits: Mapping[str, tuple[exp.Expression, exp.Expression]]
) -> exp.Expression | None:
    """Returns what a comparison with a time of the window means for all windows; None if it isn't one."""
    if not isinstance(condition, exp.GTE | exp.GT | exp.LT | exp.LTE):
        return None
    left, right = condition.this, condition.expression
    lower = isinstance(condition, exp.GTE | exp.GT)
    for side, other, is_lower in ((right, left, lower), (left, right, not lower)):
        by_constant = isinstance(side, exp.Add | exp.Sub) and isinstance(side.expression, DurationLiteral | exp.Literal)
        moved = side if isinstance(side, exp.Column) else side.this if by_constant else None
        bound = None if moved is None else limits.get(moved.sql("tdengine"))
        if bound is None or any(node.table == _FIRED for node in found_in(other, exp.Column)):
            continue
        literal = copied(bound[0] if is_lower else bound[1])
        if side is not moved:
            literal = type(side)(this=literal, expression=copied(side.expression))
        kind = exp.GTE if is_lower else exp.LTE
        return kind(this=copied(other), expression=literal)
    return None


def _all(conditions: Sequence[exp.Expression]) -> exp.Expression | None:
    return reduce(lambda left, right: exp.And(this=left, expression=right), conditions) if conditions else None


def _placeholder(name: str) -> exp.Expression:
    return exp.Column(this=exp.Identifier(this=TRIGGER + name, quoted=False))


def _given(name: str, kind: DataType = BIGINT) -> exp.Expression:
    return Given(this=name, kind=kind)


def _time(units: int) -> exp.Expression:
    return exp.Cast(this=_number(units), to=TypeName(this=timestamp("ms")))


def _number(value: int) -> exp.Expression:
    number = exp.Literal.number(str(abs(value)))
    return exp.Paren(this=exp.Neg(this=number)) if value < 0 else number
