"""A plan with the values that it takes, which is run: many runs with other values need planning once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import duckdb

from penstock.common.closed_duckdb import renew_small_duckdb_if_broken, small_duckdb
from penstock.common.errors import InvalidValueError
from penstock.planner.bind.binder import GivenChildren, GivenInstant
from penstock.planner.bind.tag_filter import children_named, children_that_meet
from penstock.planner.logical.operators import Scan
from penstock.planner.query.batch_plan import BatchPlan, QueryPlan
from penstock.sql.schema import CatalogView, Table

_FIRST, _LAST = -(1 << 63), (1 << 63) - 1


def given_plan(plan: BatchPlan, values: Mapping[str, object], catalog: CatalogView) -> QueryPlan:
    """Returns the plan with values, of which it may need some only; its scans read no more than these leave.

    TIMESTAMPs are integers. Raises InvalidValueError for values of which a bound of time can't be computed.
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
    return replace(plan, scans=tuple(scans), parameters={name: values[name] for name in plan.takes})


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
    met = None
    if given.names:
        met = children_named(set.intersection(*({str(values[name])} for name in given.names)), table, catalog)
    elif given.condition is not None:
        met = children_that_meet(given.condition, {name: values[name] for name in given.parameters}, table, catalog)
    if met is not None:
        left = {*met} if left is None else left & {*met}
    return None if left is None else tuple(sorted(left))
