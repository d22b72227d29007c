"""What is run for the pages of figures: commands of bench, and the tables that their lines become."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.page_tables import BATCH, Column, Fact, Facts, Line, Pivot, Rows, Table, fixed, ms, percent, short, whole

#: Pages of docs/ that have tables; those of `USUAL` are run unless others are named.
PAGES = ("performance", "nexmark", "scaling", "load")
USUAL = PAGES[:2]


@dataclass(frozen=True, slots=True)
class Run:
    """`commands`: modules of bench with their arguments, each of which prints a JSON line per measurement.

    `long`: it is run only if it is named. `with_flink`: its last command takes `--flink-python`.
    """

    page: str
    commands: Sequence[str]
    tables: Sequence[Table]
    long: bool = False
    with_flink: bool = False


@dataclass(frozen=True, slots=True)
class Drawing:
    """A drawing of a run: `values` gives those of each row by name, of which `names` are drawn."""

    run: str
    title: str
    values: Callable[[Sequence[Line]], Mapping[str, Mapping[str, float]]]
    names: Sequence[str]


def _is(**fields: Any) -> Callable[[Line], bool]:
    """Returns what takes lines that have these values, or one of these, in their fields; None: not the field."""
    several = {name: value if isinstance(value, tuple) else (value,) for name, value in fields.items()}

    def takes(line: Line) -> bool:
        return all(line.get(name) in wanted for name, wanted in several.items())

    return takes


@dataclass(frozen=True, slots=True)
class _Told(Column):
    """A column with what is told of the whole line."""

    def cell(self, line: Line) -> str:
        return _TOLD[self.path](line)


_TOLD: Mapping[str, Any] = {
    "attacks": lambda line: ", ".join(line["attacks"]) or "nobody",
    "errors": lambda line: whole(sum(line["errors"].values())),
    "memory": lambda line: f"{line['memory_mib']['server'][0]} ▶ {line['memory_mib']['server'][-1]}",
    "workers": lambda line: "{first_quarter} ▶ {last_quarter}".format(**line["rss_mib"]["workers"]),
    "size": lambda line: f"{line['vnodes']}, {line['streams']}",
    "size of series": lambda line: f"{line['series']}: {short(line['size'])}",
    "rows of each": lambda line: short(line["rows"] / line["streams"]),
}


def _tpch(lines: Sequence[Line]) -> dict[str, dict[str, float]]:
    """Returns what each query takes; that of DuckDB is over the files that rows come from, or over Penstock's."""
    return {f"query {line['query']}": {name: line[side]["cpu_seconds"] for name, side in (
        ("Penstock", "penstock"), ("DuckDB", "duckdb"), ("DuckDB, Penstock's files", "duckdb_stored"))}
        for line in lines}


_P50, _P99 = Column("p50 ms", "latency_ms p50", fixed(1)), Column("p99 ms", "latency_ms p99", fixed(1))
_DUE_P50 = Column("p50 ms", "latency_from_schedule_ms p50", fixed(1))
_DUE_P99 = Column("p99 ms", "latency_from_schedule_ms p99", fixed(1))
_CORE = Column("of a core", "cpu_of_a_core", percent)
_PSS = Column("PSS MiB", "memory_mib pss", whole)
_ENGINES = ("penstock", "flink-hashmap", "flink-rocksdb", "spark-memory", "spark-rocksdb", BATCH)
_CAUGHT_UP = _is(measure="throughput", series=None, streamSinkDataRate=None, late=(None, 0), updated=(None, 0),
                 streams=(None, 1))


_WAYS = {
    "values": "VALUES, 1,000 rows per statement", "targets": "VALUES, a table for each row",
    "new_tables": "USING and VALUES, a new table for each row", "csv": "CSV file", "parquet": "Parquet file",
    "arrow": "Arrow table", "line": "line protocol, 100,000 lines per call"}

CPU_RATES = Pivot("Rows per second of processors, all processes", _CAUGHT_UP, Column("query", "query"), "engine",
                  _ENGINES, Column("", "rows_per_cpu_second", short), ours="penstock")
MEMORY = Pivot("Peak of PSS, all processes, MiB", _CAUGHT_UP, Column("query", "query"), "engine", _ENGINES,
               Column("", "memory_mib pss", whole))
NEXMARK = Pivot("", _is(measure="nexmark"), Column("query", "query"), "engine", ("penstock", "flink"),
                Column("", "rows_per_cpu_second", short), ours="penstock")
GROUPS = Pivot("",
               _is(series="groups", query="accounts"), Column("groups", "size", short), "engine", _ENGINES,
               Column("", "rows_per_cpu_second", short), ours="penstock")

RUNS: Mapping[str, Run] = {
    "writes": Run("performance", [
        "bench.trickle --measures insert peers requests durable log_space starts ticks idle --threads 1 8 "
        "--seconds 6"], [
        Rows("INSERT of one row by a connection of the same process", _is(measure="insert", rows_per_statement=1), [
            Column("engine", "engine"), Column("threads", "threads"),
            Column("statements/s, in sum", "statements_per_second", whole),
            Column("µs of processors each", "cpu_us_per_statement", fixed(1))]),
        Rows("Requests of one row, over connections that stay open", _is(measure="requests"), [
            Column("way", "way"), Column("clients", "clients"), Column("requests/s", "requests_per_second", whole),
            Column("µs of the server's processors each", "server_cpu_us_per_request", fixed(0))]),
        Rows("20 rows every 10 ms beside streams that sum them up per tag as they come", _is(measure="ticks"), [
            Column("streams", "streams"), _CORE, Column("waits of threads per INSERT", "waits_per_insert", fixed(1)),
            _P50, _P99]),
        Facts("Other figures", [
            Fact("`executemany` of 1,000 rows, rows/s", _is(way="executemany"), "rows_per_second", whole),
            Fact("INSERT with WAL_LEVEL 2 by 64 connections, statements/s", _is(measure="durable", threads=64),
                 "statements_per_second", whole),
            Fact("the same, times the disk's syncs", _is(measure="durable", threads=64),
                 "statements_per_sync_of_the_disk", fixed(1)),
            Fact("log of a row beside its values, bytes", _is(measure="log_space"), "beside_values", whole),
            Fact("from `penstock.connect` until the first stream runs, s", _is(measure="starts"), "stream_1_runs_s",
                 fixed(2)),
            Fact("CREATE STREAM until the second one runs, s", _is(measure="starts"), "stream_2_runs_s", fixed(2)),
            *(Fact(f"streams with nothing to do: {streams}, of a core", _is(measure="idle", streams=streams),
                   "cpu_of_a_core", lambda share: f"{100 * share:.1f} %") for streams in (1, 10, 50))]),
    ]),
    "ingest": Run("performance", ["bench.ingest --factor 0.25"], [
        Rows("", _is(vgroups=1, wal_level=1), [
            Column("way", "way", lambda way: _WAYS[way]),
            Column("rows/s, median", "rows_per_second", short),
            Column("rows per second of processors", "per_cpu_second", short)])]),
    "streams": Run("performance", [
        "bench.streams --parts throughput,latency,recovery,starts,duckdb,spark,flink --rates 20000 --seconds 6"], [
        CPU_RATES, MEMORY,
        Rows("From arrival to result", _is(measure="latency", rows_per_second=20_000, sinkCallsPerSecond=None), [
            Column("engine", "engine"), Column("query", "query"), Column("trigger", "trigger"),
            _P50, _P99,
            Column("p99.9 ms", "latency_ms p99.9", fixed(1))]),
        Facts("Starts and kills", [
            Fact("kill -9 of a worker, until the next result, s", _is(killed="worker"), "seconds", fixed(2)),
            Fact("kill -9 of the engine, which is started at once, s", _is(killed="engine"), "seconds", fixed(2)),
            Fact("CREATE STREAM until it runs, median s", _is(measure="start"), "start_seconds", fixed(2)),
            Fact("its first INSERT until the result, median ms", _is(measure="start"), "result_seconds", ms)]),
    ], with_flink=True),
    "dashboards": Run("performance", ["bench.dashboards --rows 2000"], [
        Rows("", lambda line: " WHERE " not in line["query"], [
            Column("query", "query", lambda query: f"`{query}`"), Column("Penstock, ms", "penstock seconds", ms),
            Column("of processors", "penstock cpu_seconds", ms), Column("DuckDB, ms", "duckdb seconds", ms),
            Column("of processors", "duckdb cpu_seconds", ms)])]),
    "nexmark": Run("nexmark", ["bench.nexmark_speed --parts caught_up"], [NEXMARK]),
    "changes": Run("performance", [
        "bench.changes --keys 200000 --changes 200000 --seconds 8 --streams groups touched joined"], [
        Pivot("Changes per second of processors", lambda line: "changes_per_cpu_second" in line,
              Column("stream", "stream"), "step", ("appended", "many"),
              Column("", "changes_per_cpu_second", short)),
        Rows("At 20,000 rewritten rows per second", _is(step="steady"), [
            Column("stream", "stream"), Column("cores", "cores", fixed(1)),
            Column("seen after, p50 ms", "p50_ms", whole), Column("p99 ms", "p99_ms", whole)])]),
    "joins": Run("performance", ["bench.joins --rows 100000"], [
        Rows("", lambda line: True, [
            Column("case", "case"), Column("trigger", "trigger"), Column("rows/s", "rows_per_s", short),
            Column("p50 ms", "latency_p50_ms", fixed(1)), Column("p99 ms", "latency_p99_ms", fixed(1))])]),
    "triggers": Run("performance", ["bench.triggers --groups 2000 --windows 100 --periods 20 --seconds 10"], [
        Facts("", [
            Fact("windows of so many groups that close within a second", _is(measure="windows"), "groups", whole),
            *(Fact(f"all of them executed after, s, by {kind}", _is(measure="windows", kind=kind), "executed_seconds",
                   fixed(2)) for kind in ("aggregates", "query")),
            *(Fact(f"a window that closes alone, until its result, p{part} ms, by {kind}",
                   _is(measure="latency", kind=kind), f"p{part}_ms", fixed(1))
              for kind in ("aggregates", "query") for part in (50, 99)),
            Fact("streams with PERIOD(1s)", _is(measure="periods"), "streams", whole),
            Fact("their executions begin late by, p99 ms", _is(measure="periods"), "late_p99_ms", fixed(1))])]),
    "tpch": Run("performance", ["bench.tpch --scale 1"], [], long=True),
    "broker": Run("load", ["bench.external --broker kafka", "bench.external --broker mqtt"], [
        Rows("", _is(measure="external"), [
            Column("broker", "broker"), Column("messages", "messages", whole), Column("results", "results", whole),
            Column("of these wrong", "wrong"), Column("seconds", "seconds", fixed(1)),
            Column("messages/s", "messages_per_second", whole),
            Column("a window's results, median ms", "latency_ms p50", whole),
            Column("longest", "latency_ms max", whole)])], long=True),
    "soak": Run("load", ["bench.soak --minutes 30"], [
        Rows("", lambda line: "rss_mib" in line and "rows" in line, [
            Column("phase", "phase"), Column("rows", "rows", whole), Column("samples", "samples", whole),
            Column("above a bound", "over_bound"), _Told("workers, MiB", "workers")])], long=True),
    "neighbours": Run("load", ["bench.neighbours --seconds 10 --tick-ms 20 --tenths udf state"], [
        Rows("", lambda line: "tenth" in line, [Column("beside", "tenth"), _DUE_P50, _DUE_P99])], long=True),
    "attacks": Run("load", ["bench.attacks", "bench.attacks --together"], [
        Rows("", lambda line: "attacks" in line, [
            _Told("attack", "attacks"), _DUE_P50, _DUE_P99, _PSS])], long=True),
    "connections": Run("load", ["bench.connections --rate 200"], [
        Rows("", _is(measure="connections"), [
            Column("protocol", "protocol"), Column("inserts", "inserts", whole), Column("queries", "queries", whole),
            _Told("errors", "errors"), Column("rows missing", "rows_missing"), _P50, _P99,
            _Told("server, MiB", "memory")])], long=True),
    "audit": Run("load", ["bench.audit --rounds 1 --seconds 90"], [
        Rows("", lambda line: "share" in line, [
            Column("`auditShare`", "share"), Column("cores", "cpu_of_a_core", fixed(2)), _P50, _P99,
            Column("results found equal", "equal")])], long=True),
    "growth": Run("scaling", ["bench.streams q1 --parts growth --growth 0.1"], [
        Rows("", _is(series=("vnodes", "streams", "open windows")), [
            _Told("", "size of series"), _Told("rows of each stream", "rows of each"),
            Column("rows per second of processors", "rows_per_cpu_second", short),
            Column("checkpoint s", "checkpoint_seconds", fixed(2)), _PSS])]),
    "coordinator": Run("scaling", ["bench.coordinator --sizes 10x10,100x10,10x100,100x100"], [
        Pivot("", lambda line: "vnodes" in line, _Told("vnodes, streams", "size"), "measure",
              ("start", "heartbeat", "checkpoint", "failover"), Column("", "cpu_seconds", fixed(2)))]),
    "hundred": Run("load", ["bench.trickle --measures hundred --seconds 600"], [
        Rows("", _is(measure="hundred"), [
            Column("streams", "streams"), Column("INSERTs/s", "inserts_per_second", whole), _CORE, _P50, _P99,
            Column("PSS MiB at last", "pss_mib", lambda held: whole(held[-1] if isinstance(held, list) else held))])],
        long=True),
    "groups": Run("scaling", ["bench.streams --parts groups --rows 2000000"], [GROUPS], long=True, with_flink=True),
    "open_pairs": Run("load", ["bench.open_pairs", "bench.open_pairs --buffer 128MiB"], [
        Rows("", lambda line: "worker_back_s" in line, [
            Column("`streamBufferSize`", "buffer"),
            Column("rows per second of processors", "rows_per_cpu_second", short),
            Column("PSS MiB", "mib_open pss", whole),
            Column("tasks run again after a kill, s", "worker_back_s", fixed(1)),
        ])], long=True),
}

DRAWINGS: Mapping[str, Drawing] = {
    "catching_up": Drawing("streams", "Rows per second of processors", CPU_RATES.values, CPU_RATES.columns),
    "nexmark": Drawing("nexmark", "NEXMark: events per second of processors", NEXMARK.values, NEXMARK.columns),
    "groups": Drawing("groups", "Many groups: rows per second of processors", GROUPS.values, GROUPS.columns),
    "tpch": Drawing("tpch", "TPC-H: seconds of processors", _tpch, ("Penstock", "DuckDB", "DuckDB, Penstock's files")),
}
