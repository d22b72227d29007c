"""Where tasks are placed: on the workers of vnodes, or, agg tasks of streams with an exchange, on those of snodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.streams.stream_kit import Catalog

from penstock.mnode.coordinator.task_graph_builder import task_graph
from penstock.mnode.explain.explain_stream import explain_stream
from penstock.planner.streams.stream_planner import plan_stream
from penstock.planner.task_plans.stream_plan import StreamPlan
from penstock.sql.dialect.parser import parse_one
from penstock.sql.schema import Session
from penstock.sql.tree.statements import CreateStream
from penstock.tasks.protocol.messages import TaskId
from penstock.tasks.protocol.worker_nodes import Nodes, WorkerNode

QUERIES = {
    "plain": "SELECT ts, voltage FROM meters PARTITION BY tbname",
    "by table": "SELECT _wstart, count(*) FROM meters PARTITION BY tbname INTERVAL(10s)",
    "by group": "SELECT _wstart, count(*) FROM meters PARTITION BY site INTERVAL(10s)",
    "overall": "SELECT _wstart, count(*) FROM meters INTERVAL(10s)",
}


def plan_of(query: str, vnodes: int) -> StreamPlan:
    statement = parse_one(f"CREATE STREAM s INTO o AS {query}")
    assert isinstance(statement, CreateStream)
    return plan_stream(statement, Catalog(vnodes, 4), Session("p", "UTC", 0))


PLANS = {name: plan_of(query, 8) for name, query in QUERIES.items()}


@given(kind=st.sampled_from(sorted(PLANS)), vnodes=st.integers(1, 8), snodes=st.integers(0, 10))
def test_every_task_has_one_worker(kind: str, vnodes: int, snodes: int) -> None:
    """Source and sink tasks are with their vnode. Agg tasks leave it only for snodes, and only if several feed them."""
    vgroup_ids, snode_ids = tuple(range(2, 2 + vnodes)), tuple(range(1000, 1000 + snodes))
    graph = task_graph(PLANS[kind], vgroup_ids, snode_ids)
    edges, nodes = graph.edges(7), graph.nodes
    hosted = {worker: [edge.task for edge in edges if nodes.worker_of(edge.task) == worker]
              for worker in range(nodes.workers)}
    assert sorted(task for tasks in hosted.values() for task in tasks) == sorted(edge.task for edge in edges)
    moved = snodes > 0 and vnodes > 1 and kind in ("by group", "overall")
    for edge in edges:
        node = nodes.node_of(nodes.worker_of(edge.task))
        if edge.task.operator == "agg" and moved:
            assert node.type == "snode"
            assert node.id in snode_ids
        else:
            assert node == WorkerNode("vnode", vgroup_ids[edge.task.index])
    for worker, tasks in hosted.items():
        assert (TaskId(7, "source", worker) in tasks) is (worker < vnodes)
        assert tasks, "a worker for nothing takes a slot"
    aggs = [len(tasks) for tasks in hosted.values() if {task.operator for task in tasks} == {"agg"}]
    assert max(aggs, default=0) - min(aggs, default=0) <= 1, "snodes have about equally much to do"
    assert graph.queue_counts() == tuple(
        sum(1 if task.operator == "sink" else 2 for task in tasks) for tasks in hosted.values())


def test_agg_tasks_take_turns_on_the_snodes() -> None:
    """Agg task i is on worker N + i mod K, whatever attempt it is, so two agg tasks meet only if there are too few."""
    nodes = task_graph(PLANS["by group"], (2, 3, 4), (1001, 1002)).nodes
    assert nodes == Nodes((2, 3, 4), (1001, 1002))
    assert [nodes.worker_of(TaskId(1, "agg", index)) for index in range(3)] == [3, 4, 3]
    assert [str(nodes.node_of(worker)) for worker in range(5)] == [
        "vnode 2", "vnode 3", "vnode 4", "snode 1001", "snode 1002"]


@pytest.mark.parametrize(("kind", "snodes", "told"), [
    ("by group", 1, "agg-0 on snode 1001:"), ("by group", 0, "agg-0 on vnode 2:"), ("by table", 1, "agg-0 on vnode 2:"),
])
def test_explain_says_where_agg_tasks_are(kind: str, snodes: int, told: str) -> None:
    """Each task has its node, and streams that use snodes say that they are apart from those that don't."""
    lines = explain_stream(PLANS[kind], task_graph(PLANS[kind], (2, 3), (1001, 1002)[:snodes]))
    assert any(line.strip().startswith(told) for line in lines)
    apart = [line for line in lines if line.startswith("Workers: ")]
    assert apart == (["Workers: shared only with streams that have their agg tasks on the same snodes: 1001"]
                     if "snode" in told else [])
