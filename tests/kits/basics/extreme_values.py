"""The values at which engines go wrong: the ends of every type, what is nearly nothing, and texts that few write."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from penstock.planner.scalar.scalar_cast import BITS
from penstock.sql.types import SIGNED, DataType, Kind

#: Quotes, wildcards and escapes; spaces that count; numbers in disguise; letters whose case or length is odd; NUL.
TEXTS = ("", "x", "X", "xy", "it's", '"', "\\", "%", "_", " x ", "a,b", "\n", "\t", "NULL", "-1", "1e999", "0x1F",
         "true", "ß", "İ", "é", "日本", "\U0001d11e", "x\U0001f600y", "a\0b", "\0", "\ufeff", "\U0010ffff")
#: Names that need back-quotes; none is another in other case.
NAMES = ("select", "two words", "Übung", "1st", "a.b", "semi;colon", "it's", 'qu"ote', "CamelCase", "tick`s", "日本",
         "_wstart1", "rowid", "null", "%")
#: Names that are others in other case, to some or to DuckDB, and such as it has for them; names of SQL that is made.
CASES = ("V", "v", "v^1", "V^1", "v_1", "TS", "Ts", "TBNAME", "Rows", "rows", "children", "_row",
         "_ROW", "_gid", "_TUID", "c", "C", "r", "o0", "O0", "r0", "R0", "k0", "uid", "rowid",
         "ROWID", "İ", "i̇", "ı", "I", "ß", "ẞ", "ss", "SS", "Ω", "\u2126",
         "ω", "K", "\u212a", "k", "É", "é", 'A"B', 'a"B', "a b", "A b", "it's", "IT'S", "\U00010400", "\U00010428")
FLOATS = (-0.0, 0.0, 0.5, -1.5, 2.0, 3.4028234663852886e38, -3.4028234663852886e38, 1.401298464324817e-45)
DOUBLES = (*FLOATS[:5], 0.1, 1e6, 2.0**53, 1.7976931348623157e308, -1.7976931348623157e308, 5e-324,
           2.2250738585072014e-308)
#: Seconds: before 1970, whole days, a time between two summers, and far ahead.
INSTANTS_S = (-1_000_000_000, -86_400, -1, 0, 1, 1_711_846_800, 4_102_444_799)


def quoted(name: str) -> str:
    """Returns a name as statements write it."""
    return f"`{name.replace('`', '``')}`"


def ends(kind: Kind) -> tuple[int, int]:
    """Returns the least and the greatest value of a kind of integers."""
    bits = BITS[kind]
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if kind in SIGNED else (0, (1 << bits) - 1)


def texts(longest: int, *, characters: bool) -> list[str]:
    """Returns texts of at most so many bytes, or characters, among them one as long as that."""
    def length(text: str) -> int:
        return len(text) if characters else len(text.encode())

    full = "\U0001f600" * (longest if characters else longest // 4)
    return [text for text in TEXTS if length(text) <= longest] + [full + "z" * (longest - length(full))]


def extremes(type: DataType, units_per_second: int = 1_000) -> Sequence[Any]:
    """Returns values of a type, as Arrow takes them; times are units since the epoch."""
    match type.kind:
        case Kind.BOOL:
            return (True, False)
        case Kind.FLOAT:
            return FLOATS
        case Kind.DOUBLE:
            return DOUBLES
        case Kind.DECIMAL:
            end = Decimal((0, (9,) * (type.digits or 38), -(type.scale or 0)))
            return (Decimal(0), Decimal(1), Decimal(-1), end, end.copy_negate())
        case Kind.VARCHAR | Kind.NCHAR:
            return texts(type.length or 1, characters=type.kind is Kind.NCHAR)
        case Kind.VARBINARY:
            return (b"", b"x", b"\0", b"\xff\xfe", b"\\x41"[:type.length], b"\x80" * (type.length or 1))
        case Kind.TIMESTAMP:
            return [second * units_per_second + part for second in INSTANTS_S for part in (0, -1)]
    low, high = ends(type.kind)
    return sorted({low, low + 1, -1 if low else 1, 0, 1, 2, 100, high - 1, high})
