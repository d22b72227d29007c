"""Plays many seeds on all cores and tells which fail: `python -m simulation --seeds 2000`, or one: `--seed 17`.

Prints seed and commit of every failure; the same seed at the same commit fails again. Exit code 1 if any failed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from kits.basics.interrupts import interrupt_on_sigterm
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from simulation.run import Outcome, run_seeds
from simulation.seed_pool import commit, play

_MEMORY = Path("/dev/shm")
_CHUNK = 5


def main() -> int:
    """Plays what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=50, help="how many seeds (default 50)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--seed", type=int, help="only this seed, with the story of what happened")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--report", type=Path, help="write a summary as JSON to this file")
    options = parser.parse_args()
    start, count = (options.start, options.seeds) if options.seed is None else (options.seed, 1)
    console = Console(stderr=True)
    faults: Counter[str] = Counter()
    failed: list[Outcome] = []
    done = events = rows = 0
    with _memory_directory() as directory, _progress(console, count) as progress:
        run = partial(run_seeds, directory=directory)
        task = progress.add_task("seeds", total=count)
        for outcome in _until_ended(play(run, range(start, start + count), options.jobs, _CHUNK)):
            done, events, rows = done + 1, events + outcome.events, rows + outcome.rows
            faults.update(outcome.faults)
            if not console.is_terminal and done % 100 == 0:
                console.print(f"{done} of {count} seeds, {len(failed)} failed", markup=False, highlight=False)
            if outcome.problem:
                failed.append(outcome)
                console.print(f"seed {outcome.seed} at commit {commit()} failed: {outcome.problem}",
                              markup=False, highlight=False)
                if options.seed is not None:
                    console.print("\n".join(outcome.trace), markup=False, highlight=False)
            progress.advance(task)
    summary = {"commit": commit(), "first": start, "seeds": done, "events": events, "rows": rows,
               "faults": dict(sorted(faults.items())), "failed": [outcome.seed for outcome in failed]}
    print(json.dumps(summary))
    if options.report is not None:
        options.report.write_text(json.dumps(summary, indent=1) + "\n")
    return 1 if failed else 0


def _until_ended(outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
    """Yields outcomes until there are no more, or somebody ends the program: what was played until then counts."""
    interrupt_on_sigterm()
    try:
        yield from outcomes
    except KeyboardInterrupt:
        return


@contextmanager
def _memory_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="simulation-", dir=_MEMORY if _MEMORY.is_dir() else None) as name:
        yield Path(name)


def _progress(console: Console, count: int) -> Progress:
    return Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                    console=console, transient=True, disable=count == 1)


if __name__ == "__main__":
    sys.exit(main())
