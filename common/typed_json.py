"""Frozen dataclasses and named tuples as JSON and back, by annotations: only what a root leads to is ever built.

The JSON is a list of parts, each a class with its fields; what a part holds of dataclasses stands in front of it and is
named by its place, so that equal parts are written once and nothing is nested, however deep the value is.
"""

from __future__ import annotations

import base64
import binascii
import inspect
import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
Parts = Mapping[str, Any]
"""The fields of a class, each with its default, `dataclasses.MISSING` without one."""
_PLAIN = (NoneType, bool, int, float, str, bytes)
_CLASS, _PLACE, _BYTES = "class", "#", "base64"


def parts_of_dataclass(kind: type) -> Parts | None:
    """Returns the fields of a dataclass or a named tuple, None for other classes."""
    return _parts_of(kind)


@cache
def _parts_of(kind: type) -> Parts | None:
    if is_dataclass(kind):
        return {one.name: one.default for one in fields(kind)}
    names, defaults = getattr(kind, "_fields", None), getattr(kind, "_field_defaults", {})
    return None if names is None else {name: defaults.get(name, MISSING) for name in names}


class TypedJson(Generic[T]):
    """Writes and reads values of one dataclass.

    Its fields, and those of the dataclasses in them, may be None, truth, numbers, texts, bytes, literals, enums, tuples
    and dataclasses. All fields are written; one that isn't there is given its default when it is read.
    """

    def __init__(self, root: type[T], parts_of: Callable[[type], Parts | None] = parts_of_dataclass,
                 newer: Collection[str] = ()) -> None:
        """Raises TypeError for fields of other types, and for two classes of one name.

        `parts_of` tells the fields of a class whose values are frozen, and None for others. `newer`: fields that
        earlier versions don't know, and that aren't written while they are None.
        """
        self._newer = newer
        self._root = root
        self._parts_of = parts_of
        self._hints: dict[str, dict[str, Any]] = {}
        self._classes: dict[str, type] = {}
        self._fields: dict[str, Parts] = {}
        self._learn(root)

    def encode(self, value: T) -> list[dict[str, Any]]:
        """Returns the value as what `json.dumps` takes."""
        parts: list[dict[str, Any]] = []
        places: dict[int, int] = {}
        known: dict[str, int] = {}
        pending: list[Any] = [value]
        while pending:
            part = pending[-1]
            inner = [] if id(part) in places else [one for one in self._inner(part) if id(one) not in places]
            if inner:
                pending += inner
                continue
            pending.pop()
            if id(part) in places:
                continue
            name = self._name_of(part)
            body = {_CLASS: name, **{one: _plain(value, places) for one in self._fields[name]
                                     if (value := getattr(part, one)) is not None or one not in self._newer}}
            # Equal values may be of different types, as 1 and true are: texts tell them apart.
            places[id(part)] = known.setdefault(json.dumps(body), len(parts))
            if places[id(part)] == len(parts):
                parts.append(body)
        return parts

    def decode(self, data: object) -> T:
        """Returns the value that `encode` was given. Raises ValueError for anything that isn't such a value."""
        if not isinstance(data, list) or not data:
            raise ValueError("there are no parts")
        made: list[Any] = []
        for part in data:
            if not isinstance(part, dict):
                raise ValueError("a part is no object")
            made.append(self._made(part, made))
        if type(made[-1]) is not self._root:
            raise ValueError(f"a {type(made[-1]).__name__} where a {self._root.__name__} belongs")
        return made[-1]

    # --- inside ---------------------------------------------------------------------------------------------------

    def _learn(self, root: type) -> None:
        pending = [root]
        while pending:
            kind = pending.pop()
            name = kind.__name__
            if name in self._classes:
                if self._classes[name] is not kind:
                    raise TypeError(f"two classes are called {name}")
                continue
            self._classes[name] = kind
            self._fields[name] = self._parts_of(kind) or {}
            self._hints[name] = _hints_of(kind, self._fields[name])
            for field, hint in self._hints[name].items():
                pending += self._classes_in(hint, f"{name}.{field}")
            inner: list[type] = kind.__subclasses__()
            pending += [one for one in inner if self._parts_of(one) is not None and _is_named(one)]

    def _made(self, part: dict[str, Any], made: list[Any]) -> Any:
        name = part.get(_CLASS)
        if not isinstance(name, str) or name not in self._classes:
            raise ValueError(f"the class {name} is unknown")
        unknown = part.keys() - self._fields[name].keys() - {_CLASS}
        if unknown:
            raise ValueError(f"{name} has no field {min(unknown)}")
        values = {}
        for field, hint in self._hints[name].items():
            if field in part:
                values[field] = _read(hint, part[field], made, f"{name}.{field}")
            elif self._fields[name][field] is MISSING:
                raise ValueError(f"{name} has no {field}")
        return self._classes[name](**values)


    def _name_of(self, part: Any) -> str:
        name = type(part).__name__
        if self._classes.get(name) is not type(part):
            raise TypeError(f"a {name} is no part of a {self._root.__name__}")
        return name

    def _inner(self, value: Any) -> Iterator[Any]:
        """Yields the dataclasses in a value's fields."""
        pending = [getattr(value, one) for one in self._fields[self._name_of(value)]]
        while pending:
            inner = pending.pop()
            if self._parts_of(type(inner)) is not None:
                yield inner
            elif isinstance(inner, tuple):
                pending += inner

    def _classes_in(self, hint: Any, where: str) -> list[type]:
        """Returns the dataclasses that an annotation names. Raises TypeError for what can't be written."""
        if get_origin(hint) in (tuple, Union, UnionType):
            return [kind for one in get_args(hint) if one is not Ellipsis for kind in self._classes_in(one, where)]
        if get_origin(hint) is Literal or hint in _PLAIN:
            return []
        if isinstance(hint, type) and issubclass(hint, Enum):
            return []
        if isinstance(hint, type) and self._parts_of(hint) is not None:
            return [hint]
        raise TypeError(f"{where}: {hint} can't be written as typed JSON")


def _is_named(kind: type) -> bool:
    """Whether the module of a class calls it so: a dataclass with slots has another one behind it, which none does."""
    return getattr(sys.modules[kind.__module__], kind.__name__, None) is kind


def _hints_of(kind: type, names: Iterable[str]) -> dict[str, Any]:
    """Returns the annotations of some attributes of a class; those of other attributes needn't mean anything."""
    hints: dict[str, Any] = get_type_hints(kind) if issubclass(kind, tuple) else {}
    for base in reversed(kind.__mro__):
        if not (issubclass(base, tuple) or inspect.get_annotations(base).keys().isdisjoint(names)):
            hints |= inspect.get_annotations(base, eval_str=True)
    return {name: hints[name] for name in names}


def _plain(value: Any, places: dict[int, int]) -> Any:
    if isinstance(value, Enum):
        return value.name
    if id(value) in places:
        return {_PLACE: places[id(value)]}
    if isinstance(value, tuple):
        return [_plain(one, places) for one in value]
    if isinstance(value, bytes):
        return {_BYTES: base64.b64encode(value).decode()}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a {type(value).__name__} is no typed JSON")


def _read(hint: Any, data: Any, made: list[Any], where: str) -> Any:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        for one in get_args(hint):
            try:
                return _read(one, data, made, where)
            except ValueError:
                continue
    elif origin is Literal:
        if any(type(data) is type(one) and data == one for one in get_args(hint)):
            return data
    elif origin is tuple:
        kinds = get_args(hint)
        if isinstance(data, list) and len(kinds) == 2 and kinds[1] is Ellipsis:
            return tuple(_read(kinds[0], one, made, where) for one in data)
        if isinstance(data, list) and len(kinds) == len(data):
            return tuple(_read(kind, one, made, where) for kind, one in zip(kinds, data, strict=True))
    elif isinstance(hint, type) and not issubclass(hint, (Enum, *_PLAIN)):
        place = data.get(_PLACE) if isinstance(data, dict) and len(data) == 1 else None
        if type(place) is int and 0 <= place < len(made) and isinstance(made[place], hint):
            return made[place]
    elif issubclass(hint, Enum):
        if isinstance(data, str) and data in hint.__members__:
            return hint[data]
    elif hint is bytes:
        if isinstance(data, dict) and data.keys() == {_BYTES} and isinstance(data[_BYTES], str):
            try:
                return base64.b64decode(data[_BYTES], validate=True)
            except binascii.Error as error:
                raise ValueError(f"{where}: {error}") from error
    elif type(data) is hint or (hint is float and type(data) is int):
        return data
    raise ValueError(f"{where} can't be {json.dumps(data)[:100]}")
