"""Plays random histories on real engines that are killed: `python -m programs.killed_histories --seeds 200`.

A history has two streams over a super table, statements (rows in order, late, rewritten, some columns only; deletes of
ranges; child tables that get other tags, or are made anew), pauses, and kills of the engine, of Spark's Java and of
workers, in any order. Now and then, and in the end, each stream must equal its batch query, before later changes can
hide what is wrong, and VERIFY STREAM must say so, as `penstock verify` must of what a killed engine leaves. `--paused`
plays the same order of kills around pauses each time. Prints which seeds differ in which rows, and where their stories
and data are; exit code 1 if any did. `--seed N` plays one.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from kits.engines.engine_process import daemons_below
from kits.engines.statement_engine import StatementEngine
from kits.engines.verdicts import verify_at_rest

T0 = 1_700_000_000_000
PATIENCE_S = 240.0
RIGHT = "IGNORE EXPIRED 0 IGNORE UPDATE 0"


@dataclass(frozen=True)
class Shape:
    """A stream: its options, its query behind SELECT, and the partition item that becomes the tag."""

    options: str
    group: str
    tag: str
    columns: str
    names: str
    rest: str

    def create(self, name: str) -> str:
        return (f"CREATE STREAM {name} {self.options} {RIGHT} INTO o_{name} TAGS (g {self.tag}) AS "
                f"SELECT {self.columns} FROM st {self.rest.format(by=f'PARTITION BY {self.group} g')}")

    def batch(self) -> str:
        return f"SELECT {self.group}, {self.columns} FROM st {self.rest.format(by=f'PARTITION BY {self.group}')}"

    def result(self, name: str) -> str:
        return f"SELECT g, {self.names} FROM o_{name}"


SHAPES = (
    Shape("TRIGGER AT_ONCE", "g0", "INT", "_wstart a, _wend b, count(*) c, sum(c0) d, stddev(c0) e, max(c0) f",
          "a, b, c, d, e, f", "WHERE c1 <= 200 {by} INTERVAL(2500a)"),
    Shape("TRIGGER AT_ONCE WATERMARK 1s", "tbname", "VARCHAR(20)",
          "_wstart a, count(*) c, stddev(c0) d, spread(c0) e", "a, c, d, e", "WHERE c0 <= 200 {by} INTERVAL(1s)"),
    Shape("TRIGGER AT_ONCE", "tbname", "VARCHAR(20)", "_wstart a, count(c0) c, avg(c0) d, min(c1) e", "a, c, d, e",
          "{by} INTERVAL(10s) SLIDING(5s)"),
    Shape("TRIGGER AT_ONCE", "tbname", "VARCHAR(20)", "ts a, c0 b, c1 c", "a, b, c", "WHERE c1 <= 200 {by}"),
    Shape("TRIGGER AT_ONCE", "g0", "INT", "_wstart a, count(*) c, sum(c1) d", "a, c, d",
          "WHERE c0 <= 250 {by} SESSION(ts, 700a)"),
)


@dataclass
class History:
    """One seed, from an empty directory to the verdict."""

    seed: int
    data: Path
    story: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        chance = self.chance
        self.children = chance.choice([4, 8, 16])
        self.vgroups = chance.choice([1, 2, 4])
        self.shapes = chance.sample(SHAPES, 2)
        self.newest = T0
        self.keys: list[tuple[int, int]] = []
        self.paused = False
        self.config: dict[str, Any] = {
            "timezone": "UTC", "idleTimeout": "1h", "checkpointInterval": chance.choice(["1s", "4s", "15s", "3m"]),
            "restartDelayMax": "1s", "spark.ui.enabled": False, "flightPort": 0, "taosAdapterPort": 0,
            "streamSinkDataRate": 0, "spark.master": "local[16]"}
        self.engine = StatementEngine(self.data, self.config)

    def play(self, steps: int) -> str:
        """Returns what is wrong in the end, "" if nothing is."""
        try:
            self._create()
            for _ in range(steps):
                self._step()
                if not self.paused and self.chance.random() < 0.12 and (problem := self._verdict()):
                    return problem
            if self.chance.random() < 0.3:
                self._kill_engine()
            self._run("RESUME STREAM s0"), self._run("RESUME STREAM s1")
            return self._verdict()
        finally:
            self.engine.end()

    def play_paused(self, rounds: int) -> str:
        """Likewise, of kills before, in and after pauses."""
        try:
            self._create()
            for _ in range(rounds):
                self._write(self.chance.choice([5, 20, 60]))
                if problem := self._verdict():
                    return problem
                self._write(self.chance.choice([0, 5, 20]))
                self._kill("java")
                self._write(self.chance.choice([0, 5]))
                self._run("PAUSE STREAM s0"), self._run("PAUSE STREAM s1")
                self._kill_engine()
                self._write(self.chance.choice([0, 10]))
                self._rest(self.chance.choice([0.0, 4.0, 8.0]))
                self._kill("java")
                self._write(15)
                self._rest(self.chance.choice([0.0, 8.0]))
                self._run("RESUME STREAM s0"), self._run("RESUME STREAM s1")
            return self._verdict()
        finally:
            self.engine.end()

    def _write(self, statements: int) -> None:
        for _ in range(statements):
            self._change() if self.chance.random() < 0.1 else self._run(self._insert())

    def _rest(self, seconds: float) -> None:
        self.story.append(f"-- {seconds} s")
        threading.Event().wait(seconds)

    def _create(self) -> None:
        for text in (f"CREATE DATABASE d VGROUPS {self.vgroups} KEEP 36500d", "USE d",
                     "CREATE STABLE st (ts TIMESTAMP, c0 INT, c1 INT) TAGS (g0 INT)",
                     *(f"CREATE TABLE t{n} USING st TAGS ({n % 3})" for n in range(self.children)),
                     *(shape.create(f"s{n}") for n, shape in enumerate(self.shapes))):
            self._run(text)

    def _run(self, text: str) -> None:
        self.story.append(text)
        self.engine.run(text)

    def _step(self) -> None:
        chance = self.chance
        what = chance.random()
        if what < 0.05:
            self._kill_engine()
        elif what < 0.09:
            self._kill("java")
        elif what < 0.12:
            self._kill("worker")
        elif what < 0.17:
            self.paused = not self.paused
            for n in range(2):
                self._run(f"{'PAUSE' if self.paused else 'RESUME'} STREAM s{n}")
        elif what < 0.22:
            self._change()
        elif what < 0.27:
            self._rest(chance.choice([0.2, 1.0, 3.0]))
        else:
            for _ in range(chance.choice([1, 1, 5, 15])):
                self._run(self._insert())

    def _insert(self) -> str:
        chance = self.chance
        columns = chance.choice([("c0", "c1"), ("c0", "c1"), ("c0",), ("c1",)])
        parts = []
        for _ in range(chance.randint(1, 3)):
            rows, child = [], chance.randrange(self.children)
            for _ in range(chance.randint(1, 4)):
                what = chance.random()
                if what < 0.15 and self.keys:
                    child_of, ts = chance.choice(self.keys)
                    ts = ts if child_of == child or chance.random() < 0.5 else ts + 1
                elif what < 0.35:
                    ts = max(T0, self.newest - chance.randint(0, chance.choice([1_000, 10_000, 100_000])))
                else:
                    ts = self.newest = self.newest + chance.randint(0, 1_500)
                self.keys.append((child, ts))
                values = ["NULL" if chance.random() < 0.1 else str(chance.randint(0, 300)) for _ in columns]
                rows.append(f"({', '.join([str(ts), *values])})")
            parts.append(f"t{child} (ts, {', '.join(columns)}) VALUES {' '.join(rows)}")
        return "INSERT INTO " + " ".join(parts)

    def _change(self) -> None:
        """Deletes rows, or gives a table another tag, or makes it anew."""
        what, child, tag = self.chance.random(), self.chance.randrange(self.children), self.chance.randrange(4)
        if what < 0.5:
            self._run(self._delete())
        elif what < 0.8:
            self._run(f"ALTER TABLE t{child} SET TAG g0 = {tag}")
        else:
            self._run(f"DROP TABLE t{child}")
            self._run(f"CREATE TABLE t{child} USING st TAGS ({tag})")

    def _delete(self) -> str:
        first = self.chance.randint(T0, self.newest)
        last = first + self.chance.choice([0, 500, 5_000])
        table = self.chance.choice(["st", f"t{self.chance.randrange(self.children)}"])
        return f"DELETE FROM {table} WHERE ts >= {first} AND ts <= {last}"

    # -- kills ---------------------------------------------------------------------------------------------------

    def _kill_engine(self) -> None:
        self.story.append("-- kill -9 of the engine")
        if self.chance.random() < 0.5:
            text = self._insert().replace("INTO ", "INTO d.", 1)
            self.story.append(f"{text}  -- under way")
            self.engine.tell(f'"{text}"')
            threading.Event().wait(self.chance.random() * 0.05)
        java = psutil.Process(self.engine.process.pid).children(recursive=True)
        self.engine.kill()
        try:
            verify_at_rest(self.data)
        except AssertionError as error:
            self.wrong.append(f"at rest: {error}")
        if self.chance.random() < 0.5:
            for process in java:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        threading.Event().wait(self.chance.choice([0.0, 0.5]))
        self.engine = StatementEngine(self.data, self.config)
        self.engine.run("USE d")

    def _kill(self, kind: str) -> None:
        self.story.append(f"-- kill -9 of a process: {kind}")
        engine = psutil.Process(self.engine.process.pid)
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended by itself
            found = [p for p in engine.children() if "java" in p.name()] if kind == "java" else [
                worker for daemon in daemons_below(engine.pid) for worker in daemon.children()]
            if found:
                self.chance.choice(found).kill()

    # -- the end -------------------------------------------------------------------------------------------------

    def _verdict(self) -> str:
        if self.wrong:
            return "\n".join(self.wrong)
        self.story.append("-- compared")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            problems = [text for n, shape in enumerate(self.shapes) for text in self._differences(f"s{n}", shape)]
            problems = problems or [text for n in range(len(self.shapes)) for text in self._verified(f"s{n}")]
            if not problems:
                return ""
            if time.monotonic() > deadline:
                states = self.engine.run("SELECT stream_name, state, reason FROM information_schema.ins_streams")
                return "\n".join([*problems[:40], str(states)])
            threading.Event().wait(0.3)

    def _differences(self, name: str, shape: Shape) -> list[str]:
        found, wanted = (Counter(map(tuple, self.engine.run(query))) for query in (shape.result(name), shape.batch()))
        return [f"{name}: too much {row}" for row in sorted(found - wanted)] + [
            f"{name}: missing {row}" for row in sorted(wanted - found)]

    def _verified(self, name: str) -> list[str]:
        """Asks the second judge, who sees child tables and rows that the query of the results doesn't show."""
        lines, problem = self.engine.attempt(f"VERIFY STREAM {name}")
        return [f"{name}: {problem}"] if problem else [f"{name}: {line}" for line in lines if line[0] != "verified"]


def main() -> int:
    """Plays what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m programs.killed_histories", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many histories (default 20)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--seed", type=int, help="only this one, with its story")
    parser.add_argument("--steps", type=int, default=70, help="steps of a history (default 70)")
    parser.add_argument("--paused", action="store_true", help="kills around pauses, a tenth as many rounds as steps")
    parser.add_argument("--keep", type=Path, help="leave data directories of failures here")
    options = parser.parse_args()
    seeds = range(options.start, options.start + options.seeds) if options.seed is None else [options.seed]
    failed = []
    for seed in seeds:
        begun = time.monotonic()
        data = Path(tempfile.mkdtemp(prefix=f"history-{seed}-", dir=options.keep)) / "data"
        history = History(seed, data)
        problem = history.play_paused(options.steps // 10) if options.paused else history.play(options.steps)
        print(f"{seed}: {'DIFFERS' if problem else 'equal'} after {time.monotonic() - begun:.0f} s", flush=True)
        if problem:
            failed.append(seed)
            print("\n".join([history.data.as_posix(), str(history.config), problem]), flush=True)
            (data.parent / "story.txt").write_text("\n".join(history.story))
        else:
            shutil.rmtree(data.parent, ignore_errors=True)
    print(f"{len(seeds)} histories, failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
