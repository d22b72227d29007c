"""CREATE STREAM to a `StreamPlan`: checks what a stream may be, splits its query over source, agg and sink tasks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from penstock.common.errors import (
    AlreadyExistsError,
    InvalidStatementError,
    InvalidStreamError,
    NotFoundError,
    NotSupportedError,
    Position,
)
from penstock.common.headroom import with_headroom
from penstock.common.suggestions import did_you_mean
from penstock.planner.aggregates import ALL_ROWS, selection_of, split
from penstock.planner.binder import qualifier_of
from penstock.planner.bounds import time_bounds, time_constant
from penstock.planner.dead_letters import plan_dlq, plan_errors
from penstock.planner.duckdb_tree import (
    Tree,
    cast,
    closed,
    column,
    fragment,
    is_column,
    named,
    render,
    select,
    try_cast,
)
from penstock.planner.expressions import compile_expression, condition_tree
from penstock.planner.functions.table import lookup
from penstock.planner.grouped_call import RowKey
from penstock.planner.lower.stages import (
    TBNAME,
    WINDOW_END,
    WINDOW_START,
    Companion,
    GroupKey,
    SourceRows,
    StagedCall,
    interval_source,
    row_window_source,
    scalar_source,
    windows_of_groups,
)
from penstock.planner.partials import Partial, field_column, picked
from penstock.planner.plan import PlanNode, SqlExpr
from penstock.planner.query_parts import call_of, is_star, text_of
from penstock.planner.scopes import fingerprint, replaced, unwrapped, vector_calls, vector_spec
from penstock.planner.select_list import EXPANDING
from penstock.planner.stream import (
    Field,
    FillPlan,
    History,
    SinkPlan,
    SourceColumn,
    StreamPlan,
    Trigger,
)
from penstock.planner.stream_fill import FillContext, Filled, is_filled, plan_fill
from penstock.planner.stream_force import plan_force
from penstock.planner.stream_join_plan import (
    StreamQuery,
    plan_join,
    plan_join_query,
    projections_of,
    read_stream,
    short_names,
)
from penstock.planner.stream_lookup import Lookup, lookup_of
from penstock.planner.stream_notify import NOTIFY_TRIGGERS, plan_notify
from penstock.planner.stream_outside import avro_schema, plan_outside
from penstock.planner.stream_row_windows import (
    StreamFacts,
    WindowMarks,
    bookkeeping,
    describe,
    plan_row_window,
)
from penstock.planner.stream_time import TimeDefaults, check_skew, described, plan_time, zoned
from penstock.planner.stream_triggers import TriggerPlan, plan_trigger
from penstock.planner.user_functions import bind_user_functions, bound_function
from penstock.planner.windows import check_interval
from penstock.sql.dialect import source_range
from penstock.sql.literals import position
from penstock.sql.schema import CatalogView, Column, Session, Table
from penstock.sql.statements import (
    CreateStream,
    Fill,
    IntervalWindow,
    JoinSource,
    Name,
    OutsideTarget,
    Select,
    SelectItem,
    TableSource,
    Window,
)
from penstock.sql.types import (
    BIGINT,
    INTEGERS,
    UBIGINT,
    UNITS_PER_SECOND,
    VARCHAR,
    DataType,
    Kind,
    Precision,
    timestamp,
)

SELECTING = ("min", "max", "first", "last", "last_row")
DEFAULT_WATERMARK = 0
DEFAULT_DELETE_MARK_DAYS = 3650


@dataclass(frozen=True, slots=True)
class StreamDefaults:
    """What an option means that CREATE STREAM leaves out."""

    trigger: Trigger = "window_close"
    ignore_expired: bool = True
    ignore_update: bool = False
    time: TimeDefaults = field(default_factory=TimeDefaults)


@with_headroom
def plan_stream(
    statement: CreateStream, catalog: CatalogView, session: Session, defaults: StreamDefaults | None = None
) -> StreamPlan:
    """Returns the plan of a stream.

    Raises NotFoundError for unknown tables, columns and functions, InvalidStreamError for what TDengine refuses
    (tdengine.md 1.4), AlreadyExistsError and InvalidStatementError for a target that doesn't fit, NotSupportedError
    for what Penstock cannot do yet.
    """
    session = zoned(statement.options, session)
    functions = bind_user_functions(statement, catalog, session)
    planner = _Planner(statement, catalog, session, defaults or StreamDefaults())
    plan = planner.plan()
    options = statement.options
    if plan.sink.outside is None and (options.on_failure is not None or options.retry_time is not None):
        raise InvalidStreamError("ON_FAILURE and RETRY_TIME are for streams INTO CONNECTION",
                                 hint="a result table is a part of Penstock and has no failures of its own")
    if plan.source.lookup is None and options.lookup_freshness is not None:
        raise InvalidStreamError("LOOKUP_FRESHNESS is for streams whose rows look up in another table",
                                 hint="join a normal table, or one of a connection, by equal values")
    if plan.dlq is None and options.on_failure == "dlq":
        plan = replace(plan, dlq=plan_dlq(options, planner.table, planner.precision, catalog, session))
    if statement.notify is not None and plan.notify is None:
        raise NotSupportedError(f"NOTIFY doesn't go with TRIGGER {plan.trigger.upper()}", hint=NOTIFY_TRIGGERS)
    called = tuple(dict.fromkeys((*functions, *plan.functions)))
    return replace(plan, functions=called, guarantee=statement.options.guarantee or "exactly_once")


class _Planner:
    def __init__(
        self, statement: CreateStream, catalog: CatalogView, session: Session, defaults: StreamDefaults
    ) -> None:
        self.statement = statement
        self.query: Select = statement.query
        self.catalog = catalog
        self.session = session
        self.defaults = defaults
        self.join: StreamQuery | None = None
        self.lookup: Lookup | None = None
        if isinstance(self.query.source, JoinSource):
            self._read_join()
        self.table = self._source_table()
        database = catalog.database(self.table.database)
        assert database is not None
        self.precision = database.precision
        self.keys: list[GroupKey] = []
        self.used: dict[str, SourceColumn] = {}
        self.needs_children = False
        self.calls: list[StagedCall] = []
        self.bound: list[SqlExpr] = []
        self._field_names = (f"p{n}" for n in itertools.count())

    # -- the source ------------------------------------------------------------------------------------------

    def _read_join(self) -> None:
        """Takes note of the join. One that looks up is left out of the query from here on: names know about it."""
        query = read_stream(self)
        if query.described.meeting != "lookup":
            self.join = query
            return
        self.lookup = lookup_of(query.join)
        self.query = self.query.with_changes(source=self.lookup.own)
        self.statement = self.statement.with_changes(query=self.query)

    def _source_table(self) -> Table:
        source = self.query.source
        if self.join is not None:
            table = self.join.driver.table
            assert table is not None
            return table
        if not isinstance(source, TableSource):
            raise InvalidStreamError("a stream reads exactly one table: no sub-query or UNION")
        if source.cuts is not None:
            raise InvalidStreamError("a stream reads what comes after its creation: BETWEEN CUT is for queries")
        table = resolve_table(source.name, self.catalog, self.session, self.statement.source_text)
        if table.kind == "system":
            raise InvalidStreamError(f"{source.name} is a system table: a stream cannot read it")
        return table

    def plan(self) -> StreamPlan:
        query, options = self.query, self.statement.options
        self._check_shape()
        trigger = self._trigger()
        if self.join is not None:
            return self._joined(self.join, trigger)
        window = query.window
        if isinstance(window, IntervalWindow):
            check_interval(window, self.precision)
            if window.offset == "auto":
                raise InvalidStreamError("a stream cannot have INTERVAL(..., AUTO)", hint="write the offset")
        rows = RowScope(self)
        if self.lookup is not None:
            if trigger.mode == "force_window_close":
                raise NotSupportedError("a stream by the clock can't look up rows in another table yet",
                                        hint="use TRIGGER WINDOW_CLOSE")
            if self.lookup.on is not None:
                self.lookup.condition = condition_tree(self.lookup.on, rows)
        self._plan_keys()
        condition = condition_tree(query.where, rows) if query.where is not None else None
        time = plan_time(self.statement, self.precision, trigger.mode, self.session, self.defaults.time)
        on_error = plan_errors(self.statement, trigger.mode, time.clock, self.defaults.time.on_error)
        if trigger.mode == "force_window_close":
            return plan_force(self, condition)
        if window is None:
            projections, time_text = self._scalar_projections(rows)
        else:
            projections, time_text = self._window_projections(ResultScope(self, rows, window))
        prepended = projections[0][0].name == time_text and len(projections) == len(self._expanded(query.items)) + 1
        sink, casts = self.sink(projections, prepended=prepended)
        fill = None
        if query.fill is not None and query.fill.mode != "none":
            if not isinstance(window, IntervalWindow):
                raise InvalidStreamError("FILL needs an INTERVAL window")
            fill, casts = self._fill(query.fill, window, projections, sink.columns, casts)
        watermark = options.watermark.in_units(self.precision) if options.watermark is not None else DEFAULT_WATERMARK
        if watermark < 0:
            raise InvalidStreamError("WATERMARK must not be negative")
        by_table = self.table.kind != "super" or any(key.partitions and key.column == TBNAME for key in self.keys)
        check_skew(self.statement, colocated=by_table)
        marks: WindowMarks | None = None
        partials: list[Partial] = []
        if window is not None and not isinstance(window, IntervalWindow):
            facts = StreamFacts(self.table, self.precision, by_table, watermark, trigger.ignore_expired)
            marks = plan_row_window(window, facts, rows)
            if self.times_of(WINDOW_START, sink.columns)[:1] != [0]:
                raise NotSupportedError("the target's primary timestamp must be _wstart for such a window",
                                        hint="only the start of a window tells which result is to be replaced")
            partials += [partial for _, partial in bookkeeping(marks.window, self.row_key().ts.node)]
        starts, ends = (self.times_of(name, sink.columns) for name in (WINDOW_START, WINDOW_END))
        notify = plan_notify(self.statement, trigger.mode, time, starts, ends)
        if time.clock != "event":
            trigger = replace(trigger, ignore_expired=False, ignore_update=True)
        self.row_key()  # source tasks tell rows by it
        source_rows = self.source_rows(condition, by_arrival=time.clock != "event")
        partials = [*(call.partial for call in self.calls), *partials]
        agg = None
        if window is None:
            source = scalar_source(source_rows, casts, keyed=sink.key_column is not None)
        else:
            if isinstance(window, IntervalWindow):
                source = interval_source(source_rows, window, partials, ignore_expired=trigger.ignore_expired)
                agg = windows_of_groups(source_rows, window, self.calls, partials, casts)
            else:
                assert marks is not None
                source = row_window_source(source_rows, marks, partials)
                agg = windows_of_groups(source_rows, marks, self.calls, partials, casts)
        plan = StreamPlan(
            source_database=self.table.database, source_table=self.table.name, trigger=trigger.mode,
            watermark=watermark, ignore_expired=trigger.ignore_expired, ignore_update=trigger.ignore_update,
            time_zone=self.session.time_zone,
            keys=tuple(key.field for key in self.keys), source=source, agg=agg, sink=sink,
            colocated=by_table, tree=PlanNode("Stream"), period_ms=trigger.period_ms, fill=fill,
            history=self._history(), delete_mark=self.delete_mark(), time=time, on_error=on_error,
            dlq=plan_dlq(options, self.table, self.precision, self.catalog, self.session),
            table_key=next((place for place, key in enumerate(self.keys) if key.column == TBNAME), None),
            grouped_by_values=not source_rows.keys_are_of_tables,
            notify=notify,
        )
        return replace(plan, tree=self._tree(plan, condition))

    def _joined(self, query: StreamQuery, trigger: TriggerPlan) -> StreamPlan:
        """Returns the plan of a stream over a join."""
        options = self.statement.options
        if trigger.ignore_update:
            raise InvalidStreamError("a join counts the newest version of each row", hint="leave IGNORE UPDATE out")
        window = self.query.window
        if isinstance(window, IntervalWindow):
            check_interval(window, self.precision)
            if window.offset == "auto":
                raise InvalidStreamError("a stream cannot have INTERVAL(..., AUTO)", hint="write the offset")
        for n, item in enumerate(self.query.partition_by):
            compiled = compile_expression(item.expression, query.join.scope)
            if compiled.constant is None and not isinstance(item.expression, exp.Literal):
                names = (*((item.alias,) if item.alias else (item.text, *_column_name(item.expression))),
                         text_of(item.expression))
                value = SqlExpr(column(f"o{len(self.keys)}"), compiled.type)
                self.keys.append(GroupKey(Field(f"k{n}", compiled.type), value, names, True, item))
        asked = plan_join_query(self, query)
        projections, prepended = projections_of(self, query, asked)
        sink, casts = self.sink(projections, prepended=prepended)
        watermark = options.watermark.in_units(self.precision) if options.watermark is not None else DEFAULT_WATERMARK
        if watermark < 0:
            raise InvalidStreamError("WATERMARK must not be negative")
        time = plan_time(self.statement, self.precision, trigger.mode, self.session, self.defaults.time)
        on_error = plan_errors(self.statement, trigger.mode, time.clock, self.defaults.time.on_error)
        join = plan_join(self, query, asked, casts, ignore_expired=trigger.ignore_expired)
        plan = StreamPlan(
            source_database=join.left.database, source_table=join.left.table, trigger=trigger.mode,
            watermark=watermark, ignore_expired=trigger.ignore_expired, ignore_update=False,
            time_zone=self.session.time_zone, keys=tuple(key.field for key in self.keys), source=join.left.source,
            agg=None, sink=sink, colocated=join.meeting == "vnode", tree=PlanNode("Stream"), join=join,
            history=History(None, None) if options.fill_history else None, delete_mark=self.delete_mark(), time=time,
            on_error=on_error, dlq=join.left.dlq, functions=asked.batch.functions)
        shown = PlanNode("Project", (("columns", " ".join(column.name for column in sink.columns)),),
                         asked.batch.tree.inputs)
        return replace(plan, tree=self._stream_node(plan, shown))

    def _fill(
        self, fill: Fill, window: IntervalWindow, projections: list[tuple[SelectItem, SqlExpr]],
        columns: Sequence[Column], casts: list[Tree],
    ) -> tuple[FillPlan, list[Tree]]:
        """Returns the plan of filled rows, and the casts as FILL changes them."""
        filled = [Filled(value, None if is_filled(item.expression, lambda name: self.key(name) is not None) else value)
                  for item, value in projections]
        return plan_fill(fill, filled, self.bound, casts, columns, self.fill_context(window), converted)

    def fill_context(self, window: IntervalWindow) -> FillContext:
        return FillContext(self.catalog, self.session, self.statement.source_text, self.precision, window,
                           tuple(key.field for key in self.keys))

    def _check_shape(self) -> None:
        query = self.query
        refused = (
            (query.group_by, "GROUP BY is not allowed in a stream", "use PARTITION BY"),
            (query.order_by, "ORDER BY is not allowed in a stream", None),
            (query.having, "HAVING is not allowed in a stream", "filter the result table when you query it"),
            (query.limit, "LIMIT is not allowed in a stream", None),
            (query.slimit, "SLIMIT is not allowed in a stream", None),
            (query.distinct, "DISTINCT is not allowed in a stream", None),
            (query.tags_only, "SELECT TAGS is not allowed in a stream", None),
            (query.into_file, "a stream writes into a table, not a file", None),
        )
        for clause, message, hint in refused:
            if clause:
                raise InvalidStreamError(message, hint=hint)
        for expression in (*(item.expression for item in query.items), *([query.where] if query.where else [])):
            for node in expression.find_all(exp.Column):
                known = self.table.column(node.name) is not None or (
                    self.lookup is not None and self.lookup.table.column(node.name) is not None)
                spec = lookup(node.name) if not known else None
                if spec is not None and not spec.in_stream:
                    raise InvalidStreamError(f"{spec.name} is not allowed in a stream", code=0x265A,
                                             position=self.position(node))

        if query.window is None and self.join is None:
            self._check_no_aggregates()

    def _check_no_aggregates(self) -> None:
        """Refuses functions over several rows in a stream without a window, INTERP aside."""
        for call in (call for item in self.query.items for call in vector_calls(item.expression)):
            spec = vector_spec(call)
            if spec is not None and spec.in_stream and spec.name != "interp":
                raise InvalidStreamError(f"{call.this} needs a window in a stream", position=self.position(call),
                                         hint="add INTERVAL(10s), for example")

    def _trigger(self) -> TriggerPlan:
        defaults = self.defaults
        ignore_expired = defaults.ignore_expired and defaults.time.late == "drop"
        return plan_trigger(self.statement, defaults.trigger, ignore_expired, defaults.ignore_update)

    def delete_mark(self) -> int:
        mark = self.statement.options.delete_mark
        if mark is None:
            return DEFAULT_DELETE_MARK_DAYS * 86_400 * UNITS_PER_SECOND[self.precision]
        units = mark.in_units(self.precision)
        if units <= 0:
            raise InvalidStreamError("DELETE_MARK must be positive", code=0x03F2)
        return units

    def _history(self) -> History | None:
        """Returns which older rows FILL_HISTORY asks for, if it does."""
        if not self.statement.options.fill_history:
            return None
        names = (self.table.time_column.name, "_rowts", "_c0")
        scope = RowScope(self)

        def is_time(node: exp.Expression) -> bool:
            return isinstance(node, exp.Column) and node.name in names and (
                self.lookup is None or self.lookup.is_own(node))

        def constant(node: exp.Expression) -> float | int | None:
            if next(node.find_all(exp.Column), None) is not None:
                return None
            return time_constant(compile_expression(node, scope), self.precision, self.session)

        return History(*time_bounds(self.query.where, is_time, constant))

    # -- groups ----------------------------------------------------------------------------------------------

    def _plan_keys(self) -> None:
        rows = RowScope(self)
        for item in self.query.partition_by:
            compiled = compile_expression(item.expression, rows)
            if compiled.constant is not None or isinstance(item.expression, exp.Literal):
                continue
            names = (*((item.alias,) if item.alias else (item.text, *_column_name(item.expression))),
                     text_of(item.expression))
            self.keys.append(GroupKey(Field(f"k{len(self.keys)}", compiled.type), compiled, names, True, item))
        if (self.query.window is None and self.table.kind == "super"
                and not any(key.column == TBNAME for key in self.keys)):
            raise InvalidStreamError("a stream without a window over a super table must be PARTITION BY tbname")

    def key(self, name: str) -> GroupKey | None:
        """Returns the key that an expression calls `name`, making a following one where the group implies it."""
        for key in self.keys:
            if name in key.names:
                return key
        by_table = self.table.kind != "super" or any(key.column == TBNAME for key in self.keys)
        tag = next((tag for tag in self.table.tags if tag.name == name), None)
        if not by_table or (tag is None and name != "tbname"):
            return None
        for key in self.keys:
            if key.column == name:
                return key
        compiled = RowScope(self).member(name)
        key = GroupKey(Field(f"k{len(self.keys)}", compiled.type), compiled, (name,), False)
        self.keys.append(key)
        return key

    def key_of(self, name: str, qualifier: str | None, value: SqlExpr) -> GroupKey | None:
        """Returns the key that is meant by the column `value`, which an expression calls so."""
        if qualifier is None or self.lookup is None:
            return self.key(name)
        key = next((key for key in self.keys if key.value == value), None)
        if key is not None or qualifier == self.lookup.name:
            return key
        key = self.key(name)
        return key if key is not None and key.value == value else None

    # -- projections -----------------------------------------------------------------------------------------

    def _window_projections(self, scope: ResultScope) -> tuple[list[tuple[SelectItem, SqlExpr]], str]:
        items = self._expanded(self.query.items)
        compiled = [(item, compile_expression(item.expression, scope)) for item in items]
        if not self.calls:
            raise InvalidStreamError("a window needs at least one aggregate function",
                                     hint="for example count(*) or avg(column)")
        scope.carry_companions()
        first = items[0]
        if _pseudo_name(first.expression) == "_wstart":
            return compiled, first.name
        names = {item.name for item in items}
        name = next(name for name in ("_wstart", "ts", "_wstart_") if name not in names)
        start = SelectItem(exp.column("_wstart"), name, name)
        return [(start, SqlExpr(column(WINDOW_START), timestamp(self.precision))), *compiled], name

    def _scalar_projections(self, rows: RowScope) -> tuple[list[tuple[SelectItem, SqlExpr]], str]:
        items = self._expanded(self.query.items)
        first = items[0].expression
        if not isinstance(first, exp.Column) or _column_name(first) not in (
            (self.table.time_column.name,), ("_rowts",), ("_c0",)
        ) or (self.lookup is not None and not self.lookup.is_own(first)):
            raise InvalidStreamError("the first column of a stream without a window must be the primary timestamp",
                                     hint=f"start the list with {self.table.time_column.name}")
        return [(item, compile_expression(item.expression, rows)) for item in items], items[0].name

    def _expanded(self, items: Sequence[SelectItem]) -> list[SelectItem]:
        expanded: list[SelectItem] = []
        for item in items:
            if isinstance(item.expression, exp.Star) or (
                isinstance(item.expression, exp.Column) and isinstance(item.expression.this, exp.Star)
            ):
                if self.query.window is not None:
                    raise InvalidStreamError("`*` is not allowed next to a window", hint="name the columns")
                expanded += self._starred(qualifier_of(item.expression))
                continue
            calls = self._calls(item)
            expanded += [call.with_changes(expression=replaced(call.expression, self._key_reference)) for call in calls]
        return expanded if self.lookup is None else short_names(expanded)

    def _calls(self, item: SelectItem) -> list[SelectItem]:
        """Returns what `last(*)` and its like stand for, or the item itself: one call per argument and column."""
        call = unwrapped(item.expression)
        name = str(call.this) if isinstance(call, exp.Anonymous) else ""
        if name not in EXPANDING or (len(call.expressions) == 1 and not is_star(call.expressions[0])):
            return [item]
        arguments: list[exp.Expression] = []
        for argument in call.expressions:
            arguments += [starred.expression for starred in self._starred(qualifier_of(argument))
                          if self.table.column(starred.text) in self.table.columns] if is_star(argument) else [argument]
        return [SelectItem(call_of(name, [argument], call), None, f"{name}({argument.name or text_of(argument)})")
                for argument in arguments]

    def _starred(self, qualifier: str | None) -> list[SelectItem]:
        """Returns what `*`, or `table.*`, stands for."""
        names = [column.name for column in self.table.columns]
        if self.table.kind == "super":
            names += [tag.name for tag in self.table.tags]
        if self.lookup is None:
            return [SelectItem(exp.column(exp.to_identifier(name, quoted=True)), name, name) for name in names]
        found = [(self.lookup.own_name, name) for name in names]
        found += [(self.lookup.name, column.name) for column in self.lookup.table.columns]
        return [SelectItem(exp.column(exp.to_identifier(name, quoted=True), exp.to_identifier(table, quoted=True)),
                           name, name) for table, name in found if qualifier in (None, table)]

    def _key_reference(self, node: exp.Expression) -> exp.Expression | None:
        """Replaces `_group_key(x)` by x, and what PARTITION BY computes by a reference to that key."""
        given = node
        if isinstance(node, exp.Anonymous) and str(node.this) == "_group_key" and len(node.expressions) == 1:
            node = node.expressions[0]
        if isinstance(node, (exp.Column, exp.Identifier, exp.Literal)):
            return node
        # The text of a node takes as long as the node is large: it is only made where it may be that of a key.
        keys = [key for key in self.keys if key.partitions and (
            key.item is None or type(key.item.expression) is type(node))]
        text = text_of(node) if keys else ""
        if any(text in key.names for key in keys):
            return exp.column(exp.to_identifier(text, quoted=True))
        return None if node is given else replaced(node, self._key_reference)

    # -- aggregates ------------------------------------------------------------------------------------------

    def fresh(self) -> str:
        return next(self._field_names)

    def aggregate(self, name: str, arguments: list[exp.Expression], node: exp.Expression, rows: RowScope) -> SqlExpr:
        """Returns the final value of an aggregate call as an expression over the state, registering its partial."""
        bound = bound_function(node)
        spec = bound.spec if bound is not None else lookup(name)
        if spec is None:
            raise NotFoundError(f"unknown function {name}", position=self.position(node))
        if spec.only_force_window_close:
            raise InvalidStreamError(f"{name} needs TRIGGER FORCE_WINDOW_CLOSE in a stream",
                                     code=0x265A, position=self.position(node))
        if not spec.in_stream:
            raise InvalidStreamError(f"{name} is not allowed in a stream", code=0x265A, position=self.position(node))
        if any(map(is_star, arguments)) and (name != "count" or bound is not None):
            raise InvalidStreamError(f"{name}() does not take * here", position=self.position(node),
                                     hint="name the columns")
        compiled = [ALL_ROWS if isinstance(argument, exp.Star) else compile_expression(argument, rows)
                    for argument in arguments]
        if name == "last_row" and isinstance(self.query.window, IntervalWindow):
            raise InvalidStreamError("last_row cannot be combined with INTERVAL", code=0x265A,
                                     position=self.position(node), hint="use last")
        known = next((call for call in self.calls if (call.name, call.arguments) == (name, tuple(compiled))), None)
        if known is not None:
            return SqlExpr(column(known.output), known.type)
        if bound is not None:
            partial = bound.partial(compiled, self.row_key(), self.precision, self.position(node), self.fresh)
            result = bound.result(self.precision)
        else:
            found = split(name, compiled, self.row_key(), self.fresh, precision=self.precision,
                          position=self.position(node))
            if found is None:
                raise NotSupportedError(f"{name} is not supported in streams yet", position=self.position(node))
            partial, result = found
            same = next((call.partial for call in self.calls if partial.holds_what(call.partial)), None)
            partial = partial if same is None else partial.over(same)
        call = StagedCall(name, tuple(compiled), partial, f"#call{len(self.calls)}", result, text_of(node))
        self.calls.append(call)
        return SqlExpr(column(call.output), result)

    def row_key(self) -> RowKey:
        key = self.table.key_column
        return RowKey(self.use(self.table.time_column.name), SqlExpr(field_column("_tuid"), UBIGINT),
                      () if key is None else (self.use(key.name),))

    def source_rows(self, condition: Tree | None, *, by_arrival: bool = False) -> SourceRows:
        """Returns the rows that are read, once all expressions over them are compiled."""
        row = self.row_key()  # source tasks tell rows by it
        return SourceRows(self.table, self.precision, self.session.time_zone, tuple(self.used.values()),
                          self.needs_children, self.lookup, condition, tuple(self.keys), row, by_arrival)

    def times_of(self, name: str, columns: Sequence[Column]) -> list[int]:
        """Returns which of the target's columns are a bound of the window, as the primary timestamp is."""
        return [place for place, (value, target) in enumerate(zip(self.bound, columns, strict=True))
                if target.type.kind is Kind.TIMESTAMP and is_column(value.node, name)]

    def use(self, name: str) -> SqlExpr:
        """Returns a column or tag of the source row, noting that the source task must supply it."""
        found = self.table.column(name)
        assert found is not None
        if found in self.table.tags:
            self.needs_children = True
        elif name not in self.used:
            self.used[name] = SourceColumn(name, found.physical, found.type)
        return SqlExpr(column(name), found.type)

    # -- the target ------------------------------------------------------------------------------------------

    def sink(
        self, projections: list[tuple[SelectItem, SqlExpr]], *, prepended: bool
    ) -> tuple[SinkPlan, list[Tree]]:
        """Returns the sink's plan and each result column, cast to its target type.

        `prepended`: the first projection isn't of the query.
        """
        target = self.statement.target
        if target.outside is not None:
            return self._outside_sink(target.outside, projections)
        database = target.name.database or self.session.database
        if database is None:
            raise InvalidStatementError("no database is in use", code=0x2616, hint="USE a database, or write db.table")
        if self.catalog.database(database) is None:
            raise NotFoundError(f"database {database} does not exist", code=0x0388)
        existing = self.catalog.table(database, target.name.name)
        names = [item.name for item, _ in projections]
        if existing is not None:
            columns, values = self._bind_existing(existing, projections, prepended)
            tags = existing.tags
        else:
            if target.columns is not None:
                given = [name for name, _ in target.columns]
                expected = len(projections) - (1 if prepended else 0)
                if len(given) != expected:
                    raise InvalidStatementError(
                        f"{len(given)} columns are named, but the query has {expected}", code=0x263F)
                names = [names[0], *given] if prepended else given
            key = self._key_place(names)
            types = [value.type if value.type.kind is not Kind.NULL else VARCHAR for _, value in projections]
            types[0] = timestamp(self._target_precision(database))
            types = [replace(kind, length=kind.length or 64) if kind.is_string else kind for kind in types]
            duplicate = next((name for n, name in enumerate(names) if name in names[:n]), None)
            if duplicate is not None:
                raise InvalidStatementError(f"the result has two columns named {duplicate}", code=0x263C,
                                            hint="give one of them an alias")
            columns = tuple(Column(name, kind, name, place == key)
                            for place, (name, kind) in enumerate(zip(names, types, strict=True)))
            values = [value for _, value in projections]
            tags = self._target_tags()
        self._check_key(columns)
        self.bound = values
        casts = [converted(value, column.type) for value, column in zip(values, columns, strict=True)]
        sink = SinkPlan(database, target.name.name, columns, tags, render(self._children(target.name, database, tags)),
                        existing.uid if existing else 0, existing is None)
        return sink, casts

    def _outside_sink(
        self, target: OutsideTarget, projections: list[tuple[SelectItem, SqlExpr]]
    ) -> tuple[SinkPlan, list[Tree]]:
        """Returns the sink's plan and each result column, for results that leave Penstock.

        A key that is also selected is called as it is there.
        """
        name = self.statement.target.name
        connection = self.catalog.outside(name.name)
        if connection is None:
            raise NotFoundError(f"connection {name.name} does not exist",
                                position=position(self.statement.source_text, name.offset, len(name.name)),
                                hint=did_you_mean(name.name, self.catalog.outside_names()))
        keys = [key for key in self.keys if key.partitions]
        selected: dict[Field, str] = {}
        for item, value in projections[1:]:
            key = next((key for key in keys if self._is_key(item.expression, value, key)), None)
            if key is not None:
                selected.setdefault(key.field, item.name)
        others = [item.name for item, _ in projections if item.name not in selected.values()]
        names = [selected.get(key.field, name) for key, name in zip(keys, _short_names(keys, others), strict=True)]
        tags = tuple(Column(tag, key.field.type, tag) for key, tag in zip(keys, names, strict=True))
        outside = replace(plan_outside(target, connection, [tag.name for tag in tags]),
                          on_failure=self.statement.options.on_failure or "pause")
        types = [value.type if value.type.kind is not Kind.NULL else VARCHAR for _, value in projections]
        types[0] = timestamp(self.precision)
        place = 1 if self.query.window is None and self.table.key_column is not None else None
        columns = tuple(Column(item.name, kind, item.name, n == place)
                        for n, ((item, _), kind) in enumerate(zip(projections, types, strict=True)))
        names = [tag.name for tag in tags]
        names += [column.name for column in columns if column.name not in selected.values()]
        duplicate = next((name for n, name in enumerate(names) if name in names[:n]), None)
        if duplicate is not None:
            raise InvalidStatementError(f"the result has two columns named {duplicate}", code=0x263C,
                                        hint="give one of them an alias")
        self._check_key(columns)
        self.bound = [value for _, value in projections]
        casts = [converted(value, column.type) for value, column in zip(self.bound, columns, strict=True)]
        children = _children_of(_hashed_name(f"{outside.connection}.{outside.place}"),
                                [column(key.field.name) for key in keys])
        sink = SinkPlan(outside.connection, outside.place or outside.kind, columns, tags, render(children), 0, False,
                        outside)
        if outside.format == "avro":
            avro_schema(sink)  # names that it can't have are told now
        return sink, casts

    def _is_key(self, node: exp.Expression, value: SqlExpr, key: GroupKey) -> bool:
        """Whether what is selected is a key of PARTITION BY. Two tables of a join may have a column of that name."""
        if not isinstance(node, exp.Column):
            return False
        if self.lookup is not None:
            return value == key.value or is_column(value.node, key.field.name)
        if self.join is None or key.item is None or (not node.table and node.name == key.item.alias):
            return node.name in key.names
        scope = self.join.join.scope
        return fingerprint(node, scope) == fingerprint(key.item.expression, scope)

    def _key_place(self, names: list[str]) -> int | None:
        """Returns which column of a new target is the second part of its key, as the column list or the source says."""
        flagged = [name for name, is_key in self.statement.target.columns or () if is_key]
        if len(flagged) > 1:
            raise InvalidStatementError("only one column besides the timestamp can be a part of the primary key",
                                        code=0x263F)
        if flagged:
            return names.index(flagged[0])
        keyed = self.query.window is None and self.join is None and self.table.key_column is not None
        return 1 if keyed else None

    def _check_key(self, columns: Sequence[Column]) -> None:
        """Checks what a composite key needs: that of the source is the second column of a stream without a window."""
        for place, target in enumerate(columns):
            if target.primary_key and (place != 1 or target.type.kind not in (*INTEGERS, Kind.VARCHAR)):
                raise InvalidStatementError(f"column {target.name} cannot be a part of the primary key", code=0x263F,
                                            hint="only the second column can, if it is an integer or VARCHAR")
        key = self.table.key_column
        if self.query.window is not None or self.join is not None or key is None:
            return
        items = self._expanded(self.query.items)
        second = _column_name(items[1].expression) if len(items) > 1 else ()
        if second != (key.name,):
            raise InvalidStreamError(
                f"{self.table.name} has a composite primary key: the second column of the query must be {key.name}")
        if len(columns) < 2 or not columns[1].primary_key:
            raise InvalidStreamError(
                f"{self.table.name} has a composite primary key: the second column of the target must be a key too",
                hint="declare it with PRIMARY KEY")

    def _target_precision(self, database: str) -> Precision:
        found = self.catalog.database(database)
        assert found is not None
        if found.precision != self.precision:
            raise InvalidStreamError(
                f"the target's database has precision {found.precision}, the source's {self.precision}",
                hint="write into a database of the same precision")
        return found.precision

    def _bind_existing(
        self, table: Table, projections: list[tuple[SelectItem, SqlExpr]], prepended: bool
    ) -> tuple[tuple[Column, ...], list[SqlExpr]]:
        target = self.statement.target
        self._target_precision(table.database)
        if table.kind != "super":
            raise InvalidStreamError(f"{table.name} is not a super table: a stream needs one to write to")
        if target.tag_definitions is not None:
            raise AlreadyExistsError(f"table {table.name} exists: TAGS must name its tags without types", code=0x2603)
        values = [value for _, value in projections]
        if target.columns is None:
            if len(values) != len(table.columns):
                raise InvalidStatementError(
                    f"{table.name} has {len(table.columns)} columns, the query gives {len(values)}", code=0x263F)
            bound = list(zip(table.columns, values, strict=True))
        else:
            given = [name for name, _ in target.columns]
            if prepended and len(given) == len(values) - 1:
                values = values[1:]
            if len(given) != len(values):
                raise InvalidStatementError(f"{len(given)} columns are named, the query gives {len(values)}",
                                            code=0x263F)
            by_name = {column.name: column for column in table.columns}
            for name in given:
                if name not in by_name:
                    raise NotFoundError(f"column {name} does not exist in {table.name}", code=0x2602)
            if table.time_column.name not in given:
                raise InvalidStatementError(f"the primary timestamp {table.time_column.name} is not among the columns",
                                            code=0x263F)
            if table.key_column is not None and table.key_column.name not in given:
                raise InvalidStatementError(f"the key column {table.key_column.name} is not among the columns",
                                            code=0x263F)
            chosen = dict(zip(given, values, strict=True))
            missing = SqlExpr(exp.null(), DataType(Kind.NULL))
            bound = [(one, chosen.get(one.name, missing)) for one in table.columns]
        for one, value in bound:
            if not _castable(value.type, one.type):
                raise InvalidStatementError(
                    f"column {one.name} of {table.name} is {one.type.sql()}, the query gives {value.type.sql()}",
                    code=0x263F)
        return tuple(one for one, _ in bound), [value for _, value in bound]

    def _target_tags(self) -> tuple[Column, ...]:
        target = self.statement.target
        if target.tag_names is not None:
            raise NotFoundError(f"table {target.name} does not exist: its TAGS need types", code=0x2603)
        if target.tag_definitions is None:
            return (Column("group_id", UBIGINT, "group_id"),)
        return tuple(Column(tag.name, tag.type, tag.name) for tag in target.tag_definitions)

    def _children(self, name: Name, database: str, tags: tuple[Column, ...]) -> Tree:
        """Returns SQL from `groups` to child names (tdengine.md 1.7) and tag values."""
        target = self.statement.target
        partitioned = any(key.partitions for key in self.keys)
        child = _hashed_name(f"{database}.{name.name}")
        if target.subtable is not None:
            compiled = compile_expression(target.subtable, KeyScope(self, "SUBTABLE"))
            if not compiled.type.is_string:
                raise InvalidStreamError("SUBTABLE must be a VARCHAR expression",
                                         position=self.position(target.subtable), hint="cast it, or use concat")
            child = fragment(_SUBTABLE, given=closed(compiled.node), hashed=child,
                             suffix=fragment(":name || _gid::VARCHAR", name=f"_{name.name}_"))
        values: list[Tree] = []
        if target.tag_definitions is not None or target.tag_names is not None:
            given = ([tag.name for tag in target.tag_definitions] if target.tag_definitions is not None
                     else list(target.tag_names or ()))
            known = {tag.name for tag in tags}
            for tag_name in given:
                if tag_name not in known:
                    raise InvalidStatementError(f"tag {tag_name} does not exist in {name}", code=0x260E)
            for tag in tags:
                key = next((key for key in self.keys if tag.name in key.names), None)
                if tag.name in given and partitioned and key is None:
                    raise InvalidStatementError(
                        f"tag {tag.name} is not the name of a PARTITION BY item", code=0x2602,
                        hint="give the item that alias")
                values.append(exp.null() if key is None or tag.name not in given
                              else converted(SqlExpr(column(key.field.name), key.field.type), tag.type))
        elif len(tags) != 1 or tags[0].type.kind is not Kind.UBIGINT:
            if partitioned:
                raise InvalidStatementError(
                    f"{name} needs exactly one tag of type BIGINT UNSIGNED to hold the group", code=0x263F,
                    hint="or say which tags to write with TAGS (names)")
            values = [exp.null() for _ in tags]
        else:
            values = [column("_gid")]
        return _children_of(child, values)

    # -- EXPLAIN and errors --------------------------------------------------------------------------------------

    def _tree(self, plan: StreamPlan, condition: Tree | None) -> PlanNode:
        scan = PlanNode("Scan", (
            ("table", f"{plan.source_database}.{plan.source_table}"), ("kind", self.table.kind),
            ("columns", " ".join(column.name for column in plan.source.columns))))
        if self.lookup is not None:
            scan = self.lookup.node(scan)
        if condition is not None:
            scan = PlanNode("Filter", (("condition", render(condition)),), (scan,))
        if plan.agg is not None:
            text = window_text(self.query.window)
            partition = " ".join(key.names[0] for key in self.keys if key.partitions) or "none"
            scan = PlanNode("Window", (
                ("window", text), ("partition by", partition),
                ("aggregates", " ".join(f"{call.name}({', '.join(argument.sql for argument in call.arguments)})"
                                        for call in self.calls))), (scan,))
        scan = PlanNode("Project", (("columns", " ".join(column.name for column in plan.sink.columns)),), (scan,))
        return self._stream_node(plan, scan)

    def _stream_node(self, plan: StreamPlan, input: PlanNode) -> PlanNode:
        return PlanNode("Stream", (
            ("trigger", plan.trigger), *((("period", f"{plan.period_ms}ms"),) if plan.period_ms else ()),
            *((("fill", plan.fill.mode),) if plan.fill is not None else ()),
            ("watermark", f"{plan.watermark}{self.precision}"), *described(plan.time, self.precision),
            *((("timezone", plan.time_zone),) if self.statement.options.timezone is not None else ()),
            *((("on error", plan.on_error),) if plan.on_error != "null" else ()),
            *((("dlq", plan.dlq.name),) if plan.dlq is not None else ()),
            ("ignore expired", str(int(plan.ignore_expired))), ("ignore update", str(int(plan.ignore_update))),
            *((("history", "filled"),) if plan.history is not None else ()),
            ("into", plan.sink.text)), (input,))

    def position(self, node: exp.Expression) -> Position | None:
        start, end = source_range(node)
        return position(self.statement.source_text, start, end - start) if end > start else None


class RowScope:
    """Names in expressions over single source rows: WHERE, PARTITION BY, arguments of aggregates."""

    def __init__(self, planner: _Planner) -> None:
        self.planner = planner
        self.session = planner.session
        self.precision = planner.precision

    def column(self, name: str, qualifier: str | None, node: exp.Expression) -> SqlExpr:
        table, lookup = self.planner.table, self.planner.lookup
        found = lookup.column(name, qualifier, node) if lookup is not None else None
        if found is not None:
            return found
        if table.column(name) is None:
            raise unknown_column(name, table, self.planner.position(node))
        return self.planner.use(name)

    def pseudo(self, name: str, node: exp.Expression) -> SqlExpr | None:
        found = self.planner.lookup.pseudo(name, node) if self.planner.lookup is not None else None
        if found is not None:
            return found
        if name == "tbname":
            return self.member(name)
        if name in ("_rowts", "_c0"):
            return self.planner.use(self.planner.table.time_column.name)
        if name in ("_wstart", "_wend", "_wduration"):
            raise InvalidStreamError(f"{name} is not allowed here", position=self.planner.position(node))
        return None

    def member(self, name: str) -> SqlExpr:
        """Returns `tbname` or a tag as a column of the row."""
        self.planner.needs_children = True
        return SqlExpr(fragment(TBNAME), VARCHAR) if name == TBNAME else self.planner.use(name)

    def aggregate(self, name: str, arguments: list[exp.Expression], node: exp.Expression) -> SqlExpr:
        raise InvalidStreamError(
            f"{name} cannot be inside of WHERE, PARTITION BY or another aggregate in a stream",
            position=self.planner.position(node), hint="filter the result table when you query it")


class ResultScope:
    """Names in the projections of a windowed stream: aggregates, keys, window bounds, companion columns."""

    def __init__(self, planner: _Planner, rows: RowScope, window: Window) -> None:
        self.planner = planner
        self.rows = rows
        self.session = planner.session
        self.precision = planner.precision
        self.window = window
        self.companions: list[tuple[SqlExpr, exp.Expression]] = []

    def column(self, name: str, qualifier: str | None, node: exp.Expression) -> SqlExpr:
        key = self.planner.key(name) if qualifier is None else None
        if key is not None:
            return SqlExpr(column(key.field.name), key.field.type)
        value = self.rows.column(name, qualifier, node)
        key = self.planner.key_of(name, qualifier, value)
        if key is not None:
            return SqlExpr(column(key.field.name), key.field.type)
        self.companions.append((value, node))
        return SqlExpr(column(f"#companion{len(self.companions) - 1}"), value.type)

    def pseudo(self, name: str, node: exp.Expression) -> SqlExpr | None:
        match name:
            case "_wstart" | "_wend":
                return SqlExpr(column(name), timestamp(self.precision))
            case "_wduration":
                return SqlExpr(fragment("_wend - _wstart"), BIGINT)
            case "tbname":
                key = self.planner.key("tbname")
                if key is None:
                    raise InvalidStreamError("tbname needs PARTITION BY tbname", position=self.planner.position(node))
                return SqlExpr(column(key.field.name), key.field.type)
            case "_rowts" | "_c0":
                return self.column(self.planner.table.time_column.name, None, node)
            case _:
                return self.rows.pseudo(name, node)

    def aggregate(self, name: str, arguments: list[exp.Expression], node: exp.Expression) -> SqlExpr:
        return self.planner.aggregate(name, arguments, node, self.rows)

    def carry_companions(self) -> None:
        """Has the one aggregate that picks a row carry the plain columns of that row; called after all projections.

        Raises InvalidStreamError if there is none, or another aggregate.
        """
        if not self.companions:
            return
        planner = self.planner
        if len(planner.calls) != 1 or planner.calls[0].name not in SELECTING:
            raise InvalidStreamError(
                "a plain column needs exactly one of min, max, first, last next to it",
                position=planner.position(self.companions[0][1]),
                hint="add it to PARTITION BY, or put it into an aggregate")
        call = planner.calls[0]
        values = [value for value, _ in self.companions]
        chosen = picked(selection_of(call.name), call.arguments[0], values, planner.row_key(), planner.fresh)
        carried = tuple(Companion(f"#companion{n}", text_of(node)) for n, (_, node) in enumerate(self.companions))
        planner.calls[0] = replace(call, partial=chosen, companions=carried)


class KeyScope:
    """Names in SUBTABLE: only what PARTITION BY gives."""

    def __init__(self, planner: _Planner, clause: str) -> None:
        self.planner = planner
        self.clause = clause
        self.session = planner.session
        self.precision = planner.precision

    def column(self, name: str, qualifier: str | None, node: exp.Expression) -> SqlExpr:
        key = next((key for key in self.planner.keys if name in key.names and key.partitions), None)
        if key is None:
            raise InvalidStreamError(f"{self.clause} may only use what is in PARTITION BY: {name} is not",
                                     code=0x2602, position=self.planner.position(node))
        return SqlExpr(column(key.field.name), key.field.type)

    def pseudo(self, name: str, node: exp.Expression) -> SqlExpr | None:
        key = next((key for key in self.planner.keys if key.partitions and (name in key.names or key.column == name)),
                   None)
        if key is None:
            return self.column(name, None, node)
        return SqlExpr(column(key.field.name), key.field.type)

    def aggregate(self, name: str, arguments: list[exp.Expression], node: exp.Expression) -> SqlExpr:
        raise InvalidStreamError(f"{self.clause} cannot have aggregates", position=self.planner.position(node))


def resolve_table(name: Name, catalog: CatalogView, session: Session, text: str) -> Table:
    """Returns the table that `name` means; raises NotFoundError or, without a database, InvalidStatementError."""
    database = name.database or session.database
    at = position(text, name.offset, len(name.name)) if text else None
    if database is None:
        raise InvalidStatementError("no database is in use", code=0x2616, position=at,
                                    hint="USE a database, or write db.table")
    if catalog.database(database) is None:
        raise NotFoundError(f"database {database} does not exist", code=0x0388, position=at)
    table = catalog.table(database, name.name)
    if table is None:
        raise NotFoundError(f"table {database}.{name.name} does not exist", code=0x2603, position=at,
                            hint=did_you_mean(name.name, catalog.table_names(database)))
    return table


def unknown_column(name: str, table: Table, at: Position | None) -> NotFoundError:
    """Returns the error for a column that `table` doesn't have, with a suggestion."""
    names = [column.name for column in (*table.columns, *table.tags)]
    return NotFoundError(f"column {name} does not exist in {table.name}", code=0x2602, position=at,
                         hint=did_you_mean(name, names))


def window_text(window: Window | None) -> str:
    """Returns the window as EXPLAIN shows it."""
    if not isinstance(window, IntervalWindow):
        return describe(window) if window is not None else ""
    text = f"interval({window.interval}" + (f", {window.offset}" if window.offset else "") + ")"
    return text + (f" sliding({window.sliding})" if window.sliding else "")


def _column_name(node: exp.Expression) -> tuple[str, ...]:
    return (node.name,) if isinstance(node, exp.Column) else ()


def _short_names(keys: Sequence[GroupKey], others: Sequence[str]) -> list[str]:
    """Returns what keys are called where nothing says it: for `a.v` that is `v`, unless something else is called that.
    """
    short = [key.item.expression.name if key.item is not None and key.item.alias is None and isinstance(
        key.item.expression, exp.Column) else key.names[0] for key in keys]
    return [name if short.count(name) == 1 and name not in others else key.names[0]
            for name, key in zip(short, keys, strict=True)]


def _pseudo_name(node: exp.Expression) -> str | None:
    return node.name if isinstance(node, exp.Column) else None


def _castable(source: DataType, target: DataType) -> bool:
    if Kind.NULL in (source.kind, target.kind) or source.kind is target.kind:
        return True
    binary = (Kind.VARBINARY, Kind.GEOMETRY, Kind.JSON)
    return source.kind not in binary and target.kind not in binary


_SUBTABLE = """
coalesce(CASE
    WHEN _gid = 0 OR ends_with(:given, _gid::VARCHAR) OR (length(:given) = 34 AND starts_with(:given, 't_')) THEN :given
    WHEN strlen(:given || :suffix) <= 192 THEN :given || :suffix
    WHEN strlen(:given) <= 159 THEN :given || '_' || md5(:suffix)
    ELSE md5(:given) || '_' || md5(:suffix) END, :hashed)"""


def _hashed_name(target: str) -> Tree:
    """The name of a group's child table where nothing else names it."""
    return fragment("'t_' || md5(:target || ',' || _gid::VARCHAR)", target=target)


def _children_of(child: Tree, tags: Sequence[Tree]) -> Tree:
    return select([column("_gid"), named(child, "_child"), *(named(tag, f"t{n}") for n, tag in enumerate(tags))],
                  "groups")


def converted(value: SqlExpr, target: DataType) -> Tree:
    """Returns `value` as the target column's type; a value that doesn't fit becomes NULL rather than an error."""
    if target.kind is Kind.TIMESTAMP and value.type.kind is Kind.TIMESTAMP:
        return cast(value.node, "BIGINT")
    if target.is_string and target.length is not None:
        return fragment("left(:value::VARCHAR, :length)", value=value.node, length=target.length)
    return try_cast(value.node, target.duckdb())
