"""Streams that are materialized views: the stream and its table were made together, and go together."""

from __future__ import annotations

from functools import lru_cache

from penstock.mnode.catalog.catalog_records import StreamRecord
from penstock.sql.dialect.parser import parse_one
from penstock.sql.tree.statements import CreateStream


@lru_cache(maxsize=4_096)
def definition_of(text: str) -> str | None:
    """Returns the query of CREATE MATERIALIZED VIEW as it was typed; None of CREATE STREAM."""
    if "MATERIALIZED" not in text.upper():
        return None
    statement = parse_one(text)
    assert isinstance(statement, CreateStream)
    return statement.query.source_text if statement.materialized else None


def is_materialized_view(stream: StreamRecord) -> bool:
    """Whether a stream was created as a materialized view."""
    return definition_of(stream.asked.text) is not None


def drop_of(stream: StreamRecord) -> str:
    """Returns the statement that drops a stream."""
    return f"DROP {'MATERIALIZED VIEW' if is_materialized_view(stream) else 'STREAM'} {stream.name}"
