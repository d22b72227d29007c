"""The command `penstock`, run in this process: one of its own would take a second or two to load what is here."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
from unittest.mock import patch

from penstock.shell.main import main


def run_here(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a command line with `stdin` as its standard input, and without settings of the environment.

    Not for commands that catch signals, and not to see how the process itself begins and ends.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    with (patch.dict(os.environ, environment, clear=True), patch("sys.stdin", io.StringIO(stdin)),
          contextlib.redirect_stdout(io.StringIO()) as output, contextlib.redirect_stderr(io.StringIO()) as errors):
        try:
            code = main(words)
        except SystemExit as left:  # argparse does
            code = left.code if isinstance(left.code, int) else 1
    return subprocess.CompletedProcess(["penstock", *words], code, output.getvalue(), errors.getvalue())
