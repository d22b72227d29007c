"""The lookup join of a stream: its rows find rows of another table by equal values, without regard to time.

Source tasks keep a copy of that table, and join before anything else; what follows sees wider rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sqlglot import exp

from penstock.common.errors import InvalidStreamError
from penstock.planner.bind.binder import (
    TBNAME,
    Builder,
    Relation,
    find_column,
    qualifier_of,
    resolve_table,
    scan_table,
)
from penstock.planner.bind.join_reading import JoinReading
from penstock.planner.duckdb_sql.duckdb_tree import column as duckdb_column
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.expr import Column as LogicalColumn
from penstock.planner.logical.operators import LookedUp, Lookup, Operator, Scan
from penstock.planner.task_plans.stream_plan import LOOKUP
from penstock.sql.schema import Column, Table
from penstock.sql.tree.statements import Select, Source, SubquerySource, TableSource


@dataclass(slots=True)
class BoundLookup:
    """What a stream looks up in while it is planned.

    `own`: the table whose rows look up, as the query has it; its columns go first. `name` and `own_name` are what the
    query calls both; `both` has the columns of both. `on`: the condition, None if WHERE has it, which becomes
    `condition` when it is bound. `outer`: rows that find nothing stay, with NULLs.
    """

    own: Source
    own_name: str
    table: Table
    name: str
    on: exp.Expression | None
    outer: bool
    both: Relation
    builder: Builder
    used: dict[str, LookedUp] = field(default_factory=dict)
    condition: SqlExpr | None = None

    def column(self, name: str, qualifier: str | None, node: exp.Expression) -> SqlExpr | None:
        """Returns the column that is looked up, None if the name is for the stream's own table.

        Raises NotFoundError for unknown tables and columns, InvalidStatementError for names that both tables have.
        """
        found = find_column(self.both, name, qualifier, node, self.builder)
        if found.qualifier != self.name:
            return None
        inner = f"#{self.name}.{name}"
        self.used[name] = LookedUp(inner, LogicalColumn(name, found.type))
        return SqlExpr(duckdb_column(inner), found.type)

    def pseudo(self, name: str, node: exp.Expression) -> SqlExpr | None:
        """Returns what a name such as tbname means in the table that is looked up in, None if it isn't asked of that.

        Raises InvalidStreamError if there is no such column.
        """
        if qualifier_of(node) != self.name:
            return None
        if self.table.column(name) is None:
            raise InvalidStreamError(f"{name} is not looked up: it is of the stream's own table, {self.own_name}",
                                     position=self.builder.position(node))
        return self.column(name, self.name, node)

    def is_own(self, node: exp.Expression) -> bool:
        """Whether a column isn't said to be of the table that is looked up in."""
        return qualifier_of(node) != self.name

    def over(self, rows: Operator) -> Lookup:
        """Returns the rows with what they find, once all expressions are compiled."""
        columns = tuple(self.used.values())
        scan = Scan(LOOKUP, self.table, tuple(found.column.name for found in columns), precision=self.both.precision)
        return Lookup(rows, scan, self.condition, columns, self.outer, self.on)


def tags_relation(source: SubquerySource, query: Select, builder: Builder) -> Relation:
    """Returns the relation of the tags of child tables, a row each: (SELECT TAGS tbname, tag FROM table) alias.

    Raises InvalidStreamError for what isn't a plain list of tags.
    """
    hint = "write (SELECT TAGS tbname, tag AS name FROM table) alias"
    plain = query.with_changes(items=(), source=None, tags_only=False)
    if not isinstance(query.source, TableSource) or plain != Select(items=(), source=None) or source.alias is None:
        raise InvalidStreamError("tags that a stream looks up in are a list of them, with an alias", hint=hint)
    table = resolve_table(query.source.name, builder)
    if table.kind != "super":
        raise InvalidStreamError(f"{table.name} is not a super table: it has no tags to look up in")
    known = {"tbname": TBNAME, **{tag.name: tag.type for tag in table.tags}}
    columns = []
    for item in query.items:
        name = item.expression.name if isinstance(item.expression, exp.Column) else ""
        if name not in known:
            raise InvalidStreamError(f"{item.text} is no tag of {table.name}", hint=hint,
                                     position=builder.position(item.expression))
        columns.append(Column(item.alias or name, known[name], name))
    of = replace(table, kind="tags", columns=tuple(columns), tags=())
    return scan_table(of, source.alias, builder)


def lookup_of(join: JoinReading) -> BoundLookup:
    """Returns the lookup that a join is, in which `looked_up` is set."""
    assert join.looked_up is not None
    found = join.sides.relation(join.looked_up)
    own = join.sides.left if join.looked_up == "r" else join.sides.right
    assert found.table is not None
    # Names such as tbname are no columns: `pseudo` knows them.
    columns = tuple(column for column in join.sides.inside.columns if column.role != "tbname")
    return BoundLookup(
        own=join.source.left if join.looked_up == "r" else join.source.right, own_name=own.qualifiers[0],
        table=found.table, name=found.qualifiers[0], on=join.source.on, outer=join.source.kind != "inner",
        both=replace(join.sides.inside, columns=columns), builder=join.builder)
