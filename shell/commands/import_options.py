"""The options of `penstock import`; apart from it, so that other commands start without its libraries."""

from __future__ import annotations

import argparse

FORMATS = ("csv", "parquet", "line", "arrow")


def add_import_options(parser: argparse.ArgumentParser) -> None:
    """Declares what `penstock.shell.commands.import_command` reads."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="files to read; .gz, .zst, .bz2 and .lz4 are unpacked")
    parser.add_argument("--into", required=True, metavar="DB.TABLE",
                        help="super table, child table or normal table; for line protocol the database")
    parser.add_argument("--format", choices=FORMATS, help="what the files are (default: by their endings)")
    parser.add_argument("--header", action="store_true",
                        help="the first line of CSV files is a header (default: if it names columns)")
    parser.add_argument("--columns", metavar="A,B,...",
                        help="what the columns of CSV files without header are (default: the table's, in order)")
    parser.add_argument("--quote", metavar="CHARACTER",
                        help="quotes of CSV files: ' for TDengine's, \" for RFC 4180's (default: found by looking)")
    parser.add_argument("--precision", default="ns", choices=("h", "m", "s", "ms", "us", "ns"),
                        help="unit of line protocol's timestamps (default ns)")
    parser.add_argument("--progress", action=argparse.BooleanOptionalAction, default=None,
                        help="show a progress bar (default: where there is a terminal)")
