"""Errors on their way through gRPC: as a status that any client understands, and in full for our own."""

from __future__ import annotations

import json

import grpc

from penstock.common import errors
from penstock.common.errors import InternalError, NoAnswerError, PenstockError, Position

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
    return _cut(str(error))


def encode(error: PenstockError) -> bytes:
    """Returns the error in full, as `decode` takes it."""
    at = error.position
    return json.dumps({
        "class": type(error).__name__, "message": _cut(error.message), "code": error.code,
        "hint": error.hint and _cut(error.hint),
        "position": None if at is None else [at.line, at.column, at.text[:100]]}).encode()


def decode(data: bytes) -> PenstockError:
    """Returns the error that `encode` was given, in its own class."""
    told = json.loads(data)
    kind = getattr(errors, told["class"], InternalError)
    position = None if told["position"] is None else Position(*told["position"])
    error: PenstockError = kind(told["message"], code=told["code"], hint=told["hint"], position=position)
    return error


def error_of(failure: grpc.RpcError, address: str) -> PenstockError:
    """Returns what a call failed with: the server's own error, or one that says what became of the call."""
    for name, value in failure.trailing_metadata() or ():
        if name == DETAILS:
            return decode(value)
    code, text = failure.code(), failure.details()
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return errors.InvalidValueError(f"{address} refused the call: {text}")
    if code is grpc.StatusCode.CANCELLED:
        return errors.CancelledError("the call was cancelled")
    return NoAnswerError(f"{address} doesn't answer: {text}", hint="is `penstock serve` running there?")


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_MAX else text[:_TEXT_MAX] + "…"
