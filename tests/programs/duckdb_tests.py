"""Plays DuckDB's own tests of SQL: what of them queries can ask here, and whether the answers are DuckDB's.

`PYTHONPATH=tests python -m programs.duckdb_tests FOLDER [NAME ...]`: FOLDER is `test/sql` of a copy of DuckDB's
repository, NAME a folder of it (all of FOLDERS if none is given) or a file. It prints a table of folders for
docs/testing.md, then what is wrong and what fails, the most frequent first, with an example of each. `--output` writes
each verdict that isn't `passed` as a line of JSON.

Files are played in processes of their own, so that one that ends or hangs costs its file only.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import queue
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from kits.duckdb_tests.player import Player, Verdict, opened

FOLDERS = ("aggregate", "binder", "cast", "conjunction", "cte", "filter", "function", "join", "json", "limit", "order",
           "overflow", "pivot", "projection", "sample", "select", "setops", "subquery", "topn", "types", "window")
_SILENCE_S = 40
_SHOWN = 12
_KINDS = ("passed", "wrong", "broken", "failed", "accepted", "decided", "skipped")


def serve(pipe: Connection) -> None:
    """Plays the files whose names come by a pipe, and sends each verdict; None ends a file."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # where `SELECT x >> 2` writes the file 2
        engine = opened(Path(folder) / "data")
        player = Player(engine)
        while (path := pipe.recv()) is not None:
            for verdict in player.play(Path(path).read_text("utf-8", "replace")):
                pipe.send(verdict)
            pipe.send(None)
        engine.close()


class Worker:
    """A process that plays files, and is started again if it ends or is silent for too long."""

    def __init__(self) -> None:
        self._process: multiprocessing.process.BaseProcess | None = None
        self._pipe: Connection | None = None

    def play(self, path: Path) -> list[Verdict]:
        found: list[Verdict] = []
        if self._pipe is None:
            spawning = multiprocessing.get_context("spawn")
            self._pipe, theirs = spawning.Pipe()
            self._process = spawning.Process(target=serve, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()
        try:
            self._pipe.send(path.absolute())
            while self._pipe.poll(_SILENCE_S):
                verdict = self._pipe.recv()
                if verdict is None:
                    return found
                found.append(verdict)
            reason = f"nothing for {_SILENCE_S} s"
        except (EOFError, OSError):
            reason = "the process ended"
        self._end()
        after = found[-1].line if found else 0
        return [*found, Verdict(after, "", "failed", reason, f"behind the statement of line {after}")]

    def close(self) -> None:
        if self._pipe is not None:
            self._pipe.send(None)
            assert self._process is not None
            self._process.join(10)
            self._end()

    def _end(self) -> None:
        assert self._process is not None
        assert self._pipe is not None
        self._process.kill()
        self._process.join()
        self._pipe.close()
        self._pipe = None


def play(paths: Iterable[Path], processes: int) -> dict[Path, list[Verdict]]:
    """Plays files, several at once, and returns the verdicts on the statements of each."""
    waiting: queue.SimpleQueue[Path | None] = queue.SimpleQueue()
    for path in [*paths, *[None] * processes]:
        waiting.put(path)
    found: dict[Path, list[Verdict]] = {}

    def work() -> None:
        worker = Worker()
        while (path := waiting.get()) is not None:
            found[path] = worker.play(path)
        worker.close()

    threads = [threading.Thread(target=work) for _ in range(processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def table(counts: dict[str, Counter[str]]) -> str:
    """Returns how many statements of each folder came to what, in Markdown; `share`: passed of what is compared."""
    lines = [f"| folder | {' | '.join(_KINDS)} | share |", f"|{'---|' * (len(_KINDS) + 2)}"]
    total = sum(counts.values(), Counter[str]())
    for name, count in [*sorted(counts.items()), ("all", total)]:
        compared = sum(count[kind] for kind in _KINDS[:5])
        share = f"{count['passed'] / compared:.0%}" if compared else ""
        lines.append(f"| {name} | {' | '.join(str(count[kind]) for kind in _KINDS)} | {share} |")
    return "\n".join(lines)


def report(found: dict[Path, list[Verdict]], outcome: str, most: int) -> str:
    """Returns the reasons of an outcome, the most frequent first, with the shortest statement of each."""
    of: dict[str, list[tuple[str, Verdict]]] = {}
    for path, verdicts in found.items():
        for verdict in verdicts:
            if verdict.outcome == outcome:
                of.setdefault(verdict.reason, []).append((path.name, verdict))
    lines = []
    for reason, cases in sorted(of.items(), key=lambda each: -len(each[1]))[:most]:
        name, shortest = min(cases, key=lambda case: len(case[1].sql))
        files = len({name for name, _ in cases})
        lines += [f"- **{len(cases)}** in {files} files: {reason}",
                  f"  `{' '.join(shortest.sql.split())[:300]}` ({name}:{shortest.line}) {shortest.detail[:300]}"]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Plays the files that are named, and prints what came of them."""
    parser = argparse.ArgumentParser(prog="python -m programs.duckdb_tests", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=FOLDERS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--most", type=int, default=_SHOWN, help="reasons shown per outcome")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    named = [options.folder / name for name in options.names]
    paths = [path for each in named for path in (sorted(each.rglob("*.test")) if each.is_dir() else [each])]
    found = play(paths, options.processes)
    counts: dict[str, Counter[str]] = {}
    for path, verdicts in found.items():
        counts.setdefault(path.relative_to(options.folder).parts[0], Counter()).update(
            verdict.outcome for verdict in verdicts)
    print(table(counts))
    for outcome in _KINDS[1:]:
        print(f"\n## {outcome}\n\n{report(found, outcome, options.most)}")
    if options.output is not None:
        with options.output.open("w", encoding="utf-8") as file:
            for path, verdicts in found.items():
                for verdict in verdicts:
                    if verdict.outcome != "passed":
                        file.write(json.dumps({"file": str(path.relative_to(options.folder)),
                                               **dataclasses.asdict(verdict)}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
