"""`penstock migrate-stream`: where statements come from, what is printed, and the exit code."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from penstock.shell.main import main

OLDER = ("CREATE STREAM s TRIGGER WINDOW_CLOSE IGNORE EXPIRED 0 IGNORE UPDATE 0 INTO t AS SELECT _wstart AS ts, avg(v) "
         "FROM m INTERVAL(10s);\n")
NEWER = ("CREATE STREAM s INTERVAL(10s) SLIDING(10s) FROM m STREAM_OPTIONS(IGNORE_NODATA_TRIGGER) INTO t AS SELECT "
         "_twstart AS ts, avg(v) FROM %%trows;\n")
NORMAL = "-- t is a normal table: without PARTITION BY there are no child tables and no tags\n"
SUPER = "-- t is a super table with one child table, not a normal table\n"


@pytest.mark.parametrize("where", ["file", "input", "dash", "argument"])
def test_each_statement_is_translated(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From wherever it comes, with a comment for what differs."""
    (tmp_path / "streams.sql").write_text(OLDER + NEWER, "utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO(OLDER + NEWER))
    arguments = {"file": [str(tmp_path / "streams.sql")], "input": [], "dash": ["-"],
                 "argument": ["--sql", OLDER + NEWER]}
    assert main(["migrate-stream", *arguments[where]]) == 0
    assert capsys.readouterr().out == NORMAL + NEWER + SUPER + OLDER


@pytest.mark.parametrize(("form", "expected"), [("new", NORMAL + NEWER + NEWER), ("old", OLDER + SUPER + OLDER)])
def test_one_form_for_all(form: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Statements that have the form stay as they are."""
    assert main(["migrate-stream", "--to", form, "--sql", OLDER + NEWER]) == 0
    assert capsys.readouterr().out == expected


def test_what_has_no_equal_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """With its place and a hint, and the others are printed."""
    refused = "CREATE STREAM s TRIGGER AT_ONCE INTO t AS SELECT _wstart, avg(v) FROM m INTERVAL(1s);\n"
    text = refused + OLDER + "DROP STREAM s"
    assert main(["migrate-stream", "--sql", text]) == 1
    told = capsys.readouterr()
    assert told.out == NORMAL + NEWER
    assert "ERROR: s has no equal in the newer form: it has TRIGGER AT_ONCE\n" in told.err
    assert "                       ^^^^^^^\nHint: MAX_DELAY(3s) is the nearest" in told.err
    assert "CREATE STREAM is expected, not DROP" in told.err


@pytest.mark.parametrize(("arguments", "complaint"), [
    (["--sql", "CREATE STREAM s INTO"], "^"), (["/nowhere.sql"], "there is no file"), (["/"], "cannot read /")])
def test_what_cannot_be_read(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It ends with 1 and says why."""
    assert main(["migrate-stream", *arguments]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert complaint in told.err
