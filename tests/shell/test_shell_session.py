"""The shell around a connection: closing lines, commands, files, exit codes; the connection is a scripted one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kits.basics.shell_kit import Shell, make_shell

from penstock.shell.terminal.shell_session import Quit


@pytest.fixture
def shell() -> Shell:
    """A shell that runs a script."""
    return make_shell()


@pytest.mark.parametrize(
    ("statement", "line"),
    [
        ("select 1", "Query OK, 3 row(s) in set"),
        ("insert into t values (now, 1)", "Insert OK, 2 row(s) affected"),
        ("create table t (ts timestamp, v int)", "Create OK, 2 row(s) affected"),
        ("drop table t", "Drop OK, 2 row(s) affected"),
        ("use d", "Database changed."),
        ("pause stream s", "Query OK, 2 row(s) affected"),
    ],
)
def test_closing_lines(shell: Shell, statement: str, line: str) -> None:
    """Each statement ends with the line that users of taos know."""
    assert shell.session.run_text(statement)
    assert shell.output.getvalue().rstrip().endswith(line)


def test_rows_of_a_standby_tell_how_old_they_are(shell: Shell) -> None:
    """A node that follows doesn't have yet what the active one has just taken."""
    shell.connection.lag_seconds = 0.75
    assert shell.session.run_text("select 1")
    assert shell.output.getvalue().rstrip().endswith("Query OK, 3 row(s) in set of a standby, as of 0.8 s ago")


def test_timer_tells_seconds() -> None:
    """The time taken stands in parentheses unless the timer is off."""
    shell = make_shell()
    shell.session.run_text(".timer on\nselect 1;")
    assert shell.output.getvalue().rstrip().endswith("s)")


def test_output_for_programs_has_no_closing_line() -> None:
    """CSV and JSON of a script hold nothing but the result."""
    shell = make_shell(mode="csv")
    assert shell.session.run_text("insert into t values (1); select 1")
    assert shell.output.getvalue() == "n\n1\n2\n3\n"


def test_script_stops_at_first_failure(shell: Shell) -> None:
    """What comes after a failing statement isn't run, unless bail is off."""
    assert not shell.session.run_text("fail thing; select 1;")
    assert shell.connection.statements == ["fail thing"]
    assert "  fail thing\n       ^^^^^" in shell.errors.getvalue()
    assert not shell.session.run_text(".bail off\nfail thing; select 1;")
    assert shell.connection.statements[1:] == ["fail thing", "select 1"]


def test_prompt_goes_on_after_failure() -> None:
    """At the prompt an error costs nothing but its own statement."""
    shell = make_shell(interactive=True)
    assert not shell.session.run_text("fail thing; select 1;")
    assert shell.connection.statements == ["fail thing", "select 1"]


def test_defects_show_no_traceback_unless_asked() -> None:
    """An unexpected exception is one line; --debug adds where it came from."""
    shell = make_shell()
    assert not shell.session.run_text("defect")
    assert "ERROR: ZeroDivisionError: division by zero" in shell.errors.getvalue()
    assert "Traceback" not in shell.errors.getvalue()
    debugging = make_shell(debug=True)
    debugging.session.run_text("defect")
    assert "Traceback" in debugging.errors.getvalue()


@pytest.mark.usefixtures("interrupts")
def test_interrupt_ends_the_wait_not_the_shell() -> None:
    """Ctrl+C during a statement gives the prompt back; the statement itself isn't torn apart."""
    shell = make_shell(interactive=True)

    def press_ctrl_c() -> None:
        shell.connection.begun.wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    presser = threading.Thread(target=press_ctrl_c)
    presser.start()
    assert not shell.session.run_text("long statement")
    presser.join()
    assert "no longer waits" in shell.errors.getvalue()
    assert shell.session.run_text("select 1")
    shell.connection.finish.set()


def test_vertical_rows_and_modes(shell: Shell) -> None:
    r"""`\G` holds for one statement, `.mode` until the next."""
    shell.session.run_text("select 1\\G")
    assert "1.row" in shell.output.getvalue()
    shell.session.run_text(".mode jsonlines\nselect 1; .mode\n")
    assert '{"n": 1}\n{"n": 2}\n{"n": 3}\njsonlines\n' in shell.output.getvalue()
    assert not shell.session.run_text(".mode wrong")
    assert "modes: box, csv" in shell.errors.getvalue()


def test_width_of_texts(shell: Shell) -> None:
    """Texts are cut at a width that both accents of the shell can set."""
    assert shell.session.run_text(".width 3\nselect 1;")
    assert shell.session.run_text("set max_binary_display_width 30;")
    assert not shell.session.run_text(".width wide")
    assert "expected a number of characters" in shell.errors.getvalue()


def test_output_goes_to_a_file_and_back(shell: Shell, tmp_path: Path) -> None:
    """`.output FILE` redirects results until `.output`."""
    target = tmp_path / "out.txt"
    shell.session.run_text(f".mode csv\n.output {target}\nselect 1;\n.output\nselect 2;")
    assert target.read_text() == "n\n1\n2\n3\n"
    assert shell.output.getvalue() == "n\n1\n2\n3\n"


def test_files_are_read_line_by_line(shell: Shell, tmp_path: Path) -> None:
    """`source` runs a file, whose statements may span lines; files may name further files."""
    inner = tmp_path / "inner.sql"
    inner.write_text("insert into t values\n (1),\n (2);\n")
    outer = tmp_path / "outer.sql"
    outer.write_text(f"-- first\nsource {inner};\nselect 1\n")
    assert shell.session.run_file(str(outer))
    assert shell.connection.statements == ["insert into t values\n (1),\n (2)", "select 1"]


def test_errors_of_files_name_file_and_line(shell: Shell, tmp_path: Path) -> None:
    """The line of the mistake, in whichever file it is, after comments, blank lines and statements of several lines."""
    inner, outer = tmp_path / "inner.sql", tmp_path / "outer.sql"
    inner.write_text("select\n 1; select 2;\n\n-- next\nfail thing\n  with more;\n")
    outer.write_text(f"/* two\nlines */\n.bail off\n.read {inner}\n.wat\n\nfail thing")
    assert not shell.session.run_file(str(outer))
    assert shell.errors.getvalue() == (
        f"{inner}:5: ERROR: no such thing\n  line 5: fail thing\n               ^^^^^\n"
        f"{outer}:5: ERROR: no command .wat\nHint: .help lists them\n"
        f"{outer}:7: ERROR: no such thing\n  fail thing\n       ^^^^^\n")
    assert not shell.session.run_lines(["select 1;\n", "fail thing;\n"], "stdin")
    assert "stdin:2: ERROR: no such thing" in shell.errors.getvalue()


def test_a_file_that_a_file_names_in_vain_is_told_with_the_line(shell: Shell, tmp_path: Path) -> None:
    """The file that names it is where somebody must look."""
    outer = tmp_path / "outer.sql"
    outer.write_text("\nsource nowhere.sql\n")
    assert not shell.session.run_file(str(outer))
    assert f"{outer}:2: ERROR: cannot read nowhere.sql" in shell.errors.getvalue()


def test_files_that_name_themselves_end(shell: Shell, tmp_path: Path) -> None:
    """A file that includes itself is refused after some levels."""
    file = tmp_path / "loop.sql"
    file.write_text(f"source {file}\n")
    assert not shell.session.run_file(str(file))
    assert "nest deeper than 16" in shell.errors.getvalue()


def test_missing_file_is_an_error(shell: Shell) -> None:
    """A file that cannot be read is named."""
    assert not shell.session.run_file("/nowhere/x.sql")
    assert "cannot read /nowhere/x.sql" in shell.errors.getvalue()


def test_commands_check_their_arguments(shell: Shell) -> None:
    """An unknown command or a wrong number of arguments is an error with the usage."""
    assert not shell.session.run_text(".wat")
    assert "no command .wat" in shell.errors.getvalue()
    assert not shell.session.run_text("\\watch 2")
    assert "no command \\watch" in shell.errors.getvalue()
    assert not shell.session.run_text(".read")
    assert "usage: .read FILE" in shell.errors.getvalue()
    assert not shell.session.run_text(".timer maybe")
    assert "expected on or off" in shell.errors.getvalue()


def test_a_measurement_tells_how_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar of EXPLAIN ANALYZE STREAM knows its end; other statements, and wrong ones, have none."""
    shell = make_shell()
    told: list[float | None] = []
    shown = threading.Semaphore(0)

    @contextmanager
    def progress(text: str, seconds: float | None = None) -> Iterator[None]:
        told.append(seconds)
        shown.release()
        yield

    execute = shell.session._execute_now
    monkeypatch.setattr(shell.session, "_execute_now", lambda text: (shown.acquire(), execute(text))[1])
    monkeypatch.setattr(shell.session.screen, "progress", progress)
    monkeypatch.setattr("penstock.shell.terminal.shell_session.PROGRESS_AFTER_S", 0.0)
    for statement in ("explain analyze stream s for 7s", "EXPLAIN ANALYZE STREAM s", "explain analyze stream s for 7d",
                      "explain select 1", "select 1"):
        assert shell.session.run_text(statement)
    assert told == [7.0, 10.0, None, None, None]


def test_top_wants_a_terminal(shell: Shell) -> None:
    """Where nobody can see it, it says what to use instead."""
    assert not shell.session.run_text(".top")
    assert ".top needs a terminal" in shell.errors.getvalue()


def test_every_command_is_in_the_help_and_works(shell: Shell) -> None:
    """Each command that the help lists has a method."""
    from penstock.shell.terminal.help_text import COMMANDS, HELP

    for name, usage in COMMANDS.items():
        assert usage.usage in HELP
        assert callable(getattr(shell.session, f"_command_{name}"))


def test_quit_leaves(shell: Shell) -> None:
    """`quit` ends a script too; what follows isn't run."""
    with pytest.raises(Quit):
        shell.session.run_text("select 1; .quit\nselect 2;")
    assert shell.connection.statements == ["select 1"]


def test_names_are_read_again_after_ddl() -> None:
    """Statements that change names tell the completion so."""
    shell = make_shell(interactive=True)
    calls: list[int] = []
    shell.session.names_changed = lambda: calls.append(1)
    shell.session.run_text("select 1; create table t; use d;")
    assert len(calls) == 2
