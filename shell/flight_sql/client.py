"""The other side of a connection to `penstock serve`: executes statements there, by Flight SQL."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import pyarrow as pa

from penstock.common.errors import (
    CancelledError,
    NoAnswerError,
    NotSupportedError,
    UnauthenticatedError,
    UnavailableError,
)
from penstock.mnode.access.session import Result, SessionState
from penstock.shell.flight_sql import protobuf_messages
from penstock.shell.flight_sql.endpoint import LAG, UNIX, address, method
from penstock.shell.flight_sql.failures import error_of
from penstock.shell.flight_sql.frames import batches_of, frames
from penstock.shell.flight_sql.protobuf_messages import make, pack, read
from penstock.shell.flight_sql.result_fields import result_columns
from penstock.sql.dialect.parser import parse_table_name

if TYPE_CHECKING:
    from penstock.shell.flight_sql.several_hosts import SeveralHosts

_CONNECT_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 5.0
_FRAME_BYTES = 8 << 20

SETS = re.compile(r"\s*set\s+(\w+)", re.IGNORECASE)
"""A statement that sets something for a session."""

T = TypeVar("T")
_Login = tuple[str, str]


class RemoteEngine:
    """An engine at the other end of a connection, as `Connection` uses engines. Safe for many threads.

    Raises the server's errors in their own classes, and UnavailableError if it doesn't answer.
    """

    def __init__(self, host: str, port: int, login: _Login | None, roots: bytes | None, time_zone: str,
                 connect_timeout_s: float = _CONNECT_TIMEOUT_S) -> None:
        """`host`: also `unix:PATH`, whose session is the owner's unless there is a `login`: user and password. `roots`:
        certificates to trust, PEM; without them there is no TLS.
        """
        self._address = address(host, port)
        self._login = login
        self._time_zone = time_zone
        self._connect_timeout_s = connect_timeout_s
        self._token: str | None = None
        #: the SETs that hold for the session at the server, by what they set
        self._settings: dict[str, str] = {}
        self._calls: set[Any] = set()
        self._cancellations = 0
        self._is_let_go = False
        # What is too much, the server knows.
        # A connection of its own: who has no login is told apart by that.
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1),
                   ("grpc.use_local_subchannel_pool", 1)]
        self._channel = (
            grpc.insecure_channel(self._address, options) if roots is None
            else grpc.secure_channel(self._address, grpc.ssl_channel_credentials(roots), options))
        try:
            self._begin(None)
        except BaseException:
            self._channel.close()
            raise

    def execute(self, text: str, state: SessionState) -> Result:
        """Executes one statement and returns its rows, or how much it changed."""
        return self._as_known(state, lambda: self._execute(text, state))

    def insert_arrow(self, table: str, rows: pa.Table, state: SessionState, *, first_row: int = 0) -> Result:
        """Inserts an Arrow table into a table, whose name is written as in SQL; see `Cursor.insert_arrow`."""
        return self._as_known(state, lambda: self._insert_arrow(table, rows, first_row))

    def ingest_lines(self, data: bytes, database: str, precision: str, state: SessionState) -> int:
        """Raises NotSupportedError: Flight SQL doesn't know line protocol."""
        raise NotSupportedError("a connection to a server doesn't take line protocol",
                                hint="send it to POST /write of the server")

    def cancel(self) -> None:
        """Ends the statements that are under way; they raise CancelledError."""
        self._cancellations += 1
        for call in list(self._calls):
            call.cancel()

    def set_time_zone(self, name: str) -> None:
        self._time_zone = name
        self._set_options(time_zone=name)

    def close(self) -> None:
        """Ends the session at the server, if that still answers, and the connection."""
        if self._is_let_go:
            return
        action = make("Action", type="CloseSession")
        try:
            for _ in self._stream("DoAction", action.SerializeToString(), _CLOSE_TIMEOUT_S):
                pass
        except (UnavailableError, UnauthenticatedError):  # then the session ends by itself
            return
        finally:
            self._channel.close()

    def let_go(self) -> None:
        """Ends the connection with a server that doesn't answer; the session there ends by itself."""
        self._is_let_go = True
        self._channel.close()

    def resume(self, database: str | None, time_zone: str | None, settings: Iterable[str]) -> None:
        """Makes the session what one with another server was: `settings` are the SETs that hold for it."""
        if time_zone is not None:
            self._time_zone = time_zone
        if database is not None or time_zone is not None:
            self._begin(database)
        for setting in settings:
            self.execute(setting, SessionState(self._time_zone))

    # --- inside ------------------------------------------------------------------------------------------------

    def _begin(self, database: str | None) -> None:
        """Logs in, where there is a login, and makes the session at the server what this one is."""
        if self._login is not None or self._address.startswith(UNIX):
            self._token = self._new_token(self._login)
        options = {"time_zone": self._time_zone} if database is None else {
            "time_zone": self._time_zone, "schema": database}
        self._set_options(**options)

    def _as_known(self, state: SessionState, call: Callable[[], T]) -> T:
        """Calls as a user who is logged in: again, if the token has expired meanwhile."""
        try:
            return call()
        except UnauthenticatedError:
            if self._token is None:
                raise
        self._begin(state.database)
        for setting in list(self._settings.values()):
            self._execute(setting, state)
        return call()

    def _new_token(self, login: _Login | None) -> str:
        metadata = []
        if login is not None:
            metadata = [("authorization", f"Basic {base64.b64encode(':'.join(login).encode()).decode()}")]
        call = self._channel.stream_stream(method("Handshake"))(
            iter([make("HandshakeRequest").SerializeToString()]), metadata=metadata,
            timeout=self._connect_timeout_s)
        try:
            for _ in call:
                pass
            return str(dict(call.initial_metadata())["authorization"])
        except grpc.RpcError as error:
            raise error_of(error, self._address) from error

    def _set_options(self, **options: str) -> None:
        request = make("SetSessionOptionsRequest", session_options=[
            make("SessionOption", key=key, value=make("SessionOptionValue", string_value=value))
            for key, value in options.items()])
        action = make("Action", type="SetSessionOptions", body=request.SerializeToString())
        for answer in self._stream("DoAction", action.SerializeToString(), self._connect_timeout_s):
            refused = read("SetSessionOptionsResult", read("Result", answer).body).errors
            if refused:
                raise NotSupportedError(f"{self._address} refuses the session option {refused[0].key}")

    def _execute(self, text: str, state: SessionState) -> Result:
        before = self._cancellations
        descriptor = make("FlightDescriptor", type=protobuf_messages.DESCRIPTOR_OF_COMMAND,
                          cmd=pack(make("CommandStatementQuery", query=text)))
        info = read("FlightInfo", self._call("GetFlightInfo", descriptor.SerializeToString(), before))
        state.database = info.app_metadata.decode() or None
        if (sets := SETS.match(text)) is not None:
            self._settings[sets[1].lower()] = text
        if not info.endpoint:
            return Result(affected=info.total_records)
        self._require_channel()
        answers = self._channel.unary_stream(method("DoGet"))(
            info.endpoint[0].ticket.SerializeToString(), metadata=self._headers())
        schema, batches = batches_of(self._outcome(answers, before))
        table = pa.Table.from_batches(batches, schema)
        lag = dict(answers.trailing_metadata() or ()).get(LAG)
        return Result(result_columns(schema), table, table.num_rows, None if lag is None else float(lag))

    def _insert_arrow(self, table: str, rows: pa.Table, first_row: int) -> Result:
        before = self._cancellations
        wanted = make("TableDefinitionOptions", if_not_exist=protobuf_messages.FAIL_IF_MISSING,
                      if_exists=protobuf_messages.APPEND_IF_THERE)
        name = parse_table_name(table)
        command = make("CommandStatementIngest", table_definition_options=wanted, table=name.name, schema=name.database,
                       options=[make("IngestOption", key=protobuf_messages.FIRST_ROW, value=str(first_row))])
        descriptor = make("FlightDescriptor", type=protobuf_messages.DESCRIPTOR_OF_COMMAND, cmd=pack(command))
        requests = frames(rows.schema, rows.to_batches(), _FRAME_BYTES, descriptor)
        answers = self._outcome(self._channel.stream_stream(method("DoPut"))(requests, metadata=self._headers()),
                                before)
        [answer] = answers
        return Result(affected=read("DoPutUpdateResult", read("PutResult", answer).app_metadata).record_count)

    def _call(self, name: str, request: bytes, before: int) -> bytes:
        """`before`: how many cancellations there had been when the statement began."""
        self._require_channel()
        call = self._channel.unary_unary(method(name)).future(request, metadata=self._headers())
        self._note(call, before)
        try:
            return bytes(call.result())
        except grpc.RpcError as error:
            raise error_of(error, self._address) from error
        except grpc.FutureCancelledError as error:
            raise CancelledError("the statement was cancelled") from error
        finally:
            self._calls.discard(call)

    def _stream(self, name: str, request: bytes, timeout_s: float | None = None) -> Iterator[bytes]:
        self._require_channel()
        return self._outcome(self._channel.unary_stream(method(name))(
            request, metadata=self._headers(), timeout=timeout_s))

    def _outcome(self, answers: Any, before: int | None = None) -> Iterator[bytes]:
        self._note(answers, self._cancellations if before is None else before)
        try:
            yield from answers
        except grpc.RpcError as error:
            raise error_of(error, self._address) from error
        finally:
            self._calls.discard(answers)

    def _require_channel(self) -> None:
        if self._is_let_go:
            raise NoAnswerError(f"{self._address} stopped responding, and the connection was closed")

    def _note(self, call: Any, before: int) -> None:
        """Lets `cancel` end a call. One that came since the statement began found no call of it, or the one before."""
        self._calls.add(call)
        if self._cancellations != before:
            call.cancel()

    def _headers(self) -> list[tuple[str, str]]:
        return [] if self._token is None else [("authorization", self._token)]


class RemoteLease:
    """A connection's hold on an engine at a server: what `EngineLease` is for one in this process."""

    def __init__(self, engine: RemoteEngine | SeveralHosts) -> None:
        self.engine = engine

    def login(self, user: str) -> int:
        """Returns no number of ours: the server lists the connection."""
        return 0

    def cancel(self, connection_id: int) -> None:
        """Ends what is under way; the server ends the statements."""
        self.engine.cancel()

    def logout(self, connection_id: int) -> None:
        """Does nothing; `release` ends the session at the server."""

    def set_time_zone(self, name: str) -> None:
        self.engine.set_time_zone(name)

    def release(self) -> None:
        """Ends the connection."""
        self.engine.close()
