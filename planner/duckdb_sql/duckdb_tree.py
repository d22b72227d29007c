"""DuckDB SQL as sqlglot trees: fragments with holes make them, and `render` prints them.

The trees are of a DuckDB dialect in which a call of a function is always `exp.Anonymous` with its own name, so that
what DuckDB is given is what was written here, and whoever reads a tree looks for that name.

A tree doesn't change once it is made, so that trees share their parts: a node says nothing of what it is part of.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, TypeAlias, TypeVar

from sqlglot import exp

from penstock.planner.duckdb_sql.duckdb_print import PlainDuckDB
from penstock.planner.duckdb_sql.duckdb_print import render as render
from penstock.sql.tree.statements import RECURRING
from penstock.sql.tree.walking import found_in

Tree: TypeAlias = exp.Expression
_LOOSE = (exp.Binary, exp.Unary, exp.Between, exp.In, exp.Lambda, exp.Case, exp.Filter)
"""What must stand in parentheses next to an operator. Operators aren't compared: more parentheses do no harm."""
_CLOSED = (exp.Paren, exp.Dot, exp.Cast, exp.TryCast, exp.Bracket)
_SHORT = 40
"""How long a literal may be that is written more than once."""
VOLATILE = frozenset({"random", "uuid", "uuidv4", "uuidv7", "gen_random_uuid"})
"""DuckDB's functions that give another value whenever they are computed."""
_NAMES = 4096
"""How many names are kept that were met before."""
_TIGHT = (exp.Binary, exp.Unary, exp.Between, exp.In, exp.Bracket)


Hole: TypeAlias = "Tree | int | str"
_Maker: TypeAlias = "Callable[[Mapping[str, Hole]], Tree]"
_Node = TypeVar("_Node", bound=exp.Expression)


def fragment(template: str, **holes: Hole) -> Tree:
    """Returns the expression that `template` spells in DuckDB's SQL, with each `:name` replaced by `holes[name]`.

    The template is parsed once, so it is text that doesn't depend on the statement: values go into holes. An int is put
    there as a number, a str as a text literal. A word of SQL, such as `on`, can't name a hole. Raises KeyError for a
    hole without a value.
    """
    return _parsed(template).filled(**holes)


def hole(name: str) -> Tree:
    """Returns a hole, to make a template of trees."""
    return made(exp.Placeholder, this=name)


def parameter(name: str, type_name: str) -> exp.Cast:
    """Returns a value of a SQL type that DuckDB is given by this name when it runs the statement."""
    return cast(made(exp.Parameter, this=made(exp.Var, this=name)), type_name)


def parameters_of(*trees: Tree) -> tuple[str, ...]:
    """Returns the names of the values that DuckDB must be given for some trees."""
    return tuple(dict.fromkeys(found.name for tree in trees for found in found_in(tree, exp.Parameter)))


class Template:
    """A tree with holes. What is above its holes is made anew whenever it is filled, all else is shared."""

    def __init__(self, tree: Tree) -> None:
        self._maker = _maker(tree)

    def filled(self, **holes: Hole) -> Tree:
        """Returns the tree with its holes filled, as `fragment` fills those of text."""
        return self._maker(holes)


def parse_tree(sql: str) -> Tree:
    """Returns DuckDB SQL as a tree: of an expression, or a whole SELECT."""
    found: Tree = exp.maybe_parse(sql, dialect=PlainDuckDB)
    return found


def printed(tree: Tree) -> exp.Var:
    """Returns the tree as text that is printed as it is: for what is part of several queries."""
    return made(exp.Var, this=render(tree))


def let(value: Tree, body: Callable[[Tree], Tree]) -> Tree:
    """Returns `body` of a value, which is written and computed once, however often `body` uses what it is given.

    Without it, nesting functions whose SQL needs their argument twice would double the SQL at every level.
    """
    if _is_simple(value):
        return body(value)
    variable = _word(f"v{zlib.crc32(render(value).encode()):08x}")
    return _let(value, variable, body(variable))


def let_all(values: Sequence[Tree], body: Callable[..., Tree]) -> Tree:
    """Like `let`, for several values: `body` gets one tree per value."""
    if all(map(_is_simple, values)):
        return body(*values)
    fields = [_word(f"f{number}") for number in range(len(values))]
    struct = made(exp.Struct, expressions=[made(exp.PropertyEQ, this=name, expression=value)
                                           for name, value in zip(fields, values, strict=True)])
    variable = _word(f"v{zlib.crc32(render(struct).encode()):08x}")
    return _let(struct, variable, body(*(made(exp.Dot, this=variable, expression=name) for name in fields)))


def _word(name: str) -> exp.Identifier:
    return made(exp.Identifier, this=name, quoted=False)


def _let(value: Tree, variable: exp.Identifier, body: Tree) -> Tree:
    function = made(exp.Lambda, this=body, expressions=[variable], colon=True)
    mapped = call("list_transform", made(exp.Array, expressions=[value]), function)
    return made(exp.Bracket, this=mapped, expressions=[_digits("0")])


def _is_simple(value: Tree) -> bool:
    if isinstance(value, exp.Cast) and not isinstance(value, exp.TryCast):
        value = value.this
    while isinstance(value, exp.Neg | exp.Paren | exp.Dot):
        value = value.this
    if isinstance(value, exp.Literal):
        return len(value.this) <= _SHORT
    return isinstance(value, exp.Column | exp.Identifier | exp.Null | exp.Boolean | exp.Parameter)


def cast(tree: Tree, type_name: str) -> exp.Cast:
    """Returns `CAST(tree AS type_name)`."""
    return made(exp.Cast, this=tree, to=_type(type_name))


def try_cast(tree: Tree, type_name: str) -> exp.TryCast:
    """Returns `TRY_CAST(tree AS type_name)`."""
    return made(exp.TryCast, this=tree, to=_type(type_name))


def integer(value: int, type_name: str = "BIGINT") -> exp.Cast:
    """Returns an integer of a SQL type."""
    digits = _digits(str(abs(value)))
    return cast(made(exp.Neg, this=digits) if value < 0 else digits, type_name)


@lru_cache(maxsize=_NAMES)
def null(type_name: str) -> exp.Cast:
    """Returns NULL of a SQL type."""
    return cast(made(exp.Null), type_name)


def any_of(conditions: Sequence[Tree]) -> Tree:
    """Returns the conditions joined by OR, of which there may be very many; false if there are none."""
    return _joined(exp.Or, conditions) if conditions else exp.false()


def all_of(conditions: Sequence[Tree]) -> Tree:
    """Returns the conditions joined by AND, of which there may be very many; true if there are none."""
    return _joined(exp.And, conditions) if conditions else exp.true()


def _joined(connector: type[exp.Connector], conditions: Sequence[Tree]) -> Tree:
    # In halves: what calls itself over the tree goes down some levels only.
    if len(conditions) == 1:
        return conditions[0]
    trees = [_condition(condition) for condition in conditions]
    while len(trees) > 1:
        odd = trees[len(trees) // 2 * 2:]
        pairs = zip(trees[::2], trees[1::2], strict=False)
        trees = [made(connector, this=left, expression=right) for left, right in pairs] + odd
    return trees[0]


def _condition(tree: Tree) -> Tree:
    return made(exp.Paren, this=tree) if isinstance(tree, exp.Connector | exp.Not | exp.Between | exp.Lambda) else tree


@lru_cache(maxsize=_NAMES)
def _type(type_name: str) -> exp.DataType:
    found: exp.DataType = parse_tree(f"CAST(NULL AS {type_name})").args["to"].pop()
    return found


def call(name: str, *arguments: Tree) -> exp.Anonymous:
    """Returns a call of a DuckDB function."""
    return made(exp.Anonymous, this=name, expressions=list(arguments))


def called(tree: Tree) -> str | None:
    """Returns the name of the function that a tree calls, in small letters."""
    return str(tree.this).lower() if isinstance(tree, exp.Anonymous) else None


def or_null(value: Tree) -> Tree:
    """Returns a value that is NULL where it can't be computed.

    DuckDB doesn't try what may differ from call to call, nor what goes over other rows: errors of our own are NULL
    beforehand, what is volatile and numbers of rows never fail.
    """
    if isinstance(value, exp.Column | exp.Star):
        return value
    names = set(map(called, found_in(value, exp.Anonymous)))
    if "error" in names:
        value = value.transform(lambda node: exp.null() if called(node) == "error" else node)
    return value if names & VOLATILE or found_in(value, exp.Window) else call("TRY", value)


@lru_cache(maxsize=_NAMES)
def identifier(name: str) -> exp.Identifier:
    """Returns a name; names are always quoted."""
    return made(exp.Identifier, this=name, quoted=True)


@lru_cache(maxsize=_NAMES)
def column(name: str, table: str | None = None) -> exp.Column:
    """Returns a reference to a column."""
    return made(exp.Column, this=identifier(name), table=None if table is None else identifier(table))


def number(value: int | float) -> Tree:
    """Returns a finite number as it stands in SQL, with the type that DuckDB gives it."""
    digits = _digits(str(abs(value)))
    return made(exp.Paren, this=made(exp.Neg, this=digits)) if value < 0 else digits


def _digits(written: str) -> exp.Literal:
    return made(exp.Literal, this=written, is_string=False)


def text(value: str) -> exp.Literal:
    """Returns a text literal."""
    return made(exp.Literal, this=value, is_string=True)


def joined(*texts: Tree) -> Tree:
    """Returns texts joined by `||`; at least one."""
    whole = texts[0]
    for part in texts[1:]:
        whole = made(exp.DPipe, this=whole if isinstance(whole, exp.DPipe) else closed(whole), expression=closed(part))
    return whole


def named(tree: Tree, name: str) -> exp.Alias:
    """Returns `tree AS "name"`."""
    return made(exp.Alias, this=tree, alias=identifier(name))


def select(
    columns: Sequence[Tree], source: str | Tree | None = None, *, where: Tree | None = None,
    group_by: Sequence[Tree] = (), having: Tree | None = None, qualify: Tree | None = None,
    order_by: Sequence[Tree] = (), steps: Sequence[tuple[str, Tree]] = (), joins: Sequence[exp.Join] = (),
    limit: Tree | None = None, offset: Tree | None = None, percent: bool = False, distinct: bool = False,
) -> exp.Select:
    """Returns a SELECT. `source`: the name of a relation, or a SELECT; `steps`: what WITH names, in its order."""
    args: dict[str, Any] = {"expressions": list(columns)}
    if source is not None:
        args["from_"] = _from_named(source) if isinstance(source, str) else made(exp.From, this=_relation(source))
    if joins:
        args["joins"] = list(joins)
    if distinct:
        args["distinct"] = made(exp.Distinct)
    if limit is not None:
        count = limit if isinstance(limit, exp.Literal) else made(exp.Paren, this=limit)
        args["limit"] = made(exp.Limit, expression=count, limit_options=percent or None)
    if offset is not None:
        args["offset"] = made(exp.Offset, expression=offset)
    for key, kind, condition in (("where", exp.Where, where), ("having", exp.Having, having),
                                 ("qualify", exp.Qualify, qualify)):
        if condition is not None:
            args[key] = made(kind, this=condition)
    if group_by:
        args["group"] = made(exp.Group, expressions=list(group_by))
    if order_by:
        args["order"] = made(exp.Order, expressions=list(order_by))
    if steps:
        args["with_"] = made(exp.With, expressions=[_step(*step) for step in steps])
    return _node(exp.Select, args)


def extended(query: exp.Select, columns: Sequence[Tree] = (), joins: Sequence[exp.Join] = ()) -> exp.Select:
    """Returns the SELECT with more columns and joins behind its own ones."""
    args = query.args
    return made(exp.Select, **{**args, "expressions": [*query.expressions, *columns],
                               "joins": [*(args.get("joins") or ()), *joins]})


def with_steps(steps: Sequence[tuple[str, Tree]], query: exp.Query) -> exp.Query:
    """Returns the query with more steps before its own ones."""
    own = query.args.get("with_")
    named = [*(_step(*step) for step in steps), *(own.expressions if own is not None else ())]
    return made(type(query), **{**query.args, "with_": made(exp.With, expressions=named)}) if named else query


def over_nested(steps: Sequence[tuple[str, Tree]], query: _Node) -> _Node:
    """Returns the query with each step where it is read, without WITH."""
    known: dict[str, Tree] = {}
    for name, step in steps:
        known[name] = _nested(step, known)
    found: _Node = _nested(query, known)
    return found


def _nested(node: Tree, steps: Mapping[str, Tree]) -> Any:
    if isinstance(node, exp.Table) and node.name in steps:
        alias = node.args.get("alias") or made(exp.TableAlias, this=node.this)
        return made(exp.Subquery, this=steps[node.name], alias=alias)
    parts = {key: [_nested(item, steps) if isinstance(item, exp.Expression) else item for item in value]
             if isinstance(value, list) else _nested(value, steps) if isinstance(value, exp.Expression) else value
             for key, value in node.args.items()}
    return made(type(node), **parts)


def with_recursion(name: str, rows: exp.Query, query: exp.Select, key: Sequence[Tree]) -> exp.Select:
    """Returns a query of `rows`, which read themselves by this name, and replace each other by this key."""
    step = _step(name, rows)
    named = made(exp.With, expressions=[made(exp.CTE, **step.args, key_expressions=list(key) or None)], recursive=True)
    return made(exp.Select, **{**query.args, "with_": named})


def so_far(name: str) -> exp.Table:
    """Returns the rows that a query with a key has found, for its next step."""
    return made(exp.Table, this=identifier(name), db=identifier(RECURRING))


def _step(name: str, query: Tree) -> exp.CTE:
    return made(exp.CTE, this=query, alias=made(exp.TableAlias, this=identifier(name)))


@cache
def is_column(tree: Tree, name: str) -> bool:
    """Whether the tree is the column of this name, with or without the name of its relation."""
    return isinstance(tree, exp.Column) and tree.name == name


def columns_in(tree: Tree) -> set[str]:
    """Returns the names of the columns that an expression reads."""
    return {found.name for found in found_in(tree, exp.Column)}


def replaced_columns(tree: Tree, values: Mapping[str, Tree]) -> Tree:
    """Returns the expression with the columns of these names replaced."""
    if isinstance(tree, exp.Column):
        return values.get(tree.name, tree)
    return _replaced_below(tree, values) if columns_in(tree) & values.keys() else tree


def _replaced_below(node: Tree, values: Mapping[str, Tree]) -> Tree:
    tight = isinstance(node, _TIGHT)

    def changed(part: Any) -> Any:
        if isinstance(part, exp.Column) and part.name in values:
            return closed(values[part.name]) if tight else values[part.name]
        return _replaced_below(part, values) if isinstance(part, exp.Expression) else part

    args = {key: [changed(item) for item in value] if isinstance(value, list) else changed(value)
            for key, value in node.args.items()}
    return made(type(node), **args)


def closed(tree: Tree) -> Tree:
    """Returns the tree for use next to an operator: in parentheses where it needs some."""
    return made(exp.Paren, this=tree) if is_loose(tree) else tree


def is_loose(tree: Tree) -> bool:
    """Whether the tree needs parentheses next to an operator."""
    return isinstance(tree, _LOOSE) and not isinstance(tree, _CLOSED)


def made(kind: type[_Node], /, **args: Any) -> _Node:
    """Returns a node. Other trees may have its parts as well, so that they aren't told of it, as sqlglot would."""
    return _node(kind, args)


def _node(kind: type[_Node], args: dict[str, Any]) -> _Node:
    anew: Any = kind.__new__
    node: _Node = anew(kind)
    node.args = args
    # As sqlglot's constructor has it, which takes twice as long.
    node.parent = node.arg_key = node.index = node.comments = node._type = node._meta = node._hash = None
    return node


# --- templates ----------------------------------------------------------------------------------------------------


@cache
def _parsed(template: str) -> Template:
    return Template(parse_tree(template))


def _maker(node: Tree) -> _Maker:
    """What makes a template's node with the holes below it filled."""
    if isinstance(node, exp.Placeholder) and isinstance(node.this, str):
        return _taker(node.this)
    if not _has_holes(node):
        return lambda _holes: node
    kind, constant = type(node), dict(node.args)
    one: list[tuple[str, _Maker]] = []
    several: list[tuple[str, list[_Maker]]] = []
    for key, value in node.args.items():
        if isinstance(value, exp.Expression) and _has_holes(value):
            one.append((key, _maker_within(value, node)))
        elif isinstance(value, list) and any(isinstance(item, exp.Expression) and _has_holes(item) for item in value):
            several.append((key, [_maker_within(item, node) for item in value]))

    def make(holes: Mapping[str, Hole]) -> Tree:
        args = {**constant}
        for key, maker in one:
            args[key] = maker(holes)
        for key, makers in several:
            args[key] = [maker(holes) for maker in makers]
        return _node(kind, args)

    return make


def _maker_within(child: Any, parent: Tree) -> _Maker:
    if not isinstance(child, exp.Expression) or not _has_holes(child):
        return lambda _holes: child
    maker = _maker(child)
    if isinstance(child, exp.Placeholder) and isinstance(parent, _TIGHT) and not isinstance(parent, exp.Paren):
        return lambda holes: closed(maker(holes))
    return maker


def _has_holes(tree: Tree) -> bool:
    return any(isinstance(found.this, str) for found in found_in(tree, exp.Placeholder))


def _taker(name: str) -> _Maker:
    def take(holes: Mapping[str, Hole]) -> Tree:
        value = holes[name]
        if isinstance(value, str):
            return text(value)
        return number(value) if isinstance(value, int) else value

    return take


@lru_cache(maxsize=_NAMES)
def _from_named(relation: str) -> exp.From:
    return made(exp.From, this=made(exp.Table, this=identifier(relation)))


def _relation(source: Tree) -> Tree:
    return made(exp.Subquery, this=source) if isinstance(source, exp.Select) else source
