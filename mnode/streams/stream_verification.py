"""VERIFY STREAM: compares the result table of a running stream with the query over its source, at one cut.

What is written meanwhile may be ahead of the cut; so results that differ are looked at once more, and those that
changed between the two looks again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from random import Random

import pyarrow as pa

from penstock.common.errors import InvalidStatementError
from penstock.mnode.access.session import Result
from penstock.mnode.streams.differences import Compared, Difference
from penstock.mnode.streams.known_streams import KnownStreams
from penstock.mnode.streams.stream_comparison import (
    LeftOut,
    StreamComparison,
    Subject,
    known_reasons,
)
from penstock.planner.bind.instants import instant
from penstock.planner.query.compared_results import SHOWN, Span
from penstock.planner.task_plans.plan_tree import ResultColumn
from penstock.sql.cuts import Cut, cut_text
from penstock.sql.schema import Session
from penstock.sql.tree.statements import VerifyStream
from penstock.sql.types import VARCHAR
from penstock.vnode.read.snapshot import Snapshot
from penstock.vnode.store.sorted_keys import TS_MAX, TS_MIN

ROWS_PER_PIECE = 2_000_000
"""About so many rows of the source are compared at once, where a range of results comes from a range of rows."""

_LOOKS = 5
"""So often results are looked at that go on changing."""


class StreamVerification:
    """Executes VERIFY STREAM."""

    def __init__(
        self, known: KnownStreams, comparison: StreamComparison, note_progress: Callable[[str], None], random: Random
    ) -> None:
        """`random` says which windows SAMPLE draws."""
        self._known = known
        self._comparison = comparison
        self._note_progress = note_progress
        self._random = random

    def verify(self, statement: VerifyStream, session: Session) -> Result:
        """Returns the results that aren't what the query says, and last a line that counts.

        Raises NotSupportedError for streams whose rows alone don't tell the results, UnavailableError for those that
        don't run, or are behind.
        """
        subject = self._comparison.subject(self._known.require(statement.name))
        pieces = pieces_of(
            subject, _range(statement, subject, session), self._comparison.snapshots(subject.sources))
        drawn = ""
        if statement.sample is not None:
            drawn = "; not drawn, since results may come of any rows"
            if subject.results.times is not None:
                pieces = drawn_windows(
                    self._comparison, subject, pieces, statement.sample, session, self._random)
                drawn = f"; {len(pieces)} {'times' if subject.results.of_rows else 'windows'} were drawn"
        before = self._comparison.left_out(subject.stream)
        cut, found = self._look(subject, pieces, session)
        unsettled: set[Difference] = set()
        for _ in range(_LOOKS):
            different = [piece for piece in pieces if found[piece].differences]
            if not different:
                break
            cut, again = self._look(subject, different, session)
            unsettled = {one for piece in different for one in again[piece].differences
                         if one not in found[piece].differences}
            found |= again
            if not unsettled:
                break
        return told(subject, cut, [found[piece] for piece in pieces], unsettled,
                    (before, self._comparison.left_out(subject.stream)), drawn)

    def _look(
        self, subject: Subject, pieces: Sequence[Span], session: Session
    ) -> tuple[Cut, dict[Span, Compared]]:
        return self._comparison.look(subject, pieces, session, self._note_progress)


def _range(statement: VerifyStream, subject: Subject, session: Session) -> Span:
    if statement.first is None:
        return TS_MIN, TS_MAX
    if subject.target is not None and subject.target.keyed:
        raise InvalidStatementError(f"results of stream {subject.stream.name} have no time of which there are ranges",
                                    hint=f"VERIFY STREAM {subject.stream.name} compares all of them")
    first = instant(statement.first, subject.time.precision, session)
    last = TS_MAX if statement.last is None else instant(statement.last, subject.time.precision, session)
    if first > last:
        raise InvalidStatementError("VERIFY STREAM: the range ends before it begins")
    return first, last


def pieces_of(subject: Subject, wanted: Span, rows: Sequence[tuple[int, Snapshot]]) -> list[Span]:
    """Returns ranges of time of results that are compared one by one, so that memory has room for each."""
    first, last = wanted
    if subject.results.bounds(first, last) is None:
        return [wanted]
    spans = [span for _, snapshot in rows if (span := snapshot.span(first, last)) is not None]
    count = -(-sum(span.rows for span in spans) // ROWS_PER_PIECE)
    if count < 2:
        return [wanted]
    low, high = min(span.first_ts for span in spans), max(span.last_ts for span in spans)
    edges = sorted({low + (high - low) * n // count for n in range(1, count)})
    return list(zip([first, *edges], [*(edge - 1 for edge in edges), last], strict=True))


def told(
    subject: Subject, cut: Cut, found: Sequence[Compared], unsettled: Collection[Difference],
    left_out: Sequence[LeftOut], drawn: str = "",
) -> Result:
    """Returns the lines of VERIFY STREAM.

    `unsettled`: what changed between two looks. `left_out`: of before the first look, and behind the last. `drawn`:
    what is to be told of SAMPLE.
    """
    lines: list[tuple[str | int | None, ...]] = []
    for one in [one for piece in found for one in piece.differences][:SHOWN]:
        known = "changed while it was looked at" if one in unsettled else next(filter(
            None, (known_reasons(subject, one, each) for each in reversed(left_out))), None)
        lines.append((one.state, one.child, one.moment, one.found, one.wanted, known))
    others = sum(piece.others for piece in found)
    more = f", of which {len(lines)} are shown" if others > len(lines) else ""
    counts = f"{sum(piece.equal for piece in found)} results are equal, {others} aren't{more}"
    unjudged = sum(piece.unjudged for piece in found)
    if unjudged:
        why = "written after the checkpoint" if subject.target is not None else "not in the record of what was sent"
        counts += f"; {why}, and not judged: {unjudged}"
    lines.append(("verified", None, None, counts, None, f"at cut {cut_text(cut)}{drawn}"))
    time = subject.time
    columns = tuple(ResultColumn(name, time if name == "ts" else VARCHAR) for name in (
        "state", "table_name", "ts", "stream_values", "query_values", "known"))
    arrays = [pa.array(values, pa.int64()).cast(time.arrow()) if column.name == "ts" else pa.array(values, pa.string())
              for column, values in zip(columns, zip(*lines, strict=True), strict=True)]
    return Result(columns, pa.Table.from_arrays(arrays, names=[column.name for column in columns]), len(lines))


def drawn_windows(
    comparison: StreamComparison, subject: Subject, pieces: Sequence[Span], count: int, session: Session,
    random: Random,
) -> list[Span]:
    """Returns spans of one time each, oldest first: `count` if there are so many in `pieces`.

    Of more pieces than that only some are read, so that what is read has a bound.
    """
    chosen = pieces if len(pieces) <= count else random.sample(pieces, count)
    moments = [moment for piece in chosen for moment in comparison.times(
        subject, piece, count, random.getrandbits(62), session)]
    if len(moments) > count:
        moments = random.sample(moments, count)
    return [(moment, moment) for moment in sorted(moments)]
