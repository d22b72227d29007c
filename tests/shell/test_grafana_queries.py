"""What Grafana asks of PostgreSQL by its data source: for tables and columns, and what its macros become."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kits.basics.external_servers import Postgres
from kits.engines.postgres_pair import PostgresPair, postgres_pair


@pytest.fixture(scope="module")
def pair(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresPair]:
    with postgres_pair(tmp_path_factory.mktemp("pair"), postgres) as opened:
        yield opened


#: The schemas of the search path.
_PATH = """(SELECT CASE WHEN trim(s[i]) = '"$user"' THEN user ELSE trim(s[i]) END
    FROM generate_series(array_lower(string_to_array(current_setting('search_path'), ','), 1),
                         array_upper(string_to_array(current_setting('search_path'), ','), 1)) as i,
         string_to_array(current_setting('search_path'), ',') s)"""


def columns_of(table: str) -> str:
    """Returns what asks for the columns of a table that the user chose, with its schema or without."""
    return f"""SELECT quote_ident(column_name) AS "column", data_type AS "type" FROM information_schema.columns
        WHERE CASE WHEN array_length(parse_ident('{table}'), 1) = 2
        THEN quote_ident(table_schema) = (parse_ident('{table}'))[1]
             AND quote_ident(table_name) = (parse_ident('{table}'))[2]
        ELSE quote_ident(table_name) = '{table}' AND quote_ident(table_schema) IN {_PATH} END"""


@pytest.mark.parametrize(("query", "rows"), [
    ("SELECT extversion FROM pg_extension WHERE extname = 'timescaledb'", []),
    ("""SELECT schema_name AS "name" FROM information_schema.schemata
        WHERE schema_name NOT IN ('information_schema', 'pg_catalog', 'pg_toast', '_timescaledb_cache')
        ORDER BY schema_name""", [("power",)]),
    ("SELECT schema_name FROM information_schema.schemata WHERE schema_name NOT LIKE 'pg_%' "
     "AND schema_name != 'information_schema' ORDER BY schema_name", [("power",)]),
    ("""SELECT quote_ident(table_name) AS "table" FROM information_schema.tables
        WHERE quote_ident(table_schema) = 'power' ORDER BY 1""", [("meters",), ("readings",)]),
    (f"""SELECT CASE WHEN quote_ident(table_schema) IN {_PATH} THEN quote_ident(table_name)
         ELSE quote_ident(table_schema) || '.' || quote_ident(table_name) END AS "table"
         FROM information_schema.tables WHERE quote_ident(table_schema) NOT IN ('information_schema', 'pg_catalog')
         ORDER BY CASE WHEN quote_ident(table_schema) IN {_PATH} THEN 0 ELSE 1 END, 1""", [("meters",), ("readings",)]),
    *((columns_of(table), [("ts", "timestamp with time zone"), ("v", "double precision"), ("n", "integer"),
                           ("place", "character varying")]) for table in ("meters", "power.meters")),
    ("""SELECT 's' AS col_name, "s"::text AS val FROM (SELECT DISTINCT "s" FROM "power"."readings"
        WHERE "s" IS NOT NULL ORDER BY "s" LIMIT 100) sub_0 UNION ALL SELECT 'v' AS col_name, "v"::text AS val
        FROM (SELECT DISTINCT "v" FROM "power"."readings" WHERE "v" IS NOT NULL ORDER BY "v" LIMIT 100) sub_1""",
     [("s", "a"), ("s", "b"), ("v", "1"), ("v", "4"), ("v", "9")]),
])
def test_tables_and_columns(pair: PostgresPair, query: str, rows: list[tuple[object, ...]]) -> None:
    """What the editor of queries offers."""
    found = pair.ask(query)
    assert (found if "order by" in query.lower() else sorted(found)) == sorted(rows)


def test_columns_with_types(pair: PostgresPair) -> None:
    """What a schema's tables and columns are asked for with parameters."""
    assert pair.ask("SELECT table_name FROM information_schema.tables WHERE table_schema = %s "
                    "AND table_type IN ('BASE TABLE', 'VIEW') ORDER BY table_name", ("power",)) == [
        ("meters",), ("readings",)]
    found = pair.ask("SELECT column_name, data_type, udt_name, numeric_precision, numeric_scale FROM "
                     "information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position",
                     ("power", "readings"))
    assert found[4] == ("d", "numeric", "numeric", 10, 2)


def test_version(pair: PostgresPair) -> None:
    """Which version's functions its editor may offer."""
    assert pair.penstock.execute("SELECT current_setting('server_version_num')::int/100 as version").fetchone() == (
        1600,)


@pytest.mark.parametrize(("query", "rows"), [
    # $__time and $__timeFilter
    ("""SELECT ts AS "time", v FROM readings WHERE ts BETWEEN '2024-03-10T10:00:00.5Z' AND '2024-03-10T10:01:00Z'
        ORDER BY 1 LIMIT 50""", None),
    # $__timeFrom and $__timeTo
    ("""SELECT v FROM readings WHERE ts > '2024-03-10T10:00:10Z' AND ts < '2024-03-12T00:00:00Z' ORDER BY v""",
     [(4,), (9,)]),
    # $__timeGroup and $__timeGroupAlias, whose column may be grouped by its name or place
    ("""SELECT floor(extract(epoch from ts)/60)*60 AS "time", avg(v) AS "v", s AS metric FROM readings
        WHERE ts BETWEEN '2024-03-10T00:00:00Z' AND '2024-03-11T00:00:00Z' GROUP BY 1, 3 ORDER BY 1, 3""",
     [(1710064800, 1, "a"), (1710064800, 4, "b"), (1710064860, 9, "a")]),
    ("""SELECT floor(extract(epoch from "ts")/3600)*3600 AS "time", sum("v") AS "sum" FROM "power"."readings"
        GROUP BY "time" ORDER BY "time" """, [(1710064800, 14), (1712012400, None)]),
    ("""SELECT floor(extract(epoch from ts)/60)*60 AS "time",
        avg(v) - lag(avg(v)) OVER (ORDER BY floor(extract(epoch from ts)/60)*60) AS d FROM readings
        GROUP BY 1 ORDER BY 1""", [(1710064800, None), (1710064860, 6.5), (1712015940, None)]),
    # $__timeEpoch
    ("""SELECT extract(epoch from ts) as "time", v FROM readings ORDER BY ts""", None),
    # $__unixEpochGroup and $__unixEpochFilter
    ("""SELECT floor((epoch)/60)*60 AS "time", count(*) AS n FROM readings
        WHERE epoch >= 1710064800 AND epoch <= 1712015999 GROUP BY 1 ORDER BY 1""",
     [(1710064800, 2), (1710064860, 1), (1712015940, 1)]),
])
def test_macros(pair: PostgresPair, query: str, rows: list[tuple[object, ...]] | None) -> None:
    """Panels' queries, as macros make them."""
    found = pair.ask(query)
    assert rows is None or found == rows
