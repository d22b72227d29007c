"""`penstock top`: what a state looks like, what keys do, and the loop around them."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from kits.engines.embedded import NOW_MS, NoRuntime, StandingClock
from kits.engines.overviews import staged
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.keys import Keys
from rich.console import Console

from penstock.common.clock import SystemClock
from penstock.common.config import Config, load_config
from penstock.common.errors import DataDirectoryInUseError, PenstockError, UnavailableError
from penstock.mnode.access.roles import OWNER
from penstock.mnode.admin.engine_registry import open_engine
from penstock.mnode.engine import Engine
from penstock.mnode.http.http_ports import ui_pages
from penstock.mnode.http.http_server import HttpListener
from penstock.mnode.show.overview import Overview
from penstock.shell.api.dbapi import Connection
from penstock.shell.main import main
from penstock.shell.terminal.top import ConnectedEngine, Order, OtherEngine, TopState, pressed, render, run_top, seen

BOTTLENECK = "sink s1/v2 is the bottleneck: its rate limit of 2 MB/s"


@pytest.fixture(scope="module")
def told() -> Overview:
    """Two streams, s1 and s2."""
    overview = staged(verdict=BOTTLENECK, verdict_kind="sink")
    other = copy.deepcopy(overview["streams"][0])
    overview["streams"].append(
        {**other, "stream_name": "s2", "stream_id": "0x9", "state": "PAUSED", "verdict": "PAUSED",
         "verdict_kind": "down"})
    return overview


def text_of(state: TopState, width: int = 120) -> str:
    console = Console(file=StringIO(), width=width, color_system=None, force_terminal=False)
    console.print(render(state))
    output = console.file
    assert isinstance(output, StringIO)
    return output.getvalue()


def later(overview: Overview, **changes: Any) -> Overview:
    """Returns the overview two seconds later, with changes to the first source task."""
    found = copy.deepcopy(overview)
    found["now_ms"] += 2000
    task = next(task for task in found["streams"][0]["tasks"] if task["level"] == "source")
    for name, change in changes.items():
        task[name] = change if isinstance(change, str) or task[name] is None else task[name] + change
    return found


def test_the_first_screen_has_all_streams_with_their_verdicts(told: Overview) -> None:
    """One line per stream; no rate before there were two looks; rates are those between the two."""
    lines = text_of(TopState(told)).splitlines()
    assert lines[0] == "penstock 9.9, 2 streams"
    (s1,) = (line.split() for line in lines if line.strip().startswith("s1"))
    assert s1[:7] == ["s1", "RUNNING", "–", "–", "0", "1", "0s"]
    assert " ".join(s1).endswith(BOTTLENECK)
    state = seen(TopState(told), later(told, rows_in=3000))
    (s1,) = (line.split() for line in text_of(state).splitlines() if line.strip().startswith("s1"))
    assert s1[2:4] == ["1,500", "0"]
    again = seen(state, state.now)
    assert again.before == told


@pytest.mark.parametrize(("state", "kind", "red"), [
    ("RUNNING", "sink", True), ("RUNNING", "skew", True), ("STALLED", "stalled", True), ("FAILED", "down", True),
    ("RUNNING", "idle", False), ("RUNNING", "healthy", False), ("PAUSED", "down", False), ("RUNNING", None, False),
])
def test_only_verdicts_that_need_somebody_are_red(told: Overview, state: str, kind: str | None, red: bool) -> None:
    """By the kind of the verdict: what it says is for people."""
    found = copy.deepcopy(told)
    found["streams"] = [{**found["streams"][0], "state": state, "verdict": "bottleneck?", "verdict_kind": kind}]
    console = Console(file=StringIO(), width=160, color_system="standard", force_terminal=True)
    with console.capture() as shown:
        console.print(render(TopState(found)))
    style = re.search(r"\x1b\[([0-9;]*)mbottleneck", shown.get())
    assert style is not None
    assert ("31" in style[1].split(";")) is red


def test_a_stream_looked_at_closely_shows_its_tasks(told: Overview) -> None:
    """Shares and queues as bars, the rate, and for whom a task waits for how long."""
    sink = next(task["task_id"] for task in told["streams"][0]["tasks"] if task["level"] == "sink")
    now = later(told, rows_in=3000, busy_percent=70.0, blocked_percent=20.0, blocked_seconds=12.0,
                blocked_by=sink, input_bytes=30 * 2**20, state="BACKPRESSURED")
    lines = text_of(TopState(now, told, opened="s1"), width=160).splitlines()
    assert lines[2].split() == ["s1", "RUNNING"]
    assert lines[3] == BOTTLENECK
    tasks = [line for line in lines if " v2 " in line or " v3 " in line]
    assert [line.split()[:2] for line in tasks] == [
        [level, vnode] for vnode in ("v2", "v3") for level in ("source", "agg", "sink")]
    (held,) = (line for line in tasks if "BACKPRESSURED" in line)
    assert "███████···  70%" in held
    assert "██········  20%" in held
    assert "█████····· 30.0 MiB" in held
    assert held.rstrip().endswith("sink v2 for 12 s")
    assert "1,500" in held


def test_tasks_on_an_snode_have_names_of_their_own(told: Overview) -> None:
    """Both agg tasks are on the one snode: each is shown by its number, and so is whom a sink waits for."""
    now = copy.deepcopy(told)
    tasks = now["streams"][0]["tasks"]
    aggs = [task for task in tasks if task["level"] == "agg"]
    for task in aggs:
        task.update(node_type="snode", node_id=1012)
    next(task for task in tasks if task["level"] == "source").update(blocked_by=aggs[1]["task_id"], blocked_seconds=3.0)
    lines = text_of(TopState(now, told, opened="s1"), width=160).splitlines()
    assert [line.split()[0] for line in lines if "on snode 1012  " in line] == ["agg-0", "agg-1"]
    assert [line.split()[:2] for line in lines if line.rstrip().endswith("agg-1 on snode 1012 for 3 s")] == [
        ["source", "v2"]]


def test_a_narrow_terminal_and_no_stream_are_no_problem(told: Overview) -> None:
    """Nothing is wider than the terminal, and an empty engine says that it is empty."""
    for state in (TopState(told), TopState(told, opened="s1"), TopState({**told, "streams": []})):
        assert max(map(len, text_of(state, 60).splitlines())) <= 60
    assert "There is no stream." in text_of(TopState({**told, "streams": []}))
    assert pressed(TopState({**told, "streams": []}), "p")[1] is None


def test_keys_choose_open_and_order(told: Overview) -> None:
    """The choice stays within the list; p and r are about what is chosen or open; q leaves."""
    state = TopState(told)
    assert state.chosen == "s1"
    for key, chosen in ((Keys.Up, "s1"), ("j", "s2"), (Keys.Down, "s2"), ("k", "s1"), (Keys.Down, "s2")):
        state, order = pressed(state, key)
        assert (state.chosen, order) == (chosen, None)
    assert pressed(state, "p")[1] == "pause"
    opened, _ = pressed(state, Keys.ControlM)
    assert (opened.opened, pressed(opened, "r")[1]) == ("s2", "resume")
    assert pressed(opened, Keys.Up)[0].chosen == "s2"
    assert pressed(opened, Keys.Escape)[0].opened is None
    assert pressed(state, "q")[1] == pressed(state, Keys.ControlC)[1] == "quit"
    assert pressed(state, "x") == (state, None)
    gone = seen(state, {**later(told), "streams": told["streams"][:1]})
    assert gone.chosen == "s1"


def test_an_engine_of_another_process_is_only_watched(told: Overview) -> None:
    """p says why it does nothing, and the keys aren't offered."""
    state, order = pressed(TopState(told, obeys=False), "p")
    assert order is None
    assert "another process" in text_of(state)
    assert "p pause" not in text_of(state)
    assert "p pause" in text_of(TopState(told))


class Recorded:
    """An engine that notes orders, fails when told to, and counts looks."""

    obeys = True

    def __init__(self, told: Overview) -> None:
        self.told = told
        self.orders: list[tuple[Order, str]] = []
        self.looks = 0
        self.on_look: Callable[[], None] = lambda: None

    def look(self) -> Overview:
        self.looks += 1
        self.on_look()
        return self.told

    def order(self, order: Order, stream: str) -> None:
        self.orders.append((order, stream))
        raise UnavailableError("not now")


def test_the_loop_looks_again_and_obeys_keys(told: Overview) -> None:
    """Keys act at once, errors are told on the screen, looks go on meanwhile, q ends it."""
    engine = Recorded(told)
    output = StringIO()
    with create_pipe_input() as terminal:
        def typed() -> None:
            if engine.looks == 3:
                terminal.send_text("jp\rr\x1bq")

        engine.on_look = typed
        run_top(engine, Console(file=output, width=100, force_terminal=True), terminal, SystemClock(), 0.01)
    assert engine.orders == [("pause", "s2"), ("resume", "s2")]
    assert engine.looks >= 3


def test_the_loop_survives_a_look_that_fails(told: Overview) -> None:
    """An engine that doesn't answer for a while is told, the last picture stays."""
    engine = Recorded(told)
    output = StringIO()
    with create_pipe_input() as terminal:
        def fails() -> None:
            if engine.looks == 3:
                terminal.send_text("q")
            if engine.looks >= 2:
                raise UnavailableError("gone fishing")

        engine.on_look = fails
        run_top(engine, Console(file=output, width=100, force_terminal=True), terminal, SystemClock(), 0.01)
    assert "gone fishing" in output.getvalue()


def test_without_an_input_the_engine_is_shown_once(told: Overview) -> None:
    """An input that has ended has no keys to wait for: the loop would run as fast as it can."""
    engine = Recorded(told)
    output = StringIO()
    with create_pipe_input() as terminal:
        terminal.close()
        run_top(engine, Console(file=output, width=160), terminal, SystemClock(), 0.01)
    assert engine.looks == 1
    assert BOTTLENECK in output.getvalue()
    assert output.getvalue().endswith("q quit\n")


def test_another_engine_is_reached_by_its_page(told: Overview) -> None:
    """What its page reads is what is shown; without an answer the address and what is needed are told."""
    listener = HttpListener("127.0.0.1", 0, {path: page(OWNER) for path, page in ui_pages(lambda who: told).items()})
    engine = OtherEngine(f"http://127.0.0.1:{listener.port}/")
    assert engine.look() == told
    listener.close()
    with pytest.raises(UnavailableError, match="uiPort"):
        engine.look()
    with pytest.raises(UnavailableError):
        engine.order("pause", "s1")


def test_an_engine_of_this_process_is_looked_at_and_obeys(data_dir: Path) -> None:
    """A look returns plain values, an order is a statement about that stream."""
    def make(root: Path, config: Config) -> Engine:
        return Engine(root, config, clock=clock, runtime=lambda *_: NoRuntime())

    clock = StandingClock(NOW_MS)
    with Connection(open_engine(data_dir, load_config(environment={}), make), "Asia/Tokyo") as connection:
        for statement in ("CREATE DATABASE p VGROUPS 1", "CREATE TABLE p.m (ts TIMESTAMP, v INT)",
                          "CREATE STREAM `odd name` INTO p.o AS SELECT _wstart, count(*) FROM p.m INTERVAL(1s)"):
            connection.cursor().execute(statement)
        engine = ConnectedEngine(connection, clock)
        (stream,) = engine.look()["streams"]
        assert (stream["stream_name"], stream["create_time"], stream["state"]) == ("odd name", NOW_MS, "STARTING")
        engine.order("pause", "odd name")
        engine.order("resume", "odd name")
        with pytest.raises(PenstockError, match="no such"):
            engine.order("pause", "no such")
        assert "odd name" in text_of(TopState(engine.look(), opened="odd name"))


def test_the_command_says_how_to_reach_a_running_engine(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A data directory that another process has open is looked at through its page, if there is one."""
    with pytest.raises(SystemExit):
        main(["top", "--interval", "0"])
    assert "more than 0" in capsys.readouterr().err
    assert main(["top", "--url", "http://127.0.0.1:9"]) == 1
    assert "uiPort" in capsys.readouterr().err

    def taken(*_: Any) -> None:
        raise DataDirectoryInUseError(f"{data_dir} is open in process 7")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.shell.terminal.top_command.connect", taken)
        assert main(["top", "--data", str(data_dir)]) == 1
        assert "start that engine with uiPort set" in capsys.readouterr().err
        assert main(["top", "--data", str(data_dir), "--set", "uiPort=9"]) == 1
        assert "http://127.0.0.1:9/api/overview doesn't answer" in capsys.readouterr().err
