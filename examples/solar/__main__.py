"""`make solar`: two weeks of solar trackers through four streams, each checked against batch answers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from examples.shared.replay import CONFIG, check_until_all_match, replay, run_example, show
from examples.solar.check import EXPECTATIONS, check
from examples.solar.data import batches, load_rows, stored
from rich.console import Console

import penstock
from penstock.common.clock import SystemClock


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the example; returns 0 if every stream matches the batch answers, else 1."""
    parser = argparse.ArgumentParser(prog="examples.solar", description=__doc__)
    parser.add_argument("--days", type=int, default=14, help="how many days of rows (default 14)")
    parser.add_argument("--seed", type=int, default=2024, help="decides the weather, and which rows come late or twice")
    return run_example(arguments, parser, _run, "select * from solar.peaks_per_day order by ts limit 5")


def _run(options: argparse.Namespace, console: Console) -> bool:
    clock = SystemClock()
    started = clock.monotonic()
    rows = load_rows(options.seed, options.days)
    path = str(options.data)
    with penstock.connect(path, CONFIG | {"timezone": "UTC"}) as connection:
        replay(connection, Path(__file__).with_name("streams.sql"), "solar", batches(rows), len(rows), console, clock)
        kept = stored(rows)
        verdicts = check_until_all_match(
            lambda: [check(each, kept, connection, path) for each in EXPECTATIONS], clock)
        show(verdicts, console)
    console.print(f"Done in {clock.monotonic() - started:.1f} s.")
    return all(verdict.matches for verdict in verdicts)


if __name__ == "__main__":
    sys.exit(main())
