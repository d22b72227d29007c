"""What the examples share: they create streams, insert generated rows, wait for the streams and check their results."""

from __future__ import annotations

import argparse
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from examples.shared.display import REFRESHES_PER_SECOND, Display, TaskLine, read_tasks
from examples.shared.verdict import Verdict
from rich.console import Console

from penstock.common.clock import Clock
from penstock.common.errors import PenstockError
from penstock.common.paths import DataPaths
from penstock.shell.terminal.script import SqlText, split_all

if TYPE_CHECKING:
    from penstock.shell.api.dbapi import Connection

DEFAULT_DATA = Path(".demo")
CATCH_UP_S = 120.0
CONFIG = {
    # The feeds are quiet only at their end: without the pause of a busy machine counting as idleness, which windows are
    # closed in the end depends on the rows alone and can be checked exactly.
    "idleTimeout": "1h",
    "viewRefreshInterval": "200ms",
    "heartbeatInterval": "200ms",
}


def run_example(
    arguments: Sequence[str] | None, parser: argparse.ArgumentParser,
    run: Callable[[argparse.Namespace, Console], bool], query: str,
) -> int:
    """Runs an example; returns 0 if `run` says that every stream matches the batch answers, else 1.

    `query` is what to look at in a data directory that was kept.
    """
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA, help=f"data directory (default {DEFAULT_DATA})")
    parser.add_argument("--keep", action="store_true", help="keep the data directory, to look around in it")
    options = parser.parse_args(arguments)
    console = Console(highlight=False)
    try:
        _clear(options.data)
        matches = run(options, console)
    except PenstockError as error:
        console.print(f"[bold red]ERROR: {error}[/]")
        return 1
    except KeyboardInterrupt:
        console.print("Interrupted.")
        return 1
    if options.keep:
        console.print(f'Look around: penstock --data {options.data} -c "{query}"', soft_wrap=True)
    else:
        shutil.rmtree(options.data)
    return 0 if matches else 1


def _clear(path: Path) -> None:
    """Removes what an earlier run left; anything else that lies there is not ours to remove."""
    if not path.exists():
        return
    if not DataPaths(path).format.exists() and any(path.iterdir()):
        raise PenstockError(f"{path} exists and is not a data directory", hint="name another one with --data")
    shutil.rmtree(path)


def replay(
    connection: Connection, script: Path, database: str, batches: Iterable[tuple[str, pa.Table]], rows: int,
    console: Console, clock: Clock,
) -> None:
    """Creates the script's streams, inserts (super table, rows) after (super table, rows), and waits for the streams.

    `rows` is how many there will be, for the progress bar.
    """
    started = clock.monotonic()
    with console.status("Starting the streams; Spark takes a few seconds ...") as status:
        streams = _create_streams(connection, script)
        _wait_until_running(connection, streams, clock)
        status.stop()
    console.print(f"{len(streams)} streams run after {clock.monotonic() - started:.1f} s.")
    with Display(connection, rows, console) as display:
        with connection.cursor() as cursor:
            for table, part in batches:
                cursor.insert_arrow(f"{database}.{table}", part)
                display.inserted(part.num_rows, clock.monotonic())
        display.say(f"{rows:,} rows inserted after {clock.monotonic() - started:.1f} s; the streams finish ...")
        _wait_until_caught_up(connection, database, display, clock)


def check_until_all_match(check: Callable[[], list[Verdict]], clock: Clock, patience_s: float = 15.0) -> list[Verdict]:
    """Checks each stream; looks again for a while, since views show what was written a moment later."""
    deadline = clock.monotonic() + patience_s
    while True:
        verdicts = check()
        if all(verdict.matches for verdict in verdicts) or clock.monotonic() > deadline:
            return verdicts
        clock.wait(threading.Event(), 1 / REFRESHES_PER_SECOND)


def show(verdicts: Iterable[Verdict], console: Console) -> None:
    for verdict in verdicts:
        console.print(f"[{'green' if verdict.matches else 'bold red'}]{verdict}[/]")


def vnode_of_children(connection: Connection, database: str, table: str) -> dict[str, int]:
    """Returns in which vnode each child table of a super table is."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name, vgroup_id FROM information_schema.ins_tables "
            f"WHERE db_name = '{database}' AND stable_name = '{table}'"
        )
        return dict(cursor.fetchall())


def _create_streams(connection: Connection, script: Path) -> set[str]:
    with connection.cursor() as cursor:
        for piece in split_all(script.read_text("utf-8")):
            assert isinstance(piece, SqlText), "the script holds statements only"
            cursor.execute(piece.text)
        cursor.execute("SELECT stream_name FROM information_schema.ins_streams")
        return {name for (name,) in cursor.fetchall()}


def _wait_until_running(connection: Connection, streams: set[str], clock: Clock) -> None:
    deadline = clock.monotonic() + CATCH_UP_S
    while {line.stream for line in read_tasks(connection) if line.state in ("RUNNING", "IDLE")} != streams:
        if clock.monotonic() > deadline:
            raise PenstockError(f"the streams don't run after {CATCH_UP_S:.0f} s", hint="see the log")
        clock.wait(threading.Event(), 1 / REFRESHES_PER_SECOND)


def _wait_until_caught_up(connection: Connection, database: str, display: Display, clock: Clock) -> None:
    """Returns when every source task has read all of its vnode's WAL, results included, and no queue holds anything."""
    deadline = clock.monotonic() + CATCH_UP_S
    while True:
        written = _written_versions(connection, database)
        if _all_quiet(display.show_tasks(clock.monotonic())) and _has_read(connection, written):
            return
        if clock.monotonic() > deadline:
            raise PenstockError(f"the streams have not caught up after {CATCH_UP_S:.0f} s")
        clock.wait(threading.Event(), 1 / REFRESHES_PER_SECOND)


def _all_quiet(lines: list[TaskLine]) -> bool:
    failed = next((line for line in lines if line.state == "FAILED"), None)
    if failed is not None:
        raise PenstockError(f"{failed.stream}: the {failed.level} task has failed: {failed.reason}")
    return bool(lines) and all(line.queue_bytes == 0 and line.state == "IDLE" for line in lines)


def _written_versions(connection: Connection, database: str) -> dict[int, int]:
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT vgroup_id, wal_version FROM information_schema.ins_vgroups WHERE db_name = '{database}'")
        return dict(cursor.fetchall())


def _has_read(connection: Connection, written: dict[int, int]) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT node_id, processed_version FROM information_schema.ins_stream_tasks WHERE level = 'source'"
        )
        return all((version or 0) >= written[vnode] for vnode, version in cursor.fetchall())
