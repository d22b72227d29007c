"""The state of one SELECT while it is planned, and the steps that all kinds of SELECT share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from sqlglot import exp

from penstock.planner.bind.binder import (
    TBNAME,
    Builder,
    Plan,
    Relation,
    RelColumn,
    ScanSlot,
    is_pseudo,
    names_of_tables,
    qualifier_of,
)
from penstock.planner.bind.expressions import compile_expression
from penstock.planner.bind.given_instants import given_instants, is_given_range
from penstock.planner.bind.grouping import constant_columns
from penstock.planner.bind.key_filter import key_values
from penstock.planner.bind.limits import Ending, OrderTerm, Output
from penstock.planner.bind.over import OverScope
from penstock.planner.bind.query_parts import Item, Planned, ordinal
from penstock.planner.bind.scopes import (
    NOT_ALLOWED_FUNCTION,
    TIME_NAMES,
    Bounds,
    GroupKey,
    Mark,
    RowScope,
    condition_of,
    fingerprint,
    key_of,
    replaced_columns,
    require_vector,
    vector_calls,
    vector_spec,
    with_placeholders,
)
from penstock.planner.bind.tag_filter import given_children, selected_children
from penstock.planner.bind.time_range import bounds_of, is_time_range
from penstock.planner.duckdb_sql.duckdb_tree import all_of
from penstock.planner.duckdb_sql.duckdb_tree import column as column_tree
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.functions.spec import FunctionSpec
from penstock.planner.logical.expr import Computed
from penstock.planner.logical.operators import TABLE_UID, Filter, NameTables, Operator, Over, Scan
from penstock.planner.query.group_items import with_plain_groups
from penstock.planner.query.late_names import LateKey, late_key
from penstock.planner.query.row_limits import bound_limit
from penstock.sql.tree.statements import OrderItem, PartitionItem, Select
from penstock.sql.tree.walking import conjuncts, unwrapped
from penstock.sql.types import BOOL, UBIGINT, Kind


class QueryContext:
    """One SELECT on its way through its steps: the relation it has come to, and what names mean there.

    `items` is the SELECT list with stars expanded, `calls` are the calls of functions over several rows in it, in
    HAVING and in ORDER BY, `functions` what each of them calls. `keys` are partition and group keys, which are columns
    of `relation`; `constants` are columns that have one value per group. `bounds` is the range of time that WHERE
    leaves. `called`: what sub-queries call the rows, once all is bound.
    """

    def __init__(self, select: Select, builder: Builder, relation: Relation, items: Sequence[Item]) -> None:
        select, self._sets = with_plain_groups(select, items, builder)
        self.select = select
        self.builder = builder
        self.relation = relation
        self.items = list(items)
        self.having = None if select.having is None else self._with_items(select.having)
        self.qualify = None if select.qualify is None else self._with_items(select.qualify, of_groups=bool(
            select.group_by or select.window))
        self.keys: list[GroupKey] = []
        self.constants: list[RelColumn] = []
        self.late_key: LateKey | None = None
        self.bounds: Bounds = (None, None)
        self.called: str | None = None
        self.scope = RowScope(relation, builder, "the SELECT list")
        self.calls = [call for node in self.result_nodes() for call in vector_calls(node)]
        self.functions: list[FunctionSpec] = list(map(require_vector, self.calls))

    def with_names(self, groups: Plan) -> Plan:
        """Returns groups with names of child tables, where these were told apart by uids."""
        late, table = self.late_key, self.relation.table
        if late is None or table is None:
            return groups
        key, names = late.column, names_of_tables(table, self.builder)

        def plan() -> Operator:
            scan = names()
            assert isinstance(scan, Scan)
            return NameTables(groups(), key, scan)

        return plan

    @property
    def has_queries(self) -> bool:
        """Whether there may be queries or OVER in expressions, which may need more of the rows than is seen here."""
        return self.select.nests

    def result_nodes(self) -> list[exp.Expression]:
        """The expressions that are computed for result rows."""
        nodes = [item.expression for item in self.items]
        if self.having is not None:
            nodes.append(self.having)
        if self.qualify is not None:
            nodes.append(self.qualify)
        return [*nodes, *(item.expression for item in self.select.order_by)]

    def _with_items(self, condition: exp.Expression, *, of_groups: bool = True) -> exp.Expression:
        """Returns HAVING or QUALIFY with the expressions of the SELECT list in place of their aliases.

        A column that the rows are grouped by keeps its meaning; so does any column where they aren't grouped.
        """
        kept = set() if of_groups else {column.name for column in self.relation.columns}
        aliases = {item.alias: item.expression for item in self.select.items
                   if item.alias is not None and item.alias not in kept}
        for item in (*self.select.group_by, *self.select.partition_by):
            name = item.alias if item.alias is not None else item.expression.name
            if item.alias is not None or any(column.name == name for column in self.relation.columns):
                aliases.pop(name, None)
        return replaced_columns(condition, aliases) if aliases else condition

    def read_rows(self) -> None:
        """Filters the rows and adds the partition and group keys as columns."""
        select, builder, relation = self.select, self.builder, self.relation
        scope = RowScope(relation, builder, "WHERE")
        self.bounds = bounds_of(select.where, scope, relation.time)
        self.scope = RowScope(relation, builder, "WHERE", self.bounds)
        condition = None if select.where is None else condition_of(select.where, self.scope)
        for time, slot in relation.times:
            if slot is not None:
                slot.first_ts, slot.last_ts = self.bounds if time is relation.time else bounds_of(
                    select.where, scope, time)
                slot.ranges = self._ranges(slot, scope)
                slot.instants = given_instants(select.where, scope, time)
                builder.times_given |= bool(slot.instants)
                if relation.table is not None and relation.table.kind == "super":
                    slot.tuids = selected_children(select.where, relation.table, scope)
                    slot.children = given_children(select.where, scope)
        if relation.table is not None and relation.table.keyed:
            roots = {id(column.root) for column in relation.columns}
            for slot in builder.scans:
                if slot.table is relation.table and any(id(column) in roots for column in slot.columns):
                    slot.keys = key_values(select.where, slot.table, scope)
        self.late_key = late_key(self) if self._sets is None else None
        keys = [self._key(item) for item in (*select.partition_by, *select.group_by)]
        called = builder.called
        if condition is not None and select.where is not None:
            where = select.where
            left = self._left_to_check(where)
            if left is not None:
                condition = SqlExpr(all_of([condition_of(node, self.scope).node for node in left]), BOOL)
            relation = relation.over(lambda below: Filter(below, condition, where, called=called))
        self.relation = relation.extended(keys, called)
        self.scope = RowScope(self.relation, builder, "the SELECT list", self.bounds)
        if self._sets is None:
            self.constants = constant_columns(self.relation, self.keys, self.scope)

    def _ranges(self, slot: ScanSlot, scope: RowScope) -> tuple[tuple[str, int | None, int | None], ...]:
        """The bounds that WHERE leaves of the timestamps of a table that aren't primary."""
        found = []
        for column in self.relation.columns:
            if not column.used or column.type.kind is not Kind.TIMESTAMP or column.type.precision != scope.precision:
                continue
            root = column.root
            if root.role == "column" and root in slot.columns[1:]:
                first, last = bounds_of(self.select.where, scope, column)
                if first is not None or last is not None:
                    found.append((root.name, first, last))
        return tuple(found)

    def _left_to_check(self, where: exp.Expression) -> list[exp.Expression] | None:
        """Returns the conditions of WHERE that the bounds of the scan don't say already, or None for all of them."""
        relation, builder = self.relation, self.builder
        if builder.of_stream or self.has_queries or relation.driver is not None or len(relation.times) != 1 or (
                relation.table is None or relation.table.kind not in ("super", "normal", "child")):
            return None
        time, slot = relation.times[0]
        if slot is None:
            return None
        ranged = {name for name, *_ in slot.ranges}
        bounded = [time, *(column for column in slot.columns[1:] if column.name in ranged)]
        scope = RowScope(relation, builder, "WHERE")
        return [node for node in conjuncts(where)
                if not any(is_time_range(node, scope, column) for column in bounded)
                and not is_given_range(node, scope, time)]

    def _key(self, item: PartitionItem) -> Computed:
        node = item.expression
        position = ordinal(node, len(self.items), self.builder)
        if position is not None:
            node = self.items[position].expression
        elif isinstance(node, exp.Column) and qualifier_of(node) is None and not self.scope.has_column(
                name := node.name) and not is_pseudo(node, *TIME_NAMES):
            node = next((other.expression for other in self.items if other.alias == name), node)
        scope = self.scope.within("PARTITION BY" if item in self.select.partition_by else "GROUP BY")
        column = f"#g{len(self.keys)}"
        if self.late_key is not None and self.late_key.item is item:
            self.keys.append(GroupKey(column, TBNAME, fingerprint(node, scope), item.alias, item.text))
            self.late_key.column = column
            return Computed(column, SqlExpr(column_tree(TABLE_UID), UBIGINT))
        value = compile_expression(node, scope)
        is_time = self.relation.is_time_line(scope.find(unwrapped(node)))
        self.keys.append(GroupKey(column, value.type, fingerprint(node, scope), item.alias, item.text, is_time))
        return Computed(column, value)

    @property
    def key_columns(self) -> list[str]:
        """The names of the columns that tell groups apart."""
        return [key.column for key in self.keys if key.partitions]

    @property
    def sets(self) -> tuple[tuple[str, ...], ...] | None:
        """The subsets of the key columns by which rows are grouped, None: by all of them."""
        if self._sets is None:
            return None
        by, columns = len(self.select.partition_by), self.key_columns
        return tuple((*columns[:by], *(columns[by + place] for place in places)) for places in self._sets)

    @property
    def labels(self) -> tuple[str, ...]:
        """What the statement calls the columns that tell groups apart."""
        return tuple(key.text for key in self.keys if key.partitions)

    # -- results ---------------------------------------------------------------------------------------------

    def output(self, item: Item, scope: RowScope, compiled: SqlExpr) -> Output:
        """Returns the result column of an item, given its value."""
        return Output(item.name, compiled, is_time=self.is_time(item.expression, scope), alias=item.alias)

    def is_time(self, node: exp.Expression, scope: RowScope) -> bool:
        """Whether a result column is a time line that a query around this one can use."""
        node = unwrapped(node)
        if not isinstance(node, exp.Column):
            spec = vector_spec(node)
            return spec is not None and spec.expands and len(node.expressions) == 1 and self.is_time(
                node.expressions[0], scope)
        if is_pseudo(node, "_wstart", "_wend", "_irowts"):
            return True
        key = key_of(node, self.keys)
        if key is not None:
            return key.is_time
        return self.relation.is_time_line(self.scope.find(node))

    def order_terms(
        self, outputs: Sequence[Output], compile_: Callable[[exp.Expression], SqlExpr]
    ) -> list[OrderTerm]:
        """Returns what orders the result: its columns by position, alias or text, or expressions of their own."""
        terms = self._terms(self.select.order_by, outputs, compile_)
        for term in terms:
            if term.hidden is not None and self.select.distinct:
                raise self.builder.error("ORDER BY of SELECT DISTINCT must name a column of the result",
                                         unwrapped(term.written), code=0x260B)
        return terms

    def _terms(
        self, items: Sequence[OrderItem], outputs: Sequence[Output], compile_: Callable[[exp.Expression], SqlExpr]
    ) -> list[OrderTerm]:
        marks: list[Mark] = []
        terms = []
        for item in items:
            node = unwrapped(item.expression)
            position = ordinal(node, len(outputs), self.builder)
            if position is None and isinstance(node, exp.Column) and qualifier_of(node) is None:
                position = next((index for index, other in enumerate(self.items) if other.alias == node.name), None)
            if position is None:
                mark = fingerprint(node, self.scope)
                marks = marks or [fingerprint(other.expression, self.scope) for other in self.items]
                position = marks.index(mark) if mark in marks else None
            hidden = compile_(node) if position is None else None
            terms.append(OrderTerm(position, hidden, item.descending, item.nulls_first, item.expression))
        return terms

    def finish(
        self, rows: Plan, outputs: Sequence[Output], terms: Sequence[OrderTerm], *,
        default: Callable[[], Sequence[str]] = tuple, having: SqlExpr | None = None, sort: bool = False,
        scope: OverScope,
    ) -> Planned:
        """Returns the planned query whose result rows are those of an operator; see `limits.Ending`.

        `default` names columns that order the rows where the query doesn't say how: it is asked only then, since they
        may cost something. `scope`: what its expressions were compiled in.
        """
        select, overs = self.select, scope.overs
        distinct_on = self._terms(tuple(map(OrderItem, select.distinct_on)), outputs,
                                  lambda node: self.compiled(node, scope))
        qualify = None if self.qualify is None else condition_of(
            with_placeholders(self.qualify, self.keys, self.scope), scope)
        called = self.called = self.builder.called
        keeps_order, builder = not (terms or sort or select.distinct), self.builder
        ending = Ending(terms, select.distinct, bound_limit(select.limit, builder), select.slimit, self.key_columns,
                        bool(select.partition_by), sort, distinct_on, called)

        def plan(*, kept: bool = True) -> Operator:
            names = default() if ending.sorts_by_default(kept=kept) else ()
            around, builder.keeps_order = builder.keeps_order, keeps_order and (kept or select.limit is not None)
            below = rows()
            builder.keeps_order = around
            if having is not None and select.having is not None:
                below = Filter(below, having, select.having, "having", called)
            if overs.columns:
                below = Over(below, tuple(overs.columns.values()), tuple(overs.written), called)
            if qualify is not None and select.qualify is not None:
                below = Filter(below, qualify, select.qualify, "qualify", called)
            return ending.over(below, outputs, names)

        return Planned(plan, tuple(outputs), self.scope.precision, partial(plan, kept=False))

    def compiled_having(self, scope: RowScope) -> SqlExpr | None:
        """Compiles HAVING like `compiled`; None if there is none."""
        if self.having is None:
            return None
        return condition_of(with_placeholders(self.having, self.keys, self.scope), scope)

    def compiled(self, node: exp.Expression, scope: RowScope) -> SqlExpr:
        """Compiles an expression in which parts that are keys stand for the keys."""
        return compile_expression(with_placeholders(node, self.keys, self.scope), scope)

    def only_calls(self, calls: Sequence[exp.Anonymous], fits: Callable[[FunctionSpec], bool]) -> None:
        """Raises if a function stands next to ones that give other rows."""
        for call in calls:
            if not fits(require_vector(call)):
                others = next(other for other in calls if fits(require_vector(other)))
                raise self.builder.error(f"{call.this}() cannot stand next to {others.this}()", call,
                                         code=NOT_ALLOWED_FUNCTION)

    def move(self, relation: Relation) -> None:
        """Goes on with another relation, whose columns include those of the old one."""
        self.relation = relation
        self.scope = RowScope(relation, self.builder, "the SELECT list", self.bounds)
