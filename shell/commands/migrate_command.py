"""`penstock migrate-stream`: prints CREATE STREAM in the other form. It opens no data directory.

Exit codes: 0 all statements are translated, 1 some have no equal.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from penstock.common.errors import InvalidStatementError, NotFoundError, PenstockError
from penstock.planner.streams.stream_forms import Form, form_of, in_form
from penstock.shell.terminal.error_text import error_text
from penstock.sql.dialect.generator import print_sql
from penstock.sql.dialect.parser import parse
from penstock.sql.tree.statements import CreateStream, Statement

_TRANSLATED, _REFUSED = 0, 1


def run_migrate(arguments: argparse.Namespace) -> int:
    """Prints what can be translated, tells on standard error what can't, and returns the exit code."""
    text = _text(arguments)
    code = _TRANSLATED
    try:
        statements = parse(text)
    except PenstockError as error:
        sys.stderr.write(error_text(error, text, colour=sys.stderr.isatty()) + "\n")
        return _REFUSED
    for statement in statements:
        try:
            sys.stdout.write(_translated(statement, arguments.form, text))
        except PenstockError as error:
            code = _REFUSED
            sys.stderr.write(error_text(error, text, colour=sys.stderr.isatty()) + "\n")
    return code


def _text(arguments: argparse.Namespace) -> str:
    """Returns the statements that the command line names. Raises NotFoundError, InvalidStatementError."""
    if arguments.sql is not None:
        return str(arguments.sql)
    if arguments.file == "-":
        return sys.stdin.read()
    try:
        return Path(arguments.file).expanduser().read_text("utf-8")
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no file {arguments.file}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidStatementError(f"cannot read {arguments.file}: {error}") from error


def _translated(statement: Statement, form: Form | None, text: str) -> str:
    if not isinstance(statement, CreateStream):
        raise InvalidStatementError(f"CREATE STREAM is expected, not {print_sql(statement).split()[0]}",
                                    hint="leave other statements out")
    found = in_form(statement, form or ("old" if form_of(statement) == "new" else "new"), text)
    notes = "".join(f"-- {note}\n" for note in found.notes)
    return f"{notes}{print_sql(found.statement)};\n"
