"""What each command, ticket and action of Flight SQL does with a client's session. Knows nothing of gRPC.

SELECT and UNION run when their rows are fetched: the ticket is the statement, so nothing is kept for who never comes.
Every other statement runs at once; if it has rows, few of them, the session holds them until they are fetched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import pyarrow as pa

from penstock.common.errors import (
    InvalidStatementError,
    NotFoundError,
    NotSupportedError,
    PenstockError,
)
from penstock.mnode.access.session import Result
from penstock.mnode.engine import Engine
from penstock.mnode.query.activity import OnCancel
from penstock.shell.api.arrow_input import quoted_table
from penstock.shell.api.dbapi import IngestMode
from penstock.shell.api.parameter_binding import Row, bind, bind_rows, count_marks, parameter_rows
from penstock.shell.flight_sql import protobuf_messages
from penstock.shell.flight_sql.frames import batches_of, frames, schema_bytes
from penstock.shell.flight_sql.protobuf_messages import kind_of, make, pack, read, unpack
from penstock.shell.flight_sql.result_fields import arrow_schema
from penstock.shell.server.client_sessions import ClientSession, new_handle
from penstock.shell.server.metadata import answer
from penstock.sql.tree.expression_nodes import quote_identifier
from penstock.sql.tree.statements import Describe, Explain, Query, Show, Statement

#: What the actions are called, and what they do.
ACTIONS: dict[str, str] = {
    "CreatePreparedStatement": "Prepares a statement; its parameters are written as ?.",
    "ClosePreparedStatement": "Forgets a prepared statement.",
    "CancelFlightInfo": "Cancels a query that runs.",
    "CancelQuery": "Cancels a query that runs; the older name of CancelFlightInfo.",
    "SetSessionOptions": "Sets the session's schema (the database in use) or time_zone.",
    "GetSessionOptions": "Tells the session's schema and time_zone.",
    "CloseSession": "Ends the session.",
}
# A handle's first byte says what it stands for; a query's text follows its number.
_QUERY, _HELD = b"q", b"h"
_NUMBER_BYTES = len(new_handle())
_INGEST_MODES: dict[tuple[int, int], IngestMode] = {
    (protobuf_messages.CREATE_IF_MISSING, protobuf_messages.FAIL_IF_THERE): "create",
    (protobuf_messages.FAIL_IF_MISSING, protobuf_messages.APPEND_IF_THERE): "append",
    (protobuf_messages.CREATE_IF_MISSING, protobuf_messages.REPLACE_IF_THERE): "replace",
    (protobuf_messages.CREATE_IF_MISSING, protobuf_messages.APPEND_IF_THERE): "create_append",
}
_SCHEMA, _TIME_ZONE = "schema", "time_zone"

@dataclass(frozen=True, slots=True)
class _Statement:
    """A statement to be executed: its text, with the parameters in it, and what it was read as."""

    text: str
    parsed: Statement

    @property
    def query(self) -> Query | None:
        """The statement, if its rows are streamed."""
        return self.parsed if isinstance(self.parsed, Query) and self.parsed.into_file is None else None


class FlightSql:
    """Answers calls; safe for many threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._rows_max = engine.config.block_rows_max
        self._bytes_max = engine.config.block_bytes_max

    # --- questions ---------------------------------------------------------------------------------------------

    def info(self, session: ClientSession, descriptor: Any, on_cancel: OnCancel) -> Any:
        """Returns the FlightInfo for a command: how its rows are fetched, or what it has changed."""
        command = unpack(_command_of(descriptor))
        told = answer(command, kind_of(command), self._engine.catalog, session.connection.session.identity.rights)
        if told is not None:
            return self._flight_info(session, descriptor, told.schema, descriptor.cmd)
        text = self._text_of(session, command)
        written = self._engine.insert_rows(text, session.connection.session)
        if written is not None:
            return self._flight_info(session, descriptor, pa.schema([]), None, written.affected)
        statement = self._read(session, text)
        if statement.query is not None:
            schema = arrow_schema(self._engine.query_columns(statement.query, session.connection.session))
            return self._flight_info(
                session, descriptor, schema, _ticket(_QUERY + new_handle() + statement.text.encode()))
        result = self._execute(session, statement, on_cancel)
        if result.table is None:
            return self._flight_info(session, descriptor, pa.schema([]), None, result.affected)
        ticket = _ticket(_HELD + session.hold(result))
        return self._flight_info(session, descriptor, arrow_schema(result.columns), ticket, result.table.num_rows)

    def schema(self, session: ClientSession, descriptor: Any) -> Any:
        """Returns the SchemaResult for a command, which is not executed."""
        command = unpack(_command_of(descriptor))
        told = answer(command, kind_of(command), self._engine.catalog, session.connection.session.identity.rights)
        schema = told.schema if told is not None else self._schema_of(
            session, self._read(session, self._text_of(session, command)))
        if schema is None:
            raise NotSupportedError("what columns this statement has is only known when it is executed")
        return make("SchemaResult", schema=schema_bytes(schema))

    def rows(self, session: ClientSession, ticket: Any, on_cancel: OnCancel) -> Iterator[bytes]:
        """Yields what a ticket stands for as FlightData."""
        command = unpack(ticket.ticket)
        told = answer(command, kind_of(command), self._engine.catalog, session.connection.session.identity.rights)
        if told is not None:
            return frames(told.schema, told.rows(), self._bytes_max)
        if kind_of(command) != "TicketStatementQuery":
            raise InvalidStatementError(f"a {kind_of(command)} is no ticket")
        kind, rest = command.statement_handle[:1], command.statement_handle[1:]
        if kind == _HELD:
            result = session.take(rest)
            assert result.table is not None, "only rows are held"
            return frames(arrow_schema(result.columns), result.table.to_batches(self._rows_max), self._bytes_max)
        if kind != _QUERY:
            raise InvalidStatementError("this ticket was not given by this server")
        return self._streamed(session, rest[:_NUMBER_BYTES], _decoded(rest[_NUMBER_BYTES:]), on_cancel)

    def _streamed(self, session: ClientSession, handle: bytes, text: str, on_cancel: OnCancel) -> Iterator[bytes]:
        query = self._read(session, text).query
        if query is None:
            raise InvalidStatementError("this ticket was not given by this server")
        with (self._engine.open_query(query, text, session.connection.session, on_cancel) as opened,
              session.running(handle, opened)):
            yield from frames(arrow_schema(opened.columns), opened.batches(self._rows_max), self._bytes_max)

    # --- changes -----------------------------------------------------------------------------------------------

    def put(self, session: ClientSession, requests: Iterator[bytes], on_cancel: OnCancel) -> Any:
        """Performs a DoPut and returns its PutResult: statements, rows of parameters, rows to insert."""
        first = next(requests, None)
        if first is None:
            raise InvalidStatementError("a DoPut begins with a command")
        command = unpack(_command_of(read("FlightData", first).flight_descriptor))
        match kind_of(command):
            case "CommandStatementUpdate":
                affected = self._update(session, self._text_of(session, command), on_cancel)
            case "CommandStatementIngest":
                affected = self._ingest(session, command, chain([first], requests))
            case "CommandPreparedStatementUpdate":
                text = session.prepared(command.prepared_statement_handle).text
                texts = _bound(text, chain([first], requests)) if count_marks(text) else [text]
                affected = sum(self._update(session, each, on_cancel) for each in texts)
            case "CommandPreparedStatementQuery":
                handle = command.prepared_statement_handle
                session.prepared(handle).parameters = _one_row(_parameters(chain([first], requests)))
                return _put_result(make("DoPutPreparedStatementResult", prepared_statement_handle=handle))
            case other:
                raise NotSupportedError(f"{other} is not supported by DoPut")
        return _put_result(make("DoPutUpdateResult", record_count=affected))

    def _ingest(self, session: ClientSession, command: Any, requests: Iterable[bytes]) -> int:
        connection = session.connection
        # Rows are only taken from who may insert them.
        database = command.schema if command.HasField("schema") else None
        self._engine.check_insert(quoted_table(command.table, database), connection.session)
        _refuse_transaction(command)
        wanted = command.table_definition_options
        mode = _INGEST_MODES.get((wanted.if_not_exist, wanted.if_exists))
        if mode is None:
            raise InvalidStatementError(
                f"if_not_exist {wanted.if_not_exist} with if_exists {wanted.if_exists} is no way to insert rows")
        catalog = command.catalog if command.HasField("catalog") else None
        options = {option.key: option.value for option in command.options}
        first_row = options.pop(protobuf_messages.FIRST_ROW, "0")
        if options or not first_row.isdigit():
            raise InvalidStatementError(
                f"bad options of an ingest: {', '.join(options) or protobuf_messages.FIRST_ROW}")
        reader = pa.RecordBatchReader.from_batches(*batches_of(requests))
        with connection.cursor() as cursor:
            if mode == "append" and catalog is None and not command.temporary:
                return cursor.insert_arrow(quoted_table(command.table, database), reader, int(first_row)).rowcount
            return cursor.adbc_ingest(command.table, reader, mode, catalog_name=catalog, db_schema_name=database,
                                      temporary=command.temporary)

    # --- actions -----------------------------------------------------------------------------------------------

    def act(self, session: ClientSession, name: str, body: bytes) -> Any:
        """Performs an action of ACTIONS, but for CloseSession, and returns the body of its result, if it has one."""
        match name:
            case "CreatePreparedStatement":
                return pack(self._prepare(session, _packed("ActionCreatePreparedStatementRequest", body)))
            case "ClosePreparedStatement":
                session.forget(_packed("ActionClosePreparedStatementRequest", body).prepared_statement_handle)
                return None
            case "CancelFlightInfo":
                _cancel(session, read("CancelFlightInfoRequest", body).info)
                return make("CancelFlightInfoResult", status=protobuf_messages.CANCELLED).SerializeToString()
            case "CancelQuery":
                _cancel(session, read("FlightInfo", _packed("ActionCancelQueryRequest", body).info))
                return pack(make("ActionCancelQueryResult", result=protobuf_messages.CANCELLED))
            case "SetSessionOptions":
                return self._set_options(session, read("SetSessionOptionsRequest", body)).SerializeToString()
            case "GetSessionOptions":
                state = session.connection.session
                options = {_SCHEMA: state.database, _TIME_ZONE: state.time_zone}
                return make("GetSessionOptionsResult", session_options=[
                    make("SessionOption", key=key, value=make("SessionOptionValue", string_value=value))
                    for key, value in options.items() if value is not None]).SerializeToString()
        raise NotSupportedError(f"there is no action {name}", hint=f"there are {', '.join(ACTIONS)}")

    def _prepare(self, session: ClientSession, request: Any) -> Any:
        _refuse_transaction(request)
        marks = count_marks(request.query)
        schema = None
        try:
            schema = self._schema_of(session, self._read(session, bind(request.query, [None] * marks)))
        except PenstockError:
            # With parameters that aren't NULL it may well be right; without parameters it is wrong.
            if not marks:
                raise
        parameters = pa.schema([pa.field("", pa.null())] * marks)
        return make("ActionCreatePreparedStatementResult", prepared_statement_handle=session.prepare(request.query),
                    dataset_schema=b"" if schema is None else schema_bytes(schema),
                    parameter_schema=schema_bytes(parameters) if marks else b"")

    def _set_options(self, session: ClientSession, request: Any) -> Any:
        faults: list[Any] = []
        for option in request.session_options:
            try:
                self._set_option(session, option.key, option.value.string_value)
            except PenstockError as error:
                fault = (protobuf_messages.INVALID_NAME if isinstance(error, NotSupportedError)
                         else protobuf_messages.INVALID_VALUE)
                faults.append(make("SessionOptionError", key=option.key, value=make("SessionOptionFault", value=fault)))
        return make("SetSessionOptionsResult", errors=faults)

    def _set_option(self, session: ClientSession, name: str, value: str) -> None:
        if name == _SCHEMA:
            self._execute(session, self._read(session, f"USE {quote_identifier(value)}"))
        elif name == _TIME_ZONE:
            session.connection.set_time_zone(value)
        else:
            raise NotSupportedError(f"there is no session option {name}")

    # --- inside ------------------------------------------------------------------------------------------------

    def _read(self, session: ClientSession, text: str) -> _Statement:
        return _Statement(text, self._engine.read(text, session.connection.session))

    def _text_of(self, session: ClientSession, command: Any) -> str:
        """Returns the statement that a command is, with its parameters in it."""
        match kind_of(command):
            case "CommandStatementQuery" | "CommandStatementUpdate":
                _refuse_transaction(command)
                return str(command.query)
            case "CommandPreparedStatementQuery":
                prepared = session.prepared(command.prepared_statement_handle)
                return bind(prepared.text, prepared.parameters)
        raise NotSupportedError(f"{kind_of(command)} is not supported")

    def _update(self, session: ClientSession, text: str, on_cancel: OnCancel) -> int:
        written = self._engine.insert_rows(text, session.connection.session)
        if written is not None:
            return written.affected
        statement = self._read(session, text)
        if statement.query is not None:
            raise InvalidStatementError("a query changes nothing", hint="execute it as one, to fetch its rows")
        return self._execute(session, statement, on_cancel).affected

    def _execute(self, session: ClientSession, statement: _Statement, on_cancel: OnCancel | None = None) -> Result:
        return self._engine.execute_parsed(
            statement.parsed, statement.text, session.connection.session, on_cancel)

    def _schema_of(self, session: ClientSession, statement: _Statement) -> pa.Schema | None:
        """Returns what columns a statement has, or None if it has none or they are only known afterwards."""
        if statement.query is not None:
            return arrow_schema(self._engine.query_columns(statement.query, session.connection.session))
        parsed = statement.parsed
        if isinstance(parsed, Show | Describe) or (isinstance(parsed, Explain) and not parsed.analyze):
            # These cost little, and change nothing.
            return arrow_schema(self._execute(session, statement).columns)
        return None

    def _flight_info(
        self, session: ClientSession, descriptor: Any, schema: pa.Schema, ticket: bytes | None, records: int = -1
    ) -> Any:
        """Returns a FlightInfo; its metadata is the database in use, which our own client shows."""
        endpoints = [] if ticket is None else [make("FlightEndpoint", ticket=make("Ticket", ticket=ticket))]
        return make("FlightInfo", schema=schema_bytes(schema), flight_descriptor=descriptor, endpoint=endpoints,
                    total_records=records, total_bytes=-1,
                    app_metadata=(session.connection.session.database or "").encode())


    @property
    def lag_s(self) -> float | None:
        """How old rows may be; see `Result.lag_s`."""
        return self._engine.lag_s


def _command_of(descriptor: Any) -> bytes:
    if descriptor.type != protobuf_messages.DESCRIPTOR_OF_COMMAND:
        raise InvalidStatementError("a command of Flight SQL is expected, not a path")
    return bytes(descriptor.cmd)


def _put_result(told: Any) -> Any:
    return make("PutResult", app_metadata=told.SerializeToString())


def _ticket(handle: bytes) -> bytes:
    return pack(make("TicketStatementQuery", statement_handle=handle))


def _packed(name: str, body: bytes) -> Any:
    message = unpack(body)
    if kind_of(message) != name:
        raise InvalidStatementError(f"a {kind_of(message)} where {name} belongs")
    return message


def _cancel(session: ClientSession, info: Any) -> None:
    for endpoint in info.endpoint:
        ticket = unpack(endpoint.ticket.ticket)
        handle = ticket.statement_handle if kind_of(ticket) == "TicketStatementQuery" else b""
        if handle[:1] != _QUERY:
            raise NotFoundError("this is no query that runs")
        session.cancel(handle[1:1 + _NUMBER_BYTES])


def _parameters(requests: Iterable[bytes]) -> Iterator[list[Row]]:
    """Yields the rows of parameters, batch by batch."""
    _, batches = batches_of(requests)
    return map(parameter_rows, batches)


def _bound(text: str, requests: Iterable[bytes]) -> Iterator[str]:
    """Yields the statements that execute a prepared one with each row of parameters."""
    for rows in _parameters(requests):
        yield from bind_rows(text, rows)


def _one_row(pieces: Iterable[list[Row]]) -> Row:
    rows = list(islice(chain.from_iterable(pieces), 2))
    if len(rows) > 1:
        raise NotSupportedError("a statement that is executed as a query takes one row of parameters")
    return rows[0] if rows else ()


def _refuse_transaction(command: Any) -> None:
    if command.transaction_id:
        raise NotSupportedError("transactions are not supported: each statement is durable when it returns")


def _decoded(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise InvalidStatementError("this ticket was not given by this server") from error
