"""The aggregate, selection and time-series functions and the pseudo columns."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.planner.functions.spec import (
    INTEGER_KINDS,
    NUMBERS,
    TEXTS,
    Argument,
    Category,
    FunctionSpec,
    ResultRule,
    always,
    same_as_first,
    sum_type,
)
from penstock.sql.types import BIGINT, BOOL, DOUBLE, VARCHAR, DataType, Kind, timestamp

NUMBER = Argument("number", NUMBERS)
VALUE = Argument("value")
STAR_OR_VALUE = Argument("value", star=True)
ORDERED = Argument("value", NUMBERS | TEXTS | {Kind.TIMESTAMP})
_TIME = Argument("time", frozenset((Kind.TIMESTAMP, Kind.BIGINT)))


def _rows(low: int, high: int) -> Argument:
    return Argument("rows", INTEGER_KINDS, literal=True, low=low, high=high)


def _spec(
    name: str,
    category: Category,
    arguments: tuple[Argument, ...],
    result: ResultRule,
    summary: str,
    *,
    in_stream: bool = True,
    only_force: bool = False,
    multi_row: bool = False,
) -> FunctionSpec:
    return FunctionSpec(name, category, arguments, result, summary, in_stream, only_force, multi_row)


def _percentile_type(types: Sequence[DataType]) -> DataType:
    return DOUBLE if len(types) == 2 else DataType(Kind.VARCHAR, 512)


_PERCENT = Argument("percent", NUMBERS, literal=True, low=0, high=100)

AGGREGATES = (
    _spec(
        "count",
        "aggregate",
        (STAR_OR_VALUE,),
        always(BIGINT),
        "`count(*)`: the number of rows; `count(value)`: of those in which the value is not NULL.",
    ),
    _spec("sum", "aggregate", (NUMBER,), sum_type, "The sum; BIGINT for integers, DOUBLE for others."),
    _spec("avg", "aggregate", (NUMBER,), always(DOUBLE), "The mean."),
    _spec(
        "spread",
        "aggregate",
        (Argument("value", NUMBERS | {Kind.TIMESTAMP}),),
        always(DOUBLE),
        "The greatest value minus the least.",
    ),
    _spec("stddev", "aggregate", (NUMBER,), always(DOUBLE), "The population standard deviation."),
    _spec("stddev_pop", "aggregate", (NUMBER,), always(DOUBLE), "The same as stddev."),
    _spec("var_pop", "aggregate", (NUMBER,), always(DOUBLE), "The population variance."),
    _spec(
        "apercentile",
        "aggregate",
        (
            NUMBER,
            _PERCENT,
            Argument("algorithm", TEXTS, literal=True, choices=("default", "t-digest"), optional=True),
        ),
        always(DOUBLE),
        "A percentile (0 to 100); the algorithm's name is accepted, the answer is exact.",
    ),
    _spec(
        "percentile",
        "aggregate",
        (NUMBER, Argument("percent", NUMBERS, literal=True, low=0, high=100, repeats=10)),
        _percentile_type,
        "The exact percentile; several percents give a JSON array as text.",
        in_stream=False,
    ),
    _spec(
        "hyperloglog",
        "aggregate",
        (VALUE,),
        always(BIGINT),
        "The number of different values that are not NULL.",
    ),
    _spec(
        "histogram",
        "aggregate",
        (
            NUMBER,
            Argument("bin_type", TEXTS, literal=True, choices=("user_input", "linear_bin", "log_bin")),
            Argument("bins", TEXTS, literal=True),
            Argument("normalized", INTEGER_KINDS, literal=True, choices=(0, 1)),
        ),
        always(DataType(Kind.VARCHAR, 512)),
        "One row per bin: its bounds and how many values fall into it, as JSON.",
        in_stream=False,
        multi_row=True,
    ),
    _spec(
        "leastsquares",
        "aggregate",
        (
            NUMBER,
            Argument("start", NUMBERS, literal=True, optional=True),
            Argument("step", NUMBERS, literal=True, optional=True),
        ),
        always(DataType(Kind.VARCHAR, 64)),
        "Slope and intercept of the straight line through the values, taken at start, start + step, ... (1 and 1 "
        "if left out).",
        in_stream=False,
    ),
    _spec(
        "elapsed",
        "aggregate",
        (Argument("time", frozenset((Kind.TIMESTAMP,))), Argument("unit", duration=True, optional=True)),
        always(DOUBLE),
        "The time from the first to the last row, in units of `unit`.",
        only_force=True,
    ),
    _spec("twa", "aggregate", (NUMBER,), always(DOUBLE), "The time-weighted average.", only_force=True),
    _spec(
        "irate",
        "aggregate",
        (NUMBER,),
        always(DOUBLE),
        "The rate per second between the last two values; a fall counts as a restart from zero.",
        in_stream=False,
    ),
)

SELECTIONS = (
    _spec("min", "selection", (ORDERED,), same_as_first, "The least value."),
    _spec("max", "selection", (ORDERED,), same_as_first, "The greatest value."),
    _spec(
        "first",
        "selection",
        (STAR_OR_VALUE,),
        same_as_first,
        "The oldest value that is not NULL; `first(*)`: of every column.",
    ),
    _spec(
        "last",
        "selection",
        (STAR_OR_VALUE,),
        same_as_first,
        "The newest value that is not NULL; `last(*)`: of every column.",
    ),
    _spec(
        "last_row",
        "selection",
        (STAR_OR_VALUE,),
        same_as_first,
        "The value in the newest row, NULL or not; in streams not with INTERVAL.",
    ),
    _spec(
        "mode",
        "selection",
        (VALUE,),
        same_as_first,
        "The most frequent value, the least of them if several are.",
        in_stream=False,
    ),
    _spec(
        "top",
        "selection",
        (NUMBER, _rows(1, 100)),
        same_as_first,
        "The greatest values, one per row.",
        in_stream=False,
        multi_row=True,
    ),
    _spec(
        "bottom",
        "selection",
        (NUMBER, _rows(1, 100)),
        same_as_first,
        "The least values, one per row.",
        in_stream=False,
        multi_row=True,
    ),
    _spec(
        "sample",
        "selection",
        (VALUE, _rows(1, 1000)),
        same_as_first,
        "Rows taken at random.",
        in_stream=False,
        multi_row=True,
    ),
    _spec(
        "tail",
        "selection",
        (
            VALUE,
            _rows(1, 100),
            Argument("offset", INTEGER_KINDS, literal=True, low=0, high=100, optional=True),
        ),
        same_as_first,
        "The newest rows, after leaving out `offset` of them.",
        in_stream=False,
        multi_row=True,
    ),
    _spec(
        "unique",
        "selection",
        (VALUE,),
        same_as_first,
        "Each different value, from the oldest row that has it.",
        in_stream=False,
        multi_row=True,
    ),
    _spec(
        "cols",
        "selection",
        (Argument("selection"), Argument("expression", repeats=1000)),
        same_as_first,
        "Expressions over the row that a selection function picked.",
        in_stream=False,
    ),
    _spec(
        "interp",
        "selection",
        (
            Argument("value", NUMBERS),
            Argument("ignore_null", INTEGER_KINDS, literal=True, choices=(0, 1), optional=True),
        ),
        same_as_first,
        "The value at points of a time grid, interpolated.",
        only_force=True,
        multi_row=True,
    ),
)

_OPERATOR = Argument("operator", TEXTS, literal=True, choices=("lt", "gt", "le", "ge", "ne", "eq"))

TIME_SERIES = (
    _spec(
        "diff",
        "timeseries",
        (
            Argument("value", NUMBERS | {Kind.TIMESTAMP}),
            Argument("ignore", INTEGER_KINDS, literal=True, low=0, high=3, optional=True),
        ),
        lambda types: DOUBLE if types[0].kind in (Kind.FLOAT, Kind.DOUBLE) else BIGINT,
        "Each value minus the one before; ignore 1 makes negative results NULL, 2 drops rows without result.",
        in_stream=False,
        multi_row=True,
    ),
    _spec(
        "derivative",
        "timeseries",
        (
            NUMBER,
            Argument("interval", duration=True),
            Argument("ignore_negative", INTEGER_KINDS, literal=True, choices=(0, 1)),
        ),
        always(DOUBLE),
        "The change per interval from each value to the next.",
        in_stream=False,
        multi_row=True,
    ),
    _spec("csum", "timeseries", (NUMBER,), sum_type, "The running sum.", in_stream=False, multi_row=True),
    _spec(
        "mavg",
        "timeseries",
        (NUMBER, _rows(1, 1000)),
        always(DOUBLE),
        "The moving average over so many rows.",
        in_stream=False,
        multi_row=True,
    ),
    _spec(
        "statecount",
        "timeseries",
        (NUMBER, _OPERATOR, Argument("limit", NUMBERS, literal=True)),
        always(BIGINT),
        "How many rows in a row fulfil the comparison; -1 where it fails.",
        in_stream=False,
        multi_row=True,
    ),
    _spec(
        "stateduration",
        "timeseries",
        (
            NUMBER,
            _OPERATOR,
            Argument("limit", NUMBERS, literal=True),
            Argument("unit", duration=True, optional=True),
        ),
        always(BIGINT),
        "For how long the comparison has been fulfilled; -1 where it fails.",
        in_stream=False,
        multi_row=True,
    ),
)


def _pseudo(
    name: str, result: DataType, summary: str, *, in_stream: bool = True, only_force: bool = False
) -> FunctionSpec:
    return FunctionSpec(name, "pseudo", (), always(result), summary, in_stream, only_force)


PSEUDO_COLUMNS = (
    _pseudo("_wstart", timestamp(), "Where the window starts."),
    _pseudo("_wend", timestamp(), "Where the window ends."),
    _pseudo("_wduration", BIGINT, "The window's length in units of the database's precision."),
    _pseudo("_qstart", timestamp(), "The lower bound of the query's time range.", in_stream=False),
    _pseudo("_qend", timestamp(), "The upper bound of the query's time range.", in_stream=False),
    _pseudo("_qduration", BIGINT, "The length of the query's time range.", in_stream=False),
    _pseudo("_rowts", timestamp(), "The row's primary timestamp."),
    _pseudo("_c0", timestamp(), "The same as _rowts."),
    _pseudo("_irowts", timestamp(), "The time of an INTERP row.", only_force=True),
    _pseudo("_isfilled", BOOL, "Whether an INTERP row was interpolated.", only_force=True),
    _pseudo(
        "_irowts_origin",
        timestamp(),
        "The time of the row that an INTERP value was taken from.",
        in_stream=False,
    ),
    _pseudo("tbname", DataType(VARCHAR.kind, 192), "The name of the row's table."),
)
