"""Writes what windows give: rows of executions, results, and what takes the place of earlier ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import zip_longest

import numpy as np
import pyarrow as pa

from penstock.common.errors import PenstockError
from penstock.mnode.ddl.child_creation import ChildCreator
from penstock.mnode.dnode.shared_lock import SharedLock
from penstock.mnode.streams.calculated_results import Results, last_of_each, no_results
from penstock.mnode.streams.calculation_jobs import ComputedOrder, Job
from penstock.mnode.streams.fired_windows import FiredWindow
from penstock.mnode.streams.stream_services import StreamServices
from penstock.mnode.write.result_children import ResultChildren
from penstock.sql.schema import Table
from penstock.tasks.protocol.messages import ResultWrite, TaskId
from penstock.vnode.store.sorted_keys import U64
from penstock.vnode.write.vnode_writer import Change, DeletedRows, WrittenRows
from penstock.wal.record import TUID_COLUMN

_Steps = list[Mapping[int, Sequence[Change]]]
"""What is to be written by vgroup: nothing of a step before all of the step before it is acknowledged."""
_NOTHING: Mapping[int, Sequence[Change]] = {}


class ExecutionWrites:
    """Writes orders, those of several streams at once. Safe for many threads."""

    def __init__(self, services: StreamServices, writing: SharedLock, children: ChildCreator) -> None:
        """`writing` is shared while rows are written, so that tables don't change their vnodes meanwhile."""
        self._services = services
        self._storage = services.storage
        self._writing = writing
        self._children = children
        self._children_of: dict[TaskId, ResultChildren] = {}

    def write(self, some: Sequence[ComputedOrder]) -> list[Exception | None]:
        """Writes what several orders give, at once as far as that goes; returns what each failed with."""
        errors: list[Exception | None] = [None] * len(some)
        with self._writing.shared():
            steps: dict[int, _Steps] = {}
            for place, one in enumerate(some):
                try:
                    self._services.stores.results.check_attempt(
                        one.job.stream.id, one.order.request.attempt, one.order.request.task)
                    steps[place] = self._steps(one)
                except Exception as error:  # noqa: BLE001 - whose order it is raises it
                    errors[place] = error
            try:
                self._perform(list(steps.values()))
            except PenstockError:
                for place, own in steps.items():  # again, which changes nothing, to know who can't be written
                    try:
                        self._perform([own])
                    except Exception as error:  # noqa: BLE001
                        errors[place] = error
        return errors

    def _steps(self, one: ComputedOrder) -> _Steps:
        """Returns what is to be written, step by step.

        Results that are in the vnode of the executions are seen with these at once, also by who looks behind a crash.
        Others come behind rows of executions that say where results are that go and that come, so that they are found
        then; and last, where some have gone, come rows that say where those are that stay.
        """
        job, windows = one.job, [*one.windows, *one.gone]
        home = job.executions.vgroup_id
        assert home is not None
        outcome = one.results.followed_by(no_results(len(one.gone)))
        changes = {} if job.target is None else self._result_changes(
            job, job.target, one.results, one.windows, one.gone, one.order.writes[-1])
        begun = self._of_executions(job, one.begun, no_results(len(one.begun)))
        if changes.keys() <= {home}:
            return [{home: [*self._of_executions(job, windows, outcome), *changes.get(home, ()), *begun]}]
        doubtful = outcome.and_before(windows, {place: known.times for place, known in job.known.items()})
        settled = [place for place, (one_, other) in enumerate(zip(outcome.times, doubtful.times, strict=True))
                   if len(one_) < len(other)]
        return [{home: self._of_executions(job, windows, doubtful)}, changes,
                {home: [*self._of_executions(job, [windows[place] for place in settled], outcome.of(settled)), *begun]}]

    def _of_executions(self, job: Job, windows: Sequence[FiredWindow], results: Results) -> list[Change]:
        return [job.rows_of(windows, results, self._services.clock.now_ms())] if windows else []

    def _perform(self, several: Sequence[_Steps]) -> None:
        """Writes the first steps of all, then the next ones: each step with one write per vnode."""
        for step in zip_longest(*several, fillvalue=_NOTHING):
            changes: dict[int, list[Change]] = defaultdict(list)
            for part in step:
                for vgroup_id, of_vnode in part.items():
                    changes[vgroup_id] += of_vnode
            begins = [(vgroup_id, partial(self._storage.begin_changes, vgroup_id, of_vnode))
                      for vgroup_id, of_vnode in changes.items() if of_vnode]
            if begins:
                self._storage.whole_writes.write(begins)

    def _result_changes(
        self, job: Job, target: Table, results: Results, windows: Sequence[FiredWindow],
        retracted: Sequence[FiredWindow], write: ResultWrite,
    ) -> dict[int, list[Change]]:
        """Returns how to delete results that windows don't give any more, and to write those that they give."""
        places = np.array(sorted({window.group.child for window in (*windows, *retracted)}), np.int64)
        if target.kind == "super":
            children = self._children_of.get(write.task)
            if children is None or children.wanted is not write.children or children.target_uid != target.uid:
                children = ResultChildren(target, write.children, self._services.catalog, self._children)
                self._children_of[write.task] = children
            children.learn(target, places)
            uids, vgroups = children.uids, children.vgroups
        else:
            size = int(places.max(initial=0)) + 1
            uids, vgroups = np.full(size, target.uid, np.uint64), np.full(size, target.vgroup_id, np.int64)
        changes: dict[int, list[Change]] = defaultdict(list)
        # Of groups that share a child table nobody knows whose row one is: as in TDengine, what one gave stays.
        shared = _repeated(uids) if job.asked.names_children else frozenset()
        before = {window.place: job.known[window.place].times for window in (*windows, *retracted)
                  if window.place in job.known and int(uids[window.group.child]) not in shared}
        gone = results.gone(windows, retracted, before, every=target.key_column is not None)
        if len(gone[0]):
            child, times = gone
            for vgroup_id in np.unique(vgroups[child]).tolist():
                own = vgroups[child] == vgroup_id
                changes[vgroup_id].append(DeletedRows(target.storage_uid, uids[child][own], times[own]))
        if results.rows is not None and results.rows.num_rows:
            for vgroup_id in np.unique(vgroups[results.children]).tolist():
                own = np.flatnonzero(vgroups[results.children] == vgroup_id)
                own = own[np.argsort(uids[results.children][own], kind="stable")]
                batch, tuids = results.rows.take(pa.array(own)), uids[results.children][own]
                if shared:
                    last = last_of_each(target, batch, tuids)
                    batch, tuids = batch.take(pa.array(last)), tuids[last]
                changes[vgroup_id].append(WrittenRows(
                    target.storage_uid, batch.add_column(0, TUID_COLUMN, pa.array(tuids))))
        return changes

    def forget_all_but(self, stream_ids: Collection[int]) -> None:
        """Forgets the child tables of other streams."""
        for task in [task for task in self._children_of if task.stream_id not in stream_ids]:
            self._children_of.pop(task, None)


def _repeated(uids: U64) -> frozenset[int]:
    """Returns the uids that are there several times; 0 is none."""
    found, counts = np.unique(uids[uids > 0], return_counts=True)
    return frozenset(found[counts > 1].tolist())
