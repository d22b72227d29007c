"""Errors on their way through gRPC: as a status that any client understands, and in full for our own."""

from __future__ import annotations

import grpc

from penstock.common import errors
from penstock.common.errors import NoAnswerError, PenstockError
from penstock.common.sent_errors import cut, decode_error, encode_error

#: The trailing header that carries an error in full.
DETAILS = "penstock-error-bin"
# Headers of a call have some kilobytes of room, and text that isn't ASCII takes three bytes for each of its own.
_TEXT_MAX = 1000

_CODES: tuple[tuple[type[PenstockError], grpc.StatusCode], ...] = (
    (errors.UnauthenticatedError, grpc.StatusCode.UNAUTHENTICATED),
    (errors.LoginDelayedError, grpc.StatusCode.UNAVAILABLE),
    (errors.PermissionDeniedError, grpc.StatusCode.PERMISSION_DENIED),
    (errors.LimitExceededError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.BusyError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.CancelledError, grpc.StatusCode.CANCELLED),
    (errors.NotFoundError, grpc.StatusCode.NOT_FOUND),
    (errors.AlreadyExistsError, grpc.StatusCode.ALREADY_EXISTS),
    (errors.NotSupportedError, grpc.StatusCode.UNIMPLEMENTED),
    (errors.InUseError, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.SqlSyntaxError, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.InvalidStatementError, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.InvalidValueError, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.UserFunctionError, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.OutOfMemoryError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.CorruptionError, grpc.StatusCode.DATA_LOSS),
    (errors.UnavailableError, grpc.StatusCode.UNAVAILABLE),
    (errors.StorageError, grpc.StatusCode.UNAVAILABLE),
    (errors.ReplicasMissingError, grpc.StatusCode.DEADLINE_EXCEEDED),
)


def code_of(error: PenstockError) -> grpc.StatusCode:
    """Returns the gRPC status that says best what kind of error it is."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), grpc.StatusCode.INTERNAL)


def text_of(error: PenstockError) -> str:
    """Returns the error as users read it, cut to what fits the status of a call."""
    return cut(str(error), _TEXT_MAX)


def encode(error: PenstockError) -> bytes:
    """Returns the error in full, for DETAILS."""
    return encode_error(error, _TEXT_MAX)


def error_of(failure: grpc.RpcError, address: str) -> PenstockError:
    """Returns what a call failed with: the server's own error, or one that says what became of the call."""
    for name, value in failure.trailing_metadata() or ():
        if name == DETAILS:
            return decode_error(value)
    code, text = failure.code(), failure.details()
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return errors.InvalidValueError(f"{address} refused the call: {text}")
    if code is grpc.StatusCode.CANCELLED:
        return errors.CancelledError("the call was cancelled")
    return NoAnswerError(f"{address} doesn't answer: {text}", hint="is `penstock serve` running there?")
