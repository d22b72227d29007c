"""The options of `penstock dump` and `penstock restore`; apart from both, so that other commands start at once."""

from __future__ import annotations

import argparse


def add_dump_options(parser: argparse.ArgumentParser) -> None:
    """Declares what `dump_command.run_dump` reads."""
    parser.add_argument("directory", metavar="DIR", help="directory to write the dump to: new or empty")
    parser.add_argument("--database", metavar="DB", action="append", default=[], dest="databases",
                        help="dump this database; may be repeated (default: all)")
    parser.add_argument("--since", metavar="TIME", help="only rows with this timestamp or a later one")
    parser.add_argument("--until", metavar="TIME", help="only rows with an earlier timestamp")
    _add_progress(parser)


def add_restore_options(parser: argparse.ArgumentParser) -> None:
    """Declares what `restore_command.run_restore` reads."""
    parser.add_argument("directory", metavar="DIR", help="directory of the dump")
    parser.add_argument("--rename", metavar="OLD:NEW", action="append", default=[], type=_renaming, dest="renames",
                        help="restore a database under another name; may be repeated")
    parser.add_argument("--dry-run", action="store_true", help="check the dump and list what would be restored")
    parser.add_argument("--resume", action="store_true", help="continue an interrupted restore of this dump")
    parser.add_argument("--no-streams", action="store_true", help="restore neither streams nor functions")
    _add_progress(parser)


def _add_progress(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--progress", action=argparse.BooleanOptionalAction, default=None,
                        help="show a progress bar (default: where there is a terminal)")


def _renaming(text: str) -> tuple[str, str]:
    old, colon, new = text.partition(":")
    if not (old and colon and new):
        raise argparse.ArgumentTypeError(f"{text!r} is not OLD:NEW")
    return old, new
