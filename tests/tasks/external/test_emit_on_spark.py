"""A stream into PostgreSQL with real workers: what goes wrong there is named in SQL, and heals without a restart."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from kits.basics.external_servers import Postgres
from kits.basics.waiting import wait_until

import penstock

pytestmark = pytest.mark.spark

T0 = 1_700_000_000_000
CONFIG: dict[str, Any] = {"heartbeatInterval": "100ms", "timezone": "UTC", "restartDelayMin": "50ms",
                          "idleTimeout": "100ms", "sinkCallsPerSecond": 1000}
QUERY = "SELECT _wstart ts, count(*) n, sum(v) total FROM d.m PARTITION BY g INTERVAL(10s)"


class Bed:
    """An engine with a stream `outside` into PostgreSQL and its neighbour `inside`, which computes the same."""

    def __init__(self, connection: Any, server: Postgres, secret: Path) -> None:
        self.cursor = connection.cursor()
        self.server = server
        self.inserted = 0
        for statement in (
            "CREATE DATABASE d VGROUPS 2", "CREATE STABLE d.m (ts timestamp, v int) TAGS (g int)",
            *(f"CREATE TABLE d.d{n} USING d.m TAGS ({n % 3})" for n in range(6)),
            f"CREATE CONNECTION pg TYPE postgres WITH (host='127.0.0.1', port='{server.port}', sslmode='disable', "
            f"database='{server.database}', username='{server.username}', password='file:{secret}', timeout='1s')",
            f"CREATE STREAM outside TRIGGER AT_ONCE IGNORE EXPIRED 0 INTO CONNECTION pg (TABLE 'loads') AS {QUERY}",
            f"CREATE STREAM inside TRIGGER AT_ONCE IGNORE EXPIRED 0 INTO d.o TAGS (g int) AS {QUERY}",
        ):
            self.rows(statement)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        self.cursor.execute(sql)
        return [tuple(row) for row in self.cursor.fetchall()] if self.cursor.description else []

    def insert(self, rows: int = 12) -> None:
        for n in range(self.inserted, self.inserted + rows):
            self.rows(f"INSERT INTO d.d{n % 6} VALUES ({T0 + n * 700}, {n})")
        self.inserted += rows

    def inside(self) -> list[tuple[Any, ...]]:
        """Waits until the neighbour has the batch answer, and returns it: it is never held up."""
        def same() -> list[tuple[Any, ...]] | None:
            want = sorted(self.rows(QUERY.replace("SELECT ", "SELECT g, ")))
            return want if sorted(self.rows("SELECT g, ts, n, total FROM d.o")) == want else None

        found: list[tuple[Any, ...]] = wait_until(same, 60, "the neighbour was held up")
        return found

    def wait_equal(self) -> None:
        """Waits until the external table is the neighbour's."""
        want = [(g, ts.timestamp(), n, total) for g, ts, n, total in self.inside()]
        with self.server.connect() as session:
            def same() -> bool:
                try:
                    found = session.execute("SELECT g, ts, n, total FROM loads ORDER BY g, ts").fetchall()
                except psycopg.errors.UndefinedTable:  # it is made with the first result
                    return False
                return [(g, ts.timestamp(), n, int(total)) for g, ts, n, total in found] == want

            wait_until(same, 60, "the external table is another one")

    def wait_told(self, words: str) -> None:
        """Waits until a task is RETRYING for this reason, and the stream and the connection say so, too."""
        tasks = ("SELECT reason FROM information_schema.ins_stream_tasks "
                 "WHERE stream_name = 'outside' AND state = 'RETRYING'")
        wait_until(lambda: any(words in row[0] for row in self.rows(tasks)), 60, f"no task said {words}")
        wait_until(lambda: words in str(self.rows(
            "SELECT verdict FROM information_schema.ins_streams WHERE stream_name = 'outside'")), 60, "no verdict")
        wait_until(lambda: any(row[0] == "FAILED" and words in row[1] for row in self.rows(
            "SELECT state, reason FROM information_schema.ins_connections")), 60, "the connection is fine")

    def state(self) -> str:
        return str(self.rows("SELECT state FROM information_schema.ins_streams WHERE stream_name = 'outside'")[0][0])

    def attempt(self) -> int:
        return int(self.rows("SELECT attempt FROM information_schema.ins_streams WHERE stream_name = 'outside'")[0][0])


@pytest.fixture
def server() -> Iterator[Postgres]:
    """A PostgreSQL that the test may stop."""
    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.remove()


def test_what_goes_wrong_at_postgres_is_named_and_heals(tmp_path: Path, server: Postgres) -> None:
    """Wrong password, a server that is away, a table that is gone, changed, locked: the neighbour goes on all the time,
    and no attempt is given up."""
    secret = tmp_path / "secret"
    secret.write_text("wrong")
    connection = penstock.connect(str(tmp_path / "data"), CONFIG)
    try:
        bed = Bed(connection, server, secret)

        @contextmanager
        def trouble(words: str) -> Iterator[None]:
            """Rows come meanwhile; inside of the block the trouble is over again."""
            bed.insert()
            bed.wait_told(words)
            bed.inside()
            yield
            bed.wait_equal()

        with trouble("login refused"):
            secret.write_text(server.password)
            bed.rows("ALTER CONNECTION pg SET (timeout='1s')")
        server.stop(signal.SIGINT)
        with trouble("unreachable"):
            server.start()
        session = server.connect()
        session.execute("ALTER TABLE loads RENAME TO elsewhere")
        with trouble("was dropped"):
            session.execute("ALTER TABLE elsewhere RENAME TO loads")
        session.execute("ALTER TABLE loads RENAME COLUMN n TO m")
        with trouble("column n bigint is missing"):
            session.execute("ALTER TABLE loads RENAME COLUMN m TO n")
        session.execute("BEGIN; LOCK TABLE loads")
        with trouble("lock timeout"):
            session.execute("COMMIT")
        session.execute("ALTER TABLE loads ADD CONSTRAINT few CHECK (total < 300)")
        bed.insert(30)
        bed.wait_told('violates check constraint "few"')
        bed.wait_told("the row of g=")
        session.execute("ALTER TABLE loads DROP CONSTRAINT few")
        bed.wait_equal()
        assert bed.attempt() == 1
        pausing(bed, server, session.close)
        killed(bed)
    finally:
        connection.close()


def pausing(bed: Bed, server: Postgres, close: Callable[[], None]) -> None:
    """After RETRY_TIME the stream is PAUSED with the reason, until ALTER CONNECTION or RESUME STREAM."""
    close()
    bed.rows("ALTER STREAM outside SET RETRY_TIME 1s")
    server.stop()
    bed.insert()
    wait_until(lambda: bed.state() == "PAUSED", 60, "it wasn't paused")
    reason = bed.rows("SELECT reason FROM information_schema.ins_streams WHERE stream_name = 'outside'")[0][0]
    assert "unreachable" in reason
    assert "RESUME STREAM outside" in reason
    bed.inside()
    server.start()
    bed.rows("ALTER CONNECTION pg SET (timeout='2s')")
    bed.wait_equal()
    wait_until(lambda: bed.state() == "RUNNING", 60, "it is still paused")


def killed(bed: Bed) -> None:
    """A worker is killed in between: the next attempt takes the table over, and nothing is counted twice."""
    bed.rows("CHECKPOINT STREAM outside")
    bed.insert(30)
    for pid, in bed.rows("SELECT DISTINCT pid FROM information_schema.ins_stream_workers WHERE pid IS NOT NULL")[:1]:
        os.kill(pid, signal.SIGKILL)
    bed.insert(30)
    bed.wait_equal()
    with pytest.raises(Exception, match="in use by stream outside"):
        bed.rows("DROP CONNECTION pg")
    bed.rows("DROP STREAM outside")
    bed.rows("DROP CONNECTION pg")
