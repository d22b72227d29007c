"""The loops themselves, in the part of Python that numba compiles. They change the arrays that they are given.

A hash table has a power of 2 of places, at most half of them taken. A place holds a number, FREE, or GONE: whoever was
there was removed, and looks go on behind it. `shift` is 64 minus the exponent of that power.
"""

from __future__ import annotations

from typing import Any

import numpy as np

FREE, GONE = -1, -2
# Unsigned all through: with a signed number beside it, numba would compute in floats.
_ONE, _HALF = np.uint64(1), np.uint64(32)
_MULTIPLIER = np.uint64(0x9E37_79B9_7F4A_7C15)

Array = Any
"""A NumPy array of one dimension, in one piece; of which type says `SIGNATURES`."""


def find(table: Array, held: Array, shift: int, ids: Array, numbers: Array) -> int:
    """Puts the number of each id into `numbers`, -1 for those that have none, and returns how many those are.

    `held`: the ids by number.
    """
    mask = np.uint64(len(table) - 1)
    unknown = 0
    for row in range(len(ids)):
        id_ = ids[row]
        place = ((id_ ^ (id_ >> _HALF)) * _MULTIPLIER) >> shift
        number = table[place]
        while number != FREE and (number < 0 or held[number] != id_):
            place = (place + _ONE) & mask
            number = table[place]
        numbers[row] = number
        unknown += number == FREE
    return unknown


def enter(table: Array, held: Array, shift: int, numbers: Array) -> None:
    """Puts numbers, none of which is in the table yet, each into the first free place from its id's on."""
    mask = np.uint64(len(table) - 1)
    for row in range(len(numbers)):
        id_ = held[numbers[row]]
        place = ((id_ ^ (id_ >> _HALF)) * _MULTIPLIER) >> shift
        while table[place] != FREE:
            place = (place + _ONE) & mask
        table[place] = numbers[row]


def leave(table: Array, held: Array, shift: int, numbers: Array) -> None:
    """Takes numbers, all of which are in the table, out of it."""
    mask = np.uint64(len(table) - 1)
    for row in range(len(numbers)):
        number = numbers[row]
        id_ = held[number]
        place = ((id_ ^ (id_ >> _HALF)) * _MULTIPLIER) >> shift
        while table[place] != number:
            place = (place + _ONE) & mask
        table[place] = GONE


def number(ids: Array, table: Array, shift: int, numbers: Array, firsts: Array) -> int:
    """Numbers the distinct ids 0, 1, ... in the order in which they come; returns how many there are.

    Puts the number of each row's id into `numbers`, and the first row of each number into `firsts`. `table` is empty
    before.
    """
    mask = np.uint64(len(table) - 1)
    count = 0
    for row in range(len(ids)):
        id_ = ids[row]
        place = ((id_ ^ (id_ >> _HALF)) * _MULTIPLIER) >> shift
        found = table[place]
        while found != FREE and ids[firsts[found]] != id_:
            place = (place + _ONE) & mask
            found = table[place]
        if found == FREE:
            found = count
            table[place] = count
            firsts[count] = row
            count += 1
        numbers[row] = found
    return count


#: How each is compiled, in numba's words: `u8[::1]` is an array of unsigned numbers of 8 bytes. Those that a loop only
#: reads are `READ`: Arrow's columns let nobody write.
READ = {"ids": "Array(u8, 1, 'C', readonly=True)", "numbers": "Array(i8, 1, 'C', readonly=True)"}
SIGNATURES: dict[str, str] = {
    "find": f"i8(i4[::1], u8[::1], u8, {READ['ids']}, i8[::1])",
    "enter": f"void(i4[::1], u8[::1], u8, {READ['numbers']})",
    "leave": f"void(i4[::1], u8[::1], u8, {READ['numbers']})",
    "number": f"i8({READ['ids']}, i4[::1], u8, i8[::1], i8[::1])",
}
