"""DuckDB SQL as sqlglot trees: fragments with holes make them, and `render` prints them. Nothing else prints SQL.

The trees are of a DuckDB dialect in which a call of a function is always `exp.Anonymous` with its own name, so that
what DuckDB is given is what was written here, and whoever reads a tree looks for that name.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

from sqlglot import exp
from sqlglot import parser as sqlglot_parser
from sqlglot.dialects.duckdb import DuckDB

from penstock.planner.duckdb_select_parts import SELECT_PARTS, Parts, listed

Tree: TypeAlias = exp.Expression
_LOOSE = (exp.Binary, exp.Unary, exp.Between, exp.In, exp.Lambda, exp.Case, exp.Filter)
"""What must stand in parentheses next to an operator. Operators aren't compared: more parentheses do no harm."""
_CLOSED = (exp.Paren, exp.Dot, exp.Cast, exp.TryCast, exp.Bracket)
_SHORT = 40
"""How long a literal may be that is written more than once."""
_TIGHT = (exp.Binary, exp.Unary, exp.Between, exp.In, exp.Bracket)


class PlainDuckDB(DuckDB):  # type: ignore[misc]
    """DuckDB's dialect, without sqlglot's knowledge of what functions mean in other databases."""

    class Parser(DuckDB.Parser):  # type: ignore[misc]
        FUNCTIONS: dict[str, Any] = {}  # noqa: RUF012 - sqlglot's own convention
        FUNCTION_PARSERS = {  # noqa: RUF012
            name: parser for name, parser in DuckDB.Parser.FUNCTION_PARSERS.items() if name in ("CAST", "TRY_CAST")}
        NO_PAREN_FUNCTIONS: dict[Any, Any] = {}  # noqa: RUF012
        NO_PAREN_FUNCTION_PARSERS = {  # noqa: RUF012
            name: parser for name, parser in DuckDB.Parser.NO_PAREN_FUNCTION_PARSERS.items() if name in ("CASE", "ANY")}

        def _parse_expression(self) -> exp.Expression | None:
            # A colon begins a hole, not what follows an alias in front.
            return sqlglot_parser.Parser._parse_expression(self)

        def _parse_table(self, *args: Any, **options: Any) -> exp.Expression | None:
            return sqlglot_parser.Parser._parse_table(self, *args, **options)

    class Generator(DuckDB.Generator):  # type: ignore[misc]
        def ignorenulls_sql(self, expression: exp.IgnoreNulls) -> str:
            # sqlglot leaves it out for functions that it doesn't know.
            return str(self.sql(expression.this)) + " IGNORE NULLS"

        def is_sql(self, expression: exp.Is) -> str:
            return str(self.binary(expression, "IS"))

        def datatype_sql(self, expression: exp.DataType) -> str:
            name = str(super().datatype_sql(expression))
            return _TYPE_NAMES.get(name, name)

        def sql(self, expression: Any, key: str | None = None, comment: bool = True) -> str:
            if key is None and type(expression) in _PARTS:
                return _printed(expression, self)
            return self.own_sql(expression, key)

        def own_sql(self, expression: Any, key: str | None = None) -> str:
            """What sqlglot prints."""
            return str(super().sql(expression, key))


_PRINTING: dict[str, Any] = {"normalize_functions": False, "comments": False, "unsupported_level": None}
_TYPE_NAMES = {"TEXT": "VARCHAR", "INT128": "HUGEINT", "UINT128": "UHUGEINT", "REAL": "FLOAT", "INT": "INTEGER"}
"""sqlglot's names of types that DuckDB calls otherwise."""


def fragment(template: str, **holes: Tree | int | str) -> Tree:
    """Returns the expression that `template` spells in DuckDB's SQL, with each `:name` replaced by `holes[name]`.

    The template is parsed once, so it is text that doesn't depend on the statement: values go into holes. An int is put
    there as a number, a str as a text literal. A tree that already has a parent is copied. A word of SQL, such as
    `on`, can't name a hole. Raises KeyError for a hole without a value.
    """
    return filled(_parsed(template), **holes)


def hole(name: str) -> Tree:
    """Returns a hole, to make a template for `filled` of trees."""
    return exp.Placeholder(this=name)


def filled(template: Tree, **holes: Tree | int | str) -> Tree:
    """Returns a copy of a tree with its holes filled, as `fragment` fills those of text."""
    return _filled(template, {name: _value(value) for name, value in holes.items()}, set())


def parse_tree(sql: str) -> Tree:
    """Returns DuckDB SQL as a tree: of an expression, or a whole SELECT."""
    found: Tree = exp.maybe_parse(sql, dialect=PlainDuckDB)
    return found


def render(tree: Tree) -> str:
    """Returns the DuckDB SQL of a tree."""
    return _printed(tree, None)


def let(value: Tree, body: Callable[[Tree], Tree]) -> Tree:
    """Returns `body` of a value, which is written and computed once, however often `body` uses what it is given.

    Without it, nesting functions whose SQL needs their argument twice would double the SQL at every level.
    """
    if _is_simple(value):
        return body(value)
    variable = exp.Identifier(this=f"v{zlib.crc32(render(value).encode()):08x}", quoted=False)
    return _let(value, variable, body(variable))


def let_all(values: Sequence[Tree], body: Callable[..., Tree]) -> Tree:
    """Like `let`, for several values: `body` gets one tree per value."""
    if all(map(_is_simple, values)):
        return body(*values)
    fields = [exp.Identifier(this=f"f{number}", quoted=False) for number in range(len(values))]
    struct = exp.Struct(expressions=[exp.PropertyEQ(this=name.copy(), expression=owned(value))
                                     for name, value in zip(fields, values, strict=True)])
    variable = exp.Identifier(this=f"v{zlib.crc32(render(struct).encode()):08x}", quoted=False)
    return _let(struct, variable, body(*(exp.Dot(this=variable.copy(), expression=name) for name in fields)))


def _let(value: Tree, variable: exp.Identifier, body: Tree) -> Tree:
    function = exp.Lambda(this=owned(body), expressions=[variable.copy()], colon=True)
    mapped = call("list_transform", exp.Array(expressions=[owned(value)]), function)
    return exp.Bracket(this=mapped, expressions=[exp.Literal.number(0)])


def _is_simple(value: Tree) -> bool:
    if isinstance(value, exp.Cast) and not isinstance(value, exp.TryCast):
        value = value.this
    while isinstance(value, exp.Neg | exp.Paren | exp.Dot):
        value = value.this
    if isinstance(value, exp.Literal):
        return len(value.this) <= _SHORT
    return isinstance(value, exp.Column | exp.Identifier | exp.Null | exp.Boolean)


def cast(tree: Tree, type_name: str) -> exp.Cast:
    """Returns `CAST(tree AS type_name)`."""
    return exp.Cast(this=owned(tree), to=_type(type_name))


def try_cast(tree: Tree, type_name: str) -> exp.TryCast:
    """Returns `TRY_CAST(tree AS type_name)`."""
    return exp.TryCast(this=owned(tree), to=_type(type_name))


def integer(value: int, type_name: str = "BIGINT") -> exp.Cast:
    """Returns an integer of a SQL type."""
    literal = exp.Literal(this=str(abs(value)), is_string=False)
    return exp.Cast(this=exp.Neg(this=literal) if value < 0 else literal, to=_type(type_name))


def null(type_name: str) -> exp.Cast:
    """Returns NULL of a SQL type."""
    return exp.Cast(this=exp.Null(), to=_type(type_name))


def any_of(conditions: Sequence[Tree]) -> Tree:
    """Returns the conditions joined by OR, of which there may be very many; at least one."""
    return _joined(exp.Or, conditions)


def all_of(conditions: Sequence[Tree]) -> Tree:
    """Returns the conditions joined by AND, of which there may be very many; at least one."""
    return _joined(exp.And, conditions)


def _joined(connector: type[exp.Connector], conditions: Sequence[Tree]) -> Tree:
    # In halves: what calls itself over the tree goes down some levels only.
    if len(conditions) == 1:
        return conditions[0]
    trees = [_condition(condition) for condition in conditions]
    while len(trees) > 1:
        odd = trees[len(trees) // 2 * 2:]
        pairs = zip(trees[::2], trees[1::2], strict=False)
        trees = [connector(this=left, expression=right) for left, right in pairs] + odd
    return trees[0]


def _condition(tree: Tree) -> Tree:
    tree = owned(tree)
    return exp.Paren(this=tree) if isinstance(tree, exp.Connector | exp.Not | exp.Between | exp.Lambda) else tree


@cache
def _type(type_name: str) -> exp.DataType:
    """One node per type, in all trees: half of long statements would be types."""
    return parse_tree(f"CAST(NULL AS {type_name})").args["to"]


def call(name: str, *arguments: Tree) -> exp.Anonymous:
    """Returns a call of a DuckDB function."""
    return exp.Anonymous(this=name, expressions=[owned(argument) for argument in arguments])


def column(name: str, table: str | None = None) -> exp.Column:
    """Returns a reference to a column; names are always quoted."""
    return exp.Column(this=exp.to_identifier(name, quoted=True),
                      table=None if table is None else exp.to_identifier(table, quoted=True))


def number(value: int) -> Tree:
    """Returns an integer as it stands in SQL, with the type that DuckDB gives it."""
    literal = exp.Literal(this=str(abs(value)), is_string=False)
    return exp.Paren(this=exp.Neg(this=literal)) if value < 0 else literal


def text(value: str) -> exp.Literal:
    """Returns a text literal."""
    return exp.Literal.string(value)


def joined(*texts: Tree) -> Tree:
    """Returns texts joined by `||`; at least one."""
    whole = owned(texts[0])
    for part in texts[1:]:
        whole = exp.DPipe(this=whole if isinstance(whole, exp.DPipe) else closed(whole), expression=closed(owned(part)))
    return whole


def named(tree: Tree, name: str) -> exp.Alias:
    """Returns `tree AS "name"`."""
    return exp.Alias(this=owned(tree), alias=exp.to_identifier(name, quoted=True))


def select(
    columns: Sequence[Tree], source: str | Tree | None = None, *, where: Tree | None = None,
    group_by: Sequence[Tree] = (), having: Tree | None = None, qualify: Tree | None = None,
    order_by: Sequence[Tree] = (), steps: Sequence[tuple[str, Tree]] = (), joins: Sequence[exp.Join] = (),
    limit: int | None = None, offset: int = 0, distinct: bool = False,
) -> exp.Select:
    """Returns a SELECT. `source`: the name of a relation, or a SELECT; `steps`: what WITH names, in its order."""
    tree = exp.Select(expressions=[owned(one) for one in columns])
    if source is not None:
        tree.set("from_", exp.From(this=_relation(source)))
    if joins:
        tree.set("joins", list(joins))
    if distinct:
        tree.set("distinct", exp.Distinct())
    if limit is not None:
        tree.set("limit", exp.Limit(expression=number(limit)))
    if offset:
        tree.set("offset", exp.Offset(expression=number(offset)))
    for key, kind, condition in (("where", exp.Where, where), ("having", exp.Having, having),
                                 ("qualify", exp.Qualify, qualify)):
        if condition is not None:
            tree.set(key, kind(this=owned(condition)))
    if group_by:
        tree.set("group", exp.Group(expressions=[owned(one) for one in group_by]))
    if order_by:
        tree.set("order", exp.Order(expressions=[owned(one) for one in order_by]))
    if steps:
        tree.set("with_", exp.With(expressions=[
            exp.CTE(this=owned(step), alias=exp.TableAlias(this=exp.to_identifier(name, quoted=True)))
            for name, step in steps]))
    return tree


def with_step(name: str, step: Tree, query: exp.Select) -> exp.Select:
    """Returns the SELECT with one more step before its own ones."""
    cte = exp.CTE(this=owned(step), alias=exp.TableAlias(this=exp.to_identifier(name, quoted=True)))
    own = query.args.get("with_")
    query.set("with_", exp.With(expressions=[cte, *(own.expressions if own is not None else ())]))
    return query


def everything() -> exp.Star:
    """Returns `*`."""
    return exp.Star()


def is_column(tree: Tree, name: str) -> bool:
    """Whether the tree is the column of this name, with or without the name of its relation."""
    return isinstance(tree, exp.Column) and tree.name == name


def columns_in(tree: Tree) -> set[str]:
    """Returns the names of the columns that an expression reads."""
    return {found.name for found in tree.find_all(exp.Column)}


def replaced_columns(tree: Tree, values: Mapping[str, Tree]) -> Tree:
    """Returns the expression with the columns of these names replaced."""
    return tree if not columns_in(tree) & values.keys() else _with_values(tree, values)


def closed(tree: Tree) -> Tree:
    """Returns the tree for use next to an operator: in parentheses where it needs some."""
    return exp.Paren(this=tree) if is_loose(tree) else tree


def is_loose(tree: Tree) -> bool:
    """Whether the tree needs parentheses next to an operator."""
    return isinstance(tree, _LOOSE) and not isinstance(tree, _CLOSED)


@cache
def _parsed(template: str) -> Tree:
    return parse_tree(template)


def _value(value: Tree | int | str) -> Tree:
    if isinstance(value, str):
        return text(value)
    return number(value) if isinstance(value, int) else value


def owned(tree: Tree) -> Tree:
    """Returns the tree for use in another one: a copy if it is in one already."""
    return tree if tree.parent is None else _copied(tree)


def _copied(tree: Tree) -> Tree:
    """A copy without what sqlglot notes of where a node was read and which type it has, which takes it most time."""
    kind = type(tree)
    if kind is exp.Identifier:
        return exp.Identifier(this=tree.this, quoted=tree.args.get("quoted"))
    if kind is exp.Column and not tree.args.get("db"):
        table = tree.args.get("table")
        return exp.Column(this=_copied(tree.this), table=table and _copied(table))
    root = kind()
    stack = [(tree, root)]
    while stack:
        node, made = stack.pop()
        for key, value in node.args.items():
            if isinstance(value, exp.Expression):
                child = type(value)()
                made.set(key, child)
                stack.append((value, child))
            elif isinstance(value, list):
                children = [type(item)() if isinstance(item, exp.Expression) else item for item in value]
                made.set(key, children)
                stack += [(item, child) for item, child in zip(value, children, strict=True)
                          if isinstance(item, exp.Expression)]
            else:
                made.args[key] = value
    return root


# --- printing ---------------------------------------------------------------------------------------------------
# sqlglot's generator calls itself half a dozen times per level, so that fifty nested calls would exhaust the stack. The
# classes that expressions are made of are printed here in one loop, all others by the generator.



def _printed(tree: Tree, generator: Any) -> str:
    texts: list[str] = []
    stack: Parts = [tree]
    while stack:
        part = stack.pop()
        if type(part) is str:
            texts.append(part)
            continue
        parts_of = _PARTS.get(type(part))
        parts = None if parts_of is None else parts_of(part)
        if parts is None:
            generator = generator or PlainDuckDB.Generator(dialect=PlainDuckDB(), **_PRINTING)
            texts.append(generator.own_sql(part))
        else:
            stack += parts[::-1]
    return "".join(texts)


def _quoted(name: str, mark: str) -> str:
    return mark + name.replace(mark, mark + mark) + mark


def _identifier(node: Tree) -> Parts:
    return [_quoted(node.this, '"') if node.args.get("quoted") else node.this]


def _column(node: Tree) -> Parts | None:
    if node.args.get("db") or node.args.get("catalog"):
        return None
    table = node.args.get("table")
    return [node.this] if table is None else [table, ".", node.this]


def _literal(node: Tree) -> Parts:
    return [_quoted(node.this, "'") if node.is_string else node.this]


def _call(node: Tree) -> Parts:
    return [node.this, *listed("(", node.expressions, ")")]


def _cast(word: str) -> Callable[[Tree], Parts | None]:
    def parts(node: Tree) -> Parts | None:
        args = node.args
        if args.get("format") or args.get("action"):
            return None
        to = args["to"]
        if to.args.get("expressions") or to.args.get("nested"):
            return [word, args["this"], " AS ", to, ")"]
        return [word, args["this"], f" AS {_type_name(to.this)})"]
    return parts


def _data_type(node: Tree) -> Parts | None:
    return None if node.expressions or node.args.get("nested") else [_type_name(node.this)]


@cache
def _type_name(kind: Any) -> str:
    return str(PlainDuckDB.Generator(dialect=PlainDuckDB(), **_PRINTING).own_sql(exp.DataType(this=kind, nested=False)))


def _case(node: Tree) -> Parts:
    parts: Parts = ["CASE"] if node.this is None else ["CASE ", node.this]
    for branch in node.args["ifs"]:
        parts += (" WHEN ", branch.this, " THEN ", branch.args["true"])
    default = node.args.get("default")
    return [*parts, " END"] if default is None else [*parts, " ELSE ", default, " END"]


def _operator(word: str) -> Callable[[Tree], Parts]:
    return lambda node: [node.this, word, node.expression]


def _neg(node: Tree) -> Parts | None:
    return None if isinstance(node.this, exp.Neg) or str(node.this.this).startswith("-") else ["-", node.this]


def _in(node: Tree) -> Parts | None:
    return [node.this, *listed(" IN (", node.expressions, ")")] if node.args.get("expressions") else None


def _between(node: Tree) -> Parts | None:
    args = node.args
    return None if args.get("symmetric") else [node.this, " BETWEEN ", args["low"], " AND ", args["high"]]


def _bracket(node: Tree) -> Parts | None:
    indexes = node.expressions
    if len(indexes) != 1 or not isinstance(indexes[0], exp.Literal) or indexes[0].is_string or node.args.get("offset"):
        return None
    return [node.this, f"[{int(indexes[0].this) + 1}]"]


def _struct(node: Tree) -> Parts | None:
    parts: Parts = []
    for field in node.expressions:
        if not isinstance(field, exp.PropertyEQ) or not isinstance(field.this, exp.Identifier):
            return None
        parts += (", " if parts else "{", _quoted(field.this.this, "'"), ": ", field.expression)
    return [*parts, "}"] if parts else None


def _lambda(node: Tree) -> Parts | None:
    return [*listed("LAMBDA ", node.expressions, ": "), node.this] if node.args.get("colon") else None


_PARTS: dict[type[Tree], Callable[[Any], Parts | None]] = {
    **SELECT_PARTS,
    exp.PropertyEQ: _operator(" := "),
    exp.Identifier: _identifier,
    exp.Column: _column,
    exp.Literal: _literal,
    exp.Boolean: lambda node: ["TRUE" if node.this else "FALSE"],
    exp.Null: lambda _node: ["NULL"],
    exp.Anonymous: _call,
    exp.Cast: _cast("CAST("),
    exp.TryCast: _cast("TRY_CAST("),
    exp.DataType: _data_type,
    exp.Paren: lambda node: ["(", node.this, ")"],
    exp.Case: _case,
    exp.Not: lambda node: ["NOT ", node.this],
    exp.Neg: _neg,
    exp.In: _in,
    exp.Between: _between,
    exp.Bracket: _bracket,
    exp.Dot: _operator("."),
    exp.Array: lambda node: listed("[", node.expressions, "]"),
    exp.Struct: _struct,
    exp.Lambda: _lambda,
    **{kind: _operator(f" {word} ") for kind, word in {
        exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.IntDiv: "//", exp.Mod: "%", exp.DPipe: "||",
        exp.BitwiseAnd: "&", exp.BitwiseOr: "|", exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">",
        exp.GTE: ">=", exp.Is: "IS", exp.Like: "LIKE", exp.Escape: "ESCAPE", exp.And: "AND", exp.Or: "OR"}.items()},
}


def _filled(node: Tree, holes: dict[str, Tree], used: set[str]) -> Tree:
    """A copy of a template's node with its holes filled."""
    args: dict[str, Any] = {}
    for key, value in node.args.items():
        if isinstance(value, exp.Expression):
            args[key] = _hole(value, node, holes, used)
        elif isinstance(value, list):
            args[key] = [_hole(item, node, holes, used) if isinstance(item, exp.Expression) else item
                         for item in value]
        else:
            args[key] = value
    if isinstance(node, exp.Placeholder) and isinstance(node.this, str):
        return _taken(node.this, holes, used)
    return type(node)(**args)


def _relation(source: str | Tree) -> Tree:
    if isinstance(source, str):
        return exp.Table(this=exp.to_identifier(source, quoted=True))
    return exp.Subquery(this=owned(source)) if isinstance(source, exp.Select) else owned(source)


def _with_values(node: Tree, values: Mapping[str, Tree]) -> Tree:
    if isinstance(node, exp.Column) and node.name in values:
        return values[node.name].copy()

    def child(value: Any) -> Any:
        if not isinstance(value, exp.Expression):
            return value
        made = _with_values(value, values)
        return closed(made) if isinstance(value, exp.Column) and isinstance(node, _TIGHT) and not isinstance(
            node, exp.Paren) else made

    return type(node)(**{key: [child(item) for item in value] if isinstance(value, list) else child(value)
                         for key, value in node.args.items()})


def _hole(child: Tree, parent: Tree, holes: dict[str, Tree], used: set[str]) -> Tree:
    filled = _filled(child, holes, used)
    if isinstance(child, exp.Placeholder) and isinstance(parent, _TIGHT) and not isinstance(parent, exp.Paren):
        return closed(filled)
    return filled


def _taken(name: str, holes: dict[str, Tree], used: set[str]) -> Tree:
    value = holes[name]
    if name in used or value.parent is not None:
        return _copied(value)
    used.add(name)
    return value
