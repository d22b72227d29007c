"""Reads the few rows of a small INSERT by one compiled pattern per table: plain values, in the table's order.

Whatever a pattern doesn't match is no error: `sql.rows.values` reads it, and says what is wrong with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal

from penstock.common.errors import InvalidValueError
from penstock.sql.rows.constants import FLOAT_MAX, INTEGER_RANGES, PLAIN_TEXT, Constants, check_length
from penstock.sql.schema import Column
from penstock.sql.types import FLOATS, INTEGERS, STRINGS, DataType, Kind

_INTEGER = r"[-+]?(?:0|[1-9][0-9]{0,19}+)"
_FLOAT = r"[-+]?(?:[0-9]{1,20}+(?:\.[0-9]{0,40}+)?+|\.[0-9]{1,40}+)(?:[eE][-+]?[0-9]{1,2}+)?+"
_BOOL = "true|false|TRUE|FALSE|1|0"
_TIME = rf"{_INTEGER}|NOW(?:\(\))?|now(?:\(\))?|'[^'\\]{{12,40}}+'(?!')"
_NEXT = re.compile(r"\s*+,?+\s*+(?=\()", re.ASCII)
_FIRST_OF_INTEGER = frozenset("+-0123456789")
_TRUE = frozenset({"true", "TRUE", "1"})

PlainValue = int | float | bool | str | bytes | None
Reader = Callable[[str, Constants], PlainValue]
PlainReader = Callable[[str], PlainValue]


class RowPattern:
    """Rows of values for given columns."""

    def __init__(self, columns: Sequence[Column], *, places: Sequence[int], width: int) -> None:
        """Use `row_pattern`. `places`: where in a row of `width` values the value of each column goes."""
        cells = ",".join(rf"\s*+(?:({_pattern_of(column.type.kind)})|NULL|null)\s*+" for column in columns)
        self._match = re.compile(rf"\({cells}\)", re.ASCII).match
        numbers = ",".join(rf"\s*+({_last_pattern_of(column.type.kind)})\s*+" for column in columns)
        self._last = re.compile(rf"\({numbers}\)\s*+;?+\s*+", re.ASCII).fullmatch
        self._plain_readers = [_plain_reader(column.type) for column in columns]
        self._readers = [_reader(column.type) for column in columns]
        self._places = None if list(places) == list(range(width)) else list(places)
        self._width = width

    def read(
        self, text: str, start: int, rows_max: int, constants: Constants
    ) -> tuple[list[list[PlainValue]], int] | None:
        """Returns the rows from `start` on, NULL where a row gives no value, and where the last of them ends.

        None if there are more than `rows_max`, none at all, or if one isn't plain.
        """
        rows: list[list[PlainValue]] = []
        found = self._match(text, start)
        while found is not None:
            if len(rows) == rows_max:
                return None
            values = self._values(found.groups(), constants)
            if values is None:
                return None
            rows.append(values)
            start = found.end()
            between = _NEXT.match(text, start)
            if between is None:
                return rows, start
            found = self._match(text, between.end())
        return None

    def read_last(self, text: str, start: int) -> list[PlainValue] | None:
        """Returns the row from `start` on if nothing comes behind it, and it has no NULL and no times but integers.

        Cheaper than `read`, also since whether integers fit their columns is left to who packs them. None only says
        that `read` has to look.
        """
        found = self._last(text, start)
        if found is None:
            return None
        try:
            values = [reader(cell) for reader, cell in zip(self._plain_readers, found.groups(), strict=True)]
        except InvalidValueError:
            return None
        return values if self._places is None else self._row(values)

    def _values(self, cells: Sequence[str | None], constants: Constants) -> list[PlainValue] | None:
        try:
            values = [None if cell is None else reader(cell, constants)
                      for cell, reader in zip(cells, self._readers, strict=True)]
        except InvalidValueError:
            return None
        return values if self._places is None else self._row(values)

    def _row(self, values: Sequence[PlainValue]) -> list[PlainValue]:
        """Returns a whole row in the order of the table's columns."""
        assert self._places is not None
        row: list[PlainValue] = [None] * self._width
        for place, value in zip(self._places, values, strict=True):
            row[place] = value
        return row


def row_pattern(columns: Sequence[Column], of: Sequence[Column]) -> RowPattern | None:
    """Returns the pattern for rows that give values for `columns` of a table with the columns `of`.

    None if a column's values are never plain, or one is given twice.
    """
    places = [of.index(column) for column in columns]
    plain = all(_pattern_of(column.type.kind) for column in of)
    return RowPattern(columns, places=places, width=len(of)) if plain and len(set(places)) == len(places) else None


def _pattern_of(kind: Kind) -> str | None:
    """Returns the pattern of plain values of a type, None if it has none."""
    if kind in INTEGERS:
        return _INTEGER
    if kind in FLOATS:
        return _FLOAT
    if kind in STRINGS or kind is Kind.VARBINARY:
        return PLAIN_TEXT
    return {Kind.BOOL: _BOOL, Kind.TIMESTAMP: _TIME}.get(kind)


def _last_pattern_of(kind: Kind) -> str | None:
    """Returns the pattern of what `_plain_reader` reads; nothing matches that of bytes."""
    return {Kind.TIMESTAMP: _INTEGER, Kind.VARBINARY: "(?!)"}.get(kind) or _pattern_of(kind)


def _plain_reader(kind: DataType) -> PlainReader:
    """Returns what makes a value of a cell that means the same in any session: all but named and written times.

    It raises InvalidValueError as `_reader` says, but returns integers that are out of their column's range.
    """
    if kind.kind in FLOATS:
        return float if kind.kind is Kind.DOUBLE else _float  # exponents of two digits make nothing infinite
    if kind.kind is Kind.BOOL:
        return _TRUE.__contains__
    if kind.kind in STRINGS:
        return lambda cell: _text(cell[1:-1], kind)
    return int


def _reader(kind: DataType) -> Reader:
    """Returns what makes a value of a cell that its pattern has matched.

    It raises InvalidValueError for bad times, and for texts and bytes that are too long.
    """
    if kind.kind in INTEGERS:
        return _integer_reader(kind.kind)
    if kind.kind in FLOATS or kind.kind in STRINGS or kind.kind is Kind.BOOL:
        plain = _plain_reader(kind)
        return lambda cell, constants: plain(cell)

    instant = _integer_reader(Kind.TIMESTAMP)

    def other(cell: str, constants: Constants) -> PlainValue:
        if cell[0] in _FIRST_OF_INTEGER:
            return instant(cell, constants)
        value = constants.read(cell, kind)
        assert not isinstance(value, Decimal)
        return value

    return other


def _integer_reader(kind: Kind) -> Reader:
    least, greatest = INTEGER_RANGES[kind]

    def integer(cell: str, constants: Constants) -> int:
        value = int(cell)
        if not least <= value <= greatest:
            raise InvalidValueError(f"{cell} is out of the range of {kind}")
        return value

    return integer


def _float(cell: str) -> float:
    value = float(cell)
    if abs(value) > FLOAT_MAX:
        raise InvalidValueError(f"{cell} is out of the range of FLOAT")
    return value


def _text(text: str, kind: DataType) -> str:
    check_length(text, kind)
    return text
