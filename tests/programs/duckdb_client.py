"""DuckDB as other tools bundle it: answers queries of a file's views, which come as lines of JSON.

"version" asks for its own.
"""

from __future__ import annotations

import json
import sys

import duckdb


def main(file: str) -> None:
    connection = duckdb.connect()
    connection.execute(f"ATTACH '{file}' AS penstock (READ_ONLY)")
    for line in sys.stdin:
        query = json.loads(line)
        rows = [duckdb.__version__] if query == "version" else connection.execute(query).fetchall()
        print(json.dumps(rows, default=str), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
