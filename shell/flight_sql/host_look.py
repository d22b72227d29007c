"""Asks the hosts of a cluster, all at once, which of them is active: one that says nothing keeps nobody waiting."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence

from penstock.common.errors import CancelledError, PenstockError, UnavailableError
from penstock.mnode.access.session import SessionState
from penstock.shell.flight_sql.client import RemoteEngine

Connect = Callable[[str, int], RemoteEngine]
_LOOK = "SELECT role FROM information_schema.ins_cluster WHERE id = told_by OR told_by IS NULL"


def is_active(engine: RemoteEngine) -> bool:
    """Tells whether a node is the active one, or belongs to no cluster. Raises UnavailableError if it says nothing."""
    rows = engine.execute(_LOOK, SessionState("UTC")).table
    roles = [] if rows is None else rows.column(0).to_pylist()
    return roles in ([None], ["active"])


class HostLook:
    """One look. `problem`: why the last host that has said something couldn't be asked; `silent`: who hasn't yet."""

    def __init__(self, hosts: Sequence[tuple[str, int]], connect: Connect) -> None:
        self.problem: PenstockError | None = None
        self.silent = set(hosts)
        self._connect = connect
        self._lock = threading.Lock()
        self._ended = False
        self._asked: list[RemoteEngine] = []
        self._answers: queue.SimpleQueue[tuple[tuple[str, int], RemoteEngine | None, PenstockError | None]] = (
            queue.SimpleQueue())
        for host in hosts:
            threading.Thread(target=self._ask, args=(host,), name="penstock-host-look", daemon=True).start()

    def active(self, timeout_s: float, rest_s: float | None = None) -> tuple[tuple[str, int], RemoteEngine] | None:
        """Returns the first host that says that it is active, and a session there; None if all have answered, or nobody
        has for so long. `rest_s`: how long to wait for the next one once some host has answered.

        Raises what hosts raise, but for UnavailableError.
        """
        while self.silent:
            try:
                host, engine, problem = self._answers.get(timeout=timeout_s)
            except queue.Empty:
                return None
            timeout_s = timeout_s if rest_s is None else rest_s
            self.silent.discard(host)
            if engine is not None:
                return host, engine
            if problem is not None and not isinstance(problem, UnavailableError):
                raise problem
            self.problem = problem or self.problem
        return None

    def end(self) -> None:
        """Lets go of all sessions but the one that `active` has returned."""
        with self._lock:
            self._ended, asked, self._asked = True, self._asked, []
        for engine in asked:
            engine.let_go()

    def _ask(self, host: tuple[str, int]) -> None:
        engine = None
        try:
            engine = self._connect(*host)
            if not self._note(engine):
                engine.let_go()
                return
            active = is_active(engine)
            if not self._forget(engine):
                return
            if not active:
                engine.close()
            self._answers.put((host, engine if active else None, None))
        except CancelledError:  # it was let go
            return
        except PenstockError as error:
            self._answers.put((host, None, error))

    def _note(self, engine: RemoteEngine) -> bool:
        """Has `end` let go of a session; returns whether it hasn't been called yet."""
        with self._lock:
            self._asked.append(engine)
            return not self._ended

    def _forget(self, engine: RemoteEngine) -> bool:
        """Keeps a session from `end`; returns whether that hasn't let go of it."""
        with self._lock:
            if self._ended:
                return False
            self._asked.remove(engine)
            return True
