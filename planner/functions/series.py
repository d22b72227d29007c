"""Functions along the time line: they give a value per row, made of the rows before it."""

from __future__ import annotations

from penstock.planner.functions.spec import (
    INTEGER_KINDS,
    NUMBERS,
    TEXTS,
    Argument,
    FunctionSpec,
    ResultRule,
    always,
    sum_type,
)
from penstock.sql.types import BIGINT, DOUBLE, Kind

_NUMBER = Argument("number", NUMBERS)
_LIMIT = Argument("limit", NUMBERS, literal=True)
_OPERATOR = Argument("operator", TEXTS, literal=True, choices=("lt", "gt", "le", "ge", "ne", "eq"))


def _series(name: str, arguments: tuple[Argument, ...], result: ResultRule, summary: str,
            example: str) -> FunctionSpec:
    return FunctionSpec(name, "timeseries", arguments, result, summary, in_stream=False, multi_row=True,
                        needs_time=True, example=example)


FUNCTIONS = (
    _series("diff", (Argument("value", NUMBERS),
                     Argument("ignore", INTEGER_KINDS, literal=True, low=0, high=3, optional=True)),
            lambda types: DOUBLE if types[0].kind in (Kind.FLOAT, Kind.DOUBLE) else BIGINT,
            "Each value minus the one before; ignore 1 makes negative results NULL, 2 drops rows without result.",
            "diff(v) FROM m"),
    _series("derivative", (_NUMBER, Argument("interval", duration=True),
                           Argument("ignore_negative", INTEGER_KINDS, literal=True, choices=(0, 1))),
            always(DOUBLE), "The change per interval from each value to the next.", "derivative(v, 1m, 0) FROM m"),
    _series("csum", (_NUMBER,), sum_type, "The running sum.", "csum(v) FROM m"),
    _series("mavg", (_NUMBER, Argument("rows", INTEGER_KINDS, literal=True, low=1, high=1000)), always(DOUBLE),
            "The moving average over so many rows.", "mavg(v, 2) FROM m"),
    _series("statecount", (_NUMBER, _OPERATOR, _LIMIT), always(BIGINT),
            "How many rows in a row fulfil the comparison; -1 where it fails.", "statecount(v, 'GE', 2) FROM m"),
    _series("stateduration", (_NUMBER, _OPERATOR, _LIMIT, Argument("unit", duration=True, optional=True)),
            always(BIGINT), "For how long the comparison has been fulfilled; -1 where it fails.",
            "stateduration(v, 'GE', 2, 1s) FROM m"),
)
