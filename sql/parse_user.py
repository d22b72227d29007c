"""Parses CREATE USER, ALTER USER, DROP USER, GRANT and REVOKE."""

from __future__ import annotations

from typing import cast, get_args

from penstock.sql.cursor import Cursor
from penstock.sql.parse_ddl import take_if_exists, take_if_not_exists
from penstock.sql.rights import GrantObject, Privilege, Role
from penstock.sql.statements import AlterUser, CreateUser, DropUser, Grant, Revoke, Statement

_ROLES = tuple(role.upper() for role in get_args(Role))
_PRIVILEGES: tuple[Privilege, ...] = get_args(Privilege)


def parse_create_user(cursor: Cursor) -> Statement:
    """Parses what follows CREATE USER: `[IF NOT EXISTS] name PASS 'password' [ROLE role]`, read if none is given."""
    if_not_exists = take_if_not_exists(cursor)
    name = cursor.name("a user name")
    password, role = _parse_properties(cursor)
    if password is None:
        raise cursor.fail("PASS and a password are expected")
    return CreateUser(name, password, role or "read", if_not_exists)


def parse_alter_user(cursor: Cursor) -> Statement:
    """Parses what follows ALTER USER: `name [PASS 'password'] [ROLE role]`, at least one of both."""
    name = cursor.name("a user name")
    password, role = _parse_properties(cursor)
    if password is None and role is None:
        raise cursor.fail("PASS or ROLE is expected")
    return AlterUser(name, password, role)


def parse_drop_user(cursor: Cursor) -> Statement:
    """Parses what follows DROP USER."""
    if_exists = take_if_exists(cursor)
    return DropUser(cursor.name("a user name"), if_exists)


def parse_grant(cursor: Cursor) -> Statement:
    """Parses what follows GRANT: `privileges ON object TO user`."""
    privileges, on = _parse_privileges(cursor), _parse_object(cursor)
    cursor.expect("TO")
    return Grant(privileges, on, cursor.name("a user name"))


def parse_revoke(cursor: Cursor) -> Statement:
    """Parses what follows REVOKE: `privileges ON object FROM user`."""
    privileges, on = _parse_privileges(cursor), _parse_object(cursor)
    cursor.expect("FROM")
    return Revoke(privileges, on, cursor.name("a user name"))


def _parse_privileges(cursor: Cursor) -> tuple[Privilege, ...]:
    """Parses `ALL [PRIVILEGES]`, or READ, WRITE or both of them."""
    if cursor.take("ALL"):
        cursor.take("PRIVILEGES")
        return _PRIVILEGES
    found = [_parse_privilege(cursor)]
    while cursor.take_operator(","):
        found.append(_parse_privilege(cursor))
    return tuple(privilege for privilege in _PRIVILEGES if privilege in found)


def _parse_privilege(cursor: Cursor) -> Privilege:
    word = cursor.take_any("READ", "WRITE")
    if word is None:
        raise cursor.fail("READ, WRITE or ALL is expected")
    return cast(Privilege, word.lower())


def _parse_object(cursor: Cursor) -> GrantObject:
    """Parses `ON database.*`, `ON [database.]table`, `ON *.*`, `ON CONNECTION name` or `ON CONNECTION *`."""
    cursor.expect("ON")
    if cursor.at("CONNECTION") and cursor.peek().raw != "." and cursor.peek().word not in ("TO", "FROM"):
        cursor.advance()
        return GrantObject("connection", None if cursor.take_operator("*") else cursor.name("a connection name"))
    if cursor.take_operator("*"):
        cursor.expect_operator(".")
        cursor.expect_operator("*")
        return GrantObject("table")
    first = cursor.name("a database or table name")
    if not cursor.take_operator("."):
        return GrantObject("table", first)
    return GrantObject("table", None if cursor.take_operator("*") else cursor.name("a table name"), first)


def _parse_properties(cursor: Cursor) -> tuple[str | None, Role | None]:
    """Returns what stands behind PASS and behind ROLE, in either order."""
    password: str | None = None
    role: Role | None = None
    while not cursor.at_end:
        token = cursor.token
        word = cursor.take_any("PASS", "ROLE")
        if word is None:
            raise cursor.fail("PASS or ROLE is expected")
        if (password if word == "PASS" else role) is not None:
            raise cursor.fail(f"{word} is given twice", token)
        if word == "PASS":
            password = cursor.string("a password")
        else:
            role = _parse_role(cursor)
    return password, role


def _parse_role(cursor: Cursor) -> Role:
    word = cursor.take_any(*_ROLES)
    if word is None:
        raise cursor.fail(f"{', '.join(_ROLES[:-1])} or {_ROLES[-1]} is expected")
    return cast(Role, word.lower())
