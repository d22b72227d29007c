"""The CTEs that a query is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp

from penstock.common.errors import InvalidStatementError
from penstock.planner.duckdb_sql.duckdb_tree import Tree, made, number, over_nested, select
from penstock.planner.duckdb_sql.pieces import star
from penstock.planner.logical.operators import Children, Iterated, Operator, Scan, Shared, Viewed
from penstock.sql.tree.walking import found_in

MAX_STEPS = 900
_MOST_COPIED = 256
"""Of how many steps and tables a step may be made that DuckDB plans once for each that reads it."""


@dataclass(slots=True)
class Steps:
    """Collects the CTEs of a query, `named`. `lower` returns the query of an operator, over the steps that it adds.

    `depth`: in so many queries the query stands; what these share is named there.
    """

    lower: Callable[[Operator, Steps], exp.Query]
    depth: int = 0
    named: list[tuple[str, Tree]] = field(default_factory=list)
    _tables: int = 0
    _shared: set[str] = field(default_factory=set)

    def rows(self, operator: Operator, prefix: str = "rows") -> str:
        """Returns the name of the relation with the rows of an operator."""
        if isinstance(operator, Scan | Children):
            self._tables += 1
            return operator.name
        if isinstance(operator, Iterated) and not operator.so_far:
            return operator.key
        if isinstance(operator, Viewed):
            return self.rows(operator.input, prefix)
        if isinstance(operator, Shared):
            if operator.depth == self.depth and operator.key not in self._shared:
                self._shared.add(operator.key)
                self.named.append((operator.key, self.lower(operator.input, self)))
            return operator.key
        return self.add(prefix, self.lower(operator, self))

    def add(self, prefix: str, query: exp.Query) -> str:
        """Adds a CTE and returns its name."""
        name = f"{prefix}_{len(self.named) + 1}"
        self.named.append((name, query))
        return name

    def check(self) -> None:
        """Raises InvalidStatementError for more than DuckDB can bind."""
        _check(len(self.named) + self._tables)


def nested(steps: Sequence[tuple[str, Tree]], query: exp.Query) -> exp.Query:
    """Returns the query with each step where it is read. Raises InvalidStatementError for more than DuckDB can bind."""
    if not steps:
        return query
    counts: dict[str, int] = {}
    for name, step in steps:
        counts[name] = _count(step, counts)
    _check(_count(query, counts))
    return over_nested(steps, query)


def computed_once(steps: Sequence[tuple[str, Tree]], query: exp.Query) -> frozenset[str]:
    """Returns the names of steps that DuckDB must not plan once for each that reads them: copies of copies, as of names
    of WITH that read each other twice, take it minutes, in which nothing can end it.
    """
    readers = _readers(steps, query)
    counts: dict[str, int] = {}
    once = set()
    for name, step in steps:
        counts[name] = _count(step, counts)
        if readers[name] > 1 and counts[name] > _MOST_COPIED:
            once.add(name)
            counts[name] = 1
    return frozenset(once)


def gathered(steps: Sequence[tuple[str, Tree]], query: exp.Query) -> tuple[list[tuple[str, Tree]], exp.Query]:
    """Returns the same, but where anything is read twice, all rows are computed before LIMIT takes some of them.

    DuckDB 2.0.0 gives rows of a step to its readers as it makes them, and waits for a reader that may stop early, as
    LIMIT does, if that is 65,536 rows behind. One that joins the step with itself waits for the other: for ever. It
    doesn't do so beside WITH RECURSIVE, where LIMIT may end what never ends by itself.
    """
    recursive = any(each.args.get("recursive") for tree in _trees(steps, query) for each in found_in(tree, exp.With))
    if recursive or max(_readers(steps, query).values(), default=0) < 2:
        return list(steps), query
    return [(name, _gathered(step)) for name, step in steps], _gathered(query)


def _gathered(query: Any) -> Any:
    args = query.args
    limit, offset = args.get("limit"), args.get("offset")
    if (limit is None and offset is None) or args.get("order") or (limit and limit.args.get("limit_options")):
        return query
    every = made(exp.Limit, expression=number(100), limit_options=True)
    return select([star()], made(exp.Select, **{**args, "limit": every, "offset": None}),
                  limit=limit and limit.expression, offset=offset and offset.expression)


def _readers(steps: Sequence[tuple[str, Tree]], query: exp.Query) -> Counter[str]:
    """Returns how often each relation is read."""
    return Counter(table.name for tree in _trees(steps, query) for table in found_in(tree, exp.Table))


def _trees(steps: Sequence[tuple[str, Tree]], query: exp.Query) -> list[Tree]:
    return [*(step for _, step in steps), query]


def _count(query: Tree, counts: Mapping[str, int]) -> int:
    return 1 + sum(counts.get(table.name, 0) for table in found_in(query, exp.Table))


def _check(steps: int) -> None:
    if steps > MAX_STEPS:
        raise InvalidStatementError(
            f"the query has {steps} steps, at most {MAX_STEPS} are possible: each SELECT and each table "
            "counts", hint="unite or join fewer queries at once")
