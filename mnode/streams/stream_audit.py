"""The audit: compares results of running streams with their queries, a few windows at a time, all the time.

What it looks at is drawn: the earliest rows that were written, deleted or replayed lately, others of these, those of
child tables that have got other tags, and any rows and results.
Results that differ are looked at once more, at a checkpoint of then; only what differs again is an incident.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from penstock import __version__
from penstock.common.errors import InternalError, PenstockError, StorageError
from penstock.common.logging import logger
from penstock.mnode.catalog.catalog_records import StreamRecord
from penstock.mnode.coordinator.stream_status import AuditInfo
from penstock.mnode.streams.audit_incidents import Incident, Incidents, open_incidents
from penstock.mnode.streams.stream_comparison import (
    Compared,
    Difference,
    Span,
    StreamComparison,
    Subject,
    known_reasons,
)
from penstock.mnode.streams.stream_services import StreamServices
from penstock.mnode.streams.stream_statements import Streams
from penstock.sql.cuts import Cut, cut_text
from penstock.sql.schema import ChildTable, Session
from penstock.vnode.read.snapshot import Snapshot
from penstock.vnode.store.memtable import clipped
from penstock.vnode.store.sorted_keys import TS_MAX, TS_MIN

ROWS_MAX = 1_000_000
"""Windows of more rows than this aren't looked at: a look keeps its rows in memory."""
AGE_MS = 30_000
"""So old the checkpoint may be at whose cut a first look compares: to take one costs more than the look."""

_ROWS_MIN = 1_000
"""A span of windows is made as wide as about so many rows are, so that a look is worth its fixed cost."""
_DOUBLINGS = 40
_CHILDREN_MAX = 20_000
"""Of tables with more children nobody looks which have got other tags: that would take as long as a look."""
_REST_LEAST_S = 1.0
_NEW_INCIDENTS = 5
"""So many incidents at most are made of one look; the others are like them."""
_EVENTS_KEPT = 50
_CHECKPOINT_TIMEOUT_S = 10.0

_log = logger(__name__)

Result = tuple[str | None, int]
"""Which result: `child` and `moment` of a difference."""


@dataclass(slots=True)
class _Audited:
    """What the audit knows of a stream.

    `since`: the cut behind which rows count as written lately. `children`: the child tables of the source, `moved`: the
    uids of those that have got other tags, and weren't looked at since. `suspects`: by span, what differed in the look
    before. `unkept`: wrong results for whose incidents there was no room. `subject`: what is looked at, as of a record
    and a generation of the catalog.
    """

    since: Mapping[int, int] = field(default_factory=dict)
    children: tuple[ChildTable, ...] = ()
    moved: set[int] = field(default_factory=set)
    suspects: dict[Span, set[Result]] = field(default_factory=dict)
    unkept: set[Result] = field(default_factory=set)
    subject: tuple[StreamRecord, int, Subject] | None = None
    info: AuditInfo = field(default_factory=AuditInfo)


class StreamAudit:
    """Looks at one stream after the other; `step` does one look. Everything happens in one thread."""

    def __init__(
        self, services: StreamServices, streams: Streams, comparison: StreamComparison, incidents: Incidents,
        random: Random,
    ) -> None:
        self._services = services
        self._streams = streams
        self._comparison = comparison
        self._incidents = incidents
        self._random = random
        self._audited: dict[int, _Audited] = {}
        self._turns: list[int] = []
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
        clock = self._services.clock
        start = clock.processor()
        stream = self._next()
        if stream is not None:
            self._look_at(stream)
        share = self._services.config.audit_share
        # What else the process has done meanwhile counts as well: rather too long a rest than too short a one.
        return max(_REST_LEAST_S, (clock.processor() - start) * (1 / share - 1)) if share else _REST_LEAST_S

    def _run(self) -> None:
        rest_s = _REST_LEAST_S
        while not self._services.clock.wait(self._closing, rest_s):
            rest_s = self.step()

    # --- which stream, and what of it ----------------------------------------------------------------------------

    def _next(self) -> StreamRecord | None:
        """Returns the stream whose turn it is; those with suspects come first."""
        running = {stream.id: stream for stream in self._services.catalog.streams.all()
                   if stream.wanted == "running" and stream.id in self._streams.known.plans}
        self._audited = {one: self._audited.get(one, _Audited()) for one in running}
        self._turns = [one for one in self._turns if one in running]
        self._turns += [one for one in running if one not in self._turns]
        if not self._turns:
            return None
        turn = next((one for one in self._turns if self._audited[one].suspects), self._turns[0])
        self._turns.remove(turn)
        self._turns.append(turn)
        return running[turn]

    def _look_at(self, stream: StreamRecord) -> None:
        known = self._audited[stream.id]
        note = ""
        try:
            note = self._audit(stream, known)
        except PenstockError as error:
            note, known.suspects = str(error), {}
        except Exception as error:  # noqa: BLE001
            # A defect that one stream shows must not keep the others from being looked at.
            _log.exception("stream %s can't be audited", stream.name)
            note, known.suspects = str(InternalError.of(error)), {}
        mismatches = len(open_incidents(self._incidents.of(stream.id))) + len(known.unkept)
        known.info = AuditInfo(known.info.last_ms, known.info.cut, known.info.results, mismatches, note)
        if self._services.catalog.streams.by_id(stream.id) is not None:
            self._streams.known.audits[stream.id] = known.info

    def _subject(self, stream: StreamRecord, known: _Audited) -> Subject:
        """Returns what `subject` does: to plan the query anew costs as much as a look."""
        generation = self._services.catalog.generation
        if known.subject is None or known.subject[:2] != (stream, generation):
            known.subject = stream, generation, self._comparison.subject(stream)
        return known.subject[2]

    def _drawn(self, subject: Subject, known: _Audited, rows: Sequence[tuple[int, Snapshot]]) -> tuple[list[Span], str]:
        """Returns the spans to look at, and what keeps others from being looked at."""
        if subject.target is None:
            return [], "what it has sent is compared by VERIFY STREAM only"
        has_history = subject.plan.source.history is not None
        begin = {vgroup_id: 0 for vgroup_id, _ in rows} if has_history else dict(subject.stream.start_cut)
        every = _written(rows, begin)
        if subject.results.around(0) is None:
            count = sum(snapshot.row_count_estimate for _, snapshot in rows)
            if count > ROWS_MAX:
                return [], f"its results aren't audited: they may come of any of {count} rows"
            return [(TS_MIN, TS_MAX)] if every else [], ""
        results = self._comparison.snapshots([subject.target])
        lately = _written(rows, {**begin, **known.since})
        moved = self._ranges_of_moved(subject, known, rows)
        # Deletes may be of all times: where there is nothing, there is nothing to see.
        known_spans = (snapshot.span(TS_MIN, TS_MAX) for _, snapshot in [*rows, *results])
        where = [(each.first_ts, each.last_ts) for each in known_spans if each is not None]
        if not where:
            return [], ""
        low, high = min(first for first, _ in where), max(last for _, last in where)
        ranges = [[each for span in spans if (each := clipped(span, low, high)) is not None]
                  for spans in (lately, moved, every, _written(results, {}))]
        moments = [min(first for first, _ in ranges[0])] if ranges[0] else []
        moments += [self._one_of(each) for each in ranges if each]
        opened = open_incidents(self._incidents.of(subject.stream.id))
        if opened:
            moments.append(self._random.choice(opened).moment)
        spans = [span for moment in moments if (span := subject.results.around(moment)) is not None]
        whole = (subject.results.around(low) or (low, high))[0], high
        wide = list(dict.fromkeys(_widened(subject, span, rows, whole) for span in spans))
        small = [span for span in wide if _count(subject, span, rows) <= ROWS_MAX]
        return small, "" if len(small) == len(wide) else f"windows of more than {ROWS_MAX} rows aren't audited"

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
        again = known.suspects
        known.suspects = {}
        spans, note = ([*again], "") if again else self._drawn(
            subject, known, self._comparison.snapshots(subject.sources))
        if not spans:
            return note or "there is nothing to look at"
        children = self._children(subject)
        now = Session(time_zone=subject.plan.time_zone, now_ms=self._services.clock.now_ms())
        cut, found = self._comparison.look(subject, spans, now, age_ms=0 if again else AGE_MS,
                                          timeout_s=_CHECKPOINT_TIMEOUT_S)
        if not again:
            known.since = dict(cut)
        wrong = self._unexplained(subject, found, cut, children)
        results = known.info.results + sum(compared.equal for compared in found.values())
        known.info = AuditInfo(self._services.clock.now_ms(), cut, results, known.info.mismatches, "")
        self._settle(subject, known, found)
        if again:
            # Spans may overlap.
            twice = [*dict.fromkeys(one for span, differences in wrong.items() for one in differences
                                    if (one.child, one.moment) in again[span])]
            self._note_incidents(subject, known, cut, twice, now)
        else:
            known.suspects = {span: {(one.child, one.moment) for one in differences}
                              for span, differences in wrong.items() if differences}
        return note

    def _children(self, subject: Subject) -> list[tuple[ChildTable, ...]]:
        """Returns the child tables of the sources as they are now; the same tuples while they don't change."""
        return [self._services.catalog.children(table.storage_uid) for table in subject.sources]

    def _unexplained(
        self, subject: Subject, found: Mapping[Span, Compared], cut: Cut, children: list[tuple[ChildTable, ...]]
    ) -> dict[Span, list[Difference]]:
        """Returns differences of which nothing is known that explains them, of windows without rows behind the cut.

        `children`: those of the sources before the look. If they have other tags by now, nothing is told: the query
        goes by those of now, results by those of the cut.
        """
        different = {span: compared.differences for span, compared in found.items() if compared.differences}
        stream = self._services.catalog.streams.by_id(subject.stream.id)
        if not different or stream is None or not all(
                before is now or set(before) <= set(now)
                for before, now in zip(children, self._children(subject), strict=True)):
            return {}
        behind = _written(self._comparison.snapshots(subject.sources), dict(cut))
        left_out = self._comparison.left_out(stream)
        current = replace(subject, stream=stream)
        return {span: [one for one in differences if not _may_change(subject, one, behind) and known_reasons(
            current, one, left_out) is None] for span, differences in different.items()}

    def _settle(self, subject: Subject, known: _Audited, found: Mapping[Span, Compared]) -> None:
        """Notes which results that were wrong are right again."""
        for incident in open_incidents(self._incidents.of(subject.stream.id)):
            if _is_right((incident.child, incident.moment), found):
                self._incidents.settle(incident, self._services.clock.now_ms())
                self._tell(incident, "its result is what the query says again")
        known.unkept = {one for one in known.unkept if not _is_right(one, found)}

    # --- incidents -----------------------------------------------------------------------------------------------

    def _note_incidents(
        self, subject: Subject, known: _Audited, cut: Cut, differences: Sequence[Difference], now: Session
    ) -> None:
        """Keeps incidents of results that are wrong, but of those that are known to be."""
        stream_id = subject.stream.id
        told = known.unkept | {(one.child, one.moment) for one in open_incidents(self._incidents.of(stream_id))}
        new = [one for one in differences if (one.child, one.moment) not in told]
        for one in new[:_NEW_INCIDENTS]:
            made = self._incident(subject, cut, one)
            rows = self._comparison.rows(subject, cut, (one.moment, one.moment), now)
            try:
                kept = self._incidents.add(made, rows)
            except StorageError as error:
                known.unkept.add((one.child, one.moment))
                self._streams.known.tell(stream_id, f"audit: {_text(one)}; no incident is kept of it: {error}")
                continue
            self._tell(kept, f"{_text(one)}; what it is made of is in {self._incidents.folder(kept)}")
            # Only now, since it may destroy the evidence.
            if subject.on_mismatch == "recalculate":
                self._recalculate(subject, kept)

    def _incident(self, subject: Subject, cut: Cut, one: Difference) -> Incident:
        stream = subject.stream
        return Incident(
            0, stream.id, stream.name, self._services.clock.now_ms(), one.state, one.child, one.moment, one.ends,
            one.found, one.wanted, subject.plan.source.precision, tuple(cut), stream.asked.text, stream.plan,
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
        last = incident.moment if incident.ends is None else incident.ends - 1
        try:
            self._streams.control.recalculate_range(subject.stream, incident.moment, last)
            action = "recalculated"
        except PenstockError as error:
            action = f"not recalculated: {error}"
        self._incidents.note_action(incident, action)
        self._tell(incident, action)

    def _tell(self, incident: Incident, text: str) -> None:
        self._streams.known.tell(incident.stream_id, f"audit, incident {incident.number}: {text}")


def _is_right(result: Result, found: Mapping[Span, Compared]) -> bool:
    """Whether a look has found a result to be what the query says; of more differences than are shown nothing is."""
    for (first, last), compared in found.items():
        if first <= result[1] <= last and compared.others == len(compared.differences):
            return result not in {(one.child, one.moment) for one in compared.differences}
    return False


def _written(rows: Sequence[tuple[int, Snapshot]], since: Mapping[int, int]) -> list[Span]:
    """Returns ranges of time that were written to behind a cut."""
    return [span for vgroup_id, snapshot in rows for span in snapshot.written_since(since.get(vgroup_id, 0))]


def _may_change(subject: Subject, one: Difference, written: Sequence[Span]) -> bool:
    """Whether rows of these ranges may change a result."""
    times = subject.results.sources(one.moment, one.ends)
    if times is None:
        return bool(written)
    return any(first <= times[1] and times[0] <= last for first, last in written)


def _count(subject: Subject, span: Span, rows: Sequence[tuple[int, Snapshot]]) -> int:
    """Returns about how many rows the results of a span come of."""
    first, last = subject.results.bounds(*span) or (TS_MIN, TS_MAX)
    spans = [snapshot.span(first, TS_MAX if last is None else last) for _, snapshot in rows]
    return sum(span.rows for span in spans if span is not None)


def _widened(subject: Subject, span: Span, rows: Sequence[tuple[int, Snapshot]], whole: Span) -> Span:
    """Returns a span around this one, within `whole`, with enough rows, if there are so many."""
    for _ in range(_DOUBLINGS):
        if _count(subject, span, rows) >= _ROWS_MIN:
            break
        width = span[1] - span[0] + 1
        wider = max(whole[0], span[0] - width), min(whole[1], span[1] + width)
        if wider == span or _count(subject, wider, rows) > ROWS_MAX:
            break
        span = wider
    return span


def _text(one: Difference) -> str:
    where = f"{one.state} at {one.moment}" + (f" of {one.child}" if one.child else "")
    return f"a result is {where}: {one.found or 'nothing'} instead of {one.wanted or 'nothing'}"
