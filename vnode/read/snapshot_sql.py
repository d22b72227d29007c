"""A snapshot as DuckDB SQL over the parts and some Arrow tables."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from penstock.common.errors import InvalidStatementError
from penstock.vnode.store.memtable import VERSION_COLUMN, Run, TimeRange, as_table
from penstock.vnode.store.points import Extent
from penstock.vnode.store.sorted_keys import TS_MAX, TS_MIN
from penstock.vnode.store.table_state import PartHandle
from penstock.vnode.store.tombstones import Tombstones
from penstock.wal.record import TUID_COLUMN

_INLINE_TUIDS = 64
_US_LIMIT = 9_223_372_036_854_775_000
_names = itertools.count(1)


@dataclass(frozen=True, slots=True)
class SnapshotSql:
    """`sql` is a SELECT for DuckDB; the caller registers `tables` under their names on its connection first.

    `holds` keeps the files that the SELECT reads; keep this until it was executed.
    """

    sql: str
    tables: dict[str, pa.Table]
    holds: tuple[object, ...] = field(default=(), repr=False)


def quoted(name: str) -> str:
    """Returns a DuckDB identifier."""
    return '"' + name.replace('"', '""') + '"'


def text_literal(text: str) -> str:
    """Returns a DuckDB string literal."""
    return "'" + text.replace("'", "''") + "'"


def duckdb_type(type_: pa.DataType) -> str:
    """Returns the DuckDB type that Arrow values of this type have when they are registered."""
    if pa.types.is_timestamp(type_):
        return {"ms": "TIMESTAMP_MS", "us": "TIMESTAMP", "ns": "TIMESTAMP_NS", "s": "TIMESTAMP_S"}[type_.unit]
    if pa.types.is_decimal(type_):
        return f"DECIMAL({type_.precision}, {type_.scale})"
    simple = {pa.bool_(): "BOOLEAN", pa.int8(): "TINYINT", pa.int16(): "SMALLINT", pa.int32(): "INTEGER",
              pa.int64(): "BIGINT", pa.uint8(): "UTINYINT", pa.uint16(): "USMALLINT", pa.uint32(): "UINTEGER",
              pa.uint64(): "UBIGINT", pa.float32(): "FLOAT", pa.float64(): "DOUBLE", pa.string(): "VARCHAR",
              pa.large_string(): "VARCHAR", pa.binary(): "BLOB", pa.large_binary(): "BLOB", pa.null(): "INTEGER"}
    if type_ not in simple:
        raise InvalidStatementError(f"columns of type {type_} cannot be stored")
    return simple[type_]


def epochs(rows: pa.Table) -> pa.Table:
    """Returns the table with its timestamps as integers; that copies nothing."""
    for place, column in enumerate(rows.schema):
        if pa.types.is_timestamp(column.type):
            rows = rows.set_column(place, column.name, rows.column(place).cast(pa.int64()))
    return rows


def _stored_epoch(column: str, type_: pa.DataType) -> str:
    """Returns SQL for a timestamp of a part as BIGINT in its own unit.

    DuckDB reads milliseconds as microseconds; to divide these is much cheaper than to cast them, or epoch_ms().
    """
    return f"epoch_us({column}) // 1000" if type_.unit == "ms" else f"epoch_{type_.unit}({column})"


def _typical_first(parts: Sequence[PartHandle]) -> list[PartHandle]:
    """Returns parts, one of about the mean size first: DuckDB plans as if all had as many rows as the first."""
    mean = sum(part.info.rows for part in parts) / len(parts)
    return sorted(parts, key=lambda part: abs(part.info.rows - mean))


@dataclass(frozen=True, slots=True)
class _Which:
    """Which rows: those inside of some ranges of time (none: all) and not those of others."""

    inside: Sequence[TimeRange] = ()
    without: Sequence[TimeRange] = ()


class SqlBuilder:
    """Builds the SELECTs of one `SnapshotSql` and collects its Arrow tables."""

    def __init__(self, schema: pa.Schema, keys: list[str], names: list[str], version: int, times: TimeRange,
                 tuids: pa.Array | None, ranges: Sequence[tuple[str, int | None, int | None]] = (), *,
                 epochs: bool = False) -> None:
        """`times`: both are included. `ranges`: see `Snapshot.to_sql`. `epochs`: timestamps are integers."""
        self._schema = schema
        self._keys = keys
        self._names = names
        self._read = list(dict.fromkeys([*keys, *names]))
        self._version = version
        self._first, self._last = times
        self._ranges = ranges
        self._epochs = epochs
        self.tables: dict[str, pa.Table] = {}
        self._tuid_filter = self._filter_tuids(tuids)
        self._hiding = ""

    def _register(self, table: pa.Table) -> str:
        name = f"_penstock_{next(_names)}"
        self.tables[name] = table
        return name

    def _filter_tuids(self, tuids: pa.Array | None) -> list[str]:
        if tuids is None:
            return []
        wanted = np.unique(np.asarray(tuids, dtype=np.uint64))
        if not len(wanted):
            return ["false"]
        if len(wanted) <= _INLINE_TUIDS:
            return [f"_tuid IN ({', '.join(str(uid) for uid in wanted.tolist())})"]
        name = self._register(pa.table({TUID_COLUMN: wanted}))
        return [f"_tuid BETWEEN {wanted[0]} AND {wanted[-1]}", f"_tuid IN (SELECT _tuid FROM {name})"]

    def _bound(self, ts: int) -> str:
        unit = self._schema.field(0).type.unit
        if unit == "ns":
            return f"make_timestamp_ns({ts})"
        micros = ts * (1000 if unit == "ms" else 1)
        return f"make_timestamp({min(max(micros, -_US_LIMIT), _US_LIMIT)})"

    def _where(self, present: set[str], which: _Which, *, newer_possible: bool, integers: bool) -> str:
        ts = quoted(self._keys[0])

        def bound(time: int) -> str:
            return str(time) if integers else self._bound(time)

        conditions = list(self._tuid_filter)
        if self._first != TS_MIN:
            conditions.append(f"{ts} >= {bound(self._first)}")
        if self._last != TS_MAX:
            conditions.append(f"{ts} <= {bound(self._last)}")
        if not which.inside:  # there, older versions of a row must not stand in for one that is left out
            conditions += self._in_ranges(bound) if present.issuperset(name for name, *_ in self._ranges) else ["false"]
        if which.inside:
            conditions.append("(" + " OR ".join(
                f"{ts} >= {bound(low)} AND {ts} <= {bound(high)}" for low, high in which.inside) + ")")
        conditions += [f"({ts} < {bound(low)} OR {ts} > {bound(high)})" for low, high in which.without]
        if newer_possible:
            conditions.append(f"_ver <= {self._version}")
        return " WHERE " + " AND ".join(conditions) if conditions else ""

    def _in_ranges(self, bound: Callable[[int], str]) -> list[str]:
        return [f"{quoted(name)} {sign} {bound(limit)}" for name, first, last in self._ranges
                for sign, limit in ((">=", first), ("<=", last)) if limit is not None]

    def _select(
        self, source: str, present: Sequence[str], which: _Which, *, newer_possible: bool, integers: bool = False
    ) -> str:
        """Returns the SELECT from one source; `integers`: its timestamps are such already."""
        available = set(present)
        columns = []
        for name in self._read:
            type_ = self._schema.field(name).type
            if self._epochs and pa.types.is_timestamp(type_):
                value = "CAST(NULL AS BIGINT)" if name not in available else (
                    quoted(name) if integers else _stored_epoch(quoted(name), type_))
                value = f"{value} AS {quoted(name)}"
            elif name not in available or pa.types.is_timestamp(type_):
                # Parquet readers hand milliseconds out as microseconds; the cast gives every source the same type.
                value = quoted(name) if name in available else "NULL"
                value = f"CAST({value} AS {duckdb_type(type_)}) AS {quoted(name)}"
            else:
                value = quoted(name)
            columns.append(value)
        where = self._where(available, which, newer_possible=newer_possible, integers=integers)
        return f"SELECT _tuid, {', '.join(columns)}, _ver FROM {source}{where}"

    def rows(self, parts: Sequence[PartHandle], runs: Sequence[Run], *,
             without: Sequence[TimeRange] = (), newest_in: Sequence[TimeRange] = ()) -> str:
        """Returns the SELECT over these parts and runs.

        `without`: no rows in these ranges of time. `newest_in`: rows in these alone, the newest of each key.
        """
        selects, which = [], _Which(newest_in, without)
        newest_only = bool(newest_in)
        shapes: dict[tuple[tuple[str, ...], bool], list[PartHandle]] = {}
        for part in parts:
            shapes.setdefault((part.info.columns, part.info.max_version > self._version), []).append(part)
        for (columns, newer), group in shapes.items():
            files = ", ".join(text_literal(str(part.path)) for part in _typical_first(group))
            selects.append(self._select(f"read_parquet([{files}])", columns, which, newer_possible=newer))
        if runs:
            table = as_table(runs)
            newer = any(run.max_version > self._version for run in runs)
            selects.append(self._select(self._register(epochs(table) if self._epochs else table), table.column_names,
                                        which, newer_possible=newer, integers=self._epochs))
        if not selects:
            empty = pa.schema([(TUID_COLUMN, pa.uint64()), *self._schema, (VERSION_COLUMN, pa.uint64())])
            name = self._register(empty.empty_table())
            selects.append(self._select(name, empty.names, which, newer_possible=False))
        outer = ", ".join(["_tuid", *(quoted(name) for name in self._names), "_ver"])
        if len(selects) == 1 and not self._hiding and not newest_only and self._read == self._names:
            return selects[0]
        sql = f"SELECT {outer} FROM (\n{' UNION ALL '.join(selects)}\n) AS r{self._hiding}"
        if newest_only:
            keys = ", ".join(["_tuid", *(quoted(name) for name in self._keys)])
            sql += f" QUALIFY row_number() OVER (PARTITION BY {keys} ORDER BY _ver DESC) = 1"
            if ranges := self._in_ranges(str if self._epochs else self._bound):
                sql = f"SELECT * FROM ({sql}) AS n WHERE {' AND '.join(ranges)}"
        return sql

    def hide(self, tombstones: Tombstones, extents: Sequence[Extent]) -> None:
        """Has all `rows` leave out those that are deleted. `extents`: where all rows lie that are read."""
        if not extents:
            return
        first = max(self._first, min(extent.first_ts for extent in extents))
        last = min(self._last, max(extent.last_ts for extent in extents))
        read = Extent(first, last, min(extent.first_tuid for extent in extents),
                      max(extent.last_tuid for extent in extents), min(extent.behind for extent in extents))
        ts = f"r.{quoted(self._keys[0])}"
        if not self._epochs:
            ts = f"epoch_{self._schema.field(0).type.unit}({ts})"
        ranges = [t for t in tombstones.ranges if t.reaches(read)]
        points = [pa.record_batch({"uid": run.tuid, "a": run.ts, "v": run.version})
                  for run in tombstones.points.near(read)]
        some = [(uid, t.first_ts, t.last_ts, t.version) for t in ranges for uid in t.tuids or ()]
        if points:
            # There may be many of one child table: DuckDB finds those by hash that it is to find by equality.
            self._hiding += self._without(pa.Table.from_batches(points), f"{ts} = d.a")
        if some:
            columns = zip(*some, strict=True)
            types = {"uid": pa.uint64(), "a": pa.int64(), "b": pa.int64(), "v": pa.uint64()}
            self._hiding += self._without(
                pa.table({name: pa.array(column, type_) for (name, type_), column in zip(
                    types.items(), columns, strict=True)}), f"{ts} BETWEEN d.a AND d.b")
        of_all = [f"NOT ({ts} BETWEEN {t.first_ts} AND {t.last_ts} AND r._ver < {t.version})"
                  for t in ranges if t.tuids is None]
        if of_all:
            self._hiding += f" WHERE {' AND '.join(of_all)}"

    def _without(self, deletes: pa.Table, at: str) -> str:
        name = self._register(deletes)
        return f" ANTI JOIN {name} AS d ON d.uid = r._tuid AND {at} AND r._ver < d.v"
