"""Queries that WITH names: each is planned once, where it is first read, and may be read by several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from penstock.common.errors import InvalidStatementError, NotFoundError
from penstock.common.suggestions import did_you_mean
from penstock.planner.bind.binder import Builder
from penstock.planner.bind.limits import output_name
from penstock.planner.bind.query_parts import Planned, renamed
from penstock.planner.logical.expr import ColumnExpr
from penstock.planner.logical.operators import Iterated, Operator, Recursive, Shared
from penstock.planner.query.set_operation import converted
from penstock.planner.task_plans.user_calls import UserCall
from penstock.sql.tree.read_tables import tables_of
from penstock.sql.tree.statements import RECURRING, Cte, Name, Query, SetOperation, TableSource

PlanQuery = Callable[[Query, "QueryBuilder"], Planned]


@dataclass(slots=True)
class QueryBuilder(Builder):
    """A builder that knows the queries which WITH names, and the functions of users that the statement calls.

    `planned`: those that are read, in the order in which one reads the other. `views`: how many it
    has read so far.
    """

    ctes: dict[str, NamedQuery | _LastStep] = field(default_factory=dict)
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
            planned = self._iterated() or self._plan(self._cte.query, builder)
            builder.ctes, builder.around, builder.called = kept
            key = builder.fresh("with")
            shared = replace(planned, loose=None, plan=_once(
                lambda: Shared(planned.plan(), self._cte.name, key, self.depth)))
            self._planned = renamed(shared, self._cte.columns, self._cte.name)
            builder.planned.append(self)
        return self._planned

    def _iterated(self) -> Planned | None:
        """The query if it reads itself: what it begins with, and the step that is repeated; else None."""
        cte, builder, query = self._cte, self._builder, self._cte.query
        if not cte.key_columns and not (cte.recursive and any(map(self._reads_itself, _parts(query)))):
            return None
        if not isinstance(query, SetOperation) or query.kind != "union" or query.order_by or query.limit or any(
                map(self._reads_itself, query.queries[:-1])):
            raise InvalidStatementError(
                f"{cte.name} must be a query that doesn't read itself, UNION [ALL], and one that does",
                position=builder.place(Name(cte.name, None, cte.offset)))
        *first, last = query.queries
        base = self._plan(query.with_changes(queries=tuple(first)) if len(first) > 1 else first[0], builder)
        key, ctes = builder.fresh("recursive"), builder.ctes
        types = [column.value.type for column in base.columns]
        columns = tuple(ColumnExpr(output_name(place), type_) for place, type_ in enumerate(types))
        last_step, so_far = (renamed(replace(base, plan=partial(Iterated, key, columns, so_far), loose=None),
                                     cte.columns, cte.name) for so_far in (False, True))
        by = tuple(output_name(self._place(name, last_step)) for name in cte.key_columns)
        builder.ctes = {**ctes, cte.name: _LastStep(last_step, so_far if by else None)}
        always_row, builder.always_row = builder.always_row, True
        step = self._plan(last, builder)
        builder.ctes, builder.always_row = ctes, always_row
        if len(step.columns) != len(types):
            raise InvalidStatementError(
                f"{cte.name} begins with {len(types)} columns, and goes on with {len(step.columns)}",
                position=builder.place(Name(cte.name, None, cte.offset)))
        following = converted(step, types, builder)
        return replace(base, plan=lambda: Recursive(base.in_any_order(), following(), key, query.all, by),
                       loose=None)

    def _place(self, name: str, rows: Planned) -> int:
        names = [column.alias or column.name for column in rows.columns]
        if name not in names:
            raise NotFoundError(f"{self._cte.name} has no column {name} for its key",
                                position=self._builder.place(Name(self._cte.name, None, self._cte.offset)),
                                hint=did_you_mean(name, names))
        return names.index(name)

    def _reads_itself(self, query: Query) -> bool:
        return any(isinstance(source, TableSource) and source.name.database in (None, RECURRING)
                   and source.name.name == self._cte.name for source in tables_of(query))


@dataclass(frozen=True, slots=True)
class _LastStep:
    """What a recursive query is to itself; `so_far`: all that it has found by a key."""

    rows: Planned
    so_far: Planned | None = None

    def planned(self) -> Planned:
        return self.rows


def _parts(query: Query) -> Sequence[Query]:
    return query.queries if isinstance(query, SetOperation) else (query,)


def named_rows(source: TableSource, builder: QueryBuilder) -> Planned | None:
    """Returns the query whose rows these are, if it is one that WITH names."""
    cte = None if source.cuts is not None else builder.ctes.get(source.name.name)
    if cte is None or source.name.database not in (None, RECURRING):
        return None
    if source.name.database is None:
        return cte.planned()
    return cte.so_far if isinstance(cte, _LastStep) else None


def named_queries(ctes: Sequence[Cte], builder: QueryBuilder, plan: PlanQuery) -> dict[str, NamedQuery | _LastStep]:
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
