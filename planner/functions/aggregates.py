"""Aggregates: functions that give one value per group of rows.

NULLs are ignored as the dialect wants; what has no value is NULL. What splits can run in streams.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from sqlglot import exp

from penstock.planner.duckdb_sql.duckdb_tree import (
    Tree,
    call,
    cast,
    column,
    fragment,
    joined,
    let,
    made,
    text,
    try_cast,
)
from penstock.planner.functions.grouped_call import GroupedCall, in_order
from penstock.planner.functions.partials import Names, Partial, PartialColumn, field_column, present_only, single
from penstock.planner.functions.spec import (
    EVERY,
    INTEGER_KINDS,
    NUMBERS,
    TEXTS,
    WRONG_ARGUMENT_TYPE,
    WRONG_ARGUMENT_VALUE,
    Argument,
    FunctionSpec,
    always,
    joined_text,
    sum_type,
)
from penstock.planner.functions.string import LONGEST, too_long
from penstock.planner.logical.group_values import Covered
from penstock.planner.logical.window_kinds import END, START
from penstock.planner.scalar.scalar_cast import to_double, wrap_integer
from penstock.planner.task_plans.stream_plan import Accumulator, Field
from penstock.sql.types import BIGINT, DOUBLE, FLOATS, INTEGERS, UNITS_PER_SECOND, DataType, Kind

NUMBER = Argument("number", NUMBERS)
VALUE = Argument("value")
_PERCENT = Argument("percent", NUMBERS, literal=True, low=0, high=100)
_WIDE = (Kind.BIGINT, Kind.UBIGINT)
"""Few values of these have a sum that 64 bits can't hold."""
_DOUBLE_MAX = 1.7976931348623157e308


def real(value: float) -> Tree:
    """Returns a number as it stands in SQL."""
    literal = made(exp.Literal, this=repr(abs(value)), is_string=False)
    return made(exp.Paren, this=made(exp.Neg, this=literal)) if value < 0 else literal


def finite(value: Tree) -> Tree:
    """Returns a DOUBLE, NULL where it isn't finite: it has left the range, or is made of what is no number."""
    return fragment("CASE WHEN :value > '-inf'::DOUBLE AND :value < 'inf'::DOUBLE THEN :value END", value=value)


def _ranged(given: GroupedCall, value: Tree) -> Tree:
    """Returns a DOUBLE made of the argument's values, NULL where it isn't finite; of integers it always is."""
    return finite(value) if given.arguments[0].type.kind in FLOATS else value


# --- counts and sums --------------------------------------------------------------------------------------------


def _count(given: GroupedCall) -> Tree:
    return call("count", given.value)


def _split_count(given: GroupedCall, fresh: Names) -> Partial:
    return single(Accumulator("add", (Field(fresh(), BIGINT),)), _count(given))


def _sum(given: GroupedCall) -> Tree:
    """What leaves the range of its type is NULL: no smaller number stands for it."""
    kind = given.arguments[0].type.kind
    if kind in _WIDE:
        return try_cast(call("sum", given.value), given.result.duckdb())
    if kind in INTEGERS:  # no number of rows gets beyond 64 bits
        return cast(call("sum", given.value), given.result.duckdb())
    return call("sum", given.value) if kind is Kind.DECIMAL else finite(call("sum", given.double))


def _split_sum(given: GroupedCall, fresh: Names) -> Partial:
    kind, total = given.arguments[0].type.kind, call("sum", given.value)
    if kind in _WIDE:
        part = _wide_sum(given, fresh)
        low, high = (field_column(field.name) for field in part.accumulator.fields)
        return Partial((part,), fragment("CASE WHEN :high = 0 THEN :low END", high=high, low=low))
    partial = single(Accumulator("add", (Field(fresh(), given.result),)), total)
    return partial if kind in INTEGERS or kind is Kind.DECIMAL else replace(partial, final=finite(partial.final))


def _wide_sum(given: GroupedCall, fresh: Names) -> PartialColumn:
    """64 bits, and how often they were left: a sum that comes back into its range is right, in any order."""
    total, of = call("sum", given.value), sum_type((given.arguments[0].type,))
    wrapped = wrap_integer(total, of.kind)
    left = fragment("(:total - :wrapped::HUGEINT) // 18446744073709551616::HUGEINT", total=total, wrapped=wrapped)
    return PartialColumn(Accumulator("wide_add", (Field(fresh(), of), Field(fresh(), BIGINT))), (wrapped, left))


# --- moments ----------------------------------------------------------------------------------------------------


def _of_doubles(function: str) -> Callable[[GroupedCall], Tree]:
    return lambda given: _ranged(given, call(function, given.double))


def _avg(given: GroupedCall) -> Tree:
    """Integers are added without loss."""
    return call("avg", given.value) if given.arguments[0].type.kind in INTEGERS else _of_doubles("avg")(given)


def _split_avg(given: GroupedCall, fresh: Names) -> Partial:
    kind = given.arguments[0].type.kind
    if kind in _WIDE:
        part = _wide_sum(given, fresh)
        low, high = (field_column(field.name) for field in part.accumulator.fields)
        total = fragment("(:low::DOUBLE + :high::DOUBLE * 18446744073709551616e0)", low=low, high=high)
    else:  # a sum of smaller integers is exact in a DOUBLE, up to 9.0e15
        part = single(Accumulator("add", (Field(fresh(), DOUBLE),)), call("sum", given.double)).parts[0]
        total = field_column(part.accumulator.fields[0].name)
    count = Field(fresh(), BIGINT)
    return Partial(
        (part, PartialColumn(Accumulator("add", (count,)), (call("count", given.value),))),
        fragment(f"CASE WHEN {_known(given, 'total')} THEN :total / :count END", total=total,
                 count=field_column(count.name)))


def _known(given: GroupedCall, made: str) -> str:
    """Returns the condition under which there are values, and what is `made` of them is finite."""
    if given.arguments[0].type.kind not in FLOATS:
        return ":count > 0"
    return f":count > 0 AND :{made} > '-inf'::DOUBLE AND :{made} < 'inf'::DOUBLE"


def _split_moments(final: str) -> Callable[[GroupedCall, Names], Partial]:
    def split(given: GroupedCall, fresh: Names) -> Partial:
        fields = count, _, squares = Field(fresh(), BIGINT), Field(fresh(), DOUBLE), Field(fresh(), DOUBLE)
        columns = (call("count", given.value), call("avg", given.double),
                   fragment("var_pop(:double) * count(:value)", double=given.double, value=given.value))
        return Partial((PartialColumn(Accumulator("moments", fields), columns),), fragment(
            f"CASE WHEN {_known(given, 'squares')} THEN {final} END", count=field_column(count.name),
            squares=field_column(squares.name)))

    return split


def _dispersion(name: str, duckdb_name: str, final: str, summary: str) -> FunctionSpec:
    """`final`: its value, made of the number of values and their squared distances from the mean."""
    return FunctionSpec(name, "aggregate", (NUMBER,), always(DOUBLE), summary, example=f"{name}(v) FROM m",
                        aggregate=_of_doubles(duckdb_name), split=_split_moments(final), adds_squares=True)


_VARIANCE, _DEVIATION = "(:squares / :count)", "sqrt(greatest(:squares / :count, 0))"
_OF_SAMPLE = "CASE WHEN :count > 1 THEN {} END"


def _corr(given: GroupedCall) -> Tree:
    """DuckDB gives NaN where one of both doesn't vary."""
    return finite(call("corr", *(to_double(argument) for argument in given.arguments)))


def _spread(given: GroupedCall) -> Tree:
    return _ranged(given, fragment("(max(:value)::DOUBLE - min(:value)::DOUBLE)", value=given.value))


def _split_spread(given: GroupedCall, fresh: Names) -> Partial:
    low, high = (Field(fresh(), given.arguments[0].type) for _ in range(2))
    return Partial(
        (PartialColumn(Accumulator("pick", (low,), ((0, True),)), (call("min", given.value),)),
         PartialColumn(Accumulator("pick", (high,), ((0, False),)), (call("max", given.value),))),
        _ranged(given, fragment("(:high::DOUBLE - :low::DOUBLE)", high=field_column(high.name),
                                low=field_column(low.name))))


# --- percentiles and different values ---------------------------------------------------------------------------


def _quantile(given: GroupedCall, index: int) -> Tree:
    return _ranged(given, call("quantile_cont", given.double, real(given.number(index) / 100)))


def _split_quantile(given: GroupedCall, fresh: Names) -> Partial:
    values = Field(fresh(), DOUBLE, many=True)
    return Partial(
        (PartialColumn(Accumulator("values", (values,)), (present_only(call("list", given.double), given.value),)),),
        _ranged(given, call("list_aggregate", field_column(values.name), text("quantile_cont"),
                            real(given.number(1) / 100))))


def _percentile_type(types: Sequence[DataType]) -> DataType:
    return DOUBLE if len(types) == 2 else DataType(Kind.VARCHAR, 512)


def _percentile(given: GroupedCall) -> Tree:
    found = [_quantile(given, index) for index in range(1, len(given.arguments))]
    return found[0] if len(found) == 1 else call("printf", text(f"[{', '.join(['%.6f'] * len(found))}]"), *found)


def _hyperloglog(given: GroupedCall) -> Tree:
    return fragment("count(DISTINCT :value)", value=given.value)


def _split_hyperloglog(given: GroupedCall, fresh: Names) -> Partial:
    values = Field(fresh(), given.arguments[0].type, many=True)
    different = present_only(fragment("list(DISTINCT :value)", value=given.value), given.value)
    return Partial((PartialColumn(Accumulator("distinct", (values,)), (different,)),), fragment(
        "coalesce(list_unique(:seen), 0)::BIGINT", seen=field_column(values.name)))


# --- texts ------------------------------------------------------------------------------------------------------


def text_of_all(types: Sequence[DataType]) -> DataType:
    """NCHAR if any argument is, else VARCHAR, of unknown length."""
    return replace(joined_text(types), length=None)


def _separator(given: GroupedCall) -> str:
    """The last of several arguments; a comma behind one."""
    if len(given.arguments) == 1:
        return ","
    separator = given.constant(len(given.arguments) - 1)
    if not isinstance(separator, str):
        raise given.refuse("the separator, its last argument, must be a text that is a constant", WRONG_ARGUMENT_TYPE)
    return separator


def _group_concat(given: GroupedCall) -> Tree:
    texts = given.arguments[:max(len(given.arguments) - 1, 1)]
    whole = joined(*(argument.node for argument in texts))
    return let(call("array_to_string", present_only(in_order(whole, given.row), whole), text(_separator(given))),
               lambda x: fragment("CASE WHEN strlen(:x) > :longest THEN :refused ELSE :x END", x=x, longest=LONGEST,
                                  refused=too_long(given.name)))


# --- histograms -------------------------------------------------------------------------------------------------


def histogram_bins(bin_type: str, description: str) -> list[tuple[float, float]]:
    """Returns the bins (lower, upper] that a histogram's description spells. Raises ValueError."""
    spelled = json.loads(description)
    if bin_type == "user_input":
        if not isinstance(spelled, list) or len(spelled) < 2 or not all(_is_number(edge) for edge in spelled):
            raise ValueError("write an array of at least two numbers, such as '[1, 5, 10]'")
        edges = [float(edge) for edge in spelled]
        if any(low >= high for low, high in pairwise(edges)):
            raise ValueError("the numbers must rise")
        return list(pairwise(edges))
    key = "width" if bin_type == "linear_bin" else "factor"
    if not isinstance(spelled, dict) or not {"start", key, "count", "infinity"} <= set(spelled):
        raise ValueError(f'write {{"start": 0, "{key}": 5, "count": 5, "infinity": true}}')
    start, step, count = spelled["start"], spelled[key], spelled["count"]
    if not _is_number(start) or not _is_number(step) or not isinstance(count, int) or not 1 <= count <= 1000:
        raise ValueError("start and width must be numbers, count an integer from 1 to 1000")
    if step == 0 or (bin_type == "log_bin" and (step <= 0 or step == 1 or start == 0)):
        raise ValueError(f"{key} {step} makes no bins")
    edges = [start + step * n if bin_type == "linear_bin" else start * step**n for n in range(count + 1)]
    edges = sorted(float(edge) for edge in edges)
    if not all(math.isfinite(edge) for edge in edges):
        raise ValueError("the bins are out of range")
    if spelled["infinity"]:
        edges = [-_DOUBLE_MAX, *edges, _DOUBLE_MAX]
    return list(pairwise(edges))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _bins(given: GroupedCall) -> list[tuple[float, float]]:
    description = given.text(2)
    try:
        return histogram_bins(given.text(1).lower(), description)
    except (ValueError, OverflowError) as error:
        raise given.refuse(f"{description!r} describes no bins: {error}", WRONG_ARGUMENT_VALUE) from error


def _histogram(given: GroupedCall) -> Tree:
    """A list of texts, to unnest."""
    bins = _bins(given)
    normalized = given.constant(3) == 1

    def counted(low: float, high: float) -> Tree:
        return fragment("count(*) FILTER (WHERE :number > :low AND :number <= :high)", number=given.double,
                        low=real(low), high=real(high))

    inside = counted(bins[0][0], bins[-1][1])
    rows = []
    for low, high in bins:
        count = counted(low, high)
        shown = cast(count, "VARCHAR") if not normalized else fragment(
            "printf('%f', coalesce(:count::DOUBLE / nullif(:inside, 0), 0))", count=count, inside=inside)
        rows.append(call("concat", text(f'{{"lower_bin":{low:g}, "upper_bin":{high:g}, "count":'), shown, text("}")))
    return made(exp.Array, expressions=rows)


# --- lines and rates --------------------------------------------------------------------------------------------


def _leastsquares(given: GroupedCall) -> Tree:
    start, step = given.number(1), given.number(2)

    def line(y: Tree) -> Tree:
        # Sums over positions 0..n-1 have closed forms; the axis start + position * step is applied to the result.
        n = fragment("len(:y)::DOUBLE", y=y)
        sum_x, sum_xx = fragment("(:n * (:n - 1) / 2)", n=n), fragment("(:n * (:n - 1) * (2 * :n - 1) / 6)", n=n)
        sum_xy = fragment("list_sum(list_transform(:y, lambda item, i: item * (i - 1)))", y=y)
        slope = fragment(
            "((:n * :sum_xy - :sum_x * list_sum(:y)) / (:n * :sum_xx - :sum_x * :sum_x)) / :step",
            n=n, sum_x=sum_x, sum_xx=sum_xx, sum_xy=sum_xy, y=y, step=real(step))
        mean_x = fragment("(:start + :step * (:n - 1) / 2)", start=real(start), step=real(step), n=n)
        return let(slope, lambda slope: fragment(
            "printf('{slop:%.6f, intercept:%.6f}', :slope, list_sum(:y) / :n - :slope * :mean_x)", slope=slope, y=y,
            n=n, mean_x=mean_x))

    # One point, or points that do not advance, have no line: TDengine prints that as nan.
    at_least = 2 if step != 0 else 1 << 62
    return let(present_only(in_order(given.double, given.row), given.value), lambda y: fragment(
        "CASE WHEN len(:y) >= :at_least THEN :line WHEN len(:y) > 0 THEN '{slop:nan, intercept:nan}' END",
        y=y, at_least=at_least, line=line(y)))


def _elapsed(given: Covered) -> Tree:
    # A window ends with the first instant of the next one.
    lengths, _ = lengths_and_areas(given, column(END))
    return fragment("sum(:lengths)::DOUBLE / :unit", lengths=lengths, unit=given.unit)


def _twa(given: Covered) -> Tree:
    # A window ends with its last instant.
    lengths, areas = lengths_and_areas(given, fragment("(:till - 1)", till=column(END)))
    return fragment("coalesce(sum(:areas) / nullif(sum(:lengths), 0), arg_min(:value, :ts))", areas=areas,
                    lengths=lengths, value=double(given), ts=given.ts.node)


def _irate(given: GroupedCall) -> Tree:
    per_second = UNITS_PER_SECOND[given.row.ts.type.precision]
    last_two = present_only(fragment("arg_max({'t': :ts, 'v': :double}, :ts, 2)", ts=given.row.ts.node,
                                     double=given.double), given.value)
    return let(last_two, lambda p: fragment(
        "CASE WHEN len(:p) = 0 THEN NULL WHEN len(:p) = 1 OR :p[1].t = :p[2].t THEN 0e0 "
        "ELSE (CASE WHEN :p[1].v >= :p[2].v THEN :p[1].v - :p[2].v ELSE :p[1].v END) "
        "* :per_second::DOUBLE / (:p[1].t - :p[2].t) END", p=p, per_second=per_second))


def _grouping(name: str, summary: str) -> FunctionSpec:
    return FunctionSpec(name, "aggregate", (Argument("key", EVERY, repeats=60),), always(BIGINT), summary,
                        in_stream=False, example=f"{name}(s), count(*) FROM m GROUP BY ROLLUP (s) ORDER BY 1, 2",
                        counts=True, of_keys=True)


FUNCTIONS = (
    FunctionSpec(
        "count", "aggregate", (Argument("value", EVERY, star=True),), always(BIGINT),
        "`count(*)`: the number of rows; `count(value)`: of those in which the value is not NULL.",
        example="count(*), count(v) FROM m", counts=True, aggregate=_count, split=_split_count,
        retracts=EVERY, different="hyperloglog"),
    FunctionSpec(
        "sum", "aggregate", (NUMBER,), sum_type,
        "The sum: BIGINT for integers, otherwise DOUBLE. NULL if it is out of range.",
        example="sum(v) FROM m", aggregate=_sum, split=_split_sum, retracts=INTEGER_KINDS | {Kind.DECIMAL}),
    FunctionSpec(
        "avg", "aggregate", (NUMBER,), always(DOUBLE), "The mean.", example="avg(v) FROM m",
        aggregate=_avg, split=_split_avg, retracts=INTEGER_KINDS),
    FunctionSpec(
        "spread", "aggregate", (Argument("value", NUMBERS | {Kind.TIMESTAMP}),), always(DOUBLE),
        "The greatest value minus the least.", example="spread(v) FROM m", aggregate=_spread, split=_split_spread),
    _dispersion("stddev", "stddev_pop", _DEVIATION, "The population standard deviation."),
    _dispersion("stddev_pop", "stddev_pop", _DEVIATION, "The same as stddev."),
    _dispersion("std", "stddev_pop", _DEVIATION, "The same as stddev."),
    _dispersion("stddev_samp", "stddev_samp", _OF_SAMPLE.format("sqrt(greatest(:squares / (:count - 1), 0))"),
                "The sample standard deviation; NULL for a single value."),
    _dispersion("var_pop", "var_pop", _VARIANCE, "The population variance."),
    _dispersion("variance", "var_pop", _VARIANCE, "The same as var_pop."),
    _dispersion("var_samp", "var_samp", _OF_SAMPLE.format(":squares / (:count - 1)"),
                "The sample variance; NULL for a single value."),
    FunctionSpec(
        "corr", "aggregate", (NUMBER, Argument("other", NUMBERS)), always(DOUBLE),
        "Pearson's correlation coefficient, -1 to 1, over the rows with both numbers. NULL if one of them is "
        "constant.", in_stream=False, example="corr(v, v * v) FROM m", aggregate=_corr,
        adds_squares=True),
    FunctionSpec(
        "apercentile", "aggregate",
        (NUMBER, _PERCENT, Argument("algorithm", TEXTS, literal=True, choices=("default", "t-digest"), optional=True)),
        always(DOUBLE), "A percentile (0 to 100); the algorithm's name is accepted, the answer is exact.",
        example="apercentile(v, 50) FROM m", aggregate=lambda given: _quantile(given, 1), split=_split_quantile),
    FunctionSpec(
        "percentile", "aggregate",
        (NUMBER, Argument("percent", NUMBERS, literal=True, low=0, high=100, repeats=10)), _percentile_type,
        "The exact percentile. Several percents return a JSON array as text.", in_stream=False,
        example="percentile(v, 0, 50, 100) FROM m", one_table=True, aggregate=_percentile),
    FunctionSpec(
        "hyperloglog", "aggregate", (VALUE,), always(BIGINT), "The number of distinct values that aren't NULL.",
        example="hyperloglog(s) FROM m", counts=True, aggregate=_hyperloglog, split=_split_hyperloglog),
    _grouping("grouping", "A bit per key of GROUP BY: 1 if the grouping set of the row doesn't contain the key. The "
              "last key is the lowest bit."),
    _grouping("grouping_id", "The same as grouping."),
    FunctionSpec(
        "group_concat", "aggregate",
        (Argument("text", TEXTS), Argument("text or separator", TEXTS, optional=True, repeats=8)), text_of_all,
        "The texts of all rows in time order with a separator between them. The last argument is the separator; "
        "with one argument it is a comma. Several texts of a row are joined. Rows with a NULL are left out. A "
        "result longer than 65517 bytes is an error.", in_stream=False, example="group_concat(s, '-') FROM m",
        aggregate=_group_concat, check=_separator, along_rows=True),
    FunctionSpec(
        "histogram", "aggregate",
        (NUMBER, Argument("bin_type", TEXTS, literal=True, choices=("user_input", "linear_bin", "log_bin")),
         Argument("bins", TEXTS, literal=True),
         Argument("normalized", INTEGER_KINDS, literal=True, choices=(0, 1))),
        always(DataType(Kind.VARCHAR, 512)),
        "One row per bin, as JSON: the bounds and the number of values. With one or two arguments it is DuckDB's "
        "`histogram(value[, bins])`, a map.",
        in_stream=False, multi_row=True, example="histogram(v, 'user_input', '[0, 2, 8]', 0) FROM m",
        aggregate=_histogram, check=_bins, counts_of_duckdb=(1, 2)),
    FunctionSpec(
        "leastsquares", "aggregate",
        (NUMBER, Argument("start", NUMBERS, literal=True), Argument("step", NUMBERS, literal=True)),
        always(DataType(Kind.VARCHAR, 64)),
        "The slope and intercept of the regression line through the values at start, start + step, ...",
        in_stream=False, example="leastsquares(v, 1, 1) FROM m", aggregate=_leastsquares, along_rows=True),
    FunctionSpec(
        "elapsed", "aggregate",
        (Argument("time", frozenset((Kind.TIMESTAMP,))), Argument("unit", duration=True, optional=True)),
        always(DOUBLE), "The time from the first to the last row, in units of `unit`.", only_force_window_close=True,
        example="elapsed(ts, 1s) FROM m", needs_time=True, by_stretches=_elapsed),
    FunctionSpec(
        "twa", "aggregate", (NUMBER,), always(DOUBLE), "The time-weighted average.", only_force_window_close=True,
        example="twa(v) FROM m", needs_time=True, by_stretches=_twa),
    FunctionSpec(
        "irate", "aggregate", (NUMBER,), always(DOUBLE),
        "The rate per second between the last two values. A decrease counts as a restart from zero.", in_stream=False,
        example="irate(v) FROM m", needs_time=True, aggregate=_irate),
)


def double(given: Covered) -> Tree:
    """Returns the value of a row as DOUBLE."""
    return fragment(":value::DOUBLE", value=given.value.node)


def lengths_and_areas(given: Covered, border: Tree) -> tuple[Tree, Tree]:
    """Returns the length that a row covers, and the area under the line of the values there.

    A row covers what lies between it and the row before, and the last one of a window what lies up to its `border`,
    both within the window.
    """
    value, ts, before = double(given), given.ts.node, given.before.node
    slope = fragment("(:value - (:before).v) / (:ts - (:before).t)", value=value, before=before, ts=ts)
    since = fragment("(:before).t", before=before) if given.after is None else fragment(
        "greatest((:before).t, :start)", before=before, start=column(START))
    length = fragment("(:ts - :since)", ts=ts, since=since)
    area = fragment("(:value - :slope * :length / 2) * :length", value=value, slope=slope, length=length)
    head = "CASE WHEN :value IS NOT NULL AND (:before).t < :ts THEN :covered ELSE 0 END"
    lengths, areas = (fragment(head, value=value, before=before, ts=ts, covered=covered)
                      for covered in (length, area))
    if given.after is None:
        return lengths, areas
    after = given.after.node
    slope = fragment("((:after).v - :value) / ((:after).t - :ts)", value=value, after=after, ts=ts)
    length = fragment("(:border - :ts)", border=border, ts=ts)
    area = fragment("(:value + :slope * :length / 2) * :length", value=value, slope=slope, length=length)
    tail = "CASE WHEN :value IS NOT NULL AND (:after).t >= :till AND (:after).t > :ts THEN :covered ELSE 0 END"
    tails = [fragment(tail, value=value, after=after, till=column(END), ts=ts, covered=covered)
             for covered in (length, area)]
    lengths, areas = (fragment(":head + :tail", head=one, tail=other)
                      for one, other in zip((lengths, areas), tails, strict=True))
    return lengths, areas
