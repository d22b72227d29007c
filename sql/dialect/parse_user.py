"""Parses CREATE USER, ALTER USER, DROP USER, GRANT and REVOKE."""

from __future__ import annotations

from typing import cast, get_args

from penstock.sql.dialect.parse_query import QueryParser
from penstock.sql.rights import GrantObject, Privilege, Role
from penstock.sql.tree.statements import AlterUser, CreateUser, Grant, Revoke, Statement

_ROLES = tuple(role.upper() for role in get_args(Role))
_PRIVILEGES: tuple[Privilege, ...] = get_args(Privilege)


def parse_create_user(parser: QueryParser) -> Statement:
    """Parses what follows CREATE USER: `[IF NOT EXISTS] name PASS 'password' [ROLE role]`, read if none is given."""
    if_not_exists = parser.take_if_not_exists()
    name = parser.name("a user name")
    password, role = _parse_properties(parser)
    if password is None:
        raise parser.fail("PASS and a password are expected")
    return CreateUser(name, password, role or "read", if_not_exists)


def parse_alter_user(parser: QueryParser) -> Statement:
    """Parses what follows ALTER USER: `name [PASS 'password'] [ROLE role]`, at least one of both."""
    name = parser.name("a user name")
    password, role = _parse_properties(parser)
    if password is None and role is None:
        raise parser.fail("PASS or ROLE is expected")
    return AlterUser(name, password, role)


def parse_grant(parser: QueryParser) -> Statement:
    """Parses what follows GRANT: `privileges ON object TO user`."""
    privileges, on = _parse_privileges(parser), _parse_object(parser)
    parser.expect("TO")
    return Grant(privileges, on, parser.name("a user name"))


def parse_revoke(parser: QueryParser) -> Statement:
    """Parses what follows REVOKE: `privileges ON object FROM user`."""
    privileges, on = _parse_privileges(parser), _parse_object(parser)
    parser.expect("FROM")
    return Revoke(privileges, on, parser.name("a user name"))


def _parse_privileges(parser: QueryParser) -> tuple[Privilege, ...]:
    """Parses `ALL [PRIVILEGES]`, or READ, WRITE or both of them."""
    if parser.take("ALL"):
        parser.take("PRIVILEGES")
        return _PRIVILEGES
    found = [_parse_privilege(parser)]
    while parser.take(","):
        found.append(_parse_privilege(parser))
    return tuple(privilege for privilege in _PRIVILEGES if privilege in found)


def _parse_privilege(parser: QueryParser) -> Privilege:
    word = parser.take_any("READ", "WRITE")
    if word is None:
        raise parser.fail("READ, WRITE or ALL is expected")
    return cast(Privilege, word.lower())


def _parse_object(parser: QueryParser) -> GrantObject:
    """Parses `ON database.*`, `ON [database.]table`, `ON *.*`, `ON CONNECTION name` or `ON CONNECTION *`."""
    parser.expect("ON")
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


def _parse_properties(parser: QueryParser) -> tuple[str | None, Role | None]:
    """Returns what stands behind PASS and behind ROLE, in either order."""
    password: str | None = None
    role: Role | None = None
    while not parser.at_end:
        token = parser.token
        word = parser.take_any("PASS", "ROLE")
        if word is None:
            raise parser.fail("PASS or ROLE is expected")
        if (password if word == "PASS" else role) is not None:
            raise parser.fail(f"{word} is given twice", token)
        if word == "PASS":
            password = parser.string("a password")
        else:
            role = _parse_role(parser)
    return password, role


def _parse_role(parser: QueryParser) -> Role:
    word = parser.take_any(*_ROLES)
    if word is None:
        raise parser.fail(f"{', '.join(_ROLES[:-1])} or {_ROLES[-1]} is expected")
    return cast(Role, word.lower())
