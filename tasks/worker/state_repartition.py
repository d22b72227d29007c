"""Gives the state of a stream's tasks, as of a checkpoint, to the tasks that it has over more vnodes.

The stream rests, all of its rows are read and its results written. What comes out is the state of another checkpoint
in the stores of all tasks; it counts once its commit record does, and until then the one it was made from does.

A source task hands a copy of its state to each one that takes tables over: what it holds of tables that are elsewhere
is never asked for. Agg tasks hand over the windows of the groups that are another's from now on. Where a group has rows
of several tables, what a vnode contributed to a window is divided as *recalculation* does it: the vnodes' rows are read
back. Late rows that were left out of such a window count from then on.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.common.errors import UnavailableError
from penstock.planner.task_plans.stream_plan import ForcePlan, JoinPlan, RefreshPlan, StreamPlan, WindowsPlan
from penstock.tasks.compiled.compiled_loops import load
from penstock.tasks.compute.function_runtime import UserFunctions
from penstock.tasks.compute.group_index import GROUP_PREFIX, GroupIndex
from penstock.tasks.compute.id_time_pairs import among
from penstock.tasks.compute.partial_columns import PartialColumns
from penstock.tasks.operators.base_task import ROWS_TOTAL
from penstock.tasks.protocol.block_schema import ADD, GROUP, REPLACE, ROWS, WINDOW_START
from penstock.tasks.protocol.deployment import StreamDeployment
from penstock.tasks.protocol.messages import OperatorKind, TaskCheckpoint, TaskId
from penstock.tasks.protocol.task_graph import TaskEdges
from penstock.tasks.recalculation.reading_back import is_reading_back
from penstock.tasks.source.source_task import SourceTask, inherited
from penstock.tasks.state.state_store import StateStore
from penstock.tasks.window.expiring_groups import LET_GO
from penstock.tasks.window.group_times import GroupTimes
from penstock.tasks.window.result_index import results_in
from penstock.tasks.window.segment_index import segments_in
from penstock.tasks.window.window_table import WindowTable
from penstock.tasks.worker.local_environment import LocalEnvironment

_WINDOWS_AT_ONCE = 4_096
"""So many (group, window)s are recalculated together, or those of one window."""

Homes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Moved:
    """The source's child tables that are on another vnode: the index of the new one, by uid and by name."""

    by_uid: Mapping[int, int]
    by_name: Mapping[str, int]


def refusal(plan: StreamPlan) -> str | None:
    """Returns why the state of a stream can't be divided, or None if it can."""
    computation = plan.computation
    if isinstance(computation, JoinPlan):
        return "a join keeps rows of both sides by where their keys led them"
    if plan.source.lookup is not None:
        return "what its rows found in another table is known to the tasks that looked it up only"
    if plan.row_window is not None and not plan.grouping.colocated:
        return (f"its {plan.row_window.kind.upper()} windows are made of rows of several tables, "
                "whose order is known within one vnode only")
    if plan.emits_at_checkpoints:
        return "its results leave Penstock with checkpoints, and those of one may be on their way still"
    if isinstance(computation, ForcePlan) and (computation.fill is not None or computation.keep_sql is not None):
        return "FORCE_WINDOW_CLOSE goes on from rows and groups that it has kept per vnode"
    return None


def homes_of(plan: StreamPlan, groups: GroupIndex, task: int, tasks: int, moved: Moved) -> Homes:
    """Returns which of so many agg tasks has each group of agg task `task`, by the groups' numbers."""
    count = len(groups)
    numbers = np.arange(count)
    if not plan.grouping.colocated:
        return (groups.ids(numbers) % np.uint64(tasks)).astype(np.int64)
    if plan.source.keep_tuid is not None:
        return np.full(count, moved.by_uid.get(plan.source.keep_tuid, task))
    if plan.source.group_is_table:
        return np.array([moved.by_uid.get(gid, task) for gid in groups.ids(numbers).tolist()], np.int64)
    assert plan.grouping.table_key is not None
    place = plan.grouping.table_key
    names = groups.key_columns(numbers)[place].to_pylist()
    return np.array([moved.by_name.get(name, task) for name in names], np.int64)


def united_watermarks(saved: Sequence[Mapping[str, Any]], parents: Sequence[int]) -> dict[str, Any]:
    """Returns the watermarks of an agg task with an input per vnode, from those of all agg tasks.

    Of each input the least counts that a task has heard; a new vnode's is that of its parent. Windows that others have
    closed may close again then, with the same results.
    """
    inputs = range(len(saved[0]["ts"]))
    heard = [[one["ts"][input] for one in saved] for input in inputs]
    times = [None if None in known else min(known) for known in heard]
    idle = [all(one["idle"][input] for one in saved) for input in inputs]
    current = [one["current"] for one in saved]
    return {"ts": [times[parent] for parent in parents], "idle": [idle[parent] for parent in parents],
            "current": None if None in current else min(current)}


@dataclass(slots=True)
class _Agg:
    """An agg task's state while it changes hands. `table` is None for segments, which are moved as they are stored.

    `times` are those of groups with STATE_TTL.
    """

    task: TaskId
    store: StateStore
    meta: dict[str, Any]
    groups: GroupIndex
    table: WindowTable | None
    closed_until: int | None
    times: GroupTimes | None


class Repartition:
    """One stream's. `run` does it, once.

    `before` and `after` deploy the same attempt, each from its own checkpoint. `parents`: by the index of a vnode of
    `after`, that of the vnode of `before` whose tables it has. `version`: the last one of each vnode of `after`.
    """

    def __init__(
        self, before: StreamDeployment, after: StreamDeployment, parents: Sequence[int], versions: Sequence[int],
        moved: Moved, environment: LocalEnvironment,
    ) -> None:
        assert before.checkpoint_id is not None
        assert after.checkpoint_id is not None
        self._plan = after.plan
        self._before = before.checkpoint_id
        self._after = after.checkpoint_id
        self._deployment = after
        self._parents = tuple(parents)
        self._versions = tuple(versions)
        self._moved = moved
        self._environment = environment
        self._old = _by_operator(before.graph.edges(before.stream_id))
        self._new = _by_operator(after.graph.edges(after.stream_id))
        self._done: list[TaskCheckpoint] = []

    def run(self) -> list[TaskCheckpoint]:
        """Returns what the tasks of `after` would acknowledge its checkpoint with.

        Raises UnavailableError if rows are still read back for the stream, CheckpointDamagedError, StorageError.
        """
        if isinstance(self._plan.computation, RefreshPlan):
            self._followers()
        else:
            self._sources()
        if self._plan.sends_partials:
            load()  # windows may be millions, and what runs in Python holds up the engine
            self._aggs()
        for edges in self._new["sink"]:
            if edges.task in _tasks(self._old["sink"]):
                self._keep(edges.task)
            else:
                with ExitStack() as stores:
                    self._finish(self._fresh(edges.task, stores), edges.task,
                                 {"writes": 0, "aside": [], "external": None})
        return self._done

    # -- source tasks ----------------------------------------------------------------------------------------------

    def _sources(self) -> None:
        for edges in self._old["source"]:
            with ExitStack() as stores:
                store, meta = self._restored(edges.task, stores)
                if is_reading_back(meta):
                    raise UnavailableError(f"{edges.task} still reads rows back", hint="wait until SHOW STREAMS says "
                                           "that its history, or its recalculation, is done")
                heirs = [heir for heir in self._new["source"] if heir.task.index != edges.task.index
                         and self._parents[heir.task.index] == edges.task.index]
                content = store.items() if heirs else []
                for heir in heirs:
                    fresh = self._fresh(heir.task, stores)
                    fresh.put_many(content)
                    if (reserved := store.reserved) is not None:
                        fresh.reserve(reserved)
                    self._finish_source(fresh, heir.task, inherited(meta))
                self._finish_source(store, edges.task, meta)

    def _followers(self) -> None:
        """Source tasks that keep nothing but how far they have read a log, whichever that was."""
        known = _tasks(self._old["source"])
        for edges in self._new["source"]:
            with ExitStack() as stores:
                store, meta = self._restored(edges.task, stores) if edges.task in known else (
                    self._fresh(edges.task, stores), {ROWS_TOTAL: 0})
                self._finish_source(store, edges.task, meta)

    def _finish_source(self, store: StateStore, task: TaskId, meta: Mapping[str, Any]) -> None:
        version = self._versions[task.index]
        self._finish(store, task, {**meta, "version": version}, version)

    # -- agg tasks -------------------------------------------------------------------------------------------------

    def _aggs(self) -> None:
        with ExitStack() as stores:
            functions = UserFunctions(self._plan.functions, self._deployment.settings.functions_directory,
                                      self._environment.clock, strict=False)
            aggs = [self._known_agg(edges.task, stores, functions) for edges in self._old["agg"]]
            metas = [agg.meta for agg in aggs]
            known = len(aggs)
            aggs += [self._new_agg(edges.task, stores, functions, metas)
                     for edges in self._new["agg"][known:]]
            late: list[list[tuple[int, list[int]]]] = [[] for _ in aggs]
            held: list[list[tuple[int, list[int]]]] = [[] for _ in aggs]
            for agg, meta in zip(aggs[:known], metas, strict=True):
                homes = homes_of(self._plan, agg.groups, agg.task.index, len(aggs), self._moved)
                if (homes != agg.task.index).any():
                    self._hand_over(agg, aggs, homes)
                _spread_late(meta.get("late", ()), agg.groups, homes, late)
                _spread_late(meta.get("held", {}).get("groups", ()), agg.groups, homes, held)
            if self._divides:
                self._divide(aggs)
            for agg, waiting, returning in zip(aggs, late, held, strict=True):
                if "held" in agg.meta:
                    # The sources are asked for them anew, since they have other rows now.
                    agg.meta["held"] = {"returned": [], "wanted": [], "groups": returning}
                self._finish_agg(agg, metas, waiting)

    @property
    def _divides(self) -> bool:
        """Whether sources may put something else in the place of what they sent for groups of several tables."""
        return not self._plan.grouping.colocated and self._plan.policies.time.clock == "event"

    def _known_agg(self, task: TaskId, stores: ExitStack, functions: UserFunctions) -> _Agg:
        store, meta = self._restored(task, stores)
        until = self._closed_until(meta)
        groups, table = self._empty_table(store, functions)
        if table is not None:
            table.restore(meta["table"], until)
        else:
            groups.restore([(key, value) for key, value in store.items(GROUP_PREFIX) if key.startswith(GROUP_PREFIX)])
        times = self._empty_times(store)
        if times is not None:
            times.restore(len(groups))
        return _Agg(task, store, meta, groups, table, until, times)

    def _new_agg(
        self, task: TaskId, stores: ExitStack, functions: UserFunctions, metas: Sequence[dict[str, Any]]
    ) -> _Agg:
        """Returns an agg task without windows; what else it knows is as of its parent."""
        # Where tables stay together there are as many agg tasks as vnodes, else any one's times will do.
        meta = metas[self._parents[task.index]] if self._plan.grouping.colocated else metas[0]
        store = self._fresh(task, stores)
        groups, table = self._empty_table(store, functions)
        counted: dict[str, Any] = {name: [] for name in ("late_rows_kept", "late_rows_forgotten") if name in meta}
        if LET_GO in meta:
            counted[LET_GO] = 0
        return _Agg(task, store, {**meta, **counted}, groups, table, self._closed_until(meta),
                    self._empty_times(store))

    def _empty_times(self, store: StateStore) -> GroupTimes | None:
        policies = self._plan.policies
        return None if policies.state_ttl is None else GroupTimes(policies, store)

    def _empty_table(self, store: StateStore, functions: UserFunctions) -> tuple[GroupIndex, WindowTable | None]:
        plan = self._plan
        assert isinstance(plan.computation, WindowsPlan)
        if plan.row_window is not None:
            return GroupIndex(plan.grouping.keys), None
        inputs = 1 if plan.grouping.colocated else len(self._new["source"])
        table = WindowTable(plan.computation, plan.grouping.keys, inputs, store, functions)
        return table.groups, table

    def _closed_until(self, meta: Mapping[str, Any]) -> int | None:
        current: int | None = meta["watermarks"]["current"]
        return None if current is None else current - self._plan.policies.time.lateness

    def _hand_over(self, agg: _Agg, aggs: Sequence[_Agg], homes: Homes) -> None:
        """Moves the windows of groups that have another home, and which of their results are out."""
        leaving = homes != agg.task.index
        home_of = dict(zip(agg.groups.ids(np.flatnonzero(leaving)).tolist(), homes[leaving].tolist(), strict=True))
        if agg.table is not None:
            for input, partials in agg.table.give_up(leaving):
                gids = partials.column(GROUP.name).to_numpy()
                places = homes[agg.groups.numbers(gids)]
                for place in np.unique(places).tolist():
                    table = aggs[place].table
                    assert table is not None
                    table.merge(PartialColumns.of(partials.filter(pa.array(places == place))), ADD, input)
                    self._spill(aggs[place])
                self._spill(agg)
            if agg.times is not None:
                _hand_over_times(agg.times, agg, aggs, homes)
            stored = results_in
        else:
            for place in np.unique(homes[leaving]).tolist():
                aggs[place].groups.adopt(agg.groups, np.flatnonzero(homes == place))
            stored = segments_in
        for key, gid, value in list(stored(agg.store)):
            if gid in home_of:
                aggs[home_of[gid]].store.put_many([(key, value)])
                agg.store.put_many([(key, None)])

    def _spill(self, agg: _Agg) -> None:
        assert agg.table is not None
        agg.table.spill(self._deployment.settings.state_memory_bytes, agg.closed_until)

    # -- windows of groups with rows of several tables -----------------------------------------------------------------

    def _divide(self, aggs: Sequence[_Agg]) -> None:
        """Gives each vnode its own part of what the one that had its tables contributed to windows."""
        for parent in sorted(set(self._parents[len(self._old["source"]):])):
            heirs = [index for index, one in enumerate(self._parents) if one == parent and index != parent]
            with ExitStack() as tasks:
                sources = {index: self._source(index, tasks) for index in (parent, *heirs)}
                for agg in aggs:
                    assert agg.table is not None
                    self._divide_windows(agg, agg.table, parent, heirs, sources)

    def _source(self, index: int, tasks: ExitStack) -> SourceTask:
        """Returns a source task as it will be, for what it can tell of its vnode's rows."""
        task = SourceTask(self._deployment, index, self._new["source"][index].downstream, self._environment)
        tasks.callback(task.close)
        return task

    def _divide_windows(
        self, agg: _Agg, table: WindowTable, parent: int, heirs: Sequence[int], sources: Mapping[int, SourceTask]
    ) -> None:
        waiting: list[pa.RecordBatch] = []

        def divide() -> None:
            windows = pa.concat_batches(waiting)
            waiting.clear()
            shared = np.zeros(windows.num_rows, bool)
            for heir in heirs:
                for part in sources[heir].contributions(windows):
                    part = part.filter(pa.array(part.column(ROWS.name).to_numpy() > 0))
                    if part.num_rows:
                        table.merge(PartialColumns.of(part), REPLACE, heir)
                        shared |= among(*_windows_of(windows), *_windows_of(part))
            if shared.any():
                for part in sources[parent].contributions(windows.filter(pa.array(shared))):
                    table.merge(PartialColumns.of(part), REPLACE, parent)
                table.drop_empty(windows.column(WINDOW_START.name).to_numpy())
            self._spill(agg)

        for start in list(table.stored()):
            windows = table.contributed(start, parent)
            if windows.num_rows:
                waiting.append(windows)
            if sum(batch.num_rows for batch in waiting) >= _WINDOWS_AT_ONCE:
                divide()
        if waiting:
            divide()

    def _finish_agg(
        self, agg: _Agg, metas: Sequence[Mapping[str, Any]], late: Sequence[tuple[int, list[int]]]
    ) -> None:
        meta = dict(agg.meta)
        if agg.times is not None:
            agg.times.save()
        if agg.table is not None:
            meta["table"] = agg.table.save()
        else:
            agg.store.put_many(agg.groups.unsaved())
            stored = [one["table"]["newest_stored"] for one in metas]
            meta["table"] = {"newest_stored": max((ts for ts in stored if ts is not None), default=None)}
        if not self._plan.grouping.colocated:
            meta["watermarks"] = united_watermarks([one["watermarks"] for one in metas], self._parents)
        if "forgotten_until" in meta:
            known = [one["forgotten_until"] for one in metas if one["forgotten_until"] is not None]
            meta["forgotten_until"] = max(known, default=None)
        if "late" in meta:
            meta["late"] = list(late)
        self._finish(agg.store, agg.task, meta)

    # -- stores ------------------------------------------------------------------------------------------------------

    def _restored(self, task: TaskId, stores: ExitStack) -> tuple[StateStore, dict[str, Any]]:
        store = self._open(task, stores)
        meta = store.restore(self._before)
        assert meta is not None
        return store, meta

    def _fresh(self, task: TaskId, stores: ExitStack) -> StateStore:
        shutil.rmtree(self._environment.paths.state(task.stream_id, str(task)), ignore_errors=True)
        return self._open(task, stores)

    def _open(self, task: TaskId, stores: ExitStack) -> StateStore:
        store = self._environment.open_state(task, self._deployment.settings.state_map_bytes)
        stores.callback(store.close)
        store.enter(self._deployment.attempt)
        return store

    def _keep(self, task: TaskId) -> None:
        with ExitStack() as stores:
            store, meta = self._restored(task, stores)
            self._finish(store, task, meta)

    def _finish(self, store: StateStore, task: TaskId, meta: Mapping[str, Any], version: int | None = None) -> None:
        rows = meta.get(ROWS_TOTAL)
        stored = store.checkpoint(self._after, {**meta, ROWS_TOTAL: rows})
        self._done.append(TaskCheckpoint(
            task, self._after, stored.bytes_written, 0.0, version, stored.digest, rows, bool(meta.get("aside"))))


def _by_operator(edges: Sequence[TaskEdges]) -> dict[OperatorKind, list[TaskEdges]]:
    """Returns the tasks of each level, by their index."""
    operators: dict[OperatorKind, list[TaskEdges]] = {"source": [], "agg": [], "sink": []}
    for edge in sorted(edges, key=lambda edge: edge.task.index):
        operators[edge.task.operator].append(edge)
    return operators


def _tasks(edges: Sequence[TaskEdges]) -> set[TaskId]:
    return {edge.task for edge in edges}


def _hand_over_times(times: GroupTimes, agg: _Agg, aggs: Sequence[_Agg], homes: Homes) -> None:
    """Tells the new homes of groups when these changed last; those that have gone are known to no other task."""
    for place in np.unique(homes).tolist():
        if place == agg.task.index:
            continue
        leaving = np.flatnonzero(homes == place)
        there, other = aggs[place].groups.numbers(agg.groups.ids(leaving)), aggs[place].times
        assert other is not None
        other.note(there[there >= 0], times.of(leaving[there >= 0]))
        times.forget(leaving)


def _spread_late(
    saved: Sequence[tuple[int, list[int]]], groups: GroupIndex, homes: Homes,
    late: Sequence[list[tuple[int, list[int]]]],
) -> None:
    """Gives late changes that wait to be shown to the homes of their groups."""
    for start, gids in saved:
        places = homes[groups.numbers(gids)]
        for place in np.unique(places).tolist():
            late[place].append((start, [gid for gid, one in zip(gids, places.tolist(), strict=True) if one == place]))


def _windows_of(partials: pa.RecordBatch) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    return partials.column(GROUP.name).to_numpy(), partials.column(WINDOW_START.name).to_numpy()
