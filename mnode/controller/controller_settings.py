"""The numbers that the controller works by, taken from the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.common.config import is_local
from penstock.common.memory import limit_bytes
from penstock.common.quantities import MIB
from penstock.mnode.checkpoints.checkpoint_machine import CheckpointSettings
from penstock.mnode.groups.group_events import GroupSettings
from penstock.planner.task_plans.stream_plan import IsolationClass
from penstock.tasks.state.state_cache import DEFAULT_BYTES

if TYPE_CHECKING:
    from penstock.common.config import Config


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """The numbers that the controller works by."""

    groups: GroupSettings = field(default_factory=GroupSettings)
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    heartbeat_interval_s: float = 1.0
    heartbeat_timeout_s: float = 15.0
    wal_poll_interval_s: float = 0.0005
    stall_timeout_s: float = 30.0
    queue_budget_bytes: int = 0
    state_cache_bytes: int = DEFAULT_BYTES
    memory_limit_bytes: int = 0
    apart_nice: int = 0
    gather_share: float = 0.2
    gather_time_s: float = 0.02
    executors_interval_s: float = 2.0
    final_checkpoint_timeout_s: float = 10.0
    close_timeout_s: float = 5.0
    log_level: str = "warning"
    log_format: str = "text"
    host: str = "127.0.0.1"

    @classmethod
    def from_config(cls, config: Config, memory_bytes: int, processors: int) -> ControllerSettings:
        """`memory_bytes`: how much memory there is; `processors`: how many this machine has.

        One processor is the engine's. Of a cluster nobody knows how many it has, or would give.
        """
        return cls(
            GroupSettings(
                streams_per_worker=config.streams_per_worker,
                packed_streams_per_worker=config.packed_streams_per_worker,
                processors=max(1, processors - 1) if is_local(config.spark["spark.master"]) else 0,
                idle_timeout_s=config.worker_idle_timeout,
                start_timeout_s=config.worker_start_timeout,
                restart_delay_min_s=config.restart_delay_min,
                restart_delay_max_s=config.restart_delay_max,
            ),
            CheckpointSettings(config.checkpoint_interval, config.checkpoint_timeout),
            heartbeat_interval_s=config.heartbeat_interval,
            heartbeat_timeout_s=config.heartbeat_timeout,
            wal_poll_interval_s=config.wal_poll_interval,
            stall_timeout_s=config.stall_timeout,
            queue_budget_bytes=config.queue_budget,
            state_cache_bytes=config.max_stream_backend_cache * MIB,
            memory_limit_bytes=limit_bytes(config.memory_limit, memory_bytes),
            apart_nice=config.apart_nice,
            gather_share=config.gather_share,
            gather_time_s=config.gather_time,
            log_level=config.log_level,
            log_format=config.log_format,
            host=config.worker_host,
        )

    def nice(self, isolation_class: IsolationClass) -> int:
        """Returns how much lower the priority of a group's processes is."""
        return 0 if isolation_class is IsolationClass.ANY else self.apart_nice
