"""The numbers by which clients of TDengine know our errors, where an error doesn't carry one itself."""

from __future__ import annotations

from penstock.common import errors
from penstock.common.errors import PenstockError
from penstock.mnode.http.http_body import RequestError

UNKNOWN = 0xFFFF
"""What TDengine's clients show where there is no number."""

_CODES: tuple[tuple[type[PenstockError], int], ...] = (
    (errors.NotSupportedError, 0x0100),
    (errors.OutOfMemoryError, 0x0102),
    (errors.InvalidValueError, 0x2605),
)


def code_of(error: PenstockError | RequestError) -> int:
    """Returns the number of an error."""
    if error.code is not None:
        return error.code
    return next((code for kind, code in _CODES if isinstance(error, kind)), UNKNOWN)
