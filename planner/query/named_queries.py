"""Queries that WITH names: each is planned once, where it is first read, and may be read by several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from penstock.common.errors import InvalidStatementError
from penstock.planner.bind.binder import Builder
from penstock.planner.bind.query_parts import Planned
from penstock.planner.logical.operators import Operator, Shared
from penstock.planner.task_plans.user_calls import UserCall
from penstock.sql.tree.statements import Cte, Query

PlanQuery = Callable[[Query, "QueryBuilder"], Planned]


@dataclass(slots=True)
class QueryBuilder(Builder):
    """A builder that knows the queries which WITH names, and the functions of users that the statement calls.

    `planned`: those that are read, in the order in which one reads the other. `views`: how many it
    has read so far.
    """

    ctes: dict[str, NamedQuery] = field(default_factory=dict)
    planned: list[NamedQuery] = field(default_factory=list)
    views: int = 0
    functions: list[UserCall] = field(default_factory=list)


class NamedQuery:
    """One query of a WITH. It knows the names that are there where it stands, not those where it is read."""

    def __init__(self, cte: Cte, builder: QueryBuilder, plan: PlanQuery) -> None:
        self._cte = cte
        self._builder = builder
        self._plan = plan
        self._ctes, self._around = builder.ctes, builder.around
        self._planned: Planned | None = None
        self.depth = len(builder.around)

    def planned(self) -> Planned:
        """Returns the query, planned. Raises as `plan_query`."""
        if self._planned is None:
            builder, kept = self._builder, (self._builder.ctes, self._builder.around, self._builder.called)
            builder.ctes, builder.around = self._ctes, self._around
            planned = self._plan(self._cte.query, builder)
            builder.ctes, builder.around, builder.called = kept
            key = builder.fresh("with")
            self._planned = renamed(replace(planned, plan=_once(
                lambda: Shared(planned.plan(), self._cte.name, key, self.depth))), self._cte.columns, self._cte.name)
            builder.planned.append(self)
        return self._planned


def renamed(planned: Planned, names: Sequence[str], called: str) -> Planned:
    """Returns a query whose first columns have these names. Raises as `check_names`."""
    columns = planned.columns
    check_names(names, len(columns), called)
    first = [replace(column, name=name, alias=name) for column, name in zip(columns, names, strict=False)]
    return replace(planned, columns=(*first, *columns[len(names):]))


def check_names(names: Sequence[str], columns: int, called: str) -> None:
    """Raises InvalidStatementError if these are more names than `called` has columns."""
    if len(names) > columns:
        raise InvalidStatementError(f"{called} has {columns} columns, and {len(names)} names for them")


def named_queries(ctes: Sequence[Cte], builder: QueryBuilder, plan: PlanQuery) -> dict[str, NamedQuery]:
    """Returns the queries that names mean behind WITH: those of `ctes`, and those that are named around it."""
    around = builder.ctes
    for cte in ctes:
        builder.ctes = {**builder.ctes, cte.name: NamedQuery(cte, builder, plan)}
    found, builder.ctes = builder.ctes, around
    return found


def shared_rows(builder: QueryBuilder, first: int = 0) -> list[Operator]:
    """Returns the rows of the named queries of the query that is bound, and forgets these.

    `first`: how many were there before it.
    """
    depth = len(builder.around)
    own = [query for query in builder.planned[first:] if query.depth == depth]
    builder.planned[first:] = [query for query in builder.planned[first:] if query.depth != depth]
    return [query.planned().plan() for query in own]


def _once(plan: Callable[[], Operator]) -> Callable[[], Operator]:
    made: list[Operator] = []

    def found() -> Operator:
        if not made:
            made.append(plan())
        return made[0]

    return found
