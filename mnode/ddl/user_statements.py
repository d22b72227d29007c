"""CREATE, ALTER and DROP USER, GRANT and REVOKE: the rules of users; who is one at a login is `logins`' business."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.common.clock import Clock
from penstock.common.errors import AlreadyExistsError, InvalidStatementError, NotFoundError
from penstock.common.passwords import SALT_BYTES, PasswordHash, ScramVerifier, hash_password, scram_verifier
from penstock.common.suggestions import did_you_mean
from penstock.mnode.access.session import Result
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.catalog_records import UserRecord
from penstock.mnode.catalog.name_lookup import NO_DATABASE, require_table, require_user_database
from penstock.mnode.ddl.name_rules import check_name
from penstock.sql.rights import GrantObject, Right, Rights
from penstock.sql.schema import Session
from penstock.sql.tree.statements import (
    AlterConnection,
    AlterUser,
    CreateConnection,
    CreateUser,
    DropUser,
    Grant,
    Name,
    Revoke,
    Statement,
)

PASSWORD_LENGTH = (8, 255)
_EXISTS, _MISSING, _BAD_NAME, _BAD_PASSWORD = 0x0350, 0x0351, 0x0352, 0x0353


def without_password(statement: Statement, text: str) -> str:
    """Returns the text of a statement as everybody may see it."""
    match statement:
        case CreateUser():
            return f"CREATE USER {statement.name}"
        case AlterUser():
            return f"ALTER USER {statement.name}"
        # Options that may be a password, by mistake, and are refused for it.
        case CreateConnection():
            return f"CREATE CONNECTION {statement.name} TYPE {statement.kind}"
        case AlterConnection():
            return f"ALTER CONNECTION {statement.name}"
    return text


class Users:
    """Executes the statements about users."""

    def __init__(self, catalog: Catalog, clock: Clock, random_bytes: Callable[[int], bytes]) -> None:
        self._catalog = catalog
        self._clock = clock
        self._random_bytes = random_bytes

    def create(self, statement: CreateUser) -> Result:
        """The first user must be an admin, or nobody could make the next one from elsewhere."""
        if self._catalog.users.named(statement.name) is not None:
            if statement.if_not_exists:
                return Result()
            raise AlreadyExistsError(f"user {statement.name} already exists", code=_EXISTS)
        check_name(statement.name, "user")
        if ":" in statement.name:
            raise InvalidStatementError(f"the user name {statement.name!r} has a colon", code=_BAD_NAME)
        if not self._catalog.users.all() and statement.role != "admin":
            raise InvalidStatementError("the first user must be an admin", hint="add ROLE admin")
        password, scram = self._hashed(statement.password)
        self._catalog.users.put(UserRecord(
            statement.name, statement.role, password, scram, self._clock.now_ms()))
        return Result()

    def alter(self, statement: AlterUser) -> Result:
        user = self._user(statement.name)
        if statement.role is not None:
            if statement.role != "admin":
                self._refuse_last_admin(user)
            user = replace(user, role=statement.role)
        if statement.password is not None:
            password, scram = self._hashed(statement.password)
            user = replace(user, password=password, scram=scram)
        self._catalog.users.put(user)
        return Result()

    def drop(self, statement: DropUser) -> Result:
        if statement.if_exists and self._catalog.users.named(statement.name) is None:
            return Result()
        user = self._user(statement.name)
        self._refuse_last_admin(user)
        self._catalog.users.drop(user)
        return Result()

    def grant(self, statement: Grant, session: Session) -> Result:
        """What is granted already is no error; what is granted on must be there."""
        user = self._user(statement.user)
        on = self._object(statement.on, session)
        added = [Right(privilege, on) for privilege in statement.privileges]
        known = user.granted
        self._catalog.users.put(replace(user, granted=(*known, *(right for right in added if right not in known))))
        return Result()

    def revoke(self, statement: Revoke, session: Session) -> Result:
        """Takes back what was granted on this very object. InvalidStatementError if the user could still do it, by
        role or by a wider grant: nothing has changed then.
        """
        user = self._user(statement.user)
        on = _resolved(statement.on, session)
        taken = [Right(privilege, on) for privilege in statement.privileges]
        remaining = tuple(right for right in user.granted if right not in taken)
        left = next((right for right in taken if Rights(user.role, remaining).allow(right.privilege, on)), None)
        if left is not None:
            wider = [str(right.on) for right in remaining if right.privilege == left.privilege
                     and Rights("none", (right,)).allow(left.privilege, on)]
            raise InvalidStatementError(
                f"{user.name} has {left.privilege.upper()} on {on} by {wider[0] if wider else f'role {user.role}'}",
                hint=f"REVOKE it ON {wider[0]}" if wider else
                     f"ALTER USER {user.name} ROLE none keeps only what is granted")
        if len(remaining) == len(user.granted):
            raise NotFoundError(f"{user.name} has no grant on {on}", hint="SHOW GRANTS has all grants")
        self._catalog.users.put(replace(user, granted=remaining))
        return Result()

    def _object(self, on: GrantObject, session: Session) -> GrantObject:
        """Returns what to grant on. NotFoundError if it isn't there, InvalidStatementError if it has no rights."""
        if on.kind == "connection":
            if on.name is not None and self._catalog.connections.named(on.name) is None:
                raise NotFoundError(f"connection {on.name} does not exist", hint=did_you_mean(
                    on.name, (other.connection.name for other in self._catalog.connections.all())))
            return on
        on = _resolved(on, session)
        if on.database is not None:
            require_user_database(on.database, self._catalog)
        if on.name is not None and self._catalog.view(on.database or "", on.name) is None:
            table = require_table(Name(on.name, on.database), session, self._catalog)
            if table.kind == "child":
                raise InvalidStatementError(f"{on} is a child table: grants are on its super table",
                                            hint=f"grant it on {table.database}.{table.super_name}")
        return on

    def _user(self, name: str) -> UserRecord:
        user = self._catalog.users.named(name)
        if user is None:
            raise NotFoundError(f"user {name} does not exist", code=_MISSING,
                                hint=did_you_mean(name, (other.name for other in self._catalog.users.all())))
        return user

    def _refuse_last_admin(self, user: UserRecord) -> None:
        if user.role == "admin" and not any(
                other.role == "admin" for other in self._catalog.users.all() if other.name != user.name):
            raise InvalidStatementError(f"{user.name} is the only admin", hint="create another admin first")

    def _hashed(self, password: str) -> tuple[PasswordHash, ScramVerifier]:
        minimum, maximum = PASSWORD_LENGTH
        if not minimum <= len(password) <= maximum:
            raise InvalidStatementError(f"a password has {minimum} to {maximum} characters", code=_BAD_PASSWORD)
        return (hash_password(password, self._random_bytes(SALT_BYTES)),
                scram_verifier(password, self._random_bytes(SALT_BYTES)))


def _resolved(on: GrantObject, session: Session) -> GrantObject:
    """Returns an object with its database."""
    if on.kind == "connection" or on.database is not None or on.name is None:
        return on
    if session.database is None:
        raise InvalidStatementError(f"no database is in use, and {on.name} names none", code=NO_DATABASE,
                                    hint="USE a database, or write db.table")
    return replace(on, database=session.database)
