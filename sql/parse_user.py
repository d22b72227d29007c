"""Parses CREATE USER, ALTER USER and DROP USER."""

from __future__ import annotations

from typing import cast, get_args

from penstock.sql.cursor import Cursor
from penstock.sql.parse_ddl import take_if_exists, take_if_not_exists
from penstock.sql.statements import AlterUser, CreateUser, DropUser, Role, Statement

_ROLES = tuple(role.upper() for role in get_args(Role))


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
