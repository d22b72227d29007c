"""PostgreSQL's catalog as SQL for DuckDB: functions that clients call in it, and the tables that are empty here."""

from __future__ import annotations

_INT, _TEXT, _BOOL = "BIGINT", "VARCHAR", "BOOLEAN"
PG_CLASS_OID = 1259
"""The number of `pg_class`, by which comments say that they are of tables."""

#: Those that have rows come from `catalog_tables`. Names end in what a column holds: see `_column`.
EMPTY_TABLES: dict[str, str] = {
    "pg_attrdef": "oid adrelid adnum adbin'",
    "pg_shdescription": "objoid classoid description'",
    "pg_inherits": "inhrelid inhparent inhseqno inhdetachpending?",
    "pg_proc": "oid proname' pronamespace proowner prolang prokind' proretset? prorettype proargtypes[] pronargs "
               "proargnames' prosrc' provolatile' proisstrict? prosecdef? proparallel' proacl' proallargtypes[] "
               "proargmodes' proargdefaults' proleakproof? procost prorows provariadic prosupport",
    "pg_trigger": "oid tgrelid tgname' tgfoid tgtype tgenabled' tgisinternal? tgconstraint tgparentid tgdeferrable? "
                  "tginitdeferred?",
    "pg_rewrite": "oid rulename' ev_class ev_type' ev_enabled' is_instead?",
    "pg_policy": "oid polname' polrelid polcmd' polpermissive? polroles[] polqual' polwithcheck'",
    "pg_enum": "oid enumtypid enumsortorder enumlabel'",
    "pg_range": "rngtypid rngsubtype rngmultitypid rngcollation rngsubopc rngcanonical rngsubdiff",
    "pg_collation": "oid collname' collnamespace collowner collprovider' collisdeterministic? collcollate' collctype'",
    "pg_extension": "oid extname' extowner extnamespace extrelocatable? extversion'",
    "pg_foreign_table": "ftrelid ftserver ftoptions'", "pg_foreign_server": "oid srvname' srvowner srvfdw",
    "pg_publication": "oid pubname' pubowner puballtables?",
    "pg_publication_rel": "oid prpubid prrelid prqual' prattrs[]",
    "pg_publication_namespace": "oid pnpubid pnnspid", "pg_partitioned_table": "partrelid partstrat' partnatts",
    "pg_statistic_ext": "oid stxrelid stxname' stxnamespace stxowner stxstattarget stxkeys[] stxkind'[]",
    "pg_depend": "classid objid objsubid refclassid refobjid refobjsubid deptype'",
    "pg_sequence": "seqrelid seqtypid seqstart seqincrement seqmax seqmin seqcache seqcycle?",
    "pg_auth_members": "roleid member grantor",
    "pg_event_trigger": "oid evtname'", "pg_language": "oid lanname'", "pg_cast": "oid castsource casttarget",
    "pg_operator": "oid oprname' oprnamespace", "pg_opclass": "oid opcname' opcmethod opcnamespace opcdefault?",
    "pg_aggregate": "aggfnoid aggkind'", "pg_locks": "locktype' pid",
    "pg_indexes": "schemaname' tablename' indexname' tablespace' indexdef'",
    "pg_sequences": "schemaname' sequencename'", "pg_db_role_setting": "setdatabase setrole setconfig'",
    "pg_stat_user_tables": "relid schemaname' relname' n_live_tup", "pg_init_privs": "objoid classoid objsubid",
    "pg_seclabel": "objoid", "pg_largeobject_metadata": "oid lomowner", "pg_default_acl": "oid",
    "pg_user_mapping": "oid",
    "pg_foreign_data_wrapper": "oid fdwname'", "pg_ts_config": "oid cfgname'", "pg_ts_dict": "oid dictname'",
    "pg_conversion": "oid conname' connamespace", "pg_subscription": "oid subname'", "pg_transform": "oid",
    "info_referential_constraints": "constraint_catalog' constraint_schema' constraint_name' "
                                    "unique_constraint_catalog' unique_constraint_schema' unique_constraint_name' "
                                    "match_option' update_rule' delete_rule'",
    "info_constraint_column_usage": "table_catalog' table_schema' table_name' column_name' constraint_catalog' "
                                    "constraint_schema' constraint_name'",
    "info_routines": "specific_schema' specific_name' routine_schema' routine_name' routine_type' data_type'",
    "info_parameters": "specific_schema' specific_name' parameter_name' ordinal_position",
    "info_sequences": "sequence_catalog' sequence_schema' sequence_name'",
    "info_triggers": "trigger_schema' trigger_name' event_object_table'",
    "info_character_sets": "character_set_name'", "info_domains": "domain_schema' domain_name'",
    "info_column_privileges": "table_schema' table_name' column_name' privilege_type'",
    "info_table_privileges": "grantor' grantee' table_catalog' table_schema' table_name' privilege_type' is_grantable'",
    "info_role_table_grants": "grantor' grantee' table_catalog' table_schema' table_name' privilege_type' "
                              "is_grantable'",
}

#: What functions read: by names that no argument of theirs has, which would be taken for the column otherwise.
_SUBQUERIES = {
    "own_roles": "SELECT oid AS own_oid, rolname AS own_name FROM pg_roles",
    "own_types": "SELECT oid AS own_oid, typname AS own_name, long_name AS own_long FROM pg_type",
    "own_schemas": "SELECT oid AS own_oid, nspname AS own_name, may_write AS own_may_write FROM pg_namespace",
    "own_classes": "SELECT c.oid AS own_oid, relname AS own_name, nspname AS own_schema, is_current AS own_is_visible, "
                   "c.may_read AS own_may_read, c.may_write AS own_may_write "
                   "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
                   f"UNION ALL SELECT {PG_CLASS_OID}, 'pg_class', 'pg_catalog', true, true, false",
    "own_keys": "SELECT indexrelid AS own_oid, definition AS own_definition, key_names AS own_names FROM pg_index",
    "own_constraints": "SELECT oid AS own_oid, definition AS own_definition FROM pg_constraint",
    "own_comments": "SELECT objoid AS own_oid, description AS own_text FROM pg_description",
}
#: Which tables `a` names, by name or by number.
_NAMED = "replace(CAST(a AS VARCHAR), '\"', '') IN " \
         "(CAST(own_oid AS VARCHAR), CASE WHEN own_is_visible THEN own_name END, own_schema || '.' || own_name)"
_MAY = f"SELECT bool_or(own_may_read AND contains(lower(p), 'select') " \
       f"OR own_may_write AND regexp_matches(lower(p), 'insert|update|delete')) FROM own_classes WHERE {_NAMED}"
_MAY_SCHEMA = "SELECT bool_or(contains(lower(p), 'usage') OR own_may_write AND contains(lower(p), 'create')) " \
              "FROM own_schemas WHERE CAST(a AS VARCHAR) IN (CAST(own_oid AS VARCHAR), own_name)"
_KEY = "SELECT min(own_definition) FROM own_keys WHERE own_oid = a"

#: Functions whose answer doesn't depend on the session: parameters, and what is computed. Names come with arities.
FUNCTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("pg_get_userbyid", ("(a) AS (SELECT own_name FROM own_roles WHERE own_oid = a)",)),
    ("format_type", (
        "(a, b) AS (SELECT CASE WHEN own_oid = 1043 AND b > 4 THEN 'character varying(' || (b - 4) || ')' "
        "WHEN own_oid = 1700 AND b > 4 THEN 'numeric(' || ((b - 4) // 65536) || ',' || ((b - 4) % 65536) || ')' "
        "ELSE own_long END FROM own_types WHERE own_oid = a)",)),
    ("pg_table_is_visible", ("(a) AS (SELECT own_is_visible FROM own_classes WHERE own_oid = a)",)),
    ("to_regclass", (f"(a) AS (SELECT min(own_oid) FROM own_classes WHERE {_NAMED})",)),
    ("to_regtype", ("(a) AS (SELECT min(own_oid) FROM own_types WHERE a IN (own_name, own_long))",)),
    ("to_regnamespace", ("(a) AS (SELECT min(own_oid) FROM own_schemas WHERE own_name = a)",)),
    ("regclass_name", ("(a) AS (SELECT min(own_name) FROM own_classes WHERE own_oid = a)",)),
    ("regtype_name", ("(a) AS (SELECT min(own_long) FROM own_types WHERE own_oid = a)",)),
    ("regnamespace_name", ("(a) AS (SELECT min(own_name) FROM own_schemas WHERE own_oid = a)",)),
    *((name, ("(a) AS CAST(a AS BIGINT)",)) for name in ("pg_cancel_backend", "pg_terminate_backend")),
    ("_pg_expandarray", ("(a) AS unnest(list_transform(a, lambda x, i: {'x': x, 'n': i}))",)),
    ("pg_get_indexdef", (f"(a) AS ({_KEY})", f"(a, n, pretty) AS CASE WHEN n = 0 THEN ({_KEY}) ELSE "
                         "(SELECT min(own_names[n]) FROM own_keys WHERE own_oid = a) END")),
    ("pg_get_constraintdef", tuple(
        f"({given}) AS (SELECT min(own_definition) FROM own_constraints WHERE own_oid = a)"
        for given in ("a", "a, pretty"))),
    ("obj_description", tuple(
        f"({given}) AS (SELECT min(own_text) FROM own_comments WHERE own_oid = a)" for given in ("a", "a, catalog"))),
    ("pg_partition_ancestors", ("(a) AS a",)),
    ("pg_divide", ("(a, b) AS a // b",)),
    ("quote_ident", ("(a) AS CASE WHEN regexp_full_match(a, '[a-z_][a-z0-9_$]*') THEN a "
                     "ELSE '\"' || replace(a, '\"', '\"\"') || '\"' END",)),
    ("quote_literal", ("(a) AS '''' || replace(a, '''', '''''') || ''''",)),
    ("parse_ident", ("(a) AS string_split(replace(a, '\"', ''), '.')",)),
    ("array_lower", ("(a, b) AS CASE WHEN len(a) > 0 THEN 1 END",)),
    ("array_upper", ("(a, b) AS CASE WHEN len(a) > 0 THEN len(a) END",)),
    ("pg_encoding_to_char", ("(a) AS 'UTF8'",)),
    ("pg_size_pretty", ("(a) AS a::VARCHAR || ' bytes'",)),
    ("pg_get_function_identity_arguments", ("(a) AS ''",)),
    *((name, ("(a) AS true",)) for name in (
        "pg_type_is_visible", "pg_function_is_visible", "pg_opclass_is_visible", "pg_operator_is_visible",
        "pg_collation_is_visible")),
    *((name, ("(a) AS false",)) for name in ("pg_is_other_temp_schema", "pg_relation_is_publishable")),
    *((name, (f"(a, p) AS ({_MAY})", f"(u, a, p) AS ({_MAY})")) for name in (
        "has_table_privilege", "has_any_column_privilege")),
    ("has_column_privilege", (f"(a, c, p) AS ({_MAY})", f"(u, a, c, p) AS ({_MAY})")),
    ("has_schema_privilege", (f"(a, p) AS ({_MAY_SCHEMA})", f"(u, a, p) AS ({_MAY_SCHEMA})")),
    *((name, ("(a, b) AS true", "(a, b, c) AS true")) for name in (
        "has_database_privilege", "has_function_privilege", "pg_has_role")),
    *((name, ("(a) AS NULL::VARCHAR", "(a, b) AS NULL::VARCHAR", "(a, b, c) AS NULL::VARCHAR")) for name in (
        "col_description", "shobj_description", "pg_get_expr", "pg_get_viewdef", "pg_get_triggerdef",
        "pg_get_ruledef", "pg_get_functiondef",
        "pg_get_serial_sequence", "pg_get_function_result", "pg_get_function_arguments", "pg_get_partkeydef",
        "pg_get_statisticsobjdef_columns", "pg_tablespace_location")),
    *((name, ("(a) AS NULL::BIGINT", "(a, b) AS NULL::BIGINT")) for name in (  # nobody counts them
        "pg_total_relation_size", "pg_relation_size", "pg_table_size", "pg_indexes_size", "pg_database_size")),
    *((name, ("(a) AS 0", "(a, b) AS 0")) for name in ("pg_stat_get_numscans", "age")),
    ("pg_is_in_recovery", ("() AS false",)), ("pg_my_temp_schema", ("() AS 0",)),
    ("pg_postmaster_start_time", ("() AS NULL::TIMESTAMP",)), ("txid_current", ("() AS 0",)),
    ("inet_server_addr", ("() AS NULL::VARCHAR",)), ("inet_server_port", ("() AS NULL::INTEGER",)),
)
FUNCTION_NAMES = frozenset(name for name, _ in FUNCTIONS)


def statements() -> list[str]:
    """Returns the statements that make the empty tables and the functions."""
    tables = [f"CREATE TABLE {name} ({', '.join(map(_column, columns.split()))})"
              for name, columns in EMPTY_TABLES.items()]
    return tables + [f"CREATE MACRO {name}{', '.join(map(_filled, forms))}" for name, forms in FUNCTIONS]


def _filled(form: str) -> str:
    for name, query in _SUBQUERIES.items():
        form = form.replace(f"FROM {name}", f"FROM ({query}) AS {name}")
    return form


def _column(name: str) -> str:
    """Returns a column's definition: `name'` is a text, `name?` a truth, `name` a number; `[]` behind: many."""
    for mark, kind in (("'[]", f"{_TEXT}[]"), ("'", _TEXT), ("?", _BOOL), ("[]", f"{_INT}[]")):
        if name.endswith(mark):
            return f"{name.removesuffix(mark)} {kind}"
    return f"{name} {_INT}"
