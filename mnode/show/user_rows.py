"""The rows of the system tables about users and what is theirs: rights, functions, connections."""

from __future__ import annotations

from typing import get_args

from penstock.mnode.access.audit_log import Audit
from penstock.mnode.access.roles import OWNER
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.ddl.connections import Connections
from penstock.mnode.show.row_source import Maker, Rows
from penstock.sql.rights import Privilege, Rights
from penstock.sql.tree.expression_nodes import quote_string


class UserRows:
    """Lists users, and what they made or did."""

    def __init__(self, catalog: Catalog, audit: Audit, connections: Connections, started_ms: int) -> None:
        """`started_ms`: since when everybody is the owner, while there are no users."""
        self._catalog = catalog
        self._audit = audit
        self._connections = connections
        self._started_ms = started_ms

    def makers(self) -> dict[str, Maker]:
        return {
            "ins_users": self._users,
            "ins_audit": self._audit_rows,
            "ins_user_privileges": self._privileges,
            "ins_functions": self._functions,
            "ins_connections": self._connection_rows,
        }

    def _users(self) -> Rows:
        """Yields the users, or, while there are none, who everybody is."""
        for user in self._catalog.users.all():
            yield {
                "name": user.name, "super": int(user.role == "admin"), "enable": 1, "create_time": user.created_ms,
                "role": user.role,
            }
        if not self._catalog.users.all():
            yield {"name": OWNER.name, "super": 1, "enable": 1, "create_time": self._started_ms, "role": OWNER.role}

    def _audit_rows(self) -> Rows:
        for entry in self._audit.entries():
            yield {
                "time": entry.time_ms, "user_name": entry.user or None, "interface": entry.interface,
                "address": entry.address or None, "what": entry.what, "object": entry.on or None,
                "outcome": entry.outcome,
            }

    def _privileges(self) -> Rows:
        """Yields what users may do by role, then what was granted to them."""
        for user in self._catalog.users.all():
            notes = f"role {user.role}"
            if user.role == "admin":
                yield {
                    "user_name": user.name, "privilege": "all", "db_name": "*", "table_name": "*", "notes": notes,
                    "connection": "*",
                }
            for privilege in get_args(Privilege):
                if user.role != "admin" and Rights(user.role).by_role(privilege):
                    yield {
                        "user_name": user.name, "privilege": privilege, "db_name": "*", "table_name": "*",
                        "notes": notes,
                    }
            for right in user.granted:
                on = right.on
                if on.kind == "connection":
                    yield {"user_name": user.name, "privilege": right.privilege, "connection": on.name or "*"}
                else:
                    yield {
                        "user_name": user.name, "privilege": right.privilege, "db_name": on.database or "*",
                        "table_name": on.name or "*",
                    }

    def _functions(self) -> Rows:
        for function in self._catalog.functions.all():
            arguments = function.arguments
            yield {
                "name": function.name, "comment": function.comment, "aggregate": int(function.aggregate),
                "output_type": function.result.sql(), "create_time": function.create_time_ms,
                "func_language": "Python", "func_body": function.source,
                "arguments": None if arguments is None else ", ".join(kind.sql() for kind in arguments),
            }

    def _connection_rows(self) -> Rows:
        for info in self._connections.infos():
            connection = info.connection
            options = ", ".join(f"{name}={quote_string(value)}" for name, value in connection.options)
            yield {
                "name": connection.name, "type": connection.kind, "options": options,
                "create_time": info.created_ms, "used_by": ", ".join(info.used_by) or None,
                "state": info.health.state, "reason": info.health.reason or None, "since": info.health.since_ms,
            }
