"""Parses SHOW and SET."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot.tokens import TokenType

from penstock.common.quantities import DAY, read_duration
from penstock.common.suggestions import alternatives, did_you_mean
from penstock.sql.dialect.parse_query import QueryParser
from penstock.sql.tree.statements import (
    Name,
    SetAnsiQuotes,
    SetQueryTimeout,
    Show,
    Statement,
)

_TIMEOUT_HINT = "units are us, ms, s, m, h and d; 0 and DEFAULT are as long as the configuration says"


def parse_show(parser: QueryParser) -> Statement:
    """Parses what follows SHOW."""
    scoped = parser.at_any("NORMAL", "CHILD")
    if parser.peek(2 if scoped else 1) == ".":
        return _qualified(parser, f"{parser.advance().text.upper()} TABLES" if scoped else None)
    for words, parse_rest in FORMS.items():
        if parser.take(*words.split()):
            return parse_rest(parser, words.lower())
    begun = [words.split()[1] for words in FORMS if " " in words and parser.word == words.split()[0]]
    if begun:
        hint = did_you_mean(parser.word, (words for words in SHOWN if " " not in words))
        parser.advance()
        raise parser.fail(f"{alternatives(begun)} is expected", hint=hint)
    raise parser.fail("something that can be shown is expected", hint=parser.guess() or f"SHOW {alternatives(SHOWN)}")


def parse_set(parser: QueryParser) -> Statement:
    """Parses what follows SET: `queryTimeout [=] duration`, with units as in the configuration, 0 and DEFAULT take it
    back; or `ansiQuotes [=] ON | OFF`.
    """
    setting = parser.take_any("QUERYTIMEOUT", "ANSIQUOTES")
    if setting is None:
        raise parser.fail("queryTimeout or ansiQuotes is expected: they are what a session may set")
    parser.take_any("=", "TO")
    if setting == "ANSIQUOTES":
        return SetAnsiQuotes(parser.one_of("ON", "OFF") == "on")
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


def _qualified(parser: QueryParser, what: str | None) -> Statement:
    """Parses `db.TABLES` and the like, behind NORMAL or CHILD if `what` is known."""
    database = parser.name("a database name")
    parser.expect(".")
    word = parser.one_of(*(_OF_DATABASE if what is None else ("TABLES",)))
    return Show((what or word).lower(), database, like=_parse_like(parser))


def _all(parser: QueryParser, what: str) -> Statement:
    return Show(what, like=_parse_like(parser))


def _of_database(parser: QueryParser, what: str) -> Statement:
    database = parser.name("a database name") if parser.take("FROM") else None
    return Show(what, database, like=_parse_like(parser))


def _of_stream(parser: QueryParser, what: str) -> Statement:
    stream: Name | None = None
    if parser.take("FOR"):
        offset = parser.token.start
        stream = Name(parser.stream_name(), None, offset)
    return Show(what, table=stream, like=_parse_like(parser))


def _create_database(parser: QueryParser, what: str) -> Statement:
    return Show(what, parser.name("a database name"))


def _create_stream(parser: QueryParser, what: str) -> Statement:
    offset = parser.token.start
    return Show(what, table=Name(parser.stream_name(), None, offset))


def _create_view(parser: QueryParser, what: str) -> Statement:
    return _of_table(parser, what, "a view name")


def _of_table(parser: QueryParser, what: str, expected: str = "a table name") -> Statement:
    name = parser.object_name(expected)
    return Show(what, name.database, name)


def _from_table(parser: QueryParser, what: str) -> Statement:
    """Parses `FROM table [FROM database]`."""
    parser.expect("FROM")
    name = parser.object_name("a table name")
    if parser.take("FROM"):
        name = Name(name.name, parser.name("a database name"), name.offset)
    return Show(what, name.database, name)


def _table_tags(parser: QueryParser, what: str) -> Statement:
    while not parser.at("FROM") and not parser.at_end:
        parser.name("a tag name")
        if not parser.take(","):
            break
    return _from_table(parser, what)


def _variables(parser: QueryParser, what: str) -> Statement:
    return Show(what.replace("config", "variables"), like=_parse_like(parser))


def _dnode_variables(parser: QueryParser, what: str) -> Statement:
    parser.integer("the id of a dnode")
    if parser.take_any("VARIABLES", "CONFIG") is None:
        raise parser.fail("VARIABLES is expected")
    return _variables(parser, "variables")


def _vnodes(parser: QueryParser, what: str) -> Statement:
    if parser.take("ON"):
        parser.expect("DNODE")
        parser.integer("the id of a dnode")
    elif parser.at_type(TokenType.NUMBER):
        parser.integer("the id of a dnode")
    return Show(what)


def _plain(parser: QueryParser, what: str) -> Statement:
    return Show(what)


def _parse_like(parser: QueryParser) -> str | None:
    return parser.string("a pattern") if parser.take("LIKE") else None


_OF_DATABASE = ("TABLES", "STABLES", "VIEWS", "VGROUPS", "ALIVE", "CUT")

FORMS: dict[str, Callable[[QueryParser, str], Statement]] = {
    "DATABASES": _all,
    "USER DATABASES": _plain,
    "SYSTEM DATABASES": _plain,
    "CREATE DATABASE": _create_database,
    "CREATE TABLE": _of_table,
    "CREATE STABLE": _of_table,
    "CREATE VIEW": _create_view,
    "CREATE STREAM": _create_stream,
    **dict.fromkeys((*_OF_DATABASE, "NORMAL TABLES", "CHILD TABLES"), _of_database),
    "TABLE DISTRIBUTED": _of_table,
    "TABLE TAGS": _table_tags,
    "TAGS": _from_table,
    "INDEXES": _from_table,
    "STREAM TASKS": _all,
    **dict.fromkeys(("STREAMS", "INGESTS", "QUEUES", "WATERMARKS", "LATE ROWS", "INCIDENTS", "WORKERS"), _all),
    **dict.fromkeys(("CHECKPOINTS", "SAVEPOINTS"), _of_stream),
    **dict.fromkeys(("FUNCTIONS", "USERS", "GRANTS", "QUERIES", "CONNECTIONS"), _all),
    **dict.fromkeys(("VARIABLES", "LOCAL VARIABLES", "CLUSTER VARIABLES"), _variables),
    **dict.fromkeys(("CONFIG", "LOCAL CONFIG", "CLUSTER CONFIG"), _variables),
    "DNODE": _dnode_variables,
    "VNODES": _vnodes,
    **dict.fromkeys(("SNODES", "DNODES", "MNODES"), _all),
    "CLUSTER ALIVE": _all,
    "CLUSTER": _plain,
    **dict.fromkeys(("QNODES", "TOPICS", "CONSUMERS", "SUBSCRIPTIONS", "TRANSACTIONS", "APPS", "LICENCES", "ACCOUNTS"),
                    _all),
}
"""What stands behind SHOW, the longer one first where one begins as another, and what parses the rest."""

# What only TDengine has, which is refused by its name, and other words for the same.
_UNLISTED = {
    "ALIVE", "CLUSTER ALIVE", "QNODES", "TOPICS", "CONSUMERS", "SUBSCRIPTIONS", "TRANSACTIONS", "APPS", "LICENCES",
    "ACCOUNTS", "CONFIG", "LOCAL CONFIG", "CLUSTER CONFIG", "DNODE"}

SHOWN = tuple(words for words in FORMS if words not in _UNLISTED)
"""The words behind SHOW for all that can be shown."""
