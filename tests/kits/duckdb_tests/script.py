"""DuckDB's test files, in the form of sqllogictest: their text to statements, with loops written out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Literal

Expected = Literal["ok", "error", "rows", "anything"]

_NUMBERS = ("tinyint", "smallint", "integer", "bigint", "utinyint", "usmallint", "uinteger", "ubigint", "hugeint",
            "uhugeint")
_LISTS = {
    "<integral>": _NUMBERS,
    "<signed>": ("tinyint", "smallint", "integer", "bigint", "hugeint"),
    "<unsigned>": ("utinyint", "usmallint", "uinteger", "ubigint", "uhugeint"),
    "<numeric>": (*_NUMBERS, "float", "double"),
    "<alltypes>": (*_NUMBERS, "float", "double", "bool", "interval", "varchar"),
    "<compression>": ("none", "uncompressed", "rle", "bitpacking", "dictionary", "fsst", "alp", "alprd"),
}
_LOOPS = ("loop", "foreach", "concurrentloop", "concurrentforeach")
_HEADS = ("statement", "query", "require", "mode", "halt", "skipif", "onlyif", "endloop", *_LOOPS)
#: What a file may require: what this DuckDB is, or what nothing depends on here.
_MET = {"core_functions", "json", "icu", "parquet", "notwindows", "64bit", "longdouble", "noforcestorage",
        "no_force_storage", "skip_reload", "no_alternative_verify", "strinline", "no_vector_verification"}


@dataclass(frozen=True, slots=True)
class Recorded:
    """One statement of a file: in which line it begins, on which connection, and what is expected of it.

    `ordered`: the rows are expected as they come, else in any order.
    """

    line: int
    sql: str
    expected: Expected
    connection: str = ""
    ordered: bool = True


class NotPlayedError(Exception):
    """The file can't be played here; the message says why."""


def recorded(text: str) -> Iterator[Recorded]:
    """Yields the statements of a file as they come, those of loops once for each round.

    Raises NotPlayedError where the file requires what isn't there.
    """
    lines = text.splitlines()
    yield from _played(_blocks(lines), {})


def _blocks(lines: Sequence[str]) -> list[tuple[int, list[str]]]:
    """Returns the parts of a file, which empty lines and one-line directives divide, with the numbers of their lines.
    """
    found: list[tuple[int, list[str]]] = []
    fresh = True
    for number, line in enumerate(lines, 1):
        if line.startswith("#"):
            continue
        if not line.strip():
            fresh = True
            continue
        head = line.split()[0]
        if fresh or (head in _HEADS and found[-1][1][0].split()[0] not in ("statement", "query")):
            found.append((number, []))
            fresh = False
        found[-1][1].append(line)
    return found


def _played(blocks: Sequence[tuple[int, list[str]]], values: dict[str, str]) -> Iterator[Recorded]:
    place, skipping, skip_next = 0, False, False
    while place < len(blocks):
        number, lines = blocks[place]
        head, *rest = _filled(lines[0], values).split()
        place += 1
        if head in _LOOPS:
            end = _end(blocks, place)
            for value in _rounds(head, rest):
                names = rest[0].split(",")
                given = value.split(",") if len(names) > 1 else [value]
                yield from _played(blocks[place:end], values | dict(zip(names, given, strict=True)))
            place = end + 1
        elif head == "mode":
            skipping = rest[0] == "skip" or (skipping and rest[0] != "unskip")
        elif head in ("skipif", "onlyif"):
            skip_next = not _holds(rest, values) if head == "onlyif" else _holds(rest, values)
        elif head == "halt":
            return
        elif head == "require":
            _require(rest)
        elif head in ("statement", "query") and rest:
            if not skipping and not skip_next:
                yield _statement(number, head, rest, [_filled(line, values) for line in lines[1:]])
            skip_next = False


def _statement(number: int, head: str, rest: Sequence[str], lines: Sequence[str]) -> Recorded:
    end = lines.index("----") if "----" in lines else len(lines)
    sql = "\n".join(lines[:end]).strip().rstrip(";").rstrip()
    if head == "query":
        return Recorded(number, sql, "rows", next((word for word in rest[1:] if word.startswith("con")), ""),
                        not {"rowsort", "valuesort", "sort"} & set(rest[1:]))
    expected: dict[str, Expected] = {"ok": "ok", "error": "error"}
    return Recorded(number, sql, expected.get(rest[0], "anything"), rest[1] if len(rest) > 1 else "")


def _end(blocks: Sequence[tuple[int, list[str]]], start: int) -> int:
    """Returns the place of the ENDLOOP that belongs to a loop whose first block is at `start`."""
    depth = 1
    for place in range(start, len(blocks)):
        head = blocks[place][1][0].split()[0]
        depth += (head in _LOOPS) - (head == "endloop")
        if depth == 0:
            return place
    raise NotPlayedError("a loop has no end")


def _rounds(head: str, rest: Sequence[str]) -> list[str]:
    if head in ("loop", "concurrentloop"):
        return [str(number) for number in range(int(rest[1]), int(rest[2]))]
    left_out = {word[1:] for word in rest[1:] if word.startswith("!")}
    given = [value for word in rest[1:] if not word.startswith("!") for value in _LISTS.get(word, (word,))]
    return [value for value in given if value not in left_out]


def _filled(line: str, values: dict[str, str]) -> str:
    return re.sub(r"\$?\{(\w+)\}", lambda found: values.get(found[1], found[0]), line)


def _holds(rest: Sequence[str], values: dict[str, str]) -> bool:
    """Tells whether the condition of SKIPIF or ONLYIF holds: an engine's name, or a comparison with a loop's value."""
    compared = re.fullmatch(r"(\w+)(=|<>|<=|>=|<|>)(.+)", rest[0])
    if compared is None:
        return rest[0] == "duckdb"
    value, wanted = values.get(compared[1], ""), compared[3]
    if compared[2] in ("=", "<>"):
        return (value == wanted) is (compared[2] == "=")
    low, high = int(value), int(wanted)
    return {"<": low < high, ">": low > high, "<=": low <= high, ">=": low >= high}[compared[2]]


def _require(rest: Sequence[str], met: Set[str] = frozenset(_MET)) -> None:
    if rest[0] == "vector_size" and int(rest[1]) <= 2048:
        return
    if rest[0] not in met:
        raise NotPlayedError(f"requires {rest[0]}")
