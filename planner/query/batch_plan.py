"""What planning a query returns: its logical plan, DuckDB SQL, the scans it reads, and result columns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
class BatchPlan:
    """A planned query: run `sql` where each scan's relation exists, get `columns` in order.

    `plan` says what it does. `body` is its SQL over the relations of its scans and the `steps`: (name, SQL), of which
    each may read those before it; DuckDB computes those that `once` names before it reads them.
    `tables` are relations whose rows were known when planning, by name: the child tables of a super table.
    `functions` are the users' functions that `sql` calls. `views`: how many it reads, those in views included.
    `takes`: the names of the values that `sql` must be given; `given`: which scans these bound. See `GivenPlan`.
    """

    plan: Operator
    steps: tuple[tuple[str, str], ...]
    body: str
    scans: tuple[Scan, ...]
    columns: tuple[ResultColumn, ...]
    tables: tuple[tuple[str, pa.Table], ...] = field(default=(), compare=False)
    functions: tuple[UserCall, ...] = ()
    once: frozenset[str] = frozenset()
    views: int = 0
    takes: tuple[str, ...] = ()
    given: tuple[GivenScan, ...] = ()

    @property
    def parameters(self) -> Mapping[str, object]:
        """The values that the SQL is given: none."""
        return {}

    @property
    def lasts(self) -> bool:
        """Whether the plan stays what it is while nothing is counted as a change of the catalog: child tables come
        without, and users' functions and tables of other servers become others."""
        return not (self.functions or self.tables or any(
            scan.tuids is not None or scan.table.kind == "external" for scan in self.scans))

    @property
    def sql(self) -> str:
        """The whole query."""
        return self.sql_over(())

    def sql_over(self, relations: Sequence[tuple[str, str]]) -> str:
        """Returns the whole query with more steps before its own: (name, SQL)."""
        steps = ", ".join(filter(None, (relations_sql(relations), relations_sql(self.steps, self.once))))
        return f"WITH {steps} {self.body}" if steps else self.body

    @property
    def tree(self) -> PlanNode:
        """The tree that EXPLAIN prints."""
        return explained(self.plan)


def relations_sql(relations: Sequence[tuple[str, str]], once: Collection[str] = ()) -> str:
    """Returns relations, (name, SQL), as they stand behind WITH; those that `once` names are computed before."""
    return ", ".join(f"{quote_name(name)} AS {'MATERIALIZED ' if name in once else ''}({sql})"
                     for name, sql in relations)
