"""The string functions; positions and counts are in characters."""

from __future__ import annotations

import re
import zlib
from functools import reduce

from sqlglot import exp

from penstock.common.quantities import MIB
from penstock.planner.duckdb_sql import time_format
from penstock.planner.duckdb_sql.duckdb_tree import Tree, call, fragment, joined, let, let_all, made, null, number, text
from penstock.planner.functions.spec import (
    ANY,
    INTEGER_KINDS,
    NUMBERS,
    TEXTS,
    Argument,
    FunctionSpec,
    ScalarBuilder,
    always,
    function,
    joined_text,
    joined_with_separator,
    same_as_first,
    text_of_first,
)
from penstock.planner.scalar.scalar_call import ScalarCall
from penstock.planner.scalar.scalar_cast import text_to_double
from penstock.planner.scalar.scalar_compare import check_pattern
from penstock.sql.types import BIGINT, FLOATS, STRINGS, VARCHAR, DataType, Kind, other_type

# No text has a place so far out, and DuckDB takes it.
_FAR = 1 << 31
LONGEST = 65_517
"""As many bytes as the longest VARCHAR has.

Arguments are bounded, not results: DuckDB computes a call of constants alone even where a CASE passes over it.
"""

_MOST_REPLACED = 16 * MIB

_TEXT = Argument("text", TEXTS)
_POSITION = Argument("position", INTEGER_KINDS)
_COUNT = Argument("count", INTEGER_KINDS)
_PADDING = Argument("padding", TEXTS, optional=True)


def within(value: Tree, low: int, high: int) -> Tree:
    """Returns an integer brought into a range; NULL stays NULL, which least() and greatest() would pass over."""
    return let(value, lambda n: fragment("CASE WHEN :n < :low THEN :low WHEN :n > :high THEN :high ELSE :n END",
                                         n=n, low=low, high=high))


def _length(given: ScalarCall) -> Tree:
    kind = given.arguments[0].type.kind
    if kind is Kind.VARBINARY:
        return call("octet_length", given.arguments[0].node)
    return fragment("length(:text) * 4" if kind is Kind.NCHAR else "strlen(:text)", text=given.text(0))


def _crc32(given: ScalarCall) -> Tree:
    """The checksum of zlib and MySQL, byte by byte by a table; DuckDB has none."""
    value = given.arguments[0]
    if value.type.kind is Kind.TIMESTAMP:
        printed = time_format.to_char(value.node, "YYYY-MM-DD HH24:MI:SS", given.precision, given.session.time_zone)
    elif value.type.kind in FLOATS:
        printed = fragment("regexp_replace(CAST(:value AS VARCHAR), '[.]0$', '')", value=value.node)
    else:
        printed = given.text(0)
    table = made(exp.Array, expressions=[number(zlib.crc32(bytes([byte ^ 255])) ^ 0xFF00_0000) for byte in range(256)])
    return let(printed, lambda x: fragment(
        "CAST(xor(list_reduce(list_transform(range(strlen(:x)), "
        "lambda place: CAST('0x' || substring(hex(:x), 2 * place + 1, 2) AS UBIGINT)), "
        "lambda crc, byte: xor(crc >> 8, CAST((:table)[CAST(xor(crc, byte) & 255 AS BIGINT) + 1] AS UBIGINT)), "
        "CAST(:start AS UBIGINT)), :start) AS UINTEGER)", x=x, table=table, start=0xFFFF_FFFF))


def too_long(function: str) -> Tree:
    """Returns an error in place of a text that would be longer than a VARCHAR."""
    return call("error", text(f"{function}(): the text would be longer than {LONGEST} bytes"))


def _joined(given: ScalarCall, places: list[int]) -> Tree:
    """Arguments joined in this order; one may come several times."""
    length = given.result.length
    if length is not None and length * (4 if given.result.kind is Kind.NCHAR else 1) <= LONGEST:
        return joined(*(given.text(place) for place in places))

    def body(*texts: Tree) -> Tree:
        lengths = [call("strlen", texts[place]) for place in places]
        return fragment("CASE WHEN :length > :longest THEN :refused ELSE :joined END",
                        length=reduce(lambda sum, more: fragment(":sum + :more", sum=sum, more=more), lengths),
                        longest=LONGEST, refused=too_long(given.name),
                        joined=joined(*(texts[place] for place in places)))

    return let_all([given.text(index) for index in range(len(given))], body)


def _concat(given: ScalarCall) -> Tree:
    return _joined(given, list(range(len(given))))


def _concat_ws(given: ScalarCall) -> Tree:
    return _joined(given, [1, *(place for index in range(2, len(given)) for place in (0, index))])


def _replace(given: ScalarCall) -> Tree:
    def body(whole: Tree, search: Tree, replacement: Tree) -> Tree:
        # What is short in any case needs no counting.
        return fragment(
            "replace(:whole, :search, CASE WHEN strlen(:replacement) > strlen(:search) "
            "AND strlen(:whole) * strlen(:replacement) > :longest * greatest(strlen(:search), 1) "
            "AND strlen(:whole) + ((strlen(:whole) - strlen(replace(:whole, :search, ''))) "
            "// greatest(strlen(:search), 1)) * (strlen(:replacement) - strlen(:search)) > :longest "
            "THEN :refused ELSE :replacement END)",
            whole=whole, search=search, replacement=replacement, longest=LONGEST, refused=too_long(given.name))

    return let_all((given.text(0), given.text(1), given.text(2)), body)


def _substr(given: ScalarCall) -> Tree:
    start, count = given.constant(1), given.constant(2)
    length: tuple[Tree, ...] = ()
    if len(given) > 2:
        length = (number(min(max(count, 0), _FAR)) if isinstance(count, int) else within(given.integer(2), 0, _FAR),)

    def from_end(x: Tree, position: Tree) -> Tree:
        start = fragment("greatest(length(:x) + :position, 0) + 1", x=x, position=position)
        return call("substring", x, start, *length)

    if isinstance(start, int):
        start = min(max(start, -_FAR), _FAR)
        if start > 0:
            return call("substring", given.text(0), number(start), *length)
        if start == 0:
            return fragment("left(:text, 0)", text=given.text(0))
        return let(given.text(0), lambda x: from_end(x, number(start)))
    return let_all((given.text(0), within(given.integer(1), -_FAR, _FAR)), lambda x, p: fragment(
        "CASE WHEN :p > 0 THEN :from_start WHEN :p = 0 THEN left(:x, 0) WHEN :p < 0 THEN :from_end END",
        x=x, p=p, from_start=call("substring", x, p, *length), from_end=from_end(x, p)))


def _padded(duckdb_name: str) -> ScalarBuilder:
    def build(given: ScalarCall) -> Tree:
        padding = given.text(2) if len(given) > 2 else text(" ")
        return let_all((given.text(0), given.integer(1), padding), lambda x, n, p: fragment(
            "CASE WHEN :n <= :longest AND :p <> '' THEN :padded WHEN :n <= length(:x) THEN left(:x, :n) END",
            x=x, n=n, p=p, longest=LONGEST,
            padded=call(duckdb_name, x, fragment("CAST(least(greatest(:n, 0), :longest) AS INTEGER)", n=n,
                                                 longest=LONGEST), p)))
    return build


def _regexp_extract(given: ScalarCall) -> Tree:
    pattern, group = given.constant(1), given.constant(2) if len(given) > 2 else 1
    if isinstance(pattern, str):
        check_pattern(pattern)
    if not isinstance(group, int):
        return null("VARCHAR")
    return fragment("nullif(regexp_extract(:text, :pattern, :group), '')", text=given.text(0), pattern=given.text(1),
                    group=group)


def _regexp_replace(given: ScalarCall) -> Tree:
    pattern = given.constant(1)
    if isinstance(pattern, str):
        check_pattern(pattern)
    options = [given.text(3)] if len(given) > 3 else []
    # No result is longer than every byte replaced by all of the replacement, whatever parts of the match this repeats.
    return let_all((given.text(0), given.text(2)), lambda whole, replacement: call(
        "regexp_replace", whole, given.text(1),
        fragment("CASE WHEN (strlen(:whole) + 1) * strlen(:replacement) > :most THEN :refused ELSE :replacement END",
                 whole=whole, replacement=replacement, most=_MOST_REPLACED,
                 refused=call("error", text(f"{given.name}(): the text might be longer than {_MOST_REPLACED} bytes"))),
        *options))


def _repeat(given: ScalarCall) -> Tree:
    return let_all((given.text(0), given.integer(1)), lambda x, n: fragment(
        "repeat(:x, CASE WHEN :n <= :longest // greatest(strlen(:x), 1) THEN :n END)", x=x, n=n, longest=LONGEST))


def _bitstring(given: ScalarCall) -> Tree:
    return let(given.integer(1), lambda n: call("bitstring", given.arguments[0].node, fragment(
        "CASE WHEN :n > 8 * :longest THEN :refused ELSE :n END::INTEGER", n=n, longest=LONGEST,
        refused=too_long(given.name))))


def _substring_index(given: ScalarCall) -> Tree:
    def head(whole: Tree, delimiter: Tree, count: Tree) -> Tree:
        return fragment(
            "left(:whole, CAST(list_sum(list_transform((string_split(:whole, :delimiter))[1:(:count)], "
            "lambda part: length(part))) AS BIGINT) "
            "+ (least(:count, len(string_split(:whole, :delimiter))) - 1) * length(:delimiter))",
            whole=whole, delimiter=delimiter, count=count)

    def body(whole: Tree, delimiter: Tree, count: Tree) -> Tree:
        # Delimiters are counted from the end the search starts at: in 'aaa1' the last 'aa' ends before the 1.
        backwards = call("reverse", head(call("reverse", whole), call("reverse", delimiter),
                                         fragment("-(:count)", count=count)))
        return fragment(
            "CASE WHEN :count > 0 AND :delimiter <> '' THEN :forwards WHEN :count < 0 AND :delimiter <> '' "
            "THEN :backwards ELSE left(:whole || :delimiter || CAST(:count AS VARCHAR), 0) END",
            whole=whole, delimiter=delimiter, count=count, forwards=head(whole, delimiter, count), backwards=backwards)

    return let_all((given.text(0), given.text(1), within(given.integer(2), -_FAR, _FAR)), body)


def trim(given: ScalarCall, mode: str = "both") -> Tree:
    """Returns TRIM: with one argument spaces go, else whole repetitions of the second; `mode` as in `Trim`."""
    whole = given.text(0)
    if len(given) == 1:
        return call({"both": "trim", "leading": "ltrim", "trailing": "rtrim"}[mode], whole, text(" "))
    remove = given.constant(1)
    if isinstance(remove, str):
        if not remove:
            return whole
        pattern = re.escape(remove)
        head, tail = text(f"^(?:{pattern})+"), text(f"(?:{pattern})+$")
    else:
        head = fragment("'^(?:' || regexp_escape(:remove) || ')+'", remove=given.text(1))
        tail = fragment("'(?:' || regexp_escape(:remove) || ')+$'", remove=given.text(1))
    if mode in ("both", "leading"):
        whole = fragment("regexp_replace(:whole, :head, '')", whole=whole, head=head)
    if mode in ("both", "trailing"):
        whole = fragment("regexp_replace(:whole, :tail, '')", whole=whole, tail=tail)
    return whole


def _ascii(given: ScalarCall) -> Tree:
    # DuckDB's ascii() gives the code point; TDengine the first byte of the character's UTF-8.
    return let(fragment("CAST(ascii(:text) AS BIGINT)", text=given.text(0)), lambda c: fragment(
        "CASE WHEN :c < 128 THEN :c WHEN :c < 2048 THEN 192 + :c // 64 "
        "WHEN :c < 65536 THEN 224 + :c // 4096 ELSE 240 + :c // 262144 END", c=c))


def _char(given: ScalarCall) -> Tree:
    def one(index: int) -> Tree:
        argument = given.arguments[index]
        if argument.type.kind is Kind.NULL:
            return text("")
        code = given.integer(index)
        if argument.type.kind in STRINGS:
            code = fragment("CAST(trunc(:number) AS BIGINT)", number=text_to_double(argument.node))
        # Codes above 255 are several characters, the high byte first.
        return let(fragment(":code & 4294967295", code=code), lambda c: fragment(
            "COALESCE(CASE WHEN :c >= 16777216 THEN chr(CAST((:c // 16777216) % 256 AS INTEGER)) ELSE '' END "
            "|| CASE WHEN :c >= 65536 THEN chr(CAST((:c // 65536) % 256 AS INTEGER)) ELSE '' END "
            "|| CASE WHEN :c >= 256 THEN chr(CAST((:c // 256) % 256 AS INTEGER)) ELSE '' END "
            "|| chr(CAST(:c % 256 AS INTEGER)), '')", c=c))
    return joined(*(one(index) for index in range(len(given))))


FUNCTIONS = (
    function("length", (Argument("text", TEXTS | {Kind.VARBINARY}),), always(BIGINT), _length, "length('Größe')",
             "The length in bytes; NCHAR has four bytes per character."),
    function("char_length", (_TEXT,), always(BIGINT), "length(:text)", "char_length('Größe')",
             "The length in characters."),
    function("lower", (_TEXT,), same_as_first, "lower(:text)", "lower('Oslo')", "The text in lower case."),
    function("upper", (_TEXT,), same_as_first, "upper(:text)", "upper('Oslo')", "The text in upper case."),
    function("ltrim", (_TEXT,), same_as_first, "ltrim(:text, ' ')", "ltrim('  x')",
             "The text without spaces on the left."),
    function("rtrim", (_TEXT,), same_as_first, "rtrim(:text, ' ')", "rtrim('x  ')",
             "The text without spaces on the right."),
    function("trim", (_TEXT, Argument("remove", TEXTS, optional=True)), same_as_first, trim,
             "trim(LEADING 'ab' FROM 'ababx')",
             "The text without spaces, or without repetitions of another text, at one or both ends: "
             "`trim([leading|trailing|both] [remove] from text)`."),
    function("substr", (_TEXT, _POSITION, Argument("count", INTEGER_KINDS, optional=True)), same_as_first, _substr,
             "substr('Hello', 2, 3)",
             "`count` characters from `position`. Positions start at 1; negative positions count from the end."),
    function("substring", (_TEXT, _POSITION, Argument("count", INTEGER_KINDS, optional=True)), same_as_first, _substr,
             "substring('Hello' FROM -2)", "The same as substr; also `substring(text from position for count)`."),
    function("substring_index", (_TEXT, Argument("delimiter", TEXTS), _COUNT), same_as_first, _substring_index,
             "substring_index('a.b.c', '.', 2)",
             "The text before the count-th delimiter. If `count` is negative, the text after it, counted from the "
             "end."),
    function("concat", (_TEXT, Argument("text", TEXTS, repeats=7)), joined_text, _concat, "concat('a', 'b', 'c')",
             "Two to eight texts joined; NULL if one of them is NULL. A result longer than 65517 bytes is an "
             "error."),
    function("concat_ws", (Argument("separator", TEXTS), _TEXT, Argument("text", TEXTS, repeats=7)),
             joined_with_separator, _concat_ws, "concat_ws('-', 'a', 'b', 'c')",
             "Two to eight texts joined with a separator; NULL if one of them is NULL. A result longer than 65517 "
             "bytes is an error."),
    function("replace", (_TEXT, Argument("search", TEXTS), Argument("replacement", TEXTS)), text_of_first, _replace,
             "replace('aabb', 'a', 'x')",
             "The text with every occurrence of one text replaced by another. A result longer than 65517 bytes is "
             "an error."),
    function("lpad", (_TEXT, _COUNT, _PADDING), text_of_first, _padded("lpad"), "lpad('7', 3, '0')",
             "The text padded on the left to `count` characters with spaces or another text. A longer text is "
             "truncated. NULL if `count` is more than 65517."),
    function("rpad", (_TEXT, _COUNT, _PADDING), text_of_first, _padded("rpad"), "rpad('7', 3, '0')",
             "As lpad, padded on the right."),
    function("regexp_extract",
             (_TEXT, Argument("pattern", TEXTS, literal=True),
               Argument("group", INTEGER_KINDS, low=0, high=512, optional=True)),
             text_of_first, _regexp_extract, "regexp_extract('2026-04', '([0-9]+)-([0-9]+)', 2)",
             "The text that a group of a regular expression matches. The default is the first group; 0 is the "
             "whole expression. NULL if there is no match or the match is empty."),
    function("regexp_replace",
             (_TEXT, Argument("pattern", TEXTS), Argument("replacement", TEXTS),
               Argument("options", TEXTS, literal=True, optional=True)),
             text_of_first, _regexp_replace, "regexp_replace('2026-04', '([0-9]+)-([0-9]+)', '\\\\2/\\\\1')",
             "The text with the first match of a regular expression replaced, or all matches with the option `g`. "
             "`\\\\1` stands for the first group. It is an error if the result might exceed 16 MiB."),
    function("repeat", (_TEXT, _COUNT), text_of_first, _repeat, "repeat('ab', 3)",
             "The text `count` times; empty if `count` is less than 1. NULL if the result is longer than 65517 "
             "bytes."),
    FunctionSpec("bitstring", "scalar", (Argument("bits", TEXTS | {Kind.OTHER}), Argument("length", INTEGER_KINDS)),
                 always(other_type("BIT")),
                 "The bits with leading zeros up to the length. A result longer than 65517 bytes is an error.",
                 in_stream=False, example="bitstring('101', 8)", scalar=_bitstring),
    function("position", (Argument("search", TEXTS), _TEXT), always(BIGINT), "strpos(:text, :search)",
             "position('l' IN 'Hello')",
             "The position of the first occurrence of one text in another, from 1; 0 if there is none: "
             "`position(search in text)`."),
    function("ascii", (_TEXT,), always(BIGINT), _ascii, "ascii('a')", "The first byte of the text as a number."),
    function("char", (Argument("code", NUMBERS | TEXTS, repeats=1000),), always(VARCHAR), _char, "char(77, 121)",
             "The characters with these codes; NULLs are skipped."),
    function("crc32", (Argument("value", ANY - {Kind.JSON, Kind.GEOMETRY}),), always(DataType(Kind.UINT)), _crc32,
             "crc32('abc')", "The CRC-32 checksum of the text, or of the value as text."),
)
