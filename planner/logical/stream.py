"""A stream as a logical plan: what becomes of its rows, and what only streams have."""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.planner.logical.expr import Expr
from penstock.planner.logical.operators import Operator
from penstock.planner.task_plans.stream_plan import (
    DlqPlan,
    ExternalSinkPlan,
    History,
    NotifyPlan,
    Policies,
    Trigger,
    target_text,
)
from penstock.sql.schema import Column
from penstock.sql.types import DataType, Precision

#: What tells the groups of a target apart, as a column next to their keys: BIGINT UNSIGNED.
GROUP = "#group"


@dataclass(frozen=True, slots=True)
class StreamKey:
    """A value that all rows of a group share: a column of rows and of groups. `written` is how the statement calls it.

    `partitions`: it tells groups apart; else it follows from those that do, as the tags of a table from its name.
    """

    name: str
    type: DataType
    written: str
    partitions: bool


@dataclass(frozen=True, slots=True)
class Target:
    """Where results go: `columns` take the result columns in their order, the primary timestamp first.

    Each group has a child table, called `child` (SUBTABLE, a text over the keys; None: as target and group say), with
    `tag_values` over the keys and GROUP for its `tags`. `uid` is 0 until the target is created.
    With `external` there is no table: `database` is the name of the connection, `table` the place there, and `tags` are
    the groups' keys. `checks_results`: not all values may fit their columns. `tag_problem`: text over the keys that
    names the tag whose value doesn't fit. `key_places`: it is a table with a KEY, which has a row for each group,
    and no child tables: which column each key of groups is. `single`: such a table has no row but that of all rows.
    `home`: the database by whose name child tables are called, None: `database`. `uid_shift`: groups that are tables
    have child tables that are called by uids so much lower.
    `exact_child`: child tables are called as `child` says, also where several groups have the same one then.
    """

    database: str
    table: str
    columns: tuple[Column, ...]
    tags: tuple[Column, ...]
    child: Expr | None
    tag_values: tuple[Expr, ...]
    uid: int
    create: bool
    external: ExternalSinkPlan | None = None
    checks_results: bool = False
    tag_problem: Expr | None = None
    key_places: tuple[int, ...] = ()
    single: bool = False
    exact_child: bool = False
    home: str | None = None
    uid_shift: int = 0

    @property
    def result_columns(self) -> tuple[Column, ...]:
        """The columns as results are to be: what leaves Penstock may be as long as it is."""
        if self.external is None:
            return self.columns
        return tuple(replace(column, type=replace(column.type, length=None)) for column in self.columns)

    @property
    def text(self) -> str:
        """The target as EXPLAIN and SHOW have it."""
        return target_text(self.database, self.table, self.external)

    @property
    def keyed(self) -> bool:
        """Whether it is a table with a KEY."""
        return self.single or bool(self.key_places)

    @property
    def composite(self) -> bool:
        """Whether its primary key is a time with a second part, which is the second column then."""
        return len(self.columns) > 1 and self.columns[1].primary_key and not self.keyed


@dataclass(frozen=True, slots=True)
class LogicalStream:
    """A stream: what becomes of rows, and what only streams have.

    `plan` gives the result columns. Over one table it is a Project over, with groups, Filter over Aggregate, with
    windows Aggregate over Window, and Fill between them where gaps are filled, over the rows with their `keys`: Project
    over Filter over Lookup over Scan, each where it is needed. Joins, and streams by the clock, have the plan of a
    query.
    `period_ms`: MAX_DELAY's delay, or RECALCULATE's period. `history`: what of the rows from before the stream counts.
    `precision`: of all times. `time_zone`: where days begin; `own_zone`: the statement says so.
    """

    plan: Operator
    keys: tuple[StreamKey, ...]
    target: Target
    trigger: Trigger
    policies: Policies
    precision: Precision
    time_zone: str
    own_zone: bool
    period_ms: int = 0
    history: History | None = None
    dlq: DlqPlan | None = None
    notify: NotifyPlan | None = None
