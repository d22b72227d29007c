"""Writers that wait until the cluster has what they wrote: told so, told that too few nodes are there, or neither."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.common.errors import ReplicasMissingError


@dataclass(frozen=True, slots=True)
class AcknowledgementWait:
    """A writer waits for `version` of a log. Its number is drawn when it comes."""

    number: int
    log: int
    version: int
    until: float


@dataclass(frozen=True, slots=True)
class WaitEnded:
    """What a writer is told; no error: all that count have it."""

    wait: AcknowledgementWait
    error: ReplicasMissingError | None


class AcknowledgementWaits:
    """The writers that wait on one active node. `timeout_s` is `replicaTimeout`."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._numbers = itertools.count(1)
        self._waits: dict[int, AcknowledgementWait] = {}

    def __len__(self) -> int:
        return len(self._waits)

    def add(self, now: float, log: int, version: int) -> AcknowledgementWait:
        """A writer has written up to `version` and waits."""
        wait = AcknowledgementWait(next(self._numbers), log, version, now + self._timeout_s)
        self._waits[wait.number] = wait
        return wait

    def poll(self, now: float, acknowledged: Mapping[int, int], missing: Callable[[int], str]) -> list[WaitEnded]:
        """Returns whose waits end now. `missing`: tells of a log what it waits for."""
        ended = []
        for wait in self._waits.values():
            if acknowledged.get(wait.log, 0) >= wait.version:
                ended.append(WaitEnded(wait, None))
            elif now >= wait.until:
                ended.append(WaitEnded(wait, ReplicasMissingError(
                    f"the rows are written here, but {missing(wait.log)} after {self._timeout_s:g} s",
                    hint="raise replicaTimeout, or let the database continue with fewer nodes: ALTER DATABASE")))
        for one in ended:
            del self._waits[one.wait.number]
        return ended

    def end(self, reason: str) -> list[WaitEnded]:
        """The node is active no more: nobody can say here what becomes of what they wrote."""
        ended = [WaitEnded(wait, ReplicasMissingError(
            f"the rows are written here, but not acknowledged, and this node is no longer active: {reason}",
            hint="ask the active node, or write the same rows again there")) for wait in self._waits.values()]
        self._waits.clear()
        return ended
