"""Kills real processes under load, again and again: `python -m bench.kills --kills 300`.

Each round inserts flights, a batch every 100 ms, while the engine (SIGKILL), Spark's Java (SIGKILL), the daemon that
forks its Python workers (SIGKILL) or a worker that hosts tasks (SIGKILL, or SIGSTOP for 30 s) is hit, at a random
moment or when a file shows that something is under way: a state being written, a commit record, a Parquet part, a log
segment. Then all streams must equal the batch answer, and all acknowledged rows be there. Prints per victim how long it
took until results flowed again, and until all rows were in.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from examples.flights.data import batches, load_feeds  # noqa: E402
from kits.basics.interrupts import interrupt_on_sigterm  # noqa: E402
from kits.engines.engine_process import ENDED, daemons_below  # noqa: E402
from kits.engines.killed_engine import KilledEngine, UnexpectedAnswerError  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import Progress  # noqa: E402

STOPPED_S = 30.0
_POINT_S = 1.5
_BATCHES = 24
_PAUSE_MS = 100
_AFTER = 2
_PATIENCE_S = 170

#: What shows that something is under way: files below the data directory.
POINTS: dict[str, str] = {
    "state": "streams/*/state/*/data.mdb",
    "record": "streams/*/checkpoints/*",
    "part": "vnode/*/store/parts/*/*.parquet",
    "segment": "vnode/*/wal/*.log",
}


@dataclass(frozen=True)
class Kill:
    """One round. `flow_s`: from the kill to the first results of a later attempt; `right_s`: to the batch answer.

    Results are noticed with a heartbeat; `flow_s` is `right_s` where the answer was right before the next one.
    """

    victim: str
    point: str
    flow_s: float
    right_s: float


class Killed(KilledEngine):
    """The engine under load, and which attempts have written results."""

    def __init__(self, data: Path, position: int) -> None:
        #: (when it was heard, {stream: attempt that has written results})
        self.flow: list[tuple[float, dict[str, int]]] = [(0.0, {})]
        super().__init__(data, position, "watch")

    def note(self, line: str) -> None:
        super().note(line)
        if line.startswith("flow "):
            self.flow.append((time.monotonic(), json.loads(line[5:])))

    def flows_since(self, moment: float, before: dict[str, int]) -> float | None:
        """Returns when, after a moment, some stream had results of a later attempt than before."""
        return next((at for at, flow in self.flow if at > moment
                     and any(attempt > before.get(name, 0) for name, attempt in flow.items())), None)

    def java(self) -> psutil.Process:
        """Returns Spark's Java, which is driver and executor here."""
        return next(process for process in psutil.Process(self.process.pid).children(recursive=True)
                    if "java" in process.name())


def main() -> int:
    """Runs the rounds that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m bench.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="how many (default 20)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32), help="for the choices")
    parser.add_argument("--report", type=Path, help="write all rounds as JSON to this file")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    console = Console(stderr=True)
    console.print(f"seed {options.seed}", highlight=False)
    kills: list[Kill] = []
    interrupt_on_sigterm()
    with Progress(console=console) as progress:
        bar = progress.add_task("kills", total=options.kills)
        try:
            while len(kills) < options.kills:
                for kill in _rounds(chance, options.kills - len(kills)):
                    kills.append(kill)
                    progress.advance(bar)
                    if not console.is_terminal:
                        console.print(f"{len(kills)} of {options.kills}: {kill}", markup=False, highlight=False)
        except KeyboardInterrupt:
            console.print(f"ended after {len(kills)} of {options.kills} kills")
    print(summary(kills))
    if options.report is not None:
        text = json.dumps({"seed": options.seed, "kills": [asdict(kill) for kill in kills]}, indent=1)
        options.report.write_text(text + "\n")
    return 0


def _rounds(chance: random.Random, count: int) -> Iterator[Kill]:
    """Yields rounds on one data directory: up to `count`, or until there are no more rows to insert.

    Of a round that goes wrong the directory is left for whoever looks into it.
    """
    folder = Path(tempfile.mkdtemp(prefix="penstock-kills-"))
    rounds = Rounds(folder / "data", chance)
    wrong = False
    try:
        while count and rounds.more:
            yield rounds.one()
            count -= 1
    except UnexpectedAnswerError as error:
        wrong = True
        raise SystemExit(f"{error}\nthe data is in {folder}") from error
    finally:
        rounds.engine.end()
        if not wrong:
            shutil.rmtree(folder, ignore_errors=True)


class Rounds:
    """The engine over the rounds on one data directory: it is started again whenever it was killed."""

    def __init__(self, data: Path, chance: random.Random) -> None:
        self._data = data
        self._chance = chance
        feeds = load_feeds(seed=2013, months=2)
        self._arrived = [0, *itertools.accumulate(rows.num_rows for _, rows in batches(feeds))]
        self.engine = Killed(data, 0)
        self.engine.tell("insert 2")
        self.engine.expect("inserted")
        self._right()

    @property
    def more(self) -> bool:
        """Whether there are rows left for a whole round, which may begin its load anew."""
        return self.engine.acked + 2 * _BATCHES + _AFTER < len(self._arrived) - 1

    def one(self) -> Kill:
        """Kills once; returns when the streams equal the batch answer again. Raises UnexpectedAnswerError if not."""
        victim = self._chance.choice(["engine", "java", "daemon", "worker", "worker stopped"])
        point = self._chance.choice(["random", *POINTS])
        engine = self.engine
        tasks = engine.tasks()
        engine.tell(f"insert {_BATCHES} {_PAUSE_MS}")
        self._await_point(point)
        killed_at = time.monotonic()
        if victim == "engine":
            engine.kill()
            self.engine = engine = Killed(self._data, engine.acked + 1)
            engine.tell(f"insert {_BATCHES} {_PAUSE_MS}")
        else:
            self._hit(victim, tasks.workers)
        while (line := engine.next()) != "inserted":
            if line == ENDED:
                raise UnexpectedAnswerError(f"the engine ended after {victim} was hit at {point}")
        # What came before may have been processed before the kill: these rows can only be by a later attempt.
        engine.tell(f"insert {_AFTER}")
        engine.expect("inserted")
        self._right()
        right_at = time.monotonic()
        flows_at = engine.flows_since(killed_at, tasks.attempts) or right_at
        return Kill(victim, point, flows_at - killed_at, right_at - killed_at)

    def _right(self) -> None:
        self.engine.tell(f"check {_PATIENCE_S}")
        verdict = self.engine.expect("")
        if not verdict.startswith("equal"):
            raise UnexpectedAnswerError(f"wrong: {verdict}")
        rows = sum(int(count) for count in verdict.split()[1:])
        acknowledged = self._arrived[self.engine.acked + 1]
        if rows < acknowledged:
            raise UnexpectedAnswerError(f"{acknowledged} rows were acknowledged, but {rows} are there")

    def _hit(self, victim: str, workers: list[psutil.Process]) -> None:
        if victim == "java":
            self.engine.java().kill()
            return
        if victim == "daemon":
            self._chance.choice(daemons_below(self.engine.process.pid)).kill()
            return
        worker = self._chance.choice(workers)
        if victim == "worker":
            worker.kill()
            return
        worker.send_signal(signal.SIGSTOP)
        threading.Timer(STOPPED_S, _continue, [worker]).start()

    def _await_point(self, point: str) -> None:
        """Waits for a random moment, or until a file of the kind that the point names has changed."""
        idle = threading.Event()
        if point == "random":
            idle.wait(self._chance.random() * 2)
            return
        known = self._marks(point)
        deadline = time.monotonic() + _POINT_S
        while time.monotonic() < deadline and self._marks(point) == known:
            idle.wait(0.001)

    def _marks(self, point: str) -> set[tuple[str, int, int]]:
        marks = set()
        for path in self._data.glob(POINTS[point]):
            try:
                found = os.stat(path)
            except FileNotFoundError:
                continue
            marks.add((str(path), found.st_mtime_ns, found.st_size))
        return marks


def _continue(worker: psutil.Process) -> None:
    try:
        worker.send_signal(signal.SIGCONT)
    except psutil.NoSuchProcess:
        return  # it was killed meanwhile, as it should be


def summary(kills: list[Kill]) -> str:
    """Returns a table: victim, rounds, median and worst seconds until results flowed, and until all was right."""
    lines = [f"{'victim':16}{'kills':>6}{'flow median':>13}{'worst':>8}{'right median':>14}{'worst':>8}"]
    for victim in sorted({kill.victim for kill in kills}):
        mine = [kill for kill in kills if kill.victim == victim]
        flow = [kill.flow_s for kill in mine]
        right = [kill.right_s for kill in mine]
        lines.append(f"{victim:16}{len(mine):>6}{statistics.median(flow):>13.2f}{max(flow):>8.2f}"
                     f"{statistics.median(right):>14.2f}{max(right):>8.2f}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
