"""Reads the values that data directories of format 1 hold as pickles, without Python's unpickler.

A walk over the opcodes that knows those which the writers of that format made, and the few things that these named: it
makes plain values and NumPy arrays, calls nothing else, and refuses everything else by name. Nothing is written so.
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from penstock.common.errors import CorruptionError

_PROTOCOLS = (b"\x80\x05", b"\x80\x04")  # where no protocol was asked for, Python wrote 4
_CONSTANTS: Mapping[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_LITERALS = frozenset({
    "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "SHORT_BINBYTES", "BINBYTES",
    "BINBYTES8", "BINUNICODE8", "BYTEARRAY8",
})
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_DTYPES = frozenset({"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8", "O8"})
_MARK = object()
WAY_OUT = ("it isn't what Penstock wrote: START STREAM ... FROM SAVEPOINT goes back to an older state, "
           "CREATE OR REPLACE STREAM computes it anew")


class _Named:
    """A thing outside of the pickle that it names."""

    def __init__(self, name: str) -> None:
        self.name = name


class _Unbuilt:
    """An object whose content is still to come."""

    def __init__(self, name: str) -> None:
        self.name = name


def is_pickle(data: bytes) -> bool:
    """Tells whether a stored value is one of a version before; those of today begin otherwise."""
    return data[:2] in _PROTOCOLS


def read(data: bytes, what: str) -> Any:
    """Returns the value that a pickle holds: plain values, NumPy arrays and scalars.

    Of the classes of that format lists of their fields come. Raises CorruptionError that names what is refused.
    """
    try:
        return _Reader().read(data)
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, InvalidOperation) as error:
        raise CorruptionError(f"{what} cannot be read: {error}", hint=WAY_OUT) from error


class _Reader:
    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def read(self, data: bytes) -> Any:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "STOP":
                value = self._stack.pop()
                if self._stack or isinstance(value, _Named | _Unbuilt) or value is _MARK:
                    raise ValueError("it is no whole value")
                return value
            self._step(opcode.name, argument)
        raise ValueError("it has no end")

    def _step(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _LITERALS:
            stack.append(argument)
        elif name in _TUPLES:
            count = _TUPLES[name]
            stack[len(stack) - count:] = [tuple(self._popped(count))]
        elif name in ("PROTO", "FRAME"):
            return
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = stack[-1]
        elif name in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name == "MARK":
            stack.append(_MARK)
        elif name in ("EMPTY_LIST", "EMPTY_DICT"):
            stack.append([] if name == "EMPTY_LIST" else {})
        elif name == "TUPLE":
            stack.append(tuple(self._marked()))
        elif name in ("APPEND", "APPENDS"):
            values = self._marked() if name == "APPENDS" else [stack.pop()]
            _typed(stack[-1], list).extend(values)
        elif name in ("SETITEM", "SETITEMS"):
            values = self._marked() if name == "SETITEMS" else self._taken(2)
            _typed(stack[-1], dict).update(zip(values[::2], values[1::2], strict=True))
        elif name == "STACK_GLOBAL":
            module, attribute = self._taken(2)
            found = f"{module}.{attribute}".replace("numpy.core.", "numpy._core.")
            if found not in _KNOWN:
                raise ValueError(f"it names {found[:200]}, which no stored value may")
            stack.append(_Named(found))
        elif name in ("REDUCE", "NEWOBJ"):
            called, arguments = self._taken(2)
            stack.append(_KNOWN[_typed(called, _Named).name](*_typed(arguments, tuple)))
        elif name == "BUILD":
            self._build(stack.pop())
        else:
            raise ValueError(f"it has the opcode {name}, which no stored value may")

    def _build(self, state: Any) -> None:
        """Completes the object on top of the stack, also where it is referred to again."""
        target = self._stack[-1]
        if isinstance(target, np.dtype):
            return  # says how its bytes are ordered, in the only way that is written
        built = _array(*_typed(state, tuple)) if _typed(target, _Unbuilt).name == "array" else list(state)
        self._stack[-1] = built
        for place, value in self._memo.items():
            if value is target:
                self._memo[place] = built

    def _popped(self, count: int) -> list[Any]:
        if count > len(self._stack):
            raise ValueError("it takes what isn't there")
        return self._stack[len(self._stack) - count:]

    def _taken(self, count: int) -> list[Any]:
        values = self._popped(count)
        del self._stack[len(self._stack) - count:]
        return values

    def _marked(self) -> list[Any]:
        place = len(self._stack) - 1
        while self._stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise ValueError("it takes what isn't there")
        values = self._stack[place + 1:]
        del self._stack[place:]
        return values


def _typed(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"a {type(value).__name__} stands where a {kind.__name__} belongs")
    return value


def _dtype(name: str, *_: Any) -> np.dtype[Any]:
    if name not in _DTYPES:
        raise ValueError(f"it has values of the type {name!r:.20}")
    return np.dtype(object) if name == "O8" else np.dtype(name)


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray[Any, Any]:
    dtype = _plain(dtype)
    (length,) = _typed(shape, tuple)
    if order != "C" or len(data) != length * dtype.itemsize:
        raise ValueError("an array has another size than it says")
    return np.frombuffer(bytes(data), dtype)


def _array(version: Any, shape: Any, dtype: Any, fortran: Any, values: Any) -> np.ndarray[Any, Any]:
    """An array of objects. A `version`, a shape of one dimension, and a list of them all."""
    if _typed(dtype, np.dtype) != np.dtype(object) or version != 1 or fortran:
        return _from_buffer(values, dtype, shape, "C")
    array = np.empty(len(_typed(values, list)), object)
    if shape != array.shape:
        raise ValueError("an array has another size than it says")
    for place, value in enumerate(values):
        array[place] = value
    return array


def _scalar(dtype: Any, data: Any) -> Any:
    dtype = _plain(dtype)
    if len(_typed(data, bytes)) != dtype.itemsize:
        raise ValueError("a number has another size than it says")
    return np.frombuffer(data, dtype)[0]


def _plain(dtype: Any) -> np.dtype[Any]:
    found: np.dtype[Any] = _typed(dtype, np.dtype)
    if found == np.dtype(object):
        raise ValueError("objects stand where numbers belong")
    return found


def _decimal(text: Any) -> Decimal:
    value = Decimal(_typed(text, str))
    if not value.is_finite() or math.fabs(value.adjusted()) > 100:
        raise ValueError("a decimal is out of range")
    return value


_KNOWN: Mapping[str, Callable[..., Any]] = {
    "numpy.dtype": _dtype,
    "numpy.ndarray": lambda: _Unbuilt("nothing"),
    "numpy._core.numeric._frombuffer": _from_buffer,
    "numpy._core.multiarray._reconstruct": lambda *_: _Unbuilt("array"),
    "numpy._core.multiarray.scalar": _scalar,
    "decimal.Decimal": _decimal,
    "penstock.tasks.segments.Carry": lambda: _Unbuilt("Carry"),
    "penstock.tasks.messages.LeftOutRow": lambda: _Unbuilt("LeftOutRow"),
}
