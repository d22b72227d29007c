"""A user's hold on an engine of this process.

Engines themselves are imported where they are opened: that takes a second, which clients of a server needn't wait for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.mnode.engine import Engine


class EngineLease:
    """One user's hold on an engine. `give_up` is called once, when the user needs it no more."""

    def __init__(self, engine: Engine, give_up: Callable[[], None]) -> None:
        self.engine = engine
        self._give_up: Callable[[], None] | None = give_up
        self._lock = threading.Lock()

    def login(self, user: str) -> int:
        """Returns the id under which perf_connections lists a connection of this user."""
        return self.engine.activity.login(user)

    def cancel(self, connection_id: int) -> None:
        """Ends what the statements of a connection compute."""
        self.engine.activity.end_connection(connection_id)

    def logout(self, connection_id: int) -> None:
        """Ends what `login` has begun."""
        self.engine.activity.logout(connection_id)

    def set_time_zone(self, name: str) -> None:
        """Does nothing: an engine in this process learns of the session's time zone with each statement."""

    def release(self) -> None:
        """Gives the engine up; the last one to do so closes it. A second call does nothing."""
        with self._lock:
            give_up, self._give_up = self._give_up, None
        if give_up is not None:
            give_up()
