"""The expression classes of Penstock's dialect and how they print; it parses nothing itself.

Scalar expressions are trees of sqlglot nodes. `sql.dialect.parse_expression` overrides where sqlglot's own grammar is
lenient (BETWEEN without AND, CASE without THEN), or rewrites function calls into classes of its own that lose the name
and the order of the arguments. Exactly these classes occur in what the parser returns:

Names and constants
    exp.Column          `this` is an exp.Identifier or (for `t.*`) an exp.Star; `table` an exp.Identifier or None, and
                        so `db`, the database.
                        Pseudo columns (`_wstart`, `_rowts`, `tbname`, ...) are unquoted columns of that lower-case
                        name; a quoted identifier never is a pseudo column.
    exp.Identifier      `this` is folded to lower case unless `quoted` is True.
    exp.Literal         numbers keep their text, but hexadecimal and binary ones become decimal; strings are unescaped.
    exp.Boolean, exp.Null, exp.Star
    DurationLiteral     `10s`; quoted durations in expressions stay string literals, see `literals.parse_duration`.
    TimestampLiteral    `TIMESTAMP '...'`. `DATE '...'` and its like are an exp.Cast of the text.
    IntervalLiteral     `INTERVAL '1' DAY`.
    exp.Struct          `{'a': 1}`: `expressions` are exp.PropertyEQ. Other values that are put together are calls:
                        `[1, 2]` of list_value, `MAP {1: 2}` of map, `(1, 2)` of row.
Operators
    exp.Paren, exp.Neg, exp.BitwiseNot, exp.Not, exp.And, exp.Or, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod,
    exp.BitwiseAnd, exp.BitwiseOr, exp.DPipe, exp.IntDiv, exp.Pow (`^` and `**`), exp.BitwiseLeftShift,
    exp.BitwiseRightShift, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE,
    exp.NullSafeEQ, exp.NullSafeNEQ (IS [NOT] DISTINCT FROM)
    exp.In (`expressions`, or `query`), exp.Between, exp.Like and exp.ILike (whose `expression` may be an exp.Escape),
    exp.Glob, exp.Is (with exp.Null or exp.Boolean);
    their negations are an exp.Not around them. Unary plus leaves no node.
    Match               `x MATCH 'regex'`; NMATCH is an exp.Not around it.
    JsonGet             `x -> 'key'`; `x ->> 'key'` is a call of json_extract_string.
    exp.Bracket         `x[i]`: `expressions` has i; `x[i:j]` is a call of array_slice, `(x).a` of struct_extract.
    exp.AtTimeZone      `x AT TIME ZONE 'z'`, also written `timezone('z', x)`: `zone` is a string literal.
    JsonContains        `x CONTAINS 'key'`.
Queries
    exp.Subquery        a query as a value, or as the list of an exp.In: `this` is a `statements.Query`.
    exp.Exists          `this` is a query.
    exp.Any, exp.All    what a comparison has on its right side: `this` is a query, or the expression of a list.
Calls
    exp.Anonymous       every function call: `this` is the lower-case name, `expressions` the arguments in the order
                        typed (`*` is exp.Star); `distinct`, and `order`, an exp.Order, say what an aggregate takes
                        of them. NOW and TODAY without parentheses are calls without arguments.
                        `position(a in b)` has the arguments a, b; `substring(x from a for b)` x, a, b;
                        `extract(a from b)` is a call of date_part, `a ~ b` of regexp_matches, `a SIMILAR TO b` of
                        regexp_full_match.
    exp.Filter          `this` is a call, `expression` an exp.Where.
    exp.Window          `this` is a call, perhaps in an exp.Filter, exp.IgnoreNulls or exp.RespectNulls; `partition_by`,
                        `order`, an exp.Order of exp.Ordered, and `spec`, an exp.WindowSpec, are as in sqlglot.
    exp.Alias           only as an argument of `cols(...)`.
    Trim                every form of TRIM.
    exp.Case            `this` (or None), `ifs` of exp.If(this, true), `default` (or None).
    exp.Cast            `to` is a TypeName; `cast_type` returns the DataType. exp.TryCast is alike.
    Given               never parsed: a value that whoever runs the plan gives.
    exp.Lambda          only as an argument: `expressions` are exp.Identifiers, in `this` they are LambdaVariables.

Every node has `meta["offset"]` and `meta["end"]`: the half-open range of characters of the text that it was parsed
from. `source_range` returns it, `penstock.sql.dialect.literals.position` makes a line and a column of it.
Print with `expression_sql`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

from sqlglot import Dialect, exp
from sqlglot.generator import Generator

from penstock.sql.tree.statements import Duration
from penstock.sql.types import DataType

TrimMode = Literal["both", "leading", "trailing"]

PSEUDO_COLUMNS = frozenset({
    "_wstart", "_wend", "_wduration", "_qstart", "_qend", "_qduration", "_rowts", "_c0", "_irowts", "_isfilled",
    "_irowts_origin", "tbname",
})


class DurationLiteral(exp.Expression):  # type: ignore[misc]
    """A duration such as `10s`: `value` is an int, `unit` one of b u a s m h d w n y."""

    arg_types = {"value": True, "unit": True}  # noqa: RUF012 - sqlglot's own convention

    @property
    def duration(self) -> Duration:
        return Duration(self.args["value"], self.args["unit"])


class TimestampLiteral(exp.Expression):  # type: ignore[misc]
    """`TIMESTAMP 'text'`: `this` is the text, not yet read as a time."""

    arg_types = {"this": True}  # noqa: RUF012


class IntervalLiteral(exp.Expression):  # type: ignore[misc]
    """`INTERVAL this unit`: `unit` is None where the text `this` says it, as in `INTERVAL '3 months'`."""

    arg_types = {"this": True, "unit": False}  # noqa: RUF012


class LambdaVariable(exp.Expression):  # type: ignore[misc]
    """A variable of a lambda around it; `this` is its name."""

    arg_types = {"this": True}  # noqa: RUF012


class Match(exp.Expression, exp.Binary, exp.Predicate):  # type: ignore[misc]
    """`this MATCH expression`: the pattern is always a string literal."""


class JsonGet(exp.Expression, exp.Binary):  # type: ignore[misc]
    """`this -> expression`: the key of a JSON tag is a string literal."""


class JsonContains(exp.Expression, exp.Binary, exp.Predicate):  # type: ignore[misc]
    """`this CONTAINS expression`: the key is always a string literal."""


class Trim(exp.Expression):  # type: ignore[misc]
    """`TRIM([mode] [characters] FROM this)`; `mode` is both, leading or trailing, `characters` may be None."""

    arg_types = {"this": True, "characters": False, "mode": True}  # noqa: RUF012


class TDengineSelect(exp.Select):  # type: ignore[misc]
    """A query with clauses of TDengine's own: args by the names that they have in `statements.Select`."""

    arg_types = exp.Select.arg_types | dict.fromkeys(
        ("tags_only", "partition_by", "window", "fill", "range", "every", "slimit", "into_file"), False)


class TDengineJoin(exp.Join):  # type: ignore[misc]
    """An ASOF or WINDOW join; `window` and `jlimit` are as in `statements.JoinSource`."""

    arg_types = exp.Join.arg_types | {"window": False, "jlimit": False}


class TypeName(exp.Expression):  # type: ignore[misc]
    """The type in a CAST; `this` is a `DataType`."""

    arg_types = {"this": True}  # noqa: RUF012


class Given(exp.Expression):  # type: ignore[misc]
    """A value that whoever runs a plan gives by the name `this`; `kind` is its `DataType`."""

    arg_types = {"this": True, "kind": True}  # noqa: RUF012


def cast_type(cast: exp.Cast) -> DataType:
    """Returns the type that a CAST asks for. A TIMESTAMP's precision is a placeholder: the binder knows it."""
    target = cast.args["to"].args["this"]
    assert isinstance(target, DataType)
    return target


def source_range(expression: exp.Expression) -> tuple[int, int]:
    """Returns the half-open range of characters that an expression was parsed from; (0, 0) for built ones."""
    meta: dict[str, Any] = expression.meta
    return meta.get("offset", 0), meta.get("end", 0)


def plain_name(written: str) -> str:
    """Returns the name that is written in quotes of either kind, or without."""
    quote = written[0]
    return written[1:-1].replace(2 * quote, quote) if quote in "`\"" else written.lower()


def quote_identifier(name: str) -> str:
    """Returns the name, in back-quotes."""
    return "`" + name.replace("`", "``") + "`"


def quote_string(text: str) -> str:
    """Returns the text as a string literal of the dialect."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\t", "\\t")
    return f"'{escaped.replace(chr(13), chr(92) + 'r')}'"


def _binary(operator: str) -> Callable[[Generator, exp.Expression], str]:
    return lambda generator, node: f"{generator.sql(node, 'this')} {operator} {generator.sql(node, 'expression')}"


SIGNS: dict[type[exp.Expression], str] = {
    exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.Mod: "%", exp.BitwiseAnd: "&", exp.BitwiseOr: "|",
    exp.DPipe: "||", exp.IntDiv: "//", exp.Pow: "^", exp.BitwiseLeftShift: "<<", exp.BitwiseRightShift: ">>",
    exp.Glob: "GLOB",
}
"""Operators as they are written, without those of comparisons."""


def _chain(generator: Generator, node: exp.Expression) -> str:
    """Prints operators in a row without a call per operator: there may be hundreds."""
    texts: list[str] = []
    while type(node) in SIGNS:
        texts.append(f" {SIGNS[type(node)]} {generator.sql(node, 'expression')}")
        node = node.this
    texts.append(generator.sql(node))
    return "".join(reversed(texts))


def _neg(generator: Generator, node: exp.Neg) -> str:
    inner = generator.sql(node, "this")
    return f"- {inner}" if inner.startswith("-") else f"-{inner}"


def _not(generator: Generator, node: exp.Not) -> str:
    inner = node.this
    if isinstance(inner, exp.Is):
        return f"{generator.sql(inner, 'this')} IS NOT {generator.sql(inner, 'expression')}"
    return f"NOT {generator.sql(inner)}"


def _trim(generator: Generator, node: Trim) -> str:
    characters = node.args.get("characters")
    middle = f"{generator.sql(characters)} " if characters is not None else ""
    return f"TRIM({node.args['mode'].upper()} {middle}FROM {generator.sql(node, 'this')})"


def _call(generator: Generator, node: exp.Anonymous) -> str:
    arguments = ", ".join(generator.sql(argument) for argument in node.expressions)
    order = node.args.get("order")
    if order is not None:
        arguments += f" ORDER BY {', '.join(map(generator.sql, order.expressions))}"
    taken = "" if node.args.get("condition") is None else f" FILTER (WHERE {generator.sql(node, 'condition')})"
    return f"{node.this}({'DISTINCT ' if node.args.get('distinct') else ''}{arguments}){taken}"


def _struct(generator: Generator, node: exp.Struct) -> str:
    fields = (f"{quote_string(field.this.this)}: {generator.sql(field, 'expression')}" for field in node.expressions)
    return f"{{{', '.join(fields)}}}"


def _subscript(generator: Generator, node: exp.Bracket) -> str:
    return f"{generator.sql(node, 'this')}[{generator.sql(node.expressions[0])}]"


def _lambda(generator: Generator, node: exp.Lambda) -> str:
    names = ", ".join(generator.sql(name) for name in node.expressions)
    return f"lambda {names}: {generator.sql(node, 'this')}"


def _cast(word: str) -> Callable[[Generator, exp.Expression], str]:
    return lambda generator, node: f"{word}({generator.sql(node, 'this')} AS {generator.sql(node, 'to')})"


class ExpressionGenerator(Generator):  # type: ignore[misc]
    """Prints expressions in a form that the parser reads back as the same tree."""

    SUPPORTS_WINDOW_EXCLUDE = True

    TRANSFORMS = {  # noqa: RUF012 - sqlglot's own convention
        **Generator.TRANSFORMS,
        DurationLiteral: lambda _, node: str(node.duration),
        TimestampLiteral: lambda _, node: f"TIMESTAMP {quote_string(node.args['this'])}",
        Match: _binary("MATCH"),
        JsonGet: _binary("->"),
        JsonContains: _binary("CONTAINS"),
        Trim: _trim,
        TypeName: lambda _, node: node.args["this"].sql(),
        Given: lambda _, node: f":{node.this}",
        exp.Literal: lambda _, node: quote_string(node.this) if node.is_string else node.this,
        exp.Identifier: lambda _, node: quote_identifier(node.this) if node.quoted else node.this,
        exp.Anonymous: _call,
        exp.Any: lambda generator, node: f"ANY ({generator.sql(node, 'this')})",
        exp.All: lambda generator, node: f"ALL ({generator.sql(node, 'this')})",
        exp.Neg: _neg,
        exp.Not: _not,
        **dict.fromkeys(SIGNS, _chain),
        exp.Cast: _cast("CAST"),
        exp.TryCast: _cast("TRY_CAST"),
        IntervalLiteral: lambda generator, node: " ".join(filter(None, (
            "INTERVAL", generator.sql(node, "this"), node.args.get("unit")))),
        LambdaVariable: lambda _, node: node.this,
        exp.AtTimeZone: lambda generator, node: f"{generator.sql(node, 'this')} AT TIME ZONE "
                                                f"{generator.sql(node, 'zone')}",
        exp.Struct: _struct,
        exp.Bracket: _subscript,
        exp.Lambda: _lambda,
    }


def expression_sql(expression: exp.Expression) -> str:
    """Returns the expression as text of the dialect."""
    return str(_generator().generate(expression, copy=False))


@cache
def _generator() -> Generator:
    """That of the dialect, since there may be queries in expressions.

    Printing changes nothing of a generator, and to make one takes longer than to print a short expression.
    """
    return Dialect.get_or_raise("tdengine").generator()
