"""What DuckDB's tests write otherwise than the dialect means it: quotes of names, backslashes, letters' case."""

from __future__ import annotations

import re
from collections.abc import Callable

from penstock.sql.dialect.tokenizer import KEYWORDS

_TOKENS = re.compile(r"""
    (?P<text>'(?:[^']|'')*')|(?P<name>"(?:[^"]|"")*")|(?P<comment>--[^\n]*|/\*.*?\*/)|(?P<word>[A-Za-z_]\w*)
    |(?P<dollars>\$\$.*?\$\$)|(?P<other>\s+|\d[\w.]*|.)""", re.VERBOSE | re.DOTALL)


#: Words that the dialect reserves, and that mean nothing to DuckDB: names, unless a parenthesis follows.
_ONLY_OURS = {"CONTAINS", "FILL", "JLIMIT", "MATCH", "NMATCH", "SESSION", "SLIDING", "STABLE", "STREAM", "SUBTABLE",
              "TAG", "TAGS", "TODAY", "TRIGGER", "WATERMARK"}
_NO_TABLES = {"SELECT", "VALUES", "TABLE", "JSON"}


def rewritten(sql: str) -> str:
    """Returns the statement in the dialect's spelling: names in back-quotes, backslashes of texts doubled.

    DuckDB finds names whatever their case, and the dialect folds those without quotes: so those in quotes are folded.
    Words that the dialect reserves and DuckDB doesn't are put into back-quotes where they are names.
    """
    tokens = [(str(found.lastgroup), found[0]) for found in _TOKENS.finditer(sql)]
    said = [(place, text.upper()) for place, (kind, text) in enumerate(tokens)
            if kind != "comment" and not text.isspace()]
    for (_, before), (place, word), (_, behind) in zip([(-1, ""), *said], said, [*said[1:], (-1, "")], strict=False):
        if tokens[place][0] == "word" and word in KEYWORDS and (
                before == "." or behind == "." or (word in _ONLY_OURS and behind != "(")
                or (before in ("FROM", "JOIN") and word not in _NO_TABLES and behind != "(")):
            tokens[place] = "name", f'"{word}"'
    turned: dict[str, Callable[[str], str]] = {
        "text": lambda text: text.replace("\\", "\\\\"),
        "name": lambda name: "`" + name[1:-1].replace('""', '"').replace("`", "``").lower() + "`",
        "comment": lambda _: " "}
    return "".join(turned.get(kind, str)(text) for kind, text in tokens)


def words(sql: str) -> list[str]:
    """Returns the words and names of a statement, in small letters, in order; no texts, no comments."""
    return [found[0].strip('"').lower() for found in _TOKENS.finditer(sql) if found.lastgroup in ("word", "name")]
