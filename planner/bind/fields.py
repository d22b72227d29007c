"""`x.a`, `t.x.a` and `x.a.b` where x is no table but a column that is a struct."""

from __future__ import annotations

from sqlglot import exp

from penstock.planner.bind.binder import Relation, qualifier_of
from penstock.planner.bind.query_parts import call_of, column_reference
from penstock.planner.bind.scopes import replaced
from penstock.sql.tree.statements import Select
from penstock.sql.types import Kind


def with_fields(select: Select, relation: Relation) -> Select:
    """Returns the query with such fields as calls of struct_extract."""
    structs = {column.name for column in relation.columns
               if column.type.kind is Kind.OTHER and column.type.sql().startswith("STRUCT(")}
    if not structs:
        return select

    def replacement(node: exp.Expression) -> exp.Expression | None:
        if not isinstance(node, exp.Column) or not isinstance(node.this, exp.Identifier):
            return None
        name, table = qualifier_of(node), node.text("db")
        if table in structs and table not in relation.qualifiers and (table, name) not in relation.homes:
            return _field(_field(column_reference(table), str(name), node), node.name, node)
        is_table = (table, name) in relation.homes if table else name in relation.qualifiers
        if name not in structs or is_table or (table and table not in relation.qualifiers):
            return None
        column = column_reference(str(name))
        column.set("table", node.args.get("db"))
        return _field(column, node.name, node)

    found = replaced(select, replacement)
    assert isinstance(found, Select)
    return found


def _field(of: exp.Expression, name: str, node: exp.Expression) -> exp.Anonymous:
    of.meta.update(node.meta)
    return call_of("struct_extract", [of, exp.Literal.string(name)], node)
