"""Compiles scalar expressions of the dialect to typed trees of DuckDB SQL; names and aggregates are the caller's."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import partial, reduce
from math import isfinite
from operator import add, mul, sub
from typing import Any

from sqlglot import exp

from penstock.common.errors import InvalidValueError, PenstockError
from penstock.planner.bind.scope_protocol import Scope
from penstock.planner.bind.user_functions import bound_function
from penstock.planner.bind.value_compiler import ValueCompiler
from penstock.planner.duckdb_sql.duckdb_tree import (
    Tree,
    all_of,
    any_of,
    cast,
    closed,
    fragment,
    integer,
    made,
    parameter,
    select,
    text,
)
from penstock.planner.duckdb_sql.folding import evaluate
from penstock.planner.duckdb_sql.pieces import nested
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.duckdb_sql.timezones import add_months
from penstock.planner.functions import string
from penstock.planner.functions.duckdb_calls import meant
from penstock.planner.functions.lists import items_of
from penstock.planner.functions.table import require
from penstock.planner.scalar import arithmetic, scalar_json
from penstock.planner.scalar.common_type import brought_to, common_type
from penstock.planner.scalar.scalar_cast import cast as cast_expression
from penstock.planner.scalar.scalar_cast import checked_cast, null_of, timestamp_constant, to_integer
from penstock.planner.scalar.scalar_compare import Comparer, like, match
from penstock.sql.dialect.literals import parse_timestamp
from penstock.sql.tree.expression_nodes import (
    PSEUDO_COLUMNS,
    DurationLiteral,
    Given,
    IntervalLiteral,
    JsonContains,
    JsonGet,
    LambdaVariable,
    Match,
    TimestampLiteral,
    Trim,
    cast_type,
)
from penstock.sql.tree.statements import Duration, Query
from penstock.sql.types import (
    BIGINT,
    BOOL,
    DOUBLE,
    INTEGERS,
    NULL,
    STRINGS,
    UBIGINT,
    VARCHAR,
    DataType,
    Kind,
    Precision,
)

MAX_BIGINT = (1 << 63) - 1
MAX_UBIGINT = (1 << 64) - 1
WRONG_DURATION_UNIT = 0x2615

_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
_ARITHMETIC: dict[type[exp.Expression], Callable[[SqlExpr, SqlExpr], Tree]] = {
    exp.Add: arithmetic.add, exp.Sub: arithmetic.subtract, exp.Mul: arithmetic.multiply,
    exp.Div: arithmetic.divide, exp.Mod: arithmetic.remainder,
}
_EXACT: dict[type[exp.Expression], Callable[[Any, Any], Any]] = {
    exp.Add: add, exp.Sub: sub, exp.Mul: mul}
_SHORT_TEXT = DataType(Kind.VARCHAR, 64)
"""Long enough for a value that is no text."""
_BITS = (exp.BitwiseAnd, exp.BitwiseOr)
_OF_DUCKDB = (exp.IntDiv, exp.Pow, exp.BitwiseLeftShift, exp.BitwiseRightShift)
"""Operators that only DuckDB has rules for."""
_IN_ROWS = (*_ARITHMETIC, *_BITS, *_OF_DUCKDB)


def compile_expression(node: exp.Expression, scope: Scope) -> SqlExpr:
    """Returns the tree and the type of an expression. Raises PenstockErrors that say what is wrong where."""
    return _Compiler(scope).compile(node)


def condition_tree(node: exp.Expression, scope: Scope) -> Tree:
    """Returns a boolean tree for WHERE and its kin; NULL is not fulfilled. Raises as `compile_expression`,
    and for durations of months and years, which only the select list may add to a time.
    """
    return _Compiler(scope, calendar=False).condition(node)


class _Compiler(ValueCompiler):
    def __init__(self, scope: Scope, *, calendar: bool = True) -> None:
        super().__init__(scope)
        self._calendar = calendar
        self._comparer = Comparer(scope.precision, scope.session.time_zone)

    # --- entry points --------------------------------------------------------------

    def compile(self, node: exp.Expression) -> SqlExpr:
        method = _METHODS.get(type(node))
        if method is None:
            raise self._wrong(f"{type(node).__name__} is no scalar expression", node)
        try:
            return method(self, node)
        except PenstockError as error:
            self._place(error, node)
            raise

    def condition(self, node: exp.Expression) -> Tree:
        return self._as_condition(self.compile(node), node)

    def _place(self, error: PenstockError, node: exp.Expression) -> None:
        """Gives an error its place if it has none: only now, since finding it takes a look at the whole text."""
        if error.position is None:
            error.position = self._position(node)

    # --- constants and names -----------------------------------------------------------

    def _literal(self, node: exp.Literal) -> SqlExpr:
        given: str = node.this
        if node.is_string:
            return SqlExpr(lambda: text(given), DataType(Kind.VARCHAR, max(len(given.encode()), 1)), given)
        return self._number(given)

    def _number(self, written: str) -> SqlExpr:
        if not written.lstrip("-").isdigit():
            value = float(written)
            if value in (float("inf"), -float("inf")):
                return SqlExpr(cast(text(str(value)), "DOUBLE"), DOUBLE, value)
            return SqlExpr(_double_literal(written if "e" in written.lower() else f"{written}e0"), DOUBLE, value)
        number = int(written)
        if -MAX_BIGINT - 1 <= number <= MAX_BIGINT:
            return SqlExpr(lambda: integer(number), BIGINT, number)
        if 0 <= number <= MAX_UBIGINT:
            return SqlExpr(lambda: integer(number, "UBIGINT"), UBIGINT, number)
        return SqlExpr(_double_literal(f"{number}e0"), DOUBLE, float(number))

    def _timestamp_literal(self, node: TimestampLiteral) -> SqlExpr:
        try:
            value = parse_timestamp(node.args["this"], self._precision, self._session.time_zone)
        except InvalidValueError as error:
            raise InvalidValueError(error.message, hint=error.hint, position=self._position(node)) from error
        return timestamp_constant(value, self._precision)

    def _duration(self, node: DurationLiteral) -> SqlExpr:
        duration: Duration = node.duration
        if not duration.is_calendar:
            return SqlExpr(integer(duration.in_units(self._precision)), BIGINT, duration)
        if not self._calendar:
            raise self._wrong(f"the duration {duration} has no fixed length", node, WRONG_DURATION_UNIT,
                              "months (n) and years (y) are not allowed in conditions; use b u a s m h d w")
        return SqlExpr(integer(duration.value), BIGINT, duration)

    def _given(self, node: Given) -> SqlExpr:
        kind: DataType = node.args["kind"]
        return SqlExpr(parameter(node.this, kind.duckdb()), kind)

    def _column(self, node: exp.Column) -> SqlExpr:
        identifier = node.this
        if isinstance(identifier, exp.Star):
            raise self._wrong("* stands for several columns here", node)
        qualifier = node.args.get("table")
        name = identifier.this
        if not identifier.quoted and name in PSEUDO_COLUMNS:
            found = self._scope.pseudo(name, node)
            if found is not None:
                return found
            if name != "tbname":
                raise self._wrong(f"{name} is not available here", node)
        return self._scope.column(name, qualifier.this if qualifier is not None else None, node)

    # --- operators ---------------------------------------------------------------------

    def _paren(self, node: exp.Paren) -> SqlExpr:
        return self.compile(node.this)

    def _neg(self, node: exp.Neg) -> SqlExpr:
        inner = node.this
        if isinstance(inner, exp.Literal) and not inner.is_string and not inner.this.startswith("-"):
            return self._number(f"-{inner.this}")
        if isinstance(inner, DurationLiteral):
            duration = inner.duration
            return self._duration(DurationLiteral(value=-duration.value, unit=duration.unit))
        operand = self._operand(inner)
        if operand.type.kind is Kind.OTHER:
            return self._by_duckdb("-", lambda value: made(exp.Neg, this=closed(value)), operand)
        return SqlExpr(arithmetic.subtract(SqlExpr(exp.Literal.number("0e0"), DOUBLE, 0.0), operand), DOUBLE)

    def _operand(self, node: exp.Expression) -> SqlExpr:
        operand = self.compile(node)
        if operand.type.kind in (Kind.JSON, Kind.VARBINARY, Kind.GEOMETRY):
            raise self._wrong(f"there is no arithmetic with {operand.type.sql()}", node)
        return operand

    def _chain(self, node: exp.Expression) -> SqlExpr:
        """Operators in a row, which may be hundreds, from the left and without calling itself."""
        row: list[exp.Expression] = []
        while type(node) in _IN_ROWS:
            row.append(node)
            node = node.this
        value = self._operand(node)
        for operator in reversed(row):
            right = self._operand(operator.expression)
            if isinstance(operator, _OF_DUCKDB) or Kind.OTHER in (value.type.kind, right.type.kind):
                value = self._operator(operator, value, right)
            else:
                value = (self._arithmetic if type(operator) in _ARITHMETIC else self._bits)(operator, value, right)
        return value

    def _arithmetic(self, node: exp.Expression, left: SqlExpr, right: SqlExpr) -> SqlExpr:
        shifted = self._shifted_time(node, left, right)
        if shifted is not None:
            return shifted
        if Kind.NULL in (left.type.kind, right.type.kind):
            return SqlExpr(null_of(DOUBLE), DOUBLE)
        known = _fold_numbers(node, left, right, self._precision)
        if isinstance(known, float) and isfinite(known):
            return self._number(repr(known))
        return SqlExpr(_ARITHMETIC[type(node)](left, right), DOUBLE, known)

    def _shifted_time(self, node: exp.Expression, left: SqlExpr, right: SqlExpr) -> SqlExpr | None:
        """TIMESTAMP plus or minus a duration or an integer is a TIMESTAMP; the difference of two is BIGINT."""
        if not isinstance(node, exp.Add | exp.Sub):
            return None
        sign = 1 if isinstance(node, exp.Add) else -1
        if left.type.kind is Kind.TIMESTAMP and right.type.kind is Kind.TIMESTAMP:
            if sign > 0:
                raise self._wrong("two times cannot be added", node,
                                  hint="add a duration to a time, or subtract one time from another")
            return SqlExpr(_time_sum(exp.Sub, left.node, right.node), BIGINT)
        if left.type.kind is Kind.TIMESTAMP:
            time, other = left, right
        elif right.type.kind is Kind.TIMESTAMP and sign > 0:
            time, other = right, left
        else:
            return None
        if other.type.kind in STRINGS:
            raise self._wrong("a time and a text cannot be added or subtracted", node,
                              hint="write CAST(... AS TIMESTAMP) for the text")
        if other.type.kind not in INTEGERS:
            return None
        if isinstance(other.constant, Duration) and other.constant.is_calendar:
            return self._shift_by_calendar(time, other.constant, sign)
        units = self._units(other)
        if isinstance(time.constant, int) and units is not None:
            return timestamp_constant(time.constant + sign * units, self._precision)
        return SqlExpr(_time_sum(exp.Add if sign > 0 else exp.Sub, time.node, to_integer(other)), time.type)

    def _shift_by_calendar(self, time: SqlExpr, duration: Duration, sign: int) -> SqlExpr:
        months = sign * duration.value * (12 if duration.unit == "y" else 1)
        shifted = SqlExpr(add_months(time.node, months, self._precision, self._session.time_zone), time.type)
        return self._folded(shifted, (time,))

    def _units(self, expression: SqlExpr) -> int | None:
        if isinstance(expression.constant, Duration):
            return expression.constant.in_units(self._precision)
        return expression.constant if type(expression.constant) is int else None

    def _bits(self, node: exp.Expression, left: SqlExpr, right: SqlExpr) -> SqlExpr:
        for side, operand in ((node.this, left), (node.expression, right)):
            if operand.type.is_string:
                raise self._wrong("a bit operator needs numbers", side)
        return SqlExpr(arithmetic.in_row(type(node), to_integer(left), to_integer(right)), BIGINT)

    def _concatenation(self, node: exp.DPipe) -> SqlExpr:
        """Texts in a row, which may be hundreds, from the left and without calling itself."""
        row: list[exp.Expression] = []
        while isinstance(node, exp.DPipe):
            row.append(node.expression)
            node = node.this
        values = [self.compile(part) for part in (node, *reversed(row))]
        if any(value.type.kind is Kind.OTHER for value in values):
            return reduce(partial(self._operator, exp.DPipe()), values)
        texts = list(map(self._as_text, values))
        if any(part.type.kind is Kind.NULL for part in texts):
            return SqlExpr(null_of(VARCHAR), VARCHAR)
        spec = require("concat")
        return spec.compile(self._call(spec, texts))

    def _as_text(self, value: SqlExpr) -> SqlExpr:
        if value.type.is_string or value.type.kind is Kind.NULL:
            return value
        return cast_expression(value, _SHORT_TEXT, self._precision, self._session.time_zone)

    def _comparison(self, node: exp.Expression) -> SqlExpr:
        other = node.expression
        if isinstance(other, exp.Any | exp.All):
            of_query = isinstance(other.this, Query)
            value, query = (self._values(other, node.this, "a query behind ANY and ALL") if of_query
                            else self._items(other, node.this))
            quantified = made(type(other), this=made(exp.Subquery, this=query))
            return SqlExpr(made(type(node), this=value, expression=quantified), BOOL)
        return SqlExpr(self._comparer.compare(type(node), self.compile(node.this), self.compile(other)), BOOL)

    def _and_or(self, node: exp.Expression) -> SqlExpr:
        # Long chains are flattened: deep nesting would exhaust the stacks of both compilers.
        sides: list[Tree] = []
        pending = [node]
        while pending:
            part = pending.pop()
            if type(part) is type(node):
                pending += [part.expression, part.this]
            else:
                sides.append(self.condition(part))
        return SqlExpr(all_of(sides) if isinstance(node, exp.And) else any_of(sides), BOOL)

    def _not(self, node: exp.Not) -> SqlExpr:
        value = self.compile(node.this)
        if value.type.kind is Kind.NULL:
            raise self._wrong("NOT needs a condition, not NULL", node)
        return SqlExpr(fragment("NOT (:value)", value=self._as_condition(value, node.this)), BOOL)

    def _is(self, node: exp.Is) -> SqlExpr:
        value = self.compile(node.this)
        if isinstance(node.expression, exp.Boolean):
            wanted = exp.Boolean(this=node.expression.this)
            return SqlExpr(fragment("(:value) IS NOT DISTINCT FROM :wanted", wanted=wanted,
                                    value=self._as_condition(value, node.this)), BOOL)
        return SqlExpr(scalar_json.is_null(value), BOOL)

    def _inner(self, node: exp.Expression, what: str, most: int = 1) -> tuple[exp.Query, tuple[SqlExpr, ...]]:
        """Returns a sub-query, and its columns: one, or `most` of them."""
        if self._variables:
            raise self._wrong("a sub-query is not allowed in a lambda", node)
        inner = self._scope.inner(node.this, node)
        if len(inner.columns) not in (1, most):
            wanted = "one column" if most == 1 else f"{most} columns"
            raise self._wrong(f"{what} has {wanted}, not {len(inner.columns)}", node)
        for column in inner.columns:
            if column.type.kind is Kind.TIMESTAMP and column.type.precision != self._precision:
                raise self._wrong(
                    f"times in {column.type.precision} cannot be compared with times in {self._precision}", node,
                    hint="CAST them AS BIGINT")
        return inner.query, inner.columns

    def _subquery(self, node: exp.Subquery) -> SqlExpr:
        query, (column,) = self._inner(node, "a sub-query that is a value")
        return SqlExpr(made(exp.Subquery, this=query), column.type)

    def _exists(self, node: exp.Exists) -> SqlExpr:
        return SqlExpr(made(exp.Exists, this=self._scope.inner(node.this, node).query), BOOL)

    def _values(self, node: exp.Expression, left: exp.Expression, what: str) -> tuple[Tree, exp.Query]:
        """Returns both sides of a comparison of a value, or of the parts of a row, with those of a sub-query."""
        parts = left.expressions if isinstance(left, exp.Anonymous) and left.this == "row" else [left]
        query, columns = self._inner(node, what, len(parts))
        pairs = [self._comparer.pair(self.compile(part), column)
                 for part, column in zip(parts if len(columns) > 1 else [left], columns, strict=True)]
        values = [value for value, _ in pairs]
        return (closed(values[0]) if len(values) == 1 else made(exp.Tuple, expressions=values),
                select([compared for _, compared in pairs], nested(query)))

    def _items(self, node: exp.Expression, left: exp.Expression) -> tuple[Tree, exp.Query]:
        """Returns both sides of a comparison of a value with the items of a list, as a query of these."""
        if self._variables:
            raise self._wrong("ANY and ALL are not allowed in a lambda", node)
        items = items_of(self.compile(node.this), self._precision)
        if items is None:
            raise self._wrong("a list or a query is expected behind ANY and ALL", node)
        value, compared = self._comparer.pair(self.compile(left), items)
        return closed(value), select([compared])

    def _in(self, node: exp.In) -> SqlExpr:
        inner = node.args.get("query")
        if inner is not None:
            value, query = self._values(inner, node.this, "a query behind IN")
            return SqlExpr(made(exp.In, this=value, query=made(exp.Subquery, this=query)), BOOL)
        items = [self.compile(item) for item in node.expressions]
        return SqlExpr(self._comparer.in_list(self.compile(node.this), items, queries=not self._calls), BOOL)

    def _between(self, node: exp.Between) -> SqlExpr:
        value, low, high = (self.compile(node.args[key]) for key in ("this", "low", "high"))
        return SqlExpr(self._comparer.between(value, low, high), BOOL)

    def _like(self, node: exp.Like | exp.ILike) -> SqlExpr:
        pattern, escape = node.expression, None
        if isinstance(pattern, exp.Escape):
            pattern, escape = pattern.this, pattern.expression.this
            if len(escape) != 1:
                raise self._wrong("ESCAPE takes one character", node.expression)
        return SqlExpr(like(self.compile(node.this), self.compile(pattern), escape=escape,
                            any_case=isinstance(node, exp.ILike)), BOOL)

    def _glob(self, node: exp.Glob) -> SqlExpr:
        return self._operator(node, self.compile(node.this), self.compile(node.expression))

    def _match(self, node: Match) -> SqlExpr:
        return SqlExpr(match(self.compile(node.this), self.compile(node.expression)), BOOL)

    def _json(self, document: SqlExpr, node: exp.Expression) -> SqlExpr:
        if isinstance(document, scalar_json.JsonValue):
            return SqlExpr(document.raw, document.type)
        if document.type.kind is not Kind.JSON:
            raise self._wrong(f"-> and CONTAINS need a JSON tag, not {document.type.sql()}", node)
        return document

    def _json_get(self, node: JsonGet) -> SqlExpr:
        document, key = self.compile(node.this), node.expression
        if document.type.is_string:
            spec = require("json_extract")
            return spec.compile(self._call(spec, [document, self.compile(key)]))
        if not isinstance(key, exp.Literal) or not key.is_string:
            raise self._wrong("the key of a JSON tag is expected, in quotes", key)
        return scalar_json.get(self._json(document, node.this), key.this)

    def _json_contains(self, node: JsonContains) -> SqlExpr:
        return SqlExpr(scalar_json.contains(self._json(self.compile(node.this), node.this), node.expression.this), BOOL)

    # --- CASE, CAST, calls ---------------------------------------------------------------

    def _case(self, node: exp.Case) -> SqlExpr:
        subject = self.compile(node.this) if node.this is not None else None
        conditions: list[Tree] = []
        values: list[SqlExpr] = []
        for branch in node.args["ifs"]:
            if subject is None:
                conditions.append(self.condition(branch.this))
            else:
                conditions.append(self._matches(subject, branch))
            values.append(self.compile(branch.args["true"]))
        default = node.args.get("default")
        if default is not None:
            values.append(self.compile(default))
        result = common_type([value.type for value in values])
        trees = [brought_to(value, result, self._precision, self._session.time_zone) for value in values]
        branches = [made(exp.If, this=condition, true=tree)
                    for condition, tree in zip(conditions, trees, strict=False)]
        return SqlExpr(made(exp.Case, ifs=branches, default=trees[-1] if default is not None else None), result)

    def _matches(self, subject: SqlExpr, branch: exp.If) -> Tree:
        wanted = self.compile(branch.this)
        try:
            return self._comparer.compare(exp.EQ, subject, wanted)
        except PenstockError as error:
            self._place(error, branch)
            raise

    def _cast(self, node: exp.Cast) -> SqlExpr:
        value = self.compile(node.this)
        target = cast_type(node)
        if target.kind is Kind.TIMESTAMP and value.type.kind is Kind.BIGINT and isinstance(value.constant, int):
            return timestamp_constant(value.constant, self._precision)
        convert = checked_cast if isinstance(node, exp.TryCast) else cast_expression
        result = convert(value, target, self._precision, self._session.time_zone)
        return self._known(result) if Kind.OTHER in (value.type.kind, target.kind) else self._folded(result, (value,))

    def _folded(self, result: SqlExpr, arguments: tuple[SqlExpr, ...]) -> SqlExpr:
        """Computes times made of constants now: WHERE's bounds on time are taken from them."""
        if result.type.kind is not Kind.TIMESTAMP or result.constant is not None:
            return result
        if any(argument.constant is None for argument in arguments):
            return result
        value = evaluate(result.node)
        if value is None:
            return SqlExpr(null_of(result.type), result.type)
        assert isinstance(value, int)
        return timestamp_constant(value, self._precision)

    def _trim(self, node: Trim) -> SqlExpr:
        characters = node.args.get("characters")
        arguments = [self.compile(node.this)]
        if characters is not None:
            arguments.append(self.compile(characters))
        call = self._call(require("trim"), arguments)
        return SqlExpr(string.trim(call, node.args["mode"]), call.result)

    def _anonymous(self, node: exp.Anonymous) -> SqlExpr:
        bound = bound_function(node)
        spec = bound.spec if bound is not None else require(node.this)
        if spec.category != "scalar":
            return self._scope.aggregate(spec.name, list(node.expressions), node)
        if spec.multiplies and self._variables:
            raise self._wrong(f"{spec.name}() is not allowed in a lambda", node)
        if spec.multiplies:
            self._scope.multiply(node)
        if node.args.get("distinct") or node.args.get("order") is not None:
            raise self._wrong(f"{spec.name}() takes no DISTINCT or ORDER BY: it is no aggregate", node)
        for argument in node.expressions:
            if isinstance(argument, exp.Star):
                raise self._wrong(f"{spec.name}() does not take *", node)
        if any(isinstance(argument, exp.Lambda) for argument in node.expressions):
            return self._call_with_lambda(spec.name, node)
        self._calls += 1
        arguments = [self.compile(argument) for argument in node.expressions]
        self._calls -= 1
        if bound is not None:
            return bound.scalar(arguments, self._precision)
        spec = meant(spec, arguments)
        call = self._call(spec, arguments)
        return self._folded(spec.compile(call), call.arguments)


def _time_sum(operator: type[exp.Binary], left: Tree, right: Tree) -> Tree:
    """A sum or difference of BIGINTs, NULL where it is beyond 64 bits."""
    template = "TRY_CAST(CAST(:left AS HUGEINT) + :right AS BIGINT)" if operator is exp.Add else \
        "TRY_CAST(CAST(:left AS HUGEINT) - :right AS BIGINT)"
    return fragment(template, left=left, right=right)


def _double_literal(written: str) -> Tree:
    number: Tree = exp.Literal.number(written.lstrip("-"))
    return made(exp.Neg, this=number) if written.startswith("-") else number


def _fold_numbers(node: exp.Expression, left: SqlExpr, right: SqlExpr, precision: Precision) -> int | float | None:
    """The value of arithmetic on constants; integers stay exact, so that bounds on time do, and 0.06 + 0.01 is 0.07."""
    values: list[int | float] = []
    for constant in (left.constant, right.constant):
        if isinstance(constant, Duration):
            if constant.is_calendar:
                return None
            values.append(constant.in_units(precision))
        elif isinstance(constant, int | float) and not isinstance(constant, bool):
            values.append(constant)
        else:
            return None
    compute = _EXACT.get(type(node))
    if compute is None:
        return None
    a, b = values
    if isinstance(a, int) and isinstance(b, int):
        return int(compute(a, b))
    exact = [Decimal(value if isinstance(value, int) else repr(value)) for value in values]
    return float(compute(*exact)) if all(value.is_finite() for value in exact) else None


_METHODS: dict[type[exp.Expression], Callable[[_Compiler, exp.Expression], SqlExpr]] = {
    **dict.fromkeys(_COMPARISONS, _Compiler._comparison),
    **dict.fromkeys(_IN_ROWS, _Compiler._chain),
    exp.Literal: _Compiler._literal,
    exp.Boolean: lambda _self, node: SqlExpr(exp.Boolean(this=node.this), BOOL, bool(node.this)),
    exp.Null: lambda _self, _node: SqlExpr(exp.Null(), NULL),
    TimestampLiteral: _Compiler._timestamp_literal,
    DurationLiteral: _Compiler._duration,
    Given: _Compiler._given,
    exp.Column: _Compiler._column,
    exp.Paren: _Compiler._paren,
    exp.Neg: _Compiler._neg,
    exp.And: _Compiler._and_or,
    exp.Or: _Compiler._and_or,
    exp.Not: _Compiler._not,
    exp.Is: _Compiler._is,
    **dict.fromkeys((exp.NullSafeEQ, exp.NullSafeNEQ), _Compiler._comparison),
    exp.DPipe: _Compiler._concatenation,
    exp.In: _Compiler._in,
    exp.Subquery: _Compiler._subquery,
    exp.Exists: _Compiler._exists,
    exp.Between: _Compiler._between,
    **dict.fromkeys((exp.Like, exp.ILike), _Compiler._like),
    exp.BitwiseNot: _Compiler._inverse,
    exp.Glob: _Compiler._glob,
    IntervalLiteral: _Compiler._interval,
    exp.Struct: _Compiler._struct,
    exp.Bracket: _Compiler._subscript,
    exp.AtTimeZone: _Compiler._at_time_zone,
    LambdaVariable: _Compiler._variable,
    Match: _Compiler._match,
    JsonGet: _Compiler._json_get,
    JsonContains: _Compiler._json_contains,
    exp.Case: _Compiler._case,
    **dict.fromkeys((exp.Cast, exp.TryCast), _Compiler._cast),
    Trim: _Compiler._trim,
    exp.Anonymous: _Compiler._anonymous,
    exp.Filter: lambda self, node: self.compile(self._scope.filtered(node)),
    exp.Window: lambda self, node: self._scope.over(node),
}
