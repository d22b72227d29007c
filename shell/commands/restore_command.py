"""`penstock restore`: brings a dump into a data directory that no engine has open. Streams start with the next engine.

Exit codes: 0 everything is restored, 1 something isn't.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from time import perf_counter

from penstock.common.config import Config, load_config
from penstock.common.paths import DataPaths
from penstock.mnode.admin.dump_manifest import DumpManifest
from penstock.mnode.admin.restore import Restore, RestoreReport
from penstock.mnode.catalog.catalog_reader import CatalogReader
from penstock.mnode.catalog.entry_kinds import DATABASE, STREAM
from penstock.shell.api.dbapi import connect
from penstock.shell.terminal.row_bar import counting_bar


def run_restore(arguments: argparse.Namespace, config: Config) -> int:
    """Restores what the command line names, prints what it was, and returns the exit code. Raises PenstockErrors."""
    directory = Path(arguments.directory).expanduser()
    restore = Restore(directory, dict(arguments.renames), resume=arguments.resume)
    manifest = restore.manifest
    with counting_bar(arguments.progress, sum(file.size for file in manifest.files()), "bytes compared") as advanced:
        restore.verify(advanced)
    restore.check(*_taken(Path(arguments.data).expanduser(), streams=not arguments.no_streams))
    if arguments.dry_run:
        sys.stdout.writelines(f"{line}\n" for line in _plan(restore, streams=not arguments.no_streams))
        return 0
    start = perf_counter()
    with (connect(arguments.data, load_config(config, {"disableStream": "true"})) as connection,
          counting_bar(arguments.progress, manifest.row_count, "rows") as advanced):
        report = restore.run(
            connection.lease.engine, connection.session, advanced, streams=not arguments.no_streams)
    sys.stdout.writelines(f"{line}\n" for line in _summary(report, manifest, perf_counter() - start))
    return 1 if report.problems else 0


def _taken(data: Path, *, streams: bool) -> tuple[list[str], list[str]]:
    """Returns the names of databases and streams that are in a data directory, if there is one."""
    paths = DataPaths(data)
    if not paths.format.exists():
        return [], []
    with closing(CatalogReader.of_other_process(paths.catalog)) as catalog:
        return ([database.name for database in catalog.all(DATABASE)],
                [stream.name for stream in catalog.all(STREAM)] if streams else [])


def _plan(restore: Restore, *, streams: bool) -> Iterator[str]:
    manifest = restore.manifest
    yield f"the dump is whole: {manifest.row_count:,} rows, as of version {manifest.penstock}"
    for database in manifest.databases:
        name = restore.new_name(database.name)
        was = "" if name == database.name else f" (was {database.name})"
        yield f"would create database {name}{was}: {len(database.tables):,} tables, {database.row_count:,} rows"
    if streams:
        yield from (f"would create function {function.name}" for function in manifest.functions)
        yield from (f"would create connection {record.connection.name}" for record in manifest.connections)
        yield from (f"would create ingest {ingest.name}" for ingest in manifest.ingests)
        yield from (f"would create stream {stream.name}" for stream in manifest.streams)


def _summary(report: RestoreReport, manifest: DumpManifest, seconds: float) -> Iterator[str]:
    yield (f"{report.rows:,} rows into {len(report.databases):,} databases, {len(report.streams):,} streams "
           f"({seconds:.1f}s, {report.rows / seconds:,.0f} rows/s)")
    if report.expired:
        yield f"left out: {report.expired:,} rows that are older than KEEP allows by now"
    yield from (f"NOT RESTORED {what}: {why}" for what, why in report.problems.items())
    if manifest.users:
        users = ", ".join(f"{user.name} ({user.role})" for user in manifest.users)
        yield f"create these users again, since dumps have no passwords: {users}"
        yield from (f"then: {grant}" for user in manifest.users for grant in user.granted)
