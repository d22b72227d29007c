"""SAMPLE of VERIFY STREAM: which windows of a stream are compared, or times, of those that have rows or results."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from penstock.mnode.streams.stream_comparison import StreamComparison, Subject
from penstock.planner.query.compared_results import Span
from penstock.sql.schema import Session


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
