"""How aggregates split: into partials made by source tasks, their combination, and a final expression."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp

from penstock.planner.duckdb_sql.duckdb_tree import Tree, call, fragment, made, replaced_columns
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.functions.grouped_call import Selection
from penstock.planner.logical.group_values import RowKey
from penstock.planner.task_plans.stream_plan import Accumulator, Field
from penstock.sql.types import Kind

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
class PartialColumn:
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
        members = [made(exp.PropertyEQ, this=exp.to_identifier(field.name), expression=column)
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

    parts: tuple[PartialColumn, ...]
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


def single(accumulator: Accumulator, column: Tree) -> Partial:
    """Returns a partial whose one field is the value."""
    return Partial((PartialColumn(accumulator, (column,)),), field_column(accumulator.fields[0].name))


def picked(
    selection: Selection, value: SqlExpr, companions: Sequence[SqlExpr], row: RowKey, fresh: Names
) -> Partial:
    """Returns a partial that takes one row, for its `value`, and carries the `companions` of that row along.

    Fields 0 to 2 are the value, the time and the table in the order of the choice; companions follow. Ties are as
    `RowKey.rank` has them, so that the choice depends on the rows alone.
    """
    assert row.table is not None
    ts, table = Field(fresh(), row.ts.type), Field(fresh(), row.table.type)
    carried = tuple(Field(fresh(), companion.type) for companion in companions)
    own = Field(fresh(), value.type)
    ascending = selection.ascending
    others = tuple(companion.node for companion in companions)
    fields: tuple[Field, ...]
    order: tuple[tuple[int, bool], ...]
    if selection.by_value:
        fields, columns = (own, ts, table, *carried), (value.node, row.ts.node, row.table.node, *others)
        order = ((0, ascending), (1, True), (2, True))
        at = len(order)
    else:
        fields, columns = (ts, table, own, *carried), (row.ts.node, row.table.node, value.node, *others)
        order = ((0, ascending), (1, True))
        at = 1
    for key in row.others:
        # Among values that tie the key decides last, among times before the table.
        order = (*order[:at], (len(fields), ascending), *order[at:])
        fields, columns = (*fields, Field(fresh(), key.type)), (*columns, key.node)
    choice = Choice(value.node if selection.present else None)
    return Partial((PartialColumn(Accumulator("pick", fields, order), columns, choice),), field_column(own.name))


def present_only(aggregate: Tree, value: Tree) -> exp.Filter:
    """Returns the aggregate over the rows that have a value."""
    present = fragment(":value IS NOT NULL", value=value)
    return made(exp.Filter, this=aggregate, expression=made(exp.Where, this=present))
