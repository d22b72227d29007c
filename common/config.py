"""Configuration: built-in file, user's file, environment and command line become one frozen `Config`.

Defaults and comments live in conf/penstock.toml, types and bounds here. Nothing is read at import, and
there is no global.
"""

from __future__ import annotations

import dataclasses
import os
import re
import tomllib
import zoneinfo
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from penstock.common.errors import ConfigError
from penstock.common.memory import share_of
from penstock.common.quantities import (
    DAY,
    GIB,
    HOUR,
    KIB,
    MIB,
    MINUTE,
    PIB,
    TIB,
    read_duration,
    read_size,
    seconds_text,
    size_text,
)
from penstock.common.suggestions import did_you_mean

Kind = Literal["duration", "size", "integer", "number", "flag", "text", "choice", "path", "timezone", "memory"]
Value = str | int | float | bool

CONF_DIRECTORY = Path(__file__).resolve().parent.parent / "conf"
_MEMORY_LEAST = 64 * MIB
ENVIRONMENT_PREFIX = "PENSTOCK_"
SPARK_PREFIX = "spark."
LOOPBACK = "127.0.0.1"
_MASTER, _DRIVER_HOST = "spark.master", "spark.driver.host"
AUTHENTICATE = "spark.authenticate"
SECRET = "spark.authenticate.secret"
SECRET_FILE = "spark.authenticate.secret.file"
_SECRET_NAME = re.compile(r"secret(?!\.file)|password|token|access[.]?key", re.IGNORECASE)
_EVERY_ADDRESS = ("0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class Key:
    """What is known of a key besides its default: `name` as users write it, inclusive bounds.

    Bounds of durations are in seconds, of sizes in bytes. `or_zero` allows 0 although it is below `low`, `or_empty`
    text of no characters.
    """

    name: str
    section: str
    kind: Kind
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    or_zero: bool = False
    or_empty: bool = False


def _key(
    section: str, kind: Kind, low: float | None = None, high: float | None = None, **more: Any
) -> dict[str, Any]:
    return {"section": section, "kind": kind, "low": low, "high": high, **more}


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of an engine. Durations are seconds, sizes bytes; conf/penstock.toml says what each means.

    Field names are the keys in snake case: `streamQueueSize` is `stream_queue_size`. `timezone` is an IANA
    name ("system" is resolved). `spark` holds the keys of the [spark] table with their `spark.` prefix.
    """

    host: str = field(metadata=_key("engine", "text"))
    timezone: str = field(metadata=_key("engine", "timezone"))
    disable_stream: bool = field(metadata=_key("engine", "flag"))
    udf_dir: Path = field(metadata=_key("engine", "path"))

    flight_port: int = field(metadata=_key("server", "integer", 1, 65_535, or_zero=True))
    flight_message_max: int = field(metadata=_key("server", "size", MIB, GIB))
    flight_calls_max: int = field(metadata=_key("server", "integer", 4, 10_000))
    postgres_port: int = field(metadata=_key("server", "integer", 1, 65_535, or_zero=True))
    http_port: int = field(metadata=_key("server", "integer", 1, 65_535, or_zero=True))
    taos_adapter_port: int = field(metadata=_key("server", "integer", 1, 65_535, or_zero=True))
    request_size_max: int = field(metadata=_key("server", "size", KIB, GIB))
    token_lifetime: float = field(metadata=_key("server", "duration", MINUTE, 365 * DAY))
    connections_max: int = field(metadata=_key("server", "integer", 4, 100_000))
    connections_per_address_max: int = field(metadata=_key("server", "integer", 2, 100_000))
    strangers_max: int = field(metadata=_key("server", "integer", 2, 100_000))
    login_timeout: float = field(metadata=_key("server", "duration", 0.1, HOUR))
    body_rate_min: int = field(metadata=_key("server", "size", 1, GIB))
    trust_loopback: bool = field(metadata=_key("server", "flag"))
    socket_path: Path = field(metadata=_key("server", "path"))
    tls_certificate: str = field(metadata=_key("server", "text", or_empty=True))
    tls_key: str = field(metadata=_key("server", "text", or_empty=True))

    query_timeout: float = field(metadata=_key("queries", "duration", 0.001, 365 * DAY, or_zero=True))
    query_memory: str = field(metadata=_key("queries", "memory"))
    query_threads: int = field(metadata=_key("queries", "integer", 1, 1024, or_zero=True))
    query_process: bool = field(metadata=_key("queries", "flag"))
    query_nice: int = field(metadata=_key("queries", "integer", 0, 19))
    spill_max: int = field(metadata=_key("queries", "size", MIB, PIB))
    queries_max: int = field(metadata=_key("queries", "integer", 1, 10_000))
    queries_per_user_max: int = field(metadata=_key("queries", "integer", 1, 10_000))
    queries_waiting_max: int = field(metadata=_key("queries", "integer", 0, 10_000))
    query_wait: float = field(metadata=_key("queries", "duration", 0, HOUR))
    query_words_max: int = field(metadata=_key("queries", "integer", 100, 100_000_000, or_zero=True))
    result_rows_max: int = field(metadata=_key("queries", "integer", 1, 1_000_000_000_000, or_zero=True))
    result_size_max: int = field(metadata=_key("queries", "size", KIB, 16 * TIB, or_zero=True))

    wal_segment_size: int = field(metadata=_key("wal", "size", 64 * KIB, 4 * GIB))
    wal_poll_interval: float = field(metadata=_key("wal", "duration", 0.0001, 1))
    wal_pin_max: int = field(metadata=_key("wal", "size", MIB, PIB))

    memtable_size: int = field(metadata=_key("vnode", "size", 64 * KIB, 16 * GIB))
    view_refresh_interval: float = field(metadata=_key("vnode", "duration", 0.05, HOUR))
    part_grace: float = field(metadata=_key("vnode", "duration", 0, DAY))
    compact_min_parts: int = field(metadata=_key("vnode", "integer", 2, 1000))

    stream_queue_size: int = field(metadata=_key("streams", "size", 64 * KIB, 4 * GIB))
    queue_budget: int = field(metadata=_key("streams", "size", MIB, 16 * TIB, or_zero=True))
    stream_buffer_size: int = field(metadata=_key("streams", "size", MIB, TIB))
    max_stream_backend_cache: int = field(metadata=_key("streams", "integer", 16, 1024))
    block_rows_max: int = field(metadata=_key("streams", "integer", 1, 10_000_000))
    block_bytes_max: int = field(metadata=_key("streams", "size", 4 * KIB, GIB))
    idle_timeout: float = field(metadata=_key("streams", "duration", 0, DAY))
    stream_time: str = field(metadata=_key("streams", "choice", choices=("event", "ingestion", "processing")))
    allowed_lateness: float = field(metadata=_key("streams", "duration", 0, 365 * DAY))
    close_when_idle: bool = field(metadata=_key("streams", "flag"))
    max_future: float = field(metadata=_key("streams", "duration", 1, 36_500 * DAY, or_zero=True))
    max_skew: float = field(metadata=_key("streams", "duration", 1, 36_500 * DAY, or_zero=True))
    late_rows: str = field(metadata=_key("streams", "choice", choices=("drop", "recalc")))
    on_error: str = field(metadata=_key("streams", "choice", choices=("null", "fail", "skip")))
    audit_share: float = field(metadata=_key("streams", "number", 0.0001, 1, or_zero=True))
    writer_timeout: float = field(metadata=_key("streams", "duration", 0.001, DAY))
    state_limit: int = field(metadata=_key("streams", "size", MIB, 16 * TIB, or_zero=True))
    state_map_size: int = field(metadata=_key("streams", "size", 16 * MIB, 16 * TIB))
    source_rate: float = field(metadata=_key("streams", "number", 1, 1_000_000_000, or_zero=True))
    history_rate: float = field(metadata=_key("streams", "number", 1, 1_000_000_000, or_zero=True))
    lookup_freshness: float = field(metadata=_key("streams", "duration", 0.1, DAY))

    sink_calls_per_second: float = field(metadata=_key("sinks", "number", 0.1, 100_000))
    sink_tables_share: float = field(metadata=_key("sinks", "number", 0.01, 1))
    stream_sink_data_rate: float = field(metadata=_key("sinks", "number", 0.1, 5, or_zero=True))
    emit_retry_time: float = field(metadata=_key("sinks", "duration", 0, 365 * DAY))
    sent_record_size: int = field(metadata=_key("sinks", "size", MIB, TIB, or_zero=True))

    checkpoint_interval: float = field(metadata=_key("checkpoints", "duration", 0.1, DAY))
    ingest_checkpoint_interval: float = field(metadata=_key("checkpoints", "duration", 0.1, DAY))
    checkpoint_timeout: float = field(metadata=_key("checkpoints", "duration", 1, DAY))
    checkpoints_kept: int = field(metadata=_key("checkpoints", "integer", 1, 100))
    checkpoint_backup_dir: str = field(metadata=_key("checkpoints", "text", or_empty=True))
    checkpoint_backup_key: str = field(metadata=_key("checkpoints", "text", or_empty=True))
    checkpoint_backup_interval: float = field(metadata=_key("checkpoints", "duration", 0, DAY))

    streams_per_worker: int = field(metadata=_key("workers", "integer", 1, 60))
    packed_streams_per_worker: int = field(metadata=_key("workers", "integer", 1, 60))
    apart_nice: int = field(metadata=_key("workers", "integer", 0, 19))
    gather_share: float = field(metadata=_key("workers", "number", 0.01, 1))
    gather_time: float = field(metadata=_key("workers", "duration", 0, 10))
    worker_idle_timeout: float = field(metadata=_key("workers", "duration", 0, DAY))
    heartbeat_interval: float = field(metadata=_key("workers", "duration", 0.01, MINUTE))
    heartbeat_timeout: float = field(metadata=_key("workers", "duration", 0.1, HOUR))
    stall_timeout: float = field(metadata=_key("workers", "duration", 1, DAY))
    worker_start_timeout: float = field(metadata=_key("workers", "duration", 1, HOUR))
    memory_limit: str = field(metadata=_key("workers", "memory"))
    compute_memory: int = field(metadata=_key("workers", "size", 64 * MIB, 16 * TIB))
    restart_delay_min: float = field(metadata=_key("workers", "duration", 0.01, HOUR))
    restart_delay_max: float = field(metadata=_key("workers", "duration", 0.01, DAY))

    cluster_node: int = field(metadata=_key("cluster", "integer", 1, 99, or_zero=True))
    cluster_nodes: str = field(metadata=_key("cluster", "text", or_empty=True))
    cluster_certificate: str = field(metadata=_key("cluster", "text", or_empty=True))
    cluster_key: str = field(metadata=_key("cluster", "text", or_empty=True))
    cluster_authority: str = field(metadata=_key("cluster", "text", or_empty=True))
    zookeeper: str = field(metadata=_key("cluster", "text", or_empty=True))
    zookeeper_path: str = field(metadata=_key("cluster", "text"))
    zookeeper_authority: str = field(metadata=_key("cluster", "text", or_empty=True))
    zookeeper_certificate: str = field(metadata=_key("cluster", "text", or_empty=True))
    zookeeper_key: str = field(metadata=_key("cluster", "text", or_empty=True))
    zookeeper_login_file: str = field(metadata=_key("cluster", "text", or_empty=True))
    session_timeout: float = field(metadata=_key("cluster", "duration", 1, MINUTE))
    replica_timeout: float = field(metadata=_key("cluster", "duration", 0.1, HOUR))
    checkpoint_copy_interval: float = field(metadata=_key("cluster", "duration", 0, DAY))
    standby_spark: bool = field(metadata=_key("cluster", "flag"))

    metrics_port: int = field(metadata=_key("monitoring", "integer", 1, 65_535, or_zero=True))
    ui_port: int = field(metadata=_key("monitoring", "integer", 1, 65_535, or_zero=True))

    log_level: str = field(metadata=_key("log", "choice", choices=("debug", "info", "warning", "error")))
    log_format: str = field(metadata=_key("log", "choice", choices=("text", "json")))
    audit_log: str = field(metadata=_key("log", "choice", choices=("off", "changes", "all")))
    log_dir: Path = field(metadata=_key("log", "path"))
    log_file_size: int = field(metadata=_key("log", "size", 64 * KIB, GIB))
    log_files_kept: int = field(metadata=_key("log", "integer", 0, 1000))

    sml_child_table_name: str = field(metadata=_key("schemaless", "text", or_empty=True))
    sml_auto_child_table_name_delimiter: str = field(metadata=_key("schemaless", "text", or_empty=True))

    shell_rows_max: int = field(metadata=_key("shell", "integer", 1, 10_000_000))
    max_binary_display_width: int = field(metadata=_key("shell", "integer", 1, 16_384))
    history_file: Path = field(metadata=_key("shell", "path"))

    spark: Mapping[str, str]

    def items(self) -> list[tuple[str, str]]:
        """Returns every key with its value as text, in the order of the file; for SHOW VARIABLES."""
        known = [(key.name, format_value(key, getattr(self, name))) for name, key in keys().items()]
        return known + [(name, "..." if is_secret(name) else value) for name, value in sorted(self.spark.items())]

    @property
    def worker_host(self) -> str:
        """Where the engine, and its Spark, listen for workers: on loopback if those are this machine's."""
        return self.spark.get(_DRIVER_HOST) or (LOOPBACK if is_local(self.spark[_MASTER]) else self.host)

    def spark_properties(self) -> dict[str, str]:
        """Returns Spark's properties: `worker_host`, conf/spark-defaults.conf, then the [spark] table on top."""
        own = {_DRIVER_HOST: self.worker_host, "spark.driver.bindAddress": self.worker_host}
        lines = (CONF_DIRECTORY / "spark-defaults.conf").read_text("utf-8").splitlines()
        pairs = (line.split(None, 1) for line in lines if line.strip() and not line.startswith("#"))
        return own | {name: value.strip() for name, value in pairs} | dict(self.spark)


def is_local(master: str) -> bool:
    """Tells whether Spark's workers are processes of this machine, forked or started by the engine's own."""
    return master.startswith("local")


def is_secret(name: str) -> bool:
    """Tells whether a setting of Spark must be shown to nobody, by its name, as Spark itself decides that."""
    return _SECRET_NAME.search(name) is not None


# --- reading --------------------------------------------------------------------------------------


def load_config(
    source: Config | str | os.PathLike[str] | Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Config:
    """Returns the configuration from all layers: built-in file < user's file < environment < `overrides`.

    `source` is the path of a user's file, a mapping of keys to values (which ranks above the environment), a
    `Config` to start from (which has its layers already), or None for the defaults. `environment` is
    `os.environ` unless given. Raises `ConfigError` that lists all unknown keys and bad values of all layers.
    """
    environment = os.environ if environment is None else environment
    loader = _Loader()
    if isinstance(source, Config):
        loader.start_from(source)
    else:
        loader.take(_shipped(), CONF_DIRECTORY / "penstock.toml")
        if source is not None and not isinstance(source, Mapping):
            loader.read_file(Path(source))
        loader.read_environment(environment)
        if isinstance(source, Mapping):
            loader.read_flat(source, "configuration")
    loader.read_flat(overrides or {}, "--set")
    return loader.finish(environment)


@cache
def _shipped() -> Mapping[str, Any]:
    """Returns what the shipped file says: it is read once, and stays as it is while the process runs."""
    return MappingProxyType(_read_toml(CONF_DIRECTORY / "penstock.toml"))


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.expanduser().open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def parse_assignment(text: str) -> tuple[str, str]:
    """Returns key and value of `key=value` as the command line gives it; raises `ConfigError`."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"--set {text}: expected key=value", hint="for example --set checkpointInterval=1m")
    return name.strip(), value.strip()


class _Loader:
    """Collects values layer by layer, and all complaints."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._spark: dict[str, str] = {}
        self._errors: list[str] = []
        self._fields = {key.name: name for name, key in keys().items()}

    def start_from(self, config: Config) -> None:
        self._values = {name: getattr(config, name) for name in keys()}
        self._spark = dict(config.spark)

    def read_file(self, path: Path) -> None:
        self.take(_read_toml(path), path)

    def take(self, content: Mapping[str, Any], path: Path) -> None:
        """Takes what stands in a file."""
        for name, value in content.items():
            if name == "spark" and isinstance(value, dict):
                self._read_spark(value, SPARK_PREFIX, str(path))
            elif isinstance(value, dict):
                self._read_section(name, value, path)
            else:
                self._set(name, value, str(path))

    def read_environment(self, environment: Mapping[str, str]) -> None:
        by_variable = {environment_variable(name): name for name in [*self._fields, _MASTER]}
        for variable in sorted(environment):
            if not variable.startswith(ENVIRONMENT_PREFIX):
                continue
            if variable in by_variable:
                self._set(by_variable[variable], environment[variable], variable)
            else:
                self._errors.append(f"{variable}: no such key{_did_you_mean(variable, by_variable)}")

    def read_flat(self, values: Mapping[str, Any], origin: str) -> None:
        for name, value in values.items():
            self._set(name, value, origin)

    def finish(self, environment: Mapping[str, str]) -> Config:
        self._check_relations()
        self._check_worker_host()
        self._check_cluster_secret()
        if self._errors:
            count = len(self._errors)
            heading = "bad configuration" if count == 1 else f"bad configuration, {count} mistakes"
            lines = f" {self._errors[0]}" if count == 1 else "\n  " + "\n  ".join(self._errors)
            raise ConfigError(f"{heading}:{lines}")
        if self._values["timezone"] == "system":
            self._values["timezone"] = system_time_zone(environment)
        return Config(**self._values, spark=self._spark)

    def _read_section(self, section: str, values: Mapping[str, Any], path: Path) -> None:
        sections = sorted({key.section for key in keys().values()})
        if section not in sections:
            self._errors.append(f"{path}: no section [{section}]{_did_you_mean(section, sections)}")
            return
        for name, value in values.items():
            if name in self._fields and (home := keys()[self._fields[name]].section) != section:
                self._errors.append(f"{path}: {name} belongs into section [{home}], not [{section}]")
            else:
                self._set(name, value, str(path))

    def _read_spark(self, values: Mapping[str, Any], prefix: str, origin: str) -> None:
        for name, value in values.items():
            if isinstance(value, dict):
                self._read_spark(value, f"{prefix}{name}.", origin)
            else:
                self._set(prefix + name, value, origin)

    def _set(self, name: str, value: Any, origin: str) -> None:
        if name.startswith(SPARK_PREFIX):
            self._spark[name] = str(value).lower() if isinstance(value, bool) else str(value)
        elif name not in self._fields:
            guess = _did_you_mean(name, [*self._fields, _MASTER])
            self._errors.append(f"{origin}: no key {name}{guess}")
        else:
            attribute = self._fields[name]
            try:
                self._values[attribute] = read_value(keys()[attribute], value)
            except ValueError as error:
                self._errors.append(f"{origin}: {name} = {value!r}: {error}")

    def _check_worker_host(self) -> None:
        """Checks that workers on other machines are told an address to call."""
        host = self._spark.get(_DRIVER_HOST) or self._values.get("host")
        master = self._spark.get(_MASTER, "local")
        if host in _EVERY_ADDRESS and not is_local(master):
            self._errors.append(f"host = {host!r}: workers of {master} need one address to call; set spark.driver.host")

    def _check_cluster_secret(self) -> None:
        """Checks that a cluster with a master of its own gets what its processes prove to each other, or needs none."""
        master = self._spark.get(_MASTER, "local")
        known = self._spark.get(SECRET) or self._spark.get(SECRET_FILE)
        if master.startswith("spark://") and not known and self._spark.get(AUTHENTICATE) != "false":
            self._errors.append(
                f"{SECRET_FILE}: {master} and the engine need a secret that they share; or set {AUTHENTICATE} = false, "
                "and anyone who reaches their ports can run programs there (docs/cluster.md)")

    def _check_relations(self) -> None:
        """Checks bounds that depend on each other; each pair with the reason why it must hold."""
        for smaller, larger, factor, reason in RELATIONS:
            if smaller not in self._values or larger not in self._values:
                continue
            if self._values[smaller] * factor > self._values[larger]:
                first, second = keys()[smaller], keys()[larger]
                times = f"{factor} times " if factor != 1 else ""
                self._errors.append(
                    f"{times}{first.name} ({format_value(first, self._values[smaller])}) must not exceed "
                    f"{second.name} ({format_value(second, self._values[larger])}): {reason}"
                )


#: (smaller, larger, factor, reason): smaller * factor <= larger.
RELATIONS: tuple[tuple[str, str, int, str], ...] = (
    ("strangers_max", "connections_max", 1, "who has logged in needs room, too"),
    ("connections_per_address_max", "connections_max", 1, "one address must not have more than all"),
    ("block_bytes_max", "stream_queue_size", 1, "a block must fit into a queue"),
    ("heartbeat_interval", "heartbeat_timeout", 3, "one late heartbeat must not cost a worker its place"),
    ("restart_delay_min", "restart_delay_max", 1, "the wait between restarts grows from one to the other"),
    ("wal_segment_size", "wal_pin_max", 1, "WAL is held and removed by whole segments"),
    ("stream_buffer_size", "state_map_size", 1, "a checkpoint writes what is in memory to LMDB"),
)


# --- keys and values ------------------------------------------------------------------------------


@cache
def keys() -> dict[str, Key]:
    """Returns the known keys by field name of `Config`, in the order of the file."""
    return {
        item.name: Key(name=_camel_case(item.name), **item.metadata)
        for item in dataclasses.fields(Config)
        if item.metadata
    }


def environment_variable(name: str) -> str:
    """Returns the variable that sets a key: `checkpointInterval` is PENSTOCK_CHECKPOINT_INTERVAL."""
    return ENVIRONMENT_PREFIX + re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).replace(".", "_").upper()


def read_value(key: Key, value: Any) -> Any:
    """Returns `value` in the type of the key's field; raises `ValueError` that says what would be right."""
    return _check_bounds(key, _READERS[key.kind](key, value))


def format_value(key: Key, value: Any) -> str:
    """Returns a value as the file would have it, without quotes."""
    if key.kind == "duration":
        return seconds_text(value)
    if key.kind == "size":
        return size_text(value)
    if key.kind == "flag":
        return "true" if value else "false"
    return str(value)


def describe_values(key: Key) -> str:
    """Returns what a key accepts, as the comments of the file and the documentation say it."""
    if key.kind == "flag":
        return "true or false"
    if key.kind == "choice":
        return "One of " + ", ".join(key.choices)
    if key.kind == "timezone":
        return 'IANA name or "system"'
    if key.kind == "memory":
        return f"Size from {size_text(_MEMORY_LEAST)} on, a share of what there is such as 90%, or 0"
    if key.kind in ("text", "path"):
        return key.kind.capitalize()
    word = "Number" if key.kind in ("integer", "number") else key.kind.capitalize()
    zero = ", or 0" if key.or_zero else ""
    return f"{word}, {_format_bound(key, key.low)} to {_format_bound(key, key.high)}{zero}"


def system_time_zone(environment: Mapping[str, str], localtime: Path = Path("/etc/localtime")) -> str:
    """Returns the machine's zone as an IANA name: TZ, else what /etc/localtime points to, else UTC."""
    candidates = [environment.get("TZ", "").lstrip(":")]
    if localtime.is_symlink():
        candidates.append(str(localtime.readlink()).partition("zoneinfo/")[2])
    return next((name for name in candidates if name and _is_time_zone(name)), "UTC")


_TRUE, _FALSE = ("true", "1", "on", "yes"), ("false", "0", "off", "no")


def _read_duration(key: Key, value: Any) -> float:
    return read_duration(value)


def _read_size(key: Key, value: Any) -> int:
    return read_size(value)


def _read_memory(key: Key, value: Any) -> str:
    share = share_of(str(value))
    if share is None:
        size = read_size(value)
        if 0 < size < _MEMORY_LEAST:
            raise ValueError(f"out of range ({describe_values(key)})")
        return size_text(size)
    if not 0 < share <= 1:
        raise ValueError("expected a share from 1% to 100%")
    return f"{100 * share:g}%"


def _read_number(key: Key, value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError("expected a number")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError("expected a number") from None


def _read_integer(key: Key, value: Any) -> int:
    number = _read_number(key, value)
    if not number.is_integer():
        raise ValueError("expected a whole number")
    return int(number)


def _read_flag(key: Key, value: Any) -> bool:
    text = str(value).strip().lower()
    if text not in _TRUE + _FALSE:
        raise ValueError("expected true or false")
    return text in _TRUE


def _read_text(key: Key, value: Any) -> str:
    if not isinstance(value, str) or not (value.strip() or key.or_empty):
        raise ValueError("expected a text")
    return value.strip()


def _read_choice(key: Key, value: Any) -> str:
    text = str(value).strip().lower()
    if text not in key.choices:
        raise ValueError(f"expected one of {', '.join(key.choices)}{_did_you_mean(text, key.choices)}")
    return text


def _read_path(key: Key, value: Any) -> Path:
    if isinstance(value, Path):
        return value
    return Path(_read_text(key, value)).expanduser()


def _read_time_zone(key: Key, value: Any) -> str:
    name = _read_text(key, value)
    if name != "system" and not _is_time_zone(name):
        raise ValueError(f"no such zone{_did_you_mean(name, zoneinfo.available_timezones())}")
    return name


_READERS: dict[Kind, Callable[[Key, Any], Any]] = {
    "duration": _read_duration,
    "size": _read_size,
    "integer": _read_integer,
    "number": _read_number,
    "flag": _read_flag,
    "text": _read_text,
    "choice": _read_choice,
    "path": _read_path,
    "timezone": _read_time_zone,
    "memory": _read_memory,
}


def _check_bounds(key: Key, value: Any) -> Any:
    if key.low is None or key.high is None or (key.or_zero and value == 0):
        return value
    if not key.low <= value <= key.high:  # also refuses NaN
        raise ValueError(f"out of range ({describe_values(key)})")
    return value


def _is_time_zone(name: str) -> bool:
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def _format_bound(key: Key, bound: float | None) -> str:
    assert bound is not None, f"{key.name} has no bounds"
    if key.kind in ("duration", "size"):
        return format_value(key, bound)
    return f"{bound:g}" if bound != int(bound) else str(int(bound))


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    hint = did_you_mean(name, known)
    return f" ({hint})" if hint else ""
