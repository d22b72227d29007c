"""Fixtures that many tests share: a data directory, a connection with an embedded engine, one Spark session."""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from kits.basics.external_servers import kafka, mosquitto, postgres, zookeeper  # noqa: F401 - fixtures for everybody
from kits.engines.hurried_java import JAVA_IN_A_HURRY, SPARK_IN_A_HURRY

import penstock
from penstock.common.passwords import hash_password
from penstock.common.responsiveness import leave_out_what_stays
from penstock.tasks.state import state_check

# A test runs it in a process of its own: what it loads changes pytest itself.
collect_ignore = ["programs/sqlalchemy_suite"]

if TYPE_CHECKING:
    from kits.engines.killed_engine import KilledEngine
    from kits.streams.stream_kit import StreamKit

#: What tests change of the configuration: small files, no waiting, nothing that depends on the machine.
TEST_CONFIG: dict[str, Any] = {
    "timezone": "UTC",
    "walSegmentSize": "1MiB",
    "memtableSize": "1MiB",
    "viewRefreshInterval": "50ms",
    "idleTimeout": "100ms",
    "stateMapSize": "256MiB",
    "heartbeatInterval": "50ms",
    "streamSinkDataRate": 0,
    "sinkCallsPerSecond": 1000,
    "sinkTablesShare": 1,
    "spark.master": "local[16]",
}

#: Who guesses at passwords is to pay, tests aren't: each hash would cost as much as a dozen statements.
hash_password.__defaults__ = (2,)

#: Processes that read states are forked from one that has loaded what they need, instead of loading it each.
state_check.CONTEXT = multiprocessing.get_context("forkserver")
multiprocessing.set_forkserver_preload([
    "penstock.mnode.admin.directory_verification", "penstock.tasks.state.state_copy",
    "penstock.tasks.worker.saved_tasks"])

os.environ.setdefault("SPARK_LAUNCHER_OPTS", JAVA_IN_A_HURRY)
os.environ.setdefault("SPARK_SUBMIT_OPTS", SPARK_IN_A_HURRY)

#: How many inputs a property test draws that doesn't say so itself, by profile; TEST_PROFILE names one.
HISTORIES = {"default": 10, "nightly": 5_000}
#: Continuous integration prints what draws a failure again, and leaves minutes of making it small to whoever does that.
PHASES = [phase for phase in Phase if phase is not Phase.shrink or os.environ.get("CI") != "true"]
for name, count in HISTORIES.items():
    settings.register_profile(name, max_examples=count, deadline=None, print_blob=True, phases=PHASES,
                              suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def profile() -> str:
    """Returns the name of the profile that this run draws by."""
    return os.environ.get("TEST_PROFILE", "default")


def times(in_ci: int, by_night: int) -> int:
    """Returns how often a test does what it does many times over: more often under `make nightly`."""
    return by_night if profile() == "nightly" else in_ci


def combined(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Returns combinations of a value of each axis: all under `make nightly`, else so many that each two values of
    different axes meet in one.
    """
    cases = list(product(*map(enumerate, axes)))
    if profile() != "nightly":
        cases = _covering(cases)
    return [tuple(value for _, value in case) for case in cases]


def in_turn(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Does what `combined` does, but by day has each value of the longest axis once, with those of others in turn."""
    if profile() == "nightly":
        return combined(*axes)
    return [tuple(axis[place % len(axis)] for axis in axes) for place in range(max(map(len, axes)))]


def _covering(cases: list[tuple[tuple[int, Any], ...]]) -> list[tuple[tuple[int, Any], ...]]:
    """Returns few of all combinations, which have each pair that any has; values come with their numbers."""
    pairs = [{*combinations(((axis, number) for axis, (number, _) in enumerate(case)), min(2, len(case)))}
             for case in cases]
    left, chosen = set().union(*pairs), []
    while left:
        best = max(range(len(cases)), key=lambda place: len(pairs[place] & left))
        chosen.append(best)
        left -= pairs[best]
    return [cases[place] for place in sorted(chosen)]


#: For what costs much, and of which a cheaper test sees most: `make nightly` runs it.
by_night = pytest.mark.skipif(profile() != "nightly", reason="make nightly runs it")

settings.load_profile(profile())


@pytest.fixture(autouse=True, scope="module")
def leave_out_what_others_left() -> None:
    """Keeps short what a worker in this process does when a stream ends: to collect garbage in all that there is."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A path for a data directory that doesn't exist yet."""
    return tmp_path / "data"


@pytest.fixture
def con(data_dir: Path) -> Iterator[Any]:
    """A connection to a new data directory; Spark starts only if the test creates a stream."""
    connection = penstock.connect(str(data_dir), TEST_CONFIG)
    try:
        yield connection
    finally:
        connection.close()


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Ctrl+C interrupts, also where the tests were started in the background and inherited that it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def kits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., StreamKit]]:
    """Makes kits of streams without Spark, from a CREATE STREAM and the options of `StreamKit`, and closes them."""
    from kits.streams.stream_kit import StreamKit

    made: list[StreamKit] = []

    def make(sql: str, **options: Any) -> StreamKit:
        made.append(StreamKit(tmp_path_factory.mktemp("stream"), sql, **options))
        return made[-1]

    yield make
    for kit in made:
        kit.close()


@pytest.fixture
def children() -> Iterator[list[KilledEngine]]:
    """Engines that a test starts; all are ended after it."""
    started: list[KilledEngine] = []
    yield started
    for child in started:
        child.end()


@pytest.fixture(scope="session")
def spark_context(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The one Spark of this test run; engines that a test opens meanwhile find it and leave it running."""
    from penstock.common.config import CONF_DIRECTORY, load_config
    from penstock.tasks.worker.spark_runtime import SparkRuntime

    properties = load_config(TEST_CONFIG).spark_properties()
    runtime = SparkRuntime(properties, CONF_DIRECTORY, tmp_path_factory.mktemp("spark") / "spark.log")
    try:
        yield runtime.context(timeout_s=120)
    finally:
        runtime.stop()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds what `scripts/run_tests` saves time by: tests with a mark are in few files, and loading all takes long."""
    parser.addoption("--files-with", metavar="PATTERN", help="load only test files whose text has this pattern")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out files that `--files-with` doesn't want."""
    pattern = config.getoption("--files-with")
    if pattern is None or collection_path.suffix != ".py":
        return None
    return re.search(pattern, collection_path.read_text()) is None or None


#: Tests that play histories, start processes or open engine after engine, as files below this one: `make quick` leaves
#: them to `make test`. What they test has quick tests as well, tests/engine/test_golden.py among them.
LONG = (
    "common/test_port_guard.py", "engine/test_byte_flips.py", "engine/test_cluster_*.py",
    "engine/test_engine_faults.py", "engine/test_hard_conditions.py", "engine/test_power_cuts.py",
    "engine/test_random_*.py", "engine/test_simulation.py", "engine/test_stream*.py", "engine/test_tpch*.py",
    "engine/test_triggered_streams.py",
    "mnode/access/test_audit_log.py", "mnode/access/test_first_login.py", "mnode/access/test_logins.py",
    "mnode/admin/*.py", "mnode/catalog/test_lost_catalog.py", "mnode/checkpoints/test_backups.py",
    "mnode/controller/test_stream_controller.py", "mnode/coordinator/test_snodes.py",
    "mnode/coordinator/test_stream_bounds.py", "mnode/ddl/test_connections.py", "mnode/http/*.py",
    "mnode/query/test_counted_rows.py", "mnode/query/test_detached_table.py", "mnode/query/test_ending_statements.py",
    "mnode/query/test_joins_over_vgroups.py", "mnode/query/test_newest_rows.py",
    "mnode/query/test_process_backend.py", "mnode/query/test_table_scans.py", "mnode/query/test_udf.py",
    "mnode/streams/*.py", "mnode/write/test_ingest_arrow.py", "mnode/write/test_insert_heads.py",
    "mnode/write/test_row_inserts.py", "mnode/write/test_row_lines.py", "planner/test_late_names.py",
    "planner/test_query_calendar.py", "planner/test_query_joins.py", "project/test_bench*.py",
    "project/test_page_examples.py", "project/test_site.py", "project/test_telegraf.py",
    "shell/test_*_queries.py", "shell/test_dbapi.py", "shell/test_flight_sql*.py",
    "shell/test_generate.py", "shell/test_import_command.py", "shell/test_postgres_clients.py",
    "shell/test_process_end.py", "shell/test_psycopg_session.py", "shell/test_queries_end.py",
    "shell/test_remote_connection.py",
    "shell/test_safe_mode.py", "shell/test_serve.py", "shell/test_shell_command.py", "shell/test_shown_clients.py",
    "shell/test_sqlalchemy_suite.py",
    "shell/test_taos_socket.py", "shell/test_tools.py", "sql/test_deep_statements.py",
    "tasks/compute/test_kernels.py", "tasks/compute/test_udf_streams.py", "tasks/dnode_access/test_network_access.py",
    "tasks/dropped/*.py", "tasks/external/*.py", "tasks/flow/test_full_queues.py",
    "tasks/ingest/test_ingest_servers.py", "tasks/ingest/test_ingest_streams.py", "tasks/join/test_side_rows.py",
    "tasks/join/test_stream*.py", "tasks/recalculation/*.py", "tasks/source/*.py",
    "tasks/window/test_row_window_streams.py", "tasks/window/test_stream_*.py", "tasks/worker/*.py",
    "vnode/test_log_copying.py", "vnode/test_vnode_model.py", "vnode/test_vnode_store.py", "wal/test_wal_log.py",
)


#: Files that take a process of a minute or several, and so begin before others; as `LONG`.
FIRST = ("engine/test_golden_streams.py", "engine/test_served_cluster.py",
         "tasks/worker/test_cluster.py", "tasks/worker/test_spark_runtime.py")


def pytest_collection_finish() -> None:
    """To look through all that is loaded by now, again and again, would cost an eighth of what tests do."""
    gc.collect()
    leave_out_what_stays()


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests as `long`; runs tests marked `spark` last, but for some, and gives each of them the shared Spark."""
    paths = {item.path for item in items}
    first, long = ({path for path in paths if any(path.match(pattern) for pattern in patterns)}
                   for patterns in (FIRST, LONG))
    items.sort(key=lambda item: item.path not in first and (1 + (item.get_closest_marker("spark") is not None)))
    for item in items:
        if item.path in long:
            item.add_marker("long")
        if item.get_closest_marker("spark") is not None and isinstance(item, pytest.Function):
            item.fixturenames.insert(0, "spark_context")
