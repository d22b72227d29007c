"""What planning a query returns: its logical plan, DuckDB SQL, the scans it reads, and result columns."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from penstock.planner.logical.explain import explained
from penstock.planner.logical.operators import Operator, Scan
from penstock.planner.plan import PlanNode, ResultColumn
from penstock.planner.user_calls import UserCall


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """A planned query: run `sql` where each scan's relation exists, get `columns` in order.

    `plan` says what it does. `sql` begins with a WITH clause, to which the scans' relations can be added.
    `tables` are relations whose rows were known when planning, by name: the child tables of a super table.
    `functions` are the users' functions that `sql` calls.
    """

    plan: Operator
    sql: str
    scans: tuple[Scan, ...]
    columns: tuple[ResultColumn, ...]
    tables: tuple[tuple[str, pa.Table], ...] = field(default=(), compare=False)
    functions: tuple[UserCall, ...] = ()

    @property
    def tree(self) -> PlanNode:
        """The tree that EXPLAIN prints."""
        return explained(self.plan)
