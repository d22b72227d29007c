"""Names to columns: the relations that a query reads, the CTEs its SQL is made of, and errors with a position.

It knows tables and columns; which clauses a query has is `planner.select`'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

import pyarrow as pa
from sqlglot import exp

from penstock.common.errors import InvalidStatementError, NotFoundError, Position
from penstock.planner.logical.operators import Scan
from penstock.planner.plan import PlanNode, SqlExpr
from penstock.planner.scalar_sql import quote_name
from penstock.sql.cuts import Cut, parse_cut
from penstock.sql.dialect import source_range
from penstock.sql.literals import position
from penstock.sql.schema import CatalogView, ChildTable, Session, Table
from penstock.sql.statements import JoinSource, Name, OutsideSource, Source
from penstock.sql.types import BIGINT, UBIGINT, DataType, Kind, Precision

UNKNOWN_DATABASE = 0x0388
INVALID_COLUMN = 0x2602
UNKNOWN_TABLE = 0x2603
AMBIGUOUS_COLUMN = 0x2604
NO_DATABASE = 0x2616

# Names a column of `Relation.star` by its number: what `*` stands for may have equal names.
COLUMN_MARK = "\x00star"
MAX_STEPS = 900
TBNAME = DataType(Kind.VARCHAR, 192)
Tree = Callable[[], PlanNode]


@dataclass(eq=False, slots=True)
class RelColumn:
    """A column that expressions may name.

    `sql` names it in the relation's CTE. `origins` are the columns below that it is made of: using it uses them.
    `role` is "tag" for tags, "tbname" for the table's name, else "column". `constant`: one value per table, which
    a query over a single table may show next to aggregates.
    """

    name: str
    type: DataType
    sql: str
    qualifier: str | None = None
    role: str = "column"
    origins: tuple[RelColumn, ...] = ()
    used: bool = False

    def use(self) -> SqlExpr:
        """Marks the column as read and returns it as an expression."""
        if not self.used:
            self.used = True
            for origin in self.origins:
                origin.use()
        return SqlExpr(self.sql, self.type)


@dataclass(frozen=True, slots=True)
class Relation:
    """Rows that a query reads: the CTE `name` with `columns`.

    `time` is the primary time line, or None. `row_key` names columns that order rows of equal time. `table` is set
    if the rows are those of one base table. `star` lists what `*` stands for. `times` are all primary timestamps in
    a row, each with the scan that may leave out what a condition on it excludes. `driver` is set for window joins:
    the column that numbers the rows of the driving table, over each of which aggregates are computed.
    """

    name: str
    columns: tuple[RelColumn, ...]
    star: tuple[RelColumn, ...]
    time: RelColumn | None
    precision: Precision
    tree: Tree
    table: Table | None = None
    row_key: tuple[RelColumn, ...] = ()
    qualifiers: tuple[str, ...] = ()
    times: tuple[tuple[RelColumn, ScanSlot | None], ...] = ()
    driver: str | None = None

    def over(self, name: str, tree: Tree | None = None) -> Relation:
        """Returns the same columns in another CTE, which must pass them all through."""
        return replace(self, name=name, tree=tree or self.tree)

    @property
    def keys(self) -> tuple[str, ...]:
        """SQL of what tells rows of equal time apart."""
        return tuple(column.use().sql for column in self.row_key)

    @property
    def order(self) -> tuple[str, ...]:
        """SQL of what orders the rows along the time line."""
        return (self.time.use().sql, *self.keys) if self.time is not None else ()


@dataclass(eq=False, slots=True)
class ScanSlot:
    """A `Scan` in the making: its columns are known when all expressions are compiled."""

    name: str
    table: Table
    columns: tuple[RelColumn, ...]
    first_ts: int | None = None
    last_ts: int | None = None
    tuids: tuple[int, ...] | None = None
    cuts: tuple[Cut, Cut] | None = None

    def scan(self) -> Scan:
        """Returns the scan, with the columns that are used by now."""
        used = tuple(column.name for column in self.columns if column.used)
        return Scan(self.name, self.table, used, self.first_ts, self.last_ts, self.tuids, self.cuts)


@dataclass(slots=True)
class Builder:
    """Collects the CTEs, scans and constant tables of one statement.

    `text` is the statement's, `base` where it begins in the text that expressions were parsed from. `ordered`: rows
    have an order where the statement doesn't ask for one.
    """

    catalog: CatalogView
    session: Session
    text: str
    base: int = 0
    ordered: bool = True
    scans: list[ScanSlot] = field(default_factory=list)
    tables: list[tuple[str, pa.Table]] = field(default_factory=list)
    _steps: list[tuple[str, Callable[[], str]]] = field(default_factory=list)
    _names: int = 0

    def fresh(self, prefix: str) -> str:
        """Returns a CTE name that no other step of the statement has."""
        self._names += 1
        return f"{prefix}_{self._names}"

    def step(self, prefix: str, sql: str | Callable[[], str]) -> str:
        """Adds a CTE and returns its name; a callable is asked for its text when all used columns are known."""
        name = self.fresh(prefix)
        self._steps.append((name, sql if callable(sql) else lambda: sql))
        return name

    def render(self, last: str) -> str:
        """Returns the SQL of the whole statement, whose rows are those of the query `last`.

        Raises InvalidStatementError where it has more steps than DuckDB can bind in each other.
        """
        if len(self._steps) > MAX_STEPS:
            raise InvalidStatementError(
                f"the query has {len(self._steps)} steps, at most {MAX_STEPS} are possible: each SELECT and each table "
                "counts", hint="unite or join fewer queries at once")
        steps = ",\n".join(f"{name} AS ({sql()})" for name, sql in self._steps)
        return f"WITH {steps}\n{last}" if steps else last

    def position(self, node: exp.Expression) -> Position | None:
        """Returns where an expression stands in the statement, if it was parsed from it."""
        start, end = source_range(node)
        return position(self.text, start - self.base, end - start) if end > start else None

    def error(self, message: str, node: exp.Expression | None = None, *, code: int | None = None,
              hint: str | None = None) -> InvalidStatementError:
        """Returns the error for something that is not allowed at `node`."""
        at = self.position(node) if node is not None else None
        return InvalidStatementError(message, code=code, hint=hint, position=at)


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """Returns a hint that names the known name most like `name`, or None."""
    close = get_close_matches(name, list(known), n=1)
    return f"did you mean {close[0]}?" if close else None


def resolve_table(name: Name, builder: Builder) -> Table:
    """Returns the table that `name` means; raises NotFoundError, or InvalidStatementError without a database."""
    database = name.database or builder.session.database
    at = position(builder.text, name.offset - builder.base, len(str(name))) if builder.text else None
    if database is None:
        raise InvalidStatementError(f"no database is in use to look up {name.name} in", code=NO_DATABASE, position=at,
                                    hint="USE a database, or write database.table")
    if builder.catalog.database(database) is None:
        raise NotFoundError(f"database {database} does not exist", code=UNKNOWN_DATABASE, position=at)
    table = builder.catalog.table(database, name.name)
    if table is None:
        raise NotFoundError(f"table {database}.{name.name} does not exist", code=UNKNOWN_TABLE, position=at,
                            hint=did_you_mean(name.name, builder.catalog.table_names(database)))
    return table


def outside_relation(source: OutsideSource, builder: Builder, precision: Precision) -> Relation:
    """Returns the relation of a table of a server outside, with timestamps of this precision.

    Raises NotFoundError for unknown connections and tables, and OutsideErrors if the server can't be asked.
    """
    name = source.connection
    connection = builder.catalog.outside(name.name)
    if connection is None:
        raise NotFoundError(f"connection {name.name} does not exist",
                            position=position(builder.text, name.offset - builder.base, len(name.name)),
                            hint=did_you_mean(name.name, builder.catalog.outside_names()))
    table = builder.catalog.outside_table(connection.name, source.table)
    columns = tuple(replace(column, type=_with_precision(column.type, precision)) for column in table.columns)
    return scan_table(replace(table, columns=columns), source.alias, builder, precision=precision)


def bind_sides(source: JoinSource, bind: Callable[[Source, Precision], Relation]) -> tuple[Relation, Relation]:
    """Returns both sides of a join. What comes from outside takes the precision of the other side."""
    if isinstance(source.left, OutsideSource):
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
    stored = table.kind not in ("system", "tags", "outside")
    database = builder.catalog.database(table.database) if table.kind not in ("system", "outside") else None
    if database is not None:
        precision = database.precision
    qualifier = alias or table.name
    columns = [RelColumn(c.name, _with_precision(c.type, precision), quote_name(c.name), qualifier)
               for c in table.columns]
    tags = [RelColumn(c.name, _with_precision(c.type, precision), quote_name(c.name), qualifier, "tag")
            for c in table.tags]
    members = (*columns, *tags)
    if stored and table.column("tbname") is None:
        members = (*members, RelColumn("tbname", TBNAME, "tbname", qualifier, "tbname"))
    slot = ScanSlot(builder.fresh("scan"), table, members)
    if cuts is not None:
        if table.kind == "system":
            raise InvalidStatementError(f"{table.name} is a system table: it has no cuts")
        slot.cuts = (parse_cut(cuts[0]), parse_cut(cuts[1]))
    builder.scans.append(slot)
    key: tuple[RelColumn, ...] = ()
    if stored:
        key = (RelColumn("_tuid", UBIGINT, "_tuid"), *([columns[1]] if table.key_column is not None else []))
    time = columns[0] if stored else None
    return Relation(
        name=slot.name, columns=members, star=(*columns, *tags) if table.kind == "super" else tuple(columns),
        time=time, precision=precision, tree=lambda: _scan_node(slot), table=table, row_key=key,
        qualifiers=(qualifier,), times=((time, slot),) if time is not None else (),
    )


def _with_precision(type_: DataType, precision: Precision) -> DataType:
    return replace(type_, precision=precision) if type_.kind is Kind.TIMESTAMP else type_


def _scan_node(slot: ScanSlot) -> PlanNode:
    scan = slot.scan()
    properties = [("table", f"{scan.table.database}.{scan.table.name}"), ("kind", scan.table.kind),
                  ("columns", " ".join(scan.columns) or "none")]
    if scan.tuids is not None:
        properties.append(("tables", str(len(scan.tuids))))
    if scan.first_ts is not None or scan.last_ts is not None:
        first = "" if scan.first_ts is None else str(scan.first_ts)
        last = "" if scan.last_ts is None else str(scan.last_ts)
        properties.append(("time", f"[{first}..{last}]"))
    return PlanNode("Scan", tuple(properties))


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
    builder.tables.append((name, children_table(table, builder.catalog)))
    unused = {id(slot) for _, slot in relation.times}
    builder.scans = [slot for slot in builder.scans if id(slot) not in unused]
    members = tuple(column for column in relation.columns if column.role != "column")
    tags = tuple(column for column in members if column.role == "tag")
    node = PlanNode("Tables", (("of", f"{table.database}.{table.name}"),))
    return replace(relation, name=name, columns=members, star=tags, time=None, tree=lambda: node, times=(),
                   row_key=())


def row_number_column() -> RelColumn:
    """Returns the column that tells rows of equal time apart where no table does; a step adds it if it is used."""
    return RelColumn("#n", BIGINT, '"#n"')


def find_column(relation: Relation, name: str, qualifier: str | None, node: exp.Expression,
                builder: Builder) -> RelColumn:
    """Returns the column of this name. Raises NotFoundError, or InvalidStatementError if several match."""
    if qualifier is not None and qualifier not in relation.qualifiers:
        raise NotFoundError(f"there is no table {qualifier} in FROM", code=UNKNOWN_TABLE,
                            position=builder.position(node), hint=did_you_mean(qualifier, relation.qualifiers))
    if name.startswith(COLUMN_MARK):
        return relation.star[int(name[len(COLUMN_MARK):])]
    matches = [column for column in relation.columns
               if column.name == name and (qualifier is None or column.qualifier == qualifier)]
    if len(matches) == 1:
        return matches[0]
    shown = f"{qualifier}.{name}" if qualifier else name
    if not matches:
        known = dict.fromkeys(column.name for column in relation.columns
                              if column.role != "tbname" and qualifier in (None, column.qualifier))
        where = qualifier or (relation.table.name if relation.table is not None else None)
        raise NotFoundError(f"column {shown} does not exist" + (f" in {where}" if where and not qualifier else ""),
                            code=INVALID_COLUMN, position=builder.position(node), hint=did_you_mean(name, known))
    hint = "write " + " or ".join(f"{column.qualifier}.{name}" for column in matches if column.qualifier)
    raise InvalidStatementError(f"column {shown} is ambiguous", code=AMBIGUOUS_COLUMN,
                                position=builder.position(node), hint=hint if relation.qualifiers else None)


def qualifier_of(node: exp.Expression) -> str | None:
    """Returns the table part of a column reference, or None."""
    table = node.args.get("table")
    return table.name if isinstance(table, exp.Identifier) else None


def is_pseudo(node: exp.Expression, *names: str) -> bool:
    """Tells whether the node is one of these pseudo columns."""
    if not isinstance(node, exp.Column) or not isinstance(node.this, exp.Identifier):
        return False
    return not node.this.quoted and node.this.this in names
