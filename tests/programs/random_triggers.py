"""Plays random streams with a trigger of their own, and compares: `python -m programs.random_triggers`.

A seed stands for tables, four streams over them, and what happens to the tables. What a stream has written must be what
its query gives for each of its windows, with constants in the place of what the trigger gives. `--seed N` plays that
seed again and prints what the engine was told. Exit code 1 if anything differed.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from kits.streams.trigger_histories import Compared, TriggerCase, play_triggers, trigger_cases
from kits.streams.view_histories import drawn

_SAID_S = 10.0


def case_of(seed: int) -> TriggerCase:
    return drawn(trigger_cases(), random.Random(seed))


def summary(outcome: Compared) -> str:
    """What became of all that was played."""
    lines = [f"{outcome.streams} streams, {outcome.windows} windows compared, {outcome.executions} executions, "
             f"{len(outcome.failures)} failures, {time.process_time():.0f} s of processor"]
    for title, counts in (("computed", outcome.ways), ("triggers", outcome.kinds), ("refused", outcome.refused)):
        lines.append(f"{title}: " + (", ".join(f"{name} {count}" for name, count in counts.most_common()) or "none"))
    return "\n".join(lines)


def main() -> int:
    """Plays what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m programs.random_triggers", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=5_000, help="how many streams at least (default 5000)")
    parser.add_argument("--start", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--seed", type=int, help="only this one, with all that the engine is told")
    options = parser.parse_args()
    outcome, seed, said_at = Compared(), options.start if options.seed is None else options.seed, 0.0
    while True:
        failures, story = play_triggers(case_of(seed), outcome)
        if options.seed is not None:
            print(*story, sep=";\n")
        for failure in failures:
            print(f"{seed}: {failure}", flush=True)
        seed += 1
        if options.seed is not None or outcome.streams >= options.streams:
            break
        if time.monotonic() - said_at > _SAID_S:
            said_at = time.monotonic()
            print(f"seed {seed}: {summary(outcome).splitlines()[0]}", flush=True)
    print(summary(outcome))
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
