"""CREATE USER, ALTER USER and DROP USER: the rules of users; who is one at a login is `logins`' business."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from penstock.common.clock import Clock
from penstock.common.errors import AlreadyExistsError, InvalidStatementError, NotFoundError
from penstock.common.passwords import SALT_BYTES, PasswordHash, hash_password
from penstock.common.suggestions import did_you_mean
from penstock.mnode.catalog import Catalog, UserRecord
from penstock.mnode.ddl import check_name
from penstock.mnode.session import Result
from penstock.sql.statements import AlterConnection, AlterUser, CreateConnection, CreateUser, DropUser, Statement

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
        if self._catalog.user(statement.name) is not None:
            if statement.if_not_exists:
                return Result()
            raise AlreadyExistsError(f"user {statement.name} already exists", code=_EXISTS)
        check_name(statement.name, "user")
        if ":" in statement.name:
            raise InvalidStatementError(f"the user name {statement.name!r} has a colon", code=_BAD_NAME)
        if not self._catalog.users() and statement.role != "admin":
            raise InvalidStatementError("the first user must be an admin", hint="add ROLE admin")
        self._catalog.put_user(UserRecord(
            statement.name, statement.role, self._hashed(statement.password), self._clock.now_ms()))
        return Result()

    def alter(self, statement: AlterUser) -> Result:
        user = self._user(statement.name)
        if statement.role is not None:
            if statement.role != "admin":
                self._refuse_last_admin(user)
            user = replace(user, role=statement.role)
        if statement.password is not None:
            user = replace(user, password=self._hashed(statement.password))
        self._catalog.put_user(user)
        return Result()

    def drop(self, statement: DropUser) -> Result:
        if statement.if_exists and self._catalog.user(statement.name) is None:
            return Result()
        user = self._user(statement.name)
        self._refuse_last_admin(user)
        self._catalog.drop_user(user.name)
        return Result()

    def _user(self, name: str) -> UserRecord:
        user = self._catalog.user(name)
        if user is None:
            raise NotFoundError(f"user {name} does not exist", code=_MISSING,
                                hint=did_you_mean(name, (other.name for other in self._catalog.users())))
        return user

    def _refuse_last_admin(self, user: UserRecord) -> None:
        if user.role == "admin" and not any(
                other.role == "admin" for other in self._catalog.users() if other.name != user.name):
            raise InvalidStatementError(f"{user.name} is the only admin", hint="make another one first")

    def _hashed(self, password: str) -> PasswordHash:
        least, most = PASSWORD_LENGTH
        if not least <= len(password) <= most:
            raise InvalidStatementError(f"a password has {least} to {most} characters", code=_BAD_PASSWORD)
        return hash_password(password, self._random_bytes(SALT_BYTES))
