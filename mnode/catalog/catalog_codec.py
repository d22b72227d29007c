"""How catalog entries become bytes: JSON behind a CRC-32C, since LMDB has no checksums of its own."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import google_crc32c

from penstock.common.placement import Share
from penstock.sql.schema import ChildTable, Column, Database, DatabaseOptions, Table, UserFunction
from penstock.sql.types import DataType, Kind


def key(*numbers: int) -> bytes:
    """Returns a key that sorts by the numbers."""
    return b"".join(number.to_bytes(8, "big") for number in numbers)


def seal(value: Any) -> bytes:
    """Returns the bytes of a value: four bytes of checksum, then JSON."""
    payload = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_encode_bytes).encode()
    checksum: int = google_crc32c.value(payload)
    return checksum.to_bytes(4, "big") + payload


def unseal(data: bytes) -> Any:
    """Returns the value that `seal` was given. `ValueError` if the bytes are damaged."""
    payload = data[4:]
    if google_crc32c.value(payload) != int.from_bytes(data[:4], "big"):
        raise ValueError("checksum mismatch")
    return json.loads(payload)


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
    return Table(**value), used


def child_to_json(child: ChildTable) -> list[Any]:
    return [child.name, child.vgroup_id, child.create_time_ms, list(child.tag_values)]


def child_from_json(stored_key: bytes, value: list[Any]) -> tuple[int, ChildTable]:
    """Returns (uid of the super table, child table)."""
    name, vgroup_id, created, tags = value
    super_uid, uid = int.from_bytes(stored_key[:8], "big"), int.from_bytes(stored_key[8:], "big")
    return super_uid, ChildTable(uid, name, vgroup_id, tuple(_decode_tag(tag) for tag in tags), created)


def function_to_json(function: UserFunction) -> dict[str, Any]:
    arguments = None if function.arguments is None else [_type_to_json(kind) for kind in function.arguments]
    return {**asdict(function), "arguments": arguments, "result": _type_to_json(function.result)}


def function_from_json(value: dict[str, Any]) -> UserFunction:
    if value["arguments"] is not None:
        value["arguments"] = tuple(_type_from_json(kind) for kind in value["arguments"])
    value["result"] = _type_from_json(value["result"])
    return UserFunction(**value)


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


def _decode_tag(value: Any) -> Any:
    return base64.b64decode(value["base64"]) if isinstance(value, dict) else value
