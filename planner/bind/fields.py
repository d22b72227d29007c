"""`x.a`, `t.x.a` and `x.a.b` where x is no table but a column that is a struct."""

from __future__ import annotations

from sqlglot import exp

from penstock.planner.bind.binder import Builder, Relation, qualifier_of
from penstock.planner.bind.query_parts import call_of, column_reference
from penstock.planner.bind.scopes import replaced
from penstock.sql.tree.statements import Select
from penstock.sql.types import Kind


def with_fields(select: Select, relation: Relation, builder: Builder) -> Select:
    """Returns the query with such fields, of columns of queries around it too, as calls of struct_extract."""
    relations = [(each, _structs(each)) for each in (relation, *(rows.relation for rows in builder.around))
                 if each is not None]
    if not any(structs for _, structs in relations):
        return select

    def replacement(node: exp.Expression) -> exp.Expression | None:
        name = qualifier_of(node) if isinstance(node, exp.Column) and isinstance(node.this, exp.Identifier) else None
        if name is None:
            return None
        database = node.text("db")
        for each, structs in relations:
            if (database, name) in each.homes if database else name in each.qualifiers:
                return None
            if database in structs and database not in each.qualifiers:
                return _field(_field(column_reference(database), name, node), node.name, node)
            if name in structs and (not database or database in each.qualifiers):
                column = column_reference(name)
                column.set("table", node.args.get("db"))
                return _field(column, node.name, node)
        return None

    found = replaced(select, replacement)
    assert isinstance(found, Select)
    return found


def _structs(relation: Relation) -> set[str]:
    return {column.name for column in relation.columns
            if column.type.kind is Kind.OTHER and column.type.sql().startswith("STRUCT(")}


def _field(of: exp.Expression, name: str, node: exp.Expression) -> exp.Anonymous:
    of.meta.update(node.meta)
    return call_of("struct_extract", [of, exp.Literal.string(name)], node)
