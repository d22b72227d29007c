"""Text to statements: the entry of the parser. Names are not looked up here, and nothing is executed."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

from penstock.common.errors import NotSupportedError, SqlSyntaxError
from penstock.common.headroom import with_headroom
from penstock.common.responsiveness import LONG_TEXT, one_at_a_time
from penstock.sql.cursor import Cursor
from penstock.sql.literals import position
from penstock.sql.parse_connection import (
    parse_alter_connection,
    parse_create_connection,
    parse_drop_connection,
    parse_test_connection,
)
from penstock.sql.parse_ddl import (
    parse_alter_database,
    parse_alter_table,
    parse_create_database,
    parse_create_table,
    parse_drop_database,
    parse_drop_table,
    parse_flush,
    parse_split_vgroup,
    parse_trim,
    parse_use,
)
from penstock.sql.parse_function import parse_create_function, parse_drop_function
from penstock.sql.parse_ingest import parse_create_ingest, parse_drop_ingest
from penstock.sql.parse_insert import parse_delete, parse_insert
from penstock.sql.parse_query import at_query, parse_query
from penstock.sql.parse_show import parse_describe, parse_kill_query, parse_show
from penstock.sql.parse_stream import (
    parse_alter_stream,
    parse_analyze_stream,
    parse_checkpoint_stream,
    parse_create_snode,
    parse_create_stream,
    parse_drop_savepoint,
    parse_drop_snode,
    parse_drop_stream,
    parse_dry_run,
    parse_note_time,
    parse_pause,
    parse_recalculate,
    parse_replay,
    parse_resume,
    parse_start_stream,
    parse_stop_stream,
)
from penstock.sql.parse_user import (
    parse_alter_user,
    parse_create_user,
    parse_drop_user,
    parse_grant,
    parse_revoke,
)
from penstock.sql.statements import Describe, Explain, Name, Statement

_CLAUSES = ("WHERE", "PARTITION", "GROUP", "HAVING", "ORDER", "SLIMIT", "LIMIT", "FILL", "INTERVAL", "RANGE", "EVERY")
_CLAUSE_ORDER = (
    "clauses come in this order: FROM, WHERE, PARTITION BY, RANGE, EVERY, window, FILL, GROUP BY, HAVING, ORDER BY, "
    "SLIMIT, LIMIT"
)
_SURROGATE = re.compile("[\ud800-\udfff]")
MAX_TEXT = 64 * 1024 * 1024


@with_headroom
def parse(text: str) -> list[Statement]:
    """Returns the statements of a text, which are separated by semicolons; empty ones are skipped.

    Raises SqlSyntaxError, and NotSupportedError for what TDengine has and Penstock has not.
    """
    if len(text) > MAX_TEXT:
        raise SqlSyntaxError(f"the text has {len(text)} characters; {MAX_TEXT} are allowed")
    surrogate = None if text.isascii() else _SURROGATE.search(text)
    if surrogate is not None:
        raise SqlSyntaxError("the text is not valid Unicode", position=position(text, surrogate.start(), 0))
    with one_at_a_time(unless=len(text) < LONG_TEXT):
        return _parse_all(Cursor(text))


def _parse_all(cursor: Cursor) -> list[Statement]:
    statements: list[Statement] = []
    while True:
        while cursor.take_operator(";"):
            pass
        if cursor.at_end:
            return statements
        cursor.joins = 0
        statements.append(_parse_statement(cursor))
        if not cursor.at_end:
            hint = _CLAUSE_ORDER if cursor.token.word in _CLAUSES else None
            raise cursor.fail("the end of the statement is expected", hint=hint)


def parse_one(text: str) -> Statement:
    """Returns the only statement of a text. Raises SqlSyntaxError, also if there is none or more than one."""
    statements = parse(text)
    if len(statements) != 1:
        raise SqlSyntaxError(f"one statement is expected, not {len(statements) or 'an empty text'}")
    return statements[0]


@lru_cache(maxsize=1024)
def parse_table_name(text: str) -> Name:
    """Returns the name that `[database.]table` is; programs write to the same few tables again and again."""
    described = parse_one(f"DESCRIBE {text}")
    assert isinstance(described, Describe)
    return described.name


def _parse_statement(cursor: Cursor) -> Statement:
    start = cursor.token.start
    if at_query(cursor):
        return parse_query(cursor)
    for words, parse_rest in _STATEMENTS.items():
        if cursor.take(*words):
            return parse_rest(cursor, start)
    for words in _NOT_SUPPORTED:
        if cursor.at(*words):
            last = cursor.peek(len(words) - 1) if len(words) > 1 else cursor.token
            place = position(cursor.text, start, last.end - start)
            raise NotSupportedError(f"{' '.join(words)} is not supported", position=place)
    raise cursor.fail(_expected_after(cursor))


def _expected_after(cursor: Cursor) -> str:
    first = cursor.token.word
    rests = [words[1:] for words in _STATEMENTS if words[0] == first and len(words) > 1 and words[1] != "OR"]
    if not rests:
        return "a statement is expected"
    cursor.advance()
    cursor.at_any(*(rest[0] for rest in rests))
    objects = [" ".join(rest) for rest in rests]
    return f"{', '.join(objects[:-1])} or {objects[-1]} is expected after {first}"


def _parse_explain(cursor: Cursor, _: int) -> Statement:
    analyze = cursor.take("ANALYZE")
    if analyze and cursor.take("STREAM"):
        return parse_analyze_stream(cursor)
    if cursor.take("VERBOSE") and cursor.take_any("TRUE", "FALSE") is None:
        raise cursor.fail("TRUE or FALSE is expected")
    stream = cursor.at("CREATE", "STREAM") or cursor.at("CREATE", "OR", "REPLACE", "STREAM")
    if not at_query(cursor) and not stream and not cursor.at("CREATE", "INGEST"):
        raise cursor.fail("EXPLAIN takes a query, CREATE STREAM or CREATE INGEST, EXPLAIN ANALYZE also STREAM and its "
                          "name")
    return Explain(_parse_statement(cursor), analyze)


def _plain(parse_rest: Callable[[Cursor], Statement]) -> Callable[[Cursor, int], Statement]:
    return lambda cursor, _: parse_rest(cursor)


# What TDengine has and Penstock has not: said so, instead of calling it a syntax error.
_NOT_SUPPORTED = (
    *(("CREATE", noun) for noun in ("TOPIC", "INDEX", "VIEW", "DNODE", "MNODE", "QNODE", "TSMA")),
    *(("DROP", noun) for noun in ("TOPIC", "INDEX", "VIEW", "DNODE", "MNODE", "QNODE", "TSMA")),
    *(("ALTER", noun) for noun in ("DNODE", "LOCAL", "CLUSTER", "VIEW")),
    ("CREATE", "OR"), ("DROP", "CONSUMER"), ("KILL", "CONNECTION"), ("KILL", "TRANSACTION"), ("BALANCE",), ("COMPACT",),
    ("MERGE",),
    ("REDISTRIBUTE",), ("RESET",), ("RECOVER",),
)

_STATEMENTS: dict[tuple[str, ...], Callable[[Cursor, int], Statement]] = {
    ("INSERT",): _plain(parse_insert),
    ("SHOW",): _plain(parse_show),
    ("USE",): _plain(parse_use),
    ("DESCRIBE",): _plain(parse_describe),
    ("DESC",): _plain(parse_describe),
    ("DELETE",): _plain(parse_delete),
    ("CREATE", "DATABASE"): _plain(parse_create_database),
    ("CREATE", "TABLE"): lambda cursor, _: parse_create_table(cursor, must_be_super=False),
    ("CREATE", "STABLE"): lambda cursor, _: parse_create_table(cursor, must_be_super=True),
    ("CREATE", "STREAM"): parse_create_stream,
    ("CREATE", "OR", "REPLACE", "STREAM"):
        lambda cursor, start: parse_create_stream(cursor, start, or_replace=True),
    ("CREATE", "SNODE"): _plain(parse_create_snode),
    ("CREATE", "INGEST"): parse_create_ingest,
    ("CREATE", "FUNCTION"): lambda cursor, _: parse_create_function(cursor, aggregate=False),
    ("CREATE", "AGGREGATE", "FUNCTION"): lambda cursor, _: parse_create_function(cursor, aggregate=True),
    ("CREATE", "OR", "REPLACE", "FUNCTION"):
        lambda cursor, _: parse_create_function(cursor, aggregate=False, replace=True),
    ("CREATE", "OR", "REPLACE", "AGGREGATE", "FUNCTION"):
        lambda cursor, _: parse_create_function(cursor, aggregate=True, replace=True),
    ("CREATE", "USER"): _plain(parse_create_user),
    ("ALTER", "USER"): _plain(parse_alter_user),
    ("DROP", "USER"): _plain(parse_drop_user),
    ("GRANT",): _plain(parse_grant),
    ("REVOKE",): _plain(parse_revoke),
    ("CREATE", "CONNECTION"): _plain(parse_create_connection),
    ("ALTER", "CONNECTION"): _plain(parse_alter_connection),
    ("DROP", "CONNECTION"): _plain(parse_drop_connection),
    ("TEST", "CONNECTION"): _plain(parse_test_connection),
    ("ALTER", "DATABASE"): _plain(parse_alter_database),
    ("ALTER", "TABLE"): lambda cursor, _: parse_alter_table(cursor, must_be_super=False),
    ("ALTER", "STABLE"): lambda cursor, _: parse_alter_table(cursor, must_be_super=True),
    ("ALTER", "STREAM"): _plain(parse_alter_stream),
    ("CHECKPOINT", "STREAM"): _plain(parse_checkpoint_stream),
    ("STOP", "STREAM"): _plain(parse_stop_stream),
    ("START", "STREAM"): _plain(parse_start_stream),
    ("DROP", "DATABASE"): _plain(parse_drop_database),
    ("DROP", "TABLE"): lambda cursor, _: parse_drop_table(cursor, must_be_super=False),
    ("DROP", "STABLE"): lambda cursor, _: parse_drop_table(cursor, must_be_super=True),
    ("DROP", "STREAM"): _plain(parse_drop_stream),
    ("DROP", "SAVEPOINT"): _plain(parse_drop_savepoint),
    ("DROP", "SNODE"): _plain(parse_drop_snode),
    ("DROP", "INGEST"): _plain(parse_drop_ingest),
    ("DROP", "FUNCTION"): _plain(parse_drop_function),
    ("PAUSE",): _plain(parse_pause),
    ("RESUME",): _plain(parse_resume),
    ("RECALCULATE", "STREAM"): _plain(parse_recalculate),
    ("DRY", "RUN"): _plain(parse_dry_run),
    ("REPLAY", "DLQ"): parse_replay,
    ("NOTE", "TIME"): _plain(parse_note_time),
    ("EXPLAIN",): _parse_explain,
    ("KILL", "QUERY"): _plain(parse_kill_query),
    ("FLUSH",): _plain(parse_flush),
    ("TRIM",): _plain(parse_trim),
    ("SPLIT", "VGROUP"): _plain(parse_split_vgroup),
}
