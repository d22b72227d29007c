"""Parses comparisons and other predicates, which an operand begins with."""

from __future__ import annotations

from sqlglot import exp
from sqlglot.tokens import TokenType

from penstock.sql.dialect.parse_value import ValueParser
from penstock.sql.tree.expression_nodes import JsonContains, Match

_PREDICATES = ("IS", "CONTAINS", "MATCH", "NMATCH", "NOT", "LIKE", "ILIKE", "IN", "BETWEEN", "SIMILAR", "GLOB", "~",
               "!~")
_PATTERNS: dict[str, type[exp.Expression]] = {"LIKE": exp.Like, "ILIKE": exp.ILike, "GLOB": exp.Glob}


class PredicateParser(ValueParser):
    """Predicates."""

    COMPARISON = {  # noqa: RUF012
        TokenType.EQ: exp.EQ, TokenType.NEQ: exp.NEQ, TokenType.GT: exp.GT, TokenType.GTE: exp.GTE,
        TokenType.LT: exp.LT, TokenType.LTE: exp.LTE,
    }

    def parse_predicate(self) -> exp.Expression:
        """Parses an operand and the comparison behind it, if there is one. Raises SqlSyntaxError."""
        start = self._curr.start
        left = self.parse_operand()
        comparison = self.COMPARISON.get(self._curr.token_type)
        if comparison is not None:
            self._advance()
            left = self.mark(comparison(this=left, expression=self._parse_compared()), start)
            return self._parse_is(left, start) if self.take("IS") else left
        if self.word not in _PREDICATES:
            self.note(*_PREDICATES)
            return left
        if self.take("IS"):
            return self._parse_is(left, start)
        if self.take("CONTAINS"):
            return self.mark(JsonContains(this=left, expression=self.parse_string("a key")), start)
        if self.at_any("MATCH", "NMATCH"):
            negated = self.advance().text.upper() == "NMATCH"
            return self._negate(Match(this=left, expression=self.parse_string("a regular expression")), negated, start)
        if self.at_any("~", "!~"):
            negated = self.advance().text == "!~"
            return self._negate(self._called("regexp_matches", left), negated, start)
        negated = self.take("NOT")
        if self.at("SIMILAR", "TO"):
            self.take("SIMILAR", "TO")
            return self._negate(self._called("regexp_full_match", left), negated, start)
        if self.word in _PATTERNS and (self.word != "GLOB" or self._operand_follows()):
            return self._negate(self._parse_pattern(left), negated, start)
        if self.take("IN"):
            if self.at("(") and self.query_starts(1):
                return self._negate(exp.In(this=left, query=self.parse_subquery_value()), negated, start)
            return self._negate(exp.In(this=left, expressions=self._parse_in_list()), negated, start)
        if self.take("BETWEEN"):
            low = self.parse_operand()
            self.expect("AND")
            return self._negate(exp.Between(this=left, low=low, high=self.parse_operand()), negated, start)
        if negated:
            raise self.fail("LIKE, IN or BETWEEN is expected after NOT")
        return left

    def _called(self, name: str, text: exp.Expression) -> exp.Expression:
        """Parses the pattern of `~` and SIMILAR TO, which are functions of DuckDB's."""
        return exp.Anonymous(this=name, expressions=[text, self.parse_operand()])

    def _operand_follows(self) -> bool:
        return self._next.token_type in (TokenType.STRING, TokenType.VAR, TokenType.IDENTIFIER, TokenType.L_PAREN)

    def _parse_pattern(self, text: exp.Expression) -> exp.Expression:
        kind = _PATTERNS[self.advance().text.upper()]
        start = self.token.start
        pattern = self.parse_operand()
        if kind is not exp.Glob and self.take("ESCAPE"):
            pattern = self.mark(exp.Escape(this=pattern, expression=self.parse_string("a character")), start)
        return kind(this=text, expression=pattern)

    def _parse_is(self, left: exp.Expression, start: int) -> exp.Expression:
        negated = self.take("NOT")
        if self.take("DISTINCT", "FROM"):
            operator = exp.NullSafeEQ if negated else exp.NullSafeNEQ
            return self.mark(operator(this=left, expression=self.parse_operand()), start)
        value_start = self.token.start
        word = self.take_any("NULL", "TRUE", "FALSE")
        if word is None:
            raise self.fail("NULL, TRUE, FALSE or DISTINCT FROM is expected")
        value = exp.Null() if word == "NULL" else exp.Boolean(this=word == "TRUE")
        return self._negate(exp.Is(this=left, expression=self.mark(value, value_start)), negated, start)

    def _negate(self, node: exp.Expression, negated: bool, start: int) -> exp.Expression:
        self.mark(node, start)
        return self.mark(exp.Not(this=node), start) if negated else node

    def _parse_compared(self) -> exp.Expression:
        """Parses what a value is compared with: an operand, or ANY or ALL of the values of a query or a list."""
        if self.at_any("ANY", "SOME", "ALL") and self.peek() == "(":
            start, of_query = self.token.start, self.query_starts(2)
            quantifier = exp.All if self.advance().text.upper() == "ALL" else exp.Any
            return self.mark(quantifier(this=self.parse_subquery() if of_query else self._parse_list()), start)
        return self.parse_operand()

    def _parse_list(self) -> exp.Expression:
        """Parses the expression of a list, in parentheses."""
        self.nests = True
        self.expect("(")
        self.enter()
        found = self.parse_expression()
        self.leave()
        self.expect(")")
        return found

    def query_starts(self, distance: int) -> bool:
        """Whether the token so many ahead is the SELECT or WITH of a query; a lone expression has none."""
        return False

    def parse_subquery(self) -> exp.Expression:
        """Parses a query in parentheses. Raises SqlSyntaxError."""
        raise self.fail("a query is not allowed here")

    def parse_subquery_value(self) -> exp.Expression:
        """Parses a query in parentheses as a value. Raises SqlSyntaxError."""
        start = self.token.start
        return self.mark(exp.Subquery(this=self.parse_subquery()), start)

    def parse_listed(self) -> exp.Expression:
        """Parses a query in parentheses as the list of its values, empty without rows. Raises SqlSyntaxError."""
        raise self.fail("a query is not allowed here")

    def _parse_in_list(self) -> list[exp.Expression]:
        self.expect("(")
        self.enter()
        values = list(self.csv(self.parse_operand))
        self.leave()
        self.expect(")")
        return values
