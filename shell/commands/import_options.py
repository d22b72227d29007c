"""The options of `penstock import`; apart from it, so that other commands start without its libraries."""

from __future__ import annotations

import argparse

FORMATS = ("csv", "parquet", "line", "arrow")


def add_import_options(parser: argparse.ArgumentParser) -> None:
    """Declares what `penstock.shell.commands.import_command` reads."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="files to read; may be .gz, .zst, .bz2 or .lz4")
    parser.add_argument("--into", required=True, metavar="DB.TABLE",
                        help="target table; for line protocol the database")
    parser.add_argument("--format", choices=FORMATS, help="format of the files (default: by their names)")
    parser.add_argument("--header", action="store_true",
                        help="the first line of CSV files is a header (default: if it names columns)")
    parser.add_argument("--columns", metavar="A,B,...",
                        help="columns of CSV files without header (default: those of the table)")
    parser.add_argument("--quote", metavar="CHARACTER",
                        help="quote character of CSV files: ' as in TDengine, \" as in RFC 4180 (default: detected)")
    parser.add_argument("--precision", default="ns", choices=("h", "m", "s", "ms", "us", "ns"),
                        help="unit of timestamps in line protocol (default ns)")
    parser.add_argument("--progress", action=argparse.BooleanOptionalAction, default=None,
                        help="show a progress bar (default: where there is a terminal)")
