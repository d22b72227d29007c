"""Parses clauses of SELECT that are lists: what is selected, GROUP BY, WINDOW, ORDER BY, and the limits behind them."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp
from sqlglot.tokens import TokenType

from penstock.sql.dialect.parse_window import WindowParser
from penstock.sql.tree.statements import (
    Limit,
    NamedWindow,
    OrderItem,
    PartitionItem,
    PartitionsLimit,
    SelectItem,
)


class ClauseParser(WindowParser):
    """Lists of expressions, and limits."""

    def parse_select_item(self) -> SelectItem:
        start = self.token.start
        star = self.parse_qualified_star()
        if star is None and self.take("*"):
            star = self.mark(exp.Star(), start)
        if star is not None:
            self._parse_star_changes(star)
            self.mark(star, start)
            return SelectItem(star, None, self.source(start))
        expression = self.parse_expression()
        text = self.source(start)
        return SelectItem(expression, self.parse_alias(), text)

    def _parse_star_changes(self, node: exp.Expression) -> None:
        """Parses EXCLUDE, REPLACE and RENAME behind a star."""
        star = node.this if isinstance(node, exp.Column) else node
        if self.at("EXCLUDE") or self.at("EXCEPT", "("):
            self.advance()
            star.set("except_", list(self._parse_one_or_more(self._parse_excluded)))
        if self.take("REPLACE"):
            star.set("replace", list(self._parse_one_or_more(self._parse_replaced)))
        if self.take("RENAME"):
            star.set("rename", list(self._parse_one_or_more(self._parse_renamed)))

    def _parse_one_or_more(self, parse_item: Callable[[], exp.Expression]) -> tuple[exp.Expression, ...]:
        return self.wrapped_csv(parse_item) if self.at("(") else (parse_item(),)

    def _parse_excluded(self) -> exp.Expression:
        start = self.token.start
        return self.mark(exp.Column(this=self._identifier("a column name")), start)

    def _parse_replaced(self) -> exp.Expression:
        value = self.parse_expression()
        self.expect("AS")
        return self._parse_named(value)

    def _parse_renamed(self) -> exp.Expression:
        column = self._parse_excluded()
        self.expect("AS")
        return self._parse_named(column)

    def _parse_named(self, value: exp.Expression) -> exp.Expression:
        return self.mark(exp.Alias(this=value, alias=self._identifier("a column name")), value.meta["offset"])

    def parse_named_window(self) -> NamedWindow:
        name = self.name("the name of a window")
        self.expect("AS")
        start = self.token.start
        return NamedWindow(name, self.parse_over_window(exp.Null(), start))

    def parse_group_item(self) -> PartitionItem:
        start = self.token.start
        if self.take("ALL"):
            return PartitionItem(self.mark(exp.Var(this="ALL"), start), None, self.source(start))
        if self.at("(", ")"):
            sets: exp.Expression | None = exp.GroupingSets(expressions=[self._parse_grouping_set()])
        else:
            sets = self._parse_grouping_sets()
        return self.parse_partition_item() if sets is None else PartitionItem(sets, None, self.source(start))

    def _parse_grouping_sets(self) -> exp.Expression | None:
        """Parses GROUPING SETS, ROLLUP or CUBE, if one of these follows."""
        start = self.token.start
        if self.at("GROUPING", "SETS"):
            self.take("GROUPING", "SETS")
            self.enter()
            sets = self.wrapped_csv(lambda: self._parse_grouping_sets() or self._parse_grouping_set())
            self.leave()
            return self.mark(exp.GroupingSets(expressions=list(sets)), start)
        if not (self.at_any("ROLLUP", "CUBE") and self.peek() == "("):
            return None
        kind = exp.Rollup if self.advance().text.upper() == "ROLLUP" else exp.Cube
        return self.mark(kind(expressions=list(self.wrapped_csv(self._parse_grouping_set))), start)

    def _parse_grouping_set(self) -> exp.Expression:
        """Parses one expression, or several in parentheses, an exp.Tuple."""
        return self.parse_tuple() if self.at("(") else self.parse_expression()

    def parse_tuple(self) -> exp.Expression:
        """Parses expressions in parentheses, an exp.Tuple however many these are. Raises SqlSyntaxError."""
        start = self.token.start
        self.expect("(")
        return self.mark(exp.Tuple(expressions=self._items(")")), start)

    def parse_partition_item(self) -> PartitionItem:
        start = self.token.start
        expression = self.parse_expression()
        text = self.source(start)
        return PartitionItem(expression, self.parse_alias(), text)

    def parse_order_by(self) -> tuple[OrderItem, ...]:
        if not self.take("ORDER"):
            return ()
        self.expect("BY")
        return self.csv(self._parse_order_item)

    def _parse_order_item(self) -> OrderItem:
        start = self.token.start
        expression = self.mark(exp.Var(this="ALL"), start) if self.take("ALL") else self.parse_expression()
        return OrderItem(expression, *self.parse_direction())

    def parse_slimit(self) -> PartitionsLimit | None:
        """Parses SLIMIT with SOFFSET."""
        if not self.take("SLIMIT"):
            return None
        what = "the number of partitions of SLIMIT"
        count = self.integer(what)
        if self.take(","):
            return PartitionsLimit(self.integer(what), count)
        return PartitionsLimit(count, self.integer("the number of SOFFSET") if self.take("SOFFSET") else 0)

    def parse_limit(self) -> Limit | None:
        """Parses LIMIT and OFFSET in either order; FETCH FIRST is the same as LIMIT."""
        first = self._parse_offset()
        if self.take("LIMIT"):
            if self.take("ALL"):
                return Limit(None, first or self._parse_offset() or 0)
            count = self._parse_row_count("LIMIT")
            if self.take_any("%", "PERCENT"):
                return Limit(count, first or self._parse_offset() or 0, percent=True)
            if self.take(","):
                return Limit(self._parse_row_count("LIMIT"), count)
            return Limit(count, first or self._parse_offset() or 0)
        if self.at("FETCH") and self.peek() in ("FIRST", "NEXT"):
            self.advance()
            self.advance()
            count = 1 if self.at_any("ROW", "ROWS") else self.integer("the number of rows of FETCH")
            if self.take_any("ROW", "ROWS") is None:
                raise self.fail("ROWS is expected")
            self.expect("ONLY")
            return Limit(count, first or 0)
        return None if first is None else Limit(None, first)

    def _parse_offset(self) -> int | exp.Expression | None:
        if not self.take("OFFSET"):
            return None
        offset = self._parse_row_count("OFFSET")
        self.take_any("ROW", "ROWS")
        return offset

    def _parse_row_count(self, word: str) -> int | exp.Expression:
        """Takes an integer, or an expression that is computed once for the query."""
        ahead = 2 if self.at_any("+", "-") else 1
        number = self.token_ahead(ahead - 1).token_type is TokenType.NUMBER
        if number and self.token_ahead(ahead).token_type not in self.OPERATORS:
            return self.integer(f"the number of rows of {word}")
        nests = self.nests
        count = self.parse_expression()
        self.nests = nests  # queries in it see none of the rows
        return count

    def parse_column_names(self) -> tuple[str, ...]:
        """Parses names of columns in parentheses, if these follow."""
        return self.wrapped_csv(lambda: self.name("a column name")) if self.at("(") else ()
