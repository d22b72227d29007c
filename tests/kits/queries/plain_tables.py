"""Normal tables of any types, with a KEY or a time, and their rows in a dictionary and in plain DuckDB."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import pyarrow as pa
from kits.basics.extreme_values import CASES, NAMES, extremes
from kits.queries.targets import Target
from kits.queries.written_tables import (
    WHOLE,
    Column,
    column_types,
    literal,
    load_rows,
    plain_type,
)

from penstock.sql.types import UNITS_PER_SECOND, DataType, Kind, Precision

Row = tuple[Any, ...]
_SHOWN = 5
#: What queries call columns of their answers, where tables have no such columns: ORDER BY means the former.
RESULTS = frozenset({"r0", "R0"})


@dataclass(frozen=True)
class PlainDesign:
    """A table: the first `keys` columns are its KEY; if none are, the primary timestamp `ts` goes before them."""

    name: str
    columns: tuple[Column, ...]
    keys: int
    values: tuple[tuple[Any, ...], ...]

    @property
    def listed(self) -> list[tuple[str, pa.DataType]]:
        """What DuckDB has."""
        own = [(column.plain, plain_type(column.type)) for column in self.columns]
        return own if self.keys else [("ts", pa.int64()), *own]

    def rows(self, chance: random.Random, times: Sequence[int]) -> tuple[Row, ...]:
        """Some rows; `times`: of which those of a table with a time are."""
        return tuple((*(() if self.keys else (chance.choice(times),)), *map(chance.choice, self.values))
                     for _ in range(chance.randint(1, 6)))


def plain_design(chance: random.Random, name: str, *, keyed: bool, precision: Precision) -> PlainDesign:
    """A table with two columns of few numbers, one of texts, and up to three of any types, by odd names."""
    known = [DataType(chance.choice([Kind.INT, Kind.SMALLINT, Kind.UTINYINT, Kind.UINT])), DataType(Kind.INT),
             DataType(Kind.VARCHAR, 12), *chance.choices(column_types(precision), k=chance.randint(0, 3))]
    chance.shuffle(known)
    keys = chance.choice([1, 1, 2]) if keyed else 0
    while keyed and known[0].kind is Kind.TIMESTAMP:
        chance.shuffle(known)
    names = chance.sample(sorted({*NAMES, *(f"{name}{n}" for n in range(9)), *CASES} - RESULTS), len(known))
    columns = tuple(Column(written, f"{name}{n}", type)
                    for n, (written, type) in enumerate(zip(names, known, strict=True)))
    return PlainDesign(name, columns, keys, tuple(_values(chance, type, precision) for type in known))


def _values(chance: random.Random, type: DataType, precision: Precision) -> tuple[Any, ...]:
    """A few values of a type, so that some are equal, here and in other tables."""
    every = list(extremes(type, UNITS_PER_SECOND[precision]))
    few = chance.sample(every, min(_SHOWN, len(every)))
    if type.kind in (Kind.VARCHAR, Kind.NCHAR):
        few += ["x"]
    elif type.kind in WHOLE:
        few += [0, 1, 2]
    return (None, *few)


@dataclass
class PlainTable:
    """Such a table in an engine, and what it is to hold."""

    design: PlainDesign
    target: Target
    rows: dict[Row, Row] = field(default_factory=dict)

    def create(self) -> None:
        design = self.design
        columns = [f"{column.quoted} {column.type.sql()}" for column in design.columns]
        columns += [f"PRIMARY KEY ({', '.join(column.quoted for column in design.columns[:design.keys])})"
                    ] if design.keys else []
        time = [] if design.keys else ["ts TIMESTAMP"]
        self.target.execute(f"CREATE TABLE {design.name} ({', '.join([*time, *columns])})")

    def insert(self, rows: Sequence[Row]) -> None:
        """Of rows of equal keys the last one stays."""
        names = ", ".join([*([] if self.design.keys else ["ts"]), *(column.quoted for column in self.design.columns)])
        listed = " ".join(f"({', '.join(map(literal, row))})" for row in rows)
        self.target.execute(f"INSERT INTO {self.design.name} ({names}) VALUES {listed}")
        self.rows.update((row[:self.design.keys or 1], row) for row in rows)

    def delete(self, first: Any, last: Any) -> None:
        """Deletes rows by the first part of their key: from one to another, or of one of two values."""
        if self.design.keys:
            name = self.design.columns[0].quoted
            condition = " OR ".join(f"{name} IS NULL" if value is None else f"{name} = {literal(value)}"
                                    for value in (first, last))
            self.rows = {key: row for key, row in self.rows.items() if key[0] not in (first, last)}
        else:
            condition = f"ts >= {first} AND ts <= {last}"
            self.rows = {key: row for key, row in self.rows.items() if not first <= key[0] <= last}
        self.target.execute(f"DELETE FROM {self.design.name} WHERE {condition}")

    def load(self, peer: duckdb.DuckDBPyConnection) -> None:
        load_rows(peer, self.design.name, self.design.listed, list(self.rows.values()))
