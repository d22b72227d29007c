"""CREATE FUNCTION and DROP FUNCTION: checks that the code is there and fits, before the catalog knows the function."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from penstock.common.clock import Clock
from penstock.common.errors import AlreadyExistsError, InUseError, InvalidStatementError, NotFoundError
from penstock.common.suggestions import did_you_mean
from penstock.mnode.access.session import Result
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.materialized_views import drop_of
from penstock.mnode.ddl.name_rules import check_name
from penstock.planner.functions.table import FUNCTIONS
from penstock.sql.schema import UserFunction
from penstock.sql.tree.statements import CreateFunction, DropFunction
from penstock.tasks.compute.function_loader import arity, load

_CALLABLE_NAME = re.compile(r"[a-z_][a-z0-9_]*")


class Functions:
    """Executes the statements about users' functions. `directory` is where their modules are looked for first."""

    def __init__(self, catalog: Catalog, clock: Clock, directory: Path) -> None:
        self._catalog = catalog
        self._clock = clock
        self._directory = directory

    def create(self, statement: CreateFunction) -> Result:
        """Raises UserFunctionError if the code isn't there or takes other arguments."""
        name = statement.name
        check_name(name, "function")
        if not _CALLABLE_NAME.fullmatch(name):
            raise InvalidStatementError(f"{name!r} cannot be the name of a function",
                                        hint="letters, digits and underscores can")
        if name.lower() in FUNCTIONS:
            raise AlreadyExistsError(f"{name} is a function of the dialect", hint="choose another name")
        if self._catalog.function(name) is not None:
            if statement.if_not_exists:
                return Result()
            if not statement.replace:
                raise AlreadyExistsError(f"function {name} already exists", hint="use CREATE OR REPLACE")
            self._refuse_in_use(name)
        function = UserFunction(
            name, statement.aggregate, statement.arguments, statement.result, statement.source,
            create_time_ms=self._clock.now_ms(), comment=statement.comment)
        loaded = load(function, self._directory)
        minimum, maximum = arity(function, loaded)
        if statement.arguments is not None:
            minimum = maximum = len(statement.arguments)
        self._catalog.functions.create(replace(function, minimum=minimum, maximum=maximum), replacing=statement.replace)
        return Result()

    def drop(self, statement: DropFunction) -> Result:
        """Raises InUseError while a stream calls the function."""
        name = statement.name
        if self._catalog.function(name) is None:
            if statement.if_exists:
                return Result()
            raise NotFoundError(f"function {name} does not exist",
                                hint=did_you_mean(name, (other.name for other in self._catalog.functions.all())))
        self._refuse_in_use(name)
        self._catalog.functions.drop(name)
        return Result()

    def _refuse_in_use(self, name: str) -> None:
        stream = next((stream for stream in self._catalog.streams.all() if name in stream.uses.functions), None)
        if stream is not None:
            raise InUseError(f"function {name} is in use: stream {stream.name} calls it",
                             hint=f"{drop_of(stream)} first")
