"""Spark Structured Streaming on the same rows: Parquet files in, Parquet files (or collected rows) out.

Two cores, as many partitions, a checkpoint per micro-batch on the same disk; JVM and code are warmed up by a small run
of the same query first. Throughput: Trigger.AvailableNow over all files, from start to the query's end. Latency: one
file per tick, processed as fast as batches go; a result is visible when its batch has been collected by the driver.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import __version__
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from bench.answers import check, expected
from bench.figures import closed_latencies, closing_rows, percentiles, rates
from bench.isolated import Phase
from bench.latency import with_vnodes
from bench.load import Schedule
from bench.peer_files import start_mover, write_files
from bench.processes import cpu_seconds
from bench.queries import WATERMARK_MS, Query
from bench.rows import Shape, all_rows

StateStore = Literal["rocksdb", "memory"]
QUERIES = ("q1", "q2", "q3", "q4", "q5", "ysb", "accounts")
_PROVIDERS: dict[StateStore, str] = {
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "memory": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
}
_CORES = 2
_WARM_ROWS = 100_000


def catch_up(
    folder: Path, phase: Phase, query: Query, shape: Shape, *, store: StateStore = "rocksdb", files: int = 8
) -> dict[str, Any]:
    """Returns the throughput of one query. Raises WrongAnswerError."""
    spark = session(folder, store)
    warm = query.of(Shape(shape.tables, _WARM_ROWS))
    write_files(folder / "warm", warm, _WARM_ROWS // files)
    _run(spark, query, folder / "warm", folder / "warm-out")
    rows = write_files(folder / "in", shape, -(-shape.rows // files))
    phase.begin()
    started, cpu_before = time.monotonic_ns(), cpu_seconds()
    _run(spark, query, folder / "in", folder / "out")
    seconds, cpu = (time.monotonic_ns() - started) / 1e9, cpu_seconds() - cpu_before
    phase.end()
    spark.stop()
    found = pq.read_table(folder / "out")
    check(query, found, expected(query, shape, "WINDOW_CLOSE", hold_ms=query.peer_hold_ms))
    return {"measure": "throughput", "engine": f"spark-{store}", "version": __version__, "query": query.name,
            "trigger": "WINDOW_CLOSE", "tables": shape.tables, **rates(rows, seconds, cpu),
            "result_rows": found.num_rows, "answer": "equal"}


def live(
    folder: Path, phase: Phase, query: Query, shape: Shape, schedule: Schedule, *, store: StateStore = "rocksdb",
    warm_seconds: float = 5.0,
) -> dict[str, Any]:
    """Returns the latency of closed windows at a fixed rate of rows. Raises WrongAnswerError."""
    spark = session(folder, store)
    write_files(folder / "staged", shape, schedule.rows_per_tick)
    (folder / "in").mkdir()
    batches: list[tuple[int, pa.Table]] = []

    def collect(batch: DataFrame, number: int) -> None:
        rows = batch.toArrow()
        batches.append((time.monotonic_ns(), rows))

    running = (_query(spark, query, folder / "in", folder / "staged").writeStream.foreachBatch(collect)
               .option("checkpointLocation", str(folder / "checkpoint")).start())
    phase.begin()
    cpu_before = cpu_seconds()
    mover = start_mover(folder / "staged", folder / "in", folder / "times", schedule)
    mover.join()
    cpu = cpu_seconds() - cpu_before
    phase.end()
    running.processAllAvailable()
    running.stop()
    spark.stop()
    found = pa.concat_tables([rows for _, rows in batches])
    check(query, found, expected(query, shape, "WINDOW_CLOSE", hold_ms=query.peer_hold_ms))
    visible = pa.concat_tables([
        pa.table({query.keys[0]: rows.column(query.keys[0]),
                  "ts": rows.column("ts").cast(pa.timestamp("ms", "UTC")).cast(pa.int64()),
                  "shown_ns": pa.repeat(pa.scalar(at, pa.int64()), rows.num_rows)}) for at, rows in batches])
    source = with_vnodes(all_rows(shape), np.zeros(shape.tables, np.int64))
    closing = closing_rows(query, source, all_vnodes=True)
    times = np.array(json.loads((folder / "times").read_text()), np.int64)
    figures: dict[str, Any] = {}
    for name, column in (("latency_ms", 1), ("latency_from_schedule_ms", 0)):
        ticks, values = closed_latencies(visible, closing, times[:, column], query, schedule.rows_per_tick)
        values = values[ticks * schedule.tick_ms >= warm_seconds * 1000]
        figures[name] = percentiles(values)
        figures["samples"] = len(values)
    return {"measure": "latency", "engine": f"spark-{store}", "version": __version__, "query": query.name,
            "trigger": "WINDOW_CLOSE", "rows_per_second": schedule.rows_per_second, "tables": shape.tables,
            "rows": shape.rows, "cpu_seconds": round(cpu, 3), "rows_per_cpu_second": round(shape.rows / cpu),
            **figures, "answer": "equal"}


def session(folder: Path, store: StateStore) -> SparkSession:
    spark = (
        SparkSession.builder.master(f"local[{_CORES}]").appName("bench")
        .config("spark.sql.shuffle.partitions", str(_CORES))
        .config("spark.sql.streaming.stateStore.providerClass", _PROVIDERS[store])
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.log.level", "ERROR")
        .getOrCreate())
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _run(spark: SparkSession, query: Query, source: Path, target: Path) -> None:
    """Processes all files and returns when everything is committed."""
    running = (_query(spark, query, source, source).writeStream.format("parquet").outputMode("append")
               .option("path", str(target)).option("checkpointLocation", f"{target}-checkpoint")
               .trigger(availableNow=True).start())
    running.awaitTermination()


def _query(spark: SparkSession, query: Query, source: Path, example: Path) -> DataFrame:
    """Returns the query over the files of `source`, whose schema is that of the files of `example`."""
    schema = spark.read.parquet(str(example)).schema
    rows = spark.readStream.schema(schema).parquet(str(source)).withWatermark("ts", f"{WATERMARK_MS} milliseconds")
    table, tag = rows.tbname.alias("tn"), rows.tag.alias("g")
    start = f.col("window.start").alias("ts")

    def windows(keys: list[Column], window: Column, *values: Column) -> DataFrame:
        key = query.keys[0]
        names = list(query.values)
        grouped = rows_of.groupBy(*keys, window.alias("window")).agg(
            *(value.alias(name) for value, name in zip(values, names, strict=True)))
        return grouped.select(f.col(key), start, *names)

    rows_of = rows
    count = f.count(f.lit(1))
    match query.name:
        case "q1":
            return windows([table], f.window("ts", "10 seconds"), f.avg("current"), f.max("voltage"), count)
        case "q2":
            return windows([tag], f.window("ts", "1 second"), f.avg("current"), f.min("current"), f.max("current"),
                           f.sum("voltage"), count)
        case "q3":
            return windows([table], f.window("ts", "60 seconds", "10 seconds"), f.avg("current"))
        case "q4":
            return windows([table], f.session_window("ts", "5 seconds"), count)
        case "q5":
            return rows.where("voltage >= 220").select(
                table, "ts", (f.col("current") * f.col("voltage")).alias("p"), "phase")
        case "ysb":
            rows_of = rows.where("event_type = 'view'")
            return windows([tag], f.window("ts", "10 seconds"), count)
        case "accounts" | "accounts_minute":
            width = "1 minute" if query.name == "accounts_minute" else "10 seconds"
            return windows([rows.account.alias("k")], f.window("ts", width), count, f.sum("amount"))
    raise ValueError(f"no form of {query.name} for Spark")
