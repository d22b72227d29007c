"""Runs statements and dot commands of one shell and shows what comes of them; the prompt and scripts both use it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import pyarrow as pa

from penstock.common.errors import InvalidStatementError, NotFoundError, PenstockError
from penstock.shell.terminal.error_text import ScriptPlace, error_text, trace_text
from penstock.shell.terminal.help_text import COMMANDS, HELP
from penstock.shell.terminal.result_format import MODES, Mode, Style, format_table
from penstock.shell.terminal.screen import Screen
from penstock.shell.terminal.script import Piece, ShellCommand, SqlText, may_complete, split, split_all
from penstock.sql.dialect.parser import parse_one
from penstock.sql.tree.statements import AnalyzeStream, Query

if TYPE_CHECKING:
    from penstock.common.config import Config
    from penstock.shell.api.dbapi import Connection

NESTED_FILES_MAX = 16
PROGRESS_AFTER_S = 1.0
_CHANGES_NAMES = ("ALTER", "CREATE", "DROP", "USE")


class Quit(Exception):
    """The user asked to leave the shell."""


@dataclass(slots=True)
class ShellOptions:
    """What dot commands change. `bail`: a script stops at its first failing statement."""

    mode: Mode = "box"
    timer: bool = True
    echo: bool = False
    bail: bool = True
    debug: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one statement answered: `table` for queries, else `affected` rows or tables."""

    table: pa.Table | None
    affected: int
    seconds: float
    lag_s: float | None


class ShellSession:
    """One connection, its output settings, and the commands. Not thread-safe: the shell's main thread owns it."""

    def __init__(
        self, connection: Connection, config: Config, screen: Screen, options: ShellOptions, *, interactive: bool
    ) -> None:
        self.connection = connection
        self.options = options
        self.screen = screen
        self.names_changed: Callable[[], None] = lambda: None
        self._rows_max = config.shell_rows_max
        self._text_width = config.max_binary_display_width
        self._interactive = interactive
        self._nested_files = 0
        #: the script that is being run
        self._script: str | None = None

    # --- input ---------------------------------------------------------------------------------------------

    def run_text(self, text: str) -> bool:
        """Runs all statements of `text`, the last of which needs no terminator; returns whether all succeeded."""
        return self._run_pieces(split_all(text))

    def run_lines(self, lines: Iterable[str], name: str) -> bool:
        """Runs a script while it is being read, so that a pipe's statements run as they come. Errors name it."""
        outer, self._script = self._script, name
        try:
            return self._run_lines(lines)
        finally:
            self._script = outer

    def _run_lines(self, lines: Iterable[str]) -> bool:
        succeeded = True
        pending: list[str] = []
        first_line = 1
        for line in lines:
            pending.append(line)
            if not may_complete(line):
                continue
            text = "".join(pending)
            pieces, rest = split(text, first_line)
            first_line += text.count("\n", 0, len(text) - len(rest))
            pending = [rest] if rest else []
            if not self._run_pieces(pieces):
                succeeded = False
                if self._stops_at_failure:
                    return False
        return self._run_pieces(split_all("".join(pending), first_line)) and succeeded

    def run_file(self, name: str) -> bool:
        """Runs a file of statements and commands; returns whether all succeeded. Never raises."""
        return self._run_piece(ShellCommand("read", (name,)))

    @property
    def _stops_at_failure(self) -> bool:
        return self.options.bail and not (self._interactive and self._nested_files == 0)

    def _run_pieces(self, pieces: Iterable[Piece]) -> bool:
        succeeded = True
        for piece in pieces:
            if not self._run_piece(piece):
                succeeded = False
                if self._stops_at_failure:
                    break
        return succeeded

    def _run_piece(self, piece: Piece) -> bool:
        text = piece.text if isinstance(piece, SqlText) else ""
        if self.options.echo and text:
            self.screen.write(f"{text};\n")
        try:
            if isinstance(piece, ShellCommand):
                return self._run_command(piece)
            self._run_statement(piece)
        except KeyboardInterrupt:
            if _is_query(text):
                self.connection.cancel()
                self.screen.complain("Interrupted: the query was ended.")
            else:
                self.screen.complain("Interrupted: the shell no longer waits; the statement continues.")
            return False
        except (Quit, BrokenPipeError):
            raise
        except Exception as error:  # noqa: BLE001 - the shell shows every error and lives on
            return self._failed(error, text, None if self._script is None else ScriptPlace(self._script, piece.line))
        return True

    def _failed(self, error: Exception, statement: str = "", at: ScriptPlace | None = None) -> bool:
        self.screen.complain(error_text(error, statement, at=at, colour=self.screen.has_colour_for_errors))
        if self.options.debug:
            self.screen.complain(trace_text(error))
        return False

    # --- statements ----------------------------------------------------------------------------------------

    def query(self, statement: str) -> pa.Table | None:
        """Returns the result of a statement that the shell itself asks, or None if it has no rows."""
        with self.connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetch_arrow() if cursor.description is not None else None

    def _run_statement(self, piece: SqlText) -> None:
        outcome = self._execute(piece.text)
        if outcome.table is None:
            if piece.text.split(None, 1)[0].upper() in _CHANGES_NAMES:
                self.names_changed()
            self._report(_summary(piece.text, outcome.affected), outcome.seconds)
        else:
            self._show(outcome, "line" if piece.vertical else self.options.mode)

    def _execute(self, statement: str) -> Outcome:
        """Runs a statement on a thread of its own, so that Ctrl+C gives the prompt back and breaks nothing."""
        answer: list[Outcome | BaseException] = []
        done = threading.Event()

        def work() -> None:
            try:
                answer.append(self._execute_now(statement))
            except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
                answer.append(error)
            finally:
                done.set()

        threading.Thread(target=work, name="penstock-statement", daemon=True).start()
        if not done.wait(PROGRESS_AFTER_S):
            with self.screen.progress("working; Ctrl+C stops waiting", _measured_seconds(statement)):
                done.wait()
        outcome = answer[0]
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _execute_now(self, statement: str) -> Outcome:
        start = time.perf_counter()
        with self.connection.cursor() as cursor:
            cursor.execute(statement)
            table = cursor.fetch_arrow() if cursor.description is not None else None
            return Outcome(table, cursor.rowcount, time.perf_counter() - start, cursor.lag_seconds)

    def _show(self, outcome: Outcome, mode: Mode) -> None:
        table = outcome.table
        assert table is not None, "only queries are shown"
        cut = self._interactive and self.screen.is_terminal and table.num_rows > self._rows_max
        text = format_table(table.slice(0, self._rows_max) if cut else table, mode, self._style(mode))
        self.screen.write(text)
        if cut:
            self.screen.write(f"The first {self._rows_max} rows are shown; LIMIT, >> 'file.csv' or .output help.\n")
        age = "" if outcome.lag_s is None else f" of a standby, as of {outcome.lag_s:.1f} s ago"
        self._report(f"Query OK, {table.num_rows} row(s) in set{age}", outcome.seconds)

    def _style(self, mode: Mode) -> Style:
        tabular = mode == "box"
        return Style(
            time_zone=self.connection.session.time_zone,
            text_width=self._text_width if tabular else None,
            terminal_width=self.screen.width if tabular else None,
        )

    def _report(self, summary: str, seconds: float) -> None:
        """Prints the closing line, except where it would spoil output that a program reads."""
        if self.options.mode not in ("box", "line") and not self._interactive:
            return
        self.screen.write(f"{summary} ({seconds:.3f}s)\n\n" if self.options.timer else f"{summary}\n\n")

    # --- commands ------------------------------------------------------------------------------------------

    def _run_command(self, command: ShellCommand) -> bool:
        arity = COMMANDS.get(command.name)
        if arity is None:
            name = command.name if command.name.startswith("\\") else f".{command.name}"
            raise NotFoundError(f"no command {name}", hint=".help lists them")
        if not arity.fewest <= len(command.arguments) <= arity.most:
            raise InvalidStatementError(f"usage: {arity.usage}")
        answer: bool | None = getattr(self, f"_command_{command.name}")(*command.arguments)
        return answer is not False

    def _command_help(self) -> None:
        self.screen.write(HELP)

    def _command_quit(self) -> None:
        raise Quit

    def _command_clear(self) -> None:
        self.screen.clear()

    def _command_mode(self, mode: str | None = None) -> None:
        if mode is None:
            self.screen.write(f"{self.options.mode}\n")
            return
        found = next((known for known in MODES if known == mode), None)
        if found is None:
            raise NotFoundError(f"no mode {mode}", hint=f"modes: {', '.join(MODES)}")
        self.options.mode = found

    def _command_width(self, value: str) -> None:
        if not value.isdigit() or int(value) < 1:
            raise InvalidStatementError(f"expected a number of characters, not {value}")
        self._text_width = int(value)

    def _command_timer(self, value: str) -> None:
        self.options.timer = _switch(value)

    def _command_echo(self, value: str) -> None:
        self.options.echo = _switch(value)

    def _command_bail(self, value: str) -> None:
        self.options.bail = _switch(value)

    def _command_read(self, name: str) -> bool:
        if self._nested_files >= NESTED_FILES_MAX:
            raise InvalidStatementError(f"{name}: files nest deeper than {NESTED_FILES_MAX}")
        file = statements_file(name)
        self._nested_files += 1
        try:
            with file:
                return self.run_lines(file, name)
        except UnicodeDecodeError as error:
            raise InvalidStatementError(f"{name} is not valid UTF-8: {error.reason}") from error
        finally:
            self._nested_files -= 1

    def _command_output(self, name: str | None = None) -> None:
        self.screen.redirect(None if name in (None, "stdout") else name)

    def _command_databases(self) -> bool:
        return self.run_text("SHOW DATABASES")

    def _command_tables(self, pattern: str | None = None) -> bool:
        like = f" LIKE '{_quoted(pattern)}'" if pattern else ""
        views = "SELECT view_name, status FROM information_schema.ins_views WHERE db_name = database()"
        named = f" AND view_name LIKE '{_quoted(pattern)}'" if pattern else ""
        return self.run_text(f"SHOW STABLES{like}; SHOW NORMAL TABLES{like}; {views}{named}")

    def _command_streams(self) -> bool:
        return self.run_text(
            "SELECT stream_name, state, verdict, target_table, rows_in, rows_out, late_rows, lag, event_time_watermark "
            "FROM information_schema.ins_streams ORDER BY stream_name"
        )

    def _command_tasks(self, stream: str | None = None) -> bool:
        where = f" WHERE stream_name = '{_quoted(stream)}'" if stream else ""
        return self.run_text(
            "SELECT stream_name, level, node_id, state, reason, blocked_by, starved_percent, busy_percent, "
            "blocked_percent, in_queue, rows_in, rows_out, "
            f"event_time_watermark FROM information_schema.ins_stream_tasks{where} ORDER BY stream_name, task_id"
        )

    def _command_top(self, seconds: str = "1") -> None:
        if not (self._interactive and self.screen.is_terminal):
            raise InvalidStatementError(".top needs a terminal", hint=".streams and .tasks work everywhere")
        if not seconds.replace(".", "", 1).isdigit() or not float(seconds):
            raise InvalidStatementError(f"expected a number of seconds, not {seconds}")
        from penstock.shell.terminal.top_command import top_of

        top_of(self.connection, float(seconds))

    def _command_schema(self, name: str | None = None) -> None:
        for statement in self._schema_statements(name):
            table = self.query(statement)
            if table is not None:
                for text in table.columns[-1].to_pylist():
                    self.screen.write(f"{text};\n")

    def _schema_statements(self, name: str | None) -> list[str]:
        database = self.connection.session.database
        if database is None:
            raise InvalidStatementError("no database is in use", hint="USE one first")
        in_database = f"WHERE db_name = '{_quoted(database)}'"
        supers = self._names(f"SELECT stable_name FROM information_schema.ins_stables {in_database}")
        normals = self._names(
            f"SELECT table_name FROM information_schema.ins_tables {in_database} AND type = 'NORMAL_TABLE'"
        )
        views = self._names(f"SELECT view_name FROM information_schema.ins_views {in_database}")
        statements = [f"SHOW CREATE STABLE `{each}`" for each in supers if name in (None, each)]
        statements += [f"SHOW CREATE TABLE `{each}`" for each in normals if name in (None, each)]
        statements += [f"SHOW CREATE VIEW `{each}`" for each in views if name in (None, each)]
        return statements or ([f"SHOW CREATE TABLE `{name}`"] if name else [])

    def _names(self, statement: str) -> list[Any]:
        table = self.query(statement)
        return [] if table is None else sorted(table.columns[0].to_pylist())


def _summary(statement: str, affected: int) -> str:
    """Returns the closing line of a statement without rows, in the words that users of taos know."""
    word = statement.split(None, 1)[0].capitalize()
    if word == "Use":
        return "Database changed."
    if word not in ("Insert", "Delete", "Create", "Drop", "Alter"):
        word = "Query"
    return f"{word} OK, {max(affected, 0)} row(s) affected"


def _measured_seconds(statement: str) -> float | None:
    """Returns how long a statement takes that takes as long as it is told to."""
    if statement.split(None, 1)[0].upper() != "EXPLAIN":
        return None
    try:
        parsed = parse_one(statement)
    except PenstockError:
        return None
    return parsed.seconds - PROGRESS_AFTER_S if isinstance(parsed, AnalyzeStream) else None


def _is_query(statement: str) -> bool:
    """Tells whether a statement only computes, so that nothing is lost when it is ended."""
    try:
        return isinstance(parse_one(statement), Query)
    except PenstockError:
        return False


def statements_file(name: str) -> TextIO:
    """Opens a file of statements. Raises NotFoundError."""
    try:
        return Path(name).expanduser().open(encoding="utf-8")
    except OSError as error:
        raise NotFoundError(f"cannot read {name}: {error.strerror}") from error


def _switch(value: str) -> bool:
    if value.lower() not in ("on", "off"):
        raise InvalidStatementError(f"expected on or off, not {value}")
    return value.lower() == "on"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
