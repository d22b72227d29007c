"""Statements with `?` that TDengine's clients prepare, bind values to, and execute.

An INSERT whose values are all `?` takes whole columns of values, for one table or many. Others are executed once per
row of values, which become literals.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from penstock.common.errors import InvalidStatementError, InvalidValueError
from penstock.shell.api.parameter_binding import bind_rows, count_marks
from penstock.shell.taos_socket.bound_rows import BoundTable
from penstock.shell.taos_socket.raw_blocks import PRECISIONS, TYPES, width_of
from penstock.sql.schema import Column, Table
from penstock.sql.tree.expression_nodes import plain_name, quote_identifier
from penstock.sql.types import Kind

_WORD = r"(?:`(?:[^`]|``)+`|\w+)"
_NAME = rf"{_WORD}(?:\s*\.\s*{_WORD})?"
_NAMES = rf"\s*{_WORD}\s*(?:,\s*{_WORD}\s*)*"
_INSERT = re.compile(
    rf"""\s*INSERT\s+INTO\s+(?P<table>\?|{_NAME})\s*
    (?:USING\s+(?P<super>{_NAME})\s*(?:\((?P<tag_names>{_NAMES})\)\s*)?TAGS\s*\((?P<tags>[\s?,]*)\)\s*)?
    (?:\((?P<names>{_NAMES})\)\s*)?VALUES\s*\((?P<values>[\s?,]*)\)\s*;?\s*""", re.IGNORECASE | re.VERBOSE)
_COLUMN, _TAG, _TABLE_NAME = 1, 2, 4
_TBNAME = "tbname"

Lookup = Callable[[str], Table]
"""Returns the table of a name, as it is written in SQL. Raises NotFoundError."""


@dataclass(frozen=True, slots=True)
class BoundField:
    """What one `?` stands for: `name` is "" where only the bound table has a name for it; `place`: a column, a tag or
    the table's name.
    """

    name: str
    place: int
    column: Column | None = None

    def told(self) -> dict[str, object]:
        """Returns it as clients are told of it."""
        kind = None if self.column is None else self.column.type
        return {"name": self.name, "bind_type": self.place, "field_type": TYPES[kind.kind if kind else Kind.VARCHAR],
                "precision": PRECISIONS.index(kind.precision) if kind and kind.kind is Kind.TIMESTAMP else 0,
                "scale": (kind.scale or 0) if kind else 0, "bytes": width_of(kind) if kind else 0}


@dataclass(frozen=True, slots=True)
class PreparedInsert:
    """An INSERT of bound columns. `table`: what the statement names, None where tables are bound."""

    table: str | None
    fields: tuple[BoundField, ...]

    def rows(self, bound: Iterable[BoundTable], lookup: Lookup) -> Iterator[tuple[str, pa.Table]]:
        """Yields tables, by their names in SQL, and rows for them. Raises InvalidValueError, NotFoundError."""
        if self.table is not None:
            yield self.table, pa.concat_tables([self._of_one(each, self.fields) for each in bound])
            return
        for each in bound:
            columns = lookup(each.name).columns
            places = [field for field in self.fields if field.place == _COLUMN]
            if len(places) > len(columns):
                raise InvalidValueError(f"{each.name} has {len(columns)} columns, {len(places)} were bound")
            named = [BoundField(column.name, _COLUMN) for column, _ in zip(columns, places, strict=False)]
            yield each.name, self._of_one(each, tuple(named))

    def _of_one(self, bound: BoundTable, fields: tuple[BoundField, ...]) -> pa.Table:
        """Returns the rows of one table; in those of a super table, with its name and its tags in each row."""
        tags, columns = iter(bound.tags), iter(bound.columns)
        rows = len(bound.columns[0]) if bound.columns else 0
        made: dict[str, pa.Array] = {}
        try:
            for field in fields:
                if field.place == _COLUMN:
                    made[field.name] = next(columns)
                else:
                    value = pa.scalar(bound.name) if field.place == _TABLE_NAME else next(tags)[0]
                    made[field.name] = pa.repeat(value, rows)
        except StopIteration:
            raise InvalidValueError("fewer columns or tags were bound than the statement has") from None
        return pa.table(made)


@dataclass(frozen=True, slots=True)
class FilledStatement:
    """Any other statement; `count` is how many `?` it has."""

    text: str
    count: int

    def statements(self, bound: Iterable[BoundTable]) -> list[str]:
        """Returns it with literals. Raises InvalidStatementError, InvalidValueError."""
        rows = [row for each in bound for row in zip(*(column.to_pylist() for column in each.columns), strict=True)]
        return list(bind_rows(self.text, rows)) if self.count else [self.text]


def prepare(text: str, lookup: Lookup) -> PreparedInsert | FilledStatement:
    """Returns the statement that a text is. Raises NotFoundError, InvalidStatementError."""
    found = _INSERT.fullmatch(text)
    if found is None:
        return FilledStatement(text, count_marks(text))
    values = found["values"].count("?")
    if found["super"] is not None:
        return _using(found, values, lookup)
    if found["table"] == "?":
        if found["names"] is not None:
            raise InvalidStatementError("a bound table has no list of columns", hint="INSERT INTO ? VALUES (?, ...)")
        return PreparedInsert(None, (BoundField(_TBNAME, _TABLE_NAME), *[BoundField("", _COLUMN)] * values))
    table = lookup(found["table"])
    named = _listed(found["names"]) if found["names"] is not None else [column.name for column in table.columns]
    fields = [_field(table, name) for name in named]
    if len(fields) != values:
        raise InvalidStatementError(f"{len(fields)} columns are named, and {values} values")
    return PreparedInsert(found["table"], tuple(fields))


def _using(found: re.Match[str], values: int, lookup: Lookup) -> PreparedInsert:
    """Returns an INSERT with USING, which is one into the super table."""
    parent = lookup(found["super"])
    tags = _listed(found["tag_names"]) if found["tag_names"] is not None else [tag.name for tag in parent.tags]
    names = _listed(found["names"]) if found["names"] is not None else [column.name for column in parent.columns]
    if found["table"] != "?" or len(tags) != found["tags"].count("?") or len(names) != values:
        raise InvalidStatementError(
            "the table, each tag and each column that is named must have its value bound",
            hint="INSERT INTO ? USING super TAGS (?, ...) VALUES (?, ...)")
    fields = [_field(parent, name) for name in (*tags, *names)]
    return PreparedInsert(found["super"], (BoundField(_TBNAME, _TABLE_NAME), *fields))


def _field(table: Table, name: str) -> BoundField:
    if name == _TBNAME:
        return BoundField(name, _TABLE_NAME)
    column = table.column(name)
    if column is None:
        raise InvalidStatementError(f"{quote_identifier(table.name)} has no column {name}")
    return BoundField(name, _TAG if column in table.tags else _COLUMN, column)


def _listed(names: str) -> list[str]:
    return [plain_name(name) for name in re.findall(_WORD, names)]
