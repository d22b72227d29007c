"""What a client's messages do: log-in, statements, blocks of rows, prepared statements. It knows no socket.

A message is JSON with `action` and `args`, or binary with a number for the action; the answer is of the same kind, and
has the client's `req_id`. A statement that fails is answered with its number and text.
"""

from __future__ import annotations

import itertools
import json
import struct
import zoneinfo
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, TypeVar

from penstock.common.errors import (
    InternalError,
    InvalidStatementError,
    InvalidValueError,
    NotFoundError,
    NotSupportedError,
    PenstockError,
    UnauthenticatedError,
)
from penstock.common.logging import logger
from penstock.common.passwords import PasswordHash
from penstock.mnode.access.session import Result, SessionState
from penstock.mnode.catalog.name_lookup import require_table
from penstock.mnode.engine import Engine
from penstock.mnode.http.taos_codes import code_of
from penstock.mnode.query.activity import OnCancel
from penstock.planner.functions.system import TDENGINE_VERSION
from penstock.shell.taos_socket.bound_rows import BoundTable, read_bound
from penstock.shell.taos_socket.held_result import HeldResult
from penstock.shell.taos_socket.prepared_statements import FilledStatement, PreparedInsert, prepare
from penstock.shell.taos_socket.raw_blocks import PRECISIONS, TYPES, precision_of, raw_block, width_of
from penstock.sql.dialect.parser import parse_table_name
from penstock.sql.schema import Table
from penstock.sql.tree.expression_nodes import quote_identifier
from penstock.sql.tree.statements import Query
from penstock.sql.types import Kind

_log = logger(__name__)
_QUERY, _FETCH, _BIND = 6, 7, 9
_NAMES = {_QUERY: "binary_query", _FETCH: "fetch_raw_block", _BIND: "stmt2_bind"}
_HEAD = struct.Struct("<QQQH")
_BATCH_ROWS = 4096
_RESULTS_MAX, _STATEMENTS_MAX = 16, 64
_LINE_PROTOCOL = 1
_TIME_ZONE_OPTION = 1

LogIn = Callable[[str, str], SessionState]
"""Lets a user in by a password. Raises UnauthenticatedError, LoginDelayedError."""

Arguments = Mapping[str, Any]
T = TypeVar("T")


class PreparedStatement:
    """One of a client's prepared statements: what it is, what is bound, and what it gave."""

    def __init__(self) -> None:
        self.prepared: PreparedInsert | FilledStatement | None = None
        self.bound: list[BoundTable] = []
        self.rows: HeldResult | None = None


class SocketSession:
    """One client; used by one thread."""

    def __init__(self, engine: Engine, log_in: LogIn, on_cancel: OnCancel) -> None:
        """`on_cancel`: as with `Engine.execute_parsed`."""
        self._engine = engine
        self._log_in = log_in
        self._on_cancel = on_cancel
        self._state: SessionState | None = None
        self._stored: PasswordHash | None = None
        self._number = 0
        self._numbers = itertools.count(1)
        #: whether a login has failed: then nothing more is taken
        self.is_refused = False
        self._results: OrderedDict[int, HeldResult] = OrderedDict()
        self._statements: dict[int, PreparedStatement] = {}
        self._actions: dict[str, Callable[[Arguments], dict[str, object]]] = {
            "query": lambda args: self._query(_text(args, "sql")), "free_result": self._free,
            "insert": self._insert_lines, "options_connection": self._set_options,
            "stmt2_init": self._init, "stmt2_prepare": self._prepare, "stmt2_exec": self._execute_prepared,
            "stmt2_result": self._result, "stmt2_close": self._close_statement,
            "get_current_db": lambda args: {"db": self.state.database or ""},
            "get_server_info": lambda args: {"info": TDENGINE_VERSION},
            "check_server_status": lambda args: {"status": 2, "details": ""},
        }

    @property
    def is_logged_in(self) -> bool:
        return self._state is not None

    @property
    def state(self) -> SessionState:
        """Who asks. Raises UnauthenticatedError where the login doesn't hold any more."""
        if self._state is None:
            raise UnauthenticatedError("log in first")
        self._state.identity = self._engine.logins.renew(self._state.identity, self._stored)
        return self._state

    def answer(self, text: str) -> str:
        """Returns the answer to a message in JSON. Raises ValueError if it is malformed."""
        message = json.loads(text)
        if not isinstance(message, dict):
            raise ValueError("a message is an object")
        action, args = str(message.get("action")), message.get("args") or {}
        if not isinstance(args, dict):
            raise ValueError("args are an object")
        return self._told(action, args.get("req_id", 0), lambda: self._act(action, args))

    def answer_binary(self, data: bytes) -> str | bytes:
        """Returns the answer to a binary message. Raises ValueError if it is malformed."""
        if len(data) < _HEAD.size:
            raise ValueError("a message is too short")
        request, subject, action, version = _HEAD.unpack_from(data)
        rest = data[_HEAD.size:]
        if version != 1 or action not in _NAMES:
            return self._told(str(action), request, _refuse_action)
        if action == _FETCH:
            return self._fetch(request, subject)
        if action == _BIND:
            return self._told(_NAMES[action], request, lambda: self._bind(subject, rest[4:]))
        return self._told(_NAMES[action], request, lambda: self._query(_sized_text(rest)))

    def close(self) -> None:
        """Ends what runs."""
        for rows in (*self._results.values(), *(each.rows for each in self._statements.values() if each.rows)):
            rows.close()
        if self._number:
            self._engine.activity.logout(self._number)

    def _told(self, action: str, request: object, act: Callable[[], dict[str, object]]) -> str:
        """Returns the document of what an action gives, or of its error."""
        document: dict[str, object] = {"code": 0, "message": "", "action": action, "req_id": request, "timing": 0}
        try:
            document.update(act())
        except Exception as error:  # noqa: BLE001 - one message that fails must not end the connection
            failure = _failure(error)
            document.update(code=code_of(failure), message=failure.text)
        return json.dumps(document, ensure_ascii=False)

    def _act(self, action: str, args: Arguments) -> dict[str, object]:
        if action == "version":
            return {"version": TDENGINE_VERSION}
        if action == "conn":
            return self._connect(args)
        _ = self.state  # who isn't logged in isn't told what there is
        return self._actions[action](args) if action in self._actions else _refuse_action()

    def _connect(self, args: Arguments) -> dict[str, object]:
        if self._state is not None:
            raise InvalidStatementError("this connection is logged in already")
        try:
            state = self._log_in(_text(args, "user"), _text(args, "password"))
        except PenstockError:
            self.is_refused = True
            raise
        if zone := args.get("tz"):
            self._set_zone(state, zone)
        if args.get("db"):
            use = f"USE {quote_identifier(_text(args, 'db'))}"
            self._engine.execute(use, state)
        self._number = state.connection_id = self._engine.activity.login(state.identity.name)
        self._state, self._stored = state, self._engine.logins.password_of(state.identity)
        return {"version": TDENGINE_VERSION}

    # --- statements ----------------------------------------------------------------------------------------------

    def _query(self, text: str) -> dict[str, object]:
        outcome = self._execute(text)
        if isinstance(outcome, Result):
            return {"is_update": True, "affected_rows": outcome.affected}
        return self._hold(outcome)

    def _execute(self, text: str) -> HeldResult | Result:
        """Executes a statement; rows are to be taken, or have been. Raises PenstockErrors."""
        state = self.state
        for rows in self._results.values():
            if not rows.is_computed:  # one statement of a connection runs at a time
                rows.finish()
        written = self._engine.insert_rows(text, state)
        if written is not None:
            return written
        parsed = self._engine.read(text, state)
        query = ExitStack()
        if isinstance(parsed, Query) and parsed.into_file is None:
            opened = query.enter_context(self._engine.open_query(parsed, text, state, self._on_cancel))
            return HeldResult(opened.columns, opened.batches(_BATCH_ROWS), query)
        result = self._engine.execute_parsed(parsed, text, state, self._on_cancel)
        if result.table is None:
            return result
        return HeldResult(result.columns, iter(result.table.to_batches(_BATCH_ROWS)), query)

    def _hold(self, rows: HeldResult) -> dict[str, object]:
        """Keeps a result until it is taken, the oldest ones go when nobody comes; returns what it is."""
        number = next(self._numbers)  # clients free a result later, when another one may be there
        self._results[number] = rows
        while len(self._results) > _RESULTS_MAX:
            self._results.popitem(last=False)[1].close()
        kinds = [column.type for column in rows.columns]
        return {"id": number, "is_update": False, "affected_rows": 0, "fields_count": len(kinds),
                "fields_names": [column.name for column in rows.columns],
                "fields_types": [TYPES[kind.kind] for kind in kinds],
                "fields_lengths": [16 if kind.kind is Kind.DECIMAL else width_of(kind) for kind in kinds],
                "precision": PRECISIONS.index(precision_of(rows.columns)),
                "fields_precisions": [kind.digits or 0 for kind in kinds],
                "fields_scales": [kind.scale or 0 for kind in kinds]}

    def _fetch(self, request: int, number: int) -> bytes:
        """Returns the next block of a result; after the last one it is forgotten."""
        code, message, block = 0, b"", b""
        try:
            _ = self.state
            rows = _known(self._results, number, "result")
            batch = rows.next()
            if batch is not None:
                block = raw_block(batch, rows.columns)
        except Exception as error:  # noqa: BLE001 - as in `_told`
            failure = _failure(error)
            code, message = code_of(failure), failure.text.encode()
        if not block:
            self._free({"id": number})
        head = struct.pack("<QQHQQII", 2**64 - 1, _FETCH, 1, 0, request, code, len(message))
        rest = struct.pack("<QB", number, not block) + (struct.pack("<I", len(block)) + block if block else b"")
        return head + message + rest

    def _free(self, args: Arguments) -> dict[str, object]:
        rows = self._results.pop(_number(args, "id"), None)
        if rows is not None:
            rows.close()
        return {}

    def _insert_lines(self, args: Arguments) -> dict[str, object]:
        if args.get("protocol") != _LINE_PROTOCOL:
            raise NotSupportedError("only InfluxDB's lines are supported of schemaless protocols",
                                    hint="send OpenTSDB's points to /opentsdb/v1/put")
        state, data = self.state, _text(args, "data")
        database = state.database
        if database is None:
            raise InvalidStatementError("no database is in use")
        rows = self._engine.ingest_lines(data.encode(), database, _text(args, "precision") or "ns", state)
        return {"affected_rows": rows, "total_rows": rows}

    def _set_options(self, args: Arguments) -> dict[str, object]:
        """Takes over the time zone; others mean nothing here."""
        for option in args.get("options") or ():
            if option.get("option") == _TIME_ZONE_OPTION and option.get("value"):
                self._set_zone(self.state, option["value"])
        return {}

    @staticmethod
    def _set_zone(state: SessionState, name: str) -> None:
        if name not in zoneinfo.available_timezones():
            raise InvalidValueError(f"unknown time zone {name}")
        state.time_zone = name

    # --- prepared statements -------------------------------------------------------------------------------------

    def _init(self, args: Arguments) -> dict[str, object]:
        if len(self._statements) >= _STATEMENTS_MAX:
            raise InvalidStatementError(f"there are {_STATEMENTS_MAX} prepared statements already", hint="close some")
        number = next(self._numbers)
        self._statements[number] = PreparedStatement()
        return {"stmt_id": number}

    def _prepare(self, args: Arguments) -> dict[str, object]:
        statement, prepared = self._statement(args), prepare(_text(args, "sql"), self._table)
        statement.prepared, statement.bound = prepared, []
        if isinstance(prepared, FilledStatement):
            return {"stmt_id": args["stmt_id"], "is_insert": False, "fields": None, "fields_count": prepared.count}
        fields = [field.told() for field in prepared.fields]
        return {"stmt_id": args["stmt_id"], "is_insert": True, "fields": fields, "fields_count": len(fields)}

    def _bind(self, number: int, data: bytes) -> dict[str, object]:
        _ = self.state
        _known(self._statements, number, "statement").bound += read_bound(data)
        return {"stmt_id": number}

    def _execute_prepared(self, args: Arguments) -> dict[str, object]:
        statement = self._statement(args)
        prepared, bound, statement.bound = statement.prepared, statement.bound, []
        if statement.rows is not None:
            statement.rows.close()
            statement.rows = None
        affected = 0
        if isinstance(prepared, PreparedInsert):
            for table, rows in prepared.rows(bound, self._table):
                affected += self._engine.insert_arrow(table, rows, self.state).affected
        elif prepared is not None:
            for text in prepared.statements(bound):
                outcome = self._execute(text)
                if isinstance(outcome, HeldResult):
                    outcome.finish()
                    statement.rows = outcome
                else:
                    affected += outcome.affected
        return {"stmt_id": args["stmt_id"], "affected": affected}

    def _result(self, args: Arguments) -> dict[str, object]:
        statement = self._statement(args)
        rows, statement.rows = statement.rows, None
        if rows is None:
            raise InvalidStatementError("this statement has no rows")
        return {"stmt_id": args["stmt_id"], **self._hold(rows)}

    def _close_statement(self, args: Arguments) -> dict[str, object]:
        number = _number(args, "stmt_id")
        self._statements.pop(number, None)
        return {"stmt_id": number}

    def _statement(self, args: Arguments) -> PreparedStatement:
        return _known(self._statements, _number(args, "stmt_id"), "statement")

    def _table(self, name: str) -> Table:
        state = self.state
        self._engine.check_insert(name, state)
        session = state.freeze(self._engine.clock.now_ms())
        return require_table(parse_table_name(name), session, self._engine.catalog)


def _known(kept: Mapping[int, T], number: int, what: str) -> T:
    found = kept.get(number)
    if found is None:
        raise NotFoundError(f"there is no such {what} any more")
    return found


def _text(args: Arguments, name: str) -> str:
    """Returns an argument that is a text, "" if it isn't there. Raises InvalidStatementError."""
    value = args.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidStatementError(f"{name} is a text")
    return value or ""


def _number(args: Arguments, name: str) -> int:
    """Returns an argument that is a number, 0 if it isn't there. Raises InvalidStatementError."""
    value = args.get(name, 0)
    if not isinstance(value, int):
        raise InvalidStatementError(f"{name} is a number")
    return value


def _sized_text(data: bytes) -> str:
    """Returns a text that comes with its length. Raises InvalidStatementError."""
    size = int.from_bytes(data[:4], "little")
    if len(data) < 4 + size:
        raise InvalidStatementError("the message ends before the statement does")
    try:
        return data[4:4 + size].decode()
    except UnicodeDecodeError as error:
        raise InvalidStatementError(f"the statement is not valid UTF-8: {error.reason}") from error


def _refuse_action() -> dict[str, object]:
    raise NotSupportedError("unknown action")


def _failure(error: Exception) -> PenstockError:
    if isinstance(error, PenstockError):
        return error
    _log.error("a message could not be answered", exc_info=error)
    return InternalError.of(error)
