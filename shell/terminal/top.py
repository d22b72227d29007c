"""`penstock top`: the streams and their tasks, live in a terminal, with keys to pause, resume and look closer.

What is drawn and what a key does are functions of a plain state; `run_top` is the loop around them.
"""

from __future__ import annotations

import base64
import json
import select
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pyarrow as pa
from prompt_toolkit.input import Input
from prompt_toolkit.keys import Keys
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from penstock import __version__
from penstock.common.clock import Clock
from penstock.common.durations import duration_text
from penstock.common.errors import PenstockError, UnavailableError
from penstock.mnode.http.http_ports import OVERVIEW_PATH
from penstock.mnode.show.overview import Overview, Row, streams_with
from penstock.sql.tree.expression_nodes import quote_identifier

if TYPE_CHECKING:
    from penstock.shell.api.dbapi import Connection

_TIMEOUT_S = 5.0
_BAR = 10
_ESCAPE_S = 0.05
#: Kinds of verdicts on running streams that somebody should look at.
_HELD_UP = frozenset({
    "stalled", "intake", "unbalanced", "late", "mismatch", "state", "sink", "source", "function", "vnode", "skew",
    "busy"})
_STYLES = {"RUNNING": "green", "IDLE": "green", "PAUSED": "yellow", "STARTING": "yellow", "STOPPED": "dim"}

Order = Literal["pause", "resume", "quit"]


class Watched(Protocol):
    """An engine, as far as `top` goes."""

    def look(self) -> Overview:
        """Returns how everything is now. Raises PenstockErrors."""
        ...

    @property
    def obeys(self) -> bool:
        """Whether `order` works: an engine of another process only shows itself."""
        ...

    def order(self, order: Order, stream: str) -> None: ...


class ConnectedEngine:
    """The engine of a connection. One in another process is asked in SQL for what is drawn, at some ms a table."""

    def __init__(self, connection: Connection, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        self.obeys = True

    def look(self) -> Overview:
        if self._connection.is_embedded:
            return self._connection.lease.engine.overview(self._connection.session.identity)
        streams = streams_with(self._read, ["tasks"])
        return {"now_ms": self._clock.now_ms(), "version": __version__, "streams": streams}

    def order(self, order: Order, stream: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(f"{order.upper()} STREAM {quote_identifier(stream)}")

    def _read(self, name: str) -> pa.Table:
        with self._connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM information_schema.{name}")
            return cursor.fetch_arrow()


class OtherEngine:
    """The engine of another process, which serves its page at `url` (`uiPort`)."""

    def __init__(self, url: str, login: tuple[str, str] | None = None) -> None:
        """`login`: user and password."""
        self._url = url.rstrip("/") + OVERVIEW_PATH
        self._headers = {} if login is None else {
            "Authorization": f"Basic {base64.b64encode(':'.join(login).encode()).decode()}"}
        self.obeys = False

    def look(self) -> Overview:
        try:
            request = urllib.request.Request(self._url, headers=self._headers)
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
                told: Overview = json.load(answer)
                return told
        except urllib.error.HTTPError as error:
            raise UnavailableError(f"{self._url} refuses: {error.read().decode(errors='replace').strip() or error}",
                                   hint="name a user with --user") from error
        except (urllib.error.URLError, OSError, ValueError) as error:
            raise UnavailableError(f"{self._url} doesn't answer: {error}",
                                   hint="the engine must run with uiPort set") from error

    def order(self, order: Order, stream: str) -> None:
        raise UnavailableError(f"{order.upper()} STREAM is for the process that runs the engine")


@dataclass(frozen=True, slots=True)
class TopState:
    """What is on the screen. `before`: the overview before `now`, for rates; `opened`: the stream looked at closely."""

    now: Overview
    before: Overview | None = None
    selected: int = 0
    opened: str | None = None
    message: str = ""
    obeys: bool = True

    @property
    def chosen(self) -> str | None:
        """The name of the stream that keys are about."""
        streams = self.now["streams"]
        if self.opened is not None:
            return self.opened
        return streams[min(self.selected, len(streams) - 1)]["stream_name"] if streams else None


def seen(state: TopState, now: Overview) -> TopState:
    """Returns the state after another look."""
    return replace(state, now=now, before=state.now if state.now["now_ms"] < now["now_ms"] else state.before)


def pressed(state: TopState, key: str) -> tuple[TopState, Order | None]:
    """Returns the state after a key, and what is to be done for it about the chosen stream."""
    state = replace(state, message="")
    last = max(0, len(state.now["streams"]) - 1)
    match key:
        case "q" | Keys.ControlC:
            return state, "quit"
        case Keys.Up | "k":
            return replace(state, selected=max(0, min(state.selected, last) - 1)), None
        case Keys.Down | "j":
            return replace(state, selected=min(last, state.selected + 1)), None
        case Keys.ControlM | Keys.ControlJ | Keys.Right:
            return replace(state, opened=state.chosen), None
        case Keys.Escape | Keys.Left | Keys.Backspace:
            return replace(state, opened=None), None
        case "p" | "r":
            if not state.obeys:
                message = "this engine runs in another process, which alone can pause and resume"
                return replace(state, message=message), None
            return state, None if state.chosen is None else "pause" if key == "p" else "resume"
    return state, None


# --- drawing ---------------------------------------------------------------------------------------------------------


def render(state: TopState) -> RenderableType:
    """Returns the screen."""
    streams: list[Row] = state.now["streams"]
    opened = next((stream for stream in streams if stream["stream_name"] == state.opened), None)
    body = _streams(state) if opened is None else _stream(state, opened)
    keys = "enter look closer  esc back  up/down choose  " + ("p pause  r resume  " if state.obeys else "") + "q quit"
    head = Text.assemble(("penstock ", "bold"), state.now["version"], f", {len(streams)} stream",
                         "" if len(streams) == 1 else "s")
    return Group(head, Text(), body, Text(), Text(state.message, style="red"), Text(keys, style="dim"))


def _streams(state: TopState) -> RenderableType:
    if not state.now["streams"]:
        return Text("There is no stream.", style="dim")
    table = Table(box=None, padding=(0, 1), expand=True)
    for name in ("stream", "state"):
        table.add_column(name, no_wrap=True)
    for name in ("rows/s in", "rows/s out", "lag", "late", "checkpoint"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", ratio=1, overflow="fold")
    for stream in state.now["streams"]:
        name = stream["stream_name"]
        sources, sinks = (_rate(state, stream, level, column) for level, column in
                          (("source", "rows_in"), ("sink", "rows_out")))
        age = None if stream["checkpoint_time"] is None else state.now["now_ms"] - stream["checkpoint_time"]
        table.add_row(
            Text(name, style="bold"), _state(stream["state"]), _count(sources), _count(sinks), _count(stream["lag"]),
            _count(stream["late_rows"]), "–" if age is None else duration_text(max(0, age) // 1000, 1) + " ago",
            Text(stream["verdict"] or "", style=_verdict_style(stream)),
            style="reverse" if name == state.chosen else "")
    return table


def _stream(state: TopState, stream: Row) -> RenderableType:
    table = Table(box=None, padding=(0, 1), expand=True)
    for name in ("task", "state", "busy", "blocked"):
        table.add_column(name, no_wrap=True)
    for name in ("input queue", "output queue"):
        table.add_column(name, no_wrap=True)
    for name in ("rows/s", "state"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("waits for", ratio=1, overflow="fold")
    names = {task["task_id"]: _name(task) for task in stream["tasks"]}
    for task in sorted(stream["tasks"], key=lambda task: (task["node_id"], _LEVELS.index(task["level"]))):
        column = "rows_out" if task["level"] == "sink" else "rows_in"
        now_s = task["blocked_seconds"] or 0.0
        waits = names.get(task["blocked_by"], task["blocked_by"]) or task["reason"] or ""
        table.add_row(
            names[task["task_id"]], _state(task["state"]), _share(task["busy_percent"], "green"),
            _share(task["blocked_percent"], "red"), _queue(task, "input"), _queue(task, "output"),
            _count(_rate(state, stream, task["level"], column, task["task_id"])), _size(task["state_bytes"]),
            f"{waits} for {now_s:.0f} s" if now_s >= 1 else waits)
    return Group(
        Text.assemble((stream["stream_name"], "bold"), "  ", _state(stream["state"])),
        Text(stream["verdict"] or "", style=_verdict_style(stream)), Text(), table)


_LEVELS = ("source", "agg", "sink")


def _name(task: Row) -> str:
    """Returns what a task is called: an snode has several of a level, a vnode one."""
    if task["node_type"] == "snode":
        return f"{task['task_id'].partition('-')[2]} on snode {task['node_id']}"
    return f"{task['level']} v{task['node_id']}"


def _rate(state: TopState, stream: Row, level: str, column: str, task_id: str | None = None) -> float | None:
    """Returns rows per second of the tasks of a level, or of one task; None before there were two looks."""
    if state.before is None:
        return None
    seconds = (state.now["now_ms"] - state.before["now_ms"]) / 1000
    earlier = {(task["task_id"], task["attempt"]): task for other in state.before["streams"]
               if other["stream_id"] == stream["stream_id"] for task in other["tasks"]}
    tasks = [task for task in stream["tasks"] if task["level"] == level and task_id in (None, task["task_id"])]
    moved = [task[column] - earlier[task["task_id"], task["attempt"]][column] for task in tasks
             if (task["task_id"], task["attempt"]) in earlier]
    return max(0, sum(moved)) / seconds if moved and seconds > 0 else None


def _state(name: str) -> Text:
    return Text(name, style=_STYLES.get(name, "red"))


def _verdict_style(stream: Row) -> str:
    return "red" if stream["verdict_kind"] in _HELD_UP or stream["state"] in ("FAILED", "WAITING") else ""


def _bar(share: float, style: str) -> Text:
    full = round(min(1.0, max(0.0, share)) * _BAR)
    return Text.assemble(("█" * full, style), ("·" * (_BAR - full), "dim"))


def _share(percent: float | None, style: str) -> Text:
    if percent is None:
        return Text("–")
    return Text.assemble(_bar(percent / 100, style), f" {percent:3.0f}%")


def _queue(task: Row, queue: str) -> Text:
    capacity, used = task[f"{queue}_capacity"], task[f"{queue}_bytes"]
    if not capacity:
        return Text("–")
    return Text.assemble(_bar(used / capacity, "blue"), f" {_size(used)}")


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _size(value: int | None) -> str:
    if value is None:
        return "–"
    for factor, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= factor:
            return f"{value / factor:.1f} {unit}"
    return f"{value} B"


# --- the loop --------------------------------------------------------------------------------------------------------


def run_top(engine: Watched, console: Console, terminal: Input, clock: Clock, interval_s: float) -> None:
    """Shows the engine until the user leaves, or the input ends: without one it is shown once. Raises what the first
    look raises; later ones are told on the screen.
    """
    state = TopState(engine.look(), obeys=engine.obeys)
    with terminal.raw_mode(), Live(render(state), console=console, screen=console.is_terminal,
                                   auto_refresh=False) as live:
        next_look = clock.monotonic() + interval_s
        while True:
            for key in _keys(terminal, max(0.0, next_look - clock.monotonic())):
                state, order = pressed(state, key)
                if order == "quit":
                    return
                if order is not None and state.chosen is not None:
                    state = _told(state, lambda order=order, name=state.chosen: engine.order(order, name))  # type: ignore[misc]
            if terminal.closed:
                break
            if clock.monotonic() >= next_look:
                next_look = clock.monotonic() + interval_s
                state = _looked(state, engine)
            live.update(render(state), refresh=True)
    # A terminal's screen has gone with the input; elsewhere the last line has no end yet.
    if console.is_terminal:
        console.print(render(state))
    else:
        console.line()


def _looked(state: TopState, engine: Watched) -> TopState:
    try:
        return seen(state, engine.look())
    except PenstockError as error:
        return replace(state, message=str(error))


def _told(state: TopState, order: Callable[[], None]) -> TopState:
    try:
        order()
    except PenstockError as error:
        return replace(state, message=str(error))
    return state


def _keys(terminal: Input, timeout_s: float) -> list[Any]:
    """Returns the keys that are pressed within a time; the first ones end the wait."""
    if not select.select([terminal.fileno()], [], [], timeout_s)[0]:
        return []
    keys = terminal.read_keys()
    # A lone escape may be the beginning of an arrow: that decides itself within a moment.
    if not select.select([terminal.fileno()], [], [], _ESCAPE_S)[0]:
        keys += terminal.flush_keys()
    return [press.key for press in keys]
