"""Derives kernels from compiled SQL: what is simple enough becomes an `Expr` of the same meaning, the rest None.

The SQL stays the definition. Only what NumPy computes as DuckDB does is translated: types must match without DuckDB's
implicit casts, and integer arithmetic is limited to what cannot overflow unseen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from penstock.planner.kernel_spec import Expr, FieldKernel, Panes, PickKernel, SourceKernel
from penstock.planner.partials import Partial
from penstock.planner.stream import Accumulator
from penstock.planner.windows import grid_of
from penstock.sql.statements import IntervalWindow
from penstock.sql.types import FLOATS, INTEGERS, SIGNED, STRINGS, UNSIGNED, Kind, Precision

Types = Mapping[str, Kind]

MAX_TEXT = 20_000
MAX_NESTING = 20
MAX_DEPTH = 64
_BRACKETS = re.compile(r"[()\[\]{}]|\bCASE |\bEND\b")

_CASTS: dict[exp.DataType.Type, Kind] = {
    exp.DataType.Type.DOUBLE: Kind.DOUBLE, exp.DataType.Type.FLOAT: Kind.FLOAT, exp.DataType.Type.BIGINT: Kind.BIGINT,
    exp.DataType.Type.INT: Kind.INT, exp.DataType.Type.SMALLINT: Kind.SMALLINT,
    exp.DataType.Type.TINYINT: Kind.TINYINT, exp.DataType.Type.UBIGINT: Kind.UBIGINT,
    exp.DataType.Type.UINT: Kind.UINT, exp.DataType.Type.USMALLINT: Kind.USMALLINT,
    exp.DataType.Type.UTINYINT: Kind.UTINYINT, exp.DataType.Type.BOOLEAN: Kind.BOOL,
    exp.DataType.Type.TEXT: Kind.VARCHAR, exp.DataType.Type.VARCHAR: Kind.VARCHAR,
}
_COMPARISONS: dict[type[exp.Expression], str] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
}
_ARITHMETIC: dict[type[exp.Expression], str] = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*", exp.Div: "/"}
_SUMMABLE = (*SIGNED, Kind.UTINYINT, Kind.USMALLINT, Kind.UINT, *FLOATS)
_COMPARABLE = (*SIGNED, Kind.UTINYINT, Kind.USMALLINT, Kind.UINT, *FLOATS)
_BITS = {Kind.TINYINT: 8, Kind.SMALLINT: 16, Kind.INT: 32, Kind.BIGINT: 64,
         Kind.UTINYINT: 8, Kind.USMALLINT: 16, Kind.UINT: 32, Kind.UBIGINT: 64}


class _TooComplex(Exception):
    """The SQL is for DuckDB alone."""


def expression_kernel(sql: str, types: Types) -> Expr | None:
    """Returns compiled SQL as a kernel's expression, or None. `types`: of the columns that it may read."""
    try:
        return _expression(_parse(sql), types)
    except _TooComplex:
        return None


def expression_kernels(texts: Iterable[str], types: Types) -> tuple[Expr, ...] | None:
    """Returns all of the texts as expressions, or None if one of them isn't simple."""
    try:
        return tuple(_expression(_parse(sql), types) for sql in texts)
    except _TooComplex:
        return None


def source_kernel(
    *, condition: str | None, groups_sql: str | None, partials: Iterable[Partial], projections: Sequence[str],
    marks: Sequence[tuple[str, str]], mark_condition: str | None, panes: Panes | None, types: Types,
) -> SourceKernel | None:
    """Returns the kernel of a source task, or None. `marks` are (SQL, name); the other texts are compiled SQL."""
    try:
        named = {name: _expression(_parse(sql), types) for sql, name in marks}
        marked = {**types, **{name: mark.type for name, mark in named.items()}}
        return SourceKernel(
            None if condition is None else _boolean(_parse(condition), types), groups_sql, panes,
            tuple(kernel for partial in partials for kernel in _aggregate(partial, marked)),
            tuple(_expression(_parse(sql), types) for sql in projections), tuple(named.items()),
            None if mark_condition is None else _boolean(_parse(mark_condition), marked))
    except _TooComplex:
        return None


def panes_of(window: IntervalWindow, precision: Precision, time_zone: str) -> Panes | None:
    """Returns the panes of a window if its grid knows neither months nor local time, else None."""
    grid = grid_of(window, precision, time_zone)
    if grid.zone is not None or grid.step_months or grid.width_months or grid.offset_months:
        return None
    return Panes(grid.offset, grid.step, grid.width, math.gcd(grid.width, grid.step))


def columns_of(sql: str) -> set[str] | None:
    """Returns the names of the columns that compiled SQL reads, or None where it isn't simple enough to be looked at.
    """
    try:
        return {column.name for column in _parse(sql).find_all(exp.Column)}
    except _TooComplex:
        return None


def _parse(sql: str) -> exp.Expression:
    """Returns the SQL as a tree of at most MAX_DEPTH levels: sqlglot, and what comes of its trees, calls itself over
    them, and what is long takes NumPy longer than DuckDB."""
    _need(len(sql) <= MAX_TEXT and _nesting(sql) <= MAX_NESTING)
    try:
        parsed = sqlglot.parse_one(sql, read="duckdb")
    except SqlglotError as error:
        raise _TooComplex from error
    level = [parsed]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in node.iter_expressions()]
        if not level:
            return parsed
    raise _TooComplex


def _nesting(sql: str) -> int:
    """Returns how deep brackets and CASE are nested in the SQL; those in texts count as well."""
    deepest = depth = 0
    for bracket in _BRACKETS.findall(sql):
        depth += 1 if bracket in ("(", "[", "{", "CASE ") else -1
        deepest = max(deepest, depth)
    return deepest


def _need(condition: bool) -> None:
    if not condition:
        raise _TooComplex


# --- aggregates -------------------------------------------------------------------------------------------------


def _aggregate(partial: Partial, types: Types) -> list[FieldKernel | PickKernel]:
    if partial.struct is not None:
        return [_pick(_parse(partial.struct), partial.accumulators[0], types)]
    fields = [field for accumulator in partial.accumulators for field in accumulator.fields]
    _need(all(accumulator.kind != "udaf" for accumulator in partial.accumulators))
    return [_field(_parse(sql), field.type.kind, types) for sql, field in zip(partial.columns, fields, strict=True)]


def _field(node: exp.Expression, result: Kind, types: Types) -> FieldKernel:
    node = node.unnest()
    if isinstance(node, exp.Cast) and not isinstance(node, exp.TryCast):
        _need(_CASTS.get(node.to.this) in (Kind.BIGINT, Kind.UBIGINT, Kind.DOUBLE))
        node = node.this.unnest()
    match node:
        case exp.Count() if isinstance(node.this, exp.Star):
            return FieldKernel("rows")
        case exp.Count():
            _need(not node.expressions)
            return FieldKernel("count", _expression(node.this, types))
        case exp.Filter(this=exp.Count(this=exp.Star())):
            # Only rows where the condition holds count: NULL is what is left out.
            return FieldKernel("count", _only_true(_boolean(node.expression.this, types)))
        case exp.Sum():
            value = _expression(node.this, types)
            _need(value.type in _SUMMABLE and result in (Kind.BIGINT, Kind.UBIGINT, Kind.DOUBLE))
            _need((value.type in FLOATS) == (result is Kind.DOUBLE))
            return FieldKernel("sum", value)
        case exp.Min() | exp.Max():
            _need(not node.expressions)
            value = _expression(node.this, types)
            _need(value.type in (*INTEGERS, *FLOATS, Kind.TIMESTAMP) and _same(value.type, result))
            return FieldKernel("min" if isinstance(node, exp.Min) else "max", value)
        case exp.Avg():
            value = _expression(node.this, types)
            _need(value.type is Kind.DOUBLE)
            return FieldKernel("mean", value)
        case exp.Mul(this=exp.VariancePop() as variance, expression=exp.Count() as count):
            value = _expression(variance.this, types)
            counted = _expression(count.this, types)
            _need(value.type is Kind.DOUBLE and counted in (value, *value.args))
            return FieldKernel("deviations", value)
    raise _TooComplex


def _pick(node: exp.Expression, accumulator: Accumulator, types: Types) -> PickKernel:
    present: Expr | None = None
    if isinstance(node, exp.Filter):
        condition = node.expression.this.unnest()
        _need(isinstance(condition, exp.Not) and isinstance(condition.this.unnest(), exp.Is))
        inner = condition.this.unnest()
        _need(isinstance(inner.expression, exp.Null))
        present = _expression(inner.this, types)
        node = node.this
    _need(isinstance(node, (exp.ArgMin, exp.ArgMax)) and isinstance(node.this, exp.Struct))
    members = [member.expression for member in node.this.expressions]
    fields = tuple(_expression(member, types) for member in members)
    _need(len(fields) == len(accumulator.fields))
    for place, _ in accumulator.order:
        # NaN has a place among the numbers in DuckDB that it does not have in NumPy; texts are not compared here.
        _need(fields[place].type in (*INTEGERS, Kind.TIMESTAMP))
    return PickKernel(fields, accumulator.order, present)


# --- expressions ------------------------------------------------------------------------------------------------


def _boolean(node: exp.Expression, types: Types) -> Expr:
    found = _expression(node, types)
    _need(found.type is Kind.BOOL)
    return found


def _expression(node: exp.Expression, types: Types) -> Expr:
    match node:
        case exp.Paren():
            return _expression(node.this, types)
        case exp.Column():
            _need(not node.table and node.name in types)
            return Expr("column", _plain(types[node.name]), value=node.name)
        case exp.Literal():
            return _literal(node)
        case exp.Boolean():
            return Expr("constant", Kind.BOOL, value=bool(node.this))
        case exp.Cast():
            return _cast(node, types)
        case exp.Neg():
            value = _expression(node.this, types)
            if value.op == "constant" and isinstance(value.value, int | float) and value.type is not Kind.BOOL:
                return Expr("constant", value.type, value=-value.value)
            _need(value.type is Kind.DOUBLE)
            return Expr("neg", Kind.DOUBLE, (value,))
        case exp.Add() | exp.Sub() | exp.Mul() | exp.Div():
            return _arithmetic(node, types)
        case exp.EQ() | exp.NEQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE():
            return _comparison(_COMPARISONS[type(node)], _expression(node.this, types),
                               _expression(node.expression, types))
        case exp.Between():
            value = _expression(node.this, types)
            _need(not node.args.get("symmetric"))
            return Expr("and", Kind.BOOL, (
                _comparison(">=", value, _expression(node.args["low"], types)),
                _comparison("<=", value, _expression(node.args["high"], types))))
        case exp.In():
            _need(bool(node.expressions) and not node.args.get("query"))
            value = _expression(node.this, types)
            tests = [_comparison("=", value, _expression(item, types)) for item in node.expressions]
            return tests[0] if len(tests) == 1 else Expr("or", Kind.BOOL, tuple(tests))
        case exp.And() | exp.Or():
            return Expr("and" if isinstance(node, exp.And) else "or", Kind.BOOL,
                        (_boolean(node.this, types), _boolean(node.expression, types)))
        case exp.Not():
            return Expr("not", Kind.BOOL, (_boolean(node.this, types),))
        case exp.Is():
            _need(isinstance(node.expression, exp.Null))
            return Expr("null", Kind.BOOL, (_expression(node.this, types),))
        case exp.Case():
            return _case(node, types)
        case exp.Sqrt():
            value = _expression(node.this, types)
            _need(value.type is Kind.DOUBLE)
            return Expr("sqrt", Kind.DOUBLE, (value,))
        case exp.Greatest():
            _need(len(node.expressions) == 1)
            pair = [_expression(node.this, types), _as_double(_expression(node.expressions[0], types))]
            _need(all(side.type is Kind.DOUBLE for side in pair))
            return Expr("greatest", Kind.DOUBLE, tuple(pair))
        case exp.Nullif():
            value, other = _expression(node.this, types), _as_double(_expression(node.expression, types))
            _need(value.type is Kind.DOUBLE and other.type is Kind.DOUBLE and other.op == "constant")
            return Expr("nullif", Kind.DOUBLE, (value, other))
        case exp.Coalesce():
            _need(len(node.expressions) == 1)
            value, other = _boolean(node.this, types), _boolean(node.expressions[0], types)
            return Expr("coalesce", Kind.BOOL, (value, other))
        case exp.Left():
            value, length = _expression(node.this, types), _literal(node.expression)
            _need(value.type is Kind.VARCHAR and isinstance(length.value, int))
            return Expr("left", Kind.VARCHAR, (value,), length.value)
    raise _TooComplex


def _literal(node: exp.Expression) -> Expr:
    _need(isinstance(node, exp.Literal))
    text = str(node.this)
    if node.is_string:
        return Expr("constant", Kind.VARCHAR, value=text)
    if "e" in text.lower():
        return Expr("constant", Kind.DOUBLE, value=float(text))
    _need(text.isdigit() and int(text) < 1 << 63)  # with a point it would be a DECIMAL
    return Expr("constant", Kind.BIGINT, value=int(text))


def _cast(node: exp.Cast, types: Types) -> Expr:
    target = _CASTS.get(node.to.this)
    _need(target is not None and not node.to.expressions and not isinstance(node.this, exp.Null))
    assert target is not None
    value = _expression(node.this, types)
    if value.op == "constant" and isinstance(value.value, str) and target is Kind.DOUBLE:
        _need(value.value in ("inf", "-inf", "nan"))
        return Expr("constant", Kind.DOUBLE, value=float(value.value))
    if _same(value.type, target):
        return value
    if target is Kind.DOUBLE:
        _need(value.type in (*INTEGERS, Kind.FLOAT, Kind.BOOL))
        return _as_double(value)
    if target is Kind.FLOAT and value.op == "constant" and isinstance(value.value, int | float):
        return Expr("constant", Kind.FLOAT, value=float(np.float32(value.value)))
    _need(value.type in INTEGERS and target in INTEGERS)
    if value.op == "constant":
        assert isinstance(value.value, int)
        _need(_holds(target, value.value))
        return Expr("constant", target, value=value.value)
    wider = _BITS[value.type] < _BITS[target] and (target in SIGNED or value.type in UNSIGNED)
    _need(wider)
    return Expr("cast", target, (value,))


def _as_double(value: Expr) -> Expr:
    if value.type is Kind.DOUBLE:
        return value
    if value.op == "constant" and isinstance(value.value, int | float):
        return Expr("constant", Kind.DOUBLE, value=float(value.value))
    return Expr("cast", Kind.DOUBLE, (value,))


def _arithmetic(node: exp.Binary, types: Types) -> Expr:
    left, right = _expression(node.this, types), _expression(node.expression, types)
    operator = _ARITHMETIC[type(node)]
    if operator == "/":
        # DuckDB divides integers as DOUBLE too.
        _need(all(side.type is Kind.DOUBLE or side.type in INTEGERS for side in (left, right)))
        return Expr("/", Kind.DOUBLE, (_as_double(left), _as_double(right)))
    if left.type is Kind.DOUBLE and right.type is Kind.DOUBLE:
        return Expr(operator, Kind.DOUBLE, (left, right))
    _need(operator in "+-" and left.type is Kind.BIGINT and right.type is Kind.BIGINT)
    return Expr(operator, Kind.BIGINT, (left, right))


def _comparison(operator: str, left: Expr, right: Expr) -> Expr:
    if left.type is Kind.VARCHAR and right.type is Kind.VARCHAR:
        _need(operator in ("=", "<>"))
    else:
        kinds = {left.type, right.type}
        _need(kinds <= set(_COMPARABLE) and (len(kinds) == 1 or kinds <= set(INTEGERS)))
    return Expr(operator, Kind.BOOL, (left, right))


def _case(node: exp.Case, types: Types) -> Expr:
    _need(node.this is None)
    args: list[Expr] = []
    for branch in node.args["ifs"]:
        args += [_boolean(branch.this, types), _expression(branch.args["true"], types)]
    if node.args.get("default") is not None:
        args.append(_expression(node.args["default"], types))
    kinds = {value.type for value in [*args[1::2], *(args[-1:] if len(args) % 2 else [])]}
    _need(len(kinds) == 1 and not kinds & {Kind.VARCHAR})
    return Expr("case", kinds.pop(), tuple(args))


def _only_true(condition: Expr) -> Expr:
    return Expr("case", Kind.BOOL, (condition, condition))


def _plain(kind: Kind) -> Kind:
    """TIMESTAMP is BIGINT in compiled SQL, and all texts are VARCHAR."""
    if kind is Kind.TIMESTAMP:
        return Kind.BIGINT
    return Kind.VARCHAR if kind in STRINGS else kind


def _same(kind: Kind, other: Kind) -> bool:
    return _plain(kind) is _plain(other)


def _holds(kind: Kind, value: int) -> bool:
    bits = _BITS[kind]
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind in SIGNED else (0, (1 << bits) - 1)
    return low <= value <= high
