"""The options of `penstock serve`; apart from the command itself, which is only loaded when it runs."""

from __future__ import annotations

import argparse


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    """Declares what `serve_command.run_serve` reads."""
    parser.add_argument("--pid-file", metavar="FILE", help="write the process id into this file while the server runs")
