"""Selection functions: they give values of single rows, next to which columns of the same row can stand."""

from __future__ import annotations

from penstock.planner.duckdb_sql.duckdb_tree import Tree, call, fragment, let, number
from penstock.planner.duckdb_sql.pieces import ordered
from penstock.planner.functions.grouped_call import GroupedCall, Selection, rank
from penstock.planner.functions.line_call import LineCall, PicksRows
from penstock.planner.functions.partials import Names, Partial, picked, single
from penstock.planner.functions.spec import (
    EVERY,
    INTEGER_KINDS,
    NUMBERS,
    TEXTS,
    Argument,
    FunctionSpec,
    same_as_first,
)
from penstock.planner.task_plans.stream_plan import Accumulator, Field
from penstock.sql.types import Kind

_NUMBER = Argument("number", NUMBERS)
_VALUE = Argument("value")
_STAR_OR_VALUE = Argument("value", EVERY, star=True)
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
                        selects=Selection(ascending=least, by_value=True), counts_of_duckdb=(2,))


def _end_of_line(name: str, function: str, selects: Selection, summary: str, example: str) -> FunctionSpec:
    def aggregate(given: GroupedCall) -> Tree:
        return call(function, given.value, rank(given.row, selects, given.value))

    def split(given: GroupedCall, fresh: Names) -> Partial:
        return picked(selects, given.arguments[0], [], given.row, fresh)

    return FunctionSpec(name, "selection", (_STAR_OR_VALUE,), same_as_first, summary, example=example, needs_time=True,
                        not_in_interval=not selects.present, aggregate=aggregate, split=split, selects=selects)


def _mode(given: GroupedCall) -> Tree:
    # The histogram's keys are sorted, so that the least of several most frequent values is found first.
    return let(call("histogram", given.value), lambda counts: fragment(
        "map_keys(:counts)[list_position(map_values(:counts), list_max(map_values(:counts)))]", counts=counts))


# --- functions that pick rows -----------------------------------------------------------------------------------


def _several(name: str, arguments: tuple[Argument, ...], picks: PicksRows, summary: str, example: str, *,
             needs_time: bool = False, volatile: bool = False) -> FunctionSpec:
    return FunctionSpec(name, "selection", arguments, same_as_first, summary, in_stream=False, multi_row=True,
                        volatile=volatile, example=example, needs_time=needs_time, picks=picks)


def _by_value(given: LineCall) -> list[Tree]:
    return [given.shown, *given.order]


def _by_value_downwards(given: LineCall) -> list[Tree]:
    return [ordered(given.shown, descending=True), *given.order]


def _at_random(given: LineCall) -> list[Tree]:
    chance = call("hash", *given.order, given.shown, number(given.seed))
    return [chance, *given.order]


def _newest_first(given: LineCall) -> list[Tree]:
    return [ordered(name, descending=True) for name in given.order]


def _oldest_first(given: LineCall) -> list[Tree]:
    return given.order


def _so_many(given: LineCall) -> tuple[int, int]:
    return 1, given.integer(1)


def _so_many_behind(given: LineCall) -> tuple[int, int]:
    skipped = given.integer(2)
    return skipped + 1, skipped + given.integer(1)


FUNCTIONS = (
    _extreme("min", "The least value.", "min(v), ts FROM m"),
    _extreme("max", "The greatest value.", "max(v), s FROM m"),
    _end_of_line("first", "arg_min", Selection(ascending=True),
                 "The oldest value that is not NULL; `first(*)`: of every column.", "first(v) FROM m"),
    _end_of_line("last", "arg_max", Selection(ascending=False),
                 "The newest value that is not NULL; `last(*)`: of every column.", "last(s), ts FROM m"),
    _end_of_line("last_row", "arg_max_null", Selection(ascending=False, present=False),
                 "The value in the newest row, also NULL. In streams not with INTERVAL.", "last_row(s) FROM m"),
    FunctionSpec("mode", "selection", (_VALUE,), same_as_first,
                 "The most frequent value; the least of them if there are several.", in_stream=False,
                 example="mode(s) FROM m", aggregate=_mode, selects_equal=True),
    _several("top", (_NUMBER, _rows(1, 100)), PicksRows(_by_value_downwards, _so_many),
             "The greatest values, one per row.", "top(v, 2), ts FROM m"),
    _several("bottom", (_NUMBER, _rows(1, 100)), PicksRows(_by_value, _so_many),
             "The least values, one per row.", "bottom(v, 1) FROM m"),
    _several("sample", (_VALUE, _rows(1, 1000)), PicksRows(_at_random, _so_many),
             "Rows taken at random.", "sample(v, 1) FROM m WHERE v = 1", volatile=True),
    _several("tail", (_VALUE, _rows(1, 100),
                      Argument("offset", INTEGER_KINDS, literal=True, low=0, high=100, optional=True)),
             PicksRows(_newest_first, _so_many_behind, present=False),
             "The newest rows, after skipping `offset` of them.", "tail(v, 1, 1) FROM m", needs_time=True),
    _several("unique", (Argument("value", varies=True),),
             PicksRows(_oldest_first, lambda _: (1, 1), present=False, each_value=True),
             "Each distinct value, from its oldest row.", "unique(s) FROM m", needs_time=True),
    FunctionSpec("cols", "selection", (Argument("selection"), Argument("expression", repeats=1000)), same_as_first,
                 "Expressions over the row that a selection function selected.", in_stream=False, of_call=True,
                 example="cols(max(v), ts, s) FROM m"),
    FunctionSpec("interp", "selection",
                 (Argument("value", NUMBERS),
                  Argument("ignore_null", INTEGER_KINDS, literal=True, choices=(0, 1), optional=True)),
                 same_as_first, "The value at points of a time grid, interpolated.", only_force_window_close=True,
                 multi_row=True, instants=True, example="interp(v) FROM m RANGE('2024-01-01 00:00:30') FILL(LINEAR)"),
)
