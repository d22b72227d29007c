"""What a stream has sent to an external target up to a checkpoint, read from the states of its sink tasks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from penstock.common.errors import NotSupportedError, UnavailableError
from penstock.planner.task_plans.stream_plan import SinkPlan
from penstock.tasks.external.emit.external_writers import sent_rows
from penstock.tasks.external.emit.result_events import ExternalRows
from penstock.tasks.state.state_store import StateStore


@dataclass(frozen=True, slots=True)
class SentResults:
    """`rows`: in the order in which they were sent, as `ExternalRows` has them; `_op` REFUSED: the DLQ has them.

    `behind`: results of up to this time may have been sent that aren't among the rows, in units of the source's
    precision; None: there are none.
    """

    rows: pa.Table
    behind: int | None


def sent_results(store: StateStore, checkpoint_id: int, sink: SinkPlan) -> SentResults | str:
    """Returns what a sink task has sent up to a checkpoint, or why that isn't known.

    The store must be readonly. Raises CheckpointDamagedError, CorruptionError, and NotSupportedError for rows that are
    told apart by a KEY.
    """
    if sink.by_key:
        raise NotSupportedError("results that leave Penstock by a KEY can't be verified yet",
                                hint="each checkpoint compares the answer with what was sent")
    store.read_as_of(checkpoint_id)
    meta = store.meta(checkpoint_id)
    saved = meta.get("external")
    if saved is None or saved.get("sent") is None:
        return "nothing is recorded of what it sent"
    if meta["aside"]:
        return "results wait in its state until they can be sent"
    rows = ExternalRows(sink, "")
    return SentResults(pa.Table.from_batches(sent_rows(store, saved, rows), rows.schema), saved["sent"]["behind"])


def united(stream: str, parts: Iterable[SentResults | str]) -> SentResults:
    """Returns what the sink tasks of a stream have sent together, each of other groups.

    Raises UnavailableError if that isn't known.
    """
    known = []
    for part in parts:
        if isinstance(part, str):
            raise UnavailableError(f"stream {stream} can't be verified: {part}", hint=(
                "raise sentRecordSize, and restart the stream"))
        known.append(part)
    return SentResults(pa.concat_tables([part.rows for part in known]),
                       max((part.behind for part in known if part.behind is not None), default=None))
