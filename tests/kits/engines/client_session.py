"""One session of SQL that every kind of client runs, and the answers and errors that all must get.

Errors have the number by which clients of TDengine know them; who knows none compares the texts behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kits.basics.answer_text import change_text, error_text, rows_text
from kits.basics.golden_runner import run_golden
from kits.basics.places import TESTS
from kits.engines.threaded import Threaded

from penstock.common.errors import PenstockError
from penstock.mnode.http.taos_codes import code_of

SESSION = TESTS / "golden" / "clients" / "session.txt"
DATABASE = "power"
PASSWORD = "correct:horse"
#: The result of the session's stream, and how many rows it has when the stream has seen everything.
_RESULT, _RESULT_ROWS = "minutes", 5

Ask = Callable[[str], str]
"""Sends a statement through a client; returns what `rows_text`, `change_text` or `error_text` makes of the answer."""


@contextmanager
def session_engine(data: Path) -> Iterator[Threaded]:
    """Gives an engine for the session, into which ada may log in."""
    opened = Threaded(data)
    opened.run(f"CREATE USER ada PASS '{PASSWORD}' ROLE admin")
    yield opened
    opened.engine.close()


def run_session(engine: Threaded, ask: Ask) -> None:
    """Holds a client's answers against the golden ones. The session leaves nothing behind in the engine."""
    def evaluate(statement: str) -> str:
        if f"FROM {_RESULT} " in statement:
            engine.until(lambda: engine.run(f"SELECT count(*) FROM {DATABASE}.{_RESULT}") == [(_RESULT_ROWS,)])
        return ask(statement)

    run_golden(SESSION, evaluate)


def ask_engine(engine: Threaded) -> Ask:
    """Asks as the shell does: its errors, its rows."""
    def ask(statement: str) -> str:
        try:
            result = engine.engine.execute(statement, engine.session)
        except PenstockError as error:
            return error_text(code_of(error), error.text)
        if result.table is None:
            return change_text(statement, result.affected)
        rows = zip(*[column.to_pylist() for column in result.table.columns], strict=True)
        return rows_text([column.name for column in result.columns], rows)

    return ask
