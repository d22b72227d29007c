"""Names to columns: the relations that a query reads, the operators their rows come from, and errors with a position.

It knows tables and columns; which clauses a query has is `planner.query.select`'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, Protocol

import pyarrow as pa
from sqlglot import exp

from penstock.common.errors import InvalidStatementError, NotFoundError, Position
from penstock.common.suggestions import did_you_mean
from penstock.planner.duckdb_sql.duckdb_tree import call, text
from penstock.planner.duckdb_sql.duckdb_tree import column as column_tree
from penstock.planner.duckdb_sql.quoting import for_duckdb
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.expr import Computed
from penstock.planner.logical.operators import TABLE_UID, Children, NewestRows, Operator, Project, Scan
from penstock.sql.cuts import Cut, parse_cut
from penstock.sql.dialect.literals import position
from penstock.sql.schema import CatalogView, ChildTable, Session, Table, database_missing
from penstock.sql.tree.expression_nodes import source_range
from penstock.sql.tree.statements import ExternalSource, JoinSource, Name, Query, Source
from penstock.sql.types import BIGINT, UBIGINT, DataType, Kind, Precision

INVALID_COLUMN = 0x2602
UNKNOWN_TABLE = 0x2603
AMBIGUOUS_COLUMN = 0x2604
NO_DATABASE = 0x2616

#: What a reference in place of `*` knows: the number of its column in `Relation.star`, which may have equal names.
STAR = "star"
#: The column that tells rows of equal time apart where no table does.
NUMBER = "#n"
TBNAME = DataType(Kind.VARCHAR, 192)
Plan = Callable[[], Operator]
"""The operator that rows come from, once all expressions of the statement are bound: then their columns are known."""


@dataclass(eq=False, slots=True)
class RelColumn:
    """A column that expressions may name.

    `column` names it among the relation's columns, of the `side` of a join in conditions of that. `origins` are the
    columns below that it is made of: using it uses them. `role` is "tag" for tags, "tbname" for the table's name,
    "outer" for what a sub-query names of the query around it, whose rows are called `side` then, else "column".
    `folded` is what a column of a sub-query is called as well that has no name but what was typed. `merged`: another
    one stands for it where its table isn't named, as USING has it.
    """

    name: str
    type: DataType
    column: str
    qualifier: str | None = None
    role: str = "column"
    origins: tuple[RelColumn, ...] = ()
    used: bool = False
    side: str | None = None
    folded: str | None = None
    merged: bool = False

    def mark(self) -> None:
        """Marks the column as read."""
        if not self.used:
            self.used = True
            for origin in self.origins:
                origin.mark()

    @property
    def root(self) -> RelColumn:
        """The column of a table or a sub-query that this is, or this one if it is made of several."""
        return self.origins[0].root if len(self.origins) == 1 else self

    def above(self, *, column: str | None = None, side: str | None = None) -> RelColumn:
        """Returns a column that is made of this one, not read yet: with another name below, or of a side of a join."""
        return RelColumn(self.name, self.type, column or self.column, self.qualifier, self.role, (self,), False,
                         side or self.side, self.folded, self.merged)

    def use(self) -> SqlExpr:
        """Marks the column as read and returns it as an expression."""
        self.mark()
        return SqlExpr(column_tree(self.column, self.side), self.type)


@dataclass(frozen=True, slots=True)
class Relation:
    """Rows that a query reads, with `columns`.

    `plan` is what they come from. `time` is the primary time line, or None. `row_key` names columns that order rows
    of equal time. `table` is set if the rows are those of one base table. `star` lists what `*`, or that of a
    table, stands for. `times` are all primary timestamps in a row, each with the scan that may leave out what a
    condition on it excludes. `driver` is set for window joins: the columns of the driving table, over each row of
    which aggregates are computed; ROW numbers these. `same_times` are other timestamps that equal `time` in every
    row, as joins make them. `homes` are those of `qualifiers` that may be written behind a database, each with it.
    """

    columns: tuple[RelColumn, ...]
    star: tuple[RelColumn, ...]
    time: RelColumn | None
    precision: Precision
    plan: Plan
    table: Table | None = None
    row_key: tuple[RelColumn, ...] = ()
    qualifiers: tuple[str, ...] = ()
    times: tuple[tuple[RelColumn, ScanSlot | None], ...] = ()
    driver: tuple[RelColumn, ...] | None = None
    same_times: tuple[RelColumn, ...] = ()
    homes: tuple[tuple[str, str], ...] = ()

    @property
    def time_lines(self) -> tuple[RelColumn, ...]:
        """The columns that each are the primary time line."""
        return () if self.time is None else (self.time, *self.same_times)

    def starred(self, qualifier: str | None) -> list[tuple[int, RelColumn]]:
        """Returns what `*`, or that of a table, stands for: columns with their numbers in `star`."""
        numbered = enumerate(self.star)
        if qualifier is None:
            return [(number, column) for number, column in numbered if not column.merged]
        found = [(number, column) for number, column in numbered if column.qualifier == qualifier]
        if any(column.merged for column in self.star):  # USING puts columns of the right side where the left has its
            places = {id(column): place for place, column in enumerate(self.columns)}
            found.sort(key=lambda each: places[id(each[1])])
        return found

    def is_time_line(self, column: RelColumn | None) -> bool:
        return any(column is line for line in self.time_lines)

    def over(self, plan: Callable[[Operator], Operator]) -> Relation:
        """Returns the rows of an operator over these, which must pass all columns through."""
        below = self.plan
        return replace(self, plan=lambda: plan(below()))

    def extended(self, columns: Sequence[Computed], called: str | None = None) -> Relation:
        """Returns the rows with more columns. `called`: see `Project`."""
        return self.over(lambda below: Project(below, tuple(columns), extends=True, called=called)) if columns else self

    @property
    def is_numbered(self) -> bool:
        """Whether `row_key` is the number of the row, which costs to be computed."""
        return any(column.column == NUMBER for column in self.row_key)

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the columns that tell rows of equal time apart."""
        return tuple(used(column) for column in self.row_key)

    @property
    def order(self) -> tuple[str, ...]:
        """The names of the columns that order the rows along the time line."""
        return (used(self.time), *self.keys) if self.time is not None else ()


@dataclass(frozen=True, slots=True)
class GivenInstant:
    """An instant that a plan is given when it runs, in units of the table's precision, and that bounds its scan.

    `of`: the given value that it is, and how many units later; else `sql` computes it of the `parameters`. `moved`: so
    many units beside it lies the first, or the last, row. `exact`: there are rows only where the instant isn't NULL.
    """

    side: Literal["first", "last"]
    of: tuple[str, int] | None
    sql: str
    parameters: tuple[str, ...]
    moved: int = 0
    exact: bool = True


@dataclass(frozen=True, slots=True)
class GivenChildren:
    """Which child tables of a super table are left by given values: those with these names, that meet the `condition`
    over the rows of `children_table`, which takes the `parameters`."""

    names: tuple[str, ...]
    condition: str | None
    parameters: tuple[str, ...]


@dataclass(eq=False, slots=True)
class ScanSlot:
    """A `Scan` in the making: its columns are known when all expressions are compiled. `instants` and `children` are
    what it is given when the plan runs."""

    name: str
    table: Table
    columns: tuple[RelColumn, ...]
    first_ts: int | None = None
    last_ts: int | None = None
    tuids: tuple[int, ...] | None = None
    cuts: tuple[Cut, Cut] | None = None
    precision: Precision = "ms"
    newest: NewestRows | None = None
    counted: bool = False
    names: bool = False
    ranges: tuple[tuple[str, int | None, int | None], ...] = ()
    keys: tuple[int | str, ...] | None = None
    instants: tuple[GivenInstant, ...] = ()
    children: GivenChildren | None = None

    def scan(self) -> Scan:
        """Returns the scan, with the columns that are used by now."""
        used = tuple(column.name for column in self.columns if column.used)
        return Scan(self.name, self.table, used, self.first_ts, self.last_ts, self.tuids, self.cuts, self.precision,
                    self.newest, self.counted, self.names, self.ranges, self.keys)


class Around(Protocol):
    """What a sub-query may name of the query around it: columns of `relation`, if that has rows."""

    @property
    def relation(self) -> Relation | None: ...

    def find(self, name: str, qualifier: str | None, node: exp.Expression, /) -> RelColumn | None:
        """Returns the column of this name, or None; raises InvalidStatementError if it can't be used there."""
        ...


@dataclass(frozen=True, slots=True)
class Inner:
    """A sub-query that may name columns around it: what DuckDB computes for it; its columns `o0`, ...; their names."""

    query: exp.Query
    columns: tuple[SqlExpr, ...]
    names: tuple[str, ...]


@dataclass(slots=True)
class Builder:
    """Collects the scans and constant tables of one statement.

    `text` is the statement's, `base` where it begins in the text that expressions were parsed from. `ordered`: rows
    have an order where the statement doesn't ask for one. `of_stream`: scans are what tasks are given. `plan_inner`
    plans a query in an expression. `around`: the queries around the one that is bound, the next one first. `called`:
    what sub-queries call the rows of the query that is bound, None while none names these. `always_row`: aggregates
    have a row where there are no rows, as in standard SQL, not as in TDengine. `aliases`: what names of the SELECT list
    that is bound stand for; `standing_in`: those that are just being compiled, `stand_ins` were so far. `keeps_order`:
    the operators that are being made keep the order in which rows of sub-queries are by default. `times_given`: values
    that the plan is given when it runs bound a time line.
    """

    catalog: CatalogView
    session: Session
    text: str
    base: int = 0
    ordered: bool = True
    of_stream: bool = False
    scans: list[ScanSlot] = field(default_factory=list)
    tables: list[tuple[str, pa.Table]] = field(default_factory=list)
    plan_inner: Callable[[Query], Inner] | None = None
    around: tuple[Around, ...] = ()
    called: str | None = None
    always_row: bool = False
    aliases: Mapping[str, exp.Expression] = field(default_factory=dict)
    standing_in: list[str] = field(default_factory=list)
    stand_ins: int = 0
    keeps_order: bool = True
    times_given: bool = False
    _names: int = 0

    def fresh(self, prefix: str) -> str:
        """Returns a name that no other relation of the statement has."""
        self._names += 1
        return f"{prefix}_{self._names}"

    def require_known_times(self, what: str) -> None:
        """Raises InvalidStatementError if the range of time of the query, which `what` needs, isn't known yet."""
        if self.times_given:
            raise InvalidStatementError(f"{what} needs a range of time that is known when the query is planned")

    def position(self, node: exp.Expression) -> Position | None:
        """Returns where an expression stands in the statement, if it was parsed from it."""
        return self._between(source_range(node))

    def place(self, name: Name) -> Position | None:
        """Returns where a name stands in the statement, if that was parsed from a text."""
        return position(self.text, name.offset - self.base, len(str(name))) if self.text else None

    def error_at(self, message: str, place: tuple[int, int], *, code: int | None = None, hint: str | None = None
                 ) -> InvalidStatementError:
        """Returns the error for something between two offsets of the text that expressions were parsed from."""
        return InvalidStatementError(message, code=code, hint=hint, position=self._between(place))

    def error(self, message: str, node: exp.Expression | None = None, *, code: int | None = None,
              hint: str | None = None) -> InvalidStatementError:
        """Returns the error for something that is not allowed at `node`."""
        at = self.position(node) if node is not None else None
        return InvalidStatementError(message, code=code, hint=hint, position=at)

    def _between(self, place: tuple[int, int]) -> Position | None:
        """Returns the position of what stands between two offsets of the text, if anything does."""
        start, end = place
        return position(self.text, start - self.base, end - start) if end > start else None


def resolve_table(name: Name, builder: Builder) -> Table:
    """Returns the table that `name` means. Raises NotFoundError, and InvalidStatementError without a database."""
    database = name.database or builder.session.database
    if database is None:
        raise InvalidStatementError(
            f"no database is in use to look up {name.name} in", code=NO_DATABASE, position=builder.place(name),
            hint="USE a database, or write database.table")
    if builder.catalog.database(database) is None:
        raise database_missing(database, builder.catalog, builder.place(name))
    table = builder.catalog.table(database, name.name)
    if table is None:
        raise NotFoundError(f"table {database}.{name.name} does not exist", code=UNKNOWN_TABLE,
                            position=builder.place(name),
                            hint=did_you_mean(name.name, builder.catalog.table_names(database)))
    return table


def known_table(name: Name, catalog: CatalogView, session: Session) -> Table | None:
    """Returns the table that `name` means, or None if there is none."""
    return catalog.table(name.database or session.database or "", name.name)


def names_of_tables(table: Table, builder: Builder) -> Plan:
    """Returns the scan of the names of a super table's child tables."""
    name = RelColumn("tbname", TBNAME, "tbname", role="tbname", used=True)
    slot = ScanSlot(builder.fresh("scan"), table, (name,), names=True)
    builder.scans.append(slot)
    return slot.scan


def external_relation(source: ExternalSource, builder: Builder, precision: Precision) -> Relation:
    """Returns the relation of a table of an external server, with timestamps of this precision.

    Raises NotFoundError for unknown connections and tables, and ExternalSystemErrors if the server can't be asked.
    """
    name = source.connection
    connection = builder.catalog.external_connection(name.name)
    if connection is None:
        raise NotFoundError(f"connection {name.name} does not exist",
                            position=builder.place(name),
                            hint=did_you_mean(name.name, builder.catalog.external_connection_names()))
    table = builder.catalog.external_table(connection.name, source.table)
    columns = tuple(replace(column, type=column.type.with_precision(precision)) for column in table.columns)
    return scan_table(replace(table, columns=columns), source.alias, builder, precision=precision)


def bind_sides(source: JoinSource, bind: Callable[[Source, Precision], Relation]) -> tuple[Relation, Relation]:
    """Returns both sides of a join. An external table takes the precision of the other side."""
    if isinstance(source.left, ExternalSource):
        right = bind(source.right, "ms")
        return bind(source.left, right.precision), right
    left = bind(source.left, "ms")
    return left, bind(source.right, left.precision)


def scan_table(
    table: Table, alias: str | None, builder: Builder, cuts: tuple[str, str] | None = None,
    precision: Precision = "ms",
) -> Relation:
    """Returns the relation of a base table's rows, with `cuts` of those that were written between them.

    `precision` is for tables that aren't in a database.
    """
    stored = table.kind not in ("system", "tags", "external")
    database = builder.catalog.database(table.database) if table.kind not in ("system", "external") else None
    if database is not None:
        precision = database.precision
    qualifier = alias or table.name
    columns = [RelColumn(c.name, c.type.with_precision(precision), c.name, qualifier)
               for c in table.columns]
    tags = [RelColumn(c.name, c.type.with_precision(precision), c.name, qualifier, "tag")
            for c in table.tags]
    members = (*columns, *tags)
    if stored and table.column("tbname") is None:
        members = (*members, RelColumn("tbname", TBNAME, "tbname", qualifier, "tbname"))
    slot = ScanSlot(builder.fresh("scan"), table, members, precision=precision)
    if cuts is not None:
        if table.kind == "system":
            raise InvalidStatementError(f"{table.name} is a system table: it has no cuts")
        slot.cuts = (parse_cut(cuts[0]), parse_cut(cuts[1]))
    builder.scans.append(slot)
    key: tuple[RelColumn, ...] = ()
    if stored:
        others = [column for column, of in zip(columns, table.columns, strict=True) if of.primary_key]
        key = (RelColumn(TABLE_UID, UBIGINT, TABLE_UID), *others)
    time = columns[0] if stored and not table.keyed else None
    relation = Relation(
        columns=members, star=(*columns, *tags) if table.kind == "super" else tuple(columns),
        time=time, precision=precision, plan=slot.scan, table=table, row_key=key,
        qualifiers=(qualifier,), times=((time, slot),) if time is not None else (),
        homes=((table.database, qualifier),) if alias is None else (),
    )
    return _named(relation, table.name, qualifier) if table.kind == "system" else relation


def _named(relation: Relation, name: str, qualifier: str) -> Relation:
    """Returns the rows of a system table with its name, which is there if it is used."""
    if any(column.name == "tbname" for column in relation.columns):
        return relation
    tbname = RelColumn("tbname", TBNAME, "tbname", qualifier, "tbname")

    def plan(below: Operator) -> Operator:
        named = (Computed("tbname", SqlExpr(text(name), TBNAME)),)
        return Project(below, named, extends=True) if tbname.used else below

    return replace(relation.over(plan), columns=(*relation.columns, tbname))


def children_table(table: Table, catalog: CatalogView) -> pa.Table:
    """Returns one row per child table: `_tuid`, `tbname` and the tags by name, timestamps as integers."""
    if table.kind == "super":
        children = sorted(catalog.children(table.uid), key=lambda child: child.name)
    else:
        children = [ChildTable(table.uid, table.name, table.vgroup_id or 0, table.tag_values)]
    arrays = {"_tuid": pa.array([child.uid for child in children], UBIGINT.arrow()),
              "tbname": pa.array([child.name for child in children], pa.string())}
    for index, tag in enumerate(table.tags):
        values = [child.tag_values[index] for child in children]
        type_ = pa.int64() if tag.type.kind is Kind.TIMESTAMP else tag.type.arrow()
        arrays[tag.name] = pa.array(values, type_)
    return pa.table(arrays)


def children_relation(relation: Relation, builder: Builder) -> Relation:
    """Returns the tags and the name of every child table, one row each, in place of the super table's rows."""
    table = relation.table
    assert table is not None
    name = builder.fresh("tables")
    builder.tables.append((name, for_duckdb(children_table(table, builder.catalog))))
    unused = {id(slot) for _, slot in relation.times}
    builder.scans = [slot for slot in builder.scans if id(slot) not in unused]
    members = tuple(column for column in relation.columns if column.role != "column")
    tags = tuple(column for column in members if column.role == "tag")
    return replace(relation, columns=members, star=tags, time=None, times=(), row_key=(),
                   plan=lambda: Children(name, table, relation.precision))


def numbered(relation: Relation) -> Relation:
    """Returns the rows with their numbers as `row_key`, which are there if they are used."""
    number = RelColumn(NUMBER, BIGINT, NUMBER)

    def plan(below: Operator) -> Operator:
        value = SqlExpr(exp.Window(this=call("row_number"), over="OVER"), BIGINT)
        return Project(below, (Computed(NUMBER, value),), extends=True) if number.used else below

    return replace(relation.over(plan), row_key=(number,))


def used(column: RelColumn) -> str:
    """Marks the column as read, and returns its name among the relation's columns."""
    column.mark()
    return column.column


def find_column(relation: Relation, name: str, qualifier: str | None, node: exp.Expression,
                builder: Builder) -> RelColumn:
    """Returns the column of this name. Raises NotFoundError, or InvalidStatementError if several match."""
    if qualifier is not None:
        check_qualifier(relation, qualifier, node, builder)
    if STAR in node.meta:
        number: int = node.meta[STAR]
        return relation.star[number]
    matches = [column for column in relation.columns if name in (column.name, column.folded) and (
        not column.merged if qualifier is None else column.qualifier == qualifier)]
    if len(matches) > 1:
        matches = [column for column in matches if column.name == name] or matches
    if len(matches) == 1:
        return matches[0]
    shown = f"{qualifier}.{name}" if qualifier else name
    if not matches:
        known = dict.fromkeys(column.name for column in relation.columns
                              if column.role != "tbname" and qualifier in (None, column.qualifier))
        where = qualifier or (relation.table.name if relation.table is not None else None)
        raise NotFoundError(f"column {shown} does not exist" + (f" in {where}" if where and not qualifier else ""),
                            code=INVALID_COLUMN, position=builder.position(node),
                            hint=partial(did_you_mean, name, known))
    hint = "write " + " or ".join(f"{column.qualifier}.{name}" for column in matches if column.qualifier)
    raise InvalidStatementError(f"column {shown} is ambiguous", code=AMBIGUOUS_COLUMN,
                                position=builder.position(node), hint=hint if relation.qualifiers else None)


def check_qualifier(relation: Relation, table: str, node: exp.Expression, builder: Builder) -> None:
    """Raises NotFoundError if a column or a star is of a table that isn't there."""
    if node.args.get("db") is None and table in relation.qualifiers:
        return
    database = node.text("db")
    if database and (database, table) in relation.homes:
        return
    raise NotFoundError(f"there is no table {database}.{table} in FROM" if database else
                        f"there is no table {table} in FROM", code=UNKNOWN_TABLE,
                        position=builder.position(node), hint=partial(did_you_mean, table, relation.qualifiers))


def qualifier_of(node: exp.Expression) -> str | None:
    """Returns the table part of a column reference, or None."""
    table = node.args.get("table")
    return table.this if isinstance(table, exp.Identifier) else None


def is_pseudo(node: exp.Expression, *names: str) -> bool:
    """Tells whether the node is one of these pseudo columns."""
    name = node.this if isinstance(node, exp.Column) else None
    return isinstance(name, exp.Identifier) and name.this in names and not name.quoted
