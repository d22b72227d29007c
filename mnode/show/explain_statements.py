"""EXPLAIN of queries, streams and ingests."""

from __future__ import annotations

from penstock.common.clock import Clock
from penstock.common.config import Config, is_local
from penstock.common.errors import InvalidStatementError
from penstock.mnode.access.session import Result, text_result
from penstock.mnode.coordinator.task_graph_builder import task_graph
from penstock.mnode.explain.explain_stream import explain_graph, explain_ingest, explain_stream
from penstock.mnode.explain.explain_stream_sql import explain_sql
from penstock.mnode.query.query_statements import Queries
from penstock.mnode.streams.ingest_statements import Ingests
from penstock.mnode.streams.stream_planning import StreamPlanning
from penstock.mnode.streams.stream_settings import state_limit
from penstock.planner.task_plans.plan_tree import render_tree
from penstock.sql.dialect.stream_options import rates_sql
from penstock.sql.schema import Session
from penstock.sql.tree.statements import CreateIngest, CreateStream, Explain, Select, SetOperation, ValuesQuery


class Explainer:
    """Says what a statement would do, without doing it; with ANALYZE a query is run and measured."""

    def __init__(
        self, queries: Queries, streams: StreamPlanning, ingests: Ingests, config: Config, clock: Clock
    ) -> None:
        self._queries = queries
        self._streams = streams
        self._ingests = ingests
        self._config = config
        self._clock = clock

    def explain(self, statement: Explain, session: Session) -> Result:
        match statement.statement:
            case CreateStream() as create:
                return self._stream(create, statement.part, session)
            case CreateIngest() as create:
                return self._ingest(create, statement.part, session)
            case Select() | SetOperation() | ValuesQuery() as query:
                if statement.part == "tasks":
                    raise InvalidStatementError("a query has no tasks",
                                                hint="EXPLAIN (TASKS) is for CREATE STREAM and CREATE INGEST")
                if statement.part == "sql":
                    return self._queries.explain_sql(query, session)
                return self._queries.explain(query, session, self._clock, analyze=statement.analyze)
        raise AssertionError(f"{type(statement.statement).__name__} is nothing that the parser lets be explained")

    def _stream(self, statement: CreateStream, part: str | None, session: Session) -> Result:
        stream, replaced = self._streams.replacing(statement)
        plan = self._streams.plan(stream, session, replaced)
        graph = self._streams.graph_of(plan)
        match part:
            case "logical":
                return text_result("Logical Plan", render_tree(plan.tree))
            case "sql":
                return text_result("SQL", explain_sql(plan))
            case "tasks":
                return text_result("Task Graph", explain_graph(graph))
        lines = explain_stream(plan, graph, state_limit(self._config, stream.options),
                               cluster=not is_local(self._config.spark["spark.master"]))
        rates = rates_sql(stream.options)
        if rates:
            lines.append(f"Rates of each task, per second: {rates}")
        if replaced is not None:
            lines.append(f"Replaces stream {replaced.name}: computed from history, nothing of its state is used")
        return text_result("Query Plan", lines)

    def _ingest(self, statement: CreateIngest, part: str | None, session: Session) -> Result:
        ingest = self._ingests.plan(statement, session)
        if part == "tasks":
            return text_result("Task Graph", explain_graph(task_graph(ingest, ingest.database.vgroup_ids)))
        if part is not None:
            raise InvalidStatementError(f"an ingest has no {part.upper()}", hint="EXPLAIN (TASKS) shows its tasks")
        return text_result("Query Plan", explain_ingest(ingest))
