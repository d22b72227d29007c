"""The queries of NEXMark in Apache Flink and in Spark Structured Streaming, as far as their SQL takes them.

The events are the same ones, with times in milliseconds: CSV files for Flink, since that is what pip installs can read,
and Parquet files for Spark. Both write files of the same kind; where a query updates its results, which files can't
hold, Flink throws them away, and only what it took is known. Each is warmed up by a small run of the same query first,
has two cores and keeps its state in RocksDB. `read` is a query that reads and counts the bids, and nothing else.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv
from pyspark import __version__

from bench.figures import rates
from bench.flink_peer import flink_program, hear, hear_all
from bench.isolated import Phase
from bench.nexmark import AUCTION, BID, PERSON, TABLES, Events, Tables, all_rows, side_input
from bench.nexmark_answers import Oracle, with_arrival
from bench.nexmark_queries import QUESTIONS
from bench.processes import cpu_seconds
from bench.spark_peer import session

_WARM_EVENTS = 50_000
_FILES = 8
_FLINK_TABLES: Mapping[str, str] = {
    PERSON: "ts TIMESTAMP(3), id BIGINT, name STRING, email STRING, credit_card STRING, city STRING, state STRING, "
            "extra STRING",
    AUCTION: "ts TIMESTAMP(3), id BIGINT, item_name STRING, description STRING, initial_bid BIGINT, reserve BIGINT, "
             "expires TIMESTAMP(3), seller BIGINT, category BIGINT, extra STRING",
    BID: "ts TIMESTAMP(3), auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, extra STRING",
    "side_input": "`key` BIGINT, `value` STRING",
}
_READ = "SELECT count(*) AS n FROM bid WHERE price < 0 OR char_length(extra) > 1000"
_HOP = "TABLE(HOP(TABLE bid, DESCRIPTOR(ts), INTERVAL '2' SECOND, INTERVAL '10' SECOND))"


def _tumble(table: str, time_column: str = "ts") -> str:
    return f"TABLE(TUMBLE(TABLE {table}, DESCRIPTOR({time_column}), INTERVAL '10' SECOND))"


def _flink_days(text: str) -> str:
    return text.replace("to_char(ts, 'yyyy-mm-dd')", "DATE_FORMAT(ts, 'yyyy-MM-dd')").replace(
        "to_char(ts, 'hh24:mi')", "DATE_FORMAT(ts, 'HH:mm')").replace(" AS day", " AS `day`").replace(
        " AS minute", " AS `minute`")


def _flink_by_day(number: int) -> str:
    """Flink groups by expressions, not by names of results."""
    text = _flink_days(QUESTIONS[number].sql)
    return re.sub(r"GROUP BY (.*)day", r"GROUP BY \1DATE_FORMAT(ts, 'yyyy-MM-dd')", text)


_WINNING = """(SELECT *, ROW_NUMBER() OVER (PARTITION BY id ORDER BY price DESC, bid_ts ASC) AS place FROM (
    SELECT a.*, b.auction, b.bidder, b.price, b.ts AS bid_ts, b.extra AS bid_extra FROM auction a JOIN bid b
    ON a.id = b.auction AND b.ts BETWEEN a.ts AND a.expires)) WHERE place <= 1"""

#: Queries of Flink. Those that aren't here are ours.
_FLINK: Mapping[int, str] = {
    5: f"""
SELECT c.starts, c.auction, c.bids FROM (
    SELECT auction, window_start AS starts, window_end AS ends, count(*) AS bids FROM {_HOP}
    GROUP BY auction, window_start, window_end) c
JOIN (SELECT starts, ends, max(bids) AS most FROM (
    SELECT auction, window_start AS starts, window_end AS ends, count(*) AS bids FROM {_HOP}
    GROUP BY auction, window_start, window_end) GROUP BY starts, ends) m
ON c.starts = m.starts AND c.ends = m.ends AND c.bids >= m.most""",
    7: f"""
SELECT b.ts, b.auction, b.price, b.bidder, b.extra FROM bid b JOIN (
    SELECT max(price) AS highest, window_start AS starts, window_time AS ended FROM {_tumble('bid')}
    GROUP BY window_start, window_end, window_time) w
ON b.price = w.highest AND b.ts BETWEEN w.ended - INTERVAL '10' SECOND AND w.ended WHERE b.ts >= w.starts""",
    8: f"""
SELECT p.starts, p.id, p.name FROM (
    SELECT window_start AS starts, window_end AS ends, id, name FROM {_tumble('person')}
    GROUP BY id, name, window_start, window_end) p
JOIN (SELECT window_start AS starts, window_end AS ends, seller FROM {_tumble('auction')}
    GROUP BY seller, window_start, window_end) a
ON p.id = a.seller AND p.starts = a.starts AND p.ends = a.ends""",
    9: f"SELECT ts, id, item_name, description, initial_bid, reserve, expires, seller, category, extra, auction, "
       f"bidder, price, bid_ts, bid_extra FROM {_WINNING}",
    10: _flink_days(QUESTIONS[10].sql),
    11: "SELECT window_start, bidder, count(*), window_end FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, "
        "DESCRIPTOR(ts), INTERVAL '10' SECOND)) GROUP BY bidder, window_start, window_end",
    12: f"SELECT window_start, bidder, count(*) FROM {_tumble('arriving', 'came')} GROUP BY bidder, window_start, "
        "window_end",
    13: QUESTIONS[13].sql.replace("s.value", "s.`value`").replace("s.key", "s.`key`"),
    15: _flink_by_day(15),
    16: _flink_by_day(16),
    17: _flink_by_day(17),
    18: "SELECT ts, auction, bidder, price, channel, url, extra FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY "
        "bidder, auction ORDER BY ts DESC) AS place FROM bid) WHERE place <= 1",
    19: "SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY auction ORDER BY price DESC, ts ASC) AS place "
        "FROM bid) WHERE place <= 10",
    21: QUESTIONS[21].sql.replace(" <> ''", " IS NOT NULL"),
    22: "SELECT ts, auction, bidder, price, channel, SPLIT_INDEX(url, '/', 3), SPLIT_INDEX(url, '/', 4), "
        "SPLIT_INDEX(url, '/', 5) FROM bid",
}
FLINK_QUERIES = tuple(number for number in QUESTIONS if number != 6)
#: Queries whose results Flink changes, and that of the clock.
_UPDATED = (4, 9, 12, 15, 16, 17, 18, 19)

#: Queries of Spark.
_SPARK: Mapping[int, str] = {
    **{number: QUESTIONS[number].sql for number in (0, 1, 2, 3, 13, 14, 20, 21, 22)},
    10: QUESTIONS[10].sql.replace("to_char(ts, 'yyyy-mm-dd')", "date_format(ts, 'yyyy-MM-dd')").replace(
        "to_char(ts, 'hh24:mi')", "date_format(ts, 'HH:mm')"),
    11: "SELECT session_window.start, bidder, count(*) AS bids, session_window.end FROM bid "
        "GROUP BY bidder, session_window(ts, '10 seconds')",
}
SPARK_QUERIES = tuple(_SPARK)
_SPARK_UPDATED = (11,)


def flink(folder: Path, phase: Phase, number: int | None, events: Events, python: Path) -> dict[str, Any]:
    """Returns the throughput of a query in Flink, None for reading alone. Raises RuntimeError for a wrong answer."""
    for name, count in (("warm", _WARM_EVENTS), ("in", events.count)):
        _write(folder / name, all_rows(replace(events, count=count)), "csv")
    with flink_program(folder, python) as program:
        version = hear(program, folder)["version"]
        for source, target in (("warm", "warm-out"), ("in", "out")):
            run = _flink_run(folder, folder / source, folder / target, number)
            assert program.stdin is not None
            program.stdin.write(json.dumps(run) + "\n")
            program.stdin.flush()
            hear_all(program, folder, "begin")
            if source == "in":
                phase.begin()
            started, cpu_before = time.monotonic_ns(), cpu_seconds(program.pid)
            hear_all(program, folder, "end")
        seconds, cpu = (time.monotonic_ns() - started) / 1e9, cpu_seconds(program.pid) - cpu_before
        phase.end()
    figures = {"engine": "flink", "version": version, **rates(events.count, seconds, cpu)}
    if number is None or number in _UPDATED:
        return {**figures, "answer": "thrown away"}
    return {**figures, **_checked(number, events, f"read_csv('{folder / 'out'}/part-*', header = false, names = {{}})")}


def spark(folder: Path, phase: Phase, number: int | None, events: Events) -> dict[str, Any]:
    """Returns the throughput of a query in Spark, None for reading alone. Raises RuntimeError for a wrong answer."""
    running = session(folder, "rocksdb")
    for name, count in (("warm", _WARM_EVENTS), ("in", events.count)):
        _write(folder / name, all_rows(replace(events, count=count)), "parquet")
    for name in ("warm", "in"):
        for table in TABLES:
            path = str(folder / name / table)
            rows = running.readStream.schema(running.read.parquet(path).schema).parquet(path)
            rows.withWatermark("ts", "0 seconds").createOrReplaceTempView(table)
        running.read.parquet(str(folder / name / "side_input")).createOrReplaceTempView("side_input")
        if name == "in":
            phase.begin()
        started, cpu_before = time.monotonic_ns(), cpu_seconds()
        query = running.sql(_READ if number is None else _SPARK[number]).writeStream.trigger(availableNow=True).option(
            "checkpointLocation", str(folder / f"{name}-checkpoint"))
        updated = number is None or number in _SPARK_UPDATED
        query = query.format("noop").outputMode("update") if updated else query.format("parquet").option(
            "path", str(folder / f"{name}-out"))
        query.start().awaitTermination()
    seconds, cpu = (time.monotonic_ns() - started) / 1e9, cpu_seconds() - cpu_before
    phase.end()
    running.stop()
    figures = {"engine": "spark", "version": __version__, **rates(events.count, seconds, cpu)}
    if updated:
        return {**figures, "answer": "thrown away"}
    return {**figures, **_checked(number, events, f"read_parquet('{folder / 'in-out'}/*.parquet')")}


def _checked(number: int | None, events: Events, files: str) -> dict[str, Any]:
    """Compares the rows in files, as DuckDB reads them, with the answer; `{}` there: the names of columns."""
    assert number is not None
    oracle = Oracle({name: with_arrival(rows, 0) for name, rows in _in_ms(all_rows(events)).items()})
    try:
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
            names = oracle.columns(number)
            found = connection.sql(f"FROM {files.format(names)}").to_arrow_table().rename_columns(names)
        difference = oracle.difference(number, found)
    finally:
        oracle.close()
    if difference is not None:
        raise RuntimeError(f"q{number}: {difference}")
    return {"result_rows": found.num_rows, "answer": "equal"}


def _flink_run(folder: Path, source: Path, target: Path, number: int | None) -> dict[str, Any]:
    settings = {
        "parallelism.default": "2", "state.backend.type": "rocksdb", "pipeline.object-reuse": "true",
        "table.local-time-zone": "UTC", "execution.checkpointing.interval": "10 s",
        "execution.checkpointing.dir": (folder / "checkpoints").as_uri(),
    }
    tables = [
        f"CREATE TABLE {name} ({columns}{', WATERMARK FOR ts AS ts' if name in TABLES else ''}) WITH ("
        f"'connector' = 'filesystem', 'path' = '{source / name}', 'format' = 'csv')"
        for name, columns in _FLINK_TABLES.items()]
    tables.append("CREATE VIEW arriving AS SELECT *, PROCTIME() AS came FROM bid")
    query = _READ if number is None else _FLINK.get(number, QUESTIONS[number].sql)
    thrown_away = number is None or number in _UPDATED
    sink = "'connector' = 'blackhole'" if thrown_away else (
        f"'connector' = 'filesystem', 'path' = '{target}', 'format' = 'csv'")
    return {"settings": settings, "tables": tables,
            "create_as": f"CREATE TABLE target WITH ({sink}) AS {query}"}


def _write(folder: Path, tables: Tables, kind: str) -> None:
    """Writes the rows of all tables in the order in which they come."""
    for name, rows in {**_in_ms(tables), "side_input": side_input()}.items():
        (folder / name).mkdir(parents=True)
        each = -(-rows.num_rows // (1 if kind == "csv" or name == "side_input" else _FILES))
        for place in range(0, rows.num_rows, each):
            part, path = rows.slice(place, each), folder / name / f"{place:09}.{kind}"
            if kind == "csv":
                csv.write_csv(part, path, csv.WriteOptions(include_header=False, quoting_style="none"))
            else:
                pq.write_table(_in_utc(part), path)


def _in_utc(rows: pa.Table) -> pa.Table:
    """Returns rows with times of which Spark takes watermarks."""
    return pa.table({name: values.cast(pa.timestamp("us", "UTC")) if pa.types.is_timestamp(values.type) else values
                     for name, values in zip(rows.column_names, rows.columns, strict=True)})


def _in_ms(tables: Tables) -> dict[str, pa.Table]:
    """Returns the rows with times in milliseconds, and without their places."""
    found = {}
    for name, rows in tables.items():
        columns = {
            column: values.cast(pa.timestamp("ms"), safe=False) if pa.types.is_timestamp(values.type) else values
            for column, values in zip(rows.column_names, rows.columns, strict=True) if column != "place"}
        found[name] = pa.table(columns)
    return found
