"""Runs users' functions inside of DuckDB: arrays go in, checked arrays come out, exceptions become errors or NULLs."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import duckdb
import pyarrow as pa

from penstock.common.arrow_data import one_array
from penstock.common.clock import Clock
from penstock.common.errors import UserFunctionError
from penstock.planner.task_plans.user_calls import UserCall
from penstock.sql.schema import UserFunction
from penstock.sql.types import DataType, Kind
from penstock.tasks.compute.function_loader import LoadedAggregate, LoadedFunction, load

_STATE, _POISON = b"S", b"E"
"""The first byte of a partial state: a pickled state, or the text of the error that spoilt it."""

Merge = Callable[[bytes, bytes], bytes]
P = ParamSpec("P")
T = TypeVar("T")


class UserFunctions:
    """The users' functions that one plan calls, loaded.

    `strict`: an exception ends the statement. Otherwise what could not be computed is NULL, and `errors` and `report`
    tell of it. A spoilt state makes the value NULL that it would be part of.
    """

    def __init__(self, calls: Sequence[UserCall], directory: Path, clock: Clock, *, strict: bool) -> None:
        """Loads the functions from `directory` or the Python path. Raises UserFunctionError."""
        self._clock = clock
        self._seconds = dict.fromkeys((call.function.name for call in calls), 0.0)
        self.calls = tuple(calls)
        self._strict = strict
        self._loaded = {call.function: load(call.function, directory) for call in calls}
        self._failures: dict[str, tuple[int, str]] = {}
        self.failure: UserFunctionError | None = None
        self.times_called = 0

    def register(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Makes the functions known to a connection, under the names that the plan's SQL uses."""
        for call in self.calls:
            connection.create_function(
                call.name, self._timed(call.function, self._body(call)),
                [duckdb.sqltype(name) for name in call.parameters],
                duckdb.sqltype(call.returns), type="arrow", null_handling="special")

    def merge(self, function: UserFunction) -> Merge:
        """Returns what unites two states of an aggregate."""
        aggregate = self._loaded[function]
        assert isinstance(aggregate, LoadedAggregate)

        def merge(left: bytes, right: bytes) -> bytes:
            for state in (left, right):
                if state.startswith(_POISON):
                    return state
            return self._state(function.name, aggregate, lambda: aggregate.merge(
                aggregate.loads(left[1:]), aggregate.loads(right[1:])))

        return self._timed(function, merge)

    @property
    def seconds(self) -> float:
        """How long the functions have computed."""
        return sum(self._seconds.values())

    @property
    def slowest(self) -> str:
        """The function that has computed longest, or ""."""
        return max(self._seconds, key=self._seconds.__getitem__) if self.seconds else ""

    @property
    def errors(self) -> int:
        """How many values could not be computed."""
        return sum(count for count, _ in self._failures.values())

    @property
    def report(self) -> str:
        """The number and the last text of the errors of each function, or ""."""
        return "; ".join(f"function {name} failed {count} time{'' if count == 1 else 's'}, last: {text}"
                         for name, (count, text) in sorted(self._failures.items()))

    # -- what DuckDB calls -----------------------------------------------------------------------------------

    def _timed(self, function: UserFunction, body: Callable[P, T]) -> Callable[P, T]:
        """Returns the same, which adds to what the function has taken; at a block's price, not at a row's."""
        monotonic, seconds, name = self._clock.monotonic, self._seconds, function.name

        def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            self.times_called += 1
            started = monotonic()
            try:
                return body(*args, **kwargs)
            finally:
                seconds[name] += monotonic() - started

        timed.__signature__ = signature(body)  # type: ignore[attr-defined]
        return timed

    def _body(self, call: UserCall) -> Callable[..., pa.Array]:
        loaded = self._loaded[call.function]
        if isinstance(loaded, LoadedFunction):
            def scalar(*columns: pa.ChunkedArray) -> pa.Array:
                return self._scalar(call, loaded, columns)

            # DuckDB compares the number of parameters.
            places = [Parameter(f"a{n}", Parameter.POSITIONAL_ONLY) for n in range(len(call.arguments))]
            scalar.__signature__ = Signature(places)  # type: ignore[attr-defined]
            return scalar
        steps = {"aggregate": self._aggregate, "partial": self._partial, "finish": self._finish}
        step = steps[call.step]
        return lambda column: step(call, loaded, one_array(column))

    def _scalar(self, call: UserCall, loaded: LoadedFunction, columns: Sequence[pa.ChunkedArray]) -> pa.Array:
        arrays = [_in(one_array(column), type_) for column, type_ in zip(columns, call.arguments, strict=True)]
        try:
            result = _checked(loaded.call(*arrays), len(arrays[0]), call.result)
        except Exception as error:  # noqa: BLE001
            # The user's code may raise anything.
            result = self._row_by_row(call, loaded, arrays, error)
        return _out(result, call.result)

    def _row_by_row(
        self, call: UserCall, loaded: LoadedFunction, arrays: Sequence[pa.Array], error: Exception
    ) -> pa.Array:
        """Computes rows one at a time: only those that fail by themselves end the statement, or are NULL."""
        if len(arrays[0]) == 1:
            self._failed(call, error)
            self._count(call.function.name, error)
            return pa.nulls(1, call.result.arrow())
        results = []
        for row in range(len(arrays[0])):
            try:
                result = _checked(loaded.call(*(array.slice(row, 1) for array in arrays)), 1, call.result)
            except Exception as row_error:  # noqa: BLE001
                self._failed(call, row_error)
                self._count(call.function.name, row_error)
                result = pa.nulls(1, call.result.arrow())
            results.append(result)
        return pa.concat_arrays(results)

    def _aggregate(self, call: UserCall, loaded: LoadedAggregate, groups: pa.Array) -> pa.Array:
        values = []
        for columns in _groups(groups, call.arguments):
            try:
                values.append(_value(loaded.finish(_accumulated(loaded, columns)), call.result))
            except Exception as error:  # noqa: BLE001
                self._failed(call, error)
                self._count(call.function.name, error)
                values.append(None)
        return _out(pa.array(values, call.result.arrow()), call.result)

    def _partial(self, call: UserCall, loaded: LoadedAggregate, groups: pa.Array) -> pa.Array:
        def state_of(columns: list[pa.Array]) -> bytes:
            state = self._state(call.function.name, loaded, lambda: _accumulated(loaded, columns))
            if self._strict and state.startswith(_POISON):
                self._fail_by_row(call, loaded, columns)
            return state

        return pa.array([state_of(columns) for columns in _groups(groups, call.arguments)], pa.binary())

    def _finish(self, call: UserCall, loaded: LoadedAggregate, states: pa.Array) -> pa.Array:
        values = []
        for state in states.to_pylist():
            value = None
            if state is not None and state.startswith(_STATE):
                try:
                    value = _value(loaded.finish(loaded.loads(state[1:])), call.result)
                except Exception as error:  # noqa: BLE001
                    self._count(call.function.name, error)
            values.append(value)
        return _out(pa.array(values, call.result.arrow()), call.result)

    def _fail_by_row(self, call: UserCall, loaded: LoadedAggregate, columns: list[pa.Array]) -> None:
        """Raises if a row can't be accumulated by itself; what fails for several rows only is no row's fault."""
        for row in range(len(columns[0])):
            try:
                loaded.dumps(_accumulated(loaded, [column.slice(row, 1) for column in columns]))
            except Exception as error:  # noqa: BLE001
                self._failed(call, error)

    # -- errors ----------------------------------------------------------------------------------------------

    def _state(self, name: str, loaded: LoadedAggregate, compute: Callable[[], Any]) -> bytes:
        """Returns a computed state as bytes; one that cannot be computed is marked as spoilt."""
        try:
            return _STATE + loaded.dumps(compute())
        except Exception as error:  # noqa: BLE001
            self._count(name, error)
            return _POISON + _text(error).encode(errors="replace")

    def _count(self, name: str, error: Exception) -> None:
        count, _ = self._failures.get(name, (0, ""))
        self._failures[name] = (count + 1, _text(error))

    def _failed(self, call: UserCall, error: Exception) -> None:
        """Raises if the statement is to end; DuckDB passes the error on as one of its own, so it is kept here."""
        if not self._strict:
            return
        failure = UserFunctionError(f"function {call.signature} failed: {_text(error)}", hint=_place(error))
        self.failure = self.failure or failure
        raise failure from error


class _WrongResult(TypeError):
    """What a function returned isn't what it was declared to return."""


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, _WrongResult) else f"{type(error).__name__}: {error}"


def _place(error: Exception) -> str | None:
    """Returns where in the user's code an error was raised."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    return f"in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else None


def _checked(result: object, rows: int, declared: DataType) -> pa.Array:
    """Returns the array that a function returned. Raises _WrongResult, and ArrowInvalid for texts that are no UTF-8."""
    array = one_array(result) if isinstance(result, pa.ChunkedArray) else result
    if not isinstance(array, pa.Array):
        raise _WrongResult(f"it returned {type(result).__name__}, not a pyarrow.Array")
    if len(array) != rows:
        raise _WrongResult(f"it returned {len(array)} values for {rows} row{'' if rows == 1 else 's'}")
    wanted = declared.arrow()
    if array.type == wanted:
        array.validate(full=True)
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(rows, wanted)
    raise _WrongResult(f"it returned {array.type}, declared is {declared.sql()}: cast the result to {wanted}")


def _value(value: object, declared: DataType) -> object:
    """Returns a value that an array of the declared type can hold. Raises _WrongResult."""
    wanted = declared.arrow()
    try:
        scalar = value.cast(wanted) if isinstance(value, pa.Scalar) else pa.scalar(value, wanted)
    except (pa.ArrowException, OverflowError) as error:
        raise _WrongResult(f"it returned {value!r}, declared is {declared.sql()}") from error
    return scalar


def _accumulated(loaded: LoadedAggregate, columns: Sequence[pa.Array]) -> Any:
    state = loaded.init()
    return loaded.accumulate(state, *columns) if len(columns[0]) else state


def _groups(groups: pa.Array, types: Sequence[DataType]) -> list[list[pa.Array]]:
    """Returns the columns of each list of rows; NULL is a list without rows."""
    found = []
    for row in range(len(groups)):
        members = groups[row].values
        if members is None:
            found.append([pa.array([], type_.arrow()) for type_ in types])
        else:
            found.append([_in(column, type_) for column, type_ in zip(members.flatten(), types, strict=True)])
    return found


def _in(array: pa.Array, type_: DataType) -> pa.Array:
    """Returns what the user's code sees: timestamps instead of integers."""
    wanted = type_.arrow()
    if array.type == wanted:
        return array
    return array.view(wanted) if type_.kind is Kind.TIMESTAMP else array.cast(wanted)


def _out(array: pa.Array, type_: DataType) -> pa.Array:
    """Returns what DuckDB gets: integers instead of timestamps."""
    return array.view(pa.int64()) if type_.kind is Kind.TIMESTAMP else array
