"""The options of `penstock fsck`; apart from the command itself, which is only loaded when it runs."""

from __future__ import annotations

import argparse


def add_fsck_options(parser: argparse.ArgumentParser) -> None:
    """Declares what `fsck_command.run_fsck` reads."""
    parser.add_argument("directory", nargs="?", metavar="DATA", help="data directory (default: that of -d)")
    parser.add_argument("--repair", action="store_true", help="repair what is possible; lists repairs and losses")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--progress", action=argparse.BooleanOptionalAction, help="show a progress bar")
