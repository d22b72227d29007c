"""`make demo`: replays a year of flights and weather through three streams and checks each against batch answers."""

from __future__ import annotations

import argparse
import shutil
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from examples.flights.check import EXPECTATIONS, Verdict, check
from examples.flights.data import TIME_ZONE, Feed, batches, load_feeds
from examples.flights.display import REFRESHES_PER_SECOND, Display, TaskLine, read_tasks
from rich.console import Console

import penstock
from penstock.common.clock import Clock, SystemClock
from penstock.common.errors import PenstockError
from penstock.common.paths import DataPaths
from penstock.shell.script import SqlText, split_all

if TYPE_CHECKING:
    from penstock.shell.dbapi import Connection

DEFAULT_DATA = Path(".demo")
CATCH_UP_S = 120.0
CONFIG = {
    "timezone": TIME_ZONE,
    # The feed is quiet only at its end: without the pause of a busy machine counting as idleness, which hours are
    # closed in the end depends on the rows alone and can be checked exactly.
    "idleTimeout": "1h",
    "viewRefreshInterval": "200ms",
    "heartbeatInterval": "200ms",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the demo; returns 0 if every stream matches the batch answers, else 1."""
    options = _options(arguments)
    console = Console(highlight=False)
    try:
        _clear(options.data)
        matches = _run(options, console, SystemClock())
    except PenstockError as error:
        console.print(f"[bold red]ERROR: {error}[/]")
        return 1
    except KeyboardInterrupt:
        console.print("Interrupted.")
        return 1
    if options.keep:
        query = "select * from nyc.worst_delay_per_day order by ts limit 5"
        console.print(f'Look around: penstock --data {options.data} -c "{query}"', soft_wrap=True)
    else:
        shutil.rmtree(options.data)
    return 0 if matches else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="examples.flights", description=__doc__)
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA, help=f"data directory (default {DEFAULT_DATA})")
    parser.add_argument("--keep", action="store_true", help="keep the data directory, to look around in it")
    parser.add_argument("--fast", action="store_true", help="two months instead of a year")
    parser.add_argument("--seed", type=int, default=2013, help="decides which rows come late, and how late")
    return parser.parse_args(arguments)


def _clear(path: Path) -> None:
    """Removes what an earlier run left; anything else that lies there is not ours to remove."""
    if not path.exists():
        return
    if not DataPaths(path).format.exists() and any(path.iterdir()):
        raise PenstockError(f"{path} exists and is not a data directory", hint="name another one with --data")
    shutil.rmtree(path)


def _run(options: argparse.Namespace, console: Console, clock: Clock) -> bool:
    started = clock.monotonic()
    feeds = load_feeds(options.seed, months=2 if options.fast else 12)
    with penstock.connect(str(options.data), CONFIG) as connection:
        with console.status("Starting three streams; Spark takes a few seconds ...") as status:
            _create_streams(connection)
            _wait_until_running(connection, clock)
            status.stop()
        console.print(f"Three streams run after {clock.monotonic() - started:.1f} s.")
        rows = sum(len(feed.frame) for feed in feeds)
        with Display(connection, rows, console) as display:
            _insert(connection, feeds, display, clock)
            display.say(f"{rows:,} rows inserted after {clock.monotonic() - started:.1f} s; the streams finish ...")
            _wait_until_caught_up(connection, display, clock)
        verdicts = _check_until_all_match(connection, feeds, str(options.data), clock)
        for verdict in verdicts:
            console.print(f"[{'green' if verdict.matches else 'bold red'}]{verdict}[/]")
        _show_some_results(str(options.data), console)
    console.print(f"Done in {clock.monotonic() - started:.1f} s.")
    return all(verdict.matches for verdict in verdicts)


def _create_streams(connection: Connection) -> None:
    script = Path(__file__).with_name("streams.sql").read_text("utf-8")
    with connection.cursor() as cursor:
        for piece in split_all(script):
            assert isinstance(piece, SqlText), "the script holds statements only"
            cursor.execute(piece.text)


def _wait_until_running(connection: Connection, clock: Clock) -> None:
    deadline = clock.monotonic() + CATCH_UP_S
    while {line.stream for line in read_tasks(connection) if _runs(line)} != {each.stream for each in EXPECTATIONS}:
        if clock.monotonic() > deadline:
            raise PenstockError(f"the streams don't run after {CATCH_UP_S:.0f} s", hint="see the log")
        clock.wait(threading.Event(), 1 / REFRESHES_PER_SECOND)


def _runs(line: TaskLine) -> bool:
    return line.state in ("RUNNING", "IDLE")


def _insert(connection: Connection, feeds: list[Feed], display: Display, clock: Clock) -> None:
    with connection.cursor() as cursor:
        for table, rows in batches(feeds):
            cursor.insert_arrow(f"nyc.{table}", rows)
            display.inserted(rows.num_rows, clock.monotonic())


def _wait_until_caught_up(connection: Connection, display: Display, clock: Clock) -> None:
    """Returns when every source task has read all of its vnode's WAL and no queue holds anything."""
    deadline = clock.monotonic() + CATCH_UP_S
    written = _written_versions(connection)
    while not (_all_quiet(display.show_tasks(clock.monotonic())) and _has_read(connection, written)):
        if clock.monotonic() > deadline:
            raise PenstockError(f"the streams have not caught up after {CATCH_UP_S:.0f} s")
        clock.wait(threading.Event(), 1 / REFRESHES_PER_SECOND)


def _all_quiet(lines: list[TaskLine]) -> bool:
    failed = next((line for line in lines if line.state == "FAILED"), None)
    if failed is not None:
        raise PenstockError(f"{failed.stream}: the {failed.level} task has failed: {failed.reason}")
    return bool(lines) and all(line.queue_bytes == 0 and line.state == "IDLE" for line in lines)


def _written_versions(connection: Connection) -> dict[int, int]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT vgroup_id, wal_version FROM information_schema.ins_vgroups WHERE db_name = 'nyc'")
        return dict(cursor.fetchall())


def _has_read(connection: Connection, written: dict[int, int]) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT node_id, processed_version FROM information_schema.ins_stream_tasks WHERE level = 'source'"
        )
        return all((version or 0) >= written[vnode] for vnode, version in cursor.fetchall())


def _check_until_all_match(
    connection: Connection, feeds: list[Feed], path: str, clock: Clock, patience_s: float = 15.0
) -> list[Verdict]:
    """Checks each stream; looks again for a while, since views show what was written a moment later."""
    feed_of = {feed.table: feed for feed in feeds}
    deadline = clock.monotonic() + patience_s
    while True:
        verdicts = [check(each, feed_of[each.source], connection, path) for each in EXPECTATIONS]
        if all(verdict.matches for verdict in verdicts) or clock.monotonic() > deadline:
            return verdicts
        clock.wait(threading.Event(), 1 / REFRESHES_PER_SECOND)


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
