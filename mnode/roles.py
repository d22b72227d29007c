"""What a user may do, decided from the parsed statement alone."""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.common.errors import PermissionDeniedError
from penstock.sql.statements import (
    AlterUser,
    AnalyzeStream,
    Delete,
    Describe,
    Explain,
    Insert,
    NoteTime,
    Role,
    Select,
    SetOperation,
    Show,
    Statement,
    UseDatabase,
)

_RANKS: dict[Role, int] = {"read": 0, "write": 1, "admin": 2}


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks, and the role that decides what is answered."""

    name: str
    role: Role


OWNER = Identity("root", "admin")
"""Who opens the data directory itself; and everybody, as long as there are no users."""


def require(identity: Identity, statement: Statement) -> None:
    """Raises PermissionDeniedError unless the role allows the statement; one's own password is anybody's to change."""
    if isinstance(statement, AlterUser) and statement.name == identity.name and statement.role is None:
        return
    require_role(identity, *needed(statement))


def require_role(identity: Identity, role: Role, what: str) -> None:
    """Raises PermissionDeniedError unless the identity has at least this role, which `what` it wants to do takes."""
    if _RANKS[identity.role] < _RANKS[role]:
        raise PermissionDeniedError(f"{what} takes the role {role}; user {identity.name} has {identity.role}",
                                    hint=f"an admin can change that: ALTER USER {identity.name} ROLE {role}")


def needed(statement: Statement) -> tuple[Role, str]:
    """Returns the least role that may execute a statement, and what it is in it that takes this role."""
    if _names_a_file(statement):
        return "admin", "a statement with a file of the engine's machine"
    words = " ".join(re.findall("[A-Z][a-z]*", type(statement).__name__)).upper()
    match statement:
        case Select() | SetOperation() | Explain() | AnalyzeStream() | Show() | Describe() | UseDatabase():
            return "read", words
        case Insert() | Delete() | NoteTime():
            return "write", words
    return "admin", words


def _names_a_file(statement: Statement) -> bool:
    match statement:
        case Select() | SetOperation():
            return statement.into_file is not None
        case Insert():
            return any(target.file is not None or (target.query is not None and _names_a_file(target.query))
                       for target in statement.targets)
    return False
