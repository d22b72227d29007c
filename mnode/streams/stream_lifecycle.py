"""CHECKPOINT, STOP, START and ALTER STREAM, and savepoints: what happens to a stream at one of its checkpoints.

A savepoint is a checkpoint with a name: its commit record, the tasks' state and the log behind it are kept in place,
as those of the newest checkpoints are, until it is dropped. A copy would not make it last longer: to start from it
takes the log from its cut on, and that is held for it only up to `walPinMax`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from penstock.common.errors import (
    AlreadyExistsError,
    CorruptionError,
    InvalidStatementError,
    InvalidStreamError,
    NotFoundError,
    PenstockError,
    UnavailableError,
)
from penstock.common.suggestions import did_you_mean
from penstock.mnode.access.session import Result, rows_result
from penstock.mnode.catalog.catalog_records import Savepoint, StreamRecord
from penstock.mnode.checkpoints.commit_records import CommitRecord
from penstock.mnode.coordinator.stream_status import SavepointInfo, SavepointState
from penstock.mnode.streams.stream_services import StreamServices
from penstock.mnode.streams.stream_statements import Streams
from penstock.sql.dialect.parser import parse_one
from penstock.sql.dialect.stream_options import ALTERABLE, LIVE, altered, given
from penstock.sql.tree.statements import (
    AlterStream,
    CheckpointStream,
    CreateStream,
    DropSavepoint,
    ResumeStream,
    StartStream,
    StopStream,
    StreamOptions,
)
from penstock.sql.types import BIGINT, DataType, Kind

MAX_SAVEPOINTS_PER_STREAM = 20
"""Each costs a layer of state that every look-up may have to pass."""

_CHECKPOINT_TIMEOUT_S = 30.0
_ANSWER_TIMEOUT_S = 1.5
_CHECKPOINT_COLUMNS = (("checkpoint_id", BIGINT), ("state", DataType(Kind.VARCHAR, 20)))
_TRIGGER_TIMES = ("max_delay", "recalculate")


class Lifecycle:
    """Executes the statements. `lock` is the one that changes of the catalog take turns by; no checkpoint is awaited
    with it held."""

    def __init__(
        self, services: StreamServices, streams: Streams, lock: AbstractContextManager[object]
    ) -> None:
        self._services = services
        self._streams = streams
        self._lock = lock

    # --- statements --------------------------------------------------------------------------------------------

    def checkpoint(self, stream: StreamRecord, _: CheckpointStream) -> Result:
        """Takes a checkpoint of a running stream; returns its id when it is valid, or soon: it goes on then."""
        checkpoint_id, valid = self._streams.checkpoints.begin_checkpoint(stream, _ANSWER_TIMEOUT_S)
        return rows_result(_CHECKPOINT_COLUMNS, [(checkpoint_id, "COMMITTED" if valid else "RUNNING")])

    def stop(self, stream: StreamRecord, statement: StopStream) -> Result:
        """Ends a stream's tasks at a checkpoint and keeps its state; START STREAM goes on from there.

        Without a savepoint a stream that cannot be checkpointed is stopped all the same: it goes on from its last
        checkpoint. With one, it runs on, and the error says why.
        """
        if stream.wanted == "stopped":
            raise InvalidStatementError(f"stream {stream.name} is stopped already")
        savepoint = statement.savepoint
        if savepoint is not None:
            self._check_new_savepoint(stream, savepoint)
        self._streams.checkpoints.end_at_checkpoint(stream, _CHECKPOINT_TIMEOUT_S, required=savepoint is not None)
        with self._lock:
            stream = self._again(stream)
            if savepoint is not None:
                self._add_savepoint(stream, savepoint)
            self._services.catalog.streams.set_wanted(stream.id, "stopped")
        return Result()

    def start(self, stream: StreamRecord, statement: StartStream) -> Result:
        """Starts a stopped stream again, from its last checkpoint or from a savepoint."""
        with self._lock:
            if stream.wanted != "stopped":
                hint = "RESUME it" if stream.wanted == "paused" else "STOP STREAM ends it first"
                raise InvalidStatementError(f"stream {stream.name} isn't stopped", hint=hint)
            if statement.savepoint is not None:
                self._go_back(stream, statement.savepoint)
            stream = self._services.catalog.streams.set_wanted(stream.id, "running")
            self._streams.starts.begin(stream)
        if statement.ignore_untreated:
            self._streams.control.resume(stream, ResumeStream(stream.name, ignore_untreated=True))
        return Result()

    def alter(self, stream: StreamRecord, statement: AlterStream) -> Result:
        """Changes options of a stream: it is ended at a checkpoint, and goes on from there with the new ones.

        If there can be no checkpoint, it goes on from its last one. New rates and limits it takes over as it runs.
        """
        text = self._altered_text(stream, statement.options)
        live = LIVE.issuperset(given(statement.options))
        # Refuses what CREATE STREAM would refuse.
        planned = self._streams.checkpoints.planned_as(stream, text, live=live)
        if live:
            with self._lock:
                self._streams.checkpoints.adjust(self._streams.checkpoints.alter(self._again(stream), text, planned))
            return Result()
        if stream.wanted != "stopped":
            self._streams.checkpoints.end_at_checkpoint(stream, _CHECKPOINT_TIMEOUT_S, required=False)
        with self._lock:
            try:
                self._streams.checkpoints.alter(self._again(stream), text, planned)
            finally:
                latest = self._services.catalog.streams.by_id(stream.id)
                if latest is not None and latest.wanted != "stopped":
                    self._streams.starts.begin(latest)
        return Result()

    def drop_savepoint(self, statement: DropSavepoint) -> Result:
        """Forgets a savepoint, and what is kept for it alone."""
        with self._lock:
            stream = self._streams.known.find(statement.stream, if_exists=statement.if_exists)
            if stream is None:
                return Result()
            if all(savepoint.name != statement.savepoint for savepoint in stream.savepoints):
                if statement.if_exists:
                    return Result()
                raise self._no_savepoint(stream, statement.savepoint)
            rest = tuple(one for one in stream.savepoints if one.name != statement.savepoint)
            self._services.catalog.streams.set_savepoints(stream.id, rest)
            self._services.stores.records.prune(stream.id, {savepoint.checkpoint_id for savepoint in rest})
            self._streams.checkpoints.checkpointed(stream.id, self._services.stores.records.oldest_versions(stream.id))
        return Result()

    # --- what is shown -----------------------------------------------------------------------------------------

    def savepoints(self) -> list[SavepointInfo]:
        """Returns all savepoints, by stream, in order of their making."""
        return [self._info(stream, savepoint)
                for stream in self._services.catalog.streams.all() for savepoint in stream.savepoints]

    def _info(self, stream: StreamRecord, savepoint: Savepoint) -> SavepointInfo:
        state: SavepointState = "READY"
        reason = ""
        record: CommitRecord | None = None
        try:
            record = self._record_of(stream, savepoint)
            self._require_log(stream, savepoint, record)
        except CorruptionError as error:
            state, reason = "DAMAGED", str(error)
        except PenstockError as error:
            state, reason = "LOST", str(error)
        return SavepointInfo(
            stream.name, savepoint.name, savepoint.checkpoint_id, savepoint.created_ms, state,
            None if record is None else record.bytes_written, () if record is None else record.versions, reason)

    # --- inside ------------------------------------------------------------------------------------------------

    def _again(self, stream: StreamRecord) -> StreamRecord:
        """Returns the stream as it is now; raises NotFoundError if it was dropped meanwhile."""
        found = self._services.catalog.streams.by_id(stream.id)
        if found is None:
            raise NotFoundError(f"stream {stream.name} was dropped meanwhile", code=0x03F1)
        return found

    def _altered_text(self, stream: StreamRecord, changes: StreamOptions) -> str:
        statement = parse_one(stream.asked.text)
        assert isinstance(statement, CreateStream)
        if statement.materialized:  # with options its text would be that of a stream, which may be planned otherwise
            raise InvalidStreamError(f"{stream.name} is a materialized view, which has no options",
                                     hint="CREATE STREAM ... INTO takes them; the configuration has defaults for some")
        same_trigger = changes.trigger == self._streams.checkpoints.trigger_of(stream)
        allowed = {*ALTERABLE, "trigger"} if same_trigger else {*ALTERABLE}
        refused = next((name for name in given(changes) if name not in allowed), None)
        if refused is not None:
            option = refused.upper().replace("IGNORE_", "IGNORE ").replace("_ASYNC", "")
            others = ", ".join(name.upper() for name in ALTERABLE if name not in _TRIGGER_TIMES)
            raise InvalidStreamError(
                f"{option} of a stream can't be changed: its results so far were made by the old one",
                hint=f"CREATE OR REPLACE STREAM computes them again; options that can be changed are {others} "
                     "and the time of its TRIGGER")
        return altered(statement, changes)

    def _check_new_savepoint(self, stream: StreamRecord, name: str) -> None:
        if any(savepoint.name == name for savepoint in stream.savepoints):
            raise AlreadyExistsError(f"stream {stream.name} has a savepoint '{name}' already",
                                     hint="take another name, or DROP SAVEPOINT")
        if len(stream.savepoints) >= MAX_SAVEPOINTS_PER_STREAM:
            raise InvalidStatementError(
                f"stream {stream.name} has {len(stream.savepoints)} savepoints, the maximum",
                hint="DROP SAVEPOINT one that isn't needed")

    def _add_savepoint(self, stream: StreamRecord, name: str) -> None:
        self._check_new_savepoint(stream, name)
        # No task is left, so the newest record is of the checkpoint that was awaited, or of one right behind it.
        record = self._services.stores.records.newest(stream.id)
        if record is None:
            raise UnavailableError(f"stream {stream.name} has no checkpoint")
        added = Savepoint(name, record.checkpoint_id, self._services.clock.now_ms())
        self._services.catalog.streams.set_savepoints(stream.id, (*stream.savepoints, added))

    def _go_back(self, stream: StreamRecord, name: str) -> None:
        """Makes a savepoint the newest checkpoint of a stopped stream."""
        savepoint = next((one for one in stream.savepoints if one.name == name), None)
        if savepoint is None:
            raise self._no_savepoint(stream, name)
        later = [one.name for one in stream.savepoints if one.checkpoint_id > savepoint.checkpoint_id]
        if later:
            raise InvalidStatementError(
                f"savepoint '{later[-1]}' of stream {stream.name} is newer and would be lost",
                hint="DROP SAVEPOINT it first, or start from it")
        self._require_log(stream, savepoint, self._record_of(stream, savepoint))
        ids = self._services.stores.records.ids(stream.id)
        # The ids that are given up must not come again with another meaning.
        self._services.catalog.streams.set_last_checkpoint(stream.id, max(ids))
        self._services.stores.records.remove(stream.id, [one for one in ids if one > savepoint.checkpoint_id])

    def _record_of(self, stream: StreamRecord, savepoint: Savepoint) -> CommitRecord:
        known = {one.checkpoint_id: one for one in self._services.stores.records.all(stream.id)}
        stored = known.get(savepoint.checkpoint_id)
        if stored is None or stored.record is None:
            why = "its commit record is missing" if stored is None else stored.damage
            raise CorruptionError(f"savepoint '{savepoint.name}' of stream {stream.name} can't be used: {why}")
        return stored.record

    def _require_log(self, stream: StreamRecord, savepoint: Savepoint, record: CommitRecord) -> None:
        for vgroup_id, version in record.versions:
            oldest = self._services.storage.vnode(vgroup_id).reader.oldest_version()
            if oldest > version + 1:
                raise UnavailableError(
                    f"savepoint '{savepoint.name}' of stream {stream.name} needs the log of vnode {vgroup_id} from "
                    f"version {version + 1} on, and it begins at {oldest}",
                    hint="the log was longer than walPinMax; START STREAM without a savepoint, or create it again")

    def _no_savepoint(self, stream: StreamRecord, name: str) -> NotFoundError:
        return NotFoundError(f"stream {stream.name} has no savepoint '{name}'",
                             hint=did_you_mean(name, (savepoint.name for savepoint in stream.savepoints)))
