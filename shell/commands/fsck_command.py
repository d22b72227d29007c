"""`penstock fsck`: checks a data directory that no engine has open, and mends it on request.

Exit codes: 0 healthy (or made healthy by --repair), 1 damaged.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from penstock.common.clock import SystemClock
from penstock.common.fs import OsFs
from penstock.mnode.admin.fsck import Advanced, Fsck, Report


def run_fsck(arguments: argparse.Namespace) -> int:
    """Checks, prints what was found and done, and returns the exit code. Raises DataDirectoryInUseError."""
    root = Path(arguments.directory or arguments.data)
    shown = sys.stderr.isatty() if arguments.progress is None else arguments.progress
    with _progress(root, shown) as advanced:
        report = Fsck(root, OsFs(), SystemClock(), advanced, repair=arguments.repair).run()
    if arguments.repair and report.repairs:
        after = Fsck(root, OsFs(), SystemClock(), lambda what, size: None, repair=False).run()
        healthy = after.healthy
    else:
        healthy = report.healthy
    sys.stdout.write(_as_json(report, healthy=healthy) if arguments.json else
                     _as_text(report, healthy=healthy, repaired=arguments.repair))
    return 0 if healthy else 1


def _as_json(report: Report, *, healthy: bool) -> str:
    damages = [asdict(damage) | {"path": str(damage.path)} for damage in report.damages]
    repairs = [asdict(repair) | {"path": str(repair.path)} for repair in report.repairs]
    return json.dumps({
        "healthy": healthy, "damages": damages, "repairs": repairs, "records": report.records, "parts": report.parts,
        "checkpoints": report.checkpoints, "catalog_entries": report.catalog_entries}, indent=1) + "\n"


def _as_text(report: Report, *, healthy: bool, repaired: bool) -> str:
    lines = [f"read: {report.records:,} log records, {report.parts:,} parts, {report.checkpoints:,} checkpoints, "
             f"{report.catalog_entries:,} catalog entries"]
    for damage in report.damages:
        where = f", offset {damage.offset}" if damage.offset is not None else ""
        lines += [f"DAMAGED {damage.path}{where}", f"  found:  {damage.what}", f"  means:  {damage.meaning}",
                  f"  advice: {damage.advice}"]
    for repair in report.repairs:
        lines += [f"REPAIRED {repair.path}", f"  done: {repair.done}", f"  lost: {repair.lost or 'nothing'}"]
    if healthy:
        lines.append("healthy" if not report.repairs else "healthy again")
    else:
        lines.append("damaged: see above" if repaired else "damaged: --repair mends what can be mended; make a copy of "
                     "the directory first")
    return "\n".join(lines) + "\n"


@contextmanager
def _progress(root: Path, shown: bool) -> Iterator[Advanced]:
    if not shown:
        yield lambda what, size: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    total = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=total)
        yield lambda what, size: bar.update(task, description=what, advance=size)
