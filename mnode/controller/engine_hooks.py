"""What the controller asks of the engine that it runs streams for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.common.memory import Memory
from penstock.mnode.catalog.catalog_records import PauseCause
from penstock.vnode.read.vnode_reader import LoggedRows


@dataclass(frozen=True, slots=True)
class EngineHooks:
    """Calls into the engine; all of them are made by helper threads, `end_queries` and `logged` by the controller's.

    `on_checkpoint(stream id, {vgroup id: version})` is called after each commit: WAL up to these versions isn't needed
    any more, not even for a restart from the oldest record that is kept. `before_commit(stream id)` is called before
    each commit, and makes durable what the stream has read and written; if it raises, the checkpoint is abandoned.
    `on_pause(stream id, cause)` is called for a stream that was paused because it has more than it may have.
    `measure(near)` is called once per heartbeat, and returns what all processes take, exactly from `near` bytes on;
    None: memory isn't watched. `end_queries(shortage)` ends the queries that run, and returns how many.
    `logged(vgroup id, table uid)` tells at once what a vnode's log has of a table; None: nobody can say.
    """

    on_checkpoint: Callable[[int, Mapping[int, int]], None] = lambda stream_id, versions: None
    before_commit: Callable[[int], None] = lambda stream_id: None
    on_pause: Callable[[int, PauseCause], None] = lambda stream_id, cause: None
    measure: Callable[[float], Memory] | None = None
    end_queries: Callable[[str], int] = lambda shortage: 0
    logged: Callable[[int, int], LoggedRows | None] = lambda vgroup_id, table_uid: None
