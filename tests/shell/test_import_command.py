"""`penstock import`: every format, pieces, headers, errors that name file and line, the bar."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.mnode.write import csv_rows
from penstock.shell.commands import import_command
from penstock.shell.main import main

T0 = 1_700_000_000_000
COUNT = 50

Run = Callable[..., int]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with the super table `d.m` and the normal table `d.t`."""
    path = tmp_path / "data"
    with penstock.connect(str(path)) as connection:
        connection.execute("CREATE DATABASE d VGROUPS 2")
        connection.execute("CREATE STABLE d.m (ts TIMESTAMP, v INT, s VARCHAR(20)) TAGS (a INT)")
        connection.execute("CREATE TABLE d.t (ts TIMESTAMP, v INT, s VARCHAR(20))")
    return path


@pytest.fixture
def run(data: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command in pieces of a few rows."""
    monkeypatch.setattr(import_command, "BLOCK_BYTES", 200)
    monkeypatch.setattr(csv_rows, "BLOCK_BYTES", 200)
    monkeypatch.setattr(import_command, "PIECE_ROWS", 7)
    return lambda *arguments: main(["import", "--data", str(data), *map(str, arguments)])


def select(data: Path, statement: str) -> list[tuple[Any, ...]]:
    with penstock.connect(str(data)) as connection:
        return connection.execute(statement).fetchall()


def rows() -> pa.Table:
    return pa.table({
        "tbname": [f"c{number % 3}" for number in range(COUNT)],
        "ts": pa.array([T0 + number for number in range(COUNT)], pa.timestamp("ms")),
        "v": list(range(COUNT)), "s": [f'say "{number}", ok' for number in range(COUNT)], "a": [5] * COUNT})


def csv_lines() -> list[str]:
    return [f'c{number % 3},{T0 + number},{number},"say ""{number}"", ok",5' for number in range(COUNT)]


def write_csv(path: Path) -> None:
    path.write_text("tbname,ts,v,s,a\n" + "\n".join(csv_lines()))


def write_gzip(path: Path) -> None:
    path.write_bytes(gzip.compress(("tbname,ts,v,s,a\r\n" + "\r\n".join(csv_lines()) + "\r\n\r\n").encode()))


def write_arrow(path: Path) -> None:
    opened = pa.ipc.new_stream if path.suffix == ".arrows" else pa.ipc.new_file
    with opened(path, rows().schema) as writer:
        writer.write_table(rows(), max_chunksize=11)


@pytest.mark.parametrize(("name", "write", "options"), [
    ("rows.csv", write_csv, ["--header"]),
    ("rows.csv.gz", write_gzip, ["--header"]),
    ("rows.txt", write_csv, ["--header", "--format", "csv"]),
    ("rows.parquet", lambda path: pq.write_table(rows(), path), []),
    ("rows.arrow", write_arrow, []),
    ("rows.arrows", write_arrow, ["--progress"]),
])
def test_formats(
    run: Run, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str,
    write: Callable[[Path], None], options: list[str],
) -> None:
    """Every format gives the same rows, twice as once, and the command says how many there were."""
    path = tmp_path / name
    write(path)
    assert run(path, "--into", "d.m", *options) == 0
    assert f"{COUNT} rows from {path} into d.m" in capsys.readouterr().out
    assert run(path, path, "--into", "d.m", *options) == 0
    assert "100 rows from 2 files" in capsys.readouterr().out
    assert select(data, "SELECT count(*), sum(v), min(a) FROM d.m") == [(COUNT, sum(range(COUNT)), 5)]
    assert select(data, "SELECT s, tbname FROM d.m WHERE v = 7") == [('say "7", ok', "c1")]


def test_csv_without_header(run: Run, data: Path, tmp_path: Path) -> None:
    """Columns in the table's order, or as listed; other quotes."""
    path = tmp_path / "x.csv"
    path.write_text(f"{T0},1,'a,b'\n{T0 + 1},2,\n")
    assert run(path, "--into", "d.t", "--quote", "'") == 0
    path.write_text(f"3,{T0 + 2}\n")
    assert run(path, "--into", "d.t", "--columns", "v, ts") == 0
    assert select(data, "SELECT v, s FROM d.t ORDER BY ts") == [(1, "a,b"), (2, None), (3, None)]


def test_line_protocol(run: Run, data: Path, tmp_path: Path) -> None:
    """Into a database; tables are made."""
    path = tmp_path / "x.lp"
    path.write_text("\n".join(f"cpu,host=h{number % 2} usage={number} {T0 + number}" for number in range(COUNT)))
    assert run(path, "--into", "d", "--precision", "ms") == 0
    assert select(data, "SELECT count(*), sum(usage) FROM d.cpu") == [(COUNT, float(sum(range(COUNT))))]


@pytest.mark.parametrize(("name", "content", "options", "words"), [
    ("x.csv", "\n".join([*(f"{T0 + n},{n},x" for n in range(40)), f"{T0},many,x"]), [], ["line 41, column v: many"]),
    ("x.csv", f"{T0},1,x\n{T0},1\n", [], ["line 2: there are 2 values for 3 columns (ts, v, s)"]),
    ("x.csv", f"ts,v,z\n{T0},1,x\n", ["--header"], ["column z does not exist in t"]),
    ("x.csv", "\n".join([*(f"{T0 + n},{n},x" for n in range(40)), "1,1,x"]), [], ["line 41: the timestamp 1"]),
    ("x.lp", "\n".join([*(f"t2 f={n} {T0 + n}" for n in range(40)), "t2 f=x"]), ["--precision", "ms", "--into", "d"],
     ["line 41", "x is not a value"]),
    ("x.parquet", "nothing", [], ["is not a Parquet file"]),
    ("x.arrow", "nothing", [], ["is not an Arrow file"]),
    ("x.unknown", "", [], ["doesn't tell its format"]),
    ("x.csv", None, [], ["there is no file"]),
    ("x.csv", "", ["--quote", "''"], ["takes one character"]),
])
def test_errors_name_file_and_line(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: str | None,
    options: list[str], words: list[str],
) -> None:
    """The command fails and says which file, where in it, and how much was written before."""
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    assert run(path, "--into", "d.t", *options) == 1
    error = " ".join(capsys.readouterr().err.split())
    for word in words:
        assert word in error
    if "--quote" not in options:
        assert name in error
    if "41" in words[0]:
        assert "rows before it are written" in error


def test_a_row_that_does_not_fit_in_columns_names_its_place_in_the_file(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of Parquet files are counted over all pieces."""
    path = tmp_path / "x.parquet"
    table = rows().select(["ts", "v"])
    pq.write_table(table.set_column(1, "v", pa.array([*range(44), 2**40, *range(5)])), path)
    assert run(path, "--into", "d.t") == 1
    assert "row 45, column v" in " ".join(capsys.readouterr().err.split())


def test_empty_files(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file without rows is no mistake."""
    path = tmp_path / "x.csv"
    for content in ("", "\n", "ts,v,s\n"):
        path.write_text(content)
        assert run(path, "--into", "d.t", *(["--header"] if "ts" in content else [])) == 0
        assert capsys.readouterr().out.startswith("0 rows")
