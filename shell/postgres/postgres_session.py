"""What a client's messages do once it has logged in: statements, portals, COPY. It knows no socket."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from penstock.common.errors import (
    InvalidStatementError,
    InvalidValueError,
    LimitExceededError,
    NotFoundError,
    PenstockError,
)
from penstock.mnode.access.session import Result, SessionState, text_result, text_table
from penstock.mnode.engine import Engine
from penstock.mnode.query.activity import OnCancel
from penstock.mnode.write.csv_rows import CsvCells, cells_by_row
from penstock.planner.task_plans.plan_tree import ResultColumn
from penstock.shell.postgres import backend
from penstock.shell.postgres.backend import ClientReport, ResultField
from penstock.shell.postgres.catalog_queries import CatalogQueries, CatalogQuery
from penstock.shell.postgres.catalog_tables import PostgresCatalog
from penstock.shell.postgres.client_settings import ClientSettings, read_change, read_show
from penstock.shell.postgres.copy_rows import CopyReader, CopyStatement, Row, read_copy, written_row, written_rows
from penstock.shell.postgres.cursors import CURSOR_WORDS, Cursors, read_cursor_statement
from penstock.shell.postgres.frontend import Bind, Close, DescribeRequest, Execute, Parse
from penstock.shell.postgres.parameter_values import ParameterText, parameter_types, read_parameters
from penstock.shell.postgres.portals import BATCH_ROWS, Portal, Portals, StatementAnswer
from penstock.shell.postgres.result_values import TEXT, cells_of, result_fields, text_cells
from penstock.shell.postgres.statement_text import StatementText, split_statements
from penstock.sql.tree.expression_nodes import quote_identifier
from penstock.sql.tree.statements import Describe, Explain, Query, Show, Statement
from penstock.vnode.write.vnode_writer import BegunWrite

_STATEMENTS_MAX = 1000
_BEGIN, _END, _POINTS = ("BEGIN", "START"), ("COMMIT", "END", "ROLLBACK", "ABORT"), ("SAVEPOINT", "RELEASE")
_QUIET = {"DEALLOCATE", "DISCARD", "UNLISTEN", "LISTEN"}
_NULL_STANDS_FOR: tuple[object, ...] = (None, 0, "2000-01-01 00:00:00")
_ONE_INSERTED = backend.complete("INSERT 0 1")
_NO_TRANSACTIONS = ClientReport("WARNING", "0A000", "there are no transactions: what was written stays")

Send = Callable[[bytes], None]
Step = Parse | Bind | DescribeRequest | Execute | Close
"""A message of the extended protocol, apart from those that end a series."""


@dataclass(frozen=True, slots=True)
class PreparedText:
    """A prepared statement: `text` None if it is empty; OIDs of its parameters."""

    text: StatementText | None
    types: tuple[int, ...]
    _parts: tuple[ParameterText, ParameterText]

    @classmethod
    def of(cls, text: StatementText | None, given: Sequence[int]) -> PreparedText:
        """`given`: the OIDs that the client says. Raises InvalidStatementError."""
        own, sent = ("", "") if text is None else (text.text, text.sent)
        parts = ParameterText(own)
        return cls(text, parameter_types(own, given), (parts, parts if sent == own else ParameterText(sent)))

    def filled(self, values: Sequence[object]) -> StatementText | None:
        """Returns the statement with its parameters in it. Raises InvalidValueError."""
        if self.text is None or not values:
            return self.text
        own, sent = self._parts
        text = own.filled(values)
        return StatementText(text, self.text.offset, self.text.words, text if sent is own else sent.filled(values))


class PostgresSession:
    """One client. Everything but `state` is the calling thread's alone."""

    def __init__(
        self, engine: Engine, state: SessionState, catalog: CatalogQueries, send: Send, on_cancel: OnCancel
    ) -> None:
        """`send` takes messages to the client; `on_cancel`, as with `Engine.execute_parsed`."""
        self._engine = engine
        self.state = state
        self._send = send
        self._on_cancel = on_cancel
        self.settings = ClientSettings(state, self.use, lambda: engine.follows)
        self._catalog = catalog
        self._view = PostgresCatalog(engine.catalog, engine.activity, state, self.settings)
        self._prepared: dict[str, PreparedText] = {}
        self._portals = Portals()
        self._cursors = Cursors(self._portals, self._columns, self._held)
        self.in_transaction = False
        self._has_written = False
        self._copy: tuple[CopyStatement, CopyReader] | None = None
        self._copied = 0

    @property
    def copies_in(self) -> bool:
        """Whether rows of COPY are expected."""
        return self._copy is not None

    def take_options(self, parameters: Mapping[str, str]) -> None:
        """Takes over the settings that the client named at its login; those that mean nothing here are left alone.
        Raises PenstockErrors for those that have a bad value.
        """
        words = re.findall(r"(?:-c\s*|--)(\w+)=((?:\\.|\S)*)", parameters.get("options", ""))
        for name, value in (*parameters.items(), *words):
            change = read_change(f"SET {name} TO {value}") if name.isidentifier() else None
            if change is not None and change.name != "client_encoding":  # the client is told which one it is
                self.settings.change(change)

    # --- simple queries ------------------------------------------------------------------------------------------

    def use(self, database: str) -> None:
        """Has a database in use. Raises NotFoundError."""
        self._execute(f"USE {quote_identifier(database)}")

    def run(self, statement: StatementText) -> None:
        """Executes a statement and sends its answer; of COPY, only that rows may come. Raises PenstockErrors."""
        if statement.words[:1] == ("COPY",):
            self._begin_copy(statement)
            return
        with self.answered(statement) as answer:
            rows = 0
            if answer.columns is not None:
                fields = result_fields(answer.columns)
                self._send(backend.row_description(fields))
                rows = self._send_rows(answer.batches, answer.columns, fields)
            self._send(backend.complete(answer.tag.format(rows)))

    def _send_rows(
        self, batches: Iterable[pa.RecordBatch], columns: tuple[ResultColumn, ...], fields: list[ResultField]
    ) -> int:
        rows = 0
        for batch in batches:
            cells = cells_of(batch, columns, fields, self.state.time_zone)
            self._send(backend.data_rows(cells, batch.num_rows))
            rows += batch.num_rows
        return rows

    # --- the extended protocol -----------------------------------------------------------------------------------

    def step(self, message: Step) -> None:
        """Does what a message asks for. Raises PenstockErrors."""
        match message:
            case Bind():
                self._bind(message)
            case Execute():
                self._execute_portal(message.portal, message.rows_max)
            case DescribeRequest(is_portal=True):
                self._send(self._described(self._portals.get(message.name)))
            case DescribeRequest():
                self._describe_statement(message.name)
            case Parse():
                self._parse(message)
            case Close():
                self._close(message.name, is_portal=message.is_portal)

    def _parse(self, message: Parse) -> None:
        """Prepares a statement. Raises PenstockErrors."""
        found = split_statements(message.text)
        if len(found) > 1:
            raise InvalidStatementError("a prepared statement is one statement, and no more")
        if message.name in self._prepared and message.name:
            raise InvalidStatementError(f"there is a prepared statement {message.name}")
        if len(self._prepared) >= _STATEMENTS_MAX:
            raise LimitExceededError(f"there are {_STATEMENTS_MAX} prepared statements already", hint="close some")
        text = found[0] if found else None
        self._prepared[message.name] = PreparedText.of(text, message.types)
        self._send(backend.PARSE_COMPLETE)

    def _bind(self, message: Bind) -> None:
        """Makes a portal. Raises PenstockErrors."""
        prepared = self._statement(message.statement)
        self._portals.check_room(message.portal)
        if len(message.parameters) != len(prepared.types):
            raise InvalidValueError(
                f"{len(message.parameters)} parameters were given, the statement has {len(prepared.types)}")
        values = read_parameters(message.parameters, message.parameter_formats, prepared.types)
        self._portals.put(message.portal, Portal(
            prepared.filled(values), message.result_formats, None if values else prepared.text))
        self._send(backend.BIND_COMPLETE)

    def _describe_statement(self, name: str) -> None:
        """Tells parameters and columns of a prepared statement. Raises PenstockErrors."""
        prepared = self._statement(name)
        self._send(backend.parameter_description([oid or TEXT for oid in prepared.types]))
        error: PenstockError | None = None
        for value in _NULL_STANDS_FOR:
            try:
                self._send(self._described(Portal(prepared.filled([value] * len(prepared.types)))))
            except PenstockError as failure:
                error = error or failure
                if not prepared.types:
                    break
            else:
                return
        assert error is not None
        raise error

    def _execute_portal(self, name: str, rows_max: int) -> None:
        """Executes a portal, or goes on with it. Raises PenstockErrors."""
        portal = self._portals.get(name)
        statement = portal.text
        if statement is None:
            self._send(backend.EMPTY_QUERY)
        elif statement.words[:1] == ("COPY",):
            self._begin_copy(statement)
        elif rows_max or portal.remaining is not None:
            self._execute_some(portal, statement, rows_max)
        elif statement.words[:1] == ("INSERT",) and (tag := self._inserted(statement)) is not None:
            self._send(backend.complete(tag))
        else:
            with self._portal_answer(portal, statement) as answer:
                rows = 0
                if answer.columns is not None:
                    fields = result_fields(answer.columns, portal.formats)
                    rows = self._send_rows(answer.batches, answer.columns, fields)
                self._send(backend.complete(answer.tag.format(rows)))

    def is_insert(self, message: Step) -> bool:
        """Tells whether a step executes an INSERT, or asks for its columns."""
        portal = self._portals.of(message)
        return portal is not None and portal.is_insert and not (isinstance(message, Execute) and message.rows_max)

    def begin_insert(self, name: str) -> BegunWrite | None:
        """Begins what `execute` does with an INSERT of one row; None, and nothing, if it isn't that simple."""
        statement = self._portals.get(name).text
        return None if statement is None else self._engine.begin_insert(statement.text, self.state)

    def conclude_insert(self, error: PenstockError | None) -> None:
        """Tells what became of it. Raises the error."""
        if error is not None:
            raise error
        self._has_written = True
        self._send(_ONE_INSERTED)

    def _execute_some(self, portal: Portal, statement: StatementText, rows_max: int) -> None:
        """Sends so many rows at most. The others are held, in memory: a query that waits keeps none from running."""
        held = self._held(portal, statement)
        rows = sum(self._send_rows([part], held.columns or (), portal.fields)
                   for part in portal.taken(rows_max or None))
        if rows_max and rows == rows_max:
            self._send(backend.PORTAL_SUSPENDED)
            return
        self._send(backend.complete(held.tag.format(rows)))

    def _held(self, portal: Portal, statement: StatementText) -> StatementAnswer:
        """Returns the answer of a portal of which some rows at a time are taken, having executed it if need be."""
        if portal.remaining is None:
            with self._portal_answer(portal, statement) as answer:
                portal.held = StatementAnswer(answer.tag, answer.columns, list(answer.batches))
            portal.remaining = iter(portal.held.batches)
            portal.fields = result_fields(answer.columns or (), portal.formats)
        assert portal.held is not None
        return portal.held

    def _close(self, name: str, *, is_portal: bool) -> None:
        """Forgets a statement or a portal; one that isn't there is no error."""
        if is_portal:
            self._portals.close(name)
        else:
            self._prepared.pop(name, None)
        self._send(backend.CLOSE_COMPLETE)

    def sync(self) -> None:
        """Ends a series of messages, and with it its portals, but for those of a transaction and held cursors."""
        if not self.in_transaction:
            self._portals.close_all(held=False)

    def _statement(self, name: str) -> PreparedText:
        if name not in self._prepared:
            raise NotFoundError(f"there is no prepared statement {name!r}")
        return self._prepared[name]

    def sent_text(self, message: Step) -> StatementText | None:
        """Returns the text that places of errors of a step are in, if the client has it."""
        found = self._portals.of(message)
        return None if found is None else found.sent

    def _described(self, portal: Portal) -> bytes:
        columns = self._columns(portal)
        return backend.NO_DATA if columns is None else backend.row_description(result_fields(columns, portal.formats))

    def _columns(self, portal: Portal) -> tuple[ResultColumn, ...] | None:
        statement = portal.text
        if statement is None or statement.words[:1] in (("INSERT",), ("COPY",)):
            return None
        held = self._housekeeping(statement, look_only=True)
        if held is not None:
            return held.columns
        if (asked := self._catalog_query(statement)) is not None:  # what columns it has, its rows tell
            with self._catalog_answer(asked, statement) as answer:
                portal.held = StatementAnswer(answer.tag, answer.columns, list(answer.batches))
            return portal.held.columns
        parsed = self._engine.read(statement.text, self.state)
        if isinstance(parsed, Query) and parsed.into_file is None:
            return self._engine.query_columns(parsed, self.state)
        if isinstance(parsed, Show | Describe | Explain):  # what columns they have, their rows tell
            portal.held = StatementAnswer.of(self._execute_parsed(parsed, statement.text), _tag(statement, parsed, 0))
            return portal.held.columns
        return None

    @contextmanager
    def _portal_answer(self, portal: Portal, statement: StatementText) -> Iterator[StatementAnswer]:
        held, portal.held = portal.held, None
        if held is not None:
            yield held
            return
        with self.answered(statement) as answer:
            yield answer

    # --- statements ----------------------------------------------------------------------------------------------

    @contextmanager
    def answered(self, statement: StatementText) -> Iterator[StatementAnswer]:
        """Gives the answer to a statement, whose rows are computed inside of the `with` block. Raises PenstockErrors.
        """
        own = self._housekeeping(statement)
        if own is not None:
            yield own
            return
        if (asked := self._catalog_query(statement)) is not None:
            with self._catalog_answer(asked, statement) as answer:
                yield answer
            return
        if (tag := self._inserted(statement)) is not None:
            yield StatementAnswer(tag)
            return
        parsed = self._engine.read(statement.text, self.state)
        if isinstance(parsed, Query) and parsed.into_file is None:
            with self._engine.open_query(parsed, statement.text, self.state, self._on_cancel) as opened:
                if (lag_s := self._engine.lag_s) is not None:
                    self._send(ClientReport(
                        "NOTICE", "01000", f"this node of the cluster isn't active: rows are as of {lag_s:.1f} s ago"
                    ).encoded())
                yield StatementAnswer("SELECT {}", opened.columns, opened.batches(BATCH_ROWS))
            return
        result = self._execute_parsed(parsed, statement.text)
        self._has_written = True
        yield StatementAnswer.of(result, _tag(statement, parsed, result.affected))

    def _inserted(self, statement: StatementText) -> str | None:
        """Executes a statement that is a small INSERT of plain rows, and returns its tag; None if it isn't."""
        written = self._engine.insert_rows(statement.text, self.state)
        if written is None:
            return None
        self._has_written = True
        return f"INSERT 0 {written.affected}"

    def _catalog_query(self, statement: StatementText) -> CatalogQuery | None:
        """Returns what a statement asks of PostgreSQL's catalog; None if it is no such query."""
        if statement.words[:1] not in (("SELECT",), ("WITH",), ()):
            return None
        return self._catalog.read(statement.original, self._view, self.state.connection_id)

    @contextmanager
    def _catalog_answer(self, asked: CatalogQuery, statement: StatementText) -> Iterator[StatementAnswer]:
        activity, state = self._engine.activity, self.state
        with activity.statement(
                state.connection_id, statement.original, state.identity.name, self._on_cancel) as running:
            running.looks_inside = True
            columns, table = self._catalog.run(asked, self._view, running)
            yield StatementAnswer("SELECT {}", columns, table.to_batches(BATCH_ROWS))

    def _execute(self, text: str) -> None:
        self._execute_parsed(self._engine.read(text, self.state), text)

    def _execute_parsed(self, parsed: Statement, text: str) -> Result:
        return self._engine.execute_parsed(parsed, text, self.state, self._on_cancel)

    def _housekeeping(self, statement: StatementText, *, look_only: bool = False) -> StatementAnswer | None:
        """Answers what PostgreSQL's clients send about the session itself; None if it is none of that.

        `look_only`: to know the columns, changing nothing.
        """
        first, second = (*statement.words, "", "")[:2]
        if first in CURSOR_WORDS:
            return self._cursors.answer(read_cursor_statement(statement), self.in_transaction, look_only=look_only)
        if statement.words == ("SHOW", "ALL"):
            return StatementAnswer.of(text_table({
                "name": list(self.settings.all()), "setting": list(self.settings.all().values())}), "SHOW")
        if first == "SHOW" and (name := read_show(statement.original)) is not None:
            return StatementAnswer.of(text_result(name, [self.settings.value(name)]), "SHOW")
        if first in ("SET", "RESET") and (change := read_change(statement.original)) is not None:
            told = None if look_only else self.settings.change(change)
            if told is not None:
                self._send(backend.parameter_status(told, self.settings.value(told)))
            return StatementAnswer(first)
        if first in _QUIET:
            if first in ("DEALLOCATE", "DISCARD") and not look_only:
                self._forget(statement.words[-1])
            return StatementAnswer(first)
        if (first in (*_BEGIN, *_END) and second in ("", "TRANSACTION", "WORK", "ISOLATION", "READ", "TO")) \
                or (first in _POINTS and statement.words[0] == first):
            return StatementAnswer(first if look_only else self._transaction(first, second))
        return None

    def _forget(self, name: str) -> None:
        """Forgets a prepared statement, whose name is given in capitals, or all of them."""
        if name == "ALL":
            self._prepared.clear()
        for known in [each for each in self._prepared if each.upper() == name]:
            del self._prepared[known]

    def _transaction(self, first: str, second: str) -> str:
        """Takes note of where a transaction is said to begin and to end; returns the tag. There are none."""
        if first in _BEGIN:
            self.in_transaction, self._has_written = True, False
            return "BEGIN"
        if first in _POINTS:
            return first
        if first in ("ROLLBACK", "ABORT"):
            if self._has_written:
                self._send(_NO_TRANSACTIONS.encoded())
            if second == "TO":
                return "ROLLBACK"
        self.in_transaction = False
        return "ROLLBACK" if first in ("ROLLBACK", "ABORT") else "COMMIT"

    # --- COPY ----------------------------------------------------------------------------------------------------

    def _begin_copy(self, statement: StatementText) -> None:
        copy = read_copy(statement.original)
        if copy.is_from:
            self._engine.check_insert(copy.table, self.state)
            self._copy, self._copied = (copy, CopyReader(copy.form)), 0
            self._send(backend.copy_in(len(copy.columns or ())))
            return
        columns = ", ".join(map(quote_identifier, copy.columns)) if copy.columns else "*"
        [query] = split_statements(copy.query or f"SELECT {columns} FROM {copy.table}") or [statement]
        with self.answered(query) as answer:
            self._copy_out(copy, answer)

    def _copy_out(self, copy: CopyStatement, answer: StatementAnswer) -> None:
        if answer.columns is None:
            raise InvalidStatementError("only a query can be copied out")
        self._send(backend.copy_out(len(answer.columns)))
        if copy.form.has_header:
            self._send(backend.copy_data(written_row(copy.form, [column.name for column in answer.columns])))
        rows = 0
        for batch in answer.batches:
            cells = [text_cells(values, column.type, self.state.time_zone)
                     for values, column in zip(batch.columns, answer.columns, strict=True)]
            self._send(b"".join(map(backend.copy_data, written_rows(copy.form, cells))))
            rows += batch.num_rows
        self._send(backend.COPY_DONE + backend.complete(f"COPY {rows}"))

    def copy_piece(self, data: bytes, *, is_last: bool = False) -> None:
        """Inserts the rows that are whole with this piece; with the last one COPY is done. Raises PenstockErrors."""
        assert self._copy is not None
        copy, reader = self._copy
        rows = reader.rows(data, is_last=is_last)
        if reader.held_bytes > self._engine.config.request_size_max:
            raise InvalidValueError("a row of COPY is longer than a request may be",
                                    hint="raise requestSizeMax")
        if rows:
            cells = self._copied_cells(copy, rows, reader.line)
            self._copied += self._engine.insert_cells(copy.table, cells, self.state).affected
            reader.line += len(rows)
            self._has_written = True
        if is_last:
            self._copy = None
            self._send(backend.complete(f"COPY {self._copied}"))

    def _copied_cells(self, copy: CopyStatement, rows: Sequence[Row], first: int) -> CsvCells:
        names = self._engine.csv_layout(copy.table, copy.columns, self.state).positions
        if names is None:
            raise InvalidStatementError("name the columns that are copied into a super table, tbname among them")
        return cells_by_row(names, rows, lambda row: f"COPY, line {first + row}")

    def end_copy(self) -> None:
        """Takes no more rows."""
        self._copy = None


def _tag(statement: StatementText, parsed: Statement, affected: int) -> str:
    first = (*statement.words, "")[0]
    match first:
        case "INSERT":
            return f"INSERT 0 {affected}"
        case "DELETE" | "UPDATE":
            return f"{first} {affected}"
        case "SHOW" | "EXPLAIN" | "DESCRIBE" | "DESC":
            return first
    if isinstance(parsed, Query):
        return "SELECT {}"
    return " ".join(statement.words[:2])
