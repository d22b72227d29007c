"""How catalog entries become bytes: JSON behind a CRC-32C, since LMDB has no checksums of its own."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from json.encoder import encode_basestring
from typing import Any

import google_crc32c

from penstock.mnode.catalog.created_children import CreatedChildren
from penstock.sql.schema import ChildTable, Column, Table, TagValue, child_tables, joined_names, separate_names
from penstock.sql.types import DataType, Kind

BATCH = 250
"""Child tables in an entry: one that changes has all of it written again."""


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


def sealed_batches(created: CreatedChildren) -> Iterator[tuple[bytes, bytes]]:
    """Returns the keys and sealed entries of many child tables, some hundreds in each: see `sealed_batch`."""
    names, vgroup_ids, when = created.names, created.vgroup_ids, str(created.created_ms)
    for start in range(0, len(names), BATCH):
        stop = start + BATCH
        uids = created.uids[start:stop].tolist()
        yield key(created.super_uid, uids[0]), _sealed(_batch_text(
            names[start:stop], _uids_text(uids), vgroup_ids[start:stop], when,
            [column[start:stop] for column in created.tags]))


def sealed_batch(stored_key: bytes, children: Sequence[ChildTable]) -> bytes:
    """Returns the sealed entry of some child tables, by columns: [names, uids, vgroups, times of creation, tags].

    The key is that of the first one there was. Uids that count up from there aren't written; of vgroups and times that
    are all the same one is. Names are as `joined_names` has them, and each tag has the list of its values.
    """
    uids, names, vgroup_ids, tags, created, _ = zip(*children, strict=True)
    counted = uids[0] == int.from_bytes(stored_key[8:], "big")
    return _sealed(_batch_text(names, _uids_text(uids) if counted else _column_text(uids), vgroup_ids, _once(created),
                               list(zip(*tags, strict=True))))


def _uids_text(uids: Sequence[int]) -> str:
    """Returns ascending uids, of which the first one is that of the key."""
    return "null" if uids[-1] == uids[0] + len(uids) - 1 else _column_text(uids)


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
