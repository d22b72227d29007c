"""SESSION, STATE_WINDOW, EVENT_WINDOW and COUNT_WINDOW in streams: what these ask beyond what queries do."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.common.errors import InvalidStreamError
from penstock.planner.bind.row_windows import AnyRowWindow
from penstock.sql.schema import Table
from penstock.sql.tree.statements import CountWindow, EventWindow, SessionWindow, StateWindow

_WORDS: dict[type, str] = {StateWindow: "STATE_WINDOW", EventWindow: "EVENT_WINDOW", CountWindow: "COUNT_WINDOW"}


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What the rules for windows ask about a stream. `by_table`: every group is part of one table. `calculates`: its
    windows only say when something is computed."""

    table: Table
    by_table: bool
    watermark: int
    ignore_expired: bool
    calculates: bool = False


def check_row_window(window: AnyRowWindow, facts: StreamFacts) -> None:
    """Raises InvalidStreamError for a window that such a stream can't have (tdengine.md 1.4, 2.1)."""
    if isinstance(window, SessionWindow):
        return
    word = _WORDS[type(window)]
    if not facts.by_table:
        raise InvalidStreamError(f"{word} over a super table needs tbname in PARTITION BY",
                                 hint="add PARTITION BY tbname")
    if facts.table.key_column is not None:
        raise InvalidStreamError(f"{word} cannot read {facts.table.name}: it has a composite primary key")
    if isinstance(window, CountWindow) and facts.watermark <= 0 and not facts.calculates:
        raise InvalidStreamError(f"{word} in a stream needs a WATERMARK", hint="for example WATERMARK 10s")
    if isinstance(window, CountWindow) and not facts.ignore_expired:
        raise InvalidStreamError(f"{word} in a stream needs IGNORE EXPIRED 1")
