"""One DuckDB for the tasks of all streams that run in this process: a new one costs more than what a task computes.

What bounds a task's memory is therefore not tested here, but where tasks have processes of their own.
"""

from __future__ import annotations

from typing import ClassVar

import duckdb

from penstock.common.closed_duckdb import UNBOUNDED, DuckdbBounds, closed_duckdb
from penstock.tasks.compute.duckdb_computer import Computer
from penstock.tasks.compute.function_runtime import UserFunctions
from penstock.tasks.operators import base_task


class SharedComputer(Computer):
    """A computer on a DuckDB that others use too: a new DuckDB costs more than a whole example.

    Users' functions are one task's own, but its DuckDB goes to another task after it.
    """

    database = closed_duckdb(UNBOUNDED)
    _spare: ClassVar[list[duckdb.DuckDBPyConnection]] = []

    def __init__(self, functions: UserFunctions | None = None, bounds: DuckdbBounds = UNBOUNDED) -> None:
        super().__init__(functions, bounds)
        self._own: duckdb.DuckDBPyConnection | None = None

    @property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        if self._opened is None and (self._functions is None or not self._functions.calls):
            self._opened = self.database.cursor()
        if self._opened is None:
            self._own = self._spare.pop() if self._spare else closed_duckdb(UNBOUNDED)
            self._opened = self._own.cursor()
            assert self._functions is not None
            self._functions.register(self._opened)
        return self._opened

    def close(self) -> None:
        if self._own is not None:
            assert self._opened is not None
            assert self._functions is not None
            for call in self._functions.calls:
                self._opened.remove_function(call.name)
            self._spare.append(self._own)
            self._own = None
        super().close()


def share_computers() -> None:
    """Makes all tasks that are built from now on in this process compute that way."""
    base_task.Computer = SharedComputer  # type: ignore[misc]
