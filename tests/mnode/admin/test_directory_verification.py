"""penstock verify: right results are equal as of the last checkpoint, wrong ones are told, and nothing is changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.engines.data_directories import CONFIG, T0, log_segments, tree
from kits.engines.sandboxes import TestBed

from penstock.common.paths import DataPaths
from penstock.shell.main import main
from penstock.tasks.external.emit.result_events import ExternalRows
from penstock.vnode.dnode import lock_data_directory

Found = dict[str, Any]
sent = ExternalRows.of
BATCH = "TRIGGER AT_ONCE IGNORE EXPIRED 0 IGNORE UPDATE 0"
#: Streams of all kinds: their options, and their query.
STREAMS = [
    (BATCH, "SELECT ts, v + 1 w FROM m WHERE v >= 0 PARTITION BY tbname"),
    (BATCH, "SELECT _wstart, count(*) n, sum(v) s, last(v) l FROM m PARTITION BY tbname INTERVAL(10s)"),
    ("WATERMARK 4s IGNORE EXPIRED 0", "SELECT _wstart, count(*) n FROM m PARTITION BY g INTERVAL(10s) SLIDING(5s)"),
    ("WATERMARK 4s IGNORE EXPIRED 0", "SELECT _wstart, _wend e, count(*) n FROM m PARTITION BY tbname SESSION(ts, 2s)"),
    ("TRIGGER MAX_DELAY 5s IGNORE EXPIRED 0", "SELECT _wstart, count(v) n FROM m INTERVAL(5s)"),
    (BATCH, "SELECT _wstart, v k, count(*) n FROM m PARTITION BY tbname STATE_WINDOW(v)"),
]


@contextmanager
def engine(data: Path, *streams: tuple[str, str]) -> Iterator[TestBed]:
    """Gives an engine over a new directory, which ends as a killed process does."""
    data.mkdir(parents=True)
    bed = TestBed(directory=data, config=CONFIG)
    bed.all("CREATE DATABASE d VGROUPS 2 KEEP 36500", "USE d",
            "CREATE STABLE m (ts TIMESTAMP, v INT) TAGS (g INT)",
            *(f"CREATE TABLE t{n} USING m TAGS ({n % 2})" for n in range(4)),
            *(f"CREATE STREAM s{n} {options} INTO o{n} AS {query}" for n, (options, query) in enumerate(streams)))
    yield bed
    bed.engine.abandon()


def insert(bed: TestBed, table: int, second: float, value: int = 1) -> None:
    """Inserts a row; time passes before it, as the log tells by it what is behind a checkpoint."""
    bed.clock.advance(0.001)
    bed.execute(f"INSERT INTO t{table} VALUES ({T0 + round(second * 1000)}, {value})")


def closed(bed: TestBed) -> None:
    """Takes a checkpoint and closes the engine, as one does that ends by itself."""
    bed.clock.advance(0.001)
    bed.checkpoint()
    bed.engine.flush()


def verify(data: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, list[Found]]:
    """Runs the command; returns its exit code and its findings. Nothing may be changed by it."""
    before = tree(data)
    code = main(["verify", "-d", str(data), "--set", "timezone=UTC", "--json", *options])
    assert tree(data) == before
    return code, json.loads(capsys.readouterr().out)["streams"]


def told(found: Found) -> list[tuple[str, str]]:
    return [(line["state"], line["ts"]) for line in found["results"]]


def refused(data: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """Runs the command on what can't be verified; returns what it says on the error output."""
    before = tree(data) if data.exists() else None
    assert main(["verify", "-d", str(data), *options]) == 2
    assert before == (tree(data) if data.exists() else None)
    return capsys.readouterr().err


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one stream, of which all results are equal."""
    data = tmp_path_factory.mktemp("sound") / "data"
    with engine(data, STREAMS[1]) as bed:
        for second in range(20):
            insert(bed, second % 4, second)
        closed(bed)
    return data


# --- right and wrong results ------------------------------------------------------------------------------------


def test_what_an_engine_leaves_behind_is_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Behind a last checkpoint and in a copy of it; people get a table for each stream."""
    with engine(tmp_path / "data", *STREAMS) as bed:
        for second in range(40):
            insert(bed, second % 4, second, second // 7)
        insert(bed, 1, 3.5)
        closed(bed)
    copy = shutil.copytree(tmp_path / "data", tmp_path / "backup" / "data")
    shutil.rmtree(tmp_path / "data")
    code, found = verify(copy, capsys)
    assert code == 0
    assert [one["stream"] for one in found] == [f"s{n}" for n in range(len(STREAMS))]
    for one in found:
        assert one["equal"] > 0
        assert (one["others"], one["unjudged"], one["results"]) == (0, 0, [])
    assert main(["verify", "-d", str(copy), "--stream", "s1", "--progress"]) == 0
    shown = capsys.readouterr()
    assert "stream s1, as of checkpoint 1\n┌" in shown.out
    assert "s1" in shown.err


def test_what_is_wrong_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that was changed, one that was deleted and one that nobody computed, in the whole and in ranges."""
    with engine(tmp_path / "data", STREAMS[1], STREAMS[0]) as bed:
        insert(bed, 0, 1, 5)
        insert(bed, 0, 12, 6)
        (child,), = bed.rows("SELECT DISTINCT tbname FROM o0")
        closed(bed)
        bed.forge(f"INSERT INTO `{child}` (_wstart, n) VALUES ({T0}, 7)")
        bed.forge(f"INSERT INTO `{child}` (_wstart, n) VALUES ({T0 + 20_000}, 1)")
        bed.forge(f"DELETE FROM o0 WHERE _wstart = {T0 + 10_000}")
    code, (wrong, right) = verify(tmp_path / "data", capsys)
    assert code == 1
    assert [tuple(line.values())[0:1] + tuple(line.values())[2:] for line in wrong["results"]] == [
        ("differs", "2023-11-14 22:13:20.000", "n = 7", "n = 1", None),
        ("missing", "2023-11-14 22:13:30.000", None, "n = 1, s = 6, l = 6", None),
        ("extra", "2023-11-14 22:13:40.000", "n = 1, s = NULL, l = NULL", None, None)]
    assert (right["equal"], right["others"]) == (2, 0)
    code, (found,) = verify(tmp_path / "data", capsys, "--stream", "s0", "--from", str(T0 + 1), "--to",
                            "2023-11-14 22:13:30")
    assert (code, told(found)) == (1, [("missing", "2023-11-14 22:13:30.000")])
    assert verify(tmp_path / "data", capsys, "--stream", "s0", "--to", str(T0 - 1))[0] == 0
    assert main(["verify", "-d", str(tmp_path / "data")]) == 1
    assert "n = 7" in capsys.readouterr().out


def test_results_behind_the_checkpoint_are_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A killed engine has written results of rows behind its last checkpoint; a wrong one from before it is told."""
    with engine(tmp_path / "data", STREAMS[1]) as bed:
        for second in (1, 11, 21, 31):
            insert(bed, 0, second)
        (child,), = bed.rows("SELECT DISTINCT tbname FROM o0")
        bed.forge(f"INSERT INTO `{child}` (_wstart, n) VALUES ({T0 + 10_000}, 7)")
        bed.clock.advance(0.001)
        bed.checkpoint()
        insert(bed, 0, 22)
        insert(bed, 0, 41)
        insert(bed, 1, 1)
        bed.clock.advance(0.001)
        bed.execute(f"DELETE FROM t0 WHERE ts = {T0 + 31_000}")
    code, (found,) = verify(tmp_path / "data", capsys)
    assert (code, told(found)) == (1, [("differs", "2023-11-14 22:13:30.000")])
    assert (found["equal"], found["others"], found["unjudged"]) == (1, 1, 4)


def test_an_attempt_before_may_have_read_further(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last checkpoint is of an attempt that had not caught up with what the one before it has written."""
    with engine(tmp_path / "data", STREAMS[1]) as bed:
        insert(bed, 0, 1)
        bed.checkpoint()
        insert(bed, 0, 2)
        insert(bed, 0, 11)
        bed.clock.advance(1)
        bed.streams.kill()
        bed.streams.checkpoint()
    code, (found,) = verify(tmp_path / "data", capsys)
    assert (code, found["checkpoint"], found["results"]) == (0, 2, [])
    assert found["unjudged"] == 2


def test_what_was_written_and_not_acknowledged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A killed engine's log may be longer than it says: what is behind counts, as it does for the next engine."""
    with engine(tmp_path / "data", STREAMS[1]) as bed:
        insert(bed, 0, 1)
        bed.checkpoint()
        ends = {path: path.read_bytes() for path in tmp_path.glob("data/vnode/*/wal/END")}
        insert(bed, 0, 2)
        insert(bed, 0, 11)
    for path, content in ends.items():
        path.write_bytes(content)
    code, (found,) = verify(tmp_path / "data", capsys)
    assert (code, found["results"], found["unjudged"]) == (0, [], 2)


def test_closed_windows_must_be_there_and_open_ones_may_be_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The watermark is in the state of the last checkpoint."""
    with engine(tmp_path / "data", STREAMS[3], STREAMS[2]) as bed:
        for second in (1, 11, 21):
            insert(bed, 0, second)
        assert len(bed.rows("SELECT n FROM o0")) == 2
        closed(bed)
        bed.forge(f"DELETE FROM o0 WHERE _wstart = {T0 + 11_000}")
    code, (found, right) = verify(tmp_path / "data", capsys)
    assert (code, told(found)) == (1, [("missing", "2023-11-14 22:13:31.000")])
    assert right["others"] == 0


def test_rows_that_were_left_out_are_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last of them are in the state of the last checkpoint."""
    query = "SELECT _wstart, count(*) n FROM m PARTITION BY tbname INTERVAL(10s)"
    with engine(tmp_path / "data", ("IGNORE EXPIRED 1", query)) as bed:
        for second in (1, 2, 11, 25, 3):
            insert(bed, 0, second)
        closed(bed)
    code, (found,) = verify(tmp_path / "data", capsys)
    assert (code, told(found)) == (1, [("differs", "2023-11-14 22:13:20.000")])
    assert found["results"][0]["known"] == "1 rows of this time were left out: late"


def test_results_that_have_left_are_compared_as_they_were_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the last checkpoint, whatever was sent since; without a record, or with a damaged one, it is told why not."""
    query = "SELECT _wstart, count(*) n FROM m PARTITION BY tbname INTERVAL(10s)"
    streams = [f"CREATE STREAM s{n} {BATCH} INTO CONNECTION folder (PATH 'p{n}') AS {query}" for n in range(2)]
    with engine(tmp_path / "data") as bed:
        bed.all(f"CREATE CONNECTION folder TYPE files WITH (url='file://{tmp_path}')", streams[0])
        monkeypatch.setattr(ExternalRows, "of", lambda self, write: sent(self, write).slice(1))
        insert(bed, 0, 1)
        monkeypatch.setattr(ExternalRows, "of", sent)
        insert(bed, 1, 11)
        bed.execute(streams[1])
        insert(bed, 2, 21)
        bed.checkpoint()
        insert(bed, 3, 31)
        bed.checkpoint()
        insert(bed, 3, 32)
    code, (wrong, right) = verify(tmp_path / "data", capsys)
    assert (code, told(wrong)) == (1, [("missing", "2023-11-14 22:13:20.000")])
    assert (wrong["results"][0]["table_name"], wrong["equal"], right["equal"], right["others"]) == ("[t0]", 3, 2, 0)
    for path in (tmp_path / "data").rglob("*-sink-*/data.mdb"):
        path.write_bytes(path.read_bytes()[:8192])
    code, found = verify(tmp_path / "data", capsys)
    assert code == 2
    assert all("can't be read" in one["error"] for one in found)


ROW = st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(-1, 3))
STEPS = st.lists(st.one_of(
    st.tuples(st.just("insert"), st.lists(ROW, min_size=1, max_size=8)),
    st.tuples(st.just("insert"), st.lists(ROW, min_size=1, max_size=8)),
    st.tuples(st.just("delete"), st.tuples(st.integers(0, 3), st.integers(0, 60))),
    st.tuples(st.sampled_from(["checkpoint", "kill", "wait", "flush"]), st.none())), min_size=2, max_size=10)


@settings(max_examples=times(2, 200), deadline=None,
          suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(streams=st.lists(st.sampled_from(STREAMS), min_size=3, max_size=3, unique=True), before=STEPS, behind=STEPS)
def test_killed_engines_leave_nothing_that_is_wrong(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str], streams: list[tuple[str, str]],
    before: list[Any], behind: list[Any],
) -> None:
    """Whatever came before and behind a checkpoint, no result is told; there are equal ones where there are rows."""
    data = tmp_path_factory.mktemp("killed") / "data"
    with engine(data, *streams) as bed:
        insert(bed, 0, 1)
        for kind, what in (*before, ("checkpoint", None), *behind):
            bed.clock.advance(0.001)
            match kind:
                case "insert":
                    for row in what:
                        insert(bed, *row)
                case "delete":
                    bed.execute(f"DELETE FROM t{what[0]} WHERE ts >= {T0 + what[1] * 1000} AND "
                                f"ts < {T0 + what[1] * 1200}")
                case "flush":
                    bed.execute("FLUSH DATABASE d")
                case "wait":
                    bed.advance(6)
                case _:
                    getattr(bed, kind)()
    code, found = verify(data, capsys)
    assert [one["results"] for one in found] == [[], [], []]
    assert code == 0


# --- what can't be verified -------------------------------------------------------------------------------------


def test_streams_that_can_not_be_verified_are_told_and_others_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reasons of VERIFY STREAM, and what only a directory lacks; a difference counts more than they."""
    force = ("TRIGGER FORCE_WINDOW_CLOSE", "SELECT _wstart, count(*) n FROM m PARTITION BY tbname INTERVAL(10s)")
    with engine(tmp_path / "data", STREAMS[1], force) as bed:
        insert(bed, 0, 1)
        bed.checkpoint()
        bed.execute(f"CREATE STREAM s2 {BATCH} INTO o2 AS SELECT ts, v FROM m PARTITION BY tbname")
    code, (right, forced, new) = verify(tmp_path / "data", capsys)
    assert code == 2
    assert right["equal"] == 1
    assert "FORCE_WINDOW_CLOSE" in forced["error"]
    assert "it has no checkpoint" in new["error"]
    assert verify(tmp_path / "data", capsys, "--stream", "s0")[0] == 0
    assert main(["verify", "-d", str(tmp_path / "data")]) == 2
    assert "stream s1\nERROR" in capsys.readouterr().out


def test_tags_that_changed_behind_the_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which tags there were as of the checkpoint isn't known any more."""
    with engine(tmp_path / "data", STREAMS[2]) as bed:
        insert(bed, 0, 1)
        bed.checkpoint()
        bed.execute("ALTER TABLE t0 SET TAG g = 5")
    code, (found,) = verify(tmp_path / "data", capsys)
    assert code == 2
    assert "other tags" in found["error"]


def test_ranges_that_are_still_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At its only checkpoint the stream had ordered a range to be recalculated, and not read it yet."""
    with engine(tmp_path / "data", STREAMS[1]) as bed:
        insert(bed, 0, 1)
        bed.engine.execute(f"RECALCULATE STREAM s0 FROM {T0} TO {T0 + 5000}", bed.session)
        bed.streams.checkpoint()
    code, (found,) = verify(tmp_path / "data", capsys)
    assert (code, "recalculated" in found["error"]) == (2, True)


def test_directories_that_can_not_be_opened(sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that aren't there or aren't any, one that an engine holds, names and ranges that make no sense."""
    data = shutil.copytree(sound, tmp_path / "data")
    (tmp_path / "empty").mkdir()
    assert "is not a data directory" in refused(tmp_path / "nothing", capsys)
    assert "is no data directory" in refused(tmp_path / "empty", capsys)
    assert "stream s9 does not exist" in refused(data, capsys, "--stream", "s9")
    code, (found,) = verify(data, capsys, "--from", "2024-01-02", "--to", "2024-01-01")
    assert (code, "must not be behind" in found["error"]) == (2, True)
    lock = lock_data_directory(DataPaths(data))
    assert "in use by an engine" in refused(data, capsys)
    lock.release()
    (data / "CLUSTER").write_bytes(b"")
    assert "node of a cluster" in refused(data, capsys)


def test_help_and_wrong_calls(capsys: pytest.CaptureFixture[str]) -> None:
    """--help names the options; an option that there isn't is a wrong call, as what can't be verified."""
    with pytest.raises(SystemExit) as ended:
        main(["verify", "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all(option in shown for option in ("--data", "--stream", "--from", "--to", "--json", "--progress"))
    with pytest.raises(SystemExit) as ended:
        main(["verify", "--streams"])
    assert ended.value.code == 2


def cut_off(data: Path) -> Path:
    segment = log_segments(data)[0]
    segment.write_bytes(segment.read_bytes()[:-200])
    return segment


def without_vnode(data: Path) -> Path:
    shutil.rmtree(log_segments(data)[0].parent.parent)
    return log_segments(data)[0].parent.parent


def without(pattern: str) -> Callable[[Path], None]:
    """Returns what removes all that matches, files or folders."""
    def remove(data: Path) -> None:
        for path in list(data.glob(pattern)):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    return remove


def overwritten(pattern: str, text: bytes) -> Callable[[Path], None]:
    """Returns what writes something else over the middle of all files that match."""
    def overwrite(data: Path) -> None:
        for path in data.glob(pattern):
            content = bytearray(path.read_bytes())
            content[len(content) // 2:len(content) // 2 + len(text)] = text
            path.write_bytes(content)
    return overwrite


def forged(data: Path) -> None:
    """Has the catalog say that the stream has longer windows."""
    path = data / "catalog" / "data.mdb"
    path.write_bytes(path.read_bytes().replace(b"INTERVAL(10s)", b"INTERVAL(20s)"))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut off log": (cut_off, "vnode"),
    "no vnode": (without_vnode, "vnode"),
    "no checkpoints": (without("streams/*/checkpoints"), "no checkpoint"),
    "damaged checkpoint": (overwritten("streams/*/checkpoints/*.json", b"!"), "checksum"),
    "no state": (without("streams/*/state/*source*"), "it is missing"),
    "damaged state": (overwritten("streams/*/state/*/data.mdb", bytes(40_000)), "state"),
    "no parts": (without("vnode/*/store/parts/*/0*.parquet"), "vnode"),
    "no MANIFEST": (without("vnode/*/store/MANIFEST"), "MANIFEST"),
    "no catalog": (without("catalog"), "catalog"),
    "damaged catalog": (overwritten("catalog/data.mdb", bytes(200_000)), "catalog"),
    "forged catalog": (forged, "catalog"),
    "no FORMAT": (without("FORMAT"), "FORMAT"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_told(sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """A clear error that names the directory itself, no traceback, and 2."""
    data, (damage, named) = shutil.copytree(sound, tmp_path / "data"), DAMAGES[name]
    damage(data)
    before = tree(data)
    assert main(["verify", "-d", str(data)]) == 2
    assert tree(data) == before
    shown = capsys.readouterr()
    said = shown.out + shown.err
    assert "ERROR" in said
    assert named in said
    assert not [word for word in ("Traceback", "defect", "penstock-safe") if word in said]


def test_answers_of_any_query_are_compared_unless_rows_came(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At the last checkpoint, behind which nothing may have changed."""
    with engine(tmp_path / "data", ("", "SELECT g, count(*) n FROM m GROUP BY g")) as bed:
        insert(bed, 0, 1)
        insert(bed, 1, 2)
        closed(bed)
        shutil.copytree(tmp_path / "data", tmp_path / "right")
        bed.forge("INSERT INTO o0 VALUES (1, 7)")
        closed(bed)
        shutil.copytree(tmp_path / "data", tmp_path / "wrong")
        insert(bed, 1, 3)
        bed.engine.flush()
    code, (found,) = verify(tmp_path / "right", capsys)
    assert (code, found["equal"], found["others"]) == (0, 2, 0)
    code, (found,) = verify(tmp_path / "wrong", capsys)
    assert (code, found["equal"], found["others"]) == (1, 1, 1)
    (line,) = found["results"]
    assert (line["state"], line["table_name"], line["ts"]) == ("differs", "g = 1", None)
    code, (found,) = verify(tmp_path / "data", capsys)
    assert (code, "its tables have changed behind its last checkpoint" in found["error"]) == (2, True)
