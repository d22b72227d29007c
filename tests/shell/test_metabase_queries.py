"""What Metabase asks of PostgreSQL: by its driver and JDBC for tables, fields and rights, and by its questions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kits.basics.external_servers import Postgres
from kits.engines.postgres_pair import PostgresPair, postgres_pair


@pytest.fixture(scope="module")
def pair(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresPair]:
    with postgres_pair(tmp_path_factory.mktemp("pair"), postgres) as opened:
        yield opened



_TABLES = """SELECT "n"."nspname" AS "schema", "c"."relname" AS "name", CASE "c"."relkind" WHEN 'r' THEN 'TABLE'
    WHEN 'p' THEN 'PARTITIONED TABLE' WHEN 'v' THEN 'VIEW' WHEN 'f' THEN 'FOREIGN TABLE'
    WHEN 'm' THEN 'MATERIALIZED VIEW' ELSE NULL END AS "type", "d"."description" AS "description"
    FROM "pg_catalog"."pg_class" AS "c"
    INNER JOIN "pg_catalog"."pg_namespace" AS "n" ON "c"."relnamespace" = "n"."oid"
    LEFT JOIN "pg_catalog"."pg_description" AS "d" ON ("c"."oid" = "d"."objoid") AND ("d"."objsubid" = 0)
    AND ("d"."classoid" = 'pg_class'::regclass)
    LEFT JOIN "pg_stat_user_tables" AS "stat" ON ("n"."nspname" = "stat"."schemaname")
    AND ("c"."relname" = "stat"."relname")
    WHERE ("c"."relnamespace" = "n"."oid") AND ("n"."nspname" !~ '^pg_') AND ("n"."nspname" <> 'information_schema')
    AND c.relkind in ('r', 'p', 'v', 'f', 'm') AND ("n"."nspname" IN ('power'))
    ORDER BY "type" ASC, "schema" ASC, "name" ASC"""
_FIELDS = """SELECT "c"."column_name" AS "name", CASE WHEN "c"."udt_schema" IN ('public', 'pg_catalog')
    THEN FORMAT('%%s', "c"."udt_name") ELSE FORMAT('"%%s"."%%s"', "c"."udt_schema", "c"."udt_name") END
    AS "database-type", "c"."ordinal_position" - 1 AS "database-position", "c"."table_schema" AS "table-schema",
    "c"."table_name" AS "table-name", "pk"."column_name" IS NOT NULL AS "pk?",
    COL_DESCRIPTION(CAST(CAST(FORMAT('%%I.%%I', CAST("c"."table_schema" AS TEXT), CAST("c"."table_name" AS TEXT))
    AS REGCLASS) AS OID), "c"."ordinal_position") AS "field-comment",
    (("column_default" IS NULL) OR (LOWER("column_default") = 'null')) AND ("is_nullable" = 'NO')
    AND NOT ((("column_default" IS NOT NULL) AND ("column_default" LIKE '%%nextval(%%')) OR ("is_identity" <> 'NO'))
    AS "database-required"
    FROM "information_schema"."columns" AS "c" LEFT JOIN (
      SELECT "tc"."table_schema", "tc"."table_name", "kc"."column_name"
      FROM "information_schema"."table_constraints" AS "tc"
      INNER JOIN "information_schema"."key_column_usage" AS "kc" ON ("tc"."constraint_name" = "kc"."constraint_name")
      AND ("tc"."table_schema" = "kc"."table_schema") AND ("tc"."table_name" = "kc"."table_name")
      WHERE "tc"."constraint_type" = 'PRIMARY KEY') AS "pk" ON ("c"."table_schema" = "pk"."table_schema")
    AND ("c"."table_name" = "pk"."table_name") AND ("c"."column_name" = "pk"."column_name")
    WHERE c.table_schema !~ '^information_schema|catalog_history|pg_' AND ("c"."table_schema" IN (%s))
    UNION ALL SELECT "pa"."attname" AS "name", CASE WHEN "ptn"."nspname" IN ('public', 'pg_catalog')
    THEN FORMAT('%%s', "pt"."typname") ELSE FORMAT('"%%s"."%%s"', "ptn"."nspname", "pt"."typname") END
    AS "database-type", "pa"."attnum" - 1 AS "database-position", "pn"."nspname" AS "table-schema",
    "pc"."relname" AS "table-name", FALSE AS "pk?", NULL AS "field-comment", FALSE AS "database-required"
    FROM "pg_catalog"."pg_class" AS "pc"
    INNER JOIN "pg_catalog"."pg_namespace" AS "pn" ON "pn"."oid" = "pc"."relnamespace"
    INNER JOIN "pg_catalog"."pg_attribute" AS "pa" ON "pa"."attrelid" = "pc"."oid"
    INNER JOIN "pg_catalog"."pg_type" AS "pt" ON "pt"."oid" = "pa"."atttypid"
    INNER JOIN "pg_catalog"."pg_namespace" AS "ptn" ON "ptn"."oid" = "pt"."typnamespace"
    WHERE ("pc"."relkind" = 'm') AND ("pa"."attnum" >= 1) AND ("pn"."nspname" IN (%s))
    ORDER BY "table-schema" ASC, "table-name" ASC, "database-position" ASC"""
_FOREIGN_KEYS = """SELECT "fk_ns"."nspname" AS "fk-table-schema", "fk_table"."relname" AS "fk-table-name",
    "fk_column"."attname" AS "fk-column-name", "pk_ns"."nspname" AS "pk-table-schema",
    "pk_table"."relname" AS "pk-table-name", "pk_column"."attname" AS "pk-column-name" FROM "pg_constraint" AS "c"
    INNER JOIN "pg_class" AS "fk_table" ON "c"."conrelid" = "fk_table"."oid"
    INNER JOIN "pg_namespace" AS "fk_ns" ON "c"."connamespace" = "fk_ns"."oid"
    INNER JOIN "pg_attribute" AS "fk_column" ON "c"."conrelid" = "fk_column"."attrelid"
    INNER JOIN "pg_class" AS "pk_table" ON "c"."confrelid" = "pk_table"."oid"
    INNER JOIN "pg_namespace" AS "pk_ns" ON "pk_table"."relnamespace" = "pk_ns"."oid"
    INNER JOIN "pg_attribute" AS "pk_column" ON "c"."confrelid" = "pk_column"."attrelid"
    WHERE fk_ns.nspname !~ '^information_schema|catalog_history|pg_' AND ("c"."contype" = 'f'::char)
    AND ("fk_column"."attnum" = ANY(c.conkey)) AND ("pk_column"."attnum" = ANY(c.confkey))
    ORDER BY "fk-table-schema" ASC, "fk-table-name" ASC"""
_INDEXES = """SELECT "tmp"."table-schema", "tmp"."table-name",
    TRIM(BOTH '"' FROM PG_CATALOG.PG_GET_INDEXDEF("tmp"."ci_oid", "tmp"."pos", FALSE)) AS "field-name"
    FROM (SELECT "n"."nspname" AS "table-schema", "ct"."relname" AS "table-name", "ci"."oid" AS "ci_oid",
      (INFORMATION_SCHEMA._PG_EXPANDARRAY("i"."indkey"))."n" AS "pos" FROM "pg_catalog"."pg_class" AS "ct"
      INNER JOIN "pg_catalog"."pg_namespace" AS "n" ON "ct"."relnamespace" = "n"."oid"
      INNER JOIN "pg_catalog"."pg_index" AS "i" ON "ct"."oid" = "i"."indrelid"
      INNER JOIN "pg_catalog"."pg_class" AS "ci" ON "ci"."oid" = "i"."indexrelid"
      WHERE (PG_CATALOG.PG_GET_EXPR("i"."indpred", "i"."indrelid") IS NULL)
      AND n.nspname !~ '^information_schema|catalog_history|pg_' AND ("ct"."relname" IN ('readings'))) AS "tmp"
    WHERE "tmp"."pos" = 1"""
_NAME = """'"' || replace(t.schemaname, '"', '""') || '"' || '.' || '"' || replace(t.objectname, '"', '""') || '"'"""
_PRIVILEGES = f"""with table_privileges as (select NULL as role, t.schemaname as schema, t.objectname as table,
    pg_catalog.has_any_column_privilege(current_user, {_NAME}, 'update') as update,
    pg_catalog.has_any_column_privilege(current_user, {_NAME}, 'select') as select,
    pg_catalog.has_any_column_privilege(current_user, {_NAME}, 'insert') as insert,
    pg_catalog.has_table_privilege(current_user, {_NAME}, 'delete') as delete
    from (select schemaname, tablename as objectname from pg_catalog.pg_tables
      union select schemaname, viewname as objectname from pg_catalog.pg_views
      union select schemaname, matviewname as objectname from pg_catalog.pg_matviews) t
    where t.schemaname !~ '^pg_' and t.schemaname <> 'information_schema'
    and pg_catalog.has_schema_privilege(current_user, t.schemaname, 'usage'))
    select t.* from table_privileges t"""
_ENUMS = """SELECT nspname, typname FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
    WHERE t.oid IN (SELECT DISTINCT enumtypid FROM pg_enum e)"""
# --- by JDBC
_SCHEMAS = """SELECT nspname AS TABLE_SCHEM, NULL AS TABLE_CATALOG FROM pg_catalog.pg_namespace
    WHERE nspname <> 'pg_toast' AND (nspname !~ '^pg_temp_' OR nspname = (pg_catalog.current_schemas(true))[1])
    AND (nspname !~ '^pg_toast_temp_' OR nspname =
    replace((pg_catalog.current_schemas(true))[1], 'pg_temp_', 'pg_toast_temp_')) ORDER BY TABLE_SCHEM"""
_COLUMNS = """SELECT * FROM (SELECT n.nspname,c.relname,a.attname,a.atttypid,
    a.attnotnull OR (t.typtype = 'd' AND t.typnotnull) AS attnotnull,a.atttypmod,a.attlen,t.typtypmod,
    row_number() OVER (PARTITION BY a.attrelid ORDER BY a.attnum) AS attnum, nullif(a.attidentity, '') as attidentity,
    nullif(a.attgenerated, '') as attgenerated,pg_catalog.pg_get_expr(def.adbin, def.adrelid) AS adsrc,
    dsc.description,t.typbasetype,t.typtype FROM pg_catalog.pg_namespace n
    JOIN pg_catalog.pg_class c ON (c.relnamespace = n.oid) JOIN pg_catalog.pg_attribute a ON (a.attrelid=c.oid)
    JOIN pg_catalog.pg_type t ON (a.atttypid = t.oid)
    LEFT JOIN pg_catalog.pg_attrdef def ON (a.attrelid=def.adrelid AND a.attnum = def.adnum)
    LEFT JOIN pg_catalog.pg_description dsc ON (c.oid=dsc.objoid AND a.attnum = dsc.objsubid)
    LEFT JOIN pg_catalog.pg_class dc ON (dc.oid=dsc.classoid AND dc.relname='pg_class')
    LEFT JOIN pg_catalog.pg_namespace dn ON (dc.relnamespace=dn.oid AND dn.nspname='pg_catalog')
    WHERE c.relkind in ('r','p','v','f','m') and a.attnum > 0 AND NOT a.attisdropped AND n.nspname LIKE 'power'
    AND c.relname LIKE 'readings') c WHERE true ORDER BY nspname,c.relname,attnum """
_PRIMARY_KEYS = """SELECT result.TABLE_SCHEM, result.TABLE_NAME, result.COLUMN_NAME, result.KEY_SEQ, result.PK_NAME
    FROM (SELECT n.nspname AS TABLE_SCHEM, ct.relname AS TABLE_NAME, a.attname AS COLUMN_NAME,
    (information_schema._pg_expandarray(i.indkey)).n AS KEY_SEQ, ci.relname AS PK_NAME,
    information_schema._pg_expandarray(i.indkey) AS KEYS, a.attnum AS A_ATTNUM FROM pg_catalog.pg_class ct
    JOIN pg_catalog.pg_attribute a ON (ct.oid = a.attrelid)
    JOIN pg_catalog.pg_namespace n ON (ct.relnamespace = n.oid)
    JOIN pg_catalog.pg_index i ON ( a.attrelid = i.indrelid)
    JOIN pg_catalog.pg_class ci ON (ci.oid = i.indexrelid)
    WHERE true AND n.nspname = 'power' AND ct.relname = 'readings' AND i.indisprimary ) result
    where result.A_ATTNUM = (result.KEYS).x ORDER BY result.table_name, result.pk_name, result.key_seq"""
_TYPE = """SELECT typinput='pg_catalog.array_in'::regproc as is_array, typtype, typname, pg_type.oid
    FROM pg_catalog.pg_type LEFT JOIN (select ns.oid as nspoid, ns.nspname, r.r from pg_namespace as ns
    join ( select s.r, (current_schemas(false))[s.r] as nspname
    from generate_series(1, array_upper(current_schemas(false), 1)) as s(r) ) as r using ( nspname ) ) as sp
    ON sp.nspoid = typnamespace WHERE typname = %s ORDER BY sp.r, pg_type.oid DESC LIMIT 1"""


@pytest.mark.parametrize(("query", "count"), [
    (_TABLES, 2), (_FOREIGN_KEYS, 0), (_INDEXES, 1), (_PRIVILEGES, 2), (_ENUMS, 0), (_SCHEMAS, 3), (_COLUMNS, 6),
    (_PRIMARY_KEYS, 1), ("""SELECT TRUE AS "_" FROM "power"."readings" WHERE 1 <> 1 LIMIT 0""", 0)])
def test_catalog(pair: PostgresPair, query: str, count: int) -> None:
    """What it looks through when it reads a database's tables in."""
    assert len(pair.ask(query)) == count


def test_catalog_by_parameters(pair: PostgresPair) -> None:
    """Fields of schemas, and types by their names."""
    assert len(pair.ask(_FIELDS, ("power", "power"))) == 10
    assert pair.ask(_TYPE, ("timestamptz",)) == [(False, "b", "timestamptz", 1184)]


def test_session(pair: PostgresPair) -> None:
    """The time zone of a report, and of the server."""
    with pair.here.connect() as session:
        session.execute("SET SESSION TIMEZONE TO 'Asia/Kolkata';")
        assert session.execute("show timezone;").fetchall() == [("Asia/Kolkata",)]


_TS, _V, _S = (f'"power"."readings"."{name}"' for name in ("ts", "v", "s"))
_FROM = 'FROM "power"."readings"'


def summed(unit: str, value: str = "COUNT(*)") -> str:
    """Returns a question that sums up by a time or a number."""
    return f'SELECT {unit} AS "unit", {value} AS "value" {_FROM} GROUP BY {unit} ORDER BY {unit} ASC'


@pytest.mark.parametrize("query", [
    *(summed(f"DATE_TRUNC('{unit}', {_TS})") for unit in ("minute", "hour", "month", "quarter", "year")),
    summed(f"(DATE_TRUNC('week', ({_TS} + INTERVAL '1 day')) + INTERVAL '-1 day')"),
    *(summed(f"CAST(EXTRACT({part} from {_TS}) AS integer)")
      for part in ("minute", "hour", "day", "doy", "week", "month", "quarter")),
    summed(f"(CAST(EXTRACT(dow from {_TS}) AS integer) + 1)"),
    summed("""DATE_TRUNC('hour', TO_TIMESTAMP("power"."readings"."epoch"))""", f"SUM({_V})"),
    f"""SELECT (FLOOR(({_V} / 5.0)) * 5.0) AS "v", COUNT(*) AS "count" {_FROM} WHERE {_V} IS NOT NULL
        GROUP BY (FLOOR(({_V} / 5.0)) * 5.0) ORDER BY (FLOOR(({_V} / 5.0)) * 5.0) ASC""",
    f"""SELECT {_V} AS "v" {_FROM} WHERE ({_TS} >= timestamp with time zone '2024-03-10 10:00:10.000Z')
        AND ({_TS} < timestamp with time zone '2024-03-11 00:00:00.000Z') LIMIT 1048575""",
    f"""SELECT COUNT(*) AS "count" {_FROM} WHERE {_TS} >= DATE_TRUNC('month', (NOW() + INTERVAL '-1 month'))
        AND {_TS} < DATE_TRUNC('month', NOW())""",
    f"""SELECT COUNT(*) AS "count" {_FROM}
        WHERE CAST({_TS} AS date) BETWEEN date '2024-03-01' AND date '2024-03-31'""",
    f"""SELECT SUBSTRING({_S}, 1, 1234) AS "substring1", CAST({_V} AS TEXT) AS "text", {_S} AS "s" {_FROM}
        ORDER BY {_TS}""",
    f"""SELECT SPLIT_PART({_S}, 'b', 1) AS "part", NULLIF({_S}, 'a') AS "other" {_FROM} ORDER BY {_TS}""",
    f"""SELECT "source"."s" AS "s", AVG("source"."v") AS "avg"
        FROM (SELECT {_S} AS "s", {_V} AS "v" {_FROM}) AS "source"
        GROUP BY "source"."s" ORDER BY "avg" DESC NULLS LAST, "source"."s" ASC""",
    f"""SELECT {_V} AS "v", "Meters"."place" AS "Meters__place" {_FROM}
        LEFT JOIN "power"."meters" AS "Meters" ON {_V} = "Meters"."n" ORDER BY {_TS}, "Meters"."place" """,
    f"""SELECT COUNT(*) AS "count", MIN({_TS}) AS "min", MAX({_V}) AS "max" {_FROM}
        WHERE ({_S} <> '') OR ({_S} IS NULL)""",
    f"""SELECT PERCENTILE_CONT(0.5) within group (order by {_V}) AS "median", STDDEV_POP({_V}) AS "stddev",
        COUNT(distinct {_S}) AS "count" {_FROM}""",
    summed(f"CAST({_TS} AS date)", f"SUM({_V})"),
    summed(f"CAST(DATE_TRUNC('day', timezone('Europe/Berlin', {_TS})) AS date)"),
    f"""SELECT CAST(TRUNC(EXTRACT(epoch from "max") - EXTRACT(epoch from "min")) AS integer) AS "seconds"
        FROM (SELECT MAX({_TS}) AS "max", MIN({_TS}) AS "min" {_FROM}) AS "source" """,
])
def test_questions(pair: PostgresPair, query: str) -> None:
    """Sums by time, day, part of a time and number, filters, texts, nested questions, joins, differences of times."""
    pair.ask(query)


def test_questions_by_parameters(pair: PostgresPair) -> None:
    """Values of filters are parameters, with casts or without."""
    for cast in ("", "::timestamptz"):
        assert pair.ask(f'SELECT {_V} AS "v" {_FROM} WHERE ({_TS} >= %s{cast}) AND ({_S} = %s) LIMIT 1048575',
                        ("2024-03-10 10:00:10+00", "b")) == [(4,)]
    assert pair.ask(f'SELECT COUNT(*) AS "count" {_FROM} WHERE (LOWER({_S}) LIKE %s)', ("%a%",)) == [(2,)]
