"""SQLAlchemy's dialect `penstock://`; `sqlalchemy.dialects` is the entry point that finds it.

`penstock:///path/to/dir` is a data directory with the engine in this process, its database in use after `?database=`;
`penstock://user:password@host:port/database` is `penstock serve`. Of a cluster all nodes are named:
`penstock://user:password@alpha,beta,gamma/database`, or, with ports,
`penstock://user:password@/database?host=alpha:8815&host=beta:8816`. Further parts of a query are keys of the
configuration, such as `timezone=UTC`. Databases are schemas, super tables are tables, tags are columns.
"""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

from sqlalchemy import exc, pool, schema
from sqlalchemy.engine import default, reflection
from sqlalchemy.engine.url import URL

import penstock
from penstock.common.errors import NotFoundError, UnavailableError
from penstock.shell.api.arrow_input import quoted_table
from penstock.shell.api.dbapi_errors import ClosedError
from penstock.shell.api.sqlalchemy_compiler import Preparer, StatementCompiler, TableCompiler
from penstock.shell.api.sqlalchemy_types import COLUMN_TYPES, TypeCompiler, reflected_type
from penstock.sql.tree.expression_nodes import quote_identifier

_NAME_BYTES = 64
_SYSTEM = "information_schema"


def _hosts(given: str | tuple[str, ...] | None) -> str | None:
    """Returns the hosts of a URL's query as `connect` takes them."""
    return given if given is None or isinstance(given, str) else ",".join(given)


class PenstockDialect(default.DefaultDialect):
    """Connections, and what is found out of databases and tables. There are no transactions: commit and rollback do
    nothing, a statement that returned is durable.
    """

    name = "penstock"
    driver = "penstock"
    default_paramstyle = "qmark"
    statement_compiler = StatementCompiler
    ddl_compiler = TableCompiler
    type_compiler_cls = TypeCompiler
    preparer = Preparer
    colspecs = COLUMN_TYPES
    construct_arguments = [(schema.Column, {"tag": False})]  # noqa: RUF012 (as the base class has it)
    supports_statement_cache = True
    supports_native_boolean = True
    supports_native_decimal = True
    supports_native_enum = False
    supports_multivalues_insert = True
    supports_sane_rowcount = False
    supports_sane_multi_rowcount = False
    supports_default_values = False
    supports_alter = False
    supports_comments = True
    inline_comments = True
    postfetch_lastrowid = False
    div_is_floordiv = False
    max_identifier_length = _NAME_BYTES

    @classmethod
    def import_dbapi(cls) -> ModuleType:
        return penstock

    @classmethod
    def get_pool_class(cls, url: URL) -> Any:
        return pool.QueuePool

    def create_connect_args(self, url: URL) -> tuple[list[Any], dict[str, Any]]:
        """Returns what `connect` takes for a URL: see the module."""
        query = {key: value if isinstance(value, str) else value[-1] for key, value in url.query.items()}
        arguments: dict[str, Any] = {"database": query.pop("database", None), "path": url.database or "./penstock-data"}
        host = url.host or _hosts(url.query.get("host"))
        query.pop("host", None)
        if host is not None:
            arguments = {"host": host, "port": url.port, "user": url.username, "password": url.password,
                         "tls_roots": query.pop("tls_roots", None), "database": url.database}
        return [], {**arguments, "config": query or None}

    def connect(self, *arguments: Any, **more: Any) -> Any:
        """Opens a connection, with its database in use."""
        database = more.pop("database", None)
        connection = penstock.connect(*arguments, **more)
        if database is not None:
            try:
                connection.execute(f"USE {quote_identifier(database)}")
            except penstock.Error:
                connection.close()
                raise
        return connection

    def do_rollback(self, dbapi_connection: Any) -> None:
        """Does nothing."""

    def do_execute(self, cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        if statement:  # nothing is left of indexes and constraints
            cursor.execute(statement, parameters)

    def do_execute_no_params(self, cursor: Any, statement: str, context: Any = None) -> None:
        self.do_execute(cursor, statement, ())

    def is_disconnect(self, e: BaseException, connection: Any, cursor: Any) -> bool:
        return isinstance(e, UnavailableError | ClosedError)

    # --- reflection --------------------------------------------------------------------------------------------

    def _get_server_version_info(self, connection: Any) -> tuple[int, ...]:
        version = connection.exec_driver_sql("SELECT penstock_version()").scalar()
        return tuple(int(part) for part in re.findall(r"\d+", version))

    def _get_default_schema_name(self, connection: Any) -> str | None:
        name: str | None = connection.exec_driver_sql("SELECT database()").scalar()
        return name

    def _database(self, wanted: str | None) -> str | None:
        return wanted or self.default_schema_name

    @reflection.cache
    def get_schema_names(self, connection: Any, **kw: Any) -> list[str]:
        """Returns the databases."""
        return [row[0] for row in connection.exec_driver_sql(f"SELECT name FROM {_SYSTEM}.ins_databases")]

    @reflection.cache
    def get_table_names(self, connection: Any, schema: str | None = None, **kw: Any) -> list[str]:
        """Returns super tables and normal tables. Child tables, of which there may be millions, are found by name."""
        database = self._database(schema)
        rows = [
            *connection.exec_driver_sql(
                f"SELECT stable_name FROM {_SYSTEM}.ins_stables WHERE db_name = ?", (database,)),
            *connection.exec_driver_sql(
                f"SELECT table_name FROM {_SYSTEM}.ins_tables WHERE db_name = ? AND type <> 'CHILD_TABLE'",
                (database,)),
        ]
        return sorted(row[0] for row in rows)

    @reflection.cache
    def get_view_names(self, connection: Any, schema: str | None = None, **kw: Any) -> list[str]:
        rows = connection.exec_driver_sql(
            f"SELECT view_name FROM {_SYSTEM}.ins_views WHERE db_name = ?", (self._database(schema),))
        return sorted(row[0] for row in rows)

    @reflection.cache
    def get_view_definition(self, connection: Any, view_name: str, schema: str | None = None, **kw: Any) -> str:
        row = connection.exec_driver_sql(
            f"SELECT sql FROM {_SYSTEM}.ins_views WHERE db_name = ? AND view_name = ?",
            (self._database(schema), view_name)).first()
        if row is None:
            raise exc.NoSuchTableError(view_name)
        return str(row[0])

    def get_temp_table_names(self, connection: Any, schema: str | None = None, **kw: Any) -> list[str]:
        return []

    get_temp_view_names = get_materialized_view_names = get_temp_table_names

    @reflection.cache
    def has_table(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> bool:
        try:
            self._described(connection, table_name, schema)
        except exc.NoSuchTableError:
            return False
        return True

    @reflection.cache
    def get_columns(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> list[Any]:
        """Returns columns and tags; tags have `penstock_tag`."""
        notes = self._described(connection, table_name, schema)
        name = self._full_name(table_name, schema)
        described = {row[0]: row for row in self._cursor_description(connection, f"SELECT * FROM {name} LIMIT 0")}
        return [
            {"name": column, "type": reflected_type(kind, length, *described.get(column, (None,) * 6)[4:6]),
             "nullable": place > 0 and note != "PRIMARY KEY", "default": None, "autoincrement": False,
             "comment": None, "dialect_options": {"penstock_tag": note == "TAG"}}
            for place, (column, kind, length, note, *_) in enumerate(notes)]

    @reflection.cache
    def get_pk_constraint(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        """Returns the key of a child or normal table: its time, and the column that makes it composite."""
        notes = self._described(connection, table_name, schema)
        return {"name": None, "constrained_columns": [
            row[0] for place, row in enumerate(notes) if place == 0 or row[3] == "PRIMARY KEY"]}

    @reflection.cache
    def get_foreign_keys(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> list[Any]:
        self._described(connection, table_name, schema)
        return []

    get_indexes = get_unique_constraints = get_check_constraints = get_foreign_keys

    @reflection.cache
    def get_table_comment(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        self._described(connection, table_name, schema)
        for table, column in (("ins_stables", "stable_name"), ("ins_tables", "table_name")):
            row = connection.exec_driver_sql(
                f"SELECT table_comment FROM {_SYSTEM}.{table} WHERE db_name = ? AND {column} = ?",
                (self._database(schema), table_name)).first()
            if row is not None:
                return {"text": row[0] or None}
        return {"text": None}

    def _full_name(self, table_name: str, wanted: str | None) -> str:
        return quoted_table(table_name, self._database(wanted))

    def _described(self, connection: Any, table_name: str, wanted: str | None) -> list[Any]:
        """Returns what DESCRIBE says. Raises NoSuchTableError."""
        try:
            return list(connection.exec_driver_sql(f"DESCRIBE {self._full_name(table_name, wanted)}"))
        except exc.DBAPIError as error:
            if isinstance(error.orig, NotFoundError):
                raise exc.NoSuchTableError(table_name) from error
            raise

    def _cursor_description(self, connection: Any, query: str) -> Any:
        result = connection.exec_driver_sql(query)
        try:
            return result.cursor.description
        finally:
            result.close()
