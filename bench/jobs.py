"""What is measured by default: the parts of a run, each a list of jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.load import Schedule
from bench.queries import ACCOUNTS, ACCOUNTS_COLUMN, ACCOUNTS_MINUTE, OPEN, Q1, QUERIES, Query, Trigger
from bench.rows import Shape

DEFAULT_SINK_RATE = {"streamSinkDataRate": 2}
# More than one per tick of the sender: the default of 50 evenly spaced calls would be most of the latency.
MANY_SINK_CALLS = {"sinkCallsPerSecond": 1000}
_TDENGINE_TABLES, _TDENGINE_ROWS_EACH = 10_000, 100_000
# From the first row, which is 40 s before the end of its minute, to well behind that and the watermark.
_MINUTE_ROWS_MS = 48_000
_LATE_LATENCY_TICK_MS = 100  # peers take files; more of them a second would cost them more than it helps


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line may change."""

    queries: Sequence[str]
    rows: int = 3_000_000
    tables: int = 1000
    vgroups: int = 2
    batch_rows: int = 20_000
    accounts: int = 100_000
    growth: float = 1.0
    rates: Sequence[int] = (20_000, 200_000)
    seconds: int = 12
    scale: float = 0.002
    flink_python: Path | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One measurement: a function for `bench.isolated.measured` with its arguments."""

    part: str
    title: str
    measurement: Callable[..., dict[str, Any]]
    arguments: Mapping[str, Any]
    about: Mapping[str, Any] = field(default_factory=dict)  # goes into the measurement as it is


def throughput(options: Options) -> Iterator[Job]:
    """Catching up, sinks unlimited; for Q1 and Q2 also with the default rate of sinks."""
    from bench.throughput import catch_up

    for query in _chosen(options):
        for config in ({}, DEFAULT_SINK_RATE) if query.name in ("q1", "q2") else ({},):
            yield Job("throughput", query.name, catch_up, {
                "query": query, "shape": query.of(_shape(options)), "vgroups": options.vgroups,
                "batch_rows": options.batch_rows, "config": config})


def variants(options: Options) -> Iterator[Job]:
    """Catching up with rows that come late or twice."""
    from bench.throughput import catch_up

    for name, changes in (("q1", {"late": 0.05}), ("q1", {"late": 0.2}), ("q1", {"updated": 0.01}),
                          ("q2", {"late": 0.05})):
        if name in options.queries:
            query = QUERIES[name]
            yield Job("variants", f"{name} {changes}", catch_up, {
                "query": query, "shape": replace(query.of(_shape(options)), **changes), "vgroups": options.vgroups,
                "batch_rows": options.batch_rows})


def growth(options: Options) -> Iterator[Job]:
    """What memory and processors cost as vnodes, streams and open windows become more: series that are drawn.

    `--growth` is the part of the greatest sizes: 1 goes up to ten million open windows.
    """
    from bench.throughput import catch_up

    def job(series: str, size: int, query: Query, shape: Shape, **arguments: Any) -> Job:
        return Job("growth", f"{series} {size}", catch_up, {
            "query": query, "shape": query.of(shape), "batch_rows": options.batch_rows, **arguments},
            {"series": series, "size": size})

    shape = _shape(options)
    for vgroups in (1, 2, 4, 8):
        yield job("vnodes", vgroups, Q1, shape, vgroups=vgroups)
    for streams in (1, 5, 10, 25, 50):
        rows = max(options.tables * 60, options.rows // streams)
        yield job("streams", streams, Q1, replace(shape, rows=rows), vgroups=1, streams=streams)
    for share in (100, 10, 1):
        # As many rows per account, and as many per window, whatever the number of accounts is.
        accounts = max(1_000, round(1_000_000 * options.growth / share))
        yield job("open windows", 10 * accounts, OPEN, Shape(accounts // 1_000, 10 * accounts, accounts=accounts),
                  vgroups=options.vgroups, count_open=True)


def groups(options: Options) -> Iterator[Job]:
    """What memory and processors cost as groups become more, up to a million times `--growth`, beside peers.

    Of windows of 10 s nearly each row is one of many groups; of a minute each group has one, with most of the rows.
    Results are in a child table for each group, with the group as tag or as a column, and in files of the peers.
    """
    from bench import flink_peer, spark_peer
    from bench.throughput import catch_up

    for share in (5_000, 500, 50, 5, 1):
        size = max(10, round(1_000_000 * options.growth / share))
        shape = ACCOUNTS.of(replace(_shape(options), accounts=size))
        minute = replace(shape, period_ms=-(-_MINUTE_ROWS_MS // shape.periods))
        about = {"series": "groups", "size": size}
        for query, rows in ((ACCOUNTS, shape), (ACCOUNTS_COLUMN, shape), (ACCOUNTS_MINUTE, minute)):
            yield Job("groups", f"{query.name} {size}", catch_up, {
                "query": query, "shape": rows, "vgroups": options.vgroups, "batch_rows": options.batch_rows}, about)
        for query, rows in ((ACCOUNTS, shape), (ACCOUNTS_MINUTE, minute)):
            for store in ("rocksdb", "memory"):
                yield Job("groups", f"{query.name} {size}, spark {store}", spark_peer.catch_up, {
                    "query": query, "shape": rows, "store": store}, about)
            for store in ("rocksdb", "hashmap") if options.flink_python is not None else ():
                yield Job("groups", f"{query.name} {size}, flink {store}", flink_peer.catch_up, {
                    "query": query, "shape": rows, "store": store, "python": options.flink_python}, about)


def starts(options: Options) -> Iterator[Job]:
    """How soon a stream runs when others run already, and how soon its first result is there."""
    from bench.starts import started

    if "q1" in options.queries:
        yield Job("starts", "a stream beside another", started, {"query": Q1, "shape": Shape(1, 1)})


def history(options: Options) -> Iterator[Job]:
    """TDengine's own shape, scaled: FILL_HISTORY over 10,000 tables with 100,000 rows each, in order and not."""
    from bench.throughput import history as fill

    query = QUERIES["q1"]
    rows = round(_TDENGINE_TABLES * _TDENGINE_ROWS_EACH * options.scale)
    for late in (0.0, 0.2) if "q1" in options.queries else ():
        shape = Shape(_TDENGINE_TABLES, rows, late=late)
        yield Job("history", f"late {late}", fill, {
            "query": query, "shape": shape, "vgroups": options.vgroups, "batch_rows": options.batch_rows})


def latency(options: Options) -> Iterator[Job]:
    """From arrival to result, at fixed rates, for Q1 and Q2 and both triggers; at the lowest with default sinks too."""
    from bench.latency import live

    triggers: tuple[Trigger, ...] = ("WINDOW_CLOSE", "AT_ONCE")
    for query in _chosen(options, "q1", "q2"):
        for trigger in triggers:
            for rate in options.rates:
                for config in (MANY_SINK_CALLS, {}) if rate == min(options.rates) else (MANY_SINK_CALLS,):
                    yield Job("latency", f"{query.name} {trigger} {rate} rows/s {config}", live, {
                        "query": query, "shape": _of_rate(options, rate, options.seconds), "schedule": Schedule(rate),
                        "trigger": trigger, "vgroups": options.vgroups, "config": config})


def checkpoints(options: Options) -> Iterator[Job]:
    """What checkpoints cost: every 10 s and every 3 min, at the highest rate, and catching up with twice the rows."""
    from bench.latency import live
    from bench.throughput import catch_up

    query = QUERIES["q1"]
    for interval in ("10s", "3m") if "q1" in options.queries else ():
        config = {"checkpointInterval": interval}
        rate = max(options.rates)
        yield Job("checkpoints", f"{interval}, live", live, {
            "query": query, "shape": _of_rate(options, rate, max(25, options.seconds)), "schedule": Schedule(rate),
            "vgroups": options.vgroups, "config": config})
        yield Job("checkpoints", f"{interval}, catching up", catch_up, {
            "query": query, "shape": replace(_shape(options), rows=2 * options.rows), "vgroups": options.vgroups,
            "batch_rows": options.batch_rows, "config": config})


def recovery(options: Options) -> Iterator[Job]:
    """Until results flow again after kill -9."""
    from bench.recovery import engine_killed, worker_killed

    query = QUERIES["q1"]
    rate = min(options.rates)
    for title, measurement in (("worker", worker_killed), ("engine", engine_killed)):
        if "q1" in options.queries:
            yield Job("recovery", title, measurement, {
                "query": query, "shape": _of_rate(options, rate, 15), "schedule": Schedule(rate),
                "config": {"checkpointInterval": "3s"}})


def spark(options: Options) -> Iterator[Job]:
    """Spark Structured Streaming."""
    from bench import spark_peer

    for query in _chosen(options, *spark_peer.QUERIES):
        for store in ("rocksdb", "memory") if query.name in ("q1", "q2") else ("rocksdb",):
            yield Job("spark", f"{query.name} {store}", spark_peer.catch_up, {
                "query": query, "shape": query.of(_shape(options)), "store": store})
    for query in _chosen(options, "q1", "q2"):
        rate = min(options.rates)
        yield Job("spark", f"{query.name} latency", spark_peer.live, {
            "query": query, "shape": _of_rate(options, rate, options.seconds),
            "schedule": Schedule(rate, _LATE_LATENCY_TICK_MS)})


def duckdb(options: Options) -> Iterator[Job]:
    """DuckDB's batch query over files."""
    from bench.duckdb_peer import one_shot

    for query in _chosen(options):
        yield Job("duckdb", query.name, one_shot, {"query": query, "shape": query.of(_shape(options))})


def flink(options: Options) -> Iterator[Job]:
    """Apache Flink, if there is a Python with it."""
    from bench import flink_peer

    if options.flink_python is None:
        return
    for query in _chosen(options, *flink_peer.QUERIES):
        for store in ("rocksdb", "hashmap") if query.name in ("q1", "q2") else ("hashmap",):
            yield Job("flink", f"{query.name} {store}", flink_peer.catch_up, {
                "query": query, "shape": query.of(_shape(options)), "store": store,
                "python": options.flink_python})
    for query in _chosen(options, "q1", "q2"):
        rate = min(options.rates)
        yield Job("flink", f"{query.name} latency", flink_peer.live, {
            "query": query, "shape": _of_rate(options, rate, options.seconds), "rows_per_second": rate,
            "python": options.flink_python})


PARTS: Mapping[str, Callable[[Options], Iterator[Job]]] = {
    part.__name__: part
    for part in (throughput, variants, growth, groups, starts, history, latency, checkpoints, recovery, duckdb, spark,
                 flink)}


def _chosen(options: Options, *names: str) -> list[Query]:
    return [query for name, query in QUERIES.items() if name in options.queries and name in (names or QUERIES)]


def _shape(options: Options) -> Shape:
    return Shape(options.tables, options.rows, accounts=options.accounts)


def _of_rate(options: Options, rate: int, seconds: int) -> Shape:
    """Returns rows for so many seconds; each table's rows are a second of event time apart."""
    return Shape(options.tables, rate * seconds)
