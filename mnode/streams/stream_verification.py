"""VERIFY STREAM: compares the result table of a running stream with the query over its source, at one cut.

A checkpoint gives the cut: all that comes of the rows up to it is written by then. What is written meanwhile may be
ahead of it; so results that differ are looked at once more, and those that changed between the two looks again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.errors import InvalidStatementError, NotSupportedError, UnavailableError
from penstock.mnode.access.session import Result
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.catalog_records import StreamRecord
from penstock.mnode.catalog.name_lookup import require_database
from penstock.mnode.dnode.stream_cuts import Cuts
from penstock.mnode.dnode.vnode_storage import Storage, vgroups_of
from penstock.mnode.query.query_statements import Queries
from penstock.mnode.streams.stream_planning import StreamPlanning
from penstock.mnode.streams.stream_services import StreamServices
from penstock.mnode.streams.stream_statements import Streams
from penstock.planner.bind.instants import instant
from penstock.planner.lower.batch_results import BatchResults
from penstock.planner.query.compared_results import COUNTED, SHOWN, compared_results
from penstock.planner.task_plans.plan_tree import ResultColumn
from penstock.planner.task_plans.stream_plan import RowWindow, StreamPlan, WindowsPlan
from penstock.sql.cuts import Cut, cut_text, parse_cut
from penstock.sql.schema import Session, Table
from penstock.sql.tree.statements import VerifyStream
from penstock.sql.types import VARCHAR, timestamp
from penstock.tasks.protocol.messages import DroppedRow
from penstock.tasks.protocol.task_status import TaskStatus
from penstock.vnode.store.sorted_keys import TS_MAX, TS_MIN

ROWS_PER_PIECE = 2_000_000
"""About so many rows of the source are compared at once, where a range of results comes from a range of rows."""

_CHECKPOINTS = 20
"""So many are taken at most until one has all rows that there were."""

_LOOKS = 5
"""So often results are looked at that go on changing."""

_Span = tuple[int, int]
_Line = tuple[str, str | None, int | None, int | None, str | None, str | None]


@dataclass(frozen=True, slots=True)
class Compared:
    """What was found of a piece: lines of `Comparison`, and how many results are equal, aren't, and weren't judged."""

    lines: tuple[_Line, ...]
    equal: int
    others: int
    later: int


@dataclass(frozen=True, slots=True)
class Subject:
    """A stream that is verified: what it is to hold, and where it holds it."""

    stream: StreamRecord
    plan: StreamPlan
    results: BatchResults
    target: Table
    source: Table

    @classmethod
    def of(cls, stream: StreamRecord, plan: StreamPlan, planning: StreamPlanning, catalog: Catalog) -> Subject:
        """Raises NotSupportedError for streams whose rows alone don't tell the results."""
        check_comparable(plan)
        results = planning.results_of(stream)
        target, source = (catalog.table_by_uid(uid) for uid in (stream.target_uid, stream.source_uid))
        if target is None or source is None:
            raise NotSupportedError("results that leave Penstock can't be verified yet")
        return cls(stream, plan, results, target, source)


class StreamVerification:
    """Executes VERIFY STREAM."""

    def __init__(
        self, services: StreamServices, cuts: Cuts, streams: Streams, queries: Queries,
        note_progress: Callable[[str], None],
    ) -> None:
        self._services = services
        self._cuts = cuts
        self._streams = streams
        self._queries = queries
        self._note_progress = note_progress

    def verify(self, statement: VerifyStream, session: Session) -> Result:
        """Returns the results that aren't what the query says, and last a line that counts.

        Raises NotSupportedError for streams whose rows alone don't tell the results, UnavailableError for those that
        don't run, or are behind.
        """
        subject = self._subject(statement.name)
        wanted = _range(statement, subject.plan, session)
        pieces = pieces_of(subject, wanted, self._services.catalog, self._services.storage)
        dropped = self._dropped(subject.stream)
        cut, found = self._look(subject, pieces, session)
        unsettled: set[_Line] = set()
        for _ in range(_LOOKS):
            different = [piece for piece in pieces if found[piece].lines]
            if not different:
                break
            cut, again = self._look(subject, different, session)
            unsettled = {line for piece in different for line in again[piece].lines if line not in found[piece].lines}
            found |= again
            if not unsettled:
                break
        return told(subject.plan, cut, [found[piece] for piece in pieces], unsettled,
                     [*dropped, *self._dropped(subject.stream)])

    def _subject(self, name: str) -> Subject:
        stream = self._streams.known.require(name)
        stored = self._streams.known.plans.get(stream.id)
        if stored is None or stream.wanted != "running" or stream.pause is not None:
            raise UnavailableError(f"stream {stream.name} doesn't run: what it hasn't read can't be told from what it "
                                   "has lost", hint="RESUME or START it first")
        return Subject.of(stream, stored.plan, self._streams.planning, self._services.catalog)

    # -- one look --------------------------------------------------------------------------------------------

    def _look(
        self, subject: Subject, pieces: Sequence[_Span], session: Session
    ) -> tuple[Cut, dict[_Span, Compared]]:
        """Compares pieces at a cut of now, which it returns."""
        closed_until = self._closed_until(subject)
        with self._held(subject.plan.source.database) as rows:
            cut = self._checkpointed(subject.stream, rows)
            cuts = known_since(subject, cut), cut
            found = {}
            for number, piece in enumerate(pieces, 1):
                self._note_progress(f"comparing, {number} of {len(pieces)}")
                table = self._queries.run_planned(
                    compared_results(subject.results, subject.target, cuts, piece, closed_until), session)
                found[piece] = compared(table)
        return cut, found

    @contextmanager
    def _held(self, database: str) -> Iterator[Cut]:
        """Keeps rows readable as of now and as of later; yields the cut of now."""
        _, now, owner = self._cuts.hold(database, None)
        try:
            yield parse_cut(now)
        finally:
            self._cuts.release(database, owner)

    def _checkpointed(self, stream: StreamRecord, rows: Cut) -> Cut:
        """Returns the cut of a checkpoint that has all rows of another cut, and whose results are all written."""
        clock = self._services.clock
        ends = clock.monotonic() + self._services.config.checkpoint_timeout
        for _ in range(_CHECKPOINTS):
            record = self._streams.checkpoints.checkpoint(stream, max(0.1, ends - clock.monotonic()))
            reached = dict(record.versions)
            if not record.unwritten and all(reached.get(vgroup_id, -1) >= version for vgroup_id, version in rows):
                return tuple(sorted(record.versions))
            if clock.monotonic() >= ends:
                break
        raise UnavailableError(f"stream {stream.name} is behind its source: what it hasn't read can't be verified",
                               hint="SHOW STREAMS says what holds it up; try again once it has caught up")

    def _closed_until(self, subject: Subject) -> int | None:
        """Returns until when windows surely are closed, so that their results must be there; None: all must."""
        return closed_until(
            subject.plan,
            {status.task.index: status.time.watermark for status in self._statuses(subject.stream, "agg")},
            {status.task.index: status.time.max_event_time for status in self._statuses(subject.stream, "source")})

    def _dropped(self, stream: StreamRecord) -> list[DroppedRow]:
        """Returns the rows that source tasks left out, as far as they are known."""
        return [row for status in self._statuses(stream, "source") for row in status.dropped or ()]

    def _statuses(self, stream: StreamRecord, operator: str) -> list[TaskStatus]:
        reports = self._streams.reports.snapshot().tasks.get(stream.id, [])
        return [report.status for report in reports if report.status.task.operator == operator]


def _range(statement: VerifyStream, plan: StreamPlan, session: Session) -> _Span:
    if statement.first is None:
        return TS_MIN, TS_MAX
    first = instant(statement.first, plan.source.precision, session)
    last = TS_MAX if statement.last is None else instant(statement.last, plan.source.precision, session)
    if first > last:
        raise InvalidStatementError("VERIFY STREAM: the range ends before it begins")
    return first, last


def pieces_of(subject: Subject, wanted: _Span, catalog: Catalog, storage: Storage) -> list[_Span]:
    """Returns ranges of time of results that are compared one by one, so that memory has room for each."""
    first, last = wanted
    if subject.results.grid is None:
        return [wanted]
    database = require_database(subject.source.database, catalog)
    spans = [span for vgroup_id in vgroups_of(database, subject.source) if (span := storage.snapshot(
        vgroup_id, subject.source.storage_uid).span(first, last)) is not None]
    count = -(-sum(span.rows for span in spans) // ROWS_PER_PIECE)
    if count < 2:
        return [wanted]
    low, high = min(span.first_ts for span in spans), max(span.last_ts for span in spans)
    edges = sorted({low + (high - low) * n // count for n in range(1, count)})
    return list(zip([first, *edges], [*(edge - 1 for edge in edges), last], strict=True))


def closed_until(
    plan: StreamPlan, marks: Mapping[int, int | None], newest: Mapping[int, int | None]
) -> int | None:
    """Returns until when windows surely are closed, so that their results must be there; None: all must.

    `marks`: the watermarks of agg tasks, `newest`: the greatest event times of source tasks, each by their place.
    """
    if plan.trigger == "at_once" or not isinstance(plan.computation, WindowsPlan):
        return None
    if plan.grouping.colocated:  # of vnodes that have had no row there are no windows
        silent = {place for place, ts in newest.items() if ts is None}
        marks = {place: mark for place, mark in marks.items() if place not in silent}
    known = [mark for mark in marks.values() if mark is not None]
    if not known or len(known) < len(marks):
        return TS_MIN
    # Windows that rows define are closed once their last row is older than the watermark.
    of_rows = isinstance(plan.computation.windows, RowWindow)
    return min(known) - plan.policies.time.lateness - int(of_rows)


def check_comparable(plan: StreamPlan) -> None:
    """Raises NotSupportedError for streams of which the result table doesn't hold what the query says."""
    if plan.trigger == "continuous_window_close":
        raise NotSupportedError("results of TRIGGER CONTINUOUS_WINDOW_CLOSE can't be verified: late rows wait for the "
                                "next recalculation")
    if plan.source.key_column is not None and plan.sink.key_column is None and not isinstance(
            plan.computation, WindowsPlan):
        raise NotSupportedError("rows of one time overwrite each other in the result table: it can't be verified",
                                hint="write the key column too, as the second one")


def known_since(subject: Subject, cut: Cut) -> Cut:
    """Returns the cut behind which rows belong to the stream."""
    if subject.plan.source.history is not None:
        return tuple((vgroup_id, 0) for vgroup_id, _ in cut)
    if {vgroup_id for vgroup_id, _ in subject.stream.start_cut} != {vgroup_id for vgroup_id, _ in cut}:
        raise NotSupportedError("the database has other vnodes than when the stream was created: it can't be told any "
                                "more which rows it was to read")
    return tuple(sorted(subject.stream.start_cut))


def compared(table: pa.Table) -> Compared:
    """Returns what the rows of a `Comparison` say."""
    counted = pc.equal(table.column("state"), COUNTED)
    counts = table.filter(counted)
    lines = tuple(zip(*(column.to_pylist() for column in table.filter(pc.invert(counted)).columns), strict=True))
    equal, others, later = (counts.column(name)[0].as_py() for name in ("moment", "ends", "found"))
    return Compared(lines, equal, others, int(later))


# --- what is told -----------------------------------------------------------------------------------------------


def told(
    plan: StreamPlan, cut: Cut, found: Sequence[Compared], unsettled: Collection[_Line], dropped: Sequence[DroppedRow]
) -> Result:
    """Returns a row for each result that isn't equal, as many as are shown, and last one that counts.

    `unsettled`: lines that may be others by now. `dropped`: rows that the stream left out.
    """
    lines: list[tuple[str | int | None, ...]] = []
    left_out = [*{(row.version, row.row_key): row for row in dropped}.values()]
    for line in [line for piece in found for line in piece.lines][:SHOWN]:
        state, child, moment, ends, stored, wanted = line
        known = "changed while it was looked at" if line in unsettled else _known(moment, ends, plan, left_out)
        lines.append((state, child, moment, stored, wanted, known))
    others = sum(piece.others for piece in found)
    more = f", of which {len(lines)} are shown" if others > len(lines) else ""
    counts = f"{sum(piece.equal for piece in found)} results are equal, {others} aren't{more}"
    later = sum(piece.later for piece in found)
    if later:
        counts += f"; written after the checkpoint, and not judged: {later}"
    lines.append(("verified", None, None, counts, None, f"at cut {cut_text(cut)}"))
    time = timestamp(plan.source.precision)
    columns = tuple(ResultColumn(name, time if name == "ts" else VARCHAR) for name in (
        "state", "table_name", "ts", "stream_values", "query_values", "known"))
    arrays = [pa.array(values, pa.int64()).cast(time.arrow()) if column.name == "ts" else pa.array(values, pa.string())
              for column, values in zip(columns, zip(*lines, strict=True), strict=True)]
    return Result(columns, pa.Table.from_arrays(arrays, names=[column.name for column in columns]), len(lines))


def _known(moment: int | None, ends: int | None, plan: StreamPlan, left_out: Sequence[DroppedRow]) -> str | None:
    """Returns what may be why a result isn't what the query says; None: nothing is known that would be."""
    assert moment is not None
    last = moment if ends is None else ends - 1
    reasons = [row.reason for row in left_out if moment <= row.ts <= last]
    parts = [f"{reasons.count(reason)} rows of this time were left out: {reason}" for reason in sorted(set(reasons))]
    if plan.policies.ignore_update:
        parts.append("rewritten rows count once more: IGNORE UPDATE 1")
    if plan.policies.guarantee == "at_least_once":
        parts.append("rows may count again after a restart: GUARANTEE AT_LEAST_ONCE")
    return "; ".join(parts) or None
