"""Verifies streams of a data directory that no engine runs on, as VERIFY STREAM does those that run.

The last checkpoint gives the cut. What a stream has written behind it may be of rows that it had read since, up to
where it ended: such results are equal, or not judged. An engine that was closed has left none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import pyarrow as pa

from penstock.common.clock import SystemClock
from penstock.common.config import Config
from penstock.common.errors import (
    CorruptionError,
    InternalError,
    InvalidStatementError,
    PenstockError,
    UnavailableError,
)
from penstock.common.fs import OsFs
from penstock.common.paths import DataPaths
from penstock.mnode.access.session import Result, SessionState
from penstock.mnode.catalog.catalog_records import StreamRecord
from penstock.mnode.catalog.name_lookup import require_database
from penstock.mnode.checkpoints.commit_records import CommitRecord, CommitRecords
from penstock.mnode.controller.runtime_environment import Threads
from penstock.mnode.controller.stream_controller import StreamController
from penstock.mnode.data_directory import DataDirectory
from penstock.mnode.dnode.vnode_storage import vgroups_of
from penstock.mnode.engine_parts import EngineParts
from penstock.mnode.streams.differences import Compared, compared, compared_answer
from penstock.mnode.streams.stream_comparison import (
    AnswerRows,
    LeftOut,
    Subject,
    closed_until,
    found_results,
    is_complete,
    snapshots_of,
)
from penstock.mnode.streams.stream_verification import pieces_of, told
from penstock.planner.query.compared_results import Span, compared_results
from penstock.planner.query.found_results import LaterWrites
from penstock.planner.task_plans.column_names import CHILD
from penstock.sql.dialect.literals import parse_timestamp
from penstock.sql.schema import Table
from penstock.tasks.compute.child_tables import moves_tables
from penstock.tasks.protocol.messages import TaskId
from penstock.tasks.sink.sent_results import SentResults, sent_results, united
from penstock.tasks.state.state_check import Unreadable, read_states
from penstock.tasks.worker.saved_tasks import SavedTask, saved_tasks
from penstock.vnode.read.detached_reader import DetachedVnode
from penstock.vnode.store.sorted_keys import TS_MAX, TS_MIN
from penstock.wal.record import AnyDelete, DeletePointsRecord, DeleteRecord, MetaRecord, RowsRecord

Advanced = Callable[[str, int], None]
"""Called with what is compared, and how many results of it were compared since the last call."""

_FSCK = "penstock fsck says what else is damaged"
_ROWS = pa.schema([(CHILD, pa.string()), ("moment", pa.int64())])
_DELETES = pa.schema([(CHILD, pa.string()), ("first", pa.int64()), ("last", pa.int64())])


@contextmanager
def resting_engine(root: Path, config: Config) -> Iterator[EngineParts]:
    """Gives the parts of an engine that has a directory open, while nothing in them runs. Raises what `Engine` does."""
    def start_controller() -> StreamController:
        raise InternalError("no stream runs in an engine that rests")

    with ExitStack() as undo:
        parts = EngineParts(DataDirectory(root, config, SystemClock(), OsFs(), Threads(), undo), start_controller)
        undo.callback(parts.queries.close)
        yield parts


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of a stream. `result`: as VERIFY STREAM tells it, None if it can't be verified: `error` says why.

    So many results are `equal`, aren't (`others`), and are `unjudged`, since they may be of rows behind the
    `checkpoint`, or aren't in the record of what was sent.
    """

    stream: str
    checkpoint: CommitRecord | None = None
    result: Result | None = None
    equal: int = 0
    others: int = 0
    unjudged: int = 0
    error: PenstockError | None = None


@dataclass(frozen=True, slots=True)
class _AtCheckpoint:
    """A stream, and the checkpoint that it is verified at."""

    subject: Subject
    record: CommitRecord

    @property
    def tasks(self) -> list[TaskId]:
        """The tasks that know of time, and of rows that were left out."""
        return [task for task in self._all if task.operator != "sink"]

    @property
    def sinks(self) -> list[TaskId]:
        return [task for task in self._all if task.operator == "sink"]

    @property
    def _all(self) -> list[TaskId]:
        return [TaskId.parse(part.task) for part in self.record.tasks]


class DirectoryVerification:
    """Verifies streams of one directory."""

    def __init__(self, parts: EngineParts, paths: DataPaths, advanced: Advanced) -> None:
        """`parts`: of an engine over a stand-in of the directory `paths`, of which checkpoints and states are read."""
        self._parts = parts
        self._catalog = parts.directory.catalog
        self._paths = paths
        self._fs = OsFs()
        self._records = CommitRecords(paths, self._fs)
        self._advanced = advanced
        self._session = SessionState(parts.directory.config.timezone).freeze(parts.directory.clock.now_ms())

    def verify(self, names: Sequence[str], first: str | None, last: str | None) -> Iterator[Finding]:
        """Yields what is found of the streams of these names (none: of all), in results from `first` to `last`.

        These are instants as in SQL, in the local time of the configured zone where they name none. Raises
        NotFoundError before the first one.
        """
        known = self._parts.streams.known
        streams = [known.require(name) for name in names] or [
            stream for stream in self._catalog.streams.all() if stream.replaces is None]
        chosen: dict[int, _AtCheckpoint] = {}
        found: dict[int, Finding] = {}
        for stream in streams:
            with _refusing(stream, found):
                chosen[stream.id] = self._chosen(stream)
        saved = saved_tasks(
            self._paths, {task: one.record.checkpoint_id for one in chosen.values() for task in one.tasks})
        for stream in streams:
            if stream.id in chosen:
                with _refusing(stream, found):
                    found[stream.id] = self._finding(chosen[stream.id], saved, first, last)
            yield found[stream.id]
        if not names:
            yield from self._lost()

    def _lost(self) -> Iterator[Finding]:
        """Yields streams that the catalog can't tell of, by their ids."""
        for stream_id, problem in self._catalog.streams.damaged.items():
            yield Finding(f"{stream_id:x}", error=CorruptionError(problem))
        for path in self._parts.directory.storage.orphans:
            if path.parent.name == self._paths.streams.name:
                yield Finding(path.name, error=CorruptionError(
                    f"{path} is not in the catalog", hint=_FSCK))

    def _chosen(self, stream: StreamRecord) -> _AtCheckpoint:
        planning = self._parts.streams.planning
        subject = Subject.of(stream, planning.plan_again(stream), planning, self._catalog)
        stored = self._records.all(stream.id)
        for one in stored:
            if one.record is not None and is_complete(subject, one.record):
                return _AtCheckpoint(subject, one.record)
        damage = next((one.damage for one in stored if one.damage), None)
        if damage is not None:
            raise CorruptionError(damage, hint=_FSCK)
        why = "its results weren't written yet at its last checkpoint" if stored else "it has no checkpoint"
        raise UnavailableError(f"stream {stream.name} can't be verified: {why}",
                               hint="let it run for a while, or close its engine")

    def _finding(
        self, chosen: _AtCheckpoint, saved: Mapping[TaskId, SavedTask | Unreadable], first: str | None,
        last: str | None,
    ) -> Finding:
        subject, record = chosen.subject, chosen.record
        tasks: dict[TaskId, SavedTask] = {}
        for task in chosen.tasks:
            known = saved[task]
            if isinstance(known, Unreadable):
                raise _unreadable(task, known)
            tasks[task] = known
        if any(task.reads_back for task in tasks.values()):
            raise UnavailableError(f"stream {subject.stream.name} can't be verified: at its last checkpoint it was "
                                   "reading history, or a range that is recalculated")
        until = closed_until(
            subject.plan, *({task.index: known.mark for task, known in tasks.items() if task.operator == operator}
                            for operator in ("agg", "source")))
        cut = tuple(sorted(record.versions))
        since = self._read_since(subject, record)
        left_out = LeftOut([row for known in tasks.values() for row in known.dropped],
                           groups=sum(known.forgotten_groups for known in tasks.values()))
        if isinstance(subject.results, AnswerRows):
            return self._of_answer(chosen, since, self._range(subject, first, last), left_out)
        cuts = subject.cuts(cut, self._catalog)
        later = None if since is None or subject.target is None else self._later(subject.target, since)
        given = found_results(subject, self._sent(chosen) if subject.target is None else None, later)
        wanted = self._range(subject, first, last)
        pieces = []
        snapshots = snapshots_of(subject.sources, self._catalog, self._parts.directory.storage)
        for piece in pieces_of(subject, wanted, snapshots):
            rows = self._parts.queries.run_planned(
                compared_results(subject.results, given, cuts, [piece], until), self._session)
            pieces.append(compared(rows))
            self._advanced(subject.stream.name, pieces[-1].equal + pieces[-1].others + pieces[-1].unjudged)
        return _found(chosen, pieces, left_out)

    def _of_answer(self, chosen: _AtCheckpoint, since: int | None, span: Span, left_out: LeftOut) -> Finding:
        subject = chosen.subject
        if since is not None:
            raise UnavailableError(f"stream {subject.stream.name} can't be verified: its tables have changed behind "
                                   "its last checkpoint", hint="let an engine run until the next one")
        compared_rows = compared_answer(self._parts.answers.differing(subject.stream), span)
        self._advanced(subject.stream.name, compared_rows.equal + compared_rows.others)
        return _found(chosen, [compared_rows], left_out)

    def _range(self, subject: Subject, first: str | None, last: str | None) -> Span:
        precision, zone = subject.time.precision, self._session.time_zone
        low = TS_MIN if first is None else parse_timestamp(first, precision, zone)
        high = TS_MAX if last is None else parse_timestamp(last, precision, zone)
        if low > high:
            raise InvalidStatementError("--from must not be behind --to")
        return low, high

    def _sent(self, chosen: _AtCheckpoint) -> SentResults:
        sinks, subject = chosen.sinks, chosen.subject
        states = [(self._paths.state(task.stream_id, str(task)), chosen.record.checkpoint_id) for task in sinks]
        found = read_states(states, partial(sent_results, sink=subject.plan.sink))
        parts = []
        for task, known in zip(sinks, found, strict=True):
            if isinstance(known, Unreadable):
                raise _unreadable(task, known)
            parts.append(known)
        return united(subject.stream.name, parts)

    # --- what was written behind the checkpoint ----------------------------------------------------------------

    def _later(self, target: Table, since: int) -> LaterWrites:
        """Returns what became of a result table since a time (ms), from when on there are rows behind the checkpoint.

        Neither the checkpoint nor its time tells: an attempt before the one that took it may have read further. But
        nothing was made of rows before they were there, which the times of the logs' records tell. Where the log of the
        result table doesn't reach back so far, nothing is judged.
        """
        rows, deletes = [_ROWS.empty_table()], [_DELETES.empty_table()]
        names = self._names(target)
        for vgroup_id in vgroups_of(require_database(target.database, self._catalog), target):
            vnode = self._vnode(vgroup_id)
            behind = vnode.version_before(since)
            if behind is None:
                deletes.append(_deleted([None], TS_MIN, TS_MAX))
                continue
            for change in vnode.changes(target.storage_uid, behind):
                if isinstance(change, RowsRecord):
                    rows.append(_written(change.batch, names))
                elif isinstance(change, DeleteRecord):
                    children = [None] if change.tuids is None else [names.get(tuid) for tuid in change.tuids]
                    deletes.append(_deleted(children, change.first_ts, change.last_ts))
                elif isinstance(change, DeletePointsRecord):
                    times = pa.array(change.times)
                    deletes.append(pa.table([_children(pa.array(change.tuids), names), times, times], schema=_DELETES))
        return LaterWrites(pa.concat_tables(rows), pa.concat_tables(deletes))

    def _read_since(self, subject: Subject, record: CommitRecord) -> int | None:
        """Returns since when (ms) there are rows behind the checkpoint that the stream may have read; None: never.

        Raises UnavailableError if child tables have other tags: as of the checkpoint these are gone.
        """
        since: int | None = None
        kinds = RowsRecord | AnyDelete
        if isinstance(subject.results, AnswerRows):
            kinds |= MetaRecord  # of which tables there are the answer may be, too
        for (vgroup_id, version), table in product(record.versions, subject.sources):
            for change in self._vnode(vgroup_id).changes(table.storage_uid, version):
                if moves_tables(change):
                    raise UnavailableError(
                        f"stream {subject.stream.name} can't be verified: child tables of {table.name} got other tags, "
                        "or were dropped, behind its last checkpoint", hint="let an engine run until the next one")
                if isinstance(change, kinds):
                    since = change.ingest_time_ms if since is None else min(since, change.ingest_time_ms)
        return since

    def _names(self, target: Table) -> dict[int, str]:
        """Returns the child tables of a result table by their uids."""
        if target.kind != "super":
            return {target.uid: target.name}
        return {child.uid: child.name for child in self._catalog.children(target.uid)}

    def _vnode(self, vgroup_id: int) -> DetachedVnode:
        # The engine has taken what was written, but not acknowledged any more.
        return DetachedVnode(self._parts.directory.paths.vnode(vgroup_id), vgroup_id, self._fs)


def _found(chosen: _AtCheckpoint, pieces: Sequence[Compared], left_out: LeftOut) -> Finding:
    result = told(chosen.subject, tuple(sorted(chosen.record.versions)), pieces, (), [left_out])
    counts = (sum(getattr(piece, name) for piece in pieces) for name in ("equal", "others", "unjudged"))
    return Finding(chosen.subject.stream.name, chosen.record, result, *counts)


def _unreadable(task: TaskId, state: Unreadable) -> CorruptionError:
    return CorruptionError(f"the state of {task} can't be read: {state.why}", hint=_FSCK)


@contextmanager
def _refusing(stream: StreamRecord, found: dict[int, Finding]) -> Iterator[None]:
    """Notes of a stream why it can't be verified."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  whatever is wrong with it, the others are verified
        found[stream.id] = Finding(
            stream.name, error=error if isinstance(error, PenstockError) else InternalError.of(error))


def _written(batch: pa.RecordBatch, names: Mapping[int, str]) -> pa.Table:
    """Returns which results the rows of a record are, as `LaterWrites` has them."""
    return pa.table([_children(batch.column(0), names), batch.column(1).cast(pa.int64())], schema=_ROWS)


def _children(tuids: pa.Array, names: Mapping[int, str]) -> pa.Array:
    uids = tuids.dictionary_encode()
    return pa.array([names.get(uid) for uid in uids.dictionary.to_pylist()], pa.string()).take(uids.indices)


def _deleted(children: Sequence[str | None], first: int, last: int) -> pa.Table:
    """Returns what a record deletes, as `LaterWrites` has it; None: of all children."""
    return pa.Table.from_pylist([{CHILD: child, "first": first, "last": last} for child in children], _DELETES)
