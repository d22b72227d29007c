"""The parts that execute statements on streams: planning, creation, start, control, checkpoints, reports, removal.

What a stream computes is planned elsewhere, how it runs is the controller's business; here a stream gets its result
table, its start cut, its record in the catalog and its hold on the WAL.
"""

from __future__ import annotations

import threading

from penstock.mnode.streams.known_streams import KnownStreams
from penstock.mnode.streams.stream_checkpoints import StreamCheckpoints
from penstock.mnode.streams.stream_control import StreamControl
from penstock.mnode.streams.stream_creation import StreamCreation
from penstock.mnode.streams.stream_planning import StreamPlanning
from penstock.mnode.streams.stream_removal import StreamRemoval
from penstock.mnode.streams.stream_reports import StreamReports
from penstock.mnode.streams.stream_services import StreamServices
from penstock.mnode.streams.stream_starts import StreamStarts


class Streams:
    """The streams of an engine; each part executes the statements that its name says."""

    def __init__(self, services: StreamServices) -> None:
        self._services = services
        self._closing = threading.Event()
        self.known = KnownStreams(services.catalog, services.clock)
        self.planning = StreamPlanning(services, self.known)
        self.starts = StreamStarts(services, self.known, self.planning)
        self.removal = StreamRemoval(services, self.known)
        self.creation = StreamCreation(services, self.known, self.planning, self.starts, self.removal)
        self.control = StreamControl(services, self.known, self.starts, self._closing)
        self.checkpoints = StreamCheckpoints(services, self.known, self.planning, self.control)
        self.reports = StreamReports(services, self.known, self._closing)

    def start_all(self) -> None:
        """Finishes what a crash kept from being dropped, and starts every stream of the catalog again."""
        self.removal.remove_left_states()
        self.starts.start_all()

    def close(self) -> None:
        """Ends all tasks, of ingests too, after a last checkpoint."""
        self._closing.set()
        self._services.controller.close()
