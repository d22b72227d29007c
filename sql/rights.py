"""What a user may do with tables and connections: roles, privileges, and what a set of them allows."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

Role = Literal["none", "read", "write", "admin"]
Privilege = Literal["read", "write"]
ObjectKind = Literal["table", "connection"]

#: What a role may do with all tables; with connections only an admin may do something by role.
_OF_ROLE: dict[Role, tuple[Privilege, ...]] = {
    "none": (), "read": ("read",), "write": ("read", "write"), "admin": ("read", "write")}


@dataclass(frozen=True, slots=True)
class GrantObject:
    """What a grant is about. `name` None is all tables of a database, or all connections; tables without a `database`
    are those of all databases. In a statement a table may lack its database: it is one of that in use then.
    """

    kind: ObjectKind
    name: str | None = None
    database: str | None = None

    def __str__(self) -> str:
        if self.kind == "connection":
            return f"CONNECTION {self.name or '*'}"
        return f"{self.database or '*'}.{self.name or '*'}"


@dataclass(frozen=True, slots=True)
class Right:
    """That somebody may do something with an object."""

    privilege: Privilege
    on: GrantObject


@dataclass(frozen=True, slots=True)
class Rights:
    """What somebody may do: by role with all tables, and what was granted beyond that. By default everything."""

    role: Role = "admin"
    granted: Collection[Right] = ()

    @property
    def is_admin(self) -> bool:
        return self.role == "admin"

    def by_role(self, privilege: Privilege) -> bool:
        """Whether the role allows this with all tables."""
        return privilege in _OF_ROLE[self.role]

    def allow(self, privilege: Privilege, on: GrantObject) -> bool:
        """Whether this may be done with all of what `on` names."""
        if self.is_admin or (on.kind == "table" and self.by_role(privilege)):
            return True
        wider = [on, GrantObject(on.kind, None, on.database), GrantObject(on.kind)]
        return any(Right(privilege, each) in self.granted for each in wider)

    def touch(self, on: GrantObject) -> bool:
        """Whether anything may be done with it."""
        return self.allow("read", on) or self.allow("write", on)

    def touch_database(self, name: str) -> bool:
        """Whether anything may be done with any table of a database."""
        return self.touch(GrantObject("table", None, name)) or any(
            right.on.kind == "table" and right.on.database == name for right in self.granted)
