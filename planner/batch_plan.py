"""What planning a query returns: DuckDB SQL, the scans it reads, result columns, and a tree for EXPLAIN."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from penstock.planner.logical.operators import Scan
from penstock.planner.plan import PlanNode, ResultColumn
from penstock.planner.user_calls import UserCall


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """A planned query: run `sql` where each scan's relation exists, get `columns` in order.

    `sql` begins with a WITH clause, to which the scans' relations can be added.
    `tables` are relations whose rows were known when planning, by name: the child tables of a super table.
    `functions` are the users' functions that `sql` calls.
    """

    sql: str
    scans: tuple[Scan, ...]
    columns: tuple[ResultColumn, ...]
    tree: PlanNode
    tables: tuple[tuple[str, pa.Table], ...] = field(default=(), compare=False)
    functions: tuple[UserCall, ...] = ()
