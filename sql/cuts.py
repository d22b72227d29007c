"""Stream cuts as text: a position in a whole database, `vgroup:version` for each of its vnodes."""

from __future__ import annotations

import re
from collections.abc import Iterable

from penstock.common.errors import InvalidValueError

Cut = tuple[tuple[int, int], ...]
_CUT = re.compile(r"\s*(\d{1,9}):(\d{1,18})\s*")


def parse_cut(text: str) -> Cut:
    """Returns (vgroup id, WAL version) pairs; raises InvalidValueError."""
    found: dict[int, int] = {}
    for part in text.split(","):
        match = _CUT.fullmatch(part)
        if match is None or int(match[1]) in found:
            raise InvalidValueError(f"{text!r} is not a cut", hint="SHOW CUT gives one, such as '2:15,3:9'")
        found[int(match[1])] = int(match[2])
    return tuple(sorted(found.items()))


def cut_text(cut: Iterable[tuple[int, int]]) -> str:
    """Returns what `parse_cut` reads."""
    return ",".join(f"{vgroup}:{version}" for vgroup, version in sorted(cut))
