"""The loops themselves, in the part of Python that numba compiles. They change the arrays that they are given.

A hash table has a power of 2 of places, at most half of them taken. A place holds a number, or FREE. `shift` is 64
minus the exponent of that power.
"""

from __future__ import annotations

from typing import Any

import numpy as np

FREE = -1
# Unsigned all through: with a signed number beside it, numba would compute in floats.
_ONE, _HALF, _BITS = np.uint64(1), np.uint64(32), np.uint64(64)
_LOW = np.uint64(2**32 - 1)
_MULTIPLIER = np.uint64(0x9E37_79B9_7F4A_7C15)

Array = Any
"""A NumPy array of one dimension, in one piece; of which type says `SIGNATURES`."""


def find(table: Array, held: Array, shift: int, ids: Array, numbers: Array) -> None:
    """Puts the number of each id into `numbers`, -1 for those that have none. `held`: the ids by number."""
    mask = np.uint64(len(table) - 1)
    for row in range(len(ids)):
        id_ = ids[row]
        place = ((id_ ^ (id_ >> _HALF)) * _MULTIPLIER) >> shift
        number = table[place]
        while number != FREE and held[number] != id_:
            place = (place + _ONE) & mask
            number = table[place]
        numbers[row] = number


def enter(table: Array, held: Array, shift: int, first: int, end: int) -> None:
    """Puts numbers from `first` to `end`, none of which is in the table yet, into the first free places from their
    ids' on."""
    mask = np.uint64(len(table) - 1)
    for number in range(first, end):
        id_ = held[number]
        place = ((id_ ^ (id_ >> _HALF)) * _MULTIPLIER) >> shift
        while table[place] != FREE:
            place = (place + _ONE) & mask
        table[place] = number


def find_or_enter(
    table: Array, held: Array, shift: int, count: int, ids: Array, first: int, numbers: Array, firsts: Array
) -> tuple[int, int]:
    """Puts the number of each id from the row `first` on into `numbers`; ids that have none get `count` and so on.

    Puts the row of each of those into `firsts`. Returns the row at which there is no room, half of the table being
    taken, and how many ids have numbers then.
    """
    mask = np.uint64(len(table) - 1)
    fresh = 0
    for row in range(first, len(ids)):
        id_ = ids[row]
        place = ((id_ ^ (id_ >> _HALF)) * _MULTIPLIER) >> shift
        number = table[place]
        while number != FREE and held[number] != id_:
            place = (place + _ONE) & mask
            number = table[place]
        if number == FREE:
            if 2 * (count + fresh) >= len(table) or count + fresh >= len(held):
                return row, count + fresh
            number = count + fresh
            table[place] = number
            held[number] = id_
            firsts[fresh] = row
            fresh += 1
        numbers[row] = number
    return len(ids), count + fresh


def seek(cells: Array, begins: Array, shifts: Array, lines: Array, groups: Array, found: Array) -> None:
    """Puts the slot of each (line, group) into `found`, -1 for those that have none; see `LineCells`."""
    count = len(begins)
    for row in range(len(lines)):
        found[row] = -1
        line = lines[row]
        if line >= count or begins[line] < 0:
            continue
        begin, shift, group = np.uint64(begins[line]), shifts[line], np.uint64(groups[row])
        mask = (_ONE << (_BITS - shift)) - _ONE
        place = (group * _MULTIPLIER) >> shift
        cell = cells[begin + place]
        while cell != 0 and cell >> _HALF != group:
            place = (place + _ONE) & mask
            cell = cells[begin + place]
        if cell != 0:
            found[row] = np.int64(cell & _LOW) - 1


def settle(cells: Array, begins: Array, shifts: Array, lines: Array, given: Array) -> None:
    """Puts cells, whose groups aren't there yet, into the tables of their lines; see `LineCells`."""
    for row in range(len(lines)):
        cell, line = given[row], lines[row]
        begin, shift = np.uint64(begins[line]), shifts[line]
        mask = (_ONE << (_BITS - shift)) - _ONE
        place = ((cell >> _HALF) * _MULTIPLIER) >> shift
        while cells[begin + place] != 0:
            place = (place + _ONE) & mask
        cells[begin + place] = cell


def merge(left: Array, right: Array, both: Array, of_left: Array, of_right: Array) -> int:
    """Puts numbers, ascending in `left` and in `right`, each once into `both`; returns how many there are.

    Puts where it is there for each of `left` into `of_left`, and for each of `right` into `of_right`.
    """
    count, one, other = 0, 0, 0
    while one < len(left) and other < len(right):
        # Without branches, which nobody could predict: what is written for one that stays is written again.
        of_left[one] = of_right[other] = count
        low, high = left[one], right[other]
        both[count] = min(low, high)
        one += low <= high
        other += high <= low
        count += 1
    while one < len(left):
        both[count], of_left[one] = left[one], count
        one, count = one + 1, count + 1
    while other < len(right):
        both[count], of_right[other] = right[other], count
        other, count = other + 1, count + 1
    return count


def mark(which: Array, groups: Array, stride: int, size: int, marks: Array) -> None:
    """Sets the mark of each row: that of the place `which * stride + group // size`."""
    for row in range(len(groups)):
        marks[which[row] * stride + groups[row] // size] = True


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


def among(ids: Array, times: Array, some_ids: Array, some_times: Array, table: Array, shift: int, found: Array) -> None:
    """Tells of each (id, time) whether it is among some others. Times are unsigned here; `table` is empty before."""
    mask = np.uint64(len(table) - 1)
    for other in range(len(some_ids)):
        id_, time = some_ids[other], some_times[other]
        place = (((id_ ^ (id_ >> _HALF)) * _MULTIPLIER ^ time) * _MULTIPLIER) >> shift
        while table[place] != FREE and (some_ids[table[place]] != id_ or some_times[table[place]] != time):
            place = (place + _ONE) & mask
        table[place] = other
    for row in range(len(ids)):
        id_, time = ids[row], times[row]
        place = (((id_ ^ (id_ >> _HALF)) * _MULTIPLIER ^ time) * _MULTIPLIER) >> shift
        while table[place] != FREE and (some_ids[table[place]] != id_ or some_times[table[place]] != time):
            place = (place + _ONE) & mask
        found[row] = table[place] != FREE


def last_ones(ids: Array, times: Array, table: Array, shift: int, last: Array) -> None:
    """Tells of each (id, time) whether no equal one comes behind it. Times are unsigned here; `table` is empty before.
    """
    mask = np.uint64(len(table) - 1)
    for row in range(len(ids) - 1, -1, -1):
        id_, time = ids[row], times[row]
        place = (((id_ ^ (id_ >> _HALF)) * _MULTIPLIER ^ time) * _MULTIPLIER) >> shift
        while table[place] != FREE and (ids[table[place]] != id_ or times[table[place]] != time):
            place = (place + _ONE) & mask
        last[row] = table[place] == FREE
        if last[row]:
            table[place] = row


def look_up(ids: Array, low: int, numbers: Array, found: Array) -> bool:
    """Puts `numbers[id - low]` of each id into `found`; False if there is none, or it is negative, for one of them."""
    count = np.uint64(len(numbers))
    for row in range(len(ids)):
        place = ids[row] - low  # ids below the least one wrap to huge numbers
        if place >= count or numbers[place] < 0:
            return False
        found[row] = numbers[place]
    return True


def panes(times: Array, offset: int, pane: int, numbers: Array, bounds: Array) -> None:
    """Puts the number of each time's pane into `numbers`, and the least and the greatest into `bounds`."""
    low, high = 0, -1
    begin, last = 0, -1  # of the pane before; divisions are what costs
    known = 0
    for row in range(len(times)):
        time = times[row] - offset
        if time < begin or time > last:
            known = time // pane
            begin = known * pane
            last = begin + pane - 1
            if high < low:
                low = high = known
            low, high = min(low, known), max(high, known)
        numbers[row] = known
    bounds[0], bounds[1] = low, high


def combine(groups: Array, span: int, low: int, numbers: Array) -> None:
    """Makes the numbers of panes into those of groups and panes: `group * span + number - low`."""
    for row in range(len(numbers)):
        numbers[row] += groups[row] * span - low


def add(codes: Array, values: Array, sums: Array) -> bool:
    """Adds each whole number to the sum of its code; False if a sum does not fit."""
    for row in range(len(codes)):
        value, before = values[row], sums[codes[row]]
        after = before + value
        if ((before ^ after) & (value ^ after)) < 0:
            return False
        sums[codes[row]] = after
    return True


def add_floats(codes: Array, values: Array, sums: Array) -> None:
    """Adds each number to the sum of its code."""
    for row in range(len(codes)):
        sums[codes[row]] += values[row]


def deviate(codes: Array, values: Array, means: Array, squares: Array) -> None:
    """Adds the square of what each number is away from the mean of its code to that code's."""
    for row in range(len(codes)):
        away = values[row] - means[codes[row]]
        squares[codes[row]] += away * away


def greatest(codes: Array, values: Array, found: Array) -> None:
    """Puts the greatest number of each code into `found`, which is less than all before. NaN is the greatest."""
    for row in range(len(codes)):
        value = values[row]
        if value > found[codes[row]] or value != value:
            found[codes[row]] = value


def least(codes: Array, values: Array, found: Array) -> None:
    """Puts the least number of each code into `found`, where the greatest stands before. NaN is the greatest."""
    for row in range(len(codes)):
        before = found[codes[row]]
        if values[row] < before or before != before:
            found[codes[row]] = values[row]


def pick(
    codes: Array, shown: Array, order: Array, ascending: bool, order_of_equals: Array, equals_ascend: bool,
    chosen: Array,
) -> None:
    """Puts the row that is first by both orders, of those that are shown, into `chosen`, where -1 stands before.

    Of equal ones it is the one that comes first.
    """
    for row in range(len(codes)):
        if not shown[row]:
            continue
        best = chosen[codes[row]]
        if best < 0 or (order[row] < order[best] if ascending else order[row] > order[best]) or (
                order[row] == order[best] and (order_of_equals[row] < order_of_equals[best] if equals_ascend
                                               else order_of_equals[row] > order_of_equals[best])):
            chosen[codes[row]] = row


def _read(kind: str) -> str:
    return f"Array({kind}, 1, 'C', readonly=True)"


#: How each is compiled, in numba's words: `u8[::1]` is an array of unsigned numbers of 8 bytes. Those that a loop only
#: reads may be Arrow's, which let nobody write.
_IDS, _NUMBERS, _FLOATS, _BOOLS = map(_read, ("u8", "i8", "f8", "b1"))
_EXTREMES = [f"void({_NUMBERS}, {_read(kind)}, {kind}[::1])" for kind in ("i8", "u8", "f8")]
SIGNATURES: dict[str, list[str]] = {
    "find": [f"void(i4[::1], u8[::1], u8, {_IDS}, i8[::1])"],
    "enter": ["void(i4[::1], u8[::1], u8, i8, i8)"],
    "find_or_enter": [f"UniTuple(i8, 2)(i4[::1], u8[::1], u8, i8, {_IDS}, i8, i8[::1], i8[::1])"],
    "seek": [f"void(u8[::1], i8[::1], u8[::1], {_NUMBERS}, {_NUMBERS}, i8[::1])"],
    "settle": [f"void(u8[::1], i8[::1], u8[::1], {_NUMBERS}, {_IDS})"],
    "merge": [f"i8({_NUMBERS}, {_NUMBERS}, i8[::1], i8[::1], i8[::1])"],
    "mark": [f"void({_NUMBERS}, {_NUMBERS}, i8, i8, b1[::1])"],
    "number": [f"i8({_IDS}, i4[::1], u8, i8[::1], i8[::1])"],
    "among": [f"void({_IDS}, {_IDS}, {_IDS}, {_IDS}, i4[::1], u8, b1[::1])"],
    "last_ones": [f"void({_IDS}, {_IDS}, i4[::1], u8, b1[::1])"],
    "look_up": [f"b1({_IDS}, u8, i8[::1], i8[::1])"],
    "panes": [f"void({_NUMBERS}, i8, i8, i8[::1], i8[::1])"],
    "combine": [f"void({_NUMBERS}, i8, i8, i8[::1])"],
    "add": [f"b1({_NUMBERS}, {_NUMBERS}, i8[::1])"],
    "add_floats": [f"void({_NUMBERS}, {_FLOATS}, f8[::1])"],
    "deviate": [f"void({_NUMBERS}, {_FLOATS}, {_FLOATS}, f8[::1])"],
    "greatest": _EXTREMES,
    "least": _EXTREMES,
    "pick": [f"void({_NUMBERS}, {_BOOLS}, {_NUMBERS}, b1, {_read(kind)}, b1, i8[::1])" for kind in ("i8", "u8")],
}
