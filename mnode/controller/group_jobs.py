"""The jobs of worker groups: submitted, cancelled and forgotten, and on which executors their workers are."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.mnode.controller.controller_settings import ControllerSettings
from penstock.mnode.controller.group_runtime import Handle, Runtime, WorkerLaunch
from penstock.mnode.controller.mailbox import Mailbox
from penstock.mnode.controller.worker_roster import WorkerRoster
from penstock.mnode.groups import group_events
from penstock.tasks.worker.worker_process import WorkerSpec


class GroupJobs:
    """All jobs that Spark has. `control_address`: where workers say Hello."""

    def __init__(
        self, mailbox: Mailbox, workers: WorkerRoster, runtime: Runtime, launch: WorkerLaunch,
        settings: ControllerSettings, control_address: tuple[str, int],
    ) -> None:
        self._mailbox = mailbox
        self._workers = workers
        self._runtime = runtime
        self._launch = launch
        self._settings = settings
        self._control_address = control_address
        self._handles: dict[str, Handle] = {}
        #: executors' ids by place, of the groups of which they are known
        self.places: dict[str, Mapping[int, str]] = {}

    def __contains__(self, group: str) -> bool:
        return group in self._handles

    def unplaced(self) -> dict[str, Handle]:
        """Returns the jobs of which it isn't known where their workers are."""
        return {group: handle for group, handle in self._handles.items() if group not in self.places}

    def submit(self, instruction: group_events.SubmitGroup, on_end: Callable[[group_events.JobEnded], None]) -> None:
        """Starts a job; `on_end` is called on the mailbox's thread."""
        group, workers = instruction.group, instruction.nodes.workers
        settings, launch = self._settings, self._launch
        spec = WorkerSpec(
            group,
            self._control_address,
            launch.service_address,
            launch.secret,
            str(launch.root),
            settings.heartbeat_interval_s,
            settings.wal_poll_interval_s,
            settings.log_level,
            settings.log_format,
            settings.state_cache_bytes,
            settings.nice(instruction.isolation_class),
            settings.gather_share,
            settings.gather_time_s,
            launch.build,
        )
        description = f"penstock {group} on database {instruction.database}: {workers} workers"

        def ended(reason: str | None) -> None:
            self._mailbox.post(lambda: on_end(group_events.JobEnded(group, reason)))

        self._handles[group] = self._runtime.submit_group(spec, workers, description, ended)

    def cancel(self, group: str) -> None:
        """Drops the workers' connections, and has them killed."""
        self._workers.end(group)
        handle = self._handles.get(group)
        if handle is not None:
            handle.cancel()

    def cancel_all(self) -> None:
        for group in list(self._handles):
            self.cancel(group)

    def forget(self, group: str) -> None:
        """Lets go of a job that is over."""
        self._workers.end(group)
        self._handles.pop(group, None)
        self.places.pop(group, None)
