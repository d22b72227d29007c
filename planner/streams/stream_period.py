"""CREATE STREAM name PERIOD(...): a stream that the clock fires, for the groups of a table or without one."""

from __future__ import annotations

from penstock.common.errors import InvalidStreamError
from penstock.planner.duckdb_sql.duckdb_tree import column, named, render, select
from penstock.planner.duckdb_sql.group_ids import group_id
from penstock.planner.logical.stream import Target
from penstock.planner.lower.stages import TBNAME
from penstock.planner.lower.targets import key_fields, sink_plan
from penstock.planner.query.select import plan_query
from penstock.planner.streams.calculated_target import (
    existing_target,
    fired_target,
    target_database,
    window_columns,
)
from penstock.planner.streams.stream_calculation import plan_calculation
from penstock.planner.streams.stream_context import StreamContext, StreamDefaults
from penstock.planner.streams.stream_keys import PartitionKey
from penstock.planner.streams.stream_notify import plan_period_notify
from penstock.planner.task_plans.plan_tree import PlanNode
from penstock.planner.task_plans.schedule import Schedule
from penstock.planner.task_plans.stream_plan import (
    LOOKUP,
    Grouping,
    LookupPlan,
    PeriodPlan,
    Policies,
    SourceColumn,
    SourcePlan,
    StreamPlan,
)
from penstock.sql.schema import CatalogView, Session
from penstock.sql.tree.fired_queries import rows_of_trigger
from penstock.sql.tree.statements import CreateStream, Duration
from penstock.sql.types import Precision


def plan_period(statement: CreateStream, catalog: CatalogView, session: Session) -> StreamPlan:
    """Returns the plan of a stream that the clock fires; raises what `plan_stream` raises."""
    does = statement.calculation
    assert does is not None
    assert does.period is not None
    if statement.options.fill_history:
        raise InvalidStreamError("FILL_HISTORY is not for PERIOD: the clock doesn't go back")
    if statement.options.watermark is not None or does.expired is not None:
        raise InvalidStreamError("WATERMARK and EXPIRED_TIME are not for PERIOD, which goes by the clock")
    if statement.select.source is None and (does.ignore_nodata or statement.select.where is not None):
        raise InvalidStreamError("PRE_FILTER and IGNORE_NODATA_TRIGGER are about rows of the trigger's table",
                                 hint="name it: FROM table")
    stream = None if statement.select.source is None else StreamContext(
        statement, catalog, session, StreamDefaults(), ())
    schedule = Schedule(does.period.in_units("ms"), 0 if does.offset is None else does.offset.in_units("ms"),
                        session.time_zone, session.now_ms)
    keys: list[PartitionKey] = []
    if stream is None:
        database = target_database(statement, catalog, session, None)
        existing = existing_target(statement, catalog, database, grouped=False)
        name = statement.target.name.name
        target = Target(database.name, name, window_columns((), database.precision), (), None, (),
                        0 if existing is None else existing.uid, existing is None and bool(name))
        source, precision, by_table = _no_source(database.name, database.precision), database.precision, False
        groups_sql, tags = None, None
    else:
        stream.read_keys()
        keys, precision, by_table = stream.partition, stream.precision, stream.by_table
        target, _ = fired_target(stream, [])
        source = _source(stream)
        rows = rows_of_trigger(statement.select, {})
        rows.change(source_text=statement.source_text, source_start=statement.source_start)
        plan_query(rows, catalog, session)
        groups_sql, tags = _groups(stream, keys)
    calculation = plan_calculation(statement, catalog, session, precision, [key.type for key in keys],
                                   by_table=by_table)
    stream_keys = [key.stream_key for key in keys]
    every = PlanNode("Stream", (("trigger", f"period {_shown(does.period, does.offset)}"), ("into", target.text)), ())
    return StreamPlan(
        source, Grouping(key_fields(stream_keys), colocated=False), PeriodPlan(schedule, groups_sql, tags), "period",
        Policies(ignore_update=True), sink_plan(target, stream_keys), session.time_zone, every,
        notify=plan_period_notify(statement), calculation=calculation)


def _shown(period: Duration, offset: Duration | None) -> str:
    return str(period) if offset is None else f"{period}, {offset}"


def _no_source(database: str, precision: Precision) -> SourcePlan:
    return SourcePlan(database, "", 0, None, "", False, precision, (), (), needs_children=False, sql="",
                      late_sql=None, expired_sql=None)


def _source(stream: StreamContext) -> SourcePlan:
    table = stream.table
    return SourcePlan(
        table.database, table.name, table.storage_uid, None if table.kind == "super" else table.uid,
        table.time_column.name, False, stream.precision, (), (), needs_children=False, sql="", late_sql=None,
        expired_sql=None)


def _groups(stream: StreamContext, keys: list[PartitionKey]) -> tuple[str | None, LookupPlan | None]:
    """Returns the SQL of the groups that there are, and the tags that it reads."""
    if not keys:
        return None, None
    table = stream.table
    if table.kind != "super":
        raise InvalidStreamError("PARTITION BY of PERIOD is for super tables: another table is one group",
                                 hint="leave it out")
    known = {tag.name for tag in table.tags} | {TBNAME}
    for key in keys:
        if key.source not in known:
            raise InvalidStreamError("PARTITION BY of PERIOD takes tbname and tags: groups are there without rows")
    of_tables = {tag.name: tag.type for tag in table.tags} | {TBNAME: keys[0].type}
    columns = tuple(SourceColumn(str(key.source), str(key.source), of_tables[str(key.source)]) for key in keys)
    values = [(column(str(key.source)), key.type) for key in keys]
    found = select([named(group_id(values), "_gid"),
                    *(named(value, f"k{place}") for place, (value, _) in enumerate(values))], LOOKUP, distinct=True)
    return render(found), LookupPlan(table.name, table.uid, None, columns)
