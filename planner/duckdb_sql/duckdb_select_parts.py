"""How queries are printed as DuckDB SQL: each node as its words and the trees between them, in order.

What a node has that isn't known here is sqlglot's to print: then there are no parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from sqlglot import exp

Args: TypeAlias = "dict[str, Any]"
"""What a node is made of."""
Parts: TypeAlias = "list[str | exp.Expression]"
_SELECT = frozenset({"with_", "distinct", "expressions", "from_", "joins", "where", "group", "having", "qualify",
                     "order", "limit", "offset"})
_JOIN = frozenset({"this", "on", "using", "side", "method", "kind"})
_WINDOW = frozenset({"this", "partition_by", "order", "spec", "over"})
_FRAME = frozenset({"kind", "start", "start_side", "end", "end_side"})
_UNION = frozenset({"this", "expression", "distinct", "with_"})
_STAR = frozenset({"except_", "replace"})
_NAMED = frozenset({"this", "alias"})
_ALIAS = frozenset({"this", "columns"})
_EXPRESSION = frozenset({"expression"})
_LIMIT = frozenset({"expression", "limit_options"})
_EXPRESSIONS = frozenset({"expressions"})


def quoted(name: str, mark: str = '"') -> str:
    """Returns a name, or another text, between marks."""
    return mark + name.replace(mark, mark + mark) + mark


def listed(begin: str, trees: Sequence[exp.Expression], end: str) -> Parts:
    """Returns the trees with commas between them."""
    if not trees:
        return [begin, end]
    parts: Parts = [begin]
    for tree in trees:
        parts += (tree, ", ")
    parts[-1] = end
    return parts


def _has_only(args: Args, known: frozenset[str]) -> bool:
    if args.keys() <= known:
        return True
    return all(key in known or not value for key, value in args.items())


def _select(args: Args) -> Parts | None:
    distinct, group, limit = args.get("distinct"), args.get("group"), args.get("limit")
    if not _has_only(args, _SELECT) or (distinct and not _has_only(distinct.args, frozenset())) or (
            group and not _has_only(group.args, _EXPRESSIONS)) or (
            limit and not (isinstance(limit, exp.Limit) and _has_only(limit.args, _LIMIT))):
        return None
    parts: Parts = [args["with_"], " "] if args.get("with_") else []
    parts += listed("SELECT DISTINCT " if distinct else "SELECT ", args["expressions"], "")
    if args.get("from_"):
        parts += (" FROM ", args["from_"].args["this"])
    for join in args.get("joins") or ():
        parts += (" ", join)
    if args.get("where"):
        parts += (" WHERE ", args["where"].args["this"])
    if group:
        parts += listed(" GROUP BY ", group.args["expressions"], "")
    if args.get("having"):
        parts += (" HAVING ", args["having"].args["this"])
    if args.get("qualify"):
        parts += (" QUALIFY ", args["qualify"].args["this"])
    if args.get("order"):
        parts += listed(" ORDER BY ", args["order"].args["expressions"], "")
    if limit:
        parts += (" LIMIT ", limit.args["expression"])
        if limit.args.get("limit_options"):  # sqlglot prints PERCENT, which DuckDB takes behind bare numbers only
            parts.append(" %")
    if args.get("offset"):
        parts += (" OFFSET ", args["offset"].args["expression"])
    return parts


def _with(args: Args) -> Parts | None:
    return listed("WITH ", args["expressions"], "") if _has_only(args, _EXPRESSIONS) else None


def _cte(args: Args) -> Parts | None:
    alias = _alias(args)
    return [*alias, " AS (", args["this"], ")"] if alias is not None and _has_only(args, _NAMED) else None


def _alias(args: Args) -> Parts | None:
    """The names that a relation and its columns are given, if that is all that is said of it."""
    alias = args["alias"]
    if not isinstance(alias, exp.TableAlias) or not _has_only(alias.args, _ALIAS):
        return None
    name, columns = alias.args["this"], alias.args.get("columns")
    return [name, *listed("(", columns, ")")] if columns else [name]


def _relation(begin: str, end: str) -> Callable[[Args], Parts | None]:
    def parts(args: Args) -> Parts | None:
        if not _has_only(args, _NAMED):
            return None
        if not args.get("alias"):
            return [begin, args["this"], end]
        alias = _alias(args)
        return None if alias is None else [begin, args["this"], end, " AS ", *alias]

    return parts


def _join(args: Args) -> Parts | None:
    if not _has_only(args, _JOIN):
        return None
    words = [str(args[key]) for key in ("method", "side", "kind") if args.get(key)]
    parts: Parts = [" ".join([*words, "JOIN "]), args["this"]]
    if args.get("using"):
        return [*parts, *listed(" USING (", args["using"], ")")]
    return [*parts, " ON ", args["on"]] if args.get("on") else parts


def _star(args: Args) -> Parts | None:
    if not _has_only(args, _STAR):
        return None
    parts: Parts = ["*"]
    if args.get("except_"):
        parts += listed(" EXCLUDE (", args["except_"], ")")
    if args.get("replace"):
        parts += listed(" REPLACE (", args["replace"], ")")
    return parts


def _window(args: Args) -> Parts | None:
    if not _has_only(args, _WINDOW) or args.get("over") not in (None, "OVER"):
        return None
    parts: Parts = [args["this"], " OVER ("]
    between = ""
    if args.get("partition_by"):
        parts += listed("PARTITION BY ", args["partition_by"], "")
        between = " "
    if args.get("order"):
        parts += listed(f"{between}ORDER BY ", args["order"].args["expressions"], "")
        between = " "
    if args.get("spec"):
        parts += (between, args["spec"])
    parts.append(")")
    return parts


def _frame(args: Args) -> Parts | None:
    if not _has_only(args, _FRAME):
        return None

    def bound(key: str) -> Parts:
        side = args.get(f"{key}_side")
        return [args.get(key) or "CURRENT ROW", f" {side}" if side else ""]

    return [f"{args.get('kind')} BETWEEN ", *bound("start"), " AND ", *bound("end")]


def _ordered(args: Args) -> Parts | None:
    if args.get("with_fill"):
        return None
    # NULLs come last in DuckDB, whichever way rows are ordered.
    return [args["this"], (" DESC" if args.get("desc") else "") + (" NULLS FIRST" if args.get("nulls_first") else "")]


def _union(args: Args) -> Parts | None:
    if not _has_only(args, _UNION):
        return None
    word = " UNION " if args.get("distinct") else " UNION ALL "
    parts: Parts = [args["with_"], " "] if args.get("with_") else []
    return [*parts, args["this"], word, args["expression"]]


SELECT_PARTS: dict[type[exp.Expression], Callable[[Args], str | Parts | None]] = {
    exp.Select: _select,
    exp.Union: _union,
    exp.With: _with,
    exp.CTE: _cte,
    exp.Table: _relation("", ""),
    exp.Subquery: _relation("(", ")"),
    exp.Join: _join,
    exp.Star: _star,
    exp.Alias: lambda args: [args["this"], " AS ", args["alias"]],
    exp.Window: _window,
    exp.WindowSpec: _frame,
    exp.Ordered: _ordered,
    exp.Filter: lambda args: [args["this"], " FILTER(WHERE ", args["expression"].args["this"], ")"],
    exp.Exists: lambda args: ["EXISTS(", args["this"], ")"],
    exp.IgnoreNulls: lambda args: [args["this"], " IGNORE NULLS"],
    exp.NullSafeEQ: lambda args: [args["this"], " IS NOT DISTINCT FROM ", args["expression"]],
    exp.Var: lambda args: args["this"],
}
