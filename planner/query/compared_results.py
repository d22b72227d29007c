"""Results of a stream beside what its query says: one query that counts what is equal and shows the rest.

Numbers that differ by less than a millionth are equal: how floating point numbers are added up depends on their order.
So are those that differ by less than what is lost of the largest value that was read, and columns that follow from such
a number in jumps aren't compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.planner.duckdb_sql.duckdb_tree import render, text
from penstock.planner.duckdb_sql.quoting import quote_name
from penstock.planner.logical.operators import TABLE_UID, Scan
from penstock.planner.lower.batch_results import ENDS, FOR_EVER, BatchResults
from penstock.planner.query.batch_plan import QueryPlan
from penstock.planner.query.found_results import STORED, FoundResults
from penstock.planner.task_plans.column_names import CHILD
from penstock.planner.task_plans.plan_tree import ResultColumn
from penstock.planner.task_plans.user_calls import UserCall
from penstock.sql.cuts import Cut
from penstock.sql.schema import Column, Table
from penstock.sql.types import BIGINT, DOUBLE, FLOATS, INTEGERS, VARCHAR, Kind

SHOWN = 1_000
"""At most so many rows that differ are shown."""
COUNTED = "counted"
"""The state of the last row."""
_OTHER = "state NOT IN ('equal', 'open', 'unjudged')"
Span = tuple[int, int]
"""A range of times of results, both ends included."""
Cuts = Mapping[str, tuple[Cut, Cut]]
"""By database, behind which cut rows were written that are read, and up to which one."""
RELATIVE, _DIGITS = 1e-6, 1e-12


_COLUMNS = (ResultColumn("state", VARCHAR), ResultColumn("child", VARCHAR), ResultColumn("moment", BIGINT),
            ResultColumn("ends", BIGINT), ResultColumn("found", VARCHAR), ResultColumn("wanted", VARCHAR))


def compared_results(
    results: BatchResults, given: FoundResults, cuts: Cuts, spans: Sequence[Span], closed_until: int | None
) -> QueryPlan:
    """Returns the comparison of results whose time is in one of `spans`, of rows that were written between two cuts.

    It has a row per result that differs, at most SHOWN, and a last one that counts. `state`: missing, extra, differs,
    or COUNTED; `child` and `moment`: which result; `ends`: when its window is over, NULL if that isn't known; `found`
    and `wanted`: values of the stream and of the query, where both have the result those that differ. Of the last row,
    `moment` is how many results are equal, `ends` how many aren't, `found` how many others aren't judged.

    `given`: what there is of them. `closed_until`: a result may be missing, or behind where they are delayed or
    early, if its window isn't over by then; None: none may.
    """
    spans, columns = _apart(results, spans), given.columns
    read = [[*_scans(results, cuts, (first, last)),
             *(replace(scan, first_ts=first, last_ts=last) for scan in given.scans)] for first, last in spans]
    scans, together = _together(read)
    names = [f"r{n}" for n in range(len(columns))]
    keys = [n for n, column in enumerate(columns) if n == 0 or column.primary_key]
    same = " AND ".join([f"w.{CHILD} = f.{CHILD}", *(f"w.{names[n]} = f.{names[n]}" for n in keys)])
    certainty = results.certainty
    values = [n for n in range(len(columns)) if n not in keys and n not in certainty.unsure]
    scales = ["squared" if n in certainty.squared else "plain" for n in values]
    distinct = [_distinct(columns[n], f"w.{names[n]}", f"f.{names[n]}", scale)
                for n, scale in zip(values, scales, strict=True)]
    missing, extra = f"f.{CHILD} IS NULL", f"w.{CHILD} IS NULL"
    behind = "false"
    if closed_until is not None:
        # Nothing but its start is known of a window that has no rows any more.
        length = 0 if results.grid is None else results.grid.longest + results.grid.turn
        # After a restart time is back where rows say that it is: results of such windows may be there, and late.
        allowed = f"NOT ({extra})" if results.early and not results.delayed else "true"
        behind = f"{allowed} AND coalesce(w.{ENDS} > {closed_until}, f.r0 >= {closed_until - length})"
    state = (f"CASE WHEN NOT ({' OR '.join([missing, extra, *distinct])}) THEN 'equal' WHEN {behind} THEN 'open' "
             f"WHEN {missing} THEN 'missing' WHEN {extra} THEN 'extra' ELSE 'differs' END")
    steps = (
        *together,
        *results.steps,
        ("wanted", f"SELECT * FROM ({results.body}) WHERE {_in_one('r0', spans)}"),
        *given.steps,
        ("found", f"SELECT * FROM ({given.sql}) WHERE {_in_one('r0', spans)}"),
        ("scale", _scale(results.scans)),
        ("pairs", f"SELECT {state} AS state, coalesce(w.{CHILD}, f.{CHILD}) AS child, "
                  f"coalesce(w.r0, f.r0) AS moment, nullif(w.{ENDS}, {FOR_EVER}) AS ends, "
                  f"{_shown(columns, values, distinct, 'f', missing, extra)} AS found, "
                  f"{_shown(columns, values, distinct, 'w', missing, extra)} AS wanted "
                  f"FROM (wanted AS w FULL JOIN found AS f ON {same}) CROSS JOIN scale"),
        ("judged", f"SELECT * REPLACE (CASE WHEN {_OTHER} AND {given.unjudged} THEN 'unjudged' ELSE state END "
                   "AS state) FROM pairs"),
        ("counts", "SELECT count(*) FILTER (WHERE state = 'equal') AS equal, "
                   f"count(*) FILTER (WHERE {_OTHER}) AS others, "
                   "count(*) FILTER (WHERE state = 'unjudged') AS unjudged FROM judged"),
    )
    sql = (f"(SELECT * FROM judged WHERE {_OTHER} ORDER BY child, moment, found, wanted LIMIT {SHOWN}) "
           f"UNION ALL SELECT '{COUNTED}', NULL, equal, others, unjudged::VARCHAR, NULL FROM counts")
    return QueryPlan(sql, scans, _COLUMNS, steps, given.tables, results.functions)


def _apart(results: BatchResults, spans: Sequence[Span]) -> list[Span]:
    """Returns the same spans, those as one that come of some of the same rows."""
    found: list[Span] = []
    ends: int | None = -FOR_EVER
    for first, last in sorted(spans):
        bounds = results.bounds(first, last) or (-FOR_EVER, None)
        if found and (ends is None or bounds[0] <= ends):
            found[-1] = found[-1][0], max(found[-1][1], last)
            ends = None if ends is None or bounds[1] is None else max(ends, bounds[1])
        else:
            found.append((first, last))
            ends = bounds[1]
    return found


def _together(read: Sequence[Sequence[Scan]]) -> tuple[tuple[Scan, ...], tuple[tuple[str, str], ...]]:
    """Returns scans, and steps by which those of one name are one relation. `read`: the same scans of each span."""
    if len(read) == 1:
        return tuple(read[0]), ()
    apart = [[replace(scan, name=f"{scan.name}#{n}") for scan in scans] for n, scans in enumerate(read)]
    steps = tuple((scan.name, " UNION ALL ".join(f"SELECT * FROM {quote_name(part.name)}" for part in parts))
                  for scan, *parts in zip(read[0], *apart, strict=True))
    return tuple(scan for scans in apart for scan in scans), steps


def _in_one(time: str, spans: Sequence[Span]) -> str:
    return "(" + " OR ".join(f"{time} BETWEEN {first} AND {last}" for first, last in spans) + ")"


def rows_between(scan: Scan, cuts: Cuts, bounds: tuple[int, int | None] | None, most: int) -> QueryPlan:
    """Returns a query for rows of a scan, as `compared_results` reads them: those within `bounds`, None: any.

    It returns `most` of them at most, with the columns that the stream uses, those of time as BIGINT.
    """
    scan = _bounded(scan, cuts, bounds)
    columns = tuple(ResultColumn(column.name, column.type) for column in scan.output)
    names = ", ".join(quote_name(column.name) for column in columns)
    return QueryPlan(f"SELECT {names} FROM {quote_name(scan.name)} LIMIT {most}", (scan,), columns)


def drawn_times(
    results: BatchResults, target: Table | None, cuts: Cuts, span: Span, most: int, seed: int
) -> QueryPlan:
    """Returns a query for times of results, as BIGINT `moment`: of all that are in `span`, `most` at most.

    Those that there are in the query, of rows that were written between two cuts, or in the result table `target`, are
    drawn evenly, the same ones for the same `seed`. Only for results with `times`.
    """
    assert results.times is not None
    first, last = span
    times, scans = results.times, _scans(results, cuts, span)[:1]
    if target is not None:
        time = target.time_column
        times += f" UNION ALL SELECT {quote_name(time.name)} FROM {STORED}"
        scans += (Scan(STORED, target, (time.name,), first, last, precision=time.type.precision),)
    sql = (f"SELECT r0 AS moment FROM ({times}) "
           f"WHERE r0 BETWEEN {first} AND {last} GROUP BY r0 ORDER BY hash(r0, {seed}) LIMIT {most}")
    return QueryPlan(sql, scans, (ResultColumn("moment", BIGINT),), functions=results.functions)


def _scans(results: BatchResults, cuts: Cuts, span: Span) -> tuple[Scan, ...]:
    """Rows before and behind those that results of the span may come of are left out."""
    return tuple(_bounded(scan, cuts, results.bounds(*span)) for scan in results.scans)


def _bounded(scan: Scan, cuts: Cuts, bounds: tuple[int, int | None] | None) -> Scan:
    first, last = bounds or (None, None)
    return replace(scan, cuts=cuts[scan.table.database], first_ts=first, last_ts=last)


def lost_digits(scans: Sequence[Scan], functions: tuple[UserCall, ...]) -> QueryPlan:
    """Returns a query for by how much sums of the rows of scans may differ with their order, as DOUBLE `plain`."""
    return QueryPlan(f"SELECT plain FROM ({_scale(scans)})", tuple(scans), (ResultColumn("plain", DOUBLE),),
                     functions=functions)


def _scale(scans: Sequence[Scan]) -> str:
    """By how much sums of the rows that are read may differ with their order: of their values, and of their squares."""
    largest, rows = [], []
    for scan in scans:
        numbers = [each.name for each in scan.output if each.type.kind in (*INTEGERS, *FLOATS)]
        largest += [f"(SELECT max(abs({quote_name(name)}::DOUBLE)) FROM {quote_name(scan.name)})"
                    for name in numbers if name != TABLE_UID]
        rows.append(f"(SELECT count(*) FROM {quote_name(scan.name)})")
    most = f"greatest({', '.join(['1', *largest])})"
    return (f"SELECT lost * most AS plain, lost * least(most, 1e150) ** 2 AS squared FROM "
            f"(SELECT {_DIGITS} * sqrt({' + '.join(rows)}) AS lost, {most} AS most)")


def _distinct(column: Column, one: str, other: str, scale: str) -> str:
    """The condition that two values of a column aren't the same. `scale`: that of `_scale` which holds for it."""
    if column.type.kind not in FLOATS:
        return f"{one} IS DISTINCT FROM {other}"
    finite = f"isfinite({one}) AND isfinite({other})"
    near = (f"{finite} AND abs({one} - {other}) <= scale.{scale} + {RELATIVE} * "
            f"greatest(abs({one}), abs({other}))")
    return f"({one} IS DISTINCT FROM {other} AND NOT coalesce({near}, false))"


def _shown(
    columns: Sequence[Column], values: Sequence[int], distinct: Sequence[str], side: str, missing: str, extra: str
) -> str:
    """The values of one side as text: all of a result that only one side has, else those that differ."""
    parts = []
    for n, differs in zip(values, distinct, strict=True):
        shown = f"{render(text(f'{columns[n].name} = '))} || coalesce({_text(columns[n], f'{side}.r{n}')}, 'NULL')"
        parts.append(f"CASE WHEN {missing} OR {extra} OR {differs} THEN {shown} END")
    absent = missing if side == "f" else extra
    return f"CASE WHEN NOT ({absent}) THEN concat_ws(', ', {', '.join(parts) or 'NULL'}) END"


def _text(column: Column, value: str) -> str:
    if column.type.kind is not Kind.TIMESTAMP:
        return f"left({value}::VARCHAR, 200)"
    made = {"ms": f"make_timestamp({value} * 1000)", "us": f"make_timestamp({value})",
            "ns": f"make_timestamp_ns({value})"}
    return f"{made[column.type.precision]}::VARCHAR"
