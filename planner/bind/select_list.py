"""The SELECT list: what `*`, `last(*)` and COLS stand for."""

from __future__ import annotations

from sqlglot import exp

from penstock.common.suggestions import did_you_mean
from penstock.planner.bind.binder import Builder, Relation, check_qualifier, qualifier_of
from penstock.planner.bind.query_parts import Item, call_of, is_star, starred, text_of
from penstock.planner.bind.scopes import vector_spec
from penstock.sql.tree.expression_nodes import quote_identifier
from penstock.sql.tree.statements import Select
from penstock.sql.tree.walking import unwrapped


def expand_items(select: Select, relation: Relation, builder: Builder) -> list[Item]:
    """Returns the SELECT list with one item per result column."""
    items: list[Item] = []
    for item in select.items:
        node = item.expression
        if isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star)):
            items += _expand_star(node, relation, builder)
            continue
        call = unwrapped(node)
        spec = vector_spec(call)
        if spec is not None and spec.expands and (len(call.expressions) > 1 or any(map(is_star, call.expressions))):
            items += _expand_call(call, spec.name, relation)
        elif spec is not None and spec.of_call and len(call.expressions) > 1:
            items += _expand_cols(call)
        else:
            plain = node.name if isinstance(node, exp.Column) else None
            alias = item.alias if item.alias is not None else plain
            # A name in back-quotes is shown without them.
            bare = alias is not None and item.text == quote_identifier(alias)
            items.append(Item(node, alias if bare and alias is not None else item.name, alias))
    return items


def _expand_star(node: exp.Expression, relation: Relation, builder: Builder) -> list[Item]:
    qualifier = qualifier_of(node)
    if qualifier is not None:
        check_qualifier(relation, qualifier, node, builder)
    columns = relation.starred(qualifier)
    star = node.this if isinstance(node, exp.Column) else node
    excluded = {each.name: each for each in star.args.get("except_") or ()}
    replaced = {each.alias: each for each in star.args.get("replace") or ()}
    renamed = {each.this.name: each for each in star.args.get("rename") or ()}
    known = {column.name for _, column in columns}
    for name in excluded.keys() & (replaced.keys() | renamed.keys()):
        raise builder.error(f"* can't EXCLUDE {name} and have another one in its place", excluded[name])
    for changes in (excluded, replaced, renamed):
        for name, change in changes.items():
            if name not in known:
                raise builder.error(f"* has no column {name}", change, code=0x2602, hint=did_you_mean(name, known))
    items = []
    for index, column in columns:
        if column.name in replaced:
            items.append(Item(replaced[column.name].this, column.name, column.name))
        elif column.name not in excluded:
            name = renamed[column.name].alias if column.name in renamed else column.name
            items.append(Item(starred(index, column, node), name, name))
    return items


def _expand_call(call: exp.Expression, name: str, relation: Relation) -> list[Item]:
    items = []
    for argument in call.expressions:
        if not is_star(argument):
            text = text_of(argument)
            items.append(Item(call_of(name, [argument], call), f"{name}({text})", None))
            continue
        qualifier = qualifier_of(argument)
        for index, column in relation.starred(qualifier):
            if column.role == "column":
                one = call_of(name, [starred(index, column, argument)], call)
                items.append(Item(one, f"{name}({column.name})", None))
    return items


def _expand_cols(call: exp.Expression) -> list[Item]:
    items = []
    for argument in call.expressions[1:]:
        alias = argument.alias if isinstance(argument, exp.Alias) else None
        value = argument.this if isinstance(argument, exp.Alias) else argument
        name = alias if alias is not None else text_of(value)
        items.append(Item(call_of(str(call.this), [call.expressions[0], value], call), name, name))
    return items
