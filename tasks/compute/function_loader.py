"""Finds and imports the Python code of users' functions, and checks its shape; calls no function.

Every version of a function gets a module of its own, imported from the directory of functions or else from the Python
path. So a replaced function never mixes with the one before, nor a module there with an installed one of that name.
"""

from __future__ import annotations

import importlib
import inspect
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import FileFinder
from io import BytesIO
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import Any

import google_crc32c

from penstock.common.errors import UserFunctionError
from penstock.sql.schema import UserFunction

MANY_ARGUMENTS = 64
"""How many arguments a function with `*args` takes at most."""

_PREFIX = "penstock_udf_"
_import_lock = RLock()
_STATE_VALUES = frozenset({
    *(f"builtins.{name}" for name in ("set", "frozenset", "bytearray", "complex", "range", "slice", "object")),
    *(f"collections.{name}" for name in ("Counter", "OrderedDict", "defaultdict", "deque")),
    *(f"builtins.{name}" for name in ("int", "float", "list", "dict", "str", "tuple", "bytes", "bool")),
    *(f"datetime.{name}" for name in ("date", "datetime", "time", "timedelta", "timezone")),
    "array._array_reconstructor", "decimal.Decimal", "fractions.Fraction", "uuid.UUID", "numpy.dtype", "numpy.ndarray",
    "numpy._core.numeric._frombuffer", "numpy._core.multiarray._reconstruct", "numpy._core.multiarray.scalar",
})
"""What any state may name: plain values, and what makes them."""


@dataclass(frozen=True, slots=True)
class LoadedFunction:
    """A scalar function's code: it takes Arrow arrays and returns one of the same length."""

    call: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class LoadedAggregate:
    """An aggregate's code, from an object of the user's class.

    `init()` gives an empty state, `accumulate(state, *arrays)` adds rows to it, `merge(state, state)` merges two,
    `finish(state)` gives the value. States are values that can be pickled. `own`: the packages whose classes a state
    may have besides plain values: the function's, and those of the state that `init()` returns.
    """

    init: Callable[[], Any]
    accumulate: Callable[..., Any]
    merge: Callable[[Any, Any], Any]
    finish: Callable[[Any], Any]
    package: str
    own: frozenset[str]

    def dumps(self, state: Any) -> bytes:
        """Returns a state as bytes. Raises what pickle raises."""
        return pickle.dumps(state, protocol=5)

    def loads(self, data: bytes) -> Any:
        """Returns the state that `dumps` was given, by this or an earlier version of the function."""
        return _StateReader(data, self.package, self.own).load()


class _StateReader(pickle.Unpickler):
    """Makes states of values and of the function's own classes; states come from checkpoints, which may be forged.

    Own classes are found in the module of the function's current version. No function can be called by name.
    """

    def __init__(self, data: bytes, package: str, own: frozenset[str]) -> None:
        super().__init__(BytesIO(data))
        self._package = package
        self._own = own

    def find_class(self, module: str, name: str) -> Any:
        if _is_plain(module, name):
            return super().find_class(module, name)
        first, dot, rest = module.partition(".")
        if first.startswith(_PREFIX):
            first, module = self._package, self._package + dot + rest
        if first not in self._own or "." in name:
            raise pickle.UnpicklingError(f"a state contains {module}.{name}, which is no class of the function's own")
        found = super().find_class(module, name)
        if not isinstance(found, type) or found.__module__ != module:
            raise pickle.UnpicklingError(f"a state contains {module}.{name}, which is no class of the function's own")
        return found


class _ClassRecorder(pickle.Unpickler):
    """Notes the packages of what a state that was just made consists of, besides plain values."""

    def __init__(self, data: bytes) -> None:
        super().__init__(BytesIO(data))
        self.packages: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:
        if not _is_plain(module, name):
            self.packages.add(module.partition(".")[0])
        return super().find_class(module, name)


def _is_plain(module: str, name: str) -> bool:
    return f"{module}.{name}".replace("numpy.core.", "numpy._core.") in _STATE_VALUES


def load(function: UserFunction, directory: Path) -> LoadedFunction | LoadedAggregate:
    """Returns the code of a function. Raises UserFunctionError if there is none, or if it has another shape.

    `directory` is where functions' modules are looked for first. A `function.uid` of 0 always reads the code anew.
    """
    with _import_lock:
        module, name, package = _module(function, directory)
    found = getattr(module, name, None)
    if found is None:
        raise _wrong(function, f"{module.__file__ or module.__name__} has no {name}")
    return _aggregate(function, found, package) if function.aggregate else _scalar(function, found)


def arity(function: UserFunction, loaded: LoadedFunction | LoadedAggregate) -> tuple[int, int]:
    """Returns the least and the greatest number of SQL arguments that the code takes. Raises UserFunctionError."""
    target, own = (loaded.call, 0) if isinstance(loaded, LoadedFunction) else (loaded.accumulate, 1)
    signature = _signature(function, target)
    if signature is None:
        return 1, MANY_ARGUMENTS
    places = [parameter for parameter in signature.parameters.values()
              if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)]
    least = sum(parameter.default is parameter.empty for parameter in places) - own
    endless = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in signature.parameters.values())
    greatest = MANY_ARGUMENTS if endless else len(places) - own
    if greatest < 1:
        raise _wrong(function, f"{_name_of(target)}{signature} takes no column: at least one is needed")
    return max(least, 1), greatest


# --- importing ----------------------------------------------------------------------------------------------------


def _module(function: UserFunction, directory: Path) -> tuple[ModuleType, str, str]:
    """Returns the module, the name of the function or class in it, and the package of this version's modules."""
    where, colon, name = function.source.rpartition(":")
    if not colon:
        where, name = function.source, function.name
    if where.endswith(".py"):
        file = directory / where
        if not file.is_file():
            raise _wrong(function, f"there is no file {file}")
        directory, where = file.parent, file.stem
    elif not colon:
        raise _wrong(function, f"{function.source!r} names no function", hint="write AS 'module:function'")
    if not name.isidentifier() or not all(part.isidentifier() for part in where.split(".")):
        raise _wrong(function, f"{function.source!r} is no place of code", hint="write AS 'module:function'")
    package = f"{_PREFIX}{google_crc32c.value(str(directory.resolve()).encode()):08x}_{function.uid}"
    if function.uid == 0:
        _forget(package)
    first = where.partition(".")[0]
    here = (directory / f"{first}.py").is_file() or (directory / first).is_dir()
    try:
        with _without_bytecode():
            _look_again()
            if not here:
                return importlib.import_module(where), name, package
            if package not in sys.modules:
                sys.modules[package] = ModuleType(package)
                sys.modules[package].__path__ = [str(directory)]
            return importlib.import_module(f"{package}.{where}"), name, package
    except (Exception, SystemExit) as error:
        # The user's module may raise anything while it is imported.
        missing = isinstance(error, ModuleNotFoundError) and error.name == where
        text = (f"there is no module {where} in {directory} nor on the Python path" if missing
                else f"importing {where} failed: {type(error).__name__}: {error}")
        raise _wrong(function, text) from error


def _look_again() -> None:
    """Has files be found that are new in their directories.

    Archives aren't read again, as `importlib.invalidate_caches` would: of Spark's jars that takes seconds.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if finder is None:  # there was no such directory
            sys.path_importer_cache.pop(path, None)
        elif isinstance(finder, FileFinder):
            finder.invalidate_caches()


def _forget(package: str) -> None:
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]


@contextmanager
def _without_bytecode() -> Iterator[None]:
    """Imports from source only: cached bytecode would hide a change made within the same second."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


# --- shapes -------------------------------------------------------------------------------------------------------


def _scalar(function: UserFunction, found: object) -> LoadedFunction:
    if not callable(found) or isinstance(found, type):
        raise _wrong(function, f"{function.source} is no function, but {_article(found)}",
                     hint="a class with init, accumulate, merge and finish is for CREATE AGGREGATE FUNCTION")
    _check_takes(function, found, 0)
    return LoadedFunction(found)


def _aggregate(function: UserFunction, found: object, package: str) -> LoadedAggregate:
    if not isinstance(found, type):
        raise _wrong(function, f"{function.source} is no class, but {_article(found)}",
                     hint="an aggregate is a class with init, accumulate, merge and finish")
    try:
        user = found()
    except Exception as error:
        raise _wrong(function, f"{found.__name__}() failed: {type(error).__name__}: {error}") from error
    members = {}
    for name in ("init", "accumulate", "merge", "finish"):
        member = getattr(user, name, None)
        if not callable(member):
            raise _wrong(function, f"class {found.__name__} has no method {name}")
        members[name] = member
    for name, count in (("init", 0), ("merge", 2), ("finish", 1)):
        signature = _signature(function, members[name])
        if signature is not None and not _binds(signature, count):
            raise _wrong(function, f"{name}{signature} doesn't take {_arguments(count)}")
    _check_takes(function, members["accumulate"], 1)
    own = frozenset({package, found.__module__.partition(".")[0], *_packages_in(members["init"])})
    loaded = LoadedAggregate(**members, package=package, own=own)
    if function.uid == 0:
        _check_state(function, loaded)
    return loaded


def _packages_in(init: Callable[[], Any]) -> frozenset[str]:
    """Returns the packages whose classes an empty state has; none if there is none that can be pickled."""
    try:
        recorder = _ClassRecorder(pickle.dumps(init(), protocol=5))
        recorder.load()
    except Exception:  # noqa: BLE001
        return frozenset()  # the user's code may raise anything, and does so again where it is told
    return frozenset(recorder.packages)


def _check_takes(function: UserFunction, target: Callable[..., Any], own: int) -> None:
    """Checks that the declared arguments, and `own` ones of ours before them, can be passed."""
    signature = _signature(function, target)
    if function.arguments is None or signature is None:
        return
    count = len(function.arguments)
    if not _binds(signature, count + own):
        after = "the state and " if own else ""
        raise _wrong(function, f"{_name_of(target)}{signature} doesn't take {after}{_arguments(count)}")


def _check_state(function: UserFunction, loaded: LoadedAggregate) -> None:
    try:
        loaded.loads(loaded.dumps(loaded.init()))
    except Exception as error:
        raise _wrong(function, f"the state of init() cannot be made or pickled: {type(error).__name__}: {error}",
                     hint="states are sent between tasks and kept in checkpoints") from error


def _signature(function: UserFunction, target: Callable[..., Any]) -> inspect.Signature | None:
    """Returns what a callable takes; None if it is compiled code that doesn't tell."""
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return None
    needed = [parameter.name for parameter in signature.parameters.values()
              if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty]
    if needed:
        raise _wrong(function, f"{_name_of(target)}{signature} needs {needed[0]} by name, which SQL cannot give")
    return signature


def _binds(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def _arguments(count: int) -> str:
    return f"{count} argument{'' if count == 1 else 's'}" if count else "no arguments"


def _name_of(target: object) -> str:
    return str(getattr(target, "__name__", type(target).__name__))


def _article(found: object) -> str:
    return f"the class {found.__name__}" if isinstance(found, type) else f"a value of type {type(found).__name__}"


def _wrong(function: UserFunction, text: str, hint: str | None = None) -> UserFunctionError:
    return UserFunctionError(f"function {function.name}: {text}", hint=hint)
