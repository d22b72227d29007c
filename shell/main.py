"""The command `penstock`: its options, its sub-commands, and exit codes (0 done, 1 failed, 2 wrongly called)."""

from __future__ import annotations

import argparse
import getpass
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import __version__
from penstock.common.allocators import share_heaps_between_threads
from penstock.common.config import Config, load_config, parse_assignment
from penstock.common.errors import ConfigError
from penstock.shell.commands.command_options import (
    add_dump_options,
    add_fsck_options,
    add_generate_options,
    add_import_options,
    add_migrate_options,
    add_restore_options,
    add_serve_options,
    add_verify_options,
)
from penstock.shell.terminal.error_text import error_text, trace_text

if TYPE_CHECKING:
    from penstock.shell.api.dbapi import Connection
    from penstock.shell.terminal.result_format import Mode
    from penstock.shell.terminal.shell_session import ShellSession

DONE, FAILED, WRONGLY_CALLED = 0, 1, 2
DEFAULT_DATA = "./penstock-data"


@dataclass(frozen=True, slots=True)
class SubCommand:
    """A sub-command: `add_options` declares what `run` reads; `run` returns the exit code.

    `failed`: the exit code if `run` raises something.
    """

    name: str
    help: str
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    failed: int = FAILED


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code. Without a sub-command it is the SQL shell."""
    options = _parser().parse_args(arguments)
    try:
        return _run_safely(options) if options.safe_mode else int(options.run(options))
    except ConfigError as error:
        _complain(error, options.debug)
        return WRONGLY_CALLED
    except BrokenPipeError:  # the reader of our output, such as `head`, has had enough
        sys.stdout = None  # nothing is left to flush
        return DONE
    except KeyboardInterrupt:
        return int(options.failed)
    except Exception as error:  # noqa: BLE001 - users see an explanation, whatever went wrong
        _complain(error, options.debug)
        return int(options.failed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock",
        description="A SQL stream engine for time series. Without a command: the SQL shell.",
        epilog="Configuration keys, for --conf and --set: docs/configuration.md or `penstock config`.",
    )
    parser.add_argument("-V", "--version", action="version", version=f"penstock {__version__}")
    _add_engine_options(parser)
    _add_shell_options(parser)
    parser.set_defaults(run=_run_shell, failed=FAILED)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in SUB_COMMANDS:
        # A command's own meaning of a letter comes before that of all commands, such as -d of `generate`.
        child = commands.add_parser(
            command.name, help=command.help, description=command.help, conflict_handler="resolve")
        _add_engine_options(child, repeated=True)
        command.add_options(child)
        child.set_defaults(run=command.run, failed=command.failed)
    return parser


def _add_engine_options(parser: argparse.ArgumentParser, *, repeated: bool = False) -> None:
    """Declares what every command takes; `repeated` keeps what was given before the sub-command's name."""

    def default(value: object) -> object:
        return argparse.SUPPRESS if repeated else value

    parser.add_argument("-d", "--data", metavar="DIR", default=default(DEFAULT_DATA),
                        help=f"data directory (default {DEFAULT_DATA})")
    parser.add_argument("--conf", metavar="FILE", default=default(None), help="configuration file")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=default([]), dest="settings",
                        help="set one configuration key; may be repeated")
    parser.add_argument("--safe-mode", action="store_true", default=default(False),
                        help="open the data directory without streams and Spark, and discard all changes")
    parser.add_argument("--debug", action="store_true", default=default(False),
                        help="show the traceback of an error")


def _add_server_options(parser: argparse.ArgumentParser, *, repeated: bool = False) -> None:
    """Declares how a server is reached; `repeated` keeps what was given before the sub-command's name."""
    default = argparse.SUPPRESS if repeated else None
    parser.add_argument("--host", metavar="HOST", default=default,
                        help="connect to a server instead of opening --data: host names of its nodes, separated by "
                             "commas, or unix:PATH for its socket")
    parser.add_argument("--port", metavar="PORT", type=int, default=default,
                        help="port of the server (default: flightPort)")
    parser.add_argument("--user", metavar="USER", default=default, help="log in as this user; prompts for the password")
    parser.add_argument("--password-file", metavar="FILE", default=default,
                        help="read the password from the first line of this file")
    parser.add_argument("--tls-roots", metavar="FILE", default=default,
                        help="use TLS; PEM file with the trusted certificates")


def _add_shell_options(parser: argparse.ArgumentParser) -> None:
    _add_server_options(parser)
    parser.add_argument("-c", "-s", "--sql", metavar="SQL", action="append",
                        help="run these statements and exit; may be repeated")
    parser.add_argument("-f", "--file", metavar="FILE", help="run the statements of a file and exit")
    for mode in ("csv", "json", "jsonlines", "line", "markdown"):
        parser.add_argument(f"--{mode}", action="store_const", const=mode, dest="mode", default="box",
                            help=f"show results as {mode}")


def _run_safely(options: argparse.Namespace) -> int:
    """Runs a command on a stand-in of the data directory."""
    from penstock.shell.commands.safe_mode import stand_in

    data = Path(options.data).expanduser()
    with stand_in(data) as options.data:
        sys.stderr.write(f"safe mode: {data} stays as it is, what is changed is thrown away\n")
        return int(options.run(options))


def _config(options: argparse.Namespace) -> Config:
    settings = dict(map(parse_assignment, options.settings))
    return load_config(options.conf, {**settings, "disableStream": "true"} if options.safe_mode else settings)


def _complain(error: Exception, debug: bool) -> None:
    sys.stderr.write(error_text(error, colour=sys.stderr.isatty()) + "\n")
    if debug:
        sys.stderr.write(trace_text(error) + "\n")


# --- the shell ---------------------------------------------------------------------------------------------


def _run_shell(options: argparse.Namespace) -> int:
    from penstock.shell.terminal.screen import Screen
    from penstock.shell.terminal.shell_session import Quit, ShellOptions, ShellSession, statements_file

    config = _config(options)
    if options.file is not None:
        statements_file(options.file).close()  # else a misspelt name would make a data directory first
    interactive = options.sql is None and options.file is None and sys.stdin.isatty()
    mode: Mode = options.mode
    screen = Screen(sys.stdout, sys.stderr)
    where = f"data in {options.data}" if options.host is None else f"connected to {options.host}"
    connection = _connection(options, config)
    settings = ShellOptions(mode=mode, debug=options.debug)
    session = ShellSession(connection, config, screen, settings, interactive=interactive)
    try:
        if interactive:
            return _run_interactively(session, config, where)
        return DONE if _run_input(session, options) else FAILED
    except Quit:
        return DONE
    finally:
        screen.redirect(None)
        with screen.progress("closing" if options.host is not None else "closing: streams write a last checkpoint"):
            connection.close()


def _connection(options: argparse.Namespace, config: Config) -> Connection:
    """Returns a connection to the server that the options name, or to the data directory."""
    from penstock.shell.api.dbapi import connect

    return connect(options.data, config, host=options.host, port=options.port, user=options.user,
                   password=_password(options), tls_roots=options.tls_roots)


def _login(options: argparse.Namespace) -> tuple[str, str] | None:
    """Returns user and password, if --user is given."""
    password = _password(options)
    return None if password is None else (options.user, password)


def _password(options: argparse.Namespace) -> str | None:
    """Returns the password of --user, asked for at the terminal if no file has it. Raises ConfigError."""
    if options.user is None:
        return None
    if options.password_file is None:
        if not sys.stdin.isatty():
            raise ConfigError("there is no terminal to ask for the password", hint="name a file with --password-file")
        return getpass.getpass(f"Password of {options.user}: ")
    try:
        return Path(options.password_file).expanduser().read_text("utf-8").partition("\n")[0]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the password in {options.password_file}: {error}") from error


def _run_interactively(session: ShellSession, config: Config, where: str) -> int:
    from penstock.shell.terminal.repl import run_prompt

    session.screen.write(f"Penstock {__version__}, {where}. Statements end with ;  .help lists commands.\n")
    if config.disable_stream:
        session.screen.write("Safe mode: no stream runs (disableStream). SHOW STREAMS and .tasks tell what would.\n")
    session.screen.write("\n")
    run_prompt(session, config.history_file)
    return DONE


def _run_input(session: ShellSession, options: argparse.Namespace) -> bool:
    if options.sql is not None:
        return all(session.run_text(text) for text in options.sql)
    if options.file is not None:
        return session.run_file(options.file)
    return session.run_lines(sys.stdin, "stdin")


# --- other commands ----------------------------------------------------------------------------------------


def _no_options(parser: argparse.ArgumentParser) -> None:
    """For sub-commands that take none besides the engine's."""


def _add_test_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="YAML files; docs/testing.md describes them")


def _run_tests(options: argparse.Namespace) -> int:
    from penstock.shell.commands.stream_test import run_file

    outcomes = [outcome for file in options.files for outcome in run_file(Path(file))]
    for outcome in outcomes:
        sys.stdout.write(f"FAIL {outcome.name}\n  {outcome.problem}\n" if outcome.problem else f"ok   {outcome.name}\n")
    failed = sum(bool(outcome.problem) for outcome in outcomes)
    sys.stdout.write(f"{len(outcomes) - failed} passed, {failed} failed\n")
    return FAILED if failed else DONE


def _run_views(options: argparse.Namespace) -> int:
    from penstock.shell.commands.views_command import refresh_views

    sys.stdout.write(refresh_views(Path(options.data), _config(options)))
    return DONE


def _run_config(options: argparse.Namespace) -> int:
    sys.stdout.writelines(f"{name} = {value}\n" for name, value in _config(options).items())
    return DONE


def _run_import(options: argparse.Namespace) -> int:
    from penstock.shell.commands.import_command import run_import

    return run_import(options, _config(options))


def _add_generate_options(parser: argparse.ArgumentParser) -> None:
    add_generate_options(parser)
    _add_server_options(parser, repeated=True)


def _run_generate(options: argparse.Namespace) -> int:
    from penstock.shell.commands.generate_command import run_generate

    with _connection(options, _config(options)) as connection:
        return run_generate(options, connection)


def _run_dump(options: argparse.Namespace) -> int:
    from penstock.shell.commands.dump_command import run_dump

    return run_dump(options, _config(options))


def _run_restore(options: argparse.Namespace) -> int:
    from penstock.shell.commands.restore_command import run_restore

    return run_restore(options, _config(options))


def _run_fsck(options: argparse.Namespace) -> int:
    from penstock.shell.commands.fsck_command import run_fsck

    return run_fsck(options)


def _run_verify(options: argparse.Namespace) -> int:
    from penstock.shell.commands.verify_command import run_verify

    return run_verify(options, _config(options))


def _run_migrate(options: argparse.Namespace) -> int:
    from penstock.shell.commands.migrate_command import run_migrate

    return run_migrate(options)


def _run_serve(options: argparse.Namespace) -> int:
    share_heaps_between_threads()  # before pyarrow comes with what is imported next
    from penstock.shell.commands.serve_command import run_serve

    return run_serve(options, _config(options))


def _add_top_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", metavar="URL", help="web page of a running engine: http://HOST and its uiPort")
    parser.add_argument("--user", metavar="USER", help="log in as this user; prompts for the password")
    parser.add_argument("--password-file", metavar="FILE", help="read the password from the first line of this file")
    parser.add_argument("--interval", metavar="SECONDS", type=_positive, default=1.0, help="time between updates (1)")


def _positive(text: str) -> float:
    if float(text) <= 0:
        raise argparse.ArgumentTypeError("more than 0 is expected")
    return float(text)


def _run_top(options: argparse.Namespace) -> int:
    from penstock.shell.terminal.top_command import show_top

    show_top(options, _config(options), _login(options))
    return DONE


def _add_switchover_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", type=int, metavar="NODE", help="number of the node that becomes active")
    _add_server_options(parser, repeated=True)


def _run_switchover(options: argparse.Namespace) -> int:
    from penstock.shell.commands.cluster_commands import run_switchover

    return run_switchover(_connection(options, _config(options)), options.node)


def _add_promote_options(parser: argparse.ArgumentParser) -> None:
    _add_server_options(parser, repeated=True)


def _run_promote(options: argparse.Namespace) -> int:
    from penstock.shell.commands.cluster_commands import run_promote

    return run_promote(_connection(options, _config(options)))


SUB_COMMANDS: tuple[SubCommand, ...] = (
    SubCommand("views", "Write views.sql and views.duckdb, by which other DuckDB processes read tables.", _no_options,
               _run_views),
    SubCommand("test", "Run tests of streams in a sandbox with a virtual clock.", _add_test_options, _run_tests),
    SubCommand("import", "Import CSV, Parquet, Arrow or line protocol files into a table.", add_import_options,
               _run_import),
    SubCommand("generate", "Fill a database with generated rows and print the speed, as taosBenchmark does.",
               _add_generate_options, _run_generate),
    SubCommand("dump", "Write schema, rows and streams to files, with or without a running engine.",
               add_dump_options, _run_dump),
    SubCommand("restore", "Restore a dump of `penstock dump` into a data directory.", add_restore_options,
               _run_restore),
    SubCommand("serve", "Serve a data directory to other programs until SIGTERM.",
               add_serve_options, _run_serve),
    SubCommand("switchover", "Let the active node of a cluster, named by --host, hand over to another node.",
               _add_switchover_options, _run_switchover),
    SubCommand("promote", "Make the node named by --host active, if no other is, even if it lacks rows.",
               _add_promote_options, _run_promote),
    SubCommand("top", "Monitor streams and tasks live; keys pause and resume streams.", _add_top_options, _run_top),
    SubCommand("fsck", "Check a data directory, and repair it with --repair.", add_fsck_options, _run_fsck),
    SubCommand("verify", "Compare the results of streams with their queries, while no engine runs.",
               add_verify_options, _run_verify, failed=WRONGLY_CALLED),
    SubCommand("migrate-stream", "Print CREATE STREAM statements in the other of their two forms, with differences.",
               add_migrate_options, _run_migrate),
    SubCommand("config", "Print every configuration key with its value.", _no_options, _run_config),
)
