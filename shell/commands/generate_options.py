"""The options of `penstock generate`, as taosBenchmark has them; apart from it, for other commands to start at once."""

from __future__ import annotations

import argparse


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
    parser.add_argument("--progress", action=argparse.BooleanOptionalAction, default=None,
                        help="show a progress bar (default: where there is a terminal)")
