"""Plays histories of tables below random streams with a trigger of their own, and compares what each has written with
what its query gives for every window that it has by definition."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import strategies as st
from kits.engines.sandboxes import T0, TestBed
from kits.streams.random_triggers import BASE, FAR, LAST_STATE, LAST_VALUE, SECOND, Fired, Row, Stream, streams

from penstock.common.errors import PenstockError
from penstock.mnode.streams.calculated_results import ComputedWindows
from penstock.mnode.streams.window_queries import WindowQueries

Step = tuple[str, Any]
_MEMORY = Path("/dev/shm")
_STREAMS = 4
_OTHERS = 60


@dataclass(frozen=True)
class TriggerCase:
    """Tables with the sites of them, streams over them, and what happens."""

    vgroups: int
    sites: tuple[int, ...]
    streams: tuple[Stream, ...]
    steps: tuple[Step, ...]


@dataclass
class Compared:
    """What became of cases: `ways` has how many windows were computed in which way."""

    streams: int = 0
    windows: int = 0
    executions: int = 0
    ways: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


# --- drawing --------------------------------------------------------------------------------------------------------


@st.composite
def trigger_cases(draw: st.DrawFn) -> TriggerCase:
    tables = draw(st.integers(2, 4))
    in_order = draw(st.sampled_from([True, False, False]))
    steps = draw(_in_order(tables) if in_order else _disordered(tables))
    return TriggerCase(
        draw(st.integers(1, 3)), tuple(draw(st.sampled_from([1, 2])) for _ in range(tables)),
        tuple(draw(streams(f"s{n}", tables, in_order)) for n in range(_STREAMS)), tuple(steps))


_VALUES = st.sampled_from([None, *range(9)])
_STATES = st.sampled_from([None, 0, 1, 1, 2, 3])
_UPKEEP = ["run", "run", "run", "step", "step", "checkpoint", "kill", "reopen", "wait", "pause", "recalculate"]


@st.composite
def _in_order(draw: st.DrawFn, tables: int) -> list[Step]:
    steps: list[Step] = []
    time = 0
    for _ in range(draw(st.integers(2, 8))):
        rows = []
        for _ in range(draw(st.sampled_from([1, 2, 5, 10]))):
            time += draw(st.sampled_from([1, 1, 2, 3, 9])) * 500
            rows.append((draw(st.integers(0, tables - 1)), time, draw(_VALUES), draw(_STATES)))
        steps.append(("rows", tuple(rows)))
        steps += [(kind, None) for kind in draw(st.lists(st.sampled_from(_UPKEEP), max_size=2))]
    return steps


@st.composite
def _disordered(draw: st.DrawFn, tables: int) -> list[Step]:
    steps: list[Step] = []
    for _ in range(draw(st.integers(2, 8))):
        if steps and draw(st.integers(0, 3)) == 0:
            first = draw(st.integers(0, 100))
            steps.append(("delete", (draw(st.integers(0, tables - 1)), first, first + draw(st.integers(0, 20)))))
        else:
            begin = draw(st.sampled_from([0, 0, 20, 40]))
            rows = []
            for _ in range(draw(st.sampled_from([1, 2, 5, 10]))):
                table = draw(st.integers(0, tables - 1))
                time = draw(st.integers(begin, begin + 60)) * 500
                rows.append((table, time + table, draw(_VALUES), draw(_STATES)))
            steps.append(("rows", tuple({row[:2]: row for row in rows}.values())))
        steps += [(kind, None) for kind in draw(st.lists(st.sampled_from(_UPKEEP), max_size=2))]
    return steps


# --- playing --------------------------------------------------------------------------------------------------------


class TriggerPlayer:
    """Plays a case in an engine of its own; once only. `story` is what the engine was told."""

    def __init__(self, case: TriggerCase, outcome: Compared, folder: Path) -> None:
        self.case, self.outcome, self._folder = case, outcome, folder
        self._bed = self._opened()
        self._rows: dict[tuple[int, int], Row] = {}
        self._made: list[Stream] = []
        self._paused = False
        self.story: list[str] = []

    def _opened(self) -> TestBed:
        return TestBed(now_ms=T0, config={"timezone": "UTC"}, directory=self._folder)

    def play(self) -> None:
        """Adds to the outcome what was wrong."""
        try:
            self._set_up()
            for step in self.case.steps:
                self._step(*step)
            if self._paused:
                self._toggle()
            self._insert([(table, FAR - BASE + table, LAST_VALUE, LAST_STATE) for table in range(len(self.case.sites))])
            self._bed.run()
            self._bed.advance(10)
            for stream in self._made:
                self._compare(stream)
        finally:
            self._bed.close()

    def _tell(self, statement: str) -> None:
        self.story.append(statement)
        self._bed.engine.execute(statement, self._bed.session)

    def _ask(self, query: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._bed.rows(query)]

    def _set_up(self) -> None:
        self._tell(f"CREATE DATABASE d VGROUPS {self.case.vgroups}")
        self._tell("USE d")
        self._tell("CREATE STABLE m (ts TIMESTAMP, v INT, x INT) TAGS (site INT)")
        for table, site in enumerate(self.case.sites):
            self._tell(f"CREATE TABLE t{table} USING m TAGS ({site})")
        self._tell("CREATE TABLE o (ts TIMESTAMP, w INT)")
        self._tell("INSERT INTO o VALUES " + " ".join(
            f"({BASE + n * SECOND}, {n % 7})" for n in range(_OTHERS)))
        for stream in self.case.streams:
            try:
                self._tell(stream.statement)
            except PenstockError as error:
                self.story.pop()
                self.outcome.refused[str(error)] += 1
                self.outcome.failures.append(f"refused: {stream.statement}: {error}")
                continue
            self._made.append(stream)

    def _step(self, kind: str, what: Any) -> None:
        if kind == "rows":
            self._insert(what)
            return
        if kind == "delete":
            table, first, last = what
            first, last = BASE + first * 500, BASE + last * 500
            self._tell(f"DELETE FROM t{table} WHERE ts >= {first} AND ts <= {last}")
            for place in [place for place in self._rows if place[0] == table and first <= place[1] <= last]:
                del self._rows[place]
            return
        self.story.append(f"-- {kind}")
        match kind:
            case "step":
                self._bed.streams.step()
            case "wait":
                self._bed.advance(3)
            case "reopen":
                self._bed.close()
                self._bed = self._opened()
                self._bed.session.database = "d"
            case "pause":
                self._toggle()
            case "recalculate":
                if not self._paused:
                    for stream in self._made:
                        self._tell(f"RECALCULATE STREAM {stream.name} FROM 0")
            case _:
                getattr(self._bed, kind)()

    def _toggle(self) -> None:
        """Pauses the streams, or lets them go on."""
        self._paused = not self._paused
        for stream in self._made:
            self._tell(f"{'PAUSE' if self._paused else 'RESUME'} STREAM {stream.name}")

    def _insert(self, rows: Sequence[tuple[int, int, int | None, int | None]]) -> None:
        parts = []
        for table, offset, v, x in rows:
            time = BASE + offset
            self._rows[table, time] = Row(time, table, self.case.sites[table], v, x)
            parts.append(f"t{table} VALUES ({time}, {'NULL' if v is None else v}, {'NULL' if x is None else x})")
        self._tell("INSERT INTO " + " ".join(parts))

    # --- comparing ------------------------------------------------------------------------------------------------

    def _compare(self, stream: Stream) -> None:
        self.outcome.streams += 1
        self.outcome.kinds[stream.trigger.text.partition("(")[0]] += 1
        windows = stream.windows(list(self._rows.values()))
        try:
            wanted = self._wanted(stream, windows)
        except PenstockError as error:
            self._fail(stream, f"the query alone is refused: {error}")
            return
        self.outcome.windows += len(windows)
        groups = len(stream.partition)
        found = [row for row in self._ask(f"SELECT * FROM o_{stream.name}")
                 if row[0] + T0 < FAR - 60 * SECOND and self._counts(stream, row, windows)]
        self._same(stream, "results", Counter(found), Counter(wanted))
        names = "".join(f", group_{place}" for place in range(1, groups + 1))
        executed = self._ask(f"SELECT ts, window_end, window_rows{names} FROM {stream.name}_executions "
                             f"WHERE window_rows > 0 AND ts < {FAR - 60 * SECOND}")
        self.outcome.executions += len(executed)
        self._same(stream, "executions", Counter(executed), Counter(
            (window.start - T0, window.end - T0, window.rows, *window.group) for window in windows if window.rows))
        problems = self._ask(f"SELECT ts, problem FROM {stream.name}_executions WHERE problem IS NOT NULL")
        if problems:
            self._fail(stream, f"problems: {problems}")

    def _counts(self, stream: Stream, row: tuple[Any, ...], windows: Sequence[Fired]) -> bool:
        """Whether a result is not of a window without rows behind the last one that has some, by which nobody goes."""
        if not stream.trigger.filled:
            return True
        group = row[len(row) - len(stream.partition):]
        starts = [window.end for window in windows if window.group == group]
        return not starts or row[0] + T0 < max(starts)

    def _wanted(self, stream: Stream, windows: Sequence[Fired]) -> list[tuple[Any, ...]]:
        found: dict[object, tuple[Any, ...]] = {}
        for window in windows:
            rows = self._ask(stream.asked(window))
            if not rows and stream.forces:
                rows = [(window.start - T0, window.end - T0, 7, None, None)]
            for row in rows:
                place = (window.group, row[0], row[1] if stream.question.has_key else None)
                if row[0] + T0 < FAR - 60 * SECOND:
                    found[place] = (*row, *window.group)
        return list(found.values())

    def _same(self, stream: Stream, what: str, found: Counter[Any], wanted: Counter[Any]) -> None:
        if found == wanted:
            return
        lines = [*(f"  written alone: {row}" for row in sorted((found - wanted).elements(), key=repr)[:6]),
                 *(f"  missing: {row}" for row in sorted((wanted - found).elements(), key=repr)[:6])]
        self._fail(stream, f"{what} differ\n" + "\n".join(lines))

    def _fail(self, stream: Stream, problem: str) -> None:
        self.outcome.failures.append(f"{stream.statement}: {problem}")


@contextmanager
def counted(ways: Counter[str]) -> Iterator[None]:
    """Counts how many windows are computed one by one, how many together with others, and how many bring results."""
    one, many, handed = WindowQueries._of_one, WindowQueries._of_many, ComputedWindows.add_handed

    def of_one(self: WindowQueries, *given: Any) -> Any:
        ways["one by one"] += 1
        return one(self, *given)

    def of_many(self: WindowQueries, job: Any, query: Any, windows: Any) -> Any:
        try:
            found = many(self, job, query, windows)
        except PenstockError:
            ways["not together"] += len(windows)
            raise
        ways["together"] += len(windows)
        return found

    def add_handed(self: ComputedWindows, places: Any, names: Any) -> None:
        ways["handed over"] += len(places)
        handed(self, places, names)

    with patch.object(WindowQueries, "_of_one", of_one), patch.object(WindowQueries, "_of_many", of_many), \
            patch.object(ComputedWindows, "add_handed", add_handed):
        yield


def play_triggers(case: TriggerCase, outcome: Compared) -> tuple[list[str], list[str]]:
    """Plays a case in a directory of its own; returns what was wrong with it, and its story."""
    before = len(outcome.failures)
    with tempfile.TemporaryDirectory(prefix="triggers-", dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        player = TriggerPlayer(case, outcome, Path(folder))
        try:
            with counted(outcome.ways):
                player.play()
        except Exception as error:  # noqa: BLE001 - the engine gave up in the midst of it: that is found, too
            outcome.failures.append(f"{type(error).__name__}: {error}")
    return outcome.failures[before:], player.story
