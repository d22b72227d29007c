"""Lets processes wait for a word of shared memory to change: Linux's futex, for which Python has no function."""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys

import numpy as np

_WORD = struct.Struct("<I")
_WAIT, _WAKE = 0, 1
_EVERYBODY = 0x7FFF_FFFF
#: The number of the system call; on other machines nobody can wait.
_NUMBER = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}.get(platform.machine())
CAN_WAIT = sys.platform == "linux" and _NUMBER is not None


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class SharedWord:
    """A counter of 32 bits in a shared map, at an offset that 4 divides. One process rings, any may wait."""

    def __init__(self, map_: mmap.mmap, offset: int) -> None:
        self._map = map_
        self._offset = offset
        # Only the number is kept: an array that lives on would keep the map from being closed.
        self._address = ctypes.c_void_p(np.frombuffer(map_, np.uint32, 1, offset).ctypes.data)

    @property
    def value(self) -> int:
        count: int = _WORD.unpack_from(self._map, self._offset)[0]
        return count

    def ring(self) -> None:
        """Counts on and wakes all who wait."""
        (count,) = _WORD.unpack_from(self._map, self._offset)
        _WORD.pack_into(self._map, self._offset, (count + 1) & 0xFFFF_FFFF)
        if CAN_WAIT:
            _ring(_NUMBER, self._address, _WAKE, _EVERYBODY)

    def wait(self, seen: int, timeout_s: float) -> bool:
        """Waits while the value is `seen`, at most `timeout_s`, perhaps shorter; returns False if nobody can wait."""
        if not CAN_WAIT:
            return False
        seconds, fraction = divmod(timeout_s, 1.0)
        timeout = _Timespec(int(seconds), int(fraction * 1e9))
        _wait(_NUMBER, self._address, _WAIT, seen, ctypes.byref(timeout), None, 0)
        return True


if CAN_WAIT:
    # Whoever waits lets other threads run; ringing is over before it would pay to let them.
    _wait, _ring = ctypes.CDLL(None).syscall, ctypes.PyDLL(None).syscall
    _ring.argtypes = (ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32)
    _wait.argtypes = (*_ring.argtypes, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)
