"""Keeps random views and streams of any query, and holds them against DuckDB: `python -m programs.random_views`.

A seed stands for tables, some 30 views and streams over them, and over each other, and for what happens to the tables:
rows in order, late, rewritten, deleted by time and by key, new tags, columns and child tables, flushes, compaction,
checkpoints, kills of all tasks, pauses, the directory opened anew. After each round of that every result table is
compared with DuckDB's answer over plain copies of the rows; each third one, and those behind something that is paused,
with the query's own answer as well. In the end it prints how the views are kept up to date, what was refused and why,
and what no query had. Exit code 1 if anything differed: `--seed N` plays that seed again and prints the least that is
still wrong.
"""

from __future__ import annotations

import argparse
import re
import sys
import time

from kits.streams.view_histories import Outcome, case, play, smaller

#: What queries should have, by a pattern of it.
PARTS = {
    "WHERE": " where ", "GROUP BY": " group by ", "HAVING": " having ", "DISTINCT": "select distinct [^o]",
    "DISTINCT ON": "distinct on", "FILTER": r" filter \(", "ORDER BY in a call": r"\([^()]*order by [^()]*\) as",
    "UNION": " union ", "INTERSECT": " intersect ", "EXCEPT": " except ",
    "inner join": r"(?<!left )(?<!right )(?<!full )(?<!semi )(?<!anti )(?<!cross )join ", "LEFT JOIN": "left join",
    "RIGHT JOIN": "right join", "FULL JOIN": "full join", "CROSS JOIN": "cross join", "SEMI JOIN": "semi join",
    "ANTI JOIN": "anti join", "USING": r" using \(", "LATERAL": "lateral", "three tables": "join.* join ",
    "IN (SELECT": r" in \(select", "NOT IN (SELECT": r"not in \(select", "EXISTS": "exists", "ANY": r"\bany \(",
    "scalar sub-query": r"[=<>] \(select|, \(select", "WITH": r"as with | as \(select", "OVER": r" over \(",
    "frame": "rows (between|unbounded)", "QUALIFY": "qualify", "LIMIT": " limit ", "OFFSET": " offset ",
    "ROLLUP, CUBE, GROUPING SETS": "rollup|cube|grouping sets", "VALUES": r"\(values", "INTERVAL": r" interval\(",
    "SLIDING": r"sliding\(", "SESSION": r" session\(", "STATE_WINDOW": r"state_window\(",
    "COUNT_WINDOW": r"count_window\(", "PARTITION BY": "partition by", "tbname": "tbname",
    "a view in FROM": r"from v\d", "a view in JOIN": r"join v\d", "CREATE STREAM": "create stream",
}
_SAID_S = 10.0


def summary(outcome: Outcome) -> str:
    """What became of all that was played."""
    lines = [_counts(outcome)]
    for title, counted in (("compared", outcome.comparisons), ("kept up to date", outcome.ways),
                           ("made of", outcome.kinds)):
        lines.append(f"{title}: " + ", ".join(f"{name} {count}" for name, count in counted.most_common()))
    parts = {name: sum(re.search(pattern, text, re.IGNORECASE) is not None for text in outcome.made)
             for name, pattern in PARTS.items()}
    lines.append("with: " + ", ".join(f"{name} {count}" for name, count in parts.items() if count))
    lines.append(f"never: {', '.join(name for name, count in parts.items() if not count) or 'nothing of that list'}")
    lines.append(f"refused: {sum(outcome.refused.values())}")
    lines += [f"  {count} {reason}: {outcome.examples.get(reason, '')[:200]}"
              for reason, count in outcome.refused.most_common()]
    return "\n".join(lines)


def _counts(outcome: Outcome) -> str:
    return (f"{outcome.views} views, {sum(outcome.comparisons.values())} comparisons, {len(outcome.failures)} "
            f"failures, {time.process_time():.0f} s of processor")


def explain(seed: int, views: int) -> None:
    """Prints the least that is wrong with a seed."""
    whole = case(seed, views)
    for failure in play(whole)[0]:
        print(f"{seed}: {failure.name}: {failure.problem}\nsmaller:", flush=True)
        failures, story = play(smaller(whole, failure))
        print(";\n".join(story), *(f"{failure.name}: {failure.problem}" for failure in failures), sep="\n", flush=True)


def main() -> int:
    """Plays what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m programs.random_views", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--views", type=int, default=20_000, help="how many views at least (default 20000)")
    parser.add_argument("--minutes", type=float, help="end after so many, whatever has been played by then")
    parser.add_argument("--start", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--seed", type=int, help="only this one; what is wrong is made smaller")
    parser.add_argument("--per-seed", type=int, default=30, help="views over the same tables (default 30)")
    options = parser.parse_args()
    outcome, seed, said_at, begun_at = Outcome(), options.start, 0.0, time.monotonic()
    if options.seed is not None:
        seed = options.seed
        explain(seed, options.per_seed)
    while outcome.views < (1 if options.seed is not None else options.views) and (
            options.minutes is None or time.monotonic() - begun_at < options.minutes * 60):
        for failure in play(case(seed, options.per_seed), outcome)[0]:
            print(f"{seed}: {failure.name}: {failure.problem}", flush=True)
        seed += 1
        if time.monotonic() - said_at > _SAID_S:
            said_at = time.monotonic()
            print(f"seed {seed}: {_counts(outcome)}", flush=True)
    print(summary(outcome))
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
