"""Reads the lines of files in a folder: one file after the other by name, and the last one as it grows."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from penstock.common.clock import Clock
from penstock.tasks.external.connectors.base_consumer import BaseConsumer
from penstock.tasks.external.connectors.files import external_error, open_place
from penstock.tasks.external.connectors.incoming_messages import MessageBatch, Positions
from penstock.tasks.protocol.deployment import IngestDeployment

PARTITION = "files"
_LOOK_EVERY_S = 1.0
_READ_BYTES = 4 << 20


class FilesConsumer(BaseConsumer):
    """All files whose names fit PATH, in the order of their names, which is also the order of their lines.

    A message is a line; its offset is where it begins in its file. A file is left behind once there is one with a
    greater name, and a last line without an end counts then; files that come with smaller names are not read.
    """

    replays = True

    def __init__(self, deployment: IngestDeployment, positions: Positions, clock: Clock) -> None:
        super().__init__(deployment, clock)
        plan = deployment.plan
        self._pattern = plan.path or "*"
        self._longest = plan.max_message + 2
        self._filesystem, self._root = open_place(self._connection)
        self._name, self._offset = positions[PARTITION].place if PARTITION in positions else ("", 0)
        self._looked_at: float | None = None
        self._held = False
        self._names: list[str] = []

    def poll(self, messages: int) -> Sequence[MessageBatch]:
        if self._held:
            return ()
        try:
            return self._read(messages)
        except Exception as error:  # noqa: BLE001 - each file system has errors of its own
            self._problem = external_error(self._connection, error)
            self._looked_at = self._clock.monotonic()
            return ()

    def hold(self, held: bool) -> None:
        self._held = held

    def close(self) -> None:
        """Files are opened for each read."""

    # --- inside ------------------------------------------------------------------------------------------------

    def _read(self, messages: int) -> Sequence[MessageBatch]:
        now = self._clock.monotonic()
        if self._looked_at is None or now - self._looked_at >= _LOOK_EVERY_S:
            self._looked_at = now
            self._look()
        elif self._problem is not None:
            return ()
        while self._names:
            name = self._names[0]
            last = len(self._names) == 1
            batch = self._lines(name, self._offset if name == self._name else 0, not last, messages)
            if batch is not None:
                return (batch,)
            if last:
                self._names = []
                return ()
            self._names.pop(0)
        return ()

    def _look(self) -> None:
        """Lists the files that are still to be read: the current one, and those behind it."""
        found: list[dict[str, Any]] = self._filesystem.ls(self._root, detail=True)
        names = sorted(str(entry["name"]).rstrip("/").rpartition("/")[2] for entry in found if entry["type"] == "file")
        self._problem = None
        self._reached = True
        self._names = [name for name in names if fnmatchcase(name, self._pattern) and name >= self._name]

    def _lines(self, name: str, offset: int, complete: bool, messages: int) -> MessageBatch | None:
        """Returns lines of a file from an offset on, None if there is none. `complete`: nothing is added any more."""
        with self._filesystem.open(f"{self._root}/{name}", "rb") as file:
            file.seek(offset)
            data: bytes = file.read(max(_READ_BYTES, self._longest))
            at_end = complete and not file.read(1)
        end = len(data) if at_end else data.rfind(b"\n") + 1
        if not end and len(data) >= self._longest:
            end = len(data)  # a line that is too long to be used: it is told in pieces, and goes the way of errors
        if not end:
            return None
        offsets: list[int] = []
        values: list[bytes] = []
        place = 0
        for line in _split(data[:end]):
            content = line.rstrip(b"\r\n")
            if content:
                offsets.append(offset + place)
                values.append(content)
            place += len(line)
            if len(values) == messages:
                break
        self._name, self._offset = name, offset + place
        if not values:
            return self._lines(name, offset + place, complete, messages)
        now_ms = self._clock.now_ms()
        return MessageBatch(PARTITION, name, offsets, values, [now_ms] * len(values), name, end=offset + place)


def _split(data: bytes) -> list[bytes]:
    """Returns the lines with their ends; carriage returns within are part of them."""
    lines = data.split(b"\n")
    return [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
