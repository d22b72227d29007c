"""Queries as sqlglot's own classes, for who comes by sqlglot: so its lineage, scopes, diff and generators know them.

What is like in other dialects becomes `exp.Select`, `exp.Union`, `exp.Table`, `exp.Join` and so on. A query with
clauses of TDengine's own is a `TDengineSelect`, a join with such a `TDengineJoin`: sqlglot's tools walk over them as
over their bases, and generators of other dialects refuse them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlglot import exp

from penstock.sql.dialect.generator import needs_quotes
from penstock.sql.tree import statements as st
from penstock.sql.tree.expression_nodes import TDengineJoin, TDengineSelect
from penstock.sql.tree.node import Node

_CLAUSES = ("tags_only", "partition_by", "window", "fill", "range", "every", "slimit", "into_file")


def as_sqlglot(tree: Any) -> Any:
    """Returns a tree with all queries in it, or the query itself, as sqlglot's classes. The given one is used up."""
    if isinstance(tree, st.Select):
        return _select(tree)
    if isinstance(tree, st.SetOperation):
        return _set_operation(tree)
    if isinstance(tree, st.ValuesQuery):
        return _values(tree)
    if isinstance(tree, Node):
        for key, value in tree.args.items():
            if key == "query" and isinstance(tree, st.CreateStream) and tree.calculation is not None:
                continue  # a trigger, which nobody has written as a query
            if isinstance(value, Node):
                tree.set(key, as_sqlglot(value))
            elif type(value) is list:
                tree.set(key, [as_sqlglot(item) for item in value])
    return tree


def _select(select: st.Select) -> exp.Expression:
    own = {name: value for name in _CLAUSES if (value := select.args.get(name))}
    aliased = any(item.alias is not None for item in select.group_by)
    query = TDengineSelect(**own) if own or aliased else exp.Select()
    query.set("expressions", [_aliased(item) for item in select.items])
    if select.distinct or select.distinct_on:
        on = exp.Tuple(expressions=list(select.distinct_on)) if select.distinct_on else None
        query.set("distinct", exp.Distinct(on=on))
    if select.source is not None:
        first, joins = _source(select.source)
        query.set("from_", exp.From(this=first))
        if joins:
            query.set("joins", joins)
    if select.where is not None:
        query.set("where", exp.Where(this=select.where))
    if select.group_by:
        query.set("group", exp.Group(expressions=[_aliased(item) for item in select.group_by]))
    if select.having is not None:
        query.set("having", exp.Having(this=select.having))
    if select.windows:
        query.set("windows", [_named_window(named) for named in select.windows])
    if select.qualify is not None:
        query.set("qualify", exp.Qualify(this=select.qualify))
    for call in list(query.find_all(exp.Anonymous)):
        _say_what_is_taken(call)
    return _ended(_with_inner(query), select)


def _with_inner(tree: exp.Expression) -> exp.Expression:
    """Makes the queries in the expressions of a tree sqlglot's, too."""
    for part in list(tree.find_all(exp.Subquery, exp.Exists, exp.Any, exp.All)):
        if isinstance(part.this, Node):
            part.set("this", as_sqlglot(part.this))
    return tree


def _named_window(named: st.NamedWindow) -> exp.Expression:
    window = named.window
    window.set("this", _identifier(named.name))
    window.set("over", None)
    return window


def _say_what_is_taken(call: exp.Anonymous) -> None:
    """Puts DISTINCT and ORDER BY of a call where sqlglot has them: around its arguments."""
    if call.args.get("distinct"):
        call.set("expressions", [exp.Distinct(expressions=call.expressions)])
        call.set("distinct", None)
    order = call.args.get("order")
    if order is not None:
        *others, last = call.expressions or [None]
        call.set("expressions", [*others, exp.Order(this=last, expressions=order.expressions)])
        call.set("order", None)


def _values(query: st.ValuesQuery) -> exp.Expression:
    if query.into_file is not None:
        return query
    rows = exp.Values(expressions=list(query.rows))
    if not query.ctes:
        return _ended(rows, query)
    select = exp.Select(expressions=[exp.Star()], from_=exp.From(this=exp.Subquery(this=rows)))
    return _ended(select, query)


_SET_OPERATIONS = {"union": exp.Union, "intersect": exp.Intersect, "except": exp.Except}


def _set_operation(operation: st.SetOperation) -> exp.Expression:
    if operation.into_file is not None:
        return operation
    query, *others = (_member(member) for member in operation.queries)
    for other in others:
        query = _SET_OPERATIONS[operation.kind](this=query, expression=other, distinct=not operation.all,
                                                by_name=operation.by_name or None)
    return _ended(query, operation)


def _member(query: st.Query) -> exp.Expression:
    bare = isinstance(query, st.Select) and not (query.ctes or query.order_by or query.limit or query.slimit)
    member = as_sqlglot(query)
    return member if bare else exp.Subquery(this=member)


def _ended(query: exp.Expression, of: st.Query) -> exp.Expression:
    """Adds WITH, ORDER BY and LIMIT. Rows without a value come first, as for sqlglot where nulls are small."""
    if of.ctes:
        recursive = any(cte.recursive for cte in of.ctes)
        query.set("with_", exp.With(expressions=[_cte(cte) for cte in of.ctes], recursive=recursive or None))
    if of.order_by:
        query.set("order", exp.Order(expressions=[
            exp.Ordered(this=item.expression, desc=item.descending,
                        nulls_first=not item.descending if item.nulls_first is None else item.nulls_first)
            for item in of.order_by]))
    if of.limit is not None:
        if of.limit.count is not None:
            query.set("limit", exp.Limit(expression=_row_count(of.limit.count), limit_options=exp.LimitOptions(
                percent=True) if of.limit.percent else None))
        if of.limit.offset:
            query.set("offset", exp.Offset(expression=_row_count(of.limit.offset)))
    return query


def _row_count(count: int | exp.Expression) -> exp.Expression:
    return exp.Literal.number(count) if isinstance(count, int) else _with_inner(count)


def _cte(cte: st.Cte) -> exp.Expression:
    columns = [_identifier(name) for name in cte.columns]
    return exp.CTE(this=as_sqlglot(cte.query), alias=exp.TableAlias(this=_identifier(cte.name), columns=columns),
                   key_expressions=[_identifier(name) for name in cte.key_columns] or None)


def _aliased(item: st.SelectItem | st.PartitionItem) -> exp.Expression:
    return item.expression if item.alias is None else exp.Alias(this=item.expression, alias=_identifier(item.alias))


def _identifier(name: str) -> exp.Expression:
    return exp.Identifier(this=name, quoted=needs_quotes(name))


def _table_alias(alias: str | None, columns: Iterable[str] = ()) -> exp.Expression | None:
    return None if alias is None else exp.TableAlias(this=_identifier(alias), columns=list(map(_identifier, columns)))


def _source(source: st.Source) -> tuple[exp.Expression, list[exp.Expression]]:
    """Returns the first table and the joins with the others."""
    joins: list[exp.Expression] = []
    comma = True  # which binds looser than JOIN, so that nothing but commas may follow
    while isinstance(source, st.JoinSource):
        comma = comma and source.kind == "inner" and not (source.on or source.variant or source.using or source.natural)
        joins.append(_join(source, comma))
        source = source.left
    return _single(source), joins[::-1]


def _single(source: st.Source) -> exp.Expression:
    if isinstance(source, st.JoinSource):
        first, joins = _source(source)
        if isinstance(first, Node):
            first = exp.Subquery(this=first)
        first.set("joins", joins)
        return exp.Subquery(this=first)
    if isinstance(source, st.SubquerySource):
        alias = _table_alias(source.alias, source.columns)
        query = as_sqlglot(source.query)
        if source.lateral:
            return exp.Lateral(this=exp.Subquery(this=query), alias=alias)
        if isinstance(query, exp.Values) and alias is not None:
            query.set("alias", alias)
            return query
        return exp.Subquery(this=query, alias=alias)
    if isinstance(source, st.FunctionSource):
        return exp.Table(this=source.call, alias=_table_alias(source.alias, source.columns))
    if isinstance(source, st.TableSource) and source.name.database == st.TRIGGER:
        return exp.Table(this=exp.Identifier(this=st.TRIGGER + source.name.name, quoted=False),
                         alias=_table_alias(source.alias))
    if isinstance(source, st.TableSource) and source.cuts is None:
        database = source.name.database
        return exp.Table(this=_identifier(source.name.name), db=None if database is None else _identifier(database),
                         alias=_table_alias(source.alias))
    return source


def _join(source: st.JoinSource, comma: bool) -> exp.Expression:
    """Returns an `exp.Join`: an outer one has a side, a semi join also a kind, one with ON or a comma neither."""
    side = None if source.kind == "inner" else source.kind.upper()
    bare = source.on is None and not source.using and not source.natural
    kind = source.variant.upper() or ("INNER" if side is None and bare and not comma else None)
    using = list(map(_identifier, source.using)) or None
    if source.variant in ("", "semi", "anti"):
        return exp.Join(this=_single(source.right), on=source.on, side=side, kind=kind, using=using,
                        method="NATURAL" if source.natural else "ASOF" if source.nearest else None)
    return TDengineJoin(this=_single(source.right), on=source.on, side=side, method=source.variant.upper(), using=using,
                        window=source.window, jlimit=source.jlimit)
