"""What dbt asks of PostgreSQL by its adapter: for relations, columns and rights, and by its tests of data."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kits.basics.external_servers import Postgres
from kits.engines.postgres_pair import PostgresPair, postgres_pair


@pytest.fixture(scope="module")
def pair(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresPair]:
    with postgres_pair(tmp_path_factory.mktemp("pair"), postgres) as opened:
        yield opened


_CATALOG = """/* {"app": "dbt", "node_id": null} */
    select 'power' as table_database, sch.nspname as table_schema, tbl.relname as table_name,
      case tbl.relkind when 'v' then 'VIEW' when 'm' then 'MATERIALIZED VIEW' else 'BASE TABLE' end as table_type,
      tbl_desc.description as table_comment, col.attname as column_name, col.attnum as column_index,
      pg_catalog.format_type(col.atttypid, col.atttypmod) as column_type, col_desc.description as column_comment,
      pg_get_userbyid(tbl.relowner) as table_owner
    from pg_catalog.pg_namespace sch
    join pg_catalog.pg_class tbl on tbl.relnamespace = sch.oid
    join pg_catalog.pg_attribute col on col.attrelid = tbl.oid
    left outer join pg_catalog.pg_description tbl_desc on (tbl_desc.objoid = tbl.oid and tbl_desc.objsubid = 0)
    left outer join pg_catalog.pg_description col_desc
      on (col_desc.objoid = tbl.oid and col_desc.objsubid = col.attnum)
    where ((upper(sch.nspname) = upper('power') and upper(tbl.relname) = upper('readings')))
      and not pg_is_other_temp_schema(sch.oid) -- not a temporary schema of another session
      and tbl.relpersistence in ('p', 'u') -- [p]ermanent or [u]nlogged
      and tbl.relkind in ('r', 'v', 'f', 'p', 'm')
      and col.attnum > 0 and not col.attisdropped
    order by sch.nspname, tbl.relname, col.attnum"""
_DEPENDENCES = r"""select distinct dependent_namespace.nspname as dependent_schema,
      dependent_class.relname as dependent_name, referenced_namespace.nspname as referenced_schema,
      referenced_class.relname as referenced_name
    from pg_class as dependent_class
    join pg_namespace as dependent_namespace on dependent_namespace.oid = dependent_class.relnamespace
    join pg_depend as dependent_depend on dependent_depend.refobjid = dependent_class.oid
      and dependent_depend.classid = 'pg_rewrite'::regclass and dependent_depend.refclassid = 'pg_class'::regclass
      and dependent_depend.deptype = 'i'
    join pg_depend as joining_depend on joining_depend.objid = dependent_depend.objid
      and joining_depend.classid = 'pg_rewrite'::regclass and joining_depend.refclassid = 'pg_class'::regclass
      and joining_depend.refobjid != dependent_depend.refobjid
    join pg_class as referenced_class on referenced_class.oid = joining_depend.refobjid
    join pg_namespace as referenced_namespace on referenced_namespace.oid = referenced_class.relnamespace
      and referenced_namespace.nspname != 'information_schema' and referenced_namespace.nspname not like 'pg\_%'
    order by dependent_schema, dependent_name, referenced_schema, referenced_name;"""
_INDEXES = """select i.relname as name, m.amname as method, ix.indisunique as "unique",
      array_to_string(array_agg(a.attname), ',') as column_names
    from pg_index ix
    join pg_class i on i.oid = ix.indexrelid join pg_am m on m.oid = i.relam
    join pg_class t on t.oid = ix.indrelid join pg_namespace n on n.oid = t.relnamespace
    join pg_attribute a on a.attrelid = t.oid and a.attnum = ANY(ix.indkey)
    where t.relname = 'readings' and n.nspname = 'power' and t.relkind in ('r', 'm')
    group by 1, 2, 3 order by 1, 2, 3"""
_GRANTS = """select grantee, privilege_type from "power".INFORMATION_SCHEMA.role_table_grants
    where grantor = current_role and grantee != current_role and table_schema = 'power' and table_name = 'readings'"""


@pytest.mark.parametrize(("query", "rows"), [
    ("""select 'power' as database, tablename as name, schemaname as schema, 'table' as type from pg_tables
        where schemaname ilike 'power'
        union all select 'power' as database, viewname as name, schemaname as schema, 'view' as type from pg_views
        where schemaname ilike 'power'
        union all select 'power' as database, matviewname as name, schemaname as schema, 'materialized_view' as type
        from pg_matviews where schemaname ilike 'power'""",
     [("power", "meters", "power", "table"), ("power", "readings", "power", "table")]),
    ("""select column_name, data_type, character_maximum_length, numeric_precision, numeric_scale
        from "power".INFORMATION_SCHEMA.columns where table_name = 'readings' and table_schema = 'power'
        order by ordinal_position""",
     [("ts", "timestamp with time zone", None, None, None), ("v", "integer", None, 32, 0),
      ("s", "character varying", 20, None, None), ("ok", "boolean", None, None, None), ("d", "numeric", None, 10, 2),
      ("epoch", "bigint", None, 64, 0)]),
    ("select count(*) from pg_namespace where nspname = 'power'", [(1,)]),
    (_CATALOG, [("power", "power", "readings", "BASE TABLE", "by hand", name, place, kind, None, "root")
                for place, (name, kind) in enumerate((
                    ("ts", "timestamp with time zone"), ("v", "integer"), ("s", "character varying(20)"),
                    ("ok", "boolean"), ("d", "numeric(10,2)"), ("epoch", "bigint")), 1)]),
    (_DEPENDENCES, []), (_INDEXES, [("readings_pkey", "btree", True, "ts")]), (_GRANTS, []),
])
def test_relations(pair: PostgresPair, query: str, rows: list[tuple[object, ...]]) -> None:
    """What it takes to know of tables, their columns, and what depends on what."""
    assert pair.ask(query) == rows


def test_schemas(pair: PostgresPair) -> None:
    """Those that there are."""
    found = {name for (name,) in pair.penstock.execute("select distinct nspname from pg_namespace")}
    assert found == {"power", "pg_catalog", "information_schema"}


def test_a_query_is_cancelled(pair: PostgresPair) -> None:
    """By the process of its connection; a process that isn't there is told as such."""
    pid = pair.penstock.info.backend_pid
    with pair.here.connect() as other:
        assert other.execute(f"select pg_terminate_backend({pid})").fetchall() == [(True,)]
    assert pair.ask("select pg_terminate_backend(0)") == [(False,)]


@pytest.mark.parametrize(("query", "rows"), [
    ("""select * from (select ts, v, s from "power"."readings") as __dbt_sbq where false limit 0""", []),
    ("""select count(*) as failures, count(*) != 0 as should_warn, count(*) != 0 as should_error from (
          select v from "power"."readings" where v is null) dbt_internal_test""", [(1, True, True)]),
    ("""select count(*) as failures from (select s as unique_field, count(*) as n_records from "power"."readings"
        where s is not null group by s having count(*) > 1) dbt_internal_test""", [(1,)]),
    ("""with all_values as (select s as value_field, count(*) as n_records from "power"."readings" group by s)
        select * from all_values where value_field not in ('b', 'c')""", [("a", 2)]),
    ("""with child as (select n as from_field from "power"."meters" where n is not null),
        parent as (select v as to_field from "power"."readings")
        select from_field from child left join parent on child.from_field = parent.to_field
        where parent.to_field is null""", [(2,)]),
    ("""with recent as (select date_trunc('hour', ts) as hour, count(*) as n, max(d) as d from "power"."readings"
        group by 1) select n, cast(d as text) as d from recent order by hour limit 5""", [(3, "2.50"), (1, "-7.00")]),
    ("""select max(ts) as max_loaded_at, (select count(*) from "power"."readings") as n from "power"."readings" """,
     None),
])
def test_queries_of_data(pair: PostgresPair, query: str, rows: list[tuple[object, ...]] | None) -> None:
    """Its generic tests (not_null, unique, accepted_values, relationships), `dbt show`, and how fresh a source is."""
    found = pair.ask(query)
    assert rows is None or found == rows
