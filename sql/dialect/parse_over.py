"""Parses what standard SQL has in and behind a call: DISTINCT, ORDER BY, FILTER, IGNORE NULLS and OVER."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from penstock.sql.dialect.base_parser import NAMES
from penstock.sql.dialect.parse_type import TypeParser

_BEHIND_CALLS = frozenset({"WITHIN", "FILTER", "IGNORE", "RESPECT", "OVER"})
_OF_ORDERED = {"percentile_cont": "quantile_cont", "percentile_disc": "quantile_disc", "mode": "mode"}
"""What aggregates WITHIN GROUP are of what that orders."""
_NULLS = (exp.IgnoreNulls, exp.RespectNulls)
_FRAMES = ("ROWS", "RANGE", "GROUPS")


class OverParser(TypeParser):
    """Windows of rows, as standard SQL has them."""

    def parse_expression(self) -> exp.Expression:
        """Parses one expression, conditions included. Raises SqlSyntaxError."""
        raise NotImplementedError

    def parse_operand(self) -> exp.Expression:
        """Parses an expression without comparisons, NOT, AND and OR at its top. Raises SqlSyntaxError."""
        raise NotImplementedError

    def parse_call(self, name: str, parse_argument: Callable[[], exp.Expression], start: int) -> exp.Expression:
        """Parses the arguments of the call that begins at `start`, with DISTINCT, ORDER BY and IGNORE NULLS."""
        distinct = self.at("DISTINCT") and self.peek() not in (",", ")", ".") and self.take("DISTINCT")
        arguments = [] if self.at("ORDER", "BY") else list(self.csv(parse_argument))
        node = exp.Anonymous(this=name, expressions=arguments)
        order = self.parse_order()
        if distinct or order is not None:
            self.nests = True
            node.set("distinct", distinct or None)
            node.set("order", order)
        return self._parse_nulls(node, start)

    def parse_over(self, call: exp.Expression, start: int) -> exp.Expression:
        """Returns a call with what stands behind it; `start` is where it begins."""
        if self.word not in _BEHIND_CALLS and not isinstance(call, _NULLS):
            return call
        if self.at("WITHIN", "GROUP", "("):
            call = self._parse_within_group(call, start)
        if self.take("FILTER", "("):
            where_start = self.token.start
            self.take("WHERE")
            self.enter()
            where = self.mark(exp.Where(this=self.parse_expression()), where_start)
            self.leave()
            self.expect(")")
            call = self.mark(exp.Filter(this=call, expression=where), start)
            self.nests = True
        call = self._parse_nulls(call, start)
        if isinstance(call, _NULLS) and not self.at("OVER"):
            raise self.fail("OVER is expected")
        if not self.at("OVER") or (self.peek() != "(" and self.token_ahead().token_type not in NAMES):
            return call  # else it is an alias
        self.advance()
        self.nests = True
        name_start = self.token.start
        if self.at_name():
            name = self.mark(exp.Identifier(this=self.name("the name of a window"), quoted=True), name_start)
            return self.mark(exp.Window(this=call, alias=name, over="OVER"), start)
        return self.parse_over_window(call, start)

    def _parse_nulls(self, call: exp.Expression, start: int) -> exp.Expression:
        if not (self.at("IGNORE", "NULLS") or self.at("RESPECT", "NULLS")):
            return call
        kind = exp.IgnoreNulls if self.advance().text.upper() == "IGNORE" else exp.RespectNulls
        self.advance()
        return self.mark(kind(this=self.mark(call, start)), start)

    def _parse_within_group(self, call: exp.Expression, start: int) -> exp.Expression:
        """Parses the order of an aggregate behind it: of some it is the argument."""
        self.take("WITHIN", "GROUP")
        self.expect("(")
        self.enter()
        order = self.parse_order()
        if order is None:
            raise self.fail("ORDER is expected")
        self.leave()
        self.expect(")")
        self.nests = True
        plain = _OF_ORDERED.get(call.this)
        if plain is None:
            return self.mark(exp.Anonymous(this=call.this, expressions=call.expressions, order=order), start)
        first, *others = order.expressions
        if others:
            raise self.fail(f"{call.this}() takes one value")
        of = exp.Anonymous(this=plain, expressions=[first.this, *call.expressions])
        if first.args["desc"]:
            of.set("order", order)
        return self.mark(of, start)

    def parse_over_window(self, call: exp.Expression, start: int) -> exp.Expression:
        """Parses what stands behind OVER, or a name of WINDOW, in parentheses. Raises SqlSyntaxError."""
        self.expect("(")
        self.enter()
        base: exp.Expression | None = None
        if self.at_name() and not self.at_any("PARTITION", "ORDER", *_FRAMES):
            base_start = self.token.start
            base = self.mark(exp.Identifier(this=self.name("the name of a window"), quoted=True), base_start)
        partition_by: list[exp.Expression] = []
        if self.take("PARTITION"):
            self.expect("BY")
            partition_by = list(self.csv(self.parse_expression))
        order = self.parse_order()
        spec = self._parse_frame()
        self.leave()
        self.expect(")")
        return self.mark(exp.Window(this=call, alias=base, partition_by=partition_by, order=order, spec=spec,
                                    over="OVER"), start)

    def parse_order(self) -> exp.Expression | None:
        """Parses ORDER BY within an expression, None if there is none. Raises SqlSyntaxError."""
        start = self.token.start
        if not self.at("ORDER", "BY"):
            return None
        self.take("ORDER", "BY")
        return self.mark(exp.Order(expressions=list(self.csv(self._parse_ordered))), start)

    def _parse_ordered(self) -> exp.Expression:
        start = self.token.start
        expression = self.parse_expression()
        descending, nulls_first = self.parse_direction()
        return self.mark(exp.Ordered(this=expression, desc=descending,
                                     nulls_first=not descending if nulls_first is None else nulls_first), start)

    def parse_direction(self) -> tuple[bool, bool | None]:
        """Parses `[ASC | DESC] [NULLS FIRST | LAST]`: whether it descends, and if said whether NULLs come first."""
        descending = self.take("DESC")
        if not descending:
            self.take("ASC")
        if not self.take("NULLS"):
            return descending, None
        nulls_first = self.take("FIRST")
        if not nulls_first:
            self.expect("LAST")
        return descending, nulls_first

    def _parse_frame(self) -> exp.Expression | None:
        frame_start = self.token.start
        kind = self.take_any(*_FRAMES)
        if kind is None:
            return None
        between = self.take("BETWEEN")
        start, start_side = self._parse_bound()
        end: exp.Expression | str = "CURRENT ROW"
        end_side = ""
        if between:
            self.expect("AND")
            end, end_side = self._parse_bound()
        exclude = self._parse_exclude() if self.take("EXCLUDE") else None
        return self.mark(exp.WindowSpec(kind=kind, start=start, start_side=start_side, end=end, end_side=end_side,
                                        exclude=exclude), frame_start)

    def _parse_exclude(self) -> exp.Expression | None:
        if self.take("NO", "OTHERS"):
            return None
        start = self.token.start
        word = "CURRENT ROW" if self.take("CURRENT", "ROW") else self.take_any("GROUP", "TIES")
        if word is None:
            raise self.fail("CURRENT ROW, GROUP, TIES or NO OTHERS is expected")
        return self.mark(exp.Var(this=word), start)

    def _parse_bound(self) -> tuple[exp.Expression | str, str]:
        if self.take("CURRENT", "ROW"):
            return "CURRENT ROW", ""
        bound = "UNBOUNDED" if self.take("UNBOUNDED") else self.parse_operand()
        return bound, self.one_of("PRECEDING", "FOLLOWING").upper()
