"""The end of every query: projection, HAVING, DISTINCT, SLIMIT, ORDER BY and LIMIT, per partition or in all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from penstock.common.errors import InvalidStatementError
from penstock.planner.duckdb_sql.duckdb_tree import column
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.expr import Computed
from penstock.planner.logical.operators import (
    Distinct,
    LimitRows,
    Operator,
    PartitionLimit,
    Project,
    Sort,
    SortKey,
)
from penstock.sql.tree import statements


@dataclass(frozen=True, slots=True)
class Output:
    """A result column. `is_time`: it is a time line that a query around this one can use.

    `alias` is what such a query may call it as well: for `a.v` that is `v`.
    """

    name: str
    value: SqlExpr
    is_time: bool = False
    alias: str | None = None


@dataclass(frozen=True, slots=True)
class OrderTerm:
    """One item of ORDER BY, as it is `written`: a result column by position, or an expression that isn't shown.

    NULL counts as the smallest value unless the query says where it goes.
    """

    position: int | None
    hidden: SqlExpr | None
    descending: bool
    nulls_first: bool | None
    written: exp.Expression

    def key(self, index: int) -> SortKey:
        """Returns what rows are sorted by, for the item of this number."""
        first = not self.descending if self.nulls_first is None else self.nulls_first
        name = hidden_name(index) if self.position is None else output_name(self.position)
        return SortKey(name, self.descending, first, self.written)


@dataclass(frozen=True, slots=True)
class RowLimit:
    """LIMIT, bound: what is no integer is computed once for the query; see `LimitRows`."""

    count: int | Computed | None
    offset: int | Computed
    percent: bool

    def over(self, rows: Operator) -> Operator:
        """Returns these rows of all."""
        return LimitRows(rows, self.count, self.offset, percent=self.percent)

    def per_partition(self, rows: Operator, keys: tuple[str, ...], order: tuple[SortKey, ...]) -> Operator:
        """Returns these rows of each partition; raises InvalidStatementError if it isn't said how many they are."""
        if isinstance(self.count, Computed) or isinstance(self.offset, Computed):
            raise InvalidStatementError("LIMIT of each partition, and its OFFSET, are numbers",
                                        hint="with ORDER BY, LIMIT is of all rows")
        return LimitRows(rows, self.count, self.offset, keys, order)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a query ends: what orders, narrows and cuts its rows.

    `partition` are the columns that tell partitions apart: SLIMIT counts them, and LIMIT counts within each of them
    if `per_partition` and nothing orders the whole. `sort`: rows have an order where the query doesn't say how, even
    if no LIMIT depends on it. `distinct_on`: of the rows in which these are equal the first one is there. `called`:
    see `Project`.
    """

    terms: Sequence[OrderTerm] = ()
    distinct: bool = False
    limit: RowLimit | None = None
    slimit: statements.PartitionsLimit | None = None
    partition: Sequence[str] = ()
    per_partition: bool = False
    sort: bool = False
    distinct_on: Sequence[OrderTerm] = ()
    called: str | None = None

    def sorts_by_default(self, *, kept: bool) -> bool:
        """Whether rows are ordered although the query doesn't say how. `kept`: their order is seen by somebody."""
        if self.terms or self.distinct:
            return False
        limited = self.limit is not None and (self.sort or self.per_partition)
        return (self.sort and kept) or limited or self.slimit is not None or bool(self.distinct_on)

    def over(self, rows: Operator, outputs: Sequence[Output], default: Sequence[str] = ()) -> Operator:
        """Returns the operator whose rows have the outputs as `o0`, `o1`, ..., from rows of a query.

        `default` names columns that order them where the query doesn't say how; see `sorts_by_default`.
        """
        shown = [Computed(output_name(index), output.value, output.name) for index, output in enumerate(outputs)]
        order = [term.key(index) for index, term in enumerate(self.terms)]
        if self.distinct:
            return self._cut(self._sorted(Distinct(Project(rows, tuple(shown), called=self.called)), order))
        hidden = [Computed(hidden_name(index), term.hidden)
                  for index, term in enumerate((*self.terms, *self.distinct_on)) if term.hidden is not None]
        rows_limit = self.limit is not None and self.per_partition and not self.terms
        limited = self.slimit is not None or rows_limit
        partition = _passed("p", self.partition if limited else (), rows)
        ordering = _passed("d", default, rows)
        plan: Operator = Project(rows, (*shown, *hidden, *partition, *ordering), called=self.called)
        if self.slimit is not None:
            plan = PartitionLimit(plan, _names(partition), self.slimit.count, self.slimit.offset)
        order = order or [SortKey(each.name) for each in ordering]
        if self.distinct_on:
            first = [term.key(len(self.terms) + index) for index, term in enumerate(self.distinct_on)]
            plan = LimitRows(plan, 1, 0, tuple(key.name for key in first), tuple(order),
                             tuple(term.written for term in self.distinct_on))
        if rows_limit and self.limit is not None:
            plan = self.limit.per_partition(plan, _names(partition), tuple(order))
        plan = self._sorted(plan, order)
        if not rows_limit:
            plan = self._cut(plan)
        if hidden or partition or ordering:
            plan = Project(plan, tuple(Computed(each.name, SqlExpr(column(each.name), each.value.type))
                                       for each in shown))
        return plan

    def _cut(self, plan: Operator) -> Operator:
        return plan if self.limit is None else self.limit.over(plan)

    @staticmethod
    def _sorted(plan: Operator, keys: Sequence[SortKey]) -> Operator:
        return Sort(plan, tuple(keys)) if keys else plan


def output_name(index: int) -> str:
    """Returns what a result column is called in the plan."""
    return f"o{index}"


def hidden_name(index: int) -> str:
    """Returns what an expression of ORDER BY that isn't shown is called in the plan."""
    return f"h{index}"


def _passed(prefix: str, names: Sequence[str], rows: Operator) -> list[Computed]:
    """Returns columns that are passed on without being shown."""
    types = {each.name: each.type for each in rows.output} if names else {}
    return [Computed(f"{prefix}{index}", SqlExpr(column(name), types[name])) for index, name in enumerate(names)]


def _names(columns: Sequence[Computed]) -> tuple[str, ...]:
    return tuple(each.name for each in columns)
