"""The process that test_golden_streams.py kills: an engine that executes statements.

Each line of stdin is a statement as JSON text, each line of stdout its answer: `{"rows": [[text, ...], ...]}` or
`{"error": text}`. The line `exit` closes the engine. Prints `ready` first.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import Any

import pyarrow as pa

import penstock
from penstock.shell.api.dbapi import Error


def texts(table: pa.Table) -> list[list[str]]:
    """Returns rows as text: floats with 12 digits, so that the order of additions doesn't show; times in UTC."""
    columns = [[_text(cell) for cell in column.to_pylist()] for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def _text(cell: Any) -> str:
    match cell:
        case None:
            return "NULL"
        case bool():
            return str(cell).lower()
        case float():
            return format(cell, ".12g")
        case datetime():
            return f"{cell.isoformat()}Z"
        case _:
            return str(cell)


def main() -> None:
    """Executes the statements of stdin on the data directory `argv[1]` with the configuration `argv[2]` (JSON)."""
    with penstock.connect(sys.argv[1], json.loads(sys.argv[2])) as connection:
        cursor = connection.cursor()
        _say("ready")
        for line in sys.stdin:
            if line.strip() == "exit":
                break
            try:
                cursor.execute(json.loads(line))
                answer: dict[str, Any] = {"rows": texts(cursor.fetch_arrow()) if cursor.description else []}
            except Error as error:
                answer = {"error": str(error)}
            _say(json.dumps(answer))


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
