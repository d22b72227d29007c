"""TDengine's REST connector, plain or under SQLAlchemy: answers statements that come as lines of JSON."""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from collections.abc import Callable
from unittest.mock import MagicMock

import taosrest
from kits.basics.answer_text import change_text, error_text, rows_text

Ask = Callable[[str], str]


def plain(port: int, user: str, password: str, database: str) -> Ask:
    """Asks through a cursor of the connector."""
    connection = taosrest.connect(url=f"http://127.0.0.1:{port}", user=user, password=password, database=database,
                                  timezone="UTC")

    def ask(statement: str) -> str:
        cursor = connection.cursor()
        try:
            cursor.execute(statement)
        except taosrest.errors.ConnectError as error:
            return error_text(error.errno, error.msg)
        if cursor.affected_rows is not None:
            return change_text(statement, cursor.affected_rows)
        return rows_text([column[0] for column in cursor.description], cursor.fetchall())

    return ask


def alchemy(port: int, user: str, password: str, database: str) -> Ask:
    """Asks through the connector's dialect for SQLAlchemy."""
    # The dialect loads TDengine's native library, which it calls nothing of but its version; no registry has it.
    load = ctypes.CDLL
    library = MagicMock()
    library.taos_get_client_info.return_value = b"3.3.6.0"
    ctypes.CDLL = lambda name, *rest, **more: library if name == "libtaos.so" else load(name, *rest, **more)  # type: ignore[misc,assignment]
    import sqlalchemy

    url = sqlalchemy.URL.create("taosrest", user, password, "127.0.0.1", port, database)
    engine = sqlalchemy.create_engine(url)

    def ask(statement: str) -> str:
        if statement == "tables":
            return json.dumps(sorted(sqlalchemy.inspect(engine).get_table_names(database)))
        if statement.startswith("columns of "):
            columns = sqlalchemy.inspect(engine).get_columns(statement.removeprefix("columns of "), database)
            return json.dumps([[column["name"], str(column["type"])] for column in columns])
        try:
            with engine.connect() as connection:
                result = connection.exec_driver_sql(statement)
                names = list(result.keys()) if result.returns_rows else []
                if names == ["affected_rows"]:
                    return change_text(statement, result.fetchall()[0][0])
                return rows_text(names, [tuple(row) for row in result.fetchall()])
        except sqlalchemy.exc.DBAPIError as error:
            return error_text(error.orig.errno, error.orig.msg)

    return ask


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("plain", "alchemy"))
    parser.add_argument("port", type=int)
    for word in ("user", "password", "database"):
        parser.add_argument(word)
    options = parser.parse_args()
    make = plain if options.kind == "plain" else alchemy
    answer = make(options.port, options.user, options.password, options.database)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
