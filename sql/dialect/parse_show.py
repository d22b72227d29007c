"""Parses SHOW, DESCRIBE, KILL QUERY, SET, SWITCHOVER and PROMOTE."""

from __future__ import annotations

import re

from sqlglot.tokens import TokenType

from penstock.common.errors import SqlSyntaxError
from penstock.common.quantities import DAY, read_duration
from penstock.sql.dialect.parse_query import QueryParser
from penstock.sql.tree.statements import (
    Describe,
    KillQuery,
    Name,
    Promote,
    SetAnsiQuotes,
    SetQueryTimeout,
    Show,
    Statement,
    SwitchOver,
)

_TIMEOUT_HINT = "units are us, ms, s, m, h and d; 0 and DEFAULT are as long as the configuration says"

# Plain forms: `SHOW <words>`.
_PLAIN = (
    ("STREAM", "TASKS"), ("STREAMS",), ("INGESTS",), ("QUEUES",), ("WATERMARKS",), ("LATE", "ROWS"), ("INCIDENTS",),
    ("WORKERS",), ("DATABASES",),
    ("SNODES",), ("DNODES",), ("MNODES",), ("QNODES",), ("TOPICS",), ("CONSUMERS",), ("SUBSCRIPTIONS",),
    ("FUNCTIONS",), ("USERS",), ("QUERIES",), ("CONNECTIONS",), ("TRANSACTIONS",), ("CLUSTER", "ALIVE"), ("APPS",),
    ("LICENCES",), ("GRANTS",), ("ACCOUNTS",),
)
# `SHOW <word> [FOR stream]`.
_OF_STREAMS = ("CHECKPOINTS", "SAVEPOINTS")
_VARIABLES = ("VARIABLES", "CONFIG")


def parse_show(parser: QueryParser) -> Statement:
    """Parses what follows SHOW."""
    if parser.take("CREATE"):
        return _parse_show_create(parser)
    if parser.at_any("USER", "SYSTEM") and parser.peek() == "DATABASES":
        scope = parser.advance().text.upper().lower()
        parser.advance()
        return Show(f"{scope} databases")
    variables = _parse_variables(parser)
    if variables is not None:
        return variables
    for what in _OF_STREAMS:
        if parser.take(what):
            return _parse_of_stream(parser, what)
    for words in _PLAIN:
        if parser.take(*words):
            return Show(" ".join(words).lower(), like=_parse_like(parser))
    if parser.take("CLUSTER"):
        return Show("cluster")
    if parser.take("TABLE", "DISTRIBUTED"):
        name = parser.object_name("a table name")
        return Show("table distributed", name.database, name)
    if parser.take("TABLE", "TAGS"):
        return _parse_show_table_tags(parser)
    for what in ("TAGS", "INDEXES"):
        if parser.take(what):
            name = _parse_from_table(parser)
            return Show(what.lower(), name.database, name)
    if parser.take("VNODES"):
        return _parse_vnodes(parser)
    return _parse_of_database(parser)


def parse_kill_query(parser: QueryParser) -> Statement:
    """Parses what follows KILL QUERY."""
    at = parser.token
    text = parser.string("the kill_id of SHOW QUERIES")
    if re.fullmatch("[0-9a-fA-F]{1,15}", text) is None:
        raise SqlSyntaxError("the kill_id of SHOW QUERIES is expected",
                             position=parser.place(at))
    return KillQuery(int(text, 16))


def parse_switchover(parser: QueryParser) -> Statement:
    """Parses what follows SWITCHOVER."""
    if not parser.take("TO"):
        raise parser.fail("TO is expected, and the number of a node")
    return SwitchOver(parser.integer("the number of a node", minimum=1, maximum=99))


def parse_promote(parser: QueryParser) -> Statement:
    """Parses what follows PROMOTE: nothing."""
    return Promote()


def parse_set(parser: QueryParser) -> Statement:
    """Parses what follows SET: `queryTimeout [=] duration`, with units as in the configuration, 0 and DEFAULT take it
    back; or `ansiQuotes [=] ON | OFF`.
    """
    setting = parser.take_any("QUERYTIMEOUT", "ANSIQUOTES")
    if setting is None:
        raise parser.fail("queryTimeout or ansiQuotes is expected: they are what a session may set")
    parser.take_any("=", "TO")
    if setting == "ANSIQUOTES":
        switch = parser.take_any("ON", "OFF")
        if switch is None:
            raise parser.fail("ON or OFF is expected")
        return SetAnsiQuotes(switch == "ON")
    if parser.take("DEFAULT"):
        return SetQueryTimeout(0.0)
    at = parser.token
    is_plain_zero = at.token_type is TokenType.NUMBER and at.text == "0"
    if not is_plain_zero and at.token_type not in (TokenType.STRING, TokenType.INTERVAL):
        raise parser.fail("a duration is expected, such as '5s'", hint=_TIMEOUT_HINT)
    try:
        seconds = read_duration(parser.advance().text)
    except ValueError:
        raise parser.fail("a duration is expected, such as '5s'", at, hint=_TIMEOUT_HINT) from None
    if seconds and not 0.001 <= seconds <= 365 * DAY:
        raise parser.fail("queryTimeout is from 1ms to 365d, or 0", at)
    return SetQueryTimeout(seconds)


def _parse_show_create(parser: QueryParser) -> Statement:
    word = parser.take_any("DATABASE", "TABLE", "STABLE", "VIEW", "STREAM")
    if word is None:
        raise parser.fail("DATABASE, TABLE, STABLE, VIEW or STREAM is expected")
    what = f"create {word.lower()}"
    if word == "DATABASE":
        database = parser.name("a database name")
        return Show(what, database)
    if word == "STREAM":
        offset = parser.token.start
        return Show(what, table=Name(parser.stream_name(), None, offset))
    name = parser.object_name(f"a {'view' if word == 'VIEW' else 'table'} name")
    return Show(what, name.database, name)


def _parse_of_stream(parser: QueryParser, what: str) -> Statement:
    stream: Name | None = None
    if parser.take("FOR"):
        offset = parser.token.start
        stream = Name(parser.stream_name(), None, offset)
    return Show(what.lower(), table=stream, like=_parse_like(parser))


def _parse_variables(parser: QueryParser) -> Show | None:
    for scope in ("CLUSTER", "LOCAL"):
        if parser.at(scope) and parser.peek() in _VARIABLES:
            parser.advance()
            parser.advance()
            return Show(f"{scope.lower()} variables", like=_parse_like(parser))
    if parser.take("DNODE"):
        parser.integer("the id of a dnode")
        if parser.take_any(*_VARIABLES) is None:
            raise parser.fail("VARIABLES is expected")
        return Show("variables", like=_parse_like(parser))
    if parser.take_any(*_VARIABLES) is not None:
        return Show("variables", like=_parse_like(parser))
    return None


def _parse_show_table_tags(parser: QueryParser) -> Statement:
    while not parser.at("FROM") and not parser.at_end:
        parser.name("a tag name")
        if not parser.take(","):
            break
    name = _parse_from_table(parser)
    return Show("table tags", name.database, name)


def _parse_from_table(parser: QueryParser) -> Name:
    """Parses `FROM table [FROM database]`."""
    parser.expect("FROM")
    name = parser.object_name("a table name")
    if parser.take("FROM"):
        return Name(name.name, parser.name("a database name"), name.offset)
    return name


def _parse_vnodes(parser: QueryParser) -> Statement:
    if parser.take("ON"):
        parser.expect("DNODE")
        parser.integer("the id of a dnode")
    elif parser.at_type(TokenType.NUMBER):
        parser.integer("the id of a dnode")
    return Show("vnodes")


def _parse_of_database(parser: QueryParser) -> Statement:
    """Parses `[NORMAL|CHILD] [db.]TABLES|STABLES|VIEWS|VGROUPS [FROM db] [LIKE pattern]`."""
    scope = parser.take_any("NORMAL", "CHILD")
    database: str | None = None
    if parser.peek() == ".":
        database = parser.name("a database name")
        parser.expect(".")
    word = parser.take_any("TABLES") if scope else parser.take_any(
        "TABLES", "STABLES", "VIEWS", "VGROUPS", "ALIVE", "CUT")
    if word is None:
        raise parser.fail("TABLES is expected" if scope else "something that can be shown is expected")
    if database is None and parser.take("FROM"):
        database = parser.name("a database name")
    what = f"{scope} {word}" if scope else word
    return Show(what.lower(), database, like=_parse_like(parser))


def _parse_like(parser: QueryParser) -> str | None:
    return parser.string("a pattern") if parser.take("LIKE") else None


def parse_describe(parser: QueryParser) -> Statement:
    """Parses what follows DESCRIBE or DESC."""
    return Describe(parser.object_name("a table name"))
