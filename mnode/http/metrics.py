"""What Prometheus reads: the overview of the streams as metrics, named by its conventions and in base units."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from penstock.common.admission import REASONS
from penstock.mnode.show.overview import Overview, Row

CONTENT_TYPE: str = CONTENT_TYPE_PLAIN_0_0_4

_STREAM, _TASK, _VNODE = ("stream",), ("stream", "task", "level", "vnode"), ("stream", "vnode")
_INGEST, _PORT = ("ingest",), ("port", "purpose")

# (name, help, column, divisor): None where a column is NULL gives no sample.
_STREAM_GAUGES = (
    ("penstock_stream_lag_records", "Log records that the stream has not read yet.", "lag", 1),
    ("penstock_stream_watermark_timestamp_seconds", "Watermark of the stream.",
     "event_time_watermark", 1000),
    ("penstock_stream_checkpoint_timestamp_seconds", "Time of the newest committed checkpoint.",
     "checkpoint_time", 1000),
    ("penstock_stream_state_bytes", "Size of the state of all tasks, in memory and on disk.", "state_bytes", 1),
    ("penstock_stream_state_limit_bytes", "STATE_LIMIT of the stream, if set.", "state_limit", 1),
    ("penstock_stream_audit_timestamp_seconds", "Time of the last step of the audit.", "last_audit", 1000),
    ("penstock_stream_mismatches", "Incidents of the audit whose results are still wrong.", "mismatches", 1),
)
_STREAM_COUNTERS = (
    ("penstock_stream_audited_results", "Results that the audit has found to equal the query.", "audited_results", 1),
    ("penstock_stream_restarts", "Attempts after the first since the engine started.", "restarts", 1),
)
_TASK_COUNTERS = (
    ("penstock_task_input_rows", "Input rows.", "rows_in", 1),
    ("penstock_task_output_rows", "Output rows.", "rows_out", 1),
    ("penstock_task_filtered_rows", "Rows excluded by WHERE, or of other child tables.", "filtered_rows", 1),
    ("penstock_task_input_bytes", "Input bytes.", "bytes_in", 1),
    ("penstock_task_output_bytes", "Output bytes.", "bytes_out", 1),
    ("penstock_task_busy_seconds", "Busy time.", "busy_total_seconds", 1),
    ("penstock_task_turns", "Steps of its stream that did work.", "turns", 1),
    ("penstock_task_blocked_seconds", "Time blocked with output that was not accepted.", "blocked_total_seconds", 1),
    ("penstock_task_function_seconds", "Time in user-defined functions.", "udf_total_seconds", 1),
    ("penstock_task_function_errors", "Values that user-defined functions failed to compute.", "udf_errors", 1),
    ("penstock_task_notify_sent", "Window events that addresses of NOTIFY have accepted.", "notify_sent", 1),
    ("penstock_task_notify_failed", "Window events that were dropped.", "notify_failed", 1),
)
_TASK_GAUGES = (
    ("penstock_task_current_blocked_seconds", "Duration of the current blocking.", "blocked_seconds", 1),
    ("penstock_task_state_bytes", "Size of the state, in memory and on disk.", "state_bytes", 1),
    ("penstock_task_state_capacity_bytes", "Limit of the state.", "state_capacity", 1),
    ("penstock_task_notify_waiting", "Window events that wait to be sent.", "notify_waiting", 1),
    ("penstock_task_open_windows", "Windows in memory.", "windows_open", 1),
    ("penstock_task_gathering_seconds", "Time for which rows are held back.", "gathering_ms", 1000),
    ("penstock_task_lag_records", "Log records that a source task has not read yet.", "lag", 1),
    ("penstock_task_missing_rows", "Rows of this attempt that are unaccounted for.", "missing_rows", 1),
    ("penstock_task_unread_seconds", "Time for which a source task has read nothing although the log has more.",
     "unread_seconds", 1),
)
_QUEUE_GAUGES = (
    ("penstock_task_queue_bytes", "Bytes in the queue.", "bytes"),
    ("penstock_task_queue_capacity_bytes", "Limit of the queue.", "capacity"),
    ("penstock_task_queue_peak_bytes", "Maximum size of the queue so far.", "peak"),
)
_INGEST_COUNTERS = (
    ("penstock_ingest_messages", "Messages read, including refused ones.", "messages"),
    ("penstock_ingest_refused_messages", "Messages that were invalid and left out.", "errors"),
    ("penstock_ingest_bytes", "Bytes of the messages.", "bytes"),
    ("penstock_ingest_rows", "Rows written.", "rows"),
    ("penstock_ingest_unknown_field_rows", "Rows with fields without a column.", "unknown_fields"),
    ("penstock_ingest_restarts", "Attempts after the first since the engine started.", "restarts"),
)
_INGEST_GAUGES = (
    ("penstock_ingest_lag_messages", "Messages in Kafka that the ingest has not read yet.", "lag"),
)
_LEFT_OUT = (("late", "late_rows"), ("future", "future_rows"), ("error", "error_rows"))


def families(overview: Overview) -> Iterator[Metric]:
    """Yields the metrics of all streams and ingests, those without a sample as well."""
    streams: list[Row] = overview["streams"]
    tasks = [(stream["stream_name"], task) for stream in streams for task in stream["tasks"]]
    yield _gauge("penstock_build_info", "Version of Penstock.", ("version",), [((overview["version"],), 1)])
    memory: list[Row] = overview["memory"]
    yield _gauge("penstock_memory_bytes", "Memory of each process, without mapped files.", ("process", "pid"), [
        ((row["process"], str(row["pid"])), row["memory_bytes"]) for row in memory if row["pid"] is not None])
    yield _gauge("penstock_memory_limit_bytes", "Limit of the memory of all processes, if set.", (),
                 [((), row["memory_limit"]) for row in memory if row["pid"] is None])
    yield from _of_ports(overview["ports"])
    yield from _of_cluster(overview["cluster"])
    yield _gauge("penstock_stream_state", "1 for the current state of the stream.", (*_STREAM, "state"),
                 [((stream["stream_name"], stream["state"]), 1) for stream in streams])
    for name, text, column, divisor in _STREAM_GAUGES:
        yield _gauge(name, text, _STREAM, [((s["stream_name"],), _number(s[column], divisor)) for s in streams])
    for name, text, column, divisor in _STREAM_COUNTERS:
        yield _counter(name, text, _STREAM, [((s["stream_name"],), _number(s[column], divisor)) for s in streams])
    yield from _of_checkpoints(streams)
    yield _gauge("penstock_task_state", "1 for the current state of the task.", (*_TASK, "state"),
                 [((*_labels(name, task), task["state"]), 1) for name, task in tasks])
    for name, text, column, divisor in _TASK_COUNTERS:
        yield _counter(name, text, _TASK, [(_labels(s, task), _number(task[column], divisor)) for s, task in tasks])
    for name, text, column, divisor in _TASK_GAUGES:
        yield _gauge(name, text, _TASK, [(_labels(s, task), _number(task[column], divisor)) for s, task in tasks])
    for name, text, what in _QUEUE_GAUGES:
        yield _gauge(name, text, (*_TASK, "queue"), [
            ((*_labels(stream, task), queue), _number(task[f"{queue}_{what}"], 1))
            for stream, task in tasks for queue in ("input", "output")])
    yield _counter("penstock_stream_left_out_rows", "Rows left out: late, from the future, or failing.",
                   (*_VNODE, "reason"), [
        ((stream["stream_name"], str(mark["node_id"]), reason), _number(mark[column], 1))
        for stream in streams for mark in stream["watermarks"] for reason, column in _LEFT_OUT])
    yield _gauge("penstock_vnode_watermark_timestamp_seconds", "Watermark of a stream on a vnode.",
                 _VNODE, [
        ((stream["stream_name"], str(mark["node_id"])), _number(mark["event_time_watermark"], 1000))
        for stream in streams for mark in stream["watermarks"]])
    yield from _of_ingests(overview["ingests"])


def _of_ports(ports: list[Row]) -> Iterator[Metric]:
    labels = [(port, (str(port["port"]), port["purpose"])) for port in ports]
    yield _gauge("penstock_port_connections", "Connections to the port.", _PORT,
                 [(of, port["connections"]) for port, of in labels])
    yield _gauge("penstock_port_strangers", "Connections to the port without a login.", _PORT,
                 [(of, port["strangers"]) for port, of in labels])
    yield _counter("penstock_port_refused_connections", "Connections that were closed: no login in time, too many "
                   "without one, too many from one address, too many in all.", (*_PORT, "reason"),
                   [((*of, reason), port[f"refused_{reason}"]) for port, of in labels for reason in REASONS])


def _of_cluster(nodes: list[Row]) -> Iterator[Metric]:
    """Yields what the node that is asked knows of all nodes; nothing if there is no cluster."""
    members = [(node, (str(node["id"]),)) for node in nodes if node["role"] is not None]
    yield _gauge("penstock_node_role", "1 for the current role of the node.", ("node", "role"),
                 [((*of, node["role"]), 1) for node, of in members])
    yield _gauge("penstock_node_synchronous", "1 if acknowledgements wait for the node.", ("node",),
                 [(of, int(node["synchronous"])) for node, of in members])
    yield _gauge("penstock_node_epoch", "Newest epoch that the node has seen.", ("node",),
                 [(of, node["epoch"]) for node, of in members])
    yield _gauge("penstock_node_lag_records", "Log records that the node lacks.", ("node",),
                 [(of, node["lag_versions"]) for node, of in members])
    yield _gauge("penstock_node_lag_seconds", "Time since the node had all records of the active node.", ("node",),
                 [(of, node["lag_seconds"]) for node, of in members])


def _of_ingests(ingests: list[Row]) -> Iterator[Metric]:
    yield _gauge("penstock_ingest_state", "1 for the current state of the ingest.", (*_INGEST, "state"),
                 [((ingest["ingest_name"], ingest["state"]), 1) for ingest in ingests])
    for makes, kinds in ((_gauge, _INGEST_GAUGES), (_counter, _INGEST_COUNTERS)):
        for name, text, column in kinds:
            yield makes(name, text, _INGEST, [((i["ingest_name"],), _number(i[column], 1)) for i in ingests])


def _of_checkpoints(streams: list[Row]) -> Iterator[Metric]:
    newest = [(stream["stream_name"], checkpoint) for stream in streams
              for checkpoint in [c for c in stream["checkpoints"] if c["state"] == "COMMITTED"][-1:]]
    for name, text, column, divisor in (
        ("penstock_stream_checkpoint_duration_seconds", "Duration of the newest committed checkpoint.",
         "duration_ms", 1000),
        ("penstock_stream_checkpoint_bytes", "Bytes written by the newest committed checkpoint.", "bytes", 1),
        ("penstock_stream_replay_rows", "Rows that a restart from it would read again.", "rows_to_replay", 1),
    ):
        yield _gauge(name, text, _STREAM, [((stream,), _number(c[column], divisor)) for stream, c in newest])


def exposition(look: Callable[[], Overview]) -> bytes:
    """Returns the text that Prometheus reads: the streams' metrics and those of this process."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(_Streams(look()))
    text: bytes = generate_latest(registry)
    return text


class _Streams(Collector):
    def __init__(self, overview: Overview) -> None:
        self._overview = overview

    def collect(self) -> Iterator[Metric]:
        return families(self._overview)


def _labels(stream: str, task: Row) -> tuple[str, ...]:
    return stream, task["task_id"], task["level"], str(task["node_id"]) if task["node_type"] == "vnode" else ""


def _number(value: Any, divisor: int) -> float | None:
    return None if value is None else value / divisor


Samples = list[tuple[tuple[str, ...], float | None]]


def _gauge(name: str, text: str, labels: tuple[str, ...], samples: Samples) -> Metric:
    return _filled(GaugeMetricFamily(name, text, labels=labels), samples)


def _counter(name: str, text: str, labels: tuple[str, ...], samples: Samples) -> Metric:
    """`name` is without `_total`, which its samples have."""
    return _filled(CounterMetricFamily(name, text, labels=labels), samples)


def _filled(family: Any, samples: Samples) -> Metric:
    for labels, value in samples:
        if value is not None:
            family.add_metric(labels, value)
    metric: Metric = family
    return metric
