"""What streams run by: the controller, Spark, and the service that workers call."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa

from penstock.common.config import CONF_DIRECTORY, Config, is_local
from penstock.common.errors import OutOfMemoryError
from penstock.common.memory import Memory, available_bytes, measure_tree
from penstock.mnode.catalog.catalog_records import PauseCause
from penstock.mnode.controller.controller_settings import ControllerSettings
from penstock.mnode.controller.engine_hooks import EngineHooks
from penstock.mnode.controller.group_runtime import Runtime, WorkerLaunch
from penstock.mnode.controller.stream_controller import StreamController
from penstock.mnode.dnode.dnode_service import DnodeService
from penstock.mnode.engine_parts import EngineParts
from penstock.tasks.dnode_access.data_place import mark_place
from penstock.tasks.dnode_access.dnode_client import Request
from penstock.tasks.dnode_access.remote_log import BytesRequest, EndRequest, SegmentsRequest
from penstock.tasks.protocol.refreshing import AnswerRequest, FireRequest, RefreshRequest
from penstock.tasks.protocol.store_requests import NamesRequest, RowsRequest, SpanRequest, TableRequest

RuntimeFactory = Callable[[Config, Path], Runtime]


def spark_runtime(config: Config, root: Path) -> Runtime:
    """Returns Spark, not yet started."""
    from penstock.tasks.worker.spark_runtime import SparkRuntime

    log_directory = config.log_dir if config.log_dir.is_absolute() else root / config.log_dir
    return SparkRuntime(config.spark_properties(), CONF_DIRECTORY, log_directory / "spark.log")


class WorkerSide:
    """Starts the controller with what belongs to it, and answers what workers ask."""

    def __init__(self, parts: EngineParts, make_runtime: RuntimeFactory) -> None:
        self._parts = parts
        self._make_runtime = make_runtime
        self._secret = secrets.token_bytes(32)
        self._service: DnodeService | None = None
        self._runtime: Runtime | None = None

    def prepare(self) -> None:
        """Has a node of a cluster start Spark before it becomes active, unless it shall not (`standbySpark`).

        Not where Spark has a master of its own: there it would take the slots of the node that is active.
        """
        of = self._parts.directory
        if of.config.standby_spark and is_local(of.config.spark_properties()["spark.master"]):
            self._runtime = self._make_runtime(of.config, of.paths.root)
            self._runtime.start()

    def start_controller(self) -> StreamController:
        """Returns a new controller with the service that its workers call."""
        parts, of = self._parts, self._parts.directory
        mark_place(of.paths, of.fs, self._secret)
        service = DnodeService(
            self._secret, parts.results.begin_write, self._answer, parts.states.keep, of.config.worker_host)
        self._service = service
        of.activity.port_opened(service.port, "dnode service", service.guard.admission.counts)
        measure = partial(measure_tree, os.getpid()) if of.environment.threaded else None
        return StreamController(
            of.clock, ControllerSettings.from_config(of.config, available_bytes(), os.cpu_count() or 1), parts.records,
            self._runtime or self._make_runtime(of.config, of.paths.root),
            WorkerLaunch(of.paths.root, service.address, self._secret), self.hooks(measure), of.environment)

    def hooks(self, measure: Callable[[float], Memory] | None = None) -> EngineHooks:
        """Returns what a controller asks of the engine."""
        return EngineHooks(self._parts.streams.checkpoints.checkpointed, self._settle, self._note_paused, measure,
                           self._end_queries, self._parts.directory.storage.logged)

    def close(self) -> None:
        """Ends the service."""
        if self._service is not None:
            self._service.shutdown()

    def _answer(self, request: Request) -> pa.Table:
        """Returns what a worker asks the dnode for."""
        match request:
            case (RowsRequest() | SpanRequest() | TableRequest() | NamesRequest() | RefreshRequest()
                  | AnswerRequest() | FireRequest()):
                return self._parts.results.read(request)
            case EndRequest() | SegmentsRequest() | BytesRequest():
                return self._parts.logs.answer(request)
        return self._parts.states.answer(request)

    def _end_queries(self, shortage: str) -> int:
        """Ends the queries that run, since memory is short; returns how many."""
        error = OutOfMemoryError(
            f"the query was ended: {shortage}", hint="try again; queryMemory and queriesMax bound what queries take")
        return self._parts.directory.activity.end_computing(error, sparing_lookers=True)

    def _note_paused(self, stream_id: int, cause: PauseCause) -> None:
        with self._parts.directory.ddl_lock:
            self._parts.streams.control.note_paused(stream_id, cause)

    def _settle(self, stream_id: int) -> None:
        ingest = self._parts.directory.catalog.ingests.by_id(stream_id)
        if ingest is not None:
            self._parts.ingests.settle(ingest)
        else:
            self._parts.streams.checkpoints.settle(stream_id)
