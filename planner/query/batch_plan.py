"""What planning a query returns: its logical plan, DuckDB SQL, the scans it reads, and result columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.planner.bind.binder import GivenChildren, GivenInstant
from penstock.planner.duckdb_sql.quoting import quote_name
from penstock.planner.logical.explain import explained
from penstock.planner.logical.operators import Operator, Scan
from penstock.planner.task_plans.plan_tree import PlanNode, ResultColumn
from penstock.planner.task_plans.user_calls import UserCall


@dataclass(frozen=True, slots=True)
class GivenScan:
    """What values that a plan is given leave of a scan, by its name."""

    name: str
    instants: tuple[GivenInstant, ...]
    children: GivenChildren | None


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """What is run: `body`, DuckDB SQL over the relations of `scans` and over `steps`, which gives `columns` in order.

    Of `steps`, (name, SQL), each may read those before it; DuckDB computes those that `once` names before it reads
    them. `tables` are relations whose rows were known when planning, by name: the child tables of a super table.
    `functions` are the users' functions that the SQL calls, `parameters` the values that it is given.
    """

    body: str
    scans: tuple[Scan, ...]
    columns: tuple[ResultColumn, ...]
    steps: tuple[tuple[str, str], ...] = ()
    tables: tuple[tuple[str, pa.Table], ...] = field(default=(), compare=False)
    functions: tuple[UserCall, ...] = ()
    once: frozenset[str] = frozenset()
    parameters: Mapping[str, object] = field(default_factory=dict)

    @property
    def sql(self) -> str:
        """The whole query."""
        return self.sql_over(())

    def sql_over(self, relations: Sequence[tuple[str, str]]) -> str:
        """Returns the whole query with more steps before its own: (name, SQL)."""
        steps = ", ".join(f"{quote_name(name)} AS {'MATERIALIZED ' if name in self.once else ''}({sql})"
                          for name, sql in (*relations, *self.steps))
        return f"WITH {steps} {self.body}" if steps else self.body


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan(QueryPlan):
    """A planned query; `plan` says what it does.

    `views`: how many it reads, those in views included. `takes`: the names of the values that it must be given to run,
    by `given_plan`; `given`: which scans these bound.
    """

    plan: Operator
    views: int = 0
    takes: tuple[str, ...] = ()
    given: tuple[GivenScan, ...] = ()

    @property
    def lasts(self) -> bool:
        """Whether the plan stays what it is while nothing is counted as a change of the catalog: child tables come
        without, and users' functions and tables of other servers become others."""
        return not (self.functions or self.tables or any(
            scan.tuids is not None or scan.table.kind == "external" for scan in self.scans))

    @property
    def tree(self) -> PlanNode:
        """The tree that EXPLAIN prints."""
        return explained(self.plan)
