"""The errors that people see. Each says what is wrong and where, who must act, and whether a retry helps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a statement: 1-based line and column, and the offending text."""

    line: int
    column: int
    text: str


class PenstockError(Exception):
    """Base of all errors of Penstock.

    `code` is TDengine's error code (the low 16 bits) where one exists, else None.
    `retry` tells whether the same call may succeed later without a change. `hint`: what may help, or what finds that
    out once it is asked for, since some errors are only of what was tried.
    """

    retry: ClassVar[bool] = False
    default_code: ClassVar[int | None] = None

    def __init__(
        self,
        message: str,
        *,
        code: int | None = None,
        hint: str | Callable[[], str | None] | None = None,
        position: Position | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code if code is not None else self.default_code
        self._hint = hint
        self.position = position

    @property
    def hint(self) -> str | None:
        """What may help, if anything is known."""
        if callable(self._hint):
            self._hint = self._hint()
        return self._hint

    @property
    def text(self) -> str:
        """All that is said to people, without the code."""
        parts = [self.message]
        if self.position is not None:
            at = self.position
            parts.append(f"at line {at.line}, column {at.column}: {at.text!r}" if at.text else
                         f"at line {at.line}, column {at.column}")
        text = " ".join(parts)
        return f"{text} ({self.hint})" if self.hint else text

    def __str__(self) -> str:
        return self.text if self.code is None else f"[0x{self.code:04X}] {self.text}"


class SqlSyntaxError(PenstockError):
    """The text is not a statement of the dialect."""

    default_code = 0x2600


class NotFoundError(PenstockError):
    """A database, table, column, function or stream that the statement names does not exist."""


class AlreadyExistsError(PenstockError):
    """The name is taken."""


class InvalidStatementError(PenstockError):
    """The statement parses, but asks for something that is not allowed or makes no sense."""


class InvalidValueError(PenstockError):
    """A value doesn't fit its column: wrong type, out of range, too long, unparsable."""


class InvalidStreamError(InvalidStatementError):
    """The query or the options cannot make a stream."""

    default_code = 0x2645


class NotSupportedError(PenstockError):
    """TDengine has it, Penstock does not (yet); `docs/dialect.md` names it."""


class InUseError(PenstockError):
    """The object cannot be dropped or changed while a stream uses it."""

    default_code = 0x03F3


class UnauthenticatedError(PenstockError):
    """Nobody is known by this user and password, or by this token."""

    default_code = 0x0357


class LoginDelayedError(PenstockError):
    """Too many logins by this user, or from this address, were wrong or are under way; this one was not looked at."""

    retry = True
    default_code = 0x0357

    def __init__(self, message: str, *, retry_after_s: float = 1.0, **more: Any) -> None:
        super().__init__(message, **more)
        self.retry_after_s = retry_after_s


class PermissionDeniedError(PenstockError):
    """The user's role doesn't allow it."""

    default_code = 0x0303


class CancelledError(PenstockError):
    """Whoever asked no longer wants the answer, or is gone, or somebody has ended the statement."""


class LimitExceededError(PenstockError):
    """A statement went beyond a bound of time, rows or bytes; the message names the key that sets it."""


class BusyError(PenstockError):
    """More is asked at once than is allowed; the same a little later may be answered."""

    retry = True


class ConfigError(PenstockError):
    """One or more configuration keys are unknown or have bad values; all of them are listed."""


class DataDirectoryInUseError(PenstockError):
    """Another engine has the data directory open."""

    retry = True


class ReplicasMissingError(PenstockError):
    """Rows are written, but not by as many nodes as the database asks for, within `replicaTimeout` or before this node
    ceased to be the active one. They may be there later, or not; to write the same rows again does no harm.
    """

    retry = True


class UserFunctionError(PenstockError):
    """A function that a user wrote in Python cannot be loaded, raised an exception, or returned something else than
    it was declared to.
    """


class StorageError(PenstockError):
    """The file system refused: disk full, I/O error, no permission. Nothing acknowledged is lost."""

    retry = True


class CorruptionError(PenstockError):
    """Stored bytes fail their checksum or make no sense; the message names file and offset."""


class CheckpointDamagedError(CorruptionError):
    """A task's part of a checkpoint is missing or not as it was written; an older checkpoint may be intact."""


class StateLayoutError(PenstockError):
    """The saved state of a stream is laid out otherwise than its plan of today has it: it isn't read, and is kept."""


class StaleAttemptError(PenstockError):
    """An older attempt of a stream tried to act; it was fenced off and must stop."""


class UnavailableError(PenstockError):
    """A part that the call needs (Spark, a worker, the dnode) is not there now."""

    retry = True


class NoAnswerError(UnavailableError):
    """A server doesn't answer, or the connection with it ended: what it was asked for may be done, or not."""


class NotActiveError(UnavailableError):
    """This node of a cluster follows another one, or none: only the active one takes rows and changes anything."""


class OutOfMemoryError(PenstockError):
    """The memory that the process may use, by its container or by the machine, was not enough."""

    retry = True

    @classmethod
    def of(cls, cause: object) -> OutOfMemoryError:
        """Returns the error for what a library said when it got no memory."""
        detail = f": {cause}" if str(cause) else ""
        return cls(f"out of memory{detail}",
                   hint="give the worker's container more memory, or lower streamBufferSize and blockRowsMax")


class ExternalSystemError(PenstockError):
    """A server or a place outside of Penstock that a connection leads to doesn't do what it should."""


class ConnectionFailedError(ExternalSystemError):
    """It can't be reached, or doesn't answer in time."""

    retry = True


class LoginRefusedError(ExternalSystemError):
    """It refuses the user, the password, the token or the certificate of the connection."""


class TargetMissingError(ExternalSystemError):
    """It was reached, but the database, topic, folder or address there doesn't exist."""


class ContentRefusedError(ExternalSystemError):
    """It was reached and let us in, but refuses what it is sent; the same again won't help."""


class RowRefusedError(ContentRefusedError):
    """It refuses one row, the one at place `row` of those that it was sent; it would take the others."""

    def __init__(self, message: str, *, row: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.row = row


class SecretMissingError(PenstockError):
    """An environment variable or a file that a connection takes a secret from isn't there, or is empty."""


class LibraryMissingError(PenstockError):
    """A Python package that isn't always installed is needed; the hint says how to install it."""


class InternalError(PenstockError):
    """A broken invariant: a defect of Penstock."""

    @classmethod
    def of(cls, cause: Exception) -> InternalError:
        """Returns the error for what should never have been raised."""
        return cls(f"{type(cause).__name__}: {cause}")
