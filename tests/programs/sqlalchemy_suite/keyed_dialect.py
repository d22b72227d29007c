"""The dialect for tests whose tables have no time: a column of it, which the tests don't see, is each table's first."""

from __future__ import annotations

import itertools
import re
from typing import Any, ClassVar

from sqlalchemy import TIMESTAMP, Column, MetaData, types
from sqlalchemy.schema import CreateTable

from penstock.shell.api.sqlalchemy_compiler import TableCompiler
from penstock.shell.api.sqlalchemy_dialect import PenstockDialect

_KEY = "row_ts"
_INSERT = re.compile(r"INSERT INTO (\S+) \((.*?)\) VALUES (.*)", re.DOTALL)


class KeyedTableCompiler(TableCompiler):
    """Adds the column."""

    def visit_create_table(self, create: Any, **kw: Any) -> str:
        name = self.preparer.format_table(create.element)
        table = create.element.to_metadata(MetaData())
        if any(isinstance(column.type, types.DateTime) and column.primary_key for column in table.columns):
            self.dialect.keyed.discard(name)
        else:
            self.dialect.keyed.add(name)
            for column in table.columns:
                column.primary_key = False
            table.append_column(Column(_KEY, TIMESTAMP, primary_key=True))
        return super().visit_create_table(CreateTable(table, if_not_exists=create.if_not_exists), **kw)


class KeyedDialect(PenstockDialect):
    """Gives each row another time, and keeps silent about the column."""

    ddl_compiler = KeyedTableCompiler
    supports_statement_cache = True
    keyed: ClassVar[set[str]] = set()
    _times = itertools.count(1_700_000_000_000_000)

    def do_execute(self, cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        found = _INSERT.fullmatch(statement)
        if found is not None and found[1] in self.keyed:
            statement = f"INSERT INTO {found[1]} ({_KEY}, {found[2]}) VALUES {self._keyed_rows(found[3])}"
        super().do_execute(cursor, statement, parameters, context)

    def do_executemany(self, cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        found = _INSERT.fullmatch(statement)
        if found is not None and found[1] in self.keyed:
            statement = f"INSERT INTO {found[1]} ({_KEY}, {found[2]}) VALUES (?, {found[3].removeprefix('(')}"
            parameters = [(next(self._times), *row) for row in parameters]
        super().do_executemany(cursor, statement, parameters, context)

    def _keyed_rows(self, text: str) -> str:
        """Returns rows of VALUES, each with its time."""
        depth, parts = 0, []
        for character in text:
            parts.append(character)
            if character == "(":
                depth += 1
                if depth == 1:
                    parts.append(f"{next(self._times)}, ")
            depth -= character == ")"
        return "".join(parts)

    def get_columns(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> list[Any]:
        found = super().get_columns(connection, table_name, schema, **kw)
        return [column for column in found if column["name"] != _KEY]

    def get_pk_constraint(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        return {"name": None, "constrained_columns": []}
