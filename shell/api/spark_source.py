"""Penstock's tables as a Spark data source: `spark.read.format("penstock")`, `spark.readStream.format("penstock")`.

Reads the files of a data directory, which an engine may have open; see docs/spark.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.common.errors import InvalidStatementError, UnavailableError
from penstock.mnode.dnode.stream_cuts import check_cuts
from penstock.mnode.query.detached_table import TBNAME, DetachedTable, RowBounds
from penstock.sql.cuts import Cut, cut_text, parse_cut
from penstock.sql.schema import ChildTable, Table
from penstock.sql.types import INTEGERS, STRINGS, DataType, Kind

_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NANOSECONDS = {"ms": 1_000_000, "us": 1_000, "ns": 1}
#: Spark has no unsigned integers: each takes the next larger type.
_DDL: Mapping[Kind, str] = {
    Kind.TIMESTAMP: "TIMESTAMP", Kind.BOOL: "BOOLEAN", Kind.TINYINT: "TINYINT", Kind.SMALLINT: "SMALLINT",
    Kind.INT: "INT", Kind.BIGINT: "BIGINT", Kind.UTINYINT: "SMALLINT", Kind.USMALLINT: "INT", Kind.UINT: "BIGINT",
    Kind.UBIGINT: "DECIMAL(20,0)", Kind.FLOAT: "FLOAT", Kind.DOUBLE: "DOUBLE", Kind.VARCHAR: "STRING",
    Kind.NCHAR: "STRING", Kind.JSON: "STRING", Kind.VARBINARY: "BINARY", Kind.GEOMETRY: "BINARY",
}


def register(spark: SparkSession) -> None:
    """Registers the format `penstock` with a session, and enables filter pushdown for Python data sources."""
    spark.conf.set(_PUSHDOWN, "true")
    spark.dataSource.register(PenstockSource)


class PenstockSource(DataSource):
    """The format `penstock`. Options: path, table (`database.table`), and cut, startingCut or maxRowsPerTrigger."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> str:
        return ", ".join(f"`{name.replace('`', '``')}` {spark_type(kind)}" for name, kind in self._table().columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        cut = self.options.get("cut")
        return _BatchReader(self._table(), schema, None if cut is None else parse_cut(cut))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        limit = self.options.get("maxRowsPerTrigger")
        if limit is not None and not (limit.isdigit() and int(limit)):
            raise InvalidStatementError(f"maxRowsPerTrigger is a number of rows, not {limit}")
        return _StreamReader(
            self._table(), schema, self.options.get("startingCut", "earliest"), None if limit is None else int(limit))

    def _table(self) -> DetachedTable:
        path, name = self.options.get("path"), self.options.get("table", "")
        database, _, table = name.rpartition(".")
        if not path or not database:
            raise InvalidStatementError('the data directory and the table must be named: .option("table", "db.table")'
                                        '.load("/path/to/penstock-data")')
        return DetachedTable(Path(path), database, table)


def spark_type(kind: DataType) -> str:
    """Returns Spark's name of the type that values of a type get."""
    return f"DECIMAL({kind.digits or 38},{kind.scale or 0})" if kind.kind is Kind.DECIMAL else _DDL[kind.kind]


# --- batch -----------------------------------------------------------------------------------------------------------


class _Share(InputPartition):
    """The rows of one vnode, as of a version (None: of when they are read)."""

    def __init__(self, vgroup_id: int, as_of: int | None, bounds: RowBounds) -> None:
        self.vgroup_id = vgroup_id
        self.as_of = as_of
        self.bounds = bounds


class _BatchReader(DataSourceReader):
    """Reads a table: one partition per vnode."""

    def __init__(self, table: DetachedTable, schema: StructType, cut: Cut | None) -> None:
        self._table = table
        self._schema = schema
        self._cut = cut
        self._wanted = RowFilter()

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        """Reads less for the conditions that it understands. Spark looks at all of them again, so that none is lost."""
        self._wanted = wanted_by(filters, self._table.table)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        versions: dict[int, int | None] = dict.fromkeys(self._table.vgroup_ids)
        if self._cut is not None:
            _check(self._cut, self._table.cut())
            versions = {vgroup_id: version for vgroup_id, version in self._cut if vgroup_id in versions}
        tuids = None
        if self._wanted.labels:
            children = [child for child in self._table.children() if self._wanted.has(child, self._table.table)]
            homes = {child.vgroup_id for child in children}
            versions = {vgroup_id: version for vgroup_id, version in versions.items() if vgroup_id in homes}
            tuids = tuple(child.uid for child in children)
        bounds = RowBounds(self._wanted.first_ts, self._wanted.last_ts, tuids)
        return [_Share(*share, bounds) for share in versions.items()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes one partition of its own where there are none.
        if isinstance(partition, _Share):
            names = self._schema.fieldNames()
            yield from _fitted(
                self._table.rows(partition.vgroup_id, names, partition.as_of, partition.bounds), self._schema)


@dataclass(frozen=True, slots=True)
class RowFilter:
    """What conditions leave: a range of time in units of the table, and the values that `tbname` and tags may have."""

    first_ts: int | None = None
    last_ts: int | None = None
    labels: tuple[tuple[str, frozenset[Any]], ...] = ()

    def has(self, child: ChildTable, table: Table) -> bool:
        """Tells whether a child table's name and tags are among the values."""
        known = dict(zip((tag.name for tag in table.tags), child.tag_values, strict=True)) | {TBNAME: child.name}
        return all(known[name] in values for name, values in self.labels)


def wanted_by(filters: Sequence[Filter], table: Table) -> RowFilter:
    """Returns what these conditions leave of a table, or more; those that aren't understood leave all of it."""
    time = table.time_column
    labels = {tag.name for tag in table.tags if tag.type.kind in (*INTEGERS, *STRINGS, Kind.BOOL)} | (
        {TBNAME} if table.tags and table.column(TBNAME) is None else set())
    first: list[int] = []
    last: list[int] = []
    values: list[tuple[str, frozenset[Any]]] = []
    for each in filters:
        match each:
            case (GreaterThan(attribute=(time.name,), value=datetime() as instant)
                  | GreaterThanOrEqual(attribute=(time.name,), value=datetime() as instant)):
                first.append(_units(instant, time.type)[0])
            case (LessThan(attribute=(time.name,), value=datetime() as instant)
                  | LessThanOrEqual(attribute=(time.name,), value=datetime() as instant)):
                last.append(_units(instant, time.type)[1])
            case EqualTo(attribute=(time.name,), value=datetime() as instant):
                first.append(_units(instant, time.type)[0])
                last.append(_units(instant, time.type)[1])
            case EqualTo(attribute=(name,), value=value) if name in labels:
                values.append((name, frozenset([value])))
            case In(attribute=(name,), value=several) if name in labels:
                values.append((name, frozenset(several)))
    if table.kind != "super":
        values = []  # there is one child table at most, and it is known
    return RowFilter(max(first, default=None), min(last, default=None), tuple(values))


def _units(instant: datetime, kind: DataType) -> tuple[int, int]:
    """Returns the first and the last time, in units of a column, that may be this instant in Spark's microseconds."""
    aware = instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)
    nanoseconds = (aware - _EPOCH) // timedelta(microseconds=1) * 1_000
    unit = _NANOSECONDS[kind.precision]
    return (nanoseconds - 999) // unit, (nanoseconds + 999) // unit


# --- streams ---------------------------------------------------------------------------------------------------------


class _LogSpan(InputPartition):
    """What one vnode wrote behind version `first` and up to `last`."""

    def __init__(self, vgroup_id: int, first: int, last: int) -> None:
        self.vgroup_id = vgroup_id
        self.first = first
        self.last = last


class _StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the logs of a table's database. Offsets are stream cuts: {vgroup id: version}."""

    def __init__(self, table: DetachedTable, schema: StructType, starting_cut: str, rows_max: int | None) -> None:
        self._table = table
        self._schema = schema
        self._starting_cut = starting_cut
        self._rows_max = rows_max
        self._target: Cut | None = None

    def initialOffset(self) -> dict[str, int]:
        now = self._table.cut()
        if self._starting_cut == "earliest":
            return _offset((vgroup_id, 0) for vgroup_id, _ in now)
        if self._starting_cut == "latest":
            return _offset(now)
        first = parse_cut(self._starting_cut)
        _check(first, now)
        return _offset(first)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._rows_max is None else ReadMaxRows(self._rows_max)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._table.cut()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        first, last = _cut(start), self._target or self._table.cut()
        try:
            _check(first, last)
        except InvalidStatementError as error:
            raise UnavailableError(
                f"the query was at '{cut_text(first)}' and can't go on from there: {error}",
                hint="after SPLIT VGROUP, or in another directory, begin with a new checkpointLocation") from error
        if not isinstance(limit, ReadMaxRows):
            return _offset(last)
        behind = dict(first)
        waiting = [vgroup_id for vgroup_id, version in last
                   if version > behind[vgroup_id] and vgroup_id in self._table.vgroup_ids]
        share = max(1, limit.max_rows // max(1, len(waiting)))
        return _offset(
            (vgroup_id, self._table.version_behind(vgroup_id, behind[vgroup_id], version, share)
             if vgroup_id in waiting else version) for vgroup_id, version in last)

    def reportLatestOffset(self) -> dict[str, int]:
        return _offset(self._table.cut())

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        first = dict(_cut(start))
        return [_LogSpan(vgroup_id, first[vgroup_id], version) for vgroup_id, version in _cut(end)
                if vgroup_id in self._table.vgroup_ids and version > first[vgroup_id]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _LogSpan), "what `partitions` returns"
        rows = self._table.written(partition.vgroup_id, self._schema.fieldNames(), partition.first, partition.last)
        return _fitted(rows, self._schema)

def _check(first: Cut, now: Cut) -> None:
    """Raises InvalidStatementError unless `first` is a cut of the database whose cut is `now`, and no later one."""
    check_cuts(tuple(vgroup_id for vgroup_id, _ in now), first, now)


def _offset(cut: Any) -> dict[str, int]:
    return {str(vgroup_id): version for vgroup_id, version in cut}


def _cut(offset: Mapping[str, int]) -> Cut:
    return tuple(sorted((int(vgroup_id), version) for vgroup_id, version in offset.items()))


def _fitted(tables: Iterator[pa.Table], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yields rows with exactly the types that Spark expects of a schema."""
    target = to_arrow_schema(schema, timezone="UTC")
    for table in tables:
        columns = [_as_type(column, field.type) for column, field in zip(table.columns, target, strict=True)]
        yield from pa.Table.from_arrays(columns, schema=target).to_batches()


def _as_type(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_timestamp(column.type) and pa.types.is_timestamp(target):
        return column.cast(pa.timestamp(target.unit), safe=False).cast(target)
    return column.cast(target)
