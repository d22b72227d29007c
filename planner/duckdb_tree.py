"""DuckDB SQL as sqlglot trees: fragments with holes make them, and `render` prints them. Nothing else prints SQL.

The trees are of a DuckDB dialect in which a call of a function is always `exp.Anonymous` with its own name, so that
what DuckDB is given is what was written here, and whoever reads a tree looks for that name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

from sqlglot import exp
from sqlglot import parser as sqlglot_parser
from sqlglot.dialects.duckdb import DuckDB

Tree: TypeAlias = exp.Expression
_LOOSE = (exp.Binary, exp.Unary, exp.Between, exp.In, exp.Lambda, exp.Case, exp.Filter)
"""What must stand in parentheses next to an operator. Operators aren't compared: more parentheses do no harm."""
_CLOSED = (exp.Paren, exp.Dot, exp.Cast, exp.TryCast, exp.Bracket)
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


_PRINTING: dict[str, Any] = {"normalize_functions": False, "comments": False, "unsupported_level": None}


def fragment(template: str, **holes: Tree | int | str) -> Tree:
    """Returns the expression that `template` spells in DuckDB's SQL, with each `:name` replaced by `holes[name]`.

    The template is parsed once, so it is text that doesn't depend on the statement: values go into holes. An int is put
    there as a number, a str as a text literal. A tree that already has a parent is copied. A word of SQL, such as
    `on`, can't name a hole. Raises KeyError for a hole without a value.
    """
    return _filled(_parsed(template), {name: _value(value) for name, value in holes.items()}, set())


def parse_tree(sql: str) -> Tree:
    """Returns DuckDB SQL as a tree: of an expression, or a whole SELECT."""
    found: Tree = exp.maybe_parse(sql, dialect=PlainDuckDB)
    return found


def render(tree: Tree) -> str:
    """Returns the DuckDB SQL of a tree."""
    return str(PlainDuckDB.Generator(dialect=PlainDuckDB(), **_PRINTING).generate(tree, copy=False))


def call(name: str, *arguments: Tree) -> exp.Anonymous:
    """Returns a call of a DuckDB function."""
    return exp.Anonymous(this=name, expressions=[_owned(argument) for argument in arguments])


def column(name: str, table: str | None = None) -> exp.Column:
    """Returns a reference to a column; names are always quoted."""
    return exp.Column(this=exp.to_identifier(name, quoted=True),
                      table=None if table is None else exp.to_identifier(table, quoted=True))


def number(value: int) -> Tree:
    """Returns an integer as it stands in SQL, with the type that DuckDB gives it."""
    literal = exp.Literal.number(abs(value))
    return exp.Paren(this=exp.Neg(this=literal)) if value < 0 else literal


def text(value: str) -> exp.Literal:
    """Returns a text literal."""
    return exp.Literal.string(value)


def named(tree: Tree, name: str) -> exp.Alias:
    """Returns `tree AS "name"`."""
    return exp.Alias(this=_owned(tree), alias=exp.to_identifier(name, quoted=True))


def select(
    columns: Sequence[Tree], source: str | Tree | None = None, *, where: Tree | None = None,
    group_by: Sequence[Tree] = (), having: Tree | None = None, qualify: Tree | None = None,
    order_by: Sequence[Tree] = (), steps: Sequence[tuple[str, Tree]] = (),
) -> exp.Select:
    """Returns a SELECT. `source`: the name of a relation, or a SELECT; `steps`: what WITH names, in its order."""
    tree = exp.Select(expressions=[_owned(one) for one in columns])
    if source is not None:
        tree.set("from_", exp.From(this=_relation(source)))
    for key, kind, condition in (("where", exp.Where, where), ("having", exp.Having, having),
                                 ("qualify", exp.Qualify, qualify)):
        if condition is not None:
            tree.set(key, kind(this=_owned(condition)))
    if group_by:
        tree.set("group", exp.Group(expressions=[_owned(one) for one in group_by]))
    if order_by:
        tree.set("order", exp.Order(expressions=[_owned(one) for one in order_by]))
    if steps:
        tree.set("with_", exp.With(expressions=[
            exp.CTE(this=_owned(step), alias=exp.TableAlias(this=exp.to_identifier(name, quoted=True)))
            for name, step in steps]))
    return tree


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
    return exp.Paren(this=tree) if isinstance(tree, _LOOSE) and not isinstance(tree, _CLOSED) else tree


@cache
def _parsed(template: str) -> Tree:
    return parse_tree(template)


def _value(value: Tree | int | str) -> Tree:
    if isinstance(value, str):
        return text(value)
    return number(value) if isinstance(value, int) else value


def _owned(tree: Tree) -> Tree:
    return tree if tree.parent is None else tree.copy()


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
    return exp.Subquery(this=_owned(source)) if isinstance(source, exp.Select) else _owned(source)


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
        return value.copy()
    used.add(name)
    return value
