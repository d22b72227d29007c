"""PEP 249's classes of errors. What is raised is in both hierarchies: an error of Penstock, and one of these."""

from __future__ import annotations

from penstock.common import errors
from penstock.common.logging import logger

_log = logger(__name__)


class Warning(Exception):
    """Never raised; PEP 249 wants the name."""


class Error(Exception):
    """Base of PEP 249's errors. Every one that is raised is a `PenstockError` as well."""


class InterfaceError(Error):
    """The interface was used wrongly."""


class DatabaseError(Error):
    """The engine refused or failed."""


class DataError(DatabaseError):
    """A value doesn't fit."""


class OperationalError(DatabaseError):
    """Disk, memory, another process: not the statement's fault."""


class IntegrityError(DatabaseError):
    """Something still depends on the object."""


class InternalError(DatabaseError):
    """A defect of Penstock."""


class ProgrammingError(DatabaseError):
    """The statement is wrong."""


class NotSupportedError(DatabaseError):
    """Penstock doesn't do that."""


_CATEGORIES: tuple[tuple[type[errors.PenstockError], type[Error]], ...] = (
    (errors.InvalidValueError, DataError),
    (errors.InUseError, IntegrityError),
    (errors.NotSupportedError, NotSupportedError),
    (errors.SqlSyntaxError, ProgrammingError),
    (errors.NotFoundError, ProgrammingError),
    (errors.AlreadyExistsError, ProgrammingError),
    (errors.InvalidStatementError, ProgrammingError),
    (errors.PermissionDeniedError, ProgrammingError),
    (errors.ConfigError, ProgrammingError),
    (errors.UnauthenticatedError, OperationalError),
    (errors.CancelledError, OperationalError),
    (errors.LimitExceededError, OperationalError),
    (errors.BusyError, OperationalError),
    (errors.DataDirectoryInUseError, OperationalError),
    (errors.StorageError, OperationalError),
    (errors.CorruptionError, OperationalError),
    (errors.UnavailableError, OperationalError),
    (errors.ReplicasMissingError, OperationalError),
    (errors.OutOfMemoryError, OperationalError),
)


_raised_classes: dict[type[errors.PenstockError], type[errors.PenstockError]] = {}


def _raised_class(kind: type[errors.PenstockError]) -> type[errors.PenstockError]:
    """Returns the subclass of an error that is in PEP 249's hierarchy as well; always the same one."""
    known = _raised_classes.get(kind)
    if known is None:
        known = _raised_classes.setdefault(kind, _make_raised_class(kind))
    return known


def _make_raised_class(kind: type[errors.PenstockError]) -> type[errors.PenstockError]:
    category = next((category for base, category in _CATEGORIES if issubclass(kind, base)), InternalError)
    return type(kind.__name__, (kind, category), {"__doc__": kind.__doc__, "__module__": __name__})


def translated(error: errors.PenstockError) -> errors.PenstockError:
    """Returns the error as one that is a PEP 249 error too."""
    if isinstance(error, Error):
        return error
    kind = _raised_class(type(error))
    return kind(error.message, code=error.code, hint=error.hint, position=error.position)


def shown_cause(error: errors.PenstockError) -> BaseException | None:
    """Returns what `translated(error)` is raised from: None, since it says all that its user can do something about.

    What lies behind it is in the log, for whoever sets `logLevel` to debug. A defect shows it: it is to be reported.
    """
    if isinstance(error, Error):
        return error.__cause__
    _log.debug("refused: %s", error, exc_info=error)
    return error if isinstance(error, errors.InternalError) else None


class ClosedError(errors.InvalidStatementError, InterfaceError):
    """The connection or cursor is closed, or has no result."""
