"""META records of new child tables: what they hold, whichever version wrote them."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.sql.schema import separate_names
from penstock.sql.types import Kind

#: Kinds of tags that records, being JSON, hold as hexadecimal digits.
BINARY = (Kind.VARBINARY, Kind.GEOMETRY)


@dataclass(frozen=True, slots=True)
class NewChildren:
    """New child tables by columns. `tags`: for each tag of the super table, the values of all of them."""

    uids: Sequence[int]
    names: Sequence[str]
    tags: Sequence[Sequence[Any]]

    def rows(self) -> Iterable[tuple[int, str, Sequence[Any]]]:
        """Returns uid, name and tag values of each."""
        tags = zip(*self.tags, strict=True) if self.tags else repeat((), len(self.uids))
        return zip(self.uids, self.names, tags, strict=True)


def written_uids(uids: npt.NDArray[np.uint64]) -> str:
    """Returns uids as a record holds them: JSON has a text in a tenth of the time of numbers."""
    return base64.b64encode(uids.astype("<u8").tobytes()).decode()


def binary_tag(value: Any) -> Any:
    """Returns a tag of one of the kinds `BINARY` that a record holds, or that is bytes already."""
    return bytes.fromhex(value) if isinstance(value, str) else value


def new_children(body: dict[str, Any]) -> NewChildren:
    """Returns the child tables that a record with the operation create_children tells of."""
    numbers = np.frombuffer(base64.b64decode(body["uids"]), "<u8").tolist()
    return NewChildren(numbers, separate_names(body["names"]), body["tags"])
