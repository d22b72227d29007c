"""DECLARE, FETCH, MOVE and CLOSE: cursors, from which a client of PostgreSQL takes some rows at a time."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from penstock.common.errors import InvalidStatementError, NotSupportedError, Position
from penstock.shell.postgres.statement_text import StatementText, split_statements

CURSOR_WORDS = frozenset({"DECLARE", "FETCH", "MOVE", "CLOSE"})
_NAME = r'(?P<name>"(?:[^"]|"")+"|[A-Za-z_]\w*)'
_DECLARE = re.compile(
    rf"DECLARE\s+{_NAME}\s+(?:(?:INSENSITIVE|ASENSITIVE|NO\s+SCROLL)\s+)*(?P<scroll>SCROLL\s+)?CURSOR"
    r"(?:\s+(?P<hold>WITH|WITHOUT)\s+HOLD)?\s+FOR\s+(?P<query>.+)", re.IGNORECASE | re.DOTALL)
_TAKE = re.compile(
    r"(?P<kind>FETCH|MOVE)\s+(?:(?:(?:FORWARD\s+)?(?P<count>\d{1,9})|(?:FORWARD\s+)?(?P<all>ALL)|NEXT|FORWARD)\s+)?"
    rf"(?:(?:FROM|IN)\s+)?{_NAME}", re.IGNORECASE)
_CLOSE = re.compile(rf"CLOSE\s+{_NAME}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CursorStatement:
    """What a statement does with a cursor; `name` None: CLOSE ALL.

    `count`: of the rows to be taken, None for all that are left. `query` of DECLARE, and what stands `before` it;
    `holds`: the cursor outlasts transactions.
    """

    kind: Literal["declare", "fetch", "move", "close"]
    name: str | None
    count: int | None = None
    query: StatementText | None = None
    before: str = ""
    holds: bool = False

    def within(self, place: Position | None) -> Position | None:
        """Returns a place in the query as one in the statement."""
        if place is None:
            return None
        *lines, last = self.before.split("\n")
        column = place.column + (len(last) if place.line == 1 else 0)
        return replace(place, line=place.line + len(lines), column=column)


def read_cursor_statement(statement: StatementText) -> CursorStatement:
    """Returns what a statement that begins with one of CURSOR_WORDS says.

    Raises InvalidStatementError, and NotSupportedError for cursors that go back.
    """
    text = statement.original
    if (found := _DECLARE.fullmatch(text)) is not None:
        if found["scroll"]:
            raise NotSupportedError("cursors go forward only", hint="leave out SCROLL")
        return CursorStatement("declare", _plain(found["name"]), None, _query(found["query"]),
                               text[:found.start("query")], (found["hold"] or "").upper() == "WITH")
    if (found := _TAKE.fullmatch(text)) is not None:
        count = None if found["all"] else int(found["count"] or 1)
        return CursorStatement("fetch" if found["kind"].upper() == "FETCH" else "move", _plain(found["name"]), count)
    if (found := _CLOSE.fullmatch(text)) is not None:
        return CursorStatement("close", None if found["name"].upper() == "ALL" else _plain(found["name"]))
    raise InvalidStatementError(
        f"{statement.words[0]} of a cursor can't be understood",
        hint="DECLARE name CURSOR [WITH HOLD] FOR query; FETCH [FORWARD] n | ALL FROM name; CLOSE name | ALL")


def _query(text: str) -> StatementText:
    queries = split_statements(text)
    if len(queries) != 1:
        raise InvalidStatementError("a cursor is for one query")
    return queries[0]


def _plain(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()
