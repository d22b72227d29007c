"""The numbers that tasks work by, taken from the configuration; the only place that knows both."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, cast

from penstock.common.closed_duckdb import DuckdbBounds
from penstock.common.config import Config
from penstock.common.memory import limit_bytes
from penstock.common.paths import DataPaths
from penstock.mnode.query.query_runner import ResultLimits
from penstock.mnode.query.query_slots import PlaceBounds
from penstock.mnode.query.query_statements import QueryBounds
from penstock.planner.streams.stream_planner import StreamDefaults
from penstock.planner.streams.stream_time import TimeDefaults
from penstock.planner.task_plans.stream_plan import OnError, TimeClock
from penstock.tasks.protocol.deployment import TaskSettings

BYTES_PER_MEGABYTE = 1_000_000


def functions_directory(config: Config, paths: DataPaths) -> Path:
    """Returns where the modules of users' functions are looked for: `udfDir`, relative to the data directory."""
    return (paths.root / config.udf_dir.expanduser()).resolve()


def task_settings(config: Config) -> TaskSettings:
    """Returns the settings that the mnode ships with each stream to its workers."""
    return TaskSettings(
        queue_bytes=config.stream_queue_size,
        block_rows_max=config.block_rows_max,
        block_bytes_max=config.block_bytes_max,
        sink_calls_per_second=config.sink_calls_per_second,
        sink_tables_share=config.sink_tables_share,
        sink_bytes_per_second=config.stream_sink_data_rate * BYTES_PER_MEGABYTE,
        source_rows_per_second=config.source_rate,
        history_rows_per_second=config.history_rate,
        idle_timeout_s=config.idle_timeout,
        retry_time_s=config.emit_retry_time,
        sent_record_bytes=config.sent_record_size,
        lookup_freshness_s=config.lookup_freshness,
        state_map_bytes=config.state_map_size,
        state_memory_bytes=config.stream_buffer_size,
        compute_bytes=config.compute_memory,
        compute_spill_bytes=config.spill_max,
    )


def query_bounds(config: Config, paths: DataPaths, available: int) -> QueryBounds:
    """Returns what queries may take of a machine with so many bytes of memory `available`."""
    duckdb = DuckdbBounds(limit_bytes(config.query_memory, available), config.query_threads, paths.spill,
                          config.spill_max)
    return QueryBounds(duckdb, config.query_nice if config.query_process else None)


def place_bounds(config: Config) -> PlaceBounds:
    """Returns how many queries run and wait."""
    return PlaceBounds(config.queries_max, config.queries_per_user_max, config.queries_waiting_max, config.query_wait)


def result_limits(config: Config) -> ResultLimits:
    """Returns how much results may have of those who aren't admins."""
    return ResultLimits(config.result_rows_max, config.result_size_max)


def stream_defaults(config: Config) -> StreamDefaults:
    """Returns what options mean that CREATE STREAM leaves out."""
    return StreamDefaults(time=TimeDefaults(
        clock=cast(TimeClock, config.stream_time),
        allowed_lateness_s=config.allowed_lateness,
        close_when_idle=config.close_when_idle,
        max_future_s=config.max_future,
        max_skew_s=config.max_skew,
        writer_timeout_s=config.writer_timeout,
        on_error=cast(OnError, config.on_error),
        late=cast(Literal["drop", "recalc"], config.late_rows),
    ))
