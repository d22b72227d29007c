"""A consistent view of one table at one version: as Arrow rows for small reads, as DuckDB SQL for large ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from penstock.common.errors import InvalidStatementError, PenstockError
from penstock.vnode.store.chunk_reader import Chunk, KeyFilter, gather, resolve
from penstock.vnode.store.memtable import VERSION_COLUMN, Run, TimeRange, as_table
from penstock.vnode.store.parts import PartCache
from penstock.vnode.store.sorted_keys import TS_MAX, TS_MIN, U64
from penstock.vnode.store.table_state import PartHandle, TableState
from penstock.vnode.store.tombstones import Tombstone, TombstoneIndex
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


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """Where the rows of a range of time lie: none is outside of [first_ts, last_ts]; `rows` is an estimate."""

    first_ts: int
    last_ts: int
    rows: int


class SnapshotTooOldError(PenstockError):
    """A reader asked for a version whose replaced rows were collapsed already; it should have set a pin."""

    actor = "developer"


class Snapshot:
    """All rows of one table as of one version. Immutable; its files stay readable while it lives."""

    def __init__(self, table: TableState, version: int, cache: PartCache) -> None:
        """Takes what a table holds now; see `of`."""
        self.table_uid = table.uid
        self.version = version
        self.schema = table.schema
        self._key_names: list[str] = table.schema.names[:table.key_columns]
        self._runs = [run for run in table.runs() if run.min_version <= version]
        self._parts = [part for part in table.parts if part.info.min_version <= version]
        self._tombstones: Sequence[Tombstone] = table.tombstones
        self._index: TombstoneIndex | None = None
        if next((t.version for t in reversed(table.tombstones) if not t.dropped), 0) <= version:
            self._index = table.tombstone_index  # all deletes count: the table has theirs already
        else:
            self._tombstones = [t for t in table.tombstones if t.hides_for(version)]
        self._cache = cache

    @classmethod
    def of(cls, table: TableState, vgroup_id: int, version: int, cache: PartCache) -> Snapshot:
        """Returns the rows of a vnode's table as of a version. Raises SnapshotTooOldError.

        The caller holds the lock that guards the table.
        """
        if version < table.floor:
            raise SnapshotTooOldError(f"table {table.uid} of vnode {vgroup_id} can be read as of version "
                                      f"{table.floor} or later, not {version}")
        return cls(table, version, cache)

    @property
    def row_count_estimate(self) -> int:
        """An upper bound of the rows of the whole table: replaced and deleted ones may be counted too."""
        return sum(run.num_rows for run in self._runs) + sum(part.info.rows for part in self._parts)

    def span(self, first_ts: int, last_ts: int) -> TimeSpan | None:
        """Returns bounds and an estimated count of the rows with first_ts <= ts <= last_ts, None if there are none.

        Cheap: rows themselves aren't looked at, and replaced and deleted ones may be counted too.
        """
        pieces = [(run.min_ts, run.max_ts, run.num_rows) for run in self._runs]
        pieces += [(part.info.min_ts, part.info.max_ts, part.info.rows) for part in self._parts]
        inside = [(max(low, first_ts), min(high, last_ts), low, high, rows) for low, high, rows in pieces
                  if low <= last_ts and high >= first_ts]
        if not inside:
            return None
        count = sum(math.ceil(rows * (last - first + 1) / (high - low + 1)) for first, last, low, high, rows in inside)
        return TimeSpan(min(piece[0] for piece in inside), max(piece[1] for piece in inside), count)

    @property
    def _tombstone_index(self) -> TombstoneIndex:
        if self._index is None:
            self._index = TombstoneIndex(self._tombstones)
        return self._index

    def _columns(self, columns: Sequence[str] | None) -> list[str]:
        names: list[str] = list(self.schema.names if columns is None else columns)
        for name in names:
            if self.schema.get_field_index(name) < 0:
                raise InvalidStatementError(f"table {self.table_uid} stores no column {name}")
        return names

    def to_arrow(self, columns: Sequence[str] | None = None, tuids: pa.Array | None = None,
                 first_ts: int | None = None, last_ts: int | None = None) -> pa.Table:
        """Returns the rows sorted by (_tuid, ts): `_tuid`, the columns asked for (None: all), `_ver`.

        `tuids`: uint64 Arrow array of child tables, None for all. `first_ts`, `last_ts`: inclusive, in units of the
        table's precision, None for no bound. Raises InvalidStatementError for unknown columns, CorruptionError.
        """
        names = self._columns(columns)
        wanted = None if tuids is None else np.unique(np.asarray(tuids, dtype=np.uint64))
        first = TS_MIN if first_ts is None else first_ts
        last = TS_MAX if last_ts is None else last_ts
        read = list(dict.fromkeys([*self._key_names, *names]))
        chunks = self._chunks(wanted, first, last)
        fields = [self.schema.field(name) for name in read]
        rows = gather(chunks, KeyFilter(wanted, first, last), fields)
        unique = not any(_overlap(chunk.updates, first, last) for chunk in chunks)
        key_name = self._key_names[1] if len(self._key_names) == 2 else None
        rows = resolve(rows, key_name, self._tombstone_index, as_of=self.version, pin=None, unique=unique)
        return rows.select([TUID_COLUMN, *names, VERSION_COLUMN])

    def _chunks(self, tuids: U64 | None, first: int, last: int) -> list[Chunk]:
        if tuids is not None and not len(tuids):
            return []
        found: list[Chunk] = []
        low, high = (0, 2**64 - 1) if tuids is None else (int(tuids[0]), int(tuids[-1]))
        for part in self._parts:
            info = part.info
            if info.max_ts >= first and info.min_ts <= last and info.max_tuid >= low and info.min_tuid <= high:
                found.extend(self._cache.row_groups(part.path, info, tuids, first, last))
        found.extend(run for run in self._runs if run.max_ts >= first and run.min_ts <= last)
        return found

    def to_sql(self, columns: Sequence[str] | None = None, tuids: pa.Array | None = None,
                 first_ts: int | None = None, last_ts: int | None = None) -> SnapshotSql:
        """Returns the same rows as `to_arrow`, unsorted, as DuckDB SQL over the parts and some Arrow tables."""
        names = self._columns(columns)
        first = TS_MIN if first_ts is None else first_ts
        last = TS_MAX if last_ts is None else last_ts
        sql = _SqlBuilder(self.schema, self._key_names, names, self.version, first, last, tuids)
        parts = [p for p in self._parts if p.info.max_ts >= first and p.info.min_ts <= last]
        runs = [r for r in self._runs if r.max_ts >= first and r.min_ts <= last]
        dirty = [u for u in (*(p.info.updates for p in parts), *(r.updates for r in runs))
                 if _overlap(u, first, last)]

        def is_dirty(low: int, high: int) -> bool:
            return any(_overlap(u, low, high) for u in dirty)

        clean_parts = [p for p in parts if not is_dirty(p.info.min_ts, p.info.max_ts)]
        dirty_parts = [p for p in parts if is_dirty(p.info.min_ts, p.info.max_ts)]
        clean_runs = [r for r in runs if not is_dirty(r.min_ts, r.max_ts)]
        dirty_runs = [r for r in runs if is_dirty(r.min_ts, r.max_ts)]
        tombstones = [t for t in self._tombstones if t.touches(first, last)]
        selects = []
        if clean_parts or clean_runs or not dirty:
            selects.append(sql.rows(clean_parts, clean_runs, tombstones, newest_only=False))
        if dirty_parts or dirty_runs:
            selects.append(sql.rows(dirty_parts, dirty_runs, tombstones, newest_only=True))
        return SnapshotSql("\nUNION ALL\n".join(selects), sql.tables, tuple(parts))


def _overlap(span: TimeRange | None, first: int, last: int) -> bool:
    return span is not None and span[0] <= last and span[1] >= first


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


def epoch_of(column: str, type_: pa.DataType) -> str:
    """Returns SQL for a timestamp as BIGINT in its own unit."""
    return f"epoch_{type_.unit}({column})"


class _SqlBuilder:
    """Builds the SELECTs of one `SnapshotSql` and collects its Arrow tables."""

    def __init__(self, schema: pa.Schema, keys: list[str], names: list[str], version: int, first: int, last: int,
                 tuids: pa.Array | None) -> None:
        self._schema = schema
        self._keys = keys
        self._names = names
        self._read = list(dict.fromkeys([*keys, *names]))
        self._version = version
        self._first = first
        self._last = last
        self.tables: dict[str, pa.Table] = {}
        self._tuid_filter = self._filter_tuids(tuids)

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

    def _where(self, *, newer_possible: bool) -> str:
        ts = quoted(self._keys[0])
        conditions = list(self._tuid_filter)
        if self._first != TS_MIN:
            conditions.append(f"{ts} >= {self._bound(self._first)}")
        if self._last != TS_MAX:
            conditions.append(f"{ts} <= {self._bound(self._last)}")
        if newer_possible:
            conditions.append(f"_ver <= {self._version}")
        return " WHERE " + " AND ".join(conditions) if conditions else ""

    def _select(self, source: str, present: Sequence[str], *, newer_possible: bool) -> str:
        available = set(present)
        columns = []
        for name in self._read:
            type_ = self._schema.field(name).type
            value = quoted(name) if name in available else "NULL"
            # Parquet readers hand milliseconds out as microseconds; the cast gives every source the same type.
            if name not in available or pa.types.is_timestamp(type_):
                value = f"CAST({value} AS {duckdb_type(type_)}) AS {quoted(name)}"
            columns.append(value)
        where = self._where(newer_possible=newer_possible)
        return f"SELECT _tuid, {', '.join(columns)}, _ver FROM {source}{where}"

    def rows(self, parts: Sequence[PartHandle], runs: Sequence[Run], tombstones: Sequence[Tombstone], *,
             newest_only: bool) -> str:
        """Returns the SELECT over these parts and runs."""
        selects = []
        shapes: dict[tuple[tuple[str, ...], bool], list[PartHandle]] = {}
        for part in parts:
            shapes.setdefault((part.info.columns, part.info.max_version > self._version), []).append(part)
        for (columns, newer), group in shapes.items():
            files = ", ".join(text_literal(str(part.path)) for part in group)
            selects.append(self._select(f"read_parquet([{files}])", columns, newer_possible=newer))
        if runs:
            table = as_table(runs)
            newer = any(run.max_version > self._version for run in runs)
            selects.append(self._select(self._register(table), table.column_names, newer_possible=newer))
        if not selects:
            empty = pa.schema([(TUID_COLUMN, pa.uint64()), *self._schema, (VERSION_COLUMN, pa.uint64())])
            selects.append(self._select(self._register(empty.empty_table()), empty.names, newer_possible=False))
        outer = ", ".join(["_tuid", *(quoted(name) for name in self._names), "_ver"])
        conditions = self._visible(tombstones)
        if len(selects) == 1 and not conditions and not newest_only and self._read == self._names:
            return selects[0]
        sql = f"SELECT {outer} FROM (\n{' UNION ALL '.join(selects)}\n) AS r"
        if conditions:
            sql += f" WHERE {' AND '.join(conditions)}"
        if newest_only:
            keys = ", ".join(["_tuid", *(quoted(name) for name in self._keys)])
            sql += f" QUALIFY row_number() OVER (PARTITION BY {keys} ORDER BY _ver DESC) = 1"
        return sql

    def _visible(self, tombstones: Sequence[Tombstone]) -> list[str]:
        type_ = self._schema.field(0).type
        ts = epoch_of(f"r.{quoted(self._keys[0])}", type_)
        conditions = [f"NOT ({ts} BETWEEN {t.first_ts} AND {t.last_ts} AND r._ver < {t.version})"
                      for t in tombstones if t.tuids is None]
        rows = [(uid, t.first_ts, t.last_ts, t.version) for t in tombstones for uid in t.tuids or ()]
        if rows:
            tuid, first, last, version = (list(column) for column in zip(*rows, strict=True))
            name = self._register(pa.table({
                "uid": pa.array(tuid, pa.uint64()), "a": pa.array(first, pa.int64()),
                "b": pa.array(last, pa.int64()), "v": pa.array(version, pa.uint64())}))
            conditions.append(f"NOT EXISTS (SELECT 1 FROM {name} AS d WHERE d.uid = r._tuid "
                              f"AND {ts} BETWEEN d.a AND d.b AND r._ver < d.v)")
        return conditions
