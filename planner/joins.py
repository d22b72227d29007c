"""Joins: inner, left, right, full, and their SEMI, ANTI, ASOF and WINDOW variants, as one relation with both sides.

SEMI, ANTI, ASOF and WINDOW joins have a driving side (the one that LEFT or RIGHT names), whose rows are numbered;
what the other side adds is chosen per driving row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sqlglot import exp

from penstock.common.errors import InternalError, InvalidStatementError
from penstock.planner.binder import Builder, Relation, RelColumn, row_number_column
from penstock.planner.expressions import compile_condition, compile_expression
from penstock.planner.plan import PlanNode
from penstock.planner.query_parts import text_of
from penstock.planner.scopes import RowScope, unwrapped
from penstock.sql.dialect import DurationLiteral
from penstock.sql.statements import JoinSource

JOIN_ERROR = 0x26FF
ROW = '"#row"'
POSITION = '"#position"'
NEAREST = '"#nearest"'
_COMPARISONS: dict[type[exp.Expression], str] = {exp.GT: ">", exp.GTE: ">=", exp.LT: "<", exp.LTE: "<=", exp.EQ: "="}
_MIRRORED = {">": "<", ">=": "<=", "<": ">", "<=": ">=", "=": "="}


@dataclass(frozen=True, slots=True)
class _Sides:
    """Both relations, as aliases l and r, and the columns of both for conditions (`l.x`) and for the result."""

    left: Relation
    right: Relation
    inside: Relation
    outside: tuple[RelColumn, ...]

    def is_left(self, column: RelColumn) -> bool:
        return column.sql.startswith("l.")


def bind_join(source: JoinSource, left: Relation, right: Relation, where: exp.Expression | None,
              builder: Builder) -> Relation:
    """Returns the joined relation. `where` is the WHERE clause of the query: it may hold the condition on time.

    Raises InvalidStatementError for joins without a condition on both primary timestamps, and for names that both
    sides use.
    """
    common = set(left.qualifiers) & set(right.qualifiers)
    if common:
        raise InvalidStatementError(f"two tables in FROM are called {sorted(common)[0]}", code=0x2663,
                                    hint="give each an alias")
    if left.precision != right.precision and left.time is not None and right.time is not None:
        raise InvalidStatementError(f"times in {left.precision} cannot be joined with times in {right.precision}",
                                    code=JOIN_ERROR, hint="the databases must have the same precision")
    sides = _sides(left, right)
    if source.variant == "window":
        return _window_join(source, sides, builder)
    if source.variant == "asof":
        return _asof_join(source, sides, builder)
    scope = RowScope(sides.inside, builder, "ON")
    conjuncts = list(_conjuncts(source.on))
    if source.on is None and source.kind != "inner":
        raise InvalidStatementError("an outer join needs ON", code=JOIN_ERROR, hint="write ON a.ts = b.ts")
    visible = [*conjuncts, *(_conjuncts(where) if source.kind == "inner" else ())]
    if not any(_time_comparison(node, sides, scope) == "=" for node in visible):
        raise InvalidStatementError(
            "a join needs an equality of the primary timestamps of both tables", code=JOIN_ERROR,
            position=builder.position(source.on) if source.on is not None else None,
            hint="write ON a.ts = b.ts, with a duration added if you like")
    condition = compile_condition(source.on, scope) if source.on is not None else "true"
    if source.variant in ("semi", "anti"):
        return _filtering_join(source, sides, condition, builder)
    words = {"inner": "JOIN", "left": "LEFT JOIN", "right": "RIGHT JOIN", "full": "FULL JOIN"}[source.kind]
    name = builder.step("joined", lambda: (
        f"SELECT {_select(sides)} FROM {left.name} l {words} {right.name} r ON {condition}"))
    return _result(source, sides, name, builder)


def _sides(left: Relation, right: Relation) -> _Sides:
    inner: list[RelColumn] = []
    outer: list[RelColumn] = []
    for alias, relation in (("l", left), ("r", right)):
        for column in relation.columns:
            number = len(outer)
            inner.append(replace(column, sql=f"{alias}.{column.sql}", origins=(column,), used=False))
            outer.append(replace(column, sql=f'"#{alias}{number}"', origins=(column,), used=False))
    inside = Relation(
        name="", columns=tuple(inner), star=tuple(inner), time=None, precision=left.precision, tree=left.tree,
        qualifiers=(*left.qualifiers, *right.qualifiers))
    return _Sides(left, right, inside, tuple(outer))


def _origin(column: RelColumn) -> RelColumn:
    return column.origins[0]


def _conjuncts(node: exp.Expression | None) -> Iterator[exp.Expression]:
    if node is None:
        return
    node = unwrapped(node)
    if isinstance(node, exp.And):
        yield from _conjuncts(node.this)
        yield from _conjuncts(node.expression)
    else:
        yield node


def _time_comparison(node: exp.Expression, sides: _Sides, scope: RowScope) -> str | None:
    """Returns the operator, read from left to right, if the node compares the time lines of both sides."""
    operator = _COMPARISONS.get(type(node))
    if operator is None:
        return None
    first, second = _time_side(node.this, sides, scope), _time_side(node.expression, sides, scope)
    if first is None or second is None or first == second:
        return None
    return operator if first == "l" else _MIRRORED[operator]


def _time_side(node: exp.Expression, sides: _Sides, scope: RowScope) -> str | None:
    """Returns "l" or "r" if the expression is that side's primary timestamp, shifted or truncated at most."""
    node = unwrapped(node)
    if isinstance(node, exp.Add | exp.Sub):
        shifted, shift = unwrapped(node.this), unwrapped(node.expression)
        if isinstance(shifted, DurationLiteral) and isinstance(node, exp.Add):
            shifted, shift = shift, shifted
        return _time_side(shifted, sides, scope) if isinstance(shift, DurationLiteral | exp.Literal) else None
    if isinstance(node, exp.Anonymous) and node.this == "timetruncate" and node.expressions:
        return _time_side(node.expressions[0], sides, scope)
    column = scope.find(node)
    if column is None:
        return None
    side, relation = ("l", sides.left) if sides.is_left(column) else ("r", sides.right)
    times = [time for time, _ in relation.times] or ([relation.time] if relation.time is not None else [])
    return side if any(_origin(column) is time for time in times) else None


def _select(sides: _Sides, without: str = "") -> str:
    """The used columns of the result; those of the side `without` are NULL."""
    shown = []
    for inside, outside in zip(sides.inside.columns, sides.outside, strict=True):
        if not outside.used:
            continue
        if without and inside.sql.startswith(f"{without}."):
            shown.append(f"NULL::{outside.type.duckdb()} AS {outside.sql}")
        else:
            shown.append(f"{inside.sql} AS {outside.sql}")
    return ", ".join(shown) or "1 AS \"#one\""


def _result(source: JoinSource, sides: _Sides, joined: str, builder: Builder, *, prune: bool = True,
            driver: str | None = None) -> Relation:
    left, right = sides.left, sides.right
    number = row_number_column()
    name = builder.step("numbered", lambda: (
        f"SELECT *{', row_number() OVER () AS ' + number.sql if number.used else ''} FROM {joined}"))
    wrapped = {id(_origin(column)): column for column in sides.outside}
    times = [(wrapped[id(time)], slot if prune else None) for time, slot in (*left.times, *right.times)]
    for side in (left, right):
        if side.time is not None and not side.times:
            times.append((wrapped[id(side.time)], None))
    main = right if source.kind == "right" else left
    time = wrapped[id(main.time)] if main.time is not None else None
    kind = " ".join(word for word in (source.kind, source.variant) if word)
    properties = [("kind", kind)]
    if source.on is not None:
        properties.append(("on", text_of(source.on)))
    if source.window is not None:
        properties.append(("window", f"{source.window[0]}..{source.window[1]}"))
    return Relation(
        name=name, columns=sides.outside, star=tuple(wrapped[id(c)] for c in (*left.star, *right.star)), time=time,
        precision=left.precision, tree=lambda: PlanNode("Join", tuple(properties), (left.tree(), right.tree())),
        row_key=(number,), qualifiers=(*left.qualifiers, *right.qualifiers), times=tuple(times), driver=driver)


def _driving(source: JoinSource) -> tuple[str, str]:
    """Returns the aliases of the driving side and of the other one."""
    if source.kind not in ("left", "right"):
        raise InvalidStatementError(f"a {source.kind} {source.variant} join does not exist", code=JOIN_ERROR,
                                    hint=f"write LEFT {source.variant.upper()} JOIN or RIGHT {source.variant.upper()} "
                                         f"JOIN")
    return ("l", "r") if source.kind == "left" else ("r", "l")


def _numbered(name: str) -> str:
    return f"(SELECT *, row_number() OVER () AS {ROW} FROM {name})"


def _tables(sides: _Sides, driver: str) -> tuple[str, str]:
    """FROM items of the driving side, with numbered rows, and of the other side."""
    names = {"l": sides.left.name, "r": sides.right.name}
    other = "r" if driver == "l" else "l"
    return f"{_numbered(names[driver])} {driver}", f"{names[other]} {other}"


def _side_order(sides: _Sides, alias: str, descending: bool = False) -> str:
    relation = sides.left if alias == "l" else sides.right
    word = " DESC" if descending else ""
    return ", ".join(f"{alias}.{column}{word}" for column in relation.order) or "1"


def _filtering_join(source: JoinSource, sides: _Sides, condition: str, builder: Builder) -> Relation:
    driver, other = _driving(source)
    driving, others = _tables(sides, driver)
    if source.variant == "anti":
        name = builder.step("joined", lambda: (
            f"SELECT {_select(sides, other)} FROM {driving} WHERE NOT EXISTS "
            f"(SELECT 1 FROM {others} WHERE {condition})"))
    else:
        first = f"row_number() OVER (PARTITION BY {driver}.{ROW} ORDER BY {_side_order(sides, other)}) = 1"
        name = builder.step("joined", lambda: (
            f"SELECT {_select(sides)} FROM {driving} JOIN {others} ON {condition} QUALIFY {first}"))
    return _result(source, sides, name, builder, prune=False)


def _times(source: JoinSource, sides: _Sides, driver: str) -> tuple[str, str]:
    """SQL of the primary timestamps of the driving side and of the other one."""
    if sides.left.time is None or sides.right.time is None:
        raise InvalidStatementError(f"both sides of a {source.variant} join need a time line", code=JOIN_ERROR)
    left, right = f"l.{sides.left.time.use().sql}", f"r.{sides.right.time.use().sql}"
    return (left, right) if driver == "l" else (right, left)


def _chosen(source: JoinSource, sides: _Sides, condition: str, descending: bool, builder: Builder,
            limit: int | None) -> str:
    """Adds the step of a join that keeps the first `limit` matches of each driving row, and rows without match."""
    driver, other = _driving(source)
    driving, others = _tables(sides, driver)
    kept = ""
    if limit is not None:
        kept = (f" QUALIFY row_number() OVER (PARTITION BY {driver}.{ROW} ORDER BY "
                f"{_side_order(sides, other, descending)}) <= {limit}")
    return builder.step("joined", lambda: (
        f"SELECT {_select(sides)}, {driver}.{ROW} FROM {driving} LEFT JOIN {others} ON {condition}{kept}"))


def _asof_join(source: JoinSource, sides: _Sides, builder: Builder) -> Relation:
    driver, _ = _driving(source)
    scope = RowScope(sides.inside, builder, "ON")
    conjuncts = list(_conjuncts(source.on))
    operators = [operator for operator in (_time_comparison(node, sides, scope) for node in conjuncts) if operator]
    if len(operators) > 1:
        raise InvalidStatementError("an ASOF join compares the primary timestamps only once", code=JOIN_ERROR)
    driving, other = _times(source, sides, driver)
    conditions = [compile_condition(node, scope) for node in conjuncts]
    if operators:
        operator = operators[0] if driver == "l" else _MIRRORED[operators[0]]
    else:
        operator = ">="
        conditions.append(f"{driving} >= {other}")
    condition = " AND ".join(conditions)
    limit = 1 if source.jlimit is None else source.jlimit
    equalities = [node for node in conjuncts if not _time_comparison(node, sides, scope)]
    simple = operator != "=" and all(_is_equality(node, scope) for node in equalities)
    if simple and limit > 1:
        name = _nearest_rows(source, sides, scope, condition, equalities, operator in (">", ">="), builder, limit)
        return _result(source, sides, name, builder, prune=False)
    if simple and limit == 1:
        # DuckDB's own ASOF join finds one row per driving row without pairing all rows first.
        tables = {"l": f"{sides.left.name} l", "r": f"{sides.right.name} r"}
        name = builder.step("joined", lambda: (
            f"SELECT {_select(sides)} FROM {tables[driver]} ASOF LEFT JOIN {tables['r' if driver == 'l' else 'l']} "
            f"ON {condition}"))
        return _result(source, sides, name, builder, prune=False)
    name = _chosen(source, sides, condition, operator in (">", ">=", "="), builder, limit)
    return _result(source, sides, name, builder, prune=False)


def _nearest_rows(source: JoinSource, sides: _Sides, scope: RowScope, condition: str, equalities: list[exp.Expression],
                  before: bool, builder: Builder, limit: int) -> str:
    """Adds the steps of an ASOF join that takes several rows, and returns the last.

    The other side's rows are numbered along their time line; DuckDB's own ASOF join finds the number of the nearest,
    and the rows with the `limit` numbers from there on are joined: backwards in time if `before`.
    """
    driver, other = _driving(source)
    relations = {"l": sides.left, "r": sides.right}
    time = relations[other].time
    assert time is not None
    keys = [compile_expression(_part_of(node, other, scope), scope).sql for node in equalities]
    same = " AND ".join(compile_condition(node, scope) for node in equalities)
    line = f"PARTITION BY {', '.join(keys)} " if keys else ""
    instant = ", ".join([*keys, f"{other}.{time.use().sql}"])
    first = "DESC" if before else "ASC"
    numbered = builder.step("numbered", lambda: (
        f"SELECT *, row_number() OVER ({line}ORDER BY {_side_order(sides, other)}) AS {POSITION} "
        f"FROM {relations[other].name} {other}"))
    nearest = builder.step("nearest", lambda: (
        f"SELECT * FROM {numbered} {other} QUALIFY row_number() OVER "
        f"(PARTITION BY {instant} ORDER BY {POSITION} {first}) = 1"))
    found = builder.step("found", lambda: (
        f"SELECT {driver}.*, {other}.{POSITION} AS {NEAREST} FROM {_numbered(relations[driver].name)} {driver} "
        f"ASOF LEFT JOIN {nearest} {other} ON {condition}"))
    near = f"{driver}.{NEAREST}"
    span = f"{near} - {limit - 1} AND {near}" if before else f"{near} AND {near} + {limit - 1}"
    return builder.step("joined", lambda: (
        f"SELECT {_select(sides)} FROM {found} {driver} LEFT JOIN {numbered} {other} "
        f"ON {f'{same} AND ' if same else ''}{other}.{POSITION} BETWEEN {span} "
        f"ORDER BY {driver}.{ROW}, {other}.{POSITION} {first}"))


def _part_of(node: exp.Expression, alias: str, scope: RowScope) -> exp.Expression:
    """Returns the side of an equality that is over the relation `alias`."""
    for part in (node.this, node.expression):
        columns = [scope.find(column) for column in part.find_all(exp.Column)]
        if any(column is not None and column.sql.startswith(f"{alias}.") for column in columns):
            return part
    raise InternalError(f"no side of {text_of(node)} is over {alias}")


def _is_equality(node: exp.Expression, scope: RowScope) -> bool:
    """Whether the node is an equality of an expression over one side with one over the other."""
    if not isinstance(node, exp.EQ):
        return False
    sides = []
    for part in (node.this, node.expression):
        columns = [scope.find(column) for column in part.find_all(exp.Column)]
        sides.append({column.sql[0] for column in columns if column is not None})
    return len(sides[0]) == len(sides[1]) == 1 and sides[0] != sides[1]


def _window_join(source: JoinSource, sides: _Sides, builder: Builder) -> Relation:
    driver, _ = _driving(source)
    if source.window is None:
        raise InvalidStatementError("a window join needs WINDOW_OFFSET(start, end)", code=JOIN_ERROR)
    if any(offset.is_calendar for offset in source.window):
        raise InvalidStatementError("WINDOW_OFFSET cannot be in months or years", code=JOIN_ERROR)
    scope = RowScope(sides.inside, builder, "ON")
    conjuncts = list(_conjuncts(source.on))
    if any(_time_comparison(node, sides, scope) for node in conjuncts):
        raise InvalidStatementError("ON of a window join cannot compare the primary timestamps", code=JOIN_ERROR,
                                    position=builder.position(source.on) if source.on is not None else None,
                                    hint="WINDOW_OFFSET says how far apart they may be")
    start, end = (offset.in_units(sides.left.precision) for offset in source.window)
    if start > end:
        raise InvalidStatementError(f"WINDOW_OFFSET({source.window[0]}, {source.window[1]}) ends before it starts",
                                    code=JOIN_ERROR)
    driving, other = _times(source, sides, driver)
    conditions = [f"{other} BETWEEN {driving} + {start} AND {driving} + {end}",
                  *(compile_condition(node, scope) for node in conjuncts)]
    condition = " AND ".join(conditions)
    name = _chosen(source, sides, condition, False, builder, source.jlimit)
    return _result(source, sides, name, builder, prune=False, driver=ROW)
