"""The same tables in Penstock and in a PostgreSQL, asked by the same client: both are to answer alike.

A database of Penstock's is a schema to PostgreSQL's clients, so both have a database `power`, with a schema `power`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
from kits.basics.external_servers import HERE, Postgres
from kits.engines.postgres_here import PostgresHere, postgres_here

#: Columns of `power.readings`: ts, v, s, ok, d, epoch.
READINGS = (
    ("2024-03-10 10:00:05+00", 1, "a", True, "1.25", 1710064805),
    ("2024-03-10 10:00:30+00", 4, "b", False, "2.50", 1710064830),
    ("2024-03-10 10:01:10+00", 9, "a", None, None, 1710064870),
    ("2024-04-01 23:59:59.5+00", None, None, True, "-7.00", 1712015999),
)
#: Columns of `power.meters`: ts, v, n, place, which is a tag.
METERS = (("2024-03-10 10:00:00+00", 1.5, 1, "north"), ("2024-03-10 10:00:00+00", 2.5, 2, "south"))

Rows = list[tuple[Any, ...]]


class PostgresPair:
    """Both of them, as one session of each sees them, in UTC and with the schema `power` in the search path."""

    def __init__(self, here: PostgresHere, peer: psycopg.Connection[tuple[Any, ...]]) -> None:
        self.here = here
        self.penstock = here.connect(dbname="power")
        self.peer = peer

    def ask(self, text: str, parameters: Sequence[object] | None = None) -> Rows:
        """Returns the rows of a query, having checked that columns and rows are those of PostgreSQL; rows in the
        order of their texts where the query has none. A number is one number, exact or not, with 12 digits.
        """
        (names, rows), (peer_names, peer_rows) = (
            _answer(session, text, parameters) for session in (self.penstock, self.peer))
        assert names == peer_names
        assert rows == peer_rows
        return rows


def _answer(
    session: psycopg.Connection[tuple[Any, ...]], text: str, parameters: Sequence[object] | None
) -> tuple[list[str], Rows]:
    cursor = session.execute(text, parameters)
    rows = [tuple(float(f"{value:.12g}") if isinstance(value, float | Decimal) else value for value in row)
            for row in cursor]
    ordered = "order by" in text.lower()
    return [column.name for column in cursor.description or ()], rows if ordered else sorted(rows, key=repr)


@contextmanager
def postgres_pair(data: Path, server: Postgres) -> Iterator[PostgresPair]:
    """Gives both with their rows; the database of PostgreSQL's is dropped at the end."""
    with server.connect() as keeper, postgres_here(data) as here:
        keeper.execute("CREATE ROLE root SUPERUSER LOGIN PASSWORD 'secret'")
        keeper.execute("CREATE DATABASE power OWNER root")
        peer = psycopg.connect(host=HERE, port=server.port, user="root", password="secret", dbname="power",
                               autocommit=True)
        try:
            for text in ("DROP SCHEMA public", "CREATE SCHEMA power", "SET search_path TO power", "SET timezone TO UTC",
                         "CREATE TABLE readings (ts timestamptz PRIMARY KEY, v int, s varchar(20), ok boolean, "
                         "d numeric(10, 2), epoch bigint)",
                         "COMMENT ON TABLE readings IS 'by hand'",
                         "CREATE TABLE meters (ts timestamptz NOT NULL, v double precision, n int, place varchar(20))"):
                peer.execute(text)
            for text in ("CREATE DATABASE power VGROUPS 1",
                         "CREATE TABLE power.readings (ts TIMESTAMP, v INT, s VARCHAR(20), ok BOOL, d DECIMAL(10, 2), "
                         "epoch BIGINT) COMMENT 'by hand'",
                         "CREATE STABLE power.meters (ts TIMESTAMP, v DOUBLE, n INT) TAGS (place VARCHAR(20))",
                         *(f"CREATE TABLE power.{place} USING power.meters TAGS ('{place}')" for *_, place in METERS)):
                here.execute(text)
            pair = PostgresPair(here, peer)
            for session in (peer, pair.penstock):
                session.cursor().executemany("INSERT INTO readings VALUES (%s, %s, %s, %s, %s, %s)", READINGS)
            peer.cursor().executemany("INSERT INTO meters VALUES (%s, %s, %s, %s)", METERS)
            for ts, v, n, place in METERS:
                pair.penstock.execute(f"INSERT INTO {place} VALUES (%s, %s, %s)", (ts, v, n))
            yield pair
            pair.penstock.close()
        finally:
            peer.close()
            keeper.execute("DROP DATABASE power")
            keeper.execute("DROP ROLE root")
