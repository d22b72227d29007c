"""How a vnode keeps its data: the options that its database and the configuration give it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VnodeOptions:
    """How one vnode keeps its data. `flush_interval_s`: how stale the Parquet files may be for other readers.

    `wal_pin_max_bytes`: how much log a stream that lags may hold back before it is left behind. `replicated`: a cluster
    keeps copies of the log, and acknowledges what is written to it.
    """

    vgroup_id: int
    wal_level: int = 1
    wal_fsync_period_ms: int = 3000
    wal_retention_period_s: int = 3600
    wal_retention_size_kb: int = 0
    segment_bytes: int = 64 << 20
    memtable_bytes: int = 64 << 20
    flush_interval_s: float = 2.0
    compact_min_parts: int = 8
    part_grace_s: float = 60.0
    wal_pin_max_bytes: int | None = 8 << 30
    replicated: bool = False
