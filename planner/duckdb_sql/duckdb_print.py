"""DuckDB SQL of sqlglot trees. Nothing else prints SQL.

sqlglot's generator calls itself half a dozen times per level, so that fifty nested calls would exhaust the stack. The
classes that expressions and queries are made of are printed here in one loop, all others by the generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from sqlglot import exp
from sqlglot import parser as sqlglot_parser
from sqlglot.dialects.duckdb import DuckDB

from penstock.planner.duckdb_sql.duckdb_select_parts import SELECT_PARTS, Args, Parts, listed, quoted
from penstock.planner.duckdb_sql.quoting import quote_name

_PRINTING: dict[str, Any] = {"normalize_functions": False, "comments": False, "unsupported_level": None}
_TYPE_NAMES = {"TEXT": "VARCHAR", "INT128": "HUGEINT", "UINT128": "UHUGEINT", "REAL": "FLOAT", "INT": "INTEGER",
               "NULL": '"NULL"'}
"""sqlglot's names of types that DuckDB calls otherwise."""


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


def render(tree: exp.Expression) -> str:
    """Returns the DuckDB SQL of a tree."""
    return _printed(tree, None)


def _printed(tree: exp.Expression, generator: Any) -> str:
    texts: list[str] = []
    begun: list[Iterator[Any]] = [iter((tree,))]
    while begun:
        for part in begun[-1]:
            if type(part) is str:
                texts.append(part)
                continue
            parts_of = _PARTS.get(type(part))
            parts = None if parts_of is None else parts_of(part.args)
            if type(parts) is list:
                begun.append(iter(parts))
                break
            if type(parts) is not str:
                generator = generator or PlainDuckDB.Generator(dialect=PlainDuckDB(), **_PRINTING)
                parts = generator.own_sql(part)
            texts.append(parts)
        else:
            begun.pop()
    return "".join(texts)


def _identifier(args: Args) -> str:
    name: str = args["this"]
    return quote_name(name) if args.get("quoted") else name


def _column(args: Args) -> str | Parts | None:
    if args.get("db") or args.get("catalog"):
        return None
    name, table = args["this"], args.get("table")
    if type(name) is not exp.Identifier:
        return [name] if table is None else [table, ".", name]
    return _identifier(name.args) if table is None else f"{_identifier(table.args)}.{_identifier(name.args)}"


def _literal(args: Args) -> str:
    written: str = args["this"]
    return quoted(written, "'") if args["is_string"] else written


def _call(args: Args) -> str | Parts:
    given = args.get("expressions")
    return listed(args["this"] + "(", given, ")") if given else args["this"] + "()"


def _cast(word: str) -> Callable[[Args], Parts | None]:
    def parts(args: Args) -> Parts | None:
        if args.get("format") or args.get("action"):
            return None
        name = _data_type(args["to"].args)
        return [word, args["this"], " AS ", args["to"], ")"] if name is None else [word, args["this"], f" AS {name})"]
    return parts


def _data_type(args: Args) -> str | None:
    inner = args.get("expressions")
    if args["this"] is exp.DType.ARRAY and inner and not args.get("values"):
        item = _data_type(inner[0].args)
        return None if item is None else f"{item}[]"
    return None if inner or args.get("nested") else _type_name(args["this"])


@cache
def _type_name(kind: Any) -> str:
    return str(PlainDuckDB.Generator(dialect=PlainDuckDB(), **_PRINTING).own_sql(exp.DataType(this=kind, nested=False)))


def _case(args: Args) -> Parts:
    subject, default = args.get("this"), args.get("default")
    parts: Parts = ["CASE"] if subject is None else ["CASE ", subject]
    for branch in args["ifs"]:
        parts += (" WHEN ", branch.args["this"], " THEN ", branch.args["true"])
    parts += (" END",) if default is None else (" ELSE ", default, " END")
    return parts


def _operator(word: str) -> Callable[[Args], Parts]:
    return lambda args: [args["this"], word, args["expression"]]


def _neg(args: Args) -> Parts | None:
    value = args["this"]
    return None if isinstance(value, exp.Neg) or str(value.this).startswith("-") else ["-", value]


def _in(args: Args) -> Parts | None:
    items = args.get("expressions")
    return [args["this"], *listed(" IN (", items, ")")] if items else None


def _between(args: Args) -> Parts | None:
    return None if args.get("symmetric") else [args["this"], " BETWEEN ", args["low"], " AND ", args["high"]]


def _bracket(args: Args) -> Parts | None:
    indexes = args["expressions"]
    if len(indexes) != 1 or not isinstance(indexes[0], exp.Literal) or indexes[0].is_string or args.get("offset"):
        return None
    return [args["this"], f"[{int(indexes[0].this) + 1}]"]


def _struct(args: Args) -> Parts | None:
    parts: Parts = []
    for field in args.get("expressions") or ():
        if not isinstance(field, exp.PropertyEQ) or not isinstance(field.this, exp.Identifier):
            return None
        parts += (", " if parts else "{", quoted(field.this.this, "'"), ": ", field.args["expression"])
    return [*parts, "}"] if parts else None


def _lambda(args: Args) -> Parts | None:
    return [*listed("LAMBDA ", args["expressions"], ": "), args["this"]] if args.get("colon") else None


_PARTS: dict[type[exp.Expression], Callable[[Args], str | Parts | None]] = {
    **SELECT_PARTS,
    exp.PropertyEQ: _operator(" := "),
    exp.Identifier: _identifier,
    exp.Column: _column,
    exp.Literal: _literal,
    exp.Boolean: lambda args: "TRUE" if args["this"] else "FALSE",
    exp.Null: lambda _args: "NULL",
    exp.Anonymous: _call,
    exp.Cast: _cast("CAST("),
    exp.TryCast: _cast("TRY_CAST("),
    exp.DataType: _data_type,
    exp.Paren: lambda args: ["(", args["this"], ")"],
    exp.Case: _case,
    exp.Not: lambda args: ["NOT ", args["this"]],
    exp.Neg: _neg,
    exp.In: _in,
    exp.Between: _between,
    exp.Bracket: _bracket,
    exp.Dot: _operator("."),
    exp.Array: lambda args: listed("[", args.get("expressions") or (), "]"),
    exp.Struct: _struct,
    exp.Lambda: _lambda,
    **{kind: _operator(f" {word} ") for kind, word in {
        exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/", exp.IntDiv: "//", exp.Mod: "%", exp.DPipe: "||",
        exp.BitwiseAnd: "&", exp.BitwiseOr: "|", exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">",
        exp.GTE: ">=", exp.Pow: "^", exp.BitwiseLeftShift: "<<", exp.BitwiseRightShift: ">>", exp.Glob: "GLOB",
        exp.Is: "IS", exp.Like: "LIKE", exp.Escape: "ESCAPE", exp.And: "AND", exp.Or: "OR"}.items()},
}
