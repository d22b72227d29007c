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
    """A builder that knows the queries which WITH names, and the functions of users that the statement calls."""

    ctes: dict[str, NamedQuery] = field(default_factory=dict)
    functions: list[UserCall] = field(default_factory=list)


class NamedQuery:
    """One query of a WITH. It knows the names that are there where it stands, not those where it is read."""

    def __init__(self, cte: Cte, builder: QueryBuilder, plan: PlanQuery) -> None:
        self._cte = cte
        self._builder = builder
        self._plan = plan
        self._ctes, self._around = builder.ctes, builder.around
        self._planned: Planned | None = None

    def planned(self) -> Planned:
        """Returns the query, planned. Raises as `plan_query`."""
        if self._planned is None:
            builder, kept = self._builder, (self._builder.ctes, self._builder.around, self._builder.called)
            builder.ctes, builder.around = self._ctes, self._around
            planned = self._plan(self._cte.query, builder)
            builder.ctes, builder.around, builder.called = kept
            self._planned = self._renamed(replace(planned, plan=_once(
                lambda: Shared(planned.plan(), self._cte.name))))
        return self._planned

    def check(self) -> None:
        """Finds what is wrong with a query that nobody reads; its tables aren't read then."""
        if self._planned is None:
            scans, tables = self._builder.scans, self._builder.tables
            self._builder.scans, self._builder.tables = list(scans), list(tables)
            self.planned()
            self._builder.scans, self._builder.tables = scans, tables

    def _renamed(self, planned: Planned) -> Planned:
        names, columns = self._cte.columns, planned.columns
        if len(names) > len(columns):
            raise InvalidStatementError(f"{self._cte.name} has {len(columns)} columns, and {len(names)} names for them")
        renamed = [replace(column, name=name, alias=name) for column, name in zip(columns, names, strict=False)]
        return replace(planned, columns=(*renamed, *columns[len(names):]))


def named_queries(ctes: Sequence[Cte], builder: QueryBuilder, plan: PlanQuery) -> dict[str, NamedQuery]:
    """Returns the queries that names mean behind WITH: those of `ctes`, and those that are named around it."""
    around = builder.ctes
    for cte in ctes:
        builder.ctes = {**builder.ctes, cte.name: NamedQuery(cte, builder, plan)}
    found, builder.ctes = builder.ctes, around
    return found


def _once(plan: Callable[[], Operator]) -> Callable[[], Operator]:
    made: list[Operator] = []

    def found() -> Operator:
        if not made:
            made.append(plan())
        return made[0]

    return found
