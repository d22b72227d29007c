"""How typed values get into a task's store, and back: columns as Arrow record batches, single values as JSON.

What comes back may be damaged, or forged by whoever can write a backup: it is checked before it is used, and nothing in
it can run.
"""

from __future__ import annotations

import base64
import json
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from penstock.common.errors import CorruptionError

_WAY_OUT = ("it isn't what Penstock wrote: START STREAM ... FROM SAVEPOINT goes back to an older state, "
            "CREATE OR REPLACE STREAM computes it anew")


def pack_batch(batch: pa.RecordBatch) -> bytes:
    """Returns the columns of a batch as bytes; the schema isn't part of them."""
    content: bytes = batch.serialize().to_pybytes()
    return content


def unpack_batch(data: bytes, schema: pa.Schema, what: str) -> pa.RecordBatch:
    """Returns what `pack_batch` was given. Raises CorruptionError if it isn't a batch of that schema."""
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        raise damaged(what, str(error)) from error
    return batch


def pack(value: Any) -> bytes:
    """Returns None, truth, numbers, texts, bytes, decimals, and lists of them as bytes."""
    return json.dumps(value, default=_tagged, separators=(",", ":")).encode()


def unpack(data: bytes, what: str) -> Any:
    """Returns what `pack` was given, tuples as lists. Raises CorruptionError."""
    try:
        return json.loads(data, object_hook=_untagged)
    except (ValueError, RecursionError, InvalidOperation, TypeError) as error:
        raise damaged(what, str(error)) from error


def damaged(what: str, why: str) -> CorruptionError:
    """Returns the error for stored values that can't be what was written."""
    return CorruptionError(f"{what} cannot be read: {why}", hint=_WAY_OUT)


def _tagged(value: Any) -> dict[str, str]:
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    raise TypeError(f"a {type(value).__name__} is no value of a store")


def _untagged(value: dict[str, Any]) -> Any:
    match value:
        case {"bytes": str(text), **rest} if not rest:
            return base64.b64decode(text, validate=True)
        case {"decimal": str(text), **rest} if not rest:
            return Decimal(text)
    raise ValueError(f"an object with {', '.join(value)[:100]}")
