"""The base of the dialect's expression classes: sqlglot expressions that are declared like dataclasses.

A class declares its parts as annotations, with defaults if they may be missing:

    class DropStream(Node):
        name: str
        if_exists: bool = False

`DropStream("s", if_exists=True)` keeps in `args` what differs from its default, so that sqlglot's traversal, copies,
`diff` and printing see it; reading is typed. Several parts are a list in `args`, a tuple to who reads them. Two nodes
are equal if they say the same: `in_meta` parts, such as the text as typed, don't count.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import MISSING
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, dataclass_transform

from sqlglot import exp

from penstock.sql.tree.walking import copied, nodes_of

if TYPE_CHECKING:
    class _Expression:
        """What this package uses of exp.Expression: spelled out, since types of attributes count in this package."""

        args: dict[str, Any]
        meta: dict[str, Any]
        parent: exp.Expression | None
        _hash: int | None
        _meta: dict[str, Any] | None

        def sql(self, dialect: object = None, **options: object) -> str: ...
        def copy(self) -> Self: ...
        def walk(self) -> Any: ...
        def find_all(self, *types: type) -> Any: ...
        def set(self, key: str, value: object) -> None: ...
        def append(self, key: str, value: object) -> None: ...
        def iter_expressions(self) -> Any: ...
else:
    _Expression = exp.Expression


class Part(NamedTuple):
    """One part that a class declares. `default` is `dataclasses.MISSING` if it must be given."""

    name: str
    default: Any = MISSING
    in_meta: bool = False
    secret: bool = False


def in_meta(*, default: Any) -> Any:
    """Declares a part that tells where a node comes from: it is in `meta`, and equal nodes may differ in it."""
    return Part("", default, in_meta=True)


def secret(*, default: Any = MISSING) -> Any:
    """Declares a part that `repr` and `str` leave out; `sql` prints it."""
    return Part("", default, secret=True)


@dataclass_transform(frozen_default=True, field_specifiers=(in_meta, secret))
class Node(_Expression):
    """An expression whose parts are annotations of its class."""

    __slots__ = ()

    arg_types: ClassVar[dict[str, bool]] = {}
    _hash_raw_args: ClassVar[bool] = True
    parts: ClassVar[Mapping[str, Part]] = {}
    _defaults: ClassVar[Mapping[str, Any]] = {}
    __match_args__: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **options: object) -> None:
        parts = dict(cls.parts)
        for name, annotation in inspect.get_annotations(cls).items():
            if name.startswith("_") or "ClassVar" in str(annotation):
                continue
            given = cls.__dict__.get(name, MISSING)
            parts[name] = given._replace(name=name) if isinstance(given, Part) else Part(name, given)
            setattr(cls, name, _reader(parts[name]))
        cls.parts = parts
        cls.__match_args__ = tuple(parts)  # type: ignore[misc]
        cls._defaults = {part.name: part.default for part in parts.values()}
        cls.arg_types = {part.name: part.default is MISSING for part in parts.values() if not part.in_meta}
        super().__init_subclass__(**options)

    def __init__(self, *values: object, **named: object) -> None:
        super().__init__()
        if values:
            if len(values) > len(self.__match_args__):
                raise TypeError(f"{type(self).__name__} has {len(self.__match_args__)} parts, not {len(values)}")
            named.update(zip(self.__match_args__, values))  # noqa: B905 - the rest are named, or left out
        if named:
            self._keep(named)

    def _keep(self, values: Mapping[str, object]) -> None:
        """Sets parts, and leaves out those that are as by default."""
        defaults = self._defaults
        for name, value in values.items():
            if name not in defaults:
                raise TypeError(f"{type(self).__name__} has no {name!r}")
            default = defaults[name]
            if value is default or (type(value) is type(default) and value == default):
                if name in self.args:
                    self.set(name, None)
                elif self._meta is not None:
                    self._meta.pop(name, None)
            elif self.parts[name].in_meta:
                self.meta[name] = value
            else:
                self._put(name, value)

    def _put(self, name: str, value: object) -> None:
        """Does what `set` does, with a copy of what is part of another node."""
        if self._hash is not None:
            self.set(name, None)
        if type(value) is tuple or type(value) is list:
            children = self.args[name] = list(value)
            for index, item in enumerate(children):
                if isinstance(item, exp.Expression):
                    children[index] = self._own(item, name, index)
        elif isinstance(value, exp.Expression):
            self.args[name] = self._own(value, name, None)
        elif value is None:
            self.args.pop(name, None)
        else:
            self.args[name] = value

    def _own(self, part: exp.Expression, name: str, index: int | None) -> exp.Expression:
        """Returns an expression as a part of this node, or a copy if it is part of another: it has one parent."""
        own = part if part.parent is None else copied(part)
        own.parent, own.arg_key, own.index = self, name, index
        return own

    def with_changes(self, **changes: object) -> Self:
        """Returns a copy in which some parts are others."""
        copy = type(self)()
        meta = self.meta
        if meta:
            copy.meta.update(meta)
        for name, value in self.args.items():
            if name not in changes:
                copy._put(name, value)
        copy._keep(changes)
        return copy

    def change(self, **changes: object) -> Self:
        """Changes parts of this very node, and returns it: for who is just building it."""
        self._keep(changes)
        return self

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and _alike(self, other))

    __hash__ = _Expression.__hash__

    def sql(self, dialect: object = "tdengine", **options: object) -> str:
        return super().sql(dialect=dialect, **options)

    def __repr__(self) -> str:
        hidden = [part.name for part in self.parts.values() if part.secret]
        if not hidden:
            return super().__repr__()
        return super(Node, self.with_changes(**dict.fromkeys(hidden))).__repr__()

    def __str__(self) -> str:
        return repr(self) if any(part.secret for part in self.parts.values()) else self.sql()


def dissolve(tree: exp.Expression) -> None:
    """Has the nodes of a tree forget those above them: it is gone as soon as nobody has it, and of no use meanwhile.

    Else it would be there until the garbage collector comes, which stops all threads while it looks at large trees.
    """
    for node in nodes_of(tree):
        node.parent = None


def _reader(part: Part) -> Any:
    """Returns the property that reads a part."""
    name, default = part.name, None if part.default is MISSING else part.default

    def read(node: Node) -> Any:
        value = node.args.get(name, default)
        return tuple(value) if type(value) is list else value

    def read_meta(node: Node) -> Any:
        meta = node._meta
        return default if meta is None else meta.get(name, default)

    return property(read_meta if part.in_meta else read)


def _alike(one: Any, other: Any) -> bool:
    """Whether two trees say the same; unlike sqlglot's comparison this heeds upper case, and tells False from None."""
    pending = [(one, other)]
    while pending:
        a, b = pending.pop()
        if isinstance(a, exp.Expression):
            if type(a) is not type(b):
                return False
            a, b = (node.args if isinstance(node, Node) else {key: part for key, part in node.args.items() if part}
                    for node in (a, b))
            if a.keys() != b.keys():
                return False
            pending += [(a[key], b[key]) for key in a]
        elif type(a) is list:
            if type(b) is not list or len(a) != len(b):
                return False
            pending += zip(a, b, strict=True)
        elif type(a) is not type(b) or a != b:
            return False
    return True
