"""What DuckDB's tests write otherwise than the dialect means it: quotes of names, backslashes, letters' case."""

from __future__ import annotations

import re
from collections.abc import Callable

_TOKENS = re.compile(r"""
    (?P<text>'(?:[^']|'')*')|(?P<name>"(?:[^"]|"")*")|(?P<comment>--[^\n]*|/\*.*?\*/)|(?P<word>[A-Za-z_]\w*)
    |(?P<dollars>\$\$.*?\$\$)|(?P<other>\s+|\d[\w.]*|.)""", re.VERBOSE | re.DOTALL)


def rewritten(sql: str) -> str:
    """Returns the statement in the dialect's spelling: names in back-quotes, backslashes of texts doubled.

    DuckDB finds names whatever their case, and the dialect folds those without quotes: so those in quotes are folded.
    """
    turned: dict[str, Callable[[str], str]] = {
        "text": lambda text: text.replace("\\", "\\\\"),
        "name": lambda name: "`" + name[1:-1].replace('""', '"').replace("`", "``").lower() + "`",
        "comment": lambda _: " "}
    return "".join(turned.get(str(found.lastgroup), str)(found[0]) for found in _TOKENS.finditer(sql))


def words(sql: str) -> list[str]:
    """Returns the words and names of a statement, in small letters, in order; no texts, no comments."""
    return [found[0].strip('"').lower() for found in _TOKENS.finditer(sql) if found.lastgroup in ("word", "name")]
