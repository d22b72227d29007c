"""The table of scalar functions: arguments, result types, summaries; the planner knows what they compute."""

from __future__ import annotations

from penstock.planner.functions.spec import (
    INTEGER_KINDS,
    NUMBERS,
    TEXTS,
    TIMES,
    Argument,
    FunctionSpec,
    ResultRule,
    always,
    joined_text,
    joined_with_separator,
    same_as_first,
    text_of_first,
)
from penstock.sql.types import BIGINT, DOUBLE, INT, VARCHAR, DataType, Kind, timestamp

NUMBER = Argument("number", NUMBERS)
TEXT = Argument("text", TEXTS)
TIME = Argument("time", TIMES)
UNIT = Argument("unit", duration=True)


def _scalar(name: str, arguments: tuple[Argument, ...], result: ResultRule, summary: str) -> FunctionSpec:
    return FunctionSpec(name, "scalar", arguments, result, summary)


def _double(name: str, summary: str) -> FunctionSpec:
    return _scalar(name, (NUMBER,), always(DOUBLE), summary)


def _keeps_type(name: str, summary: str, *more: Argument) -> FunctionSpec:
    return _scalar(name, (NUMBER, *more), same_as_first, summary)


_DIGITS = Argument("digits", NUMBERS)

MATH = (
    _keeps_type("abs", "The absolute value."),
    _keeps_type("ceil", "The smallest whole number that is not less than the argument."),
    _keeps_type("floor", "The greatest whole number that is not greater than the argument."),
    _keeps_type(
        "round",
        "Rounds to `digits` decimal places (0 if left out), halves away from zero.",
        Argument("digits", NUMBERS, optional=True),
    ),
    _keeps_type(
        "truncate",
        "Cuts off after `digits` decimal places; negative digits cut left of the point.",
        _DIGITS,
    ),
    _keeps_type("trunc", "The same as truncate.", _DIGITS),
    _keeps_type("sign", "-1, 0 or 1: the sign of the argument."),
    _double("sqrt", "The square root; NULL for negative numbers."),
    _double("exp", "e raised to the argument."),
    _double("ln", "The natural logarithm; NULL for numbers that are not positive."),
    _scalar(
        "log",
        (NUMBER, Argument("base", NUMBERS, optional=True)),
        always(DOUBLE),
        "The logarithm to `base`, the natural one without a base; NULL where it is not defined.",
    ),
    _scalar(
        "pow", (NUMBER, Argument("exponent", NUMBERS)), always(DOUBLE), "The number raised to the exponent."
    ),
    _scalar("power", (NUMBER, Argument("exponent", NUMBERS)), always(DOUBLE), "The same as pow."),
    _scalar(
        "mod",
        (NUMBER, Argument("divisor", NUMBERS)),
        always(DOUBLE),
        "The remainder, with the sign of the first argument; NULL if the divisor is 0.",
    ),
    _double("sin", "The sine of an angle in radians."),
    _double("cos", "The cosine of an angle in radians."),
    _double("tan", "The tangent of an angle in radians."),
    _double("asin", "The arc sine in radians; NULL outside -1 to 1."),
    _double("acos", "The arc cosine in radians; NULL outside -1 to 1."),
    _double("atan", "The arc tangent in radians."),
    _double("degrees", "Radians to degrees."),
    _double("radians", "Degrees to radians."),
    _scalar("pi", (), always(DOUBLE), "The number pi."),
    _scalar(
        "rand",
        (Argument("seed", INTEGER_KINDS, optional=True),),
        always(DOUBLE),
        "A random number from 0 up to 1; the same one for the same seed.",
    ),
)

_COUNT = Argument("count", INTEGER_KINDS)
_SEPARATOR = Argument("separator", TEXTS)

STRING = (
    _scalar(
        "length",
        (Argument("text", TEXTS | {Kind.VARBINARY}),),
        always(BIGINT),
        "The length in bytes; NCHAR has four bytes per character.",
    ),
    _scalar("char_length", (TEXT,), always(BIGINT), "The length in characters."),
    _scalar("lower", (TEXT,), same_as_first, "The text in lower case."),
    _scalar("upper", (TEXT,), same_as_first, "The text in upper case."),
    _scalar("ltrim", (TEXT,), same_as_first, "The text without spaces on the left."),
    _scalar("rtrim", (TEXT,), same_as_first, "The text without spaces on the right."),
    _scalar(
        "trim",
        (TEXT, Argument("remove", TEXTS, optional=True)),
        same_as_first,
        "The text without spaces, or without whole repetitions of another text, at one or both ends: "
        "`trim([leading|trailing|both] [remove] from text)`.",
    ),
    _scalar(
        "substr",
        (TEXT, Argument("position", INTEGER_KINDS), Argument("count", INTEGER_KINDS, optional=True)),
        same_as_first,
        "`count` characters from `position` on; positions start at 1, negative ones at the end.",
    ),
    _scalar(
        "substring",
        (TEXT, Argument("position", INTEGER_KINDS), Argument("count", INTEGER_KINDS, optional=True)),
        same_as_first,
        "The same as substr; also `substring(text from position for count)`.",
    ),
    _scalar(
        "substring_index",
        (TEXT, Argument("delimiter", TEXTS), _COUNT),
        same_as_first,
        "What comes before the count-th delimiter, or after it, counted from the end, if count is negative.",
    ),
    _scalar(
        "concat",
        (TEXT, Argument("text", TEXTS, repeats=7)),
        joined_text,
        "Two to eight texts joined; NULL if one of them is, an error if that is longer than 65517 bytes.",
    ),
    _scalar(
        "concat_ws",
        (_SEPARATOR, TEXT, Argument("text", TEXTS, repeats=7)),
        joined_with_separator,
        "Two to eight texts joined with a separator between them; NULL if one of them is, an error if that is longer "
        "than 65517 bytes.",
    ),
    _scalar(
        "replace",
        (TEXT, Argument("search", TEXTS), Argument("replacement", TEXTS)),
        text_of_first,
        "The text with every occurrence of one text replaced by another; an error if that is longer than 65517 bytes.",
    ),
    _scalar(
        "repeat",
        (TEXT, _COUNT),
        text_of_first,
        "The text `count` times; empty if count is less than 1, NULL if that is longer than 65517 bytes."
    ),
    _scalar(
        "position",
        (Argument("search", TEXTS), TEXT),
        always(BIGINT),
        "Where a text first occurs in another, from 1; 0 if it doesn't: `position(search in text)`.",
    ),
    _scalar("ascii", (TEXT,), always(BIGINT), "The first byte of the text as a number."),
    _scalar(
        "char",
        (Argument("code", NUMBERS | TEXTS, repeats=1000),),
        always(VARCHAR),
        "The characters with these codes; NULLs are skipped.",
    ),
)


def _unixtimestamp_type(types: object) -> DataType:
    # Replaced by the planner for to_unixtimestamp(x, 1), whose type depends on a value.
    del types
    return BIGINT


_ZERO_ONE = (0, 1)

CONVERSION = (
    _scalar(
        "to_iso8601",
        (
            Argument("time", frozenset((Kind.TIMESTAMP, *INTEGER_KINDS))),
            Argument("zone", TEXTS, literal=True, optional=True),
        ),
        always(DataType(Kind.VARCHAR, 64)),
        "A time as ISO 8601 text with the offset of the session's time zone, or of `zone` such as '+02:00' or 'Z'.",
    ),
    _scalar(
        "to_unixtimestamp",
        (TEXT, Argument("as_timestamp", INTEGER_KINDS, literal=True, choices=_ZERO_ONE, optional=True)),
        _unixtimestamp_type,
        "ISO 8601 text as a time in units of the database's precision; a TIMESTAMP if the second argument is 1; "
        "NULL if the text is no time.",
    ),
    _scalar(
        "to_char",
        (Argument("time", TIMES), Argument("format", TEXTS, literal=True)),
        always(DataType(Kind.VARCHAR, 4096)),
        "A time as text in a format of YYYY, MM, DD, HH24, HH12, MI, SS, MS, US, NS, MON, DAY, AM, TZH, ...",
    ),
    _scalar(
        "to_timestamp",
        (TEXT, Argument("format", TEXTS, literal=True)),
        always(timestamp()),
        "Text in a format, as to_char has it, to a time; NULL if the text does not fit, an error if it is a "
        "constant.",
    ),
    _scalar(
        "to_json",
        (Argument("text", TEXTS, literal=True),),
        always(DataType(Kind.JSON)),
        "A string literal as JSON.",
    ),
)

TIME_FUNCTIONS = (
    _scalar("now", (), always(timestamp()), "The time at which the statement began."),
    _scalar("today", (), always(timestamp()), "Midnight of the current day in the session's time zone."),
    _scalar("timezone", (), always(DataType(Kind.VARCHAR, 64)), "The session's time zone."),
    _scalar(
        "timediff",
        (TIME, TIME, Argument("unit", duration=True, optional=True)),
        always(BIGINT),
        "The first time minus the second, in units of `unit`, cut towards zero.",
    ),
    _scalar(
        "timetruncate",
        (TIME, UNIT, Argument("use_zone", INTEGER_KINDS, literal=True, choices=_ZERO_ONE, optional=True)),
        always(timestamp()),
        "The time cut down to a whole 1b, 1u, 1a, 1s, 1m, 1h, 1d or 1w; days and weeks of the session's time zone, "
        "or of UTC if the third argument is 0.",
    ),
    _scalar(
        "week",
        (TIME, Argument("mode", INTEGER_KINDS, literal=True, low=0, high=7, optional=True)),
        always(BIGINT),
        "The number of the week; mode 0 to 7 tells how weeks are counted, as in MySQL.",
    ),
    _scalar("weekofyear", (TIME,), always(BIGINT), "The number of the ISO week, 1 to 53."),
    _scalar("weekday", (TIME,), always(BIGINT), "The day of the week, 0 is Monday."),
    _scalar("dayofweek", (TIME,), always(BIGINT), "The day of the week, 1 is Sunday."),
)

SYSTEM = (
    _scalar("database", (), always(DataType(Kind.VARCHAR, 64)), "The current database, or NULL."),
    _scalar("server_version", (), always(DataType(Kind.VARCHAR, 32)), "The version of the engine."),
    _scalar("client_version", (), always(DataType(Kind.VARCHAR, 32)), "The version of the client library."),
    _scalar("server_status", (), always(INT), "1: the engine answers."),
    _scalar("user", (), always(DataType(Kind.VARCHAR, 64)), "The user of the session."),
    _scalar("current_user", (), always(DataType(Kind.VARCHAR, 64)), "The same as user."),
)

SCALAR_FUNCTIONS = (*MATH, *STRING, *CONVERSION, *TIME_FUNCTIONS, *SYSTEM)
