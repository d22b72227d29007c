"""Avro through fastavro: single records, whose schema is known, and files that have theirs in them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

from penstock.common.errors import InvalidStatementError, InvalidValueError
from penstock.tasks.external.connectors.libraries import importing

with importing("fastavro"):
    import fastavro


def reader(schema: str) -> Callable[[bytes], object]:
    """Returns what reads one record that was written with a schema, given as JSON.

    It raises InvalidValueError for bytes that are none. Raises InvalidStatementError for a schema that can't be used.
    """
    try:
        parsed = fastavro.parse_schema(json.loads(schema))
    except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException,
            fastavro.schema.UnknownType) as error:
        raise InvalidStatementError(f"SCHEMA is no schema of Avro: {type(error).__name__}: {error}") from error

    def read(message: bytes) -> object:
        stream = io.BytesIO(message)
        try:
            record = fastavro.schemaless_reader(stream, parsed, None)
        except Exception as error:
            # Random bytes make it fail in any of many ways.
            raise InvalidValueError(f"no record of the schema: {type(error).__name__}: {error}") from error
        if stream.tell() != len(message):
            raise InvalidValueError(f"no record of the schema: {len(message) - stream.tell()} bytes are left over")
        return record

    return read


def writer(schema: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], bytes]:
    """Returns what makes the bytes of one record, without its schema."""
    parsed = fastavro.parse_schema(dict(schema))

    def write(record: Mapping[str, Any]) -> bytes:
        sink = io.BytesIO()
        fastavro.schemaless_writer(sink, parsed, record)
        return sink.getvalue()

    return write


def records_of(data: bytes) -> Iterator[dict[str, Any]]:
    """Yields the records of an object container file. Raises ValueError for anything else."""
    return cast(Iterator[dict[str, Any]], fastavro.reader(io.BytesIO(data)))


def file_of(schema: Mapping[str, Any], records: Iterable[Mapping[str, Any]]) -> bytes:
    """Returns an object container file with the records and their schema."""
    sink = io.BytesIO()
    fastavro.writer(sink, fastavro.parse_schema(dict(schema)), records, codec="deflate")
    return sink.getvalue()
