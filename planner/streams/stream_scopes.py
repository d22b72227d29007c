"""What names mean in the clauses that only streams have, and where the results of a stream differ from a query's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from penstock.common.errors import InvalidStreamError, NotSupportedError
from penstock.planner.bind.aggregate_calls import aggregate_call
from penstock.planner.bind.binder import Builder, RelColumn
from penstock.planner.bind.expressions import compile_expression
from penstock.planner.bind.grouping import Aggregation
from penstock.planner.bind.scopes import GroupKey, RowScope, fingerprint
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.functions.spec import FunctionSpec
from penstock.planner.functions.table import require
from penstock.planner.logical.group_values import AggregateCall, GroupValue
from penstock.planner.logical.window_kinds import STATE
from penstock.planner.logical.written import text_of
from penstock.planner.streams.stream_keys import PartitionKey
from penstock.sql.tree.statements import StateWindow
from penstock.sql.types import check_stored


@dataclass(slots=True, kw_only=True)
class StreamAggregation(Aggregation):
    """The aggregate columns of a stream: computed in two stages, next to keys rather than to values of any row.

    `follow` returns the key that a column is whose value follows from the other keys.
    """

    follow: Callable[[RelColumn], PartitionKey]

    def value(
        self, name: str, spec: FunctionSpec, arguments: Sequence[SqlExpr], node: exp.Expression
    ) -> GroupValue:
        found = self.aggregate_call(name, spec, arguments, node)
        if found.user is None and require(found.function).split is None:
            raise NotSupportedError(f"{spec.name} is not supported in streams yet")
        check_stored(found.type)
        return found

    def constant_of_group(self, column: RelColumn) -> SqlExpr:
        return self.follow(column).use()

    @property
    def calls(self) -> list[AggregateCall]:
        """The calls among the columns that the statement has; see `state_key`."""
        return [found for found in self.columns.values()
                if isinstance(found, AggregateCall) and found.written is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateKey(GroupKey):
    """The state that all rows of a window share: a column of groups, which is only computed where it is asked for."""

    value: Callable[[], SqlExpr]

    def use(self) -> SqlExpr:
        return self.value()


def state_key(window: StateWindow, aggregation: StreamAggregation) -> StateKey:
    """Returns what the expression of STATE_WINDOW means next to the window: the first of its values there."""
    node = window.expression
    mark = fingerprint(node, aggregation.scope)
    state = compile_expression(node, aggregation.scope.within("STATE_WINDOW"))

    def value() -> SqlExpr:
        return aggregation.add(("state", mark), lambda name: aggregate_call(
            name, "first", [state], aggregation.row_key, precision=aggregation.scope.precision))

    return StateKey(STATE, state.type, mark, None, text_of(node), partitions=False, value=value)


class StreamRowScope(RowScope):
    """Names in the results of a stream without windows: columns, and aliases of PARTITION BY, as in queries."""

    def __init__(self, rows: RowScope, keys: Sequence[PartitionKey]) -> None:
        super().__init__(rows.relation, rows.builder, rows.clause, rows.bounds)
        self.keys = keys

    def column(self, name: str, qualifier: str | None, node: exp.Expression) -> SqlExpr:
        key = None if qualifier is not None else next((key for key in self.keys if key.alias == name), None)
        return super().column(name, qualifier, node) if key is None else key.value


class PartitionScope(RowScope):
    """Names in a `clause` that is about groups: only what PARTITION BY gives."""

    def __init__(self, keys: Sequence[PartitionKey], rows: RowScope, clause: str) -> None:
        super().__init__(rows.relation, rows.builder, clause)
        self._clause = clause
        self.keys = [key for key in keys if key.partitions]

    def column(self, name: str, qualifier: str | None, node: exp.Expression) -> SqlExpr:
        key = next((key for key in self.keys if name in key.names), None)
        if key is None:
            raise InvalidStreamError(f"{self._clause} may only use what is in PARTITION BY: {name} is not",
                                     code=0x2602, position=self.position(node))
        return key.use()

    def pseudo(self, name: str, node: exp.Expression) -> SqlExpr | None:
        key = next((key for key in self.keys if key.source == name), None)
        return self.column(name, None, node) if key is None else key.use()


def aggregation_of(
    rows: RowScope, builder: Builder, line_keys: Sequence[str], follow: Callable[[RelColumn], PartitionKey]
) -> StreamAggregation:
    """Returns the aggregate columns of a stream over these rows, none yet."""
    assert rows.relation is not None
    return StreamAggregation(rows.relation, rows.within("an argument"), builder, line_keys, True, follow=follow)
