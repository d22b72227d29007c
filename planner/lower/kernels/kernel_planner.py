"""Derives kernels from DuckDB expressions: what is simple enough becomes an `Expr` of the same meaning, the rest None.

The expression stays the definition. Only what NumPy computes as DuckDB does is translated: types must match without
DuckDB's implicit casts, and integer arithmetic is limited to what cannot overflow unseen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from sqlglot import exp

from penstock.planner.duckdb_sql.duckdb_tree import called
from penstock.planner.duckdb_sql.interval_windows import EVER_START, Grid
from penstock.planner.functions.partials import Partial, PartialColumn
from penstock.planner.task_plans.kernel_spec import Expr, FieldKernel, Panes, PickKernel, SourceKernel, ValueKeys
from penstock.sql.tree.walking import found_in, parts_of
from penstock.sql.types import FLOATS, INTEGERS, SIGNED, STRINGS, UNSIGNED, Kind

Types = Mapping[str, Kind]

MAX_NODES = 4_000
MAX_DEPTH = 64

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
    """The expression is for DuckDB alone."""


def expression_kernel(tree: exp.Expression, types: Types) -> Expr | None:
    """Returns an expression as a kernel's, or None. `types`: of the columns that it may read."""
    try:
        return _expression(_bounded(tree), types)
    except _TooComplex:
        return None


def expression_kernels(trees: Iterable[exp.Expression], types: Types) -> tuple[Expr, ...] | None:
    """Returns all of the expressions as kernels', or None if one of them isn't simple."""
    try:
        return tuple(_expression(_bounded(tree), types) for tree in trees)
    except _TooComplex:
        return None


def source_kernel(
    *, condition: exp.Expression | None, groups_sql: str | None, partials: Iterable[Partial],
    projections: Iterable[exp.Expression], marks: Sequence[tuple[exp.Expression, str]],
    mark_condition: exp.Expression | None, panes: Panes | None, types: Types, values: ValueKeys | None = None,
) -> SourceKernel | None:
    """Returns the kernel of a source task, or None. `marks` are expressions with their names."""
    try:
        named = {name: _expression(_bounded(tree), types) for tree, name in marks}
        marked = {**types, **{name: mark.type for name, mark in named.items()}}
        return SourceKernel(
            None if condition is None else _boolean(_bounded(condition), types), groups_sql, panes,
            tuple(kernel for partial in partials for part in partial.parts for kernel in _aggregates(part, marked)),
            tuple(_expression(_bounded(tree), types) for tree in projections), tuple(named.items()),
            None if mark_condition is None else _boolean(_bounded(mark_condition), marked), values)
    except _TooComplex:
        return None


def panes_of(grid: Grid) -> Panes | None:
    """Returns the panes of a grid if it knows neither months nor local time, else None."""
    if grid.endless:
        return Panes(EVER_START, 0, 0, 0)
    if grid.zone is not None or grid.step_months or grid.width_months or grid.offset_months:
        return None
    return Panes(grid.offset, grid.step, grid.width, math.gcd(grid.width, grid.step))


def _bounded(tree: exp.Expression) -> exp.Expression:
    """Returns the tree if it has at most MAX_DEPTH levels and MAX_NODES nodes: what comes of it calls itself over
    them, and what is long takes NumPy longer than DuckDB."""
    level, nodes = [tree], 1
    for _ in range(MAX_DEPTH):
        level = [child for node in level if not node.is_primitive for child in parts_of(node)]
        if not level:
            return tree
        nodes += len(level)
        _need(nodes <= MAX_NODES)
    raise _TooComplex


def _need(condition: bool) -> None:
    if not condition:
        raise _TooComplex


# --- aggregates -------------------------------------------------------------------------------------------------


def _aggregates(part: PartialColumn, types: Types) -> list[FieldKernel | PickKernel]:
    if part.choice is not None:
        return [_pick(part, types)]
    _need(part.accumulator.kind != "udaf")
    if part.accumulator.kind == "wide_add":
        # Sums of rows that leave 64 bits are for DuckDB: what a kernel gives stays in them.
        added = next(node for node in found_in(part.columns[0], exp.Anonymous) if called(node) == "sum")
        total = _field(_bounded(added), part.accumulator.fields[0].type.kind, types)
        return [total, FieldKernel("zero", total.value)]
    return [_field(_bounded(column), field.type.kind, types)
            for column, field in zip(part.columns, part.accumulator.fields, strict=True)]


def _field(node: exp.Expression, result: Kind, types: Types) -> FieldKernel:
    node = node.unnest()
    if type(node) is exp.Cast:
        _need(_CASTS.get(node.to.this) in (Kind.BIGINT, Kind.UBIGINT, Kind.DOUBLE))
        node = node.this.unnest()
    if isinstance(node, exp.Filter):
        _need(_counts_rows(node.this))
        # Only rows where the condition holds count: NULL is what is left out.
        return FieldKernel("count", _only_true(_boolean(node.expression.this, types)))
    if _counts_rows(node):
        return FieldKernel("rows")
    if isinstance(node, exp.Mul):
        return _deviations(node, types)
    name, arguments = called(node), node.expressions
    _need(name in ("count", "sum", "min", "max", "avg") and len(arguments) == 1)
    value = _expression(arguments[0], types)
    match name:
        case "count":
            return FieldKernel("count", value)
        case "sum":
            _need(value.type in _SUMMABLE and result in (Kind.BIGINT, Kind.UBIGINT, Kind.DOUBLE))
            _need((value.type in FLOATS) == (result is Kind.DOUBLE))
            return FieldKernel("sum", value)
        case "avg":
            _need(value.type is Kind.DOUBLE)
            return FieldKernel("mean", value)
    _need(value.type in (*INTEGERS, *FLOATS, Kind.TIMESTAMP) and _same(value.type, result))
    return FieldKernel("min" if name == "min" else "max", value)


def _counts_rows(node: exp.Expression) -> bool:
    return called(node) == "count" and len(node.expressions) == 1 and isinstance(node.expressions[0], exp.Star)


def _deviations(node: exp.Mul, types: Types) -> FieldKernel:
    """The variance times the count of the same value."""
    variance, count = node.this, node.expression
    _need(called(variance) == "var_pop" and called(count) == "count")
    value, counted = (_expression(one.expressions[0], types) for one in (variance, count))
    _need(value.type is Kind.DOUBLE and counted in (value, *value.args))
    return FieldKernel("deviations", value)


def _pick(part: PartialColumn, types: Types) -> PickKernel:
    assert part.choice is not None
    present = part.choice.present
    fields = tuple(_expression(_bounded(column), types) for column in part.columns)
    for place, _ in part.accumulator.order:
        # NaN has a place among the numbers in DuckDB that it does not have in NumPy; texts are not compared here.
        _need(fields[place].type in (*INTEGERS, Kind.TIMESTAMP))
    return PickKernel(fields, part.accumulator.order,
                      None if present is None else _expression(_bounded(present), types))


# --- expressions ------------------------------------------------------------------------------------------------


def _boolean(node: exp.Expression, types: Types) -> Expr:
    found = _expression(node, types)
    _need(found.type is Kind.BOOL)
    return found


def _expression(node: exp.Expression, types: Types) -> Expr:
    match node:
        case exp.Column():
            name = node.name
            _need(not node.table and name in types)
            return Expr("column", _plain(types[name]), value=name)
        case exp.Literal():
            return _literal(node)
        case exp.Cast():
            return _cast(node, types)
        case exp.Anonymous():
            return _call(node, types)
        case exp.Paren():
            return _expression(node.this, types)
        case exp.Boolean():
            return Expr("constant", Kind.BOOL, value=bool(node.this))
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
    raise _TooComplex


def _call(node: exp.Anonymous, types: Types) -> Expr:
    name, arguments = called(node), node.expressions
    if name == "try":
        return _expression(arguments[0], types)  # no value is too much for a kernel: it leaves such to DuckDB
    if name == "left" and len(arguments) == 2:
        value, length = _expression(arguments[0], types), _literal(arguments[1])
        _need(value.type is Kind.VARCHAR and isinstance(length.value, int))
        return Expr("left", Kind.VARCHAR, (value,), length.value)
    if name == "coalesce" and len(arguments) == 2:
        return Expr("coalesce", Kind.BOOL, tuple(_boolean(argument, types) for argument in arguments))
    if name == "sqrt" and len(arguments) == 1:
        value = _expression(arguments[0], types)
        _need(value.type is Kind.DOUBLE)
        return Expr("sqrt", Kind.DOUBLE, (value,))
    _need(name in ("greatest", "nullif") and len(arguments) == 2)
    value, other = _expression(arguments[0], types), _as_double(_expression(arguments[1], types))
    _need(value.type is Kind.DOUBLE and other.type is Kind.DOUBLE)
    if name == "nullif":
        _need(other.op == "constant")
        return Expr("nullif", Kind.DOUBLE, (value, other))
    return Expr("greatest", Kind.DOUBLE, (value, other))


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
