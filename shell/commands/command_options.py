"""Options of the commands, apart from these: each starts without the libraries of the others."""

from __future__ import annotations

import argparse

IMPORT_FORMATS = ("csv", "parquet", "line", "arrow")


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


def _renaming(text: str) -> tuple[str, str]:
    old, colon, new = text.partition(":")
    if not (old and colon and new):
        raise argparse.ArgumentTypeError(f"{text!r} is not OLD:NEW")
    return old, new


def add_fsck_options(parser: argparse.ArgumentParser) -> None:
    """Declares what `fsck_command.run_fsck` reads."""
    parser.add_argument("directory", nargs="?", metavar="DATA", help="data directory (default: that of -d)")
    parser.add_argument("--repair", action="store_true", help="repair what is possible; lists repairs and losses")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    _add_progress(parser)


def add_generate_options(parser: argparse.ArgumentParser) -> None:
    """Declares what `generate_plan.plan_of` and `generate_command.run_generate` read."""
    parser.add_argument("-f", "--file", metavar="FILE", help="JSON file of taosBenchmark, instead of these options")
    parser.add_argument("-d", "--database", metavar="DB", default="test", help="database (test)")
    parser.add_argument("-t", "--tables", metavar="N", type=int, default=10_000, help="child tables (10000)")
    parser.add_argument("-n", "--records", metavar="N", type=int, default=10_000, help="rows per child table (10000)")
    parser.add_argument("-b", "--data-type", metavar="TYPES", help="types of the columns (FLOAT,INT,FLOAT)")
    parser.add_argument("-l", "--columns", metavar="N", type=int, help="number of columns; those beyond -b are INT")
    parser.add_argument("-A", "--tag-type", metavar="TYPES", help="types of the tags (INT,BINARY(24))")
    parser.add_argument("-w", "--binwidth", metavar="N", type=int, default=64, help="length of BINARY and NCHAR (64)")
    parser.add_argument("-m", "--table-prefix", metavar="TEXT", default="d",
                        help="prefix of the names of child tables (d)")
    parser.add_argument("-s", "--start-timestamp", metavar="TIME", default="1500000000000",
                        help="first timestamp: milliseconds, text, or now (1500000000000)")
    parser.add_argument("-S", "--timestampstep", metavar="MS", type=int, default=1, help="time between two rows (1)")
    parser.add_argument("-O", "--disorder", metavar="PERCENT", type=int, default=0, help="rows out of order, 0 to 50")
    parser.add_argument("-R", "--disorder-range", metavar="MS", type=int, default=1000,
                        help="maximum delay of these rows (1000)")
    parser.add_argument("-T", "--thread", metavar="N", type=int, default=8, help="number of threads (8)")
    parser.add_argument("-r", "--rec-per-req", metavar="N", type=int, default=30_000,
                        help="rows per call (30000)")
    parser.add_argument("-B", "--interlace-rows", metavar="N", type=int, default=0,
                        help="rows of a child table before those of the next one; 0: all")
    parser.add_argument("-i", "--insert-interval", metavar="MS", type=int, default=0,
                        help="pause after each round of -B")
    parser.add_argument("-F", "--prepare-rand", metavar="N", type=int, default=10_000,
                        help="number of different values of a column (10000)")
    parser.add_argument("-v", "--vgroups", metavar="N", type=int, help="VGROUPS of the database")
    parser.add_argument("-y", "--answer-yes", action="store_true", help="drop an existing database without asking")
    parser.add_argument("--seed", metavar="N", type=int, default=0, help="seed of the random values (0)")
    _add_progress(parser)


def add_import_options(parser: argparse.ArgumentParser) -> None:
    """Declares what `penstock.shell.commands.import_command` reads."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="files to read; may be .gz, .zst, .bz2 or .lz4")
    parser.add_argument("--into", required=True, metavar="DB.TABLE",
                        help="target table; for line protocol the database")
    parser.add_argument("--format", choices=IMPORT_FORMATS, help="format of the files (default: by their names)")
    parser.add_argument("--header", action="store_true",
                        help="the first line of CSV files is a header (default: if it names columns)")
    parser.add_argument("--columns", metavar="A,B,...",
                        help="columns of CSV files without header (default: those of the table)")
    parser.add_argument("--quote", metavar="CHARACTER",
                        help="quote character of CSV files: ' as in TDengine, \" as in RFC 4180 (default: detected)")
    parser.add_argument("--precision", default="ns", choices=("h", "m", "s", "ms", "us", "ns"),
                        help="unit of timestamps in line protocol (default ns)")
    _add_progress(parser)


def add_migrate_options(parser: argparse.ArgumentParser) -> None:
    """Declares what `migrate_command.run_migrate` reads."""
    parser.add_argument("file", nargs="?", metavar="FILE", default="-",
                        help="file with statements, separated by semicolons (default: -, standard input)")
    parser.add_argument("--to", choices=("new", "old"), dest="form",
                        help="form to print (default: the other one of each statement)")
    parser.add_argument("-c", "--sql", metavar="SQL", help="read these statements instead of a file")


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    """Declares what `serve_command.run_serve` reads."""
    parser.add_argument("--pid-file", metavar="FILE", help="write the process id into this file while the server runs")


def add_verify_options(parser: argparse.ArgumentParser) -> None:
    """Declares what `verify_command.run_verify` reads."""
    parser.add_argument("--stream", metavar="NAME", action="append", default=[], dest="streams",
                        help="verify this stream; may be repeated (default: all)")
    parser.add_argument("--from", metavar="TIME", dest="first", help="only results with this timestamp or a later one")
    parser.add_argument("--to", metavar="TIME", dest="last", help="only results with this timestamp or an earlier one")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    _add_progress(parser)


def _add_progress(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--progress", action=argparse.BooleanOptionalAction, default=None,
                        help="show a progress bar (default: where there is a terminal)")
