"""How aggregates split: into partials made by source tasks, their combination, and a final expression."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from penstock.planner.duckdb_tree import Tree, call, fragment, replaced_columns
from penstock.planner.plan import SqlExpr
from penstock.planner.stream import Accumulator, Field
from penstock.sql.types import BIGINT, DOUBLE, UBIGINT, DataType, Kind

Names = Callable[[], str]
"""Gives a fresh field name."""


def field_column(name: str) -> exp.Column:
    """Returns a column that carries a field of an accumulator, or what else the planner itself names so."""
    return exp.column(name)


@dataclass(frozen=True, slots=True)
class Choice:
    """Says that the fields of a part are those of one row: of the first by the accumulator's order, among the rows
    where `present` is not NULL (None: among all)."""

    present: Tree | None


@dataclass(frozen=True, slots=True)
class Part:
    """One accumulator of a partial: `columns` has an expression for each of its fields.

    They are aggregates over grouped rows, or with a `choice` values of the one row that it takes.
    """

    accumulator: Accumulator
    columns: tuple[Tree, ...]
    choice: Choice | None = None

    @property
    def struct(self) -> Tree | None:
        """The aggregate that gives all fields of the chosen row as one struct, or None without a choice."""
        if self.choice is None:
            return None
        members = [exp.PropertyEQ(this=exp.to_identifier(field.name), expression=column.copy())
                   for field, column in zip(self.accumulator.fields, self.columns, strict=True)]
        chosen = call(self._chooser, call("struct_pack", *members), call("row", *(
            column if along else fragment("-(:column)" if kind is not Kind.UBIGINT else "-(:column::HUGEINT)",
                                          column=column) for column, kind, along in self._ranked())))
        return chosen if self.choice.present is None else present_only(chosen, self.choice.present)

    @property
    def _chooser(self) -> str:
        return "arg_min" if self.accumulator.order[0][1] else "arg_max"

    def _ranked(self) -> Iterator[tuple[Tree, Kind, bool]]:
        """What orders the rows, with its kind, and whether it has the direction of the whole order."""
        order, fields = self.accumulator.order, self.accumulator.fields
        for place, ascending in order:
            yield self.columns[place], fields[place].type.kind, ascending == order[0][1]


@dataclass(frozen=True, slots=True)
class Partial:
    """One aggregate of a stream, split: `final` is its value over columns named as the fields of the accumulators."""

    parts: tuple[Part, ...]
    final: Tree

    @property
    def accumulators(self) -> tuple[Accumulator, ...]:
        return tuple(part.accumulator for part in self.parts)

    @property
    def fields(self) -> tuple[Field, ...]:
        return tuple(field for part in self.parts for field in part.accumulator.fields)

    def holds_what(self, other: Partial) -> bool:
        """Whether the fields of two partials have the same values, whatever their names are."""
        return bool(self.parts) and all(part.choice is None for part in self.parts) and (
            [(part.accumulator.kind, part.columns) for part in self.parts]
            == [(part.accumulator.kind, part.columns) for part in other.parts])

    def over(self, other: Partial) -> Partial:
        """Returns the same value over the fields of another partial, which hold what its own do."""
        names = {mine.name: field_column(theirs.name)
                 for mine, theirs in zip(self.fields, other.fields, strict=True)}
        return Partial((), replaced_columns(self.final, names))


@dataclass(frozen=True, slots=True)
class RowKey:
    """What names a row in a group: its primary timestamp, the second part of a composite key, and its table."""

    ts: SqlExpr
    key: SqlExpr | None = None
    tuid: SqlExpr = field(default_factory=lambda: SqlExpr(field_column("_tuid"), UBIGINT))


def split(name: str, arguments: list[SqlExpr], result: DataType, row: RowKey, fresh: Names) -> Partial | None:
    """Returns how the aggregate `name` splits, or None if it does not (it then cannot run in a stream).

    `result` is the type of the whole aggregate. NULL rules: tdengine.md 3.2, 7.10.
    """
    value = arguments[0] if arguments else None
    match name:
        case "count":
            counted = exp.Star() if value is None else value.node
            return _simple(Accumulator("add", (Field(fresh(), BIGINT),)), call("count", counted))
        case "sum" if value is not None:
            total = exp.Cast(this=call("sum", value.node), to=exp.DataType.build(result.duckdb(), dialect="duckdb"))
            return _simple(Accumulator("add", (Field(fresh(), result),)), total)
        case "avg" if value is not None:
            summed, count = Field(fresh(), DOUBLE), Field(fresh(), BIGINT)
            return Partial(
                (Part(Accumulator("add", (summed,)), (call("sum", double(value)),)),
                 Part(Accumulator("add", (count,)), (call("count", value.node),))),
                fragment("CASE WHEN :count > 0 THEN :sum / :count END", sum=field_column(summed.name),
                         count=field_column(count.name)))
        case "min" | "max" if value is not None:
            return _simple(Accumulator("pick", (Field(fresh(), value.type),), ((0, name == "min"),)),
                           call(name, value.node))
        case "spread" if value is not None:
            low, high = Field(fresh(), value.type), Field(fresh(), value.type)
            return Partial(
                (Part(Accumulator("pick", (low,), ((0, True),)), (call("min", value.node),)),
                 Part(Accumulator("pick", (high,), ((0, False),)), (call("max", value.node),))),
                fragment("(:high::DOUBLE - :low::DOUBLE)", high=field_column(high.name), low=field_column(low.name)))
        case "first" | "last" | "last_row" if value is not None:
            return picked(name, value, [], row, fresh)
        case "stddev" | "stddev_pop" | "var_pop" if value is not None:
            fields = (Field(fresh(), BIGINT), Field(fresh(), DOUBLE), Field(fresh(), DOUBLE))
            number = double(value)
            columns = (call("count", value.node), call("avg", number),
                       fragment("var_pop(:number) * count(:value)", number=number, value=value.node))
            variance = "(:squares / :count)" if name == "var_pop" else "sqrt(greatest(:squares / :count, 0))"
            return Partial(
                (Part(Accumulator("moments", fields), columns),),
                fragment(f"CASE WHEN :count > 0 THEN {variance} END", count=field_column(fields[0].name),
                         squares=field_column(fields[2].name)))
        case "apercentile" if value is not None:
            percent = arguments[1].constant
            assert isinstance(percent, int | float)
            values = Field(fresh(), DOUBLE, many=True)
            return Partial(
                (Part(Accumulator("values", (values,)), (
                    present_only(call("list", double(value)), value.node),)),),
                fragment("list_aggregate(:numbers, 'quantile_cont', :share)", numbers=field_column(values.name),
                         share=exp.Literal.number(repr(percent / 100))))
        case "hyperloglog" if value is not None:
            distinct = Field(fresh(), value.type, many=True)
            return Partial(
                (Part(Accumulator("distinct", (distinct,)), (
                    present_only(fragment("list(DISTINCT :value)", value=value.node), value.node),)),),
                fragment("coalesce(list_unique(:seen), 0)::BIGINT", seen=field_column(distinct.name)))
        case _:
            return None


def picked(
    name: str, value: SqlExpr, companions: Sequence[SqlExpr], row: RowKey, fresh: Names, chosen: str | None = None
) -> Partial:
    """Returns the split of min, max, first, last or last_row that carries the `companions` of the chosen row along.

    The final value is the field `chosen`, or a fresh one. Fields 0 to 2 are the value, the time and the table in the
    order of the choice; companions follow. Ties go to the earliest row, then to the lowest table id, so that the
    choice depends on the rows alone; first takes the least key among rows of equal time, last the greatest.
    """
    ts, tuid = Field(fresh(), row.ts.type), Field(fresh(), row.tuid.type)
    carried = tuple(Field(fresh(), companion.type) for companion in companions)
    unused = fresh()
    own = Field(chosen or unused, value.type)
    ascending = name in ("min", "first")
    others = tuple(companion.node for companion in companions)
    fields: tuple[Field, ...]
    order: tuple[tuple[int, bool], ...]
    if name in ("min", "max"):
        fields, columns = (own, ts, tuid, *carried), (value.node, row.ts.node, row.tuid.node, *others)
        order = ((0, ascending), (1, True), (2, True))
        at = len(order)
    else:
        fields, columns = (ts, tuid, own, *carried), (row.ts.node, row.tuid.node, value.node, *others)
        order = ((0, ascending), (1, True))
        at = 1
    if row.key is not None:
        # Among values that tie the key decides last, among times before the table.
        order = (*order[:at], (len(fields), ascending), *order[at:])
        fields, columns = (*fields, Field(fresh(), row.key.type)), (*columns, row.key.node)
    choice = Choice(None if name == "last_row" else value.node)
    return Partial((Part(Accumulator("pick", fields, order), columns, choice),), field_column(own.name))


def double(value: SqlExpr) -> Tree:
    """Returns a number as DOUBLE."""
    return value.node if value.type.kind is Kind.DOUBLE else fragment(":value::DOUBLE", value=value.node)


def _simple(accumulator: Accumulator, column: Tree) -> Partial:
    """A partial whose one field is the value."""
    return Partial((Part(accumulator, (column,)),), field_column(accumulator.fields[0].name))


def present_only(aggregate: Tree, value: Tree) -> exp.Filter:
    """Returns the aggregate over the rows that have a value."""
    return exp.Filter(this=aggregate, expression=exp.Where(this=fragment(":value IS NOT NULL", value=value)))
