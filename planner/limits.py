"""The end of every query: projection, HAVING, DISTINCT, SLIMIT, ORDER BY and LIMIT, per partition or in all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.planner.binder import Builder
from penstock.planner.plan import SqlExpr
from penstock.sql.statements import Limit


@dataclass(frozen=True, slots=True)
class Output:
    """A result column. `is_time`: it is a time line that a query around this one can use.

    `alias` is what such a query may call it as well: for `a.v` that is `v`.
    """

    name: str
    value: SqlExpr
    is_time: bool = False
    alias: str | None = None


@dataclass(frozen=True, slots=True)
class OrderTerm:
    """One item of ORDER BY: a result column by position, or an expression that isn't shown."""

    position: int | None
    hidden: SqlExpr | None
    descending: bool
    nulls_first: bool | None

    def sql(self, column: str) -> str:
        """NULL counts as the smallest value unless the query says where it goes."""
        first = not self.descending if self.nulls_first is None else self.nulls_first
        return f"{column}{' DESC' if self.descending else ''} NULLS {'FIRST' if first else 'LAST'}"


def finish(
    builder: Builder,
    name: str,
    outputs: Sequence[Output],
    terms: Sequence[OrderTerm],
    *,
    distinct: bool = False,
    having: str | None = None,
    limit: Limit | None = None,
    slimit: Limit | None = None,
    partition: Sequence[str] = (),
    per_partition: bool = False,
    default: Sequence[str] = (),
    sort: bool = False,
) -> str:
    """Returns SQL that yields the outputs as `o0`, `o1`, ... from the relation `name`.

    `partition` are the columns that tell partitions apart: SLIMIT counts them, and LIMIT counts within each of them
    if `per_partition` and nothing orders the whole. `default` orders rows where the query doesn't say how; `sort`
    tells to apply it even where no LIMIT depends on it.
    """
    shown = [f"{output.value.sql} AS o{index}" for index, output in enumerate(outputs)]
    hidden = [f"{term.hidden.sql} AS h{index}" for index, term in enumerate(terms) if term.hidden is not None]
    order = [term.sql(f"o{term.position}" if term.position is not None else f"h{index}")
             for index, term in enumerate(terms)]
    rows_limit = limit is not None and per_partition and not terms
    where = f" WHERE {having}" if having else ""
    names = ", ".join(f"o{index}" for index in range(len(outputs)))
    if distinct:
        step = builder.step("distinct", f"SELECT DISTINCT {', '.join(shown)} FROM {name}{where}")
        return f"SELECT {names} FROM {step}{_order(order)}{_limit(limit)}"
    ranks = []
    if slimit is not None:
        ranks.append(f"dense_rank() OVER (ORDER BY {', '.join(partition)}) AS \"#partition\"")
    if rows_limit:
        ordering = f" ORDER BY {', '.join(default)}" if default else ""
        ranks.append(f"row_number() OVER (PARTITION BY {', '.join(partition)}{ordering}) AS \"#number\"")
    sorting = order or (list(default) if sort or slimit is not None or rows_limit else [])
    if not ranks and not hidden and not any(column in sorting for column in default):
        step = builder.step("result", f"SELECT {', '.join(shown)} FROM {name}{where}")
        return f"SELECT {names} FROM {step}{_order(order)}{_limit(limit)}"
    if sorting and not order:
        hidden += [f"{column} AS d{index}" for index, column in enumerate(default)]
        sorting = [f"d{index} NULLS FIRST" for index in range(len(default))]
    step = builder.step("result", f"SELECT {', '.join([*shown, *hidden, *ranks])} FROM {name}{where}")
    kept = []
    if slimit is not None:
        kept.append(f"\"#partition\" > {slimit.offset} AND \"#partition\" <= {slimit.offset + slimit.count}")
    if rows_limit and limit is not None:
        kept.append(f"\"#number\" > {limit.offset} AND \"#number\" <= {limit.offset + limit.count}")
    filtered = f" WHERE {' AND '.join(kept)}" if kept else ""
    return f"SELECT {names} FROM {step}{filtered}{_order(sorting)}{'' if rows_limit else _limit(limit)}"


def _order(terms: Sequence[str]) -> str:
    return f" ORDER BY {', '.join(terms)}" if terms else ""


def _limit(limit: Limit | None) -> str:
    if limit is None:
        return ""
    return f" LIMIT {limit.count}" + (f" OFFSET {limit.offset}" if limit.offset else "")
