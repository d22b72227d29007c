"""EXPLAIN of a stream: the task DAG by vnode, what each task computes, and where its output goes."""

from __future__ import annotations

import json
from collections.abc import Sequence

from penstock.common.durations import duration_text
from penstock.common.quantities import size_text
from penstock.planner.streams.external_sink import avro_schema, delivery_promise
from penstock.planner.streams.ingest_plan import CHANGES, IngestPlan
from penstock.planner.task_plans.external_rows import external_columns, key_names
from penstock.planner.task_plans.plan_tree import render_tree
from penstock.planner.task_plans.stream_plan import (
    CalculationPlan,
    FillPlan,
    ForcePlan,
    IsolationClass,
    JoinPlan,
    NotifyPlan,
    PeriodPlan,
    RefreshPlan,
    RowsPlan,
    StreamPlan,
    WindowsPlan,
)
from penstock.sql.types import UNITS_PER_SECOND
from penstock.tasks.protocol.task_graph import TaskEdges, TaskGraph

PROCESSING = {
    "exactly_once": "exactly once, barriers are aligned",
    "at_least_once": "at least once, barriers are not aligned and rows may count again after a failure",
}
DELIVERY = "exactly once, as upserts: what is written again replaces itself"
"""What a result table gives, whatever the stream's own guarantee is."""

_WAL_ON_CLUSTER = "read as files by workers that reach the data directory, over the network by others"

GROWING = {"values": "every value", "distinct": "every different value"}
"""What accumulators without a bound hold."""


def explain_stream(plan: StreamPlan, graph: TaskGraph, state_limit: int = 0, *, cluster: bool = False) -> list[str]:
    """Returns the logical plan and the task graph as lines; stable text without ids that change between runs.

    `state_limit`: the STATE_LIMIT in force, 0 for none. `cluster`: whether workers may be on other machines.
    """
    lines = [*render_tree(plan.tree), *explain_tasks(plan, graph)]
    lines += _computation(plan)
    if plan.calculation is not None:
        lines += _calculated(plan, plan.calculation)
    lines.append(f"WAL of each vnode: {_WAL_ON_CLUSTER if cluster else 'read as files'}")
    if not isinstance(plan.computation, RefreshPlan | PeriodPlan) and not plan.keeps_groups:
        lines.append(f"Time of each vnode: {_time(plan)}")
    lines += _state(plan)
    if state_limit:
        lines[-1] += f"; the stream is paused when all of it exceeds {size_text(state_limit)} (STATE_LIMIT)"
    apart = placement(plan, graph.nodes.snode_ids)
    if apart is not None:
        lines.append(f"Workers: {apart}")
    lines.append(f"Guarantee of the stream: {PROCESSING[plan.policies.guarantee]}")
    promise = delivery_promise(plan)
    if plan.sink.external is not None or plan.sink.table:
        lines.append(f"Delivery into {plan.sink.text}: {DELIVERY if promise is None else promise.text}")
    if plan.sink.external is not None:
        lines.append(f"Columns there: {', '.join(column.name for column in external_columns(plan.sink))}")
        if plan.sink.external.format == "avro":
            lines.append(f"Schema of Avro: {json.dumps(avro_schema(plan.sink))}")
        fate = "is paused" if plan.dlq is None or not plan.dlq.failures else f"goes on, {plan.dlq.name} has the results"
        lines.append(f"Failed writes to {plan.sink.external.connection} are retried for RETRY_TIME, then the stream "
                     f"{fate}")
    if plan.notify is not None:
        lines.append(f"Each sink task {_notified(plan.notify)}")
    if plan.sink.children_sql and plan.sink.table and not plan.sink.keyed:
        lines.append(f"Each sink task names child tables by: {plan.sink.children_sql}")
    return lines


def _calculated(plan: StreamPlan, calculation: CalculationPlan) -> list[str]:
    """Returns what is computed apart from the trigger."""
    columns = ", ".join(f"{column.name} {column.type.sql()}" for column in calculation.columns)
    where = f", into {plan.sink.text}" if plan.sink.table else ", which is told and not kept"
    by_query = "the engine computes the query by DuckDB"
    what = f"{by_query}, which gives {columns}{where}" if columns else "that is told"
    if calculation.values:
        what = (f"what its aggregates have of it gives {columns}{where}; of windows without rows, and with rows that "
                f"the stream hasn't read, {by_query}")
    events = " and ".join(event.removeprefix("window_") for event in calculation.events)
    when = "Whenever it fires" if isinstance(plan.computation, PeriodPlan) else f"At the {events} of a window"
    return [f"{when}, {what}",
            f"Few windows are computed one by one, many by one query; each is a row of {plan.sink.database}."
            f"{calculation.table}"]


def explain_tasks(plan: StreamPlan, graph: TaskGraph) -> list[str]:
    """Returns the task graph as lines: each task with where it is, what it does, and whom it sends to."""
    vnodes, snodes = len(graph.nodes.vgroup_ids), len(graph.nodes.snode_ids)
    on = f"{vnodes} vnodes and {snodes} snodes" if snodes else f"{vnodes} vnodes"
    lines = [f"Tasks: {len(graph.tasks)} on {on}, {_crossing(plan, graph)}"]
    for edge in graph.edges(0):
        receivers = ", ".join(f"{task.operator}-{task.index}" for task in edge.downstream)
        target = f" -> {receivers}" if receivers else ""
        lines.append(f"  {edge.node.name} on {graph.node_of(edge.node)}: {work_of(plan, edge)}{target}")
    return lines


def explain_graph(graph: TaskGraph) -> list[str]:
    """Returns the tasks and the channels of a graph as it is stored, a line each."""
    lines = [f"{task.name}: {task.kind} of {task.work}, on {graph.node_of(task)}"
             + (f", reads vnode {task.vgroup_id}" if task.kind == "source" else "") for task in graph.tasks]
    for exchange in graph.exchanges:
        senders, receivers = (", ".join(graph.tasks[place].name for place in places)
                              for places in (exchange.senders, exchange.receivers))
        lines.append(f"{exchange.kind}: {senders} -> {receivers}")
    return lines


def _computation(plan: StreamPlan) -> list[str]:
    """Returns what source tasks compute, and the tasks behind them."""
    match plan.computation:
        case RowsPlan():
            return _source(plan)
        case WindowsPlan() as windows:
            return [*_source(plan), *_windows(plan, windows), *_fill(windows.fill)]
        case JoinPlan() as join:
            return _join(plan, join)
        case ForcePlan(fill=fill):
            return [*_source(plan), *_fill(fill)]
        case PeriodPlan(schedule=schedule):
            return [f"The clock fires it every {duration_text(schedule.period_ms, 1000)}, in time zone "
                    f"{schedule.time_zone}; of times that have passed while it didn't run, once"]
        case RefreshPlan(groups=groups) if groups:
            return [f"Recomputed and compared with the result table: groups by {', '.join(groups)} whose child tables "
                    "have changed"]
        case RefreshPlan(reason=reason) if plan.sink.by_key:
            return [f"Recomputed as a whole when one of its tables changes: there is no incremental way for {reason}",
                    "Each checkpoint has the difference to what was sent before, by the key "
                    f"{', '.join(key_names(plan.sink))}; it is sent when the checkpoint is committed"]
        case RefreshPlan(reason=reason, touched=touched) if touched:
            names = ", ".join(plan.sink.columns[place].name for place in touched)
            return [f"Recomputed and compared with the result table: results with the {names} of rows that were "
                    f"inserted, changed or deleted; there is no incremental way for {reason}"]
        case RefreshPlan(reason=reason):
            return ["Recomputed as a whole and compared with the result table when one of its tables changes: there is "
                    f"no incremental way for {reason}"]


def _source(plan: StreamPlan) -> list[str]:
    """Returns what source tasks compute of the rows of one table, and what they look up in."""
    source = plan.source
    lines = [f"Each source task computes with {_engine(source.kernel is not None)}: {source.sql}"]
    if source.lookup is not None:
        lines.append(f"Each source task keeps a copy of {source.lookup.text}, read anew after LOOKUP_FRESHNESS: "
                     f"{' '.join(column.physical for column in source.lookup.columns)}")
    return lines


def _windows(plan: StreamPlan, windows: WindowsPlan) -> list[str]:
    """Returns what agg tasks keep, and compute of it."""
    keeps, state, others = "Each agg task keeps per group and window", "The state of a window grows with its rows", ""
    if plan.sink.single:
        keeps, state, others = "The agg task keeps of all rows", "The state grows with the rows", "all others"
    elif plan.keeps_groups:
        keeps, state = "Each agg task keeps per group", "The state of a group grows with its rows"
        others = "all others of their group"
    kept = ", ".join(f"{accumulator.kind}({', '.join(field.name for field in accumulator.fields)})"
                     for accumulator in windows.accumulators)
    growing = [f"{state}: {GROWING[accumulator.kind]} is kept in {accumulator.fields[0].name}"
               for accumulator in windows.accumulators if accumulator.kind in GROWING]
    changes = "taken out of what is kept" if windows.retracts else f"read back with {others}"
    gone = [f"Rows that are rewritten or deleted are {changes}"] if others else []
    return [f"{keeps}: {kept or 'how many rows there are'}", *growing, *gone,
            f"Each agg task computes with {_engine(windows.kernel is not None)}: {windows.final_sql}"]


def _fill(fill: FillPlan | None) -> list[str]:
    return [] if fill is None else [f"Rows between two windows are filled by: {fill.sql}"]


def _join(plan: StreamPlan, join: JoinPlan) -> list[str]:
    """Returns where the rows of a join meet and why, and what its tasks compute."""
    where = {"vnode": "on the vnode that both sides are stored on", "exchange": "on join tasks, exchanged"}
    lines = [f"Rows meet {where[join.distribution]}: {join.reason}"]
    if join.single:
        lines.append(f"One join task: {join.single}")
    if join.windows is None and plan.sink.key_column is None:
        lines.append("Of several results with the same group and time, the greatest is kept, by its columns from left "
                     "to right; with a second PRIMARY KEY column, all are kept")
    lines += [f"Each source task of the {name} side computes with DuckDB: {side.source.sql}"
              for name, side in zip(("left", "right"), join.sides, strict=True)]
    lines.append(f"Each join task computes with DuckDB: {join.sql}")
    return lines


def _join_state(plan: StreamPlan, join: JoinPlan) -> list[str]:
    """Returns per side how long rows are kept."""
    lines = []
    per_second = UNITS_PER_SECOND[plan.source.precision]
    for place, (name, side) in enumerate(zip(("left", "right"), join.sides, strict=True)):
        kept = duration_text(join.kept_of(place, plan.policies.delete_mark), per_second)
        since = f"rows of the last {kept} behind the join's time"
        ranged = name == join.driver or join.start is not None or side.newest_sql is not None
        why = "the range of time of the join" + (" and its windows" if join.width else "")
        if not plan.policies.ignore_expired or not ranged:
            why = "DELETE_MARK"
        text = f"State of the {name} side: bounded, {since} are kept ({why})"
        if side.newest_sql is not None:
            text = f"State of the {name} side: {since} are kept ({why}), and before them the newest of each key"
        lines.append(text)
    lines[-1] += "; in memory up to streamBufferSize, on disk up to stateMapSize per task"
    return lines


def placement(plan: StreamPlan, snode_ids: Sequence[int]) -> str | None:
    """Returns why a stream is kept apart from others, and how; None if it isn't."""
    reasons: list[str] = []
    if plan.functions:
        called = ", ".join(plan.function_names)
        reasons.append(f"shared only with {plan.isolation_class.value} (apartNice), since it calls {called}")
    elif plan.isolation_class is IsolationClass.OPEN_GROUPS:
        reasons.append(f"shared only with {plan.isolation_class.value} (apartNice), "
                       "since its groups are columns of rows")
    if snode_ids:
        on = ", ".join(map(str, snode_ids))
        reasons.append(f"shared only with streams that have their agg tasks on the same snodes: {on}")
    return "; ".join(reasons) or None


def _notified(notify: NotifyPlan) -> str:
    """Returns who is told of what, and what becomes of events that aren't taken."""
    urls = ", ".join(url.partition("?")[0] for url in notify.urls)
    fate = "at least once, and waits for that" if notify.on_failure == "pause" else "where they can be reached"
    return f"tells {urls} of {', '.join(event.upper() for event in notify.events)}, {fate}"


def _time(plan: StreamPlan) -> str:
    """Returns where a vnode's watermark comes from, and when it holds time back no longer."""
    if isinstance(plan.computation, ForcePlan):
        return "the machine's clock"
    per_second = UNITS_PER_SECOND[plan.source.precision]
    sources = {"event": "its newest row", "ingestion": "the ingestion of its newest record",
               "processing": "the machine's clock"}
    source = sources[plan.policies.time.clock]
    if plan.policies.time.writer_timeout_ms is not None:
        timeout = duration_text(plan.policies.time.writer_timeout_ms, 1000)
        source = f"what writers have noted, without those silent for {timeout},"
    watermark = f"{source} minus {duration_text(plan.policies.watermark, per_second)} (WATERMARK)"
    idle_s = plan.policies.time.idle_timeout_s
    idle = "idleTimeout" if idle_s is None else duration_text(round(idle_s * 1000), 1000)
    return f"{watermark}; one that is quiet for {idle} holds no time back"


def _state(plan: StreamPlan) -> list[str]:
    """Returns whether state is bounded, and by what."""
    match plan.computation:
        case RefreshPlan() if plan.sink.by_key:
            return ["State: the rows that were sent, as many as the answer has; in memory and on disk"]
        case RowsPlan() | ForcePlan() | RefreshPlan() | PeriodPlan():
            return ["State: bounded, nothing is kept of rows"]
        case WindowsPlan():
            return [f"State: {_window_state(plan)}"]
        case JoinPlan() as join:
            return _join_state(plan, join)


def _window_state(plan: StreamPlan) -> str:
    where = "in memory up to streamBufferSize, on disk up to stateMapSize per task"
    if plan.sink.single:
        return f"bounded, what all rows together come to is kept; {where}"
    if plan.policies.state_ttl is not None:
        kept = duration_text(plan.policies.state_ttl, UNITS_PER_SECOND[plan.source.precision])
        return (f"bounded, groups without changes for {kept} of event time, or an eighth longer, are removed "
                "(STATE_TTL); their results stay, and a group that returns starts anew: its result may differ from the "
                f"query's; {where}")
    if plan.keeps_groups:
        known = "no more than tables" if not plan.grouping.by_values else "however many there are"
        return f"all groups are kept, {known}; {where}"
    if not plan.forgets:
        bounded, kept = "unbounded", "all windows"
    else:
        mark = duration_text(plan.policies.delete_mark, UNITS_PER_SECOND[plan.source.precision])
        bounded, kept = "bounded", f"windows of the last {mark} (DELETE_MARK)"
    if not plan.grouping.keys:
        return f"{bounded}, {kept} are kept; {where}"
    if plan.source.group_is_table:
        return f"{bounded}, {kept} are kept for each child table; {where}"
    if not plan.grouping.by_values:
        return f"{bounded}, {kept} are kept for each value of PARTITION BY, no more than tables; {where}"
    return f"unbounded, {kept} are kept for each value of PARTITION BY; {where}"


def _engine(kernel: bool) -> str:
    """Returns what runs a task's SQL: DuckDB, or a kernel that was derived from it."""
    return "a kernel" if kernel else "DuckDB"


def _crossing(plan: StreamPlan, graph: TaskGraph) -> str:
    """Returns what crosses from one vnode to another, and to whom."""
    crossing = next((one for one in graph.exchanges if one.kind != "forward"), None)
    if crossing is None:
        return "nothing crosses between vnodes"
    if isinstance(plan.computation, RefreshPlan):
        return "that there are changes crosses to one sink task"
    what = "rows" if graph.tasks[crossing.receivers[0]].kind == "join" else "partials"
    task = "join task" if what == "rows" else "agg task"
    if crossing.kind == "one":
        return f"{what} cross to one {task}"
    return f"{what} cross to the {task} of their {'key' if what == 'rows' else 'group'}"


def work_of(plan: StreamPlan, edge: TaskEdges) -> str:
    """Returns in a few words what a task does."""
    match edge.node.kind:
        case "source" if edge.node.work in ("left side", "right side"):
            source = plan.sources[edge.node.work == "right side"]
            return f"WAL of {source.database}.{source.table}, rows for the join"
        case "source" if edge.node.work == "changes":
            source = plan.sources[edge.node.reads]
            return f"WAL of {source.database}.{source.table}, whether it has changed"
        case "source" if edge.node.work == "periods":
            return "the clock"
        case "source":
            work = "partial aggregates" if edge.downstream[0].operator == "agg" else "filter and projection"
            if plan.source.lookup is not None:
                work = f"lookup in {plan.source.lookup.text}, {work}"
            if edge.node.work == "clock":
                work = "windows ended by the clock"
            return f"WAL of {plan.source.database}.{plan.source.table}, {work}"
        case "join":
            return f"joins the rows of {len(edge.upstream)} inputs, emitted {plan.trigger.replace('_', ' ')}"
        case "agg":
            kept = "all rows" if plan.sink.single else "groups" if plan.keeps_groups else "windows"
            return f"{kept} of {len(edge.upstream)} inputs, emitted {plan.trigger.replace('_', ' ')}"
        case "sink" if edge.node.work == "refresh" and plan.sink.by_key:
            return f"has the query computed by the engine, and emits what differs into {plan.sink.text}"
        case "sink" if edge.node.work == "refresh":
            return f"has the query computed by the engine, and {plan.sink.text} made the same"
        case "sink" if plan.calculation is not None:
            return f"has the engine compute what windows are for, into {plan.sink.text}"
        case "sink":
            return f"{'emits' if plan.sink.external is not None else 'upserts'} into {plan.sink.text}"
        case "ingest":
            return "messages into rows"


def explain_ingest(plan: IngestPlan) -> list[str]:
    """Returns what an ingest does, a line each."""
    source = ", ".join(plan.topics) or plan.path or "*"
    fields = [f"{one.column.name} = {one.field}" for one in plan.columns]
    if plan.on_arrival:
        fields.insert(0, f"{plan.time_column.name}: on arrival")
    tags = ", ".join(f"{one.column.name} = {one.field}" for one in plan.tags)
    errors = f"goes to {plan.dlq.database}.{plan.dlq.table}" if plan.dlq is not None else {
        "fail": "stops the ingest"}.get(plan.on_error, "is left out and counted")
    tasks = "1 task" if plan.tasks == 1 else f"{plan.tasks} tasks, which share the partitions"
    rows = f"Child tables: {plan.tbname}" + (f", with tags {tags}" if tags else "")
    if plan.keyed:
        rows = f"Rows by KEY: {', '.join(one.column.name for one in plan.key)}"
        rows += "; deletes delete" if plan.format in CHANGES else "; what comes replaces what has its key"
    return [
        f"Ingest from {plan.kind} connection {plan.connection} ({source}), {plan.format}, into "
        f"{plan.database.name}.{plan.table}: {tasks}",
        f"Columns: {', '.join(fields)}",
        rows,
        f"Guarantee: {plan.guarantee}",
        f"A message that can't be used {errors}; fields that no column takes "
        f"{'make it one' if plan.refuses_unknown else 'are counted'}",
    ]
