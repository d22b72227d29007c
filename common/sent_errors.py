"""Errors on their way from one process to another: as JSON, and back in their own class."""

from __future__ import annotations

import json

from penstock.common import errors
from penstock.common.errors import InternalError, PenstockError, Position


def encode_error(error: BaseException, text_max: int | None = None) -> bytes:
    """Returns an error as `decode_error` takes it; those that aren't Penstock's go as InternalErrors.

    `text_max`: how many characters its texts may have.
    """
    if not isinstance(error, PenstockError):
        error = InternalError(f"{type(error).__name__}: {error}")
    at = error.position
    return json.dumps({
        "class": type(error).__name__, "message": cut(error.message, text_max), "code": error.code,
        "hint": error.hint and cut(error.hint, text_max),
        "position": at and [at.line, at.column, cut(at.text, text_max)]}).encode()


def decode_error(data: bytes) -> PenstockError:
    """Returns the error that `encode_error` was given; an InternalError for what is none."""
    try:
        told = json.loads(data)
        kind = getattr(errors, str(told["class"]), None)
        position = None if told["position"] is None else Position(*told["position"])
        if isinstance(kind, type) and issubclass(kind, PenstockError):
            return kind(str(told["message"]), code=told["code"], hint=told["hint"], position=position)
    except (ValueError, KeyError, TypeError) as error:
        return InternalError(f"an error that was told can't be read: {type(error).__name__}")
    return InternalError(str(told["message"]))


def cut(text: str, most: int | None) -> str:
    """Returns a text with no more than so many characters and a mark; None: any number."""
    return text if most is None or len(text) <= most else text[:most] + "…"
