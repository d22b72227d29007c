"""Random queries of all kinds over a table; `random_queries` has what they are made of, and those of fewer clauses."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from kits.queries.random_queries import (
    NARROW,
    Draw,
    Question,
    Relation,
    Term,
    aggregates,
    around,
    conditions,
    filtered,
    groups,
    inner,
    joins,
    named,
    nested,
    question,
    rows,
    set_operation,
    table,
    tags,
    where,
)
from kits.queries.written_tables import Design

from penstock.sql.types import Kind


def questions(draw: Draw, design: Design, ours: str, theirs: str) -> Question:
    """One query over a super table."""
    stored = table(design, ours, theirs)
    kind = draw(st.sampled_from(["plain"] * 10 + ["join", "join", "inner", "inner", "inner", "with", "set", "set",
                                                  "nested", "nested", "nested", "over", "over", "filter", "tags",
                                                  "sets", "first", "first", "beside", "using", "values"]))
    match kind:
        case "tags":
            return tags(draw, design, ours, theirs)
        case "set":
            return set_operation(draw, stored)
        case "nested":
            return nested(draw, design, ours, theirs)
        case "over":
            return around(draw, stored)
        case "filter":
            return filtered(draw, stored)
        case "with":
            return named(draw, stored)
        case "sets":
            return sets(draw, stored)
        case "first":
            return first_rows(draw, stored)
        case "beside":
            return beside(draw, design, ours, theirs)
        case "using":
            return using(draw, design, ours, theirs)
        case "values":
            return among_values(draw, stored)
    relation = {"plain": lambda: stored, "join": lambda: joins(draw, design, ours, theirs),
                "inner": lambda: inner(draw, stored)}[kind]()
    return draw(st.sampled_from([rows, groups]))(draw, relation)


def sets(draw: Draw, relation: Relation) -> Question:
    """Aggregates of groups by several sets of keys; DuckDB is asked for the union of one GROUP BY per set."""
    keys = [draw(st.sampled_from(relation.columns)) for _ in range(2)]
    if keys[0] == keys[1]:
        keys.pop()
    values = [aggregates(draw, relation), Term("count(*)", "count(*)", Kind.BIGINT)]
    found = where(draw, relation)
    both = ", ".join(key.ours for key in keys)
    word = draw(st.sampled_from(["rollup", "cube", "grouping sets"]))
    listed = f"(({both}), ({keys[0].ours}), ())" if word == "grouping sets" else f"({both})"
    chosen = [keys, keys[:1], []]
    if word == "cube":
        chosen.insert(1, keys[1:])
    if len(keys) == 1:
        chosen = [keys, keys, []] if word == "grouping sets" else [keys, []]
    parts = []
    for kept in chosen:
        shown = [key if key in kept else Term("", "NULL", key.kind) for key in keys]
        by = f" GROUP BY {', '.join(key.theirs for key in kept)}" if kept else ""
        listed_theirs = ", ".join(f"{item.theirs} r{n}" for n, item in enumerate([*shown, *values]))
        parts.append(f"(SELECT {listed_theirs} FROM {relation.theirs}{found[1]}{by})")
    mine = question(draw, [*keys, *values], "", f" from {relation.ours}{found[0]} group by {word} {listed}", "",
                    limited=False)
    return replace(mine, theirs=" UNION ALL ".join(parts))


def first_rows(draw: Draw, relation: Relation) -> Question:
    """SELECT DISTINCT ON: of the rows that are ordered by all that is shown the first of each key."""
    items = [draw(st.sampled_from(relation.columns)) for _ in range(draw(st.integers(1, 3)))]
    # As in ORDER BY, a name means the result's column first.
    key = draw(st.sampled_from([each for each in relation.columns if each.ours not in ("`r0`", "`r1`", "`r2`", "r0")]))
    found = where(draw, relation)
    ways = [draw(st.sampled_from(["", " desc"])) for _ in items]
    ours, theirs = ([f"{getattr(item, side)} r{n}" for n, item in enumerate(items)] for side in ("ours", "theirs"))
    order = ", ".join(f"{n}{way or ' asc'} NULLS {'LAST' if way else 'FIRST'}" for n, way in enumerate(ways, 1))
    by = ", ".join(f"{n}{way}" for n, way in enumerate(ways, 1))
    return Question(f"select distinct on ({key.ours}) {', '.join(ours)} from {relation.ours}{found[0]} order by {by}",
                    f"SELECT DISTINCT ON ({key.theirs}) {', '.join(theirs)} FROM {relation.theirs}{found[1]} "
                    f"ORDER BY {order}", tuple(item.kind for item in items), ordered=True)


def beside(draw: Draw, design: Design, ours: str, theirs: str) -> Question:
    """Rows beside what a query about each of them finds."""
    outer, other = table(design, ours, theirs, "a"), table(design, ours, theirs, "b")
    condition = conditions(draw, Relation("", "", (*other.columns, *outer.columns)), 0)
    if draw(st.booleans()):
        column = draw(st.sampled_from(other.columns))
        value = Term(column.ours, column.theirs, column.kind)
    else:
        value = Term("count(*)", "count(*)", Kind.BIGINT)
    join = draw(st.sampled_from([", lateral", " left join lateral"]))
    end = " on true" if "join" in join else ""
    items = [draw(st.sampled_from(outer.columns)), Term("u.c", "u.c", value.kind)]
    return question(draw, items, "", f" from {outer.ours}{join} (select {value.ours} c from {other.ours} where "
                    f"{condition.ours}) u{end}", f" FROM {outer.theirs}{join.upper()} (SELECT {value.theirs} c FROM "
                    f"{other.theirs} WHERE {condition.theirs}) u{end}", limited=False)


def using(draw: Draw, design: Design, ours: str, theirs: str) -> Question:
    """The table joined with itself by names of columns, which are one in the result."""
    left, right = table(design, ours, theirs, "a"), table(design, ours, theirs, "b")
    bare = draw(st.sampled_from([each for each in table(design, ours, theirs).columns if each.ours != "tbname"]))
    kind = draw(st.sampled_from(["inner", "left", "right", "full", "semi", "anti"]))
    items = [bare, *(draw(st.sampled_from(left.columns)) for _ in range(2))]
    if kind not in ("semi", "anti"):
        items.append(draw(st.sampled_from(right.columns)))
    items = [item for item in items if item.ours.partition(".")[2] != bare.ours]
    return question(draw, items, "", f" from {left.ours} {kind} join {right.ours} using ({bare.ours})",
                    f" FROM {left.theirs} {kind} JOIN {right.theirs} USING ({bare.theirs})", limited=False)


def among_values(draw: Draw, relation: Relation) -> Question:
    """Rows that are among those of VALUES, or beside them."""
    known = [column for column in relation.of("number") if column.kind in NARROW]
    numbers = draw(st.lists(st.integers(-3, 130), min_size=1, max_size=4))
    listed = ", ".join(f"({number}, '{number}')" for number in numbers)
    if not known or draw(st.booleans()):
        items = [draw(st.sampled_from(relation.columns)), Term("x.number", "x.number", Kind.BIGINT),
                 Term("written", "written", Kind.VARCHAR)]
        return question(draw, items, "", f" from {relation.ours} cross join (values {listed}) as x(number, written)",
                        f" FROM {relation.theirs} CROSS JOIN (VALUES {listed}) AS x(number, written)", limited=False)
    column = draw(st.sampled_from(known))
    items = [draw(st.sampled_from(relation.columns)), column]
    query = f"(select col0 from (values {listed}))"
    return question(draw, items, "", f" from {relation.ours} where {column.ours} in {query}",
                    f" FROM {relation.theirs} WHERE {column.theirs} IN {query}", limited=False)
