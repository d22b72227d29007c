"""The string functions as DuckDB SQL; positions and counts are in characters."""

from __future__ import annotations

import re

from penstock.planner.scalar_call import Builder, Call
from penstock.planner.scalar_cast import text_to_double
from penstock.planner.scalar_sql import let, let_all, quote_text
from penstock.sql.types import STRINGS, Kind

# No text has a place so far out, and DuckDB takes it.
_FAR = 1 << 31
# As many bytes as the longest VARCHAR.
_LONGEST = 65_517


def _within(sql: str, low: int, high: int) -> str:
    """SQL of an integer brought into a range; NULL stays NULL, which least() and greatest() would pass over."""
    return let(sql, lambda n: f"CASE WHEN {n} < {low} THEN {low} WHEN {n} > {high} THEN {high} ELSE {n} END")


def _length(call: Call) -> str:
    kind = call.arguments[0].type.kind
    if kind is Kind.VARBINARY:
        return f"octet_length({call.arguments[0].sql})"
    return f"(length({call.text(0)}) * 4)" if kind is Kind.NCHAR else f"strlen({call.text(0)})"


def _too_long(call: Call) -> str:
    return f"error({quote_text(f'{call.name}(): the text would be longer than {_LONGEST} bytes')})"


def _joined(call: Call, places: list[int]) -> str:
    """SQL of arguments joined in this order; one may come several times."""
    length = call.result.length
    if length is not None and length * (4 if call.result.kind is Kind.NCHAR else 1) <= _LONGEST:
        return "(" + " || ".join(call.text(place) for place in places) + ")"

    def body(*texts: str) -> str:
        parts = [texts[place] for place in places]
        return (f"CASE WHEN {' + '.join(f'strlen({part})' for part in parts)} > {_LONGEST} THEN {_too_long(call)} "
                f"ELSE {' || '.join(parts)} END")

    return let_all(tuple(call.text(index) for index in range(len(call))), body)


def _concat(call: Call) -> str:
    return _joined(call, list(range(len(call))))


def _concat_ws(call: Call) -> str:
    return _joined(call, [1, *(place for index in range(2, len(call)) for place in (0, index))])


def _replace(call: Call) -> str:
    def body(text: str, search: str, replacement: str) -> str:
        found = f"(strlen({text}) - strlen(replace({text}, {search}, ''))) // greatest(strlen({search}), 1)"
        # What is short in any case needs no counting.
        return (f"CASE WHEN strlen({replacement}) > strlen({search}) "
                f"AND strlen({text}) * strlen({replacement}) > {_LONGEST} * greatest(strlen({search}), 1) "
                f"AND strlen({text}) + ({found}) * (strlen({replacement}) - strlen({search})) > {_LONGEST} "
                f"THEN {_too_long(call)} ELSE replace({text}, {search}, {replacement}) END")

    return let_all((call.text(0), call.text(1), call.text(2)), body)


def _substr(call: Call) -> str:
    start, count = call.constant(1), call.constant(2)
    if len(call) == 2:
        length = ""
    elif isinstance(count, int):
        length = f", {min(max(count, 0), _FAR)}"
    else:
        length = f", {_within(call.integer(2), 0, _FAR)}"
    if isinstance(start, int):
        start = min(max(start, -_FAR), _FAR)
        if start > 0:
            return f"substring({call.text(0)}, {start}{length})"
        if start == 0:
            return f"left({call.text(0)}, 0)"
        return let(call.text(0), lambda x: f"substring({x}, greatest(length({x}) + ({start}), 0) + 1{length})")
    return let_all((call.text(0), _within(call.integer(1), -_FAR, _FAR)), lambda x, p: (
        f"CASE WHEN {p} > 0 THEN substring({x}, {p}{length}) WHEN {p} = 0 THEN left({x}, 0) "
        f"WHEN {p} < 0 THEN substring({x}, greatest(length({x}) + {p}, 0) + 1{length}) END"))


def _repeat(call: Call) -> str:
    return let_all((call.text(0), call.integer(1)), lambda x, n: (
        f"CASE WHEN {n} <= {_LONGEST} // greatest(strlen({x}), 1) THEN repeat({x}, {n}) END"))


def _substring_index(call: Call) -> str:
    def head(text: str, delimiter: str, count: str) -> str:
        parts = f"string_split({text}, {delimiter})"
        taken = f"list_sum(list_transform({parts}[1:{count}], lambda part: length(part)))"
        between = f"(least({count}, len({parts})) - 1) * length({delimiter})"
        return f"left({text}, CAST({taken} AS BIGINT) + {between})"

    def body(text: str, delimiter: str, count: str) -> str:
        # Delimiters are counted from the end the search starts at: in 'aaa1' the last 'aa' ends before the 1.
        backwards = f"reverse({head(f'reverse({text})', f'reverse({delimiter})', f'-({count})')})"
        return (f"CASE WHEN {count} > 0 AND {delimiter} <> '' THEN {head(text, delimiter, count)} "
                f"WHEN {count} < 0 AND {delimiter} <> '' THEN {backwards} "
                f"ELSE left({text} || {delimiter} || CAST({count} AS VARCHAR), 0) END")

    return let_all((call.text(0), call.text(1), _within(call.integer(2), -_FAR, _FAR)), body)


def trim_text(text: str, remove: str | None, remove_constant: object | None, mode: str) -> str:
    """Returns SQL for TRIM: without `remove` spaces go, else whole repetitions of it; `mode` as in `Trim`."""
    if remove is None:
        return {"both": f"trim({text}, ' ')", "leading": f"ltrim({text}, ' ')",
                "trailing": f"rtrim({text}, ' ')"}[mode]
    if isinstance(remove_constant, str):
        if not remove_constant:
            return text
        pattern = re.escape(remove_constant)
        head, tail = quote_text(f"^(?:{pattern})+"), quote_text(f"(?:{pattern})+$")
    else:
        escaped = f"regexp_escape({remove})"
        head, tail = f"('^(?:' || {escaped} || ')+')", f"('(?:' || {escaped} || ')+$')"
    if mode in ("both", "leading"):
        text = f"regexp_replace({text}, {head}, '')"
    if mode in ("both", "trailing"):
        text = f"regexp_replace({text}, {tail}, '')"
    return text


def _ascii(call: Call) -> str:
    # DuckDB's ascii() gives the code point; TDengine the first byte of the character's UTF-8.
    return let(f"CAST(ascii({call.text(0)}) AS BIGINT)", lambda c: (
        f"CASE WHEN {c} < 128 THEN {c} WHEN {c} < 2048 THEN 192 + {c} // 64 "
        f"WHEN {c} < 65536 THEN 224 + {c} // 4096 ELSE 240 + {c} // 262144 END"))


def _char(call: Call) -> str:
    def one(index: int) -> str:
        argument = call.arguments[index]
        if argument.type.kind is Kind.NULL:
            return "''"
        number = call.integer(index)
        if argument.type.kind in STRINGS:
            number = f"CAST(trunc({text_to_double(argument.sql)}) AS BIGINT)"
        # Codes above 255 are several characters, the high byte first.
        return let(f"({number} & 4294967295)", lambda c: "COALESCE(" + " || ".join(
            f"CASE WHEN {c} >= {1 << shift} THEN chr(CAST(({c} // {1 << shift}) % 256 AS INTEGER)) ELSE '' END"
            for shift in (24, 16, 8)) + f" || chr(CAST({c} % 256 AS INTEGER)), '')")
    return "(" + " || ".join(one(index) for index in range(len(call))) + ")"


BUILDERS: dict[str, Builder] = {
    "length": _length,
    "char_length": lambda call: f"length({call.text(0)})",
    "lower": lambda call: f"lower({call.text(0)})",
    "upper": lambda call: f"upper({call.text(0)})",
    "ltrim": lambda call: trim_text(call.text(0), None, None, "leading"),
    "rtrim": lambda call: trim_text(call.text(0), None, None, "trailing"),
    "substr": _substr,
    "substring": _substr,
    "substring_index": _substring_index,
    "concat": _concat,
    "concat_ws": _concat_ws,
    "replace": _replace,
    "repeat": _repeat,
    "position": lambda call: f"strpos({call.text(1)}, {call.text(0)})",
    "ascii": _ascii,
    "char": _char,
}
