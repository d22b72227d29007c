"""Conversions between types as trees of DuckDB SQL: the ones that CAST asks for and those that operators need.

None of them fails on a value: integers wrap around, texts that are no number count as their longest numeric
prefix or 0, texts that are too long are cut.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.common.errors import InvalidStatementError, InvalidValueError, Position
from penstock.planner.duckdb_sql.duckdb_tree import Tree, call, fragment, integer, let, null, number, try_cast
from penstock.planner.duckdb_sql.duckdb_tree import cast as duckdb_cast
from penstock.planner.duckdb_sql.sql_expr import SqlExpr
from penstock.planner.scalar.duckdb_values import duckdb_value
from penstock.sql.dialect.literals import parse_timestamp
from penstock.sql.types import FLOATS, INTEGERS, SIGNED, STRINGS, VARCHAR, DataType, Kind, Precision

BITS: dict[Kind, int] = {
    Kind.TINYINT: 8, Kind.SMALLINT: 16, Kind.INT: 32, Kind.BIGINT: 64,
    Kind.UTINYINT: 8, Kind.USMALLINT: 16, Kind.UINT: 32, Kind.UBIGINT: 64,
}

_DECIMAL_PREFIX = r"^\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
_INTEGER_PREFIX = r"^\s*[+-]?[0-9]+"
_CAST_NOT_POSSIBLE = 0x2603
_TIMESTAMP_PARTS = (
    r"^\s*(\d{4})-(\d{1,2})-(\d{1,2})(?:[ T]+(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:[.,](\d*))?)?)?\s*"
    r"([Zz]|[-+]\d{2}(?::?\d{2})?)?\s*$"
)


def null_of(data_type: DataType) -> Tree:
    """Returns a typed NULL."""
    return null(data_type.duckdb())


def _prefix(text: Tree, pattern: str) -> Tree:
    # An empty match becomes '0'; NULL stays NULL because both functions keep it.
    return fragment(r"regexp_replace(regexp_extract(:text, :pattern), '^\s*$', '0')", text=text, pattern=pattern)


def text_to_double(text: Tree) -> Tree:
    """Returns the number that a text begins with, 0 if it begins with none."""
    return try_cast(_prefix(text, _DECIMAL_PREFIX), "DOUBLE")


def to_double(expression: SqlExpr) -> Tree:
    """Returns a tree of type DOUBLE. Texts count as the number that they begin with."""
    kind = expression.type.kind
    if kind is Kind.DOUBLE:
        return expression.node
    if kind in STRINGS or kind is Kind.JSON:
        return text_to_double(expression.node)
    if isinstance(expression.constant, int) and not isinstance(expression.constant, bool):
        return integer(expression.constant, "DOUBLE")
    return duckdb_cast(expression.node, "DOUBLE")


def wrap_integer(value: Tree, target: Kind, *, wide: bool = True) -> Tree:
    """Returns an integer reduced modulo 2^bits to the range of `target`; `wide`: it may exceed BIGINT."""
    bits = BITS[target]
    mask = (1 << bits) - 1
    work = "HUGEINT" if wide or bits == 64 else "BIGINT"
    low = fragment(f"CAST(:value AS {work}) & :mask", value=value, mask=integer(mask, work))
    name = DataType(target).duckdb()
    if target not in SIGNED:
        return duckdb_cast(low, name)
    # Flipping the sign bit and subtracting it again extends the sign.
    sign = integer(1 << (bits - 1), work)
    return fragment(f"CAST(xor(:low, :sign) - :sign AS {name})", low=low, sign=sign)


def _double_to_integer(value: Tree, target: Kind) -> Tree:
    """Cuts off the fraction. What no machine integer can hold becomes the least one, and then wraps."""
    name = DataType(target).duckdb()
    if target is Kind.UBIGINT:
        return let(value, lambda x: fragment(
            f"CASE WHEN :x > -{2.0**63!r} AND :x < {2.0**64!r} THEN :wrapped "
            "WHEN :x IS NOT NULL THEN CAST(0 AS UBIGINT) END",
            x=x, wrapped=wrap_integer(call("trunc", x), target, wide=True)))
    work = Kind.BIGINT if target in (Kind.BIGINT, Kind.UINT) else Kind.INT
    least = -(1 << (BITS[work] - 1))
    work_name = DataType(work).duckdb()
    cut = let(value, lambda x: fragment(
        f"CASE WHEN :x IS NOT NULL THEN COALESCE(TRY_CAST(trunc(:x) AS {work_name}), :least) END",
        x=x, least=integer(least, work_name)))
    return cut if target is work else duckdb_cast(wrap_integer(cut, target, wide=False), name)


def _integer_of_text(text: Tree, target: Kind) -> Tree:
    """The integer that a text begins with, as HUGEINT; as strtol() does, it stops at the ends of 64 bits."""
    greatest = integer((1 << (64 if target is Kind.UBIGINT else 63)) - 1, "HUGEINT")
    least = integer(-(1 << 63), "HUGEINT")
    # Texts of more digits than HUGEINT has are far beyond either end, so that DOUBLE is exact enough for them.
    return let(_prefix(text, _INTEGER_PREFIX), lambda digits: fragment(
        "CASE WHEN TRY_CAST(:digits AS DOUBLE) >= 2e19 THEN :greatest "
        "WHEN TRY_CAST(:digits AS DOUBLE) <= -2e19 THEN :least WHEN :digits IS NOT NULL "
        "THEN least(greatest(TRY_CAST(:digits AS HUGEINT), :least), :greatest) END",
        digits=digits, greatest=greatest, least=least))


def to_integer(expression: SqlExpr, target: Kind = Kind.BIGINT) -> Tree:
    """Returns a tree of the integer type `target`; values out of its range wrap around."""
    source, value = expression.type.kind, expression.node
    name = DataType(target).duckdb()
    if source is target:
        return value
    if source in (Kind.BOOL, Kind.NULL):
        return duckdb_cast(value, name)
    if source in STRINGS or source is Kind.JSON:
        return wrap_integer(_integer_of_text(value, target), target)
    if source in FLOATS or source is Kind.DECIMAL:
        return _double_to_integer(duckdb_cast(value, "DOUBLE") if source is not Kind.DOUBLE else value, target)
    if integer_fits(source, target):
        return duckdb_cast(value, name)
    return wrap_integer(value, target, wide=source is Kind.UBIGINT)


def integer_fits(source: Kind, target: Kind) -> bool:
    """Whether every value of one integer type is a value of another."""
    source = Kind.BIGINT if source is Kind.TIMESTAMP else source
    if (source in SIGNED) == (target in SIGNED):
        return BITS[source] <= BITS[target]
    return target in SIGNED and BITS[source] < BITS[target]


def to_bool(expression: SqlExpr) -> Tree:
    """Returns a tree of type BOOLEAN: numbers are true unless 0, texts if they read `true` or as such a number."""
    kind, value = expression.type.kind, expression.node
    if kind in (Kind.BOOL, Kind.NULL):
        return value if kind is Kind.BOOL else null("BOOLEAN")
    if kind in STRINGS or kind is Kind.JSON:
        return let(value, lambda x: fragment("lower(trim(:x)) = 'true' OR :number <> 0", x=x, number=text_to_double(x)))
    return fragment(":value <> 0", value=value)


def to_text(expression: SqlExpr) -> Tree:
    """Returns a tree of type VARCHAR, as long as it is: floats have six decimals, timestamps are their units.

    Bytes that are no UTF-8 become NULL.
    """
    kind, value = expression.type.kind, expression.node
    if kind in STRINGS or kind is Kind.JSON:
        return value
    if kind in FLOATS:
        return fragment("printf('%f', CAST(:value AS DOUBLE))", value=value)
    if kind is Kind.VARBINARY:
        return fragment("TRY(decode(:value))", value=value)
    return duckdb_cast(value, "VARCHAR")


def cut_to_bytes(text: Tree, length: int) -> Tree:
    """Returns a text cut to as many whole characters as fit into `length` bytes of UTF-8."""
    return let(text, lambda x: fragment(
        "CASE WHEN strlen(:x) <= :length THEN :x WHEN strlen(:x) = length(:x) THEN left(:x, :length) "
        "ELSE left(:x, len(list_filter(range(1, :after), "
        "lambda cut_at: strlen(left(:x, cut_at)) <= :length AND cut_at <= length(:x)))) END",
        x=x, length=length, after=length + 1))


def text_to_timestamp(text: Tree, precision: Precision, time_zone: str) -> Tree:
    """Returns a text read as `parse_timestamp` does, in units of `precision`; NULL if it is no time."""
    digits = {"ms": 3, "us": 6, "ns": 9}[precision]

    def seconds(p: Tree) -> Tree:
        local = fragment(
            "TRY_CAST(printf('%s-%s-%s %02d:%02d:%02d', :p.y, :p.mo, :p.d, COALESCE(TRY_CAST(:p.h AS BIGINT), 0), "
            "COALESCE(TRY_CAST(:p.mi AS BIGINT), 0), COALESCE(TRY_CAST(:p.s AS BIGINT), 0)) AS TIMESTAMP)", p=p)
        here = local if time_zone == "UTC" else fragment("timezone(:zone, :local)", zone=time_zone, local=local)
        return fragment(
            "CASE WHEN :p.z = '' THEN epoch_us(:here) // 1000000 "
            "WHEN upper(:p.z) = 'Z' THEN epoch_us(:local) // 1000000 "
            "ELSE epoch_us(:local) // 1000000 - (CASE WHEN :p.z[1] = '-' THEN -1 ELSE 1 END) "
            "* (TRY_CAST((rpad(replace(:p.z[2:], ':', ''), 4, '0'))[1:2] AS BIGINT) * 3600 "
            "+ TRY_CAST((rpad(replace(:p.z[2:], ':', ''), 4, '0'))[3:4] AS BIGINT) * 60) END",
            p=p, here=here, local=local)

    def whole(x: Tree) -> Tree:
        parts = fragment("regexp_extract(:x, :pattern, ['y', 'mo', 'd', 'h', 'mi', 's', 'f', 'z'])",
                         x=x, pattern=_TIMESTAMP_PARTS)
        body = let(parts, lambda p: fragment(
            f"(:seconds) * :per_second + COALESCE(TRY_CAST(rpad(:p.f[1:{digits}], {digits}, '0') AS BIGINT), 0)",
            seconds=seconds(p), per_second=10**digits, p=p))
        return fragment(
            r"CASE WHEN regexp_matches(:x, :pattern) THEN :body "
            r"WHEN regexp_full_match(:x, '\s*[-+]?[0-9]+\s*') THEN TRY_CAST(trim(:x) AS BIGINT) END",
            x=x, pattern=_TIMESTAMP_PARTS, body=body)

    return let(text, whole)


def to_timestamp(expression: SqlExpr, precision: Precision, time_zone: str) -> SqlExpr:
    """Returns the expression as a TIMESTAMP; texts that are no time become NULL."""
    kind = expression.type.kind
    result = DataType(Kind.TIMESTAMP, precision=precision)
    if kind is Kind.TIMESTAMP:
        return expression
    if isinstance(expression.constant, str):
        try:
            value = parse_timestamp(expression.constant, precision, time_zone)
        except InvalidValueError:
            return SqlExpr(null("BIGINT"), result)
        return timestamp_constant(value, precision)
    if kind in STRINGS:
        return SqlExpr(text_to_timestamp(expression.node, precision, time_zone), result)
    constant = expression.constant if isinstance(expression.constant, int) else None
    return SqlExpr(to_integer(expression), result, constant)


def timestamp_constant(value: int, precision: Precision) -> SqlExpr:
    """Returns a timestamp whose value is known; what 64 bits cannot hold becomes the first or last instant."""
    value = max(-(1 << 63), min(value, (1 << 63) - 1))
    return SqlExpr(lambda: integer(value), DataType(Kind.TIMESTAMP, precision=precision), value)


def cast(expression: SqlExpr, target: DataType, precision: Precision, time_zone: str,
         position: Position | None = None) -> SqlExpr:
    """Compiles CAST(expression AS target). Raises InvalidStatementError for pairs of types without a conversion."""
    source, kind, target = expression.type.kind, target.kind, target.with_precision(precision)
    if source is Kind.NULL:
        return SqlExpr(null_of(target), target)
    if source is Kind.OTHER and kind in STRINGS:
        return cast(SqlExpr(to_text(expression), VARCHAR), target, precision, time_zone, position)
    if Kind.OTHER in (source, kind):
        return _by_duckdb(expression, target, precision, time_zone, duckdb_cast)
    if source in (Kind.JSON, Kind.GEOMETRY) or kind in (Kind.JSON, Kind.GEOMETRY) or (
            (source is Kind.VARBINARY or kind is Kind.VARBINARY) and source is not kind and source not in STRINGS):
        raise _not_castable(expression, target, position)
    return SqlExpr(_cast_tree(expression, target, precision, time_zone), target)


def checked_cast(expression: SqlExpr, target: DataType, precision: Precision, time_zone: str) -> SqlExpr:
    """Compiles TRY_CAST: as DuckDB reads values, and NULL for one that it can't."""
    if target.is_string:
        return cast(expression, target, precision, time_zone)
    return _by_duckdb(expression, target, precision, time_zone, try_cast)


def _by_duckdb(expression: SqlExpr, target: DataType, precision: Precision, time_zone: str,
               convert: Callable[[Tree, str], Tree]) -> SqlExpr:
    value = duckdb_value(lambda tree: convert(tree, target.duckdb_name()), [expression], precision, time_zone,
                         converts=True)
    if value is None:
        raise _not_castable(expression, target)
    return value


def _not_castable(expression: SqlExpr, target: DataType, position: Position | None = None) -> InvalidStatementError:
    return InvalidStatementError(f"cannot cast {expression.type.sql()} to {target.sql()}", code=_CAST_NOT_POSSIBLE,
                                 position=position)


def _cast_tree(expression: SqlExpr, target: DataType, precision: Precision, time_zone: str) -> Tree:
    source, kind, value = expression.type.kind, target.kind, expression.node
    if kind in INTEGERS:
        return to_integer(expression, kind)
    if kind is Kind.BOOL:
        return to_bool(expression)
    if kind is Kind.DOUBLE:
        return to_double(expression)
    if kind is Kind.FLOAT:
        return value if source is Kind.FLOAT else try_cast(to_double(expression), "FLOAT")
    if kind is Kind.DECIMAL:
        return try_cast(to_double(expression) if source in STRINGS else value, target.duckdb())
    if kind is Kind.TIMESTAMP:
        read = to_timestamp(expression, precision, time_zone)
        if source not in STRINGS or read.constant is not None:
            return read.node
        return let(value, lambda x: fragment("CASE WHEN :x IS NOT NULL THEN COALESCE(:time, 0) END",
                                             x=x, time=text_to_timestamp(x, precision, time_zone)))
    if kind is Kind.VARBINARY:
        return value if source is Kind.VARBINARY else call("encode", value)
    text = to_text(expression)
    if target.length is None:
        return text
    if expression.type.length is not None and source is kind and expression.type.length <= target.length:
        return text
    return call("left", text, number(target.length)) if kind is Kind.NCHAR else cut_to_bytes(text, target.length)
