"""The audit: compares results of running streams with their queries, a few windows at a time, all the time.

It looks at the rows that were written, deleted or replayed lately, the earliest first, and at others that are drawn: of
child tables that have got other tags, or any rows and results. Results that differ are looked at once more, at a
checkpoint of then; only what differs again is an incident.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random

from penstock import __version__
from penstock.common.errors import InternalError, NotSupportedError, PenstockError, StorageError
from penstock.common.logging import logger
from penstock.mnode.catalog.catalog_records import StreamRecord
from penstock.mnode.coordinator.stream_status import AuditInfo
from penstock.mnode.query.activity import Activity
from penstock.mnode.streams.audit_incidents import Incident, Incidents, open_incidents
from penstock.mnode.streams.differences import Compared, Difference
from penstock.mnode.streams.stream_comparison import (
    AnswerRows,
    Horizon,
    StreamComparison,
    Subject,
    known_of_all,
    known_reasons,
)
from penstock.mnode.streams.stream_services import StreamServices
from penstock.mnode.streams.stream_statements import Streams
from penstock.planner.query.compared_results import Span
from penstock.sql.cuts import Cut, cut_text
from penstock.sql.schema import ChildTable, Session
from penstock.vnode.read.snapshot import Snapshot
from penstock.vnode.store.memtable import clipped
from penstock.vnode.store.sorted_keys import TS_MAX, TS_MIN

ROWS_MAX = 1_000_000
"""Windows of more rows than this aren't looked at: a look keeps its rows in memory."""

_ROWS_MIN, _NEW_ROWS_MIN = 1_000, 5_000
"""A span of windows is made as wide as about so many rows are, drawn ones and new ones: they cost little beside what
any look costs.
"""
_RANGES = 64
"""Rows that were written lately lie in so many ranges of each run in memory, so that late ones don't make one of all.
"""
_DOUBLINGS = 40
_CHILDREN_MAX = 20_000
"""Of tables with more children nobody looks which have got other tags: that would take as long as a look."""
_REST_LEAST_S = 1.0
_TURN_LEAST_S = 5.0
"""A turn counts as so long at least: where there is nothing to compare it is quick, and soon over again."""
LOOK_MAX_S = 10.0
"""A look is ended after this time."""
_NEW_INCIDENTS = 5
"""So many incidents at most are made of one look; the others are like them."""
_EVENTS_KEPT = 50

_log = logger(__name__)

Result = tuple[str | None, int | None]
"""Which result: `child` and `moment` of a difference."""


@dataclass(frozen=True, slots=True)
class _Suspects:
    """Which results differed in a look at some spans, which was as of a horizon.

    `children`: the child tables of the sources before it. `waited`: a checkpoint that has its rows was waited for.
    """

    results: frozenset[Result]
    spans: tuple[Span, ...]
    horizon: Horizon
    children: tuple[tuple[ChildTable, ...], ...]
    waited: bool = False


@dataclass(slots=True)
class _Audited:
    """What the audit knows of a stream.

    `since`: the cut behind which rows count as written lately. `children`: the child tables of the source, `moved`: the
    uids of those that have got other tags, and weren't looked at since. `unkept`: wrong results for whose incidents
    there was no room. `subject`: what is looked at, or why it can't be, by what that depends on. `horizon`: what its
    tasks had read before its turn. `turn`: its last one. `taken_s`: how long all its turns took, with the rest behind.
    """

    since: Mapping[int, int] = field(default_factory=dict)
    children: tuple[ChildTable, ...] = ()
    moved: set[int] = field(default_factory=set)
    suspects: _Suspects | None = None
    unkept: set[Result] = field(default_factory=set)
    subject: tuple[tuple[object, ...], Subject | NotSupportedError] | None = None
    horizon: Horizon | None = None
    info: AuditInfo = field(default_factory=AuditInfo)
    turn: int = 0
    taken_s: float = 0.0


class StreamAudit:
    """Looks at one stream after the other; `step` does one look. Everything happens in one thread."""

    def __init__(
        self, services: StreamServices, streams: Streams, comparison: StreamComparison, incidents: Incidents,
        activity: Activity, random: Random,
    ) -> None:
        """`comparison` computes on the calling thread, whose time is the audit's share."""
        self._services = services
        self._streams = streams
        self._comparison = comparison
        self._incidents = incidents
        self._activity = activity
        self._random = random
        self._audited: dict[int, _Audited] = {}
        self._turn = 0
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self) -> None:
        """Looks in the background, so that it takes no more than `auditShare` of a processor's time."""
        if self._services.config.audit_share:
            self._thread = threading.Thread(target=self._run, name="penstock-audit", daemon=True)
            self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread is not None:
            self._thread.join()

    def step(self) -> float:
        """Looks at the next stream; returns for how many seconds to rest then."""
        clock, share = self._services.clock, self._services.config.audit_share
        start = clock.processor()
        stream = self._next()
        if stream is None:
            return _REST_LEAST_S
        self._turn += 1
        known = self._audited[stream.id]  # kept here, since the stream may be dropped meanwhile
        known.turn = self._turn
        self._look_at(stream, known)
        self._look_ahead()
        rest_s = max(_REST_LEAST_S, (clock.processor() - start) * (1 / share - 1)) if share else _REST_LEAST_S
        known.taken_s += max(rest_s, _TURN_LEAST_S)
        return rest_s

    def _run(self) -> None:
        rest_s = _REST_LEAST_S
        while not self._services.clock.wait(self._closing, rest_s):
            try:
                rest_s = self.step()
            except Exception:  # noqa: BLE001
                # A defect of one step must not end the audit of all streams.
                _log.exception("a step of the audit failed")
                rest_s = _REST_LEAST_S

    # --- which stream, and what of it ----------------------------------------------------------------------------

    def _next(self) -> StreamRecord | None:
        """Returns the stream whose turn it is: one with suspects, or that whose turns have taken the least time."""
        running = {stream.id: stream for stream in self._services.catalog.streams.all()
                   if stream.wanted == "running" and stream.id in self._streams.known.plans}
        known = {one: self._audited[one] for one in running if one in self._audited}
        least_s = min((audited.taken_s for audited in known.values()), default=0.0)
        self._audited = {one: known.get(one) or _Audited(taken_s=least_s) for one in running}
        if not running:
            return None

        def place(one: int) -> tuple[bool, float, int]:
            audited = self._audited[one]
            return audited.suspects is None or audited.suspects.waited, audited.taken_s, audited.turn

        return running[min(running, key=place)]

    def _look_ahead(self) -> None:
        """Notes what the next stream has read, whose results are written until its turn comes."""
        stream = self._next()
        if stream is not None:
            known = self._audited[stream.id]
            with suppress(PenstockError):  # its turn tells
                known.horizon = self._comparison.reached(self._subject(stream, known))

    def _look_at(self, stream: StreamRecord, known: _Audited) -> None:
        note = ""
        try:
            with self._activity.statement(0, f"audit of stream {stream.name}", timeout_s=LOOK_MAX_S):
                note = self._audit(stream, known)
        except PenstockError as error:
            note, known.suspects = str(error), None
            plan = self._streams.known.plans.get(stream.id)
            if isinstance(error, NotSupportedError) and plan is not None and plan.options.on_mismatch:
                note += "; so ON_MISMATCH changes nothing"
        except Exception as error:  # noqa: BLE001
            # A defect that one stream shows must not keep the others from being looked at.
            _log.exception("stream %s can't be audited", stream.name)
            note, known.suspects = str(InternalError.of(error)), None
        mismatches = len(open_incidents(self._incidents.of(stream.id))) + len(known.unkept)
        known.info = AuditInfo(known.info.last_ms, known.info.cut, known.info.results, mismatches, note)
        if self._services.catalog.streams.by_id(stream.id) is not None:
            self._streams.known.audits[stream.id] = known.info

    def _subject(self, stream: StreamRecord, known: _Audited) -> Subject:
        """Returns what `subject` does, and raises that: to plan the query anew costs more than a look."""
        catalog = self._services.catalog
        made_of = (stream, *map(catalog.table_by_uid, (*stream.source_uids, stream.target_uid)),
                   *map(catalog.function, stream.uses.functions))
        if known.subject is None or known.subject[0] != made_of:
            try:
                known.subject = made_of, self._comparison.subject(stream)
            except NotSupportedError as error:
                known.subject = made_of, error
        found = known.subject[1]
        if isinstance(found, NotSupportedError):
            raise found
        return found

    def _drawn(self, subject: Subject, known: _Audited, rows: Sequence[tuple[int, Snapshot]]) -> tuple[list[Span], str]:
        """Returns the spans to look at, and what keeps others from being looked at."""
        if subject.target is None:
            return [], "what it has sent is compared by VERIFY STREAM only"
        has_history = subject.plan.source.history is not None
        begin = {vgroup_id: 0 for vgroup_id, _ in rows} if has_history else dict(subject.stream.start_cut)
        every = _written(rows, begin)
        if subject.results.around(0) is None:
            is_answer = isinstance(subject.results, AnswerRows)
            of_results = self._comparison.snapshots([subject.target]) if is_answer else []
            count = max(sum(snapshot.row_count_estimate for _, snapshot in each) for each in (rows, of_results))
            if count > ROWS_MAX:
                return [], f"its results aren't audited: they may come of any of {count} rows"
            return [(TS_MIN, TS_MAX)] if every or is_answer else [], ""
        results = self._comparison.snapshots([subject.target])
        lately = _written(rows, {**begin, **known.since}, _RANGES)
        moved = self._ranges_of_moved(subject, known, rows)
        # Deletes may be of all times: where there is nothing, there is nothing to see.
        known_spans = (snapshot.span(TS_MIN, TS_MAX) for _, snapshot in [*rows, *results])
        where = [(each.first_ts, each.last_ts) for each in known_spans if each is not None]
        if not where:
            return [], ""
        low, high = min(first for first, _ in where), max(last for _, last in where)
        new, tagged, *others = [
            [each for span in spans if (each := clipped(span, low, high)) is not None]
            for spans in (lately, moved, every, _written(results, {}), [
                (one.moment, one.moment) for one in open_incidents(self._incidents.of(subject.stream.id))
                if one.moment is not None])]
        choices = [tagged] if tagged else [ranges for ranges in (new, *others) if ranges]
        whole = (subject.results.around(low) or (low, high))[0], high
        spans = []
        if choices and (span := subject.results.around(self._one_of(self._random.choice(choices)))) is not None:
            spans.append(_widened(subject, span, rows, whole, _ROWS_MIN))
        # From the earliest of the new ones onwards: as far as may be, all are looked at.
        if new and (span := subject.results.around(min(first for first, _ in new))) is not None:
            spans.append(_widened(subject, span, rows, (span[0], high), _NEW_ROWS_MIN))
        small = [span for span in spans if _count(subject, span, rows) <= ROWS_MAX]
        return small, "" if len(small) == len(spans) else f"windows of more than {ROWS_MAX} rows aren't audited"

    def _ranges_of_moved(self, subject: Subject, known: _Audited, rows: Sequence[tuple[int, Snapshot]]) -> list[Span]:
        """Returns ranges of time with all rows of a child table that has got other tags, if there is one."""
        children = self._services.catalog.children(subject.sources[0].storage_uid)
        if children is not known.children:
            if max(len(children), len(known.children)) <= _CHILDREN_MAX:
                before = {child.uid: child.tag_values for child in known.children}
                known.moved |= {child.uid for child in children if before.get(child.uid, child.tag_values) != (
                    child.tag_values)}
            known.children = children
        if not known.moved:
            return []
        uid = known.moved.pop()
        return [span for _, snapshot in rows for span in snapshot.ranges_of(uid)]

    def _one_of(self, ranges: Sequence[Span]) -> int:
        return self._random.randint(*self._random.choice(ranges))

    # --- a look --------------------------------------------------------------------------------------------------

    def _audit(self, stream: StreamRecord, known: _Audited) -> str:
        """Looks at some of a stream's results; returns what is to be told of that."""
        subject = self._subject(stream, known)
        now = Session(time_zone=subject.plan.time_zone, now_ms=self._services.clock.now_ms())
        suspects = known.suspects
        if suspects is not None:
            return self._look_again(subject, known, suspects, now)
        children = self._children(subject)
        spans, note = self._drawn(subject, known, self._comparison.snapshots(subject.sources))
        if not spans:
            return note or "there is nothing to compare"
        always = known_of_all(subject)
        if always:
            note = f"what differs isn't told, since it may be right: {'; '.join(always)}"
        elif subject.results.sources(0, 0) is None:
            note = "differences are reported only while no rows arrive, since any row may change its results"
        horizon, known.horizon = known.horizon or self._comparison.reached(subject), None
        wrong = self._look(subject, known, spans, horizon, children, now)
        known.since = dict(horizon.cut)
        new = frozenset(map(_key, wrong)) - self._told(subject, known)
        if new:
            known.suspects = _Suspects(new, tuple(spans), horizon, children)
            self._comparison.request_checkpoint(subject)
        return note

    def _look_again(self, subject: Subject, known: _Audited, suspects: _Suspects, now: Session) -> str:
        """Does what `_audit` does with results that differed, at a checkpoint."""
        cut = self._comparison.committed(subject, suspects.horizon.cut)
        if cut is None:
            known.suspects = replace(suspects, waited=True)
            self._comparison.request_checkpoint(subject)
            return "results that differ are looked at again once there is a checkpoint"
        known.suspects = None
        horizon = replace(suspects.horizon, cut=cut)
        wrong = self._look(subject, known, suspects.spans, horizon, suspects.children, now)
        self._note_incidents(subject, known, cut, [one for one in wrong if _key(one) in suspects.results], now)
        return ""

    def _told(self, subject: Subject, known: _Audited) -> set[Result]:
        """Returns the results that are known to be wrong."""
        opened = open_incidents(self._incidents.of(subject.stream.id))
        return known.unkept | {(one.child, one.moment) for one in opened}

    def _look(
        self, subject: Subject, known: _Audited, spans: Sequence[Span], horizon: Horizon,
        children: tuple[tuple[ChildTable, ...], ...], now: Session
    ) -> list[Difference]:
        """Compares spans; returns differences that nothing explains. `children`: see `_unexplained`."""
        found = self._comparison.compare(subject, spans, horizon, now)
        known.info = replace(known.info, last_ms=self._services.clock.now_ms(), cut=horizon.cut,
                             results=known.info.results + found.equal)
        self._settle(subject, known, spans, found)
        return self._unexplained(subject, found.differences, horizon.cut, children)

    def _children(self, subject: Subject) -> tuple[tuple[ChildTable, ...], ...]:
        """Returns the child tables of the sources as they are now; the same tuples while they don't change."""
        return tuple(self._services.catalog.children(table.storage_uid) for table in subject.sources)

    def _unexplained(
        self, subject: Subject, differences: Sequence[Difference], cut: Cut,
        children: tuple[tuple[ChildTable, ...], ...]
    ) -> list[Difference]:
        """Returns differences of which nothing is known that explains them, of windows without rows behind the cut.

        `children`: those of the sources before the cut. If they have other tags by now, nothing is told: the query
        goes by those of now, results by those of the cut.
        """
        stream = self._services.catalog.streams.by_id(subject.stream.id)
        is_answer = isinstance(subject.results, AnswerRows)  # of which tables there are it may be, too
        if not differences or stream is None or not all(
                before is now or (set(before) <= set(now) and not is_answer)
                for before, now in zip(children, self._children(subject), strict=True)):
            return []
        behind = _written(self._comparison.snapshots(subject.sources), dict(cut), _RANGES)
        left_out = self._comparison.left_out(stream)
        current = replace(subject, stream=stream)
        return [one for one in differences if not _may_change(subject, one, behind) and known_reasons(
            current, one, left_out) is None]

    def _settle(self, subject: Subject, known: _Audited, spans: Sequence[Span], found: Compared) -> None:
        """Notes which results that were wrong are right again."""
        if found.others > len(found.differences):
            return  # not all that differ are known
        wrong = set(map(_key, found.differences))

        def is_right(result: Result) -> bool:
            moment = result[1]
            return result not in wrong and (moment is None or any(first <= moment <= last for first, last in spans))

        for incident in open_incidents(self._incidents.of(subject.stream.id)):
            if is_right((incident.child, incident.moment)):
                self._incidents.settle(incident, self._services.clock.now_ms())
                self._tell(incident, "its result equals the query again")
        known.unkept = {one for one in known.unkept if not is_right(one)}

    # --- incidents -----------------------------------------------------------------------------------------------

    def _note_incidents(
        self, subject: Subject, known: _Audited, cut: Cut, differences: Sequence[Difference], now: Session
    ) -> None:
        """Keeps incidents of results that are wrong."""
        for one in differences[:_NEW_INCIDENTS]:
            made = self._incident(subject, cut, one)
            times = (TS_MIN, TS_MAX) if one.moment is None else (one.moment, one.moment)
            rows = self._comparison.rows(subject, cut, times, now)
            try:
                kept = self._incidents.add(made, rows)
            except StorageError as error:
                known.unkept.add(_key(one))
                self._streams.known.tell(subject.stream.id, f"audit: {_text(one)}; no incident was stored: {error}")
                continue
            self._tell(kept, f"{_text(one)}; its source rows are in {self._incidents.folder(kept)}")
            # Only now, since it may destroy the evidence.
            if subject.on_mismatch == "recalculate":
                self._recalculate(subject, kept)

    def _incident(self, subject: Subject, cut: Cut, one: Difference) -> Incident:
        stream = subject.stream
        return Incident(
            0, stream.id, stream.name, self._services.clock.now_ms(), one.state, one.child, one.moment, one.ends,
            one.found, one.wanted, subject.time.precision, tuple(cut), stream.asked.text, stream.plan,
            stream.attempt, tuple(self._history(stream)), 0, __version__)

    def _history(self, stream: StreamRecord) -> Iterator[str]:
        """Yields what the checkpoints of a stream were, and what has happened to it."""
        for stored in reversed(self._services.stores.records.all(stream.id)):
            record = stored.record
            yield f"checkpoint {stored.checkpoint_id}: " + (stored.damage if record is None else (
                f"attempt {record.attempt}, at {record.started_ms}, cut {cut_text(record.versions)}"))
        events = [event for event in self._streams.reports.snapshot().events if event.stream_id == stream.id]
        for event in events[-_EVENTS_KEPT:]:
            yield f"{event.at_ms}: {event.text}"

    def _recalculate(self, subject: Subject, incident: Incident) -> None:
        first = TS_MIN if incident.moment is None else incident.moment
        last = incident.moment if incident.ends is None else incident.ends - 1
        try:
            self._streams.control.recalculate_range(subject.stream, first, TS_MAX if last is None else last)
            action = "recalculated"
        except PenstockError as error:
            action = f"not recalculated: {error}"
        self._incidents.note_action(incident, action)
        self._tell(incident, action)

    def _tell(self, incident: Incident, text: str) -> None:
        self._streams.known.tell(incident.stream_id, f"audit, incident {incident.number}: {text}")


def _key(one: Difference) -> Result:
    return one.child, one.moment


def _written(rows: Sequence[tuple[int, Snapshot]], since: Mapping[int, int], most: int = 1) -> list[Span]:
    """Returns ranges of time that were written to behind a cut; `most`: see `written_since`."""
    return [span for vgroup_id, snapshot in rows for span in snapshot.written_since(since.get(vgroup_id, 0), most)]


def _may_change(subject: Subject, one: Difference, written: Sequence[Span]) -> bool:
    """Whether rows of these ranges may change a result."""
    times = subject.rows_of(one)
    if times is None:
        return bool(written)
    return any(first <= times[1] and times[0] <= last for first, last in written)


def _count(subject: Subject, span: Span, rows: Sequence[tuple[int, Snapshot]]) -> int:
    """Returns about how many rows the results of a span come of."""
    first, last = subject.results.bounds(*span) or (TS_MIN, TS_MAX)
    spans = [snapshot.span(first, TS_MAX if last is None else last) for _, snapshot in rows]
    return sum(span.rows for span in spans if span is not None)


def _widened(subject: Subject, span: Span, rows: Sequence[tuple[int, Snapshot]], whole: Span, least: int) -> Span:
    """Returns a span around this one, within `whole`, with at least about so many rows, if there are so many."""
    for _ in range(_DOUBLINGS):
        if _count(subject, span, rows) >= least:
            break
        width = span[1] - span[0] + 1
        wider = max(whole[0], span[0] - width), min(whole[1], span[1] + width)
        if wider == span or _count(subject, wider, rows) > ROWS_MAX:
            break
        span = wider
    return span


def _text(one: Difference) -> str:
    at = "" if one.moment is None else f" at {one.moment}"
    where = one.state + at + (f" of {one.child}" if one.child else "")
    return f"a result is {where}: {one.found or 'nothing'} instead of {one.wanted or 'nothing'}"
