"""TDengine's connectors, by REST, under SQLAlchemy or by WebSocket: answer statements that come as lines of JSON."""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock
from urllib.parse import quote

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


def by_socket(port: int, user: str, password: str, database: str) -> Ask:
    """Asks through a cursor of the connector for WebSocket."""
    import taosws

    url = f"ws://{user}:{quote(password)}@127.0.0.1:{port}?timezone=UTC"
    cursor = taosws.connect(url).cursor()
    asked: list[str] = []

    def ask(statement: str) -> str:
        if len(asked) == 1:  # the first one has made the database
            cursor.execute(f"USE {database}")
        asked.append(statement)
        try:
            cursor.execute(statement)
            names = [column[0] for column in cursor.description]
            return rows_text(names, cursor.fetchall()) if names else change_text(statement, cursor.row_count)
        except taosws.Error as error:
            code, text = re.findall(r"\[0x(\w+)\] (?:Internal error: )?`(.*)`", str(error), re.DOTALL)[0]
            return error_text(int(code, 16), text)

    return ask


def bound(port: int, user: str, password: str, database: str) -> Ask:
    """Executes prepared statements of the connector for WebSocket: [statement, [[table, tags, columns], ...]], where
    tags and columns are [name of the function that makes them, value].
    """
    import taosws

    connection = taosws.connect(f"ws://{user}:{quote(password)}@127.0.0.1:{port}/{database}?timezone=UTC")

    def make(values: list[Any]) -> Any:
        return getattr(taosws, values[0])(values[1])

    def ask(text: str) -> str:
        sql, tables = json.loads(text)
        statement = connection.stmt2_statement()
        statement.prepare(sql)
        statement.bind([taosws.stmt2_bind_param_view(table, tags and list(map(make, tags)), list(map(make, columns)))
                        for table, tags, columns in tables])
        affected = statement.execute()
        rows = [list(row) for row in statement.result_set()] if sql.lower().startswith("select") else affected
        return json.dumps(rows, default=str)

    return ask


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("plain", "alchemy", "by_socket", "bound"))
    parser.add_argument("port", type=int)
    for word in ("user", "password", "database"):
        parser.add_argument(word)
    options = parser.parse_args()
    make = {"plain": plain, "alchemy": alchemy, "by_socket": by_socket, "bound": bound}[options.kind]
    answer = make(options.port, options.user, options.password, options.database)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
