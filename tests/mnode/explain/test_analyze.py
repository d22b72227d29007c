"""EXPLAIN ANALYZE STREAM: rates and times per task between two looks, and what EXPLAIN says of time and state."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from kits.streams.stream_kit import Catalog, StreamKit
from rich.console import Console
from rich.progress import Progress

from penstock.common.errors import UnavailableError
from penstock.mnode.coordinator.stream_status import StreamInfo, StreamStatus
from penstock.mnode.coordinator.task_graph_builder import task_graph
from penstock.mnode.coordinator.task_monitor import Monitor, TaskReport
from penstock.mnode.explain.explain_analyze import analysis
from penstock.mnode.explain.explain_stream import explain_stream
from penstock.mnode.explain.stream_verdict import TaskNames
from penstock.planner.streams.stream_planner import plan_stream
from penstock.shell.terminal.elapsed_bar import ElapsedBar
from penstock.sql.dialect.parser import parse_one
from penstock.sql.schema import Session
from penstock.sql.tree.statements import CreateStream
from penstock.tasks.protocol.messages import TaskId
from penstock.tasks.protocol.worker_nodes import Nodes

INFO = StreamInfo(StreamStatus("RUNNING"), verdict="healthy")
COUNT = "SELECT _wstart, count(*) FROM meters PARTITION BY tbname INTERVAL(10s)"


def reports(kit: StreamKit) -> list[TaskReport]:
    monitor = Monitor(100, 100)
    monitor.heartbeat(kit.stream.statuses(), kit.clock.monotonic())
    return monitor.report(kit.clock.monotonic())


def test_rates_and_times_are_those_between_two_looks(tmp_path: Path) -> None:
    """40 rows within 4 s are 10 per second, whatever was before; the last line adds up the ends."""
    kit = StreamKit(tmp_path, f"CREATE STREAM s TRIGGER AT_ONCE INTO o AS {COUNT}")
    kit.insert([(n % 4, n, 1, 1.0, "") for n in range(400)])
    kit.pass_time(10)
    before = reports(kit)
    kit.insert([(n % 4, 1000 + n, 1, 1.0, "") for n in range(40)])
    kit.pass_time(4)
    names = TaskNames("s", Nodes((1,)))
    table = analysis(kit.plan, task_graph(kit.plan, (1,)), names, before, reports(kit), INFO).table
    assert table is not None
    source, agg, sink, stream = table.to_pylist()
    assert [line["operator"] for line in (source, agg, sink, stream)] == [
        "source s/v1", "agg s/v1", "sink s/v1", "stream"]
    assert source["rows_in_per_second"] == stream["rows_in_per_second"] == 10
    assert agg["rows_in_per_second"] == source["rows_out_per_second"] == 1
    assert sink["rows_out_per_second"] == stream["rows_out_per_second"] == 1
    assert (source["busy_ms"], source["blocked_percent"], source["starved_percent"]) == (0, 0, 100)
    assert source["remark"] == "WAL of p.meters, partial aggregates"
    assert stream["remark"] == "healthy"
    assert agg["state_bytes"] > 0
    blocked = [replace(report, status=replace(
        report.status, blocked_by=TaskId(7, "sink", 0), spent=report.status.spent._replace(
            elapsed_s=report.status.spent.elapsed_s + 2, busy_s=0.5, blocked_s=1.0, udf_s=0.25))) for report in before]
    table = analysis(kit.plan, task_graph(kit.plan, (1,)), names, before, blocked, INFO).table
    assert table is not None
    first = table.to_pylist()[0]
    assert (first["busy_ms"], first["udf_ms"], first["blocked_percent"], first["starved_percent"]) == (
        250, 125, 50, 25)
    assert first["remark"].endswith("; blocked by sink s/v1")
    kit.close()


def test_tasks_that_did_not_report_meanwhile_are_left_out(tmp_path: Path) -> None:
    """Without two reports nothing is made up; if there are none at all that is an error with advice."""
    kit = StreamKit(tmp_path, f"CREATE STREAM s TRIGGER AT_ONCE INTO o AS {COUNT}")
    before = reports(kit)
    kit.pass_time(1)
    after = reports(kit)
    table = analysis(kit.plan, task_graph(kit.plan, (1,)), TaskNames("s", Nodes((1,))), before[:1], after, INFO).table
    assert table is not None
    assert table.num_rows == 2
    for pair in ((before, before), ([], after), (after, [])):
        with pytest.raises(UnavailableError, match="no task has reported"):
            analysis(kit.plan, task_graph(kit.plan, (1,)), TaskNames("s", Nodes((1,))), *pair, INFO)
    kit.close()


@pytest.mark.parametrize(("options", "query", "time", "state"), [
    ("", COUNT, "its newest row minus 0s (WATERMARK); one that is quiet for idleTimeout holds no time back",
     "bounded, windows of the last 3650d (DELETE_MARK) are kept for each child table"),
    ("WATERMARK 5s IDLE_TIMEOUT 90s DELETE_MARK 1d", "SELECT _wstart, count(*) FROM meters INTERVAL(1m)",
     "its newest row minus 5s (WATERMARK); one that is quiet for 1.5m holds no time back",
     "bounded, windows of the last 1d (DELETE_MARK) are kept;"),
    ("WATERMARK FROM WRITERS WRITER_TIMEOUT 1m",
     "SELECT _wstart, count(*) FROM meters PARTITION BY voltage INTERVAL(1m)",
     "what writers have noted, without those silent for 1m, minus 0s (WATERMARK)",
     "unbounded, windows of the last 3650d (DELETE_MARK) are kept for each value of PARTITION BY;"),
    ("DELETE_MARK 1d", "SELECT _wstart, count(*) FROM meters PARTITION BY site INTERVAL(1m)", "its newest row",
     "bounded, windows of the last 1d (DELETE_MARK) are kept for each value of PARTITION BY, no more than tables;"),
    ("TIME PROCESSING", COUNT, "the machine's clock minus 0s", "bounded, "),
    ("", "SELECT _wstart, count(*) FROM meters SESSION(ts, 10s)", "its newest row", "unbounded, all windows are kept;"),
    ("", "SELECT ts, voltage FROM meters PARTITION BY tbname", "its newest row", "bounded, nothing is kept of rows"),
    ("TRIGGER FORCE_WINDOW_CLOSE", COUNT, "the machine's clock", "bounded, nothing is kept of rows"),
])
def test_explain_tells_where_time_comes_from_and_what_bounds_state(
    options: str, query: str, time: str, state: str
) -> None:
    """EXPLAIN CREATE STREAM has a line about each."""
    statement = parse_one(f"CREATE STREAM s {options} INTO o AS {query}")
    assert isinstance(statement, CreateStream)
    plan = plan_stream(statement, Catalog(2, 4), Session("p", "UTC", 0))
    lines = explain_stream(plan, task_graph(plan, (1, 2)))
    told: dict[str, Any] = dict(line.split(": ", 1) for line in lines if line.startswith(("Time", "State")))
    assert told["Time of each vnode"].startswith(time)
    assert told["State"].startswith(state)


def test_a_bar_fills_up_by_the_clock() -> None:
    """After 3 of 4 seconds three quarters are full, and it never is more than full."""
    now = [0.0]
    progress = Progress(console=Console(file=StringIO()), get_time=lambda: now[0])
    progress.add_task("measuring", total=4.0)
    (task,), bar = progress.tasks, ElapsedBar()
    shown = []
    for now[0] in (0.0, 3.0, 9.0):
        shown.append(bar.render(task).completed)
    assert shown == [0.0, 3.0, 4.0]
