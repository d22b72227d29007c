"""Parses SHOW, DESCRIBE and KILL QUERY."""

from __future__ import annotations

import re

from penstock.common.errors import SqlSyntaxError
from penstock.sql.cursor import Cursor
from penstock.sql.lexer import TokenKind
from penstock.sql.literals import position
from penstock.sql.statements import Describe, KillQuery, Name, Show, Statement

# Plain forms: `SHOW <words>`.
_PLAIN = (
    ("STREAM", "TASKS"), ("STREAMS",), ("INGESTS",), ("QUEUES",), ("WATERMARKS",), ("LATE", "ROWS"), ("WORKERS",),
    ("DATABASES",),
    ("SNODES",), ("DNODES",), ("MNODES",), ("QNODES",), ("TOPICS",), ("CONSUMERS",), ("SUBSCRIPTIONS",),
    ("FUNCTIONS",), ("USERS",), ("QUERIES",), ("CONNECTIONS",), ("TRANSACTIONS",), ("CLUSTER", "ALIVE"), ("APPS",),
    ("LICENCES",), ("GRANTS",), ("VIEWS",), ("ACCOUNTS",),
)
# `SHOW <word> [FOR stream]`.
_OF_STREAMS = ("CHECKPOINTS", "SAVEPOINTS")
_VARIABLES = ("VARIABLES", "CONFIG")


def parse_show(cursor: Cursor) -> Statement:
    """Parses what follows SHOW."""
    if cursor.take("CREATE"):
        return _parse_show_create(cursor)
    if cursor.at_any("USER", "SYSTEM") and cursor.peek().word == "DATABASES":
        scope = cursor.advance().word.lower()
        cursor.advance()
        return Show(f"{scope} databases")
    variables = _parse_variables(cursor)
    if variables is not None:
        return variables
    for what in _OF_STREAMS:
        if cursor.take(what):
            return _parse_of_stream(cursor, what)
    for words in _PLAIN:
        if cursor.take(*words):
            return Show(" ".join(words).lower(), like=_parse_like(cursor))
    if cursor.take("CLUSTER"):
        return Show("cluster")
    if cursor.take("TABLE", "DISTRIBUTED"):
        name = cursor.object_name("a table name")
        return Show("table distributed", name.database, name)
    if cursor.take("TABLE", "TAGS"):
        return _parse_show_table_tags(cursor)
    for what in ("TAGS", "INDEXES"):
        if cursor.take(what):
            name = _parse_from_table(cursor)
            return Show(what.lower(), name.database, name)
    if cursor.take("VNODES"):
        return _parse_vnodes(cursor)
    return _parse_of_database(cursor)


def parse_kill_query(cursor: Cursor) -> Statement:
    """Parses what follows KILL QUERY."""
    at = cursor.token
    text = cursor.string("the kill_id of SHOW QUERIES")
    if re.fullmatch("[0-9a-fA-F]{1,15}", text) is None:
        raise SqlSyntaxError("the kill_id of SHOW QUERIES is expected",
                             position=position(cursor.text, at.start, at.end - at.start))
    return KillQuery(int(text, 16))


def _parse_show_create(cursor: Cursor) -> Statement:
    word = cursor.take_any("DATABASE", "TABLE", "STABLE", "STREAM")
    if word is None:
        raise cursor.fail("DATABASE, TABLE, STABLE or STREAM is expected")
    what = f"create {word.lower()}"
    if word == "DATABASE":
        database = cursor.name("a database name")
        return Show(what, database)
    if word == "STREAM":
        offset = cursor.token.start
        return Show(what, table=Name(cursor.name("a stream name"), None, offset))
    name = cursor.object_name("a table name")
    return Show(what, name.database, name)


def _parse_of_stream(cursor: Cursor, what: str) -> Statement:
    stream: Name | None = None
    if cursor.take("FOR"):
        offset = cursor.token.start
        stream = Name(cursor.name("a stream name"), None, offset)
    return Show(what.lower(), table=stream, like=_parse_like(cursor))


def _parse_variables(cursor: Cursor) -> Show | None:
    for scope in ("CLUSTER", "LOCAL"):
        if cursor.at(scope) and cursor.peek().word in _VARIABLES:
            cursor.advance()
            cursor.advance()
            return Show(f"{scope.lower()} variables", like=_parse_like(cursor))
    if cursor.take("DNODE"):
        cursor.integer("the id of a dnode")
        if cursor.take_any(*_VARIABLES) is None:
            raise cursor.fail("VARIABLES is expected")
        return Show("variables", like=_parse_like(cursor))
    if cursor.take_any(*_VARIABLES) is not None:
        return Show("variables", like=_parse_like(cursor))
    return None


def _parse_show_table_tags(cursor: Cursor) -> Statement:
    while not cursor.at("FROM") and not cursor.at_end:
        cursor.name("a tag name")
        if not cursor.take_operator(","):
            break
    name = _parse_from_table(cursor)
    return Show("table tags", name.database, name)


def _parse_from_table(cursor: Cursor) -> Name:
    """Parses `FROM table [FROM database]`."""
    cursor.expect("FROM")
    name = cursor.object_name("a table name")
    if cursor.take("FROM"):
        return Name(name.name, cursor.name("a database name"), name.offset)
    return name


def _parse_vnodes(cursor: Cursor) -> Statement:
    if cursor.take("ON"):
        cursor.expect("DNODE")
        cursor.integer("the id of a dnode")
    elif cursor.token.kind is TokenKind.NUMBER:
        cursor.integer("the id of a dnode")
    return Show("vnodes")


def _parse_of_database(cursor: Cursor) -> Statement:
    """Parses `[NORMAL|CHILD] [db.]TABLES|STABLES|VGROUPS [FROM db] [LIKE pattern]`."""
    scope = cursor.take_any("NORMAL", "CHILD")
    database: str | None = None
    if cursor.peek().raw == ".":
        database = cursor.name("a database name")
        cursor.expect_operator(".")
    word = cursor.take_any("TABLES") if scope else cursor.take_any("TABLES", "STABLES", "VGROUPS", "ALIVE", "CUT")
    if word is None:
        raise cursor.fail("TABLES is expected" if scope else "something that can be shown is expected")
    if database is None and cursor.take("FROM"):
        database = cursor.name("a database name")
    what = f"{scope} {word}" if scope else word
    return Show(what.lower(), database, like=_parse_like(cursor))


def _parse_like(cursor: Cursor) -> str | None:
    return cursor.string("a pattern") if cursor.take("LIKE") else None


def parse_describe(cursor: Cursor) -> Statement:
    """Parses what follows DESCRIBE or DESC."""
    return Describe(cursor.object_name("a table name"))
