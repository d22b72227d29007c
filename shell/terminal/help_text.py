"""The shell's own commands: how many arguments each takes, and the text of `.help`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Usage:
    """A command's form, what it does, and how many arguments it takes."""

    usage: str
    meaning: str
    fewest: int = 0
    most: int = 0


COMMANDS: dict[str, Usage] = {
    "help": Usage(".help", "this list; also help, ? and \\?"),
    "databases": Usage(".databases", "all databases; also \\l"),
    "tables": Usage(".tables [PATTERN]", "super tables, normal tables, views of the database in use; also \\d", 0, 1),
    "schema": Usage(".schema [TABLE]", "the CREATE statements of one or all tables and views", 0, 1),
    "streams": Usage(".streams", "all streams with state and verdict"),
    "tasks": Usage(".tasks [STREAM]", "tasks with state, queue, rate and watermark", 0, 1),
    "top": Usage(".top [SECONDS]", "streams and tasks live, with keys to pause and resume", 0, 1),
    "mode": Usage(".mode [MODE]", "format of results: box, csv, json, jsonlines, line, markdown", 0, 1),
    "width": Usage(".width N", "maximum width of texts in tables; also SET MAX_BINARY_DISPLAY_WIDTH N", 1, 1),
    "output": Usage(".output [FILE]", "write results to a file, or to the screen", 0, 1),
    "read": Usage(".read FILE", "run the statements of a file; also source FILE and \\i FILE", 1, 1),
    "timer": Usage(".timer on|off", "show the time that each statement took", 1, 1),
    "echo": Usage(".echo on|off", "print statements before they run", 1, 1),
    "bail": Usage(".bail on|off", "stop a script at its first error", 1, 1),
    "clear": Usage(".clear", "clear the screen; also clear"),
    "quit": Usage(".quit", "exit; also q, quit, exit, \\q, Ctrl+D"),
}


def _help() -> str:
    width = max(len(usage.usage) for usage in COMMANDS.values())
    lines = [f"{usage.usage:<{width}}  {usage.meaning}" for usage in COMMANDS.values()]
    return "\n".join([
        "Statements end with ; or with \\G, which shows each row vertically.",
        "\\d TABLE describes a table, \\c DATABASE uses a database.",
        "SELECT ... >> 'file.csv'; writes the result to a file. Ctrl+C cancels the input or the statement.",
        "",
        *lines,
        "",
    ])


HELP = _help()
