"""Parses CREATE USER and ALTER USER, and what GRANT and REVOKE name."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from penstock.sql.dialect.parse_query import QueryParser
from penstock.sql.rights import GrantObject, Privilege, Role
from penstock.sql.tree.statements import AlterUser, CreateUser, Statement

_PROPERTIES: dict[str, Callable[[QueryParser], str]] = {
    "PASS": lambda parser: parser.string("a password"),
    "ROLE": lambda parser: parser.one_of(*(role.upper() for role in get_args(Role))),
}
_PRIVILEGES: tuple[Privilege, ...] = get_args(Privilege)


def parse_create_user(parser: QueryParser) -> Statement:
    """Parses what follows CREATE USER: `[IF NOT EXISTS] name PASS 'password' [ROLE role]`, read if none is given."""
    if_not_exists = parser.take_if_not_exists()
    name = parser.name("a user name")
    given = parser.options(_PROPERTIES, "PASS or ROLE")
    if "PASS" not in given:
        raise parser.fail("PASS and a password are expected")
    return CreateUser(name, given["PASS"], given.get("ROLE", "read"), if_not_exists)


def parse_alter_user(parser: QueryParser) -> Statement:
    """Parses what follows ALTER USER: `name [PASS 'password'] [ROLE role]`, at least one of both."""
    name = parser.name("a user name")
    given = parser.options(_PROPERTIES, "PASS or ROLE")
    if not given:
        raise parser.fail("PASS or ROLE is expected")
    return AlterUser(name, given.get("PASS"), given.get("ROLE"))


def parse_privileges(parser: QueryParser) -> tuple[Privilege, ...]:
    """Parses `ALL [PRIVILEGES]`, or READ, WRITE or both of them."""
    if parser.take("ALL"):
        parser.take("PRIVILEGES")
        return _PRIVILEGES
    found = parser.csv(lambda: parser.take_any("READ", "WRITE") or "")
    if "" in found:
        raise parser.fail("READ, WRITE or ALL is expected")
    return tuple(privilege for privilege in _PRIVILEGES if privilege.upper() in found)


def parse_object(parser: QueryParser) -> GrantObject:
    """Parses `database.*`, `[database.]table`, `*.*`, `CONNECTION name` or `CONNECTION *`."""
    if parser.at("CONNECTION") and parser.peek() != "." and parser.peek() not in ("TO", "FROM"):
        parser.advance()
        return GrantObject("connection", None if parser.take("*") else parser.name("a connection name"))
    if parser.take("*"):
        parser.expect(".")
        parser.expect("*")
        return GrantObject("table")
    first = parser.name("a database or table name")
    if not parser.take("."):
        return GrantObject("table", first)
    return GrantObject("table", None if parser.take("*") else parser.name("a table name"), first)
