"""Selection functions: they give values of single rows, next to which columns of the same row can stand."""

from __future__ import annotations

from penstock.planner.duckdb_tree import Tree, call, fragment, let
from penstock.planner.functions.spec import INTEGER_KINDS, NUMBERS, TEXTS, Argument, FunctionSpec, same_as_first
from penstock.planner.grouped_call import GroupedCall, Selection
from penstock.planner.partials import Names, Partial, picked, single
from penstock.planner.stream import Accumulator, Field
from penstock.sql.types import Kind

_NUMBER = Argument("number", NUMBERS)
_VALUE = Argument("value")
_STAR_OR_VALUE = Argument("value", star=True)
_ORDERED = Argument("value", NUMBERS | TEXTS | {Kind.TIMESTAMP})


def _rows(low: int, high: int) -> Argument:
    return Argument("rows", INTEGER_KINDS, literal=True, low=low, high=high)


def _extreme(name: str, summary: str, example: str) -> FunctionSpec:
    least = name == "min"

    def split(given: GroupedCall, fresh: Names) -> Partial:
        field = Field(fresh(), given.arguments[0].type)
        return single(Accumulator("pick", (field,), ((0, least),)), call(name, given.value))

    return FunctionSpec(name, "selection", (_ORDERED,), same_as_first, summary, example=example,
                        aggregate=lambda given: call(name, given.value), split=split,
                        selects=Selection(ascending=least, by_value=True))


def _end_of_line(name: str, function: str, selects: Selection, summary: str, example: str) -> FunctionSpec:
    def aggregate(given: GroupedCall) -> Tree:
        return call(function, given.value, given.row.rank(selects, given.value))

    def split(given: GroupedCall, fresh: Names) -> Partial:
        return picked(selects, given.arguments[0], [], given.row, fresh)

    return FunctionSpec(name, "selection", (_STAR_OR_VALUE,), same_as_first, summary, example=example, needs_time=True,
                        aggregate=aggregate, split=split, selects=selects)


def _mode(given: GroupedCall) -> Tree:
    # The histogram's keys are sorted, so that the least of several most frequent values is found first.
    return let(call("histogram", given.value), lambda counts: fragment(
        "map_keys(:counts)[list_position(map_values(:counts), list_max(map_values(:counts)))]", counts=counts))


def _several(name: str, arguments: tuple[Argument, ...], summary: str, example: str) -> FunctionSpec:
    return FunctionSpec(name, "selection", arguments, same_as_first, summary, in_stream=False, multi_row=True,
                        example=example)


FUNCTIONS = (
    _extreme("min", "The least value.", "min(v), ts FROM m"),
    _extreme("max", "The greatest value.", "max(v), s FROM m"),
    _end_of_line("first", "arg_min", Selection(ascending=True),
                 "The oldest value that is not NULL; `first(*)`: of every column.", "first(v) FROM m"),
    _end_of_line("last", "arg_max", Selection(ascending=False),
                 "The newest value that is not NULL; `last(*)`: of every column.", "last(s), ts FROM m"),
    _end_of_line("last_row", "arg_max_null", Selection(ascending=False, present=False),
                 "The value in the newest row, NULL or not; in streams not with INTERVAL.", "last_row(s) FROM m"),
    FunctionSpec("mode", "selection", (_VALUE,), same_as_first,
                 "The most frequent value, the least of them if several are.", in_stream=False,
                 example="mode(s) FROM m", aggregate=_mode),
    _several("top", (_NUMBER, _rows(1, 100)), "The greatest values, one per row.", "top(v, 2), ts FROM m"),
    _several("bottom", (_NUMBER, _rows(1, 100)), "The least values, one per row.", "bottom(v, 1) FROM m"),
    _several("sample", (_VALUE, _rows(1, 1000)), "Rows taken at random.", "sample(v, 1) FROM m WHERE v = 1"),
    _several("tail", (_VALUE, _rows(1, 100),
                      Argument("offset", INTEGER_KINDS, literal=True, low=0, high=100, optional=True)),
             "The newest rows, after leaving out `offset` of them.", "tail(v, 1, 1) FROM m"),
    _several("unique", (Argument("value", varies=True),), "Each different value, from the oldest row that has it.",
             "unique(s) FROM m"),
    FunctionSpec("cols", "selection", (Argument("selection"), Argument("expression", repeats=1000)), same_as_first,
                 "Expressions over the row that a selection function picked.", in_stream=False,
                 example="cols(max(v), ts, s) FROM m"),
    FunctionSpec("interp", "selection",
                 (Argument("value", NUMBERS),
                  Argument("ignore_null", INTEGER_KINDS, literal=True, choices=(0, 1), optional=True)),
                 same_as_first, "The value at points of a time grid, interpolated.", only_force_window_close=True,
                 multi_row=True, example="interp(v) FROM m RANGE('2024-01-01 00:00:30') FILL(LINEAR)"),
)
