"""What consumers have in common: the state of their connection, and what most of them needn't do."""

from __future__ import annotations

from penstock.common.clock import Clock
from penstock.common.errors import ExternalSystemError, PenstockError
from penstock.tasks.external.connectors.incoming_messages import MessageBatch, Positions
from penstock.tasks.protocol.deployment import IngestDeployment


class BaseConsumer:
    """A consumer that notes whether its source has answered (`_reached`), and why it doesn't (`_problem`).

    It begins at the positions that it was given, and doesn't know how many messages wait.
    """

    def __init__(self, deployment: IngestDeployment, clock: Clock) -> None:
        self._connection = deployment.connection
        self._clock = clock
        self._problem: ExternalSystemError | None = None
        self._reached = False

    def begun(self) -> Positions:
        return {}

    def done(self, batch: MessageBatch) -> None:
        """Positions say it all."""

    def committed(self, positions: Positions) -> None:
        """Nobody else wants to know."""

    def lag(self) -> int | None:
        return None

    def reached(self) -> bool:
        return self._reached

    def problem(self) -> PenstockError | None:
        return self._problem
