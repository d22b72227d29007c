"""Describes the join of two inputs that a stream asks for: its keys, its range of time, and where its rows meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.common.errors import InvalidStreamError, NotSupportedError
from penstock.planner.bind.binder import Builder, Relation, bind_sides, external_relation, resolve_table, scan_table
from penstock.planner.bind.join_conditions import Equality
from penstock.planner.bind.join_reading import JoinReading, read_join
from penstock.planner.bind.query_parts import text_of
from penstock.planner.bind.scopes import RowScope
from penstock.planner.duckdb_sql.duckdb_tree import column
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.operators import Side
from penstock.planner.streams.stream_lookup import tags_relation
from penstock.sql.schema import CatalogView, Session, Table
from penstock.sql.tree.statements import (
    CreateStream,
    ExternalSource,
    JoinKind,
    JoinSource,
    JoinVariant,
    Select,
    Source,
    SubquerySource,
    TableSource,
)
from penstock.sql.types import Precision

Distribution = Literal["vnode", "exchange", "lookup"]


@dataclass(frozen=True, slots=True)
class JoinInput:
    """One side of a stream's join.

    `keys`: expressions over its rows, as text, whose values the other side's keys equal in order. `outer`: rows without
    partner are emitted. `kept`: how far behind the join's stream time, in units of the precision, rows may still find
    partners; negative if they are too late for any before stream time reaches them. None: no time ends it, be it that
    rows wait for the next one of the other side, that the newest of each key stays, or that the side is looked up in.
    """

    table: Table
    name: str
    keys: tuple[str, ...]
    outer: bool
    kept: int | None


@dataclass(frozen=True, slots=True)
class StreamJoin:
    """A join of two inputs of a stream.

    `start` and `end` bound right time minus left time, None where nothing does. `others`: what else pairs must fulfil,
    as text. `limit`: of partners per driving row. `distribution`: where rows of both sides come together (on the vnode
    that stores both; on join tasks, exchanged by key; or where the rows are that look up), and `reason`, why. It is
    true of the vgroups that there are: splitting one may part tables that share a vnode because there are so few.
    """

    kind: JoinKind
    variant: JoinVariant
    left: JoinInput
    right: JoinInput
    start: int | None
    end: int | None
    others: tuple[str, ...]
    limit: int | None
    distribution: Distribution
    reason: str

    @property
    def text(self) -> str:
        """The join in words."""
        words = " ".join(word for word in (self.kind, self.variant) if word)
        return f"{words} join of {self.left.name} and {self.right.name}, by {self.distribution}: {self.reason}"


@dataclass(frozen=True, slots=True)
class JoinedTables:
    """A stream's join, as read and as it runs, while it is planned."""

    reading: JoinReading
    described: StreamJoin

    @property
    def driver(self) -> Relation:
        return self.reading.sides.relation(self.reading.driver)

    @property
    def both(self) -> bool:
        return self.reading.source.kind == "full"

    @property
    def reach(self) -> tuple[int | None, int | None]:
        """The bounds of the other side's time minus the driver's."""
        start, end = self.described.start, self.described.end
        if self.reading.driver == "l":
            return start, end
        return None if end is None else -end, None if start is None else -start

    def key(self, place: int, value: SqlExpr) -> SqlExpr:
        """Returns the n-th key of PARTITION BY as a column of the query over both tables."""
        return SqlExpr(column(f"o{place}"), value.type)


def read_joined(statement: CreateStream, catalog: CatalogView, session: Session) -> JoinedTables:
    """Returns the join that a stream reads; raises as `read_stream_join`, and for what none can do."""
    source = statement.select.source
    assert isinstance(source, JoinSource)
    query = JoinedTables(*read_stream_join(statement, source, catalog, session))
    if query.described.distribution != "lookup" and query.reach[1] is None:
        on = query.reading.source.on
        raise NotSupportedError("a stream cannot look for the next row of the other table: it would wait for ever",
                                position=None if on is None else query.reading.builder.position(on),
                                hint="compare with >= or >: the newest row before")
    return query


def read_stream_join(
    statement: CreateStream, source: JoinSource, catalog: CatalogView, session: Session
) -> tuple[JoinReading, StreamJoin]:
    """Returns the join that a stream's query reads from, as read and in the stream's terms.

    Raises InvalidStreamError for inputs that are not tables and for times that are truncated; else as `read_join`.
    """
    builder = Builder(catalog, session, statement.source_text, statement.source_start)
    left, right = bind_sides(source, lambda side, precision: _relation(side, builder, precision))
    join = read_join(source, left, right, statement.select.where, builder)
    for time in join.conditions.times:
        if time.shift is None:
            raise InvalidStreamError("a stream's join compares times as they are, not truncated",
                                     position=builder.position(time.left), hint="write a range of time with BETWEEN")
    distribution, reason = _distribution(join, catalog)
    start, end = _bounds(join)
    limit = source.jlimit if source.jlimit is not None or source.variant != "asof" else 1
    return join, StreamJoin(
        source.kind, source.variant, _input(join, "l"), _input(join, "r"), start, end,
        tuple(text_of(node) for node in join.conditions.others), limit, distribution, reason)


def _relation(source: Source, builder: Builder, precision: Precision) -> Relation:
    if isinstance(source, ExternalSource):
        return external_relation(source, builder, precision)
    if isinstance(source, SubquerySource) and isinstance(source.query, Select) and source.query.tags_only:
        return tags_relation(source, source.query, builder)
    if not isinstance(source, TableSource):
        raise InvalidStreamError("a stream joins two tables: no sub-query and no third table",
                                 hint="tags are looked up in as (SELECT TAGS tbname, tag FROM table) alias")
    if source.cuts is not None:
        raise InvalidStreamError("a stream reads what comes after its creation: BETWEEN CUT is for queries")
    table = resolve_table(source.name, builder)
    if table.kind == "system":
        raise InvalidStreamError(f"{source.name} is a system table: a stream cannot read it")
    return scan_table(table, source.alias, builder)


def _bounds(join: JoinReading) -> tuple[int | None, int | None]:
    return (join.range.start, join.range.end) if join.range is not None else (None, None)


def _input(join: JoinReading, side: Side) -> JoinInput:
    relation = join.sides.relation(side)
    assert relation.table is not None
    start, end = _bounds(join)
    kept = end if side == "l" else None if start is None else -start
    keys = tuple(text_of(key.left if side == "l" else key.right) for key in join.conditions.keys)
    driving = join.source.kind == "full" or (join.source.kind != "inner" and side == join.driver)
    outer = driving and join.source.variant != "semi"
    return JoinInput(relation.table, relation.qualifiers[0], keys, outer, None if join.looked_up == side else kept)


def _distribution(join: JoinReading, catalog: CatalogView) -> tuple[Distribution, str]:
    left, right = join.sides.left.table, join.sides.right.table
    assert left is not None
    assert right is not None
    if join.looked_up is not None:
        looked_up = left if join.looked_up == "l" else right
        return "lookup", f"{_shown(looked_up)} is looked up in, wherever the other rows are"
    if left.uid == right.uid and any(_is_names(key, join.scope) for key in join.conditions.keys):
        return "vnode", f"both sides are rows of the same child table of {_shown(left)}"
    if left.kind != "super" and right.kind != "super" and (left.database, left.vgroup_id) == (
            right.database, right.vgroup_id):
        return "vnode", f"both tables are in vgroup {left.vgroup_id}"
    if left.database == right.database:
        database = catalog.database(left.database)
        if database is not None and len(database.vgroup_ids) == 1:
            return "vnode", f"database {left.database} has one vgroup"
    if not join.conditions.keys:
        return "exchange", "no values are equal on both sides: all rows go to one join task"
    return "exchange", f"rows of {_shown(left)} and {_shown(right)} with equal keys are in different vgroups"


def _is_names(key: Equality, scope: RowScope) -> bool:
    """Whether a key compares the names of the tables that the rows are of."""
    columns = (scope.find(key.left), scope.find(key.right))
    return all(column is not None and column.role == "tbname" for column in columns)


def _shown(table: Table) -> str:
    return f"{table.database}.{table.name}"
