"""Reads CREATE TABLE of many child tables by a pattern: all of one super table, with plain tag values.

Whatever the pattern doesn't match is no error: the parser reads it, and says what is wrong with it.
"""

from __future__ import annotations

import re

from penstock.common.responsiveness import LONG_TEXT, one_at_a_time
from penstock.sql.dialect.tokenizer import KEYWORDS
from penstock.sql.rows.constants import PLAIN_TEXT
from penstock.sql.tree.statements import CreateChildTables, Name, PlainChildren

PLAIN_NAME = r"[A-Za-z_][A-Za-z0-9_]*+|`[^`]++`"
END = re.compile(r"\s*+;?+\s*+", re.ASCII)
_NAME = f"(?:{PLAIN_NAME})"
_NAMES = rf"\(\s*+{_NAME}\s*+(?:,\s*+{_NAME}\s*+)*+\)\s*+"
_TAG = rf"\s*+(?:[-+]?[0-9]{{1,20}}+(?:\.[0-9]{{1,20}}+)?+|{PLAIN_TEXT}|NULL|null|true|false|TRUE|FALSE)\s*+"
_CREATE = re.compile(r"\s*+CREATE\s++TABLE(?=\s)", re.ASCII | re.IGNORECASE)
_CHILD = re.compile(
    rf"(\s*+,)?+\s*+(IF\s++NOT\s++EXISTS\s++)?+(?:({_NAME})\.)?+({_NAME})\s++"
    rf"USING\s++((?:{_NAME}\.)?+{_NAME}\s*+(?:{_NAMES})?+)TAGS\s*+(?=\()", re.ASCII | re.IGNORECASE)
_TAGS = re.compile(rf"\({_TAG}(?:,{_TAG})*+\)", re.ASCII)
_USING = re.compile(rf"(?:({_NAME})\.)?+({_NAME})\s*+(?:\((.*)\)\s*+)?+", re.ASCII | re.DOTALL)


def read_plain_children(text: str) -> CreateChildTables | None:
    """Returns the statement that a text is, if it creates at least two child tables and the pattern matches it."""
    create = _CREATE.match(text)
    if create is None:
        return None
    with one_at_a_time(unless=len(text) < LONG_TEXT):
        plain = _read(text, create.end())
    return None if plain is None else CreateChildTables((), plain=plain)


def _read(text: str, at: int) -> PlainChildren | None:
    first = _CHILD.match(text, at)
    using = None if first is None else _USING.fullmatch(first[5])
    if first is None or using is None or first[1]:
        return None
    names: list[str] = []
    places: list[int] = []
    exists, database, said = first[2] is not None, first[3], first[5]
    found: re.Match[str] | None = first
    while found is not None:
        # An IF NOT EXISTS counts for what is behind it, too.
        if found[3] != database or found[5] != said or (found[2] and not exists):
            return None
        tags = _TAGS.match(text, found.end())
        name = plain_name(found[4])
        if tags is None or name is None:
            return None
        names.append(name)
        places.append(found.end())
        at = tags.end()
        found = _CHILD.match(text, at)
    listed = None if using[3] is None else [plain_name(one) for one in re.findall(_NAME, using[3])]
    words = [None if one is None else plain_name(one) for one in (database, using[1], using[2])]
    if len(names) < 2 or not END.fullmatch(text, at) or words[2] is None or None in (listed or ()):
        return None
    if (words[0] is None) != (database is None) or (words[1] is None) != (using[1] is None):
        return None
    return PlainChildren(
        text, Name(names[0], words[0]), Name(words[2], words[1]),
        None if listed is None else tuple(one for one in listed if one is not None), exists, tuple(names),
        tuple(places))


def plain_name(text: str) -> str | None:
    """Returns the name that a word is, None for keywords."""
    if text.startswith("`"):
        return text[1:-1]
    return None if text.upper() in KEYWORDS else text.lower()
