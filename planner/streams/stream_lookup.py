"""The lookup join of a stream: its rows find rows of another table by equal values, without regard to time.

Source tasks keep a copy of that table, and join before anything else; what follows sees wider rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlglot import exp

from penstock.common.errors import InvalidStreamError
from penstock.planner.bind.binder import TBNAME, Builder, Relation, RelColumn, resolve_table, scan_table
from penstock.planner.bind.join_reading import JoinReading
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.logical.expr import ColumnExpr
from penstock.planner.logical.operators import LookedUp, Lookup, Operator, Scan
from penstock.planner.task_plans.stream_plan import LOOKUP
from penstock.sql.schema import Column, Table
from penstock.sql.tree.statements import Select, Source, SubquerySource, TableSource


@dataclass(frozen=True, slots=True)
class BoundLookup:
    """What a stream looks up in while it is planned.

    `own`: the table whose rows look up, as the query has it. `rows`: these with the columns that they find, `found`,
    behind theirs. `on`: the condition, None if WHERE has it. `outer`: rows that find nothing stay, with NULLs.
    """

    own: Source
    table: Table
    on: exp.Expression | None
    outer: bool
    rows: Relation
    found: tuple[RelColumn, ...]

    def over(self, rows: Operator, condition: SqlExpr | None) -> Lookup:
        """Returns the rows with what they find, once all expressions are compiled. `condition`: `on`, bound."""
        columns = tuple(LookedUp(found.column, ColumnExpr(found.name, found.type))
                        for found in self.found if found.used)
        scan = Scan(LOOKUP, self.table, tuple(found.column.name for found in columns), precision=self.rows.precision)
        return Lookup(rows, scan, condition, columns, self.outer, self.on)


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
    relation = join.sides.relation(join.looked_up)
    own = join.sides.left if join.looked_up == "r" else join.sides.right
    table, name = relation.table, relation.qualifiers[0]
    assert table is not None
    # A table's own name is not among what is looked up: the copy that source tasks keep has no tables.
    found = tuple(replace(column, column=f"#{name}.{column.name}") for column in relation.columns
                  if column.role != "tbname")
    rows = replace(own, columns=(*own.columns, *found), star=(*own.star, *found),
                   qualifiers=(*own.qualifiers, *relation.qualifiers), homes=(*own.homes, *relation.homes))
    return BoundLookup(join.source.left if join.looked_up == "r" else join.source.right, table, join.source.on,
                       join.source.kind != "inner", rows, found)
