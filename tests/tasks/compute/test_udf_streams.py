"""Users' functions in streams: the same answers as a batch whatever happens; errors leave the stream alive."""

from __future__ import annotations

import sys
import threading
import zipfile
import zipimport
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest
from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.streams.failing_functions import SOUND
from kits.streams.interval_streams import STEP
from kits.streams.stream_kit import StreamKit, null_last, play, unhurried

from penstock.common.clock import SystemClock
from penstock.common.errors import UserFunctionError
from penstock.sql.schema import UserFunction
from penstock.sql.types import BIGINT, BOOL, INT, VARCHAR, DataType
from penstock.tasks.compute.function_loader import LoadedFunction, load

CODE = '''
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc


def twice(x):
    return pc.multiply(x, 2)


def even(x):
    return pc.equal(pc.bit_wise_and(x, pa.scalar(1, pa.int32())), 0)


def tagged(text):
    return pc.binary_join_element_wise("<", text, ">", "")


def picky(x):
    if pc.any(pc.equal(x, 3)).as_py():
        raise ValueError("three")
    return pc.add(x, 1)


@dataclass
class Sums:
    count: int = 0
    total: int = 0
    squares: int = 0


class Scatter:
    """Sum of squares minus the square of the sum, in a state of a class of its own; NULL without values."""

    def init(self):
        return Sums()

    def accumulate(self, state, values):
        numbers = values.drop_null().to_pylist()
        state.count += len(numbers)
        state.total += sum(numbers)
        state.squares += sum(number * number for number in numbers)
        return state

    def merge(self, left, right):
        return Sums(left.count + right.count, left.total + right.total, left.squares + right.squares)

    def finish(self, state):
        return state.squares * state.count - state.total ** 2 if state.count else None


class Texts:
    """The different texts, sorted."""

    def init(self):
        return set()

    def accumulate(self, state, values, extra):
        return state | {f"{value}{extra[0].as_py()}" for value in values.to_pylist() if value is not None}

    def merge(self, left, right):
        return left | right

    def finish(self, state):
        return ",".join(sorted(state))


class Touchy(Scatter):
    """Fails where it meets a three, and where it merges more than five values."""

    def accumulate(self, state, values):
        if 3 in values.to_pylist():
            raise ValueError("a three came")
        return super().accumulate(state, values)


class Unfinished(Scatter):
    def finish(self, state):
        raise LookupError("lost")


class Unmerged(Scatter):
    def merge(self, left, right):
        raise ArithmeticError("too much")
'''


def function(
    name: str, source: str, arguments: tuple[DataType, ...], result: DataType, aggregate: bool = False
) -> UserFunction:
    return UserFunction(name, aggregate, arguments, result, f"streamed:{source}", len(arguments), len(arguments), 7)


FUNCTIONS = (
    function("twice", "twice", (BIGINT,), BIGINT),
    function("even", "even", (INT,), BOOL),
    function("tagged", "tagged", (VARCHAR,), VARCHAR),
    function("picky", "picky", (BIGINT,), BIGINT),
    function("scatter", "Scatter", (INT,), BIGINT, True),
    function("texts", "Texts", (VARCHAR, VARCHAR), VARCHAR, True),
    function("touchy", "Touchy", (INT,), BIGINT, True),
    function("unfinished", "Unfinished", (INT,), BIGINT, True),
    function("unmerged", "Unmerged", (INT,), BIGINT, True),
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the functions' module."""
    path = tmp_path_factory.mktemp("udf")
    (path / "streamed.py").write_text(CODE)
    return path


def make_kit(root: Path, directory: Path, sql: str, vnodes: int = 1, **changes: Any) -> StreamKit:
    return StreamKit(root, sql, vnodes=vnodes, functions=FUNCTIONS,
                     settings=unhurried(functions_directory=directory, **changes))


@pytest.fixture
def kits(tmp_path_factory: pytest.TempPathFactory, directory: Path) -> Iterator[Any]:
    """Makes kits that know the functions, and closes them."""
    made: list[StreamKit] = []

    def make(sql: str, vnodes: int = 1, **changes: Any) -> StreamKit:
        made.append(make_kit(tmp_path_factory.mktemp("stream"), directory, sql, vnodes, **changes))
        return made[-1]

    yield make
    for kit in made:
        kit.close()


def oracle(kit: StreamKit, sql: str) -> list[tuple[Any, ...]]:
    """Rows of a DuckDB query over `source`, the stored rows."""
    source = kit.source()
    with duckdb.connect() as connection:
        connection.register("source", source)
        return connection.execute(sql).fetchall()


def results(kit: StreamKit, *names: str) -> list[tuple[Any, ...]]:
    """The stream's rows in order, times as milliseconds."""
    rows = [tuple(_plain(row[name]) for name in names) for row in kit.rows()]
    return sorted(rows, key=lambda row: null_last(row[:2]))


def _plain(value: Any) -> Any:
    return round(value.timestamp() * 1000) if hasattr(value, "timestamp") else value


WINDOWED = """
    SELECT {key} ts // 10000 * 10000 AS start, count(*), 2 * coalesce(sum(2 * voltage), NULL)::BIGINT,
        (sum(voltage::BIGINT ** 2) * count(voltage) - sum(voltage) ** 2)::BIGINT,
        coalesce(string_agg(DISTINCT '<' || note || '>!', ',' ORDER BY '<' || note || '>!'), '')
    FROM source WHERE voltage & 1 = 0 GROUP BY {key} start ORDER BY ALL
"""


@pytest.mark.parametrize("partition", ["table", "tag", "none"])
@settings(max_examples=times(3, 80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture,
                                                                 HealthCheck.too_slow])
@given(steps=st.lists(STEP, min_size=1, max_size=12), vnodes=st.integers(1, 3), block=st.integers(1, 4),
       memory=st.sampled_from([0, 1 << 27]))
def test_windows_equal_the_batch(
    tmp_path_factory: pytest.TempPathFactory, directory: Path, partition: str, steps: list[Any], vnodes: int,
    block: int, memory: int
) -> None:
    """Functions in WHERE, in arguments and over aggregates, and aggregates: equal under updates, deletes and kills."""
    clause, key, oracle_key, into = {
        "table": ("partition by tbname tn", ["tn"], "tbname,", "o tags(tn varchar(20))"),
        "tag": ("partition by site", ["site"], "site,", "o tags(site varchar(20))"),
        "none": ("", [], "", "o"),
    }[partition]
    name = f", {key[0]}" if key else ""
    kit = make_kit(
        tmp_path_factory.mktemp("stream"), directory,
        f"create stream s trigger at_once ignore expired 0 ignore update 0 into {into} as select _wstart, count(*) c, "
        f"twice(sum(twice(voltage))) t, scatter(voltage) v, texts(tagged(note), '!') x{name} "
        f"from meters where even(voltage) {clause} interval(10s)",
        vnodes, block_rows_max=block, state_memory_bytes=memory)
    try:
        play(kit, steps)
        kit.run()
        want = oracle(kit, WINDOWED.format(key=oracle_key))
        assert results(kit, *key, "_wstart", "c", "t", "v", "x") == sorted(
            want, key=lambda row: null_last(row[:2]))
        assert all(task.status().functions.errors == 0 for task in kit.tasks)
    finally:
        kit.close()


@settings(max_examples=times(3, 80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture,
                                                                 HealthCheck.too_slow])
@given(steps=st.lists(STEP, min_size=1, max_size=12), vnodes=st.integers(1, 2), block=st.integers(1, 4))
def test_rows_equal_the_batch_where_the_function_answers(
    tmp_path_factory: pytest.TempPathFactory, directory: Path, steps: list[Any], vnodes: int, block: int
) -> None:
    """A stream without windows: rows for which the function fails are NULL, and only they, in whatever block."""
    kit = make_kit(
        tmp_path_factory.mktemp("stream"), directory,
        "create stream s trigger at_once ignore expired 0 ignore update 0 into o subtable(tbname) as "
        "select ts, picky(voltage) v from meters partition by tbname", vnodes, block_rows_max=block)
    try:
        play(kit, steps)
        kit.run()
        want = oracle(kit, "SELECT tbname, ts, CASE WHEN voltage <> 3 THEN voltage + 1 END FROM source ORDER BY ALL")
        got = [(row["_child"].split("_")[0], _plain(row["ts"]), row["v"]) for row in kit.rows()]
        assert sorted(got, key=lambda row: row[:2]) == want
    finally:
        kit.close()


def test_errors_of_a_scalar_function_are_counted_and_kept(kits: Any) -> None:
    """Each row that fails counts once; the last text says why, per function."""
    kit = kits("create stream s trigger at_once into o as select ts, picky(voltage) v from meters partition by tbname")
    kit.insert([(0, n * 1000, n, 1.0, "x") for n in range(5)])
    kit.run()
    assert results(kit, "v") == [(1,), (2,), (3,), (5,), (None,)]
    status = next(task for task in kit.tasks if task.id.operator == "source").status()
    assert status.functions.errors == 1
    assert status.functions.report == "function picky failed 1 time, last: ValueError: three"
    kit.insert([(0, 9000 + n, 3, 1.0, "x") for n in range(2)])
    kit.run()
    status = next(task for task in kit.tasks if task.id.operator == "source").status()
    assert (status.functions.errors, status.state) == (3, "IDLE")


def test_a_spoilt_window_is_null_until_it_is_recalculated(kits: Any) -> None:
    """An exception in accumulate makes the window's value NULL; the update of the row that caused it heals it."""
    kit = kits("create stream s trigger at_once ignore expired 0 ignore update 0 into o as "
               "select _wstart, count(*) c, touchy(voltage) v from meters interval(10s)", vnodes=2)
    kit.insert([(0, 1000, 1, 1.0, "x"), (1, 2000, 3, 1.0, "x"), (2, 12_000, 5, 1.0, "x"), (3, 3000, 1, 1.0, "x")])
    kit.run()
    kit.checkpoint()
    kit.kill()
    kit.insert([(0, 1500, 2, 1.0, "x")])
    kit.run()
    assert results(kit, "_wstart", "c", "v") == [(0, 4, None), (10_000, 1, 0)]
    kit.insert([(1, 2000, 4, 1.0, "x")])
    kit.run()
    assert results(kit, "_wstart", "c", "v") == [(0, 4, 4 * (1 + 4 + 16 + 1) - 64), (10_000, 1, 0)]


@pytest.mark.parametrize(("name", "text"), [
    ("unfinished", "function unfinished failed 1 time, last: LookupError: lost"),
    ("unmerged", "function unmerged failed 1 time, last: ArithmeticError: too much"),
])
def test_errors_of_merge_and_finish_are_the_agg_tasks(kits: Any, name: str, text: str) -> None:
    """What fails while states are united or finished is NULL as well, and is told by the agg task."""
    kit = kits(f"create stream s trigger at_once into o as select _wstart, count(*) c, {name}(voltage) v from meters "
               "interval(10s)")
    kit.insert([(0, 1000, 1, 1.0, "x")])
    if name == "unmerged":
        kit.run()
        assert results(kit, "v") == [(0,)]
        kit.insert([(0, 2000, 1, 1.0, "x")])
    kit.run()
    assert results(kit, "v") == [(None,)]
    assert [task.status().functions.report for task in kit.tasks] == ["", text, ""]


def test_states_survive_another_version_of_the_function(kits: Any, directory: Path) -> None:
    """A checkpoint's states are read by the code of a later uid, also states of the module's own classes."""
    kit = kits("create stream s trigger at_once into o as select _wstart, scatter(voltage) v from meters interval(10s)",
               state_memory_bytes=0)
    kit.insert([(0, 1000, 1, 1.0, "x")])
    kit.run()
    kit.checkpoint()

    def newer(call: Any) -> Any:
        return replace(call, function=replace(call.function, uid=8))

    agg = kit.plan.computation
    accumulators = tuple(replace(a, function=replace(a.function, uid=8)) for a in agg.accumulators)
    kit.plan = replace(kit.plan, computation=replace(agg, accumulators=accumulators),
                       functions=tuple(newer(call) for call in kit.plan.functions))
    kit.kill()
    kit.insert([(0, 2000, 3, 1.0, "x")])
    kit.run()
    assert results(kit, "v") == [(2 * 10 - 16,)]


def test_child_tables_can_be_named_by_a_function(kits: Any) -> None:
    """SUBTABLE and PARTITION BY take users' functions."""
    kit = kits("create stream s trigger at_once into o subtable(tagged(g)) as select _wstart, count(*) c from meters "
               "partition by tagged(site) g interval(10s)")
    kit.insert([(0, 1000, 1, 1.0, "x"), (3, 1000, 1, 1.0, "x")])
    kit.run()
    assert sorted(row["_child"].split("_")[0] for row in kit.rows()) == ["<<s0>>", "<<s1>>"]


def test_a_missing_module_ends_the_attempt_with_a_clear_error(tmp_path: Path) -> None:
    """A worker that doesn't find the code says so when it builds the tasks."""
    with pytest.raises(UserFunctionError, match="function scatter: there is no module streamed in "):
        make_kit(tmp_path, tmp_path / "empty", "create stream s trigger at_once into o as select _wstart, "
                 "scatter(voltage) v from meters interval(10s)")


def test_archives_are_not_read_again_for_new_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's jars are on a worker's Python path; a new file in a directory is found all the same."""
    archive = tmp_path / "spark.jar"
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr("org/some.class", b"")
    importer = zipimport.zipimporter(str(archive))
    monkeypatch.setitem(sys.path_importer_cache, str(archive), importer)
    reads: list[None] = []
    monkeypatch.setattr(zipimport.zipimporter, "invalidate_caches", lambda self: reads.append(None))
    directory = tmp_path / "udf"
    directory.mkdir()
    for name in ("first", "second"):
        (directory / f"{name}.py").write_text("def one(x):\n    return x\n")
        function = UserFunction(name, False, (INT,), INT, f"{name}:one")
        assert isinstance(load(function, directory), LoadedFunction)
    assert reads == []


# --- with Spark ---------------------------------------------------------------------------------------------------


def eventually(con: Any, sql: str, wanted: list[tuple[Any, ...]]) -> None:
    """Asks until the answer is the wanted one, for at most a minute."""
    clock, never = SystemClock(), threading.Event()
    deadline = clock.monotonic() + 60
    while (got := con.execute(sql).fetchall()) != wanted:
        assert clock.monotonic() < deadline, f"{sql}: {got}"
        clock.wait(never, 0.05)


@pytest.mark.spark
def test_workers_import_the_code_and_report_errors(con: Any, data_dir: Path) -> None:
    """A stream on Spark computes with functions of the data directory; their errors are rows of ins_stream_tasks."""
    (data_dir / "udf").mkdir()
    (data_dir / "udf" / "streamed.py").write_text(CODE)
    for text in (
        "create database p vgroups 2 keep 36500d", "use p",
        "create stable meters (ts timestamp, voltage int) tags (site varchar(10))",
        "create table d0 using meters tags ('a')", "create table d1 using meters tags ('b')",
        "create function twice (bigint) returns bigint language python as 'streamed:twice'",
        "create function picky (bigint) returns bigint language python as 'streamed.py:picky'",
        "create aggregate function scatter (int) returns bigint language python as 'streamed:Scatter'",
        "create stream s trigger at_once into o as select _wstart, twice(scatter(voltage)) v, sum(picky(voltage)) w "
        "from meters interval(10s)",
        "insert into d0 values (1000, 1) (2000, 3) d1 values (1500, 2)",
    ):
        con.execute(text)
    eventually(con, "select v, w from o", [(2 * (14 * 3 - 36), 5)])
    eventually(con, "select sum(udf_errors) from information_schema.ins_stream_tasks", [(1,)])
    reasons = con.execute("select reason from information_schema.ins_stream_tasks where udf_errors > 0").fetchall()
    assert len(reasons) == 1
    assert "function picky failed 1 time, last: ValueError: three" in reasons[0][0]
    con.execute("insert into d1 values (3000, 4)")
    eventually(con, "select v, w from o", [(2 * (30 * 4 - 100), 10)])


def test_what_fails_for_other_tables_does_not_fail_these_rows(tmp_path: Path) -> None:
    """A condition on tags alone is computed for the tables of the rows at hand, not for all that there are."""
    kit = StreamKit(tmp_path, "CREATE STREAM s TRIGGER AT_ONCE ON_ERROR SKIP INTO o AS SELECT _wstart, count(*) c "
                    "FROM meters WHERE sound(CASE WHEN site = 's1' THEN 1 ELSE 0 END) = 1 AND site IS NOT NULL "
                    "PARTITION BY tbname INTERVAL(10s)", functions=(SOUND,))
    try:
        kit.insert([(0, 1_000, 1, 1.0, "x"), (2, 2_000, 1, 1.0, "x"), (1, 3_000, 1, 1.0, "x")])
        kit.run()
        assert [row["c"] for row in kit.rows()] == [1, 1]
    finally:
        kit.close()
