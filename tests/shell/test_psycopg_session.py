"""The session of statements that all clients are held against, by psycopg."""

from __future__ import annotations

import re
from collections.abc import Iterator

import psycopg
import pytest
from kits.basics.answer_text import change_text, error_text, rows_text
from kits.engines.client_session import DATABASE, PASSWORD, Ask, run_session, session_engine
from kits.engines.threaded import Threaded

from penstock.common.config import load_config
from penstock.shell.postgres.postgres_server import PostgresServer

#: What TDengine's clients get for errors without a number of their own, by SQLSTATE.
_NUMBERS = {"22023": 0x2605}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Threaded]:
    with session_engine(tmp_path_factory.mktemp("psycopg") / "data") as opened:
        yield opened


@pytest.fixture(scope="module")
def port(engine: Threaded) -> Iterator[int]:
    server = PostgresServer(engine.engine, load_config({}, environment={}), 0)
    yield server.port
    server.close()


def ask_psycopg(connection: psycopg.Connection[tuple[object, ...]], *, binary: bool) -> Ask:
    """Asks by simple queries, whose answers are text, or by extended ones with binary answers."""
    def ask(statement: str) -> str:
        try:
            cursor = connection.execute(statement, binary=binary)
        except psycopg.Error as error:
            return _error_text(statement, error.diag)
        if cursor.description is None:
            return change_text(statement, cursor.rowcount)
        return rows_text([column.name for column in cursor.description], cursor)

    return ask


def _error_text(statement: str, told: psycopg.errors.Diagnostic) -> str:
    """Returns the shell's text of an error, put together of what PostgreSQL's protocol tells in parts."""
    primary = re.fullmatch(r"(?:\[0x(\w+)\] )?(.*)", told.message_primary or "", re.DOTALL)
    assert primary is not None
    text = primary[2]
    number = _NUMBERS[str(told.sqlstate)] if primary[1] is None else int(primary[1], 16)
    if told.statement_position is not None:
        before, behind = statement[:int(told.statement_position) - 1], statement[int(told.statement_position) - 1:]
        word = re.match(r"\w+|.", behind)
        assert word is not None
        text += f" at line {before.count(chr(10)) + 1}, column {len(before.rpartition(chr(10))[2]) + 1}: {word[0]!r}"
    return error_text(number, f"{text} ({told.message_hint})" if told.message_hint else text)


@pytest.mark.parametrize("binary", [False, True], ids=["simple", "extended"])
def test_psycopg_gets_the_answers_of_the_shell(engine: Threaded, port: int, binary: bool) -> None:
    """Rows, numbers of rows, and errors with their numbers, places and hints."""
    with psycopg.connect(host="127.0.0.1", port=port, user="ada", password=PASSWORD,
                         autocommit=True) as connection:
        ask = ask_psycopg(connection, binary=binary)
        first = True

        def evaluate(statement: str) -> str:
            nonlocal first
            answer = ask(statement.replace(r"\\", "\\"))  # a backslash stands for itself in PostgreSQL's texts
            if first:
                first = False
                ask(f"USE {DATABASE}")
            return answer

        run_session(engine, evaluate)
