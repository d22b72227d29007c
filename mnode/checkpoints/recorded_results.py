"""What the sink tasks of a running stream have sent up to a checkpoint: read from copies of their states."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path

from penstock.common.paths import DataPaths
from penstock.common.private import make_private
from penstock.mnode.checkpoints.checkpoint_manifest import copy_order
from penstock.mnode.checkpoints.commit_records import CommitRecord
from penstock.planner.task_plans.stream_plan import SinkPlan
from penstock.tasks.sink.sent_results import SentResults, sent_results, united
from penstock.tasks.state.state_copy import copy_states, environment_size
from penstock.tasks.state.state_store import StateStore


def recorded_results(stream: str, record: CommitRecord, sink: SinkPlan, paths: DataPaths) -> SentResults:
    """Returns what a stream of this name has sent. Raises what `copy_states`, `sent_results` and `united` do."""
    make_private(paths.scratch)
    with tempfile.TemporaryDirectory(prefix="sent-", dir=paths.scratch) as temporary:
        order = copy_order(paths, record, Path(temporary), "sink")
        problem, = copy_states([order])
        if problem is not None:
            raise problem
        found = []
        for _, copy in order.pairs:
            with closing(StateStore(copy, environment_size(copy), readonly=True)) as store:
                found.append(sent_results(store, record.checkpoint_id, sink))
    return united(stream, found)
