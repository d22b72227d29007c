"""The messages of Flight and Flight SQL that are used here, as protobuf classes made from one table.

Names and numbers of fields are the protocol's (arrow.apache.org/docs/format/FlightSql.html). Two liberties change no
byte: enumerations are int32, and a map is a repeated message of `key` and `value`.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from penstock.common.errors import InvalidStatementError

_ANY = "google.protobuf"
_FLIGHT = "arrow.flight.protocol"
_SQL = "arrow.flight.protocol.sql"
_TYPE_URL = "type.googleapis.com/"

_TABLE: dict[str, str] = {
    _ANY: """
        Any: string type_url = 1; bytes value = 2
    """,
    _FLIGHT: """
        HandshakeRequest: uint64 protocol_version = 1; bytes payload = 2
        HandshakeResponse: uint64 protocol_version = 1; bytes payload = 2
        Empty:
        ActionType: string type = 1; string description = 2
        Action: string type = 1; bytes body = 2
        Result: bytes body = 1
        SchemaResult: bytes schema = 1
        FlightDescriptor: int32 type = 1; bytes cmd = 2; repeated string path = 3
        FlightInfo: bytes schema = 1; FlightDescriptor flight_descriptor = 2; repeated FlightEndpoint endpoint = 3; \
            int64 total_records = 4; int64 total_bytes = 5; bool ordered = 6; bytes app_metadata = 7
        FlightEndpoint: Ticket ticket = 1
        Ticket: bytes ticket = 1
        FlightData: FlightDescriptor flight_descriptor = 1; bytes data_header = 2; bytes app_metadata = 3; \
            bytes data_body = 1000
        PutResult: bytes app_metadata = 1
        CancelFlightInfoRequest: FlightInfo info = 1
        CancelFlightInfoResult: int32 status = 1
        SessionOptionValue: optional string string_value = 1
        SessionOption: string key = 1; SessionOptionValue value = 2
        SetSessionOptionsRequest: repeated SessionOption session_options = 1
        SessionOptionFault: int32 value = 1
        SessionOptionError: string key = 1; SessionOptionFault value = 2
        SetSessionOptionsResult: repeated SessionOptionError errors = 1
        GetSessionOptionsRequest:
        GetSessionOptionsResult: repeated SessionOption session_options = 1
        CloseSessionRequest:
        CloseSessionResult: int32 status = 1
    """,
    _SQL: """
        CommandGetSqlInfo: repeated uint32 info = 1
        CommandGetCatalogs:
        CommandGetDbSchemas: optional string catalog = 1; optional string db_schema_filter_pattern = 2
        CommandGetTables: optional string catalog = 1; optional string db_schema_filter_pattern = 2; \
            optional string table_name_filter_pattern = 3; repeated string table_types = 4; bool include_schema = 5
        CommandGetTableTypes:
        CommandGetPrimaryKeys: optional string catalog = 1; optional string db_schema = 2; string table = 3
        CommandGetExportedKeys: optional string catalog = 1; optional string db_schema = 2; string table = 3
        CommandGetImportedKeys: optional string catalog = 1; optional string db_schema = 2; string table = 3
        CommandGetCrossReference: optional string pk_catalog = 1; optional string pk_db_schema = 2; \
            string pk_table = 3; optional string fk_catalog = 4; optional string fk_db_schema = 5; string fk_table = 6
        CommandStatementQuery: string query = 1; optional bytes transaction_id = 2
        CommandStatementUpdate: string query = 1; optional bytes transaction_id = 2
        CommandPreparedStatementQuery: bytes prepared_statement_handle = 1
        CommandPreparedStatementUpdate: bytes prepared_statement_handle = 1
        TableDefinitionOptions: int32 if_not_exist = 1; int32 if_exists = 2
        IngestOption: string key = 1; string value = 2
        CommandStatementIngest: TableDefinitionOptions table_definition_options = 1; string table = 2; \
            optional string schema = 3; optional string catalog = 4; bool temporary = 5; \
            optional bytes transaction_id = 6; repeated IngestOption options = 1000
        TicketStatementQuery: bytes statement_handle = 1
        ActionCreatePreparedStatementRequest: string query = 1; optional bytes transaction_id = 2
        ActionCreatePreparedStatementResult: bytes prepared_statement_handle = 1; bytes dataset_schema = 2; \
            bytes parameter_schema = 3
        ActionClosePreparedStatementRequest: bytes prepared_statement_handle = 1
        ActionCancelQueryRequest: bytes info = 1
        ActionCancelQueryResult: int32 result = 1
        DoPutUpdateResult: int64 record_count = 1
        DoPutPreparedStatementResult: optional bytes prepared_statement_handle = 1
    """,
}
_FIELD = re.compile(r"(?:(?P<label>repeated|optional) )?(?P<type>\w+) (?P<name>\w+) = (?P<number>\d+)")
_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS: dict[str, int] = {
    "string": _Field.TYPE_STRING, "bytes": _Field.TYPE_BYTES, "bool": _Field.TYPE_BOOL, "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64, "uint32": _Field.TYPE_UINT32, "uint64": _Field.TYPE_UINT64,
}

#: Values of the protocol's enumerations.
DESCRIPTOR_OF_COMMAND = 2
CANCELLED = 1
CREATE_IF_MISSING, FAIL_IF_MISSING = 1, 2
FAIL_IF_THERE, APPEND_IF_THERE, REPLACE_IF_THERE = 1, 2, 3
SESSION_CLOSED = 1
INVALID_NAME, INVALID_VALUE = 1, 2

#: Option of our own of CommandStatementIngest: the number, from 0, that errors count rows from.
FIRST_ROW = "first_row"


def _build() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    classes: dict[str, Any] = {}
    for package, text in _TABLE.items():
        file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
        for line in filter(None, map(str.strip, text.splitlines())):
            name, _, fields = line.partition(":")
            _add_message(file, name, fields)
        pool.Add(file)
        for message in file.message_type:
            classes[message.name] = message_factory.GetMessageClass(
                pool.FindMessageTypeByName(f"{package}.{message.name}"))
    return classes


def _add_message(file: Any, name: str, fields: str) -> None:
    message = file.message_type.add(name=name)
    for field in filter(None, map(str.strip, fields.split(";"))):
        found = _FIELD.fullmatch(field)
        assert found is not None, field
        kind = _SCALARS.get(found["type"], _Field.TYPE_MESSAGE)
        label = _Field.LABEL_REPEATED if found["label"] == "repeated" else _Field.LABEL_OPTIONAL
        added = message.field.add(name=found["name"], number=int(found["number"]), type=kind, label=label)
        if kind == _Field.TYPE_MESSAGE:
            added.type_name = f".{file.package}.{found['type']}"
        if found["label"] == "optional":
            # How protobuf tells an empty text from one that is left out.
            added.proto3_optional = True
            added.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{found['name']}")


_CLASSES = _build()


def make(name: str, **fields: Any) -> Any:
    """Returns a message of the protocol, such as `make("Ticket", ticket=b"...")`."""
    return _CLASSES[name](**fields)


def read(name: str, data: bytes) -> Any:
    """Returns the message that `data` is; raises InvalidStatementError if it is none."""
    try:
        return _CLASSES[name].FromString(data)
    except DecodeError as error:
        raise InvalidStatementError(f"{len(data)} bytes are not a {name} message of Flight SQL") from error


def kind_of(message: Any) -> str:
    """Returns the name by which `make` knows a message."""
    return str(message.DESCRIPTOR.name)


def pack(message: Any) -> bytes:
    """Returns a Flight SQL message in the envelope that commands, tickets and actions travel in."""
    envelope = make("Any", type_url=_TYPE_URL + message.DESCRIPTOR.full_name, value=message.SerializeToString())
    return bytes(envelope.SerializeToString())


def unpack(data: bytes) -> Any:
    """Returns the Flight SQL message in an envelope; raises InvalidStatementError for anything else."""
    envelope = read("Any", data)
    package, _, name = envelope.type_url.removeprefix(_TYPE_URL).rpartition(".")
    if package != _SQL or name not in _CLASSES:
        raise InvalidStatementError(f"{envelope.type_url or 'nothing'} is not a supported command of Flight SQL")
    return read(name, envelope.value)
