"""How each aggregate splits into partials made by source tasks, their combination, and a final expression."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.planner.plan import SqlExpr
from penstock.planner.scalar_cast import to_double
from penstock.planner.stream import Accumulator, AccumulatorKind, Field
from penstock.sql.types import BIGINT, DOUBLE, UBIGINT, DataType, Kind

TS = DataType(Kind.TIMESTAMP)


@dataclass(frozen=True, slots=True)
class Partial:
    """One aggregate of a stream, split.

    `columns`: SQL per field of `accumulator`, over grouped rows; where `struct` is set they are the members of that
    one struct aggregate instead. `final`: SQL of the value over the accumulators' field names.
    """

    accumulators: tuple[Accumulator, ...]
    columns: tuple[str, ...]
    struct: str | None
    final: str


@dataclass(frozen=True, slots=True)
class RowKey:
    """SQL that names a row in a group: its primary timestamp, the second part of a composite key, and its table."""

    ts: str
    key: SqlExpr | None = None
    tuid: str = "_tuid"


Names = Callable[[], str]
"""Gives a fresh field name."""


def split(name: str, arguments: list[SqlExpr], result: DataType, row: RowKey, fresh: Names) -> Partial | None:
    """Returns how the aggregate `name` splits, or None if it does not (it then cannot run in a stream).

    `result` is the type of the whole aggregate. NULL rules: tdengine.md 3.2, 7.10.
    """
    value = arguments[0] if arguments else None
    match name:
        case "count":
            return _added(f"count({value.sql})" if value is not None and value.sql != "*" else "count(*)",
                          BIGINT, fresh)
        case "sum" if value is not None:
            return _added(f"sum({value.sql})::{result.duckdb()}", result, fresh)
        case "avg" if value is not None:
            total, count = fresh(), fresh()
            return Partial(
                (Accumulator("add", (Field(total, DOUBLE),)), Accumulator("add", (Field(count, BIGINT),))),
                (f"sum({value.sql}::DOUBLE)", f"count({value.sql})"),
                None,
                f"CASE WHEN {count} > 0 THEN {total} / {count} END",
            )
        case "min" | "max" if value is not None:
            field = fresh()
            return Partial(
                (Accumulator("pick", (Field(field, value.type),), ((0, name == "min"),)),),
                (f"{name}({value.sql})",), None, field,
            )
        case "spread" if value is not None:
            low, high = fresh(), fresh()
            return Partial(
                (Accumulator("pick", (Field(low, value.type),), ((0, True),)),
                 Accumulator("pick", (Field(high, value.type),), ((0, False),))),
                (f"min({value.sql})", f"max({value.sql})"), None,
                f"({high}::DOUBLE - {low}::DOUBLE)",
            )
        case "first" | "last" | "last_row" if value is not None:
            return picked(name, value, [], row, fresh)
        case "stddev" | "stddev_pop" | "var_pop" | "variance" if value is not None:
            count, mean, squares = fresh(), fresh(), fresh()
            variance = f"({squares} / {count})"
            final = variance if name.startswith("var") else f"sqrt(greatest({variance}, 0))"
            return Partial(
                (Accumulator("moments", (Field(count, BIGINT), Field(mean, DOUBLE), Field(squares, DOUBLE))),),
                (f"count({value.sql})", f"avg({value.sql}::DOUBLE)",
                 f"var_pop({value.sql}::DOUBLE) * count({value.sql})"),
                None,
                f"CASE WHEN {count} > 0 THEN {final} END",
            )
        case "apercentile" if value is not None:
            percent = arguments[1].constant
            assert isinstance(percent, int | float)
            field = fresh()
            return _listed("values", f"list({to_double(value)})", value, Field(field, DOUBLE, many=True),
                           f"list_aggregate({field}, 'quantile_cont', {percent / 100!r})")
        case "hyperloglog" if value is not None:
            field = fresh()
            return _listed("distinct", f"list(DISTINCT {value.sql})", value, Field(field, value.type, many=True),
                           f"coalesce(list_unique({field}), 0)::BIGINT")
        case _:
            return None


def picked(
    name: str, value: SqlExpr, companions: list[SqlExpr], row: RowKey, fresh: Names
) -> Partial:
    """Returns the split of min, max, first, last or last_row that carries the `companions` of the chosen row along.

    The final value is the first field that is not part of the order; companions follow in order. Ties go to the
    earliest row, then to the lowest table id, so that the choice depends on the rows alone; first takes the least
    key among rows of equal time, last the greatest.
    """
    ts, tuid = Field(fresh(), TS), Field(fresh(), UBIGINT)
    carried = tuple(Field(fresh(), companion.type) for companion in companions)
    chosen = Field(fresh(), value.type)
    ascending = name in ("min", "first")
    by_value = name in ("min", "max")
    fields: tuple[Field, ...]
    order: tuple[tuple[int, bool], ...]
    if by_value:
        fields = (chosen, ts, tuid, *carried)
        sources = (value.sql, row.ts, row.tuid, *(companion.sql for companion in companions))
        order = ((0, ascending), (1, True), (2, True))
        parts = ([value.sql, row.ts, row.tuid] if ascending
                 else [value.sql, f"-({row.ts})", f"-({row.tuid}::HUGEINT)"])
    else:
        fields = (ts, tuid, chosen, *carried)
        sources = (row.ts, row.tuid, value.sql, *(companion.sql for companion in companions))
        order = ((0, ascending), (1, True))
        parts = [row.ts, row.tuid] if ascending else [row.ts, f"-({row.tuid}::HUGEINT)"]
    if row.key is not None:
        place = len(fields)
        fields, sources = (*fields, Field(fresh(), row.key.type)), (*sources, row.key.sql)
        # Among values that tie the key decides last, among times before the table.
        at = len(order) if by_value else 1
        order = (*order[:at], (place, ascending), *order[at:])
        parts.insert(at, row.key.sql)
    rank = f"row({', '.join(parts)})"
    packed = ", ".join(f"{field.name} := {source}" for field, source in zip(fields, sources, strict=True))
    function = "arg_min" if ascending else "arg_max"
    condition = "" if name == "last_row" else f" FILTER ({value.sql} IS NOT NULL)"
    return Partial(
        (Accumulator("pick", fields, order),),
        tuple(field.name for field in fields),
        f"{function}(struct_pack({packed}), {rank}){condition}",
        chosen.name,
    )


def _listed(kind: AccumulatorKind, aggregate: str, value: SqlExpr, field: Field, final: str) -> Partial:
    return Partial((Accumulator(kind, (field,)),), (f"{aggregate} FILTER ({value.sql} IS NOT NULL)",), None, final)


def _added(sql: str, type_: DataType, fresh: Names) -> Partial:
    field = fresh()
    return Partial((Accumulator("add", (Field(field, type_),)),), (sql,), None, field)
