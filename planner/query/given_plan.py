"""A plan with the values that it takes, which is run: many runs with other values need planning once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import duckdb
import pyarrow as pa

from penstock.common.closed_duckdb import renew_small_duckdb_if_broken, small_duckdb
from penstock.common.errors import InvalidValueError
from penstock.planner.bind.binder import GivenChildren, GivenInstant
from penstock.planner.bind.tag_filter import children_named, children_that_meet
from penstock.planner.logical.operators import Scan
from penstock.planner.query.batch_plan import BatchPlan
from penstock.planner.task_plans.plan_tree import ResultColumn
from penstock.planner.task_plans.user_calls import UserCall
from penstock.sql.schema import CatalogView, Table

_FIRST, _LAST = -(1 << 63), (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class GivenPlan:
    """A `BatchPlan` whose `scans` read no more than its values, the `parameters` of its SQL among them, leave."""

    plan: BatchPlan
    scans: tuple[Scan, ...]
    parameters: Mapping[str, object]

    @property
    def columns(self) -> tuple[ResultColumn, ...]:
        return self.plan.columns

    @property
    def tables(self) -> tuple[tuple[str, pa.Table], ...]:
        return self.plan.tables

    @property
    def functions(self) -> tuple[UserCall, ...]:
        return self.plan.functions

    def sql_over(self, relations: Sequence[tuple[str, str]]) -> str:
        return self.plan.sql_over(relations)


def given_plan(plan: BatchPlan, values: Mapping[str, object], catalog: CatalogView) -> GivenPlan:
    """Returns the plan with values, of which it may need some only; TIMESTAMPs are integers.

    Raises InvalidValueError for values of which a bound of time can't be computed.
    """
    given = {each.name: each for each in plan.given}
    scans = []
    for scan in plan.scans:
        leaves = given.get(scan.name)
        if leaves is not None:
            first, last = _bounds(scan, leaves.instants, values)
            tuids = scan.tuids if leaves.children is None else _children(scan, leaves.children, values, catalog)
            scan = replace(scan, first_ts=first, last_ts=last, tuids=tuids)
        scans.append(scan)
    return GivenPlan(plan, tuple(scans), {name: values[name] for name in plan.takes})


def _bounds(
    scan: Scan, instants: Sequence[GivenInstant], values: Mapping[str, object]
) -> tuple[int | None, int | None]:
    first, last = scan.first_ts, scan.last_ts
    for each in instants:
        at = _known(each, values)
        if at is None:
            if each.exact:
                return _LAST, _FIRST
            continue
        at = max(_FIRST, min(at + each.moved, _LAST))
        if each.side == "first":
            first = at if first is None else max(first, at)
        else:
            last = at if last is None else min(last, at)
    return first, last


def _known(instant: GivenInstant, values: Mapping[str, object]) -> int | None:
    if instant.of is not None:
        name, shift = instant.of
        value = values[name]
        assert value is None or isinstance(value, int)
        return None if value is None else value + shift
    with small_duckdb() as connection:
        try:
            row = connection.execute(f"SELECT {instant.sql}", {name: values[name] for name in instant.parameters}
                                     ).fetchone()
        except duckdb.Error as error:
            renew_small_duckdb_if_broken()
            raise InvalidValueError(f"a bound of time can't be computed: {error}") from error
    assert row is not None
    at = row[0]
    assert at is None or isinstance(at, int)
    return at


def _children(
    scan: Scan, given: GivenChildren, values: Mapping[str, object], catalog: CatalogView
) -> tuple[int, ...] | None:
    """Returns which child tables of a scan are left."""
    table: Table = scan.table
    left = None if scan.tuids is None else set(scan.tuids)
    if given.names:
        found = set.intersection(*({str(values[name])} for name in given.names))
        named = set(children_named(found, table, catalog))
        left = named if left is None else left & named
    elif given.condition is not None:
        met = children_that_meet(given.condition, {name: values[name] for name in given.parameters}, table, catalog)
        if met is not None:
            left = {*met} if left is None else left & {*met}
    return None if left is None else tuple(sorted(left))
