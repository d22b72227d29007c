"""A user's function for streams whose rows cannot all be computed."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.sql.schema import UserFunction
from penstock.sql.types import BIGINT, INT


def sound(spoilt: pa.Array) -> pa.Array:
    """Returns ones; raises if any of the rows is spoilt."""
    if pc.any(pc.equal(spoilt, 1)).as_py():
        raise ValueError("a row is spoilt")
    return pa.array([1] * len(spoilt), pa.int32())


SOUND = UserFunction("sound", False, (BIGINT,), INT, "kits.streams.failing_functions:sound", 1, 1, 7)
