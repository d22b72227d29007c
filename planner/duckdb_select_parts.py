"""How queries are printed as DuckDB SQL: each node as its words and the trees between them, in order.

What a node has that isn't known here is sqlglot's to print: then there are no parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from sqlglot import exp

Parts: TypeAlias = "list[str | exp.Expression]"
_SELECT = {"with_", "distinct", "expressions", "from_", "joins", "where", "group", "having", "qualify", "order",
           "limit", "offset"}
_CLAUSES = (("where", " WHERE "), ("having", " HAVING "), ("qualify", " QUALIFY "))


def listed(begin: str, trees: Sequence[exp.Expression], end: str) -> Parts:
    """Returns the trees with commas between them."""
    parts: Parts = [begin]
    for tree in trees:
        parts += (tree, ", ")
    if trees:
        parts.pop()
    parts.append(end)
    return parts


def _has_only(node: exp.Expression, known: set[str]) -> bool:
    return all(key in known or not value for key, value in node.args.items())


def _select(node: exp.Select) -> Parts | None:
    args = node.args
    distinct, group = args.get("distinct"), args.get("group")
    if not _has_only(node, _SELECT) or (distinct and not _has_only(distinct, set())) or (
            group and not _has_only(group, {"expressions"})):
        return None
    parts: Parts = [args["with_"], " "] if args.get("with_") else []
    parts += listed("SELECT DISTINCT " if distinct else "SELECT ", node.expressions, "")
    if args.get("from_"):
        parts += (" FROM ", args["from_"].this)
    for join in args.get("joins") or ():
        parts += (" ", join)
    for key, word in _CLAUSES[:1]:
        if args.get(key):
            parts += (word, args[key].this)
    if group:
        parts += listed(" GROUP BY ", group.expressions, "")
    for key, word in _CLAUSES[1:]:
        if args.get(key):
            parts += (word, args[key].this)
    if args.get("order"):
        parts += listed(" ORDER BY ", args["order"].expressions, "")
    if args.get("limit"):
        if not isinstance(args["limit"], exp.Limit) or not _has_only(args["limit"], {"expression"}):
            return None
        parts += (" LIMIT ", args["limit"].expression)
    if args.get("offset"):
        parts += (" OFFSET ", args["offset"].expression)
    return parts


def _with(node: exp.With) -> Parts | None:
    return listed("WITH ", node.expressions, "") if _has_only(node, {"expressions"}) else None


def _cte(node: exp.CTE) -> Parts | None:
    alias = _alias(node)
    return [alias, " AS (", node.this, ")"] if alias is not None and _has_only(node, {"this", "alias"}) else None


def _alias(node: exp.Expression) -> exp.Identifier | None:
    """The name that a relation is given, if that is all that is said of it."""
    alias = node.args.get("alias")
    found = alias.this if isinstance(alias, exp.TableAlias) and _has_only(alias, {"this"}) else None
    return found if isinstance(found, exp.Identifier) else None


def _relation(begin: str, end: str) -> Callable[[exp.Expression], Parts | None]:
    def parts(node: exp.Expression) -> Parts | None:
        if not _has_only(node, {"this", "alias"}):
            return None
        if not node.args.get("alias"):
            return [begin, node.this, end]
        alias = _alias(node)
        return None if alias is None else [begin, node.this, end, " AS ", alias]

    return parts


def _join(node: exp.Join) -> Parts | None:
    if not _has_only(node, {"this", "on", "using", "side", "method", "kind"}):
        return None
    args = node.args
    words = [str(args[key]) for key in ("method", "side", "kind") if args.get(key)]
    parts: Parts = [" ".join([*words, "JOIN "]), node.this]
    if args.get("using"):
        return [*parts, *listed(" USING (", args["using"], ")")]
    return [*parts, " ON ", args["on"]] if args.get("on") else parts


def _star(node: exp.Star) -> Parts | None:
    args = node.args
    if not _has_only(node, {"except_", "replace"}):
        return None
    parts: Parts = ["*"]
    if args.get("except_"):
        parts += listed(" EXCLUDE (", args["except_"], ")")
    if args.get("replace"):
        parts += listed(" REPLACE (", args["replace"], ")")
    return parts


def _window(node: exp.Window) -> Parts | None:
    args = node.args
    if not _has_only(node, {"this", "partition_by", "order", "spec", "over"}) or args.get("over") not in (None, "OVER"):
        return None
    inside: list[Parts] = []
    if args.get("partition_by"):
        inside.append(listed("PARTITION BY ", args["partition_by"], ""))
    if args.get("order"):
        inside.append(listed("ORDER BY ", args["order"].expressions, ""))
    if args.get("spec"):
        inside.append([args["spec"]])
    parts: Parts = [node.this, " OVER ("]
    for place, more in enumerate(inside):
        parts += [" ", *more] if place else more
    return [*parts, ")"]


def _frame(node: exp.WindowSpec) -> Parts | None:
    if not _has_only(node, {"kind", "start", "start_side", "end", "end_side"}):
        return None
    args = node.args

    def bound(key: str) -> Parts:
        side = args.get(f"{key}_side")
        return [args.get(key) or "CURRENT ROW", f" {side}" if side else ""]

    return [f"{args.get('kind')} BETWEEN ", *bound("start"), " AND ", *bound("end")]


def _ordered(node: exp.Ordered) -> Parts | None:
    args = node.args
    if args.get("with_fill"):
        return None
    # NULLs come last in DuckDB, whichever way rows are ordered.
    return [node.this, " DESC" if args.get("desc") else "", " NULLS FIRST" if args.get("nulls_first") else ""]


def _union(node: exp.Union) -> Parts | None:
    if not _has_only(node, {"this", "expression", "distinct", "with_"}):
        return None
    word = " UNION " if node.args.get("distinct") else " UNION ALL "
    parts: Parts = [node.args["with_"], " "] if node.args.get("with_") else []
    return [*parts, node.this, word, node.expression]


SELECT_PARTS: dict[type[exp.Expression], Callable[..., Parts | None]] = {
    exp.Select: _select,
    exp.Union: _union,
    exp.With: _with,
    exp.CTE: _cte,
    exp.Table: _relation("", ""),
    exp.Subquery: _relation("(", ")"),
    exp.Join: _join,
    exp.Star: _star,
    exp.Alias: lambda node: [node.this, " AS ", node.args["alias"]],
    exp.Window: _window,
    exp.WindowSpec: _frame,
    exp.Ordered: _ordered,
    exp.Filter: lambda node: [node.this, " FILTER(WHERE ", node.expression.this, ")"],
    exp.Exists: lambda node: ["EXISTS(", node.this, ")"],
    exp.IgnoreNulls: lambda node: [node.this, " IGNORE NULLS"],
    exp.NullSafeEQ: lambda node: [node.this, " IS NOT DISTINCT FROM ", node.expression],
    exp.Var: lambda node: [node.this],
}
