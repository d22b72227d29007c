"""The system tables' schemas: `information_schema` and `performance_schema`. Their rows come from `system_tables`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.sql.schema import Column, Database, DatabaseOptions, Table
from penstock.sql.types import BIGINT, BOOL, DOUBLE, INT, DataType, Kind, timestamp

INFORMATION_SCHEMA = "information_schema"
PERFORMANCE_SCHEMA = "performance_schema"
DATABASES = (INFORMATION_SCHEMA, PERFORMANCE_SCHEMA)

_TIME = timestamp("ms")
_BIG, _INT, _DOUBLE, _BOOL = BIGINT, INT, DOUBLE, BOOL


def _text(length: int) -> DataType:
    return DataType(Kind.VARCHAR, length)


_NAME, _TABLE, _WORD, _LINE = _text(64), _text(192), _text(24), _text(1024)

SCHEMAS: Mapping[str, Mapping[str, tuple[tuple[str, DataType], ...]]] = {
    INFORMATION_SCHEMA: {
        "ins_databases": (
            ("name", _NAME), ("create_time", _TIME), ("vgroups", _INT), ("ntables", _BIG), ("replica", _INT),
            ("strict", _WORD), ("duration", _WORD), ("keep", _text(64)), ("buffer", _INT), ("pagesize", _INT),
            ("pages", _INT), ("minrows", _INT), ("maxrows", _INT), ("comp", _INT), ("precision", _WORD),
            ("status", _WORD), ("retentions", _text(60)), ("single_stable", _BOOL), ("cachemodel", _WORD),
            ("cachesize", _INT), ("wal_level", _INT), ("wal_fsync_period", _INT), ("wal_retention_period", _INT),
            ("wal_retention_size", _BIG), ("stt_trigger", _INT), ("table_prefix", _INT), ("table_suffix", _INT),
            ("tsdb_pagesize", _INT),
        ),
        "ins_stables": (
            ("stable_name", _TABLE), ("db_name", _NAME), ("create_time", _TIME), ("columns", _INT), ("tags", _INT),
            ("last_update", _TIME), ("table_comment", _LINE), ("watermark", _text(64)), ("max_delay", _text(64)),
            ("rollup", _text(128)), ("uid", _BIG), ("ntables", _BIG),
        ),
        "ins_tables": (
            ("table_name", _TABLE), ("db_name", _NAME), ("create_time", _TIME), ("columns", _INT),
            ("stable_name", _TABLE), ("uid", _BIG), ("vgroup_id", _INT), ("ttl", _INT), ("table_comment", _LINE),
            ("type", _WORD),
        ),
        "ins_columns": (
            ("table_name", _TABLE), ("db_name", _NAME), ("table_type", _WORD), ("col_name", _NAME),
            ("col_type", _text(32)), ("col_length", _INT), ("col_precision", _INT), ("col_scale", _INT),
            ("col_nullable", _INT),
        ),
        "ins_tags": (
            ("table_name", _TABLE), ("db_name", _NAME), ("stable_name", _TABLE), ("tag_name", _NAME),
            ("tag_type", _text(32)), ("tag_value", _text(16384)),
        ),
        "ins_views": (
            ("view_name", _TABLE), ("db_name", _NAME), ("create_time", _TIME), ("owner", _WORD), ("security", _WORD),
            ("columns", _INT), ("time_zone", _text(64)), ("status", _WORD), ("reason", _LINE), ("sql", _LINE),
        ),
        "ins_vgroups": (
            ("vgroup_id", _INT), ("db_name", _NAME), ("tables", _BIG), ("v1_dnode", _INT), ("v1_status", _WORD),
            ("wal_version", _BIG),
        ),
        "ins_vnodes": (
            ("dnode_id", _INT), ("vgroup_id", _INT), ("db_name", _NAME), ("status", _WORD), ("wal_version", _BIG),
            ("reason", _LINE), ("lost_records", _BIG), ("cut_bytes", _BIG),
        ),
        "ins_dnodes": (
            ("id", _INT), ("endpoint", _text(134)), ("vnodes", _INT), ("support_vnodes", _INT), ("status", _WORD),
            ("create_time", _TIME), ("note", _text(256)),
        ),
        "ins_mnodes": (
            ("id", _INT), ("endpoint", _text(134)), ("role", _WORD), ("status", _WORD), ("create_time", _TIME),
        ),
        "ins_orphans": (("path", _LINE), ("reason", _LINE)),
        "ins_snodes": (("id", _BIG), ("endpoint", _text(134)), ("create_time", _TIME)),
        "ins_cluster": (
            ("id", _BIG), ("name", _text(134)), ("uptime", _INT), ("create_time", _TIME), ("version", _WORD),
            ("address", _text(128)), ("role", _WORD), ("epoch", _BIG), ("synchronous", _BOOL), ("since", _TIME),
            ("lag_versions", _BIG), ("lag_seconds", _DOUBLE), ("told_by", _INT), ("verdict", _LINE),
        ),
        "ins_users": (("name", _WORD), ("super", _INT), ("enable", _INT), ("create_time", _TIME), ("role", _WORD)),
        "ins_audit": (
            ("time", _TIME), ("user_name", _WORD), ("interface", _WORD), ("address", _text(64)), ("what", _text(64)),
            ("object", _text(512)), ("outcome", _WORD),
        ),
        "ins_user_privileges": (
            ("user_name", _WORD), ("privilege", _text(10)), ("db_name", _NAME), ("table_name", _TABLE),
            ("condition", _LINE), ("notes", _LINE), ("connection", _NAME),
        ),
        "ins_functions": (
            ("name", _NAME), ("comment", _text(255)), ("aggregate", _INT), ("output_type", _text(31)),
            ("create_time", _TIME), ("code_len", _INT), ("bufsize", _INT), ("func_language", _text(31)),
            ("func_body", _LINE), ("arguments", _LINE),
        ),
        "ins_ingests": (
            ("ingest_name", _NAME), ("state", _WORD), ("reason", _LINE), ("since", _TIME), ("connection", _NAME),
            ("source", _LINE), ("target_db", _NAME), ("target_table", _NAME), ("rows", _BIG), ("messages", _BIG),
            ("bytes", _BIG), ("errors", _BIG), ("unknown_fields", _BIG), ("lag", _BIG), ("last_error", _LINE),
            ("guarantee", _LINE), ("on_error", _WORD), ("tasks", _INT), ("attempt", _BIG), ("restarts", _BIG),
            ("create_time", _TIME), ("sql", _LINE),
        ),
        "ins_connections": (
            ("name", _NAME), ("type", _WORD), ("options", _LINE), ("create_time", _TIME), ("used_by", _LINE),
            ("state", _WORD), ("reason", _LINE), ("since", _TIME),
        ),
        "ins_indexes": (
            ("index_name", _TABLE), ("db_name", _NAME), ("table_name", _TABLE), ("vgroup_id", _INT),
            ("create_time", _TIME), ("columns", _text(4096)), ("index_type", _text(10)),
        ),
        "ins_configs": (("name", _text(64)), ("value", _text(1024)), ("unit", _WORD), ("comment", _LINE)),
        "ins_streams": (
            ("stream_name", _TABLE), ("create_time", _TIME), ("stream_id", _text(19)), ("history_id", _text(19)),
            ("sql", _LINE), ("status", _text(20)), ("source_db", _NAME), ("target_db", _NAME),
            ("target_table", _TABLE), ("watermark", _BIG), ("trigger", _text(24)), ("sink_quota", _text(20)),
            ("checkpoint_interval", _text(20)), ("checkpoint_backup", _LINE), ("history_scan_idle", _text(20)),
            ("message", _LINE), ("state", _text(20)), ("reason", _LINE), ("since", _TIME), ("attempt", _BIG),
            ("restarts", _BIG), ("rows_in", _BIG), ("rows_out", _BIG), ("late_rows", _BIG), ("lag", _BIG),
            ("event_time_watermark", _TIME), ("checkpoint_id", _BIG), ("checkpoint_time", _TIME),
            ("blocked_by", _text(64)), ("history", _text(128)), ("guarantee", _text(20)), ("delivery", _text(64)),
            ("verdict", _LINE), ("source_quota", _text(24)), ("history_quota", _text(24)),
            ("sink_calls_quota", _text(24)),
            ("state_bytes", _BIG), ("state_limit", _BIG), ("notify_sent", _BIG), ("notify_failed", _BIG),
            ("notify_waiting", _BIG), ("notify_error", _LINE), ("refused_rows", _BIG), ("verdict_kind", _text(20)),
            ("last_audit", _TIME), ("audited_cut", _LINE), ("audited_results", _BIG), ("mismatches", _BIG),
            ("audit_note", _LINE), ("forgotten_groups", _BIG),
        ),
        "ins_stream_tasks": (
            ("stream_name", _TABLE), ("task_id", _text(40)), ("node_type", _WORD), ("node_id", _INT),
            ("level", _text(20)), ("status", _text(20)), ("stage", _BIG), ("in_queue", _text(40)),
            ("process_total", _text(20)), ("process_throughput", _text(20)), ("out_total", _text(20)),
            ("out_throughput", _text(20)), ("info", _text(64)), ("start_time", _TIME), ("start_id", _BIG),
            ("start_ver", _BIG), ("checkpoint_time", _TIME), ("checkpoint_id", _BIG), ("checkpoint_ver", _BIG),
            ("checkpoint_size", _BIG), ("checkpoint_backup", _WORD), ("extra_info", _text(64)),
            ("history_task_id", _text(40)), ("history_task_status", _text(20)), ("state", _text(20)),
            ("reason", _LINE), ("since", _TIME), ("blocked_by", _text(64)), ("attempt", _BIG),
            ("input_bytes", _BIG), ("input_capacity", _BIG), ("input_peak", _BIG), ("output_bytes", _BIG),
            ("output_capacity", _BIG), ("output_peak", _BIG), ("rows_in", _BIG), ("rows_out", _BIG),
            ("bytes_in", _BIG), ("bytes_out", _BIG), ("processed_version", _BIG), ("wal_version", _BIG),
            ("lag", _BIG), ("event_time_watermark", _TIME), ("max_event_time", _TIME), ("idle", _BOOL),
            ("late_rows", _BIG), ("windows_open", _BIG), ("state_bytes", _BIG), ("history", _text(128)),
            ("udf_errors", _BIG), ("starved_percent", _DOUBLE), ("busy_percent", _DOUBLE),
            ("blocked_percent", _DOUBLE), ("blocked_seconds", _DOUBLE), ("udf_percent", _DOUBLE),
            ("state_capacity", _BIG), ("busy_total_seconds", _DOUBLE), ("blocked_total_seconds", _DOUBLE),
            ("udf_total_seconds", _DOUBLE), ("downstream", _LINE), ("aside_bytes", _BIG),
            ("wal_access", _WORD), ("worker_group", _text(96)), ("placement", _LINE),
            ("notify_sent", _BIG), ("notify_failed", _BIG), ("notify_waiting", _BIG), ("notify_error", _LINE),
            ("turns", _BIG), ("rows_per_turn", _DOUBLE), ("gathering_ms", _DOUBLE), ("refused_rows", _BIG),
            ("taken_rows", _BIG), ("handed_on_rows", _BIG), ("filtered_rows", _BIG), ("missing_rows", _BIG),
            ("unread_seconds", _DOUBLE), ("forgotten_groups", _BIG),
        ),
        "ins_stream_checkpoints": (
            ("stream_name", _TABLE), ("checkpoint_id", _BIG), ("state", _text(20)), ("start_time", _TIME),
            ("end_time", _TIME), ("duration_ms", _DOUBLE), ("bytes", _BIG), ("phase", _text(64)),
            ("slowest_task", _text(40)), ("slowest_ms", _DOUBLE), ("rows_to_replay", _BIG), ("versions", _LINE),
            ("reason", _LINE),
        ),
        "ins_stream_savepoints": (
            ("stream_name", _TABLE), ("savepoint", _text(64)), ("checkpoint_id", _BIG), ("create_time", _TIME),
            ("state", _text(20)), ("bytes", _BIG), ("versions", _LINE), ("reason", _LINE),
        ),
        "ins_stream_workers": (
            ("worker_group", _text(96)), ("worker", _INT), ("node_id", _INT), ("state", _text(20)),
            ("reason", _LINE), ("pid", _INT), ("address", _text(134)), ("last_heartbeat", _TIME), ("streams", _INT),
            ("failures", _INT), ("stream_names", _LINE), ("executor", _text(64)), ("host", _text(134)),
            ("slots", _INT), ("nice", _INT), ("memory_bytes", _BIG),
            ("gathering_ms", _DOUBLE),
        ),
        "ins_stream_memory": (
            ("process", _text(96)), ("pid", _INT), ("memory_bytes", _BIG), ("memory_limit", _BIG),
        ),
        "ins_ports": (
            ("port", _BIG), ("purpose", _WORD), ("connections", _BIG), ("strangers", _BIG), ("refused_login", _BIG),
            ("refused_strangers", _BIG), ("refused_address", _BIG), ("refused_total", _BIG),
        ),
        "ins_watermarks": (
            ("stream_name", _TABLE), ("node_id", _INT), ("event_time_watermark", _TIME), ("max_event_time", _TIME),
            ("upper_bound", _TIME), ("idle", _BOOL), ("lag", _BIG), ("late_rows", _BIG), ("late_kept", _BIG),
            ("future_rows", _BIG), ("error_rows", _BIG), ("idle_since", _TIME), ("holds_back", _BOOL),
            ("processed_version", _BIG), ("stream_watermark", _TIME), ("suggested_watermark", _text(64)),
            ("lateness", _LINE),
        ),
        "ins_late_rows": (
            ("stream_name", _TABLE), ("node_id", _INT), ("table_name", _TABLE), ("ts", _TIME), ("reason", _text(20)),
            ("late_by_ms", _BIG), ("ingest_time", _TIME), ("version", _BIG), ("message", _LINE),
        ),
        "ins_stream_incidents": (
            ("stream_name", _TABLE), ("incident", _BIG), ("found_time", _TIME), ("state", _text(20)),
            ("table_name", _TABLE), ("ts", _TIME), ("window_end", _TIME), ("stream_values", _LINE),
            ("query_values", _LINE), ("versions", _LINE), ("attempt", _BIG), ("action", _LINE), ("equal_since", _TIME),
            ("rows", _BIG), ("folder", _LINE),
        ),
        "ins_stream_events": (("event_time", _TIME), ("stream_name", _TABLE), ("event", _LINE)),
    },
    PERFORMANCE_SCHEMA: {
        "perf_connections": (
            ("conn_id", _BIG), ("user", _WORD), ("app", _text(24)), ("login_time", _TIME), ("last_access", _TIME),
        ),
        "perf_queries": (
            ("kill_id", _text(26)), ("conn_id", _BIG), ("create_time", _TIME), ("exec_usec", _BIG),
            ("sql", _text(1024)), ("progress", _LINE), ("user", _WORD),
        ),
    },
}

_TABLES = {
    (database, name): Table(
        number, database, name, "system",
        tuple(Column(column, kind, column) for column, kind in columns),
    )
    for number, (database, name, columns) in enumerate(
        ((database, name, columns) for database, tables in SCHEMAS.items() for name, columns in tables.items()), 1)
}
_DATABASES = {name: Database(name, DatabaseOptions(vgroups=1), (), 0) for name in DATABASES}


def database(name: str) -> Database | None:
    return _DATABASES.get(name)


def table(database_name: str, name: str) -> Table | None:
    return _TABLES.get((database_name, name.lower()))


def table_names(database_name: str) -> Iterable[str]:
    return SCHEMAS.get(database_name, {})
