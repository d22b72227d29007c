"""Errors of Penstock as PostgreSQL's clients are told: SQLSTATE, position and hint."""

from __future__ import annotations

from penstock.common import errors
from penstock.common.errors import PenstockError
from penstock.shell.postgres.backend import ClientReport
from penstock.shell.postgres.frontend import ProtocolError
from penstock.shell.postgres.statement_text import StatementText

#: By the numbers of TDengine, where they say more than the class does.
_BY_CODE = {
    0x0388: "3D000", 0x2616: "3D000", 0x0381: "42P04", 0x2603: "42P01", 0x0603: "42P07", 0x2602: "42703",
    0x260E: "42703", 0x2604: "42702", 0x0351: "42704", 0x060B: "22008", 0x263C: "42701", 0x260A: "42803",
}
_BY_CLASS: tuple[tuple[type[PenstockError], str], ...] = (
    (ProtocolError, "08P01"),
    (errors.UnauthenticatedError, "28P01"),
    (errors.LoginDelayedError, "53300"),
    (errors.SqlSyntaxError, "42601"),
    (errors.PermissionDeniedError, "42501"),
    (errors.CancelledError, "57014"),
    (errors.LimitExceededError, "54000"),
    (errors.BusyError, "53000"),
    (errors.NotSupportedError, "0A000"),
    (errors.NotFoundError, "42704"),
    (errors.AlreadyExistsError, "42710"),
    (errors.InUseError, "55006"),
    (errors.InvalidValueError, "22023"),
    (errors.InvalidStatementError, "42000"),
    (errors.UserFunctionError, "38000"),
    (errors.OutOfMemoryError, "53200"),
    (errors.CorruptionError, "XX001"),
    (errors.StorageError, "58030"),
    (errors.ReplicasMissingError, "40003"),  # statement completion unknown
    (errors.NotActiveError, "25006"),  # read-only transaction: by this, clients with several hosts know a standby
    (errors.UnavailableError, "57P03"),
    (errors.ExternalSystemError, "58000"),
)
INTERNAL = "XX000"


def sqlstate_of(error: PenstockError) -> str:
    """Returns the SQLSTATE that says best what kind of error it is."""
    if not isinstance(error, errors.InvalidStatementError) and error.code in _BY_CODE:
        return _BY_CODE[error.code]
    return next((state for kind, state in _BY_CLASS if isinstance(error, kind)), INTERNAL)


def report(error: PenstockError, statement: StatementText | None = None, *, fatal: bool = False) -> ClientReport:
    """Returns what a client is told; the place of an error is told as one in what the client sent."""
    message = error.message if error.code is None else f"[0x{error.code:04X}] {error.message}"
    position = None
    if error.position is not None and statement is not None:
        lines = statement.text.split("\n")[:error.position.line - 1]
        position = 1 + statement.sent_offset(sum(len(line) + 1 for line in lines) + error.position.column - 1)
    return ClientReport("FATAL" if fatal else "ERROR", sqlstate_of(error), message, error.hint, position)
