"""The two forms of CREATE STREAM, and a statement of the one as one of the other.

The older form has a query over windows, the newer one a trigger and a query for each of its windows. What a translation
makes differ is noted; what has no equal is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

from sqlglot import exp

from penstock.common.errors import NotSupportedError, Position
from penstock.planner.bind.query_parts import is_star
from penstock.planner.bind.scopes import replaced, vector_calls, vector_spec
from penstock.planner.bind.user_functions import function_of
from penstock.planner.logical.written import text_of
from penstock.planner.streams.stream_keys import names_of
from penstock.sql.dialect.literals import position
from penstock.sql.dialect.parse_trigger import windows_of
from penstock.sql.dialect.stream_options import ALTERABLE, given
from penstock.sql.tree.expression_nodes import quote_identifier, source_range
from penstock.sql.tree.fired_queries import PLACEHOLDERS, TBNAME
from penstock.sql.tree.statements import (
    TRIGGER,
    Calculation,
    CountWindow,
    CreateStream,
    Duration,
    EventWindow,
    Fill,
    IntervalWindow,
    JoinSource,
    Name,
    PartitionItem,
    Query,
    Select,
    SelectItem,
    SessionWindow,
    SetOperation,
    StateWindow,
    StreamOptions,
    StreamTarget,
    TableSource,
    ValuesQuery,
    Window,
)
from penstock.sql.tree.walking import conjuncts, copied, found_in, unwrapped

Form = Literal["old", "new"]

_ENDS = ("_wend", "_wduration", "_twend", "_twduration")
_NEWER = {"_wstart": "_twstart", "_wend": "_twend", "_wduration": "_twduration"}
_OLDER = {newer: older for older, newer in _NEWER.items()}
_ROWS = "_twrownum"
_CLAUSES = (
    ("ctes", "WITH"), ("tags_only", "TAGS"), ("distinct", "DISTINCT"), ("distinct_on", "DISTINCT ON"),
    ("range", "RANGE"), ("every", "EVERY"), ("group_by", "GROUP BY"), ("having", "HAVING"), ("windows", "WINDOW"),
    ("qualify", "QUALIFY"), ("order_by", "ORDER BY"), ("slimit", "SLIMIT"), ("limit", "LIMIT"))
_FOR_ONE = (*_CLAUSES, ("partition_by", "PARTITION BY"), ("window", "a window"), ("fill", "FILL"))

#: Options of the older form that a translation minds, and values of others that change nothing.
_MINDED = ("trigger", "max_delay", "watermark", "ignore_expired", "ignore_update", "fill_history", "fill_history_async")
_AS_ALWAYS = {"time": "event", "on_error": "fail"}
_OTHER_TRIGGERS = {
    "at_once": "MAX_DELAY(3s) is the nearest: windows that are open are computed every 3 s",
    "force_window_close": "PERIOD is the nearest: it fires by the clock, too",
    "continuous_window_close": "TRIGGER WINDOW_CLOSE is the nearest, and has an equal: it takes late rows in at once",
}
_LEAST_DELAY = Duration(5, "s")
_LEAST_WATERMARK = Duration(1, "a")


@dataclass(frozen=True, slots=True)
class Translated:
    """A statement in the form that was asked for, and what is not as it was."""

    statement: CreateStream
    notes: tuple[str, ...] = ()


def form_of(statement: CreateStream) -> Form:
    """Returns the form that a statement has."""
    return "old" if statement.calculation is None else "new"


def in_form(statement: CreateStream, form: Form, text: str) -> Translated:
    """Returns the statement in a form. `text` is what it was parsed from.

    Raises NotSupportedError for a statement that has no equal in that form.
    """
    if form_of(statement) == form:
        return Translated(statement)
    translation = _ToNewer(statement, text) if form == "new" else _ToOlder(statement, text)
    return Translated(translation.result(), tuple(translation.notes))


class _FormChange:
    """What both ways have in common."""

    of = ""

    def __init__(self, statement: CreateStream, text: str) -> None:
        self.statement = statement
        self.notes: list[str] = []
        self._text = text

    def refused(self, reason: str, hint: str, at: exp.Expression | str | None = None) -> NotSupportedError:
        """Returns the error for what has no equal. `at`: the node, or the option, that is the reason."""
        return NotSupportedError(f"{self.statement.name} has no equal in the {self.of} form: {reason}", hint=hint,
                                 position=self._position(at))

    def _position(self, at: exp.Expression | str | None) -> Position:
        start, length = self.statement.source_start, len("CREATE")
        if isinstance(at, str):
            start, length = (self.statement.option_offsets or {}).get(at, start), len(at)
        elif isinstance(at, Select):
            start, length = at.source_start, len("SELECT")
        elif isinstance(at, Name | TableSource):
            name = at if isinstance(at, Name) else at.name
            start, length = name.offset, len(name.sql())
        elif at is not None:
            start, end = source_range(at)
            length = end - start
        return position(self._text, start, length)

    def one_select(self, query: Query | None, clauses: Sequence[tuple[str, str]], hint: str) -> Select:
        """Returns a query that is a SELECT from one table without such clauses; its columns name no table."""
        if not isinstance(query, Select):
            raise self.refused("its query is more than one SELECT", hint, query)
        clause = next((words for name, words in clauses if getattr(query, name)), None)
        if clause is None and len(found_in(query, Select, SetOperation, ValuesQuery)) > 1:
            clause = "a sub-query"
        if clause is None and found_in(query, exp.Window):
            clause = "OVER"
        if clause is not None:
            raise self.refused(f"its query has {clause}", hint, query)
        if not isinstance(query.source, TableSource) or query.source.cuts is not None:
            reason = "a join" if isinstance(query.source, JoinSource) else "more than rows of one table"
            raise self.refused(f"its query reads {reason}", hint, query)
        plain = replaced(query, _unqualified)
        assert isinstance(plain, Select)
        return plain

    def counts(self, items: Iterable[SelectItem]) -> bool:
        """Whether the query gives a row where there are no rows, which has what FILL(NULL) doesn't, as is noted."""
        counting = [text_of(call) for item in items for call in vector_calls(item.expression) if _counts(call)]
        if counting:
            self.notes.append(f"of no rows {', '.join(counting)} is NULL in the older form, 0 in the newer one")
        return bool(counting)

    def note_ends(self, window: Window | None, node: exp.Column) -> None:
        """Notes that the ends of sessions differ."""
        note = "a session ends with its gap in the older form, with its last row in the newer one"
        if isinstance(window, SessionWindow) and node.name in _ENDS and note not in self.notes:
            self.notes.append(note)

    def note_late_rows(self) -> None:
        """Notes what leaving late rows out means: a query of the newer form reads the table, which has them."""
        self.notes.append("a late row that is there when its window is computed counts in the newer form alone")


# --- to the newer form ------------------------------------------------------------------------------------------


class _ToNewer(_FormChange):
    of = "newer"

    def result(self) -> CreateStream:
        statement = self.statement
        if statement.materialized:
            raise self.refused("a materialized view holds the answer of its query", "leave it as it is")
        if statement.target.external is not None:
            raise self.refused("INTO CONNECTION is of the older form", "write into a table, or use NOTIFY",
                               statement.target.name)
        query = self._windowed()
        window, groups = query.window, query.partition_by
        assert window is not None
        options = self._options(window)
        items = self._items(query, window)
        target, items = self._with_time(items)
        target, groups = self._with_tags(target, groups, items)
        fills, forces = self._fills(query, items)
        where = query.where
        if isinstance(window, StateWindow):
            where = _all([*([] if where is None else [where]), _has_state(window)])
        if isinstance(window, IntervalWindow) and window.sliding is None:
            window = window.with_changes(sliding=window.interval)
        if statement.or_replace:
            self.notes.append("OR REPLACE is of the older form: drop the stream first")
        calculation = Calculation(
            Select(tuple(items), TableSource(Name("trows", TRIGGER))),
            force_output=forces, ignore_nodata=isinstance(window, IntervalWindow) and not fills,
            flags=("low_latency_calc",) if options.latency is not None else ())
        assert query.source is not None
        source = query.source.with_changes(alias=None)
        return statement.with_changes(
            options=options, target=target, or_replace=False, calculation=calculation,
            query=windows_of(window, source, groups, where, fills=fills))

    def _windowed(self) -> Select:
        hint = "PERIOD is the nearest: its query may be any, and runs by the clock"
        query = self.one_select(self.statement.query, _CLAUSES, hint)
        if query.window is None:
            raise self.refused("it has no window", "a trigger gives windows; one of SLIDING or PERIOD, whose query "
                               "takes the rows of %%trows, is the nearest", self.statement.query)
        return query

    def _options(self, window: Window) -> StreamOptions:
        options = self.statement.options
        if options.trigger in _OTHER_TRIGGERS:
            raise self.refused(f"it has TRIGGER {options.trigger.upper()}", _OTHER_TRIGGERS[options.trigger], "trigger")
        for name in given(options):
            value = getattr(options, name)
            if name in _MINDED or _AS_ALWAYS.get(name) == value or (name == "late" and value != "dlq"):
                continue
            words = name.upper()
            if name == "latency" and not value.value:
                continue
            if name not in (*ALTERABLE, "dlq"):
                raise self.refused(f"{words} is of the older form", "leave it out, if results may differ", name)
            if name != "dlq":
                self.notes.append(f"{words} is of the older form, and left out")
        if options.fill_history_async:
            self.notes.append("FILL_HISTORY is without ASYNC")
        if isinstance(window, EventWindow) and options.trigger != "max_delay" and options.watermark is None:
            self.notes.append("a window gives its result with its last row, and doesn't wait for a later one")
        ignores = self._ignores_disorder(window)
        return StreamOptions(
            trigger=options.trigger or "window_close", max_delay=options.max_delay, watermark=options.watermark,
            ignore_expired=ignores, ignore_update=ignores, fill_history=options.fill_history or None,
            latency=options.latency if options.latency is not None and not options.latency.value else None)

    def _ignores_disorder(self, window: Window) -> bool:
        options = self.statement.options
        expired, update = options.ignore_expired is not False, bool(options.ignore_update)
        if options.late is not None:
            expired = options.late == "drop"
        if expired or isinstance(window, CountWindow):  # which leaves out late rows in either form
            self.note_late_rows()
        if isinstance(window, CountWindow) or expired == update:
            return update
        self.notes.append(
            f"IGNORE EXPIRED {expired:d} with IGNORE UPDATE {update:d} has no equal: late rows and updates count now, "
            "or neither with IGNORE_DISORDER")
        return False

    def _items(self, query: Select, window: Window) -> list[SelectItem]:
        places: dict[str, int] = {}
        for place, item in enumerate(query.partition_by, 1):
            places[text_of(item.expression)] = place
            if item.alias is not None:
                places.setdefault(item.alias, place)
        picks = any(spec is not None and spec.has_companions for item in query.items
                    for call in vector_calls(item.expression) for spec in (vector_spec(call),))
        state = text_of(window.expression) if isinstance(window, StateWindow) else None

        def newer(node: exp.Expression) -> exp.Expression | None:
            if vector_spec(node) is not None or (isinstance(node, exp.Anonymous) and function_of(node) is None):
                return node
            text = text_of(node)
            if text in places:
                return _column(f"{TRIGGER}{places[text]}")
            if text == state:
                return exp.Anonymous(this="first", expressions=[copied(node)])
            if not isinstance(node, exp.Column):
                return None
            if node.name in _NEWER and not node.this.args.get("quoted"):
                self.note_ends(window, node)
                return _column(_NEWER[node.name])
            if not picks and not is_star(node):
                raise self.refused(f"{text} is no value of a window", "add it to PARTITION BY: %%n stands for its n-th "
                                   "column", node)
            return node

        return [_renamed(item, replaced(item.expression, newer)) for item in query.items]

    def _with_time(self, items: list[SelectItem]) -> tuple[StreamTarget, list[SelectItem]]:
        """Returns the target and the items with the start of the window before them, which the older form adds."""
        target, first = self.statement.target, items[0].expression
        if isinstance(first, exp.Column) and first.name == "_twstart":
            return target, items
        names = {item.name for item in items}
        name = next(name for name in ("_wstart", "ts", "_wstart_") if name not in names)
        if target.columns is not None:
            target = target.with_changes(columns=((name, False), *target.columns))
        return target, [SelectItem(_column("_twstart"), name), *items]

    def _fills(self, query: Select, items: Sequence[SelectItem]) -> tuple[bool, bool]:
        """Returns whether windows without rows are computed, and whether that needs to be forced."""
        fill = query.fill
        if fill is None or fill.mode == "none":
            return False, False
        if fill.mode not in ("null", "null_f", "value", "value_f"):
            raise self.refused(f"FILL({fill.mode.upper()}) takes values of other windows",
                               "its query may read the result table's last row before _twstart", self.statement.query)
        if fill.values:
            self.notes.append("FILL(VALUE, ...) is FILL(NULL) now")
        return True, not self.counts(items)

    def _with_tags(
        self, target: StreamTarget, groups: tuple[PartitionItem, ...], items: Sequence[SelectItem]
    ) -> tuple[StreamTarget, tuple[PartitionItem, ...]]:
        """Returns the target with the values of its tags, and the groups by names that can be those of tags."""
        if target.tag_names is not None:
            raise self.refused("TAGS without types are of the older form", "write their types as well", target.name)
        if not groups:
            self.notes.append(f"{target.name} is a normal table: without PARTITION BY there are no child tables and no "
                              "tags")
            return target.with_changes(subtable=None, tag_definitions=None), groups
        if target.tag_definitions is None:
            self.notes.append(f"{target.name} has a tag per column of PARTITION BY, and no group_id")
            columns = [name for name, _ in target.columns or ()] or [
                item.alias or text_of(item.expression) for item in items]
            return target, tuple(
                item.with_changes(alias=f"tag_{item.expression.name}") if item.alias is None and isinstance(
                    item.expression, exp.Column) and item.expression.name != TBNAME and item.expression.name in columns
                else item for item in groups)
        values = []
        for tag in target.tag_definitions:
            item = next((item for item in groups if tag.name in names_of(item)), None)
            if item is None:
                raise self.refused(f"tag {tag.name} is not the name of a PARTITION BY item",
                                   "give the item that alias", target.name)
            values.append(copied(item.expression))
        return target.with_changes(tag_values=tuple(values)), groups


# --- to the older form ------------------------------------------------------------------------------------------


class _ToOlder(_FormChange):
    of = "older"

    def __init__(self, statement: CreateStream, text: str) -> None:
        super().__init__(statement, text)
        assert statement.calculation is not None
        self._does: Calculation = statement.calculation
        self._trigger = statement.select
        self._more: list[exp.Expression] = []

    def result(self) -> CreateStream:
        self._check()
        trigger, does = self._trigger, self._does
        query = self.one_select(does.query, _FOR_ONE, "a stream of the older form aggregates the rows of windows")
        where = self._condition(query)
        items = [_renamed(item, replaced(item.expression, self._older)) for item in query.items]
        first = query.items[0].expression
        if not isinstance(first, exp.Column) or first.name != "_twstart":
            raise self.refused("its query doesn't begin with _twstart", "results of the older form are told apart by "
                               "the start of their window", first)
        if not any(True for item in items for _ in vector_calls(item.expression)):
            raise self.refused("its query doesn't aggregate", "results of the older form are one row per window",
                               does.query)
        fill = None
        if isinstance(trigger.window, IntervalWindow) and not does.ignore_nodata and (
                does.force_output or self.counts(items)):
            fill = Fill("null")
        target, groups = self._target()
        source = trigger.source
        if does.database is not None:
            self.notes.append(f"a stream of the older form has no database: tables are named with {does.database}")
            target, source = target.with_changes(name=_within(target.name, does.database)), copied(source)
            assert isinstance(source, TableSource)
            source.change(name=_within(source.name, does.database))
        window = trigger.window
        if isinstance(window, IntervalWindow) and window.sliding == window.interval:
            window = window.with_changes(sliding=None)
        return self.statement.with_changes(
            options=self._options(), target=target, calculation=None,
            query=Select(tuple(items), source, where=where, partition_by=groups, window=window, fill=fill))

    def _check(self) -> None:
        does, events = self._does, self._does.events
        for wrong, reason, hint in (
            (does.period is not None, "PERIOD fires by the clock",
             "TRIGGER FORCE_WINDOW_CLOSE with INTERVAL is the nearest"),
            (does.slides, "SLIDING without INTERVAL gives no windows", "INTERVAL of the same width is the nearest"),
            (does.query is None or not self.statement.target.name.name, "it keeps no results", "add INTO and AS"),
            (events != ("window_close",), "EVENT_TYPE has it compute when windows open",
             "TRIGGER AT_ONCE is the nearest"),
            (does.expired is not None, "EXPIRED_TIME is of the newer form", "IGNORE EXPIRED 1 is the nearest"),
            (does.notify_only, "CALC_NOTIFY_ONLY keeps no results", "leave it out"),
            (does.force_output and (does.ignore_nodata or not isinstance(self._trigger.window, IntervalWindow)),
             "FORCE_OUTPUT gives rows for windows without results", "FILL is the nearest"),
            (does.where is not None, "NOTIFY has a condition", "leave WHERE out: whoever is told may look"),
        ):
            if wrong:
                raise self.refused(reason, hint)

    def _older(self, node: exp.Expression) -> exp.Expression | None:
        """Returns what stands for a part of the SELECT list."""
        if not isinstance(node, exp.Column) or node.this.args.get("quoted"):
            return None
        name, groups = node.name, self._trigger.partition_by
        if name in _OLDER:
            self.note_ends(self._trigger.window, node)
            return _column(_OLDER[name])
        if name == _ROWS and not self._more:
            return exp.Anonymous(this="count", expressions=[exp.Star()])
        group = self._group(name)
        if group is not None:
            return copied(groups[group].expression)
        if name in PLACEHOLDERS or name.startswith(TRIGGER):
            raise self.refused(f"{name} is what only a trigger gives", "the older form knows the start, the end and "
                               "the length of windows", node)
        return None

    def _group(self, name: str) -> int | None:
        """Returns which item of PARTITION BY a placeholder stands for."""
        groups = self._trigger.partition_by
        if name == f"{TRIGGER}{TBNAME}":
            return next((place for place, item in enumerate(groups) if text_of(item.expression) == TBNAME), None)
        return next((place for place in range(len(groups)) if name == f"{TRIGGER}{place + 1}"), None)

    # -- which rows --

    def _condition(self, query: Select) -> exp.Expression | None:
        """Returns WHERE of the older form, of which all rows of windows are."""
        trigger, parts = self._trigger, list(conjuncts(query.where))
        filtered = {text_of(part) for part in conjuncts(trigger.where)}
        assert isinstance(query.source, TableSource)
        if query.source.name != Name("trows", TRIGGER):
            parts = self._within_window(query.source, parts)
            if not filtered <= {text_of(part) for part in parts}:
                raise self.refused("its query takes rows that PRE_FILTER leaves out", "read %%trows instead",
                                   query.source)
        self._more = [part for part in parts if text_of(part) not in filtered]
        if self._more and not isinstance(trigger.window, IntervalWindow):
            raise self.refused("its query leaves out rows of windows", "PRE_FILTER, which says what is in windows as "
                               "well, has an equal", self._more[0])
        if self._more:
            self.notes.append("windows in which no row meets the query's condition have no result")
        where = trigger.where if not self._more else _all([*conjuncts(trigger.where), *self._more])
        if isinstance(trigger.window, StateWindow):
            where = self._without_state(trigger.window, where)
        if self._does.history_from is not None:
            self.notes.append("the time of FILL_HISTORY is a condition of WHERE")
            since = exp.GTE(this=exp.column("_c0"), expression=exp.Paren(this=copied(self._does.history_from)))
            where = _all([*([] if where is None else [where]), since])
        return where

    def _without_state(self, window: StateWindow, where: exp.Expression | None) -> exp.Expression | None:
        state = text_of(_has_state(window))
        parts = list(conjuncts(where))
        others = [part for part in parts if text_of(part) != state]
        if len(others) == len(parts):
            self.notes.append(f"rows count only if {state}")
            return where
        if isinstance(where, exp.And) and text_of(unwrapped(where.expression)) == state:
            return unwrapped(where.this)
        return _all(others) if others else None

    def _within_window(self, source: TableSource, parts: list[exp.Expression]) -> list[exp.Expression]:
        """Returns the conditions without those that only rows of the window and its group meet."""
        trigger, name = self._trigger, source.name
        assert isinstance(trigger.source, TableSource)
        own, database = trigger.source.name, self._does.database
        by_table = name == Name(TBNAME, TRIGGER)
        if not by_table and (name.name, name.database or database) != (own.name, own.database or database):
            raise self.refused(f"its query reads {name}, not the trigger's table", "read %%trows", source)
        covered = {place for place, item in enumerate(trigger.partition_by)
                   if by_table and text_of(item.expression) == TBNAME}
        bounds: dict[str, str] = {}
        others = []
        for part in parts:
            found, group = _bounds(part, isinstance(trigger.window, IntervalWindow)), self._of_group(part)
            if group is not None:
                covered.add(group)
            elif found:
                bounds |= found
            else:
                others.append(part)
        times = set(bounds.values())
        if isinstance(trigger.window, SessionWindow) and times != {"_c0"}:
            times.add(text_of(trigger.window.column))
        if len(bounds) < 2 or len(times) > 1 or len(covered) < len(trigger.partition_by):
            raise self.refused("its query reads other rows than those of the window", "read %%trows", source)
        if not isinstance(trigger.window, SessionWindow) and times.isdisjoint(("_c0", "_rowts")):
            self.notes.append(f"{times.pop()} is taken for the time of {own}")
        return others

    def _of_group(self, part: exp.Expression) -> int | None:
        """Returns which item of PARTITION BY a condition compares with its value."""
        if not isinstance(part, exp.EQ | exp.NullSafeEQ):
            return None
        for one, other in ((part.this, part.expression), (part.expression, part.this)):
            group = self._group(other.name) if isinstance(other, exp.Column) else None
            if group is not None and text_of(one) == text_of(self._trigger.partition_by[group].expression):
                return group
        return None

    # -- what is around the query --

    def _options(self) -> StreamOptions:
        options, does, window = self.statement.options, self._does, self._trigger.window
        delay, watermark, expired = options.max_delay, options.watermark, options.ignore_expired
        if delay is not None and delay.in_units("ms") < _LEAST_DELAY.in_units("ms"):
            self.notes.append(f"MAX_DELAY is at least {_LEAST_DELAY}")
            delay = _LEAST_DELAY
        if isinstance(window, CountWindow):
            expired = True
            if watermark is None:
                self.notes.append(f"COUNT_WINDOW needs a WATERMARK: {_LEAST_WATERMARK} is the least")
                watermark = _LEAST_WATERMARK
        if expired:
            self.note_late_rows()
        if isinstance(window, EventWindow) and delay is None and watermark is None:
            self.notes.append("a window gives its result when a row comes behind its last one")
        if "delete_recalc" in does.flags:
            self.notes.append("DELETE_RECALC is left out: the older form computes again whatever is deleted")
        return StreamOptions(
            trigger=options.trigger, max_delay=delay, watermark=watermark, ignore_expired=expired,
            ignore_update=options.ignore_update, fill_history=options.fill_history,
            latency=Duration(0, "") if "low_latency_calc" in does.flags else None)

    def _target(self) -> tuple[StreamTarget, tuple[PartitionItem, ...]]:
        target, groups = self.statement.target, list(self._trigger.partition_by)
        if not groups:
            self.notes.append(f"{target.name} is a super table with one child table, not a normal table")
        elif target.tag_definitions is None:
            self.notes.append(f"{target.name} has the tag group_id, and none per column of PARTITION BY")
        for tag, value in zip(target.tag_definitions or (), target.tag_values or (), strict=True):
            place = next((place for place, item in enumerate(groups)
                          if text_of(item.expression) == text_of(value)), None)
            if place is None:
                raise self.refused(f"tag {tag.name} is not what an item of PARTITION BY gives",
                                   "group by its expression", value)
            if tag.name in names_of(groups[place]):
                continue
            if groups[place].alias is not None:
                raise self.refused(f"tag {tag.name} is not called as its item of PARTITION BY",
                                   "give the item that alias", value)
            groups[place] = groups[place].with_changes(alias=tag.name)
        return target.with_changes(tag_values=None), tuple(groups)


# --- parts ------------------------------------------------------------------------------------------------------


def _column(name: str) -> exp.Expression:
    return exp.Column(this=exp.Identifier(this=name, quoted=False))


def _unqualified(node: exp.Expression) -> exp.Expression | None:
    if not isinstance(node, exp.Column) or not node.table:
        return None
    plain = exp.Column(this=copied(node.this))
    plain.meta.update(node.meta)
    return plain


def _all(conditions: Sequence[exp.Expression]) -> exp.Expression:
    """Returns the conditions as one, those with OR in parentheses."""
    plain = [exp.Paren(this=copied(one)) if isinstance(one, exp.Or) else copied(one) for one in conditions]
    return reduce(lambda left, right: exp.And(this=left, expression=right), plain)


def _has_state(window: StateWindow) -> exp.Expression:
    """Returns the condition of rows that are in a window: the older form's leave out rows without a state."""
    state = copied(window.expression)
    if not isinstance(state, exp.Column | exp.Anonymous | exp.Paren | exp.Cast):
        state = exp.Paren(this=state)
    return exp.Not(this=exp.Is(this=state, expression=exp.Null()))


def _renamed(item: SelectItem, expression: exp.Expression) -> SelectItem:
    """Returns the item with another expression, called as before."""
    spec = vector_spec(unwrapped(expression))
    many = spec is not None and (spec.expands or spec.of_call) and (
        len(unwrapped(expression).expressions) > 1 or any(map(is_star, unwrapped(expression).expressions)))
    name = item.alias
    if name is None and item.text:
        node = item.expression
        bare = isinstance(node, exp.Column) and item.text == quote_identifier(node.name)
        name = node.name if bare else item.text
    called = expression.name if isinstance(expression, exp.Column) else text_of(expression)
    return SelectItem(expression, None if many or is_star(expression) or called == name else name)


def _counts(call: exp.Expression) -> bool:
    spec = vector_spec(call)
    return spec is not None and spec.counts


def _bounds(part: exp.Expression, by_width: bool) -> dict[str, str]:
    """Returns which bounds of the window a condition compares a column with, and the column; none if it is none.

    `by_width`: the end of a window isn't part of it.
    """
    if isinstance(part, exp.Between) and not by_width:
        low, high = part.args["low"], part.args["high"]
        return {"_twstart": part.this.name, "_twend": part.this.name} if (
            low.name == "_twstart" and high.name == "_twend" and isinstance(part.this, exp.Column)) else {}
    lower, upper = (exp.GTE, "_twstart"), (exp.LT if by_width else exp.LTE, "_twend")
    turned = {exp.GTE: exp.LTE, exp.LTE: exp.GTE, exp.LT: exp.GT, exp.GT: exp.LT}
    for kind, left, right in ((type(part), part.this, part.expression),
                              (turned.get(type(part)), part.args.get("expression"), part.this)):
        if isinstance(left, exp.Column) and isinstance(right, exp.Column) and (kind, right.name) in (lower, upper):
            return {right.name: left.name}
    return {}


def _within(name: Name, database: str) -> Name:
    return name.with_changes(database=name.database or database)
