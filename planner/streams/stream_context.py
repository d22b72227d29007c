"""The query of a stream while it is bound: the rows that it reads, the keys of its groups, and what names mean."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from sqlglot import exp

from penstock.common.errors import InvalidStreamError, Position
from penstock.planner.bind.binder import Builder, Relation, RelColumn, resolve_table, scan_table
from penstock.planner.bind.expressions import compile_expression
from penstock.planner.bind.grouping import GroupScope, constant_columns, distinct_calls
from penstock.planner.bind.scopes import (
    GroupKey,
    RowScope,
    condition_of,
    fingerprint,
    mark_of,
    require_vector,
    vector_calls,
    with_placeholders,
)
from penstock.planner.bind.time_range import bounds_of
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.expr import Computed
from penstock.planner.logical.operators import Filter, Operator, Project, Scan
from penstock.planner.logical.stream import LogicalStream, Target
from penstock.planner.lower.stages import TBNAME
from penstock.planner.streams.stream_joins import JoinedTables, read_joined
from penstock.planner.streams.stream_keys import PartitionKey, following_key, partition_key
from penstock.planner.streams.stream_lookup import BoundLookup, lookup_of
from penstock.planner.streams.stream_scopes import StreamAggregation, aggregation_of, state_key
from penstock.planner.streams.stream_time import TimeDefaults
from penstock.planner.task_plans.stream_plan import History, Policies, Trigger
from penstock.planner.task_plans.user_calls import UserCall
from penstock.sql.schema import CatalogView, Session, Table
from penstock.sql.tree.statements import CreateStream, Guarantee, JoinSource, Select, StateWindow, TableSource
from penstock.sql.types import UNITS_PER_SECOND, Precision, check_stored

DEFAULT_WATERMARK = 0
DEFAULT_DELETE_MARK_DAYS = 3650


@dataclass(frozen=True, slots=True)
class StreamDefaults:
    """What an option means that CREATE STREAM leaves out.

    `refreshed`: the uids of tables that hold answers which are computed again as of one cut.
    """

    trigger: Trigger = "window_close"
    ignore_expired: bool = True
    ignore_update: bool = False
    time: TimeDefaults = field(default_factory=TimeDefaults)
    refreshed: Collection[int] = ()


class StreamContext:
    """One stream on its way to a plan.

    `query` is its SELECT, of a lookup without the table that is looked up in: `lookup` knows that. `join` is set for
    other joins. `relation` are the rows of the stream's own table, or of a join's driving one, `rows` what names mean
    there. `keys` are what PARTITION BY gives, and what follows from that where it is asked for.
    """

    def __init__(
        self, statement: CreateStream, catalog: CatalogView, session: Session, defaults: StreamDefaults,
        functions: Sequence[UserCall],
    ) -> None:
        self.statement = statement
        self.query: Select = statement.select
        self.catalog = catalog
        self.session = session
        self.defaults = defaults
        self.functions = functions
        self.builder = Builder(catalog, session, statement.source_text, statement.source_start)
        self.join: JoinedTables | None = None
        self.lookup: BoundLookup | None = None
        self.relation = self._joined() if isinstance(self.query.source, JoinSource) else self._scanned()
        self.rows = RowScope(self.relation, self.builder, "WHERE") if self.join is None else self.join.reading.scope
        assert self.relation.table is not None
        self.table: Table = self.relation.table
        database = catalog.database(self.table.database)
        assert database is not None
        self.precision: Precision = database.precision
        self.uid_shift = database.uid_shift
        self.keys: list[PartitionKey] = []
        self.constants: list[RelColumn] = []
        self.condition: SqlExpr | None = None
        self.found: SqlExpr | None = None

    # -- the source ------------------------------------------------------------------------------------------

    def _joined(self) -> Relation:
        """Takes note of the join. One that looks up is left out of the query from here on: names know about it."""
        join = read_joined(self.statement, self.catalog, self.session)
        if join.described.distribution != "lookup":
            self.join = join
            return join.driver
        self.lookup = lookup_of(join.reading)
        self.query = self.query.with_changes(source=self.lookup.own)
        self.statement = self.statement.with_changes(query=self.query)
        return self.lookup.rows

    def _scanned(self) -> Relation:
        source = self.query.source
        if not isinstance(source, TableSource):
            raise InvalidStreamError("a stream reads exactly one table: no sub-query or UNION")
        if source.cuts is not None:
            raise InvalidStreamError("a stream reads what comes after its creation: BETWEEN CUT is for queries")
        table = resolve_table(source.name, self.builder)
        if table.kind == "system":
            raise InvalidStreamError(f"{source.name} is a system table: a stream cannot read it")
        return scan_table(table, source.alias, self.builder)

    def read_rows(self) -> None:
        """Binds what is asked of rows: the condition of a lookup, PARTITION BY, WHERE."""
        if self.lookup is not None and self.lookup.on is not None:
            self.found = condition_of(self.lookup.on, self.rows.within("ON"))
        self.read_keys()
        self.constants = constant_columns(self.relation, self.keys, self.rows)
        if self.query.window is None and self.table.kind == "super" and self.key_of_source(TBNAME) is None:
            raise InvalidStreamError("a stream without a window over a super table must be PARTITION BY tbname")
        if self.query.where is not None:
            self.condition = condition_of(self.query.where, self.rows)

    def scanned_rows(self) -> Operator:
        """Returns the rows that are read, once all expressions over them are bound, with their keys."""
        assert self.relation.order  # source tasks tell rows by these columns: they are used from here on
        scan = self.relation.plan()
        assert isinstance(scan, Scan)
        found: Operator = replace(scan, name="rows")
        if self.lookup is not None:
            found = self.lookup.over(found, self.found)
        if self.condition is not None and self.query.where is not None:
            found = Filter(found, self.condition, self.query.where)
        keys = tuple(Computed(key.column, key.value) for key in self.keys)
        return Project(found, keys, extends=True) if keys else found

    def history(self) -> History | None:
        """Returns which older rows FILL_HISTORY asks for, if it does."""
        if not self.statement.options.fill_history:
            return None
        return History(*bounds_of(self.query.where, self.rows, self.relation.time))

    @cached_property
    def calls(self) -> list[exp.Anonymous]:
        """The calls of functions over several rows in the SELECT list."""
        return [call for item in self.query.items for call in vector_calls(item.expression)]

    # -- groups ----------------------------------------------------------------------------------------------

    def read_keys(self) -> None:
        """Binds PARTITION BY. Constants tell no groups apart. Of a join, keys are columns of its query."""
        scope = self.rows.within("PARTITION BY")
        for item in self.query.partition_by:
            value = compile_expression(item.expression, scope)
            if value.constant is not None or isinstance(item.expression, exp.Literal):
                continue
            check_stored(value.type, self.position(item.expression))
            place = len(self.keys)
            if self.join is not None:
                value = self.join.key(place, value)
            self.keys.append(partition_key(place, item, value, fingerprint(item.expression, self.rows)))

    def key_of_source(self, name: str) -> PartitionKey | None:
        """Returns the key that is this column or tag of the row, or `tbname`."""
        return next((key for key in self.keys if key.source == name), None)

    def follow(self, column: RelColumn) -> PartitionKey:
        """Returns the key for a column that follows from PARTITION BY, making it if there is none."""
        key = next((key for key in self.keys if key.mark == mark_of(column)), None)
        if key is None:
            key = following_key(len(self.keys), column.name, column.use(), mark_of(column))
            self.keys.append(key)
        return key

    @property
    def partition(self) -> list[PartitionKey]:
        """The keys that tell groups apart."""
        return [key for key in self.keys if key.partitions]

    @property
    def by_table(self) -> bool:
        """Whether each group is part of one table."""
        return self.table.kind != "super" or any(key.source == TBNAME for key in self.partition)

    def groups(self) -> tuple[GroupScope, StreamAggregation]:
        """Returns what names mean in results over groups, and the columns that these need."""
        calls = self.calls
        selects = bool(calls) and require_vector(calls[0]).has_companions and len(distinct_calls(calls, self.rows)) == 1
        selecting = calls[0] if selects else None
        aggregation = aggregation_of(self.rows, self.builder, [key.column for key in self.partition], self.follow)
        keys: list[GroupKey] = [*self.partition]
        if isinstance(self.query.window, StateWindow):
            keys.append(state_key(self.query.window, aggregation))
        return GroupScope(self.rows, aggregation, keys, selecting, self.constants, windowed=True), aggregation

    def compiled(self, node: exp.Expression, scope: GroupScope) -> SqlExpr:
        """Compiles an expression over groups, in which parts that are keys stand for the keys."""
        return compile_expression(with_placeholders(node, scope.keys, self.rows), scope)

    # -- options ---------------------------------------------------------------------------------------------

    def watermark(self) -> int:
        """Returns WATERMARK in units of the precision."""
        given = self.statement.options.watermark
        watermark = given.in_units(self.precision) if given is not None else DEFAULT_WATERMARK
        if watermark < 0:
            raise InvalidStreamError("WATERMARK must not be negative")
        return watermark

    def delete_mark(self) -> int:
        """Returns DELETE_MARK in units of the precision."""
        mark = self.statement.options.delete_mark
        if mark is None:
            return DEFAULT_DELETE_MARK_DAYS * 86_400 * UNITS_PER_SECOND[self.precision]
        units = mark.in_units(self.precision)
        if units <= 0:
            raise InvalidStreamError("DELETE_MARK must be positive", code=0x03F2)
        return units

    @property
    def guarantee(self) -> Guarantee:
        return self.statement.options.guarantee or "exactly_once"

    def logical(self, plan: Operator, target: Target, trigger: Trigger, policies: Policies) -> LogicalStream:
        """Returns the stream whose results are those of a plan."""
        return LogicalStream(plan, tuple(key.stream_key for key in self.keys), target, trigger, policies,
                             self.precision, self.session.time_zone,
                             own_zone=self.statement.options.timezone is not None)

    def position(self, node: exp.Expression) -> Position | None:
        """Returns where an expression stands in the statement."""
        return self.builder.position(node)
