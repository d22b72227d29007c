"""Conversions between types as DuckDB SQL: the ones that CAST asks for and those that operators need.

None of them fails on a value: integers wrap around, texts that are no number count as their longest numeric
prefix or 0, texts that are too long are cut.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.common.errors import InvalidStatementError, InvalidValueError, Position
from penstock.planner.plan import SqlExpr
from penstock.planner.scalar_sql import integer_literal, let, quote_text
from penstock.sql.literals import parse_timestamp
from penstock.sql.types import DOUBLE, FLOATS, INTEGERS, SIGNED, STRINGS, DataType, Kind, Precision

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


def null_of(data_type: DataType) -> str:
    """Returns a typed NULL."""
    return f"CAST(NULL AS {data_type.duckdb()})"


def _prefix(sql: str, pattern: str) -> str:
    # An empty match becomes '0'; NULL stays NULL because both functions keep it.
    return f"regexp_replace(regexp_extract({sql}, {quote_text(pattern)}), '^\\s*$', '0')"


def text_to_double(sql: str) -> str:
    """Returns SQL for the number that a text begins with, 0 if it begins with none."""
    return f"TRY_CAST({_prefix(sql, _DECIMAL_PREFIX)} AS DOUBLE)"


def to_double(expression: SqlExpr) -> str:
    """Returns SQL of type DOUBLE. Texts count as the number that they begin with."""
    kind = expression.type.kind
    if kind is Kind.DOUBLE:
        return expression.sql
    if kind in STRINGS or kind is Kind.JSON:
        return text_to_double(expression.sql)
    if isinstance(expression.constant, int) and not isinstance(expression.constant, bool):
        return f"CAST({expression.constant} AS DOUBLE)"
    return f"CAST({expression.sql} AS DOUBLE)"


def wrap_integer(sql: str, target: Kind, *, wide: bool = True) -> str:
    """Returns SQL of an integer reduced modulo 2^bits to the range of `target`; `wide`: it may exceed BIGINT."""
    bits = BITS[target]
    mask = (1 << bits) - 1
    work = "HUGEINT" if wide or bits == 64 else "BIGINT"
    low = f"(CAST({sql} AS {work}) & {integer_literal(mask, work)})"
    name = DataType(target).duckdb()
    if target not in SIGNED:
        return f"CAST({low} AS {name})"
    # Flipping the sign bit and subtracting it again extends the sign.
    sign = integer_literal(1 << (bits - 1), work)
    return f"CAST((xor({low}, {sign}) - {sign}) AS {name})"


def _double_to_integer(sql: str, target: Kind) -> str:
    """Cuts off the fraction. What no machine integer can hold becomes the least one, and then wraps."""
    name = DataType(target).duckdb()
    if target is Kind.UBIGINT:
        limit = 2.0**64
        return let(sql, lambda x: (
            f"CASE WHEN {x} > -{2.0**63!r} AND {x} < {limit!r} THEN "
            f"{wrap_integer(f'trunc({x})', target, wide=True)} WHEN {x} IS NOT NULL THEN CAST(0 AS UBIGINT) END"))
    work = Kind.BIGINT if target in (Kind.BIGINT, Kind.UINT) else Kind.INT
    least = -(1 << (BITS[work] - 1))
    cut = let(sql, lambda x: (
        f"CASE WHEN {x} IS NOT NULL THEN COALESCE(TRY_CAST(trunc({x}) AS {DataType(work).duckdb()}), "
        f"CAST({least} AS {DataType(work).duckdb()})) END"))
    return cut if target is work else f"CAST({wrap_integer(cut, target, wide=False)} AS {name})"


def _integer_of_text(sql: str, target: Kind) -> str:
    """The integer that a text begins with, as HUGEINT; as strtol() does, it stops at the ends of 64 bits."""
    greatest = integer_literal((1 << (64 if target is Kind.UBIGINT else 63)) - 1, "HUGEINT")
    least = integer_literal(-(1 << 63), "HUGEINT")
    # Texts of more digits than HUGEINT has are far beyond either end, so that DOUBLE is exact enough for them.
    def clamped(digits: str) -> str:
        number = f"TRY_CAST({digits} AS DOUBLE)"
        return (f"CASE WHEN {number} >= 2e19 THEN {greatest} WHEN {number} <= -2e19 THEN {least} "
                f"WHEN {digits} IS NOT NULL "
                f"THEN least(greatest(TRY_CAST({digits} AS HUGEINT), {least}), {greatest}) END")

    return f"({let(_prefix(sql, _INTEGER_PREFIX), clamped)})"


def to_integer(expression: SqlExpr, target: Kind = Kind.BIGINT) -> str:
    """Returns SQL of the integer type `target`; values out of its range wrap around."""
    source, sql = expression.type.kind, expression.sql
    name = DataType(target).duckdb()
    if source is target:
        return sql
    if source in (Kind.BOOL, Kind.NULL):
        return f"CAST({sql} AS {name})"
    if source in STRINGS or source is Kind.JSON:
        return wrap_integer(_integer_of_text(sql, target), target)
    if source in FLOATS or source is Kind.DECIMAL:
        return _double_to_integer(f"CAST({sql} AS DOUBLE)" if source is not Kind.DOUBLE else sql, target)
    if _fits(source, target):
        return f"CAST({sql} AS {name})"
    return wrap_integer(sql, target, wide=source is Kind.UBIGINT)


def _fits(source: Kind, target: Kind) -> bool:
    """Whether every value of one integer type is a value of another."""
    source = Kind.BIGINT if source is Kind.TIMESTAMP else source
    if (source in SIGNED) == (target in SIGNED):
        return BITS[source] <= BITS[target]
    return target in SIGNED and BITS[source] < BITS[target]


def to_bool(expression: SqlExpr) -> str:
    """Returns SQL of type BOOLEAN: numbers are true unless 0, texts if they read `true` or as such a number."""
    kind, sql = expression.type.kind, expression.sql
    if kind in (Kind.BOOL, Kind.NULL):
        return sql if kind is Kind.BOOL else "CAST(NULL AS BOOLEAN)"
    if kind in STRINGS or kind is Kind.JSON:
        return let(sql, lambda x: f"(lower(trim({x})) = 'true' OR {text_to_double(x)} <> 0)")
    return f"({sql} <> 0)"


def to_text(expression: SqlExpr) -> str:
    """Returns SQL of type VARCHAR, as long as it is: floats have six decimals, timestamps are their units.

    Bytes that are no UTF-8 become NULL.
    """
    kind, sql = expression.type.kind, expression.sql
    if kind in STRINGS or kind is Kind.JSON:
        return sql
    if kind in FLOATS:
        return f"printf('%f', CAST({sql} AS DOUBLE))"
    if kind is Kind.VARBINARY:
        return f"TRY(decode({sql}))"
    return f"CAST({sql} AS VARCHAR)"


def cut_to_bytes(sql: str, length: int) -> str:
    """Returns SQL that cuts a text to as many whole characters as fit into `length` bytes of UTF-8."""
    return let(sql, lambda x: (
        f"CASE WHEN strlen({x}) <= {length} THEN {x} WHEN strlen({x}) = length({x}) THEN left({x}, {length}) "
        f"ELSE left({x}, len(list_filter(range(1, {length + 1}), "
        f"lambda cut_at: strlen(left({x}, cut_at)) <= {length} AND cut_at <= length({x})))) END"))


def text_to_timestamp(sql: str, precision: Precision, time_zone: str) -> str:
    """Returns SQL that reads a text as `parse_timestamp` does, in units of `precision`; NULL if it is no time."""
    names = ("y", "mo", "d", "h", "mi", "s", "f", "z")
    name_list = ", ".join(quote_text(name) for name in names)
    digits = {"ms": 3, "us": 6, "ns": 9}[precision]
    per_second = 10**digits

    def number(field: str) -> str:
        return f"COALESCE(TRY_CAST({field} AS BIGINT), 0)"

    def seconds(p: str) -> str:
        clock = (f"printf('%s-%s-%s %02d:%02d:%02d', {p}.y, {p}.mo, {p}.d, {number(f'{p}.h')}, "
                 f"{number(f'{p}.mi')}, {number(f'{p}.s')})")
        local = f"TRY_CAST({clock} AS TIMESTAMP)"
        if time_zone == "UTC":
            here = f"epoch_us({local})"
        else:
            here = f"epoch_us(timezone({quote_text(time_zone)}, {local}))"
        digits_of_zone = f"rpad(replace({p}.z[2:], ':', ''), 4, '0')"
        offset = (f"(CASE WHEN {p}.z[1] = '-' THEN -1 ELSE 1 END) * (TRY_CAST({digits_of_zone}[1:2] AS BIGINT) * 3600 "
                  f"+ TRY_CAST({digits_of_zone}[3:4] AS BIGINT) * 60)")
        return (f"CASE WHEN {p}.z = '' THEN {here} // 1000000 "
                f"WHEN upper({p}.z) = 'Z' THEN epoch_us({local}) // 1000000 "
                f"ELSE epoch_us({local}) // 1000000 - {offset} END")

    def whole(x: str) -> str:
        parts = f"regexp_extract({x}, {quote_text(_TIMESTAMP_PARTS)}, [{name_list}])"
        body = let(parts, lambda p: (
            f"({seconds(p)}) * {per_second} + {number(f'rpad({p}.f[1:{digits}], {digits}, {chr(39)}0{chr(39)})')}"))
        return (f"CASE WHEN regexp_matches({x}, {quote_text(_TIMESTAMP_PARTS)}) THEN {body} "
                f"WHEN regexp_full_match({x}, '\\s*[-+]?[0-9]+\\s*') THEN TRY_CAST(trim({x}) AS BIGINT) END")

    return let(sql, whole)


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
            return SqlExpr("CAST(NULL AS BIGINT)", result)
        return timestamp_constant(value, precision)
    if kind in STRINGS:
        return SqlExpr(text_to_timestamp(expression.sql, precision, time_zone), result)
    constant = expression.constant if isinstance(expression.constant, int) else None
    return SqlExpr(to_integer(expression), result, constant)


def timestamp_constant(value: int, precision: Precision) -> SqlExpr:
    """Returns a timestamp whose value is known; what 64 bits cannot hold becomes the first or last instant."""
    value = max(-(1 << 63), min(value, (1 << 63) - 1))
    return SqlExpr(integer_literal(value), DataType(Kind.TIMESTAMP, precision=precision), value)


def cast(expression: SqlExpr, target: DataType, precision: Precision, time_zone: str,
         position: Position | None = None) -> SqlExpr:
    """Compiles CAST(expression AS target). Raises InvalidStatementError for pairs of types without a conversion."""
    source, kind = expression.type.kind, target.kind
    if kind is Kind.TIMESTAMP:
        target = replace(target, precision=precision)
    if source is Kind.NULL:
        return SqlExpr(null_of(target), target)
    if source in (Kind.JSON, Kind.GEOMETRY) or kind in (Kind.JSON, Kind.GEOMETRY) or (
            (source is Kind.VARBINARY or kind is Kind.VARBINARY) and source is not kind and source not in STRINGS):
        raise InvalidStatementError(f"cannot cast {expression.type.sql()} to {target.sql()}",
                                    code=_CAST_NOT_POSSIBLE, position=position)
    return SqlExpr(_cast_sql(expression, target, precision, time_zone), target)


def _cast_sql(expression: SqlExpr, target: DataType, precision: Precision, time_zone: str) -> str:
    source, kind, sql = expression.type.kind, target.kind, expression.sql
    if kind in INTEGERS:
        return to_integer(expression, kind)
    if kind is Kind.BOOL:
        return to_bool(expression)
    if kind is Kind.DOUBLE:
        return to_double(expression)
    if kind is Kind.FLOAT:
        return sql if source is Kind.FLOAT else f"TRY_CAST({to_double(expression)} AS FLOAT)"
    if kind is Kind.DECIMAL:
        number = SqlExpr(to_double(expression), DOUBLE).sql if source in STRINGS else sql
        return f"TRY_CAST({number} AS {target.duckdb()})"
    if kind is Kind.TIMESTAMP:
        read = to_timestamp(expression, precision, time_zone)
        if source not in STRINGS or read.constant is not None:
            return read.sql
        return let(sql, lambda x: f"CASE WHEN {x} IS NOT NULL THEN COALESCE("
                                  f"{text_to_timestamp(x, precision, time_zone)}, 0) END")
    if kind is Kind.VARBINARY:
        return sql if source is Kind.VARBINARY else f"encode({sql})"
    text = to_text(expression)
    if target.length is None:
        return text
    if expression.type.length is not None and source is kind and expression.type.length <= target.length:
        return text
    return f"left({text}, {target.length})" if kind is Kind.NCHAR else cut_to_bytes(text, target.length)
