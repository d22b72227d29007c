"""The options of `penstock verify`; apart from the command itself, which is only loaded when it runs."""

from __future__ import annotations

import argparse


def add_verify_options(parser: argparse.ArgumentParser) -> None:
    """Declares what `verify_command.run_verify` reads."""
    parser.add_argument("--stream", metavar="NAME", action="append", default=[], dest="streams",
                        help="verify this stream; may be repeated (default: all)")
    parser.add_argument("--from", metavar="TIME", dest="first", help="only results with this timestamp or a later one")
    parser.add_argument("--to", metavar="TIME", dest="last", help="only results with this timestamp or an earlier one")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--progress", action=argparse.BooleanOptionalAction, default=None,
                        help="show a progress bar (default: where there is a terminal)")
