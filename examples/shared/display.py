"""What the demo shows while it runs: a progress bar and a live table of the streams' tasks; plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from penstock.shell.api.dbapi import Connection

_TASKS = """
    SELECT stream_name, level, node_id, state, input_bytes, input_capacity, rows_in, lag, event_time_watermark, reason
    FROM information_schema.ins_stream_tasks
"""
_LEVELS = ("source", "agg", "sink")
_STATE_STYLES = {"RUNNING": "green", "IDLE": "dim", "BACKPRESSURED": "yellow", "RATE_LIMITED": "yellow",
                 "RETRYING": "red", "FAILED": "red"}
_QUEUE_CELLS = 10
REFRESHES_PER_SECOND = 4


@dataclass(frozen=True, slots=True)
class TaskLine:
    """One task as the system table shows it at one moment."""

    stream: str
    level: str
    node: int
    state: str
    queue_bytes: int
    queue_capacity: int
    rows: int
    lag: int | None
    watermark: Any
    reason: str


def read_tasks(connection: Connection) -> list[TaskLine]:
    """Returns the tasks of all streams, stream by stream, from source to sink."""
    with connection.cursor() as cursor:
        cursor.execute(_TASKS)
        lines = [
            TaskLine(row[0], row[1], row[2] or 0, row[3] or "", row[4] or 0, row[5] or 0, row[6] or 0, row[7], row[8],
                     row[9] or "")
            for row in cursor.fetchall()
        ]
    return sorted(lines, key=lambda line: (line.stream, _LEVELS.index(line.level), line.node))


class Display:
    """Live where there is a terminal; a line at each tenth of the way where there is none. A context manager."""

    def __init__(self, connection: Connection, rows: int, console: Console) -> None:
        self._connection = connection
        self._console = console
        self._rows = rows
        self._done = 0
        self._last: tuple[float, dict[tuple[str, str, int], int]] = (0.0, {})
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
        )
        self._bar = self._progress.add_task("rows inserted", total=rows)
        self._live = Live(console=console, refresh_per_second=REFRESHES_PER_SECOND, transient=True)

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """Prints a line above the live part."""
        self._console.print(text, highlight=False)

    def inserted(self, rows: int, now: float) -> None:
        """Counts rows; `now` is monotonic time in seconds."""
        before, self._done = self._done, self._done + rows
        self._progress.update(self._bar, completed=self._done)
        if self._console.is_terminal:
            if now - self._last[0] >= 1 / REFRESHES_PER_SECOND:
                self.show_tasks(now)
        elif self._done * 10 // self._rows > before * 10 // self._rows:
            self.say(f"  {self._done:,} of {self._rows:,} rows inserted")

    def show_tasks(self, now: float) -> list[TaskLine]:
        """Draws the table of tasks anew and returns what it shows."""
        lines = read_tasks(self._connection)
        if self._console.is_terminal:
            self._live.update(Group(self._progress, self._table(lines, now)))
        return lines

    def _table(self, lines: Iterable[TaskLine], now: float) -> Table:
        table = Table(title="tasks", title_justify="left", expand=False)
        for name in ("stream", "task", "vnode", "state", "queue", "rows/s", "lag", "watermark"):
            table.add_column(name, justify="right" if name in ("rows/s", "lag", "vnode") else "left")
        then, before = self._last
        counts: dict[tuple[str, str, int], int] = {}
        for line in lines:
            key = (line.stream, line.level, line.node)
            counts[key] = line.rows
            rate = (line.rows - before.get(key, 0)) / (now - then) if then and now > then else 0.0
            style = _STATE_STYLES.get(line.state, "default")
            table.add_row(
                line.stream, line.level, str(line.node), f"[{style}]{line.state}[/]",
                _gauge(line.queue_bytes, line.queue_capacity), f"{max(rate, 0):,.0f}",
                "" if line.lag is None else f"{line.lag:,}",
                "" if line.watermark is None else f"{line.watermark:%Y-%m-%d %H:%M}",
            )
        self._last = (now, counts)
        return table


def _gauge(used: int, capacity: int) -> str:
    filled = min(_QUEUE_CELLS, -(-used * _QUEUE_CELLS // capacity)) if capacity else 0
    return "█" * filled + "·" * (_QUEUE_CELLS - filled)
