"""Portals: statements with their parameters, of which a client may take some rows at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

import pyarrow as pa

from penstock.common.errors import LimitExceededError, NotFoundError
from penstock.mnode.access.session import Result
from penstock.planner.task_plans.plan_tree import ResultColumn
from penstock.shell.postgres.backend import ResultField
from penstock.shell.postgres.frontend import Bind, Close, DescribeRequest, Execute, Parse
from penstock.shell.postgres.statement_text import StatementText

BATCH_ROWS = 4096
_PORTALS_MAX = 100


@dataclass(slots=True)
class StatementAnswer:
    """What a statement gives: rows, by `columns`, or nothing but its tag; `{}` in that is the number of rows."""

    tag: str
    columns: tuple[ResultColumn, ...] | None = None
    batches: Iterable[pa.RecordBatch] = ()

    @classmethod
    def of(cls, result: Result, tag: str) -> StatementAnswer:
        """Returns the answer that a result is."""
        if result.table is None:
            return cls(tag)
        return cls(tag, result.columns, result.table.to_batches(BATCH_ROWS))


@dataclass(slots=True)
class Portal:
    """A statement with its parameters; `remaining` are the rows that a client who takes some at a time hasn't taken.

    `sent`: the statement if the client has sent it just like that, without parameters. `holds`: it is a cursor that
    outlasts transactions.
    """

    text: StatementText | None
    formats: tuple[int, ...] = ()
    sent: StatementText | None = None
    held: StatementAnswer | None = None
    remaining: Iterator[pa.RecordBatch] | None = None
    fields: list[ResultField] = field(default_factory=list)
    holds: bool = False

    @property
    def is_insert(self) -> bool:
        """Whether it is an INSERT that wasn't executed."""
        return self.text is not None and self.text.words[:1] == ("INSERT",) and self.remaining is None

    def taken(self, rows_max: int | None) -> Iterator[pa.RecordBatch]:
        """Yields the next rows, so many at most, once it was executed."""
        assert self.remaining is not None
        while rows_max != 0 and (batch := next(self.remaining, None)) is not None:
            part = batch if rows_max is None else batch.slice(0, rows_max)
            if part.num_rows < batch.num_rows:
                self.remaining = chain([batch.slice(part.num_rows)], self.remaining)
            rows_max = None if rows_max is None else rows_max - part.num_rows
            yield part


class Portals:
    """Those of one session, by their names; a cursor is one, too."""

    def __init__(self) -> None:
        self._portals: dict[str, Portal] = {}

    def check_room(self, name: str) -> None:
        """Raises LimitExceededError if there are too many for one more."""
        if len(self._portals) >= _PORTALS_MAX and name not in self._portals:
            raise LimitExceededError(f"there are {_PORTALS_MAX} portals and cursors already", hint="close some")

    def put(self, name: str, portal: Portal) -> None:
        self._portals[name] = portal

    def find(self, name: str) -> Portal | None:
        return self._portals.get(name)

    def of(self, message: Parse | Bind | DescribeRequest | Execute | Close) -> Portal | None:
        """Returns the portal that a message executes or asks for the columns of; None if there is none."""
        match message:
            case Execute(portal=name) | DescribeRequest(is_portal=True, name=name):
                return self.find(name)
        return None

    def get(self, name: str) -> Portal:
        """Returns a portal. Raises NotFoundError."""
        if name not in self._portals:
            raise NotFoundError(f"there is no portal {name!r}")
        return self._portals[name]

    def close(self, name: str) -> None:
        """Forgets a portal; one that isn't there is no error."""
        self._portals.pop(name, None)

    def close_all(self, *, held: bool) -> None:
        """Forgets all portals; with `held` also cursors that outlast transactions."""
        self._portals = {} if held else {name: portal for name, portal in self._portals.items() if portal.holds}
