"""Apache Flink on rows of the same shape, in its embedded cluster; needs a Python of its own that has apache-flink.

The rows come from Flink's own generator, by formulas that DuckDB computes as well: what pip installs brings no source
but CSV and JSON files, whose parsing would cost more than the queries. So Flink reads no log and no strings, which
favours it. Two slots, object reuse, exactly-once checkpoints every 10 s, results as CSV files; the JVM is warmed up by
a small run of the same query. Throughput: from the job's start to its end. Latency: from when the row that lets a
window close left the generator to when the window's row left the window operator (millisecond clocks inside of
Flink); that it is visible anywhere takes a checkpoint more, which is not counted.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import duckdb
import numpy as np
import pyarrow as pa

from bench.answers import batch_answer, check
from bench.figures import percentiles, rates
from bench.isolated import Phase
from bench.processes import cpu_seconds
from bench.queries import WATERMARK_MS, Query
from bench.rows import CAMPAIGNS, FIRST_MS, GROUPS, Shape

StateBackend = Literal["rocksdb", "hashmap"]
QUERIES = ("q1", "q2", "q3", "q4", "q5", "ysb", "accounts")
_WARM_ROWS = 100_000
_SLOTS = 2
_LOG = "flink.log"
_VOLTAGE, _CURRENT, _PHASE = "210 + n * 7919 % 20", "9.5 + (n * 104729 % 1000) / 1000.0", "n % 97"
_KIND = "n * 7919 % 3"
_ACCOUNT, _AMOUNT = "n * 2654435761 % 4294967296 % {accounts}", "1 + n * 7919 % 997"
_TUMBLING = {"q1": "10", "q2": "1", "ysb": "10", "accounts": "10", "accounts_minute": "60"}


def catch_up(
    folder: Path, phase: Phase, query: Query, shape: Shape, *, store: StateBackend = "rocksdb", python: Path
) -> dict[str, Any]:
    """Returns the throughput of one query. Raises WrongAnswerError."""
    with flink_program(folder, python) as flink:
        version = hear(flink, folder)["version"]
        _start(flink, folder, "warm", query, Shape(shape.tables, _WARM_ROWS), store)
        hear_all(flink, folder, "begin", "end")
        _start(flink, folder, "out", query, shape, store)
        hear_all(flink, folder, "begin")
        phase.begin()
        started, cpu_before = time.monotonic_ns(), cpu_seconds(flink.pid)
        hear_all(flink, folder, "end")
        seconds, cpu = (time.monotonic_ns() - started) / 1e9, cpu_seconds(flink.pid) - cpu_before
        phase.end()
    found, rows = _checked(folder, query, shape)
    return {"measure": "throughput", "engine": f"flink-{store}", "version": version, "query": query.name,
            "trigger": "WINDOW_CLOSE", "tables": shape.tables, **rates(rows, seconds, cpu),
            "result_rows": found.num_rows, "answer": "equal"}


def live(
    folder: Path, phase: Phase, query: Query, shape: Shape, rows_per_second: int, *, store: StateBackend = "hashmap",
    python: Path, warm_seconds: float = 3.0,
) -> dict[str, Any]:
    """Returns the latency of closed windows at a fixed rate of rows. Raises WrongAnswerError."""
    with flink_program(folder, python) as flink:
        version = hear(flink, folder)["version"]
        _start(flink, folder, "out", query, shape, store, rows_per_second)
        hear_all(flink, folder, "begin")
        phase.begin()
        cpu_before = cpu_seconds(flink.pid)
        hear_all(flink, folder, "end")
        cpu = cpu_seconds(flink.pid) - cpu_before
        phase.end()
    _checked(folder, query, shape)
    values = _latencies(folder, query, shape, warm_seconds * rows_per_second)
    return {"measure": "latency", "engine": f"flink-{store}", "version": version, "query": query.name,
            "trigger": "WINDOW_CLOSE", "rows_per_second": rows_per_second, "tables": shape.tables,
            "rows": shape.rows, "cpu_seconds": round(cpu, 3), "rows_per_cpu_second": round(shape.rows / cpu),
            "latency_ms": percentiles(values), "samples": len(values), "answer": "equal"}


# --- the program with Flink --------------------------------------------------------------------------------------


def flink_program(folder: Path, python: Path) -> subprocess.Popen[str]:
    with (folder / _LOG).open("w", encoding="utf-8") as log:
        return subprocess.Popen([str(python), "-I", str(Path(__file__).with_name("flink_job.py"))],
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)


def hear(flink: subprocess.Popen[str], folder: Path) -> Any:
    assert flink.stdout is not None
    for line in flink.stdout:
        if line.startswith(("{", '"')):
            return json.loads(line)
    raise RuntimeError(f"Flink's program has ended:\n{(folder / _LOG).read_text()[-4000:]}")


def hear_all(flink: subprocess.Popen[str], folder: Path, *wanted: str) -> None:
    for each in wanted:
        heard = hear(flink, folder)
        if heard != each:
            raise RuntimeError(f"Flink's program said {heard!r} instead of {each!r}")


def _start(
    flink: subprocess.Popen[str], folder: Path, target: str, query: Query, shape: Shape, store: StateBackend,
    rows_per_second: int | None = None,
) -> None:
    settings = {
        "parallelism.default": str(_SLOTS), "state.backend.type": store, "pipeline.object-reuse": "true",
        "table.local-time-zone": "UTC", "execution.checkpointing.interval": "10 s",
        "execution.checkpointing.dir": (folder / "checkpoints").as_uri(),
        "pipeline.auto-watermark-interval": "200 ms" if rows_per_second is None else "10 ms",
    }
    tables = [_source(shape, rows_per_second), _target(query, folder / target)]
    inserts = [f"INSERT INTO target {_select(query, shape)}"]
    if rows_per_second is not None:
        tables.append("CREATE TABLE arrivals (n BIGINT, at_ms TIMESTAMP_LTZ(3)) WITH ('connector' = 'filesystem', "
                      f"'path' = '{folder / 'arrivals'}', 'format' = 'csv')")
        inserts.append(f"INSERT INTO arrivals SELECT n, CURRENT_TIMESTAMP FROM source "
                       f"WHERE n % {shape.tables} < {_SLOTS}")
    assert flink.stdin is not None
    flink.stdin.write(json.dumps({"settings": settings, "tables": tables, "inserts": inserts}) + "\n")
    flink.stdin.flush()


# --- the queries -------------------------------------------------------------------------------------------------


def _source(shape: Shape, rows_per_second: int | None) -> str:
    limit = rows_per_second or 1_000_000_000
    return (
        f"CREATE TABLE source (n BIGINT, tn AS n % {shape.tables}, "
        f"ts AS TO_TIMESTAMP_LTZ({FIRST_MS} + n / {shape.tables} * {shape.period_ms}, 3), "
        f"`current` AS CAST({_CURRENT} AS FLOAT), voltage AS CAST({_VOLTAGE} AS INT), "
        f"phase AS CAST({_PHASE} AS FLOAT), "
        f"account AS CAST({_ACCOUNT.format(accounts=shape.accounts)} AS INT), amount AS CAST({_AMOUNT} AS INT), "
        f"WATERMARK FOR ts AS ts - INTERVAL '{WATERMARK_MS // 1000}' SECOND) WITH ('connector' = 'datagen', "
        f"'fields.n.kind' = 'sequence', 'fields.n.start' = '0', 'fields.n.end' = '{shape.rows - 1}', "
        f"'rows-per-second' = '{limit}')")


def _target(query: Query, path: Path) -> str:
    kinds = {"a": "DOUBLE", "l": "FLOAT", "h": "FLOAT", "p": "DOUBLE", "phase": "FLOAT"}
    values = ", ".join(f"{name} {kinds.get(name, 'BIGINT')}" for name in query.values)
    return (f"CREATE TABLE target ({query.keys[0]} BIGINT, ts TIMESTAMP(3), {values}, at_ms TIMESTAMP_LTZ(3)) "
            f"WITH ('connector' = 'filesystem', 'path' = '{path}', 'format' = 'csv')")


def _select(query: Query, shape: Shape) -> str:
    aggregates = {
        "a": "avg(CAST(`current` AS DOUBLE))", "m": "CAST(max(voltage) AS BIGINT)", "c": "count(*)",
        "l": "min(`current`)", "h": "max(`current`)",
        "s": f"sum(CAST({'amount' if query.source == 'accounts' else 'voltage'} AS BIGINT))",
    }
    values = ", ".join(aggregates[name] for name in query.values if name in aggregates)
    key = {"g": f"tn % {CAMPAIGNS if query.source == 'ads' else GROUPS}", "k": "account"}.get(query.keys[0], "tn")
    rows = f"(SELECT {key} AS k, * FROM source WHERE {_filter(query, f'n / {shape.tables}', 'tn')})"
    if query.name == "q5":
        return (f"SELECT k, CAST(ts AS TIMESTAMP(3)), CAST(`current` AS DOUBLE) * voltage, phase, CURRENT_TIMESTAMP "
                f"FROM {rows}")
    if query.name in _TUMBLING:
        width = _TUMBLING[query.name]
        window = f"TUMBLE(DATA => TABLE chosen, TIMECOL => DESCRIPTOR(ts), SIZE => INTERVAL '{width}' SECOND)"
    elif query.name == "q3":
        window = ("HOP(DATA => TABLE chosen, TIMECOL => DESCRIPTOR(ts), SLIDE => INTERVAL '10' SECOND, "
                  "SIZE => INTERVAL '60' SECOND)")
    else:
        window = "SESSION(DATA => TABLE chosen PARTITION BY k, TIMECOL => DESCRIPTOR(ts), GAP => INTERVAL '5' SECOND)"
    return (f"WITH chosen AS {rows} SELECT k, window_start, {values}, CURRENT_TIMESTAMP FROM TABLE({window}) "
            "GROUP BY k, window_start, window_end")


def _filter(query: Query, period: str, table: str) -> str:
    """Returns which of the generated rows there are, as SQL of both engines."""
    if query.pauses:
        return f"{period} % 64 < 64 - CASE WHEN {table} % 2 = 0 THEN 0 ELSE 6 + {table} % 15 END"
    return {"q5": "voltage >= 220", "ysb": f"{_KIND} = 0"}.get(query.name, "1 = 1")


# --- answers -----------------------------------------------------------------------------------------------------


def _checked(folder: Path, query: Query, shape: Shape) -> tuple[pa.Table, int]:
    """Returns the results and how many rows went in, if the results are those of the batch query."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(
            f"CREATE TEMP TABLE source AS SELECT * FROM (SELECT n, n % {shape.tables} tbname, "
            f"(n % {shape.tables} % {CAMPAIGNS if query.source == 'ads' else GROUPS})::BIGINT tag, "
            f"{_time(shape)} ts, ({_CURRENT})::FLOAT AS current, ({_VOLTAGE})::INT voltage, "
            f"({_PHASE})::FLOAT phase, ({_ACCOUNT.format(accounts=shape.accounts)})::INT account, "
            f"({_AMOUNT})::INT amount, CASE WHEN {_KIND} = 0 THEN 'view' ELSE 'click' END event_type "
            f"FROM (SELECT range n FROM range({shape.rows}))) WHERE {_filter(query, f'n // {shape.tables}', 'tbname')}")
        (rows,) = connection.execute("SELECT count(*) FROM source").fetchall()[0]
        found = _read(connection, folder / "out", query)
        # A source that ends closes all windows.
        check(query, found, batch_answer(connection, query, shape, "AT_ONCE"))
        return found, shape.rows if query.name in ("q5", "ysb") else rows


def _time(shape: Shape) -> str:
    """Returns when row `n` is, in DuckDB's SQL."""
    return f"{FIRST_MS} + n // {shape.tables} * {shape.period_ms}"


def _read(connection: duckdb.DuckDBPyConnection, path: Path, query: Query) -> pa.Table:
    names: Sequence[str] = (*query.keys, *query.values, "at_ms")
    listed = ", ".join(f"'{name}'" for name in names)
    return connection.sql(
        f"SELECT * REPLACE (epoch_ms(ts::TIMESTAMP) AS ts, epoch_ms(at_ms::TIMESTAMP) AS at_ms) "
        f"FROM read_csv('{path}/part-*', header = false, names = [{listed}])").to_arrow_table()


def _latencies(folder: Path, query: Query, shape: Shape, warm_rows: float) -> Any:
    """Returns ms from the later of both slots' first rows beyond window end and watermark to the window's row."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        results = _read(connection, folder / "out", query)
        connection.register("results", results)
        found = connection.sql(
            f"WITH arrivals AS (SELECT {_time(shape)} ts, max(epoch_ms(at_ms::TIMESTAMP)) ms "
            f"FROM read_csv('{folder}/arrivals/part-*', header = false, names = ['n', 'at_ms']) "
            f"WHERE n >= {warm_rows} GROUP BY ALL) SELECT results.at_ms - arrivals.ms ms FROM results "
            f"JOIN arrivals ON arrivals.ts = results.ts + {query.width_ms + WATERMARK_MS}").fetchnumpy()
    return np.asarray(found["ms"], np.float64)
