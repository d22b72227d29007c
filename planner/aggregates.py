"""Aggregate and selection functions as DuckDB aggregates over grouped rows; row-wise functions are not here.

Every SQL text is usable next to GROUP BY. NULLs are ignored as the dialect wants; what has no value is NULL. Where
rows tie, the earliest one and then the table with the lowest id win, so that results depend on the rows alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import pairwise

from sqlglot import exp

from penstock.common.errors import InternalError, InvalidStatementError, Position
from penstock.planner.duckdb_tree import parse_tree, render
from penstock.planner.functions.spec import WRONG_ARGUMENT_VALUE
from penstock.planner.functions.table import check_call, lookup
from penstock.planner.plan import SqlExpr
from penstock.planner.scalar_cast import null_of, to_double, wrap_integer
from penstock.planner.scalar_sql import let, quote_text
from penstock.planner.user_functions import bound_function
from penstock.sql.statements import Duration
from penstock.sql.types import BIGINT, DOUBLE, INTEGERS, UNITS_PER_SECOND, DataType, Kind, Precision

ROW_KEY: tuple[str, ...] = ("_tuid",)
_DOUBLE_MAX = 1.7976931348623157e308


def aggregate_sql(
    name: str,
    args: list[SqlExpr],
    ts: str,
    node: exp.Expression | None = None,
    *,
    precision: Precision = "ms",
    row_key: tuple[str, ...] = ROW_KEY,
    position: Position | None = None,
) -> SqlExpr:
    """Returns the DuckDB aggregate for a call of the dialect.

    `args` are compiled; no arguments, or one whose SQL is `*`, is `count(*)`. `ts` is SQL of the primary timestamp
    (BIGINT, units of `precision`). `row_key` orders rows of equal time: the table's id, then, for composite primary
    keys, the key column. `node` is the call, which may be bound to a user's function. `histogram` gives a list of
    texts to unnest. Raises InvalidStatementError for arguments that do not fit; InternalError for functions that are
    not computed per group (diff, top, ...).
    """
    bound = bound_function(node)
    if bound is not None:
        return bound.aggregate(args, ", ".join((ts, *row_key)), precision, position)
    spec = lookup(name)
    if spec is None:
        raise InternalError(f"{name} is no aggregate function")
    if name == "count" and (not args or args[0].sql == "*"):
        return SqlExpr("count(*)", BIGINT)
    result = check_call(spec, [arg.type for arg in args], [arg.constant for arg in args], precision=precision,
                        position=position)
    if args[0].type.kind is Kind.NULL and name not in ("count", "hyperloglog"):
        return SqlExpr(f"max({render(null_of(result))})", result)
    builder = _BUILDERS.get(name)
    if builder is None:
        raise InternalError(f"{name} is not computed per group")
    return SqlExpr(builder(_Aggregate(name, args, ts, result, precision, row_key, position)), result)


def companion_sql(
    name: str,
    selected: SqlExpr,
    companion: SqlExpr,
    ts: str,
    *,
    row_key: tuple[str, ...] = ROW_KEY,
) -> SqlExpr:
    """Returns a plain column's value from the row that min, max, first, last or last_row picks by `selected`."""
    by_value = selected.sql if name in ("min", "max") else None
    function = "arg_min_null" if name in ("min", "first") else "arg_max_null"
    rank = row_rank(ts, row_key, ascending=name in ("min", "first"), value=by_value)
    condition = "" if name == "last_row" else f" FILTER (WHERE {selected.sql} IS NOT NULL)"
    return SqlExpr(f"{function}({companion.sql}, {rank}){condition}", companion.type)


def rows_by_value(selected: SqlExpr, companion: SqlExpr, ts: str, row_key: tuple[str, ...] = ROW_KEY) -> str:
    """Returns an aggregate: the list of STRUCT(v, c), value and companion of all rows with a value, by time."""
    return _listed(f"{{'v': {selected.sql}, 'c': {companion.sql}}}", selected, ts, row_key)


def row_rank(ts: str, row_key: tuple[str, ...], *, ascending: bool, value: str | None = None) -> str:
    """Returns SQL that is least (`ascending`) or greatest for the row to pick.

    By `value` if given, then by time, then by the lowest table id. Equal values go to the earliest row. Without a
    value the oldest or the newest row is picked, by the key column among rows of equal time.
    """
    table, key = row_key[:1], row_key[1:]
    if value is not None:
        parts = [value, ts, *(f"CAST({part} AS HUGEINT)" for part in table)]
        if not ascending:
            parts = [value, *(f"-({part})" for part in parts[1:])]
        # Ties of value and time within a table exist only with a composite key; the greater one is as good.
        return f"ROW({', '.join([*parts, *key])})"
    if not table:
        return ts
    sign = "+" if ascending else "-"
    if not key:
        # One wide integer instead of a struct: DuckDB picks by it three times as fast.
        return f"(CAST({ts} AS HUGEINT) * 18446744073709551616 {sign} {table[0]})"
    return f"ROW({ts}, {', '.join(key)}, {'' if ascending else '-'}CAST({table[0]} AS HUGEINT))"


class _Aggregate:
    """One checked call."""

    def __init__(self, name: str, args: list[SqlExpr], ts: str, result: DataType, precision: Precision,
                 row_key: tuple[str, ...], position: Position | None) -> None:
        self.name = name
        self.args = args
        self.ts = ts
        self.result = result
        self.precision = precision
        self.row_key = row_key
        self.position = position

    @property
    def value(self) -> str:
        return self.args[0].sql

    @property
    def double(self) -> str:
        return SqlExpr(to_double(self.args[0]), DOUBLE).sql

    def number(self, index: int, otherwise: float) -> float:
        constant = self.args[index].constant if index < len(self.args) else None
        return float(constant) if isinstance(constant, int | float) else otherwise

    def wrong(self, text: str) -> InvalidStatementError:
        return InvalidStatementError(f"{self.name}(): {text}", code=WRONG_ARGUMENT_VALUE, position=self.position)


def _sum(call: _Aggregate) -> str:
    kind = call.args[0].type.kind
    if kind in INTEGERS:
        # 64-bit sums wrap around as a machine's do; the narrower ones cannot get that far.
        if kind in (Kind.BIGINT, Kind.UBIGINT):
            return render(wrap_integer(parse_tree(f"sum({call.value})"), call.result.kind))
        return f"CAST(sum({call.value}) AS {call.result.duckdb()})"
    return f"sum({call.double})" if kind is not Kind.DECIMAL else f"sum({call.value})"


def _moments(function: str) -> Callable[[_Aggregate], str]:
    return lambda call: f"{function}({call.double})"


def _spread(call: _Aggregate) -> str:
    low, high = f"min({call.value})", f"max({call.value})"
    return f"(CAST({high} AS DOUBLE) - CAST({low} AS DOUBLE))"


def _extreme(call: _Aggregate) -> str:
    return f"{call.name}({call.value})"


def _first_or_last(call: _Aggregate) -> str:
    ascending = call.name == "first"
    rank = row_rank(call.ts, call.row_key, ascending=ascending)
    function = {"first": "arg_min", "last": "arg_max", "last_row": "arg_max_null"}[call.name]
    return f"{function}({call.value}, {rank})"


def _quantile(call: _Aggregate, index: int) -> str:
    return f"quantile_cont({call.double}, {call.number(index, 0) / 100!r})"


def _percentile(call: _Aggregate) -> str:
    if len(call.args) == 2:
        return _quantile(call, 1)
    texts = [f"printf('%.6f', {_quantile(call, index)})" for index in range(1, len(call.args))]
    return "('[' || " + " || ', ' || ".join(texts) + " || ']')"


def _mode(call: _Aggregate) -> str:
    # The histogram's keys are sorted, so that the least of several most frequent values is found first.
    counts = f"histogram({call.value})"
    return let(counts, lambda m: f"map_keys({m})[list_position(map_values({m}), list_max(map_values({m})))]")


def _elapsed(call: _Aggregate) -> str:
    length = 1
    unit = call.args[1].constant if len(call.args) > 1 else None
    if isinstance(unit, Duration):
        length = unit.in_units(call.precision) if not unit.is_calendar else 0
        if length <= 0:
            raise call.wrong(f"the unit {unit} is not possible with precision {call.precision}")
    return f"(CAST(max({call.value}) - min({call.value}) AS DOUBLE) / {length})"


def points_sql(value: SqlExpr, ts: str, row_key: tuple[str, ...] = ROW_KEY) -> str:
    """Returns an aggregate: the list of STRUCT(t BIGINT, v DOUBLE) of all values that are not NULL, by time."""
    return _listed(f"{{'t': {ts}, 'v': {SqlExpr(to_double(value), DOUBLE).sql}}}", value, ts, row_key)


def _listed(item: str, value: SqlExpr, ts: str, row_key: tuple[str, ...]) -> str:
    return f"list({item} ORDER BY {', '.join((ts, *row_key))}) FILTER (WHERE {value.sql} IS NOT NULL)"


def time_weighted_average(points: str) -> str:
    """Returns SQL of the time-weighted average over a list as `points_sql` gives it; one point is its own average.

    Windows that interpolate at their borders add those points to the list first.
    """
    return let(points, lambda p: (
        f"CASE WHEN len({p}) = 0 THEN NULL WHEN {p}[-1].t = {p}[1].t THEN {p}[1].v ELSE "
        f"list_sum(list_transform(range(1, len({p})), lambda i: "
        f"({p}[i].v + {p}[i + 1].v) / 2 * ({p}[i + 1].t - {p}[i].t))) / ({p}[-1].t - {p}[1].t) END"))


def _twa(call: _Aggregate) -> str:
    return time_weighted_average(points_sql(call.args[0], call.ts, call.row_key))


def _irate(call: _Aggregate) -> str:
    last_two = (f"arg_max({{'t': {call.ts}, 'v': {call.double}}}, {call.ts}, 2) "
                f"FILTER (WHERE {call.value} IS NOT NULL)")
    per_second = UNITS_PER_SECOND[call.precision]
    return let(last_two, lambda p: (
        f"CASE WHEN len({p}) = 0 THEN NULL WHEN len({p}) = 1 OR {p}[1].t = {p}[2].t THEN 0e0 ELSE "
        f"(CASE WHEN {p}[1].v >= {p}[2].v THEN {p}[1].v - {p}[2].v ELSE {p}[1].v END) "
        f"* {per_second}e0 / ({p}[1].t - {p}[2].t) END"))


def _leastsquares(call: _Aggregate) -> str:
    start, step = call.number(1, 1.0), call.number(2, 1.0)
    values = _listed(call.double, call.args[0], call.ts, call.row_key)

    def line(y: str) -> str:
        n = f"CAST(len({y}) AS DOUBLE)"
        # Sums over positions 0..n-1 have closed forms; the axis start + position * step is applied to the result.
        sum_xy = f"list_sum(list_transform({y}, lambda item, i: item * (i - 1)))"
        sum_x, sum_xx = f"({n} * ({n} - 1) / 2)", f"({n} * ({n} - 1) * (2 * {n} - 1) / 6)"
        per_position = f"(({n} * {sum_xy} - {sum_x} * list_sum({y})) / ({n} * {sum_xx} - {sum_x} * {sum_x}))"
        mean_x = f"({start!r} + {step!r} * ({n} - 1) / 2)"
        return let(f"({per_position} / {step!r})", lambda slope: (
            f"printf('{{slop:%.6f, intercept:%.6f}}', {slope}, list_sum({y}) / {n} - {slope} * {mean_x})"))

    # One point, or points that do not advance, have no line: TDengine prints that as nan.
    at_least = 2 if step != 0 else 1 << 62
    return let(values, lambda y: (
        f"CASE WHEN len({y}) >= {at_least} THEN {line(y)} WHEN len({y}) > 0 THEN '{{slop:nan, intercept:nan}}' END"))


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


def _histogram(call: _Aggregate) -> str:
    bin_type, description = call.args[1].constant, call.args[2].constant
    assert isinstance(bin_type, str)
    assert isinstance(description, str)
    try:
        bins = histogram_bins(bin_type.lower(), description)
    except (ValueError, OverflowError) as error:
        raise call.wrong(f"{description!r} describes no bins: {error}") from error
    normalized = call.args[3].constant == 1
    inside = f"count(*) FILTER (WHERE {call.double} > {bins[0][0]!r} AND {call.double} <= {bins[-1][1]!r})"
    rows = []
    for low, high in bins:
        count = f"count(*) FILTER (WHERE {call.double} > {low!r} AND {call.double} <= {high!r})"
        shown = f"printf('%f', COALESCE(CAST({count} AS DOUBLE) / NULLIF({inside}, 0), 0))" if normalized else \
            f"CAST({count} AS VARCHAR)"
        head = quote_text(f'{{"lower_bin":{low:g}, "upper_bin":{high:g}, "count":')
        rows.append(f"{head} || {shown} || '}}'")
    return f"[{', '.join(rows)}]"


_BUILDERS: dict[str, Callable[[_Aggregate], str]] = {
    "count": lambda call: f"count({call.value})",
    "sum": _sum,
    "avg": _moments("avg"),
    "stddev": _moments("stddev_pop"),
    "stddev_pop": _moments("stddev_pop"),
    "var_pop": _moments("var_pop"),
    "spread": _spread,
    "min": _extreme,
    "max": _extreme,
    "first": _first_or_last,
    "last": _first_or_last,
    "last_row": _first_or_last,
    "mode": _mode,
    "percentile": _percentile,
    "apercentile": lambda call: _quantile(call, 1),
    "hyperloglog": lambda call: f"count(DISTINCT {call.value})",
    "histogram": _histogram,
    "leastsquares": _leastsquares,
    "elapsed": _elapsed,
    "twa": _twa,
    "irate": _irate,
}
