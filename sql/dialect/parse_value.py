"""Parses values of types that only DuckDB has: intervals, dates, lists, structs and maps, parts of them, lambdas."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp
from sqlglot.tokens import TokenType

from penstock.sql.dialect.parse_over import OverParser
from penstock.sql.tree.expression_nodes import IntervalLiteral, LambdaVariable, TimestampLiteral, TypeName
from penstock.sql.types import DataType, other_type

_DATE, _TIME = other_type("DATE"), other_type("TIME")
_TYPED = {"DATE": _DATE, "TIME": _TIME}
"""Words that make a value of the text behind them."""
_CURRENT: dict[str, tuple[str, DataType | None]] = {
    "CURRENT_DATE": ("today", _DATE), "CURRENT_TIMESTAMP": ("now", None), "LOCALTIMESTAMP": ("now", None),
    "CURRENT_TIME": ("now", _TIME), "LOCALTIME": ("now", _TIME), "CURRENT_SCHEMA": ("current_schema", None),
    "CURRENT_USER": ("current_user", None), "SESSION_USER": ("session_user", None),
}
_UNITS = {unit: unit for unit in (
    "YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND", "DECADE",
    "CENTURY", "MILLENNIUM")}
_UNITS |= {f"{unit}S": unit for unit in _UNITS} | {"CENTURIES": "CENTURY", "MILLENNIA": "MILLENNIUM"}
_LAMBDA_FUNCTIONS = frozenset(
    f"{prefix}{name}" for prefix in ("", "list_", "array_") for name in ("transform", "apply", "filter", "reduce"))
"""In their calls `x -> ...` is a lambda."""
_OPENING, _CLOSING = ("(", "[", "{"), (")", "]", "}")


class ValueParser(OverParser):
    """Values of DuckDB's types."""

    def reset(self) -> None:
        super().reset()
        self._variables: list[str] = []

    def parse_worded(self) -> exp.Expression | None:
        """Parses a value that begins with a word that is a name elsewhere, if one is here."""
        word, following, start = self.word, self._next.token_type, self._curr.start
        if following is TokenType.STRING and word in _TYPED:
            self._advance()
            return self._cast(self.parse_string("a text"), _TYPED[word], start)
        if following is TokenType.STRING and word == "TIMESTAMPTZ":
            self._advance()
            return self.mark(TimestampLiteral(this=self.string("a timestamp")), start)
        if following is TokenType.L_BRACKET and word == "ARRAY":
            self._advance()
            return self.parse_list()
        if following is TokenType.L_BRACE and word == "MAP":
            return self._parse_map()
        if word in _CURRENT and following is not TokenType.DOT:
            self._advance()
            name, kind = _CURRENT[word]
            now = self.mark(exp.Anonymous(this=name, expressions=[]), start)
            return now if kind is None else self._cast(now, kind, start)
        return self._parse_variable() if word.lower() in self._variables else None

    def _cast(self, value: exp.Expression, kind: DataType, start: int) -> exp.Expression:
        return self.mark(exp.Cast(this=value, to=self.mark(TypeName(this=kind), start)), start)

    def parse_string(self, what: str) -> exp.Expression:
        """Parses a text literal. Raises SqlSyntaxError."""
        start = self.token.start
        return self.mark(exp.Literal.string(self.string(what)), start)

    def parse_interval(self) -> exp.Expression:
        """Parses `INTERVAL '1' DAY`, `INTERVAL '3 months'`, `INTERVAL (x) MINUTE`. Raises SqlSyntaxError."""
        start = self.token.start
        self.expect("INTERVAL")
        value_start = self.token.start
        if self.at_type(TokenType.STRING):
            value = self.parse_string("a text")
        elif self.at_type(TokenType.NUMBER):
            value = self.mark(exp.Literal.number(self.advance().text), value_start)
        elif self.at("("):
            value = self.parse_operand()
        else:
            raise self.fail("an interval is expected, such as '1 day'")
        unit = _UNITS.get(self.word)
        if unit is not None:
            self._advance()
        elif not value.is_string:
            raise self.fail("a unit of time is expected, such as DAY")
        return self.mark(IntervalLiteral(this=value, unit=unit), start)

    # --- lists, structs, maps ---

    def parse_list(self) -> exp.Expression:
        """Parses `[a, ...]`, which is a call of list_value, or `[f(x) FOR x IN list IF condition]`, which is one of
        list_transform. Raises SqlSyntaxError.
        """
        start = self.token.start
        self.expect("[")
        known = self._made_for()
        if not known:
            return self._call("list_value", self._items("]"), start)
        self.enter()
        item = self._parse_body(known)
        self.expect("FOR")
        names = self.csv(self._parse_parameter)
        self.expect("IN")
        values = self.parse_expression()
        kept = self._parse_body(known) if self.take("IF") else None
        self.leave()
        self.expect("]")
        if kept is None:
            return self._call("list_transform", [values, self._lambda(names, item, start)], start)
        # The place of an item is that in the whole list, so it is left out when it is made.
        pair = exp.Struct(expressions=[exp.PropertyEQ(this=exp.Identifier(this=name, quoted=True), expression=value)
                                       for name, value in (("kept", kept), ("item", item))])
        values = self._call("list_transform", [values, self._lambda(names, pair, start)], start)
        for function, field in (("list_filter", "kept"), ("list_transform", "item")):
            part = self._call("struct_extract", [LambdaVariable(this="pair"), exp.Literal.string(field)], start)
            values = self._call(
                function, [values, self._lambda([exp.Identifier(this="pair", quoted=False)], part, start)], start)
        return values

    def _made_for(self) -> list[str]:
        """Returns the variables of the item that follows, if FOR stands behind it."""
        depth = place = 0
        while (word := self.peek(place)) != "FOR" or depth:
            if self.token_ahead(place).token_type is TokenType.SENTINEL or (not depth and word in (",", "]")):
                return []
            depth += (word in _OPENING) - (word in _CLOSING)
            place += 1
        names = [self.token_ahead(place + 1).text.lower()]
        while self.peek(place + 2) == ",":
            place += 2
            names.append(self.token_ahead(place + 1).text.lower())
        return names

    def _call(self, name: str, arguments: list[exp.Expression], start: int) -> exp.Expression:
        return self.mark(exp.Anonymous(this=name, expressions=arguments), start)

    def _items(self, end: str) -> list[exp.Expression]:
        self.enter()
        items = [] if self.at(end) else list(self.csv(self.parse_expression, end))
        self.leave()
        self.expect(end)
        return items

    def parse_struct(self) -> exp.Expression:
        """Parses `{'a': 1, b: 2}`. Raises SqlSyntaxError."""
        start = self.token.start
        self.expect("{")
        self.enter()
        fields = list(self.csv(self._parse_field_value, "}"))
        self.leave()
        self.expect("}")
        return self.mark(exp.Struct(expressions=fields), start)

    def parse_packed(self) -> exp.Expression:
        """Parses what stands in parentheses of `struct_pack(a := 1, b := 2)`. Raises SqlSyntaxError."""
        return exp.Struct(expressions=list(self.csv(self._parse_packed_field)))

    def _parse_packed_field(self) -> exp.Expression:
        start = self.token.start
        name = self.mark(exp.Identifier(this=self.name("a field"), quoted=True), start)
        if not self.take(":", "="):
            raise self.fail("':=' is expected")
        return self.mark(exp.PropertyEQ(this=name, expression=self.parse_expression()), start)

    def _parse_field_value(self) -> exp.Expression:
        start = self.token.start
        name = self.advance().text if self.at_type(TokenType.STRING) else self.name("a field")
        identifier = self.mark(exp.Identifier(this=name, quoted=True), start)
        self.expect(":")
        return self.mark(exp.PropertyEQ(this=identifier, expression=self.parse_expression()), start)

    def _parse_map(self) -> exp.Expression:
        """A map is made of the list of its keys and that of its values."""
        start = self.token.start
        self._advance()
        body_start = self.token.start
        self.expect("{")
        self.enter()
        pairs = () if self.at("}") else self.csv(self._parse_pair)
        self.leave()
        self.expect("}")
        sides = [self._call("list_value", [pair[side] for pair in pairs], body_start) for side in (0, 1)]
        return self._call("map", sides, start)

    def _parse_pair(self) -> tuple[exp.Expression, exp.Expression]:
        key = self.parse_expression()
        self.expect(":")
        return key, self.parse_expression()

    # --- parts ---

    def parse_subscript(self, value: exp.Expression, start: int) -> exp.Expression:
        """Parses `[i]`, or `[i:j:step]`, which is a call of array_slice. Raises SqlSyntaxError."""
        self.expect("[")
        self.enter()
        first = None if self.at_any(":", "::") else self.parse_expression()
        if first is not None and not self.at(":"):
            parsed: exp.Expression = exp.Bracket(this=value, expressions=[first])
        else:
            bounds = [value, first or self._open_bound()]
            both_open = self.take("::")
            if not both_open:
                self.expect(":")
            open_end = both_open or self.at_any("]", ":") or (self.at("-", ":") and self.take("-"))
            bounds.append(self._open_bound() if open_end else self.parse_expression())
            if both_open or self.take(":"):
                bounds.append(self.parse_expression())
            parsed = exp.Anonymous(this="array_slice", expressions=bounds)
        self.leave()
        self.expect("]")
        return self.mark(parsed, start)

    def _open_bound(self) -> exp.Expression:
        """Returns what DuckDB takes for a bound that isn't given: an empty list."""
        return self._call("list_value", [], self._prev.start)

    def parse_part(self, value: exp.Expression, start: int) -> exp.Expression:
        """Parses `.name`, a field of a struct, which is a call of struct_extract. Raises SqlSyntaxError."""
        self.expect(".")
        name_start = self.token.start
        name = self.mark(exp.Literal.string(self.name("a field")), name_start)
        return self._call("struct_extract", [value, name], start)

    # --- lambdas ---

    def parse_lambda(self, function: str) -> exp.Expression | None:
        """Parses `lambda x, y: ...`, if that follows, and behind the list in calls of functions that take a lambda
        `x -> ...` and `(x, y) -> ...` as well. Raises SqlSyntaxError.
        """
        start = self.token.start
        if self.word == "LAMBDA" and self._next.token_type in (TokenType.VAR, TokenType.IDENTIFIER):
            self._advance()
            names = self.csv(self._parse_parameter)
            self.expect(":")
        elif function in _LAMBDA_FUNCTIONS and self._prev.token_type is not TokenType.L_PAREN and self._arrow_follows():
            names = self.wrapped_csv(self._parse_parameter) if self.at("(") else (self._parse_parameter(),)
            self.expect("->")
        else:
            return None
        self.enter()
        body = self._parse_body([name.this for name in names])
        self.leave()
        return self._lambda(names, body, start)

    def _parse_body(self, variables: Sequence[str]) -> exp.Expression:
        self._variables += variables
        body = self.parse_expression()
        del self._variables[-len(variables):]
        return body

    def _lambda(self, names: Sequence[exp.Expression], body: exp.Expression, start: int) -> exp.Expression:
        return self.mark(exp.Lambda(this=body, expressions=list(names)), start)

    def _arrow_follows(self) -> bool:
        if self.at_name():
            return self.peek() == "->"
        return self.at("(") and ((self.peek(2), self.peek(3)) == (")", "->") or (
            self.peek(2) == "," and (self.peek(4), self.peek(5)) == (")", "->")))

    def _parse_parameter(self) -> exp.Expression:
        start = self.token.start
        if not self.at_type(TokenType.VAR):
            raise self.fail("a variable is expected, a word without quotes")
        return self.mark(exp.Identifier(this=self.name("a variable"), quoted=False), start)

    def _parse_variable(self) -> exp.Expression:
        start = self.token.start
        return self.mark(LambdaVariable(this=self.name("a variable")), start)
