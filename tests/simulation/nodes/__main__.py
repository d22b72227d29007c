"""Plays many seeds of clusters and tells which fail: `python -m simulation.nodes --seeds 2000`, or one: `--seed 17`.

Prints seed and commit of every failure; the same seed at the same commit fails again. Exit code 1 if any failed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator

from kits.basics.interrupts import interrupt_on_sigterm

from simulation.nodes.cluster_run import ClusterOutcome, run_clusters
from simulation.seed_pool import commit, play

_CHUNK = 10


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
        outcomes = play(run_clusters, range(options.start, options.start + options.seeds), options.jobs, _CHUNK)
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


if __name__ == "__main__":
    sys.exit(main())
