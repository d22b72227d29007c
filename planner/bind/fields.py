"""`x.a` and `t.x.a` where x is no table but a column that is a struct."""

from __future__ import annotations

from sqlglot import exp

from penstock.planner.bind.binder import Relation, qualifier_of
from penstock.planner.bind.query_parts import call_of, column_reference
from penstock.planner.bind.scopes import replaced
from penstock.sql.tree.statements import Select


def with_fields(select: Select, relation: Relation) -> Select:
    """Returns the query with such fields as calls of struct_extract."""
    structs = {column.name for column in relation.columns if column.type.sql().startswith("STRUCT(")}

    def replacement(node: exp.Expression) -> exp.Expression | None:
        if not isinstance(node, exp.Column) or not isinstance(node.this, exp.Identifier):
            return None
        name, table = qualifier_of(node), node.text("db")
        is_table = (table, name) in relation.homes if table else name in relation.qualifiers
        if name not in structs or is_table or (table and table not in relation.qualifiers):
            return None
        column = column_reference(str(name))
        column.set("table", node.args.get("db"))
        column.meta.update(node.meta)
        return call_of("struct_extract", [column, exp.Literal.string(node.name)], node)

    found = replaced(select, replacement) if structs else select
    assert isinstance(found, Select)
    return found
