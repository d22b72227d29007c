"""Parses what stands behind FROM: tables, sub-queries, joins."""

from __future__ import annotations

from typing import cast

from sqlglot import exp
from sqlglot.tokens import TokenType

from penstock.sql.dialect.parse_clauses import ClauseParser
from penstock.sql.tree.statements import (
    TRIGGER,
    ExternalSource,
    FunctionSource,
    JoinKind,
    JoinSource,
    JoinVariant,
    Name,
    Query,
    Select,
    SelectItem,
    Source,
    SubquerySource,
    TableSource,
    ValuesQuery,
)

_VARIANTS = ("SEMI", "ANTI", "ASOF", "WINDOW")
MAX_JOINS = 50


class SourceParser(ClauseParser):
    """Sources of rows."""

    def at_query(self) -> bool:
        """Whether a query starts here."""
        raise NotImplementedError

    def parse_inner_query(self) -> Query:
        """Parses a query within another."""
        raise NotImplementedError

    def parse_values(self) -> ValuesQuery:
        """Parses VALUES of a query: the rows, which are one token behind this word, are expressions here."""
        self.expand_rows()
        self.expect("VALUES")
        return ValuesQuery(self.csv(self.parse_tuple, ")"))

    def parse_source(self) -> Source:
        source = self._parse_joins(self._parse_simple_source())
        while self.at(","):
            comma = self.advance()
            right = self._parse_joins(self._parse_simple_source())
            self._count_join()
            source = JoinSource(source, right, "inner", place=(comma.start, comma.end + 1))
        return source

    def _parse_simple_source(self) -> Source:
        lateral = self.at("LATERAL") and self.peek() == "(" and self.take("LATERAL")
        if self.take("("):
            self.enter()
            source: Source
            if self.at_query():
                source = SubquerySource(self.parse_inner_query(), lateral=lateral)
            else:
                source = self.parse_source()
            self.leave()
            self.expect(")")
            if isinstance(source, SubquerySource) and source.alias is None:
                source.change(alias=self.parse_alias())
                source.change(columns=self.parse_column_names() if source.alias is not None else ())
            return source
        if self.at("CONNECTION") and self.peek(2) == "(":
            return self._parse_external_source()
        if self.at("VALUES"):
            values = SubquerySource(self.parse_values(), self.parse_alias())
            return values if values.alias is None else values.change(columns=self.parse_column_names())
        if self.at_name() and self.peek() == "(":
            start = self.token.start
            call = self.mark(self._parse_function(), start)
            alias = self.parse_alias()
            return FunctionSource(call, alias, self.parse_column_names() if alias is not None else ())
        start, given = self.token, self.trigger_word()
        if given is not None:
            if given not in ("trows", "tbname"):
                raise self.fail("%%trows or %%tbname is expected", start)
            return TableSource(Name(given, TRIGGER, start.start), self.parse_alias())
        name = self.object_name("a table name")
        cuts = None
        if self.take("BETWEEN", "CUT"):
            first = self.string("a cut")
            self.expect("AND")
            cuts = (first, self.string("a cut"))
        source = TableSource(name, self.parse_alias(), cuts)
        if source.alias is None or not self.at("("):
            return source
        everything = Select((SelectItem(exp.Star(), None),), source.with_changes(alias=None))
        return SubquerySource(everything, source.alias, self.parse_column_names())

    def _parse_external_source(self) -> ExternalSource:
        self.expect("CONNECTION")
        connection = self.object_name("the connection's name")
        self.expect("(")
        self.expect("TABLE")
        table = self.string("the table's name")
        self.expect(")")
        return ExternalSource(connection, table, self.parse_alias())

    def _parse_joins(self, left: Source) -> Source:
        while True:
            start = self.token.start
            natural = self.take("NATURAL")
            nearest = not natural and self.at("ASOF") and self.peek() in ("JOIN", "LEFT", "RIGHT", "FULL", "INNER")
            nearest = nearest and self.take("ASOF")
            join = self._parse_join_words()
            if join is None:
                if natural or nearest:
                    raise self.fail("JOIN is expected")
                return left
            place = (start, self.previous_end)
            kind, variant = join
            right = self._parse_simple_source()
            using = self.parse_column_names() if not natural and self.take("USING") else ()
            on = None if self._at_sample() else self.parse_expression() if self.take("ON") else None
            window = self.parse_window_offset() if variant == "window" else None
            jlimit = None
            if self.at("JLIMIT"):
                if variant not in ("asof", "window"):
                    raise self.fail("JLIMIT belongs to ASOF and WINDOW joins")
                self.advance()
                jlimit = self.integer("the number of rows of JLIMIT", maximum=1024)
            self._count_join()
            left = JoinSource(left, right, kind, variant, on, window, jlimit, using, natural, nearest, place)

    def _at_sample(self) -> bool:
        """Whether the sample of DRY RUN comes next, not the condition of a join."""
        if not self.at("ON", "SAMPLE", "("):
            return False
        return self.peek(3) == "FROM" or (
            self.peek(3) == "FILE" and self.token_ahead(4).token_type is TokenType.STRING)

    def _count_join(self) -> None:
        self.joins += 1
        if self.joins > MAX_JOINS:
            raise self.fail(f"a query joins at most {MAX_JOINS + 1} tables, those of its sub-queries included",
                            hint="split it")

    def _parse_join_words(self) -> tuple[JoinKind, JoinVariant] | None:
        if self.take("JOIN") or self.take("CROSS", "JOIN"):
            return "inner", ""
        word = self.take_any("LEFT", "RIGHT", "FULL", "INNER")
        variant = ""
        if self.at_any(*_VARIANTS) and (word is not None or self.peek() == "JOIN"):
            if word is None and self.at_any("SEMI", "ANTI"):
                variant = self.advance().text.lower()
                self.expect("JOIN")
                return "inner", cast(JoinVariant, variant)
            if word not in ("LEFT", "RIGHT"):
                variant = self.word
                raise self.fail(f"{variant} joins have a driving side",
                                hint=f"write LEFT {variant} JOIN or RIGHT {variant} JOIN")
            variant = self.advance().text.lower()
        elif word is None:
            return None
        elif word != "INNER":
            self.take("OUTER")
        self.expect("JOIN")
        return cast(JoinKind, word.lower()), cast(JoinVariant, variant)
