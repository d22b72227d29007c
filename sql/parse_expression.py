"""Parses scalar expressions and type names into the classes that `penstock.sql.dialect` lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from sqlglot import exp

from penstock.sql.cursor import NOT_AN_ALIAS, RESERVED, Cursor
from penstock.sql.dialect import (
    DurationLiteral,
    JsonContains,
    JsonGet,
    Match,
    TimestampLiteral,
    Trim,
    TrimMode,
    TypeName,
)
from penstock.sql.lexer import Token, TokenKind
from penstock.sql.literals import parse_integer
from penstock.sql.statements import Duration, Unit
from penstock.sql.types import DataType, Kind

MAX_CHAIN = 500
MAX_DEPTH = 600
MAX_VARCHAR = 65_517
MAX_NCHAR = 16_379
MAX_DIGITS = 38

_BINARY: dict[str, tuple[int, type[exp.Expression]]] = {
    "&": (1, exp.BitwiseAnd), "|": (1, exp.BitwiseOr),
    "+": (2, exp.Add), "-": (2, exp.Sub),
    "*": (3, exp.Mul), "/": (3, exp.Div), "%": (3, exp.Mod),
}
_COMPARISONS: dict[str, type[exp.Expression]] = {
    "=": exp.EQ, "<>": exp.NEQ, "!=": exp.NEQ, ">": exp.GT, ">=": exp.GTE, "<": exp.LT, "<=": exp.LTE,
}
_SIMPLE_TYPES: dict[str, Kind] = {
    "TIMESTAMP": Kind.TIMESTAMP, "BOOL": Kind.BOOL, "TINYINT": Kind.TINYINT, "SMALLINT": Kind.SMALLINT,
    "INT": Kind.INT, "INTEGER": Kind.INT, "BIGINT": Kind.BIGINT, "FLOAT": Kind.FLOAT, "DOUBLE": Kind.DOUBLE,
    "JSON": Kind.JSON,
}
_UNSIGNED: dict[Kind, Kind] = {
    Kind.TINYINT: Kind.UTINYINT, Kind.SMALLINT: Kind.USMALLINT, Kind.INT: Kind.UINT, Kind.BIGINT: Kind.UBIGINT,
}
_SIZED_TYPES: dict[str, tuple[Kind, int]] = {
    "VARCHAR": (Kind.VARCHAR, MAX_VARCHAR), "BINARY": (Kind.VARCHAR, MAX_VARCHAR), "NCHAR": (Kind.NCHAR, MAX_NCHAR),
    "VARBINARY": (Kind.VARBINARY, MAX_VARCHAR), "GEOMETRY": (Kind.GEOMETRY, MAX_VARCHAR),
}
_TYPE_WORDS = (*_SIMPLE_TYPES, *_SIZED_TYPES, "DECIMAL", "NUMERIC")
# Reserved words that are functions when a parenthesis follows.
_CALLABLE_RESERVED = frozenset({"NOW", "TODAY", "IF", "DATABASE", "LEFT", "RIGHT"})


def parse_expression(cursor: Cursor) -> exp.Expression:
    """Parses one expression, conditions included. Raises SqlSyntaxError."""
    operands = [_parse_and(cursor)]
    while cursor.take("OR"):
        operands.append(_parse_and(cursor))
    return _balanced(operands, exp.Or)


def parse_operand(cursor: Cursor) -> exp.Expression:
    """Parses an expression without comparisons, NOT, AND and OR at its top. Raises SqlSyntaxError."""
    start = cursor.token
    with cursor.operand() as outermost:
        parsed = _parse_binary(cursor, 1)
    if outermost and cursor.previous_end - start.start > MAX_DEPTH:
        _check_depth(cursor, parsed, start)
    return parsed


def _check_depth(cursor: Cursor, expression: exp.Expression, start: Token) -> None:
    """Refuses chains in chains: each may be as long as allowed, but DuckDB computes only so many in each other."""
    pending = [(expression, 1)]
    while pending:
        node, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise cursor.fail(f"an expression has at most {MAX_DEPTH} operations in each other", start,
                              hint="compute a part in a sub-query, or in a stream of its own")
        pending += [(child, depth + 1) for child in node.iter_expressions()]


def parse_data_type(cursor: Cursor) -> DataType:
    """Parses a type such as `INT UNSIGNED` or `VARCHAR(20)`. Raises SqlSyntaxError."""
    word = cursor.take_any(*_TYPE_WORDS)
    if word is None:
        raise cursor.fail("a data type is expected")
    if word in ("DECIMAL", "NUMERIC"):
        return _parse_decimal(cursor)
    if word in _SIZED_TYPES:
        kind, maximum = _SIZED_TYPES[word]
        cursor.expect_operator("(")
        length = cursor.integer("the length of the type", minimum=1, maximum=maximum)
        cursor.expect_operator(")")
        return DataType(kind, length=length)
    kind = _SIMPLE_TYPES[word]
    if kind in _UNSIGNED and cursor.take("UNSIGNED"):
        kind = _UNSIGNED[kind]
    return DataType(kind)


def _parse_decimal(cursor: Cursor) -> DataType:
    cursor.expect_operator("(")
    digits = cursor.integer("the number of digits", minimum=1, maximum=MAX_DIGITS)
    scale = cursor.integer("the scale", maximum=digits) if cursor.take_operator(",") else 0
    cursor.expect_operator(")")
    return DataType(Kind.DECIMAL, digits=digits, scale=scale)


def _mark(cursor: Cursor, node: exp.Expression, start: int) -> exp.Expression:
    node.meta["offset"] = start
    node.meta["end"] = cursor.previous_end
    return node


def _parse_and(cursor: Cursor) -> exp.Expression:
    operands = [_parse_not(cursor)]
    while cursor.take("AND"):
        operands.append(_parse_not(cursor))
    return _balanced(operands, exp.And)


def _balanced(operands: list[exp.Expression], node: type[exp.Expression]) -> exp.Expression:
    """Joins the operands of AND or OR: as typed if they are few, else as a balanced tree, since trees are walked
    recursively and a long generated condition must not exhaust the stack."""
    if len(operands) > 32:
        middle = len(operands) // 2
        operands = [_balanced(operands[:middle], node), _balanced(operands[middle:], node)]
    result = operands[0]
    for operand in operands[1:]:
        joined = node(this=result, expression=operand)
        joined.meta["offset"] = result.meta["offset"]
        joined.meta["end"] = operand.meta["end"]
        result = joined
    return result


def _parse_not(cursor: Cursor) -> exp.Expression:
    start = cursor.token.start
    if cursor.take("NOT"):
        with cursor.nested():
            return _mark(cursor, exp.Not(this=_parse_not(cursor)), start)
    return _parse_predicate(cursor)


def _parse_predicate(cursor: Cursor) -> exp.Expression:
    start = cursor.token.start
    left = parse_operand(cursor)
    token = cursor.token
    if token.kind is TokenKind.OPERATOR and token.raw in _COMPARISONS:
        cursor.advance()
        return _mark(cursor, _COMPARISONS[token.raw](this=left, expression=parse_operand(cursor)), start)
    if token.kind is not TokenKind.WORD:
        return left
    if cursor.take("IS"):
        negated = cursor.take("NOT")
        null_start = cursor.token.start
        cursor.expect("NULL")
        null = _mark(cursor, exp.Null(), null_start)
        return _negate(cursor, exp.Is(this=left, expression=null), negated, start)
    if cursor.take("CONTAINS"):
        return _mark(cursor, JsonContains(this=left, expression=_string(cursor, "a key")), start)
    if cursor.at_any("MATCH", "NMATCH"):
        negated = cursor.advance().word == "NMATCH"
        return _negate(cursor, Match(this=left, expression=_string(cursor, "a regular expression")), negated, start)
    negated = cursor.take("NOT")
    if cursor.take("LIKE"):
        return _negate(cursor, exp.Like(this=left, expression=_string(cursor, "a pattern")), negated, start)
    if cursor.take("IN"):
        return _negate(cursor, exp.In(this=left, expressions=_parse_in_list(cursor)), negated, start)
    if cursor.take("BETWEEN"):
        low = parse_operand(cursor)
        cursor.expect("AND")
        return _negate(cursor, exp.Between(this=left, low=low, high=parse_operand(cursor)), negated, start)
    if negated:
        raise cursor.fail("LIKE, IN or BETWEEN is expected after NOT")
    return left


def _negate(cursor: Cursor, node: exp.Expression, negated: bool, start: int) -> exp.Expression:
    _mark(cursor, node, start)
    return _mark(cursor, exp.Not(this=node), start) if negated else node


def _parse_in_list(cursor: Cursor) -> list[exp.Expression]:
    cursor.expect_operator("(")
    if cursor.at("SELECT"):
        raise cursor.fail("IN takes a list of values; subqueries are allowed in FROM only")
    with cursor.nested():
        values = [parse_operand(cursor)]
        while cursor.take_operator(","):
            values.append(parse_operand(cursor))
    cursor.expect_operator(")")
    return values


def _parse_binary(cursor: Cursor, minimum: int) -> exp.Expression:
    start = cursor.token.start
    left = _parse_unary(cursor)
    for _ in range(MAX_CHAIN + 1):
        token = cursor.token
        if token.kind is not TokenKind.OPERATOR or token.raw not in _BINARY:
            return left
        level, node = _BINARY[token.raw]
        if level < minimum:
            return left
        cursor.advance()
        left = _mark(cursor, node(this=left, expression=_parse_binary(cursor, level + 1)), start)
    raise cursor.fail(f"an expression has at most {MAX_CHAIN} operators in a row",
                      hint="compute a part in a sub-query, or in a stream of its own")


def _parse_unary(cursor: Cursor) -> exp.Expression:
    starts: list[int] = []
    while cursor.at_operator("-") or cursor.at_operator("+"):
        token = cursor.advance()
        if token.raw == "-":
            starts.append(token.start)
    if not starts:
        return _parse_postfix(cursor)
    with cursor.nested(len(starts)):
        node = _parse_postfix(cursor)
    for start in reversed(starts):
        node = _mark(cursor, exp.Neg(this=node), start)
    return node


def _parse_postfix(cursor: Cursor) -> exp.Expression:
    start = cursor.token.start
    node = _parse_primary(cursor)
    while cursor.take_operator("->"):
        if isinstance(node, JsonGet):
            raise cursor.fail("only one -> is allowed: it looks a key up in a JSON tag")
        node = _mark(cursor, JsonGet(this=node, expression=_string(cursor, "a key")), start)
    return node


def _string(cursor: Cursor, what: str) -> exp.Expression:
    start = cursor.token.start
    return _mark(cursor, exp.Literal.string(cursor.string(what)), start)


def _parse_primary(cursor: Cursor) -> exp.Expression:
    token = cursor.token
    start = token.start
    if token.kind is TokenKind.OPERATOR:
        if token.raw == "(":
            return _parse_parentheses(cursor)
        if token.raw == "*":
            raise cursor.fail("an expression is expected, not *")
        raise cursor.fail("an expression is expected")
    if token.kind is TokenKind.NUMBER:
        cursor.advance()
        return _mark(cursor, _number(cursor, token.raw), start)
    if token.kind is TokenKind.DURATION:
        return _mark(cursor, _duration(cursor), start)
    if token.kind is TokenKind.STRING:
        return _string(cursor, "a string")
    if token.kind is TokenKind.HEX_STRING:
        cursor.advance()
        return _mark(cursor, exp.Literal.string("\\x" + token.raw[2:-1]), start)
    if token.kind is TokenKind.WORD:
        special = _parse_special_word(cursor)
        if special is not None:
            return _mark(cursor, special, start)
        if _at_call(cursor):
            return _mark(cursor, _parse_call(cursor), start)
    return _parse_column(cursor)


def _parse_parentheses(cursor: Cursor) -> exp.Expression:
    start = cursor.token.start
    cursor.expect_operator("(")
    if cursor.at("SELECT"):
        raise cursor.fail("subqueries are allowed in FROM only")
    with cursor.nested():
        inner = parse_expression(cursor)
    cursor.expect_operator(")")
    return _mark(cursor, exp.Paren(this=inner), start)


def _number(cursor: Cursor, raw: str) -> exp.Expression:
    if raw[:2].lower() in ("0x", "0b"):
        try:
            return exp.Literal.number(str(parse_integer(raw)))
        except ValueError:
            raise cursor.fail("this number is too long") from None
    return exp.Literal.number(raw)


def _duration(cursor: Cursor) -> exp.Expression:
    duration: Duration = cursor.duration("a duration")
    return DurationLiteral(value=duration.value, unit=cast(Unit, duration.unit))


def _parse_special_word(cursor: Cursor) -> exp.Expression | None:
    """Parses what begins with a keyword and is neither an ordinary call nor a column."""
    if cursor.take("NULL"):
        return exp.Null()
    if cursor.at_any("TRUE", "FALSE"):
        return exp.Boolean(this=cursor.advance().word == "TRUE")
    if cursor.take("CASE"):
        with cursor.nested():
            return _parse_case(cursor)
    if cursor.at("TIMESTAMP") and cursor.peek().kind is TokenKind.STRING:
        cursor.advance()
        return TimestampLiteral(this=cursor.string("a timestamp"))
    if cursor.at_any("NOW", "TODAY") and cursor.peek().raw != "(":
        return exp.Anonymous(this=cursor.advance().raw.lower(), expressions=[])
    if cursor.peek().raw != "(":
        return None
    parser = _SPECIAL_CALLS.get(cursor.token.word)
    if parser is None:
        return None
    cursor.advance()
    cursor.expect_operator("(")
    with cursor.nested():
        result = parser(cursor)
    cursor.expect_operator(")")
    return result


def _parse_case(cursor: Cursor) -> exp.Expression:
    subject = None if cursor.at("WHEN") else parse_expression(cursor)
    branches: list[exp.Expression] = []
    start = cursor.token.start
    cursor.expect("WHEN")
    while True:
        condition = parse_expression(cursor)
        cursor.expect("THEN")
        branches.append(_mark(cursor, exp.If(this=condition, true=parse_expression(cursor)), start))
        start = cursor.token.start
        if not cursor.take("WHEN"):
            break
    default = parse_expression(cursor) if cursor.take("ELSE") else None
    cursor.expect("END")
    return exp.Case(this=subject, ifs=branches, default=default)


def _parse_cast(cursor: Cursor) -> exp.Expression:
    value = parse_expression(cursor)
    cursor.expect("AS")
    start = cursor.token.start
    if cursor.at_any("VARCHAR", "BINARY", "NCHAR") and cursor.peek().raw != "(":
        kind, maximum = _SIZED_TYPES[cursor.advance().word]
        target = DataType(kind, length=maximum)
    else:
        target = parse_data_type(cursor)
    return exp.Cast(this=value, to=_mark(cursor, TypeName(this=target), start))


def _parse_trim(cursor: Cursor) -> exp.Expression:
    word = cursor.take_any("BOTH", "LEADING", "TRAILING")
    mode = cast(TrimMode, (word or "both").lower())
    if word is not None and cursor.take("FROM"):
        return Trim(this=parse_expression(cursor), mode=mode)
    first = parse_expression(cursor)
    if cursor.take("FROM"):
        return Trim(this=parse_expression(cursor), characters=first, mode=mode)
    if word is not None:
        raise cursor.fail("FROM is expected")
    return Trim(this=first, mode=mode)


def _parse_position(cursor: Cursor) -> exp.Expression:
    needle = parse_operand(cursor)
    if not cursor.take_operator(","):
        cursor.expect("IN")
    return exp.Anonymous(this="position", expressions=[needle, parse_operand(cursor)])


def _substring_parser(name: str) -> Callable[[Cursor], exp.Expression]:
    def parse(cursor: Cursor) -> exp.Expression:
        arguments = [parse_expression(cursor)]
        if cursor.take("FROM"):
            arguments.append(parse_expression(cursor))
            if cursor.take("FOR"):
                arguments.append(parse_expression(cursor))
        else:
            while cursor.take_operator(","):
                arguments.append(parse_expression(cursor))
        return exp.Anonymous(this=name, expressions=arguments)

    return parse


def _parse_cols(cursor: Cursor) -> exp.Expression:
    arguments = [_parse_cols_argument(cursor)]
    while cursor.take_operator(","):
        arguments.append(_parse_cols_argument(cursor))
    return exp.Anonymous(this="cols", expressions=arguments)


def _parse_cols_argument(cursor: Cursor) -> exp.Expression:
    start = cursor.token.start
    argument = _parse_argument(cursor)
    alias_start = cursor.token.start
    alias = parse_alias(cursor)
    if alias is None:
        return argument
    identifier = _mark(cursor, exp.Identifier(this=alias, quoted=True), alias_start)
    return _mark(cursor, exp.Alias(this=argument, alias=identifier), start)


_SPECIAL_CALLS: dict[str, Callable[[Cursor], exp.Expression]] = {
    "CAST": _parse_cast,
    "TRIM": _parse_trim,
    "POSITION": _parse_position,
    "SUBSTR": _substring_parser("substr"),
    "SUBSTRING": _substring_parser("substring"),
    "COLS": _parse_cols,
}


def parse_alias(cursor: Cursor) -> str | None:
    """Parses `[AS] alias` if one follows. Raises SqlSyntaxError."""
    if cursor.take("AS"):
        return cursor.name("an alias")
    token = cursor.token
    if token.kind is TokenKind.QUOTED or (token.kind is TokenKind.WORD and token.word not in NOT_AN_ALIAS):
        return cursor.name("an alias")
    return None


def _at_call(cursor: Cursor) -> bool:
    word = cursor.token.word
    return (word not in RESERVED or word in _CALLABLE_RESERVED) and cursor.peek().raw == "("


def _parse_call(cursor: Cursor) -> exp.Expression:
    name = cursor.advance().raw.lower()
    cursor.expect_operator("(")
    arguments: list[exp.Expression] = []
    if not cursor.at_operator(")"):
        with cursor.nested():
            arguments.append(_parse_argument(cursor))
            while cursor.take_operator(","):
                arguments.append(_parse_argument(cursor))
    cursor.expect_operator(")")
    return exp.Anonymous(this=name, expressions=arguments)


def _parse_argument(cursor: Cursor) -> exp.Expression:
    start = cursor.token.start
    if cursor.take_operator("*"):
        return _mark(cursor, exp.Star(), start)
    return parse_qualified_star(cursor) or parse_expression(cursor)


def parse_qualified_star(cursor: Cursor) -> exp.Expression | None:
    """Parses `table.*` if that follows."""
    if not cursor.at_name() or cursor.peek(1).raw != "." or cursor.peek(2).raw != "*":
        return None
    start = cursor.token.start
    table = _identifier(cursor, "a table name")
    cursor.expect_operator(".")
    star_start = cursor.token.start
    cursor.expect_operator("*")
    star = _mark(cursor, exp.Star(), star_start)
    return _mark(cursor, exp.Column(this=star, table=table), start)


def _identifier(cursor: Cursor, what: str) -> exp.Expression:
    start = cursor.token.start
    quoted = cursor.token.kind is TokenKind.QUOTED
    return _mark(cursor, exp.Identifier(this=cursor.name(what), quoted=quoted), start)


def _parse_column(cursor: Cursor) -> exp.Expression:
    start = cursor.token.start
    first = _identifier(cursor, "an expression")
    if cursor.take_operator("."):
        return _mark(cursor, exp.Column(this=_identifier(cursor, "a column name"), table=first), start)
    return _mark(cursor, exp.Column(this=first), start)
