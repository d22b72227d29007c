"""Random queries in standard SQL over three small tables, which Penstock and DuckDB are asked in the same words.

`k` has a KEY, `n` a time, `m` is a super table, which DuckDB has with `tbname` and its tag as columns. Times are
numbers there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")
Type = Literal["number", "text", "time"]
_DATA: tuple[tuple[str, Type], ...] = (("a", "number"), ("b", "number"), ("c", "text"))


@dataclass(frozen=True)
class Relation:
    """What FROM has: its text, its columns, and those that order its rows, if any do."""

    text: str
    columns: tuple[tuple[str, Type], ...]
    key: tuple[str, ...] = ()

    def of(self, *types: Type) -> list[str]:
        return [name for name, type in self.columns if type in types]


@dataclass(frozen=True)
class Drawing:
    """What draws, and the views that are there to be read."""

    draw: st.DrawFn
    known: Sequence[Relation] = ()

    def __call__(self, strategy: st.SearchStrategy[T]) -> T:
        return self.draw(strategy)


@dataclass(frozen=True)
class View:
    """A query, and what DuckDB is asked: an aggregate over no rows that counts nothing has a row there."""

    ours: str
    theirs: str


def views(draw: Drawing) -> View:
    """One query of any clauses, over one table or several."""
    kind = draw(st.sampled_from(["rows", "rows", "groups", "groups", "groups", "total", "distinct", "set", "over",
                                 "over", "first", "limit", "with"]))
    match kind:
        case "total":
            relation = relations(draw)
            items = aggregates(draw, relation, 2)
            text = f"SELECT {_listed(items)} FROM {relation.text}{_where(draw, relation)}"
            counts = any(item.startswith("count") for item in items)
            return View(text, text if counts else f"{text} HAVING count(*) > 0")
        case "set":
            types: list[Type] = draw(st.lists(st.sampled_from(["number", "text"]), min_size=1, max_size=2))
            word = draw(st.sampled_from(["UNION", "UNION ALL", "EXCEPT", "INTERSECT"]))
            return _both(f" {word} ".join(rows_of(draw, relations(draw), types) for _ in range(2)))
        case "with":
            inner = groups(draw, relations(draw), shown=True)
            outer = Relation("w x JOIN w y ON x.r0 = y.r0", (("x.r0", "number"), ("y.r1", "text")))
            return _both(f"WITH w AS ({inner}) {rows_of(draw, outer, ['number', 'text'])}")
    relation = relations(draw)
    match kind:
        case "groups":
            return _both(groups(draw, relation))
        case "distinct":
            return _both(rows_of(draw, relation, _types(draw, relation)).replace("SELECT", "SELECT DISTINCT", 1))
        case "over":
            return _both(over(draw, tables(draw, ordered=True)))
        case "first":
            one = tables(draw, ordered=True)
            by, order = draw(st.sampled_from(one.of("number", "text"))), _order(draw, one.key)
            found = rows_of(draw, one, _types(draw, one))
            return _both(f"{found} QUALIFY row_number() OVER (PARTITION BY {by} ORDER BY {order}) <= "
                         f"{draw(st.integers(1, 2))}")
        case "limit":
            one = tables(draw, ordered=True)
            order = _order(draw, (draw(st.sampled_from(one.of("number", "text"))), *one.key))
            limit = f"LIMIT {draw(st.integers(1, 4))}{draw(st.sampled_from(['', ' OFFSET 1']))}"
            return _both(f"{rows_of(draw, one, _types(draw, one))} ORDER BY {order} {limit}")
    return _both(rows_of(draw, relation, _types(draw, relation)))


def tables(draw: Drawing, alias: str = "", *, ordered: bool = False) -> Relation:
    """One of the three tables or of the views that are known; `ordered`: one with a key."""
    dot = f"{alias}." if alias else ""
    if draw.known and not ordered and draw(st.booleans()):
        view = draw(st.sampled_from(draw.known))
        return Relation(f"{view.text} {alias}".strip(), tuple((dot + column, type) for column, type in view.columns))
    name = draw(st.sampled_from("knm"))
    columns: list[tuple[str, Type]] = [(dot + column, type) for column, type in _DATA]
    if name != "k":
        columns.append((f"{dot}ts", "time"))
    if name == "m":
        columns += [(f"{dot}g", "number"), (f"{dot}tbname", "text")]
    key = {"k": ("a",), "n": ("ts",), "m": ("tbname", "ts")}[name]
    return Relation(f"{name} {alias}".strip(), tuple(columns), tuple(dot + column for column in key))


def relations(draw: Drawing) -> Relation:
    """A table, a sub-query, or a join of two of them, or of three."""
    kind = draw(st.sampled_from(["table", "table", "query", "join", "join", "half"]))
    if kind == "table":
        return tables(draw)
    if kind == "query":
        return _query(draw, "q")
    left, right = _part(draw, "x"), _part(draw, "y")
    on = _on(draw, left, right)
    if kind == "half":
        word = draw(st.sampled_from(["SEMI", "ANTI"]))
        return Relation(f"{left.text} {word} JOIN {right.text} ON {on}", left.columns)
    word = draw(st.sampled_from(["", "LEFT ", "RIGHT ", "FULL "]))
    found = Relation(f"{left.text} {word}JOIN {right.text} ON {on}", (*left.columns, *right.columns))
    if draw(st.integers(0, 3)):
        return found
    third = tables(draw, "z")
    return Relation(f"{found.text} LEFT JOIN {third.text} ON {_on(draw, found, third)}",
                    (*found.columns, *third.columns))


def _part(draw: Drawing, alias: str) -> Relation:
    return tables(draw, alias) if draw(st.integers(0, 2)) else _query(draw, alias)


def _query(draw: Drawing, alias: str) -> Relation:
    inner = groups(draw, tables(draw), shown=True) if draw(st.booleans()) else rows_of(
        draw, tables(draw), ["number", "text"])
    columns: tuple[tuple[str, Type], ...] = ((f"{alias}.r0", "number"), (f"{alias}.r1", "text"))
    return Relation(f"({inner}) {alias}", columns)


def _on(draw: Drawing, left: Relation, right: Relation) -> str:
    equal = f"{draw(st.sampled_from(left.of('number')))} = {draw(st.sampled_from(right.of('number')))}"
    return equal if draw(st.integers(0, 3)) else f"{equal} AND {_simple(draw, right)}"


def rows_of(draw: Drawing, relation: Relation, types: Sequence[Type]) -> str:
    """A query of columns of these types."""
    items = [value(draw, relation, type) for type in types]
    return f"SELECT {_listed(items)} FROM {relation.text}{_where(draw, relation)}"


def groups(draw: Drawing, relation: Relation, *, shown: bool = False) -> str:
    """Aggregates of groups, whose keys are all shown, or perhaps not; `shown`: a number and a text are."""
    keys = ([draw(st.sampled_from(relation.of("number"))), draw(st.sampled_from(relation.of("text")))] if shown else
            draw(st.lists(st.sampled_from(relation.of("number", "text")), min_size=1, max_size=2, unique=True)))
    items = keys if shown else draw(st.permutations(keys))[:draw(st.integers(0 if len(keys) > 1 else 1, len(keys)))]
    having = "" if shown else draw(st.sampled_from(
        ["", "", " HAVING count(*) > 1", f" HAVING max({keys[0]}) IS NOT NULL"]))
    return (f"SELECT {_listed([*items, *aggregates(draw, relation, 2)])} FROM {relation.text}{_where(draw, relation)} "
            f"GROUP BY {', '.join(keys)}{having}")


def aggregates(draw: Drawing, relation: Relation, most: int) -> list[str]:
    number, text = (draw(st.sampled_from(relation.of(type))) for type in ("number", "text"))
    return draw(st.lists(st.sampled_from([
        "count(*)", f"count({text})", f"count(DISTINCT {number})", f"sum({number})", f"min({text})", f"max({number})",
        f"avg({number})", f"count(*) FILTER (WHERE {number} > 0)", f"string_agg({text}, ',' ORDER BY {text})"]),
        min_size=1, max_size=most))


def over(draw: Drawing, relation: Relation) -> str:
    """Rows of a table with what a window over them says."""
    number = draw(st.sampled_from(relation.of("number")))
    by = draw(st.sampled_from(["", f"PARTITION BY {draw(st.sampled_from(relation.of('number', 'text')))} "]))
    call = draw(st.sampled_from(["row_number()", f"lag({number})", f"sum({number})", "count(*)", f"max({number})"]))
    shown = [*relation.key, f"{call} OVER ({by}ORDER BY {_order(draw, relation.key)})"]
    if draw(st.integers(0, 2)) == 0:
        shown = shown[1:]
    return f"SELECT {_listed(shown)} FROM {relation.text}{_where(draw, relation)}"


def value(draw: Drawing, relation: Relation, type: Type) -> str:
    """A column, or what is made of columns."""
    column = draw(st.sampled_from(relation.of(type)))
    match draw(st.sampled_from(["column", "column", "column", "coalesce", "case"])), type:
        case "coalesce", "number":
            return f"coalesce({column}, 7)"
        case "coalesce", "text":
            return f"upper(coalesce({column}, 'none'))"
        case "case", "number" | "text":
            other = draw(st.sampled_from(relation.of(type)))
            return f"CASE WHEN {_simple(draw, relation)} THEN {column} ELSE {other} END"
    return column


def _types(draw: Drawing, relation: Relation) -> list[Type]:
    known = [type for _, type in relation.columns]
    return draw(st.lists(st.sampled_from(known), min_size=1, max_size=3))


def _where(draw: Drawing, relation: Relation) -> str:
    """WHERE, or nothing."""
    return "" if draw(st.booleans()) else f" WHERE {_condition(draw, relation)}"


def _condition(draw: Drawing, relation: Relation) -> str:
    number = draw(st.sampled_from(relation.of("number")))
    other = draw(st.sampled_from("knm"))
    kind = draw(st.sampled_from(["simple", "simple", "and", "or", "not", "in", "exists", "more"]))
    match kind:
        case "and" | "or":
            return f"({_simple(draw, relation)} {kind.upper()} {_simple(draw, relation)})"
        case "not":
            return f"NOT ({_simple(draw, relation)})"
        case "in":
            word = draw(st.sampled_from(["IN", "NOT IN"]))
            return f"{number} {word} (SELECT s.b FROM {other} s WHERE s.b IS NOT NULL)"
        case "exists":
            word = draw(st.sampled_from(["EXISTS", "NOT EXISTS"]))
            return f"{word} (SELECT 1 FROM {other} s WHERE s.b = {number})" if "." in number else (
                f"{number} = ANY (SELECT s.a FROM {other} s)" if word == "EXISTS" else f"{number} IS NULL")
        case "more":
            return f"{number} >= (SELECT min(s.a) FROM {other} s)"
    return _simple(draw, relation)


def _simple(draw: Drawing, relation: Relation) -> str:
    number, text = (draw(st.sampled_from(relation.of(type))) for type in ("number", "text"))
    return draw(st.sampled_from([
        f"{number} > 0", f"{number} = 1", f"{number} IS NULL", f"{number} IN (0, 2)", f"{text} LIKE 'x%'",
        f"{text} <> 'y'", f"{number} BETWEEN 0 AND 2", f"{text} IS NOT NULL"]))


def _order(draw: Drawing, columns: Sequence[str]) -> str:
    return ", ".join(f"{column}{draw(st.sampled_from(['', ' DESC']))} NULLS {draw(st.sampled_from(['FIRST', 'LAST']))}"
                     for column in columns)


def _listed(items: Sequence[str]) -> str:
    return ", ".join(f"{item} AS r{n}" for n, item in enumerate(items))


def _both(text: str) -> View:
    return View(text, text)
