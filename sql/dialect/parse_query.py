"""Parses SELECT and UNION with everything inside them: sources, joins, windows, FILL, limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from sqlglot import exp
from sqlglot.tokens import TokenType

from penstock.common.suggestions import closest
from penstock.sql.dialect.base_parser import MAX_NESTING
from penstock.sql.dialect.parse_source import SourceParser
from penstock.sql.tree.statements import (
    Cte,
    IntervalWindow,
    Limit,
    OrderItem,
    PartitionItem,
    Query,
    Select,
    SelectItem,
    SetKind,
    SetOperation,
    Source,
    SubquerySource,
    TableSource,
    ValuesQuery,
)

_SET_WORDS = ("UNION", "INTERSECT", "EXCEPT")


class QueryParser(SourceParser):
    """Queries."""

    def at_query(self) -> bool:
        """Whether a query starts here: SELECT or WITH, perhaps in parentheses."""
        self.note("SELECT")
        for distance in range(MAX_NESTING + 1):
            if self.peek(distance) != "(":
                return self.query_starts(distance)
        return True  # or whatever it is: it is too deep

    def query_starts(self, distance: int) -> bool:
        """Whether the token so many ahead is the SELECT or WITH of a query."""
        word = self.peek(distance)
        return word in ("SELECT", "VALUES", "FROM", "TABLE") or (word == "WITH" and (
            self.peek(distance + 2) in ("AS", "(") or self.peek(distance + 1) == "RECURSIVE"))

    def parse_query(self) -> Query:
        """Parses a query up to and including `>> file`. Raises SqlSyntaxError."""
        return self.parse_rows().change(into_file=self._parse_into_file())

    def parse_rows(self) -> Query:
        """Parses a query whose rows the statement takes that it stands in. Raises SqlSyntaxError."""
        if not self.at_query():
            raise self.fail("a query is expected")
        start = self.token.start
        query = self.parse_inner_query()
        return query.change(source_text=self.source(start), source_start=start)

    def parse_inner_query(self) -> Query:
        """Parses a query with WITH, set operations, and what orders and limits the whole. Raises SqlSyntaxError."""
        nests = self.nests
        ctes = self._parse_ctes()
        self.nests = nests  # what WITH names is in nobody's expressions
        query, closed = self._parse_operations(self._parse_intersections, "UNION", "EXCEPT")
        if isinstance(query, SetOperation | ValuesQuery) and not closed and not _has_end(query):
            order_by, limit = self.parse_order_by(), self.parse_limit()
            query.change(order_by=order_by, limit=limit)
        elif closed and self.at_any("ORDER", "LIMIT", "OFFSET", "FETCH"):
            query = self._wrap_ordered(query)
        if not ctes:
            return query
        self.nests = True
        return query.change(ctes=(*ctes, *query.ctes))

    def _parse_ctes(self) -> tuple[Cte, ...]:
        if not self.take("WITH"):
            return ()
        recursive = self.at("RECURSIVE") and self.peek() not in ("AS", "(") and self.take("RECURSIVE")
        ctes = self.csv(lambda: self._parse_cte(recursive=recursive))
        if len(ctes) > MAX_NESTING:
            raise self.fail(f"WITH names at most {MAX_NESTING} queries")
        names = [cte.name for cte in ctes]
        repeated = next((name for index, name in enumerate(names) if name in names[:index]), None)
        if repeated is not None:
            raise self.fail(f"WITH names {repeated} twice")
        return ctes

    def _parse_cte(self, *, recursive: bool) -> Cte:
        offset = self.token.start
        name = self.name("the name of a query")
        columns = self.parse_column_names()
        key: tuple[str, ...] = ()
        if self.take("USING"):
            self.expect("KEY")
            key = self.parse_column_names()
            if not recursive or not key:
                raise self.fail("USING KEY names columns of a query behind WITH RECURSIVE")
        self.expect("AS")
        if self.take("NOT"):
            self.expect("MATERIALIZED")
        else:
            self.take("MATERIALIZED")
        return Cte(name, self.parse_subquery(), columns, recursive, key, offset)

    def parse_subquery(self) -> Query:
        """Parses a query in parentheses. Raises SqlSyntaxError."""
        self.expect("(")
        self.enter()
        if not self.at_query():
            raise self.fail("a query is expected")
        joins = self.joins
        query = self.parse_inner_query()
        self.joins = max(self.joins, joins)
        self.nests = True
        self.leave()
        self.expect(")")
        return query

    def parse_listed(self) -> exp.Expression:
        first, start = self.token, self.token.start
        query = self.parse_subquery()
        if isinstance(query, Select) and len(query.items) > 1:
            raise self.fail("ARRAY takes a query of one column", first)
        rows = SubquerySource(query, "listed", ("item",))
        item = exp.Column(this=exp.Identifier(this="item", quoted=True))
        items = self.mark(exp.Anonymous(this="list", expressions=[item]), start)
        values = self.mark(exp.Subquery(this=Select((SelectItem(items, None),), rows)), start)
        empty = exp.Anonymous(this="list_value", expressions=[])
        return exp.Anonymous(this="list_concat", expressions=[values, empty])

    def _parse_intersections(self) -> tuple[Query, bool]:
        return self._parse_operations(self._parse_query_term, "INTERSECT")

    def _parse_operations(
        self, parse_side: Callable[[], tuple[Query, bool]], *words: str
    ) -> tuple[Query, bool]:
        """Parses queries with these words between them. Returns whether the result ends with its own parenthesis."""
        joins_around = self.joins
        left, closed = parse_side()
        joins, depth = self.joins, 0
        while self.at_any(*words):
            if not closed and _has_end(left):
                raise self.fail(f"{self.word} is not allowed after ORDER BY or LIMIT; put that query in parentheses")
            kind = cast(SetKind, self.advance().text.lower())
            keep_all = self.take("ALL")
            if not keep_all:
                self.take("DISTINCT")
            by_name = kind == "union" and self.take("BY", "NAME")
            self.joins = joins_around
            right, right_closed = parse_side()
            joins = max(joins, self.joins)
            order_by: tuple[OrderItem, ...] = ()
            limit: Limit | None = None
            if not right_closed:
                if isinstance(right, Select) and right.slimit is not None:
                    raise self.fail(f"SLIMIT after {kind.upper()} belongs into parentheses, with its query")
                order_by, limit = right.order_by, right.limit
                right.change(order_by=(), limit=None)
            known = left
            left = _operation(left, right, kind, keep_all, by_name, flat=not closed)
            depth += left is not known
            if depth > MAX_NESTING:
                raise self.fail(f"set operations of different kinds lie at most {MAX_NESTING} deep in each other",
                                hint="put some of them into a sub-query")
            if order_by or limit is not None:
                left.change(order_by=order_by, limit=limit)
            closed = False
        self.joins = joins
        return left, closed

    def _wrap_ordered(self, query: Query) -> Query:
        """`(query) ORDER BY .. LIMIT ..`: what the inner query does not say itself is taken from outside."""
        order_by, limit = self.parse_order_by(), self.parse_limit()
        if (order_by and (query.order_by or query.limit)) or (limit and query.limit):
            raise self.fail("the query in the parentheses has an ORDER BY or LIMIT of its own; select FROM it instead")
        return query.change(order_by=order_by or query.order_by, limit=limit or query.limit)

    def _parse_query_term(self) -> tuple[Query, bool]:
        if self.at("VALUES"):
            return self.parse_values(), False
        if not self.at("("):
            return self.parse_select(), False
        self.advance()
        self.enter()
        query = self.parse_inner_query()
        self.leave()
        self.expect(")")
        return query, True

    def _parse_into_file(self) -> str | None:
        """Parses `>> 'file'` or `>> file`, which ends at white space or a semicolon."""
        if not self.take(">>"):
            return None
        if self.at_type(TokenType.STRING):
            return str(self.advance().text)
        start = self.token.start
        while not self.at_end and (self.token.start in (start, self.previous_end)):
            self.advance()
        if self.previous_end <= start:
            raise self.fail("a file name is expected")
        return self.source(start)

    def parse_select(self) -> Select:
        """Parses one SELECT without UNION. Raises SqlSyntaxError."""
        source = self._parse_first_source()
        distinct_on: tuple[exp.Expression, ...] = ()
        distinct = tags_only = False
        if source is None or self.at("SELECT"):
            self.expect("SELECT")
            distinct, distinct_on = self._parse_distinct()
            tags_only = self.take("TAGS")
            items = self._parse_items()
            source = source or self._parse_from(items[-1])
        else:
            items = (SelectItem(exp.Star(), None),)
        where = self.parse_expression() if self.take("WHERE") else None
        partition_by: tuple[PartitionItem, ...] = ()
        if self.take("PARTITION"):
            self.expect("BY")
            partition_by = self.csv(self.parse_partition_item)
        interp_range = self.parse_interp_range()
        every = self.parse_every()
        fill = self.parse_fill(allowed=interp_range is not None or every is not None)
        window = self.parse_window()
        if fill is None:
            fill = self.parse_fill(allowed=isinstance(window, IntervalWindow))
        group_by: tuple[PartitionItem, ...] = ()
        if self.take("GROUP"):
            self.expect("BY")
            group_by = self.csv(self.parse_group_item)
        having = self.parse_expression() if self.take("HAVING") else None
        windows = self.csv(self.parse_named_window) if self.take("WINDOW") else ()
        qualify = self.parse_expression() if self.take("QUALIFY") else None
        order_by = self.parse_order_by()
        slimit = self.parse_slimit()
        limit = self.parse_limit()
        return Select(
            items=items, source=source, distinct=distinct, distinct_on=distinct_on, tags_only=tags_only, where=where,
            partition_by=partition_by, window=window, fill=fill, range=interp_range, every=every, group_by=group_by,
            having=having, windows=windows, qualify=qualify, order_by=order_by, slimit=slimit, limit=limit,
            nests=self.nests,
        )

    def _parse_first_source(self) -> Source | None:
        """Parses what stands before SELECT, or in place of it: `FROM source`, `TABLE name`."""
        if self.take("TABLE"):
            return TableSource(self.object_name("a table name"))
        return self.parse_source() if self.take("FROM") else None

    def _parse_items(self) -> tuple[SelectItem, ...]:
        """Parses the SELECT list; a comma may stand before FROM."""
        return self.csv(self.parse_select_item, "FROM")

    def _parse_distinct(self) -> tuple[bool, tuple[exp.Expression, ...]]:
        """Parses DISTINCT, with what follows ON if that is there, or ALL."""
        if not self.take("DISTINCT"):
            self.take("ALL")
            return False, ()
        if not self.at("ON", "("):
            return True, ()
        self.take("ON")
        return False, self.wrapped_csv(self.parse_expression)

    def _parse_from(self, last_item: SelectItem) -> Source | None:
        if self.take("FROM"):
            return self.parse_source()
        closed = self.at_end or self.at(")") or self.at(">>")
        if not closed and not self.at_any("WHERE", "ORDER", "SLIMIT", "LIMIT", "OFFSET", "FETCH", *_SET_WORDS):
            alias = last_item.alias or ""
            raise self.fail("FROM is expected", hint=f"is {alias!r} before it a misspelt FROM?" if (
                closest(alias, ["FROM"])) else None)
        return None


def _operation(left: Query, right: Query, kind: SetKind, keep_all: bool, by_name: bool, *, flat: bool) -> SetOperation:
    """Joins queries from the left. However many of one kind they are, they lie two deep at most: what UNION makes
    distinct need not be so before, and UNION ALL goes on adding. `flat`: the left one has no parentheses of its own."""
    if not flat or not isinstance(left, SetOperation) or left.kind != kind or (
            left.by_name != by_name) or (
            left.all != keep_all and (kind != "union" or keep_all)):
        return SetOperation((left, right), keep_all, kind, by_name)
    first, *rest = left.args["queries"]
    if left.all and not keep_all and isinstance(first, SetOperation) and first.kind == "union" and not first.all and (
            not _has_end(first)):
        left.set("queries", [*first.queries, *rest])
    left.append("queries", right)
    return left.change(all=keep_all)


def _has_end(query: Query) -> bool:
    return bool(query.order_by) or query.limit is not None or (isinstance(query, Select) and query.slimit is not None)
