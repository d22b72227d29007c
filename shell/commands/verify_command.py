"""`penstock verify`: compares result tables of a data directory with the queries over their sources; no engine runs.

It works on a stand-in of the directory, which isn't changed. Exit codes: 0 all results are equal, 1 some aren't, 2 a
stream, or the directory, can't be verified.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from penstock.common.config import Config, load_config
from penstock.common.errors import NotSupportedError, StorageError
from penstock.common.paths import DataPaths
from penstock.mnode.admin.directory_verification import DirectoryVerification, Finding, resting_engine
from penstock.shell.commands.safe_mode import stand_in
from penstock.shell.terminal.error_text import error_text
from penstock.shell.terminal.result_format import Style, format_table
from penstock.shell.terminal.row_bar import counting_bar
from penstock.sql.cuts import cut_text

_EQUAL, _OTHERS, _REFUSED = 0, 1, 2
_OWN = {"disableStream": "true", "checkpointBackupDir": "", "logDir": "log"}
"""What keeps the engine's parts to the stand-in."""


def run_verify(arguments: argparse.Namespace, config: Config) -> int:
    """Verifies what the command line names, prints what was found, and returns the exit code. Raises PenstockErrors."""
    data = Path(arguments.data).expanduser().resolve()
    paths = DataPaths(data)
    with stand_in(data) as root:
        if not (paths.format.exists() or paths.holds_data() or paths.catalog.is_dir()):
            raise StorageError(f"{data} is no data directory: it has neither a file FORMAT nor data",
                               hint="name one with --data")
        if paths.cluster.exists():
            raise NotSupportedError(f"{data} belongs to a node of a cluster, which can't be verified at rest yet",
                                    hint="VERIFY STREAM does, on the active node")
        with (resting_engine(root, load_config(config, _OWN)) as parts,
              counting_bar(arguments.progress, None, "results") as advanced):
            verification = DirectoryVerification(parts, paths, advanced)
            found = list(verification.verify(arguments.streams, arguments.first, arguments.last))
        write = _as_json if arguments.json else _as_text
        text = write(found, config.timezone, lambda text: text.replace(str(root), str(data)))
    sys.stdout.write(text)
    if any(one.others for one in found):
        return _OTHERS
    return _REFUSED if any(one.error is not None for one in found) else _EQUAL


def _as_text(found: Sequence[Finding], time_zone: str, named: Callable[[str], str]) -> str:
    """Returns what people read. `named` puts the directory in the place of its stand-in."""
    parts = [] if found else ["there are no streams\n"]
    for one in found:
        if one.error is not None:
            parts.append(f"stream {one.stream}\n{named(error_text(one.error))}\n")
        elif one.result is not None and one.checkpoint is not None:
            table = format_table(one.result.table, "box", Style(time_zone))
            parts.append(f"stream {one.stream}, as of checkpoint {one.checkpoint.checkpoint_id}\n{table}")
    return "\n".join(parts)


def _as_json(found: Sequence[Finding], time_zone: str, named: Callable[[str], str]) -> str:
    """Returns the same for programs; of what can't be verified there is nothing but the reason."""
    streams: list[dict[str, Any]] = []
    for one in found:
        if one.error is not None:
            streams.append({"stream": one.stream, "error": named(one.error.message), "hint": one.error.hint})
        elif one.result is not None and one.checkpoint is not None:
            *results, _ = json.loads(format_table(one.result.table, "json", Style(time_zone)))
            streams.append({
                "stream": one.stream, "checkpoint": one.checkpoint.checkpoint_id,
                "cut": cut_text(one.checkpoint.versions), "equal": one.equal, "others": one.others,
                "unjudged": one.unjudged, "results": results})
    return json.dumps({"streams": streams}, indent=1) + "\n"
