"""What Superset asks of PostgreSQL: by SQLAlchemy of schemas and tables, and by its charts of rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy
from kits.basics.external_servers import Postgres
from kits.engines.postgres_pair import PostgresPair, postgres_pair


@pytest.fixture(scope="module")
def pair(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresPair]:
    with postgres_pair(tmp_path_factory.mktemp("pair"), postgres) as opened:
        yield opened


def test_schemas_and_tables(pair: PostgresPair) -> None:
    """What its menus offer, by SQLAlchemy's inspector."""
    engine = sqlalchemy.create_engine(f"postgresql+psycopg://who@127.0.0.1:{pair.here.server.port}/power")
    try:
        inspector = sqlalchemy.inspect(engine)
        assert inspector.default_schema_name == "power"
        assert set(inspector.get_schema_names()) == {"power", "information_schema"}
        assert set(inspector.get_table_names("power")) == {"meters", "readings"}
        assert [inspector.get_view_names("power"), inspector.get_materialized_view_names("power"),
                inspector.get_foreign_table_names("power")] == [[], [], []]
        assert {column["name"]: str(column["type"]) for column in inspector.get_columns("readings", "power")} == {
            "ts": "TIMESTAMP", "v": "INTEGER", "s": "VARCHAR(20)", "ok": "BOOLEAN", "d": "NUMERIC(10, 2)",
            "epoch": "BIGINT"}
        assert [inspector.get_foreign_keys("readings", "power"), inspector.get_indexes("readings", "power"),
                inspector.get_unique_constraints("readings", "power")] == [[], [], []]
        assert inspector.get_pk_constraint("readings", "power")["constrained_columns"] == ["ts"]
        assert inspector.get_pk_constraint("meters", "power")["constrained_columns"] == []
        assert inspector.get_table_comment("readings", "power") == {"text": "by hand"}
    finally:
        engine.dispose()


@pytest.mark.parametrize("query", [
    "\nSELECT datname FROM pg_database\nWHERE datistemplate = false AND datname = 'power';\n            ",
    """SELECT pg_catalog.pg_class.relname FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace
       ON pg_catalog.pg_namespace.oid = pg_catalog.pg_class.relnamespace
       WHERE pg_catalog.pg_class.relkind = ANY (ARRAY['r', 'p']) AND pg_catalog.pg_class.relpersistence != 't'
       AND pg_catalog.pg_table_is_visible(pg_catalog.pg_class.oid) AND pg_catalog.pg_namespace.nspname != 'pg_catalog'
       ORDER BY pg_catalog.pg_class.relname""",
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid='0'",
])
def test_catalog(pair: PostgresPair, query: str) -> None:
    """What it asks the catalog for by itself."""
    pair.ask(query)


def test_schema_of_a_query(pair: PostgresPair) -> None:
    """A query in its editor runs in the schema that was chosen, and is ended by the process that it asked for."""
    with pair.here.connect() as session:
        session.execute('set search_path = "power"')
        assert session.execute("SELECT current_schema(), pg_backend_pid()").fetchall() == [
            ("power", session.info.backend_pid)]
        assert session.execute("SELECT count(*) FROM readings").fetchall() == [(4,)]


@pytest.mark.parametrize("grain", ["second", "minute", "hour", "day", "week", "month", "quarter", "year"])
def test_time_grains(pair: PostgresPair, grain: str) -> None:
    """Charts along time."""
    pair.ask(f"""SELECT DATE_TRUNC('{grain}', ts) AS __timestamp, s AS s, COUNT(*) AS count, sum(v) AS "SUM(v)"
                 FROM power.readings WHERE s IN ('a', 'b') GROUP BY DATE_TRUNC('{grain}', ts), s
                 ORDER BY __timestamp, "SUM(v)" DESC LIMIT 1000""")


@pytest.mark.parametrize("query", [
    """SELECT s AS s, sum(v) AS "SUM(v)", COUNT(DISTINCT v) AS "COUNT_DISTINCT(v)" FROM power.readings
       WHERE ts >= TO_TIMESTAMP('2024-03-01 00:00:00.000000', 'YYYY-MM-DD HH24:MI:SS.US')
       AND ts < TO_TIMESTAMP('2024-03-11 00:00:00.000000', 'YYYY-MM-DD HH24:MI:SS.US') AND s IN ('a', 'b')
       GROUP BY s ORDER BY "SUM(v)" DESC LIMIT 100""",
    """SELECT DATE_TRUNC('minute', ts) AS __timestamp, s AS s, sum(v) AS "SUM(v)" FROM power.readings
       JOIN (SELECT s AS s__, sum(v) AS mme_inner__ FROM power.readings WHERE s IS NOT NULL GROUP BY s
       ORDER BY mme_inner__ DESC LIMIT 1) AS anon_1 ON s = s__
       GROUP BY DATE_TRUNC('minute', ts), s ORDER BY __timestamp, "SUM(v)" DESC LIMIT 10000""",
    """SELECT DATE_TRUNC('day', ts) AS __timestamp, AVG(v) AS "AVG(v)"
       FROM (SELECT * FROM power.readings WHERE v > 0) AS virtual_table
       GROUP BY DATE_TRUNC('day', ts) ORDER BY "AVG(v)" DESC LIMIT 50000""",
    """SELECT DATE_TRUNC('minute', ts) + INTERVAL '5 seconds' * FLOOR(EXTRACT(SECOND FROM ts) / 5) AS __timestamp,
       COUNT(*) AS count FROM power.readings
       GROUP BY DATE_TRUNC('minute', ts) + INTERVAL '5 seconds' * FLOOR(EXTRACT(SECOND FROM ts) / 5) ORDER BY 1""",
    """SELECT DATE_TRUNC('hour', (timestamp 'epoch' + epoch * interval '1 second'))::timestamptz AS __timestamp,
       COUNT(*) AS count FROM power.readings
       GROUP BY DATE_TRUNC('hour', (timestamp 'epoch' + epoch * interval '1 second')) ORDER BY 1""",
    "SELECT COUNT(*) AS count FROM power.readings WHERE ts >= TO_DATE('2024-03-11', 'YYYY-MM-DD')",
    """SELECT power.readings.ts AS ts, power.readings.v AS v FROM power.readings
       ORDER BY power.readings.ts LIMIT 2 OFFSET 1""",
    "SELECT COUNT(*) AS count, SUM(CASE WHEN ok THEN 1 ELSE 0 END) AS oks FROM power.readings",
])
def test_charts(pair: PostgresPair, query: str) -> None:
    """Filters of time, the greatest series, a virtual dataset, narrow grains, times in seconds, samples, a number."""
    pair.ask(query)
