"""A thread that works beside a measurement for as long as a `with` block lasts."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self


class Background:
    """Calls `_run` in a thread; it must return soon once `_stop` is set. A context manager."""

    def __init__(self, name: str) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        raise NotImplementedError
