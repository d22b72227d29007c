"""Plays many seeds of clusters and tells which fail: `python -m simulation.nodes --seeds 2000`, or one: `--seed 17`.

Prints seed and commit of every failure; the same seed at the same commit fails again. Exit code 1 if any failed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

from kits.basics.interrupts import interrupt_on_sigterm

from simulation.__main__ import commit
from simulation.nodes.cluster_run import ClusterOutcome, run_clusters

_CHUNK = 10
_PENDING = 20


def main() -> int:
    """Plays what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m simulation.nodes", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds (default 200)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--seed", type=int, help="only this seed, with the story of what happened")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    options = parser.parse_args()
    interrupt_on_sigterm()
    counts: Counter[str] = Counter()
    failed: list[int] = []
    done = events = acknowledged = 0
    if options.seed is not None:
        outcomes: Iterator[ClusterOutcome] = iter(run_clusters([options.seed]))
    else:
        outcomes = play(range(options.start, options.start + options.seeds), options.jobs)
    try:
        for outcome in outcomes:
            done, events = done + 1, events + outcome.events
            acknowledged += outcome.acknowledged
            counts.update(outcome.counts)
            if outcome.problem:
                failed.append(outcome.seed)
                print(f"seed {outcome.seed} at commit {commit()} failed: {outcome.problem}", file=sys.stderr)
            if options.seed is not None:
                print("\n".join(outcome.trace), file=sys.stderr)
            elif done % 500 == 0:
                print(f"{done} of {options.seeds} seeds, {len(failed)} failed", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    print(json.dumps({"commit": commit(), "seeds": done, "events": events, "records": acknowledged,
                      "counts": dict(sorted(counts.items())), "failed": sorted(failed)}))
    return 1 if failed else 0


def play(seeds: range, jobs: int) -> Iterator[ClusterOutcome]:
    """Yields the outcomes of seeds, as they come, from processes of their own whose hashes are the same every time."""
    os.environ["PYTHONHASHSEED"] = "0"
    chunks = iter([seeds[at:at + _CHUNK] for at in range(0, len(seeds), _CHUNK)])
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(run_clusters, chunk) for chunk in itertools.islice(chunks, _PENDING)}
        try:
            while running:
                ended = next(as_completed(running))
                running.remove(ended)
                chunk = next(chunks, None)
                if chunk is not None:
                    running.add(pool.submit(run_clusters, chunk))
                yield from ended.result()
        except KeyboardInterrupt:
            for child in multiprocessing.active_children():
                child.kill()
            raise


if __name__ == "__main__":
    sys.exit(main())
