"""Parses SELECT and UNION with everything inside them: sources, joins, windows, FILL, limits."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, TypeVar, cast

from sqlglot import exp

from penstock.common.errors import NotSupportedError
from penstock.sql.cursor import Cursor
from penstock.sql.lexer import TokenKind
from penstock.sql.literals import position, unescape
from penstock.sql.parse_expression import parse_alias, parse_expression, parse_operand, parse_qualified_star
from penstock.sql.statements import (
    CountWindow,
    Duration,
    EventWindow,
    Fill,
    FillMode,
    IntervalWindow,
    JoinKind,
    JoinSource,
    JoinVariant,
    Limit,
    OrderItem,
    OutsideSource,
    PartitionItem,
    Query,
    Range,
    Select,
    SelectItem,
    SessionWindow,
    SetOperation,
    Source,
    StateWindow,
    SubquerySource,
    TableSource,
    Window,
)

_FILL_MODES = ("NONE", "NULL", "NULL_F", "VALUE", "VALUE_F", "PREV", "NEXT", "LINEAR", "NEAR")
_VARIANTS = ("SEMI", "ANTI", "ASOF", "WINDOW")
_MAX_COUNT_WINDOW = 2**31 - 1
MAX_JOINS = 50
_Item = TypeVar("_Item")


def at_query(cursor: Cursor) -> bool:
    """Whether a query starts here: SELECT, perhaps in parentheses."""
    if cursor.at("SELECT"):
        return True
    if not cursor.at_operator("("):
        return False
    distance = 1
    while cursor.peek(distance).raw == "(":
        distance += 1
    return cursor.peek(distance).word == "SELECT"


def parse_query(cursor: Cursor) -> Query:
    """Parses a query up to and including `>> file`. Raises SqlSyntaxError."""
    start = cursor.token.start
    query = _parse_set_operations(cursor)
    text = cursor.source(start)
    into_file = _parse_into_file(cursor)
    return replace(query, text=text, into_file=into_file)


def _parse_set_operations(cursor: Cursor) -> Query:
    start = cursor.token.start
    joins_around = cursor.joins
    left, in_parentheses = _parse_query_term(cursor)
    joins = cursor.joins
    limited = isinstance(left, Select) and not in_parentheses and _is_limited(left)
    while cursor.at("UNION"):
        if limited:
            raise cursor.fail("UNION is not allowed after ORDER BY or LIMIT; put that query in parentheses")
        cursor.advance()
        keep_all = cursor.take("ALL")
        cursor.joins = joins_around
        right, right_in_parentheses = _parse_query_term(cursor)
        joins = max(joins, cursor.joins)
        order_by: tuple[OrderItem, ...] = ()
        limit: Limit | None = None
        if isinstance(right, Select) and not right_in_parentheses:
            if right.slimit is not None:
                raise cursor.fail("SLIMIT after UNION belongs into parentheses, with its query")
            order_by, limit = right.order_by, right.limit
            right = replace(right, order_by=(), limit=None)
        left = _united(left, right, keep_all, flat=not in_parentheses)
        if order_by or limit is not None:
            left = replace(left, order_by=order_by, limit=limit)
            limited = True
        in_parentheses = False
    cursor.joins = joins
    if isinstance(left, SetOperation) and not in_parentheses and (left.order_by, left.limit) == ((), None):
        order_by, limit = _parse_order_by(cursor), _parse_limit(cursor, "LIMIT", "OFFSET")
        left = replace(left, order_by=order_by, limit=limit, text=cursor.source(start))
    elif in_parentheses and cursor.at_any("ORDER", "LIMIT"):
        left = _wrap_ordered(cursor, left, start)
    return left


def _united(left: Query, right: Query, keep_all: bool, *, flat: bool) -> SetOperation:
    """Joins queries from the left. However many they are, they lie two deep at most: what UNION makes distinct need
    not be so before, and UNION ALL goes on adding. `flat`: the left one has no parentheses of its own."""
    queries: tuple[Query, ...] = (left,)
    if flat and isinstance(left, SetOperation) and not (left.all is False and keep_all):
        queries = left.queries
        first = queries[0]
        if left.all and not keep_all and isinstance(first, SetOperation) and not first.all and not _has_end(first):
            queries = (*first.queries, *queries[1:])
    return SetOperation((*queries, right), keep_all)


def _has_end(query: SetOperation) -> bool:
    return bool(query.order_by) or query.limit is not None


def _is_limited(select: Select) -> bool:
    return bool(select.order_by) or select.limit is not None or select.slimit is not None


def _wrap_ordered(cursor: Cursor, query: Query, start: int) -> Query:
    """`(query) ORDER BY .. LIMIT ..`: what the inner query does not say itself is taken from outside."""
    order_by, limit = _parse_order_by(cursor), _parse_limit(cursor, "LIMIT", "OFFSET")
    if (order_by and (query.order_by or query.limit)) or (limit and query.limit):
        raise cursor.fail("the query in the parentheses has an ORDER BY or LIMIT of its own; select FROM it instead")
    return replace(query, order_by=order_by or query.order_by, limit=limit or query.limit, text=cursor.source(start))


def _parse_query_term(cursor: Cursor) -> tuple[Query, bool]:
    if cursor.at_operator("("):
        cursor.advance()
        with cursor.nested():
            query = _parse_set_operations(cursor)
        cursor.expect_operator(")")
        return query, True
    return parse_select(cursor), False


def _parse_into_file(cursor: Cursor) -> str | None:
    """Parses `>> 'file'` or `>> file`, which ends at white space or a semicolon."""
    if not cursor.take_operator(">>"):
        return None
    if cursor.token.kind is TokenKind.STRING:
        return unescape(cursor.advance().raw)
    start = cursor.token.start
    while not cursor.at_end and (cursor.token.start in (start, cursor.previous_end)):
        cursor.advance()
    if cursor.previous_end <= start:
        raise cursor.fail("a file name is expected")
    return cursor.source(start)


def parse_select(cursor: Cursor) -> Select:
    """Parses one SELECT without UNION. Raises SqlSyntaxError."""
    start = cursor.token.start
    cursor.expect("SELECT")
    distinct = cursor.take("DISTINCT")
    if not distinct:
        cursor.take("ALL")
    tags_only = cursor.take("TAGS")
    items = _parse_list(cursor, _parse_select_item)
    source = _parse_from(cursor, items[-1])
    where = parse_expression(cursor) if cursor.take("WHERE") else None
    partition_by: tuple[PartitionItem, ...] = ()
    if cursor.take("PARTITION"):
        cursor.expect("BY")
        partition_by = _parse_list(cursor, _parse_partition_item)
    interp_range = _parse_range(cursor)
    every = _parse_every(cursor)
    fill = _parse_fill(cursor, allowed=interp_range is not None or every is not None)
    window = _parse_window(cursor)
    if fill is None:
        fill = _parse_fill(cursor, allowed=isinstance(window, IntervalWindow))
    group_by: tuple[PartitionItem, ...] = ()
    if cursor.take("GROUP"):
        cursor.expect("BY")
        group_by = _parse_list(cursor, _parse_partition_item)
    having = parse_expression(cursor) if cursor.take("HAVING") else None
    order_by = _parse_order_by(cursor)
    slimit = _parse_limit(cursor, "SLIMIT", "SOFFSET")
    limit = _parse_limit(cursor, "LIMIT", "OFFSET")
    return Select(
        items=items, source=source, distinct=distinct, tags_only=tags_only, where=where, partition_by=partition_by,
        window=window, fill=fill, range=interp_range, every=every, group_by=group_by, having=having,
        order_by=order_by, slimit=slimit, limit=limit, text=cursor.source(start),
    )


def _parse_from(cursor: Cursor, last_item: SelectItem) -> Source | None:
    if cursor.take("FROM"):
        return _parse_source(cursor)
    closed = cursor.at_end or cursor.at_operator(")") or cursor.at_operator(">>")
    if not closed and not cursor.at_any("WHERE", "ORDER", "SLIMIT", "LIMIT", "UNION"):
        alias = last_item.alias or ""
        misspelt = difflib.get_close_matches(alias, ["from"], cutoff=0.7)
        raise cursor.fail("FROM is expected", hint=f"is {alias!r} before it a misspelt FROM?" if misspelt else None)
    return None


def _parse_list(cursor: Cursor, parse_item: Callable[[Cursor], _Item]) -> tuple[_Item, ...]:
    items = [parse_item(cursor)]
    while cursor.take_operator(","):
        items.append(parse_item(cursor))
    return tuple(items)


def _parse_select_item(cursor: Cursor) -> SelectItem:
    start = cursor.token.start
    star = parse_qualified_star(cursor)
    if star is None and cursor.take_operator("*"):
        star = exp.Star()
        star.meta["offset"], star.meta["end"] = start, cursor.previous_end
    if star is not None:
        return SelectItem(star, None, cursor.source(start))
    expression = parse_expression(cursor)
    text = cursor.source(start)
    return SelectItem(expression, parse_alias(cursor), text)


def _parse_partition_item(cursor: Cursor) -> PartitionItem:
    start = cursor.token.start
    expression = parse_expression(cursor)
    text = cursor.source(start)
    return PartitionItem(expression, parse_alias(cursor), text)


# --- sources ---


def _parse_source(cursor: Cursor) -> Source:
    source = _parse_joins(cursor, _parse_simple_source(cursor))
    while cursor.at_operator(","):
        comma = cursor.advance()
        right = _parse_joins(cursor, _parse_simple_source(cursor))
        _count_join(cursor)
        source = JoinSource(source, right, "inner", place=(comma.start, comma.end))
    return source


def _parse_simple_source(cursor: Cursor) -> Source:
    if cursor.take_operator("("):
        with cursor.nested():
            source: Source
            if at_query(cursor):
                start = cursor.token.start
                query = _parse_set_operations(cursor)
                source = SubquerySource(replace(query, text=cursor.source(start)))
            else:
                source = _parse_source(cursor)
        cursor.expect_operator(")")
        if isinstance(source, SubquerySource) and source.alias is None:
            source = replace(source, alias=parse_alias(cursor))
        return source
    if cursor.at("CONNECTION") and cursor.peek(2).raw == "(":
        return _parse_outside_source(cursor)
    name = cursor.object_name("a table name")
    cuts = None
    if cursor.take("BETWEEN", "CUT"):
        first = cursor.string("a cut")
        cursor.expect("AND")
        cuts = (first, cursor.string("a cut"))
    return TableSource(name, parse_alias(cursor), cuts)


def _parse_outside_source(cursor: Cursor) -> OutsideSource:
    cursor.expect("CONNECTION")
    connection = cursor.object_name("the connection's name")
    cursor.expect_operator("(")
    cursor.expect("TABLE")
    table = cursor.string("the table's name")
    cursor.expect_operator(")")
    return OutsideSource(connection, table, parse_alias(cursor))


def _parse_joins(cursor: Cursor, left: Source) -> Source:
    while True:
        start = cursor.token.start
        join = _parse_join_words(cursor)
        if join is None:
            return left
        place = (start, cursor.previous_end)
        kind, variant = join
        right = _parse_simple_source(cursor)
        on = parse_expression(cursor) if cursor.take("ON") else None
        window = _parse_window_offset(cursor) if variant == "window" else None
        jlimit = None
        if cursor.at("JLIMIT"):
            if variant not in ("asof", "window"):
                raise cursor.fail("JLIMIT belongs to ASOF and WINDOW joins")
            cursor.advance()
            jlimit = cursor.integer("the number of rows of JLIMIT", maximum=1024)
        _count_join(cursor)
        left = JoinSource(left, right, kind, variant, on, window, jlimit, place)


def _count_join(cursor: Cursor) -> None:
    cursor.joins += 1
    if cursor.joins > MAX_JOINS:
        raise cursor.fail(f"a query joins at most {MAX_JOINS + 1} tables, those of its sub-queries included",
                          hint="split it")


def _parse_join_words(cursor: Cursor) -> tuple[JoinKind, JoinVariant] | None:
    if cursor.take("JOIN"):
        return "inner", ""
    word = cursor.take_any("LEFT", "RIGHT", "FULL", "INNER")
    variant = ""
    if cursor.at_any(*_VARIANTS) and (word is not None or cursor.peek().word == "JOIN"):
        if word not in ("LEFT", "RIGHT"):
            variant = cursor.token.word
            raise cursor.fail(f"{variant} joins have a driving side",
                              hint=f"write LEFT {variant} JOIN or RIGHT {variant} JOIN")
        variant = cursor.advance().word.lower()
    elif word is None:
        return None
    elif word != "INNER":
        cursor.take("OUTER")
    cursor.expect("JOIN")
    return cast(JoinKind, word.lower()), cast(JoinVariant, variant)


def _parse_window_offset(cursor: Cursor) -> tuple[Duration, Duration]:
    cursor.expect("WINDOW_OFFSET")
    cursor.expect_operator("(")
    start = cursor.duration("the start of the window", signed=True)
    cursor.expect_operator(",")
    end = cursor.duration("the end of the window", signed=True)
    cursor.expect_operator(")")
    return start, end


# --- windows ---


def _parse_window(cursor: Cursor) -> Window | None:
    if cursor.take("INTERVAL"):
        return _parse_interval(cursor)
    if cursor.take("SESSION"):
        cursor.expect_operator("(")
        column = parse_operand(cursor)
        cursor.expect_operator(",")
        gap = cursor.duration("the gap of the session")
        cursor.expect_operator(")")
        return SessionWindow(column, gap)
    if cursor.take("STATE_WINDOW"):
        cursor.expect_operator("(")
        expression = parse_expression(cursor)
        cursor.expect_operator(")")
        return StateWindow(expression, _parse_true_for(cursor))
    if cursor.take("EVENT_WINDOW"):
        cursor.expect("START", "WITH")
        start = parse_expression(cursor)
        cursor.expect("END", "WITH")
        return EventWindow(start, parse_expression(cursor), _parse_true_for(cursor))
    if cursor.take("COUNT_WINDOW"):
        return _parse_count_window(cursor)
    if cursor.at("ANOMALY_WINDOW"):
        place = position(cursor.text, cursor.token.start, len(cursor.token.raw))
        raise NotSupportedError("ANOMALY_WINDOW is not supported", position=place)
    return None


def _parse_interval(cursor: Cursor) -> IntervalWindow:
    cursor.expect_operator("(")
    interval = cursor.duration("the width of the window")
    offset: Duration | Literal["auto"] | None = None
    if cursor.take_operator(","):
        offset = "auto" if cursor.take("AUTO") else cursor.duration("the offset of the window", signed=True)
    cursor.expect_operator(")")
    sliding = None
    if cursor.take("SLIDING"):
        cursor.expect_operator("(")
        sliding = cursor.duration("the step of the window")
        cursor.expect_operator(")")
    return IntervalWindow(interval, offset, sliding)


def _parse_count_window(cursor: Cursor) -> CountWindow:
    cursor.expect_operator("(")
    count = cursor.integer("the number of rows", maximum=_MAX_COUNT_WINDOW)
    sliding: int | None = None
    columns: list[exp.Expression] = []
    while cursor.take_operator(","):
        if sliding is None and not columns and cursor.token.kind is TokenKind.NUMBER:
            sliding = cursor.integer("the number of rows of the step", maximum=_MAX_COUNT_WINDOW)
        else:
            columns.append(parse_operand(cursor))
    cursor.expect_operator(")")
    return CountWindow(count, sliding, tuple(columns))


def _parse_true_for(cursor: Cursor) -> Duration | None:
    if not cursor.take("TRUE_FOR"):
        return None
    cursor.expect_operator("(")
    duration = cursor.duration("the least length of the window")
    cursor.expect_operator(")")
    return duration


def _parse_range(cursor: Cursor) -> Range | None:
    if not cursor.take("RANGE"):
        return None
    cursor.expect_operator("(")
    first = parse_operand(cursor)
    last: exp.Expression | None = None
    near: Duration | None = None
    if cursor.take_operator(","):
        if cursor.token.kind is TokenKind.DURATION and cursor.peek().raw == ")":
            near = cursor.duration("how far away a value may be")
        else:
            last = parse_operand(cursor)
            if cursor.take_operator(","):
                near = cursor.duration("how far away a value may be")
    cursor.expect_operator(")")
    return Range(first, last, near)


def _parse_every(cursor: Cursor) -> Duration | None:
    if not cursor.take("EVERY"):
        return None
    cursor.expect_operator("(")
    every = cursor.duration("the step")
    cursor.expect_operator(")")
    return every


def _parse_fill(cursor: Cursor, *, allowed: bool) -> Fill | None:
    if not cursor.at("FILL"):
        return None
    if not allowed:
        raise cursor.fail("FILL must follow INTERVAL, RANGE or EVERY")
    cursor.advance()
    cursor.expect_operator("(")
    word = cursor.take_any(*_FILL_MODES)
    if word is None:
        raise cursor.fail("a fill mode is expected", hint="one of " + ", ".join(_FILL_MODES))
    values: list[exp.Expression] = []
    while cursor.take_operator(","):
        token = cursor.token
        value = parse_operand(cursor)
        if next(value.find_all(exp.Column), None) is not None:
            raise cursor.fail("a fill value must be a constant", token)
        values.append(value)
    if values and word not in ("VALUE", "VALUE_F"):
        if word != "NEAR":
            raise cursor.fail(f"FILL({word}) takes no values")
    elif not values and word in ("VALUE", "VALUE_F"):
        raise cursor.fail(f"FILL({word}) needs a value per column")
    cursor.expect_operator(")")
    return Fill(cast(FillMode, word.lower()), tuple(values))


# --- order and limits ---


def _parse_order_by(cursor: Cursor) -> tuple[OrderItem, ...]:
    if not cursor.take("ORDER"):
        return ()
    cursor.expect("BY")
    return _parse_list(cursor, _parse_order_item)


def _parse_order_item(cursor: Cursor) -> OrderItem:
    expression = parse_expression(cursor)
    descending = cursor.take("DESC")
    if not descending:
        cursor.take("ASC")
    nulls_first: bool | None = None
    if cursor.take("NULLS"):
        nulls_first = cursor.take("FIRST")
        if not nulls_first:
            cursor.expect("LAST")
    return OrderItem(expression, descending, nulls_first)


def _parse_limit(cursor: Cursor, word: str, offset_word: str) -> Limit | None:
    if not cursor.take(word):
        return None
    what = f"the number of {'partitions' if word == 'SLIMIT' else 'rows'} of {word}"
    count = cursor.integer(what)
    if cursor.take_operator(","):
        return Limit(cursor.integer(what), count)
    offset = cursor.integer(f"the number of {offset_word}") if cursor.take(offset_word) else 0
    return Limit(count, offset)
