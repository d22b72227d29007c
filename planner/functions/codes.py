"""Functions that encode, hash or mask a text."""

from __future__ import annotations

from penstock.planner.duckdb_sql import time_format
from penstock.planner.duckdb_sql.duckdb_tree import Tree, fragment, let, let_all
from penstock.planner.functions.spec import (
    INTEGER_KINDS,
    NUMBERS,
    TEXTS,
    Argument,
    always,
    function,
    text_of_first,
)
from penstock.planner.functions.string import LONGEST, too_long, within
from penstock.planner.scalar.scalar_call import ScalarCall
from penstock.sql.types import VARCHAR, DataType, Kind

_TEXT = Argument("text", TEXTS)


def _to_base64(given: ScalarCall) -> Tree:
    value = given.arguments[0]
    if value.type.kind is Kind.TIMESTAMP:
        # The same text in every time zone.
        form = f'YYYY-MM-DD HH24:MI:SS.{value.type.precision}"+00"'
        printed = time_format.to_char(value.node, form, value.type.precision, "UTC")
    elif value.type.kind is Kind.BOOL:
        printed = fragment("CAST(CAST(:value AS TINYINT) AS VARCHAR)", value=value.node)
    else:
        printed = given.text(0)
    return let(printed, lambda x: fragment(
        "CASE WHEN strlen(:x) > :longest THEN :refused ELSE to_base64(encode(:x)) END", x=x,
        longest=LONGEST // 4 * 3, refused=too_long(given.name)))


def _from_base64(given: ScalarCall) -> Tree:
    # `let` keeps error() and random() out of TRY, in which DuckDB does not allow them.
    return let(given.text(0), lambda x: fragment("TRY(decode(from_base64(:x)))", x=x))


def _mask_partial(given: ScalarCall) -> Tree:
    def body(whole: Tree, head: Tree, tail: Tree, mask: Tree) -> Tree:
        return fragment(
            "CASE WHEN :head + :tail >= length(:whole) THEN repeat(left(:mask, 1), length(:whole)) "
            "ELSE repeat(left(:mask, 1), :head) || substring(:whole, :head + 1, length(:whole) - :head - :tail) "
            "|| repeat(left(:mask, 1), :tail) END", whole=whole, head=head, tail=tail, mask=mask)

    return let_all((given.text(0), within(given.integer(1), 0, LONGEST), within(given.integer(2), 0, LONGEST),
                    given.text(3)), body)


FUNCTIONS = (
    function("to_base64", (Argument("value", NUMBERS | TEXTS | {Kind.BOOL, Kind.TIMESTAMP}),), always(VARCHAR),
             _to_base64, "to_base64('Hello')",
             "The text, or the value as text, in Base64: BOOL as 0 or 1, TIMESTAMP in UTC. A result longer than "
             "65517 bytes is an error."),
    function("from_base64", (_TEXT,), always(VARCHAR), _from_base64, "from_base64('SGVsbG8=')",
             "The text encoded in Base64; NULL if the argument isn't Base64 of a text."),
    function("md5", (_TEXT,), always(DataType(Kind.VARCHAR, 32)), "md5(:text)", "md5('mytext')",
             "The MD5 hash of the text, in hexadecimal digits."),
    function("sha1", (_TEXT,), always(DataType(Kind.VARCHAR, 40)), "sha1(:text)", "sha1('mytext')",
             "The SHA-1 hash of the text, in hexadecimal digits."),
    function("sha", (_TEXT,), always(DataType(Kind.VARCHAR, 40)), "sha1(:text)", "sha('mytext')", "The same as sha1."),
    function("sha2", (_TEXT, Argument("bits", INTEGER_KINDS, literal=True, choices=(256,))),
             always(DataType(Kind.VARCHAR, 64)), "sha256(:text)", "sha2('mytext', 256)",
             "The SHA-2 hash of the text, in hexadecimal digits; of 256 bits."),
    function("mask_full", (_TEXT, Argument("mask", TEXTS)), text_of_first,
             "CASE WHEN :text IS NOT NULL THEN :mask END", "mask_full('mytext', 'SECRET')",
             "The mask in place of the text."),
    function("mask_partial", (_TEXT, Argument("head", INTEGER_KINDS), Argument("tail", INTEGER_KINDS),
                               Argument("mask", TEXTS)),
             text_of_first, _mask_partial, "mask_partial('mytext', 1, 2, '*')",
             "The text with the given number of characters at its head and tail replaced by a character."),
    function("mask_none", (_TEXT,), text_of_first, ":text", "mask_none('mytext')", "The text as it is."),
)
