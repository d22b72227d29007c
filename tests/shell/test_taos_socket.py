"""TDengine's WebSocket protocol: blocks of rows, bound values, messages that nobody should send, its connector."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.basics.client_packages import client_process, needs_clients
from kits.basics.extreme_values import CASES, NAMES, quoted
from kits.engines.embedded import Embedded
from kits.engines.taos_port import taos_port
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.sync.client import ClientConnection, connect

from penstock.common.errors import InvalidValueError, NotSupportedError
from penstock.mnode.http.http_server import HttpListener
from penstock.planner.task_plans.plan_tree import ResultColumn
from penstock.shell.taos_socket import held_result, socket_route
from penstock.shell.taos_socket.bound_rows import read_bound
from penstock.shell.taos_socket.held_result import HeldResult
from penstock.shell.taos_socket.raw_blocks import TYPES, raw_block
from penstock.shell.taos_socket.socket_route import socket_routes
from penstock.sql.types import DataType, Kind, other_type

PASSWORD = "correct-horse"
FIXED = {Kind.BOOL: "?", Kind.TINYINT: "b", Kind.SMALLINT: "h", Kind.INT: "i", Kind.BIGINT: "q", Kind.UTINYINT: "B",
         Kind.USMALLINT: "H", Kind.UINT: "I", Kind.UBIGINT: "Q", Kind.DOUBLE: "d", Kind.TIMESTAMP: "q"}
CODES = {Kind.VARCHAR: "utf-8", Kind.NCHAR: "utf-32-le", Kind.VARBINARY: None}
VALUES: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.BOOL: st.booleans(), Kind.TINYINT: st.integers(-128, 127), Kind.SMALLINT: st.integers(-2**15, 2**15 - 1),
    Kind.INT: st.integers(-2**31, 2**31 - 1), Kind.BIGINT: st.integers(-2**63, 2**63 - 1),
    Kind.UTINYINT: st.integers(0, 255), Kind.USMALLINT: st.integers(0, 2**16 - 1), Kind.UINT: st.integers(0, 2**32 - 1),
    Kind.UBIGINT: st.integers(0, 2**64 - 1), Kind.DOUBLE: st.floats(allow_nan=False),
    Kind.TIMESTAMP: st.integers(-2**40, 2**40), Kind.VARCHAR: st.text(max_size=20), Kind.NCHAR: st.text(max_size=20),
    Kind.VARBINARY: st.binary(max_size=20), Kind.DECIMAL: st.decimals(-10**15, 10**15, places=4)}


@st.composite
def results(draw: st.DrawFn) -> tuple[list[Kind], list[list[Any]]]:
    """Draws columns' types, and their values."""
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=6))
    rows = draw(st.integers(0, 20))
    return kinds, [draw(st.lists(st.none() | VALUES[kind], min_size=rows, max_size=rows)) for kind in kinds]


def block_of(kinds: list[Kind], columns: list[list[Any]]) -> bytes:
    types = [DataType(kind, digits=20, scale=4) if kind is Kind.DECIMAL else DataType(kind) for kind in kinds]
    arrays = [pa.array(values, kind.arrow()) for values, kind in zip(columns, types, strict=True)]
    batch = pa.record_batch(arrays, names=[str(place) for place in range(len(kinds))])
    return raw_block(batch.slice(0), [ResultColumn("c", kind) for kind in types])


def read_block(block: bytes, kinds: list[Kind]) -> list[list[Any]]:
    """Returns a block's columns, as the protocol has them."""
    _, size, rows, columns, _, _ = struct.unpack_from("<IIIIIQ", block)
    assert (size, columns) == (len(block), len(kinds))
    at = 28 + 5 * columns
    assert [block[28 + 5 * place] for place in range(columns)] == [TYPES[kind] for kind in kinds]
    lengths = struct.unpack_from(f"<{columns}i", block, at)
    at += 4 * columns
    found = []
    for kind, length in zip(kinds, lengths, strict=True):
        if kind in CODES:
            offsets = struct.unpack_from(f"<{rows}i", block, at)
            at += 4 * rows
            found.append([None if offset < 0 else _text_at(block, at + offset, CODES[kind]) for offset in offsets])
        else:
            nulls = [block[at + row // 8] >> (7 - row % 8) & 1 for row in range(rows)]
            at += (rows + 7) // 8
            values = ([Decimal(int.from_bytes(block[at + 16 * row:][:16], "little", signed=True)).scaleb(-4)
                       for row in range(rows)] if kind is Kind.DECIMAL
                      else struct.unpack_from(f"<{rows}{FIXED[kind]}", block, at))
            found.append([None if null else value for null, value in zip(nulls, values, strict=True)])
        at += length
    return found


def _text_at(block: bytes, at: int, code: str | None) -> str | bytes:
    [size] = struct.unpack_from("<H", block, at)
    data = block[at + 2:at + 2 + size]
    return data if code is None else data.decode(code)


@given(results())
def test_blocks_have_the_rows(result: tuple[list[Kind], list[list[Any]]]) -> None:
    """Of all types, with NULLs anywhere."""
    kinds, columns = result
    assert read_block(block_of(kinds, columns), kinds) == columns


def test_values_that_tdengine_has_no_type_for_are_texts() -> None:
    """Such that are longer than any of its texts are cut between characters."""
    lists = pa.array([[1, None], None], pa.list_(pa.int32()))
    block = raw_block(pa.record_batch([lists], ["c"]), [ResultColumn("c", other_type("INTEGER[]"))])
    assert block[28] == TYPES[Kind.VARCHAR]
    assert _text_at(block, 28 + 5 + 4 + 8, "utf-8") == "[1, NULL]"
    long = raw_block(pa.record_batch([pa.array(["ä" * 40_000])], ["c"]), [ResultColumn("c", DataType(Kind.VARCHAR))])
    assert _text_at(long, 28 + 5 + 4 + 4, "utf-8") == "ä" * 32_758


def bound_column(kind: Kind, values: list[Any]) -> bytes:
    """Returns a column as clients send it."""
    nulls = bytes(value is None for value in values)
    if kind in CODES:
        texts = [b"" if value is None else value.encode() if isinstance(value, str) else value for value in values]
        lengths, data = struct.pack(f"<{len(texts)}i", *map(len, texts)), b"".join(texts)
    else:
        lengths, data = b"", struct.pack(f"<{len(values)}{FIXED[kind]}", *(value or 0 for value in values))
    body = struct.pack("<II", TYPES[kind], len(values)) + nulls + bytes([bool(lengths)]) + lengths
    body += struct.pack("<I", len(data)) + data
    return struct.pack("<I", 4 + len(body)) + body


def bound_message(names: list[str], columns: list[list[bytes]]) -> bytes:
    named = [name.encode() + b"\0" for name in names]
    names_part = struct.pack(f"<{len(named)}H", *map(len, named)) + b"".join(named)
    parts = [b"".join(each) for each in columns]
    columns_part = struct.pack(f"<{len(parts)}I", *map(len, parts)) + b"".join(parts)
    size = 28 + len(names_part) + len(columns_part)
    head = struct.pack("<7I", size, len(names), 0, len(columns[0]), 28, 0, 28 + len(names_part))
    return head + names_part + columns_part


@given(st.lists(st.tuples(st.text("abc_", min_size=1, max_size=9), results().filter(
    lambda drawn: Kind.DECIMAL not in drawn[0])), min_size=1, max_size=1))
def test_bound_values_are_read_as_they_are_sent(tables: list[tuple[str, tuple[list[Kind], list[list[Any]]]]]) -> None:
    """Names of tables, and columns of each type; timestamps are numbers."""
    [(name, (kinds, columns))] = tables
    message = bound_message([name], [[bound_column(kind, values) for kind, values in zip(kinds, columns, strict=True)]])
    [found] = read_bound(message)
    assert found.name == name
    assert [column.to_pylist() for column in found.columns] == columns


def test_bound_texts_that_are_no_utf8_are_refused_with_their_place() -> None:
    """As are names of tables."""
    columns = [bound_column(Kind.INT, [1, 2]), bound_column(Kind.VARCHAR, ["a", b"\xe9"])]
    with pytest.raises(InvalidValueError, match=r"bound column 2, row 2: b'\\xe9' is not valid UTF-8"):
        read_bound(bound_message(["t"], [columns]))
    message = bound_message(["t"], [[bound_column(Kind.INT, [1])]]).replace(b"t\0", b"\xe9\0")
    with pytest.raises(InvalidValueError, match=r"the table name b'\\xe9' is not valid UTF-8"):
        read_bound(message)


@given(st.data())
def test_damaged_bindings_are_refused(data: st.DataObject) -> None:
    """Whatever bytes come, there are values or an error, and never values of other memory."""
    columns = [bound_column(Kind.INT, [1, None]), bound_column(Kind.VARCHAR, ["a", "b"])]
    message = bytearray(bound_message(["t"], [columns]))
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(message[:data.draw(st.integers(0, len(message)))])
    try:
        for table in read_bound(damaged):
            for column in table.columns:
                column.validate(full=True)
    except (InvalidValueError, NotSupportedError):
        pass


def test_small_results_leave_no_query_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of larger ones the rest is computed as it is taken, or at once when it must be."""
    batch = pa.record_batch({"v": pa.array(range(1000))})
    monkeypatch.setattr(held_result, "HELD_BYTES", 2 * batch.nbytes)
    for batches, is_computed in ((2, False), (1, True)):
        rows = HeldResult((), iter([batch] * batches), ExitStack())
        assert rows.is_computed is is_computed
        taken = [rows.next() for _ in range(batches)]
        assert [each.num_rows for each in taken if each is not None] == [1000] * batches
        assert rows.next() is None
        assert rows.is_computed
    rows = HeldResult((), iter([batch] * 9), ExitStack())
    rows.finish()
    assert rows.is_computed
    assert sum(each.num_rows for each in iter(rows.next, None)) == 9000


# --- over the wire ---------------------------------------------------------------------------------------------------


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Embedded]:
    opened = Embedded(tmp_path / "data")
    opened.run(f"CREATE USER ada PASS '{PASSWORD}' ROLE admin")
    opened.run("CREATE DATABASE d VGROUPS 1 KEEP 36500d")
    yield opened
    opened.close()


@pytest.fixture
def port(engine: Embedded) -> Iterator[int]:
    with taos_port(engine.engine) as opened:
        yield opened


def say(connection: ClientConnection, action: str, **arguments: object) -> dict[str, Any]:
    connection.send(json.dumps({"action": action, "args": {"req_id": 7, **arguments}}))
    answer = json.loads(connection.recv())
    assert (answer["action"], answer["req_id"]) == (action, 7)
    return dict(answer)


@contextmanager
def logged_in(port: int) -> Iterator[ClientConnection]:
    with connect(f"ws://127.0.0.1:{port}/ws") as connection:
        assert say(connection, "conn", user="ada", password=PASSWORD, db="d")["code"] == 0
        yield connection


@contextmanager
def raw_login(port: int) -> Iterator[socket.socket]:
    """A client that has logged in, and speaks no WebSocket by itself from then on."""
    with socket.create_connection(("127.0.0.1", port), 30.0) as raw:
        raw.sendall(b"GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
        login = json.dumps({"action": "conn", "args": {"user": "ada", "password": PASSWORD}})
        raw.sendall(Frame(Opcode.TEXT, login.encode()).serialize(mask=True))
        yield raw


@pytest.mark.parametrize("missing", [0, 3])
def test_who_hangs_up_without_a_word_is_let_go(port: int, missing: int) -> None:
    """The server closes its side, and has no thread that waits for more."""
    with raw_login(port) as gone:
        message = Frame(Opcode.TEXT, b'{"action": "version", "args": {}}').serialize(mask=True)
        gone.sendall(message[:len(message) - missing])
        gone.shutdown(socket.SHUT_WR)
        assert b'"action": "conn"' in b"".join(iter(lambda: gone.recv(4096), b""))


def test_before_the_login_nothing_is_told(port: int) -> None:
    """Neither what there is nor what isn't; messages are small; who is wrong once must connect again."""
    with connect(f"ws://127.0.0.1:{port}/rest/ws") as connection:
        assert say(connection, "version")["version"].startswith("3.")
        for action in ("query", "stmt2_init", "get_current_db", "nothing"):
            assert say(connection, action, sql="SHOW DATABASES")["message"] == "log in first"
        connection.send(struct.pack("<QQQHI", 1, 0, 6, 1, 8) + b"SELECT 1")
        assert json.loads(connection.recv())["message"] == "log in first"
        assert say(connection, "conn", user="ada", password="wrong")["code"] == 0x0357
        with pytest.raises(ConnectionClosed):
            connection.recv()
    with connect(f"ws://127.0.0.1:{port}/ws") as connection:
        connection.send("x" * 100_000)
        with pytest.raises(ConnectionClosed, match="1009"):
            connection.recv()
    with logged_in(port) as connection:
        assert say(connection, "query", sql=f"SELECT '{'x' * 60_000}'")["code"] == 0


def test_who_does_not_log_in_is_sent_away(engine: Embedded) -> None:
    """After loginTimeout, however little comes meanwhile."""
    listener = HttpListener("127.0.0.1", 0, socket_routes(engine.engine, "UTC", 1 << 20, 0.2))
    with connect(f"ws://127.0.0.1:{listener.port}/ws") as connection, suppress(ConnectionClosed):
        for _ in iter(lambda: say(connection, "version"), None):
            pass
    listener.close()


def test_who_is_quiet_is_asked_whether_it_is_there(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who answers stays, who doesn't is sent away."""
    monkeypatch.setattr(socket_route, "_QUIET_S", 0.05)
    with logged_in(port) as connection, raw_login(port) as silent:
        said = b"".join(iter(lambda: silent.recv(4096), b""))
        assert b'"action": "conn"' in said
        assert said.endswith(Frame(Opcode.PING, b"").serialize(mask=False))
        assert say(connection, "get_current_db")["db"] == "d"


@pytest.mark.parametrize("message", ["", "{", "[]", '{"action": "version", "args": 3}', "[" * 50_000, b"", b"short"])
def test_malformed_messages_end_the_connection(port: int, message: str | bytes) -> None:
    """With WebSocket's own number for that."""
    with logged_in(port) as connection:
        connection.send(message)
        with pytest.raises(ConnectionClosed, match="1007"):
            connection.recv()


def test_a_password_that_was_changed_ends_the_session(engine: Embedded, port: int) -> None:
    """From the next message on."""
    with logged_in(port) as connection:
        assert say(connection, "get_current_db")["db"] == "d"
        engine.run("ALTER USER ada PASS 'another-horse'")
        assert "no longer valid" in say(connection, "query", sql="SELECT 1")["message"]


def test_what_is_wrong_with_a_message_is_told(port: int) -> None:
    """The connection goes on."""
    with logged_in(port) as connection:
        for action, arguments, said in (
                ("query", {"sql": 3}, "sql is a text"), ("query", {"sql": "SELEC 1"}, "SELECT"),
                ("stmt2_prepare", {"stmt_id": 9, "sql": "SELECT 1"}, "no such statement"),
                ("stmt2_prepare", {"stmt_id": [], "sql": "SELECT 1"}, "stmt_id is a number"),
                ("insert", {"protocol": 2, "data": "x"}, "OpenTSDB"), ("tmq", {}, "unknown action"),
                ("options_connection", {"options": [{"option": 1, "value": "Nowhere"}]}, "unknown time zone Nowhere"),
                ("conn", {"user": "ada", "password": PASSWORD}, "logged in already")):
            answer = say(connection, action, **arguments)
            assert said in answer["message"], answer
            assert answer["code"]
        statement = say(connection, "stmt2_init")["stmt_id"]
        for sql, said in (("INSERT INTO nope VALUES (?)", "nope does not exist"),
                          ("INSERT INTO ? (ts) VALUES (?)", "no list of columns")):
            assert said in say(connection, "stmt2_prepare", stmt_id=statement, sql=sql)["message"]
        assert say(connection, "query", sql="SELECT 1")["fields_count"] == 1


def test_names_of_prepared_statements_are_what_their_quotes_say(engine: Embedded, port: int) -> None:
    """Those of tables, columns and tags, with commas and quotes in them, too."""
    columns, tags = CASES, ["a,b", "(x)", *(name for name in NAMES if name not in CASES)]
    engine.run(f"CREATE STABLE d.`V` (ts TIMESTAMP, {', '.join(f'{quoted(name)} INT' for name in columns)}) "
               f"TAGS ({', '.join(f'{quoted(name)} INT' for name in tags)})")
    engine.run("CREATE STABLE d.v (ts TIMESTAMP, v INT) TAGS (g INT)")
    with logged_in(port) as connection:
        statement = say(connection, "stmt2_init")["stmt_id"]
        for names, listed in (((*reversed(columns), "ts"), reversed(tags)), (("ts", "V", "v"), tags[:1])):
            given = [*listed]
            answer = say(connection, "stmt2_prepare", stmt_id=statement, get_fields=True, sql=(
                f"INSERT INTO ? USING `V` ({', '.join(map(quoted, given))}) TAGS ({', '.join('?' * len(given))}) "
                f"({', '.join(map(quoted, names))}) VALUES ({', '.join('?' * len(names))})"))
            assert [field["name"] for field in answer["fields"]] == ["tbname", *given, *names], answer


def test_a_client_without_the_right_gets_no_fields(engine: Embedded, port: int) -> None:
    """Preparing an INSERT tells columns: to who may insert."""
    engine.run("CREATE USER eve PASS 'reads-a-little' ROLE read")
    engine.run("CREATE TABLE d.t (ts TIMESTAMP, v INT)")
    with connect(f"ws://127.0.0.1:{port}/ws") as connection:
        say(connection, "conn", user="eve", password="reads-a-little", db="d")
        statement = say(connection, "stmt2_init")["stmt_id"]
        answer = say(connection, "stmt2_prepare", stmt_id=statement, sql="INSERT INTO t VALUES (?, ?)", get_fields=True)
        assert "WRITE" in answer["message"]
        assert "fields" not in answer


@needs_clients
def test_the_connector_binds_columns(engine: Embedded, port: int) -> None:
    """taosws' prepared statements: into a table, a super table by name and with USING, bound tables, and a query."""
    engine.run("CREATE TABLE d.t (ts TIMESTAMP, v INT, s VARCHAR(20))")
    engine.run("CREATE STABLE d.m (ts TIMESTAMP, v DOUBLE) TAGS (place NCHAR(10), n INT)")
    times, more = ["millis_timestamps_to_column", [1700000000000, 1700000001000]], ["millis_timestamps_to_column", [5]]
    with client_process("taos_client", "bound", str(port), "ada", PASSWORD, "d") as client:
        def bind(sql: str, *tables: list[Any]) -> Any:
            return json.loads(client.ask(json.dumps([sql, tables])))

        assert bind("INSERT INTO t VALUES (?, ?, ?)", [None, None, [
            times, ["ints_to_column", [1, None]], ["varchar_to_column", ["ä", None]]]]) == 2
        assert bind("INSERT INTO ? USING m TAGS (?, ?) VALUES (?, ?)", *(
            [name, [["nchar_to_tag", place], ["int_to_tag", n]], [times, ["doubles_to_column", [n / 2, 9.5]]]]
            for name, place, n in (("a", "Rom", 1), ("b", "Öl", 2)))) == 4
        assert bind("insert into m (tbname, ts, v, place) values (?, ?, ?, ?)", [
            "c", [["nchar_to_tag", "Ulm"]], [more, ["doubles_to_column", [7.0]]]]) == 1
        assert bind("INSERT INTO ? VALUES (?, ?)", ["a", None, [more, ["doubles_to_column", [8.0]]]],
                    ["b", None, [more, ["doubles_to_column", [None]]]]) == 2
        assert bind("SELECT tbname, v FROM m WHERE v > ? AND place = ? ORDER BY v", [None, None, [
            ["doubles_to_column", [0.0]], ["nchar_to_column", ["Rom"]]]]) == [["a", 0.5], ["a", 8.0], ["a", 9.5]]
    assert engine.run("SELECT v, s FROM d.t ORDER BY ts") == [(1, "ä"), (None, None)]
    assert engine.run("SELECT tbname, place, n, count(*) FROM d.m GROUP BY tbname, place, n ORDER BY tbname") == [
        ("a", "Rom", 1, 3), ("b", "Öl", 2, 3), ("c", "Ulm", None, 1)]
