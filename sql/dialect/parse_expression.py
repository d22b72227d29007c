"""Parses scalar expressions into the classes that `penstock.sql.tree.expression_nodes` lists.

The methods replace those of sqlglot that have their names. sqlglot's are lenient where errors must be told (BETWEEN
without AND, CASE without THEN), call themselves over long conditions, don't note where a node comes from, and rewrite
function calls into classes that lose the name and the order of the arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from sqlglot import exp
from sqlglot.tokens import Token, TokenType

from penstock.sql.dialect.base_parser import NAMES
from penstock.sql.dialect.literals import parse_integer
from penstock.sql.dialect.parse_predicate import PredicateParser
from penstock.sql.dialect.tokenizer import KEYWORDS, NOT_AN_ALIAS
from penstock.sql.tree.expression_nodes import (
    DurationLiteral,
    JsonGet,
    TimestampLiteral,
    Trim,
    TrimMode,
)
from penstock.sql.tree.statements import TRIGGER, Duration, Unit

MAX_CHAIN = 500
MAX_DEPTH = 600
# Reserved words that are functions when a parenthesis follows.
_CALLABLE = frozenset({"NOW", "TODAY", "IF", "DATABASE", "LEFT", "RIGHT", "CAST", "CONTAINS", "JSON", "FILL"})
_POSTFIX = frozenset({TokenType.ARROW, TokenType.DARROW, TokenType.DCOLON, TokenType.L_BRACKET, TokenType.DOT})
#: Behind these even a reserved word is an alias.
_BEHIND_ALIASES = (TokenType.COMMA, TokenType.R_PAREN, TokenType.SENTINEL, TokenType.SEMICOLON)
_NO_OPERATOR = (0, exp.Expression)
_EPOCH = "1970-01-01T00:00:00Z"
_PREFIXES = frozenset({"NULL", "TRUE", "FALSE", "CASE", "TIMESTAMP", "NOW", "TODAY"})


class ExpressionParser(PredicateParser):
    """Scalar expressions."""

    BITWISE = {  # noqa: RUF012
        TokenType.AMP: exp.BitwiseAnd, TokenType.PIPE: exp.BitwiseOr, TokenType.DPIPE: exp.DPipe,
        TokenType.LT_AT: exp.BitwiseLeftShift, TokenType.EXPORT: exp.BitwiseRightShift,
    }
    TERM = {TokenType.PLUS: exp.Add, TokenType.DASH: exp.Sub}  # noqa: RUF012
    FACTOR = {  # noqa: RUF012
        TokenType.STAR: exp.Mul, TokenType.SLASH: exp.Div, TokenType.MOD: exp.Mod, TokenType.DIV: exp.IntDiv,
    }
    EXPONENT = {TokenType.CARET: exp.Pow, TokenType.DSTAR: exp.Pow}  # noqa: RUF012
    _BINARY: dict[TokenType, tuple[int, type[exp.Expression]]] = {  # noqa: RUF012
        kind: (level, node)
        for level, table in enumerate((BITWISE, TERM, FACTOR, EXPONENT), 1) for kind, node in table.items()
    }
    #: What goes on with an expression behind a number; `>>` there names a file.
    OPERATORS = (_BINARY.keys() | _POSTFIX) - {TokenType.EXPORT}

    def parse_expression(self) -> exp.Expression:
        """Parses one expression, conditions included. Raises SqlSyntaxError."""
        operands = [self._parse_conjunction()]
        while self.take("OR"):
            operands.append(self._parse_conjunction())
        return _balanced(operands, exp.Or)

    def _parse_disjunction(self, *_: Any) -> exp.Expression:
        return self.parse_expression()

    _parse_expression = _parse_disjunction

    def parse_operand(self) -> exp.Expression:
        """Parses an expression without comparisons, NOT, AND and OR at its top. Raises SqlSyntaxError."""
        start = self._curr
        self._operands += 1
        parsed = self._parse_bitwise()
        self._operands -= 1
        if not self._operands and self._prev.end - start.start >= MAX_DEPTH:
            self._check_depth(parsed, start)
        return parsed

    def _check_depth(self, expression: exp.Expression, start: Token) -> None:
        """Refuses chains in chains: each may be as long as allowed, but DuckDB computes only so many in each other."""
        pending = [(expression, 1)]
        while pending:
            node, depth = pending.pop()
            if depth > MAX_DEPTH:
                raise self.fail(f"an expression has at most {MAX_DEPTH} operations in each other", start,
                                hint="compute a part in a sub-query, or in a stream of its own")
            pending += [(child, depth + 1) for child in node.iter_expressions()]

    def _parse_conjunction(self) -> exp.Expression:
        operands = [self._parse_equality()]
        while self.take("AND"):
            operands.append(self._parse_equality())
        return _balanced(operands, exp.And)

    def _parse_equality(self) -> exp.Expression:
        start = self._curr.start
        if self.take("NOT"):
            self.enter()
            node = self.mark(exp.Not(this=self._parse_equality()), start)
            self.leave()
            return node
        return self.parse_predicate()

    def _parse_bitwise(self, minimum: int = 1) -> exp.Expression:
        """Parses operators of these levels, from left to right; levels are those of BITWISE, TERM and FACTOR."""
        start = self._curr.start
        left = self._parse_unary()
        for _ in range(MAX_CHAIN + 1):
            level, node = self._BINARY.get(self._curr.token_type, _NO_OPERATOR)
            if level < minimum or (node is exp.BitwiseRightShift and self._names_file()) or (
                    node is exp.Mod and self._is_percent()):
                return left
            self._advance()
            left = self.mark(node(this=left, expression=self._parse_bitwise(level + 1)), start)
        raise self.fail(f"an expression has at most {MAX_CHAIN} operators in a row",
                        hint="compute a part in a sub-query, or in a stream of its own")

    def _is_percent(self) -> bool:
        """Whether `%` is the last word of LIMIT, behind which no operand is."""
        ends = (TokenType.SENTINEL, TokenType.R_PAREN, TokenType.SEMICOLON)
        return self._next.token_type in ends or self.peek() == "OFFSET"

    def _names_file(self) -> bool:
        """Whether `>>` is followed by the name of a file; a number or a parenthesis is by how much to shift."""
        return self._next.token_type not in (TokenType.NUMBER, TokenType.L_PAREN)

    def _parse_unary(self) -> exp.Expression:
        signs: list[tuple[type[exp.Expression], int]] = []
        while self._curr.token_type in self.TERM or self.word == "~":
            if self.word != "+":
                signs.append((exp.Neg if self.word == "-" else exp.BitwiseNot, self._curr.start))
            self._advance()
        if not signs:
            return self._parse_postfix()
        self.enter(len(signs))
        node = self._parse_postfix()
        self.leave(len(signs))
        for sign, start in reversed(signs):
            node = self.mark(sign(this=node), start)
        return node

    def _parse_postfix(self) -> exp.Expression:
        start = self._curr.start
        node = self._parse_primary()
        levels = 0
        while self._curr.token_type in _POSTFIX or self.word in ("AT", "COLLATE"):
            follows = self._parse_behind(node, start)
            if follows is None:
                break
            self.enter()
            levels += 1
            node = follows
        if levels:
            self.leave(levels)
        return node

    def _parse_behind(self, node: exp.Expression, start: int) -> exp.Expression | None:
        """Parses a cast, a subscript, a field or the like of a value, if it follows."""
        match self.word:
            case "::":
                self._advance()
                return self.mark(exp.Cast(this=node, to=self.parse_cast_type()), start)
            case "[":
                return self.parse_subscript(node, start)
            case ".":
                return self.parse_part(node, start)
            case "->":
                self._advance()
                return self.mark(JsonGet(this=node, expression=self._parse_primary()), start)
            case "->>":
                self._advance()
                arguments = [node, self._parse_primary()]
                return self.mark(exp.Anonymous(this="json_extract_string", expressions=arguments), start)
            case "AT" if self.at("AT", "TIME", "ZONE"):
                self._advance(3)
                return self.mark(exp.AtTimeZone(this=node, zone=self.parse_string("a time zone")), start)
            case "COLLATE" if self._next.token_type in NAMES:
                raise self.fail("there is no COLLATE: texts are compared by their characters",
                                hint="compare lower(...) where case doesn't matter")
        return None

    def _parse_primary(self) -> exp.Expression:
        token = self._curr
        start = token.start
        kind = token.token_type
        if kind is TokenType.VAR:
            if self._next.token_type is not TokenType.L_PAREN:
                return self.parse_worded() or self._parse_column()
            if self.word == "ARRAY" and self.query_starts(2):
                self._advance()
                return self.mark(self.parse_listed(), start)
            return self.parse_over(self.mark(self._parse_function(), start), start)
        if kind is TokenType.NUMBER:
            self._advance()
            return self.mark(self._number(token.text), start)
        if kind is TokenType.STRING:
            return self.parse_string("a string")
        if kind is TokenType.L_PAREN:
            return self._parse_parentheses()
        if kind is TokenType.L_BRACKET:
            return self.parse_list()
        if kind is TokenType.L_BRACE:
            return self.parse_struct()
        if kind is TokenType.IDENTIFIER:
            return self._parse_column()
        if kind is TokenType.INTERVAL:
            return self.mark(self._duration(), start)
        if kind is TokenType.HEX_STRING:
            self._advance()
            return self.mark(exp.Literal.string("\\x" + token.text), start)
        if self.word in _PREFIXES and (word := self._parse_word()) is not None:
            return self.mark(word, start)
        if self.word == "INTERVAL":
            return self.parse_interval()
        if self.word == "EXISTS" and self._next.token_type is TokenType.L_PAREN:
            self._advance()
            return self.mark(exp.Exists(this=self.parse_subquery()), start)
        if self.word in _CALLABLE and self._next.token_type is TokenType.L_PAREN:
            return self.parse_over(self.mark(self._parse_function(), start), start)
        if self.at_word:
            return self._parse_column()
        given = self.trigger_word()
        if given is not None:
            if given != "tbname" and not given.isdecimal():
                raise self.fail("%%tbname, or %% and the number of a column of PARTITION BY, is expected", token)
            return self.mark(exp.Column(this=exp.Identifier(this=TRIGGER + given, quoted=False)), start)
        raise self.fail("an expression is expected, not *" if kind is TokenType.STAR else "an expression is expected")

    def _parse_parentheses(self) -> exp.Expression:
        if self.query_starts(1):
            return self.parse_subquery_value()
        start = self.token.start
        self.expect("(")
        self.enter()
        inner = self.csv(self.parse_expression)
        self.leave()
        self.expect(")")
        row = len(inner) > 1
        return self.mark(exp.Anonymous(this="row", expressions=list(inner)) if row else exp.Paren(this=inner[0]), start)

    def _number(self, raw: str) -> exp.Expression:
        if raw[:2].lower() in ("0x", "0b"):
            try:
                return exp.Literal.number(str(parse_integer(raw)))
            except ValueError:
                raise self.fail("this number is too long") from None
        return exp.Literal.number(raw)

    def _duration(self) -> exp.Expression:
        duration: Duration = self.duration("a duration")
        return DurationLiteral(value=duration.value, unit=cast(Unit, duration.unit))

    def _parse_word(self) -> exp.Expression | None:
        """Parses a constant or a CASE; returns None if the word is something else here."""
        following = self._next.token_type
        if self.word == "TIMESTAMP":
            if any(self.at("TIMESTAMP", word, "TIME", "ZONE") for word in ("WITH", "WITHOUT")):
                self._advance(3)
            elif following is not TokenType.STRING:
                return None
            self._advance()
            text = self.string("a timestamp")
            return TimestampLiteral(this=_EPOCH if text.lower() == "epoch" else text)
        if self.word in ("NOW", "TODAY") and following is TokenType.L_PAREN:
            return None
        word = self.advance().text.upper()
        if word == "NULL":
            return exp.Null()
        if word in ("TRUE", "FALSE"):
            return exp.Boolean(this=word == "TRUE")
        if word != "CASE":
            return exp.Anonymous(this=word.lower(), expressions=[])
        self.enter()
        node = self._parse_case()
        self.leave()
        return node

    def _parse_case(self) -> exp.Expression:
        subject = None if self.at("WHEN") else self.parse_expression()
        branches: list[exp.Expression] = []
        start = self.token.start
        self.expect("WHEN")
        while True:
            condition = self.parse_expression()
            self.expect("THEN")
            branches.append(self.mark(exp.If(this=condition, true=self.parse_expression()), start))
            start = self.token.start
            if not self.take("WHEN"):
                break
        default = self.parse_expression() if self.take("ELSE") else None
        self.expect("END")
        return exp.Case(this=subject, ifs=branches, default=default)

    def _parse_cast(self, kind: type[exp.Cast] = exp.Cast) -> exp.Expression:
        value = self.parse_expression()
        self.expect("AS")
        return kind(this=value, to=self.parse_cast_type())

    def _parse_extract(self) -> exp.Expression:
        start = self.token.start
        part = self.string("a part of a time") if self.at_type(TokenType.STRING) else self.advance().text.lower()
        literal = self.mark(exp.Literal.string(part), start)
        self.expect("FROM")
        return exp.Anonymous(this="date_part", expressions=[literal, self.parse_expression()])

    def _parse_trim(self) -> exp.Expression:
        word = self.take_any("BOTH", "LEADING", "TRAILING")
        mode = cast(TrimMode, (word or "both").lower())
        if word is not None and self.take("FROM"):
            return Trim(this=self.parse_expression(), mode=mode)
        first = self.parse_expression()
        if self.take("FROM"):
            return Trim(this=self.parse_expression(), characters=first, mode=mode)
        if word is not None:
            raise self.fail("FROM is expected")
        return Trim(this=first, mode=mode)

    def _parse_position(self) -> exp.Expression:
        needle = self.parse_operand()
        if not self.take(","):
            self.expect("IN")
        return exp.Anonymous(this="position", expressions=[needle, self.parse_operand()])

    def _parse_timezone(self) -> exp.Expression:
        if self.at(")"):
            return exp.Anonymous(this="timezone", expressions=[])
        zone = self.parse_string("a time zone")
        self.expect(",")
        start = self.token.start
        return exp.AtTimeZone(this=self.mark(exp.Paren(this=self.parse_expression()), start), zone=zone)

    def _parse_substring(self, name: str) -> exp.Expression:
        arguments = [self.parse_expression()]
        if self.take("FROM"):
            arguments.append(self.parse_expression())
            if self.take("FOR"):
                arguments.append(self.parse_expression())
        else:
            while self.take(","):
                arguments.append(self.parse_expression())
        return exp.Anonymous(this=name, expressions=arguments)

    def _parse_cols(self) -> exp.Expression:
        return exp.Anonymous(this="cols", expressions=list(self.csv(self._parse_cols_argument)))

    def _parse_cols_argument(self) -> exp.Expression:
        start = self.token.start
        argument = self._parse_argument()
        alias_start = self.token.start
        alias = self.parse_alias()
        if alias is None:
            return argument
        identifier = self.mark(exp.Identifier(this=alias, quoted=True), alias_start)
        return self.mark(exp.Alias(this=argument, alias=identifier), start)

    FUNCTION_PARSERS: dict[str, Callable[[ExpressionParser], exp.Expression]] = {  # noqa: RUF012
        "CAST": _parse_cast,
        "TRY_CAST": lambda self: self._parse_cast(exp.TryCast),
        "EXTRACT": _parse_extract,
        "TRIM": _parse_trim,
        "POSITION": _parse_position,
        "TIMEZONE": _parse_timezone,
        "SUBSTR": lambda self: self._parse_substring("substr"),
        "SUBSTRING": lambda self: self._parse_substring("substring"),
        "COLS": _parse_cols,
        "STRUCT_PACK": lambda self: self.parse_packed(),
    }

    def parse_alias(self) -> str | None:
        """Parses `[AS] alias` if one follows. Raises SqlSyntaxError."""
        if self.take("AS"):
            if self.word in KEYWORDS and (self._next.token_type in _BEHIND_ALIASES or self.peek() == "FROM"):
                return str(self.advance().text).lower()
            return self.name("an alias")
        if self.at_name() and self.word not in NOT_AN_ALIAS:
            return self.name("an alias")
        return None

    def _parse_function(self) -> exp.Expression:
        """Parses a call; all calls but those of FUNCTION_PARSERS are alike."""
        special, start = self.FUNCTION_PARSERS.get(self.word), self._curr.start
        name = self._curr.text.lower()
        self._advance(2)
        if special is None and self.take(")"):
            return exp.Anonymous(this=name, expressions=[exp.Star()] if name == "count" else [])
        self.enter()
        if special is not None:
            node = special(self)
        else:
            node = self.parse_call(name, lambda: self._parse_argument(name), start)
        self.leave()
        self.expect(")")
        return node

    def _parse_argument(self, function: str = "cols") -> exp.Expression:
        if self._curr.token_type is TokenType.STAR:
            self._advance()
            return self.mark(exp.Star(), self._prev.start)
        return self.parse_lambda(function) or self.parse_qualified_star() or self.parse_expression()

    def parse_qualified_star(self) -> exp.Expression | None:
        """Parses `[database.]table.*` if that follows."""
        if self._next.token_type is not TokenType.DOT or not self.at_name():
            return None
        if self.peek(2) != "*" and not (self.peek(3) == "." and self.peek(4) == "*"):
            return None
        start = self.token.start
        parts: list[exp.Expression] = []
        while not self.at("*"):
            parts.append(self._identifier("a table name"))
            self.expect(".")
        parts.append(self.mark(exp.Star(), self.advance().start))
        return self.mark(_column(parts), start)

    def _identifier(self, what: str) -> exp.Expression:
        start = self.token.start
        quoted = self.at_type(TokenType.IDENTIFIER)
        return self.mark(exp.Identifier(this=self.name(what), quoted=quoted), start)

    def _parse_column(self) -> exp.Expression:
        start = self._curr.start
        parts = [self._identifier("an expression")]
        while self._curr.token_type is TokenType.DOT and len(parts) < 3:
            self._advance()
            parts.append(self._identifier("a column name"))
        return self.mark(_column(parts), start)


def _column(parts: list[exp.Expression]) -> exp.Column:
    """Returns the column of `[[database.]table.]column`; the last part may be a star."""
    *table, column = parts
    return exp.Column(this=column, **dict(zip(("table", "db"), reversed(table), strict=False)))


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
