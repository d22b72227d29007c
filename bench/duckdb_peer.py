"""The limit: DuckDB computes the batch answer once over Parquet files, with two threads. No stream is incremental."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import duckdb

from bench.figures import rates
from bench.isolated import Phase
from bench.peer_files import write_files
from bench.processes import cpu_seconds
from bench.queries import Query
from bench.rows import Shape

_THREADS = 2


def one_shot(folder: Path, phase: Phase, query: Query, shape: Shape, *, files: int = 8) -> dict[str, Any]:
    """Returns the throughput of the batch query, its answer fetched as Arrow."""
    rows = write_files(folder / "in", shape, -(-shape.rows // files))
    connection = duckdb.connect(config={"threads": _THREADS})
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(f"CREATE VIEW source AS SELECT * REPLACE (epoch_ms(ts) AS ts) FROM '{folder}/in/*.parquet'")
    phase.begin()
    started, cpu_before = time.monotonic_ns(), cpu_seconds()
    answer = connection.sql(query.batch).to_arrow_table()
    seconds, cpu = (time.monotonic_ns() - started) / 1e9, cpu_seconds() - cpu_before
    phase.end()
    return {"measure": "throughput", "engine": "duckdb-batch", "version": duckdb.__version__, "query": query.name,
            "trigger": "batch", "tables": shape.tables, **rates(rows, seconds, cpu), "result_rows": answer.num_rows}
