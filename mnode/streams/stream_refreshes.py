"""Streams of any query: their result table is compared with the answer as it is now, and made the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.errors import InvalidStatementError, InvalidValueError, NotFoundError, UnavailableError
from penstock.common.one_array import one_array
from penstock.mnode.catalog.catalog_records import StreamRecord
from penstock.mnode.catalog.name_lookup import TABLE_MISSING, require_database
from penstock.mnode.query.activity import Activity
from penstock.mnode.query.query_runner import QueryPlan
from penstock.mnode.streams.known_streams import KnownStreams
from penstock.mnode.streams.stream_planning import StreamPlanning
from penstock.mnode.streams.stream_services import StreamServices
from penstock.mnode.write.keyed_results import keyed_changes, stored_rows, times_of
from penstock.planner.query.batch_plan import BatchPlan
from penstock.planner.query.compared_results import RELATIVE, lost_digits
from penstock.planner.streams.touched_keys import rows_with
from penstock.planner.task_plans.stream_plan import RefreshPlan
from penstock.sql.rows.constants import Constants
from penstock.sql.rows.fitting import fitted, row_number
from penstock.sql.rows.keyed_rows import key_texts, keyed, numbered
from penstock.sql.schema import KEY_TEXT, PLACE, Column, Session, Table, TagValue
from penstock.sql.types import FLOATS
from penstock.tasks.protocol.refresh_request import RefreshRequest, TouchedValues

Run = Callable[[QueryPlan, Session], pa.Table]
"""Returns the rows of a planned query."""

Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class Differing:
    """How the rows that a table has (`found`) and those that it is to have (`wanted`) differ. `lost`: see `equal_rows`.

    `gone`: the places of those that it is not to have. `changed`: of each that it is to have, whether that is missing
    or has other values; `places`: where its key is found, NULL if it isn't.
    """

    table: Table
    found: pa.RecordBatch
    wanted: pa.RecordBatch
    lost: float | None
    gone: npt.NDArray[np.int64]
    changed: Flags
    places: pa.Int32Array


class StreamRefreshes:
    """Answers the tasks of such streams, and who verifies them. Safe for many threads; of one stream, one attempt asks
    at a time."""

    def __init__(
        self, services: StreamServices, known: KnownStreams, planning: StreamPlanning, run: Run, activity: Activity
    ) -> None:
        self._services = services
        self._known = known
        self._planning = planning
        self._run = run
        self._activity = activity

    def answer(self, request: RefreshRequest) -> pa.Table:
        """Returns one row: how many rows were `written` or deleted.

        Raises StaleAttemptError, what running the query raises, and InvalidValueError for rows of the answer that the
        table can't hold: of equal keys, or with values that don't fit.
        """
        stream = self._services.catalog.streams.by_id(request.stream_id)
        if stream is None:
            raise NotFoundError("the stream was dropped")
        target = self._target(stream)
        stored = self._known.plans.get(stream.id)
        if stored is None:
            raise UnavailableError(f"stream {stream.name} doesn't run")
        assert isinstance(stored.plan.computation, RefreshPlan)
        refresh = stored.plan.computation
        groups = None if request.tuids is None else self._groups(refresh, request.tuids)
        with self._activity.statement(0, f"refresh of stream {stream.name}"):
            part = self._part(stream, target, refresh, request.values)
            wanted, known = part or (self._wanted(target, *self._planning.answer_of(
                stream, refresh.groups, groups), repeats=refresh.repeats), None)
        self._services.stores.results.check_attempt(stream.id, request.attempt, f"a refresh of {stream.name}")
        if known is None:
            known = self._stored(target, None if groups is None else _keys_of(target, refresh, groups))
        return pa.table({"written": [self._write(target, wanted, known)]})

    def _stored(self, target: Table, keys: pa.RecordBatch | None) -> pa.RecordBatch:
        """Returns the rows that a table holds, as they are stored: those with some keys, or all."""
        if keys is None:
            return stored_rows(self._services.storage, target, None)
        known = stored_rows(self._services.storage, target, np.unique(times_of(target, keys)))
        return known.filter(pc.is_in(known.column(KEY_TEXT.physical), value_set=keys.column(KEY_TEXT.physical)))

    def differing(self, stream: StreamRecord) -> Differing:
        """Returns how the result table differs from the answer as it is now, of all rows.

        Sums of floating point numbers are taken to be equal if they may be the same in another order of their rows.
        Raises what `answer` does.
        """
        target = self._target(stream)
        found = self._stored(target, None)
        plan, session = self._planning.answer_of(stream, (), None)
        lost = 0.0  # where only tags are read
        if plan.scans:
            lost = self._run(lost_digits(plan.scans, plan.functions), session).column(0)[0].as_py()
        stored = self._known.plans.get(stream.id) or self._planning.plan_again(stream)
        repeats = isinstance(stored.plan.computation, RefreshPlan) and stored.plan.computation.repeats
        return _differing(target, self._wanted(target, plan, session, repeats=repeats), found, lost)

    def _target(self, stream: StreamRecord) -> Table:
        target = self._services.catalog.table_by_uid(stream.target_uid)
        if target is None:
            raise NotFoundError(f"the result table of stream {stream.name} was dropped", code=TABLE_MISSING)
        return target

    def _groups(self, plan: RefreshPlan, tuids: Sequence[int]) -> list[tuple[TagValue, ...]] | None:
        """Returns the keys of the groups that child tables belong to; None if one of them is gone: then any may be."""
        catalog, super_uid = self._services.catalog, plan.sources[0].storage_uid
        table = catalog.table_by_uid(super_uid)
        children = [catalog.child_by_uid(super_uid, uid) for uid in tuids]
        if table is None:
            return None
        places = {tag.name: place for place, tag in enumerate(table.tags)}
        found = {tuple(child.name if name == "tbname" else child.tag_values[places[name]] for name in plan.groups)
                 for child in children if child is not None}
        return None if None in children else list(found)

    def _wanted(self, target: Table, plan: BatchPlan, session: Session, *, repeats: bool) -> pa.RecordBatch:
        """Returns what the table is to hold, as it is stored, by the plan of the answer or of a part of it.

        `repeats`: rows may be equal.
        """
        if len(plan.columns) != len(target.columns):
            raise InvalidStatementError(
                f"the query of the stream gives {len(plan.columns)} columns by now, its table has "
                f"{len(target.columns)}", hint="CREATE OR REPLACE STREAM, with names in place of *")
        rows = self._run(plan, session)
        precision = require_database(target.database, self._services.catalog).precision
        constants = Constants(precision, "UTC", self._services.clock.now_ms())
        arrays = [fitted(column, one_array(values), constants, row_number, checks_text=True)
                  for column, values in zip(target.columns, rows.columns, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, names=[column.physical for column in target.columns])
        if not target.keyed and batch.column(0).null_count:
            raise InvalidValueError(f"the time {target.columns[0].name} of a row of the answer is NULL")
        if target.keyed:
            batch = keyed(target, batch)
        if repeats:
            return numbered(batch)
        keys = _keys(target, batch)
        if pc.count_distinct(keys).as_py() < len(keys):
            names = ", ".join(column.name for column in target.key_columns)
            raise InvalidValueError(f"several rows of the answer have the same {names}, of which the table has one",
                                    hint="name further columns of the KEY: INTO t (a PRIMARY KEY, b PRIMARY KEY, ...)")
        return batch

    def _part(
        self, stream: StreamRecord, target: Table, refresh: RefreshPlan, values: TouchedValues | None
    ) -> tuple[pa.RecordBatch, pa.RecordBatch] | None:
        """Returns what the table is to hold, and what it holds, of the rows that some values touch; None if any may be
        touched, or rows may have the same KEY that aren't."""
        part = None if values is None else self._planning.touched_part_of(stream, refresh.touched, values)
        if part is None or values is None:
            return None
        _, session = part
        known = rows_with(target, list(zip(refresh.touched, values, strict=True)), self._services.catalog, session)
        rows = self._run(known, session)
        arrays = [one_array(each).cast(column.type.arrow())
                  for column, each in zip(target.columns, rows.columns, strict=True)]
        batch = keyed(target, pa.RecordBatch.from_arrays(arrays, names=[column.physical for column in target.columns]))
        wanted = self._wanted(target, *part, repeats=refresh.repeats)
        if refresh.claimed and self._are_elsewhere(target, wanted, batch):
            return None
        return wanted, numbered(batch) if refresh.repeats else batch

    def _are_elsewhere(self, target: Table, wanted: pa.RecordBatch, known: pa.RecordBatch) -> bool:
        """Whether the table has rows with the KEY of wanted ones beside those that are known."""
        fresh = wanted.filter(pc.invert(pc.is_in(_keys(target, wanted), value_set=_keys(target, known))))
        if not fresh.num_rows:
            return False
        there = stored_rows(self._services.storage, target, np.unique(times_of(target, fresh)),
                            (PLACE.physical, KEY_TEXT.physical))
        return bool(pc.any(pc.is_in(there.column(1), value_set=_keys(target, fresh))).as_py())

    def _write(self, target: Table, wanted: pa.RecordBatch, known: pa.RecordBatch) -> int:
        """Writes the rows that are new or others than those `known` in their place, deletes those that are no more;
        returns how many that are. Both are as they are stored.
        """
        assert target.vgroup_id is not None
        differing = _differing(target, wanted, known)
        gone, changed = known.take(pa.array(differing.gone)), differing.changed
        if not target.keyed:
            # A delete takes along what else lies at its time.
            changed |= np.isin(times_of(target, wanted), times_of(target, gone))
        write = self._services.storage.vnode(target.vgroup_id).begin_together(keyed_changes(
            self._services.storage, target, wanted.filter(pa.array(changed)), gone))
        if write is not None:
            write.wait()
        return int(changed.sum()) + len(differing.gone)


def _keys_of(target: Table, plan: RefreshPlan, groups: Sequence[tuple[TagValue, ...]]) -> pa.RecordBatch:
    """Returns the keys of groups as they are stored."""
    columns = [target.columns[place] for place in plan.keys]
    values = zip(*groups, strict=True) if groups else [()] * len(columns)
    return keyed(target, pa.RecordBatch.from_arrays(
        [pa.array(found, column.type.arrow()) for column, found in zip(columns, values, strict=True)],
        names=[column.physical for column in columns]))


def _keys(target: Table, batch: pa.RecordBatch) -> pa.StringArray:
    """Returns a text for each stored row that no other one has."""
    if target.keyed:
        return batch.column(KEY_TEXT.physical)
    columns = target.key_columns
    return key_texts([batch.column(column.physical) for column in columns], [column.type.kind for column in columns])


def _differing(target: Table, wanted: pa.RecordBatch, known: pa.RecordBatch, lost: float | None = None) -> Differing:
    want, have = _keys(target, wanted), _keys(target, known)
    gone = np.flatnonzero(pc.invert(pc.is_in(have, value_set=want)).to_numpy(zero_copy_only=False))
    places = pc.index_in(want, value_set=have)
    equal = equal_rows(target.columns, wanted, known.take(places), lost)
    changed = ~(places.is_valid().to_numpy(zero_copy_only=False) & equal)
    return Differing(target, known, wanted, lost, gone, changed, places)


def equal_rows(
    columns: Sequence[Column], left: pa.RecordBatch, right: pa.RecordBatch, lost: float | None = None
) -> Flags:
    """Returns which rows have the same values on both sides, NULL and NaN being equal to themselves.

    `lost`: numbers with a fraction that differ by no more, or by no more than RELATIVE of them, are equal, too.
    """
    equal = np.ones(left.num_rows, bool)
    for column in columns:
        one, other = left.column(column.physical), right.column(column.physical).cast(column.type.arrow())
        same = pc.fill_null(pc.equal(one, other), False)
        both = pc.and_(pc.is_null(one, nan_is_null=True), pc.is_null(other, nan_is_null=True))
        kinds = pc.equal(pc.is_null(one), pc.is_null(other))
        equal_ones = pc.or_(same, pc.and_(both, kinds)).to_numpy(zero_copy_only=False)
        if lost is not None and column.type.kind in FLOATS:
            a, b = (np.asarray(side.cast(pa.float64()).fill_null(np.nan), np.float64) for side in (one, other))
            with np.errstate(invalid="ignore"):
                near = np.abs(a - b) <= lost + RELATIVE * np.maximum(np.abs(a), np.abs(b))
            equal_ones = equal_ones | (near & np.isfinite(a) & np.isfinite(b))
        equal &= equal_ones
    return equal
