"""The functions that tell about the session and the engine."""

from __future__ import annotations

from penstock import __version__
from penstock.planner.duckdb_sql.duckdb_tree import Tree, null, text
from penstock.planner.functions.spec import FunctionSpec, ScalarBuilder, always
from penstock.planner.scalar.scalar_call import ScalarCall
from penstock.sql.types import INT, DataType, Kind

TDENGINE_VERSION = "3.3.6.0"


def _text(name: str, length: int, scalar: ScalarBuilder, example: str, summary: str) -> FunctionSpec:
    return FunctionSpec(name, "scalar", (), always(DataType(Kind.VARCHAR, length)), summary, example=example,
                        scalar=scalar)


def _database(given: ScalarCall) -> Tree:
    return text(given.session.database) if given.session.database else null("VARCHAR")


def _user(given: ScalarCall) -> Tree:
    return text(given.session.user)


def _version(_given: ScalarCall) -> Tree:
    return text(TDENGINE_VERSION)


def _penstock_version(_given: ScalarCall) -> Tree:
    return text(__version__)


FUNCTIONS = (
    _text("database", 64, _database, "database()", "The current database, or NULL."),
    _text("current_schema", 64, _database, "current_schema()",
          "The same as database; the parentheses can be left out."),
    _text("current_database", 64, _database, "current_database()", "The same as database."),
    _text("server_version", 32, _version, "server_version() = client_version()",
          "The version of TDengine that Penstock reports to TDengine's clients."),
    _text("client_version", 32, _version, "client_version() = server_version()", "The same as server_version."),
    _text("penstock_version", 32, _penstock_version, "length(penstock_version()) > 0", "The version of the engine."),
    FunctionSpec("server_status", "scalar", (), always(INT), "1: the engine answers.", example="server_status()",
                 scalar="CAST(1 AS INTEGER)"),
    _text("user", 64, _user, "user()", "The user of the session."),
    _text("current_user", 64, _user, "current_user()", "The same as user; the parentheses can be left out."),
    _text("session_user", 64, _user, "session_user()", "The same as user; the parentheses can be left out."),
)
