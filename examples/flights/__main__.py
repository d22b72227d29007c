"""`make demo`: replays a year of flights and weather through four streams and checks each against batch answers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.flights.check import EXPECTATIONS, check
from examples.flights.data import TIME_ZONE, batches, load_feeds
from examples.shared.replay import CONFIG, check_until_all_match, replay, run_example, show
from rich.console import Console

import penstock
from penstock.common.clock import SystemClock


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo; returns 0 if every stream matches the batch answers, else 1."""
    parser = argparse.ArgumentParser(prog="examples.flights", description=__doc__)
    parser.add_argument("--fast", action="store_true", help="two months instead of a year")
    parser.add_argument("--seed", type=int, default=2013, help="decides which rows come late, and how late")
    return run_example(arguments, parser, _run, "select * from nyc.worst_delay_per_day order by ts limit 5")


def _run(options: argparse.Namespace, console: Console) -> bool:
    clock = SystemClock()
    started = clock.monotonic()
    feeds = load_feeds(options.seed, months=2 if options.fast else 12)
    feed_of = {feed.table: feed for feed in feeds}
    path = str(options.data)
    with penstock.connect(path, CONFIG | {"timezone": TIME_ZONE}) as connection:
        replay(connection, Path(__file__).with_name("streams.sql"), "nyc", batches(feeds),
               sum(len(feed.frame) for feed in feeds), console, clock)
        verdicts = check_until_all_match(
            lambda: [check(each, feed_of[each.source], connection, path) for each in EXPECTATIONS], clock)
        show(verdicts, console)
        _show_some_results(path, console)
    console.print(f"Done in {clock.monotonic() - started:.1f} s.")
    return all(verdict.matches for verdict in verdicts)


def _show_some_results(path: str, console: Console) -> None:
    console.print("\nThe days with the worst delays, read by plain DuckDB from Parquet:")
    with penstock.duckdb(path) as views:
        rows = views.sql(
            f"SELECT timezone('{TIME_ZONE}', ts::TIMESTAMPTZ)::DATE AS day, carrier, worst_delay, flights "
            "FROM nyc.worst_delay_per_day ORDER BY worst_delay DESC LIMIT 5"
        )
        console.print(str(rows))


if __name__ == "__main__":
    sys.exit(main())
