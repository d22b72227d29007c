"""The numbers that a stream works by: its own options before the configuration."""

from __future__ import annotations

from dataclasses import replace

from penstock.common.config import Config
from penstock.common.paths import DataPaths
from penstock.mnode.coordinator.task_settings import BYTES_PER_MEGABYTE, functions_directory, task_settings
from penstock.sql.tree.statements import StreamOptions
from penstock.tasks.protocol.deployment import TaskSettings


def state_limit(config: Config, options: StreamOptions) -> int:
    """Returns how many bytes of state a stream may have, 0 for any number."""
    return config.state_limit if options.state_limit is None else options.state_limit


def stream_settings(config: Config, paths: DataPaths, options: StreamOptions) -> TaskSettings:
    """Returns what the tasks of a stream work by."""
    settings = replace(task_settings(config),
                       functions_directory=functions_directory(config, paths))
    if options.sink_rate is not None:
        settings = replace(settings, sink_bytes_per_second=options.sink_rate * BYTES_PER_MEGABYTE)
    if options.sink_calls is not None:
        settings = replace(settings, sink_calls_per_second=options.sink_calls)
    if options.source_rate is not None:
        settings = replace(settings, source_rows_per_second=options.source_rate)
    if options.history_rate is not None:
        settings = replace(settings, history_rows_per_second=options.history_rate)
    if options.retry_time is not None:
        settings = replace(settings, retry_time_s=options.retry_time.in_units("ms") / 1000)
    if options.lookup_freshness is not None:
        settings = replace(settings, lookup_freshness_s=options.lookup_freshness.in_units("ms") / 1000)
    if options.latency is not None:
        settings = replace(settings, latency_s=options.latency.in_units("us") / 1e6)
    return settings
