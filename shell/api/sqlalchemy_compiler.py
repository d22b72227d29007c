"""What SQLAlchemy's expressions and tables are in the dialect."""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import exc, types
from sqlalchemy.sql import compiler

from penstock.shell.api.sqlalchemy_types import written

_ALL_ROWS = 2**63 - 1
_QUALIFIED = re.compile(r"`(?:[^`]|``)+`\.(`(?:[^`]|``)+`)")


class Preparer(compiler.IdentifierPreparer):
    """Names in back-quotes. Pseudo columns, which begin with an underscore, are known only without."""

    def __init__(self, dialect: Any, **more: Any) -> None:
        super().__init__(dialect, initial_quote="`", escape_quote="`", **more)

    def _requires_quotes(self, value: str) -> bool:
        return not value.startswith("_") or super()._requires_quotes(value)


class StatementCompiler(compiler.SQLCompiler):
    """Expressions and statements. Raises CompileError for what the dialect doesn't have."""

    def visit_column(self, column: Any, *arguments: Any, **kw: Any) -> str:
        text: str = super().visit_column(column, *arguments, **kw)
        table = column.table
        if table is None or not kw.get("include_table", True) or getattr(table, "schema", None) is None:
            return text
        # Columns are named by their table alone, without its database.
        prefix = f"{self.preparer.quote_schema(self.preparer.schema_for_object(table))}."
        return text.removeprefix(prefix)

    def _label_select_column(self, *arguments: Any, **more: Any) -> str:
        # A result column without alias is called as it is written, with its table.
        text: str = super()._label_select_column(*arguments, **more)
        found = _QUALIFIED.fullmatch(text)
        return text if found is None else f"{text} AS {found[1]}"

    def limit_clause(self, select: Any, **kw: Any) -> str:
        limit, offset = select._limit_clause, select._offset_clause
        text = ""
        if limit is not None or offset is not None:
            text = f"\n LIMIT {_ALL_ROWS if limit is None else self.process(limit, **kw)}"
        return text if offset is None else f"{text} OFFSET {self.process(offset, **kw)}"

    for_update_clause, visit_empty_set_expr, visit_now_func = written(""), written("NULL"), written("now()")

    def visit_concat_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        return f"concat({self.process(binary.left, **kw)}, {self.process(binary.right, **kw)})"

    def visit_concat_op_expression_clauselist(self, clauselist: Any, operator: Any, **kw: Any) -> str:
        return f"concat({', '.join(self.process(part, **kw) for part in clauselist.clauses)})"

    def _like(self, words: str, binary: Any, **kw: Any) -> str:
        if binary.modifiers.get("escape") is not None:
            raise exc.CompileError("ESCAPE is not supported: use a backslash")
        return f"{self.process(binary.left, **kw)} {words} {self.process(binary.right, **kw)}"

    def visit_like_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        return self._like("LIKE", binary, **kw)

    def visit_not_like_op_binary(self, binary: Any, operator: Any, **kw: Any) -> str:
        return self._like("NOT LIKE", binary, **kw)

    def visit_update(self, update_stmt: Any, *arguments: Any, **kw: Any) -> str:
        raise exc.CompileError("UPDATE is not supported: an INSERT with the same time changes the named columns")

    def visit_cte(self, cte: Any, *arguments: Any, **kw: Any) -> str:
        raise exc.CompileError("WITH is not supported: use select(...).subquery()")

    def render_literal_value(self, value: Any, type_: Any) -> str:
        text: str = super().render_literal_value(value, type_)
        return text.replace("\\", "\\\\") if isinstance(value, str) else text


class TableCompiler(compiler.DDLCompiler):
    """CREATE TABLE and its like; the first timestamp of a table, or the one in its primary key, is its first column.

    Columns with `penstock_tag=True` are tags, and make the table a super table. What Penstock doesn't keep is left out:
    indexes, foreign keys, UNIQUE, CHECK, NOT NULL, defaults of the server.
    """

    def visit_create_table(self, create: Any, **kw: Any) -> str:
        table = create.element
        tags = [column for column in table.columns if column.dialect_options["penstock"]["tag"]]
        columns = [column for column in table.columns if column not in tags]
        times = [column for column in columns if isinstance(column.type, types.DateTime)]
        key = next((column for column in times if column.primary_key), times[0] if times else None)
        if key is None:
            raise exc.CompileError(
                f"table {table.name}: no column is a timestamp, which the first column of a table must be")
        columns.sort(key=lambda column: column is not key)
        # A composite key is the time and the column after it.
        composite = next((column for column in columns[1:2] if column.primary_key and key.primary_key), None)
        body = ", ".join(self._definition(column) + (" PRIMARY KEY" if column is composite else "")
                         for column in columns)
        exists = "IF NOT EXISTS " if create.if_not_exists else ""
        text = f"CREATE {'STABLE' if tags else 'TABLE'} {exists}{self.preparer.format_table(table)} ({body})"
        if tags:
            text += f" TAGS ({', '.join(map(self._definition, tags))})"
        if table.comment is not None:
            text += f" COMMENT {self.sql_compiler.render_literal_value(table.comment, types.String())}"
        return text

    def _definition(self, column: Any) -> str:
        kind = self.dialect.type_compiler_instance.process(column.type, type_expression=column)
        return f"{self.preparer.format_column(column)} {kind}"

    def visit_create_schema(self, create: Any, **kw: Any) -> str:
        exists = "IF NOT EXISTS " if create.if_not_exists else ""
        return f"CREATE DATABASE {exists}{self.preparer.format_schema(create.element)}"

    def visit_drop_schema(self, drop: Any, **kw: Any) -> str:
        exists = "IF EXISTS " if drop.if_exists else ""
        return f"DROP DATABASE {exists}{self.preparer.format_schema(drop.element)}"

    visit_create_index = visit_drop_index = visit_add_constraint = visit_drop_constraint = written("")
