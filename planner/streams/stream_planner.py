"""CREATE STREAM to a `StreamPlan`: checks what a stream may be, binds it to operators, has these lowered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from penstock.common.errors import InvalidStreamError, NotFoundError, NotSupportedError, Position
from penstock.common.headroom import with_headroom
from penstock.planner.bind.aggregate_calls import ALL_ROWS, aggregate_call
from penstock.planner.bind.binder import Builder, qualifier_of
from penstock.planner.bind.expressions import compile_expression, condition_tree
from penstock.planner.bind.query_parts import call_of, is_star, text_of
from penstock.planner.bind.scopes import TIME_NAMES, replaced, unwrapped, vector_calls, vector_spec
from penstock.planner.bind.time_range import time_bounds, time_constant
from penstock.planner.bind.user_functions import bind_user_functions, bound_function
from penstock.planner.duckdb_sql.duckdb_tree import column, fragment
from penstock.planner.duckdb_sql.interval_windows import check_interval
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.functions.partials import field_column
from penstock.planner.functions.table import lookup
from penstock.planner.logical import operators
from penstock.planner.logical.expr import Computed, Line
from penstock.planner.logical.group_values import AggregateCall, PickedColumn, RowKey
from penstock.planner.logical.operators import TABLE_UID, Aggregate, FillColumn, Filter, Operator, Project, Scan, Sort
from penstock.planner.logical.stream import LogicalStream, Target
from penstock.planner.logical.window_kinds import END, NUMBER, START, Clock, Interval, Shape
from penstock.planner.lower.stages import TBNAME, assembled, stream_plan
from penstock.planner.lower.targets import converted_results, key_fields
from penstock.planner.streams.dead_letters import plan_dlq, plan_errors
from penstock.planner.streams.stream_fill import fill_columns, is_filled
from penstock.planner.streams.stream_force import plan_force
from penstock.planner.streams.stream_join_plan import (
    StreamQuery,
    plan_join,
    plan_join_query,
    projections_of,
    read_stream,
    short_names,
)
from penstock.planner.streams.stream_keys import GroupKey
from penstock.planner.streams.stream_lookup import BoundLookup, lookup_of
from penstock.planner.streams.stream_notify import NOTIFY_TRIGGERS, plan_notify
from penstock.planner.streams.stream_row_windows import StreamFacts, bind_row_window
from penstock.planner.streams.stream_scopes import KeyScope, ResultScope, RowScope, resolve_table
from penstock.planner.streams.stream_target import BoundTarget, Projections, bind_target
from penstock.planner.streams.stream_time import TimeDefaults, check_skew, described, plan_time, zoned
from penstock.planner.streams.stream_triggers import TriggerPlan, plan_trigger
from penstock.planner.task_plans.stream_plan import (
    DlqPlan,
    Grouping,
    History,
    OnError,
    Policies,
    StreamPlan,
    TimePlan,
    Trigger,
)
from penstock.planner.task_plans.user_calls import UserCall
from penstock.sql.dialect.literals import position
from penstock.sql.schema import CatalogView, Session, Table
from penstock.sql.tree.expression_nodes import quote_identifier, source_range
from penstock.sql.tree.statements import (
    CreateStream,
    Fill,
    Guarantee,
    IntervalWindow,
    JoinSource,
    PartitionItem,
    Select,
    SelectItem,
    TableSource,
)
from penstock.sql.types import BOOL, UBIGINT, UNITS_PER_SECOND, VARCHAR, timestamp

Filled = tuple[SqlExpr, FillColumn]
"""A value, and what FILL makes of it in windows without rows."""

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
    planner = _Planner(statement, catalog, session, defaults or StreamDefaults(), functions)
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
    return plan


class _Planner:
    def __init__(
        self, statement: CreateStream, catalog: CatalogView, session: Session, defaults: StreamDefaults,
        functions: Sequence[UserCall],
    ) -> None:
        self.statement = statement
        self.query: Select = statement.query
        self.catalog = catalog
        self.session = session
        self.defaults = defaults
        self.join: StreamQuery | None = None
        self.lookup: BoundLookup | None = None
        if isinstance(self.query.source, JoinSource):
            self._read_join()
        self.table = self._source_table()
        database = catalog.database(self.table.database)
        assert database is not None
        self.precision = database.precision
        self.functions = functions
        self.keys: list[GroupKey] = []
        self.used: dict[str, None] = {}
        self.condition: SqlExpr | None = None
        self.calls: list[AggregateCall] = []
        self.companions: list[PickedColumn] = []

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
        self._check_shape()
        trigger = self._trigger()
        if self.join is not None:
            return self._joined(self.join, trigger)
        self._check_interval()
        rows = RowScope(self)
        if self.lookup is not None:
            if trigger.mode == "force_window_close":
                raise NotSupportedError("a stream by the clock can't look up rows in another table yet",
                                        hint="use TRIGGER WINDOW_CLOSE")
            if self.lookup.on is not None:
                self.lookup.condition = SqlExpr(condition_tree(self.lookup.on, rows), BOOL)
        self._plan_keys()
        if self.query.where is not None:
            self.condition = SqlExpr(condition_tree(self.query.where, rows), BOOL)
        time, on_error = self._time(trigger)
        if trigger.mode == "force_window_close":
            return plan_force(self)
        stream = self._bound(trigger, rows, time, on_error)
        return stream_plan(stream, self.functions, described(time, self.precision))

    def _bound(self, trigger: TriggerPlan, rows: RowScope, time: TimePlan, on_error: OnError) -> LogicalStream:
        """Returns a stream over one table, and maybe a table that it looks up in."""
        window, fill, prepended = self.query.window, self.query.fill, False
        if window is None:
            projections = self._scalar_projections(rows)
        else:
            projections, prepended = self._window_projections(ResultScope(self, rows))
        bound = bind_target(self, projections, prepended=prepended)
        filled: list[Filled] = []
        if fill is not None and fill.mode != "none":
            if not isinstance(window, IntervalWindow):
                raise InvalidStreamError("FILL needs an INTERVAL window")
            filled = self._filled(fill, projections)
        watermark = self.watermark()
        check_skew(self.statement, colocated=self.by_table)
        shape: Shape | None = None
        least: int | None = None
        if isinstance(window, IntervalWindow):
            interval = Interval(window, self.precision, self.session.time_zone)
            shape = interval if time.clock == "event" else Clock(interval)
        elif window is not None:
            facts = StreamFacts(self.table, self.precision, self.by_table, watermark, trigger.ignore_expired)
            shape, least = bind_row_window(window, facts, rows)
            if bound.times_of(START)[:1] != [0]:
                raise NotSupportedError("the target's primary timestamp must be _wstart for such a window",
                                        hint="only the start of a window tells which result is to be replaced")
        notify = plan_notify(self.statement, trigger.mode, time, bound.times_of(START), bound.times_of(END))
        if time.clock != "event":
            trigger = replace(trigger, ignore_expired=False, ignore_update=True)
        plan = self.rows()
        if shape is not None:
            plan = self._windows(plan, shape, least, fill, filled)
        policies = Policies(watermark, trigger.ignore_expired, trigger.ignore_update, self.delete_mark(), time,
                            on_error, self.guarantee)
        return replace(self.logical(_results(plan, bound, filled), bound.target, trigger.mode, policies),
                       period_ms=trigger.period_ms if window is not None else 0, history=self._history(),
                       dlq=self._dlq(), notify=notify)

    def logical(self, plan: Operator, target: Target, trigger: Trigger, policies: Policies) -> LogicalStream:
        return LogicalStream(plan, tuple(key.key for key in self.keys), target, trigger, policies, self.precision,
                             self.session.time_zone, own_zone=self.statement.options.timezone is not None)

    def _dlq(self) -> DlqPlan | None:
        return plan_dlq(self.statement.options, self.table, self.precision, self.catalog, self.session)

    def _time(self, trigger: TriggerPlan) -> tuple[TimePlan, OnError]:
        time = plan_time(self.statement, self.precision, trigger.mode, self.session, self.defaults.time)
        return time, plan_errors(self.statement, trigger.mode, time.clock, self.defaults.time.on_error)

    def watermark(self) -> int:
        """Returns WATERMARK in units of the precision."""
        given = self.statement.options.watermark
        watermark = given.in_units(self.precision) if given is not None else DEFAULT_WATERMARK
        if watermark < 0:
            raise InvalidStreamError("WATERMARK must not be negative")
        return watermark

    def _check_interval(self) -> None:
        window = self.query.window
        if isinstance(window, IntervalWindow):
            check_interval(window, self.precision)
            if window.offset == "auto":
                raise InvalidStreamError("a stream cannot have INTERVAL(..., AUTO)", hint="write the offset")

    @property
    def by_table(self) -> bool:
        """Whether each group is part of one table."""
        return self.table.kind != "super" or any(key.partitions and key.column == TBNAME for key in self.keys)

    @property
    def guarantee(self) -> Guarantee:
        return self.statement.options.guarantee or "exactly_once"

    # -- operators -------------------------------------------------------------------------------------------

    def rows(self) -> Operator:
        """Returns the rows that are read, once all expressions over them are compiled, with their keys."""
        self.row_key()  # source tasks tell rows by it
        found: Operator = Scan("rows", self.table, tuple(self.used), precision=self.precision)
        if self.lookup is not None:
            found = self.lookup.over(found)
        if self.condition is not None and self.query.where is not None:
            found = Filter(found, self.condition, self.query.where)
        keys = tuple(Computed(key.name, key.value) for key in self.keys)
        return Project(found, keys, extends=True) if keys else found

    def _windows(
        self, rows: Operator, shape: Shape, least: int | None, fill: Fill | None, filled: Sequence[Filled]
    ) -> Operator:
        """Returns a row per group and window, in gaps between windows too if they are filled."""
        names = [key.name for key in self.keys]
        partition = tuple(key.name for key in self.keys if key.partitions)
        time = self.table.time_column.name
        order = () if isinstance(shape, Clock) else (time, TABLE_UID)
        interval = shape.interval if isinstance(shape, Clock) else shape if isinstance(shape, Interval) else None
        specs = [lookup(call.function) for call in self.calls if call.user is None]
        of_values = len(specs) == len(self.calls) and all(
            spec is not None and spec.selects is not None and spec.selects.of_value for spec in specs)
        aggregate = Aggregate(
            operators.Window(rows, shape, Line(partition, order)), (*names, NUMBER if interval is None else START),
            (*self.calls, *self.companions),
            present=tuple(call.arguments[0] for call in self.calls) if of_values else None, interval=interval,
            time=time if interval is None else None, least=least, window=self.query.window,
            by=tuple(key.names[0] for key in self.keys if key.partitions),
            functions=tuple(call.written for call in self.calls if call.written is not None))
        if fill is None or not filled or interval is None:
            return aggregate
        kept = [Computed(each.name, SqlExpr(column(each.name), each.type)) for each in aggregate.output
                if each.name != END]
        values = [Computed(given.name, value) for value, given in filled]
        return operators.Fill(Project(aggregate, (*kept, *values)), partition, interval, None, fill.mode,
                              tuple(given for _, given in filled))

    def _joined(self, query: StreamQuery, trigger: TriggerPlan) -> StreamPlan:
        """Returns the plan of a stream over a join."""
        options = self.statement.options
        if trigger.ignore_update:
            raise InvalidStreamError("a join counts the newest version of each row", hint="leave IGNORE UPDATE out")
        self._check_interval()
        for item in self.query.partition_by:
            compiled = compile_expression(item.expression, query.join.scope)
            if compiled.constant is None and not isinstance(item.expression, exp.Literal):
                value = SqlExpr(column(f"o{len(self.keys)}"), compiled.type)
                self.keys.append(GroupKey(len(self.keys), value, _names_of(item), True, item))
        asked = plan_join_query(self, query)
        projections, prepended = projections_of(self, query, asked)
        bound = bind_target(self, projections, prepended=prepended)
        watermark = self.watermark()
        time, on_error = self._time(trigger)
        casts = converted_results(bound.values, bound.target.columns)
        join = plan_join(self, query, asked, casts, ignore_expired=trigger.ignore_expired)
        policies = Policies(watermark, trigger.ignore_expired, False, self.delete_mark(), time, on_error,
                            self.guarantee)
        plan = _results(_without_labels(asked.batch.plan), bound, ())
        stream = replace(self.logical(plan, bound.target, trigger.mode, policies),
                         history=History(None, None) if options.fill_history else None, dlq=join.left.dlq)
        fields = key_fields(stream.keys)
        return assembled(stream, join.left.source, Grouping(fields, colocated=join.meeting == "vnode"), join,
                         (*self.functions, *asked.batch.functions), described(time, self.precision))

    def _filled(self, fill: Fill, projections: Projections) -> list[Filled]:
        """Returns the projections that FILL gives in windows without rows."""
        values = [value for item, value in projections
                  if is_filled(item.expression, lambda name: self.key(name) is not None)]
        builder = Builder(self.catalog, self.session, self.statement.source_text)
        return list(zip(values, fill_columns(fill, values, builder, self.precision), strict=True))

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
            if spec is not None and spec.in_stream and not spec.instants:
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
        names = (self.table.time_column.name, *TIME_NAMES)
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
            self.keys.append(GroupKey(len(self.keys), compiled, _names_of(item), True, item))
        if (self.query.window is None and self.table.kind == "super"
                and not any(key.column == TBNAME for key in self.keys)):
            raise InvalidStreamError("a stream without a window over a super table must be PARTITION BY tbname")

    def key(self, name: str) -> GroupKey | None:
        """Returns the key that an expression calls `name`, making a following one where the group implies it."""
        for key in self.keys:
            if name in key.names:
                return key
        tag = next((tag for tag in self.table.tags if tag.name == name), None)
        if not self.by_table or (tag is None and name != TBNAME):
            return None
        for key in self.keys:
            if key.column == name:
                return key
        key = GroupKey(len(self.keys), self.use(name), (name,), False)
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

    def _window_projections(self, scope: ResultScope) -> tuple[list[tuple[SelectItem, SqlExpr]], bool]:
        """Returns the projections, the window's start first, and whether that isn't of the query."""
        items = self.expanded(self.query.items)
        compiled = [(item, compile_expression(item.expression, scope)) for item in items]
        if not self.calls:
            raise InvalidStreamError("a window needs at least one aggregate function",
                                     hint="for example count(*) or avg(column)")
        scope.carry_companions()
        first = items[0].expression
        if isinstance(first, exp.Column) and first.name == "_wstart":
            return compiled, False
        names = {item.name for item in items}
        name = next(name for name in ("_wstart", "ts", "_wstart_") if name not in names)
        start = SelectItem(exp.column("_wstart"), name, name)
        return [(start, SqlExpr(column(START), timestamp(self.precision))), *compiled], True

    def _scalar_projections(self, rows: RowScope) -> list[tuple[SelectItem, SqlExpr]]:
        items = self.expanded(self.query.items)
        first = items[0].expression
        if not isinstance(first, exp.Column) or _column_name(first) not in (
            (self.table.time_column.name,), *((name,) for name in TIME_NAMES)
        ) or (self.lookup is not None and not self.lookup.is_own(first)):
            raise InvalidStreamError("the first column of a stream without a window must be the primary timestamp",
                                     hint=f"start the list with {self.table.time_column.name}")
        return [(item, compile_expression(item.expression, rows)) for item in items]

    def expanded(self, items: Sequence[SelectItem]) -> list[SelectItem]:
        expanded: list[SelectItem] = []
        for item in items:
            if isinstance(item.expression, exp.Star) or (
                isinstance(item.expression, exp.Column) and isinstance(item.expression.this, exp.Star)
            ):
                if self.query.window is not None:
                    raise InvalidStreamError("`*` is not allowed next to a window", hint="name the columns")
                expanded += self._starred(qualifier_of(item.expression))
                continue
            calls = self._calls(bare(item))
            expanded += [call.with_changes(expression=replaced(call.expression, self._key_reference)) for call in calls]
        return expanded if self.lookup is None else short_names(expanded)

    def _calls(self, item: SelectItem) -> list[SelectItem]:
        """Returns what `last(*)` and its like stand for, or the item itself: one call per argument and column."""
        call = unwrapped(item.expression)
        spec = vector_spec(call)
        if spec is None or not spec.expands or (len(call.expressions) == 1 and not is_star(call.expressions[0])):
            return [item]
        arguments: list[exp.Expression] = []
        for argument in call.expressions:
            arguments += [starred.expression for starred in self._starred(qualifier_of(argument))
                          if self.table.column(starred.text) in self.table.columns] if is_star(argument) else [argument]
        name = spec.name
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

    def aggregate(self, name: str, arguments: list[exp.Expression], node: exp.Expression, rows: RowScope) -> SqlExpr:
        """Returns the value of an aggregate call as a column of groups, which the same call has but once."""
        bound = bound_function(node)
        spec = bound.spec if bound is not None else lookup(name)
        if spec is None:
            raise NotFoundError(f"unknown function {name}", position=self.position(node))
        if spec.only_force_window_close:
            raise InvalidStreamError(f"{name} needs TRIGGER FORCE_WINDOW_CLOSE in a stream",
                                     code=0x265A, position=self.position(node))
        if not spec.in_stream:
            raise InvalidStreamError(f"{name} is not allowed in a stream", code=0x265A, position=self.position(node))
        if any(map(is_star, arguments)) and not spec.takes_rows:
            raise InvalidStreamError(f"{name}() does not take * here", position=self.position(node),
                                     hint="name the columns")
        compiled = [ALL_ROWS if isinstance(argument, exp.Star) else compile_expression(argument, rows)
                    for argument in arguments]
        if spec.not_in_interval and isinstance(self.query.window, IntervalWindow):
            raise InvalidStreamError(f"{name} cannot be combined with INTERVAL", code=0x265A,
                                     position=self.position(node), hint="use last")
        asked = aggregate_call(f"#a{len(self.calls)}", name, compiled, self.row_key(), node, precision=self.precision,
                               position=self.position(node))
        if asked.user is None and spec.split is None:
            raise NotSupportedError(f"{name} is not supported in streams yet", position=self.position(node))
        known = next((call for call in self.calls if (call.function, call.arguments) == (
            asked.function, asked.arguments)), None)
        if known is None:
            known = asked
            self.calls.append(asked)
        return SqlExpr(column(known.name), known.type)

    def row_key(self) -> RowKey:
        key = self.table.key_column
        return RowKey(self.use(self.table.time_column.name), SqlExpr(field_column("_tuid"), UBIGINT),
                      () if key is None else (self.use(key.name),))

    def use(self, name: str) -> SqlExpr:
        """Returns a column, a tag, or `tbname` of the source row, noting that it is read."""
        self.used.setdefault(name)
        if name == TBNAME and self.table.column(name) is None:
            return SqlExpr(fragment(TBNAME), VARCHAR)
        found = self.table.column(name)
        assert found is not None
        return SqlExpr(column(name), found.type)

    # -- errors ----------------------------------------------------------------------------------------------

    def key_scope(self, clause: str) -> KeyScope:
        return KeyScope(self, clause)

    def position(self, node: exp.Expression) -> Position | None:
        start, end = source_range(node)
        return position(self.statement.source_text, start, end - start) if end > start else None


def bare(item: SelectItem) -> SelectItem:
    """Returns the item; a column in back-quotes is shown without them."""
    node = item.expression
    quoted = isinstance(node, exp.Column) and item.text == quote_identifier(node.name)
    return item.with_changes(alias=node.name) if quoted and item.alias is None else item


def _results(rows: Operator, bound: BoundTarget, filled: Sequence[Filled]) -> Project:
    """Returns the result columns over groups or rows; what FILL gives is a column of what is below."""
    given = {id(value): SqlExpr(column(each.name), each.type) for value, each in filled}
    return Project(rows, tuple(
        Computed(f"r{n}", given.get(id(value), value), target.name)
        for n, (value, target) in enumerate(zip(bound.values, bound.target.columns, strict=True))))


def _without_labels(plan: Operator) -> Operator:
    """Returns the plan of a query whose columns aren't those of the stream, so that EXPLAIN doesn't show them."""
    if isinstance(plan, Sort):
        return replace(plan, input=_without_labels(plan.input))
    if not isinstance(plan, Project) or plan.extends:
        return plan
    return replace(plan, input=_without_labels(plan.input),
                   columns=tuple(replace(computed, label=None) for computed in plan.columns))


def _names_of(item: PartitionItem) -> tuple[str, ...]:
    """How expressions may refer to what PARTITION BY computes."""
    own = (item.alias,) if item.alias else (item.text, *_column_name(item.expression))
    return (*own, text_of(item.expression))


def _column_name(node: exp.Expression) -> tuple[str, ...]:
    return (node.name,) if isinstance(node, exp.Column) else ()
