"""Random queries in standard SQL over tables of any types, which Penstock and DuckDB are asked in the same words.

Names that the two write differently stand in guillemets until a query is done. Times are whole numbers in DuckDB. Types
are what columns may be used as: `number` of at most 32 bits, whose sums fit; `wide` of 64; `real` what is never added.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")
Type = Literal["number", "wide", "real", "text", "time", "bool", "bytes"]
#: An item of SELECT, and the type that others may read it as, if any.
Item = tuple[str, Type | None]
NUMBERS: tuple[Type, ...] = ("number", "wide")
#: What rows are grouped by, and ordered by.
PLAIN: tuple[Type, ...] = ("number", "wide", "text", "time", "bool", "real")


@dataclass(frozen=True)
class Relation:
    """What FROM has: its text, its columns, and those that order its rows, if any do."""

    text: str
    columns: tuple[tuple[str, Type], ...]
    key: tuple[str, ...] = ()

    def of(self, *types: Type) -> list[str]:
        return [name for name, type in self.columns if type in types]

    def named(self, alias: str) -> Relation:
        """The same under an alias."""
        return Relation(f"{self.text} {alias}", tuple((f"{alias}.{column}", type) for column, type in self.columns),
                        tuple(f"{alias}.{column}" for column in self.key))


@dataclass(frozen=True)
class View:
    """A query, and what DuckDB is asked: an aggregate over no rows that counts nothing has a row there.

    `items`: its columns, and what they may be read as. `kind`: what it is made by. `whole`: a stream of it, too, is its
    answer, also if tasks keep it.
    """

    ours: str
    theirs: str
    items: tuple[tuple[str, Type | None], ...]
    kind: str
    whole: bool = False


@dataclass(frozen=True)
class Drawing:
    """What draws: the tables, each of which has a `number`, a `text` and a key; the views that are there to be read.

    `names`: what Penstock calls what DuckDB calls by the key.
    """

    draw: st.DrawFn
    tables: Sequence[Relation]
    known: Sequence[Relation] = ()
    names: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, strategy: st.SearchStrategy[T]) -> T:
        return self.draw(strategy)

    def one(self, of: Sequence[T]) -> T:
        return self.draw(st.sampled_from(of))

    def some(self, of: Sequence[T], most: int) -> list[T]:
        return self.draw(st.lists(st.sampled_from(of), min_size=1, max_size=most))

    def perhaps(self) -> bool:
        return self.draw(st.booleans())

    def view(self, kind: str, query: Query, theirs: str | None = None, *, whole: bool = False) -> View:
        ours = re.sub("«(.*?)»", lambda found: self.names[found[1]], query.text)
        return View(ours, re.sub("[«»]", "", query.text if theirs is None else theirs),
                    tuple((f"r{n}", type) for n, type in enumerate(query.types)), kind, whole)


@dataclass(frozen=True)
class Query:
    """A query, and what the columns r0, r1, ... of its answer may be read as."""

    text: str
    types: tuple[Type | None, ...]

    def then(self, text: str) -> Query:
        return Query(self.text + text, self.types)

    def readable(self, text: str, alias: str = "") -> Relation:
        """It as what FROM has."""
        dot = f"{alias}." if alias else ""
        return Relation(f"{text} {alias}".strip(), tuple(
            (f"{dot}r{n}", type) for n, type in enumerate(self.types) if type is not None))


KINDS = ("rows", "rows", "groups", "groups", "groups", "total", "distinct", "set", "set", "over", "over", "first",
         "limit", "top", "with", "on", "on groups", "beside", "distinct groups", "per key", "per key", "per key",
         "per key", "newest", "newest", *["by one key"] * 12)


def views(draw: Drawing) -> View:
    """One query of any clauses, over one table or several."""
    kind = draw.one(KINDS)
    relation = relations(draw)
    match kind:
        case "total":
            items = aggregates(draw, relation, 3)
            found = _select(items, relation, _where(draw, relation))
            counts = any(item.startswith("count") for item, _ in items)
            return draw.view(kind, found, None if counts else f"{found.text} HAVING count(*) > 0", whole=True)
        case "groups":
            return draw.view(kind, groups(draw, relation), whole=True)
        case "per key":
            relation = draw.one([_any(draw, "x"), _any(draw, "x"), relation])
            key = draw.one(relation.of("number", "text", "wide"))
            if draw.one([True, False, False]) and relation.key:
                key = draw.one([*relation.key, *relation.of("number")])
            found: Sequence[Item] = [(key, _type_of(relation, key)), *aggregates(draw, relation, 2)]
            return draw.view(kind, _select(found, relation, f"{_where(draw, relation)} GROUP BY {key}"), whole=True)
        case "distinct":
            found = rows_of(draw, relation, _types(draw, relation))
            return draw.view(kind, Query(found.text.replace("SELECT", "SELECT DISTINCT", 1), found.types), whole=True)
        case "distinct groups":
            found = groups(draw, relation)
            return draw.view(kind, Query(found.text.replace("SELECT", "SELECT DISTINCT", 1), found.types))
        case "set":
            return draw.view(kind, _set(draw))
        case "with":
            return draw.view(kind, _with(draw))
        case "top":
            keys = [draw.one(relation.of(*PLAIN))]
            agg = draw.one(["count(*)", f"max({draw.one(relation.of('number'))})"])
            found = _select([(keys[0], _type_of(relation, keys[0])), (agg, "number")], relation,
                            _where(draw, relation))
            order = _order(draw, [agg, *keys])
            return draw.view(kind, found.then(f" GROUP BY {keys[0]} ORDER BY {order} LIMIT {draw.one([1, 2, 3])}"))
        case "on groups":
            inner = groups(draw, relation, shown=True)
            order = _order(draw, ["r0", "r1"])
            found = Query(f"SELECT DISTINCT ON (r0) r0, r1 FROM ({inner.text}) q ORDER BY {order}", inner.types[:2])
            return draw.view(kind, found)
        case "beside":
            return draw.view(kind, _beside(draw))
        case "by one key":
            return draw.view(kind, by_one_key(draw, draw.one(["number", "number", "text"]), draw.one([1, 2, 2, 3])))
        case "rows":
            return draw.view(kind, rows_of(draw, relation, _types(draw, relation)))
    one = ordered(draw)
    match kind:
        case "over":
            return draw.view(kind, over(draw, one))
        case "newest":
            one = draw.one(draw.tables)
            by = draw.one(one.of("number", "text", "wide"))
            shown = [(column, _type_of(one, column)) for column in dict.fromkeys([by, *one.key])]
            return draw.view(kind, _select(shown, one, _where(draw, one)).then(
                f" QUALIFY row_number() OVER (PARTITION BY {by} ORDER BY {_order(draw, one.key)}) = 1"))
        case "first":
            by, order = draw.one(one.of(*PLAIN)), _order(draw, one.key)
            call = draw.one(["row_number()", "row_number()", "rank()", "dense_rank()"])
            return draw.view(kind, rows_of(draw, one, _types(draw, one)).then(
                f" QUALIFY {call} OVER (PARTITION BY {by} ORDER BY {order}) <= {draw.one([1, 1, 2])}"))
        case "on":
            by = draw.one(one.of(*PLAIN))
            found = rows_of(draw, one, _types(draw, one))
            text = found.text.replace("SELECT", f"SELECT DISTINCT ON ({by})", 1)
            return draw.view(kind, Query(text, found.types).then(f" ORDER BY {_order(draw, (by, *one.key))}"))
    order = _order(draw, (draw.one(one.of(*PLAIN)), *one.key))
    return draw.view("limit", rows_of(draw, one, _types(draw, one)).then(
        f" ORDER BY {order} LIMIT {draw.one([1, 2, 3, 4])}{draw.one(['', '', ' OFFSET 1'])}"))


def by_one_key(draw: Drawing, type: Type, depth: int) -> Query:
    """A query whose rows r0 keeps apart all the way down, or nearly: of the type; r1 is a number."""
    if not depth:
        table = _any(draw, "t")
        where = draw.one(["", f" WHERE {_simple(draw, table)}", _where(draw, table)])
        return rows_of(draw, table, [type, "number"], where) if draw.one([True, False, False, False]) else _select(
            [(draw.one(table.of(type)), type), (draw.one(table.of("number")), "number")], table, where)
    left = by_one_key(draw, type, depth - 1)
    x = left.readable(f"({left.text})", "x")
    where = draw.one(["", "", " WHERE x.r1 > 0", " WHERE x.r0 IS NOT NULL", " WHERE x.r1 IS NULL OR x.r1 = 1"])
    kind = draw.one(["groups", "groups", "join", "join", "join", "half", "set", "over", "over", "distinct", "in",
                     "beside", "exists"])
    match kind:
        case "groups":
            having = draw.one(["", "", " HAVING count(*) > 1", " HAVING max(x.r1) > 0", " HAVING min(x.r1) IS NULL"])
            call = draw.one(["count(*)", "count(x.r1)", "max(x.r1)", "min(x.r1)", "count(DISTINCT x.r1)",
                             "count(*) FILTER (WHERE x.r1 > 0)"])
            return _select([("x.r0", type), (call, "number")], x, f"{where} GROUP BY x.r0{having}")
        case "over":
            call = draw.one(["count(*)", "max(x.r1)", "count(x.r1)"])
            found = _select([("x.r0", type), (f"{call} OVER (PARTITION BY x.r0)", "number")], x, where)
            return found.then(draw.one(["", "", " QUALIFY count(*) OVER (PARTITION BY x.r0) > 1",
                                        " QUALIFY rank() OVER (PARTITION BY x.r0 ORDER BY x.r1 NULLS LAST) = 1"]))
        case "distinct":
            found = _select([("x.r0", type), ("x.r1", "number")], x, where)
            return Query(found.text.replace("SELECT", "SELECT DISTINCT", 1), found.types)
    right = by_one_key(draw, type, draw.one([0, depth - 1]))
    y = right.readable(f"({right.text})", "y")
    match kind:
        case "set":
            word = draw.one(["UNION", "UNION ALL", "EXCEPT", "INTERSECT", "EXCEPT ALL", "INTERSECT ALL"])
            return Query(f"({left.text}) {word} ({right.text})", left.types)
        case "in":
            word = draw.one(["IN", "IN", "NOT IN"])
            return _select([("x.r0", type), ("x.r1", "number")], x, f" WHERE x.r0 {word} (SELECT y.r0 FROM {y.text})")
        case "exists":
            word = draw.one(["EXISTS", "NOT EXISTS"])
            return _select([("x.r0", type), ("x.r1", "number")], x,
                           f" WHERE {word} (SELECT 1 FROM {y.text} WHERE y.r0 = x.r0)")
        case "beside":
            call = draw.one(["count(*)", "max(y.r1)", "count(y.r1)"])
            return _select([("x.r0", type), (f"(SELECT {call} FROM {y.text} WHERE y.r0 = x.r0)", "number")], x, where)
        case "half":
            both = Relation(f"{x.text} {draw.one(['SEMI', 'ANTI'])} JOIN {y.text} ON x.r0 = y.r0", x.columns)
            return _select([("x.r0", type), ("x.r1", "number")], both, where)
    word = draw.one(["", "", "LEFT ", "RIGHT ", "FULL "])
    more = draw.one(["", "", " AND x.r1 = y.r1", " AND y.r1 > 0", " AND x.r1 <> 1"])
    both = Relation(f"{x.text} {word}JOIN {y.text} ON x.r0 = y.r0{more}", (*x.columns, *y.columns))
    key = draw.one(["x.r0", "x.r0", "y.r0", "coalesce(x.r0, y.r0)"])
    return _select([(key, type), (draw.one(["x.r1", "y.r1", "coalesce(y.r1, 0)"]), "number")], both, where)


def row_views(draw: Drawing) -> View:
    """Rows of one table with a time, one by one, as a stream of tasks takes them: of a super table by its tables."""
    one = draw.one([table for table in draw.tables if table.key in (("ts",), ("«tb»", "ts"))])
    types: list[Type] = draw.some([type for type in ("number", "text", "bool", "real", "time") if one.of(type)], 3)
    items: list[Item] = [("ts", "time"), *_items(draw, one, types)]
    found = Query(f"SELECT {', '.join(f'{item} AS r{n}' for n, (item, _) in enumerate(items))} FROM {one.text}",
                  tuple(type for _, type in items))
    found = found.then("" if draw.perhaps() else f" WHERE {_simple(draw, one)}")
    return draw.view("row by row", found.then(" PARTITION BY «tb»") if "«tb»" in one.key else found, found.text)


def _set(draw: Drawing) -> Query:
    parts = [relations(draw) for _ in range(draw.one([2, 2, 3]))]
    shared: list[Type] = [type for type in ("number", "text", "time", "bool") if all(part.of(type) for part in parts)]
    types = draw.some(shared, 2)
    first, *others = (rows_of(draw, part, types) for part in parts)
    text = first.text
    for other in others:
        word = draw.one(["UNION", "UNION ALL", "EXCEPT", "INTERSECT", "EXCEPT ALL", "INTERSECT ALL"])
        text = f"({text}) {word} ({other.text})"
    return Query(text, first.types)


def _with(draw: Drawing) -> Query:
    inner = groups(draw, relations(draw), shown=True) if draw.perhaps() else rows_of(
        draw, relations(draw), ["number", "text"])
    match draw.one(["join", "in", "groups", "two"]):
        case "join":
            word = draw.one(["", "LEFT ", "FULL "])
            left, right = inner.readable("w", "x"), inner.readable("w", "y")
            outer = Relation(f"w x {word}JOIN w y ON x.r0 = y.r0", (*left.columns, *right.columns))
            found = rows_of(draw, outer, ["number", "text"])
        case "in":
            other = draw.one(draw.tables).named("x")
            found = rows_of(draw, other, _types(draw, other), f" WHERE {draw.one(other.of('number'))} IN (SELECT r0 "
                            f"FROM w WHERE {draw.one(['true', 'r0 > 0'])})")
        case "groups":
            found = groups(draw, inner.readable("w", "u"), shown=True)
        case _:
            more = rows_of(draw, inner.readable("w", "u"), ["number", "text"])
            outer = Relation("w x JOIN v y ON x.r1 = y.r1",
                             (*inner.readable("w", "x").columns, *more.readable("v", "y").columns))
            found = rows_of(draw, outer, ["number", "text"])
            return Query(f"WITH w AS ({inner.text}), v AS ({more.text}) {found.text}", found.types)
    return Query(f"WITH w AS ({inner.text}) {found.text}", found.types)


def _beside(draw: Drawing) -> Query:
    """Rows of a table beside what queries in the SELECT list find, which may name the row."""
    outer, inner = _any(draw, "x"), _any(draw, "s")
    number, other = draw.one(outer.of("number")), draw.one(inner.of("number"))
    call, type = draw.one(aggregates(draw, inner, 1))
    about = draw.one([f" WHERE {other} = {number}", f" WHERE {other} = {number}", f" WHERE {other} < {number}", ""])
    found: list[Item] = [*_items(draw, outer, _types(draw, outer)), (f"(SELECT {call} FROM {inner.text}{about})", type)]
    return _select(found, outer, _where(draw, outer))


def ordered(draw: Drawing) -> Relation:
    """One of the tables, or two of them joined: what has a key."""
    if draw.one([True, True, False]):
        return draw.one(draw.tables)
    left, right = (draw.one(draw.tables).named(alias) for alias in "xy")
    return Relation(f"{left.text} JOIN {right.text} ON {_equal(draw, left, right)}", (*left.columns, *right.columns),
                    (*left.key, *right.key))


def relations(draw: Drawing) -> Relation:
    """A table, a sub-query, or a join of two of them, or of three."""
    kind = draw.one(["table", "table", "table", "query", "join", "join", "join", "half", "using", "cross"])
    match kind:
        case "table":
            return draw.one(draw.tables) if draw.one([True, False, False]) else _any(draw, "x")
        case "query":
            return _query(draw, "q")
        case "using":
            left, right = _query(draw, "x"), _query(draw, "y")
            word = draw.one(["", "LEFT ", "RIGHT ", "FULL "])
            return Relation(f"(SELECT r0, x.r1 AS a, y.r1 AS b FROM {left.text} {word}JOIN {right.text} USING (r0)) u",
                            (("u.r0", "number"), ("u.a", "text"), ("u.b", "text")))
    left, right = _part(draw, "x"), _part(draw, "y")
    if kind == "cross":
        right = Relation(f"(SELECT max(s.r0) AS r0, count(s.r1) AS r1 FROM {_query(draw, 's').text}) y",
                         (("y.r0", "number"), ("y.r1", "number")))
        return Relation(f"{left.text} CROSS JOIN {right.text}", (*left.columns, *right.columns))
    on = _on(draw, left, right)
    if kind == "half":
        return Relation(f"{left.text} {draw.one(['SEMI', 'ANTI'])} JOIN {right.text} ON {on}", left.columns)
    word = draw.one(["", "", "LEFT ", "RIGHT ", "FULL "])
    found = Relation(f"{left.text} {word}JOIN {right.text} ON {on}", (*left.columns, *right.columns))
    if draw.one([True, True, False]):
        return found
    third = _any(draw, "z")
    word = draw.one(["", "LEFT ", "FULL "])
    return Relation(f"{found.text} {word}JOIN {third.text} ON {_on(draw, found, third)}",
                    (*found.columns, *third.columns))


def _part(draw: Drawing, alias: str) -> Relation:
    return _any(draw, alias) if draw.one([True, True, False]) else _query(draw, alias)


def _any(draw: Drawing, alias: str) -> Relation:
    """A table, or a view that is known. Without an alias its columns might be taken for those of the answer."""
    return draw.one([*draw.tables, *draw.known]).named(alias)


def _query(draw: Drawing, alias: str) -> Relation:
    """A sub-query with a number r0 and a text r1."""
    table = _any(draw, "t")
    inner = groups(draw, table, shown=True) if draw.perhaps() else rows_of(draw, table, ["number", "text"])
    return inner.readable(f"({inner.text})", alias)


def _equal(draw: Drawing, left: Relation, right: Relation) -> str:
    types: list[Type] = [type for type in ("number", "number", "number", "text", "time", "wide")
                         if left.of(type) and right.of(type)]
    type = draw.one(types)
    return f"{draw.one(left.of(type))} = {draw.one(right.of(type))}"


def _on(draw: Drawing, left: Relation, right: Relation) -> str:
    equal = _equal(draw, left, right)
    match draw.one(["", "", "", "side", "other", "both"]):
        case "side":
            return f"{equal} AND {_simple(draw, right)}"
        case "other":
            return f"{equal} AND {_simple(draw, left)}"
        case "both":
            return f"{equal} AND {_equal(draw, left, right)}"
    return equal


def rows_of(draw: Drawing, relation: Relation, types: Sequence[Type], where: str | None = None) -> Query:
    """A query of columns of these types."""
    return _select(_items(draw, relation, types), relation, _where(draw, relation) if where is None else where)


def _items(draw: Drawing, relation: Relation, types: Sequence[Type]) -> list[Item]:
    return [(value(draw, relation, type), type) for type in types]


def _select(items: Sequence[Item], relation: Relation, rest: str) -> Query:
    listed = ", ".join(f"{item} AS r{n}" for n, (item, _) in enumerate(items))
    return Query(f"SELECT {listed} FROM {relation.text}{rest}", tuple(type for _, type in items))


def groups(draw: Drawing, relation: Relation, *, shown: bool = False) -> Query:
    """Aggregates of groups, whose keys are all shown, or perhaps not; `shown`: a number and a text are."""
    if shown:
        keys = [draw.one(relation.of("number")), draw.one(relation.of("text"))]
        items = keys
    else:
        keys = draw(st.lists(st.sampled_from(relation.of(*PLAIN, "bytes")), min_size=1, max_size=2, unique=True))
        items = draw(st.permutations(keys))[:draw.one([len(keys), len(keys), 1])]
        if draw.one([False, False, False, True]):
            keys = [f"({_simple(draw, relation)})", *keys[1:]]
            items = keys
    number = draw.one(relation.of("number"))
    having = "" if shown else draw.one(
        ["", "", " HAVING count(*) > 1", f" HAVING max({number}) IS NOT NULL", f" HAVING count({number}) < 3",
         f" HAVING sum({number}) > (SELECT min({number}) FROM {relation.text})"])
    found = [*((item, _type_of(relation, item)) for item in items), *aggregates(draw, relation, 3)]
    return _select(found, relation, f"{_where(draw, relation)} GROUP BY {', '.join(keys)}{having}")


def aggregates(draw: Drawing, relation: Relation, most: int) -> list[Item]:
    number, text, any_, key = (draw.one(relation.of(*types)) for types in (
        ("number",), ("text",), (*PLAIN, "bytes"), PLAIN))
    type, condition = _type_of(relation, key), _simple(draw, relation)
    choices: list[Item] = [
        ("count(*)", "number"), ("count(*)", "number"), (f"count({any_})", "number"),
        (f"count(DISTINCT {any_})", "number"), (f"sum({number})", "wide"), (f"min({key})", type),
        (f"max({key})", type), (f"avg({number})", "real"), (f"count(*) FILTER (WHERE {condition})", "number"),
        (f"sum({number}) FILTER (WHERE {condition})", "wide"), (f"count(DISTINCT {text})", "number"),
        (f"string_agg({text}, ',' ORDER BY {text})", None), (f"string_agg(DISTINCT {text}, '' ORDER BY {text})", None),
        (f"median({number})", "real"), (f"bool_or({condition})", "bool"), (f"stddev_pop({number})", "real")]
    return draw.some(choices, most)


def over(draw: Drawing, relation: Relation) -> Query:
    """Rows of a table with what a window over them says."""
    number = draw.one(relation.of("number"))
    by = draw.one(["", f"PARTITION BY {draw.one(relation.of(*PLAIN))} "])
    calls: list[tuple[str, Type]] = [
        ("row_number()", "number"), (f"lag({number})", "number"), (f"lead({number}, 2)", "number"),
        (f"sum({number})", "wide"), ("count(*)", "number"), (f"max({number})", "number"),
        (f"first_value({number})", "number"), ("dense_rank()", "number"), (f"avg({number})", "real")]
    call, type = draw.one(calls)
    frame = draw.one(["", "", " ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING", " ROWS UNBOUNDED PRECEDING"])
    frame = "" if call.startswith(("row", "lag", "lead", "dense")) else frame
    shown: list[Item] = [*((column, _type_of(relation, column)) for column in relation.key),
                         (f"{call} OVER ({by}ORDER BY {_order(draw, relation.key)}{frame})", type)]
    return _select(shown[draw.one([0, 0, 1]):], relation, _where(draw, relation))


def value(draw: Drawing, relation: Relation, type: Type) -> str:
    """A column, or what is made of columns."""
    column = draw.one(relation.of(type))
    match draw.one(["column", "column", "column", "coalesce", "case", "more"]), type:
        case "coalesce", "number":
            return f"coalesce({column}, 7)"
        case "coalesce", "text":
            return f"upper(coalesce({column}, 'none'))"
        case "case", "number" | "text" | "bool":
            other = draw.one(relation.of(type))
            return f"CASE WHEN {_simple(draw, relation)} THEN {column} ELSE {other} END"
        case "more", "number":
            more = f"greatest(coalesce({column}, 0), coalesce({draw.one(relation.of(type))}, 1))"
            return draw.one([f"nullif({column}, 1)", more])
        case "more", "text":
            return draw.one([f"replace({column}, 'x', 'yy')", f"lower({column})", f"nullif({column}, 'x')"])
        case "more", "bool":
            return f"({_simple(draw, relation)})"
    return column


def _type_of(relation: Relation, column: str) -> Type:
    return dict(relation.columns).get(column, "bool")


def _types(draw: Drawing, relation: Relation) -> list[Type]:
    return draw.some([type for _, type in relation.columns], 4)


def _where(draw: Drawing, relation: Relation) -> str:
    """WHERE, or nothing."""
    return "" if draw.perhaps() else f" WHERE {_condition(draw, relation)}"


def _condition(draw: Drawing, relation: Relation) -> str:
    number = draw.one(relation.of("number"))
    other = _any(draw, "s")
    found = draw.one(other.of("number"))
    kind = draw.one(["simple", "simple", "simple", "and", "or", "not", "in", "in", "exists", "exists", "more"])
    match kind:
        case "and" | "or":
            return f"({_simple(draw, relation)} {kind.upper()} {_simple(draw, relation)})"
        case "not":
            return f"NOT ({_simple(draw, relation)})"
        case "in":
            word = draw.one(["IN", "IN", "NOT IN"])
            more = draw.one([f" WHERE {found} IS NOT NULL", f" WHERE {_simple(draw, other)}", ""])
            return f"{number} {word} (SELECT {found} FROM {other.text}{more})"
        case "exists":
            word = draw.one(["EXISTS", "EXISTS", "NOT EXISTS"])
            more = draw.one(["", f" AND {_simple(draw, other)}"])
            return f"{word} (SELECT 1 FROM {other.text} WHERE {found} = {number}{more})" if "." in number else (
                f"{number} = ANY (SELECT {found} FROM {other.text})" if word == "EXISTS" else f"{number} IS NULL")
        case "more":
            operator, call = draw.one([">=", "<", "="]), draw.one(["min", "max"])
            return f"{number} {operator} (SELECT {call}({found}) FROM {other.text})"
    return _simple(draw, relation)


def _simple(draw: Drawing, relation: Relation) -> str:
    number, text = (draw.one(relation.of(*types)) for types in (NUMBERS, ("text",)))
    choices = [f"{number} > 0", f"{number} = 1", f"{number} IS NULL", f"{number} IN (0, 2)", f"{text} LIKE 'x%'",
               f"{text} <> 'y'", f"{number} BETWEEN 0 AND 2", f"{text} IS NOT NULL", f"{text} >= 'x'",
               f"{number} <> -1", f"{number} < {draw.one(relation.of('number'))}",
               f"{text} IS DISTINCT FROM {draw.one(relation.of('text'))}"]
    choices += [f"{name} {more}" for name in relation.of("bool") for more in ("", "IS NOT TRUE")]
    choices += [f"{name} IS NULL" for name in relation.of("real", "bytes", "time")]
    if times := relation.of("time"):
        choices.append(f"{draw.one(times)} {draw.one(['<', '>=', '='])} {draw.one(times)}")
    return draw.one(choices).strip()


def _order(draw: Drawing, columns: Sequence[str]) -> str:
    return ", ".join(f"{column}{draw.one(['', ' DESC'])} NULLS {draw.one(['FIRST', 'LAST'])}" for column in columns)
