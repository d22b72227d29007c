"""Looks at streams: what a result table holds beside what the query over the stream's source says, at one cut.

A checkpoint gives the cut: all that comes of the rows up to it is written by then. Results may be ahead of it. Where
results leave Penstock, the checkpoint has a record of what was sent, which takes the table's place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from operator import attrgetter

import pyarrow as pa

from penstock.common.errors import CheckpointDamagedError, NotSupportedError, UnavailableError
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.catalog_records import StreamRecord
from penstock.mnode.catalog.name_lookup import require_database
from penstock.mnode.checkpoints.commit_records import CommitRecord
from penstock.mnode.checkpoints.recorded_results import recorded_results
from penstock.mnode.coordinator.stored_plan import StoredPlan
from penstock.mnode.dnode.stream_cuts import Cuts
from penstock.mnode.dnode.vnode_storage import Storage, vgroups_of
from penstock.mnode.streams.differences import Compared, Difference, compared, compared_answer
from penstock.mnode.streams.stream_answers import StreamAnswers
from penstock.mnode.streams.stream_planning import StreamPlanning
from penstock.mnode.streams.stream_services import StreamServices
from penstock.mnode.streams.stream_statements import Streams
from penstock.planner.logical.operators import Scan
from penstock.planner.lower.batch_results import BatchResults
from penstock.planner.query.batch_plan import QueryPlan
from penstock.planner.query.compared_results import Span, compared_results, drawn_times, rows_between
from penstock.planner.query.found_results import FoundResults, LaterWrites, results_of_record, results_of_table
from penstock.planner.task_plans.stream_plan import (
    JoinPlan,
    RowsPlan,
    RowWindow,
    StreamPlan,
    WindowsPlan,
)
from penstock.sql.cuts import Cut, parse_cut
from penstock.sql.schema import Session, Table
from penstock.sql.tree.statements import OnMismatch
from penstock.sql.types import DataType, timestamp
from penstock.tasks.protocol.messages import DroppedRow
from penstock.tasks.protocol.task_status import TaskStatus
from penstock.tasks.sink.sent_results import SentResults
from penstock.vnode.read.snapshot import Snapshot
from penstock.vnode.store.sorted_keys import TS_MIN

_CHECKPOINTS = 20
"""So many are taken at most until one has all rows that there were, but of streams of any query."""
_AT_ONCE, _REST_S = 3, 0.1

ROWS_KEPT = 100_000
"""At most so many rows are kept to reproduce a difference."""

Run = Callable[[QueryPlan, Session], pa.Table]
"""Returns the rows of a planned query."""


@dataclass(frozen=True, slots=True)
class AnswerRows:
    """The results of a stream of any query: the rows of the query's answer, each of which may come of any rows of
    `tables`. What `BatchResults` has, too, means the same.
    """

    scans: tuple[Scan, ...]
    tables: tuple[Table, ...]
    grid: None = None
    of_rows: bool = False
    times: None = None

    def bounds(self, first: int, last: int) -> None:
        return None

    def sources(self, moment: int, ends: int | None) -> None:
        return None

    def around(self, moment: int) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Subject:
    """A stream that is looked at: what it is to hold, and where it holds it. `target` None: results leave Penstock."""

    stream: StreamRecord
    plan: StreamPlan
    results: BatchResults | AnswerRows
    target: Table | None
    on_mismatch: OnMismatch

    @classmethod
    def of(cls, stream: StreamRecord, stored: StoredPlan, planning: StreamPlanning, catalog: Catalog) -> Subject:
        """Raises NotSupportedError for a stream whose rows alone don't tell its results."""
        check_comparable(stored.plan)
        results: BatchResults | AnswerRows
        if stored.plan.holds_answer:
            read = map(catalog.table_by_uid, dict.fromkeys(stream.source_uids))
            results = AnswerRows(planning.answer_of(stream, (), None)[0].scans,
                             tuple(table for table in read if table is not None))
        else:
            results = planning.results_of(stream)
        return cls(stream, stored.plan, results, catalog.table_by_uid(stream.target_uid),
                   stored.options.on_mismatch or "report")

    @property
    def sources(self) -> tuple[Table, ...]:
        """The tables that the stream reads; of a join the driving one first, which may be the same as the other."""
        if isinstance(self.results, AnswerRows):
            return self.results.tables
        return tuple(scan.table for scan in self.results.scans)

    @property
    def time(self) -> DataType:
        """What the times of results are."""
        if isinstance(self.results, AnswerRows) and self.target is not None:
            return self.target.time_column.type
        return timestamp(self.plan.source.precision)

    def rows_of(self, one: Difference) -> Span | None:
        """Returns the times of the first and the last row that may change a result; None: any may."""
        return None if one.moment is None else self.results.sources(one.moment, one.ends)

    def cuts(self, cut: Cut, catalog: Catalog) -> dict[str, tuple[Cut, Cut]]:
        """Returns by database, behind which cut rows belong to the stream, and the part of `cut` that it has."""
        vgroup_ids = {table.database: require_database(table.database, catalog).vgroup_ids for table in self.sources}
        since = known_since(self, cut)
        return {name: (_part(since, ids), _part(cut, ids)) for name, ids in vgroup_ids.items()}


@dataclass(frozen=True, slots=True)
class Horizon:
    """Up to where results of a stream are compared: of the rows of `cut`, and `until` when windows are closed, such
    that their results must be there; None: all must.
    """

    cut: Cut
    until: int | None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What source tasks say that they left out: the last `rows`, and how many `others`.

    `unread`: what they haven't come to yet, if there is anything. `groups`: how many STATE_TTL has let go.
    """

    rows: Sequence[DroppedRow]
    others: int = 0
    unread: str = ""
    groups: int = 0

    @classmethod
    def of(cls, statuses: Sequence[TaskStatus]) -> LeftOut:
        rows = [row for status in statuses for row in status.dropped or () if status.task.operator == "source"]
        late = [status.late for status in statuses]
        others = sum(each.late_rows + each.future_rows + each.error_rows for each in late) - len(rows)
        unread = ""
        if any(status.history is not None and not status.history.done for status in statuses):
            unread = "history is still being read"
        elif any(status.progress.recalculates for status in statuses):
            unread = "a recalculation is under way"
        groups = sum(status.size.forgotten_groups or 0 for status in statuses)
        return cls([*{(row.version, row.row_key): row for row in rows}.values()], others, unread, groups)

    def reasons(self, times: Span | None) -> list[str]:
        """Returns what may be why a result isn't what the query says that rows of these times may change, None: any."""
        reasons = [row.reason for row in self.rows if times is None or times[0] <= row.ts <= times[1]]
        where = "" if times is None else " of this time"
        known = [f"{reasons.count(reason)} rows{where} were left out: {reason}"
                 for reason in sorted(set(reasons))]
        if self.unread:
            known.append(self.unread)
        if not known and self.others > 0:
            known.append(f"{self.others} rows were left out whose times are no longer known")
        if self.groups:
            known.append(f"{self.groups} groups were removed, and start anew if rows arrive for them: STATE_TTL")
        return known


class StreamComparison:
    """Compares the results of running streams with their queries. Safe for many threads."""

    def __init__(
        self, services: StreamServices, cuts: Cuts, streams: Streams, run: Run, answers: StreamAnswers
    ) -> None:
        """`answers` has queries run in the same way as `run` does."""
        self._services = services
        self._answers = answers
        self._cuts = cuts
        self._streams = streams
        self._run = run

    def subject(self, stream: StreamRecord) -> Subject:
        """Raises NotSupportedError for a stream whose rows alone don't tell its results, UnavailableError for one that
        doesn't run.
        """
        stored = self._streams.known.plans.get(stream.id)
        if stored is None or stream.wanted != "running" or stream.pause is not None:
            raise UnavailableError(f"stream {stream.name} doesn't run: unread and lost rows can't be "
                                   "distinguished", hint="RESUME or START it first")
        return Subject.of(stream, stored, self._streams.planning, self._services.catalog)

    def snapshots(self, tables: Sequence[Table]) -> list[tuple[int, Snapshot]]:
        """Returns what `snapshots_of` does."""
        return snapshots_of(tables, self._services.catalog, self._services.storage)

    def look(
        self, subject: Subject, spans: Sequence[Span], session: Session, note_progress: Callable[[str], None],
    ) -> tuple[Cut, dict[Span, Compared]]:
        """Compares spans, each by itself, at the cut of a checkpoint of now, which it returns.

        Raises UnavailableError for a stream that is behind its source, or whose sink tasks have no record of what they
        sent, CheckpointDamagedError and CorruptionError if that is damaged.
        """
        until = self._closed_until(subject)
        with self._held(subject) as rows:
            record = self._checkpointed(subject, rows)
            horizon = Horizon(record.versions, until)
            sent = self._sent(subject, record) if subject.target is None else None
            found = {}
            for number, span in enumerate(spans, 1):
                note_progress(f"comparing, {number} of {len(spans)}")
                found[span] = self.compare(subject, [span], horizon, session, sent)
        return horizon.cut, found

    def compare(
        self, subject: Subject, spans: Sequence[Span], horizon: Horizon, session: Session,
        sent: SentResults | None = None,
    ) -> Compared:
        """Compares what is stored now of spans, or what was `sent` where there is no table.

        Of streams of any query with what the answer is now, whatever the horizon. Raises what a query does,
        SnapshotTooOldError among others.
        """
        if isinstance(subject.results, AnswerRows):
            differing = self._answers.differing(subject.stream)
            return compared_answer(differing, spans[0])
        return compared(self._run(compared_results(
            subject.results, found_results(subject, sent), subject.cuts(horizon.cut, self._services.catalog), spans,
            horizon.until), session))

    def reached(self, subject: Subject) -> Horizon:
        """Returns what the stream's tasks have read, as they last said; results of the last rows may be on their way.

        Raises UnavailableError while a source task hasn't said anything, or reads history.
        """
        until = self._closed_until(subject)
        progress = self._streams.checkpoints.progress(subject.stream)
        if progress is None:
            raise UnavailableError(f"stream {subject.stream.name} has source tasks that read history, or haven't said "
                                   "yet what they have read")
        return Horizon(tuple(sorted(progress.items())), until)

    def committed(self, subject: Subject, rows: Cut) -> Cut | None:
        """Returns the cut of the newest checkpoint if it has these rows and all their results are written, else None.

        Its rows stay readable for as long as it is kept.
        """
        newest = self._services.stores.records.newest(subject.stream.id)
        return newest.versions if newest is not None and _is_whole(subject, newest, rows) else None

    def request_checkpoint(self, subject: Subject) -> None:
        """Has a checkpoint taken, and doesn't wait for it. Raises UnavailableError if there can be none now."""
        self._streams.checkpoints.begin_checkpoint(subject.stream, 0.0)

    def rows(self, subject: Subject, cut: Cut, span: Span, session: Session) -> pa.Table:
        """Returns rows of the source of which the results of a span are computed, as they are at a cut.

        Of several tables those of one.
        """
        scan = next((scan for scan in subject.results.scans if scan.columns), None)
        if scan is None:  # nothing but how many there are is read
            return pa.table({})
        return self._run(rows_between(
            scan, subject.cuts(cut, self._services.catalog), subject.results.bounds(*span), ROWS_KEPT), session)

    def times(self, subject: Subject, span: Span, most: int, seed: int, session: Session) -> list[int]:
        """Returns what `drawn_times` finds as of now, in any order."""
        assert isinstance(subject.results, BatchResults)  # those of others have no `times`
        with self._held(subject) as cut:
            found = self._run(drawn_times(
                subject.results, subject.target, subject.cuts(cut, self._services.catalog), span, most, seed), session)
        return [int(moment) for moment in found.column("moment").to_pylist()]

    def left_out(self, stream: StreamRecord) -> LeftOut:
        controller = self._services.controller.running()
        known = () if controller is None else controller.statuses()
        return LeftOut.of([status for status in known if status.task.stream_id == stream.id])

    @contextmanager
    def _held(self, subject: Subject) -> Iterator[Cut]:
        """Keeps rows readable as of now and as of later; yields the cut of now."""
        now: list[tuple[int, int]] = []
        with ExitStack() as stack:
            for database in {table.database for table in subject.sources}:
                _, cut, owner = self._cuts.hold(database, None)
                stack.callback(self._cuts.release, database, owner)
                now += parse_cut(cut)
            yield tuple(sorted(now))

    def _sent(self, subject: Subject, record: CommitRecord) -> SentResults:
        try:
            return recorded_results(subject.stream.name, record, subject.plan.sink, self._services.paths)
        except CheckpointDamagedError:
            kept = {one.checkpoint_id for one in self._services.stores.records.all(subject.stream.id)}
            if record.checkpoint_id in kept:
                raise
            raise UnavailableError(f"stream {subject.stream.name} no longer has the checkpoint",
                                   hint="a longer CHECKPOINT_INTERVAL, or a greater checkpointsKept, helps") from None

    def _checkpointed(self, subject: Subject, rows: Cut) -> CommitRecord:
        """Returns a checkpoint that has all rows of a cut, and whose results are all known."""
        clock, stream = self._services.clock, subject.stream
        ends = clock.monotonic() + self._services.config.checkpoint_timeout
        obstacle = None
        for number in count(1):
            record = self._streams.checkpoints.checkpoint(stream, max(0.1, ends - clock.monotonic()))
            if _is_whole(subject, record, rows):
                return record
            is_answer = isinstance(subject.results, AnswerRows)
            obstacle = self._obstacle(stream) if is_answer else None
            if obstacle is not None or clock.monotonic() >= ends or (number == _CHECKPOINTS and not is_answer):
                break
            if is_answer and number > _AT_ONCE:  # it rests between comparisons
                clock.wait(threading.Event(), _REST_S)
        raise UnavailableError(f"stream {stream.name} is behind its source: "
                               + (obstacle or "unread rows can't be verified"),
                               hint="its verdict in SHOW STREAMS names the cause; try again once it has caught up")

    def _obstacle(self, stream: StreamRecord) -> str | None:
        """Returns what keeps a stream of any query from writing its answer, if anything does."""
        controller = self._services.controller.of(stream)
        statuses = () if controller is None else controller.statuses_of(stream.id)
        return next((status.reason for status in statuses if status.state == "RETRYING"), None)

    def _closed_until(self, subject: Subject) -> int | None:
        """Returns until when windows surely are closed, so that their results must be there; None: all must."""
        stream, controller = subject.stream, self._services.controller.running()
        stored = self._streams.known.plans.get(stream.id)
        if stored is None or controller is None:
            return TS_MIN
        said = {status.task: status.time for status in controller.statuses_of(stream.id)}
        tasks = [edges.task for edges in stored.graph.edges(stream.id)]
        return closed_until(subject.plan, *({
            task.index: mark(said[task]) if task in said else None for task in tasks if task.operator == operator
        } for operator, mark in (("agg", attrgetter("watermark")), ("source", attrgetter("max_event_time")))))


def snapshots_of(tables: Sequence[Table], catalog: Catalog, storage: Storage) -> list[tuple[int, Snapshot]]:
    """Returns the rows of tables as they are now, each with its vgroup."""
    return [(vgroup_id, storage.snapshot(vgroup_id, table.storage_uid)) for table in tables
            for vgroup_id in vgroups_of(require_database(table.database, catalog), table)]


def is_complete(subject: Subject, record: CommitRecord) -> bool:
    """Whether all results of the rows up to a checkpoint are written, or at least in its record of what is sent."""
    return not record.unwritten or subject.plan.emits_at_checkpoints


def found_results(subject: Subject, sent: SentResults | None, later: LaterWrites | None = None) -> FoundResults:
    """Returns the results that there are: in the result table, or among those that were sent.

    `sent`: these, where there is no table. `later`: of a table, what was written to it behind the cut.
    """
    if subject.target is not None:
        return results_of_table(subject.target, later)
    assert sent is not None
    return results_of_record(subject.plan.sink, sent.rows, sent.behind)


def known_reasons(subject: Subject, difference: Difference, left_out: LeftOut) -> str | None:
    """Returns what may be why a result isn't what the query says; None: nothing is known that would be."""
    times = subject.rows_of(difference)
    parts = [*left_out.reasons(times), *known_of_all(subject)]
    unlike = subject.stream.unlike
    if unlike is not None and (
            times is None or (times[0] <= unlike.last_ts and unlike.first_ts <= times[1])):
        parts.append(unlike.why)
    if difference.state == "extra" and subject.target is not None and not subject.stream.created_target:
        parts.append("the result table existed before the stream, and may have other rows")
    return "; ".join(parts) or None


def known_of_all(subject: Subject) -> list[str]:
    """Returns what may be why any of a stream's results isn't what the query says."""
    policies, grid = subject.plan.policies, subject.results.grid
    parts = []
    if policies.ignore_update:
        parts.append("rewritten rows count once more: IGNORE UPDATE 1")
    if policies.guarantee == "at_least_once":
        parts.append("rows may count again after a restart: GUARANTEE AT_LEAST_ONCE")
    if policies.ignore_expired and grid is not None and not grid.tumbling:
        parts.append("rows that come late for some of their windows, not for all, aren't in these: SLIDING with IGNORE "
                     "EXPIRED 1")
    return parts


def known_since(subject: Subject, cut: Cut) -> Cut:
    """Returns the cut behind which rows belong to the stream."""
    if subject.plan.source.history is not None or isinstance(subject.results, AnswerRows):
        return tuple((vgroup_id, 0) for vgroup_id, _ in cut)
    if {vgroup_id for vgroup_id, _ in subject.stream.start_cut} != {vgroup_id for vgroup_id, _ in cut}:
        raise NotSupportedError("the database has other vnodes than when the stream was created: it can't be told any "
                                "more which rows it was to read")
    return tuple(sorted(subject.stream.start_cut))


def _part(cut: Cut, vgroup_ids: Sequence[int]) -> Cut:
    return tuple((vgroup_id, version) for vgroup_id, version in sorted(cut) if vgroup_id in vgroup_ids)


def _is_whole(subject: Subject, record: CommitRecord, rows: Cut) -> bool:
    """Whether a checkpoint has all rows of a cut, and is complete."""
    reached: Mapping[int, int] = dict(record.versions)
    if isinstance(subject.results, AnswerRows):  # it reads the vnodes that have its tables
        rows = _part(rows, tuple(reached))
    return is_complete(subject, record) and all(reached.get(vgroup_id, -1) >= version for vgroup_id, version in rows)


def check_comparable(plan: StreamPlan) -> None:
    """Raises NotSupportedError for streams of which the result table doesn't hold what the query says."""
    if plan.trigger == "continuous_window_close":
        raise NotSupportedError("results of TRIGGER CONTINUOUS_WINDOW_CLOSE can't be verified: late rows wait for the "
                                "next recalculation")
    if plan.source.key_column is not None and plan.sink.key_column is None and isinstance(
            plan.computation, RowsPlan):
        raise NotSupportedError("rows of one time overwrite each other in the result table: it can't be verified",
                                hint="write the key column too, as the second one")


def closed_until(
    plan: StreamPlan, marks: Mapping[int, int | None], newest: Mapping[int, int | None]
) -> int | None:
    """Returns until when windows surely are closed, so that their results must be there; None: all must.

    `marks`: the watermarks of agg tasks, `newest`: the greatest event times of source tasks, each by their place; those
    of the right side of a join come behind those of the left one.
    """
    if plan.trigger == "at_once" or not isinstance(plan.computation, WindowsPlan | JoinPlan):
        return None
    if plan.grouping.colocated:  # of vnodes that have had no row there are no results
        times = {place: [ts for of, ts in newest.items() if of % len(marks) == place] for place in marks}
        marks = {place: mark for place, mark in marks.items() if set(times[place]) != {None}}
    known = [mark for mark in marks.values() if mark is not None]
    if not known or len(known) < len(marks):
        return TS_MIN
    # Windows that rows define are closed once their last row is older than the watermark.
    of_rows = isinstance(plan.computation, WindowsPlan) and isinstance(plan.computation.windows, RowWindow)
    return min(known) - plan.policies.time.lateness - int(of_rows)
