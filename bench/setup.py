"""Makes the database of a benchmark in an engine and feeds rows to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa

from bench.rows import Shape, Source, names, tag_of
from penstock.mnode.access.session import Result, SessionState
from penstock.mnode.engine import Engine

DATABASE = "bench"
_COLUMNS: dict[Source, str] = {
    "meters": "ts TIMESTAMP, current FLOAT, voltage INT, phase FLOAT",
    "ads": "ts TIMESTAMP, event_type VARCHAR(8), visitor INT",
    "accounts": "ts TIMESTAMP, account INT, amount INT",
}
_TAGS: dict[Source, str] = {"meters": "groupid INT", "ads": "campaign INT", "accounts": "region INT"}
_CHILDREN_PER_STATEMENT = 2000


def create_tables(execute: Callable[[str], Result], shape: Shape, vgroups: int) -> None:
    """Creates the database, the super table and its child tables."""
    execute(f"CREATE DATABASE {DATABASE} VGROUPS {vgroups} KEEP 36500d")
    execute(f"USE {DATABASE}")
    execute(f"CREATE STABLE {shape.source} ({_COLUMNS[shape.source]}) TAGS ({_TAGS[shape.source]})")
    children = names(shape)
    for first in range(0, len(children), _CHILDREN_PER_STATEMENT):
        execute("CREATE TABLE " + " ".join(
            f"{name} USING {shape.source} TAGS ({tag_of(shape, first + n)})"
            for n, name in enumerate(children[first:first + _CHILDREN_PER_STATEMENT])))


def feed(engine: Engine, session: SessionState, shape: Shape, batches: Iterable[pa.RecordBatch]) -> int:
    """Writes batches, one statement each, and returns how many rows they had."""
    count = 0
    for batch in batches:
        engine.insert_arrow(f"{DATABASE}.{shape.source}", pa.Table.from_batches([batch]), session)
        count += batch.num_rows
    return count
