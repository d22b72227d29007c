"""How catalog entries become bytes: JSON behind a CRC-32C, since LMDB has no checksums of its own."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import repeat
from json.encoder import encode_basestring
from typing import Any

import google_crc32c

from penstock.common.connection import ExternalConnection
from penstock.common.passwords import PasswordHash, ScramVerifier
from penstock.common.placement import Share
from penstock.mnode.catalog.catalog_records import (
    AskedStream,
    ConnectionRecord,
    IngestRecord,
    PauseCause,
    Savepoint,
    StreamRecord,
    StreamUses,
    TableRead,
    Unlike,
    UserRecord,
)
from penstock.mnode.catalog.created_children import CreatedChildren
from penstock.sql.rights import GrantObject, Right
from penstock.sql.schema import (
    ChildTable,
    Column,
    Database,
    DatabaseOptions,
    Table,
    TagValue,
    UserFunction,
    View,
    child_tables,
    joined_names,
    separate_names,
)
from penstock.sql.types import DataType, Kind

BATCH = 250
"""Child tables in an entry: one that changes has all of it written again."""
#: What versions before called an external table: the field of a stream's entry, and the kind of the table.
_OLDER_EXTERNAL_TABLE, _OLDER_EXTERNAL = "outside_table", "outside"
#: What versions before called the parts of the tables that a stream reads.
_OLDER_READING = (("source_uid", "child_uid", "source_columns"), ("other_uid", "other_child_uid", "other_columns"))
#: What they kept of a stream without grouping it.
_OLDER_ASKED = ("text", "database", "time_zone", "created_ms", "defaults")
_OLDER_USES = ("reading", "functions", "connections", "dlq", _OLDER_EXTERNAL_TABLE)


def key(*numbers: int) -> bytes:
    """Returns a key that sorts by the numbers."""
    return b"".join(number.to_bytes(8, "big") for number in numbers)


def seal(value: Any) -> bytes:
    """Returns the bytes of a value: four bytes of checksum, then JSON."""
    return _sealed(_ENCODER.encode(value).encode())


def _sealed(payload: bytes) -> bytes:
    checksum: int = google_crc32c.value(payload)
    return checksum.to_bytes(4, "big") + payload


def unseal(data: bytes) -> Any:
    """Returns the value that `seal` was given. `ValueError` if the bytes are damaged."""
    payload = data[4:]
    if google_crc32c.value(payload) != int.from_bytes(data[:4], "big"):
        raise ValueError("checksum mismatch")
    return json.loads(payload)


def unseal_all(data: Sequence[bytes]) -> list[Any]:
    """Returns what `unseal` does for each of these; of many it is several times as fast."""
    payloads = [each[4:] for each in data]
    if any(map(int.__ne__, map(google_crc32c.value, payloads), [int.from_bytes(each[:4], "big") for each in data])):
        raise ValueError("checksum mismatch")
    values: list[Any] = json.loads(f"[{b','.join(payloads).decode()}]")
    return values


def dataclass_to_json(value: Any) -> dict[str, Any]:
    return asdict(value)


def database_to_json(database: Database) -> dict[str, Any]:
    return asdict(database)


def database_from_json(value: dict[str, Any]) -> Database:
    options = value["options"]
    options["other"] = tuple((name, text) for name, text in options["other"])
    # Catalogs of older versions know no shares.
    shares = tuple(Share(**share) for share in value.get("cut_shares", ()))
    return Database(value["name"], DatabaseOptions(**options), tuple(value["vgroup_ids"]), value["create_time_ms"],
                    shares)


def table_to_json(table: Table, used_names: Sequence[str]) -> dict[str, Any]:
    return {
        "uid": table.uid, "database": table.database, "name": table.name, "kind": table.kind,
        "columns": [_column_to_json(column) for column in table.columns],
        "tags": [_column_to_json(column) for column in table.tags],
        "vgroup_id": table.vgroup_id, "create_time_ms": table.create_time_ms, "comment": table.comment,
        "ttl_days": table.ttl_days, "schema_version": table.schema_version, "used_names": list(used_names),
        "replaces": table.replaces,
    }


def table_from_json(value: dict[str, Any]) -> tuple[Table, list[str]]:
    """Returns the table and all storage names its columns have or had."""
    used = value.pop("used_names")
    value["columns"] = tuple(_column_from_json(column) for column in value["columns"])
    value["tags"] = tuple(_column_from_json(column) for column in value["tags"])
    if value["kind"] == _OLDER_EXTERNAL:
        value["kind"] = "external"
    return Table(**value), used


def sealed_children(super_uid: int, children: Sequence[ChildTable]) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and sealed entries of a few child tables: [name, vgroup, time of creation, [tag values]] each."""
    for child in children:
        yield key(super_uid, child.uid), seal([child.name, child.vgroup_id, child.create_time_ms, child.tag_values])


def sealed_batches(created: CreatedChildren) -> Iterator[tuple[bytes, bytes]]:
    """Returns the keys and sealed entries of many child tables, some hundreds in each: see `sealed_batch`."""
    names, vgroup_ids, when = created.names, created.vgroup_ids, str(created.created_ms)
    for start in range(0, len(names), BATCH):
        stop = start + BATCH
        yield key(created.super_uid, created.first_uid + start), _sealed(_batch_text(
            names[start:stop], "null", vgroup_ids[start:stop], when, [column[start:stop] for column in created.tags]))


def sealed_batch(stored_key: bytes, children: Sequence[ChildTable]) -> bytes:
    """Returns the sealed entry of some child tables, by columns: [names, uids, vgroups, times of creation, tags].

    The key is that of the first one there was. Uids that count up from there aren't written; of vgroups and times that
    are all the same one is. Names are as `joined_names` has them, and each tag has the list of its values.
    """
    uids, names, vgroup_ids, tags, created, _ = zip(*children, strict=True)
    first = int.from_bytes(stored_key[8:], "big")
    counted = uids[0] == first and uids[-1] == first + len(uids) - 1
    return _sealed(_batch_text(names, "null" if counted else _column_text(uids), vgroup_ids, _once(created),
                               list(zip(*tags, strict=True))))


def _batch_text(names: Sequence[str], uids: str, vgroup_ids: Sequence[int], created: str,
                tags: Sequence[Sequence[TagValue]]) -> bytes:
    joined = joined_names(names)
    written = encode_basestring(joined) if isinstance(joined, str) else _column_text(joined)
    return f"[{written},{uids},{_once(vgroup_ids)},{created},[{','.join(map(_column_text, tags))}]]".encode()


def _column_text(values: Sequence[TagValue]) -> str:
    """Returns values as a JSON array; of whole numbers alone Python's own text is one, in half of the time."""
    return str(list(values)) if set(map(type, values)) == {int} else _ENCODER.encode(values)


def _once(values: Sequence[int]) -> str:
    return str(values[0]) if len(set(values)) == 1 else _column_text(values)


def children_of_batch(stored_key: bytes, value: list[Any]) -> list[ChildTable]:
    """Returns the child tables of an entry, by age."""
    joined, uids, vgroup_ids, created, columns = value
    names = separate_names(joined)
    super_uid, first = int.from_bytes(stored_key[:8], "big"), int.from_bytes(stored_key[8:], "big")
    columns = [list(map(_decode_tag, column)) if dict in map(type, column) else column for column in columns]
    return child_tables(
        range(first, first + len(names)) if uids is None else uids, names, _each(vgroup_ids),
        zip(*columns, strict=True) if columns else repeat(()), _each(created), super_uid)


def _each(values: int | list[int]) -> Iterable[int]:
    return repeat(values) if isinstance(values, int) else values


def child_from_json(stored_key: bytes, value: list[Any]) -> ChildTable:
    """Returns a child table from its entry."""
    name, vgroup_id, created, tags = value
    super_uid, uid = int.from_bytes(stored_key[:8], "big"), int.from_bytes(stored_key[8:], "big")
    if dict in map(type, tags):
        tags = map(_decode_tag, tags)
    return ChildTable(uid, name, vgroup_id, tuple(tags), created, super_uid)


def function_to_json(function: UserFunction) -> dict[str, Any]:
    arguments = None if function.arguments is None else [_type_to_json(kind) for kind in function.arguments]
    return {**asdict(function), "arguments": arguments, "result": _type_to_json(function.result)}


def function_from_json(value: dict[str, Any]) -> UserFunction:
    if value["arguments"] is not None:
        value["arguments"] = tuple(_type_from_json(kind) for kind in value["arguments"])
    value["result"] = _type_from_json(value["result"])
    return UserFunction(**value)


def view_from_json(value: dict[str, Any]) -> View:
    """Returns a view from its entry."""
    value["columns"] = tuple(value["columns"])
    return View(**value)


def stream_from_json(value: dict[str, Any]) -> StreamRecord:
    """Returns a stream from its entry, also from one of an older version."""
    if "asked" not in value:
        value = _grouped(value)
    if "executions_uid" not in value:
        value = {**value, "executions_uid": _executions_in(value.get("plan"))}
    uses, pause, unlike = value["uses"], value.get("pause"), value.get("unlike")
    return StreamRecord(**{
        **value,
        "asked": AskedStream(**value["asked"]),
        "uses": StreamUses(
            _reads(uses["reading"]),
            tuple(uses["functions"]), tuple(uses["connections"]), tuple(uses["dlq"]) if uses["dlq"] else None,
            uses["external_table"] if "external_table" in uses else uses[_OLDER_EXTERNAL_TABLE],
            tuple((database, name) for database, name in uses.get("views", ())), _reads(uses.get("queried", ()))),
        "start_cut": tuple((vgroup, at) for vgroup, at in value["start_cut"]),
        "pause": None if pause is None else PauseCause(**pause),
        "unlike": None if unlike is None else Unlike(**unlike),
        "savepoints": tuple(Savepoint(**savepoint) for savepoint in value.get("savepoints", ())),
    })


def _reads(values: Iterable[dict[str, Any]]) -> tuple[TableRead, ...]:
    return tuple(TableRead(read["uid"], read["child_uid"], tuple(read["columns"])) for read in values)


def _executions_in(plan: str | None) -> int:
    """Returns the table of executions that a stored plan names; 0: none. Entries of version 1.0.0 have no other."""
    if plan is None or "CalculationPlan" not in plan:
        return 0
    return next((int(part["uid"]) for part in json.loads(plan)["parts"]
                 if isinstance(part, dict) and part.get("class") == "CalculationPlan"), 0)


def ingest_from_json(value: dict[str, Any]) -> IngestRecord:
    """Returns an ingest from its entry."""
    value["dlq"] = tuple(value["dlq"]) if value.get("dlq") else None
    return IngestRecord(**value)


def user_from_json(value: dict[str, Any]) -> UserRecord:
    """Returns a user from its entry, also from one of an older version."""
    value["password"] = PasswordHash(**value["password"])
    value["granted"] = tuple(
        Right(right["privilege"], GrantObject(**right["on"])) for right in value.get("granted", ()))
    scram = value.get("scram")
    value["scram"] = None if scram is None else ScramVerifier(**scram)
    return UserRecord(**value)


def connection_from_json(value: dict[str, Any]) -> ConnectionRecord:
    """Returns a connection from its entry."""
    connection = value["connection"]
    connection["options"] = tuple((option, text) for option, text in connection["options"])
    return ConnectionRecord(ExternalConnection(**connection), value["created_ms"])


def _column_to_json(column: Column) -> list[Any]:
    return [column.name, _type_to_json(column.type), column.physical, column.primary_key, column.comment]


def _column_from_json(value: list[Any]) -> Column:
    name, kind, physical, primary_key, comment = value
    return Column(name, _type_from_json(kind), physical, primary_key, comment)


def _type_to_json(kind: DataType) -> list[Any]:
    return [kind.kind, kind.length, kind.digits, kind.scale, kind.precision]


def _type_from_json(value: list[Any]) -> DataType:
    kind, length, digits, scale, precision = value
    return DataType(Kind(kind), length, digits, scale, precision)


def _encode_bytes(value: object) -> dict[str, str]:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    raise TypeError(f"{type(value).__name__} cannot be stored in the catalog")


_ENCODER = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"), default=_encode_bytes)


def _decode_tag(value: Any) -> Any:
    return base64.b64decode(value["base64"]) if isinstance(value, dict) else value


def _grouped(older: dict[str, Any]) -> dict[str, Any]:
    """Returns the entry of an older version in the form of today's."""
    value = dict(older)
    sides = [[value.pop(name, None) for name in names] for names in _OLDER_READING]
    asked = {name: value.pop(name) for name in _OLDER_ASKED if name in value}
    uses = {name: value.pop(name, None) for name in _OLDER_USES}
    reading = [{"uid": uid, "child_uid": child, "columns": columns or ()}
               for uid, child, columns in sides if uid is not None]
    uses = {**uses, "reading": uses["reading"] or reading, "functions": uses["functions"] or (),
            "connections": uses["connections"] or ()}
    reason = value.pop("wanted_reason", "")
    pause = value.pop("pause", None) or ({"text": reason} if reason else None)
    return {**value, "asked": asked, "uses": uses, "pause": pause}
