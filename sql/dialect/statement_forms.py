"""Statements that are words and fields in a fixed order: what each is made of, by which it is parsed and printed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from sqlglot.generator import Generator
from sqlglot.tokens import TokenType

from penstock.common.errors import SqlSyntaxError
from penstock.sql.dialect.parse_ddl import parse_database_changes, parse_database_options
from penstock.sql.dialect.parse_query import QueryParser
from penstock.sql.dialect.parse_user import parse_object, parse_privileges
from penstock.sql.rights import GrantObject
from penstock.sql.tree import statements as st
from penstock.sql.tree.expression_nodes import quote_string

_DURATIONS = re.compile("[0-9]+[a-z]?(,[0-9]+[a-z]?)*")
_MAX_SAVEPOINT_BYTES = 64


class FormPart(NamedTuple):
    """A field of a statement, and the words before it; these tell whether it is there if it is `optional`.

    `read` parses its value, and `write` prints it: as nothing if there is nothing to be said.
    """

    field: str
    read: Callable[[QueryParser], Any]
    write: Callable[[Generator, Any], str]
    before: str = ""
    optional: bool = False


class StatementForm(NamedTuple):
    """A statement that begins with such words."""

    words: str
    kind: type[st.Statement]
    parts: tuple[FormPart, ...] = ()

    def parse(self, parser: QueryParser) -> st.Statement:
        """Parses what follows the words."""
        values: dict[str, Any] = {}
        for part in self.parts:
            words = part.before.split()
            if part.optional and not parser.take(*words):
                continue
            if not part.optional:
                parser.expect(*words)
            values[part.field] = part.read(parser)
        return self.kind(**values)

    def sql(self, to: Generator, statement: st.Statement) -> str:
        """Prints a statement."""
        texts = [self.words]
        for part in self.parts:
            value = getattr(statement, part.field)
            text = "" if value is None else part.write(to, value)
            texts += filter(None, (part.before, text)) if text else ()
        return " ".join(texts)


def database_options(options: Iterable[tuple[str, str | int]]) -> str:
    """Returns the options as they stand behind CREATE DATABASE and the name."""
    return " ".join(f"{option} {_database_option(option, value)}" for option, value in options)


def _database_option(option: str, value: str | int) -> str:
    plain = isinstance(value, int) or (option in st.DURATION_OPTIONS and _DURATIONS.fullmatch(value))
    return str(value) if plain else quote_string(str(value))


def _connection_options(_: Generator, options: Iterable[tuple[str, str | None]]) -> str:
    given = (f"{name} = {'NULL' if value is None else quote_string(value)}" for name, value in options)
    return f"({', '.join(given)})"


def _granted(to: Generator, on: GrantObject) -> str:
    name = "*" if on.name is None else _named(to, on.name)
    if on.kind == "connection":
        return f"CONNECTION {name}"
    if on.database is None and on.name is not None:
        return name
    return f"{'*' if on.database is None else _named(to, on.database)}.{name}"


def _named(to: Generator, name: str | st.Name) -> str:
    return str(to.sql(st.Name(name) if isinstance(name, str) else name))


def _name(what: str, field: str = "name", before: str = "") -> FormPart:
    return FormPart(field, lambda parser: parser.name(what), _named, before)


def _object(what: str, before: str = "") -> FormPart:
    return FormPart("name", lambda parser: parser.object_name(what), _named, before)


def _flag(field: str, words: str) -> FormPart:
    return FormPart(field, lambda parser: parser.take(*words.split()), lambda _, is_given: words if is_given else "")


def _number(field: str, what: str, before: str = "", low: int = 0, high: int = 2**63 - 1) -> FormPart:
    return FormPart(field, lambda parser: parser.integer(what, minimum=low, maximum=high),
                    lambda _, number: str(number), before)


def _expression(field: str, before: str = "", *, optional: bool = False) -> FormPart:
    return FormPart(field, QueryParser.parse_expression, lambda to, value: str(to.sql(value)), before, optional)


def _text(field: str, read: Callable[[QueryParser], str], before: str = "", *, optional: bool = False) -> FormPart:
    return FormPart(field, read, lambda _, text: quote_string(text) if text else "", before, optional)


def _read_savepoint(parser: QueryParser) -> str:
    token = parser.token
    name = parser.string("the name of a savepoint")
    if not name.strip() or not name.isprintable() or len(name.encode()) > _MAX_SAVEPOINT_BYTES:
        raise parser.fail(f"the name of a savepoint has 1 to {_MAX_SAVEPOINT_BYTES} bytes, all printable", token)
    return name


def _read_kill_id(parser: QueryParser) -> int:
    at = parser.token
    text = parser.string("the kill_id of SHOW QUERIES")
    if re.fullmatch("[0-9a-fA-F]{1,15}", text) is None:
        raise SqlSyntaxError("the kill_id of SHOW QUERIES is expected", position=parser.place(at))
    return int(text, 16)


def _read_options(parser: QueryParser, *, removable: bool) -> tuple[tuple[str, str | None], ...]:
    """Parses `(option='value', ...)`. What is quoted may be a password, so no error quotes it."""
    try:
        return parser.wrapped_csv(lambda: _read_option(parser, removable=removable))
    except SqlSyntaxError as error:
        if error.position is None:
            raise
        raise SqlSyntaxError(error.message, code=error.code, hint=error.hint,
                             position=replace(error.position, text="")) from None


def _read_option(parser: QueryParser, *, removable: bool) -> tuple[str, str | None]:
    if not parser.at_word:  # keywords are names of options, too: DATABASE
        raise parser.fail("the name of an option is expected")
    name = str(parser.advance().text).lower()
    parser.expect("=")
    if removable and parser.take("NULL"):
        return name, None
    if parser.at_type(TokenType.NUMBER):
        return name, parser.advance().text
    return name, parser.string(f"the value of {name}")


_IF_EXISTS = FormPart("if_exists", QueryParser.take_if_exists, lambda _, is_given: "IF EXISTS" if is_given else "")
_IF_NOT_EXISTS = FormPart(
    "if_not_exists", QueryParser.take_if_not_exists, lambda _, is_given: "IF NOT EXISTS" if is_given else "")
_STREAM = FormPart("name", QueryParser.stream_name, _named)
_INGEST = _name("the name of an ingest")
_DATABASE, _CONNECTION = _name("a database name"), _name("a connection name")
_UNTREATED = _flag("ignore_untreated", "IGNORE UNTREATED")
_WHERE = _expression("where", "WHERE", optional=True)
_DNODE = _number("dnode_id", "the id of a dnode", "ON DNODE")
_PRIVILEGES = FormPart("privileges", parse_privileges, lambda _, privileges: ", ".join(map(str.upper, privileges)))
_GRANTED = FormPart("on", parse_object, _granted, "ON")
_DESCRIBED = (_object("a table name"),)

FORMS = tuple(StatementForm(words, kind, parts) for words, kind, parts in (
    ("USE", st.UseDatabase, (_DATABASE,)),
    ("CREATE DATABASE", st.CreateDatabase, (_IF_NOT_EXISTS, _DATABASE, FormPart(
        "options", parse_database_options, lambda _, options: database_options(options)))),
    ("ALTER DATABASE", st.AlterDatabase, (_DATABASE, FormPart(
        "options", parse_database_changes, lambda _, options: database_options(options)))),
    ("DROP DATABASE", st.DropDatabase, (_IF_EXISTS, _DATABASE, _flag("cascade", "CASCADE"))),
    ("FLUSH", st.FlushDatabase, (_name("a database name", before="DATABASE"),)),
    ("TRIM", st.TrimDatabase, (_name("a database name", before="DATABASE"),)),
    ("SPLIT VGROUP", st.SplitVgroup, (_number("vgroup_id", "the number of a vgroup"),)),
    ("DESCRIBE", st.Describe, _DESCRIBED), ("DESC", st.Describe, _DESCRIBED),
    ("DELETE", st.Delete, (_object("a table name", "FROM"), _WHERE)),
    ("DROP VIEW", st.DropView, (_IF_EXISTS, _object("a view name"))),
    ("CHECKPOINT STREAM", st.CheckpointStream, (_IF_EXISTS, _STREAM)),
    ("STOP STREAM", st.StopStream, (
        _IF_EXISTS, _STREAM, _text("savepoint", _read_savepoint, "WITH SAVEPOINT", optional=True))),
    ("START STREAM", st.StartStream, (
        _IF_EXISTS, _UNTREATED, _STREAM, _text("savepoint", _read_savepoint, "FROM SAVEPOINT", optional=True))),
    ("DROP STREAM", st.DropStream, (_IF_EXISTS, _STREAM)),
    ("DROP SAVEPOINT", st.DropSavepoint, (
        _IF_EXISTS, _text("savepoint", _read_savepoint), FormPart("stream", QueryParser.stream_name, _named, "FOR"))),
    ("PAUSE STREAM", st.PauseStream, (_IF_EXISTS, _STREAM)),
    ("PAUSE INGEST", st.PauseIngest, (_IF_EXISTS, _INGEST)),
    ("RESUME STREAM", st.ResumeStream, (_IF_EXISTS, _UNTREATED, _STREAM)),
    ("RESUME INGEST", st.ResumeIngest, (_IF_EXISTS, _INGEST)),
    ("RECALCULATE STREAM", st.RecalculateStream, (
        _IF_EXISTS, _STREAM, _expression("first", "FROM"), _expression("last", "TO", optional=True))),
    ("NOTE TIME", st.NoteTime, (
        _expression("instant"), _text("writer", lambda parser: parser.string("the name of a writer"), "WRITER",
                                      optional=True), _name("a database name", "database", "ON"))),
    ("CREATE SNODE", st.CreateSnode, (_DNODE,)), ("DROP SNODE", st.DropSnode, (_DNODE,)),
    ("DROP INGEST", st.DropIngest, (_IF_EXISTS, _INGEST)),
    ("DROP FUNCTION", st.DropFunction, (_IF_EXISTS, _name("a function name"))),
    ("DROP USER", st.DropUser, (_IF_EXISTS, _name("a user name"))),
    ("GRANT", st.Grant, (_PRIVILEGES, _GRANTED, _name("a user name", "user", "TO"))),
    ("REVOKE", st.Revoke, (_PRIVILEGES, _GRANTED, _name("a user name", "user", "FROM"))),
    ("KILL QUERY", st.KillQuery, (FormPart("number", _read_kill_id, lambda _, number: f"'{number:x}'"),)),
    ("SWITCHOVER", st.SwitchOver, (_number("node", "the number of a node", "TO", 1, 99),)),
    ("PROMOTE", st.Promote, ()),
    ("CREATE CONNECTION", st.CreateConnection, (
        _IF_NOT_EXISTS, _CONNECTION, _name("a type of connection", "kind", "TYPE"),
        FormPart("options", partial(_read_options, removable=False), _connection_options, "WITH"))),
    ("ALTER CONNECTION", st.AlterConnection, (
        _CONNECTION, FormPart("options", partial(_read_options, removable=True), _connection_options, "SET"))),
    ("DROP CONNECTION", st.DropConnection, (_IF_EXISTS, _CONNECTION)),
    ("TEST CONNECTION", st.TestConnection, (_CONNECTION,)),
))
