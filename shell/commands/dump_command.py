"""`penstock dump`: schema, rows, functions and streams of a data directory, as files; an engine may have it open."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from time import perf_counter

from penstock.common.clock import SystemClock
from penstock.common.config import Config
from penstock.common.fs import OsFs
from penstock.common.paths import DataPaths
from penstock.mnode.admin.dump import Dump, DumpOptions
from penstock.mnode.coordinator.task_settings import functions_directory
from penstock.shell.terminal.row_bar import counting_bar


def run_dump(arguments: argparse.Namespace, config: Config) -> int:
    """Dumps what the command line names and prints what it was. Raises PenstockErrors."""
    root, target = Path(arguments.data).expanduser().resolve(), Path(arguments.directory).expanduser()
    options = DumpOptions(tuple(arguments.databases), arguments.since, arguments.until, config.timezone)
    start = perf_counter()
    with counting_bar(arguments.progress, None, "rows") as advanced:
        manifest = Dump(root, target, functions_directory(config, DataPaths(root)), options, OsFs(), SystemClock(),
                        advanced).run()
    seconds = perf_counter() - start
    tables = sum(len(database.tables) for database in manifest.databases)
    size = sum(file.size for file in manifest.files())
    lines = [f"{manifest.row_count:,} rows of {tables:,} tables in {len(manifest.databases):,} databases, "
             f"{len(manifest.streams):,} streams into {target} ({size / 1e6:,.1f} MB, {seconds:.1f}s)"]
    lines += [f"left out: {name} reads or writes a database that isn't dumped" for name in manifest.left_out]
    if manifest.users:
        lines.append("users are listed without their passwords: they aren't restored")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0
