"""Harlequin without a terminal: opens a file, runs a query, and prints the rows of its table as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

from harlequin import Harlequin  # type: ignore[import-not-found]
from harlequin_duckdb import DuckDbAdapter  # type: ignore[import-not-found]

_TRIES, _AGAIN_S = 600, 0.1


async def _shown(pilot: Any, look: Callable[[], Any]) -> Any:
    for _ in range(_TRIES):
        await pilot.pause(_AGAIN_S)
        if (found := look()) is not None:
            return found
    raise TimeoutError("it never came")


async def main(path: str, query: str) -> None:
    app = Harlequin(DuckDbAdapter([path], read_only=True), connection_hash="views")
    async with app.run_test(size=(120, 36)) as pilot:
        editor = await _shown(pilot, lambda: app.editor)
        editor.text = query
        await pilot.press("ctrl+j")
        table = await _shown(pilot, app.results_viewer.get_visible_table)
        print(json.dumps([table.get_row_at(place) for place in range(table.row_count)], default=str))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
