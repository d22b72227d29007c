"""The interactive prompt, driven through a pretended terminal; completion and colours."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from kits.basics.shell_kit import make_shell
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.data_structures import Size
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from pygments.token import Comment, Keyword, Name, String

from penstock.common.errors import UnavailableError
from penstock.shell.terminal.complete import ShellCompleter
from penstock.shell.terminal.lexer import PenstockLexer
from penstock.shell.terminal.repl import run_prompt


def type_at_prompt(keys: str, history: Path) -> tuple[list[str], str]:
    """Returns the statements that were run and the output, for keys typed at a prompt."""
    shell = make_shell(interactive=True)
    with create_pipe_input() as terminal:
        terminal.send_text(keys)
        run_prompt(shell.session, history, terminal_in=terminal, terminal_out=DummyOutput())
    return shell.connection.statements, shell.output.getvalue()


def test_enter_runs_complete_statements_only(tmp_path: Path) -> None:
    """A statement may span lines until its semicolon."""
    statements, output = type_at_prompt("select 1,\r2;\rquit\r", tmp_path / "history")
    assert statements == ["select 1,\n2"]
    assert "3 row(s) in set" in output


def test_lines_tell_what_is_left_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quote that nobody has closed swallows the semicolon: the next line says so."""
    class Written(DummyOutput):  # type: ignore[misc]
        text = ""

        def write(self, data: str) -> None:
            Written.text += data

        def write_raw(self, data: str) -> None:
            Written.text += data

        def get_size(self) -> Size:
            return Size(rows=40, columns=100)

    monkeypatch.setattr("test_shell_prompt.DummyOutput", Written)
    statements, _ = type_at_prompt("select count(\r'a;\r'),\r2;\rquit\r", tmp_path / "history")
    assert statements == ["select count(\n'a;\n'),\n2"]
    assert [line for line in ("( open -> ", "' open -> ") if line not in Written.text] == []


def test_interrupt_drops_the_input(tmp_path: Path) -> None:
    """Ctrl+C at the prompt throws away what was typed, not the shell; Ctrl+D leaves."""
    statements, _ = type_at_prompt("select 1 \x03select 2;\r\x04", tmp_path / "history")
    assert statements == ["select 2"]


def test_history_is_kept(tmp_path: Path) -> None:
    """The next shell finds the statements of the last one."""
    history = tmp_path / "folder" / "history"
    type_at_prompt("select 1;\rquit\r", history)
    assert "select 1;" in history.read_text()
    statements, _ = type_at_prompt("\x1b[A\x1b[A\rquit\r", history)
    assert statements == ["select 1"]


def test_history_keeps_no_passwords(tmp_path: Path) -> None:
    """Statements that give a user a password are forgotten at the end; the others aren't."""
    history = tmp_path / "history"
    type_at_prompt("create user u\rPass 'hidden one';\rselect user();\rquit\r", history)
    assert "hidden" not in history.read_text()
    assert "select user();" in history.read_text()


def test_unwritable_history_is_no_error(tmp_path: Path) -> None:
    """A history file that cannot be written costs only the history."""
    blocker = tmp_path / "file"
    blocker.write_text("")
    statements, _ = type_at_prompt("select 1;\rquit\r", blocker / "history")
    assert statements == ["select 1"]


def query(statement: str) -> pa.Table:
    """A catalog with one database, one super table with two columns, and one stream."""
    if "ins_stables" in statement:
        return pa.table({"stable_name": ["meters", "elsewhere"], "db_name": ["power", "other"]})
    if "ins_views" in statement:
        return pa.table({"view_name": ["sums"], "db_name": ["power"]})
    if "ins_columns" in statement:
        return pa.table({"col_name": ["current", "voltage"], "db_name": ["power", "power"]})
    if "ins_stream_savepoints" in statement:
        return pa.table({"savepoint": ["before", "it's", "other"], "stream_name": ["hourly", "hourly", "daily"]})
    if "ins_streams" in statement:
        return pa.table({"stream_name": ["hourly"]})
    if "ins_databases" in statement:
        return pa.table({"name": ["power"]})
    raise UnavailableError("not now")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("sel", "select"),
        ("SEL", "SELECT"),
        ("select cur", "current"),
        ("select * from met", "meters"),
        ("select * from other.", "other.elsewhere"),
        ("select * from su", "sums"),
        ("drop view ", "power.sums"),
        ("show vie", "views"),
        ("drop stream hou", "hourly"),
        ("select _wst", "_wstart"),
        ("select av", "avg"),
        ("select leven", "levenshtein"),
        (".mo", ".mode"),
        (".mode mark", "markdown"),
    ],
)
def test_completion(line: str, expected: str) -> None:
    """Keywords follow the case of the user; names come from the catalog."""
    completer = ShellCompleter(query, lambda: "power")
    found = [each.text for each in completer.get_completions(Document(line), CompleteEvent())]
    assert expected in found


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("start stream hourly from savepoint ", ["'before'", "'it''s'"]),
        ("START STREAM hourly FROM SAVEPOINT 'b", ["'before'"]),
        ("start stream daily from savepoint '", ["'other'"]),
        ("DROP SAVEPOINT ", ["'before'", "'it''s'", "'other'"]),
        ("drop savepoint if exists 'o", ["'other'"]),
        ("stop stream hourly with savepoint '", []),
    ],
)
def test_savepoints_are_completed(line: str, expected: list[str]) -> None:
    """Where a savepoint must exist, the names of those of the stream are offered, in quotes."""
    completer = ShellCompleter(query, lambda: "power")
    found = list(completer.get_completions(Document(line), CompleteEvent()))
    assert [each.text for each in found] == expected
    assert all(line[:len(line) + each.start_position].endswith(" ") for each in found)


def test_completion_offers_tables_after_from() -> None:
    """Behind FROM there are tables, not columns; also before anything is typed."""
    completer = ShellCompleter(query, lambda: "power")
    found = [each.text for each in completer.get_completions(Document("select * from "), CompleteEvent())]
    assert "meters" in found
    assert "current" not in found


def test_completion_reads_the_catalog_once() -> None:
    """Names are asked for when first needed, and again only after they changed."""
    asked: list[str] = []

    def counting(statement: str) -> pa.Table:
        asked.append(statement)
        return query(statement)

    completer = ShellCompleter(counting, lambda: "power")
    for _ in range(3):
        list(completer.get_completions(Document("select cur"), CompleteEvent()))
    once = len(asked)
    completer.forget_names()
    list(completer.get_completions(Document("select cur"), CompleteEvent()))
    assert len(asked) == 2 * once


def test_files_are_completed(tmp_path: Path) -> None:
    """`source` completes paths."""
    (tmp_path / "script.sql").write_text("")
    completer = ShellCompleter(query, lambda: None)
    found = list(completer.get_completions(Document(f"source {tmp_path}/scr"), CompleteEvent()))
    assert [each.text for each in found] == ["ipt.sql"]


def test_colours() -> None:
    """Keywords, functions, strings, comments and unfinished strings have their colours."""
    tokens = [(kind, text) for kind, text in PenstockLexer().get_tokens("select avg(v) from `t` -- hm\nwhere x = 'ab")]
    assert (Keyword, "select") in tokens
    assert (Name.Function, "avg") in tokens
    assert (Name.Variable, "`t`") in tokens
    assert (Comment.Single, "-- hm") in tokens
    assert any(kind is String.Single and text.startswith("'ab") for kind, text in tokens)
