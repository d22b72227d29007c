"""Who may ask what, without an engine."""

from __future__ import annotations

from typing import get_args

from penstock.common.errors import PermissionDeniedError
from penstock.mnode.access.roles import Identity, require
from penstock.sql.dialect.parser import parse_one
from penstock.sql.rights import Role


class NoStreams:
    """Streams of which there are none."""

    def named(self, name: str) -> None: ...


class NothingThere:
    """A catalog where no name leads to anything."""

    streams = NoStreams()
    has_views = False

    def table(self, database: str, name: str) -> None: ...

    def view(self, database: str, name: str) -> None: ...

    def table_by_uid(self, uid: int) -> None: ...


def least_role(text: str) -> Role:
    """Returns the least role that may execute a statement without any grants."""
    roles: tuple[Role, ...] = get_args(Role)
    for role in roles:
        try:
            require(Identity("bob", role), parse_one(text), "d", NothingThere())
        except PermissionDeniedError:
            continue
        return role
    raise AssertionError(f"nobody may {text}")
