"""Queries over PostgreSQL's catalog: which ones they are, by the tables and functions in them, and their answers.

They are PostgreSQL's SQL, not the dialect: sqlglot reads them, and a DuckDB of their own, without a way to files, runs
them over the tables of `catalog_tables`.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import duckdb
import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokens import TokenType

from penstock.common.closed_duckdb import SMALL_BYTES, DuckdbBounds, RenewableDuckdb, closed_duckdb
from penstock.common.errors import BusyError, InvalidStatementError, LimitExceededError
from penstock.mnode.query.activity import Running
from penstock.planner.task_plans.plan_tree import ResultColumn
from penstock.shell.postgres.catalog_schema import EMPTY_TABLES, FUNCTION_NAMES, statements
from penstock.shell.postgres.catalog_tables import TABLE_NAMES, PostgresCatalog, catalog_table
from penstock.shell.postgres.client_settings import VERSION_TEXT
from penstock.sql.types import BIGINT, BOOL, DataType, Kind, other_type

_AT_ONCE = 2
_ROWS_MAX = 1_000_000
_TEXT_MAX = 100_000
_PG_CATALOG, _INFORMATION_SCHEMA, _INFO = "pg_catalog", "information_schema", "info_"
_KNOWN = TABLE_NAMES | EMPTY_TABLES.keys()
#: What each of these queries has somewhere; others aren't looked at closer.
_MARKS = re.compile(
    r"\bpg_|information_schema|\bcurrent_(?:setting|schemas?|database|catalog|user|role)\b|\bversion\s*\(|\bset_config\b"
    r"|_privilege\s*\(|\bformat_type\b|_description\s*\(|\bquote_ident\b|\bto_reg\w+\s*\(|\bsession_user\b"
    r"|::\s*reg", re.IGNORECASE)
_OF_SESSION = ("version", "current_setting", "set_config", "current_schemas", "pg_backend_pid")
#: What they end: their answers aren't DuckDB's, who computes the processes alone.
_ENDING = ("pg_cancel_backend", "pg_terminate_backend")
_CASTS = {"name": "text", "char": "text", "oid": "bigint", "regproc": "text", "xid": "bigint", "cstring": "text",
          "text": "text", "int4": "int", "int8": "bigint", "int2": "smallint", "bool": "boolean", "varchar": "text",
          "integer": "int", "bigint": "bigint", "smallint": "smallint"}
_KINDS: tuple[tuple[Callable[[pa.DataType], bool], Kind], ...] = (
    (pa.types.is_boolean, Kind.BOOL), (pa.types.is_int8, Kind.SMALLINT), (pa.types.is_int16, Kind.SMALLINT),
    (pa.types.is_int32, Kind.INT), (pa.types.is_integer, Kind.BIGINT), (pa.types.is_floating, Kind.DOUBLE))


@dataclass(frozen=True, slots=True)
class CatalogQuery:
    """A query over the catalog, as DuckDB is to run it.

    `names`: what its columns are called, if they are known. `ending`: the places of those that hold processes whose
    statements are to be ended.
    """

    tree: exp.Expression
    names: list[str] | None
    ending: frozenset[int] = frozenset()


class CatalogQueries:
    """Answers for all sessions; safe for many threads."""

    def __init__(self, wait_s: float) -> None:
        """`wait_s`: how long a query waits for others to end."""
        self._wait_s = wait_s
        self._turns = threading.BoundedSemaphore(_AT_ONCE)
        self._lock = threading.Lock()
        self._shared: RenewableDuckdb | None = None

    def read(self, text: str, view: PostgresCatalog, process: int) -> CatalogQuery | None:
        """Returns the query that a text is, as DuckDB is to run it; None if it isn't one over the catalog."""
        if len(text) > _TEXT_MAX or _MARKS.search(text) is None:
            return None
        try:
            tree = _tree(text)
        except SqlglotError:  # the dialect's own parser may read it, or say what is wrong
            return None
        if not isinstance(tree, exp.Query) or not _is_over_catalog(tree):
            return None
        ending = frozenset(place for place, each in enumerate(tree.selects) if _function_name(each) in _ENDING)
        return CatalogQuery(_Translation(view, process)(tree), _names(tree), ending)

    def run(
        self, query: CatalogQuery, view: PostgresCatalog, running: Running
    ) -> tuple[tuple[ResultColumn, ...], pa.Table]:
        """Returns columns and rows of a query, which `running` ends, and ends what the query says. Raises
        PenstockErrors.
        """
        if not self._turns.acquire(timeout=self._wait_s):
            raise BusyError("other queries of the catalog run", hint="try again")
        try:
            with self._cursor(view) as cursor:
                running.hold(cursor.interrupt)
                try:
                    return self._run(cursor, query, view)
                except duckdb.Error as error:
                    if self._shared is not None:
                        self._shared.renew_if_broken()
                    running.check()
                    raise InvalidStatementError(
                        f"this query of PostgreSQL's catalog is not supported: {str(error).splitlines()[0]}") from error
                finally:
                    running.let_go(cursor.interrupt)
        finally:
            self._turns.release()

    def _run(
        self, cursor: duckdb.DuckDBPyConnection, query: CatalogQuery, view: PostgresCatalog
    ) -> tuple[tuple[ResultColumn, ...], pa.Table]:
        for name in sorted(TABLE_NAMES):
            cursor.register(name, catalog_table(name, view))
        table = cursor.sql(query.tree.sql(dialect="duckdb")).limit(_ROWS_MAX + 1).to_arrow_table()
        if table.num_rows > _ROWS_MAX:
            raise LimitExceededError(f"the result has more than {_ROWS_MAX} rows", hint="add a LIMIT")
        kinds = [BOOL if place in query.ending else _type(column.type) for place, column in enumerate(table.columns)]
        plain = [_ended(column, view) if place in query.ending else _plain(column)
                 for place, column in enumerate(table.columns)]
        columns = tuple(map(ResultColumn, query.names or table.column_names, kinds))
        return columns, pa.Table.from_arrays(plain, names=[f"c{place}" for place in range(len(plain))])

    @contextmanager
    def _cursor(self, view: PostgresCatalog) -> Iterator[duckdb.DuckDBPyConnection]:
        with self._lock:
            if self._shared is None:
                self._shared = RenewableDuckdb(partial(_opened, view))
        cursor = self._shared.cursor()
        try:
            yield cursor
        finally:
            cursor.close()

    def close(self) -> None:
        """Lets go of the DuckDB."""
        with self._lock:
            if self._shared is not None:
                self._shared.close()


def _opened(view: PostgresCatalog) -> duckdb.DuckDBPyConnection:
    made = closed_duckdb(DuckdbBounds(SMALL_BYTES, threads=1))
    # What functions read must be there when they are made; each query has its own rows instead.
    for name in sorted(TABLE_NAMES):
        made.register("rows", catalog_table(name, view))
        made.execute(f"CREATE TABLE {name} AS SELECT * FROM rows LIMIT 0")
    for statement in statements():
        made.execute(statement)
    return made


def _ended(processes: pa.ChunkedArray, view: PostgresCatalog) -> pa.ChunkedArray:
    """Ends the statements of processes; returns for each whether there is such a one."""
    return pa.chunked_array([pa.array(
        [None if each is None else view.end_process(each) for each in processes.cast(pa.int64()).to_pylist()],
        pa.bool_())])


def _type(kind: pa.DataType) -> DataType:
    """Returns the type of the values that `_plain` makes of those of an Arrow type."""
    if pa.types.is_list(kind):
        return other_type(f"{_type(kind.value_type).duckdb()}[]")
    return DataType(next((found for fits, found in _KINDS if fits(kind)), Kind.VARCHAR))


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column of types that results have."""
    kind = column.type
    if pa.types.is_list(kind):
        return column.cast(pa.list_(_type(kind.value_type).arrow()))
    if pa.types.is_null(kind):
        return pa.chunked_array([pa.nulls(len(column), pa.string())])
    if pa.types.is_boolean(kind) or pa.types.is_floating(kind) or pa.types.is_string(kind):
        return column
    if pa.types.is_integer(kind):
        return column.cast(pa.int64()) if _type(kind) == BIGINT else column
    return pa.chunked_array([pa.array([None if value is None else str(value) for value in column.to_pylist()],
                                      pa.string())])


# --- what is asked ---------------------------------------------------------------------------------------------------


def _tree(text: str) -> exp.Expression:
    """Returns a query; names that aren't quoted are in small letters, as in PostgreSQL. Raises SqlglotErrors."""
    dialect = sqlglot.Dialect.get_or_raise("postgres")
    tokens = dialect.tokenize(text)
    for before, token in pairwise(tokens):
        if before.token_type is TokenType.ALIAS and token.token_type is TokenType.SELECT:
            token.token_type = TokenType.VAR  # any word is a name behind AS; sqlglot doesn't take this one for it
    [tree] = dialect.parser().parse(tokens, text)
    for name in tree.find_all(exp.Identifier):
        if not name.args.get("quoted"):
            name.set("this", name.name.lower())
    return tree


# --- which ones ------------------------------------------------------------------------------------------------------


def _is_over_catalog(tree: exp.Expression) -> bool:
    """Tells whether a query reads tables of the catalog, or no table at all and asks something of PostgreSQL."""
    own = {cte.alias for cte in tree.find_all(exp.CTE)}
    tables = [table for table in tree.find_all(exp.Table)
              if isinstance(table.this, exp.Identifier) and (table.db or table.name not in own)]
    if tables:
        return any(_catalog_name(table) is not None for table in tables)
    return any(_is_postgres_function(node) for node in tree.walk())


def _catalog_name(table: exp.Table) -> str | None:
    """Returns the name that a table of the catalog has in DuckDB; None if it is none."""
    if not isinstance(table.this, exp.Identifier):
        return None
    name, schema = table.name.lower(), table.db.lower()
    if schema == _INFORMATION_SCHEMA:
        return f"{_INFO}{name}" if f"{_INFO}{name}" in _KNOWN else None
    known = name in _KNOWN and name.startswith("pg_")
    return name if schema == _PG_CATALOG or (not schema and known) else None


def _is_postgres_function(node: exp.Expression) -> bool:
    if isinstance(node, exp.Anonymous):
        return node.name.lower() in FUNCTION_NAMES or node.name.lower() in _OF_SESSION
    if isinstance(node, exp.Dot):
        return bool(node.this.name == _PG_CATALOG)
    if isinstance(node, exp.Cast):
        return isinstance(node.to, exp.ObjectIdentifier)
    return _is_user(node) or isinstance(
        node, exp.CurrentSchema | exp.CurrentDatabase | exp.CurrentCatalog | exp.CurrentVersion)


def _is_user(node: exp.Expression) -> bool:
    """Tells whether a node asks for the session's user; some of the words for it look like columns to sqlglot."""
    if isinstance(node, exp.Column):
        return not node.table and not node.this.args.get("quoted") and node.name in ("user", "current_role")
    return isinstance(node, exp.CurrentUser | exp.SessionUser)


# --- from PostgreSQL's SQL to DuckDB's -------------------------------------------------------------------------------


def _names(tree: exp.Query) -> list[str] | None:
    """Returns what PostgreSQL calls the columns of a query; None where stars are among them."""
    if any(each.is_star for each in tree.selects):
        return None
    return [each.alias or _function_name(each) for each in tree.selects]


def _function_name(node: exp.Expression) -> str:
    """Returns what a value is called that has no name of its own: after its column or function."""
    while isinstance(node, exp.Alias | exp.Cast | exp.Dot | exp.Paren):
        node = node.expression if isinstance(node, exp.Dot) else node.this
    if isinstance(node, exp.Anonymous | exp.Column | exp.Identifier):
        return str(node.name).lower() if isinstance(node, exp.Anonymous) else node.name
    if isinstance(node, exp.CurrentVersion):
        return "version"
    return node.sql_name().lower() if isinstance(node, exp.Func) else "?column?"


@dataclass(frozen=True, slots=True)
class _Translation:
    """To DuckDB's SQL, for one session: `process` is its number."""

    view: PostgresCatalog
    process: int

    def __call__(self, tree: exp.Expression) -> exp.Expression:
        root = tree.copy()
        for node in reversed(list(root.dfs())):  # what a node is made of comes before it
            new = self._node(node)
            if node is root:
                root = new
            elif new is not node:
                node.replace(new)
        return root

    def _node(self, node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.Table):
            return self._table(node)
        if isinstance(node, exp.Column) and node.db in (_PG_CATALOG, _INFORMATION_SCHEMA):
            node.set("db", None)
        if isinstance(node, exp.Dot) and node.name != "*" and node.this.name in (_PG_CATALOG, _INFORMATION_SCHEMA):
            return node.expression
        if isinstance(node, exp.Operator):
            return self._operator(node)
        if isinstance(node, exp.Collate):
            return node.this
        if isinstance(node, exp.Div):
            return exp.func("pg_divide", node.this, node.expression)
        if isinstance(node, exp.Cast):
            return self._cast(node)
        return self._of_session(node) or node

    def _table(self, table: exp.Table) -> exp.Expression:
        name = _catalog_name(table)
        if name is not None:
            return exp.alias_(exp.to_table(name), table.alias or table.name, table=True)
        if isinstance(table.this, exp.Func) and table.alias and not table.alias_column_names:
            # A function in FROM, whose rows are called as it is itself.
            call = table.this
            rows = exp.func("unnest", call) if isinstance(call, exp.GenerateSeries) else call
            return exp.select(exp.alias_(rows, table.alias)).subquery(table.alias)
        return table

    def _operator(self, node: exp.Operator) -> exp.Expression:
        operator = node.text("operator").rpartition(".")[2]
        left, right = node.this, node.expression
        match operator:
            case "~":
                return exp.func("regexp_matches", left, right)
            case "!~":
                return exp.not_(exp.func("regexp_matches", left, right))
            case "~~":
                return exp.func("like_escape", left, right, exp.Literal.string("\\"))
            case "=":
                return exp.condition(left).eq(right)
            case "<>" | "!=":
                return exp.condition(left).neq(right)
        raise InvalidStatementError(f"PostgreSQL's operator {operator} isn't there")

    def _cast(self, node: exp.Cast) -> exp.Expression:
        kind, value = node.to, node.this
        is_text = isinstance(value, exp.Literal) and value.is_string
        if is_text and kind.this == exp.DataType.Type.ARRAY and value.name.startswith("{"):
            return exp.array(*(exp.Literal.string(each) for each in value.name.strip("{}").split(",")))
        name = _type_name(kind)
        if name in ("regclass", "regtype", "regnamespace"):
            if is_text and not value.name.isdigit():
                return exp.func(f"to_{name}", value)
            return exp.func(f"{name}_name", exp.cast(value, "bigint"))
        return exp.cast(value, _CASTS.get(name, "text")) if name else node

    def _of_session(self, node: exp.Expression) -> exp.Expression | None:
        """Returns the constant that a function of the session is."""
        state = self.view.state
        if isinstance(node, exp.CurrentSchema):
            return _text(state.database)
        if isinstance(node, exp.CurrentDatabase | exp.CurrentCatalog):
            return _text(self.view.current)
        if _is_user(node):
            return _text(state.identity.name)
        if isinstance(node, exp.CurrentVersion):
            return _text(VERSION_TEXT)
        if isinstance(node, exp.Anonymous) and node.name.lower() == "json_build_object":
            return exp.func("json_object", *node.expressions)
        if not isinstance(node, exp.Anonymous) or node.name.lower() not in _OF_SESSION:
            return None
        match node.name.lower():
            case "version":
                return _text(VERSION_TEXT)
            case "pg_backend_pid":
                return exp.Literal.number(self.process)
            case "current_schemas":
                return exp.array(*(exp.Literal.string(each) for each in filter(None, [_PG_CATALOG, state.database])))
            case "set_config":
                return node.expressions[1]
        asked = node.expressions[0].name if node.expressions else ""
        return _text({name.lower(): value for name, value in self.view.settings.all().items()}.get(asked.lower()))


def _type_name(kind: exp.Expression) -> str:
    """Returns the name of a type that only PostgreSQL has; "" for others."""
    if isinstance(kind, exp.ObjectIdentifier):
        return str(getattr(kind.this, "value", kind.this)).lower()
    if kind.this == exp.DataType.Type.USERDEFINED:
        named = kind.args.get("kind")
        if isinstance(named, exp.Dot):
            named = named.expression
        return (named.name if isinstance(named, exp.Expression) else str(named)).lower()
    return "name" if kind.this == exp.DataType.Type.NAME else ""


def _text(value: str | None) -> exp.Expression:
    return exp.null() if value is None else exp.Literal.string(value)
