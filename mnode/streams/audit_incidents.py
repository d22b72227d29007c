"""Incidents of the audit: results that were wrong, each with what is needed to see why, in files of the data directory.

An incident is never forgotten by itself: its files stay, also when its stream is dropped.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.common.errors import CorruptionError, PenstockError, StorageError
from penstock.common.fs import Fs
from penstock.common.logging import logger
from penstock.common.paths import DataPaths, numbered
from penstock.common.typed_json import TypedJson
from penstock.sql.types import Precision
from penstock.vnode.store.parts import parquet_bytes
from penstock.vnode.store.sorted_keys import TS_MAX, TS_MIN

KEPT = 100
"""So many incidents of a stream are kept; more are only told."""
_FILE_MAX = 16 << 20
_JSON, _ROWS = "incident.json", "rows.parquet"

_log = logger(__name__)


@dataclass(frozen=True, slots=True)
class Incident:
    """A result that was not what the query said, by two looks. Times of results are in units of `precision`.

    `state`, `child`, `moment`, `ends`, `found` and `wanted` are those of `Difference`; `versions`: the cut, (vgroup id,
    WAL version) pairs. `statement`, `plan`: what the stream computes; `attempt`: its newest one. `history`: its
    checkpoints, and what has happened to it, a line each. `rows`: how many rows of the source are kept beside.
    `action`: what was done about it. `equal_since_ms`: when it was found to be right again.
    """

    number: int
    stream_id: int
    stream: str
    found_ms: int
    state: str
    child: str | None
    moment: int | None
    ends: int | None
    found: str | None
    wanted: str | None
    precision: Precision
    versions: tuple[tuple[int, int], ...]
    statement: str
    plan: str | None
    attempt: int
    history: tuple[str, ...]
    rows: int
    version: str
    action: str = ""
    equal_since_ms: int | None = None

    @property
    def is_open(self) -> bool:
        return self.equal_since_ms is None


_CODEC = TypedJson(Incident)


class Incidents:
    """All incidents below one data directory; read from disk once per stream. Safe for many threads."""

    def __init__(self, paths: DataPaths, fs: Fs) -> None:
        self._paths = paths
        self._fs = fs
        self._lock = threading.Lock()
        self._known: dict[int, dict[int, Incident]] = {}

    def of(self, stream_id: int) -> list[Incident]:
        """Returns those of a stream, oldest first."""
        with self._lock:
            return [incident for _, incident in sorted(self._load(stream_id).items())]

    def folder(self, incident: Incident) -> Path:
        """Returns where the files of an incident are."""
        return self._paths.incidents(incident.stream_id) / str(incident.number)

    def add(self, incident: Incident, rows: pa.Table) -> Incident:
        """Keeps an incident and rows of the source, durably; returns it with its number.

        Raises StorageError if there is no room, in the bound of KEPT or on the disk.
        """
        with self._lock:
            known = self._load(incident.stream_id)
            taken = numbered(self._paths.incidents(incident.stream_id), 10)
            for gone in known.keys() - set(taken):
                del known[gone]
            folder = self._paths.incidents(incident.stream_id)
            whole = [number for number in taken if (folder / str(number) / _JSON).exists()]
            if len(whole) >= KEPT:
                raise StorageError(f"{len(whole)} incidents of stream {incident.stream} are kept, the maximum",
                                   hint=f"move folders away from {folder}")
            numbered_one = replace(incident, number=max(taken, default=0) + 1, rows=rows.num_rows)
            try:
                self._fs.make_dirs(self.folder(numbered_one))
                self._fs.write_atomic(self.folder(numbered_one) / _ROWS, parquet_bytes(rows))
                self._write(numbered_one)
            except StorageError:
                self._discard(self.folder(numbered_one))
                raise
            known[numbered_one.number] = numbered_one
            return numbered_one

    def settle(self, incident: Incident, now_ms: int) -> None:
        """Notes that the result is right again. Raises StorageError."""
        self._change(incident, equal_since_ms=now_ms)

    def note_action(self, incident: Incident, action: str) -> None:
        """Notes what was done about an incident. Raises StorageError."""
        self._change(incident, action=action)

    def _change(self, incident: Incident, **changes: Any) -> None:
        with self._lock:
            known = self._load(incident.stream_id)
            known[incident.number] = replace(known[incident.number], **changes)
            self._write(known[incident.number])

    def _write(self, incident: Incident) -> None:
        text = json.dumps(_CODEC.encode(incident), indent=1)
        self._fs.write_atomic(self.folder(incident) / _JSON, text.encode())

    def _discard(self, folder: Path) -> None:
        """Takes back what there was no room for; what can't be taken back counts for nothing."""
        with suppress(StorageError):
            for name in (_ROWS, _JSON):
                self._fs.remove(folder / name)
            self._fs.remove_dir(folder)

    def _load(self, stream_id: int) -> dict[int, Incident]:
        known = self._known.get(stream_id)
        if known is None:
            known = self._known[stream_id] = {}
            folder = self._paths.incidents(stream_id)
            for number in numbered(folder, 10)[:KEPT]:
                try:
                    known[number] = self._read(stream_id, number)
                except (PenstockError, FileNotFoundError) as error:
                    _log.warning("incident %s isn't shown: %s", folder / str(number), error)
        return known

    def _read(self, stream_id: int, number: int) -> Incident:
        path = self._paths.incidents(stream_id) / str(number) / _JSON
        if not path.is_file():  # a device or a pipe has no end
            raise CorruptionError(f"{path} is no file")
        if self._fs.size(path) > _FILE_MAX:
            raise CorruptionError(f"{path} is too large for an incident")
        try:
            parts = json.loads(self._fs.read(path), parse_int=_whole)
            json.dumps(parts, ensure_ascii=False).encode()  # half a surrogate pair is no text
            incident = _CODEC.decode(parts)
        except (ValueError, RecursionError) as error:
            raise CorruptionError(f"{path} is no incident: {error}") from error
        if (incident.stream_id, incident.number) != (stream_id, number):
            raise CorruptionError(f"{path} is of another incident")
        return incident


def _whole(digits: str) -> int:
    """Returns a number that a column has room for. Raises ValueError."""
    number = int(digits)
    if not TS_MIN <= number <= TS_MAX:
        raise ValueError(f"{digits[:40]} has more than 64 bits")
    return number


def open_incidents(incidents: Sequence[Incident]) -> list[Incident]:
    """Returns those whose results are still wrong, as far as is known."""
    return [incident for incident in incidents if incident.is_open]
