"""The edge to Spark: one shared context per process, and worker groups as barrier jobs. Nobody else imports pyspark.

Spark places workers, ships code, notices lost processes and kills; nothing of that is done here.
"""

from __future__ import annotations

import atexit
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import penstock
from penstock.common.config import LOOPBACK, is_local
from penstock.common.errors import UnavailableError
from penstock.common.logging import logger
from penstock.common.private import make_private, open_private, private_umask
from penstock.common.responsiveness import change_threads_often, leave_out_what_stays
from penstock.tasks.worker import java_classes
from penstock.tasks.worker.code_archive import CodeArchive, code_archive
from penstock.tasks.worker.spark_executors import Executor, Executors
from penstock.tasks.worker.spark_settings import on_command_line, with_secret, with_sockets
from penstock.tasks.worker.worker_process import WorkerSpec, run_worker

if TYPE_CHECKING:
    from pyspark import SparkContext

_log = logger(__name__)

DEFAULT_MASTER = "local[64]"
APPLICATION_NAME = "penstock"

#: Of the folder that the sockets' folder is in: the path of a socket has some hundred characters at most.
_PARENT_LENGTH_MAX = 40

#: Seconds that Java may take to end.
_STOP_MAX_S = 10.0

_PACKAGE_DIRECTORY = Path(penstock.__file__).parent
_WORKERS_PYTHON_PATH = "spark.executorEnv.PYTHONPATH"
DRIVERS_JAVA = "spark.driver.extraJavaOptions"

OnEnd = Callable[[str | None], None]

_context_lock = threading.Lock()
_tag_numbers = itertools.count(1)


class SparkRuntime:
    """Starts Spark when first needed and runs worker groups on it.

    The context is one per process: engines that are opened one after the other share it, and whoever made the
    process's first context (this class or the user's own program) has chosen its settings.
    """

    def __init__(
        self, properties: Mapping[str, str], conf_directory: Path, log_file: Path | None = None
    ) -> None:
        """`properties` are Spark's, by full name. The output of Spark's processes goes to `log_file`, or to
        this process's standard error if it is None."""
        self._properties = dict(properties)
        self._conf_directory = conf_directory
        self._log_file = log_file
        self._context: SparkContext | None = None
        self._error: BaseException | None = None
        self._ready = threading.Event()
        self._started = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begins to start Spark in the background, again if it could not be started before; returns at once."""
        with self._lock:
            failed = self._ready.is_set() and self._error is not None
            if self._started and not failed:
                return
            self._error = None
            self._ready.clear()
            self._started = True
        threading.Thread(target=self._start_context, name="spark start", daemon=True).start()

    def is_ready(self) -> bool:
        return self._ready.is_set() and self._error is None

    def context(self, timeout_s: float | None = None) -> SparkContext:
        """Returns the context, starting it if need be; raises UnavailableError if Spark doesn't start."""
        self._give_up_dead_context()
        self.start()
        if not self._ready.wait(timeout_s):
            raise UnavailableError(f"Spark has not started within {timeout_s} s")
        if self._context is None:
            raise UnavailableError(
                f"Spark could not be started: {self._error}", hint="it needs Java 17 or later; see the log"
            ) from self._error
        return self._context

    def running_context(self) -> SparkContext | None:
        """Returns the context if there is one by now, and waits for nothing."""
        return self._context if self.is_ready() else None

    def submit_group(self, spec: WorkerSpec, workers: int, description: str, on_end: OnEnd) -> GroupHandle:
        """Runs a group of `workers` as a barrier job, in the background.

        `on_end` is called once, from another thread, when no more workers will come or stay: with None if all
        returned normally or the group was cancelled, else with the reason.
        """
        self.start()
        handle = GroupHandle(self, spec, workers, description, on_end)
        handle.launch()
        return handle

    def executors(self) -> Executors | None:
        """Returns Spark's executors as its status store has them, None while there is no Spark; starts none."""
        context = self.running_context()
        if context is None:
            return None
        spark = context._jsc.sc()
        elastic = not spark.isLocal()
        found = spark.statusStore().executorList(True)
        summaries = [found.apply(place) for place in range(found.size())]
        return Executors(tuple(
            Executor(one.id(), one.hostPort().rpartition(":")[0], one.maxTasks(), one.activeTasks())
            for one in summaries if one.maxTasks() and not (elastic and one.id() == "driver")), elastic)

    def scale(self, executors: int, released: Sequence[str]) -> None:
        """Ends the executors that are `released`, and asks the cluster for so many in all."""
        context = self.context()
        spark, tools = context._jsc.sc(), context._jvm.PythonUtils
        # In this order: else Spark counts those that end among those that it shall have, and starts others for them.
        if released:
            spark.killExecutors(tools.toSeq(list(released)))
        spark.requestTotalExecutors(executors, 0, tools.toScalaMap({}))

    def stop(self, wait_s: float = _STOP_MAX_S) -> None:
        """Stops Spark and all its processes, for the end of the process; kills Java if it needs more than `wait_s`."""
        with self._lock:
            context, self._context = self._context, None
            self._started = False
            self._ready.clear()
        if context is not None:
            with _context_lock:
                if _is_active(context):
                    _stop_context(context, wait_s)

    def _give_up_dead_context(self) -> None:
        """Forgets a context that was stopped or whose Java process has died, so that another one is started."""
        with self._lock:
            if self._context is None:
                return
            with _context_lock:
                if _is_active(self._context):
                    if not _has_died(self._context):
                        return
                    _log.error("Spark's Java process has died; it is started again")
                    _stop_context(self._context)
            self._context = None
            self._started = False
            self._ready.clear()

    def _start_context(self) -> None:
        try:
            with _context_lock:
                self._context = _get_or_create(self._properties, self._conf_directory, self._log_file)
        except Exception as error:  # noqa: BLE001
            _log.exception("Spark could not be started")
            self._error = error
        finally:
            self._ready.set()
        if self._context is not None:
            self._warm_up(self._context)
            java_classes.have_made(self._properties.get(DRIVERS_JAVA, ""))

    def _warm_up(self, context: SparkContext) -> None:
        """Runs an empty job, so that the daemon has forked and Java is warm when the first group comes."""
        try:
            context.setJobDescription("penstock: warm-up")
            context.parallelize(range(1), 1).barrier().mapPartitions(lambda places: places).count()
        except Exception:  # noqa: BLE001
            # Whatever is wrong will fail the first group too, where somebody is told; one that is stopped has none.
            if self._context is context:
                _log.exception("the warm-up job failed")


class GroupHandle:
    """A submitted worker group."""

    def __init__(
        self, runtime: SparkRuntime, spec: WorkerSpec, workers: int, description: str, on_end: OnEnd
    ) -> None:
        self._runtime = runtime
        self._spec = spec
        self._workers = workers
        self._description = description
        self._on_end = on_end
        self._cancelled = threading.Event()
        self._ended = threading.Event()
        # Engines of one process share Spark, and their groups may have the same names.
        self._tag = f"penstock-{next(_tag_numbers)}"

    def launch(self) -> None:
        """Starts the thread that runs the job."""
        threading.Thread(target=self._run, name=f"group {self._spec.group}", daemon=True).start()

    def cancel(self) -> None:
        """Asks Spark to kill the workers; `on_end` tells when the job is gone. Returns at once."""
        if self._cancelled.is_set():
            return
        self._cancelled.set()
        threading.Thread(target=self._cancel_job, name=f"cancel {self._spec.group}", daemon=True).start()

    def wait(self, timeout_s: float) -> bool:
        """Waits for the job's end; returns whether it has ended."""
        return self._ended.wait(timeout_s)

    def places(self) -> dict[int, str]:
        """Returns the ids of the executors that the workers are on, as far as Spark's status store has them by now."""
        context = self._runtime.running_context()
        if context is None or self._ended.is_set():
            return {}
        spark = context._jsc.sc()
        tracker, store = spark.statusTracker(), spark.statusStore()
        found: dict[int, str] = {}
        for job in tracker.getJobIdsForTag(self._tag):
            for stage in tracker.getJobInfo(job).get().stageIds():
                tasks = store.taskList(stage, 0, self._workers)
                for task in (tasks.apply(place) for place in range(tasks.size())):
                    found[task.index()] = task.executorId()
        return found

    def _cancel_job(self) -> None:
        try:
            context = self._runtime.context()
            if not self._ended.is_set():
                context.cancelJobsWithTag(self._tag)
        except Exception as error:  # noqa: BLE001  # py4j raises many kinds
            # Spark itself is gone or going, and the job with it.
            _log.warning("group %s could not be cancelled: %s", self._spec.group, error)

    def _run(self) -> None:
        reason: str | None = None
        try:
            context = self._runtime.context()
            found = self._runtime.executors()
            if found is not None and found.slots < self._workers:
                # Spark would wait for more for a minute, and such a job can't be cancelled.
                reason = f"Spark has {found.slots} slots, {self._workers} are needed"
            elif not self._cancelled.is_set():
                self._run_job(context)
        except Exception as error:  # noqa: BLE001
            reason = None if self._cancelled.is_set() else _reason(error)
            _log.info("group %s ended: %s", self._spec.group, reason or "it was cancelled")
        finally:
            self._ended.set()
        self._on_end(reason)

    def _run_job(self, context: SparkContext) -> None:
        # Tags and descriptions belong to the thread, which is this group's own.
        context.addJobTag(self._tag)
        context.setInterruptOnCancel(True)
        context.setJobDescription(self._description)
        spec = self._spec

        def run_partition(places: Iterator[int]) -> Iterator[int]:
            for index in places:
                run_worker(spec, index, _scratch_directory())
                yield index

        context.parallelize(range(self._workers), self._workers).barrier().mapPartitions(run_partition).count()


def java_options(conf_directory: Path, configured: str) -> str:
    """Returns what Spark's driver, which schedules and computes nothing, runs Java with; what is configured counts.

    It compiles quickly instead of well, collects garbage in one thread, and keeps no counters for which it would wake
    twenty times per second. It reads its classes from an archive, if there is one.
    """
    options = ["-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", *java_classes.sharing_options(configured),
               f"-Dlog4j2.configurationFile={(conf_directory / 'log4j2.properties').as_uri()}", configured]
    if not re.search(r"-XX:\+Use\w+GC\b", configured):  # Java takes no two
        options.insert(0, "-XX:+UseSerialGC")
    return " ".join(options).rstrip()


def _get_or_create(properties: Mapping[str, str], conf_directory: Path, log_file: Path | None) -> SparkContext:
    # Penstock hands no pandas data to Spark; the warning would only disturb the prompt.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    active = SparkContext._active_spark_context
    if active is not None:
        if is_local(active.master):
            active.pythonExec = sys.executable
        else:
            _ship(active, code_archive(_PACKAGE_DIRECTORY))
        return active
    conf = SparkConf().setAppName(APPLICATION_NAME)
    settings = {"spark.master": DEFAULT_MASTER, **properties}
    settings[DRIVERS_JAVA] = java_options(conf_directory, properties.get(DRIVERS_JAVA, ""))
    for name, value in with_sockets(with_secret(settings), _sockets_directory()).items():
        conf.set(name, value)
    archive = None if is_local(conf.get("spark.master")) else code_archive(_PACKAGE_DIRECTORY)
    if archive is not None:
        # Workers' processes are forked from one that imports Penstock before Spark tells it where shipped code is:
        # it starts where Spark puts the files.
        paths = [archive.name, conf.get(_WORKERS_PYTHON_PATH, "")]
        conf.set(_WORKERS_PYTHON_PATH, os.pathsep.join(path for path in paths if path))
    # Spark's web page listens on the address of SPARK_LOCAL_IP, and on all of the machine's without it.
    os.environ.setdefault("SPARK_LOCAL_IP", properties.get("spark.driver.bindAddress", LOOPBACK))
    gateway: Any = None
    if SparkContext._gateway is None:
        at_start = SparkConf(loadDefaults=False).setAll(list(on_command_line(dict(conf.getAll())).items()))
        with _output(log_file) as output, private_umask():
            try:
                gateway = launch_gateway(at_start, {"stdout": output, "stderr": output})
            except PySparkRuntimeError as error:
                # A Java that ends while it starts may have lacked memory or a port for a moment: one more try.
                _log.warning("Spark's Java process ended while it started, it is started once more: %s", error)
                gateway = launch_gateway(at_start, {"stdout": output, "stderr": output})
    try:
        context = SparkContext(conf=conf, gateway=gateway)
    except BaseException:
        # PySpark keeps the gateway, and the next try would ask a Java process that may be gone.
        _forget_gateway(SparkContext, SparkContext._gateway)
        raise
    # Now all the process's large modules are there.
    leave_out_what_stays()
    # Rows are written, and results taken, beside statements and answers that take long to compute.
    change_threads_often()
    # Workers must run the interpreter, and so the packages, of the engine, or one that has the same.
    context.pythonExec = properties.get("spark.pyspark.python", sys.executable)
    if archive is not None:
        _ship(context, archive)
    return context


def _ship(context: SparkContext, archive: CodeArchive) -> None:
    """Has the workers of a cluster get Penstock's code from here."""
    from pyspark import SparkFiles

    # Below a folder that Spark removes when it stops: executors may come and ask for it until then.
    path = Path(SparkFiles.getRootDirectory()) / "penstock" / archive.name
    if path.exists():
        return  # by an engine before
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(archive.data)
    context.addPyFile(str(path))


@cache
def _sockets_directory() -> Path:
    """Returns a folder of this process that no other account can enter; it goes with the process."""
    parent = tempfile.gettempdir()
    directory = tempfile.mkdtemp(prefix="penstock-", dir=parent if len(parent) <= _PARENT_LENGTH_MAX else "/tmp")
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # and not a process that this one has forked
            shutil.rmtree(directory, ignore_errors=True)

    atexit.register(remove)
    return Path(directory)


def _scratch_directory() -> Path:
    """Returns where a worker may keep files while it runs: where its executor does."""
    return Path(os.environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()).split(",")[0])


def _output(log_file: Path | None) -> IO[bytes]:
    """Returns where the output of Spark's processes goes."""
    if log_file is None:
        if sys.__stderr__ is None:
            return open(os.devnull, "wb")
        return open(sys.__stderr__.fileno(), "wb", closefd=False)
    make_private(log_file.parent)
    return open_private(log_file, "ab")


def _stop_context(context: SparkContext, wait_s: float = _STOP_MAX_S) -> None:
    """Stops the context, and the Java process that this process started for it, which has `wait_s` to end."""
    gateway = context._gateway
    died = _has_died(context)
    if died:
        context._jsc = None  # there is nothing left to be told
    context.stop()
    if _process(context) is not None and gateway is not None:
        _forget_context(context)
        if died:
            return
        gateway.shutdown()
        # It ends by itself once its standard input is closed.
        gateway.proc.stdin.close()
        try:
            gateway.proc.wait(wait_s)
        except subprocess.TimeoutExpired:
            gateway.proc.kill()
            gateway.proc.wait()


def _process(context: SparkContext) -> subprocess.Popen[bytes] | None:
    """Returns the Java process, if this process has started it."""
    return getattr(context._gateway, "proc", None)


def _is_active(context: SparkContext) -> bool:
    """Tells whether the context is the process's; else somebody has stopped or replaced it."""
    return type(context)._active_spark_context is context


def _has_died(context: SparkContext) -> bool:
    process = _process(context)
    return process is not None and process.poll() is not None


def _forget_context(context: SparkContext) -> None:
    """Makes PySpark forget a context whose Java process is gone, or is about to go."""
    kind = type(context)
    with kind._lock:
        if kind._active_spark_context is context:
            kind._active_spark_context = None
        if kind._gateway is context._gateway:
            kind._gateway = None
            kind._jvm = None


def _forget_gateway(kind: type[SparkContext], gateway: Any) -> None:
    """Makes PySpark forget a gateway that a context could not be made with; ends the Java process of this one's."""
    with kind._lock:
        kind._active_spark_context = kind._gateway = kind._jvm = None
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.kill()
        process.wait()


def _reason(error: BaseException) -> str:
    """Returns the telling line of a failed job's error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or "Exception" in line or "aborted" in line]
    return (telling or lines or [type(error).__name__])[0][:500]
