"""DECLARE, FETCH, MOVE and CLOSE: cursors, from which a client of PostgreSQL takes some rows at a time."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from penstock.common.errors import InvalidStatementError, NotSupportedError, PenstockError, Position
from penstock.planner.task_plans.plan_tree import ResultColumn
from penstock.shell.postgres.portals import Portal, Portals, StatementAnswer
from penstock.shell.postgres.statement_text import StatementText, split_statements
from penstock.sql.tree.expression_nodes import plain_name

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
        return CursorStatement("declare", plain_name(found["name"]), None, _query(found["query"]),
                               text[:found.start("query")], (found["hold"] or "").upper() == "WITH")
    if (found := _TAKE.fullmatch(text)) is not None:
        count = None if found["all"] else int(found["count"] or 1)
        kind: Literal["fetch", "move"] = "fetch" if found["kind"].upper() == "FETCH" else "move"
        return CursorStatement(kind, plain_name(found["name"]), count)
    if (found := _CLOSE.fullmatch(text)) is not None:
        return CursorStatement("close", None if found["name"].upper() == "ALL" else plain_name(found["name"]))
    raise InvalidStatementError(
        f"{statement.words[0]} of a cursor can't be understood",
        hint="DECLARE name CURSOR [WITH HOLD] FOR query; FETCH [FORWARD] n | ALL FROM name; CLOSE name | ALL")


class Cursors:
    """Does what statements say about the cursors of a session, which are portals that have a query."""

    def __init__(
        self, portals: Portals, columns_of: Callable[[Portal], tuple[ResultColumn, ...] | None],
        held: Callable[[Portal, StatementText], StatementAnswer],
    ) -> None:
        """`columns_of` plans a portal's statement and returns its columns, None for one without rows; `held` returns
        its answer, having executed it if need be.
        """
        self._portals = portals
        self._columns_of = columns_of
        self._held = held

    def answer(self, asked: CursorStatement, in_transaction: bool, *, look_only: bool) -> StatementAnswer:
        """Answers a statement; `look_only`: to know the columns, changing nothing. Raises PenstockErrors."""
        if asked.kind == "declare":
            if not look_only:
                self._declare(asked, in_transaction)
            return StatementAnswer("DECLARE CURSOR")
        if asked.name is None:
            if not look_only:
                self._portals.close_all(held=True)
            return StatementAnswer("CLOSE CURSOR ALL")
        portal = self._portals.get(asked.name)
        if asked.kind == "close":
            if not look_only:
                self._portals.close(asked.name)
            return StatementAnswer("CLOSE CURSOR")
        if look_only and portal.remaining is None:
            return StatementAnswer("FETCH {}", self._columns_of(portal))
        assert portal.text is not None
        columns = self._held(portal, portal.text).columns
        if look_only:
            return StatementAnswer("FETCH {}", columns)
        rows = list(portal.taken(asked.count))
        if asked.kind == "move":
            return StatementAnswer(f"MOVE {sum(batch.num_rows for batch in rows)}")
        return StatementAnswer("FETCH {}", columns, rows)

    def _declare(self, asked: CursorStatement, in_transaction: bool) -> None:
        assert asked.name is not None
        if not asked.holds and not in_transaction:
            raise InvalidStatementError(f"the cursor {asked.name} would be closed at the end of the statement",
                                        hint="BEGIN first, or declare it WITH HOLD")
        if self._portals.find(asked.name) is not None:
            raise InvalidStatementError(f"there is a cursor {asked.name} already", hint=f"CLOSE {asked.name}")
        self._portals.check_room(asked.name)
        portal = Portal(asked.query, holds=asked.holds)
        try:
            columns = self._columns_of(portal)
        except PenstockError as error:
            error.position = asked.within(error.position)
            raise
        if columns is None:
            raise InvalidStatementError("a cursor is for a query, which gives rows")
        self._portals.put(asked.name, portal)


def _query(text: str) -> StatementText:
    queries = split_statements(text)
    if len(queries) != 1:
        raise InvalidStatementError("a cursor is for one query")
    return queries[0]
