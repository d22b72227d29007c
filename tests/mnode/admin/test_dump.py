"""`penstock dump` and `penstock restore`: what goes through both is what it was; nothing else is taken for a dump."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.basics.extreme_values import CASES, NAMES, extremes, quoted
from kits.basics.faulty_fs import FaultyFs
from kits.engines.data_directories import T0, make_directory, open_sandbox
from kits.engines.statement_engine import StatementEngine
from kits.streams.random_streams import KINDS as ALL_KINDS

import penstock
from penstock.common.clock import ManualClock
from penstock.common.errors import AlreadyExistsError, CorruptionError, InvalidStatementError
from penstock.common.fs import OsFs
from penstock.mnode.admin import dump as dump_module
from penstock.mnode.admin import restore as restore_module
from penstock.mnode.admin.dump import Dump, DumpOptions
from penstock.mnode.admin.dump_manifest import MANIFEST, DumpManifest, read_manifest
from penstock.mnode.admin.restore import Restore, RestoreReport
from penstock.mnode.admin.sandbox import Sandbox
from penstock.shell.main import main
from penstock.sql.dialect.renaming import with_databases
from penstock.sql.schema import RestoredFrom
from penstock.sql.types import DataType, Kind
from penstock.vnode.read import detached_reader

NOW_MS = T0 + 1_000_000
KINDS = [kind for kind in ALL_KINDS if kind is not Kind.TIMESTAMP]
COUNT_STREAM = (
    "CREATE STREAM s TRIGGER AT_ONCE WATERMARK 1h IGNORE EXPIRED 0 IGNORE UPDATE 0 INTO d.out AS "
    "SELECT _wstart ts, count(*) c, last(ts) newest FROM d.m PARTITION BY tbname INTERVAL(10s)")
COUNT_QUERY = ("SELECT tbname, _wstart ts, count(*) c, last(ts) newest FROM d.m PARTITION BY tbname INTERVAL(10s) "
               "ORDER BY tbname, ts")

Engines = Callable[..., Sandbox]


def dump(root: Path, target: Path, **options: Any) -> DumpManifest:
    return Dump(root, target, root / "udf", DumpOptions(**options), OsFs(), ManualClock(NOW_MS),
                lambda what, more: None).run()


def restore(source: Path, sandbox: Sandbox, renames: dict[str, str] | None = None, **options: Any) -> RestoreReport:
    return Restore(source, renames, **options).run(sandbox.engine, sandbox.session, lambda what, more: None)


def opened(directory: Path, **config: Any) -> Sandbox:
    directory.mkdir(exist_ok=True)
    return Sandbox("UTC", NOW_MS, {"stateMapSize": "64MiB", "streamBufferSize": "1MiB", **config},
                   directory=directory, fs=FaultyFs())


def table(sandbox: Sandbox, query: str) -> pa.Table:
    found = sandbox.execute(query).table
    assert found is not None
    return found


# --- the round trip ------------------------------------------------------------------------------------------------


def column_type(kind: Kind) -> DataType:
    if kind is Kind.DECIMAL:
        return DataType(kind, digits=10, scale=2)
    return DataType(kind, 16 if kind in (Kind.VARCHAR, Kind.NCHAR) else None)


@st.composite
def histories(draw: st.DrawFn) -> dict[str, Any]:
    """Draws a database and what is done to it, as statements and Arrow tables in order."""
    precision = draw(st.sampled_from(["ms", "us", "ns"]))
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))
    composite = draw(st.booleans())
    names = iter(draw(st.permutations(sorted({*NAMES, *CASES} - {"k"}))))
    columns = [("ts", "TIMESTAMP")]
    columns += [("k", "INT PRIMARY KEY")] if composite else []
    columns += [(next(names), column_type(kind).sql()) for kind in kinds]
    json_tag = draw(st.booleans())
    tags = [(next(names), kind) for kind in (["JSON"] if json_tag else ["INT", "NCHAR(8)", "TIMESTAMP"])]
    values = [["'{\"x\": 1}'", "NULL", "'{\"y\": \"ö\"}'"]] if json_tag else [
        ["1", "NULL", "-7"], ["'日本'", "''", "NULL"], [str(T0), "NULL", str(T0 - 1)]]
    steps: list[Any] = [
        f"CREATE DATABASE d VGROUPS {draw(st.integers(1, 3))} PRECISION '{precision}' KEEP 36500d",
        f"CREATE STABLE d.m ({', '.join(f'{quoted(name)} {kind}' for name, kind in columns)}) "
        f"TAGS ({', '.join(f'{quoted(name)} {kind}' for name, kind in tags)})",
        *(f"CREATE TABLE d.`c{child}` USING d.m TAGS ({', '.join(choice[child] for choice in values)})"
          for child in range(3)),
        "CREATE TABLE d.n (ts TIMESTAMP, x DOUBLE COMMENT 'an x') COMMENT 'it''s one'",
    ]
    arrow = {name: column_type(kind).arrow() for (name, _), kind in zip(columns[-len(kinds):], kinds, strict=True)}
    units = {"ms": 1, "us": 1_000, "ns": 1_000_000}[precision]

    def rows() -> pa.Table:
        count = draw(st.integers(1, 8))
        picks = st.integers(0, 40)
        found: dict[str, pa.Array] = {
            "tbname": pa.array([f"c{draw(st.integers(0, 2))}" for _ in range(count)]),
            "ts": pa.array([(T0 + draw(picks) * 1000) * units for _ in range(count)], pa.timestamp(precision))}
        if composite:
            found["k"] = pa.array([draw(st.integers(0, 1)) for _ in range(count)], pa.int32())
        for (name, type_), kind in zip(arrow.items(), kinds, strict=True):
            values = st.none() | st.sampled_from(list(extremes(column_type(kind))))
            found[name] = pa.array([draw(values) for _ in range(count)], type_)
        return pa.table(found)

    for _ in range(draw(st.integers(0, 6))):
        what = draw(st.sampled_from(["rows", "rows", "rows", "delete", "flush", "column", "gone", "normal", "tag"]))
        at = (T0 + draw(st.integers(0, 40)) * 1000) * units
        if what == "rows":
            steps.append(rows())
        elif what == "delete":
            steps.append(f"DELETE FROM d.c{draw(st.integers(0, 2))} WHERE ts >= {at} AND ts < {at + 9_000 * units}")
        elif what == "column" and "more" not in arrow:
            steps.append("ALTER STABLE d.m ADD COLUMN more DOUBLE")
            arrow["more"], kinds = pa.float64(), [*kinds, Kind.DOUBLE]
        elif what == "gone" and "more" in arrow:
            steps.append("ALTER STABLE d.m DROP COLUMN more")
            del arrow["more"]
            kinds = kinds[:-1]
        elif what == "normal":
            steps.append(f"INSERT INTO d.n VALUES ({at}, NULL) ({at + units}, 0.5)")
        elif what == "tag" and not json_tag:
            steps.append(f"ALTER TABLE d.c1 SET TAG {quoted(tags[0][0])} = 12")
        elif what == "flush":
            steps.append("FLUSH DATABASE d")
    return {"steps": steps, "later": rows(), "stream": draw(st.booleans())}


def play(sandbox: Sandbox, steps: list[Any]) -> None:
    for step in steps:
        if isinstance(step, str):
            sandbox.execute(step)
        else:
            sandbox.engine.insert_arrow("d.m", step, sandbox.session)
            sandbox.run()


def state_of(sandbox: Sandbox) -> list[Any]:
    """Returns all that can be asked of the database d: its statements, its child tables with tags, its rows."""
    catalog = sandbox.engine.catalog
    names = [found.name for kind in ("super", "normal") for found in catalog.tables("d", kind)]  # type: ignore[arg-type]
    uids = [found.uid for found in catalog.tables("d", "super")]
    return [
        table(sandbox, "SHOW CREATE DATABASE d"),
        *(table(sandbox, f"SHOW CREATE TABLE d.{name}") for name in names),
        [[(child.name, child.tag_values) for child in catalog.children(uid)] for uid in uids],
        *(sorted(map(repr, table(sandbox, f"SELECT * FROM d.{name}").to_pylist())) for name in names),
        sorted(map(repr, table(sandbox, "SELECT tbname, * FROM d.m").to_pylist())),
    ]


@settings(max_examples=times(2, 300))
@given(histories())
def test_what_is_dumped_comes_back(history: dict[str, Any]) -> None:
    """Schema, child tables, tags and rows are equal, and a stream goes on and equals the batch answer."""
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        with opened(root / "first") as sandbox:
            play(sandbox, history["steps"][:6])
            if history["stream"]:
                sandbox.execute(COUNT_STREAM)
            play(sandbox, history["steps"][6:])
            before = state_of(sandbox)
        dump(root / "first", root / "dump")
        with opened(root / "second", disableStream=True) as sandbox:
            report = restore(root / "dump", sandbox)
            assert not report.problems
            assert state_of(sandbox) == before
        with opened(root / "second") as sandbox:
            sandbox.run()
            play(sandbox, [history["later"]])
            if history["stream"]:
                results = table(sandbox, "SELECT ts, c, newest FROM d.out")
                wanted = table(sandbox, COUNT_QUERY).select(["ts", "c", "newest"])
                assert sorted(map(repr, results.to_pylist())) == sorted(map(repr, wanted.to_pylist()))


# --- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed data directory with two vnodes, a stream, deletes and rows written again."""
    root = tmp_path_factory.mktemp("source") / "data"
    make_directory(root)
    return root


@pytest.fixture(scope="module")
def dumped(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump of `source`."""
    target = tmp_path_factory.mktemp("dumped") / "dump"
    dump(source, target)
    return target


def rows_of(data: Path, query: str) -> list[tuple[Any, ...]]:
    with penstock.connect(str(data), {"timezone": "UTC", "disableStream": True}) as connection:
        return connection.execute(query).fetchall()


def failure(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Returns what a command says that fails."""
    assert main([*map(str, arguments)]) == 1
    return " ".join(capsys.readouterr().err.split())


def test_the_commands(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Dump, look, restore under another name: everything says what it did, and looking changes nothing."""
    target, data = tmp_path / "dump", tmp_path / "data"
    assert main(["dump", "--data", str(source), str(target), "--progress"]) == 0
    wanted = rows_of(source, "SELECT * FROM d.m ORDER BY ts")
    said = capsys.readouterr().out
    assert " tables in 1 databases, 1 streams into " in said
    assert main(["restore", "--data", str(data), str(target), "--dry-run", "--rename", "d:e"]) == 0
    said = capsys.readouterr().out
    assert "would create database e (was d): 3 tables" in said
    assert "would create stream s" in said
    assert not data.exists()
    assert main(["restore", "--data", str(data), str(target), "--rename", "d:e", "--progress"]) == 0
    assert " rows into 1 databases, 1 streams" in capsys.readouterr().out
    assert rows_of(data, "SELECT * FROM e.m ORDER BY ts") == wanted
    (text,) = rows_of(data, "SHOW CREATE STREAM s")
    assert "INTO e.out" in text[1]
    assert "FROM `e`.m" in text[1]
    assert "FILL_HISTORY 1" in text[1]


def test_a_dump_needs_a_directory_of_its_own(source: Path, dumped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is there is never written over."""
    assert "is not empty" in failure(capsys, "dump", "--data", source, dumped)
    assert "is not a data directory" in failure(capsys, "dump", "--data", dumped, dumped / "x")
    assert "database dd does not exist" in failure(
        capsys, "dump", "--data", source, "--database", "dd", dumped / "x")
    assert not (dumped / "x").exists()


def test_what_is_taken_is_not_restored_over(
    source: Path, dumped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names that are there refuse the restore before anything is written."""
    data = tmp_path / "data"
    with open_sandbox(_made(data), disableStream=True) as sandbox:
        restore(dumped, sandbox)
    assert "--rename d:another_name" in failure(capsys, "restore", "--data", data, dumped)
    assert "stream s exists already" in failure(capsys, "restore", "--data", data, dumped, "--rename", "d:e")
    assert "the dump has no database x" in failure(capsys, "restore", "--data", data, dumped, "--rename", "x:e")
    assert main(["restore", "--data", str(data), str(dumped), "--rename", "d:e", "--no-streams"]) == 0
    assert rows_of(data, "SELECT count(*) FROM e.m") == rows_of(data, "SELECT count(*) FROM d.m")


@pytest.mark.parametrize("victim", ["rows", "children", "manifest"])
def test_damage_is_named(
    dumped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], victim: str
) -> None:
    """A bit that flipped anywhere, a file that is missing, and a dump that has no end: nothing is restored."""
    copy = tmp_path / "dump"
    for path in (path for path in dumped.rglob("*") if path.is_file()):
        (copy / path.relative_to(dumped)).parent.mkdir(parents=True, exist_ok=True)
        (copy / path.relative_to(dumped)).write_bytes(path.read_bytes())
    path = next(copy.rglob(f"{victim}*"))
    good = bytearray(path.read_bytes())
    place = good.find(b'"rows": ') + 8 if victim == "manifest" else len(good) // 2
    path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1:])
    data = tmp_path / "data"
    said = failure(capsys, "restore", "--data", data, copy)
    assert str(path) in said
    assert "copy" in said
    path.unlink()
    assert str(path) in failure(capsys, "restore", "--data", data, copy)
    assert not data.exists()


def test_a_restore_that_was_interrupted_goes_on(
    dumped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At whatever insert it ended: --resume makes it whole, and without it the half database is refused."""
    manifest = read_manifest(dumped)
    monkeypatch.setattr(restore_module, "PIECE_ROWS", 2)
    for stop in (1, 3):
        data = _made(tmp_path / str(stop))
        with open_sandbox(data, disableStream=True) as sandbox:
            insert, left = sandbox.engine.insert_arrow, iter(range(stop))

            def failing(*arguments: Any, insert: Any = insert, left: Any = left) -> Any:
                if next(left, None) is None:
                    raise KeyboardInterrupt
                return insert(*arguments)

            monkeypatch.setattr(sandbox.engine, "insert_arrow", failing)
            with pytest.raises(KeyboardInterrupt):
                restore(dumped, sandbox)
        with open_sandbox(data, disableStream=True) as sandbox:
            assert sandbox.engine.catalog.streams.named("s") is None
            report = restore(dumped, sandbox, resume=True)
            assert (report.rows, report.streams) == (manifest.row_count, ["s"])
            assert restore(dumped, sandbox, resume=True).rows == manifest.row_count
            sandbox.execute("ALTER STABLE d.m ADD COLUMN w INT")
            with pytest.raises(AlreadyExistsError, match="differs from"):
                restore(dumped, sandbox, resume=True)


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_manifests_of_other_formats_are_refused(dumped: Path, version: int) -> None:
    """Those of version 1.0 aren't, which say nothing of uids; the text names the version to use."""
    document = json.loads((dumped / MANIFEST).read_bytes())
    assert document["format"] == 4
    document["format"] = version
    if version == 3:
        for part in document["dump"]:
            if part["class"] == "DumpDatabase":
                del part["origin"], part["uids"]
        text = json.dumps(document["dump"], sort_keys=True, separators=(",", ":"))
        document["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    data = json.dumps(document).encode()
    if version in (3, 4):
        (database,) = DumpManifest.decode(data, "it").databases
        assert (database.uids is None) == (version == 3)
    else:
        with pytest.raises(CorruptionError, match=f"has format {version} of dumps, .* knows 4 .use version "):
            DumpManifest.decode(data, "it")


def test_rows_of_a_time_range_only(source: Path, tmp_path: Path) -> None:
    """--since is the first instant that counts, --until the first one that doesn't."""
    manifest = dump(source, tmp_path / "dump", since=str(T0 + 4000), until="2023-11-14 22:14:50Z")
    wanted = rows_of(source, f"SELECT ts, v FROM d.m WHERE ts >= {T0 + 4000} AND ts < {T0 + 90_000} ORDER BY ts, v")
    assert [found.row_count for found in manifest.databases[0].tables if found.name == "m"] == [len(wanted)]
    with open_sandbox(_made(tmp_path / "data"), disableStream=True) as sandbox:
        restore(tmp_path / "dump", sandbox)
    assert rows_of(tmp_path / "data", "SELECT ts, v FROM d.m ORDER BY ts, v") == wanted


def test_rows_that_keep_does_not_allow_any_more_are_counted(source: Path, tmp_path: Path) -> None:
    """A dump that is restored late has rows that have expired since."""
    manifest = dump(source, tmp_path / "dump")
    for found in (tmp_path / "dump").glob(MANIFEST):
        document = json.loads(found.read_bytes())
        old = DumpManifest.decode(found.read_bytes(), "it")
        assert any("KEEP 36500d" in part["options"] for part in document["dump"] if part["class"] == "DumpDatabase")
        (database,) = old.databases
        shorter = [type(database)(database.name, database.options.replace("KEEP 36500d", "KEEP 30d"), database.cut,
                                  database.tables)]
        found.write_bytes(type(old)(old.penstock, old.created_ms, tuple(shorter)).encode())
    with open_sandbox(_made(tmp_path / "data"), disableStream=True) as sandbox:
        sandbox.advance(30 * 86_400 + 3 - 1_000)
        report = restore(tmp_path / "dump", sandbox)
        assert 0 < report.expired < manifest.row_count
        assert report.rows + report.expired == manifest.row_count


def test_streams_come_back_as_they_were_wanted(tmp_path: Path) -> None:
    """Paused ones stay so, results that they made are theirs, one without history is left as it is written."""
    with open_sandbox(_made(tmp_path / "data")) as sandbox:
        for statement in (
            "CREATE DATABASE d KEEP 36500d", "CREATE DATABASE `Other`  KEEP 36500d", "USE d",
            "CREATE STABLE m (ts TIMESTAMP, v INT) TAGS (a INT)", "CREATE TABLE c USING m TAGS (1)",
            "CREATE STREAM p IGNORE EXPIRED 0 INTO x AS SELECT _wstart, sum(v) FROM m m INTERVAL(1m)",
            "CREATE STREAM f TRIGGER FORCE_WINDOW_CLOSE INTO y AS SELECT _wstart, sum(v) FROM m PARTITION BY tbname "
            "INTERVAL(1m)",
            "CREATE STREAM o INTO `Other`.z AS SELECT _wstart, sum(v) FROM d.m INTERVAL(1m)",
            "CREATE STREAM n INTO w AS SELECT _wstart, sum(v) FROM m INTERVAL(1m) NOTIFY ('http://127.0.0.1:9/') "
            "ON ('WINDOW_CLOSE')",
            "PAUSE STREAM p",
        ):
            sandbox.execute(statement)
    manifest = dump(tmp_path / "data", tmp_path / "dump", databases=("d",))
    assert manifest.left_out == ("o",)
    dump(tmp_path / "data", tmp_path / "all")
    with open_sandbox(_made(tmp_path / "new"), disableStream=True) as sandbox:
        report = restore(tmp_path / "all", sandbox, {"d": "e", "Other": "d"})
        assert report.streams == ["p", "f", "o", "n"]
        catalog = sandbox.engine.catalog
        streams = {stream.name: stream for stream in catalog.streams.all()}
        assert [streams[name].wanted for name in "pfon"] == ["paused", "running", "running", "paused"]
        assert all(stream.created_target for stream in streams.values())
        assert "FILL_HISTORY" not in streams["f"].asked.text
        target = catalog.table_by_uid(streams["o"].target_uid)
        assert target is not None
        assert (target.database, target.name) == ("d", "z")
        assert "INTO d.z AS SELECT _wstart, sum(v) FROM `e`.m" in streams["o"].asked.text


def test_streams_with_triggers_come_back(tmp_path: Path) -> None:
    """With the table of what they have computed, in a database of another name."""
    with open_sandbox(_made(tmp_path / "data")) as sandbox:
        for statement in (
            "CREATE DATABASE d KEEP 36500d", "USE d", "CREATE STABLE m (ts TIMESTAMP, v INT) TAGS (a INT)",
            "CREATE STREAM d.w INTERVAL(1m) SLIDING(1m) FROM d.m PARTITION BY tbname INTO d.x AS "
            "SELECT _twstart, sum(v) s FROM %%trows",
            "CREATE STREAM d.p PERIOD(1h) INTO y AS SELECT CAST(_tlocaltime / 1000000 AS TIMESTAMP) t, 1 n FROM d.m",
            "CREATE STREAM n SESSION(ts, 5s) FROM m PARTITION BY tbname NOTIFY('http://127.0.0.1:9/') "
            "ON (WINDOW_CLOSE)",
            f"INSERT INTO c USING m TAGS (1) VALUES ({T0}, 1) ({T0 + 60_000}, 2)",
        ):
            sandbox.execute(statement)
        computed = table(sandbox, "SELECT * FROM d.x").to_pylist()
    dump(tmp_path / "data", tmp_path / "dump")
    with open_sandbox(_made(tmp_path / "new"), disableStream=True) as sandbox:
        report = restore(tmp_path / "dump", sandbox, {"d": "e"})
        assert (report.streams, report.problems) == (["w", "p", "n"], {})
        streams = {stream.name: stream for stream in sandbox.engine.catalog.streams.all()}
        assert [streams[name].wanted for name in "wpn"] == ["running", "running", "paused"]
        assert "FROM e.m PARTITION BY tbname" in streams["w"].asked.text
        assert "CREATE STREAM e.p PERIOD(1h)" in streams["p"].asked.text
    with open_sandbox(tmp_path / "new") as sandbox:
        sandbox.execute(f"INSERT INTO e.c VALUES ({T0 + 120_000}, 3)")
        found = table(sandbox, "SELECT _twstart, s FROM e.x ORDER BY s").to_pylist()
        assert [row["s"] for row in found] == [*(row["s"] for row in computed), 2]
        executions = table(sandbox, "SELECT ts, problem FROM e.w_executions").to_pylist()
        assert [row["problem"] for row in executions] == [None] * (len(computed) + 1)


def test_streams_write_into_the_child_tables_that_they_had(tmp_path: Path) -> None:
    """However these are called, in databases that get another name, and again another one."""
    streams = {
        "by_table": "INTO o1 AS SELECT _wstart ts, count(*) n FROM m PARTITION BY tbname INTERVAL(1m)",
        "by_tag": "INTO o2 TAGS (a INT) AS SELECT _wstart ts, count(*) n FROM m PARTITION BY a INTERVAL(1m)",
        "named": "INTO o3 SUBTABLE(concat('x', tbname)) AS SELECT _wstart ts, count(*) n FROM m PARTITION BY tbname "
                 "INTERVAL(1m)",
    }
    with open_sandbox(_made(tmp_path / "d")) as sandbox:
        for statement in (
            "CREATE DATABASE d VGROUPS 2 KEEP 36500d", "USE d", "CREATE STABLE m (ts TIMESTAMP, v INT) TAGS (a INT)",
            *(f"CREATE STREAM {name} FILL_HISTORY 1 {text}" for name, text in streams.items()),
            f"INSERT INTO b USING m TAGS (1) VALUES ({T0}, 1) ({T0 + 60_000}, 2) c USING m TAGS (2) VALUES ({T0}, 3) "
            f"({T0 + 60_000}, 4)",
        ):
            sandbox.execute(statement)
        before = _results(sandbox, "d")
    assert [len(rows) for rows in before] == [2, 2, 2]
    for rename in ({"d": "e"}, {"e": "f"}, {"f": "d"}):
        ((old, new),) = rename.items()
        dump(tmp_path / old, tmp_path / f"dump_{old}")
        folder = _made(tmp_path / (new if new != "d" else "again"))
        with open_sandbox(folder, disableStream=True) as sandbox:
            assert restore(tmp_path / f"dump_{old}", sandbox, rename).streams == [*streams]
        with open_sandbox(folder) as sandbox:
            sandbox.run()
            assert _results(sandbox, new) == before


def _results(sandbox: Sandbox, database: str) -> list[list[dict[str, Any]]]:
    return [table(sandbox, f"SELECT tbname, ts, n FROM {database}.o{n} ORDER BY 1, 2").to_pylist() for n in (1, 2, 3)]


def _fleet(root: Path, *names: str) -> None:
    """Makes a database with these child tables, of two super tables by turns, or adds them."""
    root.mkdir(exist_ok=True)
    with open_sandbox(root) as sandbox:
        if sandbox.engine.catalog.database("d") is None:
            for statement in ("CREATE DATABASE d KEEP 36500d", *(
                    f"CREATE STABLE d.m{n} (ts TIMESTAMP, v INT) TAGS (a INT)" for n in range(2))):
                sandbox.execute(statement)
        for number, name in enumerate(names):
            sandbox.execute(f"INSERT INTO d.{name} USING d.m{number % 2} TAGS ({number}) VALUES ({T0}, {number})")


def _uids(sandbox: Sandbox, database: str) -> dict[str, int]:
    """Returns the uids of all tables, which are all different."""
    catalog = sandbox.engine.catalog
    tables = catalog.tables(database, "super")
    found = {table.name: table.uid for table in tables} | {
        child.name: child.uid for table in tables for child in catalog.children(table.uid)}
    assert len({*found.values()}) == len(found)
    return found


def test_child_tables_that_go_before_a_restore_goes_on_come_back_among_the_others(tmp_path: Path) -> None:
    """With their uids; what is changed then is kept."""
    _fleet(tmp_path / "data", *(f"c{n}" for n in range(12)))
    dump(tmp_path / "data", tmp_path / "dump")
    data = _made(tmp_path / "new")
    with open_sandbox(data, disableStream=True) as sandbox:
        restore(tmp_path / "dump", sandbox)
        before = _uids(sandbox, "d")
        sandbox.execute("DROP TABLE d.c4")
        restore(tmp_path / "dump", sandbox, resume=True)
        assert _uids(sandbox, "d") == before
        for name in ("c2", "c4", "c6"):
            sandbox.execute(f"ALTER TABLE d.{name} SET TAG a = 99")
    with open_sandbox(data) as sandbox:
        assert table(sandbox, "SELECT DISTINCT tbname FROM d.m0 WHERE a = 99 ORDER BY 1").to_pylist() == [
            {"tbname": name} for name in ("c2", "c4", "c6")]


@pytest.mark.parametrize("there", ["an older dump", "tables without an origin", "a dump of others"])
def test_no_uid_is_given_twice_where_another_dump_was_restored_before(tmp_path: Path, there: str) -> None:
    """--resume brings what lacks into a database that has other child tables; they have uids of their own."""
    _fleet(tmp_path / "data", "c0", "c1", "c2")
    data = tmp_path / "new"
    if there == "an older dump":
        dump(tmp_path / "data", tmp_path / "older")
    elif there == "a dump of others":
        _fleet(tmp_path / "others", "o0", "o1", "o2")
        dump(tmp_path / "others", tmp_path / "older")
    else:
        _fleet(data, "c1", "c0")
        with open_sandbox(data) as sandbox:
            sandbox.execute("DROP TABLE d.c1")
            sandbox.execute("DROP TABLE d.c0")
    if there != "tables without an origin":
        with open_sandbox(_made(data), disableStream=True) as sandbox:
            restore(tmp_path / "older", sandbox)
    _fleet(tmp_path / "data", *(f"n{n}" for n in range(8)))
    dump(tmp_path / "data", tmp_path / "dump")
    with open_sandbox(data, disableStream=True) as sandbox:
        before = _uids(sandbox, "d")
        for _ in range(2):
            if there != "a dump of others":
                restore(tmp_path / "dump", sandbox, resume=True)
            else:
                with pytest.raises(CorruptionError, match="no other client"):
                    restore(tmp_path / "dump", sandbox, resume=True)
            assert before.items() <= _uids(sandbox, "d").items()


def test_a_database_without_child_tables_that_was_restored_and_dumped_again_has_streams(tmp_path: Path) -> None:
    """Whatever uids it had: child tables that come are called by theirs."""
    _fleet(tmp_path / "data", "c0", "c1")
    dump(tmp_path / "data", tmp_path / "dump")
    with open_sandbox(_made(tmp_path / "new"), disableStream=True) as sandbox:
        sandbox.engine.catalog.skip_ids(5_000)
        restore(tmp_path / "dump", sandbox, {"d": "e"})
        for name in ("c0", "c1"):
            sandbox.execute(f"DROP TABLE e.{name}")
    dump(tmp_path / "new", tmp_path / "empty")
    with open_sandbox(_made(tmp_path / "again"), disableStream=True) as sandbox:
        restore(tmp_path / "empty", sandbox)
    with open_sandbox(tmp_path / "again") as sandbox:
        sandbox.execute("CREATE STREAM s TRIGGER AT_ONCE INTO e.o AS SELECT _wstart ts, count(*) n FROM e.m0 "
                        "PARTITION BY tbname INTERVAL(1m)")
        sandbox.execute(f"INSERT INTO e.c USING e.m0 TAGS (1) VALUES ({T0}, 1)")
        uid = _uids(sandbox, "e")["c"]
        name = hashlib.md5(f"d.o,{uid}".encode(), usedforsecurity=False).hexdigest()
        assert table(sandbox, "SELECT tbname, n FROM e.o").to_pylist() == [{"tbname": f"t_{name}", "n": 1}]


@pytest.mark.parametrize(("uids", "shift"), [
    ((-5, 3000), 0), ((3000, 1000), 0), ((1, 1 << 60), 0), ((1000, 1000), 0), ((1, 3000), 10**30), ((1, 3000), -10**30),
    ((1, 3000), 1),
])
def test_uids_that_no_catalog_has_given_are_refused(tmp_path: Path, uids: tuple[int, int], shift: int) -> None:
    """In the manifest, or in lists of child tables."""
    _fleet(tmp_path / "data", "c0", "c1", "c2")
    manifest = dump(tmp_path / "data", tmp_path / "dump")
    (database,) = manifest.databases
    forged = replace(manifest, databases=(replace(database, uids=uids, origin=RestoredFrom("x", shift)),))
    (tmp_path / "dump" / MANIFEST).write_bytes(forged.encode())
    with (open_sandbox(_made(tmp_path / "new"), disableStream=True) as sandbox,
          pytest.raises(CorruptionError, match="the dump is damaged: dump again")):
        restore(tmp_path / "dump", sandbox)


def test_rows_of_a_stream_that_was_created_long_ago_are_from_no_future(tmp_path: Path) -> None:
    """Its history is measured against the restoration: all that is in the dump has come by then."""
    root = _made(tmp_path / "data")
    with Sandbox("UTC", NOW_MS - 864_000_000, directory=root, fs=FaultyFs()) as sandbox:
        for statement in ("CREATE DATABASE d", "USE d", "CREATE TABLE t (ts TIMESTAMP, v INT)",
                          "CREATE STREAM s INTO o AS SELECT _wstart, count(*) n FROM t INTERVAL(1m)"):
            sandbox.execute(statement)
        sandbox.advance(864_000)
        sandbox.execute(f"INSERT INTO t VALUES ({NOW_MS - 180_000}, 1) ({NOW_MS - 120_000}, 1) ({NOW_MS}, 1)")
        results = table(sandbox, "SELECT * FROM d.o ORDER BY 1").to_pylist()
        assert len(results) == 2
    dump(root, tmp_path / "dump")
    with open_sandbox(_made(tmp_path / "new"), disableStream=True) as sandbox:
        assert restore(tmp_path / "dump", sandbox).streams == ["s"]
    with open_sandbox(tmp_path / "new") as sandbox:
        sandbox.execute("DELETE FROM d.t WHERE ts < 0")
        assert table(sandbox, "SELECT sum(future_rows) FROM information_schema.ins_watermarks").to_pylist() == [
            {"sum(future_rows)": 0}]
        assert table(sandbox, "SELECT * FROM d.o ORDER BY 1").to_pylist() == results


def test_what_talks_to_others_waits_to_be_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections come with references to their secrets; ingests, and streams into connections, wait. What streams have
    sent they don't send again."""
    monkeypatch.setenv("THE_KEY", "very-secret")
    with open_sandbox(_made(tmp_path / "data")) as sandbox:
        for statement in (
            "CREATE DATABASE d KEEP 36500d", "USE d", "CREATE STABLE m (ts TIMESTAMP, v INT) TAGS (a INT)",
            f"INSERT INTO c USING m TAGS (1) VALUES ({T0}, 1)",
            f"CREATE CONNECTION out TYPE files WITH (url='file://{tmp_path}/out', key='env:THE_KEY')",
            "CREATE STREAM s TRIGGER AT_ONCE FILL_HISTORY 1 INTO CONNECTION out (PATH 'x', FORMAT json) AS "
            "SELECT _wstart, sum(v) v FROM m INTERVAL(1m)",
            "CREATE INGEST i FROM CONNECTION out (FORMAT csv, SCHEMA 'ts,v,device', PATH '*.csv') INTO d.m "
            "TBNAME ($.device)",
        ):
            sandbox.execute(statement)
        connection = sandbox.engine.catalog.connections.named("out")
    manifest = dump(tmp_path / "data", tmp_path / "dump")
    written = (tmp_path / "dump" / MANIFEST).read_bytes()
    assert b"env:THE_KEY" in written
    assert b"very-secret" not in written
    assert manifest.streams[0].target is None
    with open_sandbox(_made(tmp_path / "new"), disableStream=True) as sandbox:
        report = restore(tmp_path / "dump", sandbox, {"d": "e"})
        assert not report.problems
        assert sandbox.engine.catalog.connections.named("out") == connection
        (ingest,) = sandbox.engine.catalog.ingests.all()
        target = sandbox.engine.catalog.table("e", "m")
        assert target is not None
        assert (ingest.wanted, ingest.target_uid) == ("paused", target.uid)
        assert "INTO `e`.m" in ingest.text
        assert "RESUME INGEST when it doesn't" in ingest.wanted_reason
        (stream,) = sandbox.engine.catalog.streams.all()
        assert (stream.wanted, stream.uses.connections) == ("paused", ("out",))
        assert "RESUME STREAM when it doesn't" in stream.pause.text
        assert "FILL_HISTORY 0" in stream.asked.text
        sandbox.execute("ALTER CONNECTION out SET (timeout='3s')")
        again = restore(tmp_path / "dump", sandbox, {"d": "e"}, resume=True)
        assert list(again.problems) == ["connection out"]
    with open_sandbox(tmp_path / "new") as sandbox:
        assert {row["state"] for row in table(sandbox, "SHOW INGESTS").to_pylist()} <= {"PAUSED", "FAILED"}


def test_views_come_back(tmp_path: Path) -> None:
    """In whatever order they read each other, also where a database gets another name; what can't be is told."""
    with opened(tmp_path / "first") as sandbox:
        for statement in (
            "CREATE DATABASE a", "CREATE DATABASE b", "CREATE TABLE a.t (ts TIMESTAMP, v INT)",
            "INSERT INTO a.t VALUES (now, 1)", "CREATE VIEW a.low AS SELECT 1", "CREATE VIEW a.x AS SELECT v FROM a.t",
            "CREATE VIEW b.high (n) SQL SECURITY INVOKER AS SELECT low.v FROM a.low", "CREATE OR REPLACE VIEW a.low AS "
            "SELECT v FROM t", "CREATE VIEW b.lost AS SELECT t.v FROM a.t, a.x",
        ):
            if "b.high" in statement:
                sandbox.execute("CREATE OR REPLACE VIEW a.low AS SELECT 1 AS v")
            sandbox.execute(statement)
        shown = table(sandbox, "SELECT * FROM information_schema.ins_views").to_pylist()
    dump(tmp_path / "first", tmp_path / "dump")
    with opened(tmp_path / "second") as sandbox:
        assert not restore(tmp_path / "dump", sandbox).problems
        assert sorted(map(repr, table(sandbox, "SELECT * FROM information_schema.ins_views").to_pylist())) == sorted(
            map(repr, shown))
        problems = restore(tmp_path / "dump", sandbox, {"a": "z", "b": "y"}).problems
        assert list(problems) == ["view y.lost"]
        assert table(sandbox, "SELECT n FROM y.high").to_pylist() == [{"n": 1}]


def test_streams_of_views_come_back(tmp_path: Path) -> None:
    """They read the views that were restored, also where databases get other names, and hold what these give."""
    with opened(tmp_path / "first") as sandbox:
        for statement in (
            "CREATE DATABASE a KEEP 36500d", "CREATE DATABASE b KEEP 36500d", "CREATE TABLE a.t (ts TIMESTAMP, v INT)",
            f"INSERT INTO a.t VALUES ({T0}, 1)", "CREATE VIEW b.w AS SELECT v, count(*) n FROM a.t GROUP BY v",
            "USE b", "CREATE MATERIALIZED VIEW o AS SELECT * FROM w",
            "CREATE MATERIALIZED VIEW p AS SELECT sum(n) FROM o",
        ):
            sandbox.execute(statement)
    dump(tmp_path / "first", tmp_path / "dump")
    with open_sandbox(_made(tmp_path / "second"), disableStream=True) as sandbox:
        report = restore(tmp_path / "dump", sandbox, {"a": "z", "b": "y"})
        assert (report.problems, report.streams) == ({}, ["o", "p"])
        assert [stream.uses.views for stream in sandbox.engine.catalog.streams.all()] == [(("y", "w"),), ()]
    with open_sandbox(tmp_path / "second") as sandbox:
        sandbox.execute(f"INSERT INTO z.t VALUES ({T0 + 1}, 1)")
        assert table(sandbox, "SELECT * FROM y.p").to_pylist() == [{"sum(n)": 2}]


def test_functions_come_with_their_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Code that the directory of functions has is copied; where other code has its name, that is said."""
    data = _made(tmp_path / "data")
    (data / "udf").mkdir()
    (data / "udf" / "twice.py").write_text("def twice(x):\n    return x\n")
    with open_sandbox(data) as sandbox:
        sandbox.execute("CREATE FUNCTION twice(INT) RETURNS INT LANGUAGE PYTHON AS 'twice.py'")
    dump(data, tmp_path / "dump")
    with open_sandbox(_made(tmp_path / "new")) as sandbox:
        assert restore(tmp_path / "dump", sandbox).functions == ["twice"]
        assert table(sandbox, "SHOW FUNCTIONS").num_rows == 1
        assert restore(tmp_path / "dump", sandbox).functions == ["twice"]
    other = _made(tmp_path / "other")
    (other / "udf").mkdir()
    (other / "udf" / "twice.py").write_text("def twice(x):\n    return x + x\n")
    assert main(["restore", "--data", str(other), str(tmp_path / "dump")]) == 1
    assert "NOT RESTORED function twice" in capsys.readouterr().out


def test_a_dump_of_a_directory_that_is_written_to(tmp_path: Path) -> None:
    """An engine has it open and goes on: the dump has what was acknowledged when it began, no row more."""
    config = {"timezone": "UTC", "viewRefreshInterval": "1h"}
    with closing(StatementEngine(tmp_path / "data", config)) as engine:
        engine.run("CREATE DATABASE d VGROUPS 2 KEEP 36500d")
        engine.run("CREATE STABLE d.m (ts TIMESTAMP, v INT) TAGS (a INT)")
        engine.run(f"INSERT INTO d.x USING d.m TAGS (1) VALUES ({T0}, 1) d.y USING d.m TAGS (2) VALUES ({T0}, 2)")
        written = iter(range(100))

        def more(what: str, rows: int) -> None:
            engine.run(f"INSERT INTO d.x VALUES ({T0 + 1 + next(written)}, 3) ({T0}, 9)")

        manifest = Dump(tmp_path / "data", tmp_path / "dump", tmp_path, DumpOptions(), OsFs(), ManualClock(NOW_MS),
                        more).run()
        assert manifest.row_count == 2
        assert next(written) > 1
    with open_sandbox(_made(tmp_path / "new")) as sandbox:
        restore(tmp_path / "dump", sandbox)
        assert [row["v"] for row in table(sandbox, "SELECT v FROM d.m ORDER BY v").to_pylist()] == [1, 2]


def test_large_tables_are_cut_into_files(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups and files end where they are full; together they are the table."""
    monkeypatch.setattr(dump_module, "GROUP_ROWS", 1)
    monkeypatch.setattr(dump_module, "FILE_ROWS", 1)
    monkeypatch.setattr(detached_reader, "_ROWS", 1)
    manifest = dump(source, tmp_path / "dump")
    assert max(len(found.rows) for found in manifest.databases[0].tables) > 2
    with open_sandbox(_made(tmp_path / "data"), disableStream=True) as sandbox:
        assert restore(tmp_path / "dump", sandbox).rows == manifest.row_count


@pytest.mark.parametrize(("text", "wanted"), [
    ("SELECT a.ts FROM a.m AS b JOIN A.n ON b.ts = a.ts", "SELECT a.ts FROM `z`.m AS b JOIN `z`.n ON b.ts = a.ts"),
    ("SELECT 'FROM a.m', a.m.v FROM `a`.m -- FROM a.m", "SELECT 'FROM a.m', `z`.m.v FROM `z`.m -- FROM a.m"),
    ("CREATE STREAM s ON_ERROR DLQ a.q INTO a.t AS SELECT ts FROM b.m", "CREATE STREAM s ON_ERROR DLQ `z`.q INTO `z`.t "
     "AS SELECT ts FROM b.m"),
    ("CREATE STREAM IF NOT EXISTS a.s PERIOD(1h) INTO t AS SELECT 1", "CREATE STREAM IF NOT EXISTS `z`.s PERIOD(1h) "
     "INTO t AS SELECT 1"),
    ("SELECT x, a.v FROM a.m a", None),
])
def test_databases_get_other_names_in_statements(text: str, wanted: str | None) -> None:
    """Only where a database is meant for certain; else it is refused."""
    if wanted is None:
        with pytest.raises(InvalidStatementError, match="cannot be told"):
            with_databases(text, {"a": "z"})
    else:
        assert with_databases(text, {"a": "z"}) == wanted


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory
