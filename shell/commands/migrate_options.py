"""The options of `penstock migrate-stream`; apart from the command itself, which is only loaded when it runs."""

from __future__ import annotations

import argparse


def add_migrate_options(parser: argparse.ArgumentParser) -> None:
    """Declares what `migrate_command.run_migrate` reads."""
    parser.add_argument("file", nargs="?", metavar="FILE", default="-",
                        help="file with statements, separated by semicolons (default: -, standard input)")
    parser.add_argument("--to", choices=("new", "old"), dest="form",
                        help="form to print (default: the other one of each statement)")
    parser.add_argument("-c", "--sql", metavar="SQL", help="read these statements instead of a file")
