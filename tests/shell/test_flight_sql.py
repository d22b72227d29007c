"""Flight SQL as it is on the wire: our messages against Arrow's own client, and messages that nobody should send."""

from __future__ import annotations

import base64
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kits.basics.waiting import wait_until
from kits.engines.embedded import NOW_MS
from kits.engines.serve_kit import CREATE_SLOW_FUNCTION, add_slow_function
from kits.engines.served_here import ServedHere

from penstock.common.clock import ManualClock
from penstock.common.errors import CancelledError, InvalidStatementError, InvalidValueError
from penstock.mnode.access.audit_log import Origin
from penstock.mnode.access.roles import Identity
from penstock.shell.api.parameter_binding import parameter_rows
from penstock.shell.flight_sql import protobuf_messages
from penstock.shell.flight_sql.endpoint import address
from penstock.shell.flight_sql.endpoint import method as path_of
from penstock.shell.flight_sql.frames import batches_of, frames
from penstock.shell.flight_sql.protobuf_messages import make, pack, read, unpack
from penstock.shell.server.client_sessions import Sessions
from penstock.shell.server.flight_server import whole
from penstock.shell.server.flight_service import ACTIONS
from penstock.sql.dialect.parser import parse_one

CALLS_MAX = 4
CONNECTED = "SELECT * FROM performance_schema.perf_connections"
PASSWORD = "correct horse"


def schema_of(data: bytes) -> pa.Schema:
    """Returns the schema that a FlightInfo and its like carry."""
    return pa.ipc.read_schema(pa.py_buffer(data))


def serving(folder: Path) -> ServedHere:
    return ServedHere(folder / "data", {"flightMessageMax": "1MiB", "flightCallsMax": CALLS_MAX})


@pytest.fixture
def here(tmp_path: Path) -> Iterator[ServedHere]:
    with serving(tmp_path) as server:
        yield server


@pytest.fixture(scope="module")
def unharmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedHere]:
    """One server that gets all malformed messages."""
    with serving(tmp_path_factory.mktemp("unharmed")) as server:
        yield server


def query_command(text: str) -> bytes:
    return pack(make("CommandStatementQuery", query=text))


def descriptor(command: bytes) -> bytes:
    made = make("FlightDescriptor", type=protobuf_messages.DESCRIPTOR_OF_COMMAND, cmd=command)
    return bytes(made.SerializeToString())


def basic(user: str, password: str) -> list[tuple[str, str]]:
    return [("authorization", "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode())]


# --- the protocol --------------------------------------------------------------------------------------------


def test_messages_are_those_of_flight() -> None:
    """What Arrow's own library writes, we read, and the other way round."""
    schema = pa.schema([("a", pa.int32())])
    theirs = flight.FlightInfo(
        schema, flight.FlightDescriptor.for_command(b"do"), [flight.FlightEndpoint(b"ticket", [])], 3, 4)
    ours = read("FlightInfo", theirs.serialize())
    assert (ours.flight_descriptor.cmd, ours.endpoint[0].ticket.ticket) == (b"do", b"ticket")
    assert (ours.total_records, ours.total_bytes) == (3, 4)
    assert schema_of(ours.schema) == schema
    again = flight.FlightInfo.deserialize(ours.SerializeToString())
    assert again.schema == schema
    assert again.descriptor == theirs.descriptor
    assert again.endpoints[0].ticket == theirs.endpoints[0].ticket


def test_addresses() -> None:
    """An address of IPv6 is told from its port."""
    assert (address("localhost", 1), address("::1", 1)) == ("localhost:1", "[::1]:1")


def test_envelopes() -> None:
    """A command keeps its kind and what is left out; other messages are refused."""
    command = unpack(pack(make("CommandGetTables", catalog="", table_types=["TABLE"])))
    assert protobuf_messages.kind_of(command) == "CommandGetTables"
    assert command.HasField("catalog")
    assert not command.HasField("db_schema_filter_pattern")
    for data in (b"", b"\xff\xff", pack(make("Ticket", ticket=b"x"))):
        with pytest.raises(InvalidStatementError):
            unpack(data)


LABELS = pa.array(["x", "y", "x"]).dictionary_encode()
COLUMNS = st.sampled_from([
    pa.array([1, None, 3], pa.int64()), pa.array(["a", None, "c" * 300]), pa.array([b"x", b"", None]),
    pa.array([True, False, None]), pa.array([1, 2, None], pa.timestamp("us")),
    LABELS, pa.StructArray.from_arrays([LABELS], ["d"]),
    pa.ExtensionArray.from_storage(pa.opaque(LABELS.type, "label", "us"), LABELS), pa.nulls(3)])


@given(COLUMNS, st.integers(1, 2000), st.integers(0, 9))
def test_arrow_data_survives_frames(column: pa.Array, bytes_max: int, padding: int) -> None:
    """Batches of any types arrive as they were sent, however they are cut, and however long their headers are."""
    batch = pa.record_batch([column], names=["c"])
    sent = [read("FlightData", frame) for frame in frames(batch.schema, [batch, batch], bytes_max)]
    for each in sent:
        each.data_header += bytes(padding)
    for _ in range(2):  # its columns are known then
        schema, batches = batches_of(each.SerializeToString() for each in sent)
        assert schema == batch.schema
        assert pa.Table.from_batches(list(batches), schema).equals(pa.Table.from_batches([batch, batch]))


def test_numbers_of_the_other_byte_order_are_turned() -> None:
    """As machines with the other byte order send them."""
    batch = pa.record_batch({"n": pa.array([1, 256], pa.int32())})
    first, *others = frames(batch.schema, [batch], 1 << 20)
    header = bytearray(read("FlightData", first).data_header)
    message, fields = _table(header, 0), 4  # of a flatbuffer; the third field of a message is the schema
    schema = _table(header, message + _place(header, message, fields + 2 * 2))
    vtable = schema - int.from_bytes(header[schema:schema + 4], "little")
    # Its byte order, which isn't there as long as it is little, becomes the next number that happens to be 1.
    one = next(at for at in range(schema, len(header), 2) if header[at:at + 2] == b"\1\0")
    header[vtable + fields:vtable + fields + 2] = (one - schema).to_bytes(2, "little")
    turned = make("FlightData", data_header=bytes(header)).SerializeToString()
    [read_batch] = batches_of([turned, *others])[1]
    assert read_batch.column(0).to_pylist() == [1 << 24, 1 << 16]


def _table(data: bytes, at: int) -> int:
    """Returns where the table of a flatbuffer is that is referred to at a place."""
    return at + int.from_bytes(data[at:at + 4], "little")


def _place(data: bytes, table: int, field: int) -> int:
    """Returns where a table has a field, from its beginning; `field`: the place in its vtable."""
    vtable = table - int.from_bytes(data[table:table + 4], "little", signed=True)
    return int.from_bytes(data[vtable + field:vtable + field + 2], "little")


def test_frames_are_made_as_they_are_taken() -> None:
    """Nothing is read ahead of a client that takes its time."""
    batch = pa.record_batch({"n": [1, 2, 3]})
    made: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(10):
            made.append(number)
            yield batch

    taken = frames(batch.schema, batches(), 1 << 20)
    for frame in range(4):
        next(taken)
        assert len(made) == frame


def test_texts_that_are_none_are_refused_with_their_row() -> None:
    """Counted over all batches."""
    latin = pa.array([b"a", b"\xe9"]).view(pa.string())
    batches = [pa.record_batch({"n": pa.array([1, 2]), "s": texts}) for texts in (pa.array(["a", "b"]), latin)]
    _, read_batches = batches_of(frames(batches[0].schema, batches, 1 << 20))
    assert next(read_batches).num_rows == 2
    with pytest.raises(InvalidValueError, match=r"row 4, column s: b'\\xe9' is not valid UTF-8"):
        next(read_batches)


@given(st.data())
def test_damaged_arrow_data_is_refused_or_sound(data: st.DataObject) -> None:
    """Whatever a byte is changed to, data is refused or valid: nobody computes with offsets into nowhere."""
    batch = pa.record_batch({"t": ["one", "three", None], "n": pa.array([1, 2, 3], pa.int32())})
    sent = [bytearray(frame) for frame in frames(batch.schema, [batch], 1 << 20)]
    frame = data.draw(st.sampled_from(sent))
    frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with suppress(InvalidValueError, InvalidStatementError):
        schema, batches = batches_of(map(bytes, sent))
        assert all(isinstance(name, str) for name in schema.names)
        for each in batches:
            each.validate(full=True)


def test_arrows_own_client(here: ServedHere) -> None:
    """pyarrow's Flight client logs in, asks for a query, fetches it, and sees the actions."""
    with flight.FlightClient(f"grpc://127.0.0.1:{here.port}") as client:
        name, value = client.authenticate_basic_token("anybody", "anything")
        options = flight.FlightCallOptions(headers=[(name, value)])
        info = client.get_flight_info(
            flight.FlightDescriptor.for_command(query_command("SELECT 1 AS one, 'x' AS text")), options)
        assert info.schema.names == ["one", "text"]
        table = client.do_get(info.endpoints[0].ticket, options).read_all()
        assert table.to_pylist() == [{"one": 1, "text": "x"}]
        assert client.get_schema(flight.FlightDescriptor.for_command(query_command("SHOW DATABASES")), options
                                 ).schema.names[0] == "name"
        assert {each.type for each in client.list_actions(options)} == set(ACTIONS)


def test_prepared_statements(here: ServedHere) -> None:
    """A prepared statement says its columns and parameters, takes parameters, and is gone when it is closed."""
    with flight.FlightClient(f"grpc://127.0.0.1:{here.port}") as client:
        options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer mine")])

        def act(name: str, message: Any) -> list[bytes]:
            return [each.body.to_pybytes() for each in client.do_action(flight.Action(name, pack(message)), options)]

        request = make("ActionCreatePreparedStatementRequest", query="SELECT ? AS a, 'é?'")
        [made] = act("CreatePreparedStatement", request)
        prepared = unpack(made)
        assert schema_of(prepared.dataset_schema).names[0] == "a"
        assert len(schema_of(prepared.parameter_schema)) == 1
        handle = prepared.prepared_statement_handle
        command = flight.FlightDescriptor.for_command(
            pack(make("CommandPreparedStatementQuery", prepared_statement_handle=handle)))
        writer, answers = client.do_put(command, pa.schema([("0", pa.int64())]), options)
        writer.write_batch(pa.record_batch([pa.array([7])], names=["0"]))
        writer.done_writing()
        bound = read("DoPutPreparedStatementResult", answers.read().to_pybytes())
        assert bound.prepared_statement_handle == handle
        writer.close()
        [endpoint] = client.get_flight_info(command, options).endpoints
        assert client.do_get(endpoint.ticket, options).read_all().column(0).to_pylist() == [7]
        writer, _ = client.do_put(command, pa.schema([("0", pa.int64())]), options)
        writer.write_batch(pa.record_batch([pa.array([7, 8])], names=["0"]))
        with pytest.raises(NotImplementedError, match="one row of parameters"):
            writer.close()
        act("ClosePreparedStatement", make("ActionClosePreparedStatementRequest", prepared_statement_handle=handle))
        with pytest.raises(KeyError, match="no such prepared statement"):
            client.get_flight_info(command, options)


def test_small_inserts_are_read_as_rows(here: ServedHere, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever way they come, they aren't parsed as other statements are, and answer as these do."""
    with here.own() as own:
        for text in ("CREATE DATABASE d", "USE d", "CREATE TABLE t (ts TIMESTAMP, v INT)"):
            own.execute(text)
    request = make("ActionCreatePreparedStatementRequest", query="INSERT INTO d.t VALUES (?, ?)")
    headers = [("authorization", "Bearer mine")]
    monkeypatch.setattr(type(here.lease.engine), "read", lambda engine, text, state: (
        pytest.fail(f"{text} was parsed") if "NULL" not in text else parse_one(text)))
    with here.channel() as channel:
        action = make("Action", type="CreatePreparedStatement", body=pack(request)).SerializeToString()
        [made] = channel.unary_stream(path_of("DoAction"))(action, metadata=headers)
    handle = unpack(read("Result", made).body).prepared_statement_handle
    prepared = pack(make("CommandPreparedStatementUpdate", prepared_statement_handle=handle))
    row = pa.record_batch([pa.array([NOW_MS]), pa.array([7])], names=["0", "1"])
    target = make("FlightDescriptor", type=protobuf_messages.DESCRIPTOR_OF_COMMAND, cmd=prepared)
    [put] = here.stream("DoPut", list(frames(row.schema, [row], 1 << 20, target)), headers)
    update = pack(make("CommandStatementUpdate", query=f"INSERT INTO d.t VALUES ({NOW_MS + 1}, 8)"))
    described = make("FlightData", flight_descriptor=read("FlightDescriptor", descriptor(update)))
    [plain] = here.stream("DoPut", [described.SerializeToString()], headers)
    counts = [read("DoPutUpdateResult", read("PutResult", each).app_metadata).record_count for each in (put, plain)]
    info = read("FlightInfo", here.unary("GetFlightInfo", descriptor(query_command(
        f"INSERT INTO d.t VALUES ({NOW_MS + 2}, 9)")), headers))
    assert (counts, info.total_records) == ([1, 1], 1)
    monkeypatch.undo()
    with here.own() as own:
        assert own.execute("SELECT v FROM d.t ORDER BY ts").fetchall() == [(7,), (8,), (9,)]


def rows_of(here: ServedHere, command: Any) -> list[dict[str, Any]]:
    """Returns the rows that answer a command, fetched as clients do it."""
    with here.channel() as channel:
        info = read("FlightInfo", channel.unary_unary(path_of("GetFlightInfo"))(descriptor(pack(command))))
        ticket = info.endpoint[0].ticket.SerializeToString()
        schema, batches = batches_of(channel.unary_stream(path_of("DoGet"))(ticket))
        assert schema == schema_of(info.schema)
        rows: list[dict[str, Any]] = pa.Table.from_batches(batches, schema).to_pylist()
        return rows


def test_metadata(here: ServedHere) -> None:
    """Patterns and types choose tables; child tables must be asked for; keys are those of the tables."""
    with here.own() as own:
        for statement in ("CREATE DATABASE a_b", "CREATE DATABASE axb", "CREATE TABLE axb.n (ts TIMESTAMP, v INT)",
                          "CREATE STABLE a_b.s (ts TIMESTAMP, k INT PRIMARY KEY) TAGS (t INT)",
                          "CREATE TABLE a_b.c1 USING a_b.s TAGS (1)", "CREATE TABLE a_b.c2 USING a_b.s TAGS (2)",
                          "CREATE VIEW axb.w AS SELECT k FROM a_b.s", "CREATE VIEW axb.gone AS SELECT v FROM n",
                          "ALTER TABLE axb.n RENAME COLUMN v u"):
            own.execute(statement)

    def names(**wanted: Any) -> list[str]:
        return [row["table_name"] for row in rows_of(here, make("CommandGetTables", **wanted))]

    def databases(**wanted: Any) -> list[str]:
        return [row["db_schema_name"] for row in rows_of(here, make("CommandGetDbSchemas", **wanted))]

    assert databases() == ["a_b", "axb", "information_schema", "performance_schema"]
    assert databases(db_schema_filter_pattern="a_b") == ["a_b", "axb"]
    assert databases(db_schema_filter_pattern="a\\_b") == ["a_b"]
    assert databases(catalog="") == databases()
    assert databases(catalog="other") == []
    assert rows_of(here, make("CommandGetCatalogs")) == []
    assert names(db_schema_filter_pattern="a%") == ["s", "n", "w", "gone"]
    assert names(table_types=["VIEW"], table_name_filter_pattern="w") == ["w"]
    views = rows_of(here, make("CommandGetTables", table_types=["VIEW"], include_schema=True))
    assert [pa.ipc.read_schema(pa.py_buffer(row["table_schema"])).names for row in views] == [["k"], []]
    assert names(db_schema_filter_pattern="a%", table_types=["CHILD TABLE", "TABLE"]) == ["c1", "c2", "n"]
    assert names(table_name_filter_pattern="c_") == ["c1", "c2"]
    assert "ins_tables" in names(table_types=["SYSTEM TABLE"])
    keys = rows_of(here, make("CommandGetPrimaryKeys", table="c1"))
    assert [(row["db_schema_name"], row["column_name"], row["key_sequence"]) for row in keys] == [
        ("a_b", "ts", 1), ("a_b", "k", 2)]
    assert rows_of(here, make("CommandGetPrimaryKeys", table="c1", db_schema="axb")) == []
    for command in ("CommandGetExportedKeys", "CommandGetImportedKeys"):
        assert rows_of(here, make(command, table="s")) == []
    known = {row["info_name"]: row["value"] for row in rows_of(here, make("CommandGetSqlInfo"))}
    assert (known[0], known[3], known[8]) == ("Penstock", False, 0)
    assert "INTERVAL" in known[508]
    assert rows_of(here, make("CommandGetSqlInfo", info=[0, 9999])) == [{"info_name": 0, "value": "Penstock"}]


def test_parameters_are_what_they_were(here: ServedHere) -> None:
    """Values of all types become literals of these values; times with a zone keep their instant, to the nanosecond."""
    moment = 1_714_557_600_123_456_789
    batch = pa.record_batch([
        pa.array([moment], pa.timestamp("ns")), pa.array([moment], pa.timestamp("ns", "Europe/Berlin")),
        pa.array([None], pa.timestamp("s")), pa.array([Decimal("1.50")]), pa.array(["it's ?"]), pa.array([b"\x01"]),
        pa.array([True]), pa.array(["x"]).dictionary_encode()], names=list("abcdefgh"))
    [row] = parameter_rows(batch)
    assert row == ("2024-05-01 10:00:00.123456789", "2024-05-01 10:00:00.123456789+00:00", None, Decimal("1.50"),
                   "it's ?", b"\x01", True, "x")
    with here.own() as own:
        own.execute("CREATE DATABASE d PRECISION 'ns'")
        own.execute("CREATE TABLE d.t (ts TIMESTAMP, v INT)")
        own.execute("INSERT INTO d.t VALUES (?, 1)", row[1:2])
        own.set_time_zone("Asia/Tokyo")
        own.execute("INSERT INTO d.t VALUES (?, 2)", row[:1])
        own.set_time_zone("UTC")
        assert [str(value) for value in own.execute("SELECT ts FROM d.t ORDER BY ts").fetch_arrow().column(0)] == [
            "2024-05-01 01:00:00.123456789", "2024-05-01 10:00:00.123456789"]


# --- what goes wrong -----------------------------------------------------------------------------------------


def good_ingest() -> list[bytes]:
    wanted = make("TableDefinitionOptions", if_not_exist=protobuf_messages.FAIL_IF_MISSING,
                  if_exists=protobuf_messages.APPEND_IF_THERE)
    command = pack(make("CommandStatementIngest", table_definition_options=wanted, table="t", schema="d"))
    batch = pa.record_batch({"ts": pa.array([NOW_MS], pa.timestamp("ms")), "v": pa.array([1], pa.int32())})
    return list(frames(batch.schema, [batch], 1 << 20, read("FlightDescriptor", descriptor(command))))


def damaged(requests: list[bytes], place: int) -> list[bytes]:
    return [request[:-place] if number else request for number, request in enumerate(requests)]


@pytest.mark.parametrize(("call", "text"), [
    (lambda here: here.unary("GetFlightInfo", b"\xff\xff\xff"), "FlightDescriptor"),
    (lambda here: here.unary("GetFlightInfo", b""), "command"),
    (lambda here: here.unary("GetFlightInfo", descriptor(b"\x08garbage")), "Any"),
    (lambda here: here.unary("GetFlightInfo", descriptor(make("Any", type_url="x/y.Z").SerializeToString())), "y.Z"),
    (lambda here: here.unary("GetFlightInfo", descriptor(query_command("SELECT '"))), "0x2600"),
    (lambda here: here.unary("GetSchema", b"\xff"), "FlightDescriptor"),
    (lambda here: here.stream("DoGet", [b"\xff"]), "Ticket"),
    (lambda here: here.stream("DoGet", [make("Ticket", ticket=b"x").SerializeToString()]), "Any"),
    (lambda here: here.stream("DoGet", [make("Ticket", ticket=pack(
        make("TicketStatementQuery", statement_handle=b"q12345678DROP DATABASE d"))).SerializeToString()]), "ticket"),
    (lambda here: here.stream("DoAction", [b"\xff"]), "Action"),
    (lambda here: here.stream("DoPut", []), "begins with a command"),
    (lambda here: here.stream("DoPut", [b"\xff"]), "FlightData"),
    (lambda here: here.stream("DoPut", [b"", b""]), "command"),
    (lambda here: here.stream("DoPut", [good_ingest()[0], b"\xff"]), "FlightData"),
    (lambda here: here.stream("DoPut", damaged(good_ingest(), 3)), "FlightData"),
    (lambda here: here.stream("DoPut", [good_ingest()[0], make(
        "FlightData", data_header=b"x" * 64, data_body=b"y" * 64).SerializeToString()]), "not Arrow data"),
    (lambda here: here.stream("Handshake", [b""], [("authorization", "Basic nonsense")]), "malformed"),
])
def test_malformed_messages(unharmed: ServedHere, call: Callable[[ServedHere], object], text: str) -> None:
    """Bytes that make no sense are the client's mistake, said so, and the engine goes on."""
    with unharmed.own() as own:
        own.execute("DROP DATABASE IF EXISTS d")
        own.execute("CREATE DATABASE d VGROUPS 1")
        own.execute("CREATE TABLE d.t (ts TIMESTAMP, v INT)")
    with pytest.raises(grpc.RpcError) as caught:
        call(unharmed)
    assert caught.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAUTHENTICATED)
    assert text in caught.value.details()
    with unharmed.connect() as con:
        assert con.execute("SELECT count(*) FROM d.t").fetchall() == [(0,)]
    unharmed.stream("DoPut", good_ingest())
    with unharmed.own() as own:
        assert own.execute("SELECT v FROM d.t").fetchall() == [(1,)]


def action(name: str, body: bytes) -> bytes:
    return bytes(make("Action", type=name, body=body).SerializeToString())


def valid_calls() -> list[tuple[str, list[bytes]]]:
    """Returns calls that a client may make, by method."""
    prepare = pack(make("ActionCreatePreparedStatementRequest", query="SELECT * FROM d.t WHERE v > ?"))
    close = pack(make("ActionClosePreparedStatementRequest", prepared_statement_handle=b"12345678"))
    option = make("SessionOption", key="schema", value=make("SessionOptionValue", string_value="d"))
    commands = [make("CommandStatementQuery", query="SELECT ts, v FROM d.t"), make("CommandGetSqlInfo", info=[1, 500]),
                make("CommandGetTables", db_schema_filter_pattern="%", include_schema=True),
                make("CommandGetPrimaryKeys", table="t", db_schema="d"),
                make("CommandPreparedStatementQuery", prepared_statement_handle=b"12345678")]
    ticket = make("TicketStatementQuery", statement_handle=b"q12345678SELECT v FROM d.t")
    return [
        *(("GetFlightInfo", [descriptor(pack(command))]) for command in commands),
        *(("GetSchema", [descriptor(pack(command))]) for command in commands),
        ("DoGet", [make("Ticket", ticket=pack(ticket)).SerializeToString()]),
        ("DoPut", good_ingest()), ("DoPut", good_ingest()[:1]),
        ("DoAction", [action("CreatePreparedStatement", prepare)]),
        ("DoAction", [action("ClosePreparedStatement", close)]),
        ("DoAction", [action("SetSessionOptions", make(
            "SetSessionOptionsRequest", session_options=[option]).SerializeToString())]),
        ("DoAction", [action("CancelFlightInfo", make("CancelFlightInfoRequest", info=make(
            "FlightInfo", endpoint=[make("FlightEndpoint", ticket=make("Ticket", ticket=pack(ticket)))])
        ).SerializeToString())]),
    ]


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[grpc.Channel]:
    """A channel to a server with a table, for many calls."""
    with ServedHere(tmp_path_factory.mktemp("fuzzed") / "data") as server, server.channel() as channel:
        with server.own() as own:
            own.execute("CREATE DATABASE d VGROUPS 1")
            own.execute("CREATE TABLE d.t (ts TIMESTAMP, v INT)")
        yield channel


@given(st.sampled_from(valid_calls()), st.data())
def test_damaged_calls(fuzzed: grpc.Channel, call: tuple[str, list[bytes]], data: st.DataObject) -> None:
    """Whatever becomes of a message on its way, the answer is one to a mistake of the client's, or a good one."""
    method, requests = call[0], [bytearray(request) for request in call[1]]
    message = data.draw(st.sampled_from(requests))
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(message)))
        message[start:start + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    answers = fuzzed.stream_stream(path_of(method))(map(bytes, requests), timeout=60)
    with suppress(grpc.RpcError):
        list(answers)
    assert answers.code() in (grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND,
                              grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.ALREADY_EXISTS), answers.details()


def test_bytes_that_are_not_even_grpc(here: ServedHere) -> None:
    """Who speaks another protocol is hung up on."""
    for noise in (b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 100):
        with socket.create_connection(("127.0.0.1", here.port), timeout=30) as connection:
            connection.sendall(noise)
            while connection.recv(4096):
                pass
    with here.connect() as con:
        assert con.execute("SELECT 1").fetchall() == [(1,)]


def test_oversize_messages(here: ServedHere) -> None:
    """A message above the bound is refused before it is read, with both sizes."""
    with pytest.raises(grpc.RpcError) as caught:
        here.unary("GetFlightInfo", descriptor(query_command(f"SELECT '{'x' * (1 << 20)}'")))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in caught.value.details()
    with here.connect() as con, pytest.raises(InvalidValueError, match="larger than max"):
        con.execute(f"SELECT '{'x' * (1 << 20)}'")


def test_too_many_calls(here: ServedHere) -> None:
    """Calls above the bound are refused at once, while those under way go on."""
    waiting = threading.Event()

    def requests() -> Iterator[bytes]:
        yield good_ingest()[0]
        waiting.wait(60)

    with here.own() as own, here.channel() as channel:
        own.execute("CREATE DATABASE d VGROUPS 1")
        own.execute("CREATE TABLE d.t (ts TIMESTAMP, v INT)")
        calls = [channel.stream_stream(path_of("DoPut"))(requests(), metadata=[("authorization", f"Bearer {number}")])
                 for number in range(CALLS_MAX)]
        wait_until(lambda: len(own.execute(CONNECTED).fetchall()) == 1 + CALLS_MAX, what="no call came")
        assert code_of(here) is grpc.StatusCode.RESOURCE_EXHAUSTED
        waiting.set()
        assert [len(list(call)) for call in calls] == [1] * CALLS_MAX
    wait_until(lambda: code_of(here) is None, what="the calls never ended")


def code_of(here: ServedHere) -> Any:
    try:
        here.unary("GetFlightInfo", descriptor(query_command("SELECT 1")))
    except grpc.RpcError as error:
        return error.code()
    return None


class GoneContext:
    """The context of a call whose client has gone."""

    def is_active(self) -> bool:
        return False


def test_rows_of_a_client_that_is_gone_are_not_the_end() -> None:
    """A stream that breaks off isn't taken for a whole one."""
    requests = whole(iter([b"one"]), GoneContext())
    assert next(requests) == b"one"
    with pytest.raises(CancelledError):
        next(requests)


def test_expired_tokens(here: ServedHere) -> None:
    """A token that is too old is refused; our own client logs in again and is where it was."""
    with here.own() as own:
        own.execute(f"CREATE USER boss PASS '{PASSWORD}' ROLE admin")
        own.execute("CREATE DATABASE d")
    with here.connect("boss", PASSWORD) as con, here.channel() as channel:
        con.execute("USE d")
        call = channel.stream_stream(path_of("Handshake"))(
            iter([b""]), metadata=basic("boss", PASSWORD))
        list(call)
        token = [("authorization", dict(call.initial_metadata())["authorization"])]
        here.unary("GetFlightInfo", descriptor(query_command("SELECT 1")), token)
        here.clock.advance(here.config.token_lifetime + 1)
        with pytest.raises(grpc.RpcError, match="expired"):
            here.unary("GetFlightInfo", descriptor(query_command("SELECT 1")), token)
        assert con.execute("SHOW STABLES").fetchall() == []
        assert con.session.database == "d"


def test_a_cancelled_query(here: ServedHere) -> None:
    """CancelFlightInfo ends a query that another call is fetching; one that doesn't run is not found."""
    with here.own() as own:
        add_slow_function(here.data)
        for statement in ("CREATE DATABASE d VGROUPS 1", "CREATE TABLE d.t (ts TIMESTAMP, v DOUBLE)",
                          CREATE_SLOW_FUNCTION):
            own.execute(statement)
        times = pa.array(range(NOW_MS, NOW_MS + 500_000), pa.timestamp("ms"))
        own.cursor().insert_arrow("d.t", pa.table({"ts": times, "v": [1.0] * 500_000}))
    with here.channel() as channel:
        do_action = channel.unary_stream(path_of("DoAction"))
        info = read("FlightInfo", channel.unary_unary(path_of("GetFlightInfo"))(
            descriptor(query_command("SELECT max(slow(v)) FROM d.t"))))
        cancel = action("CancelFlightInfo", make("CancelFlightInfoRequest", info=info).SerializeToString())
        with pytest.raises(grpc.RpcError, match="doesn't run"):
            list(do_action(cancel))
        rows = channel.unary_stream(path_of("DoGet"))(info.endpoint[0].ticket.SerializeToString())
        next(rows)
        [answer] = do_action(cancel)
        assert read("CancelFlightInfoResult", read("Result", answer).body).status == protobuf_messages.CANCELLED
        with pytest.raises(grpc.RpcError) as caught:
            list(rows)
        assert caught.value.code() is grpc.StatusCode.CANCELLED
    with here.own() as own:
        wait_until(lambda: len(own.execute("SHOW QUERIES").fetchall()) == 1, what="the query went on")


def test_sessions_end(here: ServedHere) -> None:
    """A session that is closed, or idle for too long, is no longer listed among the connections."""
    def listed(own: Any) -> int:
        return len(own.execute(CONNECTED).fetchall())

    with here.own() as own:
        con = here.connect()
        con.execute("SELECT 1")
        assert listed(own) == 2
        con.close()
        assert listed(own) == 1
        idle = here.connect()
        here.clock.advance(here.config.token_lifetime + 1)
        with here.connect():
            assert listed(own) == 2
        idle.close()


def test_the_idlest_session_goes_first() -> None:
    """When there are too many sessions, the one that was used longest ago is closed, but none with a call."""
    closed: list[str] = []

    class Fake:
        def __init__(self, name: str) -> None:
            self.name = name
            self.session = self

        def close(self) -> None:
            closed.append(self.name)

    sessions = Sessions(lambda identity: Fake(identity.name), ManualClock(), 100.0, most=2)  # type: ignore[arg-type,return-value]
    with sessions.use("a", Identity("a", "admin"), Origin()):
        for name in ("b", "c", "d"):
            with sessions.use(name, Identity(name, "admin"), Origin()):
                pass
    assert closed == ["b", "c"]
    assert len(sessions) == 2
    sessions.close()
    assert closed == ["b", "c", "a", "d"]
